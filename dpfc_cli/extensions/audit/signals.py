"""What an attacker can gain at most from Gaussian releases, on all units or on Poisson samples of them.

The attacker's view of one release is a normal number with variance 1. Its mean is 0 if the canary does not take part,
and at most a = 1/σ if it does. It takes part with probability q. So one data set gives the distribution
P = (1 − q)·N(0, 1) + q·N(a, 1), and the other one gives Q = N(0, 1). Several releases give products of these.

**Theorem.** If a mechanism is calibrated to noise multipliers σ and rates q as `privacy.poisson` accounts for them, no
guess in the game of `game` is right more often than `Signals.right` says.

Proof: (P, Q) dominates the Poisson-subsampled Gaussian mechanism for the removal of a unit, and (Q, P) for its
addition. Products of dominating pairs dominate the adaptive composition (Zhu, Dong and Wang 2022, "Optimal accounting
of differential privacy via characteristic function", the theorems on composition and on Poisson sampling). Write P* and
Q* for the products over all releases. The game shows either (with, without) or (without, with). So it is a test between
two compositions, and it is dominated by the test between P*×Q* and Q*×P*. If both cases are equally likely, no test is
right more often than ½ + ½·TV(P*×Q*, Q*×P*). The test of Neyman and Pearson reaches this: it says "with, without" if
D = ℓ(x) − ℓ(y) > 0, where ℓ is the logarithm of the likelihood ratio P*/Q*. D is also the logarithm of the
likelihood ratio of the two products, so the total variation distance is E[max(0, 1 − e^−D)] for x ~ P*, y ~ Q*. ∎

The distribution of D is computed on a grid. ℓ is rounded up for x and down for y, and what lies beyond the
grid counts as a right guess. So the result is an upper bound, and what an audit concludes from it errs on the safe
side. Sums of independent values are convolutions. This code shares nothing with dp_accounting, which the
claims rely on.
"""

import functools
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Self

import numpy as np
from scipy.special import ndtr

from dpfc_cli.privacy import accounting, poisson
from dpfc_cli.privacy.oracle import Mechanism

POINTS = 1 << 17
"""Of the grid for D."""
_TAIL = 8.5
"""Standard deviations. What lies beyond has a probability below 1e-16."""
_ROUNDING = 1e-12
"""More than the error of the convolutions in float64."""


@dataclass(frozen=True)
class Signals:
    """Releases as an attacker sees them.

    each: for each release a, the distance between with and without in standard deviations of the noise, and the rate q
    at which units take part.
    """

    each: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, mechanism: Mechanism, sizes: Iterable[float] | None = None, own: Iterable[int] | None = None) -> Self:
        """The releases of a mechanism. sizes: a for each; None for the largest that the noise allows, 1/σ. own: which
        releases; None for all.
        """
        given = [1 / sigma for sigma in mechanism.sigmas] if sizes is None else list(map(float, sizes))
        rates = [release.rate for release in mechanism.plan.releases]
        return cls(tuple((given[r], rates[r]) for r in (range(len(rates)) if own is None else own)))

    @property
    def mu(self) -> float:
        """√Σ a². If all units take part, the releases are μ-GDP with this μ. Otherwise it only names the noise."""
        return math.sqrt(math.fsum(a * a for a, _ in self.each))

    @property
    def sampled(self) -> bool:
        return any(q < 1 for _, q in self.each)

    def named(self, mu: float) -> "Signals":
        """The same rates with noise in the same proportions, such that `mu` is this number."""
        return Signals(tuple((a * mu / self.mu, q) for a, q in self.each))

    @functools.cached_property
    def right(self) -> float:
        """The largest probability of a right guess."""
        if not self.sampled:
            return NormalDist().cdf(self.mu / math.sqrt(2))
        margin = _margin(self)
        variation = float((margin.masses * np.maximum(-np.expm1(-margin.values), 0.0)).sum()) + margin.beyond
        return min((1 + variation) / 2 + _ROUNDING, 1.0)

    def epsilon(self, delta: float) -> float:
        """ε at δ, as a claim would state it; 0 if it is below all that are stated."""
        if not self.sampled:
            found = accounting.epsilon_for(self.mu, delta)
        else:
            counted = Counter((1 / a, q) for a, q in self.each if a > 0)
            mechanisms = [poisson.Sampled(sigma=s, rate=q, times=t) for (s, q), t in counted.items() if q < 1]
            full = math.sqrt(math.fsum(a * a for a, q in self.each if q == 1))
            found = poisson.epsilon_for(mechanisms, full, delta) if mechanisms or full else 0.0
        # The least ε that is stated may stand for less.
        return found if found > 1.001 * accounting.LEAST_EPSILON else 0.0


@dataclass(frozen=True)
class _Loss:
    """The distribution of a loss: `masses` at (low + i)·step, and the mass beyond all of them."""

    low: int
    masses: np.ndarray
    step: float
    beyond: float

    @property
    def values(self) -> np.ndarray:
        return (self.low + np.arange(len(self.masses))) * self.step

    @property
    def mirrored(self) -> "_Loss":
        return _Loss(-(self.low + len(self.masses) - 1), self.masses[::-1], self.step, self.beyond)


def _margin(signals: Signals) -> _Loss:
    """The distribution of D."""
    counted = Counter(signals.each)
    ranges = {(a, q): _ends(a, q) for a, q in counted}
    step = 2 * sum(times * (ranges[each][1] - ranges[each][0]) for each, times in counted.items()) / POINTS
    parts = []
    for (a, q), times in counted.items():
        parts.append((_loss(a, q, *ranges[a, q], step, up=True), times))
        parts.append((_loss(a, q, *ranges[a, q], step, up=False).mirrored, times))
    return _sum(parts)


def _ends(a: float, q: float) -> tuple[float, float]:
    """The loss at either end of the numbers that matter."""
    return tuple(_log_ratio(np.array([-_TAIL, _TAIL + a]), a, q))


def _log_ratio(x: np.ndarray, a: float, q: float) -> np.ndarray:
    """log(P/Q) at x."""
    shift = a * x - a * a / 2
    return shift if q == 1 else np.logaddexp(math.log1p(-q), math.log(q) + shift)


def _loss(a: float, q: float, lowest: float, highest: float, step: float, up: bool) -> _Loss:
    """The distribution of ℓ for one release. up: of x ~ P, rounded up. Otherwise of y ~ Q, rounded down."""
    low, high = math.floor(lowest / step), math.ceil(highest / step)
    # The x at which the loss is low·step, …, high·step. The first one stands for −∞, and losses are rounded from there.
    odds = (np.exp(np.arange(low, high + 1) * step) - (1 - q)) / q
    with np.errstate(divide="ignore", invalid="ignore"):
        x = np.where(odds > 0, (np.log(odds) + a * a / 2) / a, -np.inf)
    if up:
        below = (1 - q) * ndtr(x) + q * ndtr(x - a)
        below[0] = 0.0
        return _Loss(low + 1, np.diff(below), step, 1 - below[-1])
    below = ndtr(x)
    below[0] = 0.0
    return _Loss(low, np.append(np.diff(below), 1 - below[-1])[: high - low + 1], step, 0.0)


def _sum(parts: list[tuple[_Loss, int]]) -> _Loss:
    """The distribution of a sum of independent losses, each `times` times."""
    length = sum(times * (len(loss.masses) - 1) for loss, times in parts) + 1
    size = 1 << (length - 1).bit_length()
    spectrum = np.ones(size // 2 + 1, np.complex128)
    for loss, times in parts:
        spectrum = spectrum * np.fft.rfft(loss.masses, size) ** times
    masses = np.maximum(np.fft.irfft(spectrum, size)[:length], 0.0)
    within = math.prod((1 - loss.beyond) ** times for loss, times in parts)
    return _Loss(sum(times * loss.low for loss, times in parts), masses, parts[0][0].step, 1 - within)
