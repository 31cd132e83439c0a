"""What noise is worth: exact (ε, δ) for Gaussian mechanisms, and calibration.

Releases with noise multipliers σ_r on full passes over the data compose into one Gaussian mechanism with μ² = Σ 1/σ_r²
(Dong, Roth and Su 2022, "Gaussian differential privacy", Corollary 3.3), for which

    δ(ε) = Φ(−ε/μ + μ/2) − e^ε·Φ(−ε/μ − μ/2)

holds with equality (ibid., Corollary 2.13; Balle and Wang 2018, Theorem 8). Nothing is bounded away: this is the
smallest ε that can be claimed. Python only, no arrays: `dpfc budget` answers without loading JAX.
"""

import math
from dataclasses import dataclass

LARGEST_EPSILON = 100.0
_SLACK = 1e-9
"""Relative distance kept to the private side of a root, far above the error of `delta_of`."""


@dataclass(frozen=True)
class Guarantee:
    """(ε, δ)-differential privacy, and the μ of Gaussian DP that it was computed from.

    eta: distance in total variation between the noise that is drawn and the ideal one, over all samples of a run.
    """

    epsilon: float
    delta: float
    mu: float
    eta: float = 0.0


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


def epsilon_for(mu: float, delta: float) -> float:
    """The smallest ε with δ(ε) ≤ δ for a μ-GDP mechanism; errs on the private side by about 1e-9 relative. inf for μ =
    inf.
    """
    if math.isinf(mu):
        return math.inf
    if delta_of(0.0, mu) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while delta_of(high, mu) > delta:
        low, high = high, 2 * high
    while high - low > _SLACK / 10 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if delta_of(middle, mu) <= delta else (middle, high)
    return high * (1 + _SLACK)


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
    """ValueError unless 0 < ε ≤ 100 and 0 < δ < 1."""
    if not 0 < epsilon <= LARGEST_EPSILON:
        raise ValueError(f"epsilon must lie in (0, {LARGEST_EPSILON:g}], not {epsilon:g}")
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie in (0, 1), not {delta:g}")
