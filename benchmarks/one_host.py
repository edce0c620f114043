"""
Fifty checks of one host: ours, testinfra as it comes, testinfra on a ControlPath, in one run.

    sudo .venv/bin/python -m benchmarks.one_host [--delay-ms 20] [--repeat 3]

The host is the lab's real sshd. All three read the same fifty files and assert the same of each.
Two floors stand beside them: a bare `ssh HOST python3 -c pass`, and an empty pytest run with the same plugins.
Plugins that only our own tests need (hypothesis) are left out of all of them.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.relay import Relay
from tests.lab.sshd import SshdHost

FILES = [
    f"/proc/sys/{name}"
    for name in (
        *(f"kernel/{n}" for n in ("osrelease", "ostype", "version", "hostname", "pid_max", "threads-max", "panic")),
        *(f"kernel/{n}" for n in ("shmmax", "shmall", "shmmni", "msgmax", "sem", "ngroups_max", "randomize_va_space")),
        *(f"kernel/{n}" for n in ("printk", "ctrl-alt-del", "core_pattern", "cap_last_cap", "tainted")),
        *(
            f"vm/{n}"
            for n in ("swappiness", "overcommit_memory", "overcommit_ratio", "max_map_count", "min_free_kbytes")
        ),
        *(
            f"vm/{n}"
            for n in ("dirty_ratio", "dirty_background_ratio", "page-cluster", "panic_on_oom", "stat_interval")
        ),
        *(
            f"fs/{n}"
            for n in ("file-max", "file-nr", "inode-nr", "nr_open", "aio-max-nr", "pipe-max-size", "lease-break-time")
        ),
        *(f"net/core/{n}" for n in ("somaxconn",)),
        *(
            f"net/ipv4/{n}"
            for n in ("ip_forward", "tcp_syncookies", "tcp_fin_timeout", "tcp_keepalive_time", "tcp_rmem")
        ),
    )
] + [
    "/etc/passwd",
    "/etc/group",
    "/etc/os-release",
    "/etc/fstab",
    "/etc/shells",
    "/etc/profile",
    "/proc/cmdline",
    "/proc/version",
    "/proc/meminfo",
    "/proc/uptime",
]
FILES = FILES[:50]

OURS_CONFTEST = f"""
from pytest_gpuinfra.capture.capture import file, node
FILES = {FILES!r}
def pytest_gpuinfra_requests(config):
    return [node("bench", *(file(path, path) for path in FILES))]
"""
OURS = f"""
import pytest
FILES = {FILES!r}
@pytest.mark.parametrize("path", FILES)
def test_file(gpu_facts, gpu_kernel_release, path):
    assert gpu_facts.answer("bench")[path].require() is not None
"""
TESTINFRA = f"""
import pytest
FILES = {FILES!r}
@pytest.mark.parametrize("path", FILES)
def test_file(host, path):
    assert host.file(path).content is not None
"""


def timed(argv: list[str], directory: Path) -> float:
    """Run a command that must succeed, with Python's cache as users have it; gives its wall time in seconds."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    ended = subprocess.run(
        argv, cwd=directory, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    took = time.perf_counter() - started
    if ended.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    return took


@click.command()
@click.option("--delay-ms", type=float, multiple=True, default=(0.0, 20.0), help="round-trip time; repeats")
@click.option("--repeat", type=int, default=3, show_default=True)
def main(delay_ms: tuple[float, ...], repeat: int) -> None:
    """Measure, and print the table."""
    table = Table(title=f"50 checks of one host; wall seconds, median of {repeat} (least)")
    for column in ("what", *(f"{delay:g} ms" for delay in delay_ms)):
        table.add_column(column, justify="left" if column == "what" else "right")
    rows: dict[str, list[str]] = {}
    medians: dict[str, list[float]] = {}
    with SshdHost("normal", alias="bench") as host, tempfile.TemporaryDirectory(prefix="gi-", dir="/tmp") as work:
        for delay in delay_ms:
            with Relay(host.address, host.port, delay / 2000) as relay:
                for name, seconds in measure(Path(work), host, relay, repeat).items():
                    rows.setdefault(name, []).append(f"{statistics.median(seconds):.2f} ({min(seconds):.2f})")
                    medians.setdefault(name, []).append(statistics.median(seconds))
    for name, cells in rows.items():
        table.add_row(name, *cells)
    console = Console(width=100)
    console.print(table)
    for index, delay in enumerate(delay_ms):
        ours = medians["ours"][index]
        floor = medians["floor: ssh python3 -c pass"][index] + medians["floor: empty pytest run"][index]
        console.print(
            f"{delay:g} ms: ours {ours - floor:+.2f} s over both floors; testinfra as it comes "
            f"{medians['testinfra as it comes'][index] / ours:.1f}x, on a ControlPath "
            f"{medians['testinfra on a ControlPath'][index] / ours:.1f}x"
        )


def measure(work: Path, host: SshdHost, relay: Relay, repeat: int) -> dict[str, list[float]]:
    """Run each way in turn, so that what else this machine does hits all of them."""
    base = host.ssh_config.read_text()
    entry = f"Host via\n  HostName 127.0.0.1\n  Port {relay.port}\n  User root\n  HostKeyAlias {host.address}\n"
    (work / "plain").write_text(entry + base)
    (work / "multiplexed").write_text(
        f"{entry}  ControlMaster auto\n  ControlPersist 60\n  ControlPath {work}/ti-%h-%p\n{base}"
    )
    for name, files in {
        "ours": {"conftest.py": OURS_CONFTEST, "test_bench.py": OURS},
        "testinfra": {"test_bench.py": TESTINFRA},
        "empty": {"test_bench.py": "def test_nothing():\n    assert True\n"},
    }.items():
        (work / name).mkdir(exist_ok=True)
        for file, text in files.items():
            (work / name / file).write_text(text)
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    ways = {
        "floor: ssh python3 -c pass": (["ssh", "-F", f"{work}/plain", "via", "python3 -c pass"], "empty"),
        "floor: empty pytest run": ([*pytest, "test_bench.py"], "empty"),
        "ours": (
            [*pytest, "--gpu-host=via", f"--gpu-ssh-config={work}/plain", "--gpu-recording=none", "test_bench.py"],
            "ours",
        ),
        "testinfra on a ControlPath": (
            [*pytest, "--hosts=ssh://via", f"--ssh-config={work}/multiplexed", "test_bench.py"],
            "testinfra",
        ),
        "testinfra as it comes": (
            [*pytest, "--hosts=ssh://via", f"--ssh-config={work}/plain", "test_bench.py"],
            "testinfra",
        ),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeat):
        for name, (argv, directory) in ways.items():
            seconds[name].append(timed(argv, work / directory))
            subprocess.run(
                ["ssh", "-F", f"{work}/multiplexed", "-O", "exit", "via"],
                capture_output=True,
                check=False,
                env=os.environ,
            )
    return seconds


if __name__ == "__main__":
    main()
