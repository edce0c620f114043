"""What a GPU program says, and the kernel's log meanwhile, changed in one place and replayed: no change may pass."""

from __future__ import annotations

import copy
import json
import os
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_gpuinfra.inventory.inventory import Expectation
from pytest_gpuinfra.record.recording import RecordedHost, Recording, write_recording
from tests.plugin.conftest import Judged, judge_recording
from tests.plugin.test_gpu import gathered, lines, machine

SEED = 20261130
OUTPUTS = ("cuda", "torch", "as-another-user-cuda", "as-another-user-torch")
SUITES = "single_gpu or peer_copies or all_reduce or gpu_programs"
FREE = {
    "figures, of which any may be true": r"(took_s|at_s|expected_s|phases|joining_s|silent_s|gb_s|speed|pid|bytes|"
    r"began_monotonic_s|ended_monotonic_s|log_from|log_to|memory_\w+|largest_copy_bytes|multiprocessors|seed)",
    "names, of which any may be true": r"(kernel|kernel_module|python|visible_devices|about|uuid|name|driver|index|"
    r"compute_\w+|mig|stage|last_line|library|detail)",
    "what was tried, which the results tell as well": r"(mechanisms|simultaneous|chains|removed_files|environment|"
    r"unset|log)",
}
"""Fields whose loss or change changes no verdict, with all that is in them: what is allowed here is so for a reason."""
OF_EACH = int(os.environ.get("GPUINFRA_WORDS", "12"))
"""Changes of each output that are judged, drawn by the dice; by hand GPUINFRA_WORDS=1000, all of them: ten minutes."""


def events(name: str) -> list[dict[str, Any]]:
    """Give the events of a recorded run, without its progress."""
    return [event for line in lines(name) if (event := json.loads(line))["event"] != "progress"]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Give the path of every field of an event; of a list that of each element, too."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from places(child, (*path, key))


def other(value: Any) -> Any:
    """Give another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return type(value)(0 if value else 1)
    if isinstance(value, str):
        return "other"
    return type(value)() if value else None if isinstance(value, dict) else ["other"] if value == [] else "other"


def mutations(said: list[dict[str, Any]], dice: random.Random) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Give (what, events) of each kind of event and field: one of them, by the dice, dropped, and made another."""
    for number, event in enumerate(said):
        yield f"drop {event['event']} {number}", said[:number] + said[number + 1 :]
    by_kind: dict[tuple[Any, ...], list[tuple[int, tuple[Any, ...]]]] = {}
    for number, event in enumerate(said):
        for path in places(event):
            kind = (event["event"], *("*" if isinstance(key, int) else key for key in path))
            by_kind.setdefault(kind, []).append((number, path))
    # Of other arms no transport is expected.
    judged = {"shm", "p2p"} if any(event.get("program") == "cuda" for event in said) else set()
    for kind, every in by_kind.items():
        found = [(n, path) for n, path in every if "channels" not in kind or said[n]["arm"] in judged]
        names = [key for key in kind if key != "*"]
        if any(re.fullmatch(pattern, name) for pattern in FREE.values() for name in names):
            continue
        for how in ("drop", "change") if found else ():
            number, path = dice.choice(found)
            changed = copy.deepcopy(said)
            at: Any = changed[number]
            for key in path[:-1]:
                at = at[key]
            if how == "drop" and at[path[-1]] is None:
                continue  # absent is null
            if how == "drop":
                del at[path[-1]]
            else:
                at[path[-1]] = other(at[path[-1]])
            yield f"{how} {number} {'.'.join(map(str, (kind[0], *path)))}", changed


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Judged, dict[str, str]]:
    """Judge every changed output, each as a host of its own; gives what was changed, by host."""
    dice = random.Random(SEED)
    capture = machine().capture("x", Expectation())
    hosts: dict[str, RecordedHost] = {}
    changes: dict[str, str] = {}
    healthy = {"cuda": lines("cuda"), "torch": lines("torch")}
    for output in OUTPUTS:
        program = output.rpartition("-")[2]
        made = list(mutations(events(output), dice))
        for number, (what, changed) in enumerate(dice.sample(made, min(OF_EACH, len(made)))):
            alias = f"{output}-{number}"
            said = {**healthy, program: [json.dumps(event) for event in changed]}
            hosts[alias] = RecordedHost({}, capture, gathered(said["cuda"], said["torch"]))
            changes[alias] = f"{output}: {what}"
    directory = tmp_path_factory.mktemp("words")
    write_recording(directory / "made.json", Recording(hosts))
    return judge_recording(directory, "made.json", "-k", SUITES, timeout_s=1500), changes


def test_nothing_that_is_lost_or_changed_passes_everywhere(judged: tuple[Judged, dict[str, str]]) -> None:
    """Each event dropped, and each field dropped or made another, ends an item in FAILED or ERROR."""
    run, changes = judged
    passed = [what for alias, what in changes.items() if not run.of_host(alias).ended("failed", "error")]

    assert len(changes) == len(OUTPUTS) * OF_EACH or OF_EACH > 100
    assert passed == []


XID = "NVRM: Xid (PCI:0000:00:06): 79, pid=1, name=x, GPU has fallen off the bus."
LOGS: dict[str, tuple[dict[str, Any], str, str]] = {
    "quiet": ({"kmsg": "6,1,2000000,-;usb 1-1: new device\n"}, "passed", ""),
    "empty": ({"kmsg": ""}, "passed", ""),
    "xid": ({"kmsg": f"4,1,2000000,-;{XID}\n"}, "failed", "fallen off the bus"),
    "refused": (
        {"kmsg": "3,1,2000000,-;DMAR: [DMA Write] Request device [00:06.0] fault addr 0x1000 [fault reason 05]\n"},
        "failed",
        "fault addr 0x1000",
    ),
    "another-device": (
        {"kmsg": "3,1,2000000,-;nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n"},
        "failed",
        "20034",
    ),
    "unreadable": ({"kmsg": None, "log_reason": "EPERM: Operation not permitted"}, "error", "EPERM"),
    "garbage": ({"kmsg": "<html>\n"}, "error", "not a /dev/kmsg record"),
    "hole-before": ({"kmsg": "6,9,2000000,-;usb 1-1: new device\n"}, "error", "records 1 to 8 are missing"),
    "hole-within": ({"kmsg": "6,1,2000000,-;a\n6,5,2000000,-;b\n"}, "error", "records 2 to 4 are missing"),
    "hole-and-xid": ({"kmsg": f"6,9,2000000,-;{XID}\n"}, "failed", "fallen off the bus"),
    "allowed": ({"kmsg": f"4,1,2000000,-;{XID}\n"}, "passed", ""),
}
"""(what the recording holds, how the item ends, what it says) by name."""


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """Judge the healthy output with each kernel log."""
    capture = machine().capture("x", Expectation())
    hosts = {}
    for name, (more, _, _) in LOGS.items():
        spec = {"expect": {"kernel_log": {"allow": ["Xid .*: 79"]}}} if name == "allowed" else {}
        hosts[name] = RecordedHost(spec, capture, gathered(lines("cuda"), lines("torch"), **more))
    directory = tmp_path_factory.mktemp("logged")
    write_recording(directory / "made.json", Recording(hosts))
    return judge_recording(directory, "made.json", "-k", "gpu_programs or peer_copies")


@pytest.mark.parametrize("name", LOGS)
def test_kernel_log_of_our_own_load_is_judged(name: str, logged: Judged) -> None:
    """A fault fails whatever device it names; what cannot be read, or not whole, is unknown; the copies stay right."""
    _, ending, said = LOGS[name]
    outcomes, item = logged.of_host(name), "test_kernel_logs_no_fault_while_cuda_program_runs[]"

    assert outcomes.outcomes[item] == ending
    assert said in outcomes.messages[item]
    assert outcomes.ended("failed", "error") == ([item] if ending != "passed" else [])
