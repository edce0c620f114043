"""Keys, known hosts and client configuration of the lab's hosts."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class KeyPair:
    """
    An ed25519 key pair as two files.

    Attributes:
        path: The private key; the public one is beside it, with `.pub`.
        public: The public key's line, without its comment.
    """

    path: Path
    public: str


def make_key(path: Path) -> KeyPair:
    """Make a new key pair at `path`, replacing one that is there."""
    path.unlink(missing_ok=True)
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(path)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    return KeyPair(path, " ".join(Path(f"{path}.pub").read_text().split()[:2]))


def ssh_settings(names: str, **settings: object) -> str:
    """Give a block of ssh_config for `names`, one setting a line."""
    return f"Host {names}\n" + "".join(f"    {key} {value}\n" for key, value in settings.items()) + "\n"


def strict_settings(folder: Path) -> str:
    """Give what all hosts of the lab share: nothing of the user's own files, host keys verified."""
    return ssh_settings(
        "*",
        IdentityFile=folder / "client_key",
        IdentitiesOnly="yes",
        IdentityAgent="none",
        UserKnownHostsFile=folder / "known_hosts",
        GlobalKnownHostsFile="/dev/null",
        StrictHostKeyChecking="yes",
        UpdateHostKeys="no",
        PreferredAuthentications="publickey",
        ConnectTimeout=10,
    )
