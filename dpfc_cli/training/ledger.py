"""The ledger: what has been spent on a feature set, kept beside it in an SQLite file.

One row per training, committed and synced to disk before the first noise is drawn, so that a run that is killed
afterwards stays charged. Full-batch Gaussian releases compose exactly: the μ² of the rows add up.
"""

import json
import math
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from dpfc_cli.errors import UserError
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.privacy.accounting import Claim, Guarantee, epsilon_for
from dpfc_cli.privacy.oracle import Facts, Plan, releases
from dpfc_cli.privacy.poisson import Sampled
from dpfc_cli.privacy.poisson import epsilon_for as poisson_epsilon

SUFFIX = ".ledger.sqlite"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS trainings (
  id INTEGER PRIMARY KEY, at TEXT NOT NULL, records TEXT NOT NULL, split TEXT NOT NULL, method TEXT NOT NULL, claim TEXT
  NOT NULL, epsilon REAL, delta REAL, mu REAL, eta REAL, adjacency TEXT NOT NULL, unit TEXT NOT NULL, n INTEGER NOT
  NULL, releases TEXT NOT NULL, head TEXT NOT NULL
)
"""


@dataclass(frozen=True)
class Entry:
    """One training. records: which records it was (`records_of`). epsilon, delta: what it was stated at; mu names its
    noise (and is its μ where nothing was sampled) and eta is its sampler's η; None where there is no guarantee (seeded
    noise, or none).
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


def records_of(manifest: Manifest, split: str = "train") -> str:
    """A name for a split's records, the same for every feature set that `extract` makes of the same pictures, whatever
    the backbone, the folder and the other splits. (Imported features are known by their values alone.)

    It is the digest of the source's listing, so it stays in the ledger.
    """
    return str(manifest.source["identity"]["listing"][split])


def ledger_path(feature_set: Path) -> Path:
    """The ledger of a feature set: beside its (real) folder, so that it outlives it."""
    resolved = feature_set.resolve()
    return resolved.with_name(resolved.name + SUFFIX)


def entry(
    manifest: Manifest,
    split: str,
    method: str,
    claim: Claim,
    guarantee: Guarantee | None,
    facts: Facts,
    plan: Plan,
    head: str,
) -> Entry:
    """An entry dated now. head: the name of the file that is to be written."""
    spent = json.dumps(releases(plan, guarantee.mu if guarantee else None))
    at = datetime.now(UTC).isoformat(timespec="seconds")
    claimed = guarantee if claim == "private" else None
    return Entry(
        at=at,
        records=records_of(manifest, split),
        split=split,
        method=method,
        claim=claim,
        epsilon=claimed.epsilon if claimed else None,
        delta=claimed.delta if claimed else None,
        mu=claimed.mu if claimed else None,
        eta=claimed.eta if claimed else None,
        adjacency=facts.adjacency,
        unit=facts.unit,
        n=facts.n,
        releases=spent,
        head=head,
    )


def charge(path: Path, row: Entry) -> None:
    """Write a row durably. Returns only when it is on disk. UserError where the ledger cannot be written."""
    values = tuple(row.__dict__.values())
    columns = ", ".join(row.__dict__)
    try:
        with closing(_connected(path, "rwc")) as connection, connection:
            # EXTRA also syncs the folder after the journal is unlinked: the row survives a power cut.
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute(_SCHEMA)
            connection.execute(f"INSERT INTO trainings ({columns}) VALUES ({', '.join('?' * len(values))})", values)  # noqa: S608
    except sqlite3.Error as error:
        raise UserError(
            f"The ledger '{path}' cannot be written ({error}), and nothing is trained that is not charged.",
            _remedy(error),
        ) from error


def read(path: Path) -> list[Entry]:
    """All rows, oldest first; none when there is no ledger yet. UserError where the file is no ledger."""
    if not path.exists():
        return []
    try:
        with closing(_connected(path, "ro")) as connection:
            columns = ", ".join(Entry.__dataclass_fields__)
            return [Entry(*row) for row in connection.execute(f"SELECT {columns} FROM trainings ORDER BY id")]  # noqa: S608
    except sqlite3.Error as error:
        raise UserError(f"'{path}' cannot be read as a ledger: {error}.", _remedy(error)) from error


def _connected(path: Path, mode: Literal["ro", "rwc"]) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=30)


def _remedy(error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return "Another program holds it: try again when that one has ended."
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL):
        return "Make that place readable and writable, with room left."
    return "Restore it from a backup; do not delete it."


def composes_exactly(rows: list[Entry]) -> bool:
    """Whether `together` is the least ε that can be claimed, rather than an upper bound."""
    private = [r for r in rows if r.mu is not None]
    sampled = any(release["rate"] < 1 for r in private for release in json.loads(r.releases))
    return not sampled and all(r.adjacency == "zero-out" for r in private)


def together(rows: list[Entry], delta: float) -> float:
    """ε at δ of all private trainings together. Rows without a guarantee are not in it.

    This is a guarantee under zero-out adjacency. A row made under replace-one counts with its μ, which covers zero-out:
    the null record is one of those that a record may be replaced by. Full passes compose exactly; where a training
    sampled, privacy loss distributions compose all of them.
    """
    private = [r for r in rows if r.mu is not None]
    eta = math.fsum(r.eta or 0.0 for r in private)
    made = [release for row in private for release in json.loads(row.releases)]
    mu = math.sqrt(math.fsum(r["times"] / r["sigma"] ** 2 for r in made if r["rate"] == 1))
    sampled = [Sampled(r["sigma"], r["rate"], r["times"]) for r in made if r["rate"] < 1]
    return poisson_epsilon(sampled, mu, delta, eta) if sampled else epsilon_for(mu, delta, eta)
