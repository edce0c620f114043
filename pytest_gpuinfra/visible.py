"""
Characters that a reader does not see, or that steer a terminal or the direction of writing, are shown as escapes.

Everything that people look at goes through `visible`; in JSON the escapes are JSON's own, so that nothing is lost.
Hidden are: C0 but for tab and line feed, DEL, C1, marks and embeddings of direction, line and paragraph separators,
what has no width, tags, and halves of surrogate pairs.
Source: Unicode 15.1, categories Cc, Cf, Zl, Zp, Cs; UAX #9, table 4.
"""

from __future__ import annotations

import re

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_HALF = re.compile("[\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Write hidden characters as \x9b, \u202e or \U000e0041; any other text is given as it is."""
    return _HIDDEN.sub(lambda match: _escape(ord(match[0])), text)


def visible_json(text: str) -> str:
    r"""Write hidden characters of a JSON document as JSON has them, \u009b; a half of a surrogate pair as text."""
    text = _HALF.sub(lambda match: f"\\\\u{ord(match[0]):04x}", text)
    return _HIDDEN.sub(lambda match: _json_escape(match[0]), text)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(sign: str) -> str:
    units = sign.encode("utf-16-be")
    return sign if sign == "\r" else "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
