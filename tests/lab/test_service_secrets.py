"""Secrets in the files, arguments, environment and journal of a real service: none leaves the target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_gpuinfra.fixtures.suites import suites_path
from pytest_gpuinfra.on_target.probe.probe_names import MASK
from pytest_gpuinfra.record.recording import RecordedHost, Recording, write_recording
from tests.plugin.conftest import judge_recording
from tests.report.masked_forms import S
from tests.report.test_masked_places import LINES, WORDS, found_in

from .nspawn import NspawnHost
from .service_lab import DROP_IN, DROP_IN_TEXT, PROGRAM, UNIT, ServiceLab

pytestmark = pytest.mark.lab
ASSIGNED = [word for word in WORDS if "=" in word.split("/")[0] and not word.startswith("-")]


def test_no_secret_of_a_service_leaves_the_target(booted_lab_host: NspawnHost, tmp_path: Path) -> None:
    """Unit file, drop-in, EnvironmentFile, command line, environment and journal; masked there, and in the report."""
    lab = ServiceLab(booted_lab_host, tmp_path)
    lab.prepare()
    arguments = " ".join(word.replace("%", "%%").replace("$", "$$") for word in [*WORDS, "--api-key", S])
    unit = lab.inside(f"cat {UNIT}").replace(f"{PROGRAM} ", f"{PROGRAM} {arguments} ", 1)
    lab.inside(f"sed -i 's/parse_args()/parse_known_args()[0]/' {PROGRAM}")
    lab.write(UNIT, unit + "".join(f"# {line}\n" for line in LINES))
    quoted = [word.replace("%", "%%") for word in ASSIGNED]
    settings = "".join(f'Environment="{word}" "NCCL_X{n}={word}"\n' for n, word in enumerate(quoted))
    lab.write(DROP_IN, DROP_IN_TEXT + settings)
    lab.write("/etc/default/infer", "OMP_NUM_THREADS=4\n" + "".join(f"NCCL_Y{n}={w}\n" for n, w in enumerate(ASSIGNED)))
    lab.restart()
    for line in LINES:
        lab.log(line)
    assert found_in(lab.inside("cat /proc/$(systemctl show -P MainPID infer)/cmdline | tr '\\0' ' '"))
    spec = lab.spec()
    capture = lab.capture(spec, "lab")
    sent = json.dumps(capture.to_json())
    assert found_in(sent) == []
    assert sent.count(MASK) > 100
    recorded = {"lab": RecordedHost(spec.model_dump(mode="json", exclude_defaults=True), capture)}
    write_recording(tmp_path / "r.json", Recording(recorded, [], "", ""))
    suites = [str(suites_path() / "serving" / name) for name in ("test_service_unit.py", "test_service_drift.py")]
    judged = judge_recording(tmp_path, "r.json", *suites, "-l", "-rA", "-vv")
    assert judged.of_host("lab").ended("passed", "failed")
    assert found_in(judged.output) == []
