"""Container, unit and drift on a real systemd in a real container: passing, failing, and ERROR, one fault at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest

from pytest_gpuinfra.capture.capture import Capture
from pytest_gpuinfra.fixtures.suites import suites_path
from pytest_gpuinfra.inventory.inventory import HostSpec
from pytest_gpuinfra.record.recording import RecordedHost, Recording, write_recording
from tests.plugin.conftest import HostOutcomes, Judged, judge_recording

from .fault_run import PROPERTY
from .image import LabError
from .nspawn import NspawnHost
from .proofs import SERVICE, holds, wait_until_held
from .service_faults import FAULTS
from .service_lab import ServiceLab

pytestmark = pytest.mark.lab
SUITES = ("test_container_state.py", "test_service_unit.py", "test_service_drift.py")


BY_THE_LAB = "service_is_not_started_again_and_again[]"
"""What the lab itself does between two faults."""


def alias(name: str) -> str:
    """Make a host's alias of a fault's name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def captured_with(name: str, lab: ServiceLab, spec: HostSpec) -> Capture:
    """Bring about a fault, and take a capture before and after which it holds: a unit flaps for seconds only."""
    for _ in range(5):
        FAULTS[name].inject(lab)
        wait_until_held(name, SERVICE[name], lab)
        capture = lab.capture(spec, alias(name))
        if holds(SERVICE[name], lab):
            return capture
        lab.restore()
    raise LabError(f"the fault {name!r} held for no capture")


@pytest.fixture(scope="module")
def judged(booted_lab_host: NspawnHost, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """Bring about each fault on a prepared host, take one capture of it, and judge all of them in one run."""
    folder = tmp_path_factory.mktemp("service")
    lab = ServiceLab(booted_lab_host, folder)
    recorded = {}
    lab.prepare()
    for name in ("healthy", *FAULTS):
        spec = lab.spec(alias(name))
        capture = lab.capture(spec, alias(name)) if name == "healthy" else captured_with(name, lab, spec)
        assert capture.round_trips == 1
        recorded[alias(name)] = RecordedHost(spec.model_dump(mode="json", exclude_defaults=True), capture)
        if name != "healthy" and FAULTS[name].lasting:
            lab.prepare()
        elif name != "healthy":
            lab.restore()
    write_recording(folder / "faults.json", Recording(recorded))
    paths = [str(suites_path() / "serving" / name) for name in SUITES]
    return judge_recording(folder, "faults.json", *paths)


def ended(outcomes: HostOutcomes, *kinds: str) -> list[str]:
    """Give the items that ended so, without "test_"."""
    return [name.removeprefix("test_") for name in outcomes.ended(*kinds)]


def is_of(name: str, patterns: Sequence[str]) -> bool:
    """Tell whether an item is one of those named, "x[*]" standing for all targets of x."""
    return any(name == p or (p.endswith("[*]") and name.startswith(p[:-2])) for p in patterns)


def test_healthy_container_and_service_have_nothing_wrong_and_nothing_unknown(judged: Judged) -> None:
    """Everything that the inventory expects is seen to be right."""
    outcomes = judged.of_host("healthy")
    messages = [outcomes.messages[name] for name in outcomes.ended("failed", "error")]
    assert messages == []
    assert len(outcomes.ended("passed")) > 35


@pytest.mark.parametrize("name", FAULTS)
def test_fault_fails_its_checks_and_no_other(name: str, judged: Judged, request: pytest.FixtureRequest) -> None:
    """Exactly the checks that are meant for a fault fail, and exactly those that it hides are ERROR."""
    outcomes, fault = judged.of_host(alias(name)), FAULTS[name]
    wrong, unknown = ([one for one in ended(outcomes, kind) if one != BY_THE_LAB] for kind in ("failed", "error"))
    shown = "\n".join(outcomes.messages[f"test_{one}"] for one in [*wrong, *unknown])
    hidden = [one for one in ended(outcomes, "failed", "error", "passed") if is_of(one, fault.unknown)]
    row = {
        "fault": name,
        "expected": {**dict.fromkeys(hidden, "error"), **dict.fromkeys(fault.failed, "failed")},
        "observed": {**dict.fromkeys(unknown, "error"), **dict.fromkeys(wrong, "failed")},
    }
    request.node.user_properties.append((PROPERTY, json.dumps(row)))
    assert wrong == sorted(fault.failed), shown
    assert [one for one in unknown if not is_of(one, fault.unknown)] == [], shown
    assert [p for p in fault.unknown if not any(is_of(one, [p]) for one in unknown)] == [], shown
    for words in fault.says:
        assert words in shown


def test_host_and_container_come_in_one_round_trip(lab_host: NspawnHost) -> None:
    """The plugin's own run counts it."""
    lab = ServiceLab(lab_host, lab_host.folder)
    lab.prepare()
    capture = lab.capture(lab.spec(), "lab")
    assert capture.round_trips == 1
    assert capture.node("inside_boot")["boot_id"].text != capture.node("boot")["boot_id"].text
    assert capture.took_s < 10
