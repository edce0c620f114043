"""
Prometheus text of an inference server.

Source: Prometheus text exposition format 0.0.4 and 1.0.0; case C091 (TensorRT-LLM answers /metrics with JSON
and has its text at /prometheus/metrics).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pytest_gpuinfra.errors import ParseError
from pytest_gpuinfra.wire import text_lines

PATHS = ("/metrics", "/prometheus/metrics")
"""Where the text may be, in the order in which it is looked for."""

MAX_LINE = 16384
MAX_SAMPLES = 100_000

_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*(?:#\s.*)?")
_LABEL = re.compile(r'\s*([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


@dataclass(frozen=True, slots=True)
class Sample:
    """
    One line of a metrics text.

    Attributes:
        name: Series, verbatim.
        labels: Its labels.
        value: Value; may be NaN or infinite.
    """

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Metrics:
    """
    One metrics text.

    Attributes:
        samples: Its lines, in order; may be empty.
        path: Where it was found.
    """

    samples: tuple[Sample, ...]
    path: str = "/metrics"

    def named(self, name: str) -> tuple[Sample, ...]:
        """Give the samples of exactly this series: never those whose name only begins with it."""
        return tuple(sample for sample in self.samples if sample.name == name)

    def total(self, name: str) -> float | None:
        """Give the sum of a counter over its label sets (engines, finish reasons); None if absent or not finite."""
        return _finite(sum(sample.value for sample in found)) if (found := self.named(name)) else None

    def gauge(self, name: str) -> float | None:
        """Give a gauge that ranks repeat: the lowest, never the sum; None if it is absent, or one is not finite."""
        found = [_finite(sample.value) for sample in self.named(name)]
        return min((value for value in found if value is not None), default=None) if None not in found else None

    def has_prefix(self, prefix: str) -> bool:
        """Whether any series begins so ("sglang:")."""
        return any(sample.name.startswith(prefix) for sample in self.samples)

    def label(self, name: str) -> str | None:
        """Give a label's value where all samples that carry it agree; None if none does, or they differ."""
        values = {sample.labels[name] for sample in self.samples if name in sample.labels}
        return values.pop() if len(values) == 1 else None


def parse_metrics(text: str, path: str = "/metrics") -> Metrics:
    """
    Read a metrics text.

    Raises:
        ParseError: A line that is neither a comment nor a sample, as JSON is; a line or a text beyond all bounds.
    """
    samples: list[Sample] = []
    for number, line in enumerate(text_lines(text), 1):
        stripped = line.strip()
        if len(stripped) > MAX_LINE or len(samples) >= MAX_SAMPLES:
            raise ParseError(path, number, stripped[:200], f"longer than {MAX_SAMPLES} lines of {MAX_LINE} characters")
        if stripped and not stripped.startswith("#"):
            samples.append(_sample(path, number, stripped))
    return Metrics(tuple(samples), path)


def pick_metrics(answers: Iterable[tuple[str, int, str]]) -> Metrics | None:
    """
    Take the first of several answers that is a metrics text with at least one sample.

    Args:
        answers: Path, HTTP status and body of each.

    Returns:
        None if none is one: then nothing is known, which is not the same as zero.
    """
    for path, status, text in answers:
        if status != 200:
            continue
        try:
            metrics = parse_metrics(text, path)
        except ParseError:
            continue
        if metrics.samples:
            return metrics
    return None


def _sample(path: str, number: int, line: str) -> Sample:
    found = _LINE.fullmatch(line)
    if found is None:
        raise ParseError(path, number, line, "no sample of a metrics text")
    name, labels, value = found.groups()
    try:
        return Sample(name, _labels(labels or ""), float(value))
    except ValueError:
        raise ParseError(path, number, line, "labels or value are not readable") from None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    at = 0
    while at < len(text.rstrip()):
        found = _LABEL.match(text, at)
        if found is None:
            raise ValueError(text)
        labels[found[1]] = re.sub(r"\\.", lambda escape: _ESCAPES.get(escape[0], escape[0]), found[2])
        at = found.end()
    return labels
