"""Tables, remarks, progress and errors: results on stdout, everything else on stderr."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

out = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
err = Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())

LINE_EVERY = 10.0
"""Seconds between progress lines where there is no terminal."""
GAP = 2
"""Between the columns of a table."""
NARROWEST = 16
"""What a column of text is not squeezed below."""


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """A rich table on a terminal, plain aligned text elsewhere. The first `left` columns are text, the others
    numbers.

    On a terminal a text column that says the same in every row is said once, above. No cell is broken but the first
    column's, between words; where that does not fit, each row is a block of lines.
    """
    if not out.is_terminal:
        _plain(title, columns, rows, left)
        return
    out.print(f"[bold]{escape(title)}[/bold]")
    alike = [i for i in range(1, left) if len(rows) > 1 and len({row[i] for row in rows}) == 1]
    if alike:
        out.print(escape("; ".join(f"{columns[i]}: {rows[0][i]}" for i in alike)))
    kept = [i for i in range(len(columns)) if i not in alike]
    cells = [[line[i] for i in kept] for line in (columns, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    words = max(cell_len(word) for line in cells for word in line[0].split() or [""])
    if max(words, min(widths[0], NARROWEST)) + sum(widths[1:]) + GAP * (len(kept) - 1) > out.width:
        for line in cells[1:]:
            _lines([*zip(cells[0], line, strict=True), ("", "")])
        return
    drawn = _drawn()
    for i, column in zip(kept, cells[0], strict=True):
        drawn.add_column(escape(column), justify="left" if i < left else "right", no_wrap=i > 0)
    for line in cells[1:]:
        drawn.add_row(*map(escape, line))
    out.print(drawn)


def _drawn(header: bool = True) -> Table:
    """An empty table, whose columns stand `GAP` apart."""
    return Table(show_header=header, box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)


def _lines(rows: Sequence[tuple[str, str]]) -> None:
    for name, value in rows:
        out.print(f"[bold]{escape(name)}[/bold]: {escape(value)}" if name else "")


def _plain(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> None:
    cells = [list(columns)] * any(columns) + [list(row) for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    print(f"# {title}")  # noqa: T201
    for row in cells:
        line = [
            cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(line).rstrip())  # noqa: T201


def facts(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Name and value pairs."""
    if not out.is_terminal:
        _plain(title, ("", ""), rows, 2)
        return
    out.print(f"[bold]{escape(title)}[/bold]")
    if max(cell_len(name) for name, _ in rows) + GAP + NARROWEST > out.width:
        _lines(rows)
        return
    drawn = _drawn(header=False)
    drawn.add_column(no_wrap=True, style="bold")
    drawn.add_column(overflow="fold")
    for name, value in rows:
        drawn.add_row(escape(name), escape(value))
    out.print(drawn)


def epsilon(value: float) -> str:
    """ε for a table: rounded up to four decimals, ∞ where e^ε is beyond float64, and a bound where it is no more than
    the least that the accounting answers.
    """
    if value >= 700:
        return "∞"
    shown = sigma(value)
    return "≤ 0.0001" if shown == "0.0001" else shown


def sigma(value: float) -> str:
    """A noise multiplier for a table: rounded up to four decimals, so that it is enough.

    The 1e-9 of it by which the accounting errs on the private side does not count.
    """
    return f"{math.ceil(value * (1 - 1.1e-9) * 1e4) / 1e4:.4f}"


def say(text: str) -> None:
    """A remark on stderr."""
    err.print(escape(text))


def warn(text: str) -> None:
    """A warning on stderr."""
    err.print(f"[yellow]Warning:[/yellow] {escape(text)}")


def fail(what: str, remedy: str) -> None:
    """An error on stderr: what and why, then what to do."""
    err.print(f"[red]Error:[/red] {escape(what)}")
    if remedy:
        err.print(escape(remedy))


class Meter(Protocol):
    """Told how much is done so far. what: the stage, if there are several."""

    def __call__(self, done: float, total: float, what: str | None = None) -> None: ...


Stages = Callable[[str, int, int | None], None]


@contextmanager
def meter(what: str, unit: str) -> Iterator[Meter]:
    """A progress bar with rate and time left on a terminal, a line now and then elsewhere. "B": bytes, shown as MB."""
    if not err.is_terminal:
        yield _Lines(what, unit)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[count]}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task(what, total=None, count="", rate="")
        clock = _Clock(what)

        def advance(done: float, total: float, what: str | None = None) -> None:
            if clock.turn(what):
                progress.reset(task, description=escape(clock.what))
            count = f"{_counted(done, unit)}/{_counted(total, unit) if total else '?'}"
            rate = _rated(clock.rate(done), unit)
            progress.update(task, completed=done, total=total or None, count=count, rate=rate)

        yield advance


@contextmanager
def stages(what: str, unit: str) -> Iterator[Stages]:
    """A meter for what has several stages, each told by name: (what, done, total or None). what: until the first."""
    with meter(what, unit) as advance:
        yield lambda what, done, total: advance(done, total or 0, what)


def _counted(value: float, unit: str) -> str:
    return f"{value / 1e6:,.1f}" if unit == "B" else f"{value:,.0f}"


def _rated(rate: float, unit: str) -> str:
    if unit == "B":
        return f"{_counted(rate, unit)} MB/s"
    return f"{rate:,.0f} {unit}/s" if rate >= 10 or not rate else f"{rate:.2g} {unit}/s"


class _Clock:
    """The rate of the stage at work."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.started = time.monotonic()

    def turn(self, what: str | None) -> bool:
        """Begin another stage, unless it is the one at work."""
        if what is None or what == self.what:
            return False
        self.what, self.started = what, time.monotonic()
        return True

    def rate(self, done: float) -> float:
        return done / max(time.monotonic() - self.started, 1e-9)


class _Lines:
    def __init__(self, what: str, unit: str) -> None:
        self._clock, self._unit = _Clock(what), unit
        self._last = time.monotonic()

    def __call__(self, done: float, total: float, what: str | None = None) -> None:
        self._clock.turn(what)
        now = time.monotonic()
        if now - self._last >= LINE_EVERY:
            self._last = now
            rate, unit = self._clock.rate(done), self._unit
            left = f", {(total - done) / rate:,.0f} s left" if rate > 0 and total else ""
            of = f" of {_counted(total, unit)}" if total else ""
            size = " MB" if unit == "B" else ""
            say(f"{self._clock.what}: {_counted(done, unit)}{of}{size} ({_rated(rate, unit)}{left})")
