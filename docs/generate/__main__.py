"""Write all pages that are made of the code: `.venv/bin/python -m docs.generate`."""

from __future__ import annotations

from pathlib import Path

from docs.generate.checks import catalogue_markdown
from docs.generate.fixtures import fixtures_markdown
from docs.generate.inventory import inventory_markdown
from docs.generate.options import with_options

ROOT = Path(__file__).resolve().parents[2]


def pages() -> dict[Path, str]:
    """Give every page that is made, by its file."""
    readme = ROOT / "README.md"
    return {
        ROOT / "docs" / "checks.md": catalogue_markdown(),
        ROOT / "docs" / "fixtures.md": fixtures_markdown(),
        ROOT / "docs" / "inventory.md": inventory_markdown(),
        readme: with_options(readme.read_text(encoding="utf-8")),
    }


if __name__ == "__main__":
    for file, text in pages().items():
        file.write_text(text, encoding="utf-8")
