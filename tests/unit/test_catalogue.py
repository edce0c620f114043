"""Pages that are made of the code; docs/checks.md says what the suites say, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from click.testing import CliRunner

from docs.generate.__main__ import pages
from docs.generate.checks import read_catalogue
from pytest_gpuinfra.cli import main
from pytest_gpuinfra.options import LEVELS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("file", pages(), ids=lambda file: file.name)
def test_pages_are_what_the_code_says(file: Path) -> None:
    """Whoever changes a check, a fixture, a key or an option writes them anew: `python -m docs.generate`."""
    assert file.read_text() == pages()[file]


@pytest.mark.parametrize(
    ("command", "page"),
    [("checks", "checks"), ("checks --fixtures", "fixtures"), ("schema --markdown", "inventory")],
)
def test_commands_print_the_pages(command: str, page: str) -> None:
    """They need no host."""
    assert CliRunner().invoke(main, command.split()).output == (ROOT / "docs" / f"{page}.md").read_text()


def test_every_test_of_the_suites_stands_there_once() -> None:
    """None is left out: every test function, in every file."""
    found = [
        f"{file.parent.name}/{file.name}::{node.name}"
        for file in (ROOT / "suites").rglob("test_*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    assert sorted(check.id for check in read_catalogue()) == sorted(found)


def test_every_check_says_what_it_is() -> None:
    """Requirement and reason, level, facts or a judge, and what makes it ERROR."""
    for check in read_catalogue():
        assert check.requirement, check.id
        assert check.requirement.endswith("."), check.id
        assert check.level in LEVELS, check.id
        assert check.facts or check.judges, check.id
        assert check.errors, check.id


def test_what_is_told_of_some_checks_is_right() -> None:
    """Level by mark, expectation by mark and by use, one item for each target, errors of fixtures and of verdicts."""
    checks = {check.name: check for check in read_catalogue()}
    group = checks["test_iommu_group_type_is_the_expected_one"]
    assert (group.level, group.expects, group.needs_expectation) == ("passive", ("device.group_type",), True)
    assert group.each == "GPU of the host"
    assert any("iommu_group_show_type" in source for source in group.sources)
    copies = checks["test_copy_engine_delivers_every_byte"]
    assert (copies.level, copies.expects, copies.needs_expectation) == ("active", ("peer_access",), False)
    assert "subjects.transfers.judge.judge_transfer" in copies.judges
    assert any("it could not be run to its end" in error for error in copies.errors)
    assert "the program says nothing of it: it did not get there" in copies.errors
    order = checks["test_service_is_ordered"]
    assert order.expects == ("service.after", "service.before")
