"""hosts_program with real torch and gloo: two "hosts" on this machine's loopback, and how their run may end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_gpuinfra.on_target.plan import Deadlines, HostsPlan, Memory, Rendezvous, program_text
from pytest_gpuinfra.subjects.groups.judge import judge_group
from pytest_gpuinfra.subjects.groups.part import HostPart, parse_host_part

from .conftest import FEED, KIB, put_away

pytest.importorskip("torch")
QUICK = Deadlines(prepare_s=60, stall_s=5, arm_s=30, total_s=120)
MESSAGES = (("int32", 4), ("int32", 64 * KIB), ("float32", 4100), ("bfloat16", 4098))


def free_port() -> int:
    """Give a TCP port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Program:
    """One host's program, fed as a connection feeds it."""

    def __init__(self, document: dict, environment: dict[str, str]) -> None:
        source = program_text("hosts").encode()
        self.process = subprocess.Popen(
            [sys.executable, "-c", FEED],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        assert self.process.stdin
        self.process.stdin.write(b"%d\n%b%b\n" % (len(source), source, json.dumps(document).encode()))
        self.process.stdin.flush()
        self.lines: list[str] = []

    def wait_for(self, text: str) -> None:
        """Read until a line holds a text."""
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line.decode())
            if text in self.lines[-1]:
                return
        raise AssertionError(f"the program ended without {text!r}: {self.lines}")

    def part(self) -> HostPart:
        """Wait for its end, and read what it said."""
        assert self.process.stdout
        self.lines += [line.decode() for line in self.process.stdout]
        self.process.wait(timeout=60)
        return parse_host_part(self.lines)

    def ranks(self) -> list[int]:
        """Give the processes of its ranks."""
        found = subprocess.run(
            ["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False
        ).stdout.split()
        return sorted(map(int, found))


Start = Callable[..., Program]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start one host's program: start(plan, alias, ranks, first)."""
    started: list[Program] = []

    def begin(plan: HostsPlan, alias: str, *, first: bool, ranks: int = 1, lock: bool = False, **extra: str) -> Program:
        devices = [f"CPU {number}" for number in range(ranks)]
        started.append(Program(plan.document(alias, devices, first=first, lock=lock), extra))
        return started[-1]

    yield begin
    for one in started:
        put_away(one.process)


def make_plan(port: int, *, hosts: int = 2, join_s: float = 20.0, **changes: object) -> HostsPlan:
    """Give a small plan on the loopback."""
    given = {"messages": MESSAGES, "deadlines": QUICK, "memory": Memory(budget_bytes=16 << 20), **changes}
    return HostsPlan(Rendezvous("127.0.0.1", port, hosts, join_s), backend="gloo", **given)


def test_two_hosts_of_different_size_sum_right(start: Start) -> None:
    """World size 3; each host numbers its ranks after those before it, compares every sum, and has a speed."""
    plan = make_plan(free_port(), environment={"GPUINFRA_WORD": "of {host}"})
    one, other = start(plan, "a", first=True, ranks=2), start(plan, "b", first=False)
    parts = {"a": one.part(), "b": other.part()}

    for part, ranks in ((parts["a"], 2), (parts["b"], 1)):
        assert part.proven, part
        assert part.met is not None
        assert (part.met.world_size, dict(part.met.ranks_by_host)) == (3, {"a": 2, "b": 1})
        assert {(each.type, each.size_bytes) for each in part.sums} == set(MESSAGES)
        assert {each.ranks_reported for each in part.sums} == {ranks}
        assert part.speed is not None
        assert part.speed.busbw_gb_s == pytest.approx(part.speed.algbw_gb_s * 4 / 3, abs=0.002)
        assert not part.stuck
        assert part.about["torch"]
    assert sorted(step.report.rank for part in parts.values() for step in part.ranks) == [0, 1, 2]
    assert judge_group({"a": 2, "b": 1}, parts, {}, "x").ok
    assert judge_group({"a": 2, "b": 2}, parts, {}, "x").ending == "wrong"


def test_host_that_nobody_joins_gives_up_and_names_the_number(start: Start) -> None:
    """One of two hosts came: unknown, since nobody saw the other one fail."""
    plan = make_plan(free_port(), join_s=5.0)
    part = start(plan, "a", first=True).part()

    assert (part.trouble_kind, part.trouble) == ("rendezvous", "not all of the 2 hosts came within 5 s")
    assert part.complete
    assert judge_group({"a": 1, "b": 1}, {"a": part}, {"b": "broke off"}, "x").ending == "error"


def test_host_without_a_way_to_the_first_one_says_so(start: Start) -> None:
    """Nobody listens there, its name means nothing here, or there is no way: only the last one proves a partition."""
    port = free_port()
    refused = start(make_plan(port, join_s=1.0), "b", first=False)
    nameless = HostsPlan(Rendezvous("no-such-host.invalid", port, 2, 1.0), backend="gloo", deadlines=QUICK)
    unknown = start(nameless, "b", first=False)
    away = HostsPlan(Rendezvous("255.255.255.255", port, 2, 1.0), backend="gloo", messages=MESSAGES, deadlines=QUICK)
    unreachable = start(away, "b", first=False)

    assert refused.part().trouble_kind == "rendezvous"
    assert unknown.part().trouble_kind == "address"
    part = unreachable.part()
    assert part.trouble_kind == "unreachable"
    assert "no way to 255.255.255.255" in part.trouble


def test_rank_that_dies_is_a_crash_and_the_other_hosts_error_its_consequence(start: Start) -> None:
    """The signal and the host are named, whatever the surviving rank says."""
    plan = make_plan(free_port(), messages=(("int32", 4), *((("float32", 4 << 20),) * 40)))
    one, other = start(plan, "a", first=True), start(plan, "b", first=False)
    other.wait_for('"met"')
    (rank,) = other.ranks()
    os.kill(rank, signal.SIGSEGV)
    parts = {"a": one.part(), "b": other.part()}

    assert parts["b"].ending == "crash"
    verdict = judge_group({"a": 1, "b": 1}, parts, {}, "x")
    assert verdict.ending == "wrong"
    assert "crash: rank" in verdict.observed
    assert "(b, CPU 0) was ended by SIGSEGV" in verdict.observed


def test_stopped_rank_is_told_from_those_that_wait_for_it(start: Start) -> None:
    """SIGSTOP leaves no trace in any log; the state of its process tells."""
    plan = make_plan(free_port(), messages=(("int32", 4), *((("float32", 4 << 20),) * 40)))
    one, other = start(plan, "a", first=True), start(plan, "b", first=False)
    other.wait_for('"met"')
    (rank,) = other.ranks()
    os.kill(rank, signal.SIGSTOP)
    parts = {"a": one.part(), "b": other.part()}
    verdict = judge_group({"a": 1, "b": 1}, parts, {}, "x")

    assert verdict.ending == "wrong"
    assert "hang, the others wait for: rank" in verdict.observed
    assert "on b, stopped by a signal" in verdict.observed
    assert not Path(f"/proc/{rank}").exists()


@pytest.mark.parametrize("moment", ["importing torch", "waiting for the other hosts"])
def test_end_of_standard_input_ends_everything(start: Start, moment: str) -> None:
    """The controller is gone: while torch is imported, and while the others are waited for."""
    program = start(make_plan(free_port(), join_s=60.0), "a", first=True, ranks=2)
    program.wait_for(moment)
    time.sleep(0.3)
    ranks = program.ranks()
    began = time.monotonic()
    assert program.process.stdin
    program.process.stdin.close()

    assert program.process.wait(timeout=10) == 4
    assert time.monotonic() - began < 5.0
    assert not [pid for pid in ranks if Path(f"/proc/{pid}").exists()]


def test_lock_is_taken_where_the_plan_says_so(start: Start) -> None:
    """A second run on the machine says whose the lock is."""
    first = start(make_plan(free_port(), join_s=60.0), "a", first=True, lock=True)
    first.wait_for("waiting for the other hosts")
    plan = make_plan(free_port(), lock_wait_s=0.3)
    part = start(plan, "b", first=True, lock=True).part()

    assert part.trouble_kind == "lock"
    assert f"process {first.process.pid}" in part.trouble


def test_python_without_torch_is_skipped(tmp_path: Path) -> None:
    """It says so, and whose Python it was."""
    document = make_plan(1).document("a", ["CPU 0"], first=True)
    source = program_text("hosts").encode()
    fed = b"%d\n%b%b\n" % (len(source), source, json.dumps(document).encode())
    with subprocess.Popen(
        [sys.executable, "-S", "-c", FEED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path
    ) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(fed)
        process.stdin.flush()
        lines = process.stdout.read().decode().splitlines()
    part = parse_host_part(lines)

    assert part.complete
    assert "No module named 'torch'" in (part.skipped_reason or "")
    verdict = judge_group({"a": 1, "b": 1}, {"a": part, "b": part}, {}, "x")
    assert verdict.ending == "error"
