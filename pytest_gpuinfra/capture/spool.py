"""
Captures of many hosts on this machine's disk: written down when taken, read when a check needs them, dropped after it.

A capture of a host with eight GPUs is some hundred kilobytes as text and several times that in memory.
The folder is private and is removed with the run; xdist's workers read from it what their hosts answered.

Files, UTF-8 JSON: ALIAS.answers.json, the probe's answers by request id; what session/handover.py writes for xdist's
workers, and they for it.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from pytest_gpuinfra.capture.capture import Capture, Request

IN_MEMORY = 8
"""Hosts whose answers are in memory at the same time, at most, of those that are written down."""


class Spool:
    """
    A folder of captures.

    Args:
        directory: One that another process made and will remove; None for one of its own, made when it is needed.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._own = directory is None
        self._directory = directory
        self._closed = False
        self._loaded: OrderedDict[str, Mapping[str, Any]] = OrderedDict()
        self._requests: dict[str, tuple[Request, ...]] = {}
        self._lock = Lock()
        self._folder_lock = Lock()

    @property
    def directory(self) -> Path:
        """Where the files are."""
        with self._folder_lock:
            return self._made()

    def _made(self) -> Path:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="gpuinfra-run-"))
        return self._directory

    def put(self, capture: Capture) -> Capture:
        """Write a capture down; gives one that is the same and holds no answers in memory."""
        if isinstance(capture.answers, SpooledAnswers) and capture.answers.spool is self:
            return capture
        self.write(f"{capture.alias}.answers.json", dict(capture.answers))
        return self.lend(capture)

    def lend(self, capture: Capture) -> Capture:
        """Give a capture whose answers are read from the folder; requests that many hosts share are held once."""
        with self._lock:
            requests = self._requests.setdefault(json.dumps(capture.requests), capture.requests)
        return dataclasses.replace(capture, requests=requests, answers=SpooledAnswers(self, capture.alias))

    def answers(self, alias: str) -> Mapping[str, Any]:
        """Read a host's answers, from memory if they are among the last that were read."""
        with self._lock:
            if alias in self._loaded:
                self._loaded.move_to_end(alias)
                return self._loaded[alias]
        answers: Mapping[str, Any] = self.read(f"{alias}.answers.json")
        with self._lock:
            self._loaded[alias] = answers
            while len(self._loaded) > IN_MEMORY:
                self._loaded.popitem(last=False)
        return answers

    def write(self, name: str, data: Any) -> None:
        """Write one file; once closed, nothing: captures that an interrupted run left behind still end in threads."""
        text = json.dumps(data, ensure_ascii=False)
        with self._folder_lock:
            if not self._closed:
                (self._made() / name).write_text(text, "utf-8", "backslashreplace")

    def read(self, name: str) -> Any:
        """Read one file."""
        return json.loads((self.directory / name).read_text("utf-8"))

    def close(self) -> None:
        """Remove the folder, if it is its own."""
        self._loaded.clear()
        with self._folder_lock:
            self._closed = True
            if self._own and self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)


class SpooledAnswers(Mapping[str, Any]):
    """
    A host's answers, by request id, that lie in a spool.

    Args:
        spool: Where.
        alias: Whose.
    """

    def __init__(self, spool: Spool, alias: str) -> None:
        self.spool = spool
        self._alias = alias

    def __getitem__(self, request: str) -> Any:
        return self.spool.answers(self._alias)[request]

    def __iter__(self) -> Iterator[str]:
        return iter(self.spool.answers(self._alias))

    def __len__(self) -> int:
        return len(self.spool.answers(self._alias))

    def __repr__(self) -> str:
        return f"SpooledAnswers({self._alias!r})"
