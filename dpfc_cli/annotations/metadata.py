"""`metadata.csv` and `metadata.jsonl`: a table beside pictures, as the ImageFolder of Hugging Face reads it.

A row is about one picture, which one of its columns names, relative to the table's folder. The other columns may hold
anything: labels, or whom a picture shows. A table may also have another name, and lie elsewhere.
"""

import csv
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dpfc_cli.annotations.classes import usual_label
from dpfc_cli.annotations.csv_files import csv_in
from dpfc_cli.annotations.split_files import There, inside
from dpfc_cli.errors import GUARDED, bad_record, counted, missing, parameter, quoted, secret
from dpfc_cli.files import json_of
from dpfc_cli.reading import readable

NAMES = ("metadata.csv", "metadata.jsonl")
FILE_NAMES = ("file_name", "filename", "file", "path", "image", "image_id", "image_path", "file_path")
"""What the column of the pictures is called, in any capitals. The first one that is there is taken."""
FILE_NAME = FILE_NAMES[0]
LETTERS = "If letters became '?': save the table as 'CSV UTF-8'."
LARGEST = 1 << 30
"""Bytes of the largest table that is read."""

Value = Any
"""A text or None in a CSV; whatever a value is in JSON-lines."""


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """A table."""

    files: tuple[Path, ...]  # the picture of each row
    lines: tuple[int, ...]  # where the row stands
    folder: Path  # where the names begin
    columns: dict[str, list[Value]]  # the values of all other columns, by name; None where a row has none
    wrong: dict[int, str]  # what is wrong with lines that name no file of the folder, or one again: they are no rows


def metadata_of(folder: Path) -> Path | None:
    """The table in a folder, or None. ValueError if there are two of them."""
    found = [folder / name for name in NAMES if (folder / name).is_file()]
    if len(found) > 1:
        raise ValueError(f"'{folder}' holds both {' and '.join(NAMES)}: which one is right?")
    return found[0] if found else None


class Needed(NamedTuple):
    """A column that a table must have."""

    given: str | None  # its name, if the user says it
    usual: Sequence[str]  # its usual names, in small letters
    what: str  # what it holds, for messages
    option: str  # the parameter that names it
    form: str = ""  # how the value of that is written, beside the name


def columns_in(path: Path, columns: Sequence[str], *needed: Needed) -> list[str]:
    """The given columns of a table, or the first ones of a usual name, in any capitals. UserError for all that are not
    there, and if several have a usual name of labels. columns: those that it has.
    """
    names = [usual_column(columns, each.usual) if each.given is None else each.given for each in needed]
    if any(each.option == "label_column" and each.given is None for each in needed):
        usual_label(columns, path)
    lacking = [each for each, name in zip(needed, names, strict=True) if name not in columns]
    if lacking:
        wanted = (f"column{f' {each.given!r}' if each.given else ''} of {each.what}" for each in lacking)
        raise missing(
            # Its first line may be about a record, where the names of columns are missing.
            f"{quoted(path)} has no {' and no '.join(wanted)}. It has {counted(len(columns), 'other column')}: "
            f"{secret(*columns)}.",
            "Its first line must name the columns. Say which one it is: "
            f"{', '.join(f'{parameter(each.option)} {each.form}NAME' for each in lacking)}. Or give it a usual name: "
            f"{'; or '.join(', '.join(each.usual or (str(each.given),)) for each in lacking)}.",
        )
    return [str(name) for name in names]


def usual_column(columns: Iterable[str], usual: Sequence[str]) -> str | None:
    """The first column of a usual name; None if there is none."""
    known = {column.lower(): column for column in columns}
    return next((known[name] for name in usual if name in known), None)


def read(
    path: Path,
    folder: Path | None = None,
    file_column: str | None = None,
    endings: Collection[str] = (),
    also: Sequence[Needed] = (),
    there: There = os.path.lexists,
) -> Metadata:
    """Read a table.

    Args:
        path: the table.
        folder: where its names begin. Default: in its own folder.
        file_column: the column of these names, if it is not a usual one.
        endings: what the names of files may end in where the table leaves it out.
        also: other columns that a CSV must have.
        there: whether there is a file of some name.

    Raises:
        UserError: it cannot be read, or lacks a column.

    """
    top = path.parent if folder is None else folder
    files: dict[Path, int] = {}
    wrong: dict[int, str] = {}
    columns: dict[str, list[Value]] = {}
    pictures = Needed(file_column, FILE_NAMES, "pictures", "file_column")
    with _readable(path, "picture"):
        called: str | None = None
        for number, row in rows(path, "picture"):
            if called is None:
                [called, *_] = columns_in(path, list(row), pictures, *(() if _of_lines(path) else also))
            name = row.pop(called, None)
            file = _file(top, name, endings, there)
            if file is None or file in files:
                why = "a file again: two records" if file else f"no file of '{top}' under '{called}'"
                wrong[number] = f"names {why}{f' ({secret(name)})' if name else ''}"
                continue
            for column, value in row.items():
                values = columns.setdefault(column, [])
                values.extend([None] * (len(files) - len(values)))
                values.append(value)
            files[file] = number
    for values in columns.values():
        values.extend([None] * (len(files) - len(values)))
    return Metadata(files=tuple(files), lines=tuple(files.values()), folder=top, columns=columns, wrong=wrong)


def refuse_lines(path: Path, wrong: Mapping[int, str]) -> None:
    """UserError if something is wrong with lines of a table, for all of them at once. wrong: what it is, by line."""
    if wrong:
        first, *more = (f"line {number} {what}" for number, what in sorted(wrong.items()))
        others = f"; and {len(more):,} more: {secret(*more)}" if more else ""
        raise bad_record(
            f"In {quoted(path)} {first}{others}. {GUARDED}", f"Correct these lines, or take them out. {LETTERS}"
        )


def _file(top: Path, name: Value, endings: Collection[str], there: There) -> Path | None:
    """The file that a row names; None if it names none of this folder. Where its ending is left out, and nothing tells
    which one it is, the name stays.
    """
    file = inside(top, name, there) if isinstance(name, str) else None
    if file is None or file.suffix.lower() in endings or there(str(file)):
        return file
    found = [each for ending in endings if (each := inside(top, f"{name}{ending}", there)) and there(str(each))]
    return found[0] if len(found) == 1 else file


def rows(path: Path, what: str) -> Iterator[tuple[int, dict[str, Value]]]:
    """The lines of a CSV or JSON-lines file: their numbers, and their values by column. UserError if it cannot be read.
    what: what a line is about, for messages.
    """
    with _readable(path, what):
        if path.stat().st_size > LARGEST:
            raise ValueError(f"it is larger than {LARGEST >> 20} MiB")
        yield from _lines(path) if _of_lines(path) else _csv(path)


def _of_lines(path: Path) -> bool:
    """Whether each line is a JSON object, which may have other keys than the first one."""
    return path.suffix.lower() in (".jsonl", ".ndjson")


def _readable(path: Path, what: str) -> AbstractContextManager[None]:
    return readable(path, "a table", f"Give a table with a line for each {what}.", csv.Error)


def _csv(path: Path) -> Iterator[tuple[int, dict[str, Value]]]:
    table = csv_in(path)
    for number, values in table.rows:
        yield number, {name: value or None for name, value in zip(table.names, values, strict=True) if name}


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Value]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json_of(line, _each_once)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is no JSON object with finite numbers and each key once. {GUARDED}")
            yield number, row


def _each_once(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    if len(row := dict(pairs)) < len(pairs):
        raise ValueError
    return row
