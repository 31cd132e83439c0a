"""Persons with more records than count, and sums at the edge of what 64 bits hold."""

from typing import Any

import numpy as np
import pytest

from dpfc_cli.privacy import persons
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Lattice
from dpfc_cli.privacy.queries import ClassSums, Gram, Mean, Query
from tests.support import CHAIN, every_query

LATTICE = Lattice(14)
FACTS = Facts(n=1, m=3, d=5, k=2)
QUERIES = [query for query in every_query(FACTS) if isinstance(query, Gram | ClassSums | Mean)]


def factors_of(query: Query, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Integers as long as a record's may be at most."""
    rng = np.random.default_rng(n)
    left = np.rint(rng.uniform(0, LATTICE.one / 4, (n, 3)))
    return (left, left) if isinstance(query, Gram) else (left, np.rint(rng.uniform(-1, 1, (n, 4)) * LATTICE.one / 4))


def clipped(query: Query, left: np.ndarray, right: np.ndarray, numbers: np.ndarray) -> list[np.ndarray]:
    blocks = list(persons.clipped(query, [(left, right, numbers)], LATTICE))
    return [np.concatenate(each) for each in zip(*blocks, strict=True)]


@pytest.mark.parametrize("pairs", [1, 10**6], ids=["one at a time", "all at once"])
@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.kind)
def test_of_each_person_the_first_records_count_and_no_others(
    query: Query, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each person adds what that person alone adds, of so many records."""
    monkeypatch.setattr(persons, "MOST", 3)
    monkeypatch.setattr(persons, "_PAIRS", pairs)
    sizes = [2, 3, 5, 1, 3, 4, 3, 2, 7]
    numbers = np.repeat(np.arange(len(sizes)), sizes)
    left, right = factors_of(query, len(numbers))
    found = clipped(query, left, right, numbers)
    kept = [min(size, 3) for size in sizes]
    for person, count in enumerate(kept):
        own = np.flatnonzero(numbers == person)
        alone = clipped(query, left[own[:count]], right[own[:count]], numbers[own[:count]])
        for whole, part in zip(found, alone, strict=True):
            rows = whole[own] if person < len(sizes) - 1 else whole[own[0] :]
            assert np.array_equal(rows[:count], part)
            assert not rows[count:].any()


def test_no_sum_of_a_person_passes_what_64_bits_hold() -> None:
    assert persons.MOST**2 <= 2**20


@pytest.mark.parametrize("size", [1, 2, 300, 1024])
def test_the_norm_of_a_person_is_exact(size: int) -> None:
    """Against integers of any length. The factors are near the largest ones, and all carries occur."""
    rng = np.random.default_rng(size)
    left, right = (rng.integers(-(2**b), 2**b, (1, size, 2)).astype(float) for b in (12, 13))
    left[0, : size // 2], right[0, : size // 2] = 4095.0, 8191.0
    query: Any = ClassSums(CHAIN)
    (high,), (low,) = persons._norm(query, left, right)
    exact = [(list(map(int, a)), list(map(int, b))) for a, b in zip(left[0], right[0], strict=True)]
    total = [[sum(a[i] * b[j] for a, b in exact) for j in (0, 1)] for i in (0, 1)]
    assert int(high) * 2**36 + int(low) == sum(value**2 for row in total for value in row)
    assert 0 <= low < 2**36


def test_where_rounding_could_take_all_half_of_the_bound_is_left() -> None:
    """A thousand equal records: each of them becomes small, and keeps its direction as long as it is no zero."""
    query: Any = ClassSums(CHAIN)
    left = np.full((400, 3), float(LATTICE.one // 2))
    right = np.full((400, 4), 100.0)
    found = clipped(query, left, right, np.zeros(400, np.int64))
    assert (found[1] >= 0).all()


def test_two_records_are_averaged_where_a_person_adds_an_average() -> None:
    query: Any = Mean(CHAIN)
    left, right = np.ones((2, 1)), np.array([[100.0, 50.0], [100.0, 50.0]])
    found = clipped(query, left, right, np.zeros(2, np.int64))
    assert np.abs(found[1] - [50.0, 25.0]).max() <= 1
