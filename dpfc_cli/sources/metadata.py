"""`metadata.csv` and `metadata.jsonl`: a table beside pictures, as the ImageFolder of Hugging Face reads it.

A row is about one picture, which its column `file_name` names relative to the table's folder, or another column of
`FILE_NAMES`. The other columns may hold anything: labels, or whom a picture shows.
"""

import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpfc_cli.errors import GUARDED, Code, UserError
from dpfc_cli.files import check_plain, json_of
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
    """The table in a folder, or None. UserError if there are two of them (code "conflict")."""
    found = [folder / name for name in NAMES if (folder / name).is_file()]
    if len(found) > 1:
        raise UserError(
            f"'{folder}' holds both {' and '.join(NAMES)}: which one is right?",
            "Take one of them away.",
            code="conflict",
            path=str(folder),
        )
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
    files: list[Path] = []
    columns: dict[str, list[Value]] = {}
    for number, row in rows(path, "picture", FILE_NAMES):
        name = row.pop(next((name for name in FILE_NAMES if name in row), FILE_NAME), None)
        file = inside(top, name) if isinstance(name, str) else None
        if file is None:
            raise _refused(
                path,
                f"line {number} names no file of {'this folder' if folder is None else repr(str(top))} under "
                f"'{FILE_NAME}'",
                f"Each line needs a '{FILE_NAME}': a path below '{top}'.",
            )
        for column, value in row.items():
            values = columns.setdefault(column, [])
            values.extend([None] * (len(files) - len(values)))
            values.append(value)
        files.append(file)
    for values in columns.values():
        values.extend([None] * (len(files) - len(values)))
    seen: set[Path] = set()
    for file in files:
        if file in seen:
            raise _refused(
                path,
                f"it names '{os.path.relpath(file, path.parent)}' twice, which would count as two records, and the "
                "guarantee is for one",
                f"Leave one line for each picture. {GUARDED}",
                "bad-record",
            )
        seen.add(file)
    return Metadata(path=path, files=tuple(files), columns=columns)


def rows(path: Path, what: str, needed: Sequence[str] = ()) -> Iterator[tuple[int, dict[str, Value]]]:
    """The lines of a CSV or JSON-lines file: their numbers, and their values by column. UserError if it cannot be read.

    Args:
        path: the table.
        what: what a line is about, for messages.
        needed: one of these columns there must be.

    """
    try:
        check_plain(path)
        if path.stat().st_size > LARGEST:
            raise ValueError(f"it is larger than {LARGEST >> 20} MiB")
        yield from _csv(path, needed) if path.suffix == ".csv" else _lines(path)
    except FileNotFoundError as error:
        raise UserError(f"There is no table '{path}'.", "Check its path.", code="missing", path=str(path)) from error
    except OSError as error:
        raise _refused(path, f"it cannot be read: {error.strerror or error}", "Check it.", "unreadable") from error
    except (ValueError, csv.Error) as error:
        raise _refused(path, str(error), f"Give a table with a line for each {what}.") from error


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


def _refused(path: Path, why: str, remedy: str, code: Code = "damaged") -> UserError:
    return UserError(f"'{path}' cannot be used: {why}.", remedy, code=code, path=str(path))
