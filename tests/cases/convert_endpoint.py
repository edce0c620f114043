"""Converts the topics about the endpoint: the input is what a route answers, everything else answers as it should."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.cases.case import UNREAD
from tests.cases.convert_parts import Entry, Hosts, item, logged
from tests.cases.server import CHAT, answered

_STATUS_LINE = re.compile(r"HTTP/[\d.]+ (?P<status>\d{3})\b.*")
_NOTE = re.compile(r"(?:GET|POST) (?P<path>/\S*)\s+->\s+(?P<status>\d{3})\s*(?P<body>.*)")
_SHORT = re.compile(r"(?P<status>[1-5]\d\d)(?:\s+(?P<body>\S.*))?")
QUESTION = "case-question"
Answers = dict[str, list[dict[str, Any]]]


def recorded(text: str) -> Answers:
    """Read answers with status line and headers, "GET /path -> 200 body", or "200 body"; {} if it is none of them."""
    lines = text.splitlines()
    found: Answers = {}
    if any(_STATUS_LINE.fullmatch(line) for line in lines):
        for part in re.split(r"^(?=HTTP/)", text, flags=re.MULTILINE):
            if part.strip("-\n "):
                found.setdefault("", []).append(_whole(part))
        return found
    for pattern in (_NOTE, _SHORT):
        if lines and pattern.fullmatch(lines[0]):
            last: dict[str, Any] = {}
            for line in lines:
                match = pattern.fullmatch(line)
                if match:
                    body = match["body"] or ""
                    last = {"status": int(match["status"]), "body": "" if body == "(empty)" else body}
                    found.setdefault(match.groupdict().get("path") or "", []).append(last)
                else:
                    last["body"] = f"{last['body']}\n{line}".lstrip("\n")
            return found
    return found


def _whole(text: str) -> dict[str, Any]:
    head, _, body = text.partition("\n\n")
    first, *headers = head.splitlines()
    status = _STATUS_LINE.fullmatch(first)
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in headers)}
    body = re.sub(r"\n?^---\s*\Z", "", body, flags=re.MULTILINE)
    kind = {"type": fields["content-type"]} if "content-type" in fields else {}
    return {"status": int(status["status"]) if status else 0, "body": body, **kind}


def _host(tests: list[str], answers: Answers, **model: Any) -> dict[str, Any]:
    spec = {"expect": {"model": {"id": "m", **model}}}
    return {"base": "endpoint", "spec": spec, "answers": answers, "items": [item(test) for test in tests]}


def health(text: str, entry: Entry) -> Hosts:
    """Give the answers to /health, or to the routes that are named."""
    answers = recorded(text)
    if any("metrics" in path for path in answers):
        return [_host(["speculation_is_as_expected"], {path: rows for path, rows in answers.items() if path})]
    if not answers:
        return UNREAD
    named = {path or "/health": rows for path, rows in answers.items()}
    return [_host(["endpoint_is_ready"], named)]


def models(text: str, entry: Entry) -> Hosts:
    """Give each line as a model list, or as an engine's account, of a server of its own."""
    hosts = []
    for at, line in enumerate(line for line in text.splitlines() if line.strip()):
        if '"data"' in line:
            hosts.append(_host(["model_is_the_expected_one"], {"/v1/models": [{"status": 200, "body": line}]}))
        else:
            sizes = (entry.get("parsed") or {}).get("tp_size") or [1]
            info = {"/server_info": [{"status": 200, "body": line}]}
            owned = '{"object":"list","data":[{"id":"m","object":"model","owned_by":"sglang"}]}'
            info["/v1/models"] = [{"status": 200, "body": owned}]
            hosts.append(_host(["tensor_parallel_size_is_the_expected_one"], info, tp_size=sizes[at % len(sizes)]))
    return hosts or UNREAD


_SAMPLE = re.compile(r"^(?P<series>[A-Za-z_:]+(?:\{[^}]*\})?) (?P<value>[\d.eE+-]+)$", re.MULTILINE)


def metrics(text: str, entry: Entry) -> Hosts:
    """Give the counters as they stand after the product's own requests; before them they stood at 0."""
    if not _SAMPLE.search(text):
        return [logged(text, [item("drafts_in_the_services_log_are_accepted")])]
    plain = {"type": "text/plain; version=0.0.4"}
    begin = _SAMPLE.sub(lambda match: f"{match['series']} 0.0", text)
    rows = [{"status": 200, "body": body, **plain} for body in (begin, begin, text)]
    return [_host(["speculation_is_as_expected"], {"/metrics": rows}, speculation={"enabled": True})]


def chat(text: str, entry: Entry) -> Hosts:
    """Give an answer to the user's own question, a stream to a streamed one, error bodies to bad requests."""
    parsed = entry.get("parsed") or {}
    found = recorded(text) if text.startswith("HTTP/") else {}
    row = found[""][0] if found else {"status": 200, "body": text}
    expected = parsed.get("content") or parsed.get("text") or _content(text) or "four"
    if any(line.startswith("data:") for line in row["body"].splitlines()):
        stream = {"type": "text/event-stream", **row}
        whole = {"status": 200, "body": answered(expected)}
        return [_host(["stream_equals_the_whole_answer"], {"stream": [stream], CHAT: [whole]})]
    bodies = [line for line in text.splitlines() if line.strip()]
    if "choices" in text and _is_json(text):
        return [_asked(row, str(expected if entry["verdict"].startswith("pass") or "text" in parsed else "four"))]
    if all(map(_is_json, bodies)):
        rows = [{"status": 400, "body": body} for body in bodies]
        return [_host(["bad_requests_are_refused_with_a_message"], {"bad": rows})]
    return [_asked({"status": 400, "body": text, "type": "text/plain"}, "four")]


def _asked(row: dict[str, Any], expected: str) -> dict[str, Any]:
    host = _host([], {"question": [row]})
    host["prompts"] = [{"name": QUESTION, "prompt": f"{QUESTION}?", "expected": expected, "kind": "exact"}]
    host["items"] = [f"test_answer_is_right[*{QUESTION}]"]
    return host


def _content(text: str) -> str | None:
    try:
        return str(json.loads(text)["choices"][0]["message"]["content"] or "") or None
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


ENDPOINT_TOPICS: Mapping[str, Callable[[str, Entry], Hosts]] = {
    "endpoint-health": health,
    "endpoint-models": models,
    "endpoint-metrics": metrics,
    "chat": chat,
}
