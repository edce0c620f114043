"""Reads one streamed answer off the wire."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx

from pytest_gpuinfra.endpoint.failures import BrokenAnswer
from pytest_gpuinfra.endpoint.http import HttpAnswer, opened, shown_headers, text_pieces
from pytest_gpuinfra.endpoint.limits import Limits
from pytest_gpuinfra.endpoint.status import expect_200
from pytest_gpuinfra.endpoint.stream import StreamAnswer, StreamReader
from pytest_gpuinfra.wire import Lines, WireError

MAX_LINE = 1 << 20
"""Characters of one line; an event holds one token, and with it a few kilobytes at most."""


def read_stream(client: httpx.Client, path: str, content: bytes, limits: Limits) -> StreamAnswer:
    """
    Send one request that asks for a stream, and read it to its end.

    Raises:
        NoAnswer: No answer that can be judged.
        BrokenAnswer: An error status, no stream, a stream that breaks off, or an event that is none.
    """
    started, reader = time.monotonic(), StreamReader()
    with opened(client, "POST", path, content=content, limits=limits) as response:
        _expect_events(response, path, limits)
        for line in _lines(text_pieces(response)):
            reader.feed(limits.masked(line), time.monotonic() - started)
    answer = reader.close(took_s=time.monotonic() - started)
    if not answer.complete and answer.error is None:
        raise BrokenAnswer(
            "truncated",
            f"the stream ended after {len(answer.pieces)} pieces, without finish reason and [DONE]",
            remedy="read the server's log at this moment: it gave the request up",
            status=200,
            text=answer.answer.raw[-4000:],
        )
    return answer


def _lines(pieces: Iterator[str]) -> Iterator[str]:
    """Give the lines of a text that comes in pieces; raises BrokenAnswer for one longer than MAX_LINE."""
    lines = Lines(MAX_LINE)
    for piece in pieces:
        try:
            whole = lines.feed(piece)
        except WireError as error:
            raise BrokenAnswer("too-large", f"the stream {error.reason}", status=200) from None
        yield from whole
    if lines.rest:
        yield lines.rest


def _expect_events(response: httpx.Response, path: str, limits: Limits) -> None:
    kind = response.headers.get("content-type", "").lower()
    if response.status_code == 200 and kind.startswith("text/event-stream"):
        return
    if response.status_code != 200 or "json" in kind:
        text = limits.masked("".join(text_pieces(response)))
        headers = shown_headers(response, limits)
        expect_200(HttpAnswer("POST", path, response.status_code, headers, text, 0.0))
    raise BrokenAnswer(
        "content-type",
        f"a stream was asked for, and came as {kind or 'no type at all'}",
        remedy="a proxy that buffers answers stands in between, or the server does not stream",
        status=response.status_code,
    )
