"""
Streamed answers: server-sent events of /v1/chat/completions and /v1/completions.

Source: streams of SGLang 0.5, vLLM 0.32, llama.cpp and transformers serve 5.24 (no "[DONE]",
usage on the last chunk); WHATWG HTML "Server-sent events" for lines; cases C102 and C103.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_gpuinfra.endpoint.chat import ChatAnswer, Usage, assemble, parse_usage, reasoning_of, text_of
from pytest_gpuinfra.endpoint.error_body import ErrorBody, error_in
from pytest_gpuinfra.endpoint.failures import BrokenAnswer
from pytest_gpuinfra.endpoint.json_text import read_json

MAX_LINES = 200_000
"""Lines of one stream, comments included; an event has two."""


@dataclass(frozen=True, slots=True)
class StreamAnswer:
    """
    One answer that came as a stream.

    Attributes:
        answer: The answer put together.
        done: Whether "[DONE]" ended the stream; transformers serve never sends it.
        error: Error inside the stream; None if there was none.
        pieces: Moment (seconds since the request began) and text of each delta that holds text or reasoning.
        status: HTTP status.
    """

    answer: ChatAnswer
    done: bool
    error: ErrorBody | None = None
    pieces: tuple[tuple[float, str], ...] = ()
    status: int = 200

    @property
    def complete(self) -> bool:
        """Whether the stream came to its end: a finish reason or "[DONE]", and no error."""
        return self.error is None and (self.done or self.answer.finish_reason is not None)

    @property
    def first_token_s(self) -> float | None:
        """Time to the first delta with text, in seconds; None if none came."""
        return self.pieces[0][0] if self.pieces else None


@dataclass(slots=True)
class StreamReader:
    """Puts a stream together line by line; feed() each line, then close()."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    model: str | None = None
    usage: Usage = field(default_factory=Usage)
    done: bool = False
    error: ErrorBody | None = None
    pieces: list[tuple[float, str]] = field(default_factory=list)
    raw: list[str] = field(default_factory=list)
    data: list[str] = field(default_factory=list)

    def feed(self, line: str, at_s: float = 0.0) -> None:
        """
        Take one line, without its end.

        Raises:
            BrokenAnswer: An event that is no JSON object, or a stream without end.
        """
        self.raw.append(line)
        if len(self.raw) > MAX_LINES:
            raise BrokenAnswer("too-large", f"the stream has more than {MAX_LINES} lines", status=200)
        line = line.rstrip("\r")
        if line.startswith("data:"):
            self.data.append(line[5:].removeprefix(" "))
        elif not line:
            self._event(at_s)

    def close(self, *, took_s: float = 0.0, status: int = 200) -> StreamAnswer:
        """Give what came; an event cut in its middle is dropped, as the standard says, unless it is whole."""
        if self.data and (self.data[0] == "[DONE]" or _is_json("\n".join(self.data))):
            self._event(took_s)
        answer = assemble(
            "".join(self.content),
            "".join(self.reasoning),
            self.finish_reason,
            self.model,
            self.usage,
            took_s=took_s,
            raw="\n".join(self.raw),
        )
        return StreamAnswer(answer, self.done, self.error, tuple(self.pieces), status)

    def _event(self, at_s: float) -> None:
        text, self.data = "\n".join(self.data), []
        if not text.strip():
            return
        if text.strip() == "[DONE]":
            self.done = True
            return
        try:
            chunk = read_json(text)
        except ValueError:
            raise BrokenAnswer("not-json", f"an event of the stream is no JSON: {text[:200]!r}", text=text) from None
        if not isinstance(chunk, dict):
            raise BrokenAnswer("shape", f"an event of the stream is no object: {text[:200]!r}", text=text)
        self.error = self.error or error_in(chunk)
        self._take(chunk, at_s)

    def _take(self, chunk: dict[str, object], at_s: float) -> None:
        if isinstance(chunk.get("model"), str):
            self.model = str(chunk["model"])
        if isinstance(chunk.get("usage"), dict):
            self.usage = parse_usage(chunk["usage"], chunk.get("timings"))
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return  # the usage chunk has an empty list
        choice = choices[0]
        delta = choice.get("delta")
        if isinstance(delta, dict):
            content, reasoning = text_of(delta.get("content")), reasoning_of(delta)
        else:
            content, reasoning = text_of(choice.get("text")), ""
        self.content.append(content)
        self.reasoning.append(reasoning)
        if content or reasoning:
            self.pieces.append((at_s, reasoning + content))
        if isinstance(choice.get("finish_reason"), str):
            self.finish_reason = choice["finish_reason"]


def _is_json(text: str) -> bool:
    try:
        read_json(text)
    except ValueError:
        return False
    return True
