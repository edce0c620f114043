"""Takes recorded HTTP answers apart, in the three ways in which people note them down."""

from __future__ import annotations

import re
from dataclasses import dataclass

_STATUS_LINE = re.compile(r"HTTP/[\d.]+ (?P<status>\d{3})\b.*")
_NOTE = re.compile(r"(?:GET|POST) (?P<path>/\S*)\s+->\s+(?P<status>\d{3})\s*(?P<body>.*)")
_SHORT = re.compile(r"(?P<status>[1-5]\d\d)(?:\s+(?P<body>[{\[(\"].*|\S.*))?")


@dataclass(frozen=True)
class Answer:
    """
    One answer.

    Attributes:
        path: Route; "" where the note does not say.
        status: HTTP status.
        body: Body.
        content_type: Content-Type header; None without one.
    """

    path: str
    status: int
    body: str
    content_type: str | None = None


def answers(text: str) -> list[Answer]:
    """Read answers with status line and headers, "GET /path -> 200 body", or "200 body"; [] if it is none of them."""
    lines = text.splitlines()
    if any(_STATUS_LINE.fullmatch(line) for line in lines):
        return [_whole(part) for part in re.split(r"^(?=HTTP/)", text, flags=re.MULTILINE) if part.strip("-\n ")]
    for pattern in (_NOTE, _SHORT):
        if lines and pattern.fullmatch(lines[0]):
            return _noted(lines, pattern)
    return []


def _whole(text: str) -> Answer:
    head, _, body = text.partition("\n\n")
    first, *headers = head.splitlines()
    status = _STATUS_LINE.fullmatch(first)
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in headers)}
    body = re.sub(r"\n?^---\s*\Z", "", body, flags=re.MULTILINE)
    return Answer("", int(status["status"]) if status else 0, body, fields.get("content-type"))


def _noted(lines: list[str], pattern: re.Pattern[str]) -> list[Answer]:
    found: list[Answer] = []
    for line in lines:
        match = pattern.fullmatch(line)
        if match:
            body = match["body"] or ""
            path = match.groupdict().get("path") or ""
            found.append(Answer(path, int(match["status"]), "" if body == "(empty)" else body))
        elif found:
            last = found[-1]
            found[-1] = Answer(last.path, last.status, f"{last.body}\n{line}".lstrip("\n"))
    return found
