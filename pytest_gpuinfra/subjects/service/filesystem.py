"""
File systems as a program sees them: mounts, sizes, and whether files can be read.

Source: proc(5) (/proc/PID/mounts: octal escapes in paths), statvfs(3); the samples are probe_reading.py's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.subjects.service.process import fields_of
from pytest_gpuinfra.wire import WireError, load_object, text_lines


@dataclass(frozen=True, slots=True)
class Mount:
    """
    One mount.

    Attributes:
        path: Where it is mounted.
        source: Device, or the file system's own word.
        kind: Type of the file system.
        options: Options in effect.
    """

    path: str
    source: str
    kind: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Space:
    """
    Size of a file system.

    Attributes:
        path: A path on it.
        size_bytes: All of it.
        available_bytes: What a user who is not root can still write.
    """

    path: str
    size_bytes: int
    available_bytes: int

    @property
    def size_gib(self) -> float:
        """Size in GiB, 2^30 bytes."""
        return self.size_bytes / (1 << 30)

    @property
    def available_gib(self) -> float:
        """Space left in GiB, 2^30 bytes."""
        return self.available_bytes / (1 << 30)


def parse_mounts(reading: Reading) -> tuple[Mount, ...]:
    """
    Read /proc/PID/mounts.

    Raises:
        FactUnavailable: It cannot be read.
        ParseError: A line is no mount, or there is none.
    """
    mounts = []
    for number, line in enumerate(text_lines(reading.require(remedy="is /proc mounted there?")), 1):
        fields = [re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), field) for field in line.split(" ")]
        if len(fields) < 4:
            raise ParseError(reading.source, number, line, "not a mount")
        mounts.append(Mount(fields[1], fields[0], fields[2], tuple(fields[3].split(","))))
    if not mounts:
        raise ParseError(reading.source, 0, "", "no mount")
    return tuple(mounts)


def mount_of(path: str, mounts: tuple[Mount, ...]) -> Mount | None:
    """Give the mount that a path lies on, the last one at the longest path; None if that is the root's."""
    found = None
    for mount in mounts:
        inside = path == mount.path or path.startswith(mount.path.rstrip("/") + "/")
        if mount.path != "/" and inside and (found is None or len(mount.path) >= len(found.path)):
            found = mount
    return found


def parse_space(path: str, reading: Reading) -> Space:
    """
    Read statvfs(3) of a path.

    Raises:
        FactUnavailable: There is no such path, or it cannot be asked.
        ParseError: The answer has another shape.
    """
    seen = fields_of(reading, remedy=f"is {path} there, and mounted?")
    return Space(path, seen.integer("size"), seen.integer("available"))


def parse_sample(reading: Reading) -> Mapping[str, int | str]:
    """
    Read what became of reading the beginning of some files.

    Returns:
        Bytes read by file name, or the error; {} for a directory without a file.

    Raises:
        FactUnavailable: The directory cannot be listed.
        ParseError: The answer has another shape.
    """
    text = reading.require(remedy="is it mounted, and readable for this user?")
    try:
        found = load_object(text)
    except WireError as error:
        raise ParseError(reading.source, 1, text, str(error)) from None
    if not all(type(value) in (int, str) for value in found.values()):
        raise ParseError(reading.source, 1, text, "not what became of reading files")
    return found


def parse_number(reading: Reading, name: str) -> float:
    """
    Give one number of what the probe put into JSON, such as a file's mtime.

    Raises:
        FactUnavailable: It cannot be read.
        ParseError: There is no such number.
    """
    return fields_of(reading).number(name)


def require_listing(reading: Reading) -> tuple[str, ...]:
    """
    Give the names of a directory; () if there is no such directory.

    Raises:
        FactUnavailable: It cannot be read.
    """
    if reading.missing:
        return ()
    if reading.text is None:
        raise FactUnavailable(reading.source, reading.error or "no answer")
    return tuple(reading.text.split("\n")) if reading.text else ()
