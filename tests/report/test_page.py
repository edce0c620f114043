"""One page of a run, and the pictures on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from rich.console import Console

from pytest_gpuinfra.cli import main
from pytest_gpuinfra.inventory.inventory import Expectation
from pytest_gpuinfra.record.recording import RecordedHost, Recording, read_recording, write_recording
from pytest_gpuinfra.report.message import parse_message
from pytest_gpuinfra.report.page import Page, make_page
from pytest_gpuinfra.report.page_text import page_html, page_markdown
from pytest_gpuinfra.report.pair_matrix import matrix_of
from pytest_gpuinfra.report.pair_picture import draw, summary
from pytest_gpuinfra.report.pair_table import pair_table
from tests.report.made import REFERENCE, TWO_GPUS, gathered, machine, made_hosts, sixteen

VERDICT = "may take traffic"
MESSAGE = (
    "node-a: GPU 01:00.0: IOMMU faults\n    observed: 1 <b>fault</b> | more\n      and a second line\n"
    "    expected: none\n    why it matters: copies are corrupt\n    what to do: run the peer suite"
)


def result(host: str, name: str, outcome: str, message: str = "") -> dict[str, Any]:
    """Give one result."""
    return {
        "id": f"host/test_x.py::{name}[{host}]",
        "host": host,
        "outcome": outcome,
        "message": message,
        "took_s": 0.1,
    }


@pytest.fixture(scope="module")
def page() -> Page:
    """Give a page about five hosts."""
    reference, real = read_recording(REFERENCE), read_recording(TWO_GPUS)
    hosts = {**made_hosts(), **real.hosts, **reference.hosts}
    results = [
        *(result(host, "test_a", "passed") for host in hosts),
        result("node-a", "test_b", "failed", MESSAGE),
        result("node-a", "test_c", "failed", MESSAGE),
        result("two-right", "test_b", "error", "two-right: journal: no permission\n  what to do: use --gpu-sudo"),
        result("h200", "test_s", "skipped", "inventory expects no units of h200"),
    ]
    return make_page(Recording(hosts, results, "2026-11-29T12:00:00+00:00", "0.1"), "run.json", "abc123")


def test_worst_host_comes_first_with_its_reason(page: Page) -> None:
    """Wrong, then unknown, among them those with a fault that no item found, then good."""
    assert [(host.alias, host.mood) for host in page.hosts[:2]] == [("node-a", "bad"), ("two-right", "unknown")]
    verdicts = {host.alias: (host.mood, host.verdict) for host in page.hosts[2:]}
    assert verdicts.pop("h200") == ("good", VERDICT)
    assert set(verdicts) >= {"two-corrupt", "sixteen"}
    assert set(verdicts.values()) == {("unknown", "nothing failed, but see the diagnosis")}
    assert page.hosts[-1].alias == "h200"
    assert page.hosts[0].verdict == "must not take traffic"
    assert "IOMMU's translation" in page.hosts[0].because


def test_same_messages_are_one_trouble_with_four_parts(page: Page) -> None:
    """Two items that say the same; a value of two lines is kept."""
    (trouble,) = page.hosts[0].failed
    assert trouble.items == ("test_b[node-a]", "test_c[node-a]")
    assert trouble.message.observed == "1 <b>fault</b> | more\nand a second line"
    assert trouble.message.action == "run the peer suite"
    (unknown,) = page.hosts[1].unknown
    assert (unknown.message.subject, unknown.message.action) == (
        "two-right: journal: no permission",
        "use --gpu-sudo",
    )


def test_markdown_holds_what_a_reviewer_needs(page: Page) -> None:
    """Verdicts, diagnosis, parts, numbers, recording; nothing of a message is taken for Markdown or HTML."""
    text = page_markdown(page)
    assert "- ❌ **node-a must not take traffic**" in text
    assert "### Diagnosis, causes first" in text
    assert "what to do: run the peer suite" in text
    assert "&lt;b&gt;fault" in text
    assert "<b>" not in text
    assert "recording run.json, sha256 abc123" in text
    assert "394 GB/s" in text
    assert "| driver | 580.95.05 |" in text
    assert "inventory expects no units of h200 (1)" in text


def test_html_is_one_file_that_needs_nothing_else(page: Page) -> None:
    """No address of anything outside; pictures are inside; messages are escaped."""
    text = page_html(page)
    assert "<svg" in text
    assert "&lt;b&gt;fault" in text
    for outside in ("<script", "<link", "src=", "@import", "url("):
        assert outside not in text
    assert "prefers-color-scheme:dark" in text
    assert 'name="viewport"' in text


def test_report_is_made_of_a_recording_later(tmp_path: Path) -> None:
    """`gpuinfra report` needs nothing but the recording."""
    hosts = {"h200": read_recording(TWO_GPUS).hosts["h200"]}
    digest = write_recording(tmp_path / "r.json", Recording(hosts, [result("h200", "test_a", "passed")], "2026", "0"))
    ended = CliRunner().invoke(main, ["report", str(tmp_path / "r.json")])
    assert ended.exit_code == 0
    assert "h200 may take traffic" in ended.output
    assert digest in ended.output
    CliRunner().invoke(main, ["report", str(tmp_path / "r.json"), "-o", str(tmp_path / "r.html")])
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("two-right", "2 of 2 directed pairs right by every mechanism"),
        ("two-corrupt", "1 of 2 directed pairs right by every mechanism; 1 wrong (never written)"),
        ("two-hang", "0 of 2 directed pairs right by every mechanism; 2 wrong (hang)"),
        ("sixteen", "237 of 240 directed pairs right by every mechanism; 2 wrong (never written); 1 not proven"),
    ],
)
def test_matrix_is_summed_up_and_drawn(name: str, said: str) -> None:
    """For two GPUs and for sixteen: well-formed, a cell a pair, a title on each."""
    matrix = matrix_of(made_hosts()[name].gathered)
    assert matrix is not None
    assert summary(matrix) == said
    picture = ElementTree.fromstring(draw(matrix, "pairs & more"))
    cells = list(picture.iter("{http://www.w3.org/2000/svg}g"))
    assert len(cells) == matrix.pairs


def test_matrix_in_the_terminal_fits_or_becomes_a_list() -> None:
    """Two GPUs in 80 columns are a table; sixteen are the pairs that are not right."""
    console = Console(width=80, record=True, file=None)
    for name, host in made_hosts().items():
        matrix = matrix_of(host.gathered)
        assert matrix is not None
        with console.capture() as shown:
            console.print(pair_table(matrix, name, console))
        text = shown.get()
        assert max(len(line) for line in text.splitlines()) <= 80
        if name == "two-corrupt":
            assert "never written" in text
            assert "394 GB/s" in text
        if name == "sixteen":
            assert "90:00.0 to e0:00.0: not seen" in text


def test_host_without_programs_has_no_matrix() -> None:
    """Nothing was tried; damaged events are nothing, either."""
    assert matrix_of({}) is None
    assert matrix_of(gathered(["no json"])) is None
    assert len(sixteen()[0]) == 16


def test_message_of_a_traceback_is_what_was_raised() -> None:
    """A user's own test has no four parts."""
    text = "def test_it():\n>   assert 1 == 2\nE   AssertionError: assert 1 == 2\n\ntest_own.py:2: AssertionError"
    assert parse_message(text).brief == "AssertionError: assert 1 == 2"
    assert parse_message("", "the id").brief == "the id"


def test_lost_host_is_on_the_page() -> None:
    """A host that nobody reached has a verdict, and no versions."""
    capture = machine(["00:06.0"]).capture("x", Expectation())
    lost = RecordedHost(
        {}, type(capture)("lost", "ssh lost", (), {}, ("UnreachableError", "lost: no route", "ping it"))
    )
    host = make_page(Recording({"lost": lost}, [result("lost", "test_a", "error", "lost: no route")])).hosts[0]
    assert (host.verdict, host.versions) == ("could not be judged", {})
