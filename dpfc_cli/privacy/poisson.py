"""(ε, δ) of plans with Poisson-sampled releases, by the privacy loss distributions of dp_accounting.

In a Poisson sample each unit (a record, or a person) takes part with the same probability, independently of the
others. There is no closed form for the composition of Gaussian mechanisms on such samples. dp_accounting makes the
privacy loss of each mechanism discrete and rounds it up. So its result is an upper bound on ε (Koskela, Jälkö and
Honkela 2020; Doroshenko et al. 2022). Under zero-out adjacency a null unit adds zero, exactly as an absent one does. So
"add or remove one unit" is the neighbouring relation that fits. Trainings with full passes alone do not use this
module.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from dpfc_cli.privacy.accounting import LARGEST_EPSILON, LEAST_EPSILON, check_privacy
from dpfc_cli.privacy.accounting import epsilon_for as accounting_epsilon
from dpfc_cli.privacy.oracle import Plan

LEAST_SAMPLED_DELTA, LEAST_SAMPLED_SIGMA = 1e-12, 0.2
FINE, COARSE = 1e-4, 1e-3
MOST_SIGMA = 1e9
"""More noise counts as this much: dp_accounting overflows, and nothing that is stated depends on it."""
ROUNDING, FEWEST = 1e-15, 100
"""dp_accounting convolves by Fourier transforms in float64. Against numbers of 80 bits, δ errs by up to 1.7e-14 for at
most 100 releases, and by 6e-17 for each release if there are more. At least six times as much is paid out of δ."""
NEGLIGIBLE = 1e-7
"""A smaller part of δ is not paid: to round the losses up costs more."""
NEARLY_ALL = 1 - 1e-9
"""A larger sampling rate counts as a full pass, which costs more. dp_accounting takes the logarithm of 1 minus the
rate, and fails where float64 does not know that difference well enough.
"""


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """`times` Poisson-sampled Gaussian mechanisms with the noise multiplier σ. rate: the probability with which each
    unit takes part.
    """

    sigma: float
    rate: float
    times: int


class Accountant(Protocol):
    """What is used of an accountant of dp_accounting."""

    def compose(self, event: object) -> object: ...
    def get_epsilon(self, target_delta: float) -> float: ...


def epsilon_for(
    mechanisms: Sequence[Sampled], mu: float, delta: float, eta: float = 0.0, interval: float = FINE
) -> float:
    """ε at δ of sampled mechanisms that are composed with one Gaussian mechanism on all records, of that μ (0 for
    none).

    It is an upper bound; infinity if there is none. A smaller ε than 1e-4 is stated as 1e-4. eta: the total variation
    distance of the noise from the ideal noise. It is paid out of δ, see `_paid`. interval: the step of the discrete
    privacy loss. Every step gives an upper bound; a finer one gives a closer bound.
    """
    epsilon = _epsilon_for(mechanisms, mu, delta, eta, interval)
    return max(epsilon, LEAST_EPSILON) if mechanisms or mu else epsilon


def _epsilon_for(mechanisms: Sequence[Sampled], mu: float, delta: float, eta: float, interval: float) -> float:
    """`epsilon_for`, also below the least ε that is stated."""
    check_privacy(1.0, delta)
    left = delta - _paid(sum(m.times for m in mechanisms), delta, eta)
    # Below these bounds the discretisation is coarse or the distributions are huge. Such noise protects little.
    if left < LEAST_SAMPLED_DELTA or any(m.sigma < LEAST_SAMPLED_SIGMA for m in mechanisms):
        return math.inf
    mu = math.hypot(mu, *(math.sqrt(m.times) / m.sigma for m in mechanisms if m.rate > NEARLY_ALL))
    rest = tuple(replace(m, sigma=min(m.sigma, MOST_SIGMA)) for m in mechanisms if m.rate <= NEARLY_ALL)
    full = accounting_epsilon(mu, left)
    if not rest or full > LARGEST_EPSILON:
        # The sampled releases only add to what the full passes cost.
        epsilon = full
    else:
        epsilon = float(_composed(rest, max(mu, 1 / MOST_SIGMA) if mu else 0.0, interval).get_epsilon(left))
    return epsilon if epsilon <= LARGEST_EPSILON else math.inf


def _paid(releases: int, delta: float, eta: float) -> float:
    """What the sampler's η and the rounding of the convolutions take from δ.

    η is paid at the largest ε that is ever claimed. This errs on the private side only, but no ε above that largest one
    can be stated.
    """
    rounding = ROUNDING * max(releases, FEWEST) if releases else 0.0
    return (1 + math.exp(LARGEST_EPSILON)) * eta + (rounding if rounding > NEGLIGIBLE * delta else 0.0)


@functools.lru_cache(maxsize=8)
def _composed(mechanisms: tuple[Sampled, ...], mu: float, interval: float) -> Accountant:
    """The accountant of a composition. A training asks for the same one several times, and it takes seconds."""
    from dp_accounting import dp_event, pld

    accountant: Accountant = pld.PLDAccountant(value_discretization_interval=interval)
    for m in mechanisms:
        if m.times:
            sampled = dp_event.PoissonSampledDpEvent(m.rate, dp_event.GaussianDpEvent(m.sigma))
            accountant.compose(dp_event.SelfComposedDpEvent(sampled, m.times))
    if mu:
        accountant.compose(dp_event.GaussianDpEvent(1 / mu))
    return accountant


def sampled_of(plan: Plan, mu: float) -> tuple[list[Sampled], float]:
    """The sampled releases of a plan whose noise is named by μ, where equal ones that follow one another are one entry,
    and the μ of its full passes (0 for none).
    """
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


def check(plan: Plan, epsilon: float, delta: float, eta: float = 0.0) -> None:
    """Check that `mu_for` has an answer. The arguments are those of `mu_for`.

    Raises:
        ValueError: ε or δ is out of range, or the sampling rate or δ is too small for this accounting.

    """
    check_privacy(epsilon, delta)
    missed = math.prod(1 - r.rate for r in plan.releases)
    if 1 - missed <= delta:
        raise ValueError(f"at this sampling rate a unit takes part with probability {1 - missed:.2g}, below delta")
    releases = sum(r.rate < 1 for r in plan.releases)
    if delta - (paid := _paid(releases, delta, eta)) < LEAST_SAMPLED_DELTA:
        least = 1.01 * (LEAST_SAMPLED_DELTA + paid)
        raise ValueError(f"with {releases} sampled releases, delta must be at least {least:.3g}, not {delta:g}")


def mu_for(plan: Plan, epsilon: float, delta: float, eta: float = 0.0) -> float:
    """The largest nominal μ of a plan with sampled releases at which its ε, at δ, is at most the given ε.

    The nominal μ is what `Plan.sigmas` divides: the μ that the plan would cost without sampling. The ε that is reached
    is at most 1e-6 (relative) below the given one. It is lower if the noise multipliers reach `LEAST_SAMPLED_SIGMA`,
    below which there is no accounting.

    eta: the total variation distance of the noise from the ideal noise. ValueError: see `check`.
    """
    check(plan, epsilon, delta, eta)
    from dpfc_cli.privacy import accounting

    def excess(interval: float) -> Callable[[float], float]:
        @functools.cache
        def log_ratio(mu: float) -> float:
            # Any small number in place of 0, which has no logarithm.
            return math.log(max(_epsilon_for(*sampled_of(plan, mu), delta, eta, interval) / epsilon, 1e-3))

        return log_ratio

    # Sampling only helps, so the μ without sampling is a first guess from below. A coarse grid is fast and gives a
    # larger ε.
    rough = _largest(excess(COARSE), accounting.mu_for(epsilon, delta, eta), 1.5)
    return _largest(excess(FINE), rough, 1.002)


def _largest(excess: Callable[[float], float], low: float, factor: float) -> float:
    """The largest μ with excess(μ) ≤ 0. The excess there is within 1e-6 of 0.

    excess: a smooth and increasing function, which may become infinite. low: a guess; the search leaves it in growing
    steps, the first one by `factor`.
    """
    while excess(low) > 0:
        low /= factor
    high = factor * low
    while excess(high) <= 0:
        factor **= 2
        low, high = high, factor * high
    while math.isinf(excess(high)):
        # At `high` there is less noise than the accounting covers. The result may be the largest μ that it covers.
        if high / low < 1 + 1e-7:
            return low
        middle = math.sqrt(low * high)
        low, high = (middle, high) if excess(middle) <= 0 else (low, middle)
    # Regula falsi in the logarithm of μ, kept inside the bracket.
    f_low, f_high = excess(low), excess(high)
    while abs(excess(low)) > 1e-6 and high / low > 1 + 1e-9:
        middle = low * (high / low) ** min(max(-f_low / (f_high - f_low) * (1 - 1e-7), 0.01), 0.99)
        value = excess(middle)
        if value <= 0:
            # The Illinois rule: the value at an end that did not move is halved. Otherwise that end might never move.
            low, f_low, f_high = middle, value, f_high / 2
        else:
            high, f_high, f_low = middle, value, f_low / 2
    return low
