"""
Secrets are masked in everything that is written: recording, reports, JUnit, Allure, terminal.

What is secret by name, form and place is one list, which the target uses, too (probe_mask.py). On top of that a
run knows secrets by value: the endpoints' keys, and the user information of their addresses.
Masking twice gives the same as masking once; JSON stays JSON, so that a masked recording can be judged again.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from pytest_gpuinfra.on_target.probe import probe_mask
from pytest_gpuinfra.on_target.probe.probe_names import MASK, OPAQUE

_SHORTEST = 4


class Masker:
    """
    Masks what looks like a secret, and secrets that are known.

    Args:
        known: Values that are secret whatever they look like, such as the endpoint's API key, in any encoding that
            encodings() gives; those below four characters cannot be told from text.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        words = {form for value in known if len(value) >= _SHORTEST for form in encodings(value)}
        ordered = sorted(words, key=lambda word: (-len(word), word))
        self._known = re.compile("|".join(map(re.escape, [MASK, *ordered]))) if ordered else None

    def known(self, text: str) -> str:
        """Mask the known values in a text, and nothing else."""
        return text if self._known is None else self._known.sub(MASK, text)

    def text(self, text: str) -> str:
        """Mask any text, a whole one; JSON stays JSON."""
        return str(probe_mask.mask_text(self.known(text)))  # type: ignore[no-untyped-call]

    def data(self, data: Any, name: str = "") -> Any:
        """Mask plain data: values below a telling name, and every text in it. Nothing is changed in place."""
        return probe_mask.mask_data(data, name, self.text)  # type: ignore[no-untyped-call]


def encodings(value: str) -> Iterator[str]:
    """Give a value and how it stands in URLs, JSON, HTML, Python, shells, and base64 (whole, or within more)."""
    raw = value.encode("utf-8", "surrogatepass")
    yield value
    for safe in ("", "/", "!$&'()*+,;=:@/"):
        percent = quote(raw, safe=safe)
        yield percent
        yield re.sub(r"%[0-9A-F]{2}", lambda match: match.group().lower(), percent)
    yield quote_plus(raw)
    for ascii_only in (True, False):
        escaped = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        yield from (escaped, escaped.replace("/", "\\/"), json.dumps(escaped)[1:-1])
    yield from (html.escape(value), html.escape(value, quote=False), repr(value)[1:-1])
    yield from (value.replace("'", "'\\''"), value.replace("'", "'\"'\"'"))
    if len(raw) >= 6:
        yield raw.hex()
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(raw).decode().rstrip("=")
            for shift in range(3) if len(raw) >= 10 else ():
                yield encode(b"\0" * shift + raw).decode()[4 if shift else 0 : (shift + len(raw)) // 3 * 4]


def secrets_of_address(address: str) -> list[str]:
    """Give what is secret of an address: its password, "user:password" (as Basic sends it), a lone long user."""
    rest = address.partition("://")[2]
    information = rest.rpartition("@")[0]
    if not information:
        return []
    user, sign, password = information.partition(":")
    if not sign:
        return [user, unquote(user)] if len(user) >= 12 else []
    return [password, unquote(password), information, f"{unquote(user)}:{unquote(password)}"]


_PLAIN = Masker()


def mask_text(text: str) -> str:
    """Mask what looks like a secret in any text."""
    return _PLAIN.text(text)


def mask_data(data: Any, name: str = "") -> Any:
    """Mask what looks like a secret in plain data, which stands under a name."""
    return _PLAIN.data(data, name)


def first_of(text: str, characters: int) -> str:
    """Give the beginning of a text; masked before it is cut, for half a secret is not known as one."""
    return text if len(text) <= characters else mask_text(text)[:characters]


def last_of(text: str, characters: int) -> str:
    """Give the end of a text; masked before it is cut, for a value without its name is not known as a secret."""
    return text if len(text) <= characters else mask_text(text)[-characters:]


def masked_values(text: str) -> Iterator[str]:
    """Give the values that are masked in a text, line by line, those below six characters left out."""
    masked = mask_text(text)
    if masked == text:
        return
    place = 0
    before, *after = masked.split(MASK)
    place = len(before)
    for piece in after:
        end = text.find(piece, place) if piece else len(text)
        if end < 0:
            return
        for line in text[place:end].splitlines():
            if len(line.strip()) >= _SHORTEST_VALUE:
                yield line.strip()
            yield from (word for word in _WORDS.split(line) if OPAQUE.match(word))
        place = end + len(piece)


_SHORTEST_VALUE = 6
_WORDS = re.compile(r"[\s\"',;=\\]+")
