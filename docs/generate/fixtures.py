"""All fixtures as Markdown, examples first, then tables read off their source: docs/fixtures.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from docs.generate.source import PACKAGE, Fixture, first_words, raises_of, read_module
from pytest_gpuinfra.session.items import KINDS

_TITLES = {
    "host": "The host and its facts",
    "gpu": "GPU programs",
    "service": "Container and service",
    "endpoint": "Endpoint",
    "baseline": "Before and after",
}


def fixtures_markdown() -> str:
    """Give all public fixtures: those that a test is repeated for first, then the others by subject."""
    files = sorted(PACKAGE.glob("fixtures/*.py"), key=lambda file: (file.stem not in _TITLES, file.stem))
    found = {file.stem: list(_public(read_module(file).fixtures.values())) for file in files}
    each = [fixture for fixtures in found.values() for fixture in fixtures if fixture.name in KINDS]
    lines = [
        Path(__file__).with_name("fixture_examples.md").read_text(encoding="utf-8"),
        "## One test for each",
        "",
        "A test that takes one of these is repeated for each of them;",
    ]
    lines += ["it may take one at most. Every test that takes any fixture below is repeated for each host.", ""]
    lines += _table(each)
    for stem, fixtures in found.items():
        rest = [fixture for fixture in fixtures if fixture.name not in KINDS]
        if rest:
            lines += ["", f"## {_TITLES.get(stem, stem.replace('_', ' '))}", ""]
            lines += _table(rest)
    return "\n".join(lines) + "\n"


def _public(fixtures: Iterable[Fixture]) -> Iterator[Fixture]:
    yield from (fixture for fixture in fixtures if not fixture.name.startswith("_"))


def _table(fixtures: list[Fixture]) -> list[str]:
    lines = ["| fixture | gives | type | ERROR where |", "|---|---|---|---|"]
    for fixture in fixtures:
        errors = "; ".join(dict.fromkeys(raises_of(fixture.doc)))
        cells = (f"`{fixture.name}`", first_words(fixture.doc), f"`{fixture.returns}`", errors)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines
