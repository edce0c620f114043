"""Path safety as a user sees it: the running service's path against what was proven on its GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuinfra.recording import Recording, write_recording
from tests.plugin.conftest import Judged, judge_recording
from tests.recorded.story import SERVING, Story, events
from tests.unit.test_diagnosis import SAFE, without_faults

ITEM = "test_service_uses_a_path_that_was_proven_right[]"
PAIR = ((SERVING[0], SERVING[1]),)
CORRUPT = events(wrong=PAIR, p2p="hang")
P2P_ON: dict[str, Any] = {**SAFE, "environment": {}, "unit_environment": {}, "shared": False}
ENGINE_ON: dict[str, Any] = {**SAFE, "arguments": Story().arguments}

STORIES = {
    "both-off": Story(without_faults(), **SAFE, cuda=CORRUPT),
    "nothing-off": Story(without_faults(), cuda=CORRUPT),
    "nccl-alone-off": Story(without_faults(), **ENGINE_ON, cuda=CORRUPT),
    "engine-alone-off": Story(without_faults(), **P2P_ON, cuda=CORRUPT),
    "all-proven-right": Story(without_faults(), cuda=events(p2p="right")),
    "shm-is-wrong-too": Story(without_faults(), **SAFE, cuda=events(wrong=PAIR, shm="hang")),
    "shm-unproven": Story(without_faults(), **SAFE, cuda=events(wrong=PAIR, shm=None)),
    "other-boot": Story(without_faults(), **SAFE, cuda=events(boot_id="00000000-0000-4000-8000-000000000009")),
    "no-service": Story(without_faults(), serves=False, cuda=CORRUPT),
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
        ("no-service", "skipped", ("names no service",)),
    ],
)
def test_path_is_judged_by_what_was_proven(alias: str, ending: str, words: tuple[str, ...], judged: Judged) -> None:
    """Safe only if NCCL and the engine each use what was proven right; the message names pair and missing switch."""
    outcomes = judged.of_host(alias)
    assert outcomes.outcomes[ITEM] == ending, outcomes.messages[ITEM]
    assert [word for word in words if word not in outcomes.messages[ITEM]] == []
