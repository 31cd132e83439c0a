"""Rows of ledgers, and ledgers that somebody changed, as the tests make them."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dpfc_cli.training.ledger import Cap, Entry, Overlap, tables

from dpfc_cli.errors import UserError
from dpfc_cli.privacy.accounting import Claim, epsilon_for
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.queries import Gradient, Gram
from dpfc_cli.training import ledger, limit
from dpfc_cli.training.calibrate import Calibrated
from dpfc_cli.training.card import entry_of
from tests.hostile import set_of
from tests.support import CHAIN, calibrated_at, plan_of

AT = "2026-01-02T03:04:05+00:00"
FACTS = Facts(n=100, m=2, d=2)
GRADIENT = Gradient(CHAIN, np.zeros((3, 2)), clip=1.0)
PLAN = plan_of(FACTS, (Gram(CHAIN, 0.2), 0.2), (GRADIENT, 0.4), (GRADIENT, 0.4))
DIGEST = "0123456789abcdef" * 4


def entry(calibrated: Calibrated) -> Entry:
    return entry_of(calibrated, set_of(calibrated.facts), "h.safetensors", AT)


def row(mu: float = 0.3, claim: Claim = "private") -> Entry:
    return entry(calibrated_at(FACTS, PLAN, None if claim == "non-private" else mu, claim, epsilon_for(mu, 1e-5)))


def cap(epsilon: float | None = 3.0, **changed: Any) -> Cap:
    figures: dict[str, Any] = {"epsilon": None, "delta": None, "mu": None, "eta": None}
    if epsilon is not None:
        figures |= {"epsilon": epsilon, "delta": 1e-5, "mu": limit.mu_of_cap(epsilon, 1e-5), "eta": limit.RESERVE}
    return Cap(**{"at": AT, "records": row().records, **figures, "who": "an officer", "note": "a plan", **changed})


def overlap(**changed: Any) -> Overlap:
    return Overlap(**{"at": AT, "records": row().records, "other": "r", "name": "last year", "who": "Ada", **changed})


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def changed(path: Path, sql: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        if values:
            connection.execute(sql, values)
        else:
            connection.executescript(sql)


def refused(path: Path, says: str) -> None:
    """Reading and charging are refused, and the file stays as it is."""
    before = path.read_bytes()
    with pytest.raises(UserError, match=says) as on_reading:
        ledger.read(path)
    with pytest.raises(UserError, match=rf"(?s)(?:{says}).*Nothing was charged") as on_charging:
        ledger.charge(path, row(0.5))
    assert on_reading.value.code == on_charging.value.code == "damaged"
    assert "Do not delete it" in on_charging.value.remedy
    assert path.read_bytes() == before


def tables_of(version: int) -> list[str]:
    """What makes the tables of a ledger of this version."""
    columns = tables.FIRST | tables.LATER | (tables.SIGNED if version > 0 else {})
    columns |= tables.LINKED if version > 1 else {}
    return [tables.table_of("trainings", columns), *(tables.CAPS, tables.OVERLAPS)[:version]]
