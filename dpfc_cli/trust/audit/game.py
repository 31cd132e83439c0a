"""The game of an audit: pairs of runs, and the lower bound that right guesses prove."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from dpfc_cli.privacy.accounting import LEAST_EPSILON, delta_of, epsilon_for

FALSE_ALARM = 1e-4
"""An upper bound on the probability that a method with a true claim is called violated."""
WHOLE_SHARE = 1.0
"""The fraction of the error probability for the one statistic of whole trainings."""
MAIN_SHARE = 0.9
"""The fraction of the error probability for the sum of all releases. The other statistics divide the rest."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result of a statistic: in `wins` of `runs` pairs it was larger with the canary.

    Attributes:
        statistic: its name.
        wins: the number of right guesses.
        runs: the number of pairs.
        share: the fraction of the error probability that it gets.

    """

    statistic: str
    wins: int
    runs: int
    share: float


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A lower bound on μ, and the lower bound on ε that follows at the δ of the claim.

    Attributes:
        epsilon: ε.
        mu: μ.
        statistic: the statistic that reached it.
        runs: the number of pairs of that statistic.

    """

    epsilon: float
    mu: float
    statistic: str
    runs: int


def lower_mu(wins: int, runs: int, error: float) -> float:
    """The lower bound on μ that `wins` right guesses in `runs` comparisons prove.

    It is √2·Φ⁻¹ of the Clopper-Pearson lower bound on the probability of a right guess. It is 0 if the guesses are no
    better than chance.

    Args:
        wins: the number of right guesses.
        runs: the number of comparisons.
        error: the probability that the bound is too large.

    """
    if 2 * wins <= runs:
        return 0.0
    successes = np.arange(wins, runs + 1)
    ways = [math.lgamma(runs + 1) - math.lgamma(k + 1) - math.lgamma(runs - k + 1) for k in range(wins, runs + 1)]

    def at_least(p: float) -> float:
        return float(np.exp(np.array(ways) + successes * math.log(p) + (runs - successes) * math.log1p(-p)).sum())

    low, high = 0.5, wins / runs
    if at_least(low) >= error:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if middle < 1 and at_least(middle) < error else (low, middle)
    return math.sqrt(2) * NormalDist().inv_cdf(low)


def least_runs(mu: float, share: float = MAIN_SHARE) -> int:
    """The smallest number of pairs that could refute a claim of μ. With fewer pairs not even right guesses alone could
    do it. share: the fraction of the error probability that their statistic gets.
    """
    wrong = math.erfc(mu / 2) / 2
    return math.floor(math.log(share * FALSE_ALARM / 2) / math.log1p(-wrong)) + 1


def strongest(comparisons: list[Comparison], error: float) -> tuple[float, Comparison]:
    """The largest lower bound on μ, and the comparison that gives it.

    The bound is valid with probability 1 − error for all statistics together.
    """
    bounds = [lower_mu(c.wins, c.runs, c.share * error) for c in comparisons]
    best = int(np.argmax(bounds))
    return bounds[best], comparisons[best]


def bound(comparisons: list[Comparison], error: float, delta: float) -> Bound:
    mu, best = strongest(comparisons, error)
    # `epsilon_for` never returns less than `LEAST_EPSILON`. For a lower bound this would be too much.
    epsilon = epsilon_for(mu, delta) if delta_of(LEAST_EPSILON, mu) > delta else 0.0
    return Bound(epsilon=epsilon, mu=mu, statistic=best.statistic, runs=best.runs)
