"""The pair matrix in the terminal."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pytest_gpuinfra.report.pair_matrix import PairCell, PairMatrix
from pytest_gpuinfra.report.pair_picture import summary

_STYLES = {"right": "green", "error": "yellow", "not seen": "yellow", "not_tested": "dim"}


def pair_table(matrix: PairMatrix, alias: str, console: Console) -> RenderableType:
    """Make the table of a host's pairs: rows are sources, columns destinations; a list where it does not fit."""
    parts: list[RenderableType] = [Text(f"\n{alias}: GPU pairs, from row to column: {summary(matrix)}", "bold")]
    width = max(7, *(len(_words(cell).plain) for cell in matrix.cells.values()))
    if (width + 2) * len(matrix.devices) + 9 <= console.width:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("")
        for device in matrix.devices:
            table.add_column(device, justify="right", no_wrap=True)
        for src in matrix.devices:
            cells = [Text("-", "dim") if src == dst else _words(matrix.cells[src, dst]) for dst in matrix.devices]
            table.add_row(Text(src, "bold"), *cells)
        parts.append(table)
    else:
        shown = [(pair, cell) for pair, cell in matrix.cells.items() if cell.outcome != "right"]
        for (src, dst), cell in shown[:24]:
            parts.append(Text(f"  {src} to {dst}: ") + _words(cell) + Text(f" by {', '.join(cell.mechanisms)}", "dim"))
        if len(shown) > 24:
            parts.append(Text(f"  and {len(shown) - 24} more pairs", "dim"))
    for name, (outcome, count) in matrix.mechanisms.items():
        if outcome != "right":
            style = _STYLES.get(outcome, "red")
            parts.append(
                Text(f"  {name}: ") + Text(f"{outcome.replace('_', ' ')} in {count} of {matrix.pairs} pairs", style)
            )
    return Group(*parts)


def _words(cell: PairCell) -> Text:
    style = _STYLES.get(cell.outcome, "bold red")
    if cell.outcome == "right":
        return Text("right" if cell.gb_s is None else f"{cell.gb_s:.0f} GB/s", style)
    return Text(cell.word, style)
