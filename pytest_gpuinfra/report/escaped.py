"""Text that people look at: secrets masked first, hidden characters as escapes, for HTML and SVG its own signs too."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from pytest_gpuinfra.masking import mask_text
from pytest_gpuinfra.visible import visible

if TYPE_CHECKING:
    from pytest_gpuinfra.masking import Masker


def escape(text: str, quote: bool = True) -> str:
    """Make a text one of HTML, masked before: a quote that has become &quot; hides what stands in it."""
    return html.escape(readable(text), quote)


def readable(text: str) -> str:
    """Mask what looks like a secret, and escape what a reader would not see."""
    return visible(mask_text(text))


@dataclass(frozen=True, slots=True)
class Shown:
    """As `readable`, with a run's own masker."""

    masker: Masker

    def text(self, text: str) -> str:
        """Give a text as people may see it."""
        return visible(self.masker.text(text))


class VisibleConsole(Console):
    """A console on which only its own styles and movements reach the terminal as such."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape the text of every segment that is no control sequence of the console's own."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)
