"""Makes the machines that cases tell of, runs pytest on them as a user does, and reads how the items ended."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.cases.case import HERE, Case
from tests.cases.server import Endpoints
from tests.plugin.conftest import run_pytest

_BASE = HERE.parent / "recorded" / "reference" / "recording.json"
_ITEM = re.compile(r"test_\w+")
_DETAILS = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width", "config", ".", "numa_node")
_MISSING = "ENOENT: No such file or directory"
GPU = "0000:01:00.0"


@dataclass(frozen=True)
class Ended:
    """
    How one item ended.

    Attributes:
        name: "test_name[target]", the alias left out.
        outcome: "passed", "failed", "error" or "skipped".
        message: What pytest showed.
    """

    name: str
    outcome: str
    message: str


def run_cases(cases: Sequence[Case], directory: Path) -> dict[str, list[Ended]]:
    """Run every item that the cases name on their machines, in two sessions; gives the endings by host alias."""
    hosts = {alias: host for case in cases for alias, host in zip(case.aliases(), case.hosts, strict=True)}
    replayed = {alias: host for alias, host in hosts.items() if host["base"] == "reference"}
    live = {alias: host for alias, host in hosts.items() if host["base"] == "endpoint"}
    ended: dict[str, list[Ended]] = {}
    if replayed:
        ended |= _replay(directory, replayed)
    if live:
        with Endpoints({alias: host["answers"] for alias, host in live.items()}) as endpoints:
            inventory = [_declared(directory, alias, host, endpoints.url(alias)) for alias, host in live.items()]
            (directory / "gpuinfra.toml").write_text("\n".join(inventory), encoding="utf-8")
            ended |= _run(directory, live, "--gpu-inventory=gpuinfra.toml", "--gpu-host=all", "--gpu-wait=3")
    return ended


def _replay(directory: Path, hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Ended]]:
    """Replay hosts in one session; of hosts that pytest refuses, those without the refused one."""
    document = json.loads(_BASE.read_text(encoding="utf-8"))
    base = document["hosts"]["node-a"]
    document |= {"hosts": {alias: _recorded(base, host) for alias, host in hosts.items()}, "order": list(hosts)}
    (directory / "made.json").write_text(json.dumps(document), encoding="utf-8")
    try:
        return _run(directory, hosts, "--gpu-host=replay:made.json")
    except RuntimeError as refused:
        if len(hosts) == 1:
            return {alias: [Ended("pytest", "nothing", str(refused))] for alias in hosts}
    aliases = list(hosts)
    halves = aliases[: len(aliases) // 2], aliases[len(aliases) // 2 :]
    return {
        alias: endings
        for half in halves
        for alias, endings in _replay(directory, {alias: hosts[alias] for alias in half}).items()
    }


def judge(case: Case, ended: Mapping[str, Sequence[Ended]]) -> str:
    """Say how the product judges a case: by the worst ending of the items that it names; "nothing" if none ran."""
    verdicts = [_verdict(host["items"], ended.get(a, ())) for a, host in zip(case.aliases(), case.hosts, strict=True)]
    order = ("fail", "error", "nothing", "pass", "skip")
    return min(verdicts, key=order.index, default="nothing")


def lacking(case: Case, ended: Mapping[str, Sequence[Ended]]) -> list[str]:
    """Give the words of a case that no message of its items that failed holds."""
    messages = _one_spelling(" ".join(item.message for item in of_case(case, ended) if item.outcome == "failed"))
    return [word for word in case.words if _one_spelling(word) not in messages]


def _one_spelling(text: str) -> str:
    """Leave out what differs in spelling only: letters' case, a number's 0x and zeros, the usual PCI domain."""
    return re.sub(r"\b0x0*|\b0000:", "", text.lower())


def of_case(case: Case, ended: Mapping[str, Sequence[Ended]]) -> list[Ended]:
    """Give the endings of the items that a case names."""
    pairs = zip(case.aliases(), case.hosts, strict=True)
    return [item for alias, host in pairs for item in ended.get(alias, ()) if _named(host["items"], item)]


_PLAN = json.loads(
    (_BASE.parents[1] / "gpu-programs" / "h200-cuda.jsonl").read_text(encoding="utf-8").partition("\n")[0]
)
"""What a program is given, and where it runs: a case says what it reported."""


def _named(patterns: Sequence[str], item: Ended) -> bool:
    plain = str.maketrans("[]", "()")
    return any(fnmatchcase(item.name.translate(plain), pattern.translate(plain)) for pattern in patterns)


def _verdict(patterns: Sequence[str], ended: Sequence[Ended]) -> str:
    outcomes = {item.outcome for item in ended if _named(patterns, item)}
    words = {"failed": "fail", "error": "error", "passed": "pass", "skipped": "skip"}
    return next((word for outcome, word in words.items() if outcome in outcomes), "nothing")


def _run(directory: Path, hosts: Mapping[str, Mapping[str, Any]], *arguments: str) -> dict[str, list[Ended]]:
    tests = sorted({name for host in hosts.values() for pattern in host["items"] for name in _ITEM.findall(pattern)})
    judged = directory / "judged.json"
    judged.unlink(missing_ok=True)
    finished = run_pytest(
        directory, *arguments, "--gpu-recording=judged.json", "-q", "-p", "no:cacheprovider", "-k", " or ".join(tests)
    )
    if not judged.exists():
        raise RuntimeError(finished.stdout + finished.stderr)
    ended: dict[str, list[Ended]] = {}
    for result in json.loads(judged.read_text(encoding="utf-8"))["results"]:
        alias, name = result["host"], result["id"].rpartition("::")[2]
        name = name.replace(f"[{alias}-", "[").replace(f"[{alias}]", "[]")
        ended.setdefault(alias, []).append(Ended(name, result["outcome"], result["message"]))
    return ended


def _recorded(base: Mapping[str, Any], host: Mapping[str, Any]) -> dict[str, Any]:
    """Give a host of the recording: the base's, with what the case replaces."""
    made: dict[str, Any] = copy.deepcopy(dict(base))
    made["spec"] = {"address": "root@192.0.2.10", **host["spec"]}
    answers = made["capture"]["answers"]
    if "functions" in host:
        _put_functions(answers, host["functions"])
    for request, entry, name, reading in host.get("readings", ()):
        if reading is None:
            answers[request].pop(entry, None)
        elif request == "nvidia_topo":
            answers[request] = {entry: {name: reading}}
        elif request == "nvidia_smi" and reading.get("t"):
            answers[request] = {entry: {name: {**reading, "t": _whole(reading["t"])}}}
        else:
            answers.setdefault(request, {}).setdefault(entry, {})[name] = reading
    if "program" in host:
        plan = {
            **_PLAN,
            "boot_id": answers["boot"][""]["boot_id"]["t"].strip(),
            "devices": list(host.get("functions", ())),
        }
        lines = [json.dumps(event) for event in (plan, *host["program"])]
        made["gathered"] = {"gpu": {"cuda": {"lines": lines, "kmsg": host.get("kmsg", ""), "log_reason": ""}}}
    return made


def _whole(text: str) -> str:
    """
    Make an excerpt of nvidia-smi's document whole: what the case leaves out stands as on a board that has none of it.

    Where ECC is on, its counters that the case leaves out are 0. What is no document is left as it is.
    """
    try:
        document = ElementTree.fromstring(text[max(text.find("<nvidia_smi_log"), 0) :])
    except ElementTree.ParseError:
        return text
    pattern = ElementTree.parse(_BASE.parents[1] / "h200" / "nvidia-smi-q.xml").getroot().find("gpu")
    assert pattern is not None
    if document.find("driver_version") is None:
        ElementTree.SubElement(document, "driver_version").text = "580.159.04"
    for gpu in document.findall("gpu"):
        _complete(gpu, pattern, "0" if gpu.findtext("ecc_mode/current_ecc") == "Enabled" else "N/A")
    return ElementTree.tostring(document, encoding="unicode")


def _complete(element: ElementTree.Element, pattern: ElementTree.Element, counter: str) -> None:
    for part in pattern:
        found = element.find(part.tag)
        if part.tag in ("processes", "mig_devices", "supported_clocks", "accounted_processes"):
            continue
        if found is None:
            found = ElementTree.SubElement(element, part.tag)
            if not len(part):
                counts = part.tag.endswith(("_parity", "_secded", "correctable"))
                found.text = counter if counts else "N/A"
        if len(part) and not (found.text or "").strip():
            _complete(found, part, counter)


def _put_functions(answers: dict[str, Any], functions: Mapping[str, Mapping[str, Any]]) -> None:
    """Put PCI functions in place of the base's; what a case does not say of one is as on the base's first GPU."""
    pci, detail = answers["pci"][GPU], answers["pci_detail"][GPU]
    answers["pci"], answers["pci_detail"], answers["iommu_groups"] = {}, {}, {}
    for number, (address, texts) in enumerate(functions.items(), 40):
        group = texts.get("group", str(number))
        rows = {**pci, "iommu_group": {"t": f"../../../kernel/iommu_groups/{group}"}}
        rows |= {name: _reading(text) for name, text in texts.items() if name in pci}
        place = {".": {"t": f"../../../devices/pci0000:00/{address}"}}
        more = {name: _reading(text) for name, text in texts.items() if name in _DETAILS}
        answers["pci"][address] = rows
        if (texts.get("class") or "0x03").startswith(("0x03", "0x06")):
            answers["pci_detail"][address] = {**detail, **place, **more}
        if group is None:
            rows["iommu_group"] = {"e": _MISSING}
            continue
        known = answers["iommu_groups"].setdefault(group, {"type": {"t": "DMA-FQ\n"}, "devices/": {"t": ""}})
        known["devices/"]["t"] = f"{known['devices/']['t']}\n{address}".strip()
        if "group_type" in texts:
            known["type"] = _reading(texts["group_type"])


def _reading(text: str | None) -> dict[str, str]:
    return {"e": _MISSING} if text is None else {"t": text}


def _declared(directory: Path, alias: str, host: Mapping[str, Any], url: str) -> str:
    """Give a host's part of the inventory."""
    spec = {"address": "local", "endpoint": url, **host["spec"]}
    if host.get("prompts"):
        rows = ("[[prompts]]\n" + "".join(f"{k} = {_toml(v)}\n" for k, v in one.items()) for one in host["prompts"])
        (directory / f"{alias}.toml").write_text("".join(rows), encoding="utf-8")
        spec["prompts"] = [f"{alias}.toml"]
    return f"[hosts.{alias}]\n" + "".join(f"{name} = {_toml(value)}\n" for name, value in spec.items())


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)
