"""What the driver says of a GPU, changed in one place at a time: every class of leaf, every way of not being told."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pytest_gpuinfra.subjects.gpu.health import LeafRule, read_health_table
from tests.plugin.conftest import Judged, judge_recording

RECORDED = json.loads((Path(__file__).parents[1] / "recorded" / "h200" / "two-gpus.json").read_text(encoding="utf-8"))
ONE, OTHER = "0000:00:06.0", "0000:00:07.0"
FAULT, SHOWN, WIDTH, SEEN = (
    f"test_{name}" for name in ("gpu_reports_no_fault", "driver_shows_the_gpu", "link_width_is", "gpus_are_seen")
)
GRANTS, IDLE = "test_driver_grants_peer_access", "test_gpu_is_idle"
ON_NVIDIA = {"devices": [{"pci": [ONE, OTHER], "driver": "nvidia"}]}
DENIED = {"e": "EACCES: Permission denied"}
ABSENT = {"e": "ENOENT: No such file or directory"}
Answers = dict[str, Any]


@dataclass(frozen=True)
class Changed:
    """
    The recording of two H200s, changed in one place.

    Attributes:
        change: Changes the capture's answers.
        endings: Ending of an item by "test_name" (of the host) or "test_name@06" (of a GPU).
        words: What the messages of those that did not pass must hold.
        expect: What the inventory expects.
    """

    change: Callable[[Answers], None]
    endings: dict[str, str]
    words: tuple[str, ...] = ()
    expect: dict[str, Any] = field(default_factory=lambda: ON_NVIDIA)


def smi(change: Callable[[ElementTree.Element], None], *, status: int = 0) -> Callable[[Answers], None]:
    """Change the first GPU of nvidia-smi's document."""

    def apply(answers: Answers) -> None:
        reading = answers["nvidia_smi"][""]["xml"]
        root = ElementTree.fromstring(reading["t"][reading["t"].index("<nvidia_smi_log") :])
        for gpu in root.findall("gpu"):
            gpu.remove(gpu.find("supported_clocks"))  # type: ignore[arg-type]
        change(root)
        reading |= {"t": ElementTree.tostring(root, encoding="unicode"), "x": status}

    return apply


def put(**leaves: str | None) -> Callable[[ElementTree.Element], None]:
    """Give the first GPU's leaves ("group__leaf") other words; None takes them out, and a new one is made."""

    def change(root: ElementTree.Element) -> None:
        for name, word in leaves.items():
            element = root.find("gpu")
            assert element is not None
            *groups, last = name.split("__")
            for group in groups:
                found = element.find(group)
                element = ElementTree.SubElement(element, group) if found is None else found
            leaf = element.find(last)
            if word is None:
                assert leaf is not None, name
                element.remove(leaf)
            else:
                (ElementTree.SubElement(element, last) if leaf is None else leaf).text = word

    return change


def only(*names: str) -> Callable[[ElementTree.Element], None]:
    """Leave the first GPU only these elements."""

    def change(root: ElementTree.Element) -> None:
        gpu = root.find("gpu")
        assert gpu is not None
        for element in list(gpu):
            if element.tag not in names:
                gpu.remove(element)

    return change


def nothing_of_it(root: ElementTree.Element) -> None:
    """Let the first GPU be of a board that reports nothing but its name."""
    gpu = root.find("gpu")
    assert gpu is not None
    for element in gpu.iter():
        if not len(element) and element.tag not in ("pci_bus_id", "product_name"):
            element.text = "N/A"


def of_driver(version: str, **leaves: str | None) -> Callable[[ElementTree.Element], None]:
    """Let an older driver have written the document."""

    def change(root: ElementTree.Element) -> None:
        root.find("driver_version").text = version  # type: ignore[union-attr]
        put(**leaves)(root)
        reasons = root.find("gpu/clocks_event_reasons")
        if version < "535" and reasons is not None:
            for element in reasons.iter():
                element.tag = element.tag.replace("_event_reason", "_throttle_reason")

    return change


def lost(root: ElementTree.Element) -> None:
    """Let the first GPU be lost while it is asked."""
    put(fan_speed="GPU is lost", temperature__gpu_temp="GPU is lost", remapped_rows="GPU is lost")(root)


def no_first(root: ElementTree.Element) -> None:
    """Leave the first GPU out of the document."""
    root.remove(root.find("gpu"))  # type: ignore[arg-type]


def leaves_of_a_gpu() -> Iterator[str]:
    """Give the path of every leaf of one H200."""
    text = RECORDED["hosts"]["h200"]["capture"]["answers"]["nvidia_smi"][""]["xml"]["t"]
    gpu = ElementTree.fromstring(text[text.index("<nvidia_smi_log") :]).find("gpu")
    assert gpu is not None
    todo = [(gpu, "")]
    while todo:
        element, path = todo.pop()
        for child in element:
            todo.append((child, f"{path}/{child.tag}"))
            if not len(child):
                yield f"{path}/{child.tag}"[1:]


def of_the_table() -> Iterator[tuple[str, Changed]]:
    """Give, for each rule with a leaf on an H200, a word of each kind and how the GPU must end by it."""
    first: dict[LeafRule, str] = {}
    for path in leaves_of_a_gpu():
        rule = read_health_table().rule(path)
        if rule is not None:
            first.setdefault(rule, path)
    for rule, path in first.items():
        name = path.replace("/", "__")
        examples = {">0": "3", "*": "something else", "number": "7"}
        if rule.fault:
            word = examples.get(rule.fault[0], rule.fault[0])
            yield f"{path} {word}", Changed(smi(put(**{name: word})), one("failed"), (path, rule.reason))
        if rule.note:
            yield f"{path} noted", Changed(smi(put(**{name: examples.get(rule.note[0], rule.note[0])})), one("passed"))
        if "*" not in (*rule.fault, *rule.note, *rule.fine):
            yield f"{path} unknown", Changed(smi(put(**{name: "Sideways"})), one("error"), (path, "Sideways"))
        if "*" not in rule.fine:
            yield f"{path} unread", Changed(smi(put(**{name: "Unknown Error"})), one("error"), (path,))


def of_what_must_be_shown() -> Iterator[tuple[str, Changed]]:
    """Give, for each leaf that must be shown, the document without it."""
    for rule in read_health_table().shown:
        path = next(path for path in rule.any if path in set(leaves_of_a_gpu()))
        taken = smi(put(**{path.replace("/", "__"): None}))
        yield f"{path} taken out", Changed(taken, one("error"), (rule.any[0].rpartition("/")[0], "not shown"))
        if rule.with_ecc:
            absent = smi(put(**{path.replace("/", "__"): "N/A"}))
            yield f"{path} not counted", Changed(absent, one("error"), ("though ECC is on",))


def one(ending: str, other: str = "passed") -> dict[str, str]:
    """Give how the state of the two GPUs must end."""
    return {f"{FAULT}@06": ending, f"{FAULT}@07": other}


def sysfs(address: str, **texts: dict[str, str]) -> Callable[[Answers], None]:
    """Change files of a PCI function; a new function is made on the model of the first GPU."""

    def apply(answers: Answers) -> None:
        for request, names in (("pci", ("class", "vendor", "driver")), ("pci_detail", None)):
            model = answers[request][ONE]
            node = answers[request].setdefault(address, copy.deepcopy(model))
            node |= {name: text for name, text in texts.items() if (name in names if names else name in model)}
        if address not in (ONE, OTHER):
            answers["pci_detail"][address]["."] = {"t": f"../../../devices/pci0000:00/{address}"}

    return apply


def together(*changes: Callable[[Answers], None]) -> Callable[[Answers], None]:
    """Make several changes."""

    def apply(answers: Answers) -> None:
        for change in changes:
            change(answers)

    return apply


def gone(*addresses: str) -> Callable[[Answers], None]:
    """Take PCI functions off the bus."""

    def apply(answers: Answers) -> None:
        for address in addresses:
            for request in ("pci", "pci_detail"):
                answers[request].pop(address)

    return apply


def without_driver(answers: Answers) -> None:
    """Unload the NVIDIA driver."""
    answers["nvidia"][""] = dict.fromkeys(("params", "version"), ABSENT)
    answers["nvidia_smi"][""] = {"xml": ABSENT}


def topo(grants: str | None, reading: dict[str, Any] | None = None) -> Callable[[Answers], None]:
    """Let nvidia-smi topo answer with one word for every pair; None for a recording without it."""

    def matrix(word: str, beside: str, heading: str) -> str:
        return f"\tGPU0\tGPU1{heading}\nGPU0\tX\t{word}{beside}\nGPU1\t{word}\tX{beside}\n"

    def apply(answers: Answers) -> None:
        if grants is not None:
            links = {"t": matrix("NV18", "\t0-7", "\tCPU Affinity"), "x": 0, "s": ""}
            shown = reading or {"t": matrix(grants, "\t", "\t"), "x": 0, "s": ""}
            answers["nvidia_topo"] = {"": {"links": links, "grants": shown}}

    return apply


def unchanged(_: Answers) -> None:
    """Change nothing."""


INTEL = sysfs("0000:00:02.1", vendor={"t": "0x8086\n"}, driver={"t": "../../../bus/pci/drivers/i915"})
AMD = {"vendor": {"t": "0x1002\n"}, "driver": {"t": "../../../bus/pci/drivers/amdgpu"}}
VFIO = sysfs("0000:00:08.0", driver={"t": "../../../bus/pci/drivers/vfio-pci"})
OPEN: dict[str, Any] = {"devices": [{"pci": [ONE, OTHER]}]}
EIGHT = smi(put(pci__pci_gpu_link_info__link_widths__current_link_width="8x"))
OLDER: dict[str, str | None] = dict.fromkeys(
    (
        *("gpu_recovery_action", "clocks_event_reasons_counters", "ecc_errors__channel_repair_pending"),
        *("ecc_errors__tpc_repair_pending", "ecc_errors__unrepairable_memory", "fabric__health"),
    )
)
NO_HANDLE = "Unable to determine the device handle for GPU0000:00:06.0: GPU is lost.  Reboot the system\n"
UNUSED = {**ON_NVIDIA, "gpu": {"idle": True}}
PEERS = {**ON_NVIDIA, "peer_access": "correct"}

HOSTS: dict[str, Changed] = {
    "as recorded": Changed(
        unchanged, {**one("passed"), f"{SHOWN}@06": "passed", SEEN: "passed", GRANTS: "skipped"}, expect={}
    ),
    **dict(of_the_table()),
    **dict(of_what_must_be_shown()),
    # The driver's own words
    "a group that nobody knows": Changed(
        smi(put(hbm_lane_repair__state="Pending")), one("error"), ("hbm_lane_repair/state is Pending",)
    ),
    "a new group with nothing to tell": Changed(smi(put(hbm_lane_repair__state="Not Active")), one("passed")),
    "a new leaf about something else": Changed(smi(put(new_toy="Blue")), one("passed")),
    "name and address alone": Changed(smi(only("product_name", "pci")), one("error"), ("ecc_mode/current_ecc is not",)),
    "no counters though ECC is on": Changed(smi(put(ecc_errors=None)), one("error"), ("dram_uncorrectable is not",)),
    "no counters where ECC is off": Changed(smi(put(ecc_mode__current_ecc="Disabled")), one("passed")),
    "a board that reports nothing": Changed(smi(nothing_of_it), one("skipped"), ("nothing that could be judged",)),
    "less power than by default": Changed(smi(put(gpu_power_readings__current_power_limit="300.00 W")), one("passed")),
    "fabric ended with an error": Changed(
        smi(put(fabric__state="Completed", fabric__status="Insufficient Resources")),
        one("failed"),
        ("fabric/status is Insufficient Resources",),
    ),
    # What cannot be read hides nothing
    "a fan that cannot be read": Changed(smi(put(fan_speed="Unknown Error")), one("error"), ("fan_speed",)),
    "a reset beside a fan that cannot be read": Changed(
        smi(put(fan_speed="Unknown Error", gpu_recovery_action="Reset")),
        one("failed"),
        ("gpu_recovery_action is Reset", "fan_speed: Unknown Error"),
    ),
    "a GPU is lost": Changed(smi(lost, status=15), one("failed"), ("no longer reaches it",)),
    "an exit status that nobody explains": Changed(
        smi(put(fan_speed="N/A"), status=255), one("error", "error"), ("exit status 255",)
    ),
    "a GPU that has no handle any more": Changed(
        together(smi(no_first), lambda answers: answers["nvidia_smi"][""]["xml"].update(x=9, s=NO_HANDLE)),
        {f"{SHOWN}@06": "failed", f"{SHOWN}@07": "passed", f"{FAULT}@06": "error", f"{FAULT}@07": "passed"},
        ("the driver shows 0000:00:07.0",),
    ),
    "a repair beside an exit status": Changed(
        smi(put(ecc_errors__tpc_repair_pending="Yes"), status=255), one("failed", "error"), ("tpc_repair_pending",)
    ),
    # Drivers before and after
    "driver 595": Changed(smi(of_driver("595.91.07", edpp_multiplier="N/A")), one("passed")),
    "driver 570": Changed(
        smi(of_driver("570.148.08", **{**OLDER, "gpu_recovery_action": "None"})), one("passed", "passed")
    ),
    "driver 535": Changed(smi(of_driver("535.54.03", **OLDER)), one("passed", "passed")),
    "driver 470": Changed(smi(of_driver("470.57.02", **OLDER, fabric=None)), one("passed", "passed")),
    "a Turing board": Changed(
        smi(
            put(
                product_architecture="Turing",
                ecc_errors__volatile__sram_uncorrectable_parity=None,
                ecc_errors__aggregate__sram_threshold_exceeded=None,
                ecc_errors__channel_repair_pending=None,
                ecc_errors__tpc_repair_pending=None,
                remapped_rows="N/A",
            )
        ),
        one("passed"),
    ),
    # The link
    "eight lanes": Changed(EIGHT, one("failed"), ("link width x8, expected x16",)),
    "eight lanes as declared": Changed(
        together(EIGHT, sysfs(ONE, current_link_width={"t": "8\n"})),
        {f"{FAULT}@06": "passed", f"{WIDTH}@06": "passed"},
        expect={"devices": [{"pci": [ONE], "driver": "nvidia", "link_width": 8}]},
    ),
    "sixteen lanes where eight are declared": Changed(
        unchanged,
        {f"{FAULT}@06": "failed", f"{WIDTH}@06": "failed"},
        ("x16", "x8"),
        expect={"devices": [{"pci": [ONE], "driver": "nvidia", "link_width": 8}]},
    ),
    "eight lanes in a slot of eight": Changed(
        together(
            EIGHT,
            sysfs(
                "0000:00:05.0",
                **{"class": {"t": "0x060400\n"}, "max_link_width": {"t": "8\n"}, "driver": ABSENT},
            ),
            sysfs(ONE, **{".": {"t": f"../../../devices/pci0000:00/0000:00:05.0/{ONE}"}}),
        ),
        one("passed"),
    ),
    **{
        f"a link width that is {name}": Changed(
            sysfs(ONE, current_link_width=reading),
            {f"{WIDTH}@06": "error"},
            (),
            {"devices": [{"pci": [ONE], "driver": "nvidia", "link_width": 16}]},
        )
        for name, reading in {
            "absent": ABSENT, "denied": DENIED, "unknown": {"t": "Unknown\n"}, "zero": {"t": "0\n"}
        }.items()
    },
    # Whose GPU it is
    "processor graphics, nothing expected": Changed(
        INTEL, {**one("passed"), f"{FAULT}@02.1": "skipped", f"{SHOWN}@02.1": "skipped", SEEN: "passed"}, expect={}
    ),
    "a GPU on vfio-pci, nothing expected": Changed(
        VFIO, {**one("passed"), f"{FAULT}@08": "skipped", f"{SHOWN}@08": "skipped", SEEN: "passed"}, expect={}
    ),
    "AMD GPUs declared without a driver": Changed(
        together(without_driver, sysfs(ONE, **AMD), sysfs(OTHER, **AMD)),
        {**one("skipped", "skipped"), f"{SHOWN}@06": "skipped", SEEN: "passed"},
        expect=OPEN,
    ),
    "NVIDIA GPUs declared without a driver": Changed(unchanged, {**one("passed"), SEEN: "passed"}, expect=OPEN),
    # GPUs that are not there
    **{
        f"no GPU, and {name}": Changed(
            together(gone(ONE, OTHER), without_driver), {SEEN: "failed"}, (word,), expect
        )
        for name, word, expect in (
            ("peer access", "peer_access", {"peer_access": "correct"}),
            ("floors", "gpu", {"gpu": {"memory_free_mib_min": 1000}}),
            ("participation", "model.participation.gpus", {"model": {"participation": {"gpus": [ONE]}}}),
            ("a driver", "driver_version", {"driver_version": "580.*"}),
            ("devices", "devices", ON_NVIDIA),
        )
    },
    "no GPU, and the driver loaded": Changed(
        gone(ONE, OTHER), {SEEN: "failed"}, ("the loaded NVIDIA driver 580.159.04",), {"kernel_release": "*"}
    ),
    "no GPU, and nothing that supposes one": Changed(
        together(gone(ONE, OTHER), without_driver), {SEEN: "skipped"}, (), {"kernel_release": "*"}
    ),
    # A file that cannot be read
    "a device without a class": Changed(
        sysfs("0000:00:01.0", **{"class": DENIED}), {**one("passed"), SEEN: "error"}, ("0000:00:01.0/class",), {}
    ),
    "a GPU without a driver to be read": Changed(
        sysfs(OTHER, driver=DENIED), {**one("passed"), SEEN: "error"}, (f"{OTHER}/driver",), {}
    ),
    # Peer access by the driver's word
    "granted": Changed(topo("OK"), {GRANTS: "passed"}, (), PEERS),
    "refused where needed": Changed(topo("CNS"), {GRANTS: "failed"}, ("GPU0-GPU1 CNS (Chipset not",), PEERS),
    "refused where nothing needs it": Changed(topo("GNS"), {GRANTS: "skipped"}),
    "a word that nobody knows": Changed(topo("ZZ"), {GRANTS: "error"}, ("ZZ (Unknown)",), PEERS),
    "grants that cannot be had": Changed(topo("OK", DENIED), {GRANTS: "error"}, ("EACCES",), PEERS),
    "topo refuses its arguments": Changed(
        topo("OK", {"t": 'Option "-p2p" is missing its value.\n', "x": 0, "s": ""}),
        {GRANTS: "error"},
        ("missing its value",),
        PEERS,
    ),
    "kinds of connection that cannot be had": Changed(
        together(topo("OK"), lambda answers: answers["nvidia_topo"][""].update(links=DENIED)), {GRANTS: "passed"}
    ),
    "a recording without topo": Changed(topo(None), {GRANTS: "skipped"}, ("without nvidia-smi topo",), PEERS),
    # Nothing on it
    "idle": Changed(unchanged, {f"{IDLE}@06": "passed"}, (), UNUSED),
    "busy": Changed(smi(put(utilization__gpu_util="97 %")), {f"{IDLE}@06": "failed"}, ("97 %",), UNUSED),
    "nobody says whether it is idle": Changed(
        smi(put(utilization__gpu_util="N/A", processes=None)), {f"{IDLE}@06": "error"}, (), UNUSED
    ),
}  # fmt: skip


def alias(name: str) -> str:
    """Make a host's alias of what is changed."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """Replay every host in one run."""
    directory = tmp_path_factory.mktemp("judged")
    base = copy.deepcopy(RECORDED["hosts"]["h200"])
    base["gathered"] = {}
    hosts = {}
    for name, changed in HOSTS.items():
        host = hosts[alias(name)] = copy.deepcopy(base)
        host["spec"] = {"address": "root@192.0.2.1", **({"expect": changed.expect} if changed.expect else {})}
        changed.change(host["capture"]["answers"])
        if "nvidia_topo" in host["capture"]["answers"]:
            host["capture"]["requests"].append({"id": "nvidia_topo", "kind": "node", "items": []})
    document = {**RECORDED, "hosts": hosts, "order": list(hosts), "results": []}
    (directory / "made.json").write_text(json.dumps(document), encoding="utf-8")
    tests = {key.partition("@")[0] for changed in HOSTS.values() for key in changed.endings}
    return judge_recording(directory, "made.json", "-k", " or ".join(sorted(tests)))


@pytest.mark.parametrize("name", HOSTS)
def test_state_of_a_gpu_ends_as_it_must(name: str, judged: Judged) -> None:
    """Seen wrong is FAILED, not to be judged is ERROR, nothing to judge is skipped, and only the rest passes."""
    changed, found = HOSTS[name], judged.of_host(alias(name))
    observed = {
        key: next(
            (
                outcome
                for item, outcome in found.outcomes.items()
                if item.startswith(key.partition("@")[0]) and key.partition("@")[2] in item.rpartition("[")[2]
            ),
            "nothing",
        )
        for key in changed.endings
    }
    messages = "\n".join(found.messages[item] for item in found.ended("failed", "error", "skipped"))

    assert observed == changed.endings, messages
    assert [word for word in changed.words if word not in messages] == [], messages
    assert "None" not in "".join(found.messages[item] for item in found.ended("failed", "error") if WIDTH in item)
