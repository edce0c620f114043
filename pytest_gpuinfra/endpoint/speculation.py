"""
Speculative decoding, behind one interface for SGLang, vLLM and llama.cpp, judged by differences.

Lengths count the token that is certain: 1.0 means that no draft was accepted.

Source: /metrics of vLLM 0.32 and llama.cpp (counters), SGLang 0.5.16 (a counter of verifications, and gauges
of the latest batches, repeated by every rank); cases C095 to C097.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuinfra.endpoint.engine import EngineFacts
from pytest_gpuinfra.endpoint.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Acceptance:
    """
    How drafts fared. None where it is not known.

    Attributes:
        drafts: Verifications, each of one draft.
        draft_tokens: Tokens proposed.
        accepted_tokens: Of these, accepted.
        accept_length: Mean tokens per verification by the engine's own word, the certain one included.
        accept_rate: Accepted by proposed by the engine's own word, 0 to 1.
        source: Where it stands.
    """

    drafts: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    accept_length: float | None = None
    accept_rate: float | None = None
    source: str = ""

    @property
    def rate(self) -> float | None:
        """Accepted by proposed, 0 to 1: by count, else by the engine's word."""
        if self.draft_tokens and self.accepted_tokens is not None:
            return self.accepted_tokens / self.draft_tokens
        return self.accept_rate

    @property
    def mean_length(self) -> float | None:
        """Mean tokens per verification, the certain one included: 1 + accepted / drafts, else by its word."""
        if self.drafts and self.accepted_tokens is not None:
            return 1.0 + self.accepted_tokens / self.drafts
        return self.accept_length

    @property
    def known(self) -> bool:
        """Whether anything at all is known."""
        return any(
            value is not None
            for value in (
                self.drafts,
                self.draft_tokens,
                self.accepted_tokens,
                self.accept_length,
                self.accept_rate,
            )
        )


@dataclass(frozen=True, slots=True)
class SpeculationCounters:
    """
    One reading of an engine's counters.

    Attributes:
        engine: Engine and its account; info.speculates is its own word on whether speculation is configured.
        acceptance: Counters since the server's start.
        generated_tokens: Tokens generated since its start; None if it does not count them.
        requests: Requests ended since its start; None if it does not count them.
    """

    engine: EngineFacts
    acceptance: Acceptance
    generated_tokens: float | None = None
    requests: float | None = None


def speculation_from(engine: EngineFacts, metrics: Metrics | None) -> SpeculationCounters:
    """Read the counters of any engine out of its metrics and its account."""
    if metrics is None:
        told = Acceptance(accept_length=engine.info.accept_length, source="the engine's own account")
        return SpeculationCounters(engine, told)
    if metrics.has_prefix("sglang:"):
        return _sglang(engine, metrics)
    for prefix in ("vllm:", "llamacpp:"):
        if metrics.has_prefix(prefix):
            return SpeculationCounters(
                engine,
                Acceptance(
                    drafts=metrics.total(f"{prefix}spec_decode_num_drafts_total"),
                    draft_tokens=metrics.total(f"{prefix}spec_decode_num_draft_tokens_total"),
                    accepted_tokens=metrics.total(f"{prefix}spec_decode_num_accepted_tokens_total"),
                    source=metrics.path,
                ),
                generated_tokens=metrics.total(
                    f"{prefix}generation_tokens_total" if prefix == "vllm:" else f"{prefix}tokens_predicted_total"
                ),
            )
    return SpeculationCounters(engine, Acceptance())


def _sglang(engine: EngineFacts, metrics: Metrics) -> SpeculationCounters:
    """
    Read SGLang's counters.

    It counts verifications, and neither drafts nor accepted tokens. But each request's first token comes
    with the prompt, and each verification gives one certain token, so
    accepted = generated - requests - verifications. Each is of speculative_num_draft_tokens - 1 proposals.
    """
    verified = metrics.total("sglang:spec_verify_calls_total")
    generated = metrics.total("sglang:generation_tokens_total")
    requests = metrics.total("sglang:num_requests_total")
    accepted = None
    if verified is not None and generated is not None and requests is not None:
        accepted = max(0.0, generated - requests - verified) if verified else 0.0
    width = engine.info.speculative_draft_tokens or metrics.gauge("sglang:spec_num_draft_tokens")
    return SpeculationCounters(
        engine,
        Acceptance(
            drafts=verified,
            draft_tokens=verified * (width - 1) if verified is not None and width else None,
            accepted_tokens=accepted,
            accept_length=metrics.gauge("sglang:spec_accept_length") or engine.info.accept_length,
            accept_rate=metrics.gauge("sglang:spec_accept_rate"),
            source=metrics.path,
        ),
        generated_tokens=generated,
        requests=requests,
    )


def difference(before: SpeculationCounters, after: SpeculationCounters) -> Acceptance | None:
    """
    Give what happened between two readings.

    Returns:
        None if a counter fell: the server was restarted in between. Lengths and rates by the engine's own
        word are those of the second reading.
    """
    old, new = before.acceptance, after.acceptance
    drafts = grown(old.drafts, new.drafts)
    tokens = grown(old.draft_tokens, new.draft_tokens)
    accepted = grown(old.accepted_tokens, new.accepted_tokens)
    generated = grown(before.generated_tokens, after.generated_tokens)
    if any(value is not None and value < 0 for value in (drafts, tokens, generated)):
        return None
    requests = grown(before.requests, after.requests)
    if after.engine.name == "SGLang" and drafts and generated is not None and requests is not None:
        accepted = max(0.0, generated - requests - drafts)
    return Acceptance(drafts, tokens, accepted, new.accept_length, new.accept_rate, new.source)


@dataclass(frozen=True, slots=True)
class SpeculationRun:
    """
    Speculation around requests of our own.

    Attributes:
        before: Counters before the first request.
        after: Counters after the last one.
        requests: Requests that had an answer.
        tokens: Tokens of these answers, by the server's count.
        failures: Why other requests had none; empty if all had.
    """

    before: SpeculationCounters
    after: SpeculationCounters
    requests: int
    tokens: int
    failures: tuple[str, ...] = ()

    @property
    def acceptance(self) -> Acceptance | None:
        """What happened in between; None if the server was restarted."""
        return difference(self.before, self.after)


def grown(old: float | None, new: float | None) -> float | None:
    """Give what a counter has grown by; one that was not there before counts from 0; None if it is not there."""
    if new is None:
        return None
    return new - (old or 0.0)
