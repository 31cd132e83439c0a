"""What a record adds to the counts of a private evaluation: those of an exact one, and no more than the sensitivity."""

from typing import Any

import numpy as np
import pytest

from dpfc_cli.heads.head import Scorer
from dpfc_cli.heads.metrics import score
from dpfc_cli.privacy.chain import Clip, Linear
from dpfc_cli.privacy.curator import draw_noise
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.forms import check
from dpfc_cli.privacy.inputs import prepare
from dpfc_cli.privacy.lattice import Lattice, Reals
from dpfc_cli.privacy.outcomes import Outcomes
from dpfc_cli.privacy.queries import contribution
from tests import instead
from tests.noise import drawn_from, failed
from tests.support import blobs, curator, exact_sum, plan_of, stream_of

LATTICE = Lattice(18)
D, M = 4, 7


def counts_of(head: Scorer, x: np.ndarray, y: np.ndarray, **how: Any) -> np.ndarray:
    """What the query counts, in records, by its definition."""
    facts = Facts(n=len(x), m=head.weight.shape[1], d=x.shape[1], k=y.shape[1])
    query = Outcomes(head.chain, head.weight, head.bias, **how)
    x, sets, valid = prepare(x, y, facts.m, np)
    left, right = query.factors(x, sets, facts, LATTICE, np)
    return np.asarray((left * np.where(valid, right, 0)).sum(axis=0) * query.scale(facts, LATTICE))


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("even", [False, True], ids=["other scores", "many equal scores"])
def test_outcomes_are_what_an_evaluation_counts(k: int, even: bool) -> None:
    rng = np.random.default_rng(k)
    weight = rng.integers(-1, 2, (D, M)).astype(float) if even else rng.normal(size=(D, M))
    head = Scorer(chain=(Clip(1.0),), weight=weight, bias=rng.integers(0, 2, M).astype(float))
    x = rng.integers(-1, 2, (500, D)).astype(np.float32) if even else rng.normal(size=(500, D)).astype(np.float32)
    y = rng.integers(-1, M, (500, k)).astype(np.int32)
    exact = score(head, stream_of(x, y)(64))
    expected = [exact.top1, exact.top5 - exact.top1, exact.n - exact.top5]
    assert np.allclose(counts_of(head, x, y), [expected[0], sum(expected[1:])], rtol=1e-4)
    assert np.allclose(counts_of(head, x, y, best=5), expected, rtol=1e-4)
    each = counts_of(head, x, y, by_class=True)
    assert np.allclose(each, [*exact.hits, *(exact.rows - exact.hits)], rtol=1e-4)


@pytest.mark.parametrize("how", [{}, {"best": 2}, {"by_class": True}], ids=["totals", "best", "by class"])
def test_no_head_makes_a_record_worth_more_than_the_sensitivity(how: dict[str, Any]) -> None:
    """Scores may overflow, be equal, or be NaN. The record is in one cell all the same, or in none."""
    facts, huge = Facts(n=1, m=3, d=2, k=2), 1.7e308
    heads = [np.zeros((2, 3)), np.full((2, 3), huge), np.array([[huge, -huge, 1], [-huge, huge, 1]])]
    x = np.array([[1e30, -1e30], [0, 0], [3e38, 3e38], [1, 2]], np.float32)
    labels = np.array([[0, -1], [1, 2], [2, 2], [0, 1]], np.int32)
    with np.errstate(all="ignore"):
        for weight in heads:
            for chain in ((), (Clip(1.0),)):
                query = Outcomes(chain, weight, np.array([huge, 0, -huge]), **how)
                check(query, facts)
                added = [contribution(query, a, b, facts, LATTICE) for a in x for b in labels]
                lengths = [length(each) for each in added]
                assert min(lengths) > 0
                assert max(lengths) <= LATTICE.unit**2
                for one in added:
                    for other in added:
                        assert length(one - other) <= 2 * LATTICE.unit**2, "√2 under replace-one"


def length(added: np.ndarray) -> int:
    """The square of the norm, exactly."""
    return sum(int(v) ** 2 for v in added.ravel())


@pytest.mark.parametrize(
    ("weights", "cells"),
    [((0.0, 1.0), [0.0, 1.0]), ((-1.0, 0.0), [1.0, 0.0])],
    ids=["no number loses to infinity", "it is no better than minus infinity, and the lower class wins"],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_score_that_is_no_number_is_the_lowest(weights: tuple[float, float], cells: list[float]) -> None:
    """The chain overflows, and infinity times zero is no number. The label is class 0."""
    query = Outcomes((Linear(np.full((2, 2), 1e300)),), np.array([weights, weights]), np.zeros(2))
    x, facts = np.full((1, 2), 3e38, np.float32), Facts(n=1, m=2, d=2)
    assert query.factors(x, np.array([[1.0, 0.0]]), facts, Reals(), np)[1].tolist() == [cells]


# The noise


def noise_of_evaluations(runs: int = 40) -> list[str]:
    """The checks that the noise of whole evaluations does not pass."""
    facts = Facts(n=40, m=6, d=D)
    x, y = blobs(40, D, 6)
    weight = np.random.default_rng(0).normal(size=(D, 6))
    asked = [Outcomes((), weight, np.zeros(6), best=5), Outcomes((), weight, np.zeros(6), by_class=True)]
    plan = plan_of(facts, *((query, 1.0) for query in asked))
    noise: list[list[np.ndarray]] = [[], []]
    totals = [exact_sum(query, stream_of(x, y), facts, LATTICE) for query in asked]
    for seed in range(runs):
        oracle = curator(facts, plan, 0.9, x, y, seed)
        for query, total, found in zip(asked, totals, noise, strict=True):
            found.append(oracle.release(query) / query.scale(facts, LATTICE) - total)
    return failed(drawn_from(asked, [np.array(found) for found in noise], facts, plan.sigmas(0.9), LATTICE))


def test_every_count_has_its_own_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(query: Any, shape: tuple[int, ...], *rest: Any) -> np.ndarray:
        noise = draw_noise(query, shape, *rest)
        noise[0, -1] = 0
        return noise

    assert noise_of_evaluations() == []
    instead.draw_noise(monkeypatch, forgetful)
    assert "coordinates_have_the_planned_size" in noise_of_evaluations()
