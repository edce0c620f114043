"""Text for HTML and SVG: masked first, since a quote that has become &quot; hides what stands in it."""

from __future__ import annotations

import html

from pytest_gpuinfra.masking import mask_text


def escape(text: str, quote: bool = True) -> str:
    """Mask what looks like a secret, then make the text one of HTML."""
    return html.escape(mask_text(text), quote)
