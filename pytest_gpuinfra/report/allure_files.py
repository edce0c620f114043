"""Allure's files about the whole run: environment, executor, categories."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytest_gpuinfra import __version__
from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.host.facts import HostFacts
from pytest_gpuinfra.inventory.inventory import HostSpec
from pytest_gpuinfra.report.escaped import readable
from pytest_gpuinfra.report.masked import shown_of
from pytest_gpuinfra.report.pair_matrix import cuda_program
from pytest_gpuinfra.session.session import Session

CATEGORIES = (
    ("Transfer corrupt", "failed"),
    ("Hang", "failed"),
    ("Drift", "failed"),
    ("Endpoint", "failed"),
    ("Wrong fact", "failed"),
    ("Unknown: could not be observed", "broken"),
)
"""Kinds of trouble, in the order in which they are tried; Allure shows them as its categories."""
FLAKY = "Flaky: passes and fails by turns"
"""The category of what failed now and passed before, by the report's history, or disagreed with itself in one run."""

_HANG = re.compile(r"(?i): hang\b|\bhangs?\b.*\bsilent|did not end within|hung (?:task|up|for)|deadline|: hang:")


def category_of(status: str, full_name: str, details: str) -> str:
    """Give the kind of trouble of an item that failed or broke."""
    observed = details.partition("observed:")[2].partition("\n  expected:")[0] or details
    if status == "broken":
        return "Unknown: could not be observed"
    if _HANG.search(observed):
        return "Hang"
    if re.search(r"test_(single_gpu|peer_copies|all_reduce)", full_name) and not re.search("bandwidth|fast", full_name):
        return "Transfer corrupt"
    if re.search(r"test_(service_drift|baseline)", full_name):
        return "Drift"
    if "test_endpoint" in full_name:
        return "Endpoint"
    return "Wrong fact"


def is_flaky(full_name: str) -> bool:
    """Tell whether a check that failed has shown in itself that the same thing ends differently from time to time."""
    return "repeats_are_identical" in full_name


def write_allure_files(directory: Path, session: Session, environ: Mapping[str, str]) -> None:
    """Write environment.properties, executor.json and categories.json beside the results."""
    directory.mkdir(parents=True, exist_ok=True)
    mask = shown_of(session).text
    lines = "".join(
        f"{name.replace(' ', '_')}={_escaped(mask(value))}\n" for name, value in environment_of(session).items()
    )
    (directory / "environment.properties").write_text(lines, encoding="utf-8")
    executor = executor_of(environ)
    if executor:
        (directory / "executor.json").write_text(json.dumps(executor, indent=1) + "\n", encoding="utf-8")
    (directory / "categories.json").write_text(json.dumps(categories(), indent=1) + "\n", encoding="utf-8")


def categories() -> list[dict[str, Any]]:
    """Give the kinds of trouble, and what belongs to each, as Allure's categories.json has them."""
    found: list[dict[str, Any]] = [
        {"name": name, "matchers": [{"statuses": [status], "labels": {"trouble": name}}], "matchedStatuses": [status]}
        for name, status in CATEGORIES
    ]
    both = ["failed", "broken"]
    flaky = {"name": FLAKY, "matchers": [{"statuses": both, "flaky": True}], "matchedStatuses": both, "flaky": True}
    found.insert(2, flaky)
    return found


def environment_of(session: Session) -> dict[str, str]:
    """Give what a reader must know of each host; what could not be observed says so."""
    found: dict[str, str] = {"pytest-gpuinfra": __version__, "controller": f"Python {platform.python_version()}"}
    found["level"] = session.settings.level
    for alias, host in session.hosts.items():
        prefix = f"{alias}." if len(session.hosts) > 1 else ""
        found[f"{prefix}host"] = f"{alias} ({host.capture.reached_by}, {host.capture.taken_at})"
        gathered = session.gathered.get(alias) or host.gathered()
        for name, value in versions_of(host.facts, host.selected.spec, gathered).items():
            found[f"{prefix}{name}"] = value
    return found


def versions_of(facts: HostFacts, spec: HostSpec, gathered: Mapping[str, Any]) -> dict[str, str]:
    """Give the versions and names that a verdict on a host belongs to, by name; what was not observed says so."""
    program = cuda_program(gathered)
    readiness = (gathered.get("endpoint") or {}).get("readiness") or {}
    readers: dict[str, Callable[[], str | None]] = {
        "kernel": lambda: facts.kernel_release,
        "boot id": lambda: facts.boot_id,
        "driver": lambda: facts.driver_version.version,
        "GPUs": lambda: _models(facts),
        "CUDA": lambda: program.plan.driver.version if program and program.plan else facts.gpu_table.cuda_version,
        "NCCL": lambda: next((run.library.version for run in program.runs if run.library), None) if program else None,
        "engine": lambda: facts.service.engine if spec.service else None,
        "endpoint": lambda: (gathered.get("endpoint") or {}).get("address"),
        "model": lambda: ", ".join(readiness.get("models", ())) or None,
    }
    found = {}
    for name, read in readers.items():
        try:
            value = read()
        except GpuInfraError as error:
            value = f"not observed: {error.reason}"
        if value:
            found[name] = readable(value)
    return found


def _models(facts: HostFacts) -> str | None:
    names = [row.text("name") or "" for row in facts.gpu_table]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names) if name) or None


def executor_of(environ: Mapping[str, str]) -> dict[str, Any]:
    """Tell which CI runs this, by its variables; {} for a person's own run."""
    if environ.get("GITHUB_ACTIONS") == "true":
        url = "{}/{}/actions/runs/{}".format(
            *(environ.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID"))
        )
        return _executor(
            "GitHub Actions", "github", environ.get("GITHUB_WORKFLOW"), environ.get("GITHUB_RUN_NUMBER"), url
        )
    if environ.get("GITLAB_CI") == "true":
        name, order = environ.get("CI_JOB_NAME"), environ.get("CI_PIPELINE_IID")
        return _executor("GitLab CI", "gitlab", name, order, environ.get("CI_JOB_URL"))
    if environ.get("JENKINS_URL"):
        name, order = environ.get("JOB_NAME"), environ.get("BUILD_NUMBER")
        return _executor("Jenkins", "jenkins", name, order, environ.get("BUILD_URL"))
    return {}


def _executor(name: str, kind: str, build: str | None, order: str | None, url: str | None) -> dict[str, Any]:
    return {
        "name": name,
        "type": kind,
        "buildName": readable(f"{build or name} #{order or '?'}"),
        "buildUrl": readable(url or ""),
        **({"buildOrder": int(order)} if order and order.isdecimal() else {}),
    }


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")
