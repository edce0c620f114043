"""
A host that prints two gigabytes somewhere: what controller and target take of memory until it is cut off.

    .venv/bin/python -m benchmarks.bounds [--gigabytes 2] [--only WORD]

Each row is a run of pytest over a stand-in for ssh(1) that runs what it is given on this machine; beside it stand
commands that print without end. Peaks are VmHWM of proc(5): of pytest, and of the largest process on the target's side
that is the product's own (python3). Nothing may take 200 MB, and each item has to end as the row says.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

LIMIT_MB = 200
MARK = "GPUINFRA_BOUNDS_TARGET"
SSH = """#!/bin/sh
case " $* " in *" -O "*) exit 0;; esac
for line; do :; done
export {mark}=1 PATH={bin}:$PATH
{before}
exec /bin/sh -c "$line"
"""
CONFTEST = """
from pathlib import Path
from pytest_gpuinfra.capture import capture

def pytest_gpuinfra_requests(config):
    return [{request}] if {request!r} else []

def pytest_unconfigure(config):
    Path("status").write_text(Path("/proc/self/status").read_text())
"""
ANSWER = """
def test_it(gpu_facts, gpu_kernel_release):
    assert gpu_facts.answer("mine")
    {use}
"""
READ = 'gpu_facts.answer("mine")["it"].require()'


@dataclass(frozen=True)
class Case:
    """
    One place where two gigabytes come from.

    Attributes:
        what: It, for people.
        request: What the capture is to ask, as text of Python; "" for nothing.
        test: The test module.
        before: What the login runs first, in sh.
        arguments: More for pytest.
        ending: How the item has to end.
    """

    what: str
    request: str = ""
    test: str = "def test_it(gpu_kernel_release):\n    assert gpu_kernel_release\n"
    before: str = ""
    arguments: tuple[str, ...] = ()
    ending: str = "error"


def cases(work: Path) -> list[Case]:
    """Give the cases; `flood` prints emoji, of which text takes the most memory, `zeros` what JSON makes longest."""
    read = ANSWER.format(use=READ)
    sampler = (
        "from pytest_gpuinfra.on_target.bundle import packed\n"
        "from pytest_gpuinfra.on_target.plan import SamplingPlan\n"
        "def test_it(gpu_host):\n"
        "    ended = gpu_host.connection.run_program(packed('sampler'), SamplingPlan().document(), timeout_s=30)\n"
        "    assert 'printed more than' in ended.stdout\n"
        "    gpu_host.run('true')\n"
    )
    torch = "def test_it(gpu_torch_run):\n    assert gpu_torch_run\n"
    run = "def test_it(gpu_host):\n    assert gpu_host.run('{}')\n"
    many = f"capture.tree('mine', {str(work / 'many')!r}, capture.file('it', '.'))"
    return [
        Case("nothing, to compare with", ending="passed"),
        Case("login, standard output", before="flood"),
        Case("login, standard error", before="flood >&2"),
        Case("a command of the probe, standard output", "capture.node('mine', capture.command('it', 'flood'))", read),
        Case("the same, zeros", "capture.node('mine', capture.command('it', 'zeros'))", read),
        Case("the same, standard error", "capture.node('mine', capture.command('it', 'flood-err'))", read),
        Case("twelve commands at once", _several("flood", 12), read),
        Case("a file", f"capture.node('mine', capture.file('it', {str(work / 'large')!r}))", read),
        Case("/dev/zero as a file", "capture.node('mine', capture.file('it', '/dev/zero'))", read),
        Case("a FIFO as a file", f"capture.node('mine', capture.file('it', {str(work / 'fifo')!r}))", read),
        Case("a directory of 200,000 entries", many, "def test_it(gpu_facts):\n    assert gpu_facts.answer('mine')\n"),
        Case(
            "the kernel's journal",
            test="def test_it(gpu_kernel_log):\n    assert gpu_kernel_log\n",
            before='exec unshare -m /bin/sh -c \'mount --bind /dev/null /dev/kmsg && exec /bin/sh -c "$0"\' "$line"',
        ),
        Case("a command of a test, standard output", "", run.format("flood")),
        Case("the same, standard error", "", run.format("flood-err")),
        Case(
            "events of torch_program",
            "",
            torch,
            arguments=(f"--gpu-inventory={work / 'gpuinfra.toml'}", f"--gpu-python={work / 'bin' / 'events'}"),
        ),
        Case("nvidia-smi under the sampler", "", sampler, ending="passed"),
    ]


def _several(command: str, count: int) -> str:
    nodes = [f"capture.node('more{number}', capture.command('it', {command!r}))" for number in range(count - 1)]
    return ", ".join([f"capture.node('mine', capture.command('it', {command!r}))", *nodes])


class Watch(threading.Thread):
    """Watches the product's processes on the target's side: the largest VmHWM in MB so far is `peak_mb`."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_mb = 0.0
        self.over = threading.Event()

    def run(self) -> None:
        """Look until told to stop."""
        others: set[str] = set()
        while not self.over.wait(0.01):
            for entry in os.listdir("/proc"):
                if not entry.isdigit() or entry in others:
                    continue
                try:
                    if MARK.encode() not in Path("/proc", entry, "environ").read_bytes():
                        others.add(entry)
                    elif "python" in Path("/proc", entry, "comm").read_text():
                        self.peak_mb = max(self.peak_mb, _peak_mb(Path("/proc", entry, "status").read_text()))
                except OSError:
                    continue


def _peak_mb(status: str) -> float:
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) / 1000 if found else 0.0


def prepare(work: Path, size: int) -> None:
    """Write the stand-ins, a large file, a FIFO and a large directory."""
    (work / "bin").mkdir()
    text = "\U0001f525" * 4000
    scripts = {
        "flood": f"yes '{text}' | head -c {size}",
        "flood-err": f"yes '{text}' | head -c {size} >&2",
        "zeros": f"head -c {size} /dev/zero",
        "journalctl": f"yes '{text}' | head -c {size}",
        "nvidia-smi": f"yes '{text}' | head -c {size}",
        "events": f'yes \'{{"event": "pair", "it": "{"x" * 2000}"}}\' | head -c {size}',
    }
    for name, script in scripts.items():
        (work / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (work / "bin" / name).chmod(0o755)
    with (work / "large").open("wb") as stream:
        stream.truncate(size)
    os.mkfifo(work / "fifo")
    (work / "many").mkdir()
    for number in range(200_000):
        os.mknod(work / "many" / str(number))
    (work / "gpuinfra.toml").write_text(
        '[hosts.target.expect]\ndevices = [{ pci = ["0000:01:00.0", "0000:02:00.0"], driver = "nvidia" }]\n'
    )


def measure(work: Path, case: Case) -> tuple[str, str, float, float, float]:
    """Run one case; gives how its item ended, what was said, seconds, and both peaks in MB."""
    place = Path(tempfile.mkdtemp(dir=work))
    ssh = work / "bin" / "ssh"
    ssh.write_text(SSH.format(mark=MARK, bin=work / "bin", before=case.before))
    ssh.chmod(0o755)
    (place / "conftest.py").write_text(CONFTEST.format(request=case.request))
    (place / "test_it.py").write_text(case.test)
    watch = Watch()
    watch.start()
    began = time.perf_counter()
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "test_it.py"]
    ended = subprocess.run(
        [*argv, "--gpu-host=target", "--gpu-recording=run.json", *case.arguments],
        cwd=place,
        env={**os.environ, "PATH": f"{work / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    took_s = time.perf_counter() - began
    watch.over.set()
    watch.join()
    try:
        result = json.loads((place / "run.json").read_text())["results"][0]
    except (OSError, LookupError):
        raise SystemExit(f"{case.what}: no result\n{ended.stdout[-3000:]}{ended.stderr[-3000:]}") from None
    reason = result["message"].partition("\n")[0]
    return result["outcome"], reason, took_s, _peak_mb((place / "status").read_text()), watch.peak_mb


@click.command()
@click.option("--gigabytes", type=float, default=2.0, show_default=True)
@click.option("--only", default="", help="cases whose name holds this")
def main(gigabytes: float, only: str) -> None:
    """Measure, and print the table; status 1 where a limit was not kept or an item ended otherwise."""
    table = Table(title=f"a host that prints {gigabytes:g} GB; peak RSS in MB")
    for column in ("what prints it", "item", "s", "controller", "target"):
        table.add_column(column, justify="left" if column in ("what prints it", "item") else "right")
    console = Console(width=110)
    bad = []
    with tempfile.TemporaryDirectory(prefix="gi-bounds-", dir="/tmp") as directory:
        work = Path(directory)
        prepare(work, int(gigabytes * 1e9))
        for case in cases(work):
            if only not in case.what:
                continue
            outcome, reason, took_s, controller, target = measure(work, case)
            table.add_row(case.what, outcome, f"{took_s:.1f}", f"{controller:.0f}", f"{target:.0f}")
            console.print(f"{case.what}: {reason[:200]}", markup=False)
            if outcome != case.ending or max(controller, target) > LIMIT_MB:
                bad.append(case.what)
    console.print(table)
    if bad:
        raise SystemExit(f"not within {LIMIT_MB} MB, or ended otherwise: {', '.join(bad)}")


if __name__ == "__main__":
    main()
