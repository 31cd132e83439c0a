"""Whether the probabilities of a head can be believed: of the records with a probability near p, is p right?

The probabilities are the softmax of the scores. The softmax loss takes them for that. Other losses do not: the scores
of `dp-ls` lie near 0 and 1, so their softmax is near 1/m, and this says so.

Records are sorted by the probability of their best class into `BINS` bins of equal width. The *expected calibration
error* (Naeini et al. 2015) is the mean over the records of |mean probability − fraction right| of their bin. It is
never 0 for few records: a head that is right with exactly its probability has some, too, because of chance. Its
expected value is given beside it, with the normal approximation: E|X| = √(2/π)·s for X of mean 0 and deviation s, and
s² = Σp(1 − p) is the variance of the number of right records of a bin.
"""

import math
from dataclasses import dataclass

import numpy as np

from dpfc_cli.heads.metrics import Interval, wilson

BINS = 10
"""Of the probability of the best class. A bin has its upper end and not its lower one."""


@dataclass(frozen=True, kw_only=True)
class Bin:
    """Records whose best class has a probability in (low, high].

    n: how many. probability: the mean probability of their best class; right: the fraction of which it is the label;
    interval: the 95 % Wilson interval of `right`. None where there are no records.
    """

    low: float
    high: float
    n: int
    probability: float | None
    right: float | None
    interval: Interval | None


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Whether probabilities are right.

    probability: the mean probability of the best class, over all records. error: the expected calibration error, and
    by_chance: that of a head whose probabilities are right, of as many records. bins: from low to high.
    """

    probability: float
    error: float
    by_chance: float
    bins: tuple[Bin, ...]


def calibration(probabilities: np.ndarray, right: np.ndarray) -> Calibration:
    """Of at least one record.

    Args:
        probabilities: (n,), of the best class of each record.
        right: (n,), whether that class is the label.

    """
    p, n = np.asarray(probabilities, np.float64), len(probabilities)
    index = np.clip(np.ceil(p * BINS).astype(int) - 1, 0, BINS - 1)
    rows, sums, hits, spread = (
        np.bincount(index, weights, BINS) for weights in (None, p, np.asarray(right, np.float64), p * (1 - p))
    )
    return Calibration(
        probability=float(p.mean()),
        error=float(np.abs(sums - hits).sum() / n),
        by_chance=float(math.sqrt(2 / math.pi) * np.sqrt(spread).sum() / n),
        bins=tuple(_bin(i, int(rows[i]), float(sums[i]), int(hits[i])) for i in range(BINS)),
    )


def _bin(i: int, n: int, total: float, hits: int) -> Bin:
    empty = n == 0
    return Bin(
        low=i / BINS,
        high=(i + 1) / BINS,
        n=n,
        probability=None if empty else total / n,
        right=None if empty else hits / n,
        interval=None if empty else wilson(hits, n),
    )
