"""Reports of merged runs: one JUnit file, and one set of Allure results."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from pytest_gpuinfra.errors import RecordingError
from pytest_gpuinfra.masking import mask_text
from pytest_gpuinfra.merge import Merged
from pytest_gpuinfra.merge_checks import AREA, Trouble
from pytest_gpuinfra.merge_node import rename_id
from pytest_gpuinfra.report.fleet import Fleet
from pytest_gpuinfra.report.fleet_picture import write_fleet

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
        for suite in [document] if document.tag == "testsuite" else document.findall("testsuite"):
            suite.set("name", place)
            for case in suite.iter("testcase"):
                case.set("name", rename_id(case.get("name", ""), "local", place))
                for entry in case.iter("property"):
                    if entry.get("name") == "gpu_host" and entry.get("value") == "local":
                        entry.set("value", place)
            root.append(suite)
    suite = ElementTree.SubElement(root, "testsuite", {"name": "merge", "tests": str(len(merged.troubles))})
    suite.set("errors", str(len(merged.troubles)))
    suite.set("failures", "0")
    for trouble in merged.troubles:
        name = trouble.id.rpartition("::")[2]
        case = ElementTree.SubElement(suite, "testcase", {"classname": AREA.removesuffix(".py").replace("/", ".")})
        case.set("name", name)
        error = ElementTree.SubElement(case, "error", {"message": mask_text(trouble.reason)})
        error.text = mask_text(trouble.message)
    for word in ("tests", "failures", "errors", "skipped"):
        root.set(word, str(sum(int(one.get(word) or 0) for one in root.findall("testsuite"))))
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def write_allure(directory: Path, merged: Merged, fleet: Fleet | None) -> int:
    """
    Write one set of Allure results: those of all nodes, one result for each report that is not whole, the fleet.

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
            if path.name == "environment.properties":
                environments[place] = _properties(path.read_text(encoding="utf-8"))
            elif path.name in ("categories.json", "executor.json"):
                if not (directory / path.name).exists():
                    shutil.copyfile(path, directory / path.name)
            elif path.name.endswith("-result.json"):
                count += _result(path, place, directory)
            elif path.is_file() and not path.name.endswith("-globals.json"):
                shutil.copyfile(path, directory / path.name)
    for trouble in merged.troubles:
        document = json.dumps(_trouble_result(trouble), indent=1)
        (directory / f"{uuid.uuid4()}-result.json").write_text(document, encoding="utf-8")
    lines = "".join(f"{name}={value}\n" for name, value in _joined(environments).items())
    (directory / "environment.properties").write_text(lines, encoding="utf-8")
    if fleet is not None:
        write_fleet(directory, fleet)
    return count + len(merged.troubles)


def _result(path: Path, place: str, directory: Path) -> int:
    """Take over one result; of the host "local", under the place's name. One that is damaged was told, and is left."""
    try:
        text = path.read_text(encoding="utf-8")
        result = json.loads(text)
    except ValueError:
        return 0
    if isinstance(result, dict) and {"name": "target", "value": "local"} in result.get("labels", ()):
        _rename(result, place)
        text = json.dumps(result)
    (directory / path.name).write_text(text, encoding="utf-8")
    return 1


def _rename(result: dict[str, Any], place: str) -> None:
    """Give a result of the host "local" its node's name, and a history of its own."""
    for label in result["labels"]:
        if label["name"] in ("parentSuite", "host", "target") and label.get("value") == "local":
            label["value"] = place
    for parameter in result.get("parameters", ()):
        if parameter == {"name": "host", "value": "local"}:
            parameter["value"] = place
    if result.get("titlePath", [""])[:1] == ["local"]:
        result["titlePath"][0] = place
    for detail in ("message", "trace"):
        text = (result.get("statusDetails") or {}).get(detail)
        if text:
            result["statusDetails"][detail] = text.replace("local: ", f"{place}: ")
    result["historyId"] = _digest(place, str(result.get("historyId")))


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
        "statusDetails": {"message": mask_text(trouble.message), "trace": mask_text(trouble.message)},
        "stage": "finished",
        "start": now,
        "stop": now,
        "titlePath": [trouble.node, "merge", "reports"],
        "parameters": [{"name": "host", "value": trouble.node}],
        "labels": [{"name": name, "value": value} for name, value in labels.items()],
    }


def _properties(text: str) -> dict[str, str]:
    return {
        name: value for line in text.splitlines() if (parts := line.partition("="))[1] for name, _, value in [parts]
    }


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
