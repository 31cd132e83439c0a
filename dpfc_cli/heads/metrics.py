"""How good a head is on a labelled split: top-1, top-5, and per class.

These figures are computed on raw records without noise. On a test split that is what they are for; on the private
training split they would leak, so the command line warns.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dpfc_cli.heads.head import Head


@dataclass(frozen=True)
class Scores:
    """n: labelled records scored. top1, top5: fractions of 1. rows, hits: records and top-1 hits per class."""

    n: int
    top1: float
    top5: float
    rows: np.ndarray
    hits: np.ndarray


def score(head: Head, blocks: Iterator[tuple[int, np.ndarray, np.ndarray]]) -> Scores:
    """Score a head. A record counts as right if its best class (or one of its best five) is among its labels.

    Ties go to the lower class number. Records without a label are not counted.
    """
    m = head.weight.shape[1]
    rows, hits = np.zeros(m, np.int64), np.zeros(m, np.int64)
    n = first = fifth = 0
    for _, x, y in blocks:
        labelled = (y >= 0).any(axis=1)
        scores, y = head.scores(x[labelled]), y[labelled]
        order = np.argsort(-scores, axis=1, kind="stable")[:, :5]
        right = (order[:, :, None] == y[:, None, :]).any(axis=2)
        n, first, fifth = n + len(y), first + int(right[:, 0].sum()), fifth + int(right.any(axis=1).sum())
        sets = (y[:, :, None] == np.arange(m)).any(axis=1)
        rows += sets.sum(axis=0)
        hits += np.bincount(order[right[:, 0], 0], minlength=m)
    return Scores(n, first / max(n, 1), fifth / max(n, 1), rows, hits)
