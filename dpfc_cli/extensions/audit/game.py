"""The game of an audit, and the lower bounds that its outcomes prove."""

import math
from dataclasses import dataclass
from statistics import NormalDist

from scipy.optimize import brentq
from scipy.special import betaincinv

from dpfc_cli.extensions.audit.signals import Signals

FALSE_ALARM = 1e-4
"""An upper bound on the probability that a method with a true claim is called violated."""
MAIN_SHARE = 0.9
"""The fraction of the error probability for all releases together. The other statistics divide the rest."""
LEAST_MU, LARGEST_MU = 1e-3, 1e3
"""The bounds on μ of sampled releases that are looked for."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result of a statistic: in `wins` of `runs` pairs it was larger with the first canary, which is a right guess.

    share: the fraction of the error probability that it gets. claimed: the releases that it sees, with the noise that
    they should have. reachable: the same with the signals that the canaries really give.
    """

    statistic: str
    wins: int
    runs: int
    share: float
    claimed: Signals
    reachable: Signals

    def refutes(self, error: float) -> bool:
        """Whether there are more right guesses than the claim allows. error: the probability that this is said of a
        true claim.
        """
        return at_least(self.wins, self.runs, error) > self.claimed.right

    def least(self, error: float) -> float:
        """The lower bound on `claimed.mu`. error: the probability that it is too large."""
        if not self.claimed.sampled:
            return lower_mu(self.wins, self.runs, error)
        right = at_least(self.wins, self.runs, error)
        return _smallest(self.claimed, right) if 2 * right > 1 else 0.0


def _smallest(claimed: Signals, right: float) -> float:
    """The smallest μ at which releases with these rates allow so many right guesses, or a little less."""
    low = high = claimed.mu
    while claimed.named(high).right < right:
        low, high = high, 2 * high
        if high > LARGEST_MU:
            return low
    while claimed.named(low).right >= right:
        low, high = low / 2, low
        if low < LEAST_MU:
            return 0.0
    error = 1e-4 * low
    return max(low, float(brentq(lambda mu: claimed.named(mu).right - right, low, high, xtol=error)) - 2 * error)


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A lower bound on μ, what follows for ε at the δ of the claim, and the statistic that reached it."""

    epsilon: float
    mu: float
    statistic: str
    runs: int


def at_least(wins: int, runs: int, error: float) -> float:
    """The lower bound of Clopper and Pearson on a probability. error: the probability that it is too large."""
    return float(betaincinv(wins, runs - wins + 1, error)) if wins else 0.0


def lower_mu(wins: int, runs: int, error: float) -> float:
    """The lower bound on μ that `wins` right guesses in `runs` comparisons prove.

    It is √2·Φ⁻¹ of the Clopper-Pearson lower bound on the probability of a right guess. It is 0 if the guesses are no
    better than chance. error: the probability that it is too large.
    """
    right = at_least(wins, runs, error) if 2 * wins > runs else 0.0
    return math.sqrt(2) * NormalDist().inv_cdf(right) if 2 * right > 1 else 0.0


def least_runs(claimed: Signals, share: float = MAIN_SHARE) -> int:
    """The smallest number of pairs that could refute a claim, if all guesses were right. share: as of `Comparison`."""
    wrong = 1 - claimed.right if claimed.sampled else math.erfc(claimed.mu / 2) / 2
    return math.floor(math.log(share * FALSE_ALARM / 2) / math.log1p(-wrong)) + 1


def refuted(found: list[Comparison], error: float) -> list[str]:
    """The statistics that refute the noise of the releases that they see. None of them does so by chance, with
    probability 1 − error.
    """
    return [each.statistic for each in found if each.refutes(each.share * error)]


def bound(found: list[Comparison], error: float, delta: float) -> Bound:
    """The comparison with the largest bound on μ, as one on ε at δ. It holds for all together but with `error`."""
    bounds = [each.least(each.share * error) for each in found]
    mu, best = max(zip(bounds, found, strict=True), key=lambda pair: pair[0])
    epsilon = best.claimed.named(mu).epsilon(delta) if mu else 0.0
    return Bound(epsilon=epsilon, mu=mu, statistic=best.statistic, runs=best.runs)
