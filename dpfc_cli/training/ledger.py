"""The ledger: what was spent on a feature set, kept beside it in an SQLite file.

It has one row for each training, one for each change of the cap (`limit` says what a cap is), and one for each set that
somebody says shares records with this one (`sharing`). A row of a training is committed and synced to disk before the
first noise is drawn, so a training that is killed afterwards stays charged. When the training ends, its row says what
became of it: `written`, with name and SHA-256 of the head, or `stopped`. A row that still says `charged` belongs to a
training that runs, or that was killed.

A ledger is exactly our table and nothing else. SQLite lets a file say what a write to it does: triggers, views, and
clauses such as ON CONFLICT IGNORE can make a charge succeed without a row. So the schema is compared with ours, word
for word, before anything else is done with the file. The rows are numbered 1, 2, 3 …, so a row that was deleted leaves
a gap (unless it was the last one). SQLite keeps any value in any column, so each value is checked when it is read. A
file that does not pass is damaged, or somebody has changed it. It is refused, and never mended.
"""

import math
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from dpfc_cli.errors import Code, UserError
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.files import check_plain, json_of
from dpfc_cli.folders import LEDGER
from dpfc_cli.privacy.accounting import LARGEST_EPSILON, LEAST_DELTA, LEAST_EPSILON, Claim
from dpfc_cli.schema import among, either, fault, null, number, record, test, whole
from dpfc_cli.trust.claims import claim_fault, epsilon_agrees, epsilon_of, figures_agree

State = Literal["charged", "written", "stopped", "unknown"]
"""What became of a training. "unknown": its row was written before rows said so."""
Mode = Literal["ro", "rw", "rwc"]
VERSION = 2
"""Of the ledgers that are written."""
EVALUATION = "evaluation"
"""The method of a row that is no training: noisy figures of how good a head is on these records."""
MOST_NAME, MOST_NOTE = 100, 500
"""Characters of a name, and of a purpose or a note."""
_FIRST = {
    **{"id": "INTEGER PRIMARY KEY", "at": "TEXT NOT NULL", "records": "TEXT NOT NULL", "split": "TEXT NOT NULL"},
    **{"method": "TEXT NOT NULL", "claim": "TEXT NOT NULL", "epsilon": "REAL", "delta": "REAL", "mu": "REAL"},
    **{"eta": "REAL", "adjacency": "TEXT NOT NULL", "unit": "TEXT NOT NULL", "n": "INTEGER NOT NULL"},
    **{"releases": "TEXT NOT NULL", "head": "TEXT NOT NULL"},
}
"""The columns of the first ledgers."""
_LATER = {"state": "TEXT NOT NULL DEFAULT 'unknown'", "sha256": "TEXT"}
"""Columns that the first ledgers did not have."""
_SIGNED = {"who": "TEXT", "purpose": "TEXT", "persons": "TEXT", "caps": "INTEGER NOT NULL DEFAULT 0"}
"""Columns that came with version 1. caps: how many rows of caps were there before the training."""
_LINKED = {"overlaps": "INTEGER NOT NULL DEFAULT 0"}
"""The column that came with version 2: how many rows of overlaps were there before the training."""
_CAP = {
    **{"id": "INTEGER PRIMARY KEY", "at": "TEXT NOT NULL", "records": "TEXT NOT NULL", "epsilon": "REAL"},
    **{"delta": "REAL", "mu": "REAL", "eta": "REAL", "who": "TEXT NOT NULL", "note": "TEXT"},
    **{"trainings": "INTEGER NOT NULL", "unit": "TEXT NOT NULL", "persons": "TEXT"},
}
_OVERLAP = {
    **{"id": "INTEGER PRIMARY KEY", "at": "TEXT NOT NULL", "records": "TEXT NOT NULL", "other": "TEXT NOT NULL"},
    **{"name": "TEXT NOT NULL", "who": "TEXT NOT NULL", "trainings": "INTEGER NOT NULL"},
}


def _table(name: str, columns: Mapping[str, str]) -> str:
    return f"CREATE TABLE {name} ({', '.join(f'{column} {kind}' for column, kind in columns.items())})"


_SCHEMA, _CAPS = _table("trainings", _FIRST | _LATER | _SIGNED | _LINKED), _table("caps", _CAP)
_OVERLAPS = _table("overlaps", _OVERLAP)
_TABLES = {0: ("trainings",), 1: ("trainings", "caps"), 2: ("trainings", "caps", "overlaps")}
"""The tables of each version."""
_REMEDY = "Do not delete it. Compare it with a backup, or restore it from one."


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One training, or one private evaluation of a head.

    at: UTC. records: which records it was (`records_of`). epsilon, delta: what was claimed; mu names the noise (and is
    its μ where nothing was sampled), eta is the sampler's η; None where nothing is claimed (seeded noise, or none).
    releases: as JSON. head: the name of its file. state: what became of it. sha256: of the head that was written, or of
    the figures of an evaluation: so no row but that of its training has the digest of a head. who: whose training it
    is; None in the first ledgers. purpose: what it is for. unit: what is protected, a record or a person. persons: the
    digest of which records belong to which person; None if the unit is a record.
    """

    at: str
    records: str
    split: str
    method: str
    claim: Claim
    epsilon: float | None
    delta: float | None
    mu: float | None
    eta: float | None
    adjacency: str
    unit: str
    n: int
    releases: str
    head: str
    state: State = "charged"
    sha256: str | None = None
    who: str | None = None
    purpose: str | None = None
    persons: str | None = None

    @property
    def protects(self) -> "Unit":
        """What the training protects."""
        return self.unit, self.persons

    @property
    def plan(self) -> list[dict[str, Any]]:
        """The releases. Raises ValueError where they are no JSON."""
        found: list[dict[str, Any]] = json_of(self.releases)
        return found


@dataclass(frozen=True, kw_only=True)
class Cap:
    """A change of the cap: how much all trainings on some records may spend together from now on.

    at: UTC. records: which records it is on (`records_of`). epsilon, delta: the cap; mu, eta: what it stands for (see
    `limit`). All four are None where the cap was removed. who: who set it. note: why. trainings: how many the ledger
    had by then. unit, persons: what is protected, as of an `Entry`.
    """

    at: str
    records: str
    epsilon: float | None
    delta: float | None
    mu: float | None
    eta: float | None
    who: str
    note: str | None = None
    trainings: int = 0
    unit: str = "record"
    persons: str | None = None

    @property
    def protects(self) -> "Unit":
        """What the cap protects."""
        return self.unit, self.persons


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """What somebody says: that a set shares records with the set of this ledger. It cannot be taken back.

    at: UTC. records, other: which records the two sets have (`records_of`). name: of the other set at that time. who:
    who says so. trainings: how many the ledger had by then.
    """

    at: str
    records: str
    other: str
    name: str
    who: str
    trainings: int = 0


@dataclass(frozen=True, kw_only=True)
class Book:
    """All rows of a ledger, oldest first: entries (trainings), caps and overlaps."""

    entries: tuple[Entry, ...] = ()
    caps: tuple[Cap, ...] = ()
    overlaps: tuple[Overlap, ...] = ()


Row = Entry | Cap | Overlap
Told = TypeVar("Told", Cap, Overlap)


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


def records_of(manifest: Manifest, split: str = "train") -> str:
    """A name for a split's records: the digest of its source's listing. It stays in the ledger.

    It is the same for every feature set that `extract` makes of the same pictures, whatever the backbone, the folder
    and the other splits. (Imported features are known by their values alone.)
    """
    return str(manifest.source["identity"]["listing"][split])


def ledger_path(feature_set: Path) -> Path:
    """The ledger of a feature set. It lies beside the set's real folder, so it outlives the set."""
    resolved = feature_set.resolve()
    return resolved.with_name(resolved.name + LEDGER)


_UNREADABLE = (sqlite3.Error, OSError, UnicodeDecodeError)
"""What SQLite, the system and Python's own module raise. A name in a damaged schema may be no text."""


class _StrangeError(Exception):
    """A file that is no ledger as we write them. The text goes on after the ledger's name."""


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
                before = {"caps": len(list(_caps(connection))), "overlaps": len(list(_overlaps(connection)))}
                number = _insert(connection, "trainings", asdict(row) | before)
                found = dict(_rows(connection)).get(number)
            else:
                row = replace(row, trainings=len(list(_rows(connection))))
                number = _insert(connection, "caps" if isinstance(row, Cap) else "overlaps", asdict(row))
                told = _caps(connection) if isinstance(row, Cap) else _overlaps(connection)
                found = dict[int, Row](told).get(number)
            if found != row:
                raise _StrangeError("does not keep the row that was written")
            committing = True
        book = read_all(path)
        rows: tuple[tuple[Row, ...], ...] = (book.entries, book.caps, book.overlaps)
        kept = rows[(Entry, Cap, Overlap).index(type(row))]
        if kept[number - 1 : number] != (row,):
            raise _strange(path, "has another row than the one that was written", "")
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
        lacking = [_SCHEMA, _CAPS, _OVERLAPS]
    else:
        version, known = _layout(connection)
        if version == VERSION:
            return
        added = {name: kind for name, kind in (_LATER | _SIGNED | _LINKED).items() if name not in known}
        tables = (_CAPS, _OVERLAPS) if version == 0 else (_OVERLAPS,)
        lacking = [*(f"ALTER TABLE trainings ADD COLUMN {name} {kind}" for name, kind in added.items()), *tables]
    for statement in (*lacking, f"PRAGMA user_version = {VERSION}"):
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
        if changed != 1 or dict(_rows(connection)).get(receipt.number) != settled:
            raise _StrangeError("has no open row of this training any more")


def receipt_of(path: Path, entry: Entry) -> Receipt | None:
    """The proof that a training was charged, by the row that was written then; None if it is not there, or the row says
    that the training has its head. UserError where the file is no ledger.
    """
    rows = read(path)
    for i, row in enumerate(rows):
        if row.state in ("charged", "stopped") and replace(row, state=entry.state, sha256=entry.sha256) == entry:
            return Receipt(ledger=path, number=i + 1, entry=row, entries=tuple(rows[: i + 1]))
    return None


def read(path: Path) -> list[Entry]:
    """All trainings, oldest first; none when there is no ledger yet. UserError where the file is no ledger."""
    return list(read_all(path).entries)


def read_all(path: Path) -> Book:
    """All rows; none when there is no ledger yet. UserError where the file is no ledger."""
    try:
        # A first charge that was stopped before its commit leaves an empty file: a ledger without rows.
        if not _size(path):
            return Book()
        try:
            return _read(path, "ro")
        except sqlite3.OperationalError as error:
            # An error of Python's own module has no code.
            if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_READONLY_ROLLBACK:
                raise
            # A charge was killed before its commit was whole. What it wrote has to be taken back first.
            return _read(path, "rw")
    except _StrangeError as error:
        raise _strange(path, str(error), "") from error
    except _UNREADABLE as error:
        raise UserError(
            f"'{path}' cannot be read as a ledger: {error}.",
            _remedy(error),
            code=_code(error),
            path=str(path),
        ) from error


def _read(path: Path, mode: Mode) -> Book:
    with closing(_connected(path, mode)) as connection:
        # In one transaction, so that the schema that is checked is that of the rows.
        connection.execute("BEGIN")
        entries = tuple(entry for _, entry in _rows(connection))
        caps = tuple(cap for _, cap in _caps(connection))
        return Book(entries=entries, caps=caps, overlaps=tuple(overlap for _, overlap in _overlaps(connection)))


@contextmanager
def _locked(path: Path, allow: Allow, consequence: str) -> Iterator[sqlite3.Connection]:
    """A connection to a ledger in a transaction that `allow` has allowed, with all ledgers locked that it asked for.

    consequence: what it means if that fails, for the message.
    """
    own, others = real(path), frozenset[Path]()
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
        if _kind(error) != sqlite3.SQLITE_READONLY:
            raise
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()


def real(path: Path) -> Path:
    """Where a ledger really lies: the name by which it is locked."""
    return Path(os.path.realpath(path))


@contextmanager
def _opened(path: Path, mode: Mode, consequence: str) -> Iterator[sqlite3.Connection]:
    """A connection for writing. consequence: what it means if that fails, for the message."""
    try:
        _size(path)
        with closing(_connected(path, mode)) as connection:
            # EXTRA also syncs the folder after the journal is removed: the row survives a power cut.
            connection.execute("PRAGMA synchronous = EXTRA")
            # Somebody may have switched to a log (WAL). Rows would then lie in a second file, which backups miss.
            if connection.execute("PRAGMA journal_mode = DELETE").fetchone() != ("delete",):
                raise _StrangeError("keeps rows in a second file (WAL) that another program holds open")
            yield connection
    except _StrangeError as error:
        raise _strange(path, str(error), consequence) from error
    except _UNREADABLE as error:
        raise UserError(
            f"The ledger '{path}' cannot be written: {error}. {consequence}",
            _remedy(error),
            code=_code(error, "unwritable"),
            path=str(path),
        ) from error


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing. It locks the ledger at once, so no other process changes it in between."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        yield


def _strange(path: Path, what: str, consequence: str) -> UserError:
    return UserError(
        f"The ledger '{path}' {what}. {consequence}".strip(),
        _REMEDY,
        code="damaged",
        path=str(path),
    )


def _size(path: Path) -> int:
    """The size of the ledger's file; 0 if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            raise _StrangeError("is a link that leads nowhere: the ledger is not where it was") from None
        return 0
    check_plain(path)
    if found.st_nlink > 1:
        # SQLite finds the journal of a stopped charge by the file's name, and would miss it under another name.
        raise _StrangeError("has a second name (a hard link): what is charged under one name shows under the other")
    return found.st_size


def _layout(connection: sqlite3.Connection) -> tuple[int, set[str]]:
    """The version, and the columns of the table of trainings, if the file has exactly our tables and nothing else."""
    ((version,),) = connection.execute("PRAGMA user_version")
    if version not in range(VERSION + 1):
        raise _StrangeError(f"says that it is of version {version}, and this dpfc knows versions 0 to {VERSION}")
    tables = _TABLES[version]
    found = {(kind, name): text for kind, name, text in connection.execute("SELECT type, name, sql FROM sqlite_master")}
    others = [f"{kind} '{name}'" for kind, name in found if kind != "table" or name not in tables]
    if others:
        raise _StrangeError(f"has more in it than the tables of dpfc: the {others[0]}")
    said = {}
    for name in tables:
        if ("table", name) not in found:
            raise _StrangeError(f"has no table of {name}")
        # Our own text, except for spaces.
        text = re.sub(r"\s+", " ", str(found["table", name]), flags=re.ASCII)
        table = re.fullmatch(rf"CREATE TABLE {name} \((.*)\)", text)
        said[name] = [part.strip(" ") for part in table[1].split(",")] if table else []
    signs = {0: {}, 1: _SIGNED, 2: _SIGNED | _LINKED}[version]
    first, later, signed, cap, overlap = (
        {f"{name} {kind}": name for name, kind in columns.items()}
        for columns in (_FIRST, _LATER, signs, _CAP, _OVERLAP)
    )
    begin, end = said["trainings"][: len(first)], said["trainings"][len(first) :]
    # Columns that were added to the first ledgers stand in any order, and some may be lacking.
    middle = end[: len(later)] if version else end
    right = begin == list(first) and set(middle) <= set(later)
    if version:
        right = right and set(middle) == set(later) and end[len(later) :] == list(signed)
    if not right:
        raise _StrangeError("has another table of trainings than dpfc makes")
    if version and said["caps"] != list(cap):
        raise _StrangeError("has another table of caps than dpfc makes")
    if version > 1 and said["overlaps"] != list(overlap):
        raise _StrangeError("has another table of overlaps than dpfc makes")
    return version, {(first | later | signed)[part] for part in said["trainings"]}


def _numbered(connection: sqlite3.Connection, table: str, names: Sequence[str]) -> Iterator[tuple[int, list[Any]]]:
    """The rows of a table with their numbers. A gap is a row that was taken out."""
    found = connection.execute(f"SELECT id, {', '.join(names)} FROM {table} ORDER BY id")  # noqa: S608
    for due, (there, *values) in enumerate(found, start=1):
        if there != due:
            raise _StrangeError(f"has no row {due}, but one with the number {there}: a row was taken out")
        yield due, values


def _rows(connection: sqlite3.Connection) -> Iterator[tuple[int, Entry]]:
    """All trainings with their numbers, checked."""
    version, known = _layout(connection)
    ((sound,),) = connection.execute("PRAGMA quick_check(1)")
    if sound != "ok":
        raise _StrangeError(f"is damaged: {sound}")
    caps = [cap.trainings for _, cap in _caps(connection)]
    overlaps = [overlap.trainings for _, overlap in _overlaps(connection)]
    names = [each.name for each in fields(Entry) if each.name in known]
    last, counts = 0, ["caps" if version else "0", "overlaps" if version > 1 else "0"]
    for last, (told_caps, told_overlaps, *values) in _numbered(connection, "trainings", [*counts, *names]):
        entry = Entry(**{"state": "unknown", **dict(zip(names, values, strict=True))})
        try:
            check(entry)
        except ValueError as error:
            raise _StrangeError(f"has a row that no training wrote. In row {last}, {error}") from error
        for what, said, before in (("caps", told_caps, caps), ("overlaps", told_overlaps, overlaps)):
            if type(said) is not int or said != sum(each < last for each in before):
                raise _StrangeError(f"has other {what} than row {last} was charged under: one was taken out or changed")
        yield last, entry
    for what, before in (("a cap that was set", caps), ("an overlap that was told", overlaps)):
        if before and before[-1] > last:
            raise _StrangeError(f"has {last} trainings, and {what} after {before[-1]}: a row was taken out")


def _caps(connection: sqlite3.Connection) -> Iterator[tuple[int, Cap]]:
    """All caps with their numbers, checked."""
    if _layout(connection)[0] > 0:
        yield from _told(connection, "caps", Cap, check_cap, "a cap that nobody set")


def _overlaps(connection: sqlite3.Connection) -> Iterator[tuple[int, Overlap]]:
    """All overlaps with their numbers, checked."""
    if _layout(connection)[0] > 1:
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
            raise _StrangeError(f"has {strange}. In its row {row}, {error}") from error
        least = made.trainings
        yield row, made


def check(entry: Entry) -> None:
    """Raise ValueError for values that no training has."""
    row: dict[str, Any] = asdict(entry)
    wrong = fault(row, _ROW)
    if wrong is None:
        try:
            row["plan"] = entry.plan
        except ValueError as error:
            raise ValueError(f"'releases' cannot be read: {error}") from error
        wrong = claim_fault(row)
    if wrong is not None:
        raise ValueError(f"'{wrong[:80]}' makes no sense")
    if (entry.state == "written") != (entry.sha256 is not None):
        raise ValueError("'sha256' does not fit 'state': the digest of a head is there once it is written")
    if not figures_agree(row) or (entry.unit == "person") != (entry.persons is not None):
        raise ValueError("the figures contradict one another")


def _is_utc(value: object) -> bool:
    try:
        at = datetime.fromisoformat(str(value))
        return at.tzinfo is not None and at.astimezone(UTC).isoformat(timespec="seconds") == value
    except (ValueError, OverflowError):
        return False


def _is_file_name(value: object) -> bool:
    return isinstance(value, str) and value not in ("", ".", "..") and "/" not in value and "\0" not in value


def is_note(value: object, most: int) -> bool:
    """Whether a ledger keeps it as a name (`MOST_NAME`) or as a note (`MOST_NOTE`): text, neither empty nor long.

    It may have any characters that UTF-8 has, but NUL. They are escaped where they are shown.
    """
    if not isinstance(value, str) or not 0 < len(value) <= most:
        return False
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


_SOME = test(lambda value: type(value) is str and value != "")
_NAME, _NOTE = test(lambda value: is_note(value, MOST_NAME)), test(lambda value: is_note(value, MOST_NOTE))
_DIGEST = test(lambda value: bool(re.fullmatch("[0-9a-f]{64}", str(value))))
_UNIT = {"unit": among(["record", "person"]), "persons": either(null, _DIGEST)}
_ROW = record(
    {
        **{"at": test(_is_utc), "n": whole(1), "head": test(_is_file_name), "state": among(get_args(State))},
        **dict.fromkeys(("records", "split", "method", "releases"), _SOME),
        **_UNIT,
        "sha256": either(null, _DIGEST),
        **{"who": either(null, _NAME), "purpose": either(null, _NOTE)},
    }
)
_SET = {
    **{"epsilon": number(LEAST_EPSILON, LARGEST_EPSILON), "delta": number(LEAST_DELTA, 1 - 2**-53)},
    **{"mu": number(0, 1e150, beyond=True), "eta": number(0, 1)},
}
_CAP_ROW = {
    **{"at": test(_is_utc), "records": _SOME, "who": _NAME, "note": either(null, _NOTE), "trainings": whole(0)},
    **_UNIT,
}


def check_cap(cap: Cap) -> None:
    """Raise ValueError for values that no cap has."""
    row = asdict(cap)
    wrong = fault(row, record(_CAP_ROW | (dict.fromkeys(_SET, null) if cap.epsilon is None else _SET)))
    if wrong is not None:
        raise ValueError(f"'{wrong[:80]}' makes no sense")
    agree = cap.epsilon is None or epsilon_agrees(*(row[name] for name in _SET))
    if not agree or (cap.unit == "person") != (cap.persons is not None):
        raise ValueError("the figures contradict one another")


_OVERLAP_ROW = record(
    {"at": test(_is_utc), "records": _SOME, "other": _SOME, "name": _SOME, "who": _NAME, "trainings": whole(0)}
)


def check_overlap(overlap: Overlap) -> None:
    """Raise ValueError for values that no overlap has."""
    wrong = fault(asdict(overlap), _OVERLAP_ROW)
    if wrong is not None:
        raise ValueError(f"'{wrong[:80]}' makes no sense")


def _connected(path: Path, mode: Mode) -> sqlite3.Connection:
    # Transactions are begun by `_transaction` alone.
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=30, isolation_level=None)


def _kind(error: Exception) -> int:
    if isinstance(error, OSError):
        return sqlite3.SQLITE_CANTOPEN
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_CLOSED = (
    *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY),
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR),
)


def _remedy(error: Exception) -> str:
    if _kind(error) in _BUSY:
        return "Another program holds it: try again when that one has ended."
    if _kind(error) in _CLOSED:
        return "Make that place readable and writable, with room left."
    return "Restore it from a backup; do not delete it."


def _code(error: Exception, closed: Code = "unreadable") -> Code:
    return "busy" if _kind(error) in _BUSY else closed if _kind(error) in _CLOSED else "damaged"


def persons_of(manifest: Manifest, split: str = "train") -> str | None:
    """The digest of which records of a split belong to which person. It stays in the ledger. None without persons."""
    known = manifest.source["identity"].get("groups")
    return None if known is None else str(known[split])


Unit = tuple[str, str | None]
"""What is protected: "record", or "person" with the digest of which records belong to which person."""
RECORD: Unit = ("record", None)


def unit_of(rows: Iterable[Entry]) -> Unit:
    """What all private trainings together protect: the persons that all of them protect, or else a record."""
    units = {r.protects for r in rows if r.mu is not None}
    return units.pop() if len(units) == 1 else RECORD


def weight(training: Unit, unit: Unit) -> float:
    """How many times its μ a training spends of what protects a unit. training: what the training protects.

    If one record of a person changes, the clipped sum of the person changes from one vector to another one. Both are at
    most as long as the bound, so the change is at most twice the bound. So for a record, a training that protects
    persons has twice its μ. A training that protects records, or other persons, has no μ for persons: they may have any
    number of records.
    """
    if training == unit:
        return 1.0
    return 2.0 if unit == RECORD else math.inf


def composes_exactly(rows: list[Entry]) -> bool:
    """Whether `together` is the smallest ε that can be claimed. Otherwise it is an upper bound."""
    private = [r for r in rows if r.mu is not None]
    sampled = any(release["rate"] < 1 for r in private for release in r.plan)
    unit = unit_of(private)
    alike = all(weight(r.protects, unit) == 1 for r in private) and len({r.split for r in private}) < 2
    return not sampled and alike and all(r.adjacency == "zero-out" for r in private)


def together(rows: list[Entry], delta: float, unit: Unit | None = None) -> float:
    """ε at δ of all private trainings together, under zero-out adjacency. Rows without a guarantee are not in it.

    It protects a unit; None: that of `unit_of`. A row made under replace-one counts with its μ, which covers zero-out:
    the null record is one of those that a record may be replaced by. Full passes compose exactly: their μ² add up.
    Where a training sampled, privacy loss distributions compose all of them.
    """
    private = [r for r in rows if r.mu is not None]
    unit = unit or unit_of(private)
    made = [_for(unit, r.protects, release) for r in private for release in r.plan]
    return epsilon_of(made, delta, math.fsum(r.eta or 0.0 for r in private))


def _for(unit: Unit, training: Unit, release: dict[str, Any]) -> dict[str, Any]:
    """A release as it counts for a unit.

    The bound of a sampled release is for a unit that takes part or does not. For one record of a person it is not, so
    the release counts as a full pass then: somebody who also sees who takes part learns more.
    """
    times = weight(training, unit)
    return release if times == 1 else {**release, "sigma": release["sigma"] / times, "rate": 1.0}


def about(entries: Iterable[Entry], split: str, records: Iterable[str]) -> list[Entry]:
    """The rows of a set's ledger that may be about the records of a split.

    A record lies in one split, so rows about another one say nothing of it. But splits that were held out of one source
    have one listing, and the ledger may be older than the set. What was in the other split then may be in this one now.

    Args:
        entries: the rows.
        split: the split.
        records: the listings of its records.

    """
    known = set(records)
    return [row for row in entries if row.split == split or row.records in known]


def standing(entries: Sequence[Entry], number: int, delta: float | None) -> dict[str, Any]:
    """What a head's card says of the trainings in its ledger. Private evaluations count as trainings.

    `other_records` is there if some of them were of other records. The epsilon is without these.

    Only the set's own ledger counts. Which other sets are linked to it depends on whether they hold exactly the same
    records. That is a fact about records, and a head is handed over.

    Args:
        entries: all rows of the ledger.
        number: of the head's own row.
        delta: at which the head claims an ε; None if it claims nothing.

    """
    own = entries[number - 1]
    rows, private = about(entries, own.split, [own.records]), sum(row.claim == "private" for row in entries)
    # Persons lie in one split as a whole.
    rows = [row for row in rows if row.split == own.split or row.persons is None]
    others = {"other_records": len(entries) - len(rows)} if len(rows) < len(entries) else {}
    epsilon = max(together(rows, delta), LEAST_EPSILON) if delta is not None else math.inf
    return {
        "training": number,
        "trainings": len(entries),
        "private": private,
        "unprotected": len(entries) - private,
        **others,
        "epsilon": epsilon if math.isfinite(epsilon) else None,
        "exact": composes_exactly(rows),
        "unit": unit_of(rows)[0],
    }
