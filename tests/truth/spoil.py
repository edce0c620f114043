"""Makes of one recorded host many, each with one reading spoilt in one way, and judges them in one run."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.plugin.conftest import judge_recording

BANNER = "*** Authorised use only. Disconnect now if you are not. ***\n"
GARBAGE = "\x01\x02 %$ no such format \x7f\n" * 3
WHOLE = "whole"


@dataclass(frozen=True)
class Place:
    """
    A reading of a capture.

    Attributes:
        request: Id of the request that it answers.
        node: What it is about, as far as the request asks for several; "" otherwise.
        name: Its name in the request.
    """

    request: str
    node: str
    name: str

    def __str__(self) -> str:
        return "/".join(part for part in (self.request, self.node, self.name) if part)

    @property
    def kind(self) -> tuple[str, str]:
        """What readings about other nodes have in common with it."""
        return self.request, self.name


def _unread(error: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda _: {"e": error}


def _text(change: Callable[[str], str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda reading: {**reading, "t": change(reading["t"])}


WAYS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "denied": _unread("EACCES: Permission denied"),
    "absent": _unread("ENOENT: No such file or directory"),
    "empty": _text(lambda _: ""),
    "garbage": _text(lambda _: GARBAGE),
    "cut": _text(lambda text: text[: len(text) // 2]),
    "banner": _text(lambda text: BANNER + text),
}
"""How a reading is spoilt, by name. A banner stands before what a command prints; a file has none."""


def places(answers: Mapping[str, Any]) -> Iterator[Place]:
    """Every reading of a capture that has a text."""
    for request, nodes in answers.items():
        for node, names in nodes.items():
            yield from (Place(request, node, name) for name, reading in names.items() if reading.get("t"))


def chosen(answers: Mapping[str, Any], seed: int, most: int | None = None) -> list[Place]:
    """One reading of each kind, drawn with a seed; so many kinds at most."""
    drawn = random.Random(seed)
    found: dict[tuple[str, str], list[Place]] = {}
    for place in places(answers):
        found.setdefault(place.kind, []).append(place)
    kinds = sorted(found)
    return [drawn.choice(found[kind]) for kind in (drawn.sample(kinds, most) if most and most < len(kinds) else kinds)]


Endings = Mapping[str, str]
"""Outcome of each item of a host, by its name without the alias."""


def judged(directory: Path, recording: Path, spoilt: Sequence[Place]) -> dict[tuple[Place | None, str], Endings]:
    """
    Judge a recording's first host whole, and spoilt at each place in each way.

    Returns:
        Endings by place and way; the whole host's by None and WHOLE.
    """
    document = json.loads(recording.read_text())
    host = next(iter(document["hosts"].values()))
    hosts, meant = {"whole": host}, {"whole": (None, WHOLE)}
    for place in spoilt:
        reading = host["capture"]["answers"][place.request][place.node][place.name]
        for way, change in WAYS.items():
            if way == "banner" and "x" not in reading:
                continue
            alias = f"h{len(hosts)}"
            answers = host["capture"]["answers"]
            request = copy.deepcopy(answers[place.request])
            request[place.node][place.name] = change(reading)
            hosts[alias] = {**host, "capture": {**host["capture"], "answers": {**answers, place.request: request}}}
            meant[alias] = place, way
    document.update(hosts=hosts, order=list(hosts), results=[], narrowed={})
    (directory / "spoilt.json").write_text(json.dumps(document))
    found = judge_recording(directory, "spoilt.json", "--tb=no", "--show-capture=no", "-rN")
    return {meant[alias]: found.of_host(alias).outcomes for alias in hosts}
