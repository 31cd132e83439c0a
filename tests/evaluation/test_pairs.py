"""The difference between two heads on the same records: what its interval holds, and how often it holds the truth."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import optimize, stats

from dpfc_cli.evaluation.statistics import difference, tango
from dpfc_cli.heads.metrics import Interval, Z, wilson

Method = Callable[[int, int, int], Interval]


def normal(first: int, second: int, n: int) -> Interval:
    """The interval that textbooks give first. It has no width where the heads never differ."""
    gain = (first - second) / n
    half = Z * math.sqrt(max(first + second - (first - second) ** 2 / n, 0)) / n
    return gain - half, gain + half


def unpaired(first: int, second: int, n: int) -> Interval:
    """An interval that takes the two heads as scored on different records, at an accuracy of one half."""
    gain = (first - second) / n
    return gain - Z * math.sqrt(0.5 / n), gain + Z * math.sqrt(0.5 / n)


def coverage(method: Method, n: int, only_first: float, only_second: float) -> float:
    """The probability that an interval holds the true difference, summed over all outcomes: nothing is drawn."""
    found = 0.0
    law = stats.multinomial(n, [only_first, only_second, 1 - only_first - only_second])
    for b in range(n + 1):
        for c in range(n + 1 - b):
            if (probability := law.pmf([b, c, n - b - c])) > 1e-9:
                low, high = method(b, c, n)
                found += probability * (low <= only_first - only_second <= high)
    return found


TRUTHS = [(0.1, 0.1), (0.3, 0.1), (0.05, 0.02), (0.02, 0.0)]


@pytest.mark.parametrize("truth", TRUTHS)
def test_the_interval_holds_the_true_difference_as_often_as_it_says(truth: tuple[float, float]) -> None:
    assert coverage(tango, 25, *truth) > 0.93


def test_such_a_test_sees_intervals_that_are_too_narrow() -> None:
    assert coverage(normal, 25, 0.05, 0.02) < 0.9


def test_it_is_narrower_than_one_that_forgets_that_the_records_are_the_same() -> None:
    paired, forgetful = tango(20, 12, 400), unpaired(20, 12, 400)
    assert paired[1] - paired[0] < (forgetful[1] - forgetful[0]) / 2


def score_test(b: int, c: int, n: int, gain: float) -> float:
    """The score statistic, with the likelihood maximised by search among the probabilities with this difference."""

    def loss(q: float) -> float:
        return -float(sum(k * math.log(p) for k, p in ((b, q + gain), (c, q), (n - b - c, 1 - 2 * q - gain)) if k))

    ends = max(0.0, -gain) + 1e-12, (1 - gain) / 2 - 1e-12
    q = optimize.minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-13}).x
    return (b - c - n * gain) / math.sqrt(n * (2 * q + gain * (1 - gain)))


@pytest.mark.parametrize(("b", "c", "n"), [(12, 2, 50), (5, 1, 30), (20, 20, 100), (300, 250, 10_000)])
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


def test_it_is_symmetric_lies_in_its_range_and_has_a_width_where_nothing_differs() -> None:
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


def test_a_million_records_are_no_problem() -> None:
    low, high = tango(50_000, 49_000, 1_000_000)
    assert np.allclose((low, high), normal(50_000, 49_000, 1_000_000), atol=1e-6)
