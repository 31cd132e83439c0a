"""The accounting of sampled releases agrees with cases that are known exactly. (The samples: `test_curator`.)"""

import functools
import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dpfc_cli.methods import METHODS
from dpfc_cli.privacy import accounting, poisson
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.privacy.curator import eta_of
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.oracle import Plan, planned
from dpfc_cli.privacy.poisson import Sampled
from dpfc_cli.privacy.queries import Gradient, Gram
from dpfc_cli.training.calibrate import calibrate
from tests import instead
from tests.support import CHAIN, plan_of

COARSE = 0.01
"""A step of the discrete privacy loss: the accounting is a hundred times faster, as true, and less close."""
FACTS = Facts(n=100, m=2, d=1)
GRADIENT = Gradient(CHAIN, np.zeros((2, 2)), clip=1.0)


def test_without_sampling_it_agrees_with_the_exact_curve() -> None:
    for mu, interval, error in ((0.05, COARSE, 0.05), (0.5, poisson.FINE, 1e-4), (2.0, COARSE, 2e-3)):
        exact = accounting.epsilon_for(mu, 1e-5)
        assert poisson.epsilon_for([], mu, 1e-5) == pytest.approx(exact, rel=1e-4)
        almost = [Sampled(sigma=2 / mu, rate=1 - 1e-8, times=4)]
        assert exact <= poisson.epsilon_for(almost, 0, 1e-5, interval=interval) <= exact * (1 + error)


def test_full_passes_beside_sampled_releases_cost_what_they_cost_alone() -> None:
    """μ adds up in squares: 0.6² + 0.8² = 1."""
    for full, sampled in ((0.6, 0.8), (0.8, 0.6)):
        almost = [Sampled(sigma=2 / sampled, rate=1 - 1e-8, times=4)]
        found = poisson.epsilon_for(almost, full, 1e-5, interval=COARSE)
        assert found == pytest.approx(accounting.epsilon_for(1.0, 1e-5), rel=2e-3)


def test_rounding_of_the_convolutions_is_paid_for() -> None:
    """A convolution by Fourier transforms errs by some 1e-17 for each release, in either direction. For thousands of
    releases and a δ near 1e-12 this is a part of δ. Here it made ε smaller than it is.

    A record takes part in all T releases with probability q^T. So every event has at least q^T times the probability
    that it has without sampling, and δ(ε) ≥ q^T·δ₁(ε − T·ln q), where δ₁ is that of T full passes.
    """
    rate, times, sigma = 1 - 1e-8, 10_000, 100.0
    made = [Sampled(sigma=sigma, rate=rate, times=times)]
    for delta in (1.2e-11, 1e-10, 1e-5):
        full = accounting.epsilon_for(times**0.5 / sigma, delta / rate**times)
        assert poisson.epsilon_for(made, 0, delta) >= full * (1 - 2e-9) + times * math.log(rate)
    assert poisson.epsilon_for(made, 0, 1e-12) == math.inf


@pytest.mark.parametrize("steps", [1, 1000])
def test_the_smallest_delta_with_sampling_can_be_reached(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What η and the convolutions take from δ is refused, too. The search for the noise found no end there."""
    instead.losses(monkeypatch, COARSE, COARSE)
    plan = plan_of(FACTS, *[(GRADIENT, 1.0)] * steps, rate=0.1)
    eta = eta_of(plan)
    with pytest.raises(ValueError, match="at least") as refused:
        poisson.mu_for(plan, 1.0, poisson.LEAST_SAMPLED_DELTA, eta)
    least = float(re.search("at least (.*),", str(refused.value))[1])  # type: ignore[index]
    with pytest.raises(ValueError, match="at least"):
        poisson.check(plan, 1.0, least / 1.015, eta)
    mu = poisson.mu_for(plan, 1.0, least, eta)
    assert poisson.epsilon_for(*poisson.sampled_of(plan, mu), least, eta, COARSE) <= 1.0


@pytest.mark.parametrize(
    ("epsilon", "rate", "steps", "interval"),
    [
        (0.1, 0.05, 100, poisson.COARSE),
        (1.0, 0.01, 1000, COARSE),
        # After the first guess, the bracket jumps to a place with less noise than the accounting covers.
        (4.0, 0.001, 5000, COARSE),
    ],
)
def test_calibration_never_overshoots_and_errs_by_less_than_2e_6(
    epsilon: float, rate: float, steps: int, interval: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    instead.losses(monkeypatch, interval, 10 * interval)
    plan = plan_of(FACTS, *[(GRADIENT, 1.0)] * steps, rate=rate)
    mu = poisson.mu_for(plan, epsilon, 1e-5)
    spent = poisson.epsilon_for(*poisson.sampled_of(plan, mu), 1e-5, interval=interval)
    assert epsilon * (1 - 2e-6) <= spent <= epsilon


def test_no_less_noise_is_used_than_the_accounting_covers(monkeypatch: pytest.MonkeyPatch) -> None:
    instead.losses(monkeypatch, COARSE, 10 * COARSE)
    monkeypatch.setattr(poisson, "epsilon_for", functools.partial(poisson.epsilon_for, interval=COARSE))
    method, facts = METHODS["dp-sgd"], Facts(n=1000, m=2, d=2)
    found = calibrate(method, facts, {"steps": 1, "sampling_rate": 0.5}, Privacy(epsilon=100.0, delta=1e-5))
    assert found.guarantee is not None
    (sampled,), _ = poisson.sampled_of(found.plan, found.guarantee.mu)
    assert sampled.sigma == pytest.approx(poisson.LEAST_SAMPLED_SIGMA, rel=1e-6)
    assert found.guarantee.epsilon == pytest.approx(31.6, abs=0.1)


def test_the_search_ends_just_below_the_root_wherever_it_starts() -> None:
    for slope, guess in itertools.product((0.5, 1.0, 7.0), (1e-3, 0.9, 1.0, 40.0)):
        asked: list[float] = []

        def excess(mu: float, slope: float = slope, asked: list[float] = asked) -> float:
            asked.append(mu)
            return slope * math.log(mu) + 0.2 * (mu - 1)

        found = poisson._largest(excess, guess, 1.5)
        assert -1e-6 <= excess(found) <= 0
        assert len(set(asked)) < 40


def test_the_search_ends_at_the_edge_of_what_is_accounted_for_or_at_a_root_before_it() -> None:
    for edge in (0.3, 1.0, 5.0):
        found = poisson._largest(lambda mu, edge=edge: math.log(mu / 6) if mu <= edge else math.inf, 0.2, 1.5)  # type: ignore[misc]
        assert edge / (1 + 2e-7) <= found <= edge
    found = poisson._largest(lambda mu: math.log(mu) if mu <= 1.1 else math.inf, 0.01, 1.5)
    assert 1 - 1.1e-6 <= found <= 1


STEP = Sampled(sigma=1.5, rate=0.2, times=3)


def test_the_samplers_distance_is_paid_at_the_largest_epsilon() -> None:
    eta = 1e-50
    left = 1e-5 - (1 + math.exp(100)) * eta
    assert left < 0.98e-5
    paid = poisson.epsilon_for([STEP], 0.5, 1e-5, eta, COARSE)
    assert paid == poisson.epsilon_for([STEP], 0.5, left, interval=COARSE)


def test_noise_and_delta_below_what_is_accounted_for_are_worth_nothing() -> None:
    least = poisson.LEAST_SAMPLED_DELTA
    for sigma, delta, known in ((1.5, 1.2e-12, True), (1.5, 1e-12, False), (0.199, 1e-5, False)):
        found = poisson.epsilon_for([replace(STEP, sigma=sigma)], 0, delta, interval=COARSE)
        assert math.isfinite(found) is known
    assert math.isinf(poisson.epsilon_for([STEP, replace(STEP, sigma=0.1)], 0, 1e-5, interval=COARSE))
    assert (least, poisson.LEAST_SAMPLED_SIGMA) == (1e-12, 0.2)


def test_mechanisms_compose_and_those_of_no_release_cost_nothing() -> None:
    def cost(*mechanisms: Sampled, mu: float = 0.0) -> float:
        return poisson.epsilon_for(mechanisms, mu, 1e-5, interval=COARSE)

    one, twice = cost(STEP), cost(replace(STEP, times=6))
    assert one < twice
    assert cost(STEP, STEP) == pytest.approx(twice, rel=1e-9)
    assert cost(STEP, replace(STEP, times=0)) == one
    assert one < cost(STEP, mu=0.5)


def test_only_equal_releases_that_follow_one_another_are_one_mechanism() -> None:
    a, b = planned(GRADIENT, FACTS, 0.25, 0.1), planned(GRADIENT, FACTS, 0.25, 0.2)
    quiet = planned(GRADIENT, FACTS, 0.0625, 0.1)
    sampled, full = poisson.sampled_of(Plan((a, a, b, quiet, a)), 1.0)
    unit = 1 / math.sqrt(0.25 / 1.0625)
    assert [(each.rate, each.times) for each in sampled] == [(0.1, 2), (0.2, 1), (0.1, 1), (0.1, 1)]
    assert [each.sigma for each in sampled] == pytest.approx([unit, unit, 2 * unit, unit])
    assert full == 0
    whole = planned(Gram(CHAIN), FACTS, 0.5)
    sampled, full = poisson.sampled_of(Plan((whole, a, a)), 1.0)
    assert sampled == [Sampled(sigma=2.0, rate=0.1, times=2)]
    assert full == pytest.approx(0.5**0.5)
    none, full = poisson.sampled_of(Plan((whole, whole)), 3.0)
    assert none == []
    assert full == pytest.approx(3.0)


def test_a_record_that_hardly_ever_takes_part_needs_no_noise_and_is_refused() -> None:
    """It is in some sample with probability 1 − (1 − q)ᵀ, here just above δ or just below it."""
    for rate, refused in ((0.9e-5 / 4, True), (1.1e-5 / 4, False)):
        plan = plan_of(FACTS, *[(GRADIENT, 1.0)] * 4, rate=rate)
        if refused:
            with pytest.raises(ValueError, match="below delta"):
                poisson.check(plan, 1.0, 1e-5)
        else:
            poisson.check(plan, 1.0, 1e-5)
    plan = plan_of(FACTS, (GRADIENT, 1.0), rate=0.5)
    poisson.check(plan, 1.0, 1.12e-12)
    with pytest.raises(ValueError, match="below delta"):
        poisson.check(plan, 1.0, 0.5)
    # Full passes are not convolved.
    poisson.check(replace(plan, releases=(*plan.releases, *[planned(Gram(CHAIN), FACTS, 1.0)] * 199)), 1.0, 1.12e-12)
    for epsilon, delta in ((0.0, 1e-5), (1.0, 1.0), (1.0, 1.09e-12)):
        with pytest.raises(ValueError, match=r"must lie between|must be at least"):
            poisson.check(plan, epsilon, delta)


def one_sampled_step(epsilon: float, rate: float, sigma: float) -> float:
    """δ(ε) of one Poisson-subsampled Gaussian mechanism, by the definition.

    It is the larger of E_P[(1 − e^ε·Q/P)₊] and the same with P and Q exchanged, where P = (1 − q)·N(0, σ²) + q·N(1, σ²)
    and Q = N(0, σ²).
    """
    x = np.linspace(-12 * sigma, 1 + 12 * sigma, 200_001)
    q = stats.norm.pdf(x, 0, sigma)
    p = (1 - rate) * q + rate * stats.norm.pdf(x, 1, sigma)
    return max(float(np.trapezoid(np.maximum(a - np.exp(epsilon) * b, 0), x)) for a, b in ((p, q), (q, p)))


def test_one_sampled_step_costs_what_the_definition_says() -> None:
    for rate, sigma in ((0.5, 0.7), (0.1, 1.0), (0.01, 0.5), (0.9, 3.0)):
        claimed = poisson.epsilon_for([Sampled(sigma=sigma, rate=rate, times=1)], 0, 1e-5, interval=poisson.COARSE)
        assert one_sampled_step(claimed, rate, sigma) <= 1e-5
        assert one_sampled_step(0.999 * claimed, rate, sigma) > 1e-5


def test_many_sampled_steps_cost_what_others_have_computed() -> None:
    """Over many steps the privacy loss is nearly Gaussian, with μ = q·√(T·(e^(1/σ²) − 1)) (Bu, Dong, Long and Su 2020,
    "Deep learning with Gaussian differential privacy", Corollary 4).
    """
    rate, sigma, steps = 0.002, 1.2, 10_000
    limit = accounting.epsilon_for(rate * np.sqrt(steps * np.expm1(sigma**-2)), 1e-5)
    many = [Sampled(sigma=sigma, rate=rate, times=steps)]
    assert poisson.epsilon_for(many, 0, 1e-5, interval=poisson.COARSE) == pytest.approx(limit, rel=0.1)


def test_a_rate_that_float64_does_not_tell_from_1_costs_what_a_full_pass_does() -> None:
    """dp_accounting fails there: it takes the logarithm of the chance to be missed."""
    for missed, (sigma, times) in itertools.product((1e-13, 1e-16, 0.0), ((0.25, 1), (1.0, 1), (2.0, 4))):
        found = poisson.epsilon_for([Sampled(sigma=sigma, rate=1 - missed, times=times)], 0, 1e-5)
        assert found == pytest.approx(accounting.epsilon_for(times**0.5 / sigma, 1e-5), rel=1e-9)


def test_at_the_edges_of_what_is_accounted_for_nothing_is_forgotten() -> None:
    edge = poisson.epsilon_for([Sampled(sigma=1.0, rate=poisson.NEARLY_ALL, times=1)], 0, 1e-5, interval=0.01)
    assert edge == pytest.approx(accounting.epsilon_for(1.0, 1e-5), rel=0.01)
    assert math.isfinite(poisson.epsilon_for([], 1.0, poisson.LEAST_SAMPLED_DELTA))
    least = Sampled(sigma=poisson.LEAST_SAMPLED_SIGMA, rate=0.01, times=1)
    assert math.isfinite(poisson.epsilon_for([least], 0, 1e-5, interval=0.1))


def test_nothing_costs_nothing_and_anything_else_at_least_the_least() -> None:
    assert poisson.epsilon_for([], 0, 1e-5) == 0
    assert poisson.epsilon_for([], 1e-9, 1e-5) >= accounting.LEAST_EPSILON
    for delta in (0.0, 1.0, 2.0):
        with pytest.raises(ValueError, match="must lie between"):
            poisson.epsilon_for([], 1.0, delta)


def test_what_the_full_passes_cost_alone_is_enough_to_say_that_there_is_no_epsilon() -> None:
    """Their privacy loss would take 76 GB."""
    assert poisson.epsilon_for([Sampled(sigma=1.0, rate=0.1, times=1)], 1e3, 1e-5) == float("inf")


def test_noise_of_any_size_has_an_epsilon_which_is_not_below_the_least_and_not_above_the_largest() -> None:
    for sigma, mu in ((1e8, 0.0), (1e300, 0.0), (1e300, 1e-320)):
        assert poisson.epsilon_for([Sampled(sigma=sigma, rate=0.1, times=1)], mu, 1e-5) == accounting.LEAST_EPSILON
    # Above, the sampler's distance is not paid for.
    loud = [Sampled(sigma=0.25, rate=0.9, times=10)]
    assert poisson.epsilon_for(loud, 0, 1e-5, interval=COARSE) == float("inf")
