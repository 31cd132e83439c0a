"""(ε, δ) where some releases are Poisson-sampled: dp_accounting's privacy loss distributions.

There is no closed form for the composition of subsampled Gaussian mechanisms. dp_accounting discretises each
mechanism's privacy loss and rounds it up, so that what it says is an upper bound on ε (Koskela, Jälkö and Honkela 2020;
Doroshenko et al. 2022). Under zero-out adjacency a record that is null adds zero, exactly as one that is absent, so
"add or remove one" is the neighbouring relation that fits. Full-batch runs never come here.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dpfc_cli.privacy.accounting import LARGEST_EPSILON, check_privacy
from dpfc_cli.privacy.oracle import Plan

LEAST_SAMPLED_DELTA, LEAST_SAMPLED_SIGMA = 1e-12, 0.2
FINE, COARSE = 1e-4, 1e-3


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """`times` Poisson-sampled Gaussian mechanisms of noise multiplier sigma and sampling rate."""

    sigma: float
    rate: float
    times: int


def epsilon_for(
    mechanisms: Sequence[Sampled], mu: float, delta: float, eta: float = 0.0, interval: float = FINE
) -> float:
    """ε at δ of the sampled mechanisms composed with a full-batch one of parameter μ (0: none). inf where there is
    none.

    eta: paid for out of δ at the largest ε that is ever claimed, which only errs on the private side; so there is none
    above that. interval: of the discretised privacy loss; any gives an upper bound, a finer one a closer.
    """
    check_privacy(1.0, delta)
    left = delta - (1 + math.exp(LARGEST_EPSILON)) * eta
    # Below these the discretisation is coarse or the distributions are huge, and what they protect is little.
    if left < LEAST_SAMPLED_DELTA or any(m.sigma < LEAST_SAMPLED_SIGMA for m in mechanisms):
        return math.inf
    from dp_accounting import dp_event, pld

    events = [_event(m) for m in mechanisms if m.times] + ([dp_event.GaussianDpEvent(1 / mu)] if mu else [])
    accountant: Any = pld.PLDAccountant(value_discretization_interval=interval)
    for event in events:
        accountant.compose(event)
    epsilon = float(accountant.get_epsilon(left))
    return epsilon if epsilon <= LARGEST_EPSILON else math.inf


def _event(mechanism: Sampled) -> Any:
    from dp_accounting import dp_event

    gaussian = dp_event.GaussianDpEvent(mechanism.sigma)
    sampled = dp_event.PoissonSampledDpEvent(mechanism.rate, gaussian)
    return dp_event.SelfComposedDpEvent(sampled, mechanism.times)


def sampled_of(plan: Plan, mu: float) -> tuple[list[Sampled], float]:
    """The plan's sampled releases, equal neighbours together, and the μ of its full passes."""
    sampled: list[Sampled] = []
    full = 0.0
    for release, sigma in zip(plan.releases, plan.sigmas(mu), strict=True):
        if release.rate == 1:
            full += 1 / sigma**2
        elif sampled and (sampled[-1].sigma, sampled[-1].rate) == (sigma, release.rate):
            sampled[-1] = Sampled(sigma=sigma, rate=release.rate, times=sampled[-1].times + 1)
        else:
            sampled.append(Sampled(sigma=sigma, rate=release.rate, times=1))
    return sampled, math.sqrt(full)


def check(plan: Plan, epsilon: float, delta: float) -> None:
    """ValueError unless `mu_for` has an answer."""
    check_privacy(epsilon, delta)
    missed = math.prod(1 - r.rate for r in plan.releases)
    if 1 - missed <= delta:
        raise ValueError(f"at this sampling rate a record takes part with probability {1 - missed:.2g}, below delta")
    if delta < LEAST_SAMPLED_DELTA:
        raise ValueError(f"with sampling, delta must be at least {LEAST_SAMPLED_DELTA:g}, not {delta:g}")


def mu_for(plan: Plan, epsilon: float, delta: float, eta: float = 0.0) -> float:
    """The largest nominal μ of a plan with sampled releases whose ε at δ stays within ε: by at most 1e-6 relative
    below, or as far as releases of `LEAST_SAMPLED_SIGMA` are.

    The nominal μ is what `Plan.sigmas` divides: the μ that the plan would cost without sampling.
    """
    check(plan, epsilon, delta)
    from dpfc_cli.privacy import accounting

    def excess(interval: float) -> Callable[[float], float]:
        @functools.cache
        def log_ratio(mu: float) -> float:
            return math.log(max(epsilon_for(*sampled_of(plan, mu), delta, eta, interval) / epsilon, 1e-3))

        return log_ratio

    # Sampling only helps, so the full-batch μ is a first guess from below. A coarse grid is fast and claims more.
    rough = _largest(excess(COARSE), accounting.mu_for(epsilon, delta, eta), 1.5)
    return _largest(excess(FINE), rough, 1.002)


def _largest(excess: Callable[[float], float], low: float, factor: float) -> float:
    """The largest μ with excess(μ) ≤ 0, by at most 1e-6 in that; excess is smooth and increases, up to inf. low: a
    guess, left in growing steps of `factor`.
    """
    while excess(low) > 0:
        low /= factor
    high = factor * low
    while excess(high) <= 0:
        factor **= 2
        low, high = high, factor * high
    while math.isinf(excess(high)):
        # Less noise than is accounted for. The largest μ that is may be what is looked for.
        if high / low < 1 + 1e-7:
            return low
        middle = math.sqrt(low * high)
        low, high = (middle, high) if excess(middle) <= 0 else (low, middle)
    # Regula falsi on the logarithm, kept inside the bracket.
    f_low, f_high = excess(low), excess(high)
    for _ in range(60):
        if abs(excess(low)) <= 1e-6 or high / low < 1 + 1e-9:
            break
        middle = low * (high / low) ** min(max(-f_low / (f_high - f_low) * (1 - 1e-7), 0.01), 0.99)
        value = excess(middle)
        if value <= 0:
            # Illinois: an end that stays put counts half, else it would stay for ever.
            low, f_low, f_high = middle, value, f_high / 2
        else:
            high, f_high, f_low = middle, value, f_low / 2
    return low
