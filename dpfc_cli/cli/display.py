"""What the commands show: results go to stdout; remarks, progress, warnings and errors go to stderr.

Texts may have parts that come from users or files (names of classes, files, folders, messages of other libraries). So
they are shown as `dpfc_cli.show.terminal` shows them: no markup, one line each.
"""

import csv
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TextIO

import typer
from rich.console import Console
from rich.text import Text

from dpfc_cli import progress
from dpfc_cli.cli import stop
from dpfc_cli.errors import UserError, printable, spelled
from dpfc_cli.show import terminal
from dpfc_cli.show.document import Document, Rows, page
from dpfc_cli.show.terminal import text
from dpfc_cli.structs import Json, Values

out = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
err = Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())
quiet = False
"""Whether remarks and progress are left out (`dpfc --quiet`)."""
program = False
"""Whether a program reads what a command shows (`--json`)."""
spelling: Callable[[str], str] = str
"""How the user of a command types the name of a parameter."""
held: list[str] | None = None
"""Warnings that the JSON object of a command will have; None: they are shown at once."""


def show(document: Document, full: bool = True) -> None:
    """A document on stdout, or its short form; its values, if a program reads them. Its warnings go to stderr."""
    progress.close()
    if program:
        as_json(document.values)
        return
    shown = document if full else document.short
    terminal.write(shown, out, warn)
    if shown != document:
        say("All of it: --full")


def facts(title: str, rows: Sequence[tuple[str, str]], values: Values | None = None) -> None:
    show(page(title, Rows(rows), values=values))


def begin(as_json: bool = False, silent: bool = False, spell: Callable[[str], str] = str) -> None:
    """A command begins or ends. Ctrl-C that Python dropped is seen where there is progress."""
    global quiet, program, held, spelling
    spelling = spell
    quiet, program, held = silent or as_json, as_json, [] if as_json else None
    progress.wanted, progress.interrupt = not quiet, stop.check


def line(said: str) -> None:
    err.print(text(said))


def say(said: str) -> None:
    if not quiet:
        progress.close()
        line(said)


def warn(said: str) -> None:
    said = spelled(said, spelling)
    if held is not None:
        held.append(said)
        return
    progress.close()
    err.print(Text.assemble(("Warning:", "yellow"), " ", text(said)))


def fail(error: UserError, notes: Sequence[str] = (), spell: Callable[[str], str] = str, as_json: bool = False) -> int:
    """An error on stderr: what is wrong and why, what stands, and what to do. Returns its exit code.

    spell: how the user types the name of a parameter. as_json: one JSON object, with the warnings before it.
    """
    what, remedy = error.text(spell)
    progress.close()
    if as_json:
        said = {"code": error.code, "exit_code": error.exit_code, "message": what, "notes": list(notes)}
        fields = {**error.fields, **({"problems": error.listed(spell)} if error.causes else {})}
        _print_json({"error": {**said, "remedy": remedy, "fields": fields}, "warnings": held or []}, sys.stderr)
    else:
        err.print(Text.assemble(("Error:", "red"), " ", text(what)))
        for each in filter(None, (*notes, *([spelled(text, spell) for text in error.problems] or [remedy]))):
            line(each)
    return error.exit_code


def can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirmed(question: str) -> bool:
    """Whether the answer to a question on stderr is yes. Enter means no.

    KeyboardInterrupt at the end of the input, and on Ctrl-C.
    """
    progress.close()
    try:
        return typer.confirm(printable(question), default=False, err=True)
    except typer.Abort:
        # What follows begins on a line of its own.
        err.print()
        raise KeyboardInterrupt from None


def as_json(value: Values) -> None:
    """One JSON object on stdout, with null for infinity, which JSON does not know.

    It is visible ASCII: JSON's own escapes stand for all other characters, so programs read every name as it is.
    It has the warnings, each once. Later ones are shown.
    """
    global held
    told, held = held or (), None
    _print_json({**value, "warnings": list(dict.fromkeys([*value.get("warnings", ()), *told]))}, sys.stdout)


def _print_json(value: Json, stream: TextIO) -> None:
    shown = json.dumps(_finite(value), allow_nan=False, default=str).replace("\x7f", "\\u007f")
    print(shown, file=stream)


def as_csv(columns: Sequence[str], rows: Iterable[Values]) -> None:
    """Rows as CSV on stdout. Values of other names are left out, and what is not known is empty."""
    writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: printable(value) if isinstance(value, str) else value for name, value in row.items()})


def _finite(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and math.isinf(value) else value
