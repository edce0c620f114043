"""A host reached by OpenSSH's own client: the user's config, keys, agent, jump hosts and known hosts apply."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from pytest_gpuinfra.connection.bootstrap import NO_PYTHON, explain_unsafe, remote_command
from pytest_gpuinfra.connection.pipe import TIMED_OUT_MARK, PipeConnection
from pytest_gpuinfra.connection.rights import Sudo, explain_refusal
from pytest_gpuinfra.errors import ProbeError, UnreachableError
from pytest_gpuinfra.wire import text_lines

_FAILURES = (
    # what OpenSSH's client says in LC_ALL=C; what it means; what to do
    (
        "could not resolve hostname",
        "no such host name",
        "check the address in the inventory, or the name service",
    ),
    (
        "remote host identification has changed",
        "its host key is not the one in known_hosts: another machine may answer in its place",
        "find out why the key changed; if the host was installed anew, `ssh-keygen -R HOST` and connect once by hand",
    ),
    (
        "host key verification failed",
        "its host key is not known here",
        "connect once by hand and compare the key, or add the key to known_hosts",
    ),
    (
        "permission denied",
        "the login was refused",
        "offer another key or user (ssh config, ssh-agent); passwords are never asked for",
    ),
    (
        "too many authentication failures",
        "the login was refused",
        "name one key in ssh config with IdentitiesOnly",
    ),
    ("connection refused", "nothing listens on its ssh port", "start sshd there, or correct the port"),
    ("no route to host", "no route to it", "check address, network and firewall"),
    ("network is unreachable", "its network is unreachable", "check this machine's routes"),
    ("timed out", "it did not answer in time", "see whether the host is up and the port is open"),
    (
        "connection reset",
        "it reset the connection",
        "look at sshd's log there (MaxStartups? a failing sshd?)",
    ),
    (
        "connection closed",
        "it closed the connection",
        "look at sshd's log there (account locked? shell missing?)",
    ),
    ("bad configuration option", "ssh does not read its own configuration", "correct the ssh config file"),
    ("can't open user config", "the ssh config file cannot be read", "correct --gpu-ssh-config"),
)


class SshConnection(PipeConnection):
    """
    One multiplexed connection to a host.

    The first command opens it, later ones share it, `close` ends it. A watchdog ends it, too,
    when the controller is killed. Host keys are verified; nothing is ever asked for.

    Args:
        name: Alias of the host, for messages.
        destination: What ssh(1) takes: "root@node-a", "ssh://root@node-a:2222", a name of the user's config.
        config: An ssh config file in place of the user's own (`ssh -F`).
        proxy_command: What carries the connection, as ssh's ProxyCommand; None for the user's own configuration.
        shared: Whether commands share one connection that stays; without, each has its own, which ends with it.
    """

    def __init__(
        self,
        name: str,
        destination: str,
        *,
        config: str | None = None,
        sudo: Sudo = False,
        connect_timeout_s: float = 30.0,
        proxy_command: str | None = None,
        shared: bool = True,
    ) -> None:
        super().__init__(name, sudo=sudo, connect_timeout_s=connect_timeout_s)
        self.shared = shared
        self.destination = destination
        self.config = config
        self._proxy_command = proxy_command
        self._socket: Path | None = None
        self._socket_lock = threading.Lock()

    def by_hand(self) -> str:
        """Give the command that a person can type to see the same failure."""
        return shlex.join(["ssh", *(["-F", self.config] if self.config else []), self.destination, "python3 -V"])

    def control_argv(self, *more: str) -> list[str]:
        """Give the argv of an ssh client that shares this connection, up to the destination."""
        return [
            "ssh",
            *(["-F", self.config] if self.config else []),
            *("-o", "BatchMode=yes"),
            *("-o", f"ConnectTimeout={max(1, round(self.connect_timeout_s))}"),
            *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=6"),
            *self._control_options(),
            *("-o", "ClearAllForwardings=yes", "-o", "ForwardAgent=no", "-o", "ForwardX11=no"),
            *(["-o", f"ProxyCommand={self._proxy_command}"] if self._proxy_command else []),
            *("-o", "LogLevel=ERROR", "-T"),
            *more,
            "--",
            self.destination,
        ]

    def _control_options(self) -> list[str]:
        if not self.shared:
            return ["-o", "ControlMaster=no", "-o", "ControlPath=none"]
        with self._socket_lock:
            if self._socket is None:
                self._socket = _sockets().new_socket()
        return ["-o", "ControlMaster=auto", "-o", f"ControlPath={self._socket}", "-o", "ControlPersist=yes"]

    def shell_argv(self, line: str) -> list[str]:
        """Give the argv of a session that asks the login shell to run a line."""
        return [*self.control_argv(), line]

    def jump_command(self) -> str:
        """Give the ProxyCommand that carries another connection through this one (`ssh -W`)."""
        words = [word.replace("%", "%%") for word in self.control_argv("-W", "%h:%p")]  # a zone, fe80::1%eth0
        return shlex.join(words).replace("%%h:%%p", "%h:%p")

    def explain(self, exit_status: int | None, said: str, noise: str) -> Exception:
        """Say why a session did not come about."""
        return self._explain_failure(exit_status, said, noise)

    def _session_argv(self) -> list[str]:
        return self.shell_argv(remote_command(sudo=self.sudo))

    def close(self) -> None:
        super().close()
        with self._socket_lock:
            socket, self._socket = self._socket, None
        if socket is not None:
            _sockets().end(socket)

    def _explain_failure(self, exit_status: int | None, said: str, noise: str) -> Exception:
        by_hand = f"; try by hand: {self.by_hand()}"
        unsafe = explain_unsafe(self.name, noise)
        if unsafe is not None:
            return unsafe
        if NO_PYTHON in noise:
            return ProbeError(
                f"{self.name}: the target has no python3 in its PATH",
                remedy="install python3 there (3.6 or later, its standard library is enough), "
                "or put it in /usr/bin; nothing else is needed",
            )
        lowered = said.lower()
        if TIMED_OUT_MARK in said:
            heard = f"; it printed {noise.strip()[-200:]!r} meanwhile" if noise.strip() else ""
            return UnreachableError(
                self.name,
                f"no python3 had started there within {self.connect_timeout_s:g} s{heard}",
                remedy="see whether its login shell or its network is slow, and raise --gpu-connect-timeout" + by_hand,
            )
        refusal = explain_refusal(self.name, self.sudo, said)
        if refusal is not None:
            return refusal
        if exit_status == 255:
            for sign, meaning, remedy in _FAILURES:
                if sign in lowered:
                    return UnreachableError(
                        self.name,
                        f"{meaning} (ssh said: {_last_line(said, sign)!r})",
                        remedy=remedy + by_hand,
                    )
            return UnreachableError(
                self.name, f"ssh failed: {said.strip()[-300:] or 'it said nothing'}", remedy=by_hand[2:]
            )
        heard = (said.strip() or noise.strip())[-300:]
        return ProbeError(
            f"{self.name}: the login worked, but python3 did not start (exit status {exit_status}): {heard!r}",
            remedy="see whether the account's shell runs commands (`ssh HOST python3 -V`)" + by_hand,
        )


def _last_line(text: str, sign: str) -> str:
    return [line for line in text_lines(text) if sign in line.lower()][-1].strip()


class _ControlSockets:
    """The control sockets of this process, in a private directory that a watchdog removes if we are killed."""

    def __init__(self) -> None:
        base = tempfile.gettempdir()
        if len(base) > 60:  # a socket's path has 108 bytes, of which ssh wants some for itself
            base = "/tmp"
        self.directory = Path(tempfile.mkdtemp(prefix="gpuinfra-", dir=base))
        self._count = 0
        self._lock = threading.Lock()
        self._watchdog = subprocess.Popen(
            [
                "/bin/sh",
                "-c",
                'cat >/dev/null; for s in "$1"/*; do [ -S "$s" ] && ssh -o ControlPath="$s" -O exit x; done; '
                'rm -rf "$1"',
                "gpuinfra-watchdog",
                str(self.directory),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def new_socket(self) -> Path:
        with self._lock:
            self._count += 1
            return self.directory / str(self._count)

    def end(self, socket: Path) -> None:
        if socket.exists():
            _quietly(["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "x"])

    def close(self) -> None:
        if self._watchdog.stdin:
            with contextlib.suppress(OSError):
                self._watchdog.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._watchdog.wait(5.0)
        shutil.rmtree(self.directory, ignore_errors=True)


def _quietly(argv: Sequence[str]) -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=5.0, check=False)


_state: dict[int, _ControlSockets] = {}
_state_lock = threading.Lock()


def _sockets() -> _ControlSockets:
    with _state_lock:
        if os.getpid() not in _state:
            _state.clear()  # a fork's copy belongs to its parent
            _state[os.getpid()] = _ControlSockets()
        return _state[os.getpid()]


def close_sockets() -> None:
    """End every connection of this process and remove the directory of its control sockets."""
    with _state_lock:
        sockets = _state.pop(os.getpid(), None)
    if sockets:
        sockets.close()
