"""What a command shows, as values: facts and tables. They are shown on the terminal, or written as Markdown."""

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from dpfc_cli.cli import display
from dpfc_cli.errors import printable

EIGHTHS = " ▏▎▍▌▋▊▉█"
BAR = 12
"""Columns of a bar on a terminal."""


@dataclass(frozen=True)
class Facts:
    """Name and value pairs."""

    title: str
    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Table:
    """The first `left` columns are text, the others numbers. bars: a bar beside each row, on a terminal with room."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    bars: Sequence[str] | None = None


Block = Facts | Table


def show(blocks: Sequence[Block]) -> None:
    """Blocks on stdout."""
    for block in blocks:
        if isinstance(block, Facts):
            display.facts(block.title, block.rows)
            continue
        columns, rows = block.columns, block.rows
        if block.bars is not None and _fits(block):
            columns, rows = (*columns, ""), [(*row, bar) for row, bar in zip(rows, block.bars, strict=True)]
        display.table(block.title, columns, rows, block.left)


def markdown(blocks: Sequence[Block], warnings: Sequence[str] = ()) -> None:
    """Blocks on stdout, as a Markdown text with tables."""
    lines = []
    for block in blocks:
        lines += [f"### {_escaped(block.title)}", ""]
        if isinstance(block, Facts):
            columns, rows, left = ("", ""), block.rows, 2
        else:
            columns, rows, left = block.columns, block.rows, block.left
        rules = ["---" if i < left else "---:" for i in range(len(columns))]
        lines += [_row(map(_escaped, columns)), _row(rules), *(_row(map(_escaped, row)) for row in rows), ""]
    lines += [line for warning in warnings for line in (f"> **Warning:** {_escaped(warning)}", "")]
    sys.stdout.write("\n".join(lines))


def bar(part: float) -> str:
    """A bar of a part of 1."""
    eighths = round(min(max(part, 0.0), 1.0) * BAR * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (EIGHTHS[rest] if rest else "")).ljust(BAR)


def between(low: float, value: float, high: float, ends: tuple[float, float], width: int = 24) -> str:
    """An interval with its value, on a scale that goes from one end to the other."""
    first, last = ends
    size = (last - first) or 1.0
    a, b, c = (min(max(round((each - first) / size * (width - 1)), 0), width - 1) for each in (low, value, high))
    cells = ["─" if a <= i <= c else " " for i in range(width)]
    cells[a], cells[c] = "├", "┤"
    cells[b] = "●"
    return "".join(cells)


def _fits(table: Table) -> bool:
    if not display.out.is_terminal or not table.bars:
        return False
    lines = [[*row, extra] for row, extra in zip((table.columns, *table.rows), ("", *table.bars), strict=True)]
    widths = [max(cell_len(printable(cell)) for cell in column) for column in zip(*lines, strict=True)]
    return sum(widths) + display.GAP * (len(widths) - 1) <= display.out.width


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|~])", r"\\\1", printable(text))
