"""The curator answers the plan and nothing else, and it counts each record once. (Its noise: `test_releases`.)"""

from dataclasses import replace

import numpy as np
import pytest

from dpfc_cli.privacy import curator as curator_module
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.curator import Curator, IncompletePassError, Unprotected, draw_noise, exact_sum
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import MOST_BITS, lattice_for
from dpfc_cli.privacy.noise import Bits, SeededBits
from dpfc_cli.privacy.oracle import Mechanism, PlanError
from dpfc_cli.privacy.queries import QUERIES as ALL_QUERIES
from dpfc_cli.privacy.queries import ClassGrams, ClassSums, Gradient, Gram, Hessians, Mean, Query
from tests.support import CHAIN, blobs, curator, every_query, plan_of

FACTS = Facts(n=40, m=3, d=4)
X, Y = blobs(40, 4, 3)
GRADIENT = Gradient(CHAIN, np.zeros((5, 3)), clip=1.0)
QUERIES: list[Query] = [Gram(CHAIN), ClassGrams(CHAIN), ClassSums(CHAIN), GRADIENT, GRADIENT]
PLAN = plan_of(FACTS, *zip(QUERIES, (0.3, 0.1, 0.2, 0.15, 0.25), strict=True))
MU = 0.7
MECHANISM = Mechanism(facts=FACTS, plan=PLAN, mu=MU)


# Passes


def blocks_of(*spans: tuple[int, int]) -> object:
    """A stream with blocks that cover the given spans."""

    def stream(rows: int) -> object:
        for start, stop in spans:
            yield start, X[start:stop], Y[start:stop, None]

    return stream


@pytest.mark.parametrize(
    "spans",
    [
        pytest.param([(0, 40), (30, 40)], id="records counted twice"),
        pytest.param([(0, 40), (0, 40)], id="the whole set twice"),
        pytest.param([(0, 39)], id="a record left out"),
        pytest.param([], id="nothing"),
        pytest.param([(1, 40)], id="a late start"),
        pytest.param([(20, 40), (0, 20)], id="out of order"),
    ],
)
def test_a_pass_that_does_not_cover_each_record_once_fails(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(IncompletePassError):
        exact_sum(Gram(CHAIN), blocks_of(*spans), FACTS, lattice_for(40, 1.0, 4))  # type: ignore[arg-type]


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


ONE_GRADIENT = plan_of(FACTS, (GRADIENT, 1.0))


@pytest.mark.parametrize(
    "query",
    [
        pytest.param(Gradient(CHAIN, np.full((5, 3), np.nan), clip=1.0), id="theta not finite"),
        pytest.param(Gradient(CHAIN, np.zeros((5, 3), np.float32), clip=1.0), id="theta not float64"),
        pytest.param(Gradient(CHAIN, np.zeros(5), clip=1.0), id="theta that would broadcast over records"),
        pytest.param(Gradient(CHAIN, np.zeros((5, 3)), clip=np.inf), id="no clip"),
        pytest.param(Gradient(CHAIN, np.zeros((5, 3)), clip=0.0), id="clip of zero"),
        pytest.param(Gradient(CHAIN, np.zeros((5, 3)), clip=1.0, constant=np.nan), id="constant not finite"),
        pytest.param(Gradient(CHAIN, np.zeros((5, 3)), clip=1.0, loss="other"), id="another loss"),  # type: ignore[arg-type]
        pytest.param(Gradient((Clip(-1.0),), np.zeros((5, 3)), clip=1.0), id="a negative norm"),
        pytest.param(Gradient((max,), np.zeros((5, 3)), clip=1.0), id="a step not of the core"),  # type: ignore[arg-type]
    ],
)
def test_queries_that_the_proofs_do_not_cover_are_refused(query: Query) -> None:
    oracle = curator(FACTS, ONE_GRADIENT, MU, X, Y)
    with pytest.raises(PlanError):
        oracle.release(query)
    assert oracle.released == 0


def test_a_query_class_that_is_not_of_the_core_is_refused() -> None:
    class Greedy(Gram):
        def factors(self, x: object, y: object, facts: Facts, grid: object, xp: object) -> tuple[object, object]:
            return 1e6 * x, x  # type: ignore[operator]

    oracle = curator(FACTS, PLAN, MU, X, Y)
    with pytest.raises(PlanError, match="not a query of the core"):
        oracle.release(Greedy(CHAIN))


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


def test_the_plans_sigmas_compose_to_mu() -> None:
    assert sum(1 / s**2 for s in PLAN.sigmas(MU)) == pytest.approx(MU**2, rel=1e-12)
    with pytest.raises(ValueError, match="positive share"):
        plan_of(FACTS, (Gram(CHAIN), 0.0))


REPLACE_ONE = {Mean: 2.0, ClassSums: 2.0, Gradient: 2.0, Gram: 2**0.5, ClassGrams: 2**0.5, Hessians: 2**0.5}
"""Proved in `queries`. Written here a second time on purpose."""
ONE_OF_EACH = {type(query): query for query in every_query(FACTS)}


def test_every_query_is_in_that_table() -> None:
    assert set(REPLACE_ONE) == set(ALL_QUERIES) == set(ONE_OF_EACH)


@pytest.mark.parametrize("query", ONE_OF_EACH.values(), ids=lambda query: query.kind)
def test_replace_one_takes_twice_the_noise_for_sums_and_root_two_for_grams(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []

    def spy(query: Query, shape: tuple[int, ...], sigma: int, bits: Bits) -> np.ndarray:
        drawn.append(sigma)
        return draw_noise(query, shape, sigma, bits)

    monkeypatch.setattr(curator_module, "draw_noise", spy)
    plan = plan_of(FACTS, (query, 1.0))
    for adjacency in ("zero-out", "replace-one"):
        curator(replace(FACTS, adjacency=adjacency), plan, MU, X, Y).release(query)
    assert drawn[0] == pytest.approx(4**MOST_BITS / MU, rel=1e-9)
    assert drawn[1] / drawn[0] == pytest.approx(REPLACE_ONE[type(query)], rel=1e-9)
