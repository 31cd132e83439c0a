"""How good a head is on a labelled split: top-1, top-5, per class, and mean average precision for label sets.

These figures are computed on raw records without noise. On a test split that is what they are for; on the private
training split they would leak, so the command line warns.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from dpfc_cli.heads.head import Head

Blocks = Iterator[tuple[int, np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Scores:
    """n: labelled records scored. top1, top5: fractions of 1. rows, hits: records and top-1 hits per class."""

    n: int
    top1: float
    top5: float
    rows: np.ndarray
    hits: np.ndarray


def score(head: Head, blocks: Blocks) -> Scores:
    """Score a head. A record counts as right if its best class (or one of its best five) is among its labels.

    Ties go to the lower class number. Records without a label are not counted.
    """
    m = head.weight.shape[1]
    rows, hits = np.zeros(m, np.int64), np.zeros(m, np.int64)
    n = first = fifth = 0
    for _, x, y in _labelled(blocks):
        scores = head.scores(x)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :5]
        right = (order[:, :, None] == y[:, None, :]).any(axis=2)
        n, first, fifth = n + len(y), first + int(right[:, 0].sum()), fifth + int(right.any(axis=1).sum())
        sets = (y[:, :, None] == np.arange(m)).any(axis=1)
        rows += sets.sum(axis=0)
        hits += np.bincount(order[right[:, 0], 0], minlength=m)
    return Scores(n, first / max(n, 1), fifth / max(n, 1), rows, hits)


CHUNK_NUMBERS = 2**26
"""Scores held at once by `average_precisions`: half a gigabyte."""


def average_precisions(head: Head, stream: Callable[[], Blocks], n: int) -> np.ndarray:
    """Average precision of every class, for label sets: Σ (R_i − R_{i−1})·P_i over the distinct scores. NaN without a
    positive. The split is streamed once for every chunk of classes that fits into memory.
    """
    m = head.weight.shape[1]
    width = max(1, min(m, CHUNK_NUMBERS // max(n, 1)))
    found = np.full(m, np.nan)
    for first in range(0, m, width):
        classes = np.arange(first, min(first + width, m))
        part = replace(head, weight=head.weight[:, classes], bias=head.bias[classes])
        kept = [(part.scores(x), (y[:, :, None] == classes).any(axis=1)) for _, x, y in _labelled(stream())]
        scores, positive = (np.concatenate(columns) for columns in zip(*kept, strict=True))
        for i, j in enumerate(classes):
            found[j] = _average_precision(scores[:, i], positive[:, i])
    return found


def _labelled(blocks: Blocks) -> Blocks:
    for start, x, y in blocks:
        known = (y >= 0).any(axis=1)
        yield start, x[known], y[known]


def _average_precision(scores: np.ndarray, positive: np.ndarray) -> float:
    if not positive.any():
        return math.nan
    order = np.argsort(-scores, kind="stable")
    ordered, right = scores[order], np.cumsum(positive[order])
    # Equal scores are one threshold: what counts is the state after the last of them.
    last = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)
    precision, recall = right[last] / (last + 1), right[last] / right[-1]
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))
