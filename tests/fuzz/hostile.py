"""
Hosts that answer what they like: a local process in place of ssh, that writes given bytes where the runner's would be.

The process reads the runner and its header, as a login would hand them to python3, and answers with a file's bytes,
TOKEN in them replaced by the session's own.
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pytest_gpuinfra.connection.pipe import PipeConnection
from pytest_gpuinfra.errors import ProbeError

TOKEN = b"@TOKEN@\n"
SAY = """
import json, os, sys
stdin = sys.stdin.buffer
stdin.read(int(stdin.readline()))
token = json.loads(stdin.readline())["token"].encode() + b"\\n"
with open(sys.argv[1], "rb") as stream:
    said = stream.read().replace(b"@TOKEN@\\n", token)
try:
    os.write(1, b"")
    sys.stdout.buffer.write(said)
    sys.stdout.buffer.flush()
except OSError:
    pass
"""
SSH = f"""#!{sys.executable} -IS
import os, sys
if "-O" in sys.argv:
    sys.exit(0)
name, line = sys.argv[sys.argv.index("--") + 1], sys.argv[-1]
file = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
if not os.path.exists(file):
    os.execv("/bin/sh", ["sh", "-c", line])
sys.argv = ["say", file]
exec({SAY!r})
"""
"""An ssh(1) by which a host that has a file beside it is hostile, and any other is this machine."""


def frame(kind: bytes, payload: bytes) -> bytes:
    """Give one frame as on_target/session/runner.py writes it."""
    return struct.pack(">cI", kind, len(payload)) + payload


def output(data: bytes) -> bytes:
    """Give the frames of a program's standard output."""
    return b"".join(frame(b"o", data[place : place + 65536]) for place in range(0, len(data), 65536))


def last(status: object = 0, *, timed_out: object = False) -> bytes:
    """Give the last frame."""
    return frame(b"x", json.dumps({"status": status, "timed_out": timed_out, "error": None}).encode())


def session(*parts: bytes, end: bytes | None = None) -> bytes:
    """Give all that a session writes: the token, some frames, and the last one."""
    return TOKEN + b"".join(parts) + (last() if end is None else end)


def probe_output(answers: Any, **more: Any) -> bytes:
    """Give what a probe with these answers writes."""
    document = {"schema": 1, "python": "3.11.2", "uid": 0, "took_s": 0.1, "answers": answers, **more}
    return output(json.dumps(document).encode())


def event_output(lines: Iterable[str]) -> bytes:
    """Give what a program with these events writes."""
    return output("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass"))


class HostileConnection(PipeConnection):
    """
    A connection whose every session answers the same.

    Args:
        said: What `session` gives, or anything else.
    """

    def __init__(self, said: bytes) -> None:
        super().__init__("evil", connect_timeout_s=10.0)
        self._file = tempfile.NamedTemporaryFile(prefix="gpuinfra-hostile-")  # noqa: SIM115  closed with the connection
        self._file.write(said)
        self._file.flush()

    def _session_argv(self) -> list[str]:
        return [sys.executable, "-IS", "-c", SAY, self._file.name]

    def _explain_failure(self, exit_status: int | None, said: str, noise: str) -> Exception:
        return ProbeError(f"{self.name}: no session: {exit_status}, {said[-200:]!r}, {noise[-200:]!r}")

    def close(self) -> None:
        super().close()
        self._file.close()


def write_ssh(directory: Path, hosts: dict[str, bytes]) -> None:
    """Write the stand-in for ssh(1) into a directory, and what each hostile host says."""
    directory.mkdir()
    for name, said in hosts.items():
        (directory / name).write_bytes(said)
    file = directory / "ssh"
    file.write_text(SSH)
    file.chmod(0o755)
