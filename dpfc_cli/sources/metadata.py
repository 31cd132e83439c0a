"""`metadata.csv` and `metadata.jsonl`: a table beside pictures, as the ImageFolder of Hugging Face reads it.

A row is about one picture, which its column `file_name` names relative to the table's folder, or another column of
`FILE_NAMES`. The other columns may hold anything: labels, or whom a picture shows.
"""

import csv
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from dpfc_cli.errors import GUARDED
from dpfc_cli.files import json_of
from dpfc_cli.sources.reading import readable
from dpfc_cli.sources.split_files import inside

NAMES = ("metadata.csv", "metadata.jsonl")
FILE_NAMES = ("file_name", "filename", "file", "path", "image")
"""What the column of the pictures is called. The first one that is there is taken."""
FILE_NAME = FILE_NAMES[0]
SEPARATORS = ",;\t"
"""What lies between the values of a CSV: the one of which its first line has most."""
LARGEST = 1 << 30
"""Bytes of the largest table that is read."""

Value = str | int | None


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """A table."""

    path: Path
    files: tuple[Path, ...]  # the picture of each row
    columns: dict[str, list[Value]]  # the values of all other columns, by name; None where a row has none


def metadata_of(folder: Path) -> Path | None:
    """The table in a folder, or None. ValueError if there are two of them."""
    found = [folder / name for name in NAMES if (folder / name).is_file()]
    if len(found) > 1:
        raise ValueError(f"'{folder}' holds both {' and '.join(NAMES)}: which one is right?")
    return found[0] if found else None


def read(path: Path, folder: Path | None = None) -> Metadata:
    """Read a table.

    Args:
        path: the table.
        folder: where its names begin. Default: in its own folder.

    Raises:
        UserError: it cannot be read, has no column of pictures, or has a row that names no file of its folder, or a
            file that another row names.

    """
    top = path.parent if folder is None else folder
    files: dict[Path, None] = {}
    columns: dict[str, list[Value]] = {}
    with _readable(path, "picture"):
        for number, row in rows(path, "picture", FILE_NAMES):
            name = row.pop(next((name for name in FILE_NAMES if name in row), FILE_NAME), None)
            file = inside(top, name) if isinstance(name, str) else None
            if file is None:
                raise ValueError(f"line {number} names no file of '{top}' under '{FILE_NAME}'")
            if file in files:
                raise ValueError(f"line {number} names '{name}' again, which would count as two records. {GUARDED}")
            for column, value in row.items():
                values = columns.setdefault(column, [])
                values.extend([None] * (len(files) - len(values)))
                values.append(value)
            files[file] = None
    for values in columns.values():
        values.extend([None] * (len(files) - len(values)))
    return Metadata(path=path, files=tuple(files), columns=columns)


def rows(path: Path, what: str, needed: Sequence[str] = ()) -> Iterator[tuple[int, dict[str, Value]]]:
    """The lines of a CSV or JSON-lines file: their numbers, and their values by column. UserError if it cannot be read.

    Args:
        path: the table.
        what: what a line is about, for messages.
        needed: one of these columns there must be.

    """
    with _readable(path, what):
        if path.stat().st_size > LARGEST:
            raise ValueError(f"it is larger than {LARGEST >> 20} MiB")
        yield from _csv(path, needed) if path.suffix == ".csv" else _lines(path)


def _readable(path: Path, what: str) -> AbstractContextManager[None]:
    return readable(path, "a table", f"Give a table with a line for each {what}.", csv.Error)


def _csv(path: Path, needed: Sequence[str]) -> Iterator[tuple[int, dict[str, Value]]]:
    with path.open(encoding=_encoding(path), newline="") as file:
        separator = max(SEPARATORS, key=file.readline().count)
        file.seek(0)
        table = csv.DictReader(file, delimiter=separator, strict=True)
        names = table.fieldnames or []
        if (needed and not set(needed) & set(names)) or len(set(names)) < len(names):
            also = f", and one of them '{needed[0]}'" if needed else ""
            raise ValueError(f"its first line must name the columns, each once{also}")
        for row in table:
            if None in row:
                raise ValueError(f"line {table.line_num} has more values than there are columns")
            yield table.line_num, {name: value or None for name, value in row.items()}


def _encoding(path: Path) -> str:
    """UTF-8, or what spreadsheets on Windows write where the bytes are none."""
    with path.open(encoding="utf-8-sig") as file:
        try:
            while file.read(1 << 20):
                pass
        except UnicodeDecodeError:
            return "cp1252"
    return "utf-8-sig"


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Value]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            row = json_of(line)
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is no JSON object")
            # A list or a number with a fraction is neither a label nor a name.
            yield number, {name: value if type(value) in (str, int) else None for name, value in row.items()}
