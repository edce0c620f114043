"""Boots of healthy machines, as readings of a host's kernel log; boots.toml tells what they are made of."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

Line = tuple[int, float, str]
_LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")
_DENIED = {"e": "EPERM: Operation not permitted"}


def _kmsg(lines: list[Line]) -> str:
    return "".join(f"{level},{n},{round(at * 1e6)},-;{text}\n" for n, (level, at, text) in enumerate(lines))


def _journal(lines: list[Line]) -> str:
    rows = (
        {
            "MESSAGE": text,
            "PRIORITY": str(level),
            "_SOURCE_MONOTONIC_TIMESTAMP": str(round(at * 1e6)),
            "_BOOT_ID": "0" * 32,
        }
        for level, at, text in lines
    )
    return "".join(json.dumps(row) + "\n" for row in rows)


_FORMS: Mapping[str, tuple[str, Callable[[list[Line]], str]]] = {
    "kmsg": ("kmsg", _kmsg),
    "journal": ("journal", _journal),
    "dmesg": ("dmesg", lambda lines: "".join(f"[{at:12.6f}] {text}\n" for _, at, text in lines)),
    "dmesg -x": (
        "dmesg",
        lambda lines: "".join(f"kern  :{_LEVELS[level]:<6}: [{at:12.6f}] {text}\n" for level, at, text in lines),
    ),
    "dmesg -T": ("dmesg", lambda lines: "".join(f"[Sun Feb 23 16:24:18 2025] {text}\n" for _, _, text in lines)),
    "journalctl": ("dmesg", lambda lines: "".join(f"Sep 21 09:59:59 host1 kernel: {text}\n" for _, _, text in lines)),
}


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "boots.toml").read_text(encoding="utf-8"))


def boots() -> Mapping[str, Mapping[str, Any]]:
    """Give the answer to the request for the kernel's log of each boot, by the boot's name."""
    return {name: _answer(*row) for name, row in _data()["boots"].items()}


def _answer(form: str, *blocks: str) -> dict[str, Any]:
    rows = [row for block in ("start", *blocks) for row in _data()["blocks"][block]["lines"]]
    lines = [(int(row[0]), number * 0.137, row[2:]) for number, row in enumerate(rows)]
    source, write = _FORMS[form]
    text = write(lines)
    reading = {"t": text} if source == "kmsg" else {"t": text, "x": 0, "s": ""}
    return {"": {"kmsg": _DENIED, source: reading}}
