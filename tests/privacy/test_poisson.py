"""Sampled releases: the sample is what the accounting says it is, and the accounting agrees with what is known
exactly.
"""

import numpy as np
import pytest
from scipy import stats

from dpfc_cli.privacy import accounting, poisson
from dpfc_cli.privacy.curator import Curator
from dpfc_cli.privacy.noise import SeededBits, bernoulli
from dpfc_cli.privacy.oracle import Facts, Plan, Release
from dpfc_cli.privacy.poisson import Sampled
from dpfc_cli.privacy.queries import ClassSums
from tests.support import CHAIN, stream_of


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0])
def test_without_sampling_it_agrees_with_the_exact_curve(mu: float) -> None:
    exact = accounting.epsilon_for(mu, 1e-5)
    assert poisson.epsilon_for([], mu, 1e-5) == pytest.approx(exact, rel=1e-4)
    assert poisson.epsilon_for([Sampled(2 / mu, 1.0, 4)], 0, 1e-5) == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize(("epsilon", "rate", "steps"), [(0.1, 0.05, 100), (1.0, 0.01, 1000), (0.01, 0.2, 20)])
def test_calibration_never_overshoots_and_errs_by_less_than_2e_6(epsilon: float, rate: float, steps: int) -> None:
    plan = Plan((Release("gradient", (2, 2), 1.0, rate),) * steps)
    mu = poisson.mu_for(plan, epsilon, 1e-5)
    spent = poisson.epsilon_for(*poisson.sampled_of(plan, mu), 1e-5)
    assert epsilon * (1 - 2e-6) <= spent <= epsilon


def test_sampling_needs_less_noise_than_full_passes_do() -> None:
    sampled = poisson.epsilon_for([Sampled(2.0, 0.1, 10)], 0, 1e-5)
    assert sampled < accounting.epsilon_for(10**0.5 / 2, 1e-5)


def test_full_passes_and_sampled_ones_are_told_apart() -> None:
    plan = Plan((Release("gram", (2, 2), 0.5), *(Release("gradient", (2, 2), 0.25, 0.1),) * 2))
    sampled, full = poisson.sampled_of(plan, 1.0)
    assert sampled == [Sampled(2.0, 0.1, 2)]
    assert full == pytest.approx(0.5**0.5)


def test_the_draws_are_independent_with_the_stated_probability() -> None:
    bits, rate = SeededBits(0), 0.3
    draws = np.array([bernoulli(rate, 200, bits) for _ in range(500)])
    assert stats.binomtest(int(draws.sum()), draws.size, rate).pvalue > 1e-6
    z = (draws - rate) / np.sqrt(rate * (1 - rate))
    for a, b in ((z[:, :-1], z[:, 1:]), (z[:-1], z[1:])):
        assert abs((a * b).sum()) < 5.5 * np.sqrt(a.size)


def test_the_curator_samples_afresh_at_every_release_and_counts_who_takes_part() -> None:
    """Records of one class along one axis: the answer is their number in the sample."""
    n = 2_000
    facts, release = Facts(n=n, m=2, d=1), Release("class_sums", (2, 1), 1.0, 0.25)
    stream = stream_of(np.ones((n, 1), np.float32), np.zeros(n, np.int32))
    oracle = Curator(facts, Plan((release,) * 40), 1e3, stream, SeededBits(1))
    taken = [float(oracle.release(ClassSums(CHAIN))[0, 0]) for _ in range(40)]
    assert abs(np.mean(taken) - n / 4) < 5 * np.sqrt(n * 0.25 * 0.75 / 40)
    assert stats.chi2.sf(np.var(taken) * 40 / (n * 0.25 * 0.75), 39) > 1e-6
    assert stats.chi2.cdf(np.var(taken) * 40 / (n * 0.25 * 0.75), 39) > 1e-6


@pytest.mark.parametrize(
    ("rate", "steps", "delta", "says"), [(1e-6, 10, 1e-5, "below delta"), (0.1, 10, 1e-20, "at least")]
)
def test_what_cannot_be_accounted_for_is_refused_at_once(rate: float, steps: int, delta: float, says: str) -> None:
    plan = Plan((Release("gradient", (2, 2), 1.0, rate),) * steps)
    with pytest.raises(ValueError, match=says):
        poisson.mu_for(plan, 1.0, delta)
    assert poisson.epsilon_for([Sampled(0.01, rate, steps)], 0, 1e-5) == float("inf")


def test_the_curator_does_not_sample_under_replace_one() -> None:
    facts = Facts(n=4, m=2, d=1, adjacency="replace-one")
    plan = Plan((Release("class_sums", (2, 1), 1.0, 0.25),))
    with pytest.raises(ValueError, match="zero-out"):
        Curator(facts, plan, 1.0, stream_of(np.ones((4, 1), np.float32), np.zeros(4, np.int32)), SeededBits(1))
