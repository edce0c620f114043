"""
A systemd unit as the running systemd holds it, from `systemctl show`.

Source: systemctl(1) and org.freedesktop.systemd1(5) (219 to 257): "EnvironmentFiles=PATH (ignore_errors=yes)", one
line a file; "ExecStart={ path=... ; argv[]=... ; ignore_errors=no ; ... ; pid=N ; ... }", one line a command, without
the quotes of the unit file. The properties come in systemd's own order; one that is not set may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.subjects.service.unit_words import split_assignments, split_words
from pytest_gpuinfra.wire import integer, text_lines

NO_SYSTEMD = re.compile(
    r"Failed to connect to (?:system scope )?bus(?: via local transport)?: (?:No such file|Host is down|No medium)"
    r"|System has not been booted with systemd|Running in chroot|Failed to get D-Bus connection"
    r"|systemctl: (?:command )?not found",
    re.IGNORECASE,
)
"""What systemctl says where systemd is not process 1."""

NO_SYSTEMD_REASON = "systemd is not process 1 here"
"""The reason given then."""

_OF_A_UNIT = re.compile(
    r"Id|Names|Description|Type|Result|User|Group|FragmentPath|DropInPaths|MainPID|NRestarts|NeedDaemonReload"
    r"|(?:Load|Active|Sub|UnitFile)State|Exec\w+|Environment\w*|\w+Timestamp\w*|Restart\w*|Condition\w+|Memory\w+"
)
_FILE = re.compile(r"(?P<path>.*?)(?: \(ignore_errors?=(?P<optional>yes|no)\))?")
_COMMAND = re.compile(r"\{ path=(?P<path>.*?) ; argv\[\]=(?P<argv>.*?) ; (?:ignore_errors|flags)=.*\}")
_REMEDY = "is systemd the init of this target? (`systemctl is-system-running`)"


@dataclass(frozen=True, slots=True)
class EnvironmentFile:
    """
    One file that a unit takes variables from.

    Attributes:
        path: As systemd shows it.
        optional: Whether the unit starts without it ("-" before it in the unit file).
    """

    path: str
    optional: bool


@dataclass(frozen=True, slots=True)
class UnitState:
    """
    One unit as the running systemd sees it.

    Attributes:
        name: Unit name, "sglang-qwen.service"; its Id where it was not asked by name.
        values: First value of each property, verbatim.
        commands: Every ExecStart as argument vector. Shape (n,).
        environment: Variables of Environment=.
        dropped: Words of Environment= that are no assignment: systemd ignores them. Shape (n,).
        environment_files: Shape (n,).
        source: The command that showed it.
    """

    name: str
    values: Mapping[str, str]
    commands: tuple[tuple[str, ...], ...]
    environment: Mapping[str, str]
    dropped: tuple[str, ...]
    environment_files: tuple[EnvironmentFile, ...]
    source: str

    @property
    def load_state(self) -> str:
        """systemd's word: "loaded", "not-found", "masked", "bad-setting", "error"; "" if it was not asked."""
        return self.values.get("LoadState", "")

    @property
    def active_state(self) -> str:
        """systemd's word: "active", "reloading", "inactive", "failed", "activating", "deactivating"."""
        return self.values.get("ActiveState", "")

    @property
    def sub_state(self) -> str:
        """systemd's word, by type of unit: "running", "dead", "exited", "auto-restart", ..."""
        return self.values.get("SubState", "")

    @property
    def unit_file_state(self) -> str:
        """systemd's word: "enabled", "disabled", "static", "masked", ...; "" if there is no file."""
        return self.values.get("UnitFileState", "")

    @property
    def active(self) -> bool | None:
        """Whether it is active; None if the property was not shown."""
        return None if "ActiveState" not in self.values else self.active_state == "active"

    @property
    def exists(self) -> bool:
        """Whether systemd found a unit of that name."""
        return self.load_state != "not-found"

    @property
    def main_pid(self) -> int | None:
        """Main process; None if it has none, or the property was not shown."""
        return self.number("MainPID") or None

    @property
    def started_us(self) -> int:
        """Microseconds from boot to the last start; 0 if it was not started since boot."""
        keys = ("ExecMainStartTimestampMonotonic", "ActiveEnterTimestampMonotonic")
        return max(self.number(key) or 0 for key in keys)

    @property
    def restarts(self) -> int | None:
        """Restarts by systemd itself; None where this systemd does not count them."""
        return self.number("NRestarts")

    def required(self, key: str) -> str:
        """
        Give a property.

        Raises:
            FactUnavailable: It was not shown: what is missing is unknown.
        """
        if key not in self.values:
            raise FactUnavailable(self.source, f"it shows no {key}", remedy=_REMEDY)
        return self.values[key]

    @property
    def enabled(self) -> bool:
        """
        Whether its own file is enabled.

        Raises:
            FactUnavailable: It was not shown.
        """
        return self.required("UnitFileState") in ("enabled", "enabled-runtime", "alias", "indirect")

    @property
    def without_effect(self) -> bool:
        """
        Whether it does not run, did not run since boot, and will not be started at the next boot.

        Raises:
            FactUnavailable: One of these was not shown.
        """
        for key in ("UnitFileState", "ExecMainStartTimestampMonotonic", "ActiveEnterTimestampMonotonic"):
            if not (key.startswith("Exec") and not self.name.endswith(".service")):
                self.required(key)
        return (
            self.active_state == "inactive"
            and self.started_us == 0
            and self.unit_file_state in ("", "disabled", "masked", "static", "linked")
        )

    def words(self, key: str) -> tuple[str, ...]:
        """
        Give the words of a property that is a list, such as After; () if it is empty.

        Raises:
            FactUnavailable: It was not shown.
        """
        return tuple(self.required(key).split())

    def number(self, key: str) -> int | None:
        """Give a property that is a number; None if it is empty or was not shown."""
        return integer(self.values.get(key, ""))

    def __str__(self) -> str:
        words = [
            self.load_state,
            f"{self.active_state} ({self.sub_state})",
            self.unit_file_state or "no unit file",
        ]
        words.append("started since boot" if self.started_us else "not started since boot")
        return ", ".join(words)


def parse_unit_state(name: str, reading: Reading) -> UnitState:
    """
    Read the output of `systemctl show -p Id,LoadState,... UNIT`.

    Raises:
        FactUnavailable: systemctl could not be run, or systemd does not run on the target.
        ParseError: The output lacks a property that every unit has, or a number is none.
    """
    unit = parse_unit_properties(reading, name)
    for key in ("LoadState", "ActiveState", "SubState"):
        if key not in unit.values:
            raise ParseError(reading.source, 0, reading.text or "", f"no property {key}")
    for key in ("ExecMainStartTimestampMonotonic", "ActiveEnterTimestampMonotonic", "NRestarts", "MainPID"):
        text = unit.values.get(key, "")
        if text and unit.number(key) is None:
            raise ParseError(reading.source, 0, f"{key}={text}", "not a number")
    return unit


def parse_unit_properties(reading: Reading, name: str = "") -> UnitState:
    """
    Read any output of `systemctl show` for one unit.

    Raises:
        FactUnavailable: systemd does not run there, or it printed nothing.
        ParseError: A line is no property, or a property has another shape.
    """
    text = reading.require(remedy="is systemd installed on the target?")
    if NO_SYSTEMD.search(text) or NO_SYSTEMD.search(reading.stderr):
        raise FactUnavailable(reading.source, NO_SYSTEMD_REASON, remedy="ask where the service runs")
    lines = [line for line in text_lines(reading.require_success(remedy=_REMEDY)) if line.strip()]
    if not lines:
        raise FactUnavailable(reading.source, "it printed no property", remedy=_REMEDY)
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate(lines, 1):
        key, sign, value = line.partition("=")
        if not sign or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", key):
            raise ParseError(reading.source, number, line, "not a property of a unit")
        pairs.append((key, value))
    if not any(_OF_A_UNIT.fullmatch(key) for key, _ in pairs):
        raise ParseError(reading.source, 1, lines[0], "none of a unit's properties")
    words = [word for key, value in pairs if key == "Environment" for word in split_words(value, reading.source)]
    environment, dropped = split_assignments(words)
    values: dict[str, str] = {}
    for key, value in pairs:
        values.setdefault(key, value)
    return UnitState(
        name or values.get("Id", ""),
        values,
        tuple(_command(reading.source, value) for key, value in pairs if key == "ExecStart" and value),
        environment,
        dropped,
        tuple(_environment_file(value) for key, value in pairs if key == "EnvironmentFiles" and value),
        reading.source,
    )


def _command(source: str, value: str) -> tuple[str, ...]:
    match = _COMMAND.match(value)
    if not match:
        raise ParseError(source, 0, value, "not a command of a unit")
    try:
        return split_words(match["argv"], source)
    except ParseError:  # its quotes are gone already
        return tuple(match["argv"].split())


def _environment_file(value: str) -> EnvironmentFile:
    match = _FILE.fullmatch(value)
    path, word = (match["path"], match["optional"]) if match else (value, None)
    return EnvironmentFile(path, word == "yes")
