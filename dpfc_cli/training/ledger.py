"""The ledger: what was spent on a feature set, kept beside it in an SQLite file.

It has one row for each training. A row is committed and synced to disk before the first noise is drawn, so a training
that is killed afterwards stays charged. When the training ends, its row says what became of it: `written`, with name
and SHA-256 of the head, or `stopped`. A row that still says `charged` belongs to a training that runs, or that was
killed.

A ledger is exactly our table and nothing else. SQLite lets a file say what a write to it does: triggers, views, and
clauses such as ON CONFLICT IGNORE can make a charge succeed without a row. So the schema is compared with ours, word
for word, before anything else is done with the file. The rows are numbered 1, 2, 3 …, so a row that was deleted leaves
a gap (unless it was the last one). SQLite keeps any value in any column, so each value is checked when it is read. A
file that does not pass is damaged, or somebody has changed it. It is refused, and never mended.
"""

import math
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from dpfc_cli.errors import Code, UserError
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.files import check_plain, json_of
from dpfc_cli.folders import LEDGER
from dpfc_cli.privacy.accounting import LEAST_EPSILON, Claim, epsilon_for
from dpfc_cli.privacy.poisson import Sampled
from dpfc_cli.privacy.poisson import epsilon_for as poisson_epsilon
from dpfc_cli.schema import among, either, fault, null, record, test, whole
from dpfc_cli.trust.claims import claim_fault, figures_agree

State = Literal["charged", "written", "stopped", "unknown"]
"""What became of a training. "unknown": its row was written before rows said so."""
Mode = Literal["ro", "rw", "rwc"]
_FIRST = {
    **{"id": "INTEGER PRIMARY KEY", "at": "TEXT NOT NULL", "records": "TEXT NOT NULL", "split": "TEXT NOT NULL"},
    **{"method": "TEXT NOT NULL", "claim": "TEXT NOT NULL", "epsilon": "REAL", "delta": "REAL", "mu": "REAL"},
    **{"eta": "REAL", "adjacency": "TEXT NOT NULL", "unit": "TEXT NOT NULL", "n": "INTEGER NOT NULL"},
    **{"releases": "TEXT NOT NULL", "head": "TEXT NOT NULL"},
}
"""The columns of the first ledgers."""
_LATER = {"state": "TEXT NOT NULL DEFAULT 'unknown'", "sha256": "TEXT"}
"""Columns that the first ledgers did not have."""
_SCHEMA = f"CREATE TABLE trainings ({', '.join(f'{name} {kind}' for name, kind in (_FIRST | _LATER).items())})"
_REMEDY = "Do not delete it. Compare it with a backup, or restore it from one."


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One training.

    at: UTC. records: which records it was (`records_of`). epsilon, delta: what was claimed; mu names the noise (and is
    its μ where nothing was sampled), eta is the sampler's η; None where nothing is claimed (seeded noise, or none).
    releases: as JSON. head: the name of its file. state: what became of it. sha256: of the head that was written.
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

    @property
    def plan(self) -> list[dict[str, Any]]:
        """The releases. Raises ValueError where they are no JSON."""
        found: list[dict[str, Any]] = json_of(self.releases)
        return found


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """Proof that a training was charged. Only `charge` makes one.

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


def charge(path: Path, entry: Entry) -> Receipt:
    """Write a row durably. Returns only when it is on disk.

    The row is compared with what was to be written before it is committed. Afterwards the file of that name is opened
    again, and must have it.

    Raises:
        UserError: the row cannot be written. Nothing is charged then, unless the message says that it may be.
        ValueError: a row that no ledger would keep. Nothing is charged.

    """
    check(entry)
    values = asdict(entry)
    columns, marks = ", ".join(values), ", ".join("?" * len(values))
    committing = False
    try:
        with (
            _opened(path, "rwc", "Nothing was charged, and nothing is trained that is not charged.") as connection,
            _transaction(connection),
        ):
            if path.stat().st_size == 0:
                connection.execute(_SCHEMA)
            for name in set(_LATER) - _columns(connection):
                connection.execute(f"ALTER TABLE trainings ADD COLUMN {name} {_LATER[name]}")
            number = connection.execute(
                f"INSERT INTO trainings ({columns}) VALUES ({marks})",  # noqa: S608
                tuple(values.values()),
            ).lastrowid
            if number is None or dict(_rows(connection)).get(number) != entry:
                raise _StrangeError("does not keep the row that was written")
            committing = True
        entries = read(path)
        if entries[number - 1 : number] != [entry]:
            raise _strange(path, "has another row than the one that was written", "")
    except UserError as error:
        if not committing:
            raise
        raise UserError(
            f"{error.what} The training may be charged: 'dpfc budget' says whether it is. It was not begun.",
            error.remedy,
            code=error.code,
            **error.fields,
        ) from error
    return Receipt(ledger=path, number=number, entry=entry, entries=tuple(entries))


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
            "WHERE id = ? AND at = ? AND head = ? AND releases = ? AND state = 'charged'",
            (state, settled.head, sha256, receipt.number, entry.at, entry.head, entry.releases),
        ).rowcount
        if changed != 1 or dict(_rows(connection)).get(receipt.number) != settled:
            raise _StrangeError("has no open row of this training any more")


def read(path: Path) -> list[Entry]:
    """All rows, oldest first; none when there is no ledger yet. UserError where the file is no ledger."""
    try:
        # A first charge that was stopped before its commit leaves an empty file: a ledger without rows.
        if not _size(path):
            return []
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


def _read(path: Path, mode: Mode) -> list[Entry]:
    with closing(_connected(path, mode)) as connection:
        # In one transaction, so that the schema that is checked is that of the rows.
        connection.execute("BEGIN")
        return [entry for _, entry in _rows(connection)]


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


def _columns(connection: sqlite3.Connection) -> set[str]:
    """The columns of the table, if the file has exactly our table and nothing else."""
    ((version,),) = connection.execute("PRAGMA user_version")
    if version != 0:
        raise _StrangeError(f"says that it is of version {version}, and this dpfc knows version 0 only")
    found = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    others = [f"{kind} '{name}'" for kind, name, _ in found if (kind, name) != ("table", "trainings")]
    if others:
        raise _StrangeError(f"has more in it than the table of trainings: the {others[0]}")
    if len(found) != 1:
        raise _StrangeError("has no table of trainings")
    # Our own text, except for spaces, and for columns that were added later.
    text = re.sub(r"\s+", " ", str(found[0][2]), flags=re.ASCII)
    table = re.fullmatch(r"CREATE TABLE trainings \((.*)\)", text)
    said = [part.strip(" ") for part in table[1].split(",")] if table else []
    first = [f"{name} {kind}" for name, kind in _FIRST.items()]
    later = {f"{name} {kind}": name for name, kind in _LATER.items()}
    if said[: len(first)] != first or not set(said[len(first) :]) <= set(later):
        raise _StrangeError("has another table of trainings than dpfc makes")
    return {*_FIRST, *(later[part] for part in said[len(first) :])}


def _rows(connection: sqlite3.Connection) -> Iterator[tuple[int, Entry]]:
    """All rows with their numbers, checked."""
    known = _columns(connection)
    ((sound,),) = connection.execute("PRAGMA quick_check(1)")
    if sound != "ok":
        raise _StrangeError(f"is damaged: {sound}")
    names = [each.name for each in fields(Entry) if each.name in known]
    found = connection.execute(f"SELECT id, {', '.join(names)} FROM trainings ORDER BY id")  # noqa: S608
    for due, (number, *values) in enumerate(found, start=1):
        if number != due:
            raise _StrangeError(f"has no row {due}, but one with the number {number}: a row was taken out")
        entry = Entry(**{"state": "unknown", **dict(zip(names, values, strict=True))})
        try:
            check(entry)
        except ValueError as error:
            raise _StrangeError(f"has a row that no training wrote. In row {number}, {error}") from error
        yield number, entry


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
    if not figures_agree(row):
        raise ValueError("the figures contradict one another")


def _is_utc(value: object) -> bool:
    try:
        at = datetime.fromisoformat(str(value))
        return at.tzinfo is not None and at.astimezone(UTC).isoformat(timespec="seconds") == value
    except (ValueError, OverflowError):
        return False


def _is_file_name(value: object) -> bool:
    return isinstance(value, str) and value not in ("", ".", "..") and "/" not in value and "\0" not in value


_SOME = test(lambda value: type(value) is str and value != "")
_ROW = record(
    {
        **{"at": test(_is_utc), "n": whole(1), "head": test(_is_file_name), "state": among(get_args(State))},
        **dict.fromkeys(("records", "split", "method", "unit", "releases"), _SOME),
        "sha256": either(null, test(lambda value: bool(re.fullmatch("[0-9a-f]{64}", str(value))))),
    }
)


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


def composes_exactly(rows: list[Entry]) -> bool:
    """Whether `together` is the smallest ε that can be claimed. Otherwise it is an upper bound."""
    private = [r for r in rows if r.mu is not None]
    sampled = any(release["rate"] < 1 for r in private for release in r.plan)
    return not sampled and all(r.adjacency == "zero-out" for r in private)


def together(rows: list[Entry], delta: float) -> float:
    """ε at δ of all private trainings together, under zero-out adjacency. Rows without a guarantee are not in it.

    A row made under replace-one counts with its μ, which covers zero-out: the null record is one of those that a record
    may be replaced by. Full passes compose exactly: their μ² add up. Where a training sampled, privacy loss
    distributions compose all of them.
    """
    private = [r for r in rows if r.mu is not None]
    made = [release for r in private for release in r.plan]
    return epsilon_of(made, delta, math.fsum(r.eta or 0.0 for r in private))


def epsilon_of(releases: Sequence[Mapping[str, Any]], delta: float, eta: float) -> float:
    """ε at δ of releases, as a card or a row has them. eta: the sum of their trainings' η."""
    mu = math.sqrt(math.fsum(r["times"] / r["sigma"] ** 2 for r in releases if r["rate"] == 1))
    sampled = [Sampled(sigma=r["sigma"], rate=r["rate"], times=r["times"]) for r in releases if r["rate"] < 1]
    return poisson_epsilon(sampled, mu, delta, eta) if sampled else epsilon_for(mu, delta, eta)


def standing(entries: Sequence[Entry], number: int, delta: float | None) -> dict[str, Any]:
    """What a head's card says of the trainings in its ledger.

    Only the set's own ledger counts. Which other sets are linked to it depends on whether they hold exactly the same
    records. That is a fact about records, and a head is handed over.

    Args:
        entries: all rows of the ledger.
        number: of the head's own row.
        delta: at which the head claims an ε; None if it claims nothing.

    """
    rows = list(entries)
    private = sum(row.claim == "private" for row in rows)
    epsilon = max(together(rows, delta), LEAST_EPSILON) if delta is not None else math.inf
    return {
        "training": number,
        "trainings": len(rows),
        "private": private,
        "unprotected": len(rows) - private,
        "epsilon": epsilon if math.isfinite(epsilon) else None,
        "exact": composes_exactly(rows),
    }
