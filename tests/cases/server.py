"""Endpoints on loopback, one below each path prefix, that answer as a case says and otherwise as a healthy server."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODELS = '{"object":"list","data":[{"id":"m","object":"model","created":0,"owned_by":"x","max_model_len":4096}]}'
_LONG = 8000
"""Bytes above which a request asks for more than the context of the healthy model list, in its shortest tokens."""
CHAT = "/v1/chat/completions"


def answered(content: str) -> str:
    """Give a whole chat answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
    return json.dumps({"id": "0", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage})


HEALTHY: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "/health": [{"status": 200}],
    "/v1/models": [{"status": 200, "body": MODELS}],
    CHAT: [{"status": 200, "body": answered("ok")}],
}


class Endpoints:
    """
    The server; use it as a context.

    Args:
        answers: By alias, by path, in order; the last one is given again. The path "stream" answers streamed chats,
            "question" a chat whose text holds "case-question", "bad" a chat that is no proper request.
    """

    def __init__(self, answers: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> None:
        self._left = {
            alias: {p: list(rows) for p, rows in {**HEALTHY, **one}.items()} for alias, one in answers.items()
        }
        self._lock = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._give(b"")

            def do_POST(self) -> None:
                self._give(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

            def _give(self, request: bytes) -> None:
                row = owner.next(self.path, request)
                body = row.get("body", "").encode()
                self.send_response(row["status"])
                if body:
                    self.send_header("Content-Type", row.get("type", "application/json"))
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> Endpoints:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def url(self, alias: str) -> str:
        """Give an endpoint's address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/{alias}"

    def next(self, path: str, request: bytes) -> Mapping[str, Any]:
        """Give the next answer to a request."""
        _, alias, rest = path.split("/", 2)
        with self._lock:
            left = self._left[alias]
            rows = left.get(_kind(left, f"/{rest}", request), [{"status": 404, "body": '{"detail":"Not Found"}'}])
            return rows.pop(0) if len(rows) > 1 else rows[0]


def _kind(known: Mapping[str, object], path: str, request: bytes) -> str:
    if path != CHAT:
        return path
    try:
        body = json.loads(request)
        proper = isinstance(body["messages"], list) and not isinstance(body.get("temperature"), str)
        proper = proper and len(request) < _LONG
    except (ValueError, KeyError):
        proper = False
    if not proper:
        return "bad" if "bad" in known else path
    if "question" in known and b"case-question" in request:
        return "question"
    return "stream" if body.get("stream") and "stream" in known else path
