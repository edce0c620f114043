"""
Where the inventory is looked for: beside the run, and above it up to the top of the repository.

This module imports nothing heavy: it is asked before any login begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

FILE_NAME = "gpuinfra.toml"


def inventory_folders(start: Path, root: Path) -> tuple[Path, ...]:
    """
    Give the folders in which the inventory may be, the nearest first.

    Args:
        start: Folder that pytest was started in.
        root: pytest's root directory; it is among them wherever it is.
    """
    above = (start, *start.parents)
    repository = next((folder for folder in above if (folder / ".git").exists()), start)
    top = max(above.index(folder) for folder in (start, repository, root) if folder in above)
    folders = above[: top + 1]
    return folders if root in folders else (*folders, root)


def inventory_folder(folders: Sequence[Path]) -> Path:
    """Give the first folder that holds an inventory; the last one if none does."""
    return next((folder for folder in folders if (folder / FILE_NAME).exists()), folders[-1])


def missing_text(folders: Sequence[Path]) -> str:
    """Say where no inventory was found, and where there is one that was not looked for; "" if one was found."""
    if any((folder / FILE_NAME).exists() for folder in folders):
        return ""
    text = f"no {FILE_NAME} in {', '.join(str(folder) for folder in folders)}: nothing is expected"
    further = next((above for above in folders[0].parents if (above / FILE_NAME).exists()), None)
    return text if further is None else f"{text}; --gpu-inventory={further / FILE_NAME} would take the one above"
