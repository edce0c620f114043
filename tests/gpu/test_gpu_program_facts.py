"""The events of the GPU programs, as typed facts: real outputs, and shapes that must not be believed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_gpuinfra.errors import ParseError
from pytest_gpuinfra.subjects.transfers.program import parse_gpu_program_events, parse_progress

RECORDED = Path(__file__).parents[1] / "recorded" / "gpu-programs"
A, B = "0000:00:06.0", "0000:00:07.0"

# Per planted fault: which transfers are not right, and how the arm ended.
PLANTED = {
    "no-fault": ({}, "right"),
    "never-written-one-pair": (
        {(A, B, mechanism): ("wrong", "never_written")
         for mechanism in ("copy_engine", "kernel_store", "kernel_load", "ipc_store", "ipc_load")}, None,
    ),
    "zeroed-one-mechanism": ({(B, A, "ipc_load"): ("wrong", "zeroed")}, None),
    "scrambled-from-the-second-repeat-on": ({(A, B, "copy_engine"): ("wrong", "scrambled")}, None),
    "zeroed-above-1-mib-only": ({(A, B, "kernel_store"): ("wrong", "zeroed")}, None),
    "scrambled-last-bytes-only": ({(B, A, "kernel_load"): ("wrong", "scrambled")}, None),
    "never-written-last-bytes-only-by-ipc": ({(A, B, "ipc_store"): ("wrong", "never_written")}, None),
    "outside-of-the-destination": ({(A, B, "kernel_store"): ("wrong", "outside")}, None),
    "a-copy-that-hangs": ({(A, B, "kernel_load"): ("hang", None)}, None),
    "a-copy-that-crashes": ({(B, A, "copy_engine"): ("crash", None)}, None),
    "a-rank-that-hangs": ({}, "hang"),
    "a-rank-that-crashes": ({}, "crash"),
    "a-wrong-sum-in-one-rank": ({}, "wrong"),
    "nccl-returns-an-error": ({}, "failed"),
    "the-wrong-transport": ({}, "right"),
}  # fmt: skip


def read(name):
    """Parse a recording."""
    return parse_gpu_program_events((RECORDED / f"{name}.jsonl").read_text().splitlines())


@pytest.fixture
def events():
    """The healthy recording as objects, to be spoilt."""
    return [json.loads(line) for line in (RECORDED / "h200-cuda.jsonl").read_text().splitlines()]


def parse(events):
    """Parse objects."""
    return parse_gpu_program_events(json.dumps(event) for event in events)


def first(events, name):
    """Give the first event of a name."""
    return next(event for event in events if event["event"] == name)


@pytest.mark.parametrize(("program", "arms"), [("cuda", ["service", "shm", "p2p"]), ("torch", ["service"])])
def test_ranks_of_another_user_are_right(program, arms):
    """Ranks that are as a service's process sum as those of the login do, with the library that it has loaded."""
    run = read(f"h200-as-another-user-{program}")
    assert [(arm.arm, arm.ending) for arm in run.runs] == [(name, "right") for name in arms]
    assert run.complete


def test_healthy_machine():
    """Two H200s: what was measured there."""
    run = read("h200-cuda")

    assert run.complete
    assert run.incomplete_reason is None
    assert run.stand_in is None
    assert run.plan.driver.version == "13.0"
    assert [device.pci for device in run.devices] == [A, B]
    assert {one.outcome for one in run.transfers} == {"right"}
    assert run.transfer(A, B, "copy_engine").gb_s > 0.95 * 394
    assert run.transfer(A, B, "kernel_store").gb_s > 0.95 * 370
    assert run.transfer(A, B, "copy_engine").largest_bytes == 256 << 20
    assert [(one.arm, one.ending, one.transports) for one in run.runs] == [
        ("shm", "right", {"SHM"}),
        ("p2p", "right", {"P2P"}),
    ]
    assert run.runs[0].speed.busbw_gb_s == pytest.approx(26.8, rel=0.03)
    assert run.runs[1].speed.busbw_gb_s == pytest.approx(300, rel=0.03)
    assert run.took_s < 5


def test_healthy_machine_by_torch():
    """torch's rung on the same machine."""
    run = read("h200-torch")

    assert run.complete
    assert run.plan.about["torch"].startswith("2.11.0")
    assert {(one.mechanism, one.outcome) for one in run.transfers} == {("torch_copy", "right")}
    assert run.runs[0].transports == {"SHM"}


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_planted_fault_is_found_and_nothing_else(name):
    """Each fault of the interposing libraries, on real GPUs."""
    run = read(f"h200-fault-{name}")
    expected, ending = PLANTED[name]

    assert run.complete
    assert run.stand_in == "interposer"
    assert {
        (one.src, one.dst, one.mechanism): (one.outcome, one.corruption)
        for one in run.transfers
        if one.outcome != "right" and not one.simultaneous
    } == expected
    assert {one.ending for one in run.runs} == ({ending} if ending else set())


def test_wrong_transport_is_seen():
    """Right sums over P2P, though the arm asked for SHM."""
    run = read("h200-fault-the-wrong-transport").runs[0]

    assert run.environment == {"NCCL_P2P_DISABLE": "1"}
    assert run.transports == {"P2P"}


def test_too_little_memory_is_no_result():
    """The GPU is named; no pair is right or wrong."""
    run = read("h200-fault-too-little-memory")

    assert {one.outcome for one in run.transfers} == {"error"}
    assert [device.pci for device in run.devices if not device.usable] == [B]


def test_texts_name_the_pair_the_class_and_the_place():
    """What a person reads."""
    transfer = read("h200-fault-zeroed-one-mechanism").transfer(B, A, "ipc_load")
    hang = read("h200-fault-a-rank-that-hangs").runs[0]

    assert f"{B} to {A} by ipc_load: wrong, zeroed" in str(transfer)
    assert "the first at offset 0" in str(transfer)
    assert "all-reduce shm over 2 GPUs (SHM): hang: " in str(hang)
    assert "behind the others: rank 1" in str(hang)
    assert "right, 843333688 bytes in 19 copies, 39" in str(read("h200-cuda").transfer(A, B, "copy_engine"))


def test_wrong_is_told_from_not_seen():
    """What was observed wrong fails; what was not observed is an error."""
    wrong = read("h200-fault-a-copy-that-hangs").transfer(A, B, "kernel_load")
    unseen = read("h200-fault-too-little-memory").transfer(A, B, "kernel_load")

    assert wrong.observed_wrong
    assert not unseen.observed_wrong
    assert read("h200-fault-a-rank-that-crashes").runs[0].observed_wrong
    assert str(unseen).endswith("are left to what runs there")
    assert read("h200-cuda").transfer(A, "0000:c1:00.0", "kernel_load") is None


def test_bytes_beside_the_destination_are_told():
    """A copy that is right and writes on."""
    transfer = read("h200-fault-outside-of-the-destination").transfer(A, B, "kernel_store")

    assert "16 bytes beside the destination" in str(transfer)
    assert transfer.pair == f"{A} to {B}"


def test_whole_seconds_are_numbers_too(events):
    """JSON has one kind of number."""
    events[-1]["took_s"] = 4

    assert parse(events).took_s == 4.0


def test_run_without_its_end_is_incomplete(events):
    """The program died: nothing that it said counts as a whole."""
    run = parse(events[:-1])

    assert not run.complete
    assert run.incomplete_reason == "the program ended without its last event"


def test_run_that_says_it_is_not_complete(events):
    """A fatal error is the reason."""
    events[-1]["complete"] = False
    events.insert(-1, {"event": "error", "fatal": True, "kind": "cuda", "reason": "cuInit returned 999"})
    run = parse(events)

    assert not run.complete
    assert run.incomplete_reason == "cuInit returned 999"


def test_nothing_at_all_is_incomplete():
    """Empty output is never a pass."""
    assert not parse_gpu_program_events([]).complete


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("pair", {"copies_checked": 0}, "nothing was compared"),
        ("pair", {"wrong_bytes": 3}, "nothing was compared"),
        ("pair", {"outcome": "wrong"}, "without wrong bytes"),
        ("pair", {"outcome": "splendid"}, "outcome is 'splendid'"),
        ("pair", {"src": None}, "no src"),
        ("pair", {"wrong_bytes": "0"}, "wrong_bytes is '0'"),
        ("pair", {"copies_checked": True}, "copies_checked is True"),
        ("pair", {"failures": [3]}, "failures is [3]"),
        ("allreduce", {"runs": []}, "without a right sum"),
        ("allreduce", {"ending": "fine"}, "ending is 'fine'"),
        ("allreduce", {"devices": [1]}, "devices is [1]"),
        ("plan", {"schema": 2}, "another schema"),
        ("plan", {"driver": None}, "no driver"),
        ("device", {"event": "devices"}, "an event called 'devices'"),
        ("device", {"event": "end", "complete": True, "stuck": [], "took_s": 1}, "an end before the last event"),
    ],
)
def test_shape_that_nobody_knows_is_refused(events, name, change, text):
    """Not guessed at."""
    first(events, name).update(change)
    if change.get("event") == "end":
        events.pop()

    with pytest.raises(ParseError) as caught:
        parse(events)

    assert text in str(caught.value)


def test_sum_that_a_rank_did_not_report_is_no_right_sum(events):
    """Every rank compares its own."""
    first(events, "allreduce")["runs"][0]["ranks_reported"] = 1

    with pytest.raises(ParseError):
        parse(events)


@pytest.mark.parametrize("line", ["Traceback (most recent call last):", "[1, 2]"])
def test_line_that_is_no_event_is_refused(line):
    """Its number is told."""
    with pytest.raises(ParseError) as caught:
        parse_gpu_program_events(["", line], source="cuda_program.py on node-a")

    assert "cuda_program.py on node-a, line 2" in str(caught.value)


def test_progress_is_read_as_it_comes():
    """Half lines and other events are passed over."""
    line = json.dumps({"event": "progress", "phase": "pairs", "text": "A -> B", "done": 1, "total": 4, "at_s": 0.1})

    assert (parse_progress(line).text, parse_progress(line).total) == ("A -> B", 4)
    assert parse_progress(line[:20]) is None
    assert parse_progress('{"event": "end"}') is None
    assert parse_progress("3") is None
