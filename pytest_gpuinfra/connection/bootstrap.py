"""The one line for a login shell of any kind that finds a python3 that may be run, and starts the bootstrap in it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_gpuinfra.connection.rights import READ_PYTHONS, Sudo, sudo_prefix
from pytest_gpuinfra.errors import ProbeError
from pytest_gpuinfra.on_target.session.safe_path import FIXED

SAFE = ":".join(FIXED)
"""Where root looks for what it runs, before what of its login's PATH nobody else may write."""
NO_PYTHON = "gpuinfra-no-python3"
UNSAFE = "gpuinfra-unsafe"
HOST_REACHED = "gpuinfra-host-reached"
BOOTSTRAP = """
import sys
import os
def take(size):
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            sys.exit(3)
        data += part
    return data
line = b""
while not line.endswith(b"\\n"):
    line += take(1)
exec(compile(take(int(line)), "<pytest-gpuinfra runner>", "exec"), {"__name__": "__main__"})
"""


def remote_command(*, sudo: Sudo = False) -> str:
    """
    Give the one line that a login shell of any kind on the target is asked to run.

    It looks for python3 also where a restricted PATH does not, and starts the bootstrap; as root, and through sudo,
    only a python3 that nobody else may write.
    Within single quotes it holds no quote, newline, "!" or backslash, so sh, bash, zsh, csh and fish read it alike.
    """
    return f"exec /bin/sh -c '{_python_script(sudo=sudo)}'"


def inside_argv(enter: Sequence[str]) -> list[str]:
    """Give the command that starts the bootstrap in a container: what enters it, and sh with the same text."""
    return [*enter, "/bin/sh", "-c", _python_script()]


def nested_command(enter: Sequence[str], *, sudo: bool = False) -> str:
    """
    Give the line for a login shell on the host that starts the bootstrap in a container.

    It says HOST_REACHED first, so that a failure of the way in is told apart from one of the way to the host.

    Args:
        enter: What enters the container; its words hold nothing that double quotes do not keep (containers.py).
        sudo: Enter through `sudo -n`.
    """
    words = " ".join(word if re.fullmatch(r"[\w./:=-]+", word) else f'"{word}"' for word in enter[1:])
    prefix = "sudo -n " if sudo else ""
    return (
        f"exec /bin/sh -c '{_FIND}echo {HOST_REACHED}; {_look_as(sudo=sudo)}f {enter[0]}; "
        f'case $f$z in "") f={enter[0]};; esac; '
        f'case $f in "") echo {UNSAFE} $z; exit 126;; esac; '
        f"exec {prefix}$f {words} /bin/sh -c \"$0\"' '{_python_script()}'"
    )


# sh: `k FILE` is true where root alone may write a file, along its path and its links; else w says what is wrong.
# `f NAME` puts the first such file of that name into f, or into z why those that there are were not taken.
# With R an ordinary user's number whatever the PATH has will do. No quote, newline, "!" or backslash in it.
_FIND = (
    "k() { q=$1; n=.; while :; do n=$n.; case $n in ...........*) w=links; return 1;; esac; d=${q%/*}; "
    'c=$(cd -P "$d/" && pwd -P) || return 1; set -- "$q"; '
    'for b in "$d" "$c"; do while [ "$b" ]; do set -- "$@" "$b"; b=${b%/*}; done; done; '
    'w=$(ls -ldn / "$@" | { y=unreadable; while read m l u g x; do y=; '
    'case $u in 0) ;; *) y="owner $u: $m $x"; break;; esac; '
    'case $m in l*|d????????[tT]*) ;; ?????w*|????????w*) y="writable by others: $m $x"; break;; esac; '
    'done; echo "$y"; }); case $w in "") ;; *) return 1;; esac; '
    'if [ -L "$q" ]; then t=$(readlink "$q"); case $t in /*) q=$t;; *) q=$c/$t;; esac; else return 0; fi; done; }; '
    'f() { f=; z=; set -f; IFS=:; for o in $P; do IFS=" "; '
    'p=$o/$1; case $p in /*) if [ -f "$p" ] && [ -x "$p" ]; then '
    'case $R in [1-9]*) f=$p;; *) if k "$p"; then f=$p; else z="$p: $w"; fi;; esac; fi;; esac; '
    'case $f in ?*) break;; esac; done; IFS=" "; }; '
)


def _look_as(*, sudo: Sudo) -> str:
    """Give the sh text that says as whom (R) and where (P) to look, and leaves a PATH for what is run."""
    who = "R=0" if sudo is True else f"R=$(PATH={SAFE}; id -u)"
    return f"cd /; P=$PATH:{SAFE}; {who}; case $R in [1-9]*) PATH=$P;; *) PATH={SAFE};; esac; export PATH; "


def _python_script(*, sudo: Sudo = False) -> str:
    code = BOOTSTRAP.encode().hex()
    start = f'-ISB -c "import sys;exec(bytes.fromhex(sys.argv[1]).decode())" {code} pytest-gpuinfra'
    look = f"L=$PATH; {_FIND}{_look_as(sudo=sudo)}"
    if sudo == "read":  # the sudoers file names the interpreters
        pythons = " ".join(READ_PYTHONS)
        found = f"for f in {pythons}; do if [ -x $f ]; then exec {sudo_prefix(sudo)}$f {start}; fi; done; "
    else:
        found = (
            "f python3; "
            'case $f in "") P=/usr/libexec; v=$z; f platform-python; z=$z$v;; esac; '
            f'case $f in ?*) PATH=$PATH:$L; exec {sudo_prefix(sudo)}"$f" {start};; esac; '
            f"case $z in ?*) echo {UNSAFE} python3 $z; exit 126;; esac; "
        )
    return f"{look}{found}echo {NO_PYTHON}; exit 127"


def explain_unsafe(name: str, noise: str) -> ProbeError | None:
    """Say that root would have had to run what others may write; None where that is not what a session printed."""
    what = noise.partition(f"{UNSAFE} ")[2].partition("\n")[0].strip()
    if not what:
        return None
    return ProbeError(
        f"{name}: root runs only what nobody else may write, and this is all that there is: {what[:400]}",
        remedy="install it in /usr/bin, or give file and directories to root (chown root, chmod go-w)",
    )
