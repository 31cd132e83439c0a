"""Rows of predictions as CSV, JSON lines or parquet: on a stream, or in a file that is whole or not there.

All formats have the same columns: `name`, `class` and `probability` of the best class, `class_2`, `probability_2` and
so on of the others, and `error`, which is empty unless the record could not be read.

**Names are not ours.** In JSON lines they are exact: JSON's escapes stand for all characters beyond visible ASCII. In
CSV, characters that a terminal obeys or that cannot be seen are escaped (`printable`), so a row is one line. And a cell
that a spreadsheet would take for a formula begins with an apostrophe. Parquet keeps names, but for bytes that are no
UTF-8.

**A file that is resumed.** CSV and JSON lines are written to `NAME.DIGEST.partial`. The digest is one of head, source
and options, so only the same call finds the file. It has as many rows as it has whole lines, and goes on after them.
Predictions say something about pictures that may be private: the file is for its owner alone.
"""

import csv
import hashlib
import io
import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dpfc_cli.errors import Note, UserError, parameter, printable, quoted, unknown
from dpfc_cli.files import claimed, opened, publish, sync, temporary_beside
from dpfc_cli.folders import PARTIAL
from dpfc_cli.outputs import check_new, exists, unwritable
from dpfc_cli.version import __version__

FORMATS = ("csv", "jsonl", "parquet")
LINES = ("csv", "jsonl")
"""The formats with a line for each row."""
DIGITS = 6
"""Significant digits of a probability."""
_FORMULA = "=+-@＝＋－＠"
"""With these a spreadsheet begins a formula."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """The prediction for one record. name: what the source calls it. classes: the best one first; none if there is an
    error. probabilities: of these classes. error: why the record could not be read; None if it could.
    """

    name: str
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]
    error: str | None = None

    @property
    def best(self) -> str | None:
        """The best class; None if there is an error."""
        return self.classes[0] if self.classes else None


@dataclass(kw_only=True)
class Saved:
    """What was written. errors: how many of the rows have one. resumed: how many rows were there already, of a call
    that was stopped.
    """

    rows: int = 0
    errors: int = 0
    resumed: int = 0
    path: Path | None = None

    def count(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.rows += 1
            self.errors += row.error is not None


Blocks = Callable[[int], Generator[list[Row], None, None]]
"""Gives the rows from a number on, some at a time."""


def format_of(path: Path | None, given: str | None) -> str:
    """The format: the given one, or that of the file's name; CSV without a file. UserError where there is no such one,
    or the name does not say it.
    """
    if given is not None:
        if given not in FORMATS:
            raise unknown("format", given, FORMATS)
        return given
    if path is None:
        return FORMATS[0]
    ending = path.suffix.lower().removeprefix(".")
    if ending not in FORMATS:
        raise UserError(
            f"The name {quoted(path)} does not say in which format to write.",
            f"End it in {', '.join(f'.{each}' for each in FORMATS)}, or give {parameter('form')}.",
            parameter="out",
        )
    return ending


def columns(top: int) -> list[str]:
    ranked = [f"{name}{'' if i == 1 else f'_{i}'}" for i in range(1, top + 1) for name in ("class", "probability")]
    return ["name", *ranked, "error"]


def header(form: str, top: int) -> str:
    return f"{','.join(columns(top))}\n" if form == "csv" else ""


def line(row: Row, form: str, top: int) -> str:
    values = _values(row, top)
    if form == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(map(_cell, values))
        return text.getvalue()
    return f"{json.dumps(dict(zip(columns(top), values, strict=True))).replace(chr(127), chr(92) + 'u007f')}\n"


def check_place(path: Path, form: str | None) -> str:
    """The format of a file that is to be made. UserError if it cannot be made."""
    check_new(path)
    kind = format_of(path, form)
    if path.exists() or path.is_symlink():
        raise exists(path)
    return kind


def save(blocks: Blocks, top: int, path: Path, form: str | None, identity: Callable[[], list[object]]) -> Saved:
    """Write all rows to a file, see `Predictions.save`. top: how many classes a row has. identity: what a file that was
    begun must have been made of.
    """
    kind = check_place(path, form)
    try:
        saved = _lines(blocks, top, path, kind, identity()) if kind in LINES else _parquet(blocks, top, path)
    except OSError as error:
        raise unwritable(path, error) from error
    saved.path = path
    return saved


def _lines(blocks: Blocks, top: int, path: Path, form: str, identity: list[object]) -> Saved:
    said = json.dumps([identity, form, __version__], sort_keys=True)
    partial = path.with_name(f"{path.name}.{hashlib.sha256(said.encode()).hexdigest()[:12]}{PARTIAL}")
    first = header(form, top)
    descriptor = claimed(partial)
    if descriptor is None:
        raise UserError(
            f"{quoted(partial)} is being written by another process.", "Wait until it has ended.", code="busy"
        )
    with os.fdopen(descriptor, "r+b") as file:
        saved = _found(file, first, form, top)
        try:
            with closing(blocks(saved.rows)) as more:
                for rows in more:
                    file.write("".join(line(row, form, top) for row in rows).encode())
                    file.flush()
                    saved.count(rows)
        except KeyboardInterrupt as stopped:
            kept = f"{saved.rows:,} rows are kept in '{printable(str(partial))}'. The same command resumes."
            stopped.add_note(Note(kept))
            raise
        os.fsync(file.fileno())
        _publish(partial, path)
    return saved


def _found(file: IO[bytes], first: str, form: str, top: int) -> Saved:
    """What an earlier call has written. The file then ends after its last whole line."""
    saved, whole = Saved(), len(first.encode())
    if file.read(whole) != first.encode():
        file.seek(0)
        file.truncate()
        file.write(first.encode())
        return saved
    for text in file:
        row = _read(text, form, top)
        if row is None:
            break
        saved.count([row])
        whole += len(text)
    file.seek(whole)
    file.truncate()
    saved.resumed = saved.rows
    return saved


def _read(text: bytes, form: str, top: int) -> Row | None:
    """The row of a line; None if the line is not whole. Only its name and its error are told."""
    if not text.endswith(b"\n"):
        return None
    with suppress(ValueError, LookupError, csv.Error, UnicodeDecodeError):
        if form == "csv":
            (cells,) = csv.reader([text.decode()], strict=True)
            known = dict(zip(columns(top), cells, strict=True))
        else:
            known = json.loads(text)
        return Row(name=str(known["name"]), classes=(), probabilities=(), error=known["error"] or None)
    return None


def _parquet(blocks: Blocks, top: int, path: Path) -> Saved:
    """Parquet has its table of contents at the end. A file without it is of no use, so nothing goes on."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = [pa.float64() if name.startswith("probability") else pa.string() for name in columns(top)]
    schema = pa.schema(list(zip(columns(top), kinds, strict=True)))
    temporary, saved = temporary_beside(path), Saved()
    try:
        with (
            os.fdopen(opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,
            pq.ParquetWriter(file, schema) as writer,
        ):
            for rows in _gathered(blocks(0)):
                values = zip(*(_values(row, top, as_text=_utf8) for row in rows), strict=True)
                arrays = [pa.array(column, kind) for column, kind in zip(values, kinds, strict=True)]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
                saved.count(rows)
        sync(temporary)
        _publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return saved


GROUP = 65_536
"""Rows of a row group."""


def _gathered(blocks: Generator[list[Row], None, None]) -> Iterator[list[Row]]:
    """Blocks of about `GROUP` rows: each is a row group, and small ones are slow to read."""
    held: list[Row] = []
    with closing(blocks) as each:
        for rows in each:
            held += rows
            if len(held) >= GROUP:
                yield held
                held = []
    if held:
        yield held


def _publish(temporary: Path, path: Path) -> None:
    if not publish(temporary, path):
        raise exists(path)


def _values(row: Row, top: int, as_text: Callable[[str], str] = str) -> list[Any]:
    """The values of a row, in the order of the columns. None where there is nothing."""
    pairs = zip(row.classes, row.probabilities, strict=True)
    ranked: list[Any] = [value for name, p in pairs for value in (as_text(name), float(f"{p:.{DIGITS}g}"))]
    error = None if row.error is None else as_text(row.error)
    return [as_text(row.name), *ranked, *([None] * (2 * top - len(ranked))), error]


def _utf8(text: str) -> str:
    """The text, if UTF-8 can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return printable(text)
    return text


def _cell(value: Any) -> str:
    if not isinstance(value, str):
        return "" if value is None else repr(value)
    shown = printable(value)
    return f"'{shown}" if shown.lstrip().startswith(tuple(_FORMULA)) else shown
