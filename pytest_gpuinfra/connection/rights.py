"""
What stands in front of a target's python3 when it gets more rights than the login has: all of root's, or reading alone.

The command line of a run and the sudoers file that allows it are made here, of the same words.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from pytest_gpuinfra.errors import UnreachableError

Sudo: TypeAlias = bool | Literal["read"]
"""True: everything as root. "read": as the login's own account, with READ_CAPABILITIES. False: as whoever logs in."""

READ_CAPABILITIES = ("dac_read_search", "syslog")
"""
Capabilities (capabilities(7), by setpriv's names) that read and cannot be made into root's by themselves.

sys_ptrace is not among them: it would read what another user's process runs with, and writes its memory just as well,
that of root's processes included. Nor is sys_admin, which PCI configuration space beyond 64 bytes is kept for.
"""

READ_PYTHONS = ("/usr/bin/python3", "/usr/libexec/platform-python")
"""Interpreters that the sudoers file allows; its words are compared as they stand, so no PATH has a say."""

_NAME = re.compile(r"(?=.*[a-z])[A-Za-z_][A-Za-z0-9_.-]*")  # without a small letter it might be an alias there, or ALL


def sudo_prefix(sudo: Sudo) -> str:
    """Give the shell words in front of python3, with a blank behind them; "" without sudo."""
    if sudo == "read":
        return f"sudo -n {' '.join(_reading_words('$(id -un)', '$(id -gn)'))} "
    return "sudo -n " if sudo else ""


def explain_refusal(name: str, sudo: Sudo, output: str) -> UnreachableError | None:
    """Give what a session's standard error means if sudo, or setpriv behind it, refused; None for anything else."""
    if not sudo or not re.search(r"^(?:sudo|setpriv): ", output, re.MULTILINE | re.IGNORECASE):
        return None
    remedy = "allow this user `sudo -n python3` (NOPASSWD in sudoers), or leave --gpu-sudo out"
    if sudo == "read":
        remedy = (
            "lay down there what `gpuinfra sudoers --user=NAME` prints, for the account that logs in, or leave "
            "--gpu-sudo-read out; setpriv needs util-linux 2.31 or later"
        )
    return UnreachableError(name, f"sudo -n refused: {output.strip()[-200:]}", remedy=remedy)


def sudoers_text(user: str, group: str) -> str:
    """
    Give a sudoers file that allows `user` what `sudo_prefix("read")` asks for, and nothing else.

    Args:
        user: The account that logs in.
        group: Its primary group, which the process has, too.

    Raises:
        ValueError: A name that is not plain; in sudoers it might mean something else.
    """
    for name in (user, group):
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of an account or group that a sudoers file can hold as it is")
    words = re.sub(r"([,:=\\])", r"\\\1", " ".join(_reading_words(user, group)))  # sudoers(5), "special characters"
    commands = ", \\\n    ".join(f"{words} {python} *" for python in READ_PYTHONS)
    return _SUDOERS.format(user=user, commands=commands)


def _reading_words(user: str, group: str) -> list[str]:
    only = "-all," + ",".join(f"+{name}" for name in READ_CAPABILITIES)
    return [
        "/usr/bin/setpriv",
        f"--reuid={user}",
        f"--regid={group}",
        "--init-groups",
        f"--bounding-set={only}",
        f"--inh-caps={only}",
        f"--ambient-caps={only}",
        "--no-new-privs",
    ]


_SUDOERS = """\
# For `pytest --gpu-sudo-read`: {user} may start Python as {user}, not as root, able to read every file and the kernel's
# log. It can write nothing that {user} cannot, and become nobody else. What it can read includes keys and password
# hashes: guard this account's key as you would guard those.
#
# What follows python3 is free, since it is given no right by that: setpriv has dropped root's before it starts.
# Lay it down as root: install -m 0440 THIS /etc/sudoers.d/gpuinfra && visudo -c
Cmnd_Alias GPUINFRA_READ = \\
    {commands}
{user} ALL=(root) NOPASSWD: GPUINFRA_READ
"""
