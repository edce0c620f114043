"""A service compared with the user's copies, and with itself: what runs, what systemd holds, what is on disk."""

from __future__ import annotations

from pytest_gpuinfra.errors import FactUnavailable
from pytest_gpuinfra.inventory.service import ServiceExpectation
from pytest_gpuinfra.subjects.service.drift import (
    Drift,
    diff_settings,
    diff_texts,
    find_argument,
    masked_alone,
    masked_lines,
    newer_than,
)
from pytest_gpuinfra.subjects.service.facts import ServiceFacts
from pytest_gpuinfra.subjects.service.process import ServiceProcess
from pytest_gpuinfra.subjects.service.unit_file import UnitFile


def compare_unit_file(service: ServiceFacts, expect: ServiceExpectation) -> Drift:
    """Compare the unit file on disk with the user's copy."""
    unit = service.files[0]
    if not unit.text:
        raise FactUnavailable(unit.path, "systemd names it, and it is not there any more")
    names = (f"expected: {expect.unit_file or 'unit_file_text'}", f"deployed: {unit.path}")
    expected = expect.unit_file_text or ""
    _require_comparable(expected, unit.text, unit.path)
    return Drift("unit file", diff_texts(expected, unit.text, *names), masked=masked_lines(expected, unit.text))


def _require_comparable(expected: str, observed: str, path: str) -> None:
    """
    Tell apart what differs, and what nobody can tell because it is masked on one side.

    Raises:
        FactUnavailable: The texts differ in nothing but values that are masked on one side.
    """
    if masked_alone(expected, observed):
        raise FactUnavailable(
            path,
            "it differs from the user's copy only in values that are masked on one side, so it cannot be compared",
            remedy="keep secrets out of the unit: LoadCredential=, or an EnvironmentFile= that only root reads",
        )


def compare_drop_ins(service: ServiceFacts, expect: ServiceExpectation) -> Drift:
    """Compare the drop-ins on disk with the user's copies; one that nobody keeps a copy of is a difference."""
    diffs, reasons, unknown = [], [], []
    masked = 0
    found = {file.name: file for file in service.drop_ins}
    for name in sorted({*found, *expect.drop_in_texts}):
        file, text = found.get(name), expect.drop_in_texts.get(name)
        if text is None:
            reasons.append(f"{file.path if file else name} is expected by nobody")
        elif file is None:
            reasons.append(f"drop-in {name} is missing")
        observed = (file.text, f"deployed: {file.path}") if file else ("", "deployed: nothing")
        expected = (text or "", f"expected: {expect.drop_ins.get(name, 'nothing')}")
        masked += masked_lines(expected[0], observed[0])
        if file is not None and masked_alone(expected[0], observed[0]):
            unknown.append((expected[0], observed[0], file.path))
        else:
            diffs.append(diff_texts(expected[0], observed[0], expected[1], observed[1]))
    if not reasons and not any(diffs):
        for one in unknown:
            _require_comparable(*one)
    return Drift("drop-ins", "\n".join(diff for diff in diffs if diff), tuple(reasons), masked)


def compare_with_systemd(service: ServiceFacts) -> Drift:
    """Compare what systemd holds with the files on disk, those in directories that it does not know included."""
    state = service.state
    reasons = []
    if state.values.get("NeedDaemonReload") == "yes":
        reasons.append("systemd says that a reload is pending (a file is newer than what it read)")
    reasons += [f"systemd has not read {path}" for path in service.unloaded]
    reasons += [f"systemd still holds {path}, which is gone" for path in service.gone]
    if "NeedDaemonReload" not in state.values:
        raise FactUnavailable(state.source, "it shows no NeedDaemonReload")
    if not reasons:
        return Drift("systemd and its files", "")
    diff = diff_settings(
        _command(service.settings),
        state.commands[-1] if state.commands else (),
        (service.settings.environment, state.environment),
        ("files on disk", "held by systemd"),
    )
    return Drift("systemd and its files", diff or "no difference in command and environment", tuple(reasons))


def compare_with_process(service: ServiceFacts) -> Drift:
    """Compare the running main process with what it would be started from now."""
    replaced = {process.executable for process in service.processes if process.replaced}
    reasons = (
        *(f"{path} was replaced or removed after it was started" for path in sorted(replaced)),
        *newer_than(service.main_started_at, service.changed_at),
    )
    if not reasons:
        return Drift("process and its files", "")
    main = service.main
    written = {**service.settings.environment}
    for layer in reversed(service.layers):
        if layer.name == "environment file":
            written |= layer.values
    running = {name: main.environment.values.get(name) for name in written} if main.environment else {}
    diff = diff_settings(
        _command(service.settings),
        main.argv,
        (written, {name: value for name, value in running.items() if value is not None}),
        ("files on disk", f"running process {main.pid}"),
    )
    return Drift("process and its files", diff or "no difference in command and environment", reasons)


def seen_argument(service: ServiceFacts, name: str) -> tuple[str | bool, ServiceProcess]:
    """
    Give an argument of the service, and the process whose command line shows it.

    Raises:
        FactUnavailable: A title overwrote the main process's command line.
    """
    main = service.main
    if main.renamed:
        raise FactUnavailable(
            f"/proc/{main.pid}/cmdline", f"a title overwrote it: {main.title!r}", remedy="ask the engine's server info"
        )
    return find_argument(main.argv, name), main


def _command(unit: UnitFile) -> tuple[str, ...]:
    return unit.commands[-1] if unit.commands else ()
