"""What Allure shows of an item about a host: where it is filed, its title, its harm, its history, its evidence."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Generator
from typing import Any

import allure_commons
import pytest
from allure_commons.logger import AllureFileLogger
from allure_commons.model2 import ATTACHMENT_PATTERN, Attachment, Label, Parameter, StatusDetails
from allure_commons.types import AttachmentType

from pytest_gpuinfra.capture.evidence import Evidence
from pytest_gpuinfra.fixtures.endings import OBSERVING
from pytest_gpuinfra.host.host import GpuHost
from pytest_gpuinfra.report.allure_files import category_of, is_flaky
from pytest_gpuinfra.report.endpoint_picture import draw_endpoint, figures_of
from pytest_gpuinfra.report.identity import Identity, identify
from pytest_gpuinfra.report.masked import shown_of
from pytest_gpuinfra.report.pair_matrix import PairMatrix, matrix_of
from pytest_gpuinfra.report.pair_picture import draw
from pytest_gpuinfra.session.items import Target
from pytest_gpuinfra.session.session import Session
from pytest_gpuinfra.session.stash import OBSERVED, target_of
from pytest_gpuinfra.subjects.transfers.pair import DirectedPair
from pytest_gpuinfra.visible import visible_json

_PIECES = 24
"""Pieces of evidence of one item that Allure shows; the names of others are told."""

_PICTURES = 16
"""Failed pairs of one host that carry the picture of all pairs; the first pair of each test carries it anyway."""


class MaskedFiles(AllureFileLogger):
    """Writes Allure's files with secrets masked, and no file that says nothing."""

    def __init__(self, original: AllureFileLogger, session: Session) -> None:
        super().__init__(original._report_dir)  # type: ignore[no-untyped-call]
        self._mask = shown_of(session)

    def _report_item(self, item: Any) -> None:
        _mask_object(item, self._mask.text)
        super()._report_item(item)  # type: ignore[no-untyped-call]

    @allure_commons.hookimpl
    def report_container(self, container: Any) -> None:
        """
        Write what a fixture attached or did in steps.

        Allure gives every fixture of every test a file; eight times as many as there are results, and all but these
        say no more than the fixture's name. Why a fixture failed stands in the result itself.
        """
        if any(part.steps or part.attachments for part in (*container.befores, *container.afters)):
            super().report_container(container)  # type: ignore[no-untyped-call]

    @allure_commons.hookimpl
    def report_attached_data(self, body: str | bytes, file_name: str) -> None:
        """Write an attachment; one that is no UTF-8 text is written as it is."""
        try:
            text = body if isinstance(body, str) else body.decode("utf-8")
        except UnicodeDecodeError:
            super().report_attached_data(body, file_name)  # type: ignore[no-untyped-call]
            return
        super().report_attached_data(self._mask.text(text), file_name)  # type: ignore[no-untyped-call]


def _mask_object(value: Any, mask: Any) -> Any:
    """Mask the texts of Allure's objects, in place."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, list):
        value[:] = [_mask_object(part, mask) for part in value]
    elif hasattr(value, "__attrs_attrs__"):
        for field in value.__attrs_attrs__:
            old = getattr(value, field.name)
            if isinstance(old, (str, list)) or hasattr(old, "__attrs_attrs__"):
                setattr(value, field.name, _mask_object(old, mask))
    return value


class AllurePlugin:
    """Files every item about a host under its host, in words, with ids of our own."""

    def __init__(self, config: pytest.Config, session: Session) -> None:
        self._config = config
        self._session = session
        self._pictured: dict[str, int] = {}
        self._matrices: dict[str, PairMatrix | None] = {}
        self._mask = shown_of(session).text

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Put the writer that masks in the place of Allure's own."""
        plugins = allure_commons.plugin_manager
        for original in [plugin for plugin in plugins.get_plugins() if type(plugin) is AllureFileLogger]:
            masked = MaskedFiles(original, self._session)
            plugins.unregister(original)
            plugins.register(masked)

            def back(masked: MaskedFiles = masked, original: AllureFileLogger = original) -> None:
                plugins.unregister(masked)
                plugins.register(original)

            self._config.add_cleanup(back)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Give the ending in our words, and what a test's body could not observe as broken."""
        report = yield
        result = self._result()
        if target_of(item) is None or result is None or not report.failed:
            return report
        if report.when == OBSERVING:
            result.status = "broken"
        lines = report.longreprtext.splitlines() or [""]
        result.statusDetails = StatusDetails(message=_brief(lines), trace=report.longreprtext)
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        """File the item, and attach what was read for it."""
        target, result = target_of(item), self._result()
        if target is None or result is None:
            return (yield)
        host = self._session.hosts[target.host]
        identity = identify(item, target, host.expect)
        self._label(result, target, identity)
        self._attach_evidence(result, item.stash.get(OBSERVED, []))
        self._draw(item, target, host, result)
        self._draw_endpoint(item, host, result)
        try:
            return (yield)
        finally:
            result.fullName, result.testCaseId, result.historyId = (
                identity.full_name,
                identity.test_case,
                identity.history,
            )
            result.titlePath = [target.host, identity.area, identity.file]
            result.parameters = [Parameter(name="host", value=target.host)]
            if identity.subject:
                result.parameters.append(Parameter(name="about", value=identity.subject))
            result.labels = [label for label in result.labels if label.name not in ("host", "package")]
            result.labels += [Label("host", target.host), Label("package", f"{identity.area}.{identity.file}")]

    def _result(self) -> Any:
        listener = self._config.pluginmanager.get_plugin("allure_listener")
        return listener.allure_logger.get_test(None) if listener is not None else None

    def _label(self, result: Any, target: Target, identity: Identity) -> None:
        result.name = identity.title
        result.description = identity.description
        details = result.statusDetails.trace if result.statusDetails else ""
        labels = {
            "parentSuite": target.host,
            "suite": identity.area,
            "subSuite": identity.file,
            "severity": identity.severity,
            "target": target.host,
        }
        if result.status in ("failed", "broken"):
            labels["trouble"] = category_of(result.status, identity.full_name, details or "")
            if result.status == "failed" and result.statusDetails and is_flaky(identity.full_name):
                result.statusDetails.flaky = True
        result.labels = [label for label in result.labels if label.name not in labels]
        result.labels += [Label(name, value) for name, value in labels.items()]

    def _attach_evidence(self, result: Any, pieces: list[Evidence]) -> None:
        for piece in pieces[:_PIECES]:
            kind, text = AttachmentType.TEXT, piece.text
            if text.lstrip()[:1] in ("{", "["):
                with contextlib.suppress(ValueError, RecursionError):
                    text = visible_json(json.dumps(json.loads(text), indent=1, ensure_ascii=False))
                    kind = AttachmentType.JSON
            self._attach(result, piece.name, text, kind)
        if len(pieces) > _PIECES:
            left = "\n".join(piece.name for piece in pieces[_PIECES:])
            name = f"{len(pieces) - _PIECES} more pieces, left out here"
            self._attach(result, name, f"The recording has them:\n{left}", AttachmentType.TEXT)

    def _attach(self, result: Any, name: str, text: str, kind: AttachmentType) -> None:
        """Attach a text as a file of its own: Allure links a file once, and xdist's workers write beside each other."""
        file = ATTACHMENT_PATTERN.format(prefix=uuid.uuid4(), ext=kind.extension)
        allure_commons.plugin_manager.hook.report_attached_data(body=self._mask(text), file_name=file)
        result.attachments.append(Attachment(source=file, name=name, type=kind.mime_type))

    def _draw(self, item: pytest.Item, target: Target, host: GpuHost, result: Any) -> None:
        """Attach the picture of all pairs to the first pair of each test, and to the first that failed."""
        if not isinstance(target.value, DirectedPair) or result.status == "skipped":
            return
        wrong = result.status in ("failed", "broken")
        count = self._pictured.get(host.alias, 0)
        first = list(host.computing_gpus[:2]) == [target.value.src, target.value.dst]
        if not first and not (wrong and count < _PICTURES):
            return
        self._pictured[host.alias] = count + (1 if wrong else 0)
        if host.alias not in self._matrices:
            self._matrices[host.alias] = matrix_of(host.gathered())
        matrix = self._matrices[host.alias]
        if matrix is not None:
            name = f"all pairs of {host.alias}"
            self._attach(result, name, draw(matrix, name), AttachmentType.SVG)

    def _draw_endpoint(self, item: pytest.Item, host: GpuHost, result: Any) -> None:
        """Attach the picture of the endpoint to the checks of its readiness and its speed."""
        if result.status == "skipped" or item.path.stem not in ("test_endpoint_ready", "test_endpoint_speed"):
            return
        figures = figures_of(host.gathered())
        if figures is not None:
            name = f"endpoint of {host.alias}"
            self._attach(result, name, draw_endpoint(figures, name), AttachmentType.SVG)


def _brief(lines: list[str]) -> str:
    """Give the message of four parts as Allure's message, without the trace."""
    kept = [line for line in lines[:12] if line.strip()]
    crash = [line.removeprefix("E").strip() for line in lines if line.startswith("E ")]
    return "\n".join(crash[:6] or kept)
