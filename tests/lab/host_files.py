"""What is laid over the image for one host of either tier: names, keys, and the client's side of ssh."""

from __future__ import annotations

import uuid
from pathlib import Path

from .image import OWNER_SHIFT, shift_owners
from .ssh_files import make_key, ssh_settings, strict_settings

CONTAINER = "101"
CONTAINER_ADDRESS = "10.10.0.101"
INNER = f"var/lib/lxc/{CONTAINER}/rootfs/"


def write_host_files(folder: Path, alias: str, address: str, *, port: int = 22) -> None:
    """
    Write `files`, to be laid over the image, and `ssh_config`, `client_key` and `known_hosts` beside it.

    Args:
        folder: The host's private folder.
        alias: Its name; its container's is ALIAS-ct101.
        address: Where its sshd is reached from here.
        port: TCP port of that.
    """
    container_alias = f"{alias}-ct{CONTAINER}"
    files = folder / "files"
    inner = files / INNER
    client = make_key(folder / "client_key")
    place = address if port == 22 else f"[{address}]:{port}"
    known = ""
    for names, tree in ((f"{alias},{place}", files), (container_alias, inner)):
        known += f"{names} {lay_keys(tree, client.public)}\n"
        (tree / "etc/machine-id").write_text(f"{uuid.uuid4().hex}\n")
    shift_owners(inner, OWNER_SHIFT)
    (files / "etc/hostname").write_text(f"{alias}\n")
    (folder / "known_hosts").write_text(known)
    through = {"ProxyJump": alias, "HostKeyAlias": container_alias}
    (folder / "ssh_config").write_text(
        ssh_settings(f"{alias} {address}", HostName=address, Port=port)
        + ssh_settings(container_alias, HostName=CONTAINER_ADDRESS, **through)
        + strict_settings(folder)
        + ssh_settings("*", User="root")
    )


def lay_keys(tree: Path, authorized: str) -> str:
    """
    Put a new host key below `tree`, and let `authorized` log in as root and as the user op (uid 1000).

    Returns:
        The host's public key.
    """
    (tree / "etc/ssh").mkdir(parents=True)
    for home in (tree / "root", tree / "home/op"):
        (home / ".ssh").mkdir(mode=0o700, parents=True)
        home.chmod(0o700)
        keys = home / ".ssh/authorized_keys"
        keys.write_text(f"{authorized} lab\n")
        keys.chmod(0o600)
    shift_owners(tree / "home/op", 1000)
    return make_key(tree / "etc/ssh/ssh_host_ed25519_key").public
