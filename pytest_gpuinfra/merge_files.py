"""The files of a shared folder of runs: which are recordings, which JUnit, which Allure's results, and whose."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

_ALLURE = ("-result.json", "-container.json", "-globals.json")
_UNFINISHED = re.compile(r"\..+\.json\.[A-Za-z0-9_]{8}")
"""Name that a recording has until it is whole (`recording.write_recording`)."""

MERGED = "merged"
"""Name of a folder that merges write to; nothing below it is a node's."""

_NOT_ALIAS = re.compile(r"[^A-Za-z0-9._-]|^[._-]+")


@dataclass(frozen=True, slots=True)
class JunitFailure:
    """
    A test that failed or broke, as JUnit has it.

    Attributes:
        place: Name of its file's place.
        id: Made of class and name, like a node id.
        outcome: "failed" or "error".
        message: What it says.
        about_host: Whether it is about a host, and so in that run's recording.
    """

    place: str
    id: str
    outcome: str
    message: str
    about_host: bool


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """
    What a folder holds.

    Attributes:
        recordings: JSON files that are not Allure's, with the name of their place. Shape (n,).
        junit: JUnit files by place, read. Shape (n,).
        allure: Folders of Allure's results by place. Shape (n,).
        broken: Files that are not whole: path, place, reason. Shape (n,).
        failures: What JUnit says failed or broke. Shape (n,).
        places: Names of files by place, for places that are folders, or that JUnit files alone make.
    """

    recordings: tuple[tuple[Path, str], ...]
    junit: tuple[tuple[ElementTree.Element, str], ...]
    allure: tuple[tuple[Path, str], ...]
    broken: tuple[tuple[Path, str, str], ...]
    failures: tuple[JunitFailure, ...]
    places: Mapping[str, frozenset[str]]

    def without(self, places: Set[str]) -> FoundFiles:
        """Leave out the JUnit files and Allure results of some places: of runs that a newer one stands for."""
        return replace(
            self,
            junit=tuple(entry for entry in self.junit if entry[1] not in places),
            allure=tuple(entry for entry in self.allure if entry[1] not in places),
            failures=tuple(failure for failure in self.failures if failure.place not in places),
        )


def node_name(text: str) -> str:
    """Make an alias of a file's or folder's name."""
    return _NOT_ALIAS.sub("", text) or "node"


def find_files(folder: Path, leave_out: Iterable[Path] = ()) -> FoundFiles:
    """
    Sort the files of a folder; XML is read, JSON is not.

    Args:
        folder: The folder, resolved; FOLDER/NODE/... and FOLDER/NODE.json give the place's name.
        leave_out: Files and folders that do not count.
    """
    left = {path.resolve() for path in leave_out}
    recordings, junit, broken, failures = [], [], [], []
    allure: dict[Path, str] = {}
    places: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if MERGED in parts[:-1] or not left.isdisjoint((path, *path.parents)):
            continue
        place = node_name(parts[0] if len(parts) > 1 else path.name.partition(".")[0])
        if path.is_dir():
            if not os.access(path, os.R_OK | os.X_OK):
                broken.append((path, place, "the folder cannot be read: permission denied"))
            continue
        if path.parent in allure or path.name.endswith(_ALLURE) or path.parent.name == "allure-results":
            allure[path.parent] = place
            if path.name.endswith(_ALLURE) and (reason := _unreadable(path)):
                broken.append((path, place, f"a result of Allure's is damaged: {reason}"))
        elif _UNFINISHED.fullmatch(path.name):
            broken.append((path, place, "a recording that was being written when its run ended"))
        elif path.suffix == ".json":
            recordings.append((path, place))
        elif path.suffix == ".xml":
            try:
                root = ElementTree.parse(path).getroot()
            except (ElementTree.ParseError, OSError) as error:
                broken.append((path, place, f"the JUnit file is damaged: {error}"))
                continue
            if root.tag in ("testsuites", "testsuite"):
                junit.append((root, place))
                failures += _failures(root, place)
                if root.find(".//testcase") is not None:  # a share without a host has none, and loses none
                    places.setdefault(place, set()).add(parts[min(1, len(parts) - 1)])
        if len(parts) > 1:
            places.setdefault(place, set()).add(parts[1])
    recordings = [entry for entry in recordings if entry[0].parent not in allure]
    return FoundFiles(
        tuple(recordings),
        tuple(junit),
        tuple(allure.items()),
        tuple(broken),
        tuple(failures),
        {place: frozenset(names) for place, names in places.items()},
    )


def _unreadable(path: Path) -> str:
    """Say why a JSON file cannot be read; "" if it can."""
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        return str(error)
    return ""


def _failures(root: ElementTree.Element, place: str) -> list[JunitFailure]:
    found = []
    for case in root.iter("testcase"):
        ended = next((part for part in case if part.tag in ("failure", "error")), None)
        if ended is not None:
            file = (case.get("classname") or "own").replace(".", "/")
            about = any(entry.get("name") == "gpu_host" for entry in case.iter("property"))
            outcome = "failed" if ended.tag == "failure" else "error"
            text = ended.text or ended.get("message") or "no message"
            found.append(JunitFailure(place, f"{file}.py::{case.get('name')}", outcome, text, about))
    return found
