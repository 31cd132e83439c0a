"""The made-up records of an audit, and the canaries: the records in which two neighbouring data sets differ."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dpfc_cli.privacy.chain import Array
from dpfc_cli.privacy.facts import Adjacency, Facts
from dpfc_cli.privacy.inputs import NO_LABEL
from dpfc_cli.privacy.passes import BlockStream


def facts_of(records: int | None = None, labels: int = 1, adjacency: Adjacency = "zero-out") -> Facts:
    """The facts of an audit. They are small, because the guarantee does not depend on n, m or d.

    There are enough classes for two label sets that have nothing in common, and for one class that is in neither of
    them. m and d differ, so the axis of the classes can be found in an answer. records: of each person; None if the
    unit is a record. labels: of each record.
    """
    n, m = 200, 2 * labels + 1
    persons = {} if records is None else {"rows": records * n, "unit": "person"}
    return Facts(n=n, m=m, d=m + 5, k=labels, adjacency=adjacency, **persons)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Canary:
    """One record, or what each record of one person is. x: d features. labels: k labels."""

    x: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True, eq=False)
class Pair:
    """Two neighbouring data sets differ in this: the unit is `one` or `other` (None: null). All else is the same."""

    one: Canary
    other: Canary | None

    @property
    def sides(self) -> tuple[Canary, ...]:
        """The canaries that are not null."""
        return (self.one,) if self.other is None else (self.one, self.other)


def pairs(facts: Facts) -> list[Pair]:
    """The pairs that an attack may choose from.

    Zero-out: a canary on the last axis, or null. Replace-one: a canary on the last axis, or one in the plane of the
    last two axes, at an angle from 90° to 180° or of 0°; with the same labels, or with others. All other records are
    zero on these axes.
    """
    axes = 10 * np.max(np.linalg.norm(_others(facts), axis=1)) * np.eye(facts.d)
    own, apart = facts.m - facts.k + np.arange(facts.k), 1 + np.arange(facts.k)
    one = Canary(axes[-1].astype(np.float32), own)
    if facts.adjacency == "zero-out":
        return [Pair(one, None)]
    return [
        Pair(one, Canary((cosine * axes[-1] + np.sqrt(1 - cosine**2) * axes[-2]).astype(np.float32), labels))
        for cosine in (1.0, *np.linspace(-1, 0, 11))
        for labels in (own, apart)
        if cosine < 1 or labels is apart
    ]


def stream(facts: Facts, canary: Canary | None, alone: bool = False) -> BlockStream:
    """The records of one data set. The last unit is the canary; None: null. alone: all other units are null."""
    x = _others(facts)
    labels = (np.arange(facts.n)[:, None] + np.arange(facts.k)) % facts.m
    if alone:
        labels[:] = NO_LABEL
    labels[-1] = NO_LABEL
    if canary is not None:
        x[-1], labels[-1] = canary.x, canary.labels
    parts: tuple[np.ndarray, ...] = (x, labels.astype(np.int32))
    if facts.rows is not None:
        parts = tuple(np.repeat(each, facts.rows // facts.n, axis=0) for each in (*parts, np.arange(facts.n)))

    def blocks(rows: int) -> Iterator[tuple[Array, ...]]:
        for start in range(0, facts.records, rows):
            yield start, *(part[start : start + rows] for part in parts)

    return blocks


def _others(facts: Facts) -> np.ndarray:
    """Normal records that are zero in the last two coordinates."""
    x = np.random.default_rng(0).normal(size=(facts.n, facts.d)).astype(np.float32)
    x[:, -2:] = 0
    return x
