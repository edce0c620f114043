"""
Files that come from outside: opened, bounded, decoded and parsed here alone, each fault with file, place and reason.

Recordings, merged folders, inventories, prompts and a user's unit files may be written by anybody: by a hostile host, a
node that writes into a shared folder, a slip of the hand. What is read is a regular file of a bounded size (links are
followed), UTF-8 with or without a byte order mark, and of a bounded depth; numbers are finite and fit into 64 bits.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias
from xml.etree import ElementTree

from pytest_gpuinfra.errors import GpuInfraError
from pytest_gpuinfra.wire import TOKEN, WireError, deep_place, load, refuse_odd

MOST = 4 << 20
"""Bytes of a file that a person writes, at most."""

DEPTH = 64
"""Levels of nesting in JSON, TOML and XML, at most."""

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_DOTTED = re.compile(
    r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){%d}""" % DEPTH  # noqa: UP031  braces of its own
)

ErrorType: TypeAlias = type[GpuInfraError]


def read_bytes(path: Path, error: ErrorType, *, most: int = MOST, remedy: str = "") -> bytes:
    """
    Read a regular file whole.

    Args:
        path: The file; a link is followed.
        error: What to raise.
        most: Bytes that it may hold; counted while it is read.
        remedy: What a person can do about it.
    """
    try:
        _refuse_special(os.stat(path), path, error, remedy)
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            _refuse_special(os.fstat(descriptor), path, error, remedy)
            data = stream.read(most + 1)
    except OSError as failure:
        raise error(f"{path}: cannot be read: {failure.strerror}", remedy=remedy) from None
    except ValueError as failure:  # a name with a null character, or that cannot be encoded
        raise error(f"{str(path)!r}: cannot be read: {failure}", remedy=remedy) from None
    if len(data) > most:
        raise error(f"{path}: is too large: more than {most >> 20} MiB", remedy=remedy)
    return data


def _refuse_special(status: os.stat_result, path: Path, error: ErrorType, remedy: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for test, name in _KINDS if test(status.st_mode)), "no regular file")
        raise error(f"{path}: is {kind}, and only regular files are read", remedy=remedy)


def read_text(path: Path, error: ErrorType, *, most: int = MOST, remedy: str = "") -> str:
    """Read a regular file as UTF-8, without a byte order mark; arguments as of `read_bytes`."""
    data = read_bytes(path, error, most=most, remedy=remedy)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as failure:
        line = data.count(b"\n", 0, failure.start) + 1
        reason = f"is not UTF-8 text (byte {failure.start}, line {line})"
        raise error(f"{path}: {reason}", remedy="save it as UTF-8") from None


def parse_json(text: str, source: str, error: ErrorType) -> Any:
    """
    Parse JSON in which nothing is odd: no key twice, no NaN, no number beyond 64 bits, no half of a surrogate pair.

    Args:
        text: The document.
        source: Where it comes from, for messages.
        error: What to raise: with the line of a wrong sign, or the path of a wrong value.
    """
    try:
        return load(text, depth=DEPTH)
    except WireError as failure:
        raise _refused(failure, source, error) from None


def _refused(failure: WireError, source: str, error: ErrorType) -> GpuInfraError:
    return error(f"{source}: {failure.place}{': ' if failure.place else ''}{failure.reason}")


def members_of(text: str, name: str) -> Iterator[tuple[str, int, int]]:
    """
    Find the members of an object that stands in a JSON document's own object, without parsing what is in them.

    Args:
        text: The document; it may be damaged within the members.
        name: Key of the object.

    Yields:
        Key, beginning and end of each member's value, if that is an object or array.
    """
    depth = 0
    keys = ["", "", ""]
    began = 0
    for token in TOKEN.finditer(text):
        sign = token[0]
        if sign[0] == '"':
            if depth in (1, 2):
                keys[depth] = sign[1:-1]
        elif sign in "[{":
            depth += 1
            if depth == 3:
                began = token.start()
        else:
            depth -= 1
            if depth == 2 and keys[1] == name:
                yield keys[2], began, token.end()


def parse_toml(text: str, source: str, error: ErrorType) -> dict[str, Any]:
    """Parse TOML; arguments and refusals as of `parse_json`, and control characters."""
    dotted = _DOTTED.search(text)
    if dotted:
        line = text.count("\n", 0, dotted.start()) + 1
        raise error(f"{source}: is nested deeper than {DEPTH} levels (line {line})")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as failure:
        raise error(f"{source}: is not TOML: {failure}") from None
    except RecursionError:
        raise error(f"{source}: is nested deeper than {DEPTH} levels ({deep_place(text, DEPTH)})") from None
    except ValueError as failure:  # a number of thousands of digits
        raise error(f"{source}: is not TOML: {failure}") from None
    try:
        refuse_odd(data, depth=DEPTH, control=True)
    except WireError as failure:
        raise _refused(failure, source, error) from None
    return data


def parse_xml(text: str, source: str, error: ErrorType) -> ElementTree.Element:
    """Parse XML that declares nothing of its own, such as entities; arguments and refusals as of `parse_json`."""
    if re.search("<!(?:DOCTYPE|ENTITY)", text):
        raise error(f"{source}: declares a document type, which no report of a test run has")
    parser = ElementTree.XMLParser(target=_Shallow(lambda: error(f"{source}: is nested deeper than {DEPTH} levels")))
    try:
        parser.feed(text)
        root: ElementTree.Element = parser.close()
    except ElementTree.ParseError as failure:
        raise error(f"{source}: is not XML: {failure}") from None
    return root


class _Shallow(ElementTree.TreeBuilder):
    """Builds a tree of at most DEPTH levels."""

    def __init__(self, too_deep: Callable[[], Exception]) -> None:
        super().__init__()
        self._too_deep = too_deep
        self._depth = 0

    def start(self, tag: Any, attrs: Any, /) -> ElementTree.Element:
        """Open an element."""
        self._depth += 1
        if self._depth > DEPTH:
            raise self._too_deep()
        return super().start(tag, attrs)

    def end(self, tag: Any, /) -> ElementTree.Element:
        """Close it."""
        self._depth -= 1
        return super().end(tag)
