"""Reports of merged runs: one JUnit file, and one set of Allure results."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from pytest_gpuinfra.errors import RecordingError
from pytest_gpuinfra.input_file import read_bytes, read_text
from pytest_gpuinfra.merge.checks import AREA, Trouble
from pytest_gpuinfra.merge.files import MOST_BYTES, read_json
from pytest_gpuinfra.merge.merge import Merged
from pytest_gpuinfra.merge.node import rename_id
from pytest_gpuinfra.report.allure_files import categories
from pytest_gpuinfra.report.escaped import readable
from pytest_gpuinfra.report.fleet.fleet import Fleet
from pytest_gpuinfra.report.fleet.picture import write_fleet
from pytest_gpuinfra.visible import visible
from pytest_gpuinfra.wire import text_lines

_UNKNOWN = "Unknown: could not be observed"
_OF_THE_RUN = ("pytest-gpuinfra", "controller", "level")
"""Keys of environment.properties that are about a run, not about its host."""


def write_junit(path: Path, merged: Merged) -> None:
    """
    Write one JUnit file: the nodes' suites, each named for its node, and a suite of what is not whole.

    Raises:
        OSError: It cannot be written.
    """
    root = ElementTree.Element("testsuites", {"name": "gpuinfra merge"})
    for document, place in merged.files.junit:
        for found in document.iter("testsuite"):
            suite = ElementTree.SubElement(root, "testsuite", {**found.attrib, "name": place})
            suite.extend(_own_cases(found, place, merged.speakers))
            _recount(suite)
            _show_hidden(suite)
    suite = ElementTree.SubElement(root, "testsuite", {"name": "merge", "tests": str(len(merged.troubles))})
    suite.set("errors", str(len(merged.troubles)))
    suite.set("failures", "0")
    for trouble in merged.troubles:
        name = trouble.id.rpartition("::")[2]
        case = ElementTree.SubElement(suite, "testcase", {"classname": AREA.removesuffix(".py").replace("/", ".")})
        case.set("name", name)
        error = ElementTree.SubElement(case, "error", {"message": readable(trouble.reason)})
        error.text = readable(trouble.message)
    for word in ("tests", "failures", "errors", "skipped"):
        root.set(word, str(sum(int(one.get(word) or 0) for one in root.findall("testsuite"))))
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _own_cases(suite: ElementTree.Element, place: str, speakers: Mapping[str, str]) -> Iterator[ElementTree.Element]:
    """Give a suite's own cases, not those of suites within it, that are about no host that others speak for."""
    for case in suite.findall("testcase"):
        case.set("name", rename_id(case.get("name", ""), "local", place))
        hosts = [entry for entry in case.iter("property") if entry.get("name") == "gpu_host"]
        for entry in hosts:
            if entry.get("value") == "local":
                entry.set("value", place)
        if all(speakers.get(entry.get("value", "")) == place for entry in hosts):
            yield case


def _recount(suite: ElementTree.Element) -> None:
    """Write down how many cases a suite has, and how they ended, by what is left in it."""
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for word, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(word, str(sum(case.find(tag) is not None for case in cases)))


def _show_hidden(suite: ElementTree.Element) -> None:
    """Escape what a node wrote: signs that XML does not allow, or that readers do not see."""
    for element in suite.iter():
        element.text, element.tail = visible(element.text or ""), visible(element.tail or "")
        for name, value in element.items():
            element.set(name, visible(value))


def write_allure(directory: Path, merged: Merged, fleet: Fleet | None) -> int:
    """
    Write one set of Allure results: those of all nodes, one result for each report that is not whole, the fleet.

    Every file gets a name, and every result an identity, that hold the name of its place: none takes another's place.

    Args:
        directory: Where to; it must not exist, or be empty.
        merged: The runs.
        fleet: The hosts side by side; None for a single one.

    Returns:
        Results written.

    Raises:
        RecordingError: The directory holds something.
        OSError: It cannot be written.
    """
    if directory.is_dir() and any(directory.iterdir()):
        raise RecordingError(f"{directory} holds files already", remedy="name another folder, or take it away first")
    directory.mkdir(parents=True, exist_ok=True)
    count = 0
    environments: dict[str, dict[str, str]] = {}
    for source, place in merged.files.allure:
        for path in sorted(source.iterdir()):
            if path.is_symlink() or not path.is_file():
                continue
            if path.name.endswith(("-result.json", "-container.json")):
                count += _take_over(path, place, merged, directory)
            elif "-attachment" in path.name:
                with contextlib.suppress(RecordingError):  # one that is too large is missing in the report
                    data = read_bytes(path, RecordingError, most=MOST_BYTES)
                    (directory / _own_name(place, path.name)).write_bytes(data)
            elif path.name == "environment.properties":
                with contextlib.suppress(RecordingError):
                    environments[place] = _properties(read_text(path, RecordingError))
    for trouble in merged.troubles:
        document = json.dumps(_trouble_result(trouble), indent=1)
        (directory / f"{uuid.uuid4()}-result.json").write_text(document, encoding="utf-8")
    lines = "".join(f"{visible(name)}={visible(value)}\n" for name, value in _joined(environments).items())
    (directory / "environment.properties").write_text(lines, encoding="utf-8")
    (directory / "categories.json").write_text(json.dumps(categories(), indent=1) + "\n", encoding="utf-8")
    if fleet is not None:
        write_fleet(directory, fleet)
    return count + len(merged.troubles)


def _take_over(path: Path, place: str, merged: Merged, directory: Path) -> int:
    """
    Take over one result or container; one that is damaged was named, and is left out, as is one about another's host.

    Returns:
        Results written: 1, or 0.
    """
    try:
        result = read_json(path)
    except RecordingError:
        return 0
    if not isinstance(result, dict) or not isinstance(result.get("uuid"), str):
        return 0
    is_result = path.name.endswith("-result.json")
    result = _as_of(place, result)
    if is_result:
        try:
            about = _rename(result, place)
        except (KeyError, TypeError, AttributeError):
            return 0
        others = (about & merged.recording.hosts.keys()) - {place}
        if any(merged.speakers.get(alias) != place for alias in others):
            return 0
    kind = "result" if is_result else "container"
    (directory / f"{result['uuid']}-{kind}.json").write_text(json.dumps(result), encoding="utf-8")
    return int(is_result)


def _as_of(place: str, data: Any, key: str = "") -> Any:
    """Give Allure's data with ids and names of files of the place's own, and hidden characters shown."""
    if isinstance(data, dict):
        return {visible(name): _as_of(place, value, name) for name, value in data.items()}
    if isinstance(data, list):
        return [_as_of(place, value, key) for value in data]
    if not isinstance(data, str):
        return data
    if key == "source":
        return _own_name(place, data)
    return str(uuid.UUID(_digest(place, data))) if key in ("uuid", "children") else visible(data)


def _own_name(place: str, name: str) -> str:
    """Make a file's name of a place and a name; only an ending of letters and digits is kept of that."""
    ending = re.search(r"\.[A-Za-z0-9]{1,8}\Z", name)
    return f"{uuid.UUID(_digest(place, name))}-attachment{ending[0] if ending else ''}"


def _rename(result: dict[str, Any], place: str) -> set[str]:
    """
    Give a result of the host "local" its node's name, and every result a history of its host's own.

    Returns:
        Aliases of hosts that it is about, or that it is filed under.
    """
    labels = [label for label in result.get("labels", ()) if label["name"] in ("parentSuite", "host", "target")]
    local = any(label["name"] == "target" and label["value"] == "local" for label in labels)
    for label in labels if local else ():
        if label["value"] == "local":
            label["value"] = place
    for parameter in result.get("parameters", ()) if local else ():
        if parameter == {"name": "host", "value": "local"}:
            parameter["value"] = place
    if local and result.get("titlePath", [""])[:1] == ["local"]:
        result["titlePath"][0] = place
    for detail in ("message", "trace") if local else ():
        text = (result.get("statusDetails") or {}).get(detail)
        if text:
            result["statusDetails"][detail] = text.replace("local: ", f"{place}: ")
    target = next((label["value"] for label in labels if label["name"] == "target"), "")
    result["historyId"] = _digest(target or place, str(result.get("historyId")))
    filed = {str(label["value"]) for label in labels if label["name"] != "host"}
    return filed | {str(part) for part in result.get("titlePath", ())[:1]}


def _trouble_result(trouble: Trouble) -> Mapping[str, Any]:
    now = int(time.time() * 1000)
    test = f"{AREA.removesuffix('.py').replace('/', '.')}.test_node_{trouble.what.replace(' ', '_')}"
    labels = {
        "parentSuite": trouble.node,
        "suite": "merge",
        "subSuite": "reports",
        "severity": "critical",
        "target": trouble.node,
        "host": trouble.node,
        "trouble": _UNKNOWN,
    }
    return {
        "uuid": str(uuid.uuid4()),
        "name": f"The node's report is there, and whole [{trouble.what}]",
        "fullName": test,
        "testCaseId": _digest("case", test),
        "historyId": _digest("history", trouble.node, test),
        "status": "broken",
        "statusDetails": {"message": readable(trouble.message), "trace": readable(trouble.message)},
        "stage": "finished",
        "start": now,
        "stop": now,
        "titlePath": [trouble.node, "merge", "reports"],
        "parameters": [{"name": "host", "value": trouble.node}],
        "labels": [{"name": name, "value": value} for name, value in labels.items()],
    }


def _properties(text: str) -> dict[str, str]:
    return {name: value for line in text_lines(text) if (parts := line.partition("="))[1] for name, _, value in [parts]}


def _joined(environments: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Say once what is the same on every node, and by node what is not."""
    found: dict[str, str] = {}
    for name in _names(environments.values()):
        values = {place: known[name] for place, known in environments.items() if name in known}
        if len(set(values.values())) == 1 and (len(values) == len(environments) or name in _OF_THE_RUN):
            found[name] = next(iter(values.values()))
        else:
            found |= {f"{place}.{name}": value for place, value in values.items()}
    return found


def _names(environments: Iterable[Mapping[str, str]]) -> Sequence[str]:
    return list(dict.fromkeys(name for known in environments for name in known))


def _digest(*words: str) -> str:
    return hashlib.md5("\n".join(words).encode(), usedforsecurity=False).hexdigest()
