"""Secrets are taken out of every item's report before it reaches terminal, JUnit, Allure or recording."""

from __future__ import annotations

import io
import os
from collections.abc import Generator
from functools import lru_cache
from typing import TextIO

import pytest

from pytest_gpuinfra.masking import Masker, secrets_of_address
from pytest_gpuinfra.report.escaped import Shown
from pytest_gpuinfra.session.run import Run


def masker_of(run: Run) -> Masker:
    """Give the masker of a run: it knows the endpoints' API keys, and the passwords of their addresses, by value."""
    keys = [os.environ.get(name, "") for name in run.key_variables]
    return Masker(keys + [secret for address in run.endpoint_addresses for secret in secrets_of_address(address)])


def shown_of(run: Run) -> Shown:
    """Give what makes a run's texts such as people may see."""
    return Shown(masker_of(run))


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

    def __init__(self, run: Run) -> None:
        self._text = lru_cache(1024)(shown_of(run).text)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Mask message, properties and captured output; of every item of the session, whatever it is about."""
        report = yield
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
        return report
