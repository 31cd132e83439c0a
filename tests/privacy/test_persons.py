"""A person as the unit: together, the records of a person move a sum by at most as much as one record may."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from dpfc_cli.privacy import persons
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.curator import NonPrivate, Unprotected
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.inputs import prepare
from dpfc_cli.privacy.lattice import Lattice
from dpfc_cli.privacy.outcomes import Outcomes
from dpfc_cli.privacy.passes import BlockStream
from dpfc_cli.privacy.queries import ClassGrams, ClassSums, Gram, Hessians, Mean, Query, contribution
from dpfc_cli.privacy.standings import Standings
from tests import instead
from tests.support import every_query, exact_sum

LATTICE = Lattice(14)
M, D, K = 3, 5, 2
ONE = Facts(n=1, m=M, d=D, k=K)
QUERIES = every_query(ONE)
IDS = [f"{each.kind}-{i}" for i, each in enumerate(QUERIES)]


def facts_of(numbers: Sequence[int] | np.ndarray) -> Facts:
    return Facts(n=len(set(numbers)), m=M, d=D, k=K, rows=len(numbers))


def blocks_of(*arrays: Any) -> BlockStream:
    """Blocks with the same rows of each array."""

    def blocks(rows: int) -> Iterator[tuple[Any, ...]]:
        for at in range(0, len(arrays[0]), rows):
            yield at, *(each[at : at + rows] for each in arrays)

    return blocks


def summed(query: Query, x: np.ndarray, labels: np.ndarray, numbers: np.ndarray, **others: Any) -> np.ndarray:
    """The sum that the curator makes."""
    return exact_sum(query, blocks_of(x, labels, numbers), facts_of(numbers), LATTICE, **others)


def added(query: Query, x: np.ndarray, labels: np.ndarray, numbers: np.ndarray, *, rows: int = 10**6) -> np.ndarray:
    """The same sum from the definition of a query, without kernels. rows: of a block."""
    x, y, valid = prepare(x, labels, M, np)
    factors = *(np.where(valid, each, 0.0) for each in query.factors(x, y, ONE, LATTICE, np)), numbers
    blocks: Any = [tuple(each[at : at + rows] for each in factors) for at in range(0, len(x), rows)]
    left, right = (np.concatenate(each) for each in zip(*persons.clipped(query, blocks, LATTICE), strict=True))
    if isinstance(query, ClassGrams | Hessians):
        return np.asarray(np.einsum("bm,bp,bq->mpq", left, right, right))
    return np.asarray(left.T @ right)


def squared(total: np.ndarray) -> int:
    """The exact squared norm of an array of integers."""
    return sum(int(value) ** 2 for value in total.ravel())


def records(n: int, seed: int, alike: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Records with labels. alike: how much of a record is the same for all of them."""
    rng = np.random.default_rng(seed)
    x = (1 - alike) * rng.normal(size=(n, D)) + alike * rng.normal(size=D)
    labels = rng.integers(-1, M, size=(n, K)) if alike < 1 else np.tile([[0, 1]], (n, 1))
    return x.astype(np.float32), labels.astype(np.int32)


SIZES = np.repeat(np.arange(12), [1, 2, 3, 5, 8, 1, 13, 2, 40, 1, 3, 21])


@pytest.mark.parametrize("query", QUERIES, ids=IDS)
def test_the_integer_norm_of_what_a_person_adds_is_at_most_that_of_a_record(query: Query) -> None:
    for seed, alike in enumerate((0.0, 0.9, 1.0)):
        x, labels = records(len(SIZES), seed, alike)
        for person in range(12):
            own = np.equal(SIZES, person)
            total = added(query, x[own], labels[own], np.zeros(own.sum(), np.int64))
            assert squared(total) <= LATTICE.unit**2


@pytest.mark.parametrize("query", QUERIES, ids=IDS)
def test_a_person_with_one_record_adds_what_the_record_adds(query: Query) -> None:
    x, labels = records(40, 1)
    alone = sum(contribution(query, a, b, ONE, LATTICE) for a, b in zip(x, labels, strict=True))
    assert np.array_equal(added(query, x, labels, np.arange(40)), alone)
    # Null records of the same person change nothing.
    nulls = np.full_like(labels, -1)
    rows = [np.stack(pair, axis=1).reshape(80, -1) for pair in ((x, x), (labels, nulls))]
    assert np.array_equal(added(query, rows[0], rows[1], np.repeat(np.arange(40), 2)), alone)


@pytest.mark.parametrize("query", QUERIES, ids=IDS)
def test_what_a_person_adds_is_the_sum_of_the_records_times_a_number(query: Query) -> None:
    """And it is as long as the bound allows, up to rounding, where the sum is longer than that."""
    for seed, alike in ((0, 0.5), (1, 0.0), (2, 1.0)):
        x, labels = records(20, seed, alike)
        labels[:, 0] = labels[0, 0] = 1
        raw = sum(contribution(query, a, b, ONE, LATTICE) for a, b in zip(x, labels, strict=True))
        found = added(query, x, labels, np.zeros(20, np.int64))
        length = math.sqrt(squared(found))
        assert (found * raw).sum() / length / np.linalg.norm(raw) > 0.9999
        wanted = LATTICE.unit if not isinstance(query, Mean | Outcomes | Standings) else np.linalg.norm(raw) / 20
        assert 0.98 < length / min(wanted, np.linalg.norm(raw)) <= 1


@pytest.mark.parametrize("counted", [1, 2, 3, 4])
def test_a_person_adds_the_average_of_the_records_to_a_mean(counted: int) -> None:
    x, labels = records(6, 3)
    labels[:, 0] = 0
    # Null records do not count.
    labels[counted:] = -1
    query = Mean((Clip(1.0),))
    found = added(query, x, labels, np.zeros(6, np.int64))
    raw = sum(contribution(query, a, b, ONE, LATTICE) for a, b in zip(x, labels, strict=True))
    assert found == pytest.approx(np.asarray(raw) / counted, rel=0.01, abs=LATTICE.one)


@pytest.mark.parametrize("query", [QUERIES[0], QUERIES[3]], ids=["gram", "class_grams"])
def test_many_equal_records_on_a_coarse_lattice_do_not_vanish(query: Query) -> None:
    """Rounding could take all of the bound. Half of it is always left."""
    x, labels = (np.repeat(each, 1_000, axis=0) for each in records(1, 4, 1.0))
    factors = query.factors(*prepare(x, labels, M, np)[:2], ONE, Lattice(10), np)
    ((left, right),) = persons.clipped(query, [(*factors, np.zeros(1_000, np.int64))], Lattice(10))
    for one, other in ((left, factors[0]), (right, factors[1])):
        assert np.abs(one).max() > 0
        assert (one * other >= 0).all()


@pytest.mark.parametrize("query", QUERIES, ids=IDS)
def test_what_a_person_adds_depends_on_this_person_alone_to_the_last_bit(query: Query) -> None:
    x, labels = records(len(SIZES), 5, 0.3)
    alone = sum(added(query, x[own], labels[own], np.zeros(own.sum(), np.int64)) for own in np.c_[:12] == SIZES)
    assert np.array_equal(added(query, x, labels, SIZES), alone)
    # And the kernels make the same of it.
    if query in (QUERIES[0], QUERIES[2], QUERIES[3]):
        assert np.array_equal(summed(query, x, labels, SIZES), alone)


@pytest.mark.parametrize(("kind", "rows"), [(Gram, 64), (ClassGrams, 100)])
def test_persons_go_on_from_block_to_block(kind: type[Query], rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    query = next(each for each in QUERIES if isinstance(each, kind))
    sizes = [1, 200, 63, 2, 64, 128, 1, 5]
    numbers = np.repeat(np.arange(8), sizes)
    x, labels = records(len(numbers), 6, 0.3)
    parts = [added(query, *own) for own in each_of(x, labels, numbers)]
    instead.block_rows(monkeypatch, rows)
    assert np.array_equal(summed(query, x, labels, numbers), sum(parts))


def each_of(x: np.ndarray, labels: np.ndarray, numbers: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    for person in range(numbers[-1] + 1):
        own = numbers == person
        yield x[own], labels[own], np.zeros(own.sum(), np.int64)


def limits(patch: pytest.MonkeyPatch, most: int, pairs: int) -> None:
    """So many records of a person count, and so many inner products are made at a time."""
    patch.setattr(persons, "MOST", most)
    patch.setattr(persons, "_PAIRS", pairs)


def test_of_each_person_the_first_records_count_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each person adds what that person alone adds, of so many records."""
    sizes = [2, 3, 5, 1, 3, 4, 3, 2, 7]
    numbers = np.repeat(np.arange(len(sizes)), sizes)
    x, labels = records(len(numbers), 7)
    kept = np.concatenate([np.flatnonzero(numbers == person)[:3] for person in range(len(sizes))])
    for pairs, rows, query in itertools.product((1, 10**6), (2, 10**6), QUERIES):
        limits(monkeypatch, 3, pairs)
        found = added(query, x, labels, numbers, rows=rows)
        assert np.array_equal(found, added(query, x[kept], labels[kept], numbers[kept]))


def test_work_and_memory_for_one_person_and_for_many_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert persons.MOST**2 == persons._PAIRS == 2**20
    limits(monkeypatch, 20, 400)
    bounded, clipped, pairs, held = persons._bounded, persons._clipped, list[int](), list[int]()

    def one(query: Query, left: np.ndarray, right: np.ndarray, unit: int) -> persons.Factors:
        pairs.append(left.shape[0] * left.shape[1] ** 2)
        return bounded(query, left, right, unit)

    def other(query: Query, left: np.ndarray, *others: Any) -> persons.Factors:
        held.append(len(left))
        return clipped(query, left, *others)

    monkeypatch.setattr(persons, "_bounded", one)
    monkeypatch.setattr(persons, "_clipped", other)
    for sizes in ([1_000], [5] * 100, [15] * 9):
        numbers = np.repeat(np.arange(len(sizes)), sizes)
        ones = np.ones((len(numbers), 1))
        blocks = [(ones[at : at + 10], ones[at : at + 10], numbers[at : at + 10]) for at in range(0, len(numbers), 10)]
        held.clear()
        list(persons.clipped(QUERIES[2], blocks, LATTICE))
        assert max(held) <= 30
        list(persons.clipped(QUERIES[2], [(ones, ones, numbers)], LATTICE))
        assert max(pairs) <= 400
    assert list(persons.clipped(QUERIES[2], [], LATTICE)) == []


@pytest.mark.parametrize("query", QUERIES, ids=IDS)
def test_the_norm_of_what_a_person_adds_is_computed_exactly(query: Query) -> None:
    """Against Python's integers, in the order high·2³⁶ + low, for short sums and for those beyond float64."""
    rng, lattice = np.random.default_rng(3), Lattice(18)
    for k, size in ((1, 1.0), (2, 1.0), (9, 1.0), (40, 1e-3)):
        x, labels = records(3 * k, k, 0.5)
        left, right = query.factors(*prepare(x, labels, M, np)[:2], ONE, lattice, np)
        left, right = (np.rint(each * size + rng.integers(-1, 2, each.shape)) for each in (left, right))
        right = left if isinstance(query, Gram) else right
        shaped = left.reshape(3, k, -1), right.reshape(3, k, -1)
        high, low = persons._norm(query, *shaped)
        for person in range(3):
            one, other = (each[person].astype(int).astype(object) for each in shaped)
            inner = (other @ other.T) ** (2 if isinstance(query, ClassGrams | Hessians) else 1)
            assert int(high[person]) * 2**36 + int(low[person]) == ((one @ one.T) * inner).sum()
            assert 0 <= low[person] < 2**36


@pytest.mark.parametrize("query", [each for each in QUERIES if each.symmetric], ids=lambda each: each.kind)
def test_persons_sums_of_gram_type_have_no_negative_inner_products(query: Query) -> None:
    """So the sensitivity under replace-one adjacency is √2, as for records."""
    x, labels = records(60, 8)
    sums = [added(query, *own) for own in each_of(x, labels, np.repeat(np.arange(12), 5))]
    assert min((a * b).sum() for a in sums for b in sums) >= 0


@pytest.mark.parametrize("query", QUERIES, ids=IDS)
def test_room_is_left_for_the_most_that_rounding_can_add(query: Query) -> None:
    """That is one half in every coordinate that is rounded, in the direction of the vector."""
    left, right = np.full((1, 2, 3), 7.0), np.full((1, 2, 5), 111.0)
    rounded = (left + 0.5, right) if isinstance(query, Hessians) else (left, right + 0.5)
    if isinstance(query, Gram):
        left, rounded = right, (right + 0.5, right + 0.5)
    power = 2 if isinstance(query, ClassGrams | Hessians) else 1
    before, after = (
        np.linalg.norm(one[0, 0]) * np.linalg.norm(other[0, 0]) ** power for one, other in ((left, right), rounded)
    )
    # Each of both records adds its own, rounded up.
    assert persons._rounding(query, left, right) == 2 * math.ceil(after - before)


@pytest.mark.parametrize("bits", [10, 14, 18])
def test_a_person_at_the_bound_counts_and_one_beyond_it_is_null_on_every_lattice(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A squared norm of 16ᵇ, and one more, where nothing is scaled: what decides is the check alone."""
    monkeypatch.setattr(persons, "_scaled", lambda query, left, right, scale: (left, right))
    side = 2.0**bits
    left, right = np.array([[[side, 0.0], [0.0, 1.0]]] * 3), np.array([[[side, 0.0], [0.0, 0.0]]] * 3)
    right[1, 1, 0], right[2, 0, 0] = 1.0, side - 1
    found, _ = persons._bounded(ClassSums((Clip(1.0),)), left, right, Lattice(bits).unit)
    assert found.any(axis=(1, 2)).tolist() == [True, False, True]


def test_the_check_is_exact_at_the_bound() -> None:
    """A squared norm of 16ᵇ passes, and one more does not, though float64 cannot tell them apart."""
    side = 2**18
    query, unit = ClassSums((Clip(1.0),)), 2**36
    left = np.array([[[side, 0.0], [0.0, side]]])
    right = np.array([[[side, 0.0], [0.0, 0.0]]])
    assert not persons._above(*persons._norm(query, left, right), unit**2 >> 36)
    right[0, 1, 0] = 1.0
    found = persons._norm(query, np.array([[[side, 0.0], [0.0, 1.0]]]), right)
    assert float(2**72 + 1) == 2.0**72
    assert (int(found[0][0]) * 2**36 + int(found[1][0])) == 2**72 + 1
    assert persons._above(*found, unit**2 >> 36)


def test_a_person_who_fails_the_check_counts_as_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persons, "_rounding", lambda query, left, right: np.full(len(left), -float(LATTICE.unit)))
    x, labels = records(10, 9, 1.0)
    assert not added(Gram((Clip(1.0),)), x, labels, np.zeros(10, np.int64)).any()


GOOD = [0, 0, 1, 2, 2, 2]


def test_a_sample_draws_persons_with_all_their_records() -> None:
    x, labels = records(300, 12)
    numbers = np.repeat(np.arange(4), [100, 1, 150, 49])
    query = ClassSums((Clip(1.0),))
    found = summed(query, x, labels, numbers, sample=np.array([True, False, True, False]))
    shown = np.where(np.isin(numbers, [0, 2])[:, None], labels, -1)
    assert np.array_equal(found, summed(query, x, shown, numbers))


def test_the_baseline_without_noise_knows_no_persons() -> None:
    x, labels = records(6, 13)
    oracle = NonPrivate(facts_of(GOOD), Unprotected(blocks_of(x, labels, np.array(GOOD, np.int64))))
    with pytest.raises(TypeError, match="lattice"):
        oracle.release(Gram((Clip(1.0),)))
