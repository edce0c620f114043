"""docs/fixtures.md: its examples run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.plugin.conftest import run_pytest
from tests.report.made import REFERENCE, TWO_GPUS

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "fixtures.md").read_text()
RECORDINGS = {"node-a.json": REFERENCE, "two-gpus.json": TWO_GPUS}


def examples() -> list[tuple[str, str, str]]:
    """Give (arguments, text, conftest) of each example; a conftest goes with the example behind it."""
    found: list[tuple[str, str, str]] = []
    conftest = ""
    for first, body in re.findall(r"```python\n# ([^\n]*)\n(.*?)```", TEXT, re.DOTALL):
        if first == "conftest.py":
            conftest = body
            continue
        assert first.startswith("pytest "), first
        found.append((first.removeprefix("pytest "), body, conftest))
        conftest = ""
    return found


def test_all_examples_are_found() -> None:
    """None is left out for a slip in its first line."""
    assert len(examples()) == TEXT.count("```python\n") - TEXT.count("# conftest.py") > 5


@pytest.mark.parametrize("number", range(len(examples())))
def test_example_passes_as_it_stands(number: int, tmp_path: Path) -> None:
    """Every test of it passes; none is skipped, and none is ERROR."""
    arguments, body, conftest = examples()[number]
    for name, file in RECORDINGS.items():
        (tmp_path / name).write_bytes(file.read_bytes())
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_example.py").write_text(body)
    if conftest:
        (tmp_path / "conftest.py").write_text(conftest)
    more = ("--gpu-recording=out.json", "-q", "-p", "no:cacheprovider", "test_example.py")
    ended = run_pytest(tmp_path, *shlex.split(arguments), *more)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    outcomes = [result["outcome"] for result in json.loads((tmp_path / "out.json").read_text())["results"]]
    assert len(outcomes) >= len(re.findall(r"^def test_", body, re.MULTILINE))
    assert set(outcomes) == {"passed"}
