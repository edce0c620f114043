"""
What the probe brings back, before anybody has judged it.

A request is answered by readings: the text of a file, the target of a link, the names in a directory,
or the output of a command, each with the error in its place where there was none to be had.
Parsers take readings and give frozen values; they do no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pytest_gpuinfra.errors import FactUnavailable
from pytest_gpuinfra.masking import last_of


@dataclass(frozen=True, slots=True)
class Reading:
    """
    One file, link, listing or command, as it was found on the target.

    Attributes:
        source: Path, or the command as a person would type it.
        text: Content, link target, names of a directory (one a line, sorted), or standard output.
            None if it could not be read or the command could not be started; "" if it was empty.
        error: Why there is no text, with the errno's name where there is one
            ("ENOENT: No such file or directory"); None if there is a text.
        exit_status: Exit status of a command (negative: killed by that signal); None for anything else.
        stderr: Standard error of a command.
    """

    source: str
    text: str | None
    error: str | None = None
    exit_status: int | None = None
    stderr: str = ""

    @property
    def missing(self) -> bool:
        """Whether the file, link or program does not exist, as opposed to exists and cannot be read."""
        return self.text is None and (self.error or "").startswith("ENOENT")

    def require(self, *, remedy: str = "") -> str:
        """
        Give the text, whatever the exit status.

        Raises:
            FactUnavailable: The source could not be read.
        """
        if self.text is None:
            raise FactUnavailable(self.source, self.error or "no answer", remedy=remedy)
        return self.text

    def require_success(self, *, remedy: str = "") -> str:
        """
        Give the output of a command that ended with status 0.

        Raises:
            FactUnavailable: It could not be started, or ended with another status.
        """
        text = self.require(remedy=remedy)
        if self.exit_status not in (None, 0):
            said = last_of(self.stderr.strip() or text.strip() or "it printed nothing", 400)
            raise FactUnavailable(self.source, f"exit status {self.exit_status}: {said}", remedy=remedy)
        return text


Node: TypeAlias = Mapping[str, Reading]
"""Readings of one directory, by the name of the file, link or listing (a listing's name ends in "/")."""

Tree: TypeAlias = Mapping[str, Node]
"""Nodes of one class of things (PCI functions, IOMMU groups), by the directory's name."""
