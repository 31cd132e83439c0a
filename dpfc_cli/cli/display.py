"""What the commands show: results go to stdout; remarks, progress, warnings and errors go to stderr.

Texts may have parts that come from users or files (names of classes, files, folders, messages of other libraries). So
they are shown as `dpfc_cli.show.terminal` shows them: no markup, one line each.
"""

import csv
import json
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import typer
from rich.console import Console
from rich.text import Text

from dpfc_cli.cli import stop
from dpfc_cli.errors import UserError, printable
from dpfc_cli.progress import Progress
from dpfc_cli.show import terminal
from dpfc_cli.show.document import Document, Facts, page
from dpfc_cli.show.terminal import text

out = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
err = Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())
quiet = False
"""Whether remarks and progress are left out (`dpfc --quiet`)."""
held: list[str] | None = None
"""Warnings that wait for the end of a command with --json; None: they are shown at once."""

LINE_EVERY = 10.0
"""Seconds between progress lines where there is no terminal."""
LOOKED_BACK = 30.0
"""Seconds that a rate is the mean of. Work on the same things may become faster or slower while a stage lasts."""


def show(document: Document, full: bool = True) -> None:
    """A document on stdout, or its short form. Its warnings go to stderr."""
    shown = document if full else document.short
    terminal.write(shown, out, warn)
    if shown != document:
        say("All of it: --full")


def facts(title: str, rows: Sequence[tuple[str, str]]) -> None:
    show(page(title, Facts(rows)))


def say(said: str) -> None:
    if not quiet:
        err.print(text(said))


def warn(said: str) -> None:
    if held is not None:
        held.append(said)
        return
    err.print(Text.assemble(("Warning:", "yellow"), " ", text(said)))


def tell_held() -> None:
    """Show the warnings that wait."""
    global held
    waiting, held = held or [], None
    for each in waiting:
        warn(each)


def fail(error: UserError, notes: Sequence[str] = (), spell: Callable[[str], str] = str, as_json: bool = False) -> int:
    """An error on stderr: what is wrong and why, what stands, and what to do. Returns its exit code.

    spell: how the user types the name of a parameter. as_json: one JSON object, with the warnings before it.
    """
    what, remedy = error.text(spell)
    if as_json:
        said = {"code": error.code, "exit_code": error.exit_code, "message": what, "notes": list(notes)}
        _print_json({"error": {**said, "remedy": remedy, "fields": error.fields}, "warnings": held or []}, sys.stderr)
    else:
        err.print(Text.assemble(("Error:", "red"), " ", text(what)))
        for line in filter(None, (*notes, remedy)):
            err.print(text(line))
    return error.exit_code


def can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirmed(question: str) -> bool:
    """Whether the answer to a question on stderr is yes. Enter means no.

    KeyboardInterrupt at the end of the input, and on Ctrl-C.
    """
    try:
        return typer.confirm(printable(question), default=False, err=True)
    except typer.Abort:
        # What follows begins on a line of its own.
        err.print()
        raise KeyboardInterrupt from None


@contextmanager
def stages(what: str, unit: str | Callable[[str], str]) -> Iterator[Progress]:
    """Progress as library functions tell it: a bar with rate and time left on a terminal, else a line now and then.

    what: the stage until another one is told. unit: what all stages count, or what a stage counts, by its name. "B" is
    for bytes, which are shown as MB.
    """

    def begun(what: str, done: float) -> _Stage:
        return _Stage(what, unit if isinstance(unit, str) else unit(what), done)

    stage = begun(what, 0.0)

    def told(what: str, done: int, total: int | None) -> None:
        nonlocal stage
        stop.check()
        if what != stage.what:
            stage = begun(what, done)
        advance(stage, done, total or 0)

    with _shown(what) as advance:
        yield told


class _Stage:
    """A stage at work and its rate. done: how much of it was there before it began."""

    def __init__(self, what: str, unit: str, done: float) -> None:
        self.what, self.unit = what, unit
        self._seen = deque([(time.monotonic(), done)])

    def rate(self, done: float) -> float:
        now, seen = time.monotonic(), self._seen
        if now > seen[-1][0] + 1:
            seen.append((now, done))
        while len(seen) > 1 and seen[1][0] <= now - LOOKED_BACK:
            seen.popleft()
        began, found = seen[0]
        return max(done - found, 0.0) / max(now - began, 1e-9)

    def counted(self, value: float) -> str:
        return f"{value / 1e6:,.1f}" if self.unit == "B" else f"{value:,.0f}"

    def rated(self, rate: float) -> str:
        if self.unit == "B":
            return f"{self.counted(rate)} MB/s"
        return f"{rate:,.0f} {self.unit}/s" if rate >= 10 or not rate else f"{rate:.2g} {self.unit}/s"


@contextmanager
def _shown(what: str) -> Iterator[Callable[[_Stage, int, int], None]]:
    """What shows how much of a stage is done, and of how much (0: not known)."""
    if quiet:
        yield lambda stage, done, total: None
    elif err.is_terminal:
        with _bar(what) as shown:
            yield shown
    else:
        yield _lines()


@contextmanager
def _bar(what: str) -> Iterator[Callable[[_Stage, int, int], None]]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        # A stage may have the name of a file: markup would take a part of it for a style.
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[count]}", markup=False),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as progress:
        task, named = progress.add_task(printable(what), total=None, count="", rate=""), what

        def shown(stage: _Stage, done: int, total: int) -> None:
            nonlocal named
            if stage.what != named:
                named = stage.what
                progress.reset(task, description=printable(named))
            known = done or total
            count = f"{stage.counted(done)}/{stage.counted(total) if total else '?'}" if known else ""
            rate = stage.rated(stage.rate(done)) if known else ""
            progress.update(task, completed=done, total=total or None, count=count, rate=rate)

        yield shown


def _lines() -> Callable[[_Stage, int, int], None]:
    last = time.monotonic()

    def shown(stage: _Stage, done: int, total: int) -> None:
        nonlocal last
        now, rate = time.monotonic(), stage.rate(done)
        if now - last < LINE_EVERY:
            return
        last = now
        left = f", {(total - done) / rate:,.0f} s left" if rate > 0 and total else ""
        of = f" of {stage.counted(total)}" if total else ""
        size = " MB" if stage.unit == "B" else ""
        # A stage that begins with something done has no rate yet.
        known = f" ({stage.rated(rate)}{left})" if rate or not done else ""
        say(f"{stage.what}: {stage.counted(done)}{of}{size}{known}")

    return shown


def as_json(value: Any) -> None:
    """One JSON object on stdout, with null for infinity, which JSON does not know.

    It is visible ASCII: JSON's own escapes stand for all other characters, so programs read every name as it is.
    Warnings that it has are not told again.
    """
    if held and isinstance(value, dict):
        held[:] = [each for each in held if each not in value.get("warnings", ())]
    _print_json(value, sys.stdout)


def _print_json(value: Any, stream: TextIO) -> None:
    shown = json.dumps(_finite(value), allow_nan=False, default=str).replace("\x7f", "\\u007f")
    print(shown, file=stream)


def as_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Rows as CSV on stdout. Values of other names are left out, and what is not known is empty."""
    writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: printable(value) if isinstance(value, str) else value for name, value in row.items()})


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and math.isinf(value) else value
