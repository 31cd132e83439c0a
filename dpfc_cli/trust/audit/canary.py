"""The made-up records of an audit, and its canary."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from dpfc_cli.privacy.curator import BlockStream
from dpfc_cli.privacy.facts import Facts

FACTS = Facts(n=200, m=3, d=8)
"""Small, because the guarantee does not depend on n, m or d. m and d differ, so the axis of the classes can be found in
an answer.
"""
LABEL = FACTS.m - 1
"""The class of the canary."""


def facts_of(records: int | None) -> Facts:
    """The facts of an audit. records: of each person; None if the unit is a record."""
    return FACTS if records is None else replace(FACTS, rows=records * FACTS.n, unit="person")


def records(canary: bool) -> tuple[np.ndarray, np.ndarray]:
    """Normal records with a last coordinate of zero, and the canary, which lies on the last coordinate, or the null
    record.
    """
    x = np.random.default_rng(0).normal(size=(FACTS.n, FACTS.d)).astype(np.float32)
    labels = (np.arange(FACTS.n, dtype=np.int32) % FACTS.m)[:, None]
    x[:, -1] = 0
    x[-1] = 10 * np.max(np.linalg.norm(x, axis=1)) * np.eye(FACTS.d, dtype=np.float32)[-1]
    labels[-1] = LABEL if canary else -1
    return x, labels


def stream(canary: bool, facts: Facts) -> BlockStream:
    parts: tuple[np.ndarray, ...] = records(canary)
    if facts.rows is not None:
        parts = tuple(np.repeat(each, facts.rows // facts.n, axis=0) for each in (*parts, np.arange(facts.n)))

    def blocks(rows: int) -> Iterator[tuple[Any, ...]]:
        for start in range(0, facts.records, rows):
            yield start, *(part[start : start + rows] for part in parts)

    return blocks
