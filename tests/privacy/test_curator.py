"""The curator answers the plan and nothing else, and it counts each record once."""

import math
from dataclasses import replace

import numpy as np
import pytest

from dpfc_cli.privacy import curator as curator_module
from dpfc_cli.privacy.curator import Curator, NonPrivate, Records, Unprotected, draw_noise, eta_of, lattice_of
from dpfc_cli.privacy.facts import Adjacency, Facts
from dpfc_cli.privacy.lattice import MOST_BITS, lattice_for
from dpfc_cli.privacy.noise import ETA_PER_SAMPLE, Bits, SeededBits
from dpfc_cli.privacy.oracle import Mechanism, PlanError
from dpfc_cli.privacy.outcomes import Outcomes
from dpfc_cli.privacy.passes import IncompletePassError
from dpfc_cli.privacy.queries import QUERIES as ALL_QUERIES
from dpfc_cli.privacy.queries import ClassGrams, ClassSums, Gradient, Gram, Hessians, Mean, Query
from dpfc_cli.privacy.standings import Standings
from tests import instead
from tests.support import CHAIN, blobs, curator, every_query, exact_sum, plan_of, stream_of

FACTS = Facts(n=40, m=3, d=4)
X, Y = blobs(40, 4, 3)
GRADIENT = Gradient(CHAIN, np.zeros((5, 3)), clip=1.0)
QUERIES: list[Query] = [Gram(CHAIN), ClassGrams(CHAIN), ClassSums(CHAIN), GRADIENT, GRADIENT]
PLAN = plan_of(FACTS, *zip(QUERIES, (0.3, 0.1, 0.2, 0.15, 0.25), strict=True))
MU = 0.7
MECHANISM = Mechanism(facts=FACTS, plan=PLAN, mu=MU)


# Draws


@pytest.mark.parametrize(
    ("query", "shape", "drawn"),
    [
        (GRADIENT, (5, 3), [(10, 15)]),
        (Mean(CHAIN), (1, 4), [(10, 4)]),
        # 10/√2 is 7.07…: rounded up, so that the noise is never less than planned.
        (Gram(CHAIN), (4, 4), [(8, 6), (10, 4)]),
        (ClassGrams(CHAIN), (2, 3, 3), [(8, 3), (10, 3)] * 2),
        (Hessians(CHAIN, np.zeros((1, 3)), 0, 3), (3, 1, 1), [(8, 0), (10, 1)] * 3),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_every_coordinate_has_a_sample_of_its_own_of_its_sigma(
    query: Query, shape: tuple[int, ...], drawn: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def numbered(sigma: int, size: int, bits: Bits) -> np.ndarray:
        start = 1 + sum(size for _, size in asked)
        asked.append((sigma, size))
        return np.arange(start, start + size)

    monkeypatch.setattr(curator_module, "rounded_normal", numbered)
    noise = draw_noise(query, shape, 10, SeededBits(0))
    assert (noise.shape, asked) == (shape, drawn)
    free = noise[..., *np.triu_indices(shape[-1])] if query.symmetric else noise
    assert sorted(free.ravel()) == list(range(1, 1 + sum(size for _, size in drawn)))
    if query.symmetric:
        assert np.array_equal(noise, noise.swapaxes(-1, -2))
        # The last samples of each matrix are those of its diagonal.
        for matrix, (_, above), (_, side) in zip(noise.reshape(-1, *shape[-2:]), asked[::2], asked[1::2], strict=True):
            assert matrix.diagonal().tolist() == list(range(matrix.max() - side + 1, matrix.max() + 1))
            assert above == side * (side - 1) / 2


# Passes


def blocks_of(*spans: tuple[int, int]) -> object:
    """A stream with blocks that cover the given spans."""

    def stream(rows: int) -> object:
        for start, stop in spans:
            yield start, X[start:stop], Y[start:stop, None]

    return stream


def test_progress_counts_the_records_of_the_passes_for_queries_of_one_kind() -> None:
    told: list[tuple[str, int, int]] = []
    oracle = Curator(MECHANISM, Unprotected(stream_of(X, Y)), SeededBits(0), lambda *each: told.append(each))
    for query in QUERIES:
        oracle.release(query)
    one, two = (16, 32, 40), (16, 32, 40, 56, 72, 80)
    kinds = {"gram": one, "class_grams": one, "class_sums": one, "gradient": two}
    assert told == [(kind, done, of[-1]) for kind, of in kinds.items() for done in of]


def test_without_noise_there_may_be_more_passes_than_planned_and_progress_counts_them() -> None:
    told: list[tuple[int, int]] = []
    for planned, totals in ((None, (40, 80, 120)), (plan_of(FACTS, *[(QUERIES[0], 1.0)] * 2), (80, 80, 120))):
        told.clear()
        records = Unprotected(stream_of(X, Y))
        oracle = NonPrivate(FACTS, records, planned, lambda stage, *far: told.append(far))
        for _ in totals:
            oracle.release(QUERIES[0])
        assert told[2::3] == [(40 * (i + 1), total) for i, total in enumerate(totals)]


def test_records_must_say_that_they_are_charged_or_unprotected() -> None:
    for anything in (stream_of(X, Y), X, None):
        with pytest.raises(TypeError, match="takes Records"):
            Curator(MECHANISM, anything, SeededBits(0))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="takes Records"):
            NonPrivate(FACTS, anything)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="abstract"):
        Records()  # type: ignore[abstract]


def test_the_lattice_of_a_training_fits_its_largest_noise_and_its_longest_factor() -> None:
    """The noise of the release with the smallest share is the largest. It must fit into 64 bits as well."""
    loud = plan_of(FACTS, (Gram(CHAIN), 1.0), (Mean(CHAIN), 1e-16))
    assert lattice_of(Mechanism(facts=FACTS, plan=loud, mu=MU)).bits == 14
    assert lattice_of(MECHANISM).bits == MOST_BITS
    # Sums are over records, also where few persons have them.
    assert lattice_of(replace(MECHANISM, facts=replace(FACTS, rows=2**30))).bits == (52 - 30) / 2
    # That of a pool is given, and never finer.
    assert lattice_of(replace(MECHANISM, pool=12)).bits == 12
    for pool in (9, MOST_BITS + 1):
        with pytest.raises(ValueError, match="no exact lattice"):
            lattice_of(replace(MECHANISM, pool=pool))
    # A bias makes a factor one longer than the features.
    for d, m, fits in ((2**17 - 1, 3, True), (2**17, 3, False), (4, 2**17, True), (4, 2**17 + 1, False)):
        facts = Facts(n=40, m=m, d=d)
        mechanism = Mechanism(facts=facts, plan=plan_of(facts, (ClassSums(CHAIN), 1.0)), mu=MU)
        if fits:
            assert lattice_of(mechanism).bits == MOST_BITS
        else:
            with pytest.raises(ValueError, match="no exact lattice"):
                lattice_of(mechanism)


# Plan


def test_anything_but_the_plans_next_release_is_refused() -> None:
    oracle = curator(FACTS, PLAN, MU, X, Y)
    with pytest.raises(PlanError, match="planned as gram"):
        oracle.release(ClassSums(CHAIN))
    with pytest.raises(PlanError, match="planned as gram"):
        oracle.release(Gram(CHAIN, constant=0.2))
    for query in QUERIES:
        oracle.release(query)
    with pytest.raises(PlanError, match="no release left"):
        oracle.release(Gram(CHAIN))


def test_what_is_no_query_is_refused_and_spends_nothing() -> None:
    oracle = curator(FACTS, plan_of(FACTS, (GRADIENT, 1.0)), MU, X, Y)
    with pytest.raises(PlanError, match="not positive"):
        oracle.release(replace(GRADIENT, clip=0.0))
    assert oracle.released == 0


def test_more_label_columns_than_the_public_fact_says_are_refused() -> None:
    """The sensitivity of class sums relies on k."""
    oracle = curator(FACTS, PLAN, MU, X, np.repeat(Y[:, None], 4, axis=1))
    with pytest.raises(IncompletePassError):
        oracle.release(QUERIES[0])


def test_a_release_that_fails_half_way_is_spent() -> None:
    oracle = Curator(MECHANISM, Unprotected(blocks_of((0, 39))), SeededBits(0))  # type: ignore[arg-type]
    with pytest.raises(IncompletePassError):
        oracle.release(QUERIES[0])
    assert oracle.released == 1


def test_eta_is_that_of_one_sample_for_each_coordinate_of_the_answers() -> None:
    assert eta_of(PLAN) == (4 * 4 + 3 * 4 * 4 + 3 * 4 + 2 * 5 * 3) * ETA_PER_SAMPLE


REPLACE_ONE = {
    **{Mean: 2.0, ClassSums: 2.0, Gradient: 2.0, Standings: 2.0},
    **{Gram: 2**0.5, ClassGrams: 2**0.5, Hessians: 2**0.5, Outcomes: 2**0.5},
}
"""Proved in `queries`. Written here a second time on purpose."""
ONE_OF_EACH = {type(query): query for query in reversed(every_query(FACTS))}


def test_every_query_is_in_that_table() -> None:
    assert {query: query.replace_one for query in ALL_QUERIES} == REPLACE_ONE
    assert set(REPLACE_ONE) == set(ONE_OF_EACH)
    assert {query for query in ALL_QUERIES if query.symmetric} == {Gram, ClassGrams, Hessians}


def test_an_answer_is_the_exact_sum_and_noise_rounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof is about noise and sum together. Noise that is rounded alone would be other noise."""
    odd, query = 2**53 + 1, Gram(CHAIN)
    mechanism = Mechanism(facts=FACTS, plan=plan_of(FACTS, (query, 1.0)), mu=MU)
    lattice = lattice_of(mechanism)
    instead.draw_noise(monkeypatch, lambda query, shape, *others: np.full(shape, odd))
    answer = Curator(mechanism, Unprotected(stream_of(X, Y)), SeededBits(0)).release(query)
    total = exact_sum(query, stream_of(X, Y), FACTS, lattice)
    scale = query.scale(FACTS, lattice)
    assert answer.ravel().tolist() == [float(odd + int(each)) * scale for each in total.flat]


def test_without_noise_an_answer_has_the_units_of_one_with_noise() -> None:
    query, lattice = Gram(CHAIN, constant=1.0), lattice_for(FACTS.n, 1.0, FACTS.d + 1)
    found = NonPrivate(FACTS, Unprotected(stream_of(X, Y))).release(query)
    expected = exact_sum(query, stream_of(X, Y), FACTS, lattice) * query.scale(FACTS, lattice)
    assert np.allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_a_curator_samples_under_zero_out_adjacency_only() -> None:
    """There is no accounting for the other one."""
    sampled = plan_of(FACTS, (Gram(CHAIN), 1.0), rate=0.5)
    curator(FACTS, sampled, MU, X, Y).release(Gram(CHAIN))
    with pytest.raises(ValueError, match="zero-out adjacency only"):
        curator(replace(FACTS, adjacency="replace-one"), sampled, MU, X, Y)


@pytest.mark.parametrize(("adjacency", "pool"), [("zero-out", None), ("replace-one", MOST_BITS)])
def test_each_answer_is_its_exact_sum_and_noise_of_the_next_words(adjacency: Adjacency, pool: int | None) -> None:
    """Of every kind, of the planned size, and of words that no other release has. For a pool it is not scaled."""
    facts, queries = replace(FACTS, adjacency=adjacency), list(ONE_OF_EACH.values())
    plan = plan_of(facts, *[(query, 1.0 + i) for i, query in enumerate(queries)])
    mechanism = Mechanism(facts=facts, plan=plan, mu=MU, pool=pool)
    oracle, bits = Curator(mechanism, Unprotected(stream_of(X, Y)), SeededBits(8)), SeededBits(8)
    lattice = lattice_of(mechanism)
    assert lattice.bits == (pool or MOST_BITS)
    for query, multiplier in zip(queries, mechanism.sigmas, strict=True):
        sigma = multiplier * (1 if adjacency == "zero-out" else REPLACE_ONE[type(query)]) * lattice.unit
        total = exact_sum(query, stream_of(X, Y), facts, lattice)
        noise = draw_noise(query, total.shape, math.ceil(sigma), bits)
        whole, answer = noise + total.astype(np.int64), oracle.release(query)
        if pool is None:
            assert np.array_equal(answer, whole.astype(np.float64) * query.scale(facts, lattice)), query.kind
        else:
            assert np.array_equal(answer.view(np.int64), whole), query.kind


def test_a_sample_of_many_units_is_that_of_their_words() -> None:
    """Of so many units, in blocks of any number, each takes part by its own word, in releases of every kind."""
    n, rate = 3 * 1024 + 5, 0.3
    facts = Facts(n=n, m=2, d=3)
    x, y = blobs(n, 3, 2)
    queries: list[Query] = [Gradient(CHAIN, np.zeros((4, 2)), clip=1.0), ClassSums(CHAIN)] * 2
    mechanism = Mechanism(facts=facts, plan=plan_of(facts, *[(each, 1.0) for each in queries], rate=rate), mu=MU)
    oracle, bits = Curator(mechanism, Unprotected(stream_of(x, y)), SeededBits(8)), SeededBits(8)
    lattice = lattice_of(mechanism)
    for query, multiplier in zip(queries, mechanism.sigmas, strict=True):
        taken = bits.words(n) < np.uint64(int(rate * 2**64))
        total = exact_sum(query, stream_of(x, np.where(taken, y, -1)), facts, lattice)
        sigma = math.ceil(multiplier * lattice.unit)
        noise = draw_noise(query, total.shape, sigma, bits)
        expected = (noise + total.astype(np.int64)).astype(np.float64) * query.scale(facts, lattice)
        assert np.array_equal(oracle.release(query), expected)
