"""Cheap hosts with a real sshd and nothing booted: for ways of being reached badly, and for many at once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from .host_files import lay_keys
from .image import LabError, ensure_image, install_packages, require_root
from .keep import Command, Kept, run_inside
from .ssh_files import make_key, ssh_settings, strict_settings

HERE = Path(__file__).parent
FIRST_NUMBER = 11
MOST_HOSTS = 240
SERVE = "exec /usr/sbin/sshd -D -e"
SILENT = 'import socket, time; s = socket.create_server(("", 22)); time.sleep(1e9)'


@dataclass(frozen=True, slots=True)
class Variant:
    """
    A way to be reached.

    Attributes:
        about: What is special about it.
        sshd: Lines for its sshd_config.
        prepare: Shell text run as root inside the host before sshd starts.
        bashrc: Root's .bashrc.
        sudo: A line for /etc/sudoers.d.
        serve: What takes the place of sshd, as shell text.
        user: Who logs in.
        port: TCP port of sshd.
        size: Most that the host can write, as tmpfs takes it.
        image: "lab" (Debian 12) or "old" (Debian 11).
        known: Whether the client knows the host's key: "yes", "no", or "other" (it knows a different one).
        authorized: Whether the host accepts the client's key.
    """

    about: str
    sshd: tuple[str, ...] = ()
    prepare: str = ""
    bashrc: str = ""
    sudo: str = ""
    serve: str = SERVE
    user: str = "root"
    port: int = 22
    size: str = "256m"
    image: str = "lab"
    known: str = "yes"
    authorized: bool = True


VARIANTS = {
    "normal": Variant("nothing"),
    # The connection.
    "other-port": Variant("sshd on port 2222", port=2222),
    "port-closed": Variant("nothing listens", serve="exec sleep infinity"),
    "silent": Variant("accepts the connection and never speaks", serve=f"exec python3 -c '{SILENT}'"),
    "key-refused": Variant("the client's key is not accepted", authorized=False),
    "host-key-unknown": Variant("known_hosts does not have it", known="no"),
    "host-key-changed": Variant("known_hosts has another key for it", known="other"),
    # What sshd allows.
    "max-sessions-1": Variant("a second channel of a connection is refused", sshd=("MaxSessions 1",)),
    "max-sessions-0": Variant("logs in and refuses every command", sshd=("MaxSessions 0",)),
    "max-startups-1": Variant("a second login at the same time is dropped", sshd=("MaxStartups 1:100:1",)),
    "no-forwarding": Variant("refuses tunnels", sshd=("AllowTcpForwarding no",)),
    "drops": Variant("cuts each connection after 0.3 s", bashrc="(sleep 0.3; kill -9 $PPID) &"),
    # The login shell.
    "noisy": Variant("a banner, and a login shell that prints on stdout and stderr",
        sshd=("Banner /etc/issue.net",), bashrc="echo Welcome to $(hostname)!\necho quota: 93 % of /home used >&2"),
    "noisy-long": Variant("a login shell that prints 200 kB on stdout and on stderr, more than a pipe holds",
        bashrc="yes this is noise | head -c 200000\nyes this is noise | head -c 200000 >&2"),
    "slow-shell": Variant("a login shell that takes 5 s", bashrc="sleep 5"),
    "hanging-shell": Variant("a login shell that never gets to the command", bashrc="sleep 9999"),
    "flooding": Variant("a login shell that prints as long as it is heard, and does not get to the command",
        bashrc="while head -c 1000000 /dev/zero | tr '\\0' x; do sleep 0.01; done"),
    "csh": Variant("root's login shell is csh", prepare="usermod --shell /bin/csh root"),
    "nologin": Variant("root may not have a shell", prepare="usermod --shell /usr/sbin/nologin root"),
    # What is there for a command.
    "no-python": Variant("no Python at all", prepare="rm -rf /usr/bin/python3* /usr/lib/python3*"),
    "python-broken": Variant("a python3 that does not start", prepare="rm -rf /usr/lib/python3.*/encodings"),
    "python37": Variant("python3 is PyPy 3.7", image="old", prepare="ln -sf pypy3 /usr/bin/python3"),
    "python39": Variant("python3 is CPython 3.9", image="old"),
    "no-sbin": Variant("root's PATH is /usr/bin:/bin", sshd=("SetEnv PATH=/usr/bin:/bin",)),
    "disk-full": Variant("not a byte can be written", size="2m", prepare="cat /dev/zero >/fill 2>/dev/null"),
    "read-only": Variant("its file system is read-only", prepare="mount -o remount,ro /"),
    # Who logs in.
    "user": Variant("op, who is not root and has no sudo", user="op", prepare="rm -f /usr/bin/sudo"),
    "sudo": Variant("op, who may use sudo without a password", user="op", sudo="op ALL=(ALL) NOPASSWD: ALL"),
    "sudo-password": Variant("op, who may use sudo with a password", user="op", sudo="op ALL=(ALL) ALL"),
}  # fmt: skip


class SshdHost:
    """
    One small host: sshd in a file system, PID and network namespace of its own, on a private address.

    Not booted: no systemd, no container. Ready in about 0.1 s.
    Nothing is left when it stops, or when the process that started it dies in any way.

    Args:
        variant: A name from `VARIANTS`.
        alias: Its host name, and its name in `ssh_config`.

    Example:
        with SshdHost("slow-shell") as host:
            subprocess.run(["ssh", "-F", host.ssh_config, host.destination, "true"], check=True)
    """

    def __init__(self, variant: str = "normal", *, alias: str = "") -> None:
        self.variant = VARIANTS[variant]
        self.alias = alias or f"sshd-{variant}"
        self._number = FIRST_NUMBER
        self._kept: Kept | None = None
        self._init = 0

    @property
    def address(self) -> str:
        """The host's IPv4 address, reachable from this machine only."""
        return f"10.77.{self._running.slot}.{self._number}"

    @property
    def port(self) -> int:
        """Its TCP port of ssh."""
        return self.variant.port

    @property
    def destination(self) -> str:
        """The ssh destination as a user would write it; with a port other than 22, ssh://USER@ADDRESS:PORT."""
        who = f"{self.variant.user}@{self.address}"
        return who if self.port == 22 else f"ssh://{who}:{self.port}"

    @property
    def folder(self) -> Path:
        """Private files of the host and those started with it."""
        return self._running.folder

    @property
    def ssh_config(self) -> Path:
        """An ssh configuration for the host by alias or address, and for those started with it."""
        return self.folder / "ssh_config"

    def ssh(self, command: str, *, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
        """Run a command through a fresh ssh."""
        argv = ["ssh", "-F", str(self.ssh_config), "-o", "BatchMode=yes", self.destination, command]
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=timeout_s
        )

    def shell(
        self, command: Command, *, stdin: str = "", check: bool = True, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """
        Run a command as root inside the host, without ssh.

        Raises:
            LabError: The command failed and `check` is set; its output is in the text.
        """
        return run_inside(self._find_init(), command, stdin=stdin, check=check, timeout_s=timeout_s)

    def processes(self) -> tuple[str, ...]:
        """Give the command lines of all processes in the host, but this look's own."""
        shown = self.shell("ps -e -o pid=,args=").stdout.splitlines()
        return tuple(sorted(line.split(None, 1)[1] for line in shown if "ps -e -o pid=" not in line))

    def pause(self) -> None:
        """Stop every process of the host where it stands: it accepts connections and answers nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the processes go on after `pause`."""
        self._signal(signal.SIGCONT)

    def cut(self) -> None:
        """Kill every ssh connection and what runs in it; the host accepts new ones."""
        self.shell("pkill -KILL -f '^sshd: .*[@]'; true")

    def start(self) -> None:
        """
        Start, and wait until the port answers (where something is to listen).

        Raises:
            LabError: Not root, or not up within 20 s.
        """
        _start([self])

    def stop(self) -> None:
        """End the host, and those started with it; harmless when it is not running."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _running(self) -> Kept:
        if self._kept is None:
            raise LabError(f"{self.alias} is not started")
        return self._kept

    def _find_init(self) -> int:
        if not self._init or not Path(f"/proc/{self._init}/root/lab-init").exists():
            found = _find_inits(self._running)
            if self._number not in found:
                raise LabError(f"{self.alias} is down")
            self._init = found[self._number]
        return self._init

    def _signal(self, number: signal.Signals) -> None:
        space = os.readlink(f"/proc/{self._find_init()}/ns/pid")
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                    if os.readlink(f"/proc/{entry}/ns/pid") == space:
                        os.kill(int(entry), number)


@contextlib.contextmanager
def many_hosts(count: int, variant: str = "normal", *, prefix: str = "node") -> Iterator[list[SshdHost]]:
    """
    Start many hosts of one variant, each in namespaces of its own, sharing one `ssh_config`.

    Args:
        count: How many; at most 240.
        variant: A name from `VARIANTS`.
        prefix: Aliases are PREFIX-001 and so on.

    Yields:
        The hosts, all answering. Shape (count,).
    """
    hosts = [SshdHost(variant, alias=f"{prefix}-{number:03d}") for number in range(1, count + 1)]
    try:
        _start(hosts)
        yield hosts
    finally:
        hosts[0].stop()
        for host in hosts:
            host._kept = None


def _start(hosts: Sequence[SshdHost]) -> None:
    """Start hosts of one variant in one folder."""
    require_root()
    install_packages("controller")
    if len(hosts) > MOST_HOSTS:
        raise LabError(f"{len(hosts)} hosts asked for; one network has room for {MOST_HOSTS}")
    variant = hosts[0].variant
    image = ensure_image(variant.image)
    kept = Kept(image)
    try:
        for number, host in enumerate(hosts, FIRST_NUMBER):
            host._number, host._kept = number, kept
        _write_files(hosts, kept.folder)
        numbers = [str(host._number) for host in hosts]
        kept.start(str(HERE / "sshd.sh"), str(kept.folder), str(image.root), str(kept.slot), variant.size, *numbers)
        _wait(hosts, kept, 20 + len(hosts) / 4)
    except BaseException:
        kept.close()
        for host in hosts:
            host._kept = None
        raise


def _write_files(hosts: Sequence[SshdHost], folder: Path) -> None:
    variant = hosts[0].variant
    client = make_key(folder / "client_key")
    other = make_key(folder / "other_key")
    files = folder / "files"
    key = lay_keys(files, client.public if variant.authorized else other.public)
    sshd = files / "etc/ssh/sshd_config.d"
    sshd.mkdir()
    (sshd / "00-variant.conf").write_text("".join(f"{line}\n" for line in (f"Port {variant.port}", *variant.sshd)))
    (files / "lab-init").write_text(f"{variant.prepare}\n({variant.serve}) &\nwait\n")
    if variant.bashrc:
        # Debian's bash reads it for every command that sshd runs.
        (files / "root/.bashrc").write_text(f"{variant.bashrc}\n")
    if variant.sudo:
        sudoers = files / "etc/sudoers.d/lab"
        sudoers.parent.mkdir()
        sudoers.write_text(f"{variant.sudo}\n")
        sudoers.chmod(0o440)
    known = ""
    config = ""
    for host in hosts:
        own = folder / str(host._number) / "etc"
        own.mkdir(parents=True)
        (own / "hostname").write_text(f"{host.alias}\n")
        config += ssh_settings(
            f"{host.alias} {host.address}", HostName=host.address, User=variant.user, Port=variant.port
        )
        place = host.address if variant.port == 22 else f"[{host.address}]:{variant.port}"
        if variant.known != "no":
            known += f"{place} {key if variant.known == 'yes' else other.public}\n"
    (folder / "known_hosts").write_text(known)
    (folder / "ssh_config").write_text(config + strict_settings(folder))


def _wait(hosts: Sequence[SshdHost], kept: Kept, timeout_s: float) -> None:
    """Wait until each host's port is listened on, or until the host is up where nothing is to listen."""
    deadline = time.monotonic() + timeout_s
    waiting = {host._number: host for host in hosts}
    while waiting and kept.alive and time.monotonic() < deadline:
        time.sleep(0.02)
        if (kept.folder / "started").exists():
            for number, pid in _find_inits(kept).items():
                if number in waiting and _listens(pid, waiting[number].variant):
                    waiting.pop(number)._init = pid
    if waiting:
        log = (kept.folder / "start.log").read_text(errors="replace") if kept.folder.exists() else ""
        first = next(iter(waiting.values()))
        raise LabError(f"{first.alias} is not up within {timeout_s:.0f} s:\n{log[-2000:]}")


def _find_inits(kept: Kept) -> dict[int, int]:
    """Give PID 1 of each host of a group, as numbered here, by the host's number; once it is past its set-up."""
    found: dict[int, int] = {}
    for pid in kept.inits(2):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            match Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                case ["/bin/bash", "/lab-init", number, ""]:
                    found[int(number)] = pid
    return found


def _listens(pid: int, variant: Variant) -> bool:
    table = Path(f"/proc/{pid}/net/tcp").read_text()
    return variant.serve == "exec sleep infinity" or f":{variant.port:04X} 00000000:0000 0A" in table
