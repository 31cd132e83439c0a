"""The file of a ledger: one table of facts that only grows, and the one way to add to it.

A ledger is exactly our table and nothing else. SQLite lets a file say what a write to it does: triggers, views, and
clauses such as ON CONFLICT IGNORE can make a charge succeed without a row. So the schema is compared with ours, word
for word, before anything else is done with the file. The rows are numbered 1, 2, 3 … Each has a hash of itself and of
the hash of the row before it. So a row that was taken out, put in, changed or exchanged is noticed, unless all hashes
after it were made anew. (A last row that was taken out is noticed where a head or an answer names it.) A file that does
not pass is damaged, or somebody has changed it. It is refused, and never mended.

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
from dpfc_cli.folders import LEDGER
from dpfc_cli.ledger.facts import Fact, fact_of
from dpfc_cli.ledger.totals import Ledger

_TEXTS = ("id", "kind", "body", "hash")
TABLE = f"CREATE TABLE facts (n INTEGER PRIMARY KEY, {', '.join(f'{name} TEXT NOT NULL' for name in _TEXTS)})"
_UNREADABLE = (sqlite3.Error, OSError, UnicodeDecodeError)
"""What SQLite, the system and Python's own module raise. A name in a damaged schema may be no text."""
_CLOSED = ("SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_READONLY", "SQLITE_FULL", "SQLITE_IOERR")


def ledger_path(feature_set: Path) -> Path:
    """The ledger of a feature set: the one of the folder where the set really lies."""
    return feature_set.resolve().parent / LEDGER


def read(path: Path) -> Ledger:
    """All facts of a ledger; none when there is no ledger yet. UserError where the file is no ledger."""
    try:
        # A first write that was stopped before its commit leaves an empty file: a ledger without facts.
        if not _size_of(path):
            return Ledger(path=path)
        # Not for reading alone: if a write was killed before its commit was whole, it has to be taken back first.
        with closing(_connected(path)) as connection:
            # In one transaction, so that the schema that is checked is that of the rows.
            connection.execute("BEGIN")
            return _facts_in(connection, path)
    except _UNREADABLE as error:
        raise _failed(f"{quoted(path)} cannot be read as a ledger: {error}.", error, "unreadable") from error


def append(path: Path, make: Callable[[Ledger], Sequence[Fact]], what: str) -> Ledger:
    """Add facts to a ledger, or to a new one: all of them or none. Returns the ledger with them when they are on disk.

    While `make` decides, nobody else can add anything. The rows are compared with what was to be written before they
    are committed. Afterwards the file of that name is opened again, and must have them.

    make: told what the ledger has, and returns what is to be added. It raises UserError to refuse. what: what is added,
    for messages: "The cap". UserError: it was refused, or the file cannot be written. It says whether the facts were
    added all the same. KeyboardInterrupt: a note says so.
    """
    made: Sequence[Fact] = ()
    try:
        with _opened(path) as connection:
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                if not path.stat().st_size:
                    connection.execute(TABLE)
                before = _facts_in(connection, path)
                new, count = make(before), len(before.facts)
                (end,) = connection.execute("SELECT hash FROM facts WHERE n = ?", (count,)).fetchone() or ("",)
                for n, fact in enumerate(new, start=count + 1):
                    end = _hash(end, n, fact.id, fact.kind, fact.body)
                    row = (n, fact.id, fact.kind, fact.body, end)
                    connection.execute("INSERT INTO facts VALUES (?, ?, ?, ?, ?)", row)
                if _facts_in(connection, path) != before.with_facts(*new):
                    raise _strange(path, "does not keep what was written")
                made = new
        there = read(path)
        if not all(fact.id in there.known for fact in made):
            raise _strange(path, "has not the facts that were written")
        return there
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


def _facts_in(connection: sqlite3.Connection, path: Path) -> Ledger:
    schema = connection.execute("SELECT sql FROM sqlite_master").fetchall()
    if schema != [(TABLE,)]:
        raise _strange(path, "has something else in it than the one table that dpfc makes")
    facts, end = list[Fact](), ""
    for due, (n, fact, kind, body, hashed) in enumerate(connection.execute("SELECT * FROM facts ORDER BY n"), start=1):
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


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        _size_of(path)
        # It names persons. Its journal gets the same mode. One that it is given later stays.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
        with closing(_connected(path)) as connection:
            # EXTRA also syncs the folder after the journal is removed: the row survives a power cut.
            connection.execute("PRAGMA synchronous = EXTRA")
            # Somebody may have switched to a log (WAL). Rows would then lie in a second file, which backups miss.
            connection.execute("PRAGMA journal_mode = DELETE")
            yield connection
    except _UNREADABLE as error:
        raise _failed(f"The ledger {quoted(path)} cannot be written: {error}.", error, "unwritable") from error


def _connected(path: Path) -> sqlite3.Connection:
    """A connection to a ledger's file. It is in no transaction until one is begun."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=30, isolation_level=None)


def _size_of(path: Path) -> int:
    """The size of the ledger's file; 0 if there is none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise _strange(path, "is a link that leads nowhere: it is not where it was") from None
        return 0
    check_plain(path)
    if found.st_nlink > 1:
        # SQLite finds the journal of a stopped write by the file's name, and would miss it under another name.
        raise _strange(path, "has a second name (a hard link): what is charged under one name shows under the other")
    return found.st_size


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
