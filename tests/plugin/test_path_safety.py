"""Path safety as a user sees it: the running service's path against what was proven on its GPUs."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_gpuinfra.record.recording import RecordedHost, Recording, write_recording
from tests.plugin.conftest import Judged, judge_recording
from tests.recorded.story import SERVING, Story, events
from tests.unit.test_diagnosis import SAFE, without_faults

ITEM = "test_service_uses_a_path_that_was_proven_right[]"
PAIR = ((SERVING[0], SERVING[1]),)
CORRUPT = events(wrong=PAIR, p2p="hang")
P2P_ON: dict[str, Any] = {**SAFE, "environment": {}, "unit_environment": {}, "shared": False}
ENGINE_ON: dict[str, Any] = {**SAFE, "arguments": Story().arguments}

STOPPED: dict[str, Any] = {"state": {"ActiveState": "inactive", "SubState": "dead", "MainPID": "0"}}
SWITCH = "--disable-custom-all-reduce"

STORIES = {
    "both-off": Story(without_faults(), **SAFE, cuda=CORRUPT),
    "nothing-off": Story(without_faults(), cuda=CORRUPT),
    "nccl-alone-off": Story(without_faults(), **ENGINE_ON, cuda=CORRUPT),
    "engine-alone-off": Story(without_faults(), **P2P_ON, cuda=CORRUPT),
    "all-proven-right": Story(without_faults(), cuda=events(p2p="right")),
    "shm-is-wrong-too": Story(without_faults(), **SAFE, cuda=events(wrong=PAIR, shm="hang")),
    "shm-unproven": Story(without_faults(), **SAFE, cuda=events(wrong=PAIR, shm=None)),
    "other-boot": Story(without_faults(), **SAFE, cuda=events(boot_id="00000000-0000-4000-8000-000000000009")),
    "stopped": Story(without_faults(), **SAFE, **STOPPED, cuda=CORRUPT),
    "stopped-and-nothing-proven": Story(without_faults(), **SAFE, **STOPPED, cuda=events(shm=None)),
    "stopped-on-another-boot": Story(
        without_faults(), **SAFE, **STOPPED, cuda=events(boot_id="00000000-0000-4000-8000-000000000009")
    ),
    "no-service": Story(without_faults(), serves=False, cuda=CORRUPT),
    "no-service-all-right": Story(without_faults(), serves=False, cuda=events(p2p="right")),
    "no-service-nothing-right": Story(without_faults(), serves=False, cuda=events(wrong=PAIR, shm="hang")),
    "no-service-other-boot": Story(
        without_faults(), serves=False, cuda=events(boot_id="00000000-0000-4000-8000-000000000009")
    ),
}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """Judge every story in one run."""
    directory = tmp_path_factory.mktemp("paths")
    write_recording(directory / "made.json", Recording({alias: story.recorded() for alias, story in STORIES.items()}))
    return judge_recording(directory, "made.json", "-k", "path_that_was_proven")


@pytest.mark.parametrize(
    ("alias", "ending", "words"),
    [
        ("both-off", "passed", ()),
        ("all-proven-right", "passed", ()),
        ("nothing-off", "failed", ("01:00.0", "NCCL_P2P_DISABLE=1", "--disable-custom-all-reduce")),
        ("nccl-alone-off", "failed", ("01:00.0", "--disable-custom-all-reduce")),
        ("engine-alone-off", "failed", ("NCCL_P2P_DISABLE=1",)),
        ("shm-is-wrong-too", "failed", ()),
        ("shm-unproven", "error", ()),
        ("other-boot", "error", ("its results belong to boot",)),
        ("stopped", "error", ("no service is running", "safe to run, by what was proven: NCCL_P2P_DISABLE=1")),
        ("stopped-and-nothing-proven", "error", ("no service is running", "judge again")),
        ("stopped-on-another-boot", "error", ("its results belong to boot",)),
        ("no-service", "skipped", ("names no service", f"NCCL_P2P_DISABLE=1, {SWITCH}")),
        (
            "no-service-all-right",
            "skipped",
            ("peer-to-peer in NCCL (NCCL_P2P_DISABLE not set)", "; or NCCL_P2P_DISABLE=1"),
        ),
        ("no-service-nothing-right", "skipped", ("nothing is proven to be safe to run", "ended hang")),
        ("no-service-other-boot", "skipped", ("what would be safe to run is unknown",)),
    ],
)
def test_path_is_judged_by_what_was_proven(alias: str, ending: str, words: tuple[str, ...], judged: Judged) -> None:
    """Safe only if NCCL and the engine each use what was proven right; the message names pair and missing switch."""
    outcomes = judged.of_host(alias)
    assert outcomes.outcomes[ITEM] == ending, outcomes.messages[ITEM]
    assert [word for word in words if word not in outcomes.messages[ITEM]] == []


SERVICE_ITEM = "test_all_reduce_as_the_service_runs_is_right[]"
OVERWRITTEN = {"values": {"NCCL_PROTO": "LL"}, "size": 4096, "leading_nul": 90, "odd": 0, "empty": 0}


def with_arm(lines: Sequence[str], ending: str = "right") -> list[str]:
    """Give events in which the arm over shared memory also ran as the service runs, with this ending."""
    found = []
    for line in lines:
        event = json.loads(line)
        found.append(event)
        if event["event"] == "plan":
            event["arms"] = ["service", *event["arms"]]
        if event["event"] == "allreduce" and event["arm"] == "shm":
            arm = {**event, "arm": "service", "unset": ["NCCL_*"], "ending": ending}
            if ending != "right":
                arm |= {"reason": "rank 1 did not come back", "runs": [], "speed": None}
            found.append(arm)
    return [json.dumps(event) for event in found]


def unread(recorded: RecordedHost) -> RecordedHost:
    """Give a host whose service renamed its main process, and every other one."""
    answers = copy.deepcopy(dict(recorded.capture.answers))
    for entry, node in answers["service"].items():
        if entry.startswith("process "):
            node["environ"]["t"] = json.dumps(OVERWRITTEN)
    return dataclasses.replace(recorded, capture=dataclasses.replace(recorded.capture, answers=answers))


@pytest.fixture(scope="module")
def as_it_runs(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """Judge recordings of the service's own arm."""
    right = with_arm(events())
    hosts = {
        "right": Story(without_faults(), **SAFE, cuda=right).recorded(),
        "hang": Story(without_faults(), **SAFE, cuda=with_arm(events(), "hang")).recorded(),
        "overwritten": unread(Story(without_faults(), **SAFE, cuda=events()).recorded()),
        "peers-on-and-blocked": Story(without_faults(), **P2P_ON, cuda=events()).recorded(),
        "recorded-before": Story(without_faults(), **SAFE, cuda=events()).recorded(),
        "no-service": Story(without_faults(), serves=False, cuda=events()).recorded(),
        "cut-off": Story(
            without_faults(), **SAFE, cuda=[one for one in right if '"arm": "service"' not in one]
        ).recorded(),
    }
    directory = tmp_path_factory.mktemp("arms")
    write_recording(directory / "made.json", Recording(hosts))
    return judge_recording(directory, "made.json", "-k", "as_the_service_runs")


@pytest.mark.parametrize(
    ("alias", "ending", "words"),
    [
        ("right", "passed", ""),
        ("hang", "failed", "hang: rank 1 did not come back"),
        ("overwritten", "error", "is not known whole"),
        ("peers-on-and-blocked", "error", "does not switch NCCL's peer-to-peer off"),
        ("recorded-before", "skipped", "holds no all-reduce as the service runs"),
        ("no-service", "skipped", "names no service"),
        ("cut-off", "error", "it did not get there"),
    ],
)
def test_all_reduce_as_the_service_runs(alias: str, ending: str, words: str, as_it_runs: Judged) -> None:
    """Its own item: wrong, unknown and not asked for are told apart; an overwritten variable is never unset."""
    outcomes = as_it_runs.of_host(alias)
    assert outcomes.outcomes[SERVICE_ITEM] == ending, outcomes.messages[SERVICE_ITEM]
    assert words in outcomes.messages[SERVICE_ITEM]
