"""Many hosts at a glance: matrix, what differs, stragglers; for three, thirty and three hundred."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from rich.console import Console

from pytest_gpuinfra.cli import main
from pytest_gpuinfra.record.recording import Recording, write_recording
from pytest_gpuinfra.report.fleet.fleet import SIGNS, Fleet, area_of, folded, make_fleet
from pytest_gpuinfra.report.fleet.html import fleet_html
from pytest_gpuinfra.report.fleet.picture import draw_fleet, write_fleet
from pytest_gpuinfra.report.fleet.plot import draw_group
from pytest_gpuinfra.report.fleet.text import fleet_markdown, show_fleet, show_troubles
from pytest_gpuinfra.report.page import Page, make_page
from pytest_gpuinfra.report.page_text import markdown_line, page_html, page_markdown
from tests.report.fleet_made import UNREAD, node
from tests.report.fleet_made import fleet as made_fleet

SVG = "{http://www.w3.org/2000/svg}"
SIZES = (3, 30, 300)


class Tags(HTMLParser):
    """Counts tags, and refuses those that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        if tag not in ("meta", "br", "rect", "path", "circle"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("rect", "path", "circle"):
            return
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def fleets() -> dict[int, Fleet]:
    """Give a fleet of each size."""
    return {size: make_fleet(made_fleet(size)) for size in SIZES}


@pytest.fixture(scope="module")
def pages(fleets: dict[int, Fleet]) -> dict[int, Page]:
    """Give the page of each."""
    return {size: make_page(made_fleet(size), "run.json", fleet=fleets[size]) for size in SIZES}


@pytest.mark.parametrize("size", SIZES)
def test_every_host_is_in_one_row(fleets: dict[int, Fleet], size: int) -> None:
    """Nobody is lost by joining those that ended alike; the worst come first."""
    hosts = [host for row in fleets[size].rows for host in row.hosts]
    assert sorted(hosts) == sorted(made_fleet(size).hosts)
    moods = [row.mood for row in fleets[size].rows]
    assert moods == sorted(moods, key=("bad", "unknown", "good").index)
    assert fleets[size].size == size


def test_few_hosts_have_a_row_each_and_many_share_one(fleets: dict[int, Fleet]) -> None:
    """Three hosts are three rows; three hundred are as many as there are ways to end."""
    assert [len(fleets[size].rows) for size in SIZES] == [3, 4, 4]
    assert folded(fleets[300].rows[-1].hosts) == "node[001,004-006,008-009,011-300]"


def test_cell_is_the_worst_ending_of_its_area() -> None:
    """One wrong among many right is wrong; nothing asked for is skipped; no such check is blank."""
    found = make_fleet(made_fleet(3))
    bad = next(row for row in found.rows if row.mood == "bad")
    assert bad.ending("host/kernel log") == "failed"
    assert bad.ending("gpu/peer copies") == "passed"
    assert bad.ending("host/confidential") == "skipped"
    assert bad.ending("own/link") == ""
    unknown = next(row for row in found.rows if row.mood == "unknown")
    assert unknown.ending("host/kernel log") == "error"


def test_endings_are_told_apart_without_colour() -> None:
    """Four endings, and none: five signs."""
    assert len(set(SIGNS.values())) == 5


def test_areas_are_those_of_the_suites_and_of_the_user() -> None:
    """Checkout, wheel, and a user's own file."""
    assert area_of("suites/host/test_kernel_log.py::test_x[a]") == "host/kernel log"
    assert area_of("../lib/pytest_gpuinfra/suites/gpu/test_peer_copies.py::test_x[a]") == "gpu/peer copies"
    assert area_of("test_link.py::test_x[a]") == "own/link"


def test_troubles_are_told_once_with_all_their_hosts(fleets: dict[int, Fleet]) -> None:
    """Two hosts that say the same are one line; what is wrong stands before what is unknown."""
    told = [(one.ending, one.text, one.hosts) for one in fleets[30].troubles]
    assert told == [
        ("failed", "kernel log: 1 fault: Xid 79 of 00:06.0: GPU has fallen off the bus, expected none", ("node02",)),
        ("error", "/dev/kmsg: no permission", ("node03", "node07")),
        ("error", "ssh said: no route to host", ("node10",)),
    ]


def test_fact_that_differs_from_the_majority_is_named(fleets: dict[int, Fleet]) -> None:
    """One driver of another version; boot ids and uuids, which nobody shares, are not named."""
    one, *firmware = fleets[30].differences
    assert (one.fact, one.value, one.usual, one.of, one.hosts) == (
        "driver/version",
        "570.86.15",
        "580.159.04",
        28,
        ("node03",),
    )
    assert [other.fact for other in firmware] == [f"gpu/00:0{number}.0/GSP firmware" for number in (6, 7)]
    assert {other.hosts for other in firmware} == {("node03",)}


def test_two_hosts_have_no_majority() -> None:
    """One against one: nothing differs from most."""
    first, second = node("a"), node("b", driver="570.86.15")
    both = Recording({**first.hosts, **second.hosts}, [*first.results, *second.results])
    assert make_fleet(both).differences == ()


def test_stragglers_are_named_with_their_group(fleets: dict[int, Fleet]) -> None:
    """Slow copies from one GPU, and little head-room; in which nobody ended otherwise than passed."""
    assert fleets[30].numbers.stragglers == ("node06", "node09")
    text = "\n".join(fleet_html(fleets[30]))
    assert "copy engine, one way: GPU 0 to GPU 1 161.5 GB/s, its group 394 (± 0) GB/s; 1 of 2 parts" in text
    assert "temperature head-room: GPU 0 9 degrees C, its group 54 (± 0) degrees C; 1 of 2 parts" in text
    assert "Better than their group" in text


def test_small_group_is_said_not_to_be_compared(fleets: dict[int, Fleet]) -> None:
    """Three hosts: no verdict about numbers, and the page says so."""
    assert fleets[3].numbers.groups == ()
    assert "Numbers of 3 hosts with 2 x NVIDIA H200 were not compared: a group needs 5." in "\n".join(
        fleet_html(fleets[3])
    )


@pytest.mark.parametrize("size", SIZES)
def test_html_is_well_formed_and_begins_with_the_matrix(pages: dict[int, Page], size: int) -> None:
    """All tags are closed, nothing is fetched; beyond a dozen hosts the good ones have no section of their own."""
    text = page_html(pages[size])
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert text.index('class="fleet"') < text.index('class="verdicts"')
    assert not re.search(r"<script|<link|src=|@import|url\(", text)
    sections = re.findall(r'<h2 id="([^"]+)"', text)
    assert len(sections) == (3 if size == 3 else 4)
    assert ("Not in full: 296 more hosts" in text) == (size == 300)


def test_markdown_fits_a_comment(pages: dict[int, Page]) -> None:
    """Three hundred hosts in less than the 65,536 characters that a comment may have."""
    text = page_markdown(pages[300])
    assert len(text) < 65_536
    assert "**300 hosts: 1 must not take traffic, 3 could not be judged, 296 may take traffic**" in text
    rows = [line for line in text.splitlines() if line.startswith("| ") and "take traffic" in line]
    assert len({line.count("|") - line.count("\\|") for line in rows}) == 1


@pytest.mark.parametrize("width", [80, 132])
def test_terminal_shows_no_line_that_is_too_long(fleets: dict[int, Fleet], width: int) -> None:
    """The table fits; signs are one each, so that nothing wraps."""
    console = Console(width=width, record=True, file=None)
    with console.capture() as shown:
        show_fleet(fleets[300], console)
    table = shown.get().split("each sign")[0]
    assert max(map(len, table.splitlines())) <= width
    assert "(296)" in table
    with console.capture() as shown:
        show_troubles(fleets[300], console)
    assert shown.get().startswith("FAILED node002: kernel log: 1 fault")


def test_pictures_are_drawings_with_a_name_for_each_mark(fleets: dict[int, Fleet]) -> None:
    """The matrix has a title a cell; of a group's dots every host's value can be read, and outliers are no dots."""
    picture = ElementTree.fromstring(draw_fleet(fleets[30]))
    titles = [title.text or "" for title in picture.iter(f"{SVG}title")]
    assert "host/kernel log: 13 FAILED" in titles
    group = next(group for group in fleets[30].numbers.groups if group.name == "copy engine, one way, GPU 0 to GPU 1")
    plot = ElementTree.fromstring(draw_group(group))
    assert len(list(plot.iter(f"{SVG}title"))) == 29
    assert len(list(plot.iter(f"{SVG}circle"))) == 27
    assert "straggler" in "".join(plot.itertext())


def test_allure_gets_the_fleet_as_attachments_of_the_run(fleets: dict[int, Fleet], tmp_path: Path) -> None:
    """One document of global attachments, and the files that it names."""
    write_fleet(tmp_path, fleets[30])
    (document,) = tmp_path.glob("*-globals.json")
    names = re.findall(r'"source": "([^"]+)"', document.read_text())
    assert len(names) == 3
    assert all((tmp_path / name).read_text().startswith("<svg") for name in names)


def test_names_that_do_not_fold_are_listed() -> None:
    """Folding is for people; what it cannot fold stays readable."""
    assert folded(["node1", "node2", "gpu-a"]) == "gpu-a,node[1-2]"
    assert folded(["lone"]) == "lone"


def test_messages_are_escaped() -> None:
    """A host's words are never taken for HTML or Markdown."""
    odd = node("a", wrong={"test_kernel_log.py": "HOST: <b>bold</b> | *x*"})
    others = [node(name) for name in ("b", "c")]
    hosts = {alias: host for one in (odd, *others) for alias, host in one.hosts.items()}
    found = make_fleet(Recording(hosts, [result for one in (odd, *others) for result in one.results]))
    assert "<b>bold" not in "\n".join(fleet_html(found))
    assert "<b>bold" not in "\n".join(fleet_markdown(found, markdown_line))


def test_one_host_of_a_recording_is_reported_alone(tmp_path: Path) -> None:
    """`gpuinfra report --host` shows what the page of many left out."""
    write_recording(tmp_path / "run.json", made_fleet(30))
    ended = CliRunner().invoke(main, ["report", str(tmp_path / "run.json"), "--host=node11"])
    assert ended.exit_code == 0
    assert "## node11: may take traffic" in ended.output
    assert "node12" not in ended.output
    missing = CliRunner().invoke(main, ["report", str(tmp_path / "run.json"), "--host=node99"])
    assert missing.exit_code == 2
    assert "holds no host 'node99'" in missing.output


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a recording of six nodes of which nothing is expected, one of them slow."""
    path = tmp_path_factory.mktemp("six") / "six.json"
    found = [node(f"n{number}", gb_s=0.88 if number == 3 else 1.0) for number in range(6)]
    hosts = {alias: replace(host, spec={}) for one in found for alias, host in one.hosts.items()}
    write_recording(path, Recording(hosts, (), "2026", "0.1"))
    return path


def run(six: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Judge the six again, where their recording is."""
    argv = [*(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"), f"--gpu-host=replay:{six}"]
    suites = Path(__file__).parents[2] / "suites"
    paths = [str(suites / "host" / "test_driver.py"), str(suites / "gpu" / "test_peer_copies.py")]
    return subprocess.run(
        [*argv, "--gpu-recording=none", *arguments, *paths], cwd=six.parent, capture_output=True, text=True, check=False
    )


def test_run_names_stragglers_and_shows_the_fleet(six: Path) -> None:
    """A straggler is a line in the terminal, in the page and in Allure; nothing was wrong, so the status is 0."""
    ended = run(six, "--gpu-summary=page.html", "--alluredir=allure")
    assert ended.returncode == 0, ended.stdout
    assert "STRAGGLER n3: copy engine, both ways at once: GPU 0 to GPU 1 342.9 GB/s, its group 389.6" in ended.stdout
    assert 'class="fleet"' in (six.parent / "page.html").read_text()
    (document,) = (six.parent / "allure").glob("*-globals.json")
    assert "stragglers: copy engine" in document.read_text()


def test_straggler_fails_a_run_only_if_asked(six: Path) -> None:
    """--gpu-outliers=fail ends with 1, although every item passed."""
    ended = run(six, "--gpu-outliers=fail")
    assert ended.returncode == 1, ended.stdout
    assert " failed" not in ended.stdout.splitlines()[-1]


def test_run_of_many_hosts_shows_the_matrix_in_place_of_the_table(tmp_path: Path) -> None:
    """Thirteen and more: those that ended alike share a row in the terminal, too."""
    write_recording(tmp_path / "thirty.json", made_fleet(30))
    ended = run(tmp_path / "thirty.json")
    assert ended.returncode == 1, ended.stdout
    assert re.search(r"node\[01-02,.*\d+ checks \(suites/host/test_driver", ended.stdout)
    assert "FAILED node03: NVIDIA kernel driver: 570.86.15, expected" in ended.stdout
    assert "ERROR  node10: ssh said: no route to host" in ended.stdout


def test_many_bad_hosts_are_all_listed_and_the_first_are_told_in_full() -> None:
    """Sixty nodes whose log nobody could read: one row, and forty sections."""
    found = [node(f"n{number:02}", unknown={"test_kernel_log.py": UNREAD}) for number in range(60)]
    hosts = {alias: host for one in found for alias, host in one.hosts.items()}
    page = make_page(Recording(hosts, [result for one in found for result in one.results], "2026", "0.1"))
    assert page.fleet is not None
    assert [len(row.hosts) for row in page.fleet.rows] == [60]
    text = page_html(page)
    assert len(re.findall(r'<h2 id="n\d\d"', text)) == 40
    assert "Not in full: 20 more hosts" in text


def test_page_and_matrix_agree_on_the_verdict() -> None:
    """With unknown allowed, both say so."""
    found = [node("a", unknown={"test_kernel_log.py": UNREAD}), node("b")]
    hosts = {alias: host for one in found for alias, host in one.hosts.items()}
    recording = Recording(hosts, [result for one in found for result in one.results], "2026", "0.1")
    page = make_page(recording, unknown_allowed=True)
    assert page.fleet is not None
    assert {host.verdict for host in page.hosts} == {row.verdict for row in page.fleet.rows}
    assert page.hosts[0].verdict == "nothing wrong seen, not all was"
