"""The ledger: what was spent on a feature set, kept beside it in an SQLite file.

It has one row for each training. A row is committed and synced to disk before the first noise is drawn, so a training
that is killed afterwards stays charged. When the training ends, its row says what became of it: `written`, with name
and SHA-256 of the head, or `stopped`. A row that still says `charged` belongs to a training that runs, or that was
killed.
"""

import json
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

from dpfc_cli.errors import Code, UserError
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.folders import LEDGER
from dpfc_cli.privacy.accounting import Claim, epsilon_for
from dpfc_cli.privacy.poisson import Sampled
from dpfc_cli.privacy.poisson import epsilon_for as poisson_epsilon

State = Literal["charged", "written", "stopped", "unknown"]
"""What became of a training. "unknown": its row was written before rows said so."""
Mode = Literal["ro", "rw", "rwc"]
_LATER = {"state": "TEXT NOT NULL DEFAULT 'unknown'", "sha256": "TEXT"}
"""Columns that the first ledgers did not have."""
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS trainings (
  id INTEGER PRIMARY KEY, at TEXT NOT NULL, records TEXT NOT NULL, split TEXT NOT NULL, method TEXT NOT NULL, claim TEXT
  NOT NULL, epsilon REAL, delta REAL, mu REAL, eta REAL, adjacency TEXT NOT NULL, unit TEXT NOT NULL, n INTEGER NOT
  NULL, releases TEXT NOT NULL, head TEXT NOT NULL, {", ".join(f"{name} {kind}" for name, kind in _LATER.items())}
)
"""


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


def charge(path: Path, entry: Entry) -> Receipt:
    """Write a row durably. Returns only when it is on disk.

    The row is compared with what was to be written before it is committed, and read again afterwards.

    Raises:
        UserError: the row cannot be written. Nothing is charged then, unless the message says that it may be.

    """
    values = asdict(entry)
    columns, marks = ", ".join(values), ", ".join("?" * len(values))
    with _opened(path, "rwc", "nothing is trained that is not charged") as connection:
        with _transaction(connection):
            connection.execute(_SCHEMA)
            for name in set(_LATER) - _columns(connection):
                connection.execute(f"ALTER TABLE trainings ADD COLUMN {name} {_LATER[name]}")
            number = connection.execute(
                f"INSERT INTO trainings ({columns}) VALUES ({marks})",  # noqa: S608
                tuple(values.values()),
            ).lastrowid
            if dict(_rows(connection)).get(number or 0) != entry:
                raise _strange(path, "does not keep the row that was written. Nothing was charged.")
        entries = dict(_rows(connection))
    if number is None or entries.get(number) != entry:
        raise _strange(path, "has another row than the one that was written. The training may be charged.")
    return Receipt(ledger=path, number=number, entry=entry, entries=tuple(entries.values()))


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
    consequence = "what became of the training is not in it"
    with _opened(receipt.ledger, "rw", consequence) as connection, _transaction(connection):
        changed = connection.execute(
            "UPDATE trainings SET state = ?, head = ?, sha256 = ? "
            "WHERE id = ? AND at = ? AND head = ? AND releases = ? AND state = 'charged'",
            (state, head or entry.head, sha256, receipt.number, entry.at, entry.head, entry.releases),
        ).rowcount
        if changed != 1:
            raise _strange(receipt.ledger, "has no open row of this training any more.")


def read(path: Path) -> list[Entry]:
    """All rows, oldest first; none when there is no ledger yet. UserError where the file is no ledger."""
    # A first charge that was stopped before its commit leaves an empty file: a ledger without rows.
    if not path.exists() or path.stat().st_size == 0:
        return []
    try:
        with closing(_connected(path, "ro")) as connection:
            return [entry for _, entry in _rows(connection)]
    except sqlite3.Error as error:
        raise UserError(
            f"'{path}' cannot be read as a ledger: {error}.",
            _remedy(error),
            code=_code(error),
            path=str(path),
        ) from error


@contextmanager
def _opened(path: Path, mode: Mode, consequence: str) -> Iterator[sqlite3.Connection]:
    """A connection for writing. consequence: what it means if that fails, for the message."""
    try:
        with closing(_connected(path, mode)) as connection:
            # EXTRA also syncs the folder after the journal is removed: the row survives a power cut.
            connection.execute("PRAGMA synchronous = EXTRA")
            yield connection
    except sqlite3.Error as error:
        raise UserError(
            f"The ledger '{path}' cannot be written ({error}), and {consequence}.",
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


def _strange(path: Path, what: str) -> UserError:
    return UserError(
        f"The ledger '{path}' {what}",
        "Do not delete it. Compare it with a backup.",
        code="damaged",
        path=str(path),
    )


def _rows(connection: sqlite3.Connection) -> Iterator[tuple[int, Entry]]:
    known = _columns(connection)
    names = [each.name for each in fields(Entry) if each.name not in _LATER or each.name in known]
    for number, *values in connection.execute(f"SELECT id, {', '.join(names)} FROM trainings ORDER BY id"):  # noqa: S608
        yield number, Entry(**{"state": "unknown", **dict(zip(names, values, strict=True))})


def _columns(connection: sqlite3.Connection) -> set[str]:
    return {row[1] for row in connection.execute("PRAGMA table_info(trainings)")}


def _connected(path: Path, mode: Mode) -> sqlite3.Connection:
    # Transactions are begun by `_transaction` alone.
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=30, isolation_level=None)


def _kind(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_CLOSED = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL)


def _remedy(error: sqlite3.Error) -> str:
    if _kind(error) in _BUSY:
        return "Another program holds it: try again when that one has ended."
    if _kind(error) in _CLOSED:
        return "Make that place readable and writable, with room left."
    return "Restore it from a backup; do not delete it."


def _code(error: sqlite3.Error, closed: Code = "unreadable") -> Code:
    return "busy" if _kind(error) in _BUSY else closed if _kind(error) in _CLOSED else "damaged"


def composes_exactly(rows: list[Entry]) -> bool:
    """Whether `together` is the smallest ε that can be claimed. Otherwise it is an upper bound."""
    private = [r for r in rows if r.mu is not None]
    sampled = any(release["rate"] < 1 for r in private for release in json.loads(r.releases))
    return not sampled and all(r.adjacency == "zero-out" for r in private)


def together(rows: list[Entry], delta: float) -> float:
    """ε at δ of all private trainings together, under zero-out adjacency. Rows without a guarantee are not in it.

    A row made under replace-one counts with its μ, which covers zero-out: the null record is one of those that a record
    may be replaced by. Full passes compose exactly: their μ² add up. Where a training sampled, privacy loss
    distributions compose all of them.
    """
    private = [r for r in rows if r.mu is not None]
    eta = math.fsum(r.eta or 0.0 for r in private)
    made = [release for row in private for release in json.loads(row.releases)]
    mu = math.sqrt(math.fsum(r["times"] / r["sigma"] ** 2 for r in made if r["rate"] == 1))
    sampled = [Sampled(sigma=r["sigma"], rate=r["rate"], times=r["times"]) for r in made if r["rate"] < 1]
    return poisson_epsilon(sampled, mu, delta, eta) if sampled else epsilon_for(mu, delta, eta)
