"""A line of the kernel's log belongs to the pair whose copies it fell into, and says whose memory was reached for."""

from __future__ import annotations

import dataclasses
import os
from itertools import permutations
from pathlib import Path

import pytest

from pytest_gpuinfra.capture.capture import kernel_log, take_capture
from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.connection.local import LocalConnection
from pytest_gpuinfra.gather.gpu import GpuRun, GpuRuns, GpuRunSettings
from pytest_gpuinfra.subjects.kernel_log.log import parse_kernel_log
from pytest_gpuinfra.subjects.transfers.pair import DirectedPair
from tests.recorded.story import Story

from .conftest import SHAM

GPUS = ONE, OTHER, THIRD = "0000:01:00.0", "0000:11:00.0", "0000:21:00.0"
NOTHING = "the kernel logged nothing during the copies"
REAL, DISGUISE = "AMD-Vi: Event logged [IO_PAGE_FAULT", "sham words: event [no fault"
"""The line stands in this machine's own log until it boots again: there it must look like nothing to anybody."""


@pytest.fixture
def story_facts():
    """Facts of a host whose first two GPUs have the sham's addresses, and BARs."""
    return Story().host().facts


@pytest.fixture
def line(story_facts):
    """AMD-Vi's words for a write by the first GPU to the second one's BAR1."""
    bar = max(story_facts.pci_functions[OTHER].bars, key=lambda one: one.end - one.start)
    return (
        f"sham driver of pytest-gpuinfra's own tests: nvidia {ONE}: {REAL} "
        f"domain=0x0021 address={bar.start + 0x1000:#x} flags=0x0020]"
    )


@pytest.fixture
def log_since():
    """Give a function that gives what the kernel logged since now, as the plugin reads it after a program."""
    if not os.access("/dev/kmsg", os.R_OK | os.W_OK):
        pytest.skip("/dev/kmsg cannot be read and written here")
    connection = LocalConnection("here")
    taken = take_capture(connection, [kernel_log("kernel_log")], reached_by="test", timeout_s=30.0)
    runs = GpuRuns(
        "here",
        GpuRunSettings(()),
        connection=lambda: connection,
        host_connection=lambda: connection,
        baseline=lambda: parse_kernel_log(taken.node("kernel_log")),
        boot_id=lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    )

    def judged(result) -> GpuRun:
        said = runs._log_since()
        assert said["log_reason"] == ""
        kmsg = said["kmsg"].replace(DISGUISE, REAL)
        log = parse_kernel_log({"kmsg": Reading("/dev/kmsg", kmsg)}).entries if kmsg else ()
        return GpuRun(result, log)

    yield judged
    connection.close()


@pytest.mark.parametrize("program", ["cuda", "torch"])
def test_line_is_attributed_to_exactly_the_pair_it_fell_into(program, run, line, log_since, story_facts):
    """The sham driver writes it in the middle of one pair's copies; no other pair, before or after, has it."""
    mechanism = {"cuda": "copy_engine", "torch": "torch_copy"}[program]
    result = run(
        program,
        {
            **({"PYTHONPATH": str(SHAM)} if program == "torch" else {}),
            "GPUINFRA_SHAM_GPUS": "3",
            "GPUINFRA_FAULTS": f"kmsg,pair=0-1,mechanism={mechanism},from_repeat=2",
            "GPUINFRA_KMSG": f"<3>{line.replace(REAL, DISGUISE)}\n",
        },
        mechanisms=(mechanism,),
        simultaneous=(),
        chains=(),
        arms=(),
    )
    judged = log_since(result)

    assert {one.outcome for one in result.transfers} == {"right"}
    assert all(one.log_from is not None and one.log_to is not None for one in result.transfers)
    words = {
        (src, dst): judged.context(story_facts, DirectedPair("a", src, dst), result.transfer(src, dst, mechanism))
        for src, dst in permutations(GPUS, 2)
    }
    assert [pair for pair, said in words.items() if any("IO_PAGE_FAULT" in one for one in said)] == [(ONE, OTHER)]
    assert [one for one in words[ONE, OTHER] if "IO_PAGE_FAULT" in one] == [
        f"kernel log during the copies: {line} [that is BAR1 of {OTHER} (+0x1000)]"
    ]
    assert NOTHING in words[OTHER, ONE]


def test_line_of_a_copy_that_never_comes_back_is_its_own(run, line, log_since, story_facts):
    """The copying process dies right after the refused access: the parent closes the bracket in its place."""
    result = run(
        environment={
            "GPUINFRA_FAULTS": "die,pair=0-1,mechanism=copy_engine,from_repeat=2;kmsg,pair=0-1,mechanism=copy_engine",
            "GPUINFRA_KMSG": f"<3>{line.replace(REAL, DISGUISE)}\n",
        },
        mechanisms=("copy_engine",),
        simultaneous=(),
        chains=(),
        arms=(),
    )
    judged = log_since(result)
    lost, other = (result.transfer(*pair, "copy_engine") for pair in ((ONE, OTHER), (OTHER, ONE)))

    assert (lost.outcome, other.outcome) == ("crash", "right")
    assert "IO_PAGE_FAULT" in "".join(judged.context(story_facts, DirectedPair("a", ONE, OTHER), lost))
    assert NOTHING in judged.context(story_facts, DirectedPair("a", OTHER, ONE), other)


def test_clock_stands_in_where_the_program_cannot_read_the_log(run, line, log_since):
    """In a container without /dev/kmsg the numbers are missing: then the time of the copies tells, less exactly."""
    fault = "kmsg,pair=0-1,mechanism=copy_engine;stall,pair=1-0,mechanism=copy_engine"
    environment = {"GPUINFRA_FAULTS": fault, "GPUINFRA_KMSG": f"<3>{line.replace(REAL, DISGUISE)}\n"}
    no_more = {"mechanisms": ("copy_engine",), "simultaneous": (), "chains": (), "arms": ()}
    result = run(environment=environment, **no_more)
    judged = log_since(result)
    one = result.transfer(ONE, OTHER, "copy_engine")
    blind = dataclasses.replace(one, log_from=None, log_to=None)
    elsewhere = dataclasses.replace(blind, began_monotonic_s=None, ended_monotonic_s=None)

    assert [entry.message for entry in judged.logged_during(blind)] == [line]
    assert judged.logged_during(elsewhere) == ()
