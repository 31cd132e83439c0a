"""Rows of predictions as CSV, JSON lines or parquet: on a stream, or in a file that is whole or not there.

All formats have the same columns: `name`, `class` and `probability` of the best class, `class_2`, `probability_2` and
so on of the others, and `error`, which is empty unless the record could not be read.

**Names are not ours.** In JSON lines they are exact: JSON's escapes stand for all characters beyond visible ASCII. In
CSV, characters that a terminal obeys or that cannot be seen are escaped (`printable`), so a row is one line. And a cell
that a spreadsheet would take for a formula begins with an apostrophe. Parquet keeps names, but for bytes that are no
UTF-8.

Predictions say something about pictures that may be private: a file is for its owner alone (mode 0600).
"""

import csv
import io
import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dpfc_cli.errors import UserError, parameter, printable, quoted, unknown
from dpfc_cli.files import opened, publish, sync, temporary_beside
from dpfc_cli.outputs import check_new, exists, unwritable

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
    """What was written. errors: how many of the rows have one."""

    rows: int = 0
    errors: int = 0
    path: Path | None = None

    def count(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.rows += 1
            self.errors += row.error is not None


Blocks = Generator[list[Row], None, None]
"""Gives the rows, some at a time."""


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


def save(blocks: Blocks, top: int, path: Path, form: str | None) -> Saved:
    """Write all rows to a file, see `Predictions.save`. top: how many classes a row has."""
    kind = check_place(path, form)
    write, temporary, saved = _lines if kind in LINES else _parquet, temporary_beside(path), Saved(path=path)
    try:
        try:
            with (
                os.fdopen(opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,
                closing(blocks),
            ):
                write(file, _counted(blocks, saved), kind, top)
            sync(temporary)
            if not publish(temporary, path):
                raise exists(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error
    return saved


def _counted(blocks: Blocks, saved: Saved) -> Iterator[list[Row]]:
    for rows in blocks:
        saved.count(rows)
        yield rows


def _lines(file: IO[bytes], blocks: Iterable[list[Row]], form: str, top: int) -> None:
    file.write(header(form, top).encode())
    for rows in blocks:
        file.write("".join(line(row, form, top) for row in rows).encode())


def _parquet(file: IO[bytes], blocks: Iterable[list[Row]], form: str, top: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = [pa.float64() if name.startswith("probability") else pa.string() for name in columns(top)]
    schema = pa.schema(list(zip(columns(top), kinds, strict=True)))
    with pq.ParquetWriter(file, schema) as writer:
        for rows in _gathered(blocks):
            values = zip(*(_values(row, top, as_text=_utf8) for row in rows), strict=True)
            arrays = [pa.array(column, kind) for column, kind in zip(values, kinds, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


GROUP = 65_536
"""Rows of a row group."""


def _gathered(blocks: Iterable[list[Row]]) -> Iterator[list[Row]]:
    """Blocks of about `GROUP` rows: each is a row group, and small ones are slow to read."""
    held: list[Row] = []
    for rows in blocks:
        held += rows
        if len(held) >= GROUP:
            yield held
            held = []
    if held:
        yield held


def _values(row: Row, top: int, as_text: Callable[[str], str] = str) -> list[object]:
    """The values of a row, in the order of the columns. None where there is nothing."""
    pairs = zip(row.classes, row.probabilities, strict=True)
    ranked = [value for name, p in pairs for value in (as_text(name), float(f"{p:.{DIGITS}g}"))]
    error = None if row.error is None else as_text(row.error)
    return [as_text(row.name), *ranked, *([None] * (2 * top - len(ranked))), error]


def _utf8(text: str) -> str:
    """The text, if UTF-8 can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return printable(text)
    return text


def _cell(value: object) -> str:
    if not isinstance(value, str):
        return "" if value is None else repr(value)
    shown = printable(value)
    return f"'{shown}" if shown.lstrip().startswith(tuple(_FORMULA)) else shown
