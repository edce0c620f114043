"""
One value that NVML reports, and the many ways in which it says that there is none.

Source: nvidia-smi --help-query-gpu and nvmlErrorString() (drivers 375 to 610).
"Not available" is a property of the board; an error is a property of this moment, and hides a failing card.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ABSENT = frozenset(
    {
        "n/a",
        "not supported",
        "requested functionality has been deprecated",
        "deprecated",
        "not available",
        "not applicable",
        "",
    }
)
_ERRORS = re.compile(
    r"unknown error|err!|gpu is lost|gpu requires reset|gpu is inaccessible|insufficient permissions"
    r"|not found|timeout|no permission|in use|driver not loaded|insufficient power|irq issue|corrupted|reset required",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"(?P<number>-?\d{1,18}(?:\.\d+)?)\s*(?P<unit>[%A-Za-z/()]*)")
_LINK = re.compile(r"(?P<number>\d{1,18})x")


@dataclass(frozen=True, slots=True)
class GpuValue:
    """
    One value as it was printed.

    Attributes:
        text: Verbatim, without blanks around it.
    """

    text: str

    @property
    def bare(self) -> str:
        """The text without brackets."""
        return self.text[1:-1].strip() if self.text[:1] == "[" and self.text[-1:] == "]" else self.text

    @property
    def absent(self) -> bool:
        """Whether the board reports no such value. The word None is a value ("nothing is asked for")."""
        return self.bare.lower() in _ABSENT

    @property
    def error(self) -> str | None:
        """Why the driver could not read it now; None if it could."""
        bracketed = self.text != self.bare
        return self.bare if (bracketed and not self.absent) or _ERRORS.fullmatch(self.bare) else None

    @property
    def number(self) -> float | None:
        """The number in it, whatever its unit ("433.78 W", "16x"); None if it holds none. 0 is a number."""
        if self.absent or self.error:
            return None
        match = _LINK.fullmatch(self.text) or _NUMBER.fullmatch(self.text)
        return float(match["number"]) if match else None

    @property
    def known(self) -> bool:
        """Whether it is a value: neither absent nor an error."""
        return not self.absent and self.error is None

    def __str__(self) -> str:
        return self.text
