"""What a command shows, as values: facts and tables. They are shown on the terminal, or written as Markdown."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from dpfc_cli.cli import display
from dpfc_cli.errors import printable
from dpfc_cli.markdown import escaped, table

NARROWEST, WIDEST = 8, 24
"""Columns of a bar on a terminal."""


@dataclass(frozen=True)
class Facts:
    """Name and value pairs."""

    title: str
    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Table:
    """The first `left` columns are text, the others numbers. bar: what a terminal with room shows beside each row, by
    the number of the row and how many columns there are for it.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    bar: Callable[[int, int], str] | None = None


Block = Facts | Table


def show(blocks: Sequence[Block]) -> None:
    """Blocks on stdout."""
    for block in blocks:
        if isinstance(block, Facts):
            display.facts(block.title, block.rows)
            continue
        columns, rows = block.columns, block.rows
        width = min(_room(block), WIDEST)
        if block.bar is not None and width >= NARROWEST:
            columns, rows = (*columns, ""), [(*row, block.bar(i, width)) for i, row in enumerate(rows)]
        display.table(block.title, columns, rows, block.left)


def markdown(blocks: Sequence[Block], warnings: Sequence[str] = ()) -> None:
    """Blocks on stdout, as a Markdown text with tables."""
    lines = []
    for block in blocks:
        lines += [f"### {escaped(block.title)}", ""]
        columns: Sequence[str]
        rows: Sequence[Sequence[str]]
        if isinstance(block, Facts):
            columns, rows, left = ("", ""), block.rows, 2
        else:
            columns, rows, left = block.columns, block.rows, block.left
        lines += [table(columns, rows, left), ""]
    lines += [line for warning in warnings for line in (f"> **Warning:** {escaped(warning)}", "")]
    sys.stdout.write("\n".join(lines))


def bar(part: float, width: int) -> str:
    """A part of 1 as a bar."""
    filled = round(min(max(part, 0.0), 1.0) * width)
    return "█" * filled + "░" * (width - filled)


def between(interval: tuple[float, float], value: float, ends: tuple[float, float], width: int) -> str:
    """An interval and a value in it, on a scale that goes from one end to the other."""
    size = (ends[1] - ends[0]) or 1.0
    low, middle, high = (
        min(max(round((each - ends[0]) / size * (width - 1)), 0), width - 1)
        for each in (interval[0], value, interval[1])
    )
    cells = ["─" if low <= i <= high else "·" for i in range(width)]
    cells[low], cells[high] = "├", "┤"
    cells[middle] = "●"
    return "".join(cells)


def _room(table: Table) -> int:
    """Columns that the terminal has beside a table."""
    if not display.out.is_terminal:
        return 0
    lines = (table.columns, *table.rows)
    widths = [max(cell_len(printable(cell)) for cell in column) for column in zip(*lines, strict=True)]
    return display.out.width - sum(widths) - display.GAP * len(widths)
