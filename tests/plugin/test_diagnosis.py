"""The diagnosis as a user sees it: at the end of the output, before the table of hosts, with and without xdist."""

from __future__ import annotations

import pytest

from pytest_gpuinfra.record.recording import Recording, write_recording
from tests.plugin.conftest import Judged, judge_recording
from tests.recorded.story import SERVING, Story, events
from tests.unit.test_diagnosis import FSP, HEALTHY, made

STORY = Story(cuda=events(wrong=((SERVING[0], SERVING[1]),), p2p="hang"))
FEW = ("-k", "iommu_group_type or copy_engine or shared_memory")


@pytest.fixture(scope="module", params=[(), ("-n", "2")], ids=["one process", "xdist"])
def judged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """Judge the story, a failed attempt at identity domains, and a healthy host."""
    directory = tmp_path_factory.mktemp("diagnosis")
    healthy = HEALTHY["reference host, serving over shared memory"]
    hosts = {"story": STORY, "identity": Story(made(*FSP, types={40: "identity"}), serves=False), "healthy": healthy}
    recording = Recording({alias: story.recorded() for alias, story in hosts.items()})
    write_recording(directory / "made.json", recording)
    return judge_recording(directory, "made.json", *FEW, *request.param)


def test_story_is_diagnosed_before_the_table(judged: Judged) -> None:
    """Cause first, then the switch that is missing in the service; evidence, the way out, and what it costs."""
    output = judged.output
    said = output[output.index("story: diagnosis") : output.index("identity: diagnosis")]
    assert "1. the IOMMU's translation breaks direct copies between GPUs [topology, certain]" in said
    assert "2. NCCL's fallback is not in effect in sglang-qwen.service" in said
    assert "seen: 01:00.0 to 11:00.0: never written" in said
    assert "next: keep the translation" in said
    assert "not open here: leave translation" in said
    assert output.index("identity: diagnosis") < output.index("verdict")


def test_identity_attempt_is_named_a_dead_end(judged: Judged) -> None:
    """0x177 under identity: nothing to try there."""
    said = judged.output[judged.output.index("identity: diagnosis") :]
    assert "1. identity domains are a dead end on this GPU: the FSP of 01:00.0 does not boot under one (0x177)" in said


def test_healthy_host_gets_no_diagnosis(judged: Judged) -> None:
    """Silence where nothing is wrong."""
    assert "healthy: diagnosis" not in judged.output
