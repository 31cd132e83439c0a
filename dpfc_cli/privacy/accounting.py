"""What noise is worth: exact (ε, δ) for Gaussian mechanisms, and calibration.

Releases with noise multipliers σ_r on full passes over the data compose into one Gaussian mechanism with μ² = Σ 1/σ_r²
(Dong, Roth and Su 2022, "Gaussian differential privacy", Corollary 3.3), for which

    δ(ε) = Φ(−ε/μ + μ/2) − e^ε·Φ(−ε/μ − μ/2)

holds with equality (ibid., Corollary 2.13; Balle and Wang 2018, Theorem 8). Nothing is bounded away: this is the
smallest ε that can be claimed. Python only, no arrays: `dpfc budget` answers without loading JAX.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

Claim = Literal["private", "research", "non-private"]
"""What a head is said to be: under a guarantee; with noise that a seed repeats, which claims none; without noise."""

LEAST_EPSILON, LARGEST_EPSILON = 1e-4, 100.0
LEAST_DELTA = 1e-30
"""Within these bounds `delta_of` is accurate to 1e-8 relative; a smaller ε is stated as `LEAST_EPSILON`."""
_SLACK = 1e-9
"""Relative distance kept to the private side of a root, far above the error of `delta_of`."""


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """(ε, δ)-differential privacy, and the μ of Gaussian DP that it was computed from.

    eta: distance in total variation between the noise that is drawn and the ideal one, over all samples of a run.
    """

    epsilon: float
    delta: float
    mu: float
    eta: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Attack:
    """The best that anyone can do who looks at what was released and guesses which of two neighbouring data sets it
    came from, whatever else they know.

    accuracy: how often they are right where both are equally likely; chance is ½. power: how often they recognise the
    second data set if they may take the first for it at a given rate (false alarms).
    """

    accuracy: float
    power: float


def _mills(x: float) -> float:
    """Φ(−x)/φ(x), to about 1e-13 relative for x ≥ −5."""
    if x < 10:
        return math.sqrt(math.pi / 2) * math.erfc(x / math.sqrt(2)) * math.exp(x * x / 2)
    # Laplace's continued fraction x + 1/(x + 2/(x + 3/(x + …))) converges fast out here.
    tail = x
    for i in range(60, 0, -1):
        tail = x + i / tail
    return 1 / tail


def delta_of(epsilon: float, mu: float) -> float:
    """δ(ε) of a μ-GDP mechanism.

    Both terms share the factor φ(ε/μ − μ/2), since e^ε·φ(ε/μ + μ/2) equals it; what is left is a difference of Mills
    ratios, so that neither a small δ nor a large ε loses digits.
    """
    if mu <= 0:
        return 0.0
    near, far = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if near < -5:
        return 0.5 * math.erfc(near / math.sqrt(2)) - math.exp(-near * near / 2) / math.sqrt(2 * math.pi) * _mills(far)
    return math.exp(-near * near / 2) / math.sqrt(2 * math.pi) * (_mills(near) - _mills(far))


def mu_for(epsilon: float, delta: float, eta: float = 0.0) -> float:
    """The largest μ whose δ(ε) stays within δ − (1 + e^ε)·η; errs on the private side by about 1e-9 relative.

    A mechanism within η in total variation of an (ε, δ')-private one is (ε, δ' + (1 + e^ε)·η)-private. ValueError where
    ε or δ is out of range or η leaves nothing.
    """
    check_privacy(epsilon, delta)
    target = delta - (1 + math.exp(epsilon)) * eta
    if target <= 0:
        raise ValueError(f"the sampler's distance eta = {eta:.3g} uses up delta = {delta:.3g} at epsilon = {epsilon:g}")
    low, high = 0.0, 1.0
    while delta_of(epsilon, high) <= target:
        low, high = high, 2 * high
    while high - low > _SLACK / 10 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(epsilon, middle) <= target else (low, middle)
    return low * (1 - _SLACK)


def epsilon_for(mu: float, delta: float, eta: float = 0.0) -> float:
    """The smallest ε ≥ 1e-4 with δ(ε) + (1 + e^ε)·η ≤ δ for a μ-GDP mechanism; errs on the private side by about 1e-9
    relative. inf where there is none, 0 for μ = 0. ValueError where δ is out of range.
    """
    check_privacy(1.0, delta)
    if mu == 0:
        return 0.0

    def holds(epsilon: float) -> bool:
        return delta_of(epsilon, mu) + (1 + math.exp(epsilon)) * eta <= delta

    low, high = 0.0, LEAST_EPSILON
    while not holds(high):
        # In small steps, for at a large ε the sampler's distance takes over, and nothing holds any more.
        low, high = high, 1.1 * high
        if high > 500 or math.isinf(mu):
            return math.inf
    while low and high - low > _SLACK / 10 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high * (1 + _SLACK)


def gaussian_attack(mu: float, false_alarms: float, eta: float = 0.0) -> Attack:
    """The best attack on a μ-GDP mechanism that is realised within η in total variation. false_alarms: α in (0, 1).

    Proof: by definition (Dong, Roth and Su 2022, Definition 2.6) telling the data sets apart is as hard as telling
    N(0, 1) from N(μ, 1). There the most powerful test is a threshold (Neyman and Pearson), of power Φ(Φ⁻¹(α) + μ), and
    the one at μ/2, with both errors Φ(−μ/2), has the least sum of errors. With η each probability of an event moves
    by at most η: power ≤ Φ(Φ⁻¹(α + η) + μ) + η, and accuracy, a mean of two, ≤ Φ(μ/2) + η. ∎

    Groups: k records apart means k steps between neighbours. After each the power is at most Φ(Φ⁻¹(·) + μ) of what it
    was, hence Φ(Φ⁻¹(α) + kμ) after all: k·μ-GDP (ibid., Theorem 2.14).
    """
    normal = NormalDist()
    accuracy = normal.cdf(mu / 2) + eta
    threshold = false_alarms + eta
    power = normal.cdf(normal.inv_cdf(threshold) + mu) + eta if threshold < 1 else 1.0
    return Attack(accuracy=min(accuracy, 1.0), power=min(power, 1.0))


def attack(epsilon: float, delta: float, false_alarms: float) -> Attack:
    """The best attack on an (ε, δ)-private mechanism of which nothing else is known. false_alarms: α in (0, 1).

    Proof: the errors α and β of any test have α + e^ε·β ≥ 1 − δ and e^ε·α + β ≥ 1 − δ (Kairouz, Oh and Viswanath 2015,
    "The composition theorem for differential privacy"). Added up they say α + β ≥ 2(1 − δ)/(1 + e^ε), and accuracy is
    1 − (α + β)/2; each alone bounds the power 1 − β. ∎
    """
    odds = math.exp(epsilon)
    power = min(odds * false_alarms + delta, 1 - (1 - delta - false_alarms) / odds)
    return Attack(accuracy=(odds + delta) / (1 + odds), power=min(power, 1.0))


def zcdp_epsilon(mu: float, delta: float) -> float:
    """The paper's conversion, ρ + 2√(ρ·ln(1/δ)) with ρ = μ²/2 (Bun and Steinke 2016, Proposition 1.3): an upper bound,
    for comparison.
    """
    rho = mu * mu / 2
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def zcdp_mu(epsilon: float, delta: float) -> float:
    """The μ at which `zcdp_epsilon` is ε."""
    log = math.log(1 / delta)
    return math.sqrt(2) * (math.sqrt(log + epsilon) - math.sqrt(log))


def mu_of_sigma(sigma: float, releases: int) -> float:
    """μ of `releases` equal releases at noise multiplier σ."""
    return math.sqrt(releases) / sigma


def default_delta(n: int) -> float:
    """min(1e-5, 1/n)."""
    return min(1e-5, 1 / n)


def check_privacy(epsilon: float, delta: float) -> None:
    """ValueError unless 1e-4 ≤ ε ≤ 100 and 1e-30 ≤ δ < 1."""
    if not LEAST_EPSILON <= epsilon <= LARGEST_EPSILON:
        raise ValueError(f"epsilon must lie between {LEAST_EPSILON:g} and {LARGEST_EPSILON:g}, not at {epsilon:g}")
    if not LEAST_DELTA <= delta < 1:
        raise ValueError(f"delta must lie between {LEAST_DELTA:g} and 1, not at {delta:g}")
