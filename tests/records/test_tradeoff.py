"""The trade-off curve of a claim, beside what (ε, δ) says at every ε."""

import math

import numpy as np
import pytest
from scipy import stats

from dpfc_cli.privacy.accounting import delta_of, epsilon_for
from dpfc_cli.records.claims import Claimed, Release
from dpfc_cli.records.statement import RATES, curve, meaning, power

EPSILONS = np.linspace(0, 30, 3_001)


def claim(mu: float, rate: float = 1.0, **changed: float) -> Claimed:
    release = Release(kind="gram", shape=(2, 2), share=1.0, sigma=1 / mu, rate=rate, times=1)
    figures = {"mu": mu, "eta": 1e-70, "delta": 1e-5, "epsilon": epsilon_for(mu, 1e-5), **changed}
    return Claimed(claim="private", adjacency="zero-out", unit="record", plan=(release,), **figures)


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0, 5.0])
def test_the_curve_of_full_passes_is_what_all_their_epsilons_say_together(mu: float) -> None:
    """Power is at most e^ε·α + δ(ε) for each ε, and no attack is known to be below all of these (Dong et al. 2022)."""
    deltas = np.array([delta_of(epsilon, mu) for epsilon in EPSILONS])
    for rate in (0.001, 0.05, 0.3):
        bound = float(np.min(np.exp(EPSILONS) * rate + deltas))
        if bound < 0.5:
            assert power(claim(mu), rate) == pytest.approx(bound, rel=1e-3)
        assert power(claim(mu), rate) <= bound * (1 + 1e-9)


def test_the_curve_has_all_that_delta_and_the_distance_of_the_noise_allow() -> None:
    """Both are far larger here than those of trainings, where no figure would show them."""
    known = claim(1.0, eta=0.02)
    for rate in (0.01, 0.3, 0.7, 0.99):
        due = min(stats.norm.cdf(stats.norm.ppf(min(rate + 0.02, 1)) + 1) + 0.02, 1)
        assert power(known, rate) == pytest.approx(due)
    assert curve(known)[0] == (0, 0.02)
    epsilon, delta = 1.5, 0.05
    rates = np.linspace(0, 1, 101)
    bounds = math.exp(epsilon) * rates + delta, 1 - math.exp(-epsilon) * (1 - delta - rates), np.ones(101)
    sampled = claim(1.0, 0.1, epsilon=epsilon, delta=delta)
    due = np.min(bounds, axis=0)
    assert np.interp(rates, *np.array(curve(sampled)).T) == pytest.approx(due)
    assert [power(sampled, rate) for rate in rates] == pytest.approx(due)


@pytest.mark.parametrize("rate", [1.0, 0.1])
@pytest.mark.parametrize("mu", [0.05, 2.0, 20.0])
def test_points_go_from_nothing_to_all_above_chance_and_are_those_of_the_statement(mu: float, rate: float) -> None:
    known = claim(mu, rate, epsilon=min(epsilon_for(mu, 1e-5), 100.0))
    points = curve(known)
    x, y = np.array(points).T
    assert (x[0], x[-1], y[-1]) == (0, 1, pytest.approx(1))
    assert y[0] <= known.guarantee.delta
    assert (np.diff(x) >= 0).all()
    assert (np.diff(y) >= -1e-12).all()
    assert (y >= x - 1e-12).all()
    # Between two points a line is drawn, which the curve is not below.
    for rate in RATES:
        assert np.interp(rate, x, y) == pytest.approx(power(known, rate), abs=0.003)
    said = meaning(known)
    assert said is not None
    assert power(known, said["false_alarms"]) == said["power"]
    assert not math.isnan(y.sum())
