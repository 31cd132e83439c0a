"""How good a head is on a labelled split: top-1, top-5, and how well each class is told from the rest.

The figures are computed from the raw records, without noise. A test split is there for that. On the private training
split they would leak, so `dpfc_cli.evaluation` warns.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dpfc_cli.features.reader import Blocks
from dpfc_cli.heads.head import Scorer
from dpfc_cli.privacy.inputs import standing

Interval = tuple[float, float]
BEST = 5
"""A record is a top-5 hit if one of its labels is among the five best classes."""
Z = 1.959963984540054
"""The standard normal distribution has 95 % of its mass between −Z and Z."""
CHUNK_NUMBERS = 2**26
"""How many scores `ranked` holds at once: half a gigabyte."""


class Scores:
    """Counts of one head over labelled records.

    A record is a top-1 hit if its best class (top-5: one of its best five) is among its labels. Of equal scores the
    lower class number wins. n: records. top1, top5: how many of them are hits. rows, hits: (m,), per class the records
    that have it as a label, and how many of those have it as their best class.
    """

    def __init__(self, m: int) -> None:
        self.rows, self.hits = np.zeros(m, np.int64), np.zeros(m, np.int64)
        self.n = self.top1 = self.top5 = 0

    def add(self, scores: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Count a block: (the best class of each record, whether that is among its labels)."""
        m = len(self.rows)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :BEST]
        right = (order[:, :, None] == y[:, None, :]).any(axis=2)
        self.n, self.top1 = self.n + len(y), self.top1 + int(right[:, 0].sum())
        self.top5 += int(right.any(axis=1).sum())
        self.rows += (y[:, :, None] == np.arange(m)).any(axis=1).sum(axis=0)
        self.hits += np.bincount(order[right[:, 0], 0], minlength=m)
        return order[:, 0], right[:, 0]


def score(head: Scorer, blocks: Blocks) -> Scores:
    """The counts of one head over the blocks of a split. Records without a label are not counted."""
    found = Scores(head.weight.shape[1])
    for _, x, y in labelled(blocks):
        found.add(head.scores(x), y)
    return found


def wilson(hits: int, n: int, share: float = 1.0) -> tuple[float, float]:
    """The 95 % Wilson score interval of a probability of which `hits` of n trials succeeded, as wide as for share·n
    independent ones.

    It holds every p for which hits/n lies within Z standard deviations √(p(1−p)/n) of p (Wilson 1927). It lies in
    [0, 1]. Unlike p̂ ± Z·√(p̂(1−p̂)/n) it is sound for few trials and near 0 and 1.
    """
    p, m = hits / n, n * share
    weight = Z**2 / m
    centre, half = p + weight / 2, Z * math.sqrt(p * (1 - p) / m + weight / (4 * m))
    # At 0 and n one end is exact, and rounding must not move it.
    low = 0.0 if hits == 0 else (centre - half) / (1 + weight)
    high = 1.0 if hits == n else (centre + half) / (1 + weight)
    return low, high


class Ranked(NamedTuple):
    """How a head tells each class from the rest: (m,) each.

    positives: the records that have the class as a label; negatives: the others. found: of the positives, those of
    which the class is said. spared: of the negatives, those of which it is not. auroc: the probability that a positive
    stands higher than a negative (`standing`), equal ones counted half; NaN where there are none of a kind. precision:
    the average precision, Σ (R_i − R_{i−1})·P_i over the distinct scores, recall R and precision P; NaN likewise.
    """

    positives: np.ndarray
    negatives: np.ndarray
    found: np.ndarray
    spared: np.ndarray
    auroc: np.ndarray
    precision: np.ndarray


def standing_of(probability: float) -> float:
    """The `standing` of a class that has this probability."""
    own, rest = probability**0.25, (1 - probability) ** 0.25
    return float(own / (own + rest))


def ranked(
    heads: Sequence[Scorer], stream: Callable[[], Blocks], n: int, several: bool, threshold: float | None = None
) -> list[Ranked]:
    """How each head tells the classes apart.

    stream: gives the blocks of the n records anew. It is called once for every chunk of classes whose scores fit into
    memory. several: whether a record may have several labels. threshold: a class is said where its probability is at
    least this. Default: 1/2 with several labels; otherwise of each record the best class is said.
    """
    m = heads[0].weight.shape[1]
    width = max(1, min(m, CHUNK_NUMBERS // max(n * len(heads), 1)))
    least = None if threshold is None and not several else standing_of(0.5 if threshold is None else threshold)
    made: list[list[tuple[float, ...]]] = [[] for _ in heads]
    for first in range(0, m, width):
        classes, sets = np.arange(first, min(first + width, m)), []
        kept: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in heads]
        for _, x, y, *_ in labelled(stream()):
            sets.append((y[:, :, None] == classes).any(axis=1))
            for head, own in zip(heads, kept, strict=True):
                scores = head.scores(x)
                part = standing(scores, several, np)[:, classes]
                own.append((part, scores.argmax(axis=1)[:, None] == classes if least is None else part >= least))
        positive = np.concatenate(sets)
        for columns, own in zip(made, kept, strict=True):
            part, said = (np.concatenate(each) for each in zip(*own, strict=True))
            columns += [_of_class(part[:, i], said[:, i], positive[:, i]) for i in range(len(classes))]
    return [Ranked(*map(np.array, zip(*columns, strict=True))) for columns in made]


def _of_class(scores: np.ndarray, said: np.ndarray, positive: np.ndarray) -> tuple[float, ...]:
    own, rest = np.sort(scores[positive]), np.sort(scores[~positive])
    auroc = math.nan
    if len(own) and len(rest):
        below = np.searchsorted(rest, own) + np.searchsorted(rest, own, side="right")
        auroc = float(below.sum()) / 2 / len(own) / len(rest)
    counts = (len(own), len(rest), int((said & positive).sum()), int((~said & ~positive).sum()))
    return *counts, auroc, _average_precision(scores, positive)


def labelled(blocks: Blocks) -> Blocks:
    """The blocks without the records that have no label."""
    for start, *columns in blocks:
        known = (columns[1] >= 0).any(axis=1)
        yield start, *(column[known] for column in columns)


def _average_precision(scores: np.ndarray, positive: np.ndarray) -> float:
    if not positive.any():
        return math.nan
    order = np.argsort(-scores, kind="stable")
    ordered, right = scores[order], np.cumsum(positive[order])
    # Equal scores are one threshold: what counts is the state after the last of them.
    last = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)
    precision, recall = right[last] / (last + 1), right[last] / right[-1]
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))
