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
from dpfc_cli.privacy.accounting import epsilon_for
from dpfc_cli.privacy.oracle import Plan

Claim = Literal["private", "research", "non-private"]
SUFFIX = ".ledger.sqlite"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS trainings (
  id INTEGER PRIMARY KEY, at TEXT NOT NULL, split TEXT NOT NULL, method TEXT NOT NULL, claim TEXT NOT NULL, mu REAL,
  delta REAL, adjacency TEXT NOT NULL, unit TEXT NOT NULL, n INTEGER NOT NULL, releases TEXT NOT NULL, head TEXT NOT
  NULL
)
"""


@dataclass(frozen=True)
class Entry:
    """One training. mu: its μ; None where there is no guarantee (seeded noise, or none). delta: the δ it was stated
    at.
    """

    at: str
    split: str
    method: str
    claim: Claim
    mu: float | None
    delta: float | None
    adjacency: str
    unit: str
    n: int
    releases: str
    head: str

    @property
    def epsilon(self) -> float:
        """ε at the entry's own δ; inf without a guarantee."""
        return math.inf if self.mu is None or self.delta is None else epsilon_for(self.mu, self.delta)


def ledger_path(feature_set: Path) -> Path:
    """The ledger of a feature set: beside its folder, so that it outlives it."""
    resolved = feature_set.resolve()
    return resolved.with_name(resolved.name + SUFFIX)


def entry(
    split: str,
    method: str,
    claim: Claim,
    mu: float | None,
    delta: float | None,
    facts: tuple[str, str, int],
    plan: Plan,
    head: Path,
) -> Entry:
    """An entry dated now. facts: adjacency, unit and n."""
    sigmas = plan.sigmas(mu) if mu is not None else (0.0,) * len(plan.releases)
    releases = json.dumps([{"kind": r.kind, "sigma": s} for r, s in zip(plan.releases, sigmas, strict=True)])
    at = datetime.now(UTC).isoformat(timespec="seconds")
    private_mu, private_delta = (mu, delta) if claim == "private" else (None, None)
    return Entry(at, split, method, claim, private_mu, private_delta, *facts, releases, head.name)


def charge(path: Path, row: Entry) -> None:
    """Write a row durably. Returns only when it is on disk. UserError where the ledger cannot be written."""
    values = tuple(row.__dict__.values())
    columns = ", ".join(row.__dict__)
    try:
        with closing(sqlite3.connect(path, timeout=30)) as connection, connection:
            # EXTRA also syncs the folder after the journal is unlinked: the row survives a power cut.
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute(_SCHEMA)
            connection.execute(f"INSERT INTO trainings ({columns}) VALUES ({', '.join('?' * len(values))})", values)  # noqa: S608
    except sqlite3.Error as error:
        raise UserError(
            f"The ledger '{path}' cannot be written ({error}), and nothing is trained that is not charged.",
            "Make that place writable.",
        ) from error


def read(path: Path) -> list[Entry]:
    """All rows, oldest first; none when there is no ledger yet. UserError where the file is no ledger."""
    if not path.exists():
        return []
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as connection:
            columns = ", ".join(Entry.__dataclass_fields__)
            return [Entry(*row) for row in connection.execute(f"SELECT {columns} FROM trainings ORDER BY id")]  # noqa: S608
    except sqlite3.Error as error:
        raise UserError(
            f"'{path}' cannot be read as a ledger: {error}.", "Restore it from a backup; do not delete it."
        ) from error


def total_mu(rows: list[Entry]) -> float:
    """μ of all private trainings together: √Σμ². Rows without a guarantee are not in it."""
    return math.sqrt(math.fsum(r.mu**2 for r in rows if r.mu is not None))
