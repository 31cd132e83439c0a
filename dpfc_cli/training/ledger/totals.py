"""What several trainings together spend, and what they protect."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from dpfc_cli.privacy.accounting import LEAST_EPSILON
from dpfc_cli.training.ledger.rows import RECORD, Entry, Unit
from dpfc_cli.trust.claims import epsilon_of


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

    `other_splits` is there if some of them were about another split of the set. The epsilon is without these. They may
    be of the same records, if the set was made anew since then or if a record is in both. Whether they are is not
    looked at: it follows from records, and a head is handed over. For the same reason only the set's own ledger counts,
    and the persons of its trainings are taken to be the same.

    Args:
        entries: all rows of the ledger.
        number: of the head's own row.
        delta: at which the head claims an ε; None if it claims nothing.

    """
    split, private = entries[number - 1].split, sum(row.claim == "private" for row in entries)
    rows = [replace(row, persons=None) for row in entries if row.split == split]
    others = {"other_splits": len(entries) - len(rows)} if len(rows) < len(entries) else {}
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
