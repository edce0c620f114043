"""The files of a shared folder of runs: which are recordings, which JUnit, which Allure's results, and whose."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from pytest_gpuinfra.errors import RecordingError
from pytest_gpuinfra.input_file import parse_json, parse_xml, read_text
from pytest_gpuinfra.inventory.names.named import ALIAS

_ALLURE = ("-result.json", "-container.json", "-globals.json")
_UNFINISHED = re.compile(r"\.(.+)\.json\.[A-Za-z0-9_]{8}")
"""Name that a recording has until it is whole (`recording.write_recording`)."""

MERGED = "merged"
"""Name of a folder that merges write to; nothing below it is a node's."""

MOST_BYTES = 64 << 20
"""Size of a report of a node, at most, but for its recording."""


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
        notes: What was left out, and why, one line each.
    """

    recordings: tuple[tuple[Path, str], ...]
    junit: tuple[tuple[ElementTree.Element, str], ...]
    allure: tuple[tuple[Path, str], ...]
    broken: tuple[tuple[Path, str, str], ...]
    failures: tuple[JunitFailure, ...]
    places: Mapping[str, frozenset[str]]
    notes: tuple[str, ...] = ()


def find_files(folder: Path, leave_out: Iterable[Path] = ()) -> FoundFiles:
    """
    Sort the files of a folder; XML is read, and so is what Allure wrote.

    Args:
        folder: The folder, resolved; FOLDER/NODE/... and FOLDER/NODE.json give the place's name.
        leave_out: Files and folders that do not count.
    """
    left = {path.resolve() for path in leave_out}
    recordings, junit, broken, failures, notes = [], [], [], [], []
    allure: dict[Path, str] = {}
    places: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if MERGED in parts[:-1] or not left.isdisjoint((path, *path.parents)):
            continue
        place = _place(parts[0], alone=len(parts) == 1 and not path.is_dir())
        if not ALIAS.fullmatch(place):
            if len(parts) == 1:
                notes.append(f"{path.name!r}: its name is no host's, so it is left out")
            continue
        if path.is_symlink():
            if len(parts) == 1:
                notes.append(f"{path.name}: a link, which is not followed")
            else:
                broken.append((path, place, "it is a link, which is not followed"))
            continue
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
                root = parse_xml(read_text(path, RecordingError, most=MOST_BYTES), str(path), RecordingError)
            except RecordingError as error:
                broken.append((path, place, f"the JUnit file is damaged: {error.reason.removeprefix(f'{path}: ')}"))
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
        tuple(notes),
    )


def _place(name: str, *, alone: bool) -> str:
    """Name the place of a folder, or of a file that stands alone: "node-a" of node-a.json."""
    if not alone:
        return name
    unfinished = _UNFINISHED.fullmatch(name)
    return unfinished[1] if unfinished else name.rpartition(".")[0] or name


def _unreadable(path: Path) -> str:
    """Say why a JSON file cannot be read; "" if it can."""
    try:
        read_json(path)
    except RecordingError as error:
        return error.reason.removeprefix(f"{path}: ")
    return ""


def read_json(path: Path) -> Any:
    """
    Read a JSON file that a node wrote.

    Raises:
        RecordingError: It is no regular file, too large, or odd.
    """
    return parse_json(read_text(path, RecordingError, most=MOST_BYTES), str(path), RecordingError)


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
