"""Secrets are taken out of every item's report before it reaches terminal, JUnit, Allure or recording."""

from __future__ import annotations

import io
import os
from collections.abc import Generator, Iterator
from functools import lru_cache
from typing import TextIO

import pytest

from pytest_gpuinfra.masking import Masker, masked_values, secrets_of_address
from pytest_gpuinfra.report.escaped import Shown
from pytest_gpuinfra.session.session import Session


def masker_of(session: Session) -> Masker:
    """Give the masker of a run: it knows the endpoints' API keys, and the passwords of their addresses, by value."""
    keys = [os.environ.get(name, "") for name in session.key_variables]
    return Masker(keys + [secret for address in session.endpoint_addresses for secret in secrets_of_address(address)])


def shown_of(session: Session) -> Shown:
    """Give what makes a run's texts such as people may see."""
    return Shown(masker_of(session))


class MaskedStream(io.TextIOBase):
    """A terminal's stream that masks what goes through it; each write is a whole text."""

    def __init__(self, inner: TextIO, masker: Masker) -> None:
        super().__init__()
        self._inner = inner
        self._masker = masker

    def write(self, text: str) -> int:
        """Write a text, masked."""
        self._inner.write(self._masker.text(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream below."""
        self._inner.flush()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The stream's encoding: rich draws in ASCII where it has to."""
        return self._inner.encoding


class MaskedReports:
    """Masks the reports of a session that is about hosts."""

    def __init__(self, session: Session) -> None:
        self._shown = lru_cache(1024)(shown_of(session).text)
        self._values: dict[str, Masker] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Mask message, properties and captured output; of every item of the session, whatever it is about."""
        report = yield
        if call.excinfo is not None:
            self._values = {item.nodeid: Masker(secrets_of_frames(call.excinfo))}
        self._mask(report)
        return report

    def _text(self, text: str) -> str:
        for masker in self._values.values():
            text = masker.known(text)
        return self._shown(text)

    def _mask(self, report: pytest.TestReport) -> None:
        if report.nodeid not in self._values:
            self._values = {}
        if isinstance(report.longrepr, tuple):
            path, line, reason = report.longrepr
            report.longrepr = (path, line, self._text(reason))
        elif report.longrepr is not None:
            text = report.longreprtext
            masked = self._text(text)
            crash = getattr(report.longrepr, "reprcrash", None)
            if crash is not None:
                crash.message = self._text(crash.message)
            if masked != text or isinstance(report.longrepr, str):
                report.longrepr = masked
        report.sections = [(name, self._text(text)) for name, text in report.sections]
        report.user_properties = [
            (name, self._text(value) if isinstance(value, str) else value) for name, value in report.user_properties
        ]


_LOCALS = 1 << 20
"""Characters of local variables that are looked at, of one failure."""


def secrets_of_frames(failure: pytest.ExceptionInfo[BaseException]) -> set[str]:
    """
    Give what is masked in the local variables of a failed test and of what it called, and in its exception.

    pytest shows variables and comparisons in pieces, one line of a text in quotes below the other, in which names and
    values stand apart; so they are masked by value there.
    """
    found: set[str] = set()
    left = _LOCALS
    for text in _texts([*(entry.frame.f_locals for entry in failure.traceback), failure.value.args]):
        left -= len(text)
        if left < 0:
            break
        found.update(masked_values(text))
    return found


def _texts(root: object) -> Iterator[str]:
    """Give the texts in variables, also in lists and mappings of them."""
    waiting: list[tuple[object, int]] = [(root, 0)]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, str):
            yield value
        elif depth < _DEPTH and isinstance(value, dict):
            waiting += [(inner, depth + 1) for inner in value.values()]
        elif depth < _DEPTH and isinstance(value, (list, tuple, set, frozenset)):
            waiting += [(inner, depth + 1) for inner in value]


_DEPTH = 6
