"""Sampled releases: the sample is what the accounting says it is, and the accounting agrees with what is known
exactly.
"""

import numpy as np
import pytest
from scipy import stats

from dpfc_cli.methods import METHODS
from dpfc_cli.privacy import accounting, poisson
from dpfc_cli.privacy.curator import Curator
from dpfc_cli.privacy.noise import SeededBits, bernoulli
from dpfc_cli.privacy.oracle import Facts, Plan, Release
from dpfc_cli.privacy.poisson import Sampled
from dpfc_cli.privacy.queries import ClassSums
from dpfc_cli.training import Privacy, calibrate
from tests.support import CHAIN, stream_of


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0])
def test_without_sampling_it_agrees_with_the_exact_curve(mu: float) -> None:
    exact = accounting.epsilon_for(mu, 1e-5)
    assert poisson.epsilon_for([], mu, 1e-5) == pytest.approx(exact, rel=1e-4)
    assert poisson.epsilon_for([Sampled(2 / mu, 1.0, 4)], 0, 1e-5) == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize(
    ("epsilon", "rate", "steps"),
    [
        (0.1, 0.05, 100),
        (1.0, 0.01, 1000),
        (0.01, 0.2, 20),
        # From the first guess the bracket jumps to where there is less noise than is accounted for.
        (4.0, 0.001, 5000),
    ],
)
def test_calibration_never_overshoots_and_errs_by_less_than_2e_6(epsilon: float, rate: float, steps: int) -> None:
    plan = Plan((Release("gradient", (2, 2), 1.0, rate),) * steps)
    mu = poisson.mu_for(plan, epsilon, 1e-5)
    spent = poisson.epsilon_for(*poisson.sampled_of(plan, mu), 1e-5)
    assert epsilon * (1 - 2e-6) <= spent <= epsilon


def test_where_the_least_noise_that_is_accounted_for_protects_more_that_is_what_is_claimed() -> None:
    method, facts = METHODS["dp-sgd"], Facts(n=1000, m=2, d=2)
    found = calibrate(method, facts, {"steps": 1, "sampling_rate": 0.5}, Privacy(epsilon=100.0, delta=1e-5))
    (sampled,), _ = poisson.sampled_of(found.plan, found.guarantee.mu)
    assert sampled.sigma == pytest.approx(poisson.LEAST_SAMPLED_SIGMA, rel=1e-6)
    assert found.guarantee.epsilon == pytest.approx(31.6, abs=0.1)


def one_sampled_step(epsilon: float, rate: float, sigma: float) -> float:
    """δ(ε) of one Poisson-subsampled Gaussian, by the definition: P = (1 − q)·N(0, σ²) + q·N(1, σ²) against Q = N(0,
    σ²), E_P[(1 − e^ε·Q/P)₊] and the same with P and Q changed over.
    """
    x = np.linspace(-12 * sigma, 1 + 12 * sigma, 2_000_001)
    q = stats.norm.pdf(x, 0, sigma)
    p = (1 - rate) * q + rate * stats.norm.pdf(x, 1, sigma)
    return max(float(np.trapezoid(np.maximum(a - np.exp(epsilon) * b, 0), x)) for a, b in ((p, q), (q, p)))


@pytest.mark.parametrize(("rate", "sigma"), [(0.5, 0.7), (0.1, 1.0), (0.01, 0.5), (0.9, 3.0)])
def test_one_sampled_step_costs_what_the_definition_says(rate: float, sigma: float) -> None:
    claimed = poisson.epsilon_for([Sampled(sigma, rate, 1)], 0, 1e-5)
    assert one_sampled_step(claimed, rate, sigma) <= 1e-5
    assert one_sampled_step(0.999 * claimed, rate, sigma) > 1e-5


def test_many_sampled_steps_cost_what_others_have_computed() -> None:
    """Over many steps the privacy loss is nearly Gaussian, with μ = q·√(T·(e^(1/σ²) − 1)) (Bu, Dong, Long and Su 2020,
    "Deep learning with Gaussian differential privacy", Corollary 4).
    """
    rate, sigma, steps = 0.002, 1.2, 10_000
    limit = accounting.epsilon_for(rate * np.sqrt(steps * np.expm1(sigma**-2)), 1e-5)
    assert poisson.epsilon_for([Sampled(sigma, rate, steps)], 0, 1e-5) == pytest.approx(limit, rel=0.1)


def test_no_more_is_claimed_than_the_distance_of_the_sampler_was_paid_for() -> None:
    assert poisson.epsilon_for([Sampled(0.25, 0.9, 20)], 0, 1e-5) == float("inf")


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
