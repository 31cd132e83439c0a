"""Whether probabilities can be believed: bins, the expected calibration error, and what of it is chance."""

import math

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import softmax

from dpfc_cli.evaluation.statistics import BINS, Measure, auroc_interval, calibration, difference, mean, tango
from dpfc_cli.heads.head import as_probabilities
from dpfc_cli.heads.metrics import Z, wilson
from tests.noise import FALSE_ALARM


def test_a_small_case_by_hand() -> None:
    """Two records at 0.95, one of them right; four at 0.65, three of them right."""
    found = calibration(np.array([0.95, 0.95, 0.65, 0.65, 0.65, 0.65]), np.array([1, 0, 1, 1, 1, 0]))
    assert found.probability == pytest.approx((2 * 0.95 + 4 * 0.65) / 6)
    assert found.error == pytest.approx(2 / 6 * abs(0.95 - 0.5) + 4 / 6 * abs(0.65 - 0.75))
    upper, lower = found.bins[9], found.bins[6]
    assert (upper.n, upper.right, upper.interval) == (2, 0.5, wilson(1, 2))
    assert (lower.n, lower.right) == (4, 0.75)
    assert lower.probability == pytest.approx(0.65)
    empty = found.bins[0]
    assert (empty.n, empty.probability, empty.right, empty.interval) == (0, None, None, None)


def test_bins_have_their_upper_end_and_every_record_is_in_one() -> None:
    found = calibration(np.array([0.1, 0.1001, 1.0, 0.0]), np.zeros(4))
    assert [(each.low, each.high) for each in found.bins] == [(i / BINS, (i + 1) / BINS) for i in range(BINS)]
    assert [each.n for each in found.bins] == [2, 1, 0, 0, 0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("n", [60, 400])
def test_the_error_by_chance_is_that_of_probabilities_that_are_right(n: int) -> None:
    """1,000 draws: their mean has a standard deviation of 1 % of it, so 8 % is beyond chance (below 1e-10)."""
    rng = np.random.default_rng(n)
    p = rng.beta(4, 2, n)
    errors = [calibration(p, rng.random(n) < p).error for _ in range(1000)]
    assert calibration(p, np.zeros(n)).by_chance == pytest.approx(np.mean(errors), rel=0.08)
    wrong = [calibration(p, rng.random(n) < p**2).error for _ in range(20)]
    assert np.mean(wrong) > 1.3 * np.mean(errors)


def test_probabilities_are_the_softmax_of_the_scores() -> None:
    scores = np.random.default_rng(2).normal(0, 5, (50, 7))
    assert as_probabilities(scores, several=False) == pytest.approx(softmax(scores, axis=1))
    extreme = np.array([[1.7e308, -1.7e308], [5.0, 5.0]])
    assert as_probabilities(extreme, several=False) == pytest.approx(np.array([[1, 0], [0.5, 0.5]]))


@pytest.mark.parametrize("several", [False, True])
def test_probabilities_are_numbers_whatever_the_weights_of_a_head_make_of_a_record(several: bool) -> None:
    scores = np.array([[np.inf, 1.0], [-np.inf, np.inf], [-np.inf, -np.inf], [np.nan, np.inf], [1e308, -1e308]])
    found = as_probabilities(scores, several)
    assert ((found >= 0) & (found <= 1)).all()
    assert several or found.sum(axis=1) == pytest.approx(1)
    assert found[0, 0] == found[1, 1] == found[3, 1] == 1


def score_test(b: int, c: int, n: int, gain: float) -> float:
    """The score statistic, with the likelihood maximised by search among the probabilities with this difference."""

    def loss(q: float) -> float:
        return -float(sum(k * math.log(p) for k, p in ((b, q + gain), (c, q), (n - b - c, 1 - 2 * q - gain)) if k))

    ends = max(0.0, -gain) + 1e-12, (1 - gain) / 2 - 1e-12
    q = optimize.minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-13}).x
    return (b - c - n * gain) / math.sqrt(n * (2 * q + gain * (1 - gain)))


@pytest.mark.parametrize(("b", "c", "n"), [(12, 2, 50), (5, 1, 30), (20, 20, 100), (50_000, 49_000, 10**6)])
def test_the_ends_are_where_the_score_test_begins_to_reject(b: int, c: int, n: int) -> None:
    low, high = tango(b, c, n)
    assert score_test(b, c, n, low) == pytest.approx(Z, rel=1e-4)
    assert score_test(b, c, n, high) == pytest.approx(-Z, rel=1e-4)


def test_zero_is_outside_if_and_only_if_mcnemars_test_rejects() -> None:
    for b in range(13):
        for c in range(13):
            low, high = tango(b, c, 40)
            rejected = (b - c) ** 2 > Z**2 * (b + c)
            assert (low > 0 or high < 0) == rejected, (b, c)


def test_an_interval_of_a_difference_is_symmetric_and_has_a_width_where_nothing_differs() -> None:
    for b, c, n in [(0, 0, 10), (10, 0, 10), (0, 10, 10), (3, 4, 9), (1, 0, 1), (0, 0, 1)]:
        low, high = tango(b, c, n)
        assert -1 <= low <= (b - c) / n <= high <= 1
        assert low < high
        assert tango(c, b, n) == (-high, -low)
    assert tango(0, 0, 10)[1] == pytest.approx(wilson(0, 10)[1])


def test_a_difference_names_what_only_one_of_the_heads_gets_right() -> None:
    found = difference(30, 10, 200)
    assert (found.gain, found.only_this, found.only_other) == (0.1, 30, 10)
    assert found.interval == tango(30, 10, 200)


# The area under the ROC curve


def variance(area: float, n: int, others: int) -> float:
    """Of Hanley and McNeil (1982), with the mean of the two numbers for each of them, as Newcombe has it."""
    q1, q2, each = area / (2 - area), 2 * area**2 / (1 + area), (n + others) / 2 - 1
    return (area * (1 - area) + each * (q1 + q2 - 2 * area**2)) / (n * others)


@pytest.mark.parametrize(("area", "n", "others", "noise"), [(0.8, 12, 40, 0.0), (0.99, 500, 70, 0.1), (1.0, 9, 9, 0.0)])
def test_the_interval_of_an_area_has_what_the_value_does_not_contradict(
    area: float, n: int, others: int, noise: float
) -> None:
    low, high = auroc_interval(area, n, others, noise)
    at = np.linspace(0, 1, 100_001)
    inside = at[(area - at) ** 2 <= Z**2 * (variance(at, n, others) + noise**2)]  # type: ignore[arg-type]
    assert (low, high) == pytest.approx((inside[0], inside[-1]), abs=1e-4)
    assert auroc_interval(area, 0, others) == auroc_interval(area, n, 0) == (0, 1)


@pytest.mark.parametrize(("shift", "n", "others"), [(0.5, 20, 80), (1.0, 150, 150), (3.0, 12, 300), (3.5, 9, 20)])
def test_the_interval_of_an_area_covers_it(shift: float, n: int, others: int) -> None:
    """400 draws from two normal distributions, also where nearly all of them are told apart."""
    rng, true, covered = np.random.default_rng(n), stats.norm.cdf(shift / math.sqrt(2)), 0
    for _ in range(400):
        own, rest = rng.normal(shift, 1, n), rng.normal(0, 1, others)
        area = float((own[:, None] > rest).mean())
        low, high = auroc_interval(area, n, others)
        covered += low <= true <= high
    # 94 % of 400 draws, and chance below 1e-9 less.
    assert covered >= stats.binom.ppf(FALSE_ALARM, 400, 0.94)


def test_the_mean_of_figures_is_surer_only_if_they_are_independent() -> None:
    parts = [Measure(0.5, (0.4, 0.6)), None, Measure(0.9, (0.8, 0.95))]
    for alone, down, up in ((False, 0.2, 0.15), (True, math.hypot(0.1, 0.1), math.hypot(0.1, 0.05))):
        found = mean(parts, independent=alone)
        assert found is not None
        assert found.value == pytest.approx(0.7)
        assert found.interval == pytest.approx((0.7 - down / 2, 0.7 + up / 2))
    assert mean([None]) is None
    assert mean([Measure(1.0, (0.5, 1.0))]) == Measure(1.0, (0.5, 1.0))
