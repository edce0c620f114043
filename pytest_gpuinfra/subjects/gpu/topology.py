"""
`nvidia-smi topo`: how GPUs and network cards are connected (-m), and which peer access the driver grants (-p2p).

Source: nvidia-smi topo --help and its legends (drivers 418 to 610). The header is underlined by escape sequences
even into a pipe, columns are separated by tabs (spaces in copies), `-p2p` begins each line with a blank, the last
columns of `-m` may be empty, and rows of network cards have no affinities.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuinfra.capture.reading import Reading
from pytest_gpuinfra.errors import FactUnavailable, ParseError
from pytest_gpuinfra.subjects.gpu.nvidia_smi import smi_text
from pytest_gpuinfra.subjects.verdict import Ending, Verdict
from pytest_gpuinfra.wire import text_lines

_GRANTS = {
    "OK": "granted",
    "CNS": "Chipset not supported",
    "GNS": "GPU not supported",
    "TNS": "Topology not supported",
    "NS": "Not supported",
    "DR": "Disabled by regkey",
    "U": "Unknown",
}
"""Words of the -p2p matrices, and the legend's meaning of each."""
_UNTOLD = "Unknown"

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LABEL = r"(?:GPU|NIC)\d+|mlx\d+_\w+|(?:ibp|bnxt_re|irdma|hfi1_)\w+"
_COLUMN = re.compile(rf"CPU Affinity|NUMA Affinity|GPU NUMA ID|{_LABEL}")
_ROW = re.compile(rf"\s*(?P<label>{_LABEL})(?P<cells>[\s\t].*|$)")
_COMMAND = re.compile(r"nvidia-smi topo\s+-\w+(?:\s+[a-z]\b)?")
_LEGEND = re.compile(r"\s*NIC\d+:\s*\S+")
_AFFINITIES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")


@dataclass(frozen=True, slots=True)
class Topology:
    """
    One matrix.

    Attributes:
        kind: "link" for kinds of connection, "p2p" for peer access that the driver grants (it has no affinities).
        cells: Word by (row, column), itself ("X") left out; words kept verbatim.
        gpus: GPUs by nvidia-smi's index, "GPU0" first; network cards left out.
    """

    kind: str
    cells: Mapping[tuple[str, str], str]
    gpus: tuple[str, ...]

    @property
    def gpu_pairs(self) -> Mapping[tuple[str, str], str]:
        """Word by directed pair of GPUs. Shape (n(n-1),)."""
        return {pair: word for pair, word in self.cells.items() if pair[0] in self.gpus and pair[1] in self.gpus}


def parse_topology(reading: Reading) -> tuple[Topology, ...]:
    """
    Read the output of `nvidia-smi topo -m` or `-p2p`, or of several of them.

    Returns:
        The matrices, in order. Shape (n >= 1,).

    Raises:
        FactUnavailable: nvidia-smi printed a message in place of a matrix.
        ParseError: There is no matrix, or a row does not fit its header.
    """
    lines = text_lines(_ESCAPE.sub("", smi_text(reading)))
    matrices: list[tuple[tuple[str, ...], list[tuple[int, str, list[str]]]]] = []
    for number, line in enumerate(lines, 1):
        header = _header(line)
        if header:
            matrices.append((header, []))
            continue
        row = _ROW.fullmatch(line)
        if row and matrices and not _LEGEND.fullmatch(line):
            matrices[-1][1].append((number, row["label"], _cells(row["cells"])))
    if not matrices:
        raise ParseError(reading.source, 1, lines[0], "no matrix")
    return tuple(_matrix(reading, header, rows) for header, rows in matrices)


def judge_topology(matrices: Sequence[Topology], gpus: int, *, required: bool = False) -> Verdict:
    """
    Judge which peer access the driver grants. Kinds of connection alone say nothing about it.

    Args:
        matrices: What was printed.
        gpus: GPUs that CUDA is to use.
        required: Whether every directed pair must have it.
    """
    grants = next((matrix for matrix in matrices if matrix.kind == "p2p"), None)
    shown = max((matrix.gpus for matrix in matrices), key=len, default=())
    if grants is not None:
        shown = grants.gpus
        refused = {pair: word for pair, word in grants.gpu_pairs.items() if word != "OK"}
        said = ", ".join(
            f"{src}-{dst} {word} ({_GRANTS.get(word, _UNTOLD)})" for (src, dst), word in sorted(refused.items())[:12]
        )
        known = {pair for pair, word in refused.items() if _GRANTS.get(word, _UNTOLD) != _UNTOLD}
        if known:
            return _verdict("wrong" if required else "skip", f"not granted: {said}")
        if refused:
            return _verdict("error", f"it cannot be told: {said}")
    if required and len(shown) < gpus:
        return _verdict("error", f"nvidia-smi topo shows {len(shown)} of {gpus} GPUs")
    if len(shown) < 2:
        return _verdict("skip", f"{len(shown)} GPU: no pair to check")
    if grants is not None:
        return _verdict("ok", f"all {len(grants.gpu_pairs)} directed pairs granted, which is no proof of a copy")
    if required:
        return _verdict("error", "kinds of connection alone do not tell of peer access")
    kinds = sorted({kind for matrix in matrices for kind in matrix.gpu_pairs.values()})
    return _verdict("ok", f"{len(shown)} GPUs, connected by {', '.join(kinds)}")


def _verdict(ending: Ending, observed: str) -> Verdict:
    return Verdict(
        ending=ending,
        subject="peer access by nvidia-smi topo",
        observed=observed,
        expected="granted for every directed pair",
        why="without it every copy between GPUs is staged through host memory",
        action="see sockets, switches and the driver in `nvidia-smi topo -m`; GNS is the driver's own choice",
    )


def _header(line: str) -> tuple[str, ...] | None:
    """Read a header line; a command that was pasted in front of it is passed over."""
    columns = tuple(match[0] for match in _COLUMN.finditer(line))
    cells = [column for column in columns if column not in _AFFINITIES]
    if not cells:
        return None
    rest = _COLUMN.sub("", line)
    command = _COMMAND.search(rest)
    junk = rest[command.end() if command else 0 :].strip()
    return columns if not junk and (len(columns) > 1 or line[:1].isspace()) else None


def _cells(text: str) -> list[str]:
    """Split a row's cells: by tabs where there are any, since then a cell may be empty."""
    return [cell.strip() for cell in text.lstrip(" ").removeprefix("\t").split("\t")] if "\t" in text else text.split()


def _matrix(reading: Reading, header: tuple[str, ...], rows: list[tuple[int, str, list[str]]]) -> Topology:
    labels = [column for column in header if column not in _AFFINITIES]
    cells: dict[tuple[str, str], str] = {}
    for number, label, words in rows:
        if len(words) < len(labels):
            raise ParseError(reading.source, number, f"{label} {' '.join(words)}", "a row with too few cells")
        cells |= {(label, column): word for column, word in zip(labels, words, strict=False) if column != label}
    missing = [label for label in labels if label not in {row[1] for row in rows}]
    if missing:
        raise FactUnavailable(reading.source, f"the matrix is cut off: no row of {', '.join(missing)}")
    kind = "link" if len(labels) < len(header) else "p2p"
    return Topology(kind, cells, tuple(label for label in labels if label.startswith("GPU")))
