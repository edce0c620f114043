"""
Mark-up of an answer taken off: Markdown, LaTeX, HTML.

What was struck out is gone; what was boxed or bold is marked, since that is where models put a result.
"""

from __future__ import annotations

import html
import re
import unicodedata

BOXED, BOLD, END = "\x02", "\x04", "\x03"
"""Marks before and after a boxed or bold piece in marked_text()."""

_STEPS: tuple[tuple[str, str], ...] = (
    (r"~~.{1,400}?~~|<(s|del|strike)>.{0,400}?</\1>", " "),
    (r"(?m)^```.*$", " "),
    (r"</?[a-zA-Z][^<>]*>", " "),
    # LaTeX
    (r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}", rf"{BOXED}\1{END}"),
    (r"\\(?:text|mathrm|mathbf|textbf|mathit|operatorname)\s*\{([^{}]*)\}", r"\1"),
    (r"(?<=\d)(?:\{,\}|\\[,;:! ]|~)(?=\d{3})", ","),
    (r"\\(?:times|cdot|ast)\b", "*"),
    (r"\\div\b", "/"),
    (r"\\(?:neq|ne)\b", "≠"),
    (r"\\(?:approx|equiv)\b", "="),
    (r"\\d?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"(\1)/(\2)"),
    (r"\\[a-zA-Z]+|\\[()\[\],;:! ]|\$", " "),
    # Markdown
    (r"(?<![\d*])\*\*(?=[^\s*])(.{1,400}?)(?<=[^\s*])\*\*(?![\d*])", rf"{BOLD}\1{END}"),
    (r"(?<![\w_])__(?=\S)(.{1,400}?)(?<=\S)__(?![\w_])", rf"{BOLD}\1{END}"),
    (r"(?<![\w*])\*(?=[^\s*])(.{1,400}?)(?<=[^\s*])\*(?![\w*])", r"\1"),
    (r"(?<![\w_])_(?=\S)(.{1,400}?)(?<=\S)_(?![\w_])", r"\1"),
    (r"`+", ""),
    (r"(?m)^[^\S\n]*(?:#{1,6}|>|[-*+•])\s+", ""),
    (r"\|", "\n"),
)
_COMPILED = tuple((re.compile(pattern, re.DOTALL if "~~" in pattern else 0), new) for pattern, new in _STEPS)


def marked_text(answer: str) -> str:
    """Give the answer without mark-up, boxed and bold pieces between marks, digits of any script as ASCII."""
    text = _ascii_numbers(html.unescape(answer))
    for pattern, new in _COMPILED:
        text = pattern.sub(new, text)
    return text


def plain_text(answer: str) -> str:
    """Give the answer as a person reads it: no mark-up, no marks, no blanks at the ends."""
    return re.sub(f"[{BOXED}{BOLD}{END}]", "", marked_text(answer)).strip()


def _ascii_numbers(text: str) -> str:
    text = re.sub("[\u2010-\u2015\u2212\ufe63\uff0d](?=\\s?\\d)", "-", text)
    return "".join(str(unicodedata.decimal(char)) if char.isdecimal() and not char.isascii() else char for char in text)
