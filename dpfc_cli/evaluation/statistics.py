"""How sure figures are: whether probabilities can be believed, how well a class is told from the rest, and by how much
one of two heads is better.

**Calibration.** Of the records with a probability near p, is p right?
The probabilities are the softmax of the scores. The softmax loss takes them for that. Other losses do not: the scores
of `dp-ls` lie near 0 and 1, so their softmax is near 1/m, and this says so.

Records are sorted by the probability of their best class into `BINS` bins of equal width. The *expected calibration
error* (Naeini et al. 2015) is the mean over the records of |mean probability − fraction right| of their bin. It is
never 0 for few records: a head that is right with exactly its probability has some, too, because of chance. Its
expected value is given beside it, with the normal approximation: E|X| = √(2/π)·s for X of mean 0 and deviation s, and
s² = Σp(1 − p) is the variance of the number of right records of a bin.

**Two heads on the same records.** Their figures go up and down together, with the records. So only the records count of
which one head is right and the other is wrong. With b records of which only the first is right, c of which only the
second is, and n in all, the difference is (b − c)/n. Its interval is that of Tango (1998, "Equivalence test and
confidence interval for the difference in proportions for the paired-sample design"): all differences that the score
test does not reject. It is to pairs what Wilson's interval is to one head. It has 0 outside if and only if McNemar's
test (without a correction for continuity) says that the heads differ. Unlike the normal interval it is sound for few
records, and it has a width where the heads never differ. Each interval is for one pair: of twenty, one misses the
truth.

**The area under the ROC curve** (AUROC) is the probability that a record of a class stands higher than one of the rest.
Its interval is that of Newcombe (2006, "Confidence intervals for an effect size measure based on the Mann-Whitney
statistic", part 2, method 5): all values that the score test does not reject, with the variance of Hanley and McNeil
(1982) for as many records of either kind. It depends on the value and the two counts alone, and it has a width also
where the classes are told apart without an error. Noise in the value adds to that variance.

**Means over classes.** The figures of single labels on the records of each class are independent, so the distances from
a figure to the ends of its interval add up in squares (Zou and Donner 2008). Where classes share records, nothing is
known of how their figures go together, and the distances are averaged: no correlation makes a mean vary more.

All of this takes records as drawn independently. If they are not, n of them tell as much as a *share* of n.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dpfc_cli.heads.metrics import Interval, Z, wilson


@dataclass(frozen=True)
class Measure:
    """A value with its 95 % interval."""

    value: float
    interval: Interval


BINS = 10
"""Of the probability of the best class. A bin has its upper end and not its lower one."""


@dataclass(frozen=True, kw_only=True)
class Bin:
    """Records whose best class has a probability in (low, high].

    n: how many. probability: the mean probability of their best class; right: the fraction of which it is the label;
    interval: the 95 % interval of `right`. None where there are no records.
    """

    low: float
    high: float
    n: int
    probability: float | None
    right: float | None
    interval: tuple[float, float] | None


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Whether probabilities are right.

    probability: the mean probability of the best class, over all records. error: the expected calibration error, and
    by_chance: that of a head whose probabilities are right, of as many records. bins: from low to high.
    """

    probability: float
    error: float
    by_chance: float
    bins: tuple[Bin, ...] = field(repr=False)


def calibration(probabilities: np.ndarray, right: np.ndarray, share: float = 1.0) -> Calibration:
    """Of at least one record. probabilities: (n,), of the best class of each. right: (n,), whether it is the label."""
    p, n = np.asarray(probabilities, np.float64), len(probabilities)
    index = np.clip(np.ceil(p * BINS).astype(int) - 1, 0, BINS - 1)
    rows, sums, hits, spread = (
        np.bincount(index, weights, BINS) for weights in (None, p, np.asarray(right, np.float64), p * (1 - p))
    )
    return Calibration(
        probability=float(p.mean()),
        error=float(np.abs(sums - hits).sum() / n),
        by_chance=float(math.sqrt(2 / math.pi / share) * np.sqrt(spread).sum() / n),
        bins=tuple(_bin(i, int(rows[i]), float(sums[i]), int(hits[i]), share) for i in range(BINS)),
    )


def _bin(i: int, n: int, total: float, hits: int, share: float) -> Bin:
    empty = n == 0
    return Bin(
        low=i / BINS,
        high=(i + 1) / BINS,
        n=n,
        probability=None if empty else total / n,
        right=None if empty else hits / n,
        interval=None if empty else wilson(hits, n, share),
    )


_HALVINGS = 60


@dataclass(frozen=True, kw_only=True)
class Difference:
    """By how much a head is better than another one, on records that both were scored on.

    gain: the difference of their top-1 accuracies. interval: its 95 % interval. only_this, only_other: records of which
    only one of them is right.
    """

    gain: float
    interval: Interval
    only_this: int
    only_other: int


def difference(only_this: int, only_other: int, n: int, share: float = 1.0) -> Difference:
    """Of n records, at least one."""
    interval = tango(*(share * each for each in (only_this, only_other, n)))
    return Difference(gain=(only_this - only_other) / n, interval=interval, only_this=only_this, only_other=only_other)


def tango(first: float, second: float, n: float) -> Interval:
    """The 95 % interval of the difference of two probabilities, within [−1, 1], by Tango's score test on n paired
    records: of `first` only the first head is right, and of `second` only the second.
    """
    return _lower(first, second, n), -_lower(second, first, n)


def _lower(b: float, c: float, n: float) -> float:
    """The smallest difference that is not rejected: below (b − c)/n the test rejects all up to it."""
    return _end((b - c) / n, -1.0, lambda gain: _far(b, c, n, gain))


def _end(held: float, rejected: float, far: Callable[[float], bool]) -> float:
    """Of the values from one that is held to one that is rejected, the last that a test does not reject."""
    for _ in range(_HALVINGS):
        middle = (rejected + held) / 2
        if far(middle):
            rejected = middle
        else:
            held = middle
    return held


def _far(b: float, c: float, n: float, gain: float) -> bool:
    """Whether what was observed lies more than Z standard deviations from this difference.

    The deviation is that of the most likely probability q that only the second is right, among those with this
    difference: the larger root of 2n·q² + ((2n − b + c)·gain − b − c)·q − c·gain·(1 − gain) = 0.
    """
    linear = (2 * n - b + c) * gain - b - c
    q = (math.sqrt(max(linear**2 + 8 * n * c * gain * (1 - gain), 0.0)) - linear) / (4 * n)
    variance = n * max(2 * q + gain * (1 - gain), 0.0)
    return (b - c - n * gain) ** 2 > Z**2 * variance


def auroc_interval(value: float, positives: float, negatives: float, noise: float = 0.0) -> Interval:
    """The 95 % interval of an AUROC of so many records of a class and of the rest. noise: the standard deviation of
    what was added to the value.
    """
    if min(positives, negatives) <= 0:
        return 0.0, 1.0
    more = (positives + negatives) / 2 - 1

    def far(at: float) -> bool:
        pairs = 1 + more * ((1 - at) / (2 - at) + at / (1 + at))
        return (value - at) ** 2 > Z**2 * (at * (1 - at) * pairs / (positives * negatives) + noise**2)

    return _end(value, 0.0, far), _end(value, 1.0, far)


def fraction_interval(value: float, n: float, noise: float) -> Interval:
    """The 95 % interval of a fraction of n records, n > 0. noise: see `auroc_interval`. Without it, that of Wilson."""

    def far(at: float) -> bool:
        return (value - at) ** 2 > Z**2 * (at * (1 - at) / n + noise**2)

    return _end(value, 0.0, far), _end(value, 1.0, far)


def mean(of: Sequence[Measure | None], independent: bool = False) -> Measure | None:
    """The mean of those that are known, if any is. independent: whether they are."""
    known = [each for each in of if each is not None]
    if not known:
        return None
    middle = sum(each.value for each in known) / len(known)
    ends = ([each.value - each.interval[0] for each in known], [each.interval[1] - each.value for each in known])
    down, up = ((math.hypot(*each) if independent else sum(each)) / len(known) for each in ends)
    return Measure(middle, (max(middle - down, 0.0), min(middle + up, 1.0)))
