"""The file of a ledger: a table of facts that only grows, and the one way to add to it.

A ledger is exactly our two tables and nothing else: facts, and the answers of unfinished trainings (`answers`). SQLite
lets a file say what a write to it does: triggers, views, and clauses such as ON CONFLICT IGNORE can make a charge
succeed without a row. So the schema is compared with ours, word for word, before anything else is done with the file.

Facts are numbered 1, 2, 3 … Each row has a hash of itself and of the hash of the row before it. So a row that was taken
out, put in, changed or exchanged is noticed, unless all hashes after it were made anew. (A last row that was taken out
is noticed where a head names it.) A file that does not pass is damaged, or somebody has changed it. It is refused, and
never mended.

Locks of files are those of POSIX: a network file system without them keeps no promise.
"""

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from dpfc_cli.errors import Code, Note, UserError, damaged, printable, quoted
from dpfc_cli.files import check_plain, json_of
from dpfc_cli.folders import LEDGER, beside
from dpfc_cli.ledger.facts import Fact, fact_of
from dpfc_cli.ledger.totals import Ledger

_TEXTS = ("id", "kind", "body", "hash")
TABLES = (
    f"CREATE TABLE facts (n INTEGER PRIMARY KEY, {', '.join(f'{name} TEXT NOT NULL' for name in _TEXTS)})",
    "CREATE TABLE answers (charge TEXT NOT NULL, number INTEGER NOT NULL, sha256 TEXT NOT NULL, answer BLOB NOT NULL, "
    "PRIMARY KEY (charge, number))",
)
_UNREADABLE = (sqlite3.Error, OSError, UnicodeDecodeError)
"""What SQLite, the system and Python's own module raise. A name in a damaged schema may be no text."""
_LEAST = 512
"""Bytes of the shortest database."""
_CLOSED = ("SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_READONLY", "SQLITE_FULL", "SQLITE_IOERR")


def ledger_path(feature_set: Path) -> Path:
    """The ledger of a feature set: the one of the folder where the set really lies; of a set at a URL, that of the
    features folder, because a ledger needs locks.
    """
    return beside(feature_set.resolve()) / LEDGER


def read(path: Path) -> Ledger:
    """All facts of a ledger; none when there is no ledger yet. UserError where the file is no ledger."""
    with reading(path) as rows:
        return Ledger(path=path) if rows is None else _facts_in(rows, path)


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection | None]:
    """The tables of a ledger, in one transaction; None when there is no ledger yet. UserError where the file is no
    ledger.
    """
    try:
        if not _is_there(path):
            yield None
            return
        # Not for reading alone: if a write was killed before its commit was whole, it has to be taken back first.
        with closing(_connected(path)) as rows:
            # In one transaction, so that the schema that is checked is that of the rows.
            rows.execute("BEGIN")
            yield rows if _has_tables(rows, path) else None
    except _UNREADABLE as error:
        raise _failed(f"{quoted(path)} cannot be read as a ledger: {error}.", error, "unreadable") from error


@contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """The tables of a ledger, or of a new one, in a transaction of which all is on disk at the end, or nothing. Nobody
    else can add anything meanwhile. UserError where the file cannot be written, or is no ledger.
    """
    try:
        _is_there(path)
        # It names persons. Its journal gets the same mode. One that it is given later stays.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
        with closing(_connected(path)) as rows:
            # EXTRA also syncs the folder after the journal is removed: the row survives a power cut.
            rows.execute("PRAGMA synchronous = EXTRA")
            # Somebody may have switched to a log (WAL). Rows would then lie in a second file, which backups miss.
            rows.execute("PRAGMA journal_mode = DELETE")
            if not _has_tables(rows, path):
                # Answers that are deleted give their room back.
                rows.execute("PRAGMA auto_vacuum = FULL")
            rows.execute("BEGIN IMMEDIATE")
            with rows:
                for table in () if _has_tables(rows, path) else TABLES:
                    rows.execute(table)
                yield rows
    except _UNREADABLE as error:
        raise _failed(f"The ledger {quoted(path)} cannot be written: {error}.", error, "unwritable") from error


def append(
    path: Path,
    make: Callable[[Ledger], Sequence[Fact]],
    what: str,
    beside: Callable[[sqlite3.Connection], object] = lambda rows: None,
) -> Ledger:
    """Add facts to a ledger, or to a new one: all of them or none. Returns the ledger with them when they are on disk.

    While `make` decides, nobody else can add anything. The rows are compared with what was to be written before they
    are committed. Afterwards the file of that name is opened again, and must have them.

    make: told what the ledger has, and returns what is to be added. It raises UserError to refuse. what: what is added,
    for messages: "The cap". beside: what is done with answers in the same transaction. UserError: it was refused, or
    the file cannot be written. It says whether the facts were added all the same. KeyboardInterrupt: a note says so.
    """
    made: Sequence[Fact] = ()
    try:
        with writing(path) as rows:
            before = _facts_in(rows, path)
            facts, count = make(before), len(before.facts)
            end, due = _end(rows, count), []
            for n, fact in enumerate(facts, start=count + 1):
                end = _hash(end, n, fact.id, fact.kind, fact.body)
                due.append((n, fact.id, fact.kind, fact.body, end))
                rows.execute("INSERT INTO facts VALUES (?, ?, ?, ?, ?)", due[-1])
            there = rows.execute("SELECT * FROM facts WHERE n > ? ORDER BY n", (count,)).fetchall()
            if there != due or [fact_of(fact, kind, json_of(body)) for _, fact, kind, body, _ in there] != [*facts]:
                raise _strange(path, "does not keep what was written")
            beside(rows)
            made = facts
        with reading(path) as rows:
            if rows is None or _end(rows, count + len(facts)) != end:
                raise _strange(path, "has not the facts that were written")
        return before.with_facts(*facts)
    except (UserError, KeyboardInterrupt) as stop:
        stands = "Nothing was added to the ledger."
        if made:
            stands = f"{what} may be written all the same: 'dpfc budget' says whether it is."
            with suppress(UserError):
                if made[0].id in read(path).known:
                    stands = f"{what} was written to '{path}' all the same."
        if isinstance(stop, UserError):
            stop.what += f" {stands}"
        else:
            stop.add_note(Note(printable(stands)))
        raise


def _hash(before: str, n: int, fact: str, kind: str, body: str) -> str:
    return hashlib.sha256(json.dumps([before, n, fact, kind, body]).encode()).hexdigest()


def _has_tables(rows: sqlite3.Connection, path: Path) -> bool:
    """Whether there are our tables. A first write that was stopped before its commit leaves a file without any: a
    ledger without facts. UserError where there is something else.
    """
    there = [each for (each,) in rows.execute("SELECT sql FROM sqlite_master")]
    # SQLite's own index of the primary key has no text.
    if there and sorted(there, key=str) != sorted([*TABLES, None], key=str):
        raise _strange(path, "has something else in it than the two tables that dpfc makes")
    return bool(there)


def _end(rows: sqlite3.Connection, n: int) -> str:
    """The hash of a row; empty if there is none."""
    (end,) = rows.execute("SELECT hash FROM facts WHERE n = ?", (n,)).fetchone() or ("",)
    return str(end)


def _facts_in(rows: sqlite3.Connection, path: Path) -> Ledger:
    facts, end = list[Fact](), ""
    for due, (n, fact, kind, body, hashed) in enumerate(rows.execute("SELECT * FROM facts ORDER BY n"), start=1):
        if n != due:
            raise _strange(path, f"has no row {due}, but one with the number {n}: a row was taken out")
        end = _hash(end, n, fact, kind, body) if all(type(each) is str for each in (fact, kind, body)) else ""
        if end != hashed:
            raise _strange(path, f"has another row {n} than the one that was written, or a row before it was changed")
        try:
            facts.append(fact_of(fact, kind, json_of(body)))
        except (ValueError, TypeError) as error:
            raise _strange(path, f"has a row that dpfc does not write. In row {n}, {error}") from error
    return Ledger(path=path, facts=tuple(facts))


def _connected(path: Path) -> sqlite3.Connection:
    """A connection to a ledger's file. It is in no transaction until one is begun."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=30, isolation_level=None)


def _is_there(path: Path) -> bool:
    """Whether there is a file. UserError where it is not as dpfc makes it."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise _strange(path, "is a link that leads nowhere: it is not where it was") from None
        return False
    check_plain(path)
    if found.st_nlink > 1:
        # SQLite finds the journal of a stopped write by the file's name, and would miss it under another name.
        raise _strange(path, "has a second name (a hard link): what is charged under one name shows under the other")
    if 0 < found.st_size < _LEAST:
        # To SQLite it is an empty file.
        raise _strange(path, "is too short for one")
    return True


def _strange(path: Path, what: str) -> UserError:
    """The refusal of a file that is no ledger as dpfc writes them."""
    remedy = "Do not delete it. Use the dpfc that wrote it, or compare it with a backup, or restore it from one."
    return damaged(f"The ledger {quoted(path)} {what}.", remedy)


def _failed(what: str, error: Exception, closed: Code) -> UserError:
    """An error of SQLite or of the system, with what to do. closed: the code where the place cannot be used."""
    kind = getattr(error, "sqlite_errorname", "")
    if kind.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        closed, remedy = "busy", "Another program holds it: try again when that one has ended."
    elif kind.startswith(_CLOSED) or isinstance(error, OSError):
        remedy = "Make that place readable and writable, with room left."
    else:
        closed, remedy = "damaged", "Restore it from a backup; do not delete it."
    return UserError(what, remedy, code=closed)
