"""
Recordings: one file that holds what a run saw and how it ended, and that can be judged again.

Format: JSON, UTF-8, keys sorted, one document:
    {"format": "pytest-gpuinfra recording", "version": 1, "plugin": str, "started_at": UTC ISO 8601,
     "hosts": {alias: {"spec": {...}, "capture": {...}, "gathered": {...}}},
     "results": [{"id": str, "host": alias, "outcome": str, "message": str, "took_s": float}],
     "exit_status": pytest's own, before ours,
     "trimmed": [{"where": path, "characters": int, "kept": int}]}
Secrets are masked when it is written. docs/recording.md explains it; `gpuinfra schema --recording` prints its schema.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_gpuinfra.capture import Capture
from pytest_gpuinfra.errors import RecordingError
from pytest_gpuinfra.masking import Masker
from pytest_gpuinfra.recording_size import bounded

FORMAT = "pytest-gpuinfra recording"
VERSION = 1
INTERRUPTED = 2
"""pytest's exit status of a run that did not come to its end."""


@dataclass(frozen=True)
class RecordedHost:
    """
    One host of a recording.

    Attributes:
        spec: How it was declared then, as plain data of the inventory's form.
        capture: What it answered.
        gathered: What was gathered afterwards, by kind: "endpoint".
    """

    spec: Mapping[str, Any]
    capture: Capture
    gathered: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Recording:
    """
    A run, as it was written down.

    Attributes:
        hosts: By alias, in the run's order.
        results: One for each item: id, host, outcome ("passed", "failed", "error", "skipped"), message, took_s.
        started_at: UTC, ISO 8601.
        plugin: Version of pytest-gpuinfra that wrote it.
        trimmed: What was cut out of it for its size: where, characters, kept. Shape (n,).
        exit_status: pytest's own: 0 or 1 where the run came to its end, 2 to 5 where it did not; None if not known.
    """

    hosts: Mapping[str, RecordedHost]
    results: Sequence[Mapping[str, Any]] = ()
    started_at: str = ""
    plugin: str = ""
    trimmed: Sequence[Mapping[str, Any]] = ()
    exit_status: int | None = None

    @property
    def cut_short(self) -> bool:
        """Whether the run was interrupted, so that results are missing."""
        return self.exit_status == INTERRUPTED


def write_recording(path: Path, recording: Recording, masker: Masker | None = None) -> str:
    """
    Write a recording, masked and bounded; an unfinished one never stands under its name.

    Args:
        path: The file; its folder is made.
        recording: What to write.
        masker: Masks what is secret; None for one that knows forms and names only.

    Returns:
        The file's SHA-256, hexadecimal.

    Raises:
        RecordingError: The file cannot be written.
    """
    digest = hashlib.sha256()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") as stream:
            for text in _document_text(recording, masker or Masker()):
                data = text.encode("utf-8", "backslashreplace")
                digest.update(data)
                stream.write(data)
            os.fchmod(descriptor, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        raise RecordingError(
            f"{path}: the recording cannot be written: {error.strerror}",
            remedy="name another file with --gpu-recording",
        ) from None
    return digest.hexdigest()


def _document_text(recording: Recording, masker: Masker) -> Iterator[str]:
    """Give the document's text host by host, so that of many hosts only one is in memory."""
    trimmed = [*recording.trimmed]

    def inner(data: dict[str, Any]) -> str:
        kept, cuts = bounded(masker.data(data))
        trimmed.extend(cuts)
        return _inner_text(kept)

    yield "{\n" + inner({"exit_status": recording.exit_status, "format": FORMAT}) + ',\n "hosts": {'
    for number, (alias, host) in enumerate(sorted(recording.hosts.items())):
        entry = {"spec": host.spec, "capture": host.capture.to_json(), "gathered": host.gathered}
        text = inner({"hosts": {alias: entry}})
        yield (",\n" if number else "\n") + text.partition("\n")[2].rpartition("\n")[0]
    rest = {
        "order": list(recording.hosts),
        "plugin": recording.plugin,
        "results": list(recording.results),
        "started_at": recording.started_at,
        "version": VERSION,
    }
    kept, cuts = bounded(masker.data(rest))
    kept["trimmed"] = [*trimmed, *cuts]
    yield ("\n }" if recording.hosts else "}") + ",\n" + _inner_text(kept) + "\n}\n"


def _inner_text(data: dict[str, Any]) -> str:
    """Write an object as it stands in the document, without its braces."""
    return json.dumps(data, sort_keys=True, indent=1, ensure_ascii=False)[2:-2]


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def read_recording(path: Path) -> Recording:
    """
    Read a recording.

    Raises:
        RecordingError: The file is missing, damaged, or of a version that this one does not read.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordingError(
            f"{path}: the recording cannot be read: {error.strerror}",
            remedy="write replay:FILE with a run's recording",
        ) from None
    except ValueError as error:
        raise RecordingError(f"{path}: the recording is damaged: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise RecordingError(f"{path}: not a recording of pytest-gpuinfra")
    if document.get("version") != VERSION:
        raise RecordingError(
            f"{path}: a recording of version {document.get('version')!r}; this pytest-gpuinfra reads version {VERSION}",
            remedy="use the pytest-gpuinfra that wrote it, or take a new one",
        )
    try:
        hosts = {
            alias: RecordedHost(
                document["hosts"][alias]["spec"],
                Capture.from_json(alias, document["hosts"][alias]["capture"]),
                document["hosts"][alias]["gathered"],
            )
            for alias in document["order"]
        }
        return Recording(
            hosts,
            document["results"],
            document["started_at"],
            document["plugin"],
            document.get("trimmed", ()),
            document.get("exit_status"),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordingError(f"{path}: the recording is damaged: {type(error).__name__} {error}") from None
