"""
Real HTTP servers of the tests' own: scripted ones, ones that replay recorded bodies, and a proxy that does damage.

They speak over real sockets on loopback, on ports that the kernel chooses.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent.parent / "recorded" / "endpoint"


@dataclass(frozen=True)
class Request:
    """What came in."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        """Body as an object."""
        found = json.loads(self.body or b"{}")
        assert isinstance(found, dict)
        return found


@dataclass(frozen=True)
class Reply:
    """
    What goes out.

    Attributes:
        status: HTTP status.
        body: Body, or its pieces, each sent at once.
        content_type: Content-Type; None for none.
        length: Content-Length to claim; None for the true one, or none for pieces.
        then_cut: Close the connection without a proper end.
        wait_s: Silence before the status line, at most; ends when the server closes.
        headers: Further headers.
    """

    status: int = 200
    body: bytes | Iterable[bytes] = b""
    content_type: str | None = "application/json"
    length: int | None = None
    then_cut: bool = False
    wait_s: float = 0.0
    headers: Mapping[str, str] = field(default_factory=dict)


def as_json(value: object, status: int = 200, **more: Any) -> Reply:
    """Give a JSON reply."""
    return Reply(status, json.dumps(value).encode(), **more)


def events(chunks: Iterable[object], *, done: bool = True) -> list[bytes]:
    """Give server-sent events, one piece each."""
    pieces = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks]
    return [*pieces, b"data: [DONE]\n\n"] if done else pieces


class Server:
    """An HTTP server whose answers a function gives; None closes the connection without a word."""

    def __init__(self, answer: Callable[[Request], Reply | None], port: int = 0) -> None:
        self.answer = answer
        self.seen: list[Request] = []
        self.closing = threading.Event()
        self._server = _Http(("127.0.0.1", port), _Handler)
        self._server.owner = self
        self.port = self._server.server_address[1]
        self.base_url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop, and end every connection."""
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    owner: Server

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep quiet: clients under test go away in the middle."""


class _Handler(BaseHTTPRequestHandler):
    server: _Http

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        owner = self.server.owner
        request = Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
        owner.seen.append(request)
        reply = owner.answer(request)
        self.close_connection = True
        if reply is None:
            return
        owner.closing.wait(reply.wait_s)
        if owner.closing.is_set():
            return
        self.send_response(reply.status)
        whole = reply.body if isinstance(reply.body, bytes) else None
        length = reply.length if reply.length is not None else None if whole is None else len(whole)
        headers = {"content-type": reply.content_type, "content-length": length, "connection": "close"}
        for name, value in (headers | dict(reply.headers)).items():
            if value is not None:
                self.send_header(name, str(value))
        if whole is None and length is None:
            self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self._send(reply, whole, chunked=length is None)

    def _send(self, reply: Reply, whole: bytes | None, *, chunked: bool) -> None:
        try:
            for piece in [whole] if whole is not None else reply.body:
                assert isinstance(piece, bytes)
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked and piece else piece)
            if chunked and not reply.then_cut:
                self.wfile.write(b"0\r\n\r\n")
        except OSError:
            return  # the client has had enough, as it should

    do_GET = do_POST = _serve  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def replay(directory: str, **changed: Reply) -> Callable[[Request], Reply | None]:
    """
    Answer with the recorded bodies of a directory; /health is empty, as SGLang's and vLLM's are.

    Args:
        directory: Below tests/recorded/endpoint.
        changed: Replies in the place of recorded ones, by file stem ("chat").
    """
    files = {path.stem: path for path in sorted((RECORDED / directory).iterdir())}
    routes = {"chat": "/v1/chat/completions", "metrics": "/metrics", "v1_models": "/v1/models"}
    by_route = {routes.get(stem, f"/{stem}"): stem for stem in files}

    def answer(request: Request) -> Reply:
        if request.path == "/health":
            return changed.get("health", Reply(200, b"", content_type=None))
        stem = by_route.get(request.path)
        if stem is None:
            return as_json({"detail": "Not Found"}, 404)
        if stem == "chat" and "stream" in files and request.json.get("stream"):
            return Reply(200, files["stream"].read_bytes(), content_type="text/event-stream")
        kind = "text/plain; version=0.0.4" if stem == "metrics" else "application/json"
        return changed.get(stem) or Reply(200, files[stem].read_bytes(), content_type=kind)

    return answer


def proxy(upstream: str, damage: Callable[[Request, Reply], Reply | None]) -> Callable[[Request], Reply | None]:
    """Pass requests on to a real server, and its answers through a function that does damage."""
    host, port = upstream.removeprefix("http://").split(":")

    def answer(request: Request) -> Reply | None:
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        try:
            headers = {"content-type": "application/json"} if request.body else {}
            connection.request(request.method, request.path, request.body or None, headers)
            response = connection.getresponse()
            reply = Reply(response.status, response.read(), response.getheader("content-type"))
        finally:
            connection.close()
        return damage(request, reply)

    return answer


class RawServer:
    """Sends bytes, and pauses, to whoever connects."""

    def __init__(self, pieces: Iterable[bytes], pause_s: float = 0.0) -> None:
        self._pieces, self._pause_s = list(pieces), pause_s
        self.closing = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=16)
        self.base_url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> RawServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _run(self) -> None:
        while not self.closing.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.settimeout(5)
                    connection.recv(65536)
                    for piece in self._pieces:
                        connection.sendall(piece)
                        if self.closing.wait(self._pause_s):
                            return
                except OSError:
                    continue


def unused_port() -> int:
    """Give a port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
