"""
`nvidia-smi --query-gpu=... --format=csv`, with or without its header.

Source: nvidia-smi(1) (580): values are separated by ", " and never quoted; the header repeats the fields,
with units in brackets; with nounits the units are left out of the values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.subjects.gpu.gpu_value import GpuValue
from pytest_gpuinfra.subjects.gpu.nvidia_smi import smi_text
from pytest_gpuinfra.subjects.gpu.table import GpuRow, GpuTable, canonical_name
from pytest_gpuinfra.wire import text_lines

SMI_FIELDS = ("index", "pci.bus_id", "uuid", "name", "driver_version")
_NUMERIC = re.compile(
    r"index$|count$|memory\.|utilization\.|power\.(?:draw|limit)|temperature\.|fan\.speed|pcie\.|ecc\.errors\.|clocks\.[a-z]"
)
_KNOWN = re.compile(
    r"(?:index|name|uuid|serial|count|timestamp|driver_version|vbios_version|pstate|persistence_mode|compute_mode)\b"
    r"|gpu_|(?:memory|utilization|pcie?|power|temperature|clocks|ecc|fan|mig|fabric|retired_pages|remapped_rows|inforom)\."
    r"|clocks_(?:event|throttle)_reasons\."
)
_FIELD = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*(?: \[[^\]]+\])?")


def parse_gpu_query(reading: Reading, columns: Sequence[str] | None = None) -> GpuTable:
    """
    Read the CSV that nvidia-smi prints.

    Args:
        reading: Output of the command.
        columns: Fields that were asked for, where the output has no header; None where it has one.

    Raises:
        FactUnavailable: nvidia-smi printed a message in place of data, or no GPU.
        ParseError: A row has another number of values than there are fields, or there is no header.
    """
    lines = [line for line in text_lines(smi_text(reading)) if line.strip()]
    start = 0
    if columns is None:
        columns = _cells(lines[0])
        if not all(_FIELD.fullmatch(name) for name in columns) or not any(_KNOWN.match(name) for name in columns):
            raise ParseError(reading.source, 1, lines[0], "no header of field names")
        start = 1
    elif _cells(lines[0]) and all(
        canonical_name(a) == canonical_name(b) for a, b in zip(_cells(lines[0]), columns, strict=False)
    ):
        start = 1
    rows = []
    for number, line in enumerate(lines[start:], start + 1):
        cells = _cells(line)
        if len(cells) != len(columns):
            raise ParseError(reading.source, number, line, f"{len(cells)} values for {len(columns)} fields")
        values = {canonical_name(name): GpuValue(cell) for name, cell in zip(columns, cells, strict=True)}
        for name, value in values.items():
            if _NUMERIC.match(name) and value.known and value.number is None:
                raise ParseError(reading.source, number, line, f"{name} is no number")
        rows.append(GpuRow(values, reading.source))
    if not rows:
        raise FactUnavailable(reading.source, "it lists no GPU", remedy="read the kernel log for NVRM")
    versions = {row.values["driver_version"].text for row in rows if "driver_version" in row.values}
    return GpuTable(tuple(rows), driver_version=versions.pop() if len(versions) == 1 else None)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(",")]
