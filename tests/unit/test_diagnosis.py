"""The diagnosis: each finding on a composed or recorded host that has it, and silence on those that are right."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuinfra.capture.capture import Capture
from pytest_gpuinfra.capture.selected import SelectedHost
from pytest_gpuinfra.diagnosis.diagnose import Finding, diagnose
from pytest_gpuinfra.diagnosis.gather import findings_of, observations_of
from pytest_gpuinfra.diagnosis.observations import Observations, RankWork, Unknown
from pytest_gpuinfra.host.host import GpuHost
from pytest_gpuinfra.inventory.inventory import parse_inventory, read_inventory
from pytest_gpuinfra.record.recording import read_recording
from tests.recorded.made_host import MadeFunction, MadeHost
from tests.recorded.reference.compose import reference_host
from tests.recorded.story import ARGUMENTS, OFF, PROGRAMS, SERVING, Story, events, sampled, without_faults

RECORDED = Path(__file__).parents[1] / "recorded"
A, B, C, D = SERVING
PAIR = ((A, B), (C, A))
QUIET = f"{ARGUMENTS} --disable-custom-all-reduce"
SAFE: dict[str, Any] = {"environment": OFF, "unit_environment": OFF, "arguments": QUIET, "shared": True}
H200 = ("0000:00:06.0", "0000:00:07.0")
H200_BOOT = "00000000-0000-4000-8000-000000000001"
FSP = (
    "NVRM: Xid (PCI:0000:01:00): 143, Error status 0x65 while polling for FSP boot complete, 0x177, 0x0, 0x0",
    "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x65:2062)",
    "NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0",
)
REFUSED = (
    "3,99,5000000000,-;nvidia 0000:01:00.0: AMD-Vi: Event logged "
    "[IO_PAGE_FAULT domain=0x0021 address=0x24000000000 flags=0x0020]\n"
)
XID_79 = "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def made(*messages: str, types: dict[int, str] | None = None, **files: str) -> MadeHost:
    """Give the reference host without its faults, with some messages in its log, group types, or other files."""
    host = without_faults()
    host.kmsg = [*host.kmsg, *((3, 5000.0 + number, message) for number, message in enumerate(messages))]
    host.group_types = types or {}
    host.files = {**host.files, **files}
    return host


def smi(change: Callable[[str], str]) -> MadeHost:
    """Give it with another output of nvidia-smi."""
    host = made()
    host.commands = {line: change(text) if "smi" in line else text for line, text in host.commands.items()}
    return host


def without_gpu(*messages: str) -> MadeHost:
    """Give it without its first GPU on the bus."""
    host = made(*messages)
    host.functions = [function for function in host.functions if not function.address.startswith("0000:01:00")]
    return host


def no_boot_words(host: MadeHost) -> MadeHost:
    """Give a host that tells neither group types nor a default domain."""
    host.group_types = dict.fromkeys(range(100), "")
    host.kmsg = [record for record in host.kmsg if "Default domain" not in record[2]]
    return host


def switched(acs_control: int) -> MadeHost:
    """Give two GPUs below one switch, without an IOMMU."""
    above = ("0000:00:01.0", "0000:01:00.0")
    ports = ("0000:02:00.0", "0000:02:01.0")
    bridges = [MadeFunction(a, above[:n], 0x1022, 1, 0x060400, "pcieport") for n, a in enumerate(above)]
    bridges += [MadeFunction(a, above, 0x1000, 1, 0x060400, "pcieport", acs_control=acs_control) for a in ports]
    gpus = [
        MadeFunction(f"0000:{bus}:00.0", (*above, port), driver="nvidia")
        for bus, port in zip(("03", "04"), ports, strict=True)
    ]
    return MadeHost([*bridges, *gpus], files=reference_host().files, kmsg=[(5, 0.0, "Linux version 6.14")])


def two_h200(cuda: list[str], **expect: Any) -> Story:
    """Give the machine that the programs really ran on."""
    gpus = [MadeFunction(a, (), device=0x2335, class_code=0x030200, driver="nvidia") for a in H200]
    files = {**reference_host().files, "/proc/sys/kernel/random/boot_id": f"{H200_BOOT}\n"}
    nothing = dict.fromkeys(Story().spec().model_dump(mode="json", exclude_defaults=True)["expect"])
    host = MadeHost(gpus, files=files, kmsg=[(5, 0.0, "Linux version 6.18.44")])
    return Story(host, serves=False, expect={**nothing, **expect}, cuda=cuda)


def recorded_events(name: str) -> list[str]:
    """Give the events of a run on two H200s."""
    return (PROGRAMS / f"h200-{name}.jsonl").read_text().splitlines()


def metrics(verified: int, generated: int, requests: int) -> str:
    """Give SGLang's counters."""
    return (
        f'sglang:spec_verify_calls_total{{tp_rank="0"}} {verified}.0\n'
        f'sglang:generation_tokens_total{{tp_rank="0"}} {generated}.0\n'
        f'sglang:num_requests_total{{tp_rank="0"}} {requests}.0\n'
        f'sglang:spec_accept_length{{tp_rank="0"}} 1.0\n'
    )


def endpoint(*readings: str) -> dict[str, Any]:
    """Give what was gathered of an SGLang that speculates: its account as it was recorded, and counters."""
    info = (RECORDED / "endpoint/sglang-tp2-speculation/server_info.json").read_text()
    rungs = [
        {"name": name, "reached_s": 0.1, "took_s": 0.1, "attempts": 1, "last": "200"}
        for name in ("port", "health", "models", "token")
    ]
    common = {"method": "GET", "request": "", "status": 200, "headers": {}, "took_s": 0.01}
    return {
        "address": "http://localhost:30000",
        "readiness": {
            "base_url": "http://localhost:30000",
            "rungs": rungs,
            "stop": "ready",
            "waited_s": 0.4,
            "wait_s": 0.0,
            "expected_model": None,
            "models": ["qwen"],
            "unit": None,
            "history": [],
        },
        "exchanges": [
            {**common, "path": "/server_info", "pieces": [info]},
            *({**common, "path": "/metrics", "pieces": [text]} for text in readings),
        ],
    }


HEALTHY: dict[str, Story] = {
    "reference host before any copy": Story(without_faults(), serves=False),
    "reference host, serving over shared memory": Story(without_faults(), **SAFE),
    "the same, its corrupt pairs seen and not relied on": Story(
        without_faults(), **SAFE, cuda=events(wrong=PAIR), kmsg=REFUSED
    ),
    "fallback by sitecustomize alone": Story(without_faults(), **{**SAFE, "environment": {}}, site_environment=OFF),
    "the engine switched its own all-reduce off": Story(
        without_faults(),
        **{**SAFE, "arguments": ARGUMENTS},
        journal=("Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs.",),
        cuda=events(wrong=PAIR),
    ),
    "two H200s": two_h200(recorded_events("cuda")),
    "two H200s through the interposer": two_h200(recorded_events("fault-no-fault")),
    "two H200s with too little memory to try": two_h200(recorded_events("fault-too-little-memory")),
    "GPUs below a switch that redirects nothing": Story(switched(0), serves=False, expect=two_h200([]).expect),
    "speculation that accepts": Story(
        without_faults(), **SAFE, endpoint=endpoint(metrics(0, 0, 0), metrics(60, 240, 8))
    ),
    "peers switched off by NCCL_P2P_LEVEL": Story(
        without_faults(), **{**SAFE, "environment": {"NCCL_P2P_LEVEL": "LOC"}, "unit_environment": {}}
    ),
    "a service of one rank has no path between GPUs": Story(without_faults(), ranks=1, cuda=events(wrong=PAIR)),
    "every rank works": Story(without_faults(), **SAFE, sampler=sampled()),
    "nobody asked the endpoint": Story(without_faults(), **SAFE, endpoint=endpoint(metrics(9, 90, 1))),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_wrong_gives_no_finding(name: str) -> None:
    """Silence where nothing wrong was seen."""
    assert [str(finding) for finding in findings_of(HEALTHY[name].host(), HEALTHY[name].gathered())] == []


@pytest.mark.parametrize("path", ["h200/two-gpus.json"])
def test_recording_of_a_real_machine_gives_no_finding(path: str) -> None:
    """Two real H200s, as they were recorded."""
    for host in replayed(RECORDED / path):
        assert findings_of(host) == ()


def test_reference_host_with_its_own_service_gives_no_finding() -> None:
    """The reference inventory as a whole, container and service included, without the faults in the log."""
    spec = read_inventory(RECORDED / "reference/gpuinfra.toml").hosts["node-a"]
    capture = without_faults().capture("node-a", spec.expect)
    host = GpuHost(SelectedHost("node-a", "replay", "", spec, "composed", capture), capture, _never)
    assert [str(finding) for finding in findings_of(host)] == []


STORY = Story(cuda=events(wrong=PAIR, p2p="hang"))
BLOCKED_OR_NOT = {"peer_access": None, "confidential": None}
SWITCH_GPUS = ("0000:03:00.0", "0000:04:00.0")
PEERS_RIGHT = {**two_h200([]).expect, "peer_access": "correct"}
SWITCH_WRONG = events(SWITCH_GPUS, wrong=(SWITCH_GPUS,))

# name: (host, findings in order, confidence of the first, words of the first)
TABLE: dict[str, tuple[Story, list[str], str, tuple[str, ...]]] = {
    "the story": (
        STORY,
        ["translation-blocks-peers", "fallback-missing", "custom-all-reduce-on"],
        "certain",
        ("DMA-FQ of 01:00.0", "01:00.0 tried to reach BAR1 of 11:00.0", "never written", "hang", "(SHM): right", "SNP"),
    ),
    "faults in the log alone": (
        Story(reference_host(), **SAFE),
        ["translation-blocks-peers"],
        "likely",
        ("01:00.0 tried to reach BAR1 of 11:00.0", "nobody has run them", "is kept off the peers already"),
    ),
    "corrupt pairs, and refused accesses while they were tried": (
        Story(without_faults(), serves=False, cuda=events(wrong=PAIR), kmsg=REFUSED, expect={"peer_access": "correct"}),
        ["translation-blocks-peers"],
        "certain",
        ("01:00.0 tried to reach BAR1 of 11:00.0", "11:00.0: never written"),
    ),
    "corrupt pairs where peers must be right": (
        Story(made(**{"/sys/module/kvm_amd/parameters/sev_snp": "N\n"}), serves=False, cuda=events(wrong=PAIR),
              expect={"peer_access": "correct", "confidential": None}),
        ["translation-blocks-peers"],
        "likely",
        ("61:00.0 to 01:00.0: never written", "Blackwell's FSP does not boot under identity (0x177)"),
    ),
    "all-reduce over peers hangs, its control is right": (
        Story(made(), serves=False, cuda=events(p2p="hang"), expect=BLOCKED_OR_NOT),
        ["translation-blocks-peers"],
        "possible",
        ("all-reduce p2p", "all-reduce shm"),
    ),
    "group types and boot messages are unknown": (
        Story(no_boot_words(made()), serves=False, cuda=events(wrong=PAIR), expect=BLOCKED_OR_NOT),
        ["peers-corrupt", "translation-blocks-peers"],
        "certain",
        ("group type:",),
    ),
    "identity tried": (
        Story(made(*FSP, types={40: "identity"}), serves=False),
        ["identity-dead-end"],
        "certain",
        ("0x177", "IOMMU group of 01:00.0 is identity now", "no reset"),
    ),
    "identity tried, and taken back without a reboot": (
        Story(made(*FSP), serves=False),
        ["identity-dead-end"],
        "likely",
        ("0x177", "its IOMMU group is DMA-FQ now"),
    ),
    "FSP does not answer": (
        Story(made("NVRM: kfspPollForResponse_IMPL: FSP command timed out"), serves=False),
        ["fsp-boot"],
        "possible",
        ("FSP command timed out",),
    ),
    "GPU not started": (
        Story(made(*FSP[1:]), serves=False), ["gpu-not-started"], "likely", ("RmInitAdapter failed", "01:00.0"),
    ),
    "ACS redirects below a switch": (
        Story(switched(0x1D), serves=False, expect=PEERS_RIGHT, cuda=SWITCH_WRONG),
        ["acs-redirect"],
        "likely",
        ("0000:02:00.0: control 0x001d, between", "03:00.0 to 04:00.0: never written"),
    ),
    "corrupt below a switch that redirects nothing": (
        Story(switched(0), serves=False, expect=PEERS_RIGHT, cuda=SWITCH_WRONG),
        ["peers-corrupt"],
        "certain",
        ("no translation: no group of",),
    ),
    "one pair of H200s never written": (
        two_h200(recorded_events("fault-never-written-one-pair")),
        ["peers-corrupt"],
        "certain",
        ("00:06.0 to 00:07.0: never written",),
    ),
    "copies that hang": (
        two_h200(recorded_events("fault-a-copy-that-hangs")), ["peers-corrupt"], "certain", ("hang", "kernel_load"),
    ),
    "no peer access, and NCCL fell back": (
        two_h200(events(H200, absent=True, p2p="shm", boot_id=H200_BOOT)),
        ["peer-access-absent"],
        "certain",
        ("no peer access for 2 directed pairs", "all-reduce p2p over 2 GPUs (SHM)"),
    ),
    "no peer access where it must be": (
        two_h200(events(H200, absent=True, boot_id=H200_BOOT), peer_access="correct"),
        ["peer-access-absent"],
        "certain",
        ("00:06.0 to 00:07.0",),
    ),
    "sum wrong over shared memory": (
        two_h200(recorded_events("fault-a-wrong-sum-in-one-rank")), ["collective-wrong"], "likely", ("rank 1",),
    ),
    "a rank hangs over shared memory": (
        two_h200(recorded_events("fault-a-rank-that-hangs")), ["collective-wrong"], "likely", ("rank 1 on 00:07.0",),
    ),
    "the wrong transport": (
        two_h200(recorded_events("fault-the-wrong-transport")), ["transport-overridden"], "certain", ("P2P",),
    ),
    "fallback in the main process, not in one rank": (
        Story(without_faults(), **SAFE, rank_environment={2: {"NCCL_ALGO": "Ring"}}),
        ["fallback-missing"],
        "likely",
        ("some processes", "103 (sglang::scheduler_TP2): not set", "peer_access"),
    ),
    "fallback on disk, not in the processes": (
        Story(without_faults(), **{**SAFE, "environment": {}}, edited_s=9000.0, cuda=events(wrong=PAIR)),
        ["translation-blocks-peers", "fallback-missing", "not-restarted"],
        "likely",
        ("DMA-FQ",),
    ),
    "custom all-reduce on beside the fallback": (
        Story(without_faults(), **{**SAFE, "arguments": ARGUMENTS}, cuda=events(wrong=PAIR)),
        ["translation-blocks-peers", "custom-all-reduce-on"],
        "likely",
        ("never written",),
    ),
    "switched off, and no memory is shared": (
        Story(without_faults(), **{**SAFE, "shared": False}),
        ["fallback-not-seen"],
        "likely",
        ("not SHM (rank 0 has 2",),
    ),
    "switched off by level, and no memory is shared": (
        Story(without_faults(), **{**SAFE, "environment": {"NCCL_P2P_LEVEL": "LOC"}, "shared": False}),
        ["fallback-not-seen"],
        "likely",
        ("NCCL_P2P_LEVEL=LOC is set in",),
    ),
    "fallback switched to 0": (
        Story(without_faults(), **{**SAFE, "environment": {"NCCL_P2P_DISABLE": "0"}}, cuda=events(wrong=PAIR)),
        ["translation-blocks-peers", "fallback-missing"],
        "likely",
        ("DMA-FQ",),
    ),
    "custom all-reduce on, peers declared blocked": (
        Story(without_faults(), **{**SAFE, "arguments": ARGUMENTS}),
        ["custom-all-reduce-on"],
        "possible",
        ("peer_access",),
    ),
    "another peer path of the engine's": (
        Story(without_faults(), **{**SAFE, "arguments": f"{QUIET} --enable-mscclpp"}, cuda=events(wrong=PAIR)),
        ["translation-blocks-peers", "custom-all-reduce-on"],
        "likely",
        ("never written",),
    ),
    "/dev/shm is full": (
        Story(without_faults(), **SAFE, shm_left_mib=3), ["shm-small"], "certain", ("128 GiB, 0.00293 GiB left",),
    ),
    "fallback demanded and not there": (
        Story(without_faults(), **{**SAFE, "environment": {}, "unit_environment": {}},
              expect={"peer_access": None, "service": {"environment": OFF}}),
        ["fallback-missing"],
        "certain",
        ("no layer sets it", "the inventory demands"),
    ),
    "/dev/shm of 64 MiB": (
        Story(without_faults(), **SAFE, shm_mib=64), ["shm-small"], "certain", ("0.0625 GiB", "16 GiB demanded"),
    ),
    "/dev/shm of 64 MiB, nothing demanded": (
        Story(without_faults(), **SAFE, shm_mib=64, expect={"container": {}}), ["shm-small"], "likely", ("0.0625 GiB",),
    ),
    "NCCL found no room": (
        Story(without_faults(), **SAFE, expect={"container": {}},
              journal=("NCCL WARN Error while creating shared memory segment /dev/shm/nccl-5Dkd (size 9637888)",)),
        ["shm-small"],
        "likely",
        ("creating shared memory segment",),
    ),
    "nvidia-uvm missing after a reboot": (
        Story(made(**{"/proc/uptime": "240.5 900.1\n"}), **SAFE,
              nodes={name: node for name, node in Story().nodes.items() if "uvm" not in name}),
        ["device-nodes"],
        "certain",
        ("/dev/nvidia-uvm", "since the reboot", "booted 240 s ago"),
    ),
    "nvidia-uvm has an old major": (
        Story(without_faults(), **SAFE, nodes={**Story().nodes, "nvidia-uvm": (511, 0)}),
        ["device-nodes"],
        "certain",
        ("/dev/nvidia-uvm has major 511; the host's driver has 508 now",),
    ),
    "libraries in the container are older": (
        Story(without_faults(), **SAFE, libraries="575.57.08"),
        ["driver-mismatch"],
        "certain",
        ("loaded module 580.95.05, libraries in the container 575.57.08", "pct:129"),
    ),
    "driver was updated and not loaded": (
        Story(smi(lambda _: "Failed to initialize NVML: Driver/library version mismatch\n"), serves=False),
        ["driver-mismatch"],
        "certain",
        ("Driver/library version mismatch", "reboot"),
    ),
    "driver and a program differed once": (
        Story(made(
            "NVRM: API mismatch: the client has version 575.57.08, but this kernel module has version 580.95.05."
        ), serves=False),
        ["driver-mismatch"],
        "possible",
        ("API mismatch",),
    ),
    "GPU fell off the bus": (Story(made(XID_79), serves=False), ["gpu-lost"], "likely", ("79", "01:00.0 is lost")),
    "GPU fell off the bus, and is gone": (
        Story(without_gpu(XID_79), serves=False), ["gpu-lost"], "certain", ("01:00.0 is not on the PCI bus", "fallen"),
    ),
    "GPU is not there": (
        Story(without_gpu(), serves=False), ["gpu-lost"], "likely", ("GPU 01:00.0 is not there",),
    ),
    "GPU is not shown": (
        Story(smi(lambda text: text.replace("00000000:01:00.0", "00000000:02:00.0")), serves=False),
        ["gpu-lost"],
        "possible",
        ("bound to nvidia, and nvidia-smi does not show it",),
    ),
    "service was first": (
        Story(without_faults(), **SAFE, started_s=6.0,
              state={"ActiveState": "failed", "SubState": "failed", "NRestarts": "5", "MainPID": "0"},
              journal=("RuntimeError: No CUDA GPUs are available",)),
        ["started-early"],
        "certain",
        ("started 6.0 s after boot", "the nvidia driver was there 9.0 s after boot", "No CUDA GPUs", "5 restarts"),
    ),
    "unit edited and not restarted": (
        Story(without_faults(), **SAFE, edited_s=9000.0),
        ["not-restarted"],
        "certain",
        ("was changed", "after the process started"),
    ),
    "unit edited and not reloaded": (
        Story(without_faults(), **SAFE, edited_s=9000.0, state={"NeedDaemonReload": "yes"}),
        ["not-restarted"],
        "certain",
        ("a reload is pending", "systemctl daemon-reload, then restart"),
    ),
    "speculation accepts nothing": (
        Story(without_faults(), **SAFE, endpoint=endpoint(metrics(0, 0, 0), metrics(232, 240, 8))),
        ["speculation-not-accepting"],
        "certain",
        ("configured but not accepting",),
    ),
    "one rank is idle": (
        Story(without_faults(), **SAFE, sampler=sampled(idle=[B], untold=[D])),
        ["idle-rank"],
        "certain",
        ("rank on GPU 11:00.0 did nothing", "11:00.0: idle: activity 0 to 0 %", "sglang::scheduler_TP1",
         "not seen: rank on GPU 71:00.0"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_finding_is_made_of_what_was_observed(name: str) -> None:
    """Each host gets these findings in this order and no other, and the first names what it rests on."""
    story, keys, confidence, words = TABLE[name]
    findings = findings_of(story.host(), story.gathered())
    text = "\n\n".join(map(str, findings))
    assert [finding.key for finding in findings] == keys, text
    assert findings[0].confidence == confidence, text
    for word in words:
        assert word in str(findings[0]), text
    for finding in findings:
        assert finding.evidence
        assert finding.steps
        assert all(step.do and step.costs for step in finding.steps)


@pytest.mark.parametrize("name", TABLE)
def test_what_a_title_says_is_set_is_set(name: str) -> None:
    """Titles are made of facts: no variable stands in one that says it is set, or missing, where it is not so."""
    story = TABLE[name][0]
    if not isinstance(story, Story):
        return
    ranks = [story.environment, *(story.rank_environment or {}).values()]
    for finding in findings_of(story.host(), story.gathered()):
        for variable, value in re.findall(r"(\w+)=(\w+)(?: and \w+=\w+)? is set in", finding.title):
            assert any(values.get(variable) == value for values in ranks), finding.title
        for variable in re.findall(r"(\w+) is missing", finding.title):
            assert any(variable not in values for values in ranks), finding.title


def test_every_rule_is_seen() -> None:
    """Every kind of finding stands in the table."""
    seen = {key for _, keys, _, _ in TABLE.values() for key in keys}
    assert seen >= {
        "acs-redirect", "collective-wrong", "custom-all-reduce-on", "device-nodes", "driver-mismatch",
        "fallback-missing", "fallback-not-seen",
        "fsp-boot", "gpu-lost", "gpu-not-started", "identity-dead-end", "idle-rank",
        "not-restarted",
        "peer-access-absent", "peers-corrupt", "shm-small", "speculation-not-accepting", "started-early",
        "translation-blocks-peers", "transport-overridden",
    }  # fmt: skip


def test_story_offers_both_ways_out_and_closes_the_one_that_is_closed() -> None:
    """Two ways, each with its cost; under SNP, and on Blackwell, leaving translation is none."""
    stay, leave = findings_of(STORY.host(), STORY.gathered())[0].steps
    assert stay.open
    assert "NCCL_P2P_DISABLE=1" in stay.do
    assert "--disable-custom-all-reduce" in stay.do
    assert "27.511 GB/s here" in stay.costs
    assert not leave.open
    assert "SEV-SNP" in leave.costs
    assert "0x177" in leave.costs


def test_leaving_translation_is_open_where_nothing_forbids_it() -> None:
    """Without SNP and Blackwell it costs a reboot and the confinement of devices."""
    host = made(**{"/sys/module/kvm_amd/parameters/sev_snp": "N\n"})
    host.commands = {line: text.replace("Blackwell", "Ada") for line, text in host.commands.items()}
    story = Story(host, serves=False, cuda=events(wrong=PAIR), expect=BLOCKED_OR_NOT)
    leave = findings_of(story.host(), story.gathered())[0].steps[1]
    assert leave.open
    assert "a reboot" in leave.costs


def test_environment_that_nobody_may_read_leaves_the_fallback_open() -> None:
    """Not root: what the processes have is unknown, which is neither in effect nor missing."""
    story = Story(without_faults(), **SAFE, cuda=events(wrong=PAIR))
    host = story.host()
    answers = json.loads(json.dumps(host.capture.answers))
    for entry, node in answers["service"].items():
        if entry.startswith("process "):
            node["environ"] = node["opened"] = {"e": "EACCES: Permission denied"}
    answers["service"]["python"] = {"startup": {"e": "EACCES: Permission denied"}}
    findings = {finding.key: finding for finding in findings_of(changed(host, answers), story.gathered())}
    assert findings["fallback-missing"].confidence == "possible"
    assert any("EACCES" in line for line in findings["fallback-missing"].unseen)


def test_kernel_log_that_nobody_may_read_makes_the_story_less_certain() -> None:
    """The corrupt pairs and the group types stay; the refused accesses are named as not seen."""
    host = STORY.host()
    answers = {**host.capture.answers, "kernel_log": {"": {"kmsg": {"e": "EPERM: Operation not permitted"}}}}
    first = findings_of(changed(host, answers), STORY.gathered())[0]
    assert (first.key, first.confidence) == ("translation-blocks-peers", "likely")
    assert any("refused accesses" in line and "EPERM" in line for line in first.unseen)


def test_host_that_was_not_reached_has_no_finding() -> None:
    """Nothing is known of it, so nothing is said."""
    host = STORY.host()
    capture = dataclasses.replace(host.capture, answers={}, error=("UnreachableError", "node-a: no route", ""))
    lost = GpuHost(dataclasses.replace(host.selected, capture=capture), capture, _never)
    assert findings_of(lost, {}) == ()


def test_idle_rank_is_found() -> None:
    """A rank that did nothing while others worked; one that nobody could see is named as such."""
    work = (RankWork("0", A, False, "rank 0: busy 93 %"), RankWork("1", B, True, "rank 1: busy 0 %"))
    (found,) = diagnose(Observations(alias="x", work=(*work, RankWork("2", C, None, "not sampled"))))
    assert (found.key, found.confidence) == ("idle-rank", "certain")
    assert "rank 1: busy 0 %" in found.evidence
    assert found.unseen == ("rank 2: not sampled",)
    assert diagnose(Observations(alias="x", work=work[:1])) == ()
    assert diagnose(Observations(alias="x", work=Unknown("nobody sampled"))) == ()


SPOILT = (A, "0000:00:01.1", "40")
"""Of the many functions and groups that are alike, those that are spoilt."""


def spoilt(answers: Any) -> Iterator[tuple[str, Any]]:
    """Give the answers with each reading in turn refused, empty, cut off, or garbage."""
    for request, tree in answers.items():
        entries = [entry for entry in tree if request not in ("pci", "pci_detail", "iommu_groups") or entry in SPOILT]
        for entry in entries:
            node = tree[entry]
            for name, raw in node.items():
                text = raw.get("t", "")
                for bad in (
                    {"e": "EACCES: Permission denied"},
                    {"t": ""},
                    {"t": text[: len(text) // 2]},
                    {"t": "\x00?{"},
                ):
                    changes = {**raw, **bad} if "t" in bad else bad
                    yield f"{request}/{entry}/{name}: {bad}", {
                        **answers, request: {**tree, entry: {**node, name: changes}},
                    }  # fmt: skip


@pytest.mark.parametrize("part", range(4))
def test_reading_that_is_spoilt_never_crashes_the_diagnosis_nor_hides_the_story(part: int) -> None:
    """Each reading of the story refused, empty, cut or garbage: no crash, and the corrupt pairs are still found."""
    story, host = STORY, STORY.host()
    for number, (what, answers) in enumerate(spoilt(host.capture.answers)):
        if number % 4 == part:
            found = findings_of(changed(host, answers), story.gathered())
            keys = {finding.key for finding in found}
            assert what.startswith("boot") or keys & {"translation-blocks-peers", "peers-corrupt"}, what


def test_reading_that_is_refused_invents_no_finding() -> None:
    """A healthy host of which one reading is refused is still not found wrong."""
    story = HEALTHY["reference host, serving over shared memory"]
    host = story.host()
    for what, answers in spoilt(host.capture.answers):
        if "EACCES" in what:
            assert [f.key for f in findings_of(changed(host, answers), story.gathered())] == [], what


def test_damaged_gathering_is_unknown() -> None:
    """Events cut off, exchanges of another shape: unknown, with the reason, and no crash."""
    host = STORY.host()
    for gathered in ({"gpu": {"cuda": {"lines": ["{"]}}}, {"gpu": {"cuda": {}}}, {"endpoint": {"address": "x"}}):
        seen = observations_of(host, gathered)
        assert any(isinstance(part, Unknown) for part in (seen.transfers, seen.speculation))
        assert all(isinstance(finding, Finding) for finding in diagnose(seen))


def changed(host: GpuHost, answers: Any) -> GpuHost:
    """Give a host with other answers."""
    capture: Capture = dataclasses.replace(host.capture, answers=answers)
    return GpuHost(dataclasses.replace(host.selected, capture=capture), capture, _never)


def replayed(path: Path) -> Iterator[GpuHost]:
    """Give the hosts of a recording."""
    for alias, recorded in read_recording(path).hosts.items():
        spec = parse_inventory({"hosts": {alias: recorded.spec}}, str(path)).hosts[alias]
        selected = SelectedHost(alias, "replay", "", spec, str(path), recorded.capture, recorded.gathered)
        yield GpuHost(selected, recorded.capture, _never)


def _never(_: SelectedHost) -> Any:
    raise AssertionError("a replayed host is never connected to")
