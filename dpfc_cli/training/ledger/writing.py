"""Writing to a ledger: a row is on disk before the first noise is drawn."""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dpfc_cli.errors import UserError
from dpfc_cli.training.ledger import tables
from dpfc_cli.training.ledger.rows import Book, Cap, Entry, Overlap, Row, State, check, check_cap, check_overlap

Allow = Callable[[frozenset[Path]], frozenset[Path]]
"""Asked before a row is written, while the ledger is locked. It is told which other ledgers are locked, too (their real
paths), and returns those that must be. It is asked again once they are. If none is lacking, the row is written. It
raises UserError where it may not be.
"""


def _anyway(locked: frozenset[Path]) -> frozenset[Path]:
    return frozenset()


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """Proof that a training was charged. Only `charge` and `receipt_of` make one.

    ledger: the file. number: of the row. entries: all rows of the ledger after the charge, oldest first.
    """

    ledger: Path
    number: int
    entry: Entry
    entries: tuple[Entry, ...]


def charge(path: Path, entry: Entry, allow: Allow = _anyway) -> Receipt:
    """Write the row of a training durably. Returns only when it is on disk.

    The row is compared with what was to be written before it is committed. Afterwards the file of that name is opened
    again, and must have it.

    Args:
        path: the ledger.
        entry: the row.
        allow: whether it may be written, see `Allow`.

    Raises:
        UserError: the row cannot or may not be written. Nothing is charged then, unless the message says that it may
            be.
        ValueError: a row that no ledger would keep. Nothing is charged.

    """
    check(entry)
    number, book = _add(
        path,
        entry,
        allow,
        "Nothing was charged, and nothing is trained that is not charged.",
        "The training may be charged: 'dpfc budget' says whether it is. It was not begun.",
    )
    return Receipt(ledger=path, number=number, entry=entry, entries=book.entries)


def keep_cap(path: Path, cap: Cap, allow: Allow = _anyway) -> None:
    """Write the row of a cap durably, as `charge` does. The number of trainings before it is counted here.

    Raises:
        UserError: the row cannot or may not be written. The cap is as it was then, unless the message says that it may
            be changed.
        ValueError: a row that no ledger would keep.

    """
    check_cap(cap)
    _add(path, cap, allow, "The cap is as it was.", "The cap may be changed: 'dpfc budget' says whether it is.")


def keep_overlap(path: Path, overlap: Overlap) -> None:
    """Write the row of an overlap durably, as `charge` does. The number of trainings before it is counted here.

    Raises:
        UserError: the row cannot be written.
        ValueError: a row that no ledger would keep.

    """
    check_overlap(overlap)
    _add(path, overlap, _anyway, "It is not kept.", "It may be kept: 'dpfc budget' says whether it is.")


def _add(path: Path, row: Row, allow: Allow, nothing: str, doubt: str) -> tuple[int, Book]:
    """Write a row. nothing: what it means if it is not written. doubt: what it means if that is not known."""
    committing = False
    try:
        with _locked(path, allow, nothing) as connection:
            _bring_up(connection, path)
            found: Row | None
            if isinstance(row, Entry):
                caps, overlaps = list(tables.caps_in(connection)), list(tables.overlaps_in(connection))
                before = {"caps": len(caps), "overlaps": len(overlaps)}
                number = _insert(connection, "trainings", asdict(row) | before)
                found = dict(tables.entries_in(connection)).get(number)
            else:
                row = replace(row, trainings=len(list(tables.entries_in(connection))))
                number = _insert(connection, "caps" if isinstance(row, Cap) else "overlaps", asdict(row))
                told = tables.caps_in(connection) if isinstance(row, Cap) else tables.overlaps_in(connection)
                found = dict[int, Row](told).get(number)
            if found != row:
                raise tables.StrangeError("does not keep the row that was written")
            committing = True
        book = tables.read_all(path)
        rows: tuple[tuple[Row, ...], ...] = (book.entries, book.caps, book.overlaps)
        kept = rows[(Entry, Cap, Overlap).index(type(row))]
        if kept[number - 1 : number] != (row,):
            raise tables.strange(path, "has another row than the one that was written", "")
    except UserError as error:
        if not committing:
            raise
        raise UserError(f"{error.what} {doubt}", error.remedy, code=error.code, **error.fields) from error
    return number, book


def _insert(connection: sqlite3.Connection, table: str, values: Mapping[str, Any]) -> int:
    """The number of the new row."""
    columns, marks = ", ".join(values), ", ".join("?" * len(values))
    return int(
        connection.execute(
            f"INSERT INTO {table} ({columns}) VALUES ({marks})",  # noqa: S608
            tuple(values.values()),
        ).lastrowid
        or 0
    )


def _bring_up(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new ledger, or bring an older one to this version."""
    if path.stat().st_size == 0:
        lacking = [tables.TRAININGS, tables.CAPS, tables.OVERLAPS]
    else:
        version, known = tables.layout(connection)
        if version == tables.VERSION:
            return
        wanted = tables.LATER | tables.SIGNED | tables.LINKED
        added = {name: kind for name, kind in wanted.items() if name not in known}
        new = (tables.CAPS, tables.OVERLAPS) if version == 0 else (tables.OVERLAPS,)
        lacking = [*(f"ALTER TABLE trainings ADD COLUMN {name} {kind}" for name, kind in added.items()), *new]
    for statement in (*lacking, f"PRAGMA user_version = {tables.VERSION}"):
        connection.execute(statement)


def settle(receipt: Receipt, state: State, head: str | None = None, sha256: str | None = None) -> None:
    """Write down what became of a training that was charged.

    Args:
        receipt: of the charge.
        state: what became of it.
        head: the name of the file that was really written.
        sha256: of its bytes.

    Raises:
        UserError: the ledger cannot be written, or no longer has the row of this training.

    """
    entry = receipt.entry
    settled = replace(entry, state=state, head=head or entry.head, sha256=sha256)
    with (
        _opened(receipt.ledger, "rw", "What became of the training is not in it.") as connection,
        _transaction(connection),
    ):
        changed = connection.execute(
            "UPDATE trainings SET state = ?, head = ?, sha256 = ? "
            "WHERE id = ? AND at = ? AND head = ? AND releases = ? AND state = ?",
            (state, settled.head, sha256, receipt.number, entry.at, entry.head, entry.releases, entry.state),
        ).rowcount
        if changed != 1 or dict(tables.entries_in(connection)).get(receipt.number) != settled:
            raise tables.StrangeError("has no open row of this training any more")


def receipt_of(path: Path, entry: Entry) -> Receipt | None:
    """The proof that a training was charged, by the row that was written then; None if it is not there, or the row says
    that the training has its head. UserError where the file is no ledger.
    """
    rows = tables.read(path)
    for i, row in enumerate(rows):
        if row.state in ("charged", "stopped") and replace(row, state=entry.state) == entry:
            return Receipt(ledger=path, number=i + 1, entry=row, entries=tuple(rows[: i + 1]))
    return None


@contextmanager
def _locked(path: Path, allow: Allow, consequence: str) -> Iterator[sqlite3.Connection]:
    """A connection to a ledger in a transaction that `allow` has allowed, with all ledgers locked that it asked for.

    consequence: what it means if that fails, for the message.
    """
    own, others = tables.real(path), frozenset[Path]()
    while True:
        with ExitStack() as locks:
            for each in sorted({own, *others}):
                if each == own:
                    connection = locks.enter_context(_opened(path, "rwc", consequence))
                    locks.enter_context(_transaction(connection))
                else:
                    _hold(locks.enter_context(_opened(each, "rw", consequence)))
            missing = allow(others) - others
            if not missing:
                yield connection
                # The others are let go after the row is on disk.
                connection.execute("COMMIT")
                return
            # A commit, even of nothing, would write a file of a new ledger that is no ledger yet.
            connection.execute("ROLLBACK")
        others |= missing


def _hold(connection: sqlite3.Connection) -> None:
    """Let nobody else commit anything to a ledger until the connection is closed."""
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if tables.kind_of(error) != sqlite3.SQLITE_READONLY:
            raise
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()


@contextmanager
def _opened(path: Path, mode: tables.Mode, consequence: str) -> Iterator[sqlite3.Connection]:
    """A connection for writing. consequence: what it means if that fails, for the message."""
    try:
        tables.size_of(path)
        with closing(tables.connected(path, mode)) as connection:
            # EXTRA also syncs the folder after the journal is removed: the row survives a power cut.
            connection.execute("PRAGMA synchronous = EXTRA")
            # Somebody may have switched to a log (WAL). Rows would then lie in a second file, which backups miss.
            if connection.execute("PRAGMA journal_mode = DELETE").fetchone() != ("delete",):
                raise tables.StrangeError("keeps rows in a second file (WAL) that another program holds open")
            yield connection
    except tables.StrangeError as error:
        raise tables.strange(path, str(error), consequence) from error
    except tables.UNREADABLE as error:
        raise UserError(
            f"The ledger '{path}' cannot be written: {error}. {consequence}",
            tables.remedy_of(error),
            code=tables.code_of(error, "unwritable"),
            path=str(path),
        ) from error


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing. It locks the ledger at once, so no other process changes it in between."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        yield
