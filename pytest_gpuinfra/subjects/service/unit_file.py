"""
A unit file with its drop-ins, as `systemctl cat` prints them one after the other, read as systemd does.

Source: systemd.unit(5), systemd.syntax(7), systemd.service(5) (257): a backslash at the end joins lines, comments
within a joined line are passed over, an empty assignment forgets what a list held before, the last value counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.subjects.service.unit import NO_SYSTEMD, NO_SYSTEMD_REASON
from pytest_gpuinfra.subjects.service.unit_words import split_assignments, split_words
from pytest_gpuinfra.subjects.verdict import Ending, Verdict
from pytest_gpuinfra.wire import text_lines

_PREFIXES = "@-:+!|"


@dataclass(frozen=True, slots=True)
class UnitFile:
    """
    The settings of a unit in effect.

    Attributes:
        files: Files in the order in which they count. Shape (n,); () where the text names none.
        settings: Values by (section, key) after resets, in order; joined lines are one.
        source: Where the text comes from.
    """

    files: tuple[str, ...]
    settings: Mapping[tuple[str, str], tuple[str, ...]]
    source: str

    def values(self, section: str, key: str) -> tuple[str, ...]:
        """Give all values of a setting that are in effect, in order; () if there are none."""
        return self.settings.get((section, key), ())

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """Every ExecStart as argument vector, without the special characters in front. Shape (n,)."""
        vectors = (split_words(value, self.source) for value in self.values("Service", "ExecStart"))
        return tuple((vector[0].lstrip(_PREFIXES), *vector[1:]) for vector in vectors if vector)

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of Environment=, the last assignment of a name; files of EnvironmentFile= come on top."""
        return self._assignments()[0]

    @property
    def dropped(self) -> tuple[str, ...]:
        """Words of Environment= that are no assignment, and lines with an open quote: systemd ignores them."""
        return self._assignments()[1]

    def _assignments(self) -> tuple[dict[str, str], tuple[str, ...]]:
        words: list[str] = []
        torn: list[str] = []
        for line in self.values("Service", "Environment"):
            try:
                words += split_words(line, self.source)
            except ParseError:  # a quote is not closed: the whole line is dropped
                torn.append(line)
        values, dropped = split_assignments(words)
        return values, (*dropped, *torn)


def parse_unit_file(reading: Reading, *, drop_in: bool = False) -> UnitFile:
    """
    Read `systemctl cat UNIT`, or one unit file.

    Args:
        reading: The text.
        drop_in: Whether it is one drop-in, which may be empty or hold comments alone: an empty one hides another of
            its name (systemd.unit(5)).

    Raises:
        FactUnavailable: systemd does not run there, or there is no such unit.
        ParseError: A line is neither a section, an assignment, nor a comment, or there is no section.
    """
    text = reading.require(remedy="is systemd installed on the target?")
    if NO_SYSTEMD.search(text) or NO_SYSTEMD.search(reading.stderr):
        raise FactUnavailable(reading.source, NO_SYSTEMD_REASON, remedy="ask where the service runs")
    text = reading.require_success(remedy="is there a unit of that name? (systemctl list-unit-files)")
    files: list[str] = []
    settings: dict[tuple[str, str], tuple[str, ...]] = {}
    section = ""
    for number, line in _joined_lines(text):
        if line.startswith(("#", ";")):
            path = line.lstrip("# ").strip()
            files += [path] if line.startswith("# /") and " " not in path else []
        elif line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif "=" in line and section:
            key, _, value = line.partition("=")
            name = (section, key.strip())
            settings[name] = (*settings.get(name, ()), value.strip()) if value.strip() else ()
        else:
            raise ParseError(reading.source, number, line, "neither a section, an assignment, nor a comment")
    if not section and not drop_in:
        raise ParseError(reading.source, 1, text, "no section: not a unit file")
    return UnitFile(tuple(files), settings, reading.source)


def judge_unit_file(unit: UnitFile) -> Verdict:
    """Judge a unit file with its drop-ins: a command in effect, and nothing of its environment dropped."""
    several = len(unit.commands) > 1 and (unit.values("Service", "Type") or ("",))[-1] != "oneshot"
    if unit.dropped:
        dropped = ", ".join(unit.dropped)
        return _verdict("wrong", f"systemd drops {dropped}: a value with blanks needs quotes around the assignment")
    if not unit.commands:
        return _verdict("wrong", "no ExecStart is in effect")
    if several:
        return _verdict("wrong", f"{len(unit.commands)} ExecStart are in effect: a drop-in empties the list first")
    return _verdict("ok", " ".join(unit.commands[-1]))


def _verdict(ending: Ending, observed: str) -> Verdict:
    return Verdict(
        ending=ending,
        subject="unit file and drop-ins",
        observed=observed,
        expected="one command, and every word of Environment= in effect",
        why="the service runs with other settings than its unit file seems to say, or does not start again",
        action="correct the line (systemctl cat shows all files), then daemon-reload and restart",
    )


def _joined_lines(text: str) -> list[tuple[int, str]]:
    lines: list[tuple[int, str]] = []
    begun: tuple[int, str] | None = None
    for number, raw in enumerate(text_lines(text), 1):
        line = raw.strip()
        if begun and line.startswith(("#", ";")):
            continue
        first, before = begun or (number, "")
        whole = f"{before} {line}".strip() if before else line
        if line.endswith("\\"):
            begun = (first, whole[:-1].rstrip())
            continue
        begun = None
        if whole:
            lines.append((first, whole))
    return lines + ([begun] if begun else [])
