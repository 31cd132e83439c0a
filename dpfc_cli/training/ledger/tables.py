"""The file of a ledger: its tables, and how it is read.

A ledger is exactly our tables and nothing else. SQLite lets a file say what a write to it does: triggers, views, and
clauses such as ON CONFLICT IGNORE can make a charge succeed without a row. So the schema is compared with ours, word
for word, before anything else is done with the file. The rows are numbered 1, 2, 3 …, so a row that was deleted leaves
a gap (unless it was the last one). SQLite keeps any value in any column, so each value is checked when it is read. A
file that does not pass is damaged, or somebody has changed it. It is refused, and never mended.
"""

import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from dpfc_cli.errors import Code, UserError
from dpfc_cli.files import check_plain
from dpfc_cli.folders import LEDGER
from dpfc_cli.training.ledger.rows import Book, Cap, Entry, Overlap, check, check_cap, check_overlap

Mode = Literal["ro", "rw", "rwc"]
VERSION = 2
"""Of the ledgers that are written."""
FIRST = {
    **{"id": "INTEGER PRIMARY KEY", "at": "TEXT NOT NULL", "records": "TEXT NOT NULL", "split": "TEXT NOT NULL"},
    **{"method": "TEXT NOT NULL", "claim": "TEXT NOT NULL", "epsilon": "REAL", "delta": "REAL", "mu": "REAL"},
    **{"eta": "REAL", "adjacency": "TEXT NOT NULL", "unit": "TEXT NOT NULL", "n": "INTEGER NOT NULL"},
    **{"releases": "TEXT NOT NULL", "head": "TEXT NOT NULL"},
}
"""The columns of the first ledgers."""
LATER = {"state": "TEXT NOT NULL DEFAULT 'unknown'", "sha256": "TEXT"}
"""Columns that the first ledgers did not have."""
SIGNED = {"who": "TEXT", "purpose": "TEXT", "persons": "TEXT", "caps": "INTEGER NOT NULL DEFAULT 0"}
"""Columns that came with version 1. caps: how many rows of caps were there before the training."""
LINKED = {"overlaps": "INTEGER NOT NULL DEFAULT 0"}
"""The column that came with version 2: how many rows of overlaps were there before the training."""
CAP = {
    **{"id": "INTEGER PRIMARY KEY", "at": "TEXT NOT NULL", "records": "TEXT NOT NULL", "epsilon": "REAL"},
    **{"delta": "REAL", "mu": "REAL", "eta": "REAL", "who": "TEXT NOT NULL", "note": "TEXT"},
    **{"trainings": "INTEGER NOT NULL", "unit": "TEXT NOT NULL", "persons": "TEXT"},
}
OVERLAP = {
    **{"id": "INTEGER PRIMARY KEY", "at": "TEXT NOT NULL", "records": "TEXT NOT NULL", "other": "TEXT NOT NULL"},
    **{"name": "TEXT NOT NULL", "who": "TEXT NOT NULL", "trainings": "INTEGER NOT NULL"},
}


def table_of(name: str, columns: Mapping[str, str]) -> str:
    """The statement that makes a table."""
    return f"CREATE TABLE {name} ({', '.join(f'{column} {kind}' for column, kind in columns.items())})"


TRAININGS, CAPS = table_of("trainings", FIRST | LATER | SIGNED | LINKED), table_of("caps", CAP)
OVERLAPS = table_of("overlaps", OVERLAP)
_TABLES = {0: ("trainings",), 1: ("trainings", "caps"), 2: ("trainings", "caps", "overlaps")}
"""The tables of each version."""
_REMEDY = "Do not delete it. Compare it with a backup, or restore it from one."
Told = TypeVar("Told", Cap, Overlap)


def ledger_path(feature_set: Path) -> Path:
    """The ledger of a feature set. It lies beside the set's real folder, so it outlives the set."""
    resolved = feature_set.resolve()
    return resolved.with_name(resolved.name + LEDGER)


def real(path: Path) -> Path:
    """Where a ledger really lies: the name by which it is locked."""
    return Path(os.path.realpath(path))


UNREADABLE = (sqlite3.Error, OSError, UnicodeDecodeError)
"""What SQLite, the system and Python's own module raise. A name in a damaged schema may be no text."""


class StrangeError(Exception):
    """A file that is no ledger as we write them. The text goes on after the ledger's name."""


def read(path: Path) -> list[Entry]:
    """All trainings, oldest first; none when there is no ledger yet. UserError where the file is no ledger."""
    return list(read_all(path).entries)


def read_all(path: Path) -> Book:
    """All rows; none when there is no ledger yet. UserError where the file is no ledger."""
    try:
        # A first charge that was stopped before its commit leaves an empty file: a ledger without rows.
        if not size_of(path):
            return Book()
        try:
            return _read(path, "ro")
        except sqlite3.OperationalError as error:
            # An error of Python's own module has no code.
            if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_READONLY_ROLLBACK:
                raise
            # A charge was killed before its commit was whole. What it wrote has to be taken back first.
            return _read(path, "rw")
    except StrangeError as error:
        raise strange(path, str(error), "") from error
    except UNREADABLE as error:
        raise UserError(
            f"'{path}' cannot be read as a ledger: {error}.",
            remedy_of(error),
            code=code_of(error),
            path=str(path),
        ) from error


def _read(path: Path, mode: Mode) -> Book:
    with closing(connected(path, mode)) as connection:
        # In one transaction, so that the schema that is checked is that of the rows.
        connection.execute("BEGIN")
        entries = tuple(entry for _, entry in entries_in(connection))
        caps = tuple(cap for _, cap in caps_in(connection))
        return Book(entries=entries, caps=caps, overlaps=tuple(overlap for _, overlap in overlaps_in(connection)))


def strange(path: Path, what: str, consequence: str) -> UserError:
    """The refusal of a file that is no ledger as we write them. consequence: what that means, for the message."""
    return UserError(
        f"The ledger '{path}' {what}. {consequence}".strip(),
        _REMEDY,
        code="damaged",
        path=str(path),
    )


def size_of(path: Path) -> int:
    """The size of the ledger's file; 0 if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            raise StrangeError("is a link that leads nowhere: the ledger is not where it was") from None
        return 0
    check_plain(path)
    if found.st_nlink > 1:
        # SQLite finds the journal of a stopped charge by the file's name, and would miss it under another name.
        raise StrangeError("has a second name (a hard link): what is charged under one name shows under the other")
    return found.st_size


def layout(connection: sqlite3.Connection) -> tuple[int, set[str]]:
    """The version, and the columns of the table of trainings, if the file has exactly our tables and nothing else."""
    ((version,),) = connection.execute("PRAGMA user_version")
    if version not in range(VERSION + 1):
        raise StrangeError(f"says that it is of version {version}, and this dpfc knows versions 0 to {VERSION}")
    tables = _TABLES[version]
    found = {(kind, name): text for kind, name, text in connection.execute("SELECT type, name, sql FROM sqlite_master")}
    others = [f"{kind} '{name}'" for kind, name in found if kind != "table" or name not in tables]
    if others:
        raise StrangeError(f"has more in it than the tables of dpfc: the {others[0]}")
    said = {}
    for name in tables:
        if ("table", name) not in found:
            raise StrangeError(f"has no table of {name}")
        # Our own text, except for spaces.
        text = re.sub(r"\s+", " ", str(found["table", name]), flags=re.ASCII)
        table = re.fullmatch(rf"CREATE TABLE {name} \((.*)\)", text)
        said[name] = [part.strip(" ") for part in table[1].split(",")] if table else []
    signs = {0: {}, 1: SIGNED, 2: SIGNED | LINKED}[version]
    first, later, signed, cap, overlap = (
        {f"{name} {kind}": name for name, kind in columns.items()} for columns in (FIRST, LATER, signs, CAP, OVERLAP)
    )
    # Columns that were added to the first ledgers stand in any order. Version 0 may lack some of them. Later versions
    # have columns behind them, so none is lacking there.
    both, columns = len(first) + len(later), said["trainings"]
    begin, middle, end = columns[: len(first)], columns[len(first) : both], columns[both:]
    if begin != list(first) or not set(middle) <= set(later) or end != list(signed):
        raise StrangeError("has another table of trainings than dpfc makes")
    if version and said["caps"] != list(cap):
        raise StrangeError("has another table of caps than dpfc makes")
    if version > 1 and said["overlaps"] != list(overlap):
        raise StrangeError("has another table of overlaps than dpfc makes")
    return version, {(first | later | signed)[part] for part in said["trainings"]}


def _numbered(connection: sqlite3.Connection, table: str, names: Sequence[str]) -> Iterator[tuple[int, list[Any]]]:
    """The rows of a table with their numbers. A gap is a row that was taken out."""
    found = connection.execute(f"SELECT id, {', '.join(names)} FROM {table} ORDER BY id")  # noqa: S608
    for due, (there, *values) in enumerate(found, start=1):
        if there != due:
            raise StrangeError(f"has no row {due}, but one with the number {there}: a row was taken out")
        yield due, values


def entries_in(connection: sqlite3.Connection) -> Iterator[tuple[int, Entry]]:
    """All trainings with their numbers, checked."""
    version, known = layout(connection)
    ((sound,),) = connection.execute("PRAGMA quick_check(1)")
    if sound != "ok":
        raise StrangeError(f"is damaged: {sound}")
    caps = [cap.trainings for _, cap in caps_in(connection)]
    overlaps = [overlap.trainings for _, overlap in overlaps_in(connection)]
    names = [each.name for each in fields(Entry) if each.name in known]
    last, counts = 0, ["caps" if version else "0", "overlaps" if version > 1 else "0"]
    for last, (told_caps, told_overlaps, *values) in _numbered(connection, "trainings", [*counts, *names]):
        entry = Entry(**{"state": "unknown", **dict(zip(names, values, strict=True))})
        try:
            check(entry)
        except ValueError as error:
            raise StrangeError(f"has a row that no training wrote. In row {last}, {error}") from error
        for what, said, before in (("caps", told_caps, caps), ("overlaps", told_overlaps, overlaps)):
            if said != sum(each < last for each in before):
                raise StrangeError(f"has other {what} than row {last} was charged under: one was taken out or changed")
        yield last, entry
    for what, before in (("a cap that was set", caps), ("an overlap that was told", overlaps)):
        if before and before[-1] > last:
            raise StrangeError(f"has {last} trainings, and {what} after {before[-1]}: a row was taken out")


def caps_in(connection: sqlite3.Connection) -> Iterator[tuple[int, Cap]]:
    """All caps with their numbers, checked."""
    if layout(connection)[0] > 0:
        yield from _told(connection, "caps", Cap, check_cap, "a cap that nobody set")


def overlaps_in(connection: sqlite3.Connection) -> Iterator[tuple[int, Overlap]]:
    """All overlaps with their numbers, checked."""
    if layout(connection)[0] > 1:
        yield from _told(connection, "overlaps", Overlap, check_overlap, "an overlap that nobody told")


def _told(
    connection: sqlite3.Connection, table: str, of: type[Told], check: Callable[[Told], None], strange: str
) -> Iterator[tuple[int, Told]]:
    """The rows of a table that say how many trainings were before them."""
    names, least = [each.name for each in fields(of)], 0
    for row, values in _numbered(connection, table, names):
        made = of(**dict(zip(names, values, strict=True)))
        try:
            check(made)
            if made.trainings < least:
                raise ValueError("'trainings' is less than before")
        except ValueError as error:
            raise StrangeError(f"has {strange}. In its row {row}, {error}") from error
        least = made.trainings
        yield row, made


def connected(path: Path, mode: Mode) -> sqlite3.Connection:
    """A connection to a ledger's file. It is in no transaction until one is begun."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=30, isolation_level=None)


def kind_of(error: Exception) -> int:
    """SQLite's code of an error, without its details."""
    if isinstance(error, OSError):
        return sqlite3.SQLITE_CANTOPEN
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_CLOSED = (
    *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY),
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR),
)


def remedy_of(error: Exception) -> str:
    """What to do about an error."""
    if kind_of(error) in _BUSY:
        return "Another program holds it: try again when that one has ended."
    if kind_of(error) in _CLOSED:
        return "Make that place readable and writable, with room left."
    return "Restore it from a backup; do not delete it."


def code_of(error: Exception, closed: Code = "unreadable") -> Code:
    """The code for programs. closed: the one of a file that cannot be used."""
    return "busy" if kind_of(error) in _BUSY else closed if kind_of(error) in _CLOSED else "damaged"
