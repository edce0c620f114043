"""
Recordings: one file that holds what a run saw and how it ended, and that can be judged again.

Format: JSON, UTF-8, keys sorted, one document:
    {"format": "pytest-gpuinfra recording", "version": 1, "plugin": str, "started_at": UTC ISO 8601,
     "hosts": {alias: {"spec": {...}, "capture": {...}, "gathered": {...}}},
     "results": [{"id": str, "host": alias, "outcome": str, "message": str, "took_s": float}],
     "exit_status": pytest's own, before ours,
     "narrowed": {alias: "8 of 425 checks (-k xid)"},
     "trimmed": [{"where": path, "characters": int, "kept": int}]}
Secrets are masked when it is written. docs/recording.md explains it; `gpuinfra schema --recording` prints its schema.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pytest_gpuinfra.capture.capture import Capture, asked_ids
from pytest_gpuinfra.errors import InventoryError, RecordingError
from pytest_gpuinfra.input_file import members_of, parse_json, read_text
from pytest_gpuinfra.inventory.inventory import parse_inventory
from pytest_gpuinfra.inventory.names.named import ALIAS
from pytest_gpuinfra.masking import Masker
from pytest_gpuinfra.on_target.probe.probe_answer import flaw_of
from pytest_gpuinfra.record.model import FORMAT, VERSION, HostData, ResultData, RunData, fault_of
from pytest_gpuinfra.record.recording_size import bounded
from pytest_gpuinfra.visible import visible_json

MOST_BYTES = 512 << 20
"""Size of a recording, at most; one of 1,000 hosts has some 200 MB."""

_AGAIN = "take a new recording; `gpuinfra schema --recording` prints what one holds"
_RESULT = TypeAdapter(ResultData)
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
        narrowed: Which part of all checks was run, by alias; absent for all of them.
    """

    hosts: Mapping[str, RecordedHost]
    results: Sequence[Mapping[str, Any]] = ()
    started_at: str = ""
    plugin: str = ""
    trimmed: Sequence[Mapping[str, Any]] = ()
    exit_status: int | None = None
    narrowed: Mapping[str, str] = field(default_factory=dict)

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
        "narrowed": dict(recording.narrowed),
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
    return visible_json(json.dumps(data, sort_keys=True, indent=1, ensure_ascii=False)[2:-2])


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def read_recording(path: Path) -> Recording:
    """
    Read a recording; a host whose part is damaged stands in it as one that could not be observed, and why.

    Raises:
        RecordingError: The file is missing, damaged as a whole, or of a version that this one does not read.
    """
    text = read_text(path, RecordingError, most=MOST_BYTES, remedy="write replay:FILE with a run's recording")
    document, damage = _parse(text, path)
    del text
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise RecordingError(f"{path}: not a recording of pytest-gpuinfra")
    if document.get("version") != VERSION:
        raise RecordingError(
            f"{path}: a recording of version {document.get('version')!r:.40}; this pytest-gpuinfra reads version "
            f"{VERSION}",
            remedy="use the pytest-gpuinfra that wrote it, or take a new one",
        )
    try:
        run = RunData.model_validate(document)
    except ValidationError as error:
        raise RecordingError(f"{path}: the recording is damaged: {fault_of(error)}", remedy=_AGAIN) from None
    hosts: dict[str, RecordedHost] = {}
    known: set[str] = set()
    results = _results(run, damage, path)
    for alias in dict.fromkeys([*run.order, *run.hosts]):
        reason = damage.get(alias, "") if alias in run.order else "`order` does not name it"
        host = _host(alias, run.hosts.get(alias), reason, known)
        if isinstance(host, RecordedHost):
            hosts[alias] = host
            continue
        shown = _free_alias(alias, hosts)
        hosts[shown] = damaged_host(shown, f"{path}: {host}")
        results = [row for row in results if row["host"] != alias]
        results.append(damage_result(shown, hosts[shown]))
    return Recording(
        hosts, results, run.started_at, run.plugin, [dict(cut) for cut in run.trimmed], run.exit_status, run.narrowed
    )


def _parse(text: str, path: Path) -> tuple[Any, dict[str, str]]:
    """Parse a document; what is damaged within one host is taken out of it. Gives why, by alias, beside it."""
    try:
        return parse_json(text, "", RecordingError), {}
    except RecordingError as error:
        whole = error.reason.removeprefix(": ")
    damage: dict[str, str] = {}
    kept: list[str] = []
    end = 0
    for alias, begins, ends in members_of(text, "hosts"):
        try:
            parse_json(text[begins:ends], f"hosts.{alias}", RecordingError)
        except RecordingError as error:
            damage[alias] = error.reason
            kept += [text[end:begins], "null"]
            end = ends
    try:
        return parse_json("".join([*kept, text[end:]]) if damage else text, "", RecordingError), damage
    except RecordingError:
        raise RecordingError(f"{path}: the recording is damaged: {whole}", remedy=_AGAIN) from None


def _host(alias: str, data: Any, damage: str, known: set[str]) -> RecordedHost | str:
    """Give one host; the reason why it cannot be used, where it cannot. `known`: expectations found right, as JSON."""
    if not damage and not ALIAS.fullmatch(alias):
        damage = f"hosts: {alias!r:.80} is no alias"
    if damage:
        return damage
    try:
        host = HostData.model_validate(data)
    except ValidationError as error:
        return f"hosts.{alias}.{fault_of(error)}"
    capture = Capture(alias=alias, **dict(host.capture))
    flaw = flaw_of(capture.answers, asked_ids(capture.requests))  # type: ignore[no-untyped-call]
    if flaw:
        return f"hosts.{alias}.capture: {flaw}"
    key = json.dumps(host.spec, sort_keys=True)
    if key not in known:
        try:
            parse_inventory({"hosts": {alias: host.spec}}, f"hosts.{alias}.spec")
        except InventoryError as error:
            return " ".join(error.reason.split())
        known.add(key)
    return RecordedHost(host.spec, capture, host.gathered)


def _results(run: RunData, damage: dict[str, str], path: Path) -> list[Mapping[str, Any]]:
    """Give the rows that have the shape of results; another one is damage of its host, if it names one."""
    found: list[Mapping[str, Any]] = []
    for place, row in enumerate(run.results):
        try:
            found.append(_RESULT.validate_python(row))
            reason = "" if row["host"] in run.hosts else f"host: there is no {row['host']!r:.80} in `hosts`"
        except ValidationError as error:
            reason = fault_of(error)
        if reason:
            alias = row.get("host") if isinstance(row, dict) else None
            if not isinstance(alias, str) or alias not in run.hosts:
                raise RecordingError(f"{path}: the recording is damaged: results[{place}].{reason}", remedy=_AGAIN)
            damage.setdefault(alias, f"results[{place}].{reason}")
    return found


def _free_alias(name: str, taken: Mapping[str, Any]) -> str:
    """Make an alias of what a document calls a host, which may be anything."""
    alias = name if ALIAS.fullmatch(name) else re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:64] or "host"
    while alias in taken:
        alias += "-again"
    return alias


def damaged_host(alias: str, reason: str) -> RecordedHost:
    """Give a host of which a recording holds nothing that can be used."""
    return RecordedHost({}, Capture(alias, "a recording", (), {}, ("RecordingError", f"{alias}: {reason}", _AGAIN)))


def damage_result(alias: str, host: RecordedHost) -> Mapping[str, Any]:
    """Give the ending that stands for all of such a host."""
    message = "\n  what to do: ".join((host.capture.error or ("", "", ""))[1:])
    identity = f"recording/test_part_of_host.py::test_part_is_whole[{alias}]"
    return {"id": identity, "host": alias, "outcome": "error", "message": message, "took_s": 0.0}
