"""The figures of a private evaluation: what a record adds to a count, the noise, and how sure the figures are.

Tests that draw noise take it from a seed, or hold it against exact distributions with a tail of 1e-9.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpfc_cli.evaluation.private import fraction
from dpfc_cli.heads.head import Head
from dpfc_cli.heads.metrics import score, wilson
from dpfc_cli.privacy import curator as curators
from dpfc_cli.privacy.accounting import mu_for
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.curator import draw_noise
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.forms import check
from dpfc_cli.privacy.inputs import prepare
from dpfc_cli.privacy.lattice import Lattice
from dpfc_cli.privacy.outcomes import Outcomes
from dpfc_cli.privacy.queries import contribution
from tests.noise import FALSE_ALARM, drawn_from, failed
from tests.support import blobs, curator, exact_sum, plan_of, stream_of

LATTICE = Lattice(18)
N, D, M = 300, 4, 7
CLASSES = tuple("abcdefg")


# What a record adds


def head_of(weight: np.ndarray, bias: np.ndarray | None = None) -> Head:
    m = weight.shape[1]
    return Head(chain=(Clip(1.0),), weight=weight, bias=np.zeros(m) if bias is None else bias, card={})


def counts_of(head: Head, x: np.ndarray, y: np.ndarray, k: int, **how: Any) -> np.ndarray:
    """What the query counts, in records, by its definition."""
    facts = Facts(n=len(x), m=head.weight.shape[1], d=x.shape[1], k=k)
    query = Outcomes(head.chain, head.weight, head.bias, **how)
    x, sets, valid = prepare(x, y, facts.m, np)
    left, right = query.factors(x, sets, facts, LATTICE, np)
    return np.asarray((left * np.where(valid, right, 0)).sum(axis=0) * query.scale(facts, LATTICE))


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("even", [False, True], ids=["other scores", "many equal scores"])
def test_it_counts_what_an_evaluation_counts(k: int, even: bool) -> None:
    rng = np.random.default_rng(k)
    weight = rng.integers(-1, 2, (D, M)).astype(float) if even else rng.normal(size=(D, M))
    head = head_of(weight, rng.integers(0, 2, M).astype(float))
    x = rng.integers(-1, 2, (500, D)).astype(np.float32) if even else rng.normal(size=(500, D)).astype(np.float32)
    y = rng.integers(-1, M, (500, k)).astype(np.int32)
    exact = score(head, stream_of(x, y)(64))
    expected = [exact.top1, exact.top5 - exact.top1, exact.n - exact.top5]
    assert np.allclose(counts_of(head, x, y, k), [expected[0], sum(expected[1:])], rtol=1e-4)
    assert np.allclose(counts_of(head, x, y, k, best=5), expected, rtol=1e-4)
    each = counts_of(head, x, y, k, by_class=True)
    assert np.allclose(each[:M], exact.hits, rtol=1e-4)
    assert np.allclose(each[M:], exact.rows - exact.hits, rtol=1e-4)


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
                lengths = [sum(int(v) ** 2 for v in each.ravel()) for each in added]
                assert min(lengths) > 0
                assert max(lengths) <= LATTICE.unit**2
                for one in added:
                    for other in added:
                        moved = sum(int(v) ** 2 for v in (one - other).ravel())
                        assert moved <= 2 * LATTICE.unit**2, "√2 under replace-one"


@pytest.mark.parametrize("fault", ["counted twice", "counted in two cells"])
def test_a_hit_that_counts_twice_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is seen by the norm of what one record adds."""
    real = Outcomes.factors

    def wrong(self: Outcomes, *given: Any) -> tuple[Any, Any]:
        left, right = real(self, *given)
        return (left, 2 * right) if fault == "counted twice" else (left, right + right[:, ::-1])

    x, labels = np.ones(D, np.float32), np.array([1], np.int32)
    query = Outcomes((Clip(1.0),), np.eye(D, M), np.zeros(M))

    def longest() -> int:
        added = contribution(query, x, labels, Facts(n=1, m=M, d=D), LATTICE)
        return sum(int(v) ** 2 for v in added.ravel())

    assert longest() <= LATTICE.unit**2
    monkeypatch.setattr(Outcomes, "factors", wrong)
    assert longest() > LATTICE.unit**2


@pytest.mark.parametrize(
    ("m", "how"),
    [(2, {"best": 2}), *((M, {"best": best}) for best in (M, 0, True)), (M, {"best": 2, "by_class": True}),
     (M, {"by_class": 1})],
    ids=str,
)  # fmt: skip
def test_outcomes_that_no_proof_covers_are_refused(m: int, how: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cannot be counted so"):
        check(Outcomes((), np.zeros((D, m)), np.zeros(m), **how), Facts(n=9, m=m, d=D))


def test_more_classes_than_a_factor_may_have_are_not_counted_one_by_one() -> None:
    facts = Facts(n=9, m=2**16 + 1, d=1)
    many = Outcomes((), np.zeros((1, facts.m)), np.zeros(facts.m))
    check(many, facts)
    check(Outcomes((), many.weight[:, 1:], many.bias[1:], by_class=True), replace(facts, m=2**16))
    with pytest.raises(ValueError, match="cannot be counted so"):
        check(replace(many, by_class=True), facts)


# The noise


def noise_of_evaluations(runs: int = 40) -> list[str]:
    """The checks that the noise of whole evaluations does not pass."""
    facts = Facts(n=40, m=6, d=D)
    x, y = blobs(40, D, 6)
    weight = np.random.default_rng(0).normal(size=(D, 6))
    asked = [Outcomes((), weight, np.zeros(6), best=5), Outcomes((), weight, np.zeros(6), by_class=True)]
    plan = plan_of(facts, *((query, 1.0) for query in asked))
    noise: list[list[np.ndarray]] = [[], []]
    for seed in range(runs):
        oracle = curator(facts, plan, 0.9, x, y, seed)
        for query, found in zip(asked, noise, strict=True):
            total = exact_sum(query, stream_of(x, y), facts, LATTICE)
            found.append(oracle.release(query) / query.scale(facts, LATTICE) - total)
    return failed(drawn_from(asked, [np.array(found) for found in noise], facts, plan.sigmas(0.9), LATTICE))


def test_every_count_has_its_own_noise() -> None:
    assert noise_of_evaluations() == []


def test_a_count_without_noise_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(query: Any, shape: tuple[int, ...], *rest: Any) -> np.ndarray:
        noise = draw_noise(query, shape, *rest)
        noise[0, -1] = 0
        return noise

    monkeypatch.setattr(curators, "draw_noise", forgetful)
    assert "coordinates_have_the_planned_size" in noise_of_evaluations()


# Intervals


def covered(n: int, p: float, a: float, b: float, runs: int, change: Callable[[float], float] = lambda s: s) -> int:
    """How often the interval has p, if the head is right with probability p. change: a fault in what noise is told."""
    rng = np.random.default_rng([n, int(1000 * p), int(a)])
    right = rng.binomial(n, p, runs)
    counts = zip(right + rng.normal(0, a, runs), n - right + rng.normal(0, b, runs), strict=True)
    found = (fraction(float(h), float(w), change(a), change(b), n)[1] for h, w in counts)
    return sum(low <= p <= high for low, high in found)


RUNS = 2000
ENOUGH = int(stats.binom.ppf(FALSE_ALARM, RUNS, 0.94))
"""An interval that covers 94 % falls below this with a probability of 1e-9. It is 88.6 % of the runs."""


@pytest.mark.parametrize("p", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@pytest.mark.parametrize("n", [300, 1000, 10_000])
def test_an_interval_covers_the_choice_of_the_records_and_the_noise(n: int, epsilon: float, p: float) -> None:
    noise = 1 / mu_for(epsilon, 1e-5)
    for wrong in (1.0, math.sqrt(2)):
        assert covered(n, p, noise, wrong * noise, RUNS) >= ENOUGH


def test_an_interval_that_forgets_the_noise_is_seen() -> None:
    noise = 1 / mu_for(0.1, 1e-5)
    assert covered(1000, 0.9, noise, noise, RUNS, lambda s: s / 2) < ENOUGH
    assert covered(1000, 0.9, noise, noise, RUNS, lambda s: 0.0) < ENOUGH


@pytest.mark.parametrize(("hits", "n"), [(0, 10), (7, 10), (10, 10), (9312, 10_000)])
def test_without_noise_it_is_the_interval_of_an_exact_evaluation(hits: int, n: int) -> None:
    value, interval, noise = fraction(hits, n - hits, 0.0, 0.0, n)
    assert (value, noise) == (hits / n, 0)
    assert interval == pytest.approx(wilson(hits, n), abs=1e-12)


def test_where_there_is_nothing_but_noise_no_figure_is_told() -> None:
    assert fraction(-3.0, -0.5, 5.0, 5.0, 40) == (None, (0.0, 1.0), None)
    assert fraction(3.0, 4.0, 50.0, 50.0, 40)[1] == (0.0, 1.0)
    low, high = fraction(60.0, -3.0, 5.0, 5.0, 57)[1]
    assert 0.5 < low < high == 1
