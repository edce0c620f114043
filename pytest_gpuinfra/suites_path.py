"""Where the acceptance suites are: inside the installed package, or beside it in a checkout."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def suites_path() -> Path:
    """Give the directory of the suites."""
    package = Path(__file__).resolve().parent
    installed = package / "suites"
    return installed if installed.is_dir() else package.parent / "suites"
