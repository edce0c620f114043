"""
Answers of /v1/chat/completions and /v1/completions, not streamed.

Read leniently where engines differ (extra fields, null details, leading new lines, place of the reasoning),
strictly where a missing field would pass for an observation.

Source: bodies of SGLang 0.5.16, vLLM 0.32, llama.cpp, transformers serve 5.24; cases C101, C105, C106.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuinfra.endpoint.error_body import error_in
from pytest_gpuinfra.endpoint.failures import BrokenAnswer
from pytest_gpuinfra.endpoint.json_text import read_json
from pytest_gpuinfra.endpoint.reasoning import split_reasoning


@dataclass(frozen=True, slots=True)
class Usage:
    """
    Tokens of one request as the server counted them; None where it gives no such number.

    Attributes:
        prompt_tokens: Tokens of the prompt, template included.
        completion_tokens: Tokens generated; reasoning is among them on every engine seen so far.
        total_tokens: The server's own sum.
        reasoning_tokens: Of the generated, those of the reasoning.
        cached_tokens: Of the prompt, those taken from a cache.
        draft_tokens: Tokens proposed by speculation (llama.cpp's "timings" only).
        accepted_tokens: Of these, accepted (llama.cpp's "timings" only).
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """
    One answer of a model.

    Attributes:
        content: Text of the message, verbatim; "" if the server sent null.
        answer: Content without inline reasoning and without blank lines at its ends: what a person reads.
        reasoning: Reasoning, from its own field or inline; "" if there is none.
        finish_reason: Server's word ("stop", "length", ...); None if it gave none.
        model: Model id that the answer names; None if it names none.
        usage: Tokens as the server counted them.
        took_s: From before connect to the last byte; 0.0 if it was read from a file.
        raw: Body, verbatim: the evidence.
    """

    content: str
    answer: str
    reasoning: str
    finish_reason: str | None
    model: str | None
    usage: Usage
    took_s: float = 0.0
    raw: str = ""

    @property
    def generated(self) -> bool:
        """Whether at least one token was made: by the count, or by a text."""
        return bool(self.usage.completion_tokens) or bool(self.content or self.reasoning)


def parse_chat(text: str, *, took_s: float = 0.0) -> ChatAnswer:
    """
    Read the body of one answer with status 200.

    Args:
        text: Body.
        took_s: Duration to note in the answer, in seconds.

    Raises:
        BrokenAnswer: No JSON ("not-json"), an error under status 200 ("stream-error"),
            or no choice with a message in it ("shape").
    """
    try:
        body = read_json(text)
    except ValueError as error:
        raise BrokenAnswer("not-json", f"the answer is no complete JSON document: {error}", text=text) from None
    refusal = error_in(body)
    if refusal:
        raise BrokenAnswer("stream-error", f"an error under status 200: {refusal.message}", status=200, text=text)
    fields = body if isinstance(body, dict) else {}
    choices = fields.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise BrokenAnswer("shape", "the answer holds no choice", text=text)
    choice = choices[0]
    message = choice.get("message")
    if isinstance(message, dict):
        content, reasoning = text_of(message.get("content")), reasoning_of(message)
    elif isinstance(choice.get("text"), str):
        content, reasoning = choice["text"], ""
    else:
        raise BrokenAnswer("shape", "the answer's first choice holds neither a message nor a text", text=text)
    return assemble(
        content,
        reasoning,
        choice.get("finish_reason"),
        fields.get("model"),
        parse_usage(fields.get("usage"), fields.get("timings")),
        took_s=took_s,
        raw=text,
    )


def assemble(
    content: str,
    reasoning: str,
    finish_reason: object,
    model: object,
    usage: Usage,
    *,
    took_s: float = 0.0,
    raw: str = "",
) -> ChatAnswer:
    """Make an answer of its parts, taking inline reasoning out of the content."""
    answer, inline = split_reasoning(content)
    return ChatAnswer(
        content=content,
        answer=answer.strip(),
        reasoning=(reasoning or inline).strip(),
        finish_reason=finish_reason[:100] if isinstance(finish_reason, str) else None,
        model=model[:500] if isinstance(model, str) else None,
        usage=usage,
        took_s=took_s,
        raw=raw,
    )


def text_of(content: object) -> str:
    """Give the text of a message's content, which may be a text, null, or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return ""


def reasoning_of(message: dict[str, object]) -> str:
    """Give a message's reasoning: "reasoning_content" (SGLang, llama.cpp) or "reasoning" (vLLM)."""
    for key in ("reasoning_content", "reasoning"):
        value = message.get(key)
        if isinstance(value, str):
            return value
    return ""


def parse_usage(usage: object, timings: object = None) -> Usage:
    """Read a "usage" object and llama.cpp's "timings"; whatever is missing or null stays None."""
    fields = usage if isinstance(usage, dict) else {}
    prompt, completion = (
        _details(fields, "prompt_tokens_details"),
        _details(fields, "completion_tokens_details"),
    )
    times = timings if isinstance(timings, dict) else {}
    reasoning = _count(fields, "reasoning_tokens")
    return Usage(
        prompt_tokens=_count(fields, "prompt_tokens"),
        completion_tokens=_count(fields, "completion_tokens"),
        total_tokens=_count(fields, "total_tokens"),
        reasoning_tokens=_count(completion, "reasoning_tokens") if reasoning is None else reasoning,
        cached_tokens=_count(prompt, "cached_tokens"),
        draft_tokens=_count(times, "draft_n"),
        accepted_tokens=_count(times, "draft_n_accepted"),
    )


def _details(fields: dict[str, object], name: str) -> dict[str, object]:
    value = fields.get(name)
    return value if isinstance(value, dict) else {}


def _count(fields: dict[str, object], name: str) -> int | None:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
