"""
Many hosts from one controller: ours, beside asyncssh running the same probe on them, and beside other tools.

    sudo .venv/bin/python -m benchmarks.fleet [--hosts 200] [--growth 10,50,200] [--peers]
    sudo .venv/bin/python -m benchmarks.fleet --faults

Hosts are the lab's real sshds, each in namespaces of its own; they and the controller share this machine's cores,
so ratios within one run count. asyncssh and the peers are installed into a temporary environment.

Each row runs under two ssh configurations: OpenSSH's default key exchange, which costs the client 0.14 s of CPU a
connection in OpenSSH 9.2 (sntrup761x25519), and `KexAlgorithms curve25519-sha256` in the user's configuration.
Memory is the proportional set size of the controller and all its processes, sampled twice a second. Looking takes a
share of the cores that grows with the number of processes, so what is compared by time runs once more without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from pytest_gpuinfra.host.capture import requests_of
from pytest_gpuinfra.inventory.inventory import HostSpec
from pytest_gpuinfra.on_target.bundle import packed
from tests.lab.fleet import ONE_TEST, mixed_fleet
from tests.lab.sshd import SshdHost, many_hosts

KEX = "curve25519-sha256"
USERS = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Python keeps its compiled files, as it does for users."""
ASYNCSSH = """
import asyncio, json, sys, time
import asyncssh
work, limit = sys.argv[1], int(sys.argv[2])
given = json.load(open(work + "/asyncssh.json"))
program = open(work + "/probe-program.py", "rb").read()
async def one(host, gate):
    async with gate:
        async with asyncssh.connect(
            host, username="root", client_keys=[given["key"]], known_hosts=given["known_hosts"], config=None,
            kex_algs=given["kex"] or (),
        ) as connection:
            ended = await connection.run("python3 -", input=program, encoding=None)
            document = json.loads(ended.stdout)
            assert document["answers"], host
            return len(ended.stdout)
async def main():
    gate = asyncio.Semaphore(limit)
    sizes = await asyncio.gather(*(one(host, gate) for host in given["hosts"]))
    print(json.dumps({"hosts": len(sizes), "bytes": sum(sizes)}))
asyncio.run(main())
"""
TESTINFRA = """
FILES = ["/proc/sys/kernel/osrelease", "/proc/cmdline", "/proc/uptime", "/etc/os-release", "/proc/version"]
import pytest
@pytest.mark.parametrize("path", FILES)
def test_file(host, path):
    assert host.file(path).content
"""
INVENTORY = """
[defaults.expect]
kernel_release = "{release}"
kernel_command_line.lacks = ["iommu=pt", "amd_iommu=off", "intel_iommu=off", "pcie_acs_override"]
files_absent = ["/etc/gpu-a", "/etc/gpu-b", "/etc/gpu-c", "/etc/gpu-d"]
[[defaults.expect.devices]]
pci = {addresses}
driver = "virtio-pci"

[hosts]
"{hosts}" = {{}}
"""
"""What the passive suite judges on hosts that have no GPU: two of this machine's devices stand for two."""
PYINFRA_FACTS = (
    *("server.Hostname", "server.Kernel", "server.KernelVersion", "server.Arch", "server.Os"),
    *("server.Mounts", "server.KernelModules", "server.Users", "server.Date", "server.LinuxDistribution"),
)


@dataclass(frozen=True)
class Measured:
    """
    One run of one tool.

    Attributes:
        wall_s: Seconds.
        cpu_s: Seconds of CPU of the controller with all its children.
        peak_mb: Proportional set size of the controller and its processes at its highest, 10^6 bytes; 0.0 if unwatched.
        own_peak_mb: The controller's own process alone, resident.
        output: Standard output.
    """

    wall_s: float
    cpu_s: float
    peak_mb: float
    own_peak_mb: float
    output: str


def measure(
    argv: Sequence[str],
    directory: Path,
    environment: Mapping[str, str] | None = None,
    statuses: Sequence[int] = (0,),
    *,
    watched: bool = True,
) -> Measured:
    """Run a command, its memory watched or not; ends the benchmark if the command fails."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            argv,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**USERS, **(environment or {})},
        )
        peaks = [0.0]
        ended = threading.Event()

        def sample() -> None:
            while not ended.wait(0.5):  # a look at many processes takes its share of two cores
                peaks[0] = max(peaks[0], _pss_mb(process.pid))

        sampler = threading.Thread(target=sample)
        if not watched:
            ended.set()
        sampler.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        ended.set()
        sampler.join()
        out.seek(0)
        text = out.read().decode(errors="replace")
    if process.returncode not in statuses:
        raise SystemExit(f"{' '.join(argv)} ended with {process.returncode}:\n{text[-4000:]}")
    return Measured(wall_s, usage.ru_utime + usage.ru_stime, peaks[0], usage.ru_maxrss * 1024 / 1e6, text)


def _pss_mb(root: int) -> float:
    """Add up the proportional set sizes of a process and all below it."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with contextlib.suppress(OSError, IndexError):
                parents[int(entry)] = int(Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[1])
    family, grown = {root}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        family, grown = family | more, bool(more)
    total_kb = 0
    for pid in family:
        with contextlib.suppress(OSError):
            for line in Path("/proc", str(pid), "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total_kb += int(line.split()[1])
    return total_kb * 1024 / 1e6


class Bench:
    """
    The hosts, and what each tool needs to reach them.

    Args:
        work: A private folder.
        hosts: The lab's.
        limit: Hosts at the same time.
        python: Python of the environment that the other tools are in.
    """

    def __init__(self, work: Path, hosts: Sequence[SshdHost], limit: int, python: Path) -> None:
        self.work, self.hosts, self.limit, self.python = work, hosts, limit, python
        self.folder = hosts[0].folder
        for name, line in (("default", ""), (KEX, f"KexAlgorithms {KEX}\n")):
            config = (self.folder / "ssh_config").read_text()
            (work / f"config-{name}").write_text(f"Host *\n  {line or '# nothing'}\n{config}")
        (work / "one").mkdir()
        (work / "one" / "test_one.py").write_text(ONE_TEST)
        (work / "testinfra").mkdir()
        (work / "testinfra" / "test_files.py").write_text(TESTINFRA)
        (work / "with_asyncssh.py").write_text(ASYNCSSH)
        plan = {"requests": requests_of(HostSpec()), "source": packed("probe"), "runner": packed("runner")}
        asked = json.dumps(plan).encode() + b"\n"
        head = f"import os\nfd = os.memfd_create('plan')\nos.write(fd, {asked!r})\nos.lseek(fd, 0, 0)\nos.dup2(fd, 0)\n"
        (work / "probe-program.py").write_text(head + packed("probe"))

    def ours(self, count: int, kex: str, *, whole_suite: bool = False, watched: bool = True) -> Measured:
        """Capture by ours, and judge: one check a host, or all that are passive, against an inventory."""
        hosts = f"{self.hosts[0].alias[:-3]}[001-{count:03d}]"
        if whole_suite:
            found = sorted(path.parent.name for path in Path("/sys/bus/pci/devices").glob("*/driver"))
            text = INVENTORY.format(release=os.uname().release, addresses=json.dumps(found[:2]), hosts=hosts)
            (self.work / "one" / "fleet.toml").write_text(text)
        return measure(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"),
                "--gpu-recording=none",
                f"--gpu-host={hosts}",
                f"--gpu-ssh-config={self.work}/config-{kex}",
                f"--gpu-parallel={self.limit}",
                *(["--gpu-level=passive", "--gpu-inventory=fleet.toml"] if whole_suite else ["test_one.py"]),
            ],
            self.work / "one",
            statuses=(0, 1, 6),
            watched=watched,
        )

    def asyncssh(self, count: int, kex: str, *, watched: bool = True) -> Measured:
        """Run the same probe with the same requests by asyncssh."""
        given = {
            "hosts": [host.address for host in self.hosts[:count]],
            "key": str(self.folder / "client_key"),
            "known_hosts": str(self.folder / "known_hosts"),
            "kex": [KEX] if kex == KEX else [],
        }
        (self.work / "asyncssh.json").write_text(json.dumps(given))
        argv = [str(self.python), "with_asyncssh.py", str(self.work), str(self.limit)]
        return measure(argv, self.work, watched=watched)

    def testinfra(self, count: int, kex: str) -> Measured:
        """Five checks of each host by testinfra, multiplexed, on four workers."""
        config = self.work / "config-testinfra"
        control = f"Host *\n  ControlMaster auto\n  ControlPersist 60\n  ControlPath {self.work}/ti-%h\n"
        config.write_text(control + (self.work / f"config-{kex}").read_text())
        hosts = ",".join(f"ssh://{host.alias}" for host in self.hosts[:count])
        found = measure(
            [
                *(str(self.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "4"),
                *(f"--hosts={hosts}", f"--ssh-config={config}", "test_files.py"),
            ],
            self.work / "testinfra",
        )
        for host in self.hosts[:count]:
            subprocess.run(["ssh", "-F", config, "-O", "exit", host.alias], capture_output=True, check=False)
        return found

    def pyinfra(self, count: int, kex: str) -> Measured:
        """Ten facts of each host by pyinfra."""
        (self.work / "hosts.py").write_text(
            f"hosts = ({[host.address for host in self.hosts[:count]]!r}, {{'ssh_user': 'root', "
            f"'ssh_key': {str(self.folder / 'client_key')!r}, 'ssh_strict_host_key_checking': 'no', "
            f"'ssh_known_hosts_file': '/dev/null'}})\n"
        )
        argv = [
            str(self.python.parent / "pyinfra"),
            f"--parallel={self.limit}",
            "-y",
            str(self.work / "hosts.py"),
            "fact",
        ]
        return measure([*argv, *PYINFRA_FACTS], self.work)

    def ansible(self, count: int, kex: str) -> Measured:
        """Ansible's ping, pipelined."""
        (self.work / "hosts.ini").write_text(
            "".join(f"{host.alias} ansible_python_interpreter=/usr/bin/python3\n" for host in self.hosts[:count])
        )
        environment = {
            "ANSIBLE_SSH_ARGS": f"-F {self.work}/config-{kex} -o ControlMaster=auto -o ControlPersist=60s",
            "ANSIBLE_PIPELINING": "true",
            "ANSIBLE_HOME": str(self.work / "ansible"),
            "PATH": f"{self.python.parent}:{os.environ['PATH']}",
        }
        argv = [
            str(self.python.parent / "ansible"),
            "all",
            "-i",
            "hosts.ini",
            "-m",
            "ping",
            "-f",
            str(self.limit),
            "-o",
        ]
        return measure(argv, self.work, environment)


def make_environment(work: Path, *, peers: bool) -> Path:
    """Install asyncssh, and the other tools if they are asked for; gives their Python."""
    venv.create(work / "venv", with_pip=True)
    python = work / "venv/bin/python"
    packages = ["asyncssh", *(["pytest-testinfra", "pytest-xdist", "pyinfra", "ansible-core"] if peers else [])]
    subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True, stderr=subprocess.DEVNULL)
    return python


@click.command()
@click.option("--hosts", "count", type=click.IntRange(2, 240), default=200, show_default=True)
@click.option("--growth", default="10,50,100,200", show_default=True, help="numbers of hosts to show the growth by")
@click.option("--parallel", type=int, default=32, show_default=True, help="hosts at the same time, for all tools")
@click.option("--repeat", type=int, default=1, show_default=True)
@click.option("--suite/--no-suite", default=True, show_default=True, help="also the whole passive suite")
@click.option("--peers", is_flag=True, help="also testinfra, pyinfra and Ansible")
@click.option("--faults", is_flag=True, help="instead: 5 dead, 5 slow, 5 flooding, 5 without Python; check each ending")
def main(count: int, growth: str, parallel: int, repeat: int, suite: bool, peers: bool, faults: bool) -> None:
    """Measure, and print the tables."""
    console = Console(width=120)
    if faults:
        _faults(console, count, parallel)
        return
    with tempfile.TemporaryDirectory(prefix="gi-", dir="/tmp") as name:
        work = Path(name)
        python = make_environment(work, peers=peers)
        started = time.perf_counter()
        with many_hosts(count) as hosts:
            console.print(f"{count} sshd hosts up in {time.perf_counter() - started:.1f} s; {os.cpu_count()} cores")
            bench = Bench(work, hosts, parallel, python)
            _compare(console, bench, count, repeat, suite=suite, peers=peers)
            _growth(console, bench, [number for word in growth.split(",") if (number := int(word)) <= count])


def _faults(console: Console, count: int, parallel: int) -> None:
    """Judge a fleet in which some hosts are bad, and compare each host's ending with what it has to be."""
    bad = {"port-closed": 5, "slow-shell": 5, "flooding": 5, "no-python": 5}
    with (
        tempfile.TemporaryDirectory(prefix="gi-", dir="/tmp") as name,
        mixed_fleet({"normal": count - sum(bad.values()), **bad}, Path(name)) as fleet,
    ):
        work = Path(name)
        (work / "test_one.py").write_text(ONE_TEST)
        seen = measure(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--gpu-recording=judged.json"),
                *(f"--gpu-host={fleet.hostlist}", f"--gpu-ssh-config={fleet.ssh_config}", f"--gpu-parallel={parallel}"),
                "test_one.py",
            ],
            work,
            statuses=(6,),
        )
        wrong = fleet.faults(json.loads((work / "judged.json").read_text()))
    console.print(
        f"{count} hosts, of which {sum(bad.values())} bad: {len(wrong)} ended otherwise than they should; "
        f"{seen.wall_s:.1f} s, CPU {seen.cpu_s:.1f} s, {seen.peak_mb:.0f} MB",
        *wrong,
        sep="\n",
    )


def _compare(console: Console, bench: Bench, count: int, repeat: int, *, suite: bool, peers: bool) -> None:
    table = Table(title=f"{count} hosts, {bench.limit} at the same time; median of {repeat}")
    for column in ("key exchange", "what", "wall s", "CPU s", "PSS of the tree, MB", "own RSS, MB"):
        table.add_column(column, justify="left" if column in ("key exchange", "what") else "right")
    ratios = []
    for kex in ("default", KEX):
        ways = {"asyncssh, the same probe": bench.asyncssh, "ours: capture and one check a host": bench.ours}
        seen: dict[str, list[Measured]] = {}
        for _ in range(repeat):
            for what, way in ways.items():
                seen.setdefault(what, []).append(way(count, kex, watched=False))
                console.print(f"{kex}: {what}: {seen[what][-1].wall_s:.1f} s")
        memory = {what: way(count, kex) for what, way in ways.items()}
        if suite and kex == KEX:
            seen["ours: the whole passive suite"] = [bench.ours(count, kex, whole_suite=True)]
        if peers and kex == KEX:
            seen["testinfra on a ControlPath, 5 checks, -n 4"] = [bench.testinfra(count, kex)]
            seen["Ansible ping, pipelined"] = [bench.ansible(count, kex)]
            seen["pyinfra, 10 facts (paramiko)"] = [bench.pyinfra(count, kex)]
        for what, runs in seen.items():
            middle = _middle(runs)
            watched = memory.get(what, middle)
            sizes = f"{watched.peak_mb:.0f}", f"{watched.own_peak_mb:.0f}"
            table.add_row(kex, what, f"{middle.wall_s:.1f}", f"{middle.cpu_s:.1f}", *sizes)
        theirs, ours = (_middle(seen[what]).wall_s for what in ways)
        ratios.append(f"{kex}: ours {ours / theirs:.2f} x asyncssh")
    console.print(table)
    console.print("; ".join(ratios))


def _middle(runs: Sequence[Measured]) -> Measured:
    """Give the run of median time; of an even number, the slower of the middle two."""
    return sorted(runs, key=lambda run: run.wall_s)[len(runs) // 2]


def _growth(console: Console, bench: Bench, numbers: Sequence[int]) -> None:
    table = Table(title=f"growth of ours, {KEX}: capture and one check a host")
    for column in ("hosts", "wall s", "CPU s", "PSS of the tree, MB", "own RSS, MB"):
        table.add_column(column, justify="right")
    for number in numbers:
        seen = bench.ours(number, KEX)
        table.add_row(
            str(number), f"{seen.wall_s:.1f}", f"{seen.cpu_s:.1f}", f"{seen.peak_mb:.0f}", f"{seen.own_peak_mb:.0f}"
        )
    console.print(table)


if __name__ == "__main__":
    main()
