"""Two heads on the same records: by how much one is better, and how sure that is.

Their figures go up and down together, with the records. So only the records count of which one head is right and the
other is wrong. With b records of which only the first is right, c of which only the second is, and n in all, the
difference is (b − c)/n. Its interval is that of Tango (1998, "Equivalence test and confidence interval for the
difference in proportions for the paired-sample design"): all differences that the score test does not reject. It is to
pairs what Wilson's interval is to one head. It has 0 outside if and only if McNemar's test (without a correction for
continuity) says that the heads differ. Unlike the normal interval it is sound for few records, and it has a width where
the heads never differ.

Records are taken as drawn independently. Each interval is for one pair: of twenty, one misses the truth.
"""

import math
from dataclasses import dataclass

from dpfc_cli.heads.metrics import Interval, Z

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


def difference(only_this: int, only_other: int, n: int) -> Difference:
    """Of n records, at least one."""
    gain = (only_this - only_other) / n
    return Difference(gain=gain, interval=tango(only_this, only_other, n), only_this=only_this, only_other=only_other)


def tango(first: int, second: int, n: int) -> Interval:
    """The 95 % interval of the difference of two probabilities, by Tango's score test on n paired records.

    Args:
        first: records of which only the first head is right.
        second: records of which only the second is.
        n: records in all.

    Returns:
        The ends of first − second, within [−1, 1].

    """
    return _lower(first, second, n), -_lower(second, first, n)


def _lower(b: int, c: int, n: int) -> float:
    """The smallest difference that is not rejected: below (b − c)/n the test rejects all up to it."""
    rejected, held = -1.0, (b - c) / n
    for _ in range(_HALVINGS):
        middle = (rejected + held) / 2
        if _far(b, c, n, middle):
            rejected = middle
        else:
            held = middle
    return held


def _far(b: int, c: int, n: int, gain: float) -> bool:
    """Whether what was observed lies more than Z standard deviations from this difference.

    The deviation is that of the most likely probability q that only the second is right, among those with this
    difference: the larger root of 2n·q² + ((2n − b + c)·gain − b − c)·q − c·gain·(1 − gain) = 0.
    """
    linear = (2 * n - b + c) * gain - b - c
    q = (math.sqrt(max(linear**2 + 8 * n * c * gain * (1 - gain), 0.0)) - linear) / (4 * n)
    variance = n * max(2 * q + gain * (1 - gain), 0.0)
    return (b - c - n * gain) ** 2 > Z**2 * variance
