"""A document on a terminal, and as aligned text where there is none.

Texts are never read as rich's markup, and they are `printable`: a text is one line, whatever is in it.
"""

from collections.abc import Callable, Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text

from dpfc_cli.errors import printable
from dpfc_cli.show.document import Block, Code, Curve, Document, Points, Rows, Table, Words

GAP = 2
"""Spaces between columns."""
NARROWEST = 16
"""A column of text is not made narrower than this."""


def write(document: Document, console: Console, warn: Callable[[str], None]) -> None:
    """Write a document. warn: told the words that are strong."""
    _title(document.title, console)
    for i, section in enumerate(document.sections):
        if console.is_terminal and section.title and (i or document.title):
            console.print()
        _title(section.title, console)
        for block in section.blocks:
            _write(block, console, warn)


def text(said: str, style: str = "") -> Text:
    """The text as it is: no markup, no emoji codes."""
    return Text(printable(said), style)


def _title(title: str, console: Console) -> None:
    if title:
        console.print(
            text(title, "bold") if console.is_terminal else text(f"# {title}"), soft_wrap=not console.is_terminal
        )


def _write(block: Block, console: Console, warn: Callable[[str], None]) -> None:
    match block:
        case Words() if block.strong:
            warn(block.text)
        case Words():
            console.print(text(block.text))
        case Points():
            for each in block.texts:
                console.print(text(f"- {each}"))
        case Rows():
            _title(block.title, console)
            _facts(block.rows, console)
        case Table():
            _title(block.title, console)
            _table(block, console)
        case Code():
            console.print(Text(block.text))
        case Curve():
            console.print(text(block.said))


def _facts(rows: Sequence[tuple[str, str]], console: Console) -> None:
    names = max(cell_len(printable(name)) for name, _ in rows)
    if not console.is_terminal:
        _plain(rows, 2, console)
    elif names + GAP + NARROWEST > console.width:
        _lines(rows, console)
    else:
        drawn = _drawn(header=False)
        drawn.add_column(no_wrap=True, style="bold")
        drawn.add_column(overflow="fold")
        # A word that would be broken, such as a digest, could not be copied: it has a line of its own, below.
        room = console.width - names - GAP
        long = [row for row in rows if max(map(cell_len, printable(row[1]).split()), default=0) > room]
        for name, said in (row for row in rows if row not in long):
            drawn.add_row(text(name), text(said))
        console.print(drawn)
        _lines(long, console)


def _table(table: Table, console: Console) -> None:
    """On a terminal a text column that says the same in every row is said once, above. Text is folded where the table
    is too wide, but for the names in the first column, which are copied. Where that is not enough, each name has a line
    of its own, and what is said of it stands below.
    """
    if not console.is_terminal:
        _plain([table.columns, *table.rows], table.left, console)
        return
    columns, rows, left = table.columns, table.rows, table.left
    alike = [i for i in range(1, left) if len(rows) > 1 and len({row[i] for row in rows}) == 1]
    if alike:
        console.print(text("; ".join(f"{columns[i]}: {rows[0][i]}" for i in alike)))
    kept = [i for i in range(len(columns)) if i not in alike]
    cells = [[printable(line[i]) for i in kept] for line in (columns, *rows)]
    natural = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    room = console.width - GAP * (len(kept) - 1)
    widths = _folded(cells, natural, sum(i < left for i in kept), room)
    if widths is None:
        for first, *line in cells[1:]:
            console.print(text(first, "bold"), soft_wrap=True)
            console.print(text("; ".join(f"{name}: {said}" for name, said in zip(cells[0][1:], line, strict=True))))
        return
    drawn = _drawn()
    for i, name, width in zip(kept, cells[0], widths, strict=True):
        drawn.add_column(
            text(name), justify="left" if i < left else "right", no_wrap=i >= left, width=width, overflow="fold"
        )
    for line in cells[1:]:
        drawn.add_row(*map(text, line))
    console.print(drawn)


def _folded(cells: Sequence[Sequence[str]], natural: Sequence[int], left: int, room: int) -> list[int] | None:
    """How wide columns are in a room: the widest of the first `left` ones give way. None if that is not enough."""
    widths = list(natural)
    words = [max(cell_len(word) for line in cells for word in line[i].split() or [""]) for i in range(left)]
    least = [*words[:1], *(min(longest, NARROWEST) for longest in words[1:])]
    while sum(widths) > room:
        able = [i for i in range(left) if widths[i] > least[i]]
        if not able:
            return None
        widths[max(able, key=widths.__getitem__)] -= 1
    return widths


def _drawn(header: bool = True) -> Drawn:
    return Drawn(show_header=header, box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)


def _lines(rows: Sequence[tuple[str, str]], console: Console) -> None:
    for name, said in rows:
        # A word, such as a digest, is copied whole where the terminal itself breaks it.
        word = " " not in said and cell_len(printable(f"{name}: {said}")) > console.width
        console.print(Text.assemble(text(name, "bold"), ": ", "" if word else text(said)))
        if word:
            console.print(text(said), soft_wrap=True)


def _plain(rows: Sequence[Sequence[str]], left: int, console: Console) -> None:
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        spaces = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        padded = [cell + gap if i < left else gap + cell for i, (cell, gap) in enumerate(zip(row, spaces, strict=True))]
        console.print(Text("  ".join(padded).rstrip()), soft_wrap=True)
