"""Tier A of the lab: a host that really boots, under systemd-nspawn, with an unprivileged container in it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tarfile
import time
import uuid
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Self

from .host_files import CONTAINER, CONTAINER_ADDRESS, INNER, write_host_files
from .image import Image, LabError, ensure_image, install_packages, require_root
from .keep import Command, Kept, run_inside, wait_for_exit
from .made import write_made

HERE = Path(__file__).parent
ENDPOINT_PORT = 30000
# Written by the host itself at any time, so no sign of what a test did.
OWN_WRITES = tuple(top + path for top in ("", INNER) for path in ("var/log/", "var/lib/systemd/", "var/cache/"))


class NspawnHost:
    """
    A booted Debian host with systemd, sshd and the container 101, on a private address of this machine.

    In the container, `infer.service` serves HTTP on port 30000; `pct` is a stand-in over the lxc tools.
    GPUs, IOMMU groups, kernel command line and kernel log are made ones (see made.py); all else is real.
    Everything that the host writes is in memory; the image under it stays as built.
    Nothing is left when it stops, or when the process that started it dies in any way.

    Args:
        alias: The host's name, and its name in `ssh_config`; the container's is `ALIAS-ct101`.
        image: What it boots; built or taken from the cache by default.

    Attributes:
        alias: As given.
        container_alias: The container's name in `ssh_config`, reached through the host by ProxyJump.

    Example:
        with NspawnHost("lab-a") as host:
            subprocess.run(["ssh", "-F", host.ssh_config, host.destination, "uname"], check=True)
    """

    def __init__(self, alias: str = "lab-a", *, image: Image | None = None) -> None:
        self.alias = alias
        self.container_alias = f"{alias}-ct{CONTAINER}"
        self._image = image
        self._kept: Kept | None = None
        self._leader = 0
        self._bound: list[str] = []
        self._baseline: frozenset[str] = frozenset()

    # Reaching it.

    @property
    def address(self) -> str:
        """The host's IPv4 address, reachable from this machine only."""
        return f"10.77.{self._running.slot}.11"

    @property
    def destination(self) -> str:
        """The ssh destination as a user would write it, root@10.77.N.11; `ssh_config` has its key."""
        return f"root@{self.address}"

    @property
    def folder(self) -> Path:
        """The host's private files: `ssh_config`, `client_key`, `known_hosts`, `console.log`."""
        return self._running.folder

    @property
    def ssh_config(self) -> Path:
        """An ssh configuration for the host (by alias or address) and its container, with real host keys."""
        return self.folder / "ssh_config"

    def ssh(self, command: str, *, name: str | None = None, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
        """Run a command through a fresh ssh to the host, or to another `name` of its configuration."""
        argv = ["ssh", "-F", str(self.ssh_config), "-o", "BatchMode=yes", name or self.alias, command]
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=timeout_s
        )

    # Start and stop.

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, *, timeout_s: float = 60) -> None:
        """
        Boot, and wait until sshd logs in and the container's service answers 200.

        Raises:
            LabError: Not root, or not up within `timeout_s`; the text has the end of the console.
        """
        require_root()
        install_packages("controller")
        image = self._image = self._image or ensure_image()
        try:
            self._kept = Kept(image)
            self._write_files()
            self._boot(timeout_s)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the host and remove everything of it; harmless when it is not running."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None
        self._forget_boot()

    def reboot(self, *, timeout_s: float = 60, service: bool = True) -> str:
        """
        Reboot from inside, by `systemctl reboot`, and wait until the host and its service are up again.

        Args:
            timeout_s: Deadline of the shutdown, and of the start.
            service: Whether the container's service is waited for; where the container stays down, the login counts.

        Returns:
            The new boot id. A `reset` afterwards starts the host afresh.

        Raises:
            LabError: Not up again with another boot id within `timeout_s`.
        """
        before = self.boot_id
        leader = self._find_leader()
        self.shell("systemctl reboot --no-block")
        # Whoever enters the host while it shuts down is waited for, 10 s and longer.
        wait_for_exit([leader], timeout_s)
        self.wait_until_up(timeout_s, not_boot_id=before, service=service)
        return self.boot_id

    def reset(self) -> bool:
        """
        Bring the host back to its state after `start`.

        Bound trees are unbound. If anything that `state` shows then differs from how it was after `start`,
        or cannot be read, the host is started afresh, with the same address and keys.

        Returns:
            Whether it was started afresh.
        """
        kept = self._running
        with contextlib.suppress(LabError, OSError, subprocess.TimeoutExpired):
            self.unbind()
            if self._baseline and self.state() == self._baseline:
                return False
        kept.end(again=True)
        self._boot(60)
        return True

    # Doing something to it.

    def shell(
        self, command: Command, *, stdin: str = "", check: bool = True, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """
        Run a command as root inside the host, without ssh: for injecting faults and for looking.

        Args:
            command: Text for /bin/sh, or an argument list.
            stdin: Text for its standard input.
            check: Whether an exit status other than 0 is an error.
            timeout_s: Deadline; the command is killed then, and subprocess.TimeoutExpired raised.

        Raises:
            LabError: The command failed and `check` is set (its output is in the text), or the host is down.
        """
        return run_inside(self._find_leader(), command, stdin=stdin, check=check, timeout_s=timeout_s)

    def container_shell(
        self, command: Command, *, stdin: str = "", check: bool = True, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root inside the container; like `shell`."""
        argv = ["sh", "-c", command] if isinstance(command, str) else list(command)
        into = ["lxc-attach", "-n", CONTAINER, "--", *argv]
        return self.shell(into, stdin=stdin, check=check, timeout_s=timeout_s)

    def bind(self, tree: Path, target: str) -> None:
        """
        Show a copy of a file or directory tree at `target` in the host, until `unbind`, `reset` or a reboot.

        For made trees: another machine's sysfs, /proc/cmdline, /dev/kmsg. Symbolic links stay as they are.

        Args:
            tree: File or directory on this machine.
            target: Absolute path in the host; something of the same kind must be there already.
        """
        name = f"run/lab-bind-{uuid.uuid4().hex[:8]}"
        packed = BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(tree, arcname=name, filter=_owned_by_root)
        root = f"/proc/{self._find_leader()}/root"
        subprocess.run(["tar", "-x", "-C", root, "-f", "-"], input=packed.getvalue(), check=True)
        self.shell(["mount", "--bind", f"/{name}", target])
        self._bound.append(target)

    def unbind(self, target: str | None = None) -> None:
        """Undo the last `bind` at `target`, or all of them."""
        for bound in [target] if target is not None else list(reversed(self._bound)):
            self.shell(["umount", bound])
            self._bound.remove(bound)

    def fill(self, *, undo: bool = False) -> None:
        """Leave not a byte of room on the host's file system (/run and /tmp are others), or undo that."""
        (init,) = self._running.inits(1)
        place = f"{self.folder}/mnt"  # named inside: nsenter's --wd is looked up on this side, where it is another disk
        size = "50%" if undo else f"$(df --block-size=1 --output=used {place} | tail -1)"
        argv = ["nsenter", f"--target={init}", "--mount", "sh", "-c", f"mount -o remount,size={size} {place}"]
        subprocess.run(argv, check=True, capture_output=True)

    # Looking at it.

    @property
    def boot_id(self) -> str:
        """The host's boot id now."""
        return self.shell("cat /proc/sys/kernel/random/boot_id").stdout.strip()

    @property
    def running(self) -> bool:
        """Whether the host is up or in the middle of a reboot, rather than powered off or stopped."""
        return self._kept is not None and self._kept.alive and not (self._kept.folder / "ended").exists()

    def changed_files(self) -> tuple[str, ...]:
        """Give what was written or removed since the first boot, without logs, as "PATH SIZE MTIME_NS"."""
        (init,) = self._running.inits(1)
        upper = Path(f"/proc/{init}/root{self.folder}/mnt/upper")
        found: list[str] = []
        for folder, _, files in os.walk(upper):
            for name in files:
                path = Path(folder, name)
                inside = str(path.relative_to(upper))
                if not inside.startswith(OWN_WRITES):
                    with contextlib.suppress(FileNotFoundError):
                        facts = path.lstat()
                        found.append(f"{inside} {facts.st_size} {facts.st_mtime_ns}")
        return tuple(sorted(found))

    def processes(self) -> tuple[str, ...]:
        """Give the command lines of all processes in the host and its container, but this look's own."""
        shown = self.shell("ps -e -o pid=,args=").stdout.splitlines()
        return tuple(sorted(line.split(None, 1)[1] for line in shown if "ps -e -o pid=" not in line))

    def state(self) -> frozenset[str]:
        """
        Give one line for each thing that a fault may have changed.

        Boot ids, mounts, active and failed units of the host and of the container;
        the service's main process, its drop-ins and whether its unit is stale; the kernel's log; changed files.
        """
        look = (
            "cat /proc/sys/kernel/random/boot_id /proc/mounts;"
            " systemctl list-units --plain --no-legend --state=active,failed --type=service,target,timer;"
            " systemctl show -p NeedDaemonReload,MainPID,DropInPaths ssh.service infer.service"
        )
        log = "; journalctl --quiet --dmesg --boot --output=cat | cksum; find /run/lab -type f -exec cksum {} + | cksum"
        lines = {f"host {line}" for line in self.shell(look + log).stdout.splitlines()}
        lines |= {f"container {line}" for line in self.container_shell(look).stdout.splitlines()}
        lines |= {f"file {line}" for line in self.changed_files()}
        return frozenset(lines)

    def wait_until_up(self, timeout_s: float = 60, *, not_boot_id: str = "", service: bool = True) -> None:
        """
        Wait until ssh logs in and the container's service answers 200.

        Args:
            timeout_s: Deadline.
            not_boot_id: The boot that must be over.
            service: Whether the answer is waited for.

        Raises:
            LabError: The deadline passed or the host ended; the text has the end of its console.
        """
        probe = "cat /proc/sys/kernel/random/boot_id"
        if service:
            probe += (
                f" && exec 3<>/dev/tcp/{CONTAINER_ADDRESS}/{ENDPOINT_PORT} &&"
                r" printf 'GET /health HTTP/1.0\r\n\r\n' >&3 && read -r -u 3 version status rest && echo $status"
            )
        deadline = time.monotonic() + timeout_s
        last = ""
        while time.monotonic() < deadline and self.running:
            try:
                done = self.shell(["bash", "-c", probe], check=False, timeout_s=1)
                last = done.stdout + done.stderr
                match done.stdout.split():
                    case [boot_id, *status] if boot_id != not_boot_id and (status == ["200"] or not service):
                        done = self.ssh("true")
                        if done.returncode == 0:
                            self._bound.clear()
                            return
                        last = done.stderr
            except (LabError, OSError, subprocess.TimeoutExpired) as error:
                last = str(error)
            time.sleep(0.05)
        logs = "".join(_tail(self.folder / name) for name in ("start.log", "console.log"))
        raise LabError(f"{self.alias} is not up within {timeout_s:.0f} s. Last seen: {last}\n{logs}")

    # Below here: how.

    @property
    def _running(self) -> Kept:
        if self._kept is None:
            raise LabError(f"{self.alias} is not started")
        return self._kept

    def _boot(self, timeout_s: float) -> None:
        assert self._image is not None
        kept = self._running
        self._forget_boot()
        (kept.folder / "ended").unlink(missing_ok=True)
        kept.start(
            str(HERE / "nspawn.sh"),
            str(kept.folder),
            str(self._image.root),
            f"gil{kept.slot}",
            f"10.77.{kept.slot}.1",
        )
        self.wait_until_up(timeout_s)
        self._baseline = self.state()

    def _forget_boot(self) -> None:
        self._leader = 0
        self._bound.clear()
        self._baseline = frozenset()

    def _find_leader(self) -> int:
        """Give PID 1 of the host, as numbered here."""
        if not self._leader or not Path(f"/proc/{self._leader}/root/proc").exists():
            inits = self._running.inits(2)
            if not inits:
                raise LabError(f"{self.alias} is down: no process is its PID 1")
            self._leader = inits[0]
        return self._leader

    def _write_files(self) -> None:
        """Write what is laid over the image, and the client's side of ssh."""
        write_host_files(self.folder, self.alias, self.address)
        files = self.folder / "files"
        network = files / "etc/systemd/network/10-host0.network"
        network.parent.mkdir(parents=True)
        network.write_text(f"[Match]\nName=host0\n\n[Network]\nAddress={self.address}/24\nLinkLocalAddressing=no\n")
        write_made(files)


def _owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def _tail(path: Path, size: int = 2000) -> str:
    return f"--- {path.name} ends:\n{path.read_text(errors='replace')[-size:]}\n" if path.exists() else ""
