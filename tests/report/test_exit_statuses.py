"""Each exit status that docs/ci.md names, brought about once, on a recorded host."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.plugin.conftest import run_pytest
from tests.report.made import REFERENCE

DOCS = Path(__file__).parents[2] / "docs" / "ci.md"
OWN = {
    "right": "def test_it(gpu_kernel_release):\n    assert gpu_kernel_release\n",
    "wrong": "def test_it(gpu_kernel_release):\n    assert gpu_kernel_release == 'another'\n",
    "unknown": (
        "import pytest_gpuinfra as g\n"
        "def test_it(gpu_kernel_release):\n    raise g.FactUnavailable('journal', 'no permission')\n"
    ),
    "interrupted": "def test_it(gpu_kernel_release):\n    raise KeyboardInterrupt\n",
}


@pytest.mark.parametrize(
    ("status", "test", "arguments", "words"),
    [
        (0, "right", [], "1 check (test_own.py)"),
        (1, "wrong", [], "must not take traffic"),
        (1, "unknown", ["--gpu-unknown=fail"], "could not be judged"),
        (2, "interrupted", [], "KeyboardInterrupt"),
        (3, "right", ["--gpu-recording=/proc/none/recording.json"], "the recording cannot be written"),
        (3, "right", ["--gpu-summary=/proc/none/page.html"], "no report"),
        (4, "right", ["--gpu-inventory=nowhere.toml"], "nowhere.toml"),
        (5, "right", ["-k", "nothing_of_that_name"], "1 deselected"),
        (6, "unknown", [], "could not be judged"),
    ],
)
def test_status_is_what_is_documented(status: int, test: str, arguments: list[str], words: str, tmp_path: Path) -> None:
    """The status, and words that say why; never a traceback of ours."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_own.py").write_text(OWN[test])
    recording = [] if any("recording" in argument for argument in arguments) else ["--gpu-recording=none"]
    ended = run_pytest(
        tmp_path, f"--gpu-host=replay:{REFERENCE}", *recording, "-p", "no:cacheprovider", *arguments, "test_own.py"
    )
    shown = ended.stdout + ended.stderr
    assert ended.returncode == status, shown
    assert words in shown
    assert "INTERNALERROR" not in shown


def test_every_status_is_documented() -> None:
    """0 to 6 stand in the table."""
    table = DOCS.read_text().partition("## Exit statuses")[2].partition("##")[0]
    rows = re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE)
    assert sorted(int(number) for row in rows for number in row.split(",")) == list(range(7))
