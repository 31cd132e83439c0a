"""The privacy that noise gives: exact (ε, δ) for Gaussian mechanisms, and the inverse, calibration.

(ε, δ)-differential privacy limits how much one record can change the probability of any outcome: by a factor of e^ε,
and by δ in addition. A mechanism is μ-GDP (Gaussian differential privacy) if telling neighbouring data sets apart from
its output is at least as hard as telling N(0, 1) from N(μ, 1).

Releases with noise multipliers σ_r on full passes over the data compose into one Gaussian mechanism with μ² = Σ 1/σ_r²
(Dong, Roth and Su 2022, "Gaussian differential privacy", Corollary 3.3). For this mechanism

    δ(ε) = Φ(−ε/μ + μ/2) − e^ε·Φ(−ε/μ − μ/2)

holds with equality (ibid., Corollary 2.13; Balle and Wang 2018, Theorem 8). Φ is the distribution function of the
standard normal distribution. No inequality is involved, so this is the smallest ε that can be claimed. The module uses
Python alone, no arrays. So `dpfc budget` answers without loading JAX.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

Accounting = Literal["exact", "zcdp"]
"""How ε becomes noise: exactly, or by the conversion of zero-concentrated differential privacy, which takes more."""
Claim = Literal["private", "research", "non-private"]
"""What a head is said to be.

"private": it has a guarantee. "research": its noise came from a seed and can be repeated, so it claims no guarantee.
"non-private": it was trained without noise.
"""

LEAST_EPSILON, LARGEST_EPSILON = 1e-4, 100.0
LEAST_DELTA = 1e-30
"""Within these bounds the relative error of `delta_of` is at most 2e-8. A smaller ε is stated as `LEAST_EPSILON`."""
_SLACK = 1e-9
"""The relative distance from a root at which a search stops, on the private side. It is far above the error of
`delta_of`.
"""


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """(ε, δ)-differential privacy, and the μ of Gaussian differential privacy from which it was computed. eta: the
    total variation distance between the noise that is drawn and the ideal noise, over all samples of a run.
    """

    epsilon: float
    delta: float
    mu: float
    eta: float


@dataclass(frozen=True, kw_only=True)
class Attack:
    """The success of the best possible attack.

    The attacker sees what was released and guesses from which of two neighbouring data sets it came. The attacker may
    know everything else.

    Attributes:
        accuracy: the probability of a correct guess if both data sets are equally likely. Pure chance gives ½.
        power: the probability that the attacker recognises the second data set, at a given rate of false alarms. A
            false alarm is taking the first data set for the second.

    """

    accuracy: float
    power: float


def _mills(x: float) -> float:
    """Mills ratio Φ(−x)/φ(x), with a relative error of about 1e-13 for x ≥ −5."""
    # From 5 to 25 both ways are good.
    if x < 10:
        return math.sqrt(math.pi / 2) * math.erfc(x / math.sqrt(2)) * math.exp(x * x / 2)
    # Laplace's continued fraction x + 1/(x + 2/(x + 3/(x + …))) converges fast for large x.
    tail = x
    for i in range(60, 0, -1):
        tail = x + i / tail
    return 1 / tail


def delta_of(epsilon: float, mu: float) -> float:
    """δ(ε), ε ≥ 0, of a μ-GDP mechanism.

    Both terms have the common factor φ(ε/μ − μ/2), because it equals e^ε·φ(ε/μ + μ/2). What remains is a difference of
    Mills ratios. So neither a small δ nor a large ε loses digits.
    """
    if mu <= 0:
        return 0.0
    near, far = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if near < -5:
        return 0.5 * math.erfc(near / math.sqrt(2)) - math.exp(-near * near / 2) / math.sqrt(2 * math.pi) * _mills(far)
    return math.exp(-near * near / 2) / math.sqrt(2 * math.pi) * (_mills(near) - _mills(far))


def mu_for(epsilon: float, delta: float, eta: float = 0.0) -> float:
    """The largest μ with δ(ε) ≤ δ − (1 + e^ε)·η. Its relative error is about 1e-9, on the private side.

    If a mechanism is within η in total variation of an (ε, δ')-private one, it is (ε, δ' + (1 + e^ε)·η)-private. So the
    distance η is paid out of δ.

    ValueError: ε or δ is out of range (`check_privacy`), or η leaves nothing of δ.
    """
    check_privacy(epsilon, delta)
    target = delta - (1 + math.exp(epsilon)) * eta
    if target <= 0:
        raise ValueError(f"the sampler's distance eta = {eta:.3g} uses up delta = {delta:.3g} at epsilon = {epsilon:g}")
    # Any two numbers: from them on the search goes up, and then in between.
    low, high = 0.0, 1.0
    while delta_of(epsilon, high) <= target:
        low, high = high, 2 * high
    while high - low > _SLACK / 10 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(epsilon, middle) <= target else (low, middle)
    return low * (1 - _SLACK)


def epsilon_for(mu: float, delta: float, eta: float = 0.0) -> float:
    """The smallest ε ≥ 1e-4 with δ(ε) + (1 + e^ε)·η ≤ δ for a μ-GDP mechanism. 0 for μ = 0; infinity if there is none.

    Its relative error is about 1e-9, on the private side. ValueError: δ is out of range.
    """
    check_privacy(1.0, delta)
    if mu == 0:
        return 0.0

    def holds(epsilon: float) -> bool:
        return delta_of(epsilon, mu) + (1 + math.exp(epsilon)) * eta <= delta

    low, high = 0.0, LEAST_EPSILON
    while not holds(high):
        # In small steps: at a large ε the term with η dominates, and the condition holds no more.
        low, high = high, 1.1 * high
        if high > 500 or math.isinf(mu):
            return math.inf
    while low and high - low > _SLACK / 10 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high * (1 + _SLACK)


def gaussian_attack(mu: float, false_alarms: float, eta: float = 0.0) -> Attack:
    """The best attack on a μ-GDP mechanism, if its noise is within η in total variation of the ideal noise.

    Proof: by definition (Dong, Roth and Su 2022, Definition 2.6) telling the data sets apart is at least as hard as
    telling N(0, 1) from N(μ, 1). For these two distributions the most powerful test is a threshold (Neyman and
    Pearson). Its power is Φ(Φ⁻¹(α) + μ). The threshold at μ/2, where both errors are Φ(−μ/2), has the smallest sum of
    errors. With η, the probability of each event changes by at most η. So power ≤ Φ(Φ⁻¹(α + η) + μ) + η. Accuracy is a
    mean of two probabilities, so accuracy ≤ Φ(μ/2) + η. ∎

    Groups: if two data sets differ in k records, there are k steps between neighbours from one to the other. After each
    step the power is at most Φ(Φ⁻¹(·) + μ) of the power before it. So after all steps it is at most Φ(Φ⁻¹(α) + kμ).
    This is k·μ-GDP (ibid., Theorem 2.14).

    false_alarms: α, in (0, 1).
    """
    normal = NormalDist()
    accuracy = normal.cdf(mu / 2) + eta
    threshold = false_alarms + eta
    power = normal.cdf(normal.inv_cdf(threshold) + mu) + eta if threshold < 1 else 1.0
    return Attack(accuracy=min(accuracy, 1.0), power=min(power, 1.0))


def attack(epsilon: float, delta: float, false_alarms: float) -> Attack:
    """The best attack on an (ε, δ)-private mechanism, if nothing else is known about it.

    Proof: the error probabilities α and β of any test satisfy α + e^ε·β ≥ 1 − δ and e^ε·α + β ≥ 1 − δ (Kairouz, Oh and
    Viswanath 2015, "The composition theorem for differential privacy"). The sum of both gives
    α + β ≥ 2(1 − δ)/(1 + e^ε), and accuracy is 1 − (α + β)/2. Each of the two alone bounds the power 1 − β. ∎

    false_alarms: α, in (0, 1).
    """
    odds = math.exp(epsilon)
    power = min(odds * false_alarms + delta, 1 - (1 - delta - false_alarms) / odds)
    return Attack(accuracy=(odds + delta) / (1 + odds), power=min(power, 1.0))


def zcdp_epsilon(mu: float, delta: float) -> float:
    """The ε that the zCDP conversion gives: ρ + 2√(ρ·ln(1/δ)) with ρ = μ²/2 (Bun and Steinke 2016, Proposition 1.3).

    It is an upper bound (`zcdp_mu` makes noise by it), never what is claimed.
    """
    rho = mu * mu / 2
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def zcdp_mu(epsilon: float, delta: float) -> float:
    """The μ at which `zcdp_epsilon` is ε. It is below `mu_for`, because the exact ε at this μ is less than ε."""
    log = math.log(1 / delta)
    return math.sqrt(2) * (math.sqrt(log + epsilon) - math.sqrt(log))


def mu_of_sigma(sigma: float, releases: int) -> float:
    """The μ of `releases` equal releases with noise multiplier σ."""
    return math.sqrt(releases) / sigma


DEFAULT_DELTA = "Default: 1e-5, or 1e5/n² if n, the number of records or persons, is above 100,000."


def default_delta(n: int) -> float:
    """min(1e-5, 1e5/n²).

    δ would also allow a mechanism that publishes each record with probability δ: n·δ of them on average. Up to 100,000
    records δ is that of the paper, and n·δ ≤ 1. Above, n·δ = 1e5/n becomes ever smaller. At 1/n it would stay at 1.
    """
    return min(1e-5, 1e5 / n**2)


def check_privacy(epsilon: float, delta: float) -> None:
    """ValueError unless 1e-4 ≤ ε ≤ 100 and 1e-30 ≤ δ < 1."""
    if not LEAST_EPSILON <= epsilon <= LARGEST_EPSILON:
        raise ValueError(f"epsilon must lie between {LEAST_EPSILON:g} and {LARGEST_EPSILON:g}, not at {epsilon:g}")
    if not LEAST_DELTA <= delta < 1:
        raise ValueError(f"delta must lie between {LEAST_DELTA:g} and 1, not at {delta:g}")


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The privacy that is asked for: ε or a noise multiplier, at δ; or neither, which means no noise.

    epsilon: ε. noise_multiplier: σ of each release, if all releases had the same. delta: δ; None: `default_delta`.
    allow_large_delta: accept a δ above 1/n. seed: reproducible noise for research, which protects nothing. accounting:
    how ε becomes noise; what is spent is computed exactly.
    """

    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float | None = None
    allow_large_delta: bool = False
    seed: int | None = None
    accounting: Accounting = "exact"

    @property
    def claim(self) -> Claim:
        if self.epsilon is None and self.noise_multiplier is None:
            return "non-private"
        return "private" if self.seed is None else "research"
