"""What released trees of standings say: areas under ROC curves, sensitivities and specificities, and how sure they are.

`privacy.standings` says what the trees are. All here is computed of their noisy nodes, and costs nothing.

**The area.** Let a node have T records of a class below it, d more in its upper half than in its lower one, and S and e
of the others. Of the pairs of a record of the class and another one that this node separates, (d·S − T·e)/2 more are in
the right order than in the wrong one. With the sum D over all nodes, and n₁ and n₀ at the roots, the area is
1/2 + D/(2·n₁·n₀). Pairs in one cell count half. The two trees have noise of their own, so the mean of D is right.

A node adds noise, too: of its T and S more than of its d and e, far down. It is left out, with all below it, where the
relative noise of T and S is above `LOUDEST`. Its pairs are *tied* then: they count half, as those in one cell do. What
T and S are does not depend on the noise of d and e, so this choice leaves the mean of what is added right.

**Noise.** A figure changes with each node at a rate that depends on the other tree, and on the root. The noise has the
deviation √Σ (rate·deviation of the node)². The rates are taken from the noisy trees. Noise makes them larger rather
than smaller, so the deviation is not too small. Tied pairs can be wrong by half of them, in all classes alike.

**Intervals** are those of exact figures for n₁ and n₀ records, with noise and ties as more variance (`statistics`). A
mean over classes has the mean of their errors by the choice of the records and by ties, whatever goes together there,
and the noise of all, which is independent. An interval that is wider than `WIDEST` says nothing: then there is no
figure.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpfc_cli.evaluation.statistics import Measure, auroc_interval, fraction_interval, mean
from dpfc_cli.heads.metrics import Interval, Z, standing_of
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.standings import counted, level_weights, side_weights
from dpfc_cli.records.figures import Measured, ReleasedRanks

LOUDEST = 2.0
WIDEST = 0.5
"""From chance to perfection an area has half of all values. With a wider interval it is not known to be either."""


@dataclass(frozen=True)
class _Figure:
    """A figure of trees. value: it may be outside 0 to 1. sampling: its interval without noise; interval: with it."""

    value: float
    sampling: Interval
    noise: float
    interval: Interval

    @property
    def measured(self) -> Measured:
        low, high = self.interval
        value = None if high - low > WIDEST else min(max(self.value, low), high)
        return Measured(value=value, interval=self.interval, noise=self.noise if math.isfinite(self.noise) else None)


_NOTHING = _Figure(0.5, (0.0, 1.0), math.inf, (0.0, 1.0))


def ranks_of(
    answer: np.ndarray, deviation: float, depth: int, facts: Facts, names: Sequence[str], threshold: float | None
) -> tuple[tuple[ReleasedRanks, ...], Measured, Measured | None, float]:
    """The figures of each class; the mean area; the mean of the sensitivities and specificities, if there are any; and
    how many units have a label.

    answer: of a `Standings` of this depth. deviation: of the noise in each of its numbers. threshold: the probability
    from which on a class is said; None: the head decides in another way.
    """
    weights = _weights(depth, facts)
    trees, noise = answer.reshape(2, counted(facts), -1) / weights[:, None], deviation / weights
    pairs = [(own, rest) for own, rest in zip(*trees, strict=True)]
    areas, mirrored = [_area(own, rest, noise) for own, rest in pairs], len(pairs) < len(names)
    rates: list[tuple[_Figure, _Figure]] = []
    if threshold is not None:
        cut = math.ceil(standing_of(threshold) * (1 << depth))
        rates = [(_part(own, noise[0], cut, True), _part(rest, noise[1], cut, False)) for own, rest in pairs]
        if mirrored:
            (own, rest), cut = pairs[0], (1 << depth) - cut
            rates.insert(0, (_part(rest, noise[1], cut, False), _part(own, noise[0], cut, True)))
    auroc, balanced = _mean(areas, independent=False), None
    if rates:
        both = [_mean(pair, independent=True) for pair in rates]
        # Of two classes the noise is the same, and does not cancel.
        balanced = _mean(both, independent=False, alike=mirrored).measured
    labelled = float(np.mean([own[0] + rest[0] for own, rest in pairs]))
    if mirrored:
        pairs, areas = [pairs[0][::-1], *pairs], areas * 2
    ranks = tuple(
        ReleasedRanks(
            name=name,
            n=round(max(float(pairs[j][0][0]), 0.0)),
            auroc=areas[j].measured,
            sensitivity=rates[j][0].measured if rates else None,
            specificity=rates[j][1].measured if rates else None,
        )
        for j, name in enumerate(names)
    )
    return ranks, auroc.measured, balanced, labelled


def _weights(depth: int, facts: Facts) -> np.ndarray:
    """Of the numbers of a tree: those of the records that have a class, and those of the others; 2 × 2^depth."""
    sizes = [1, *(1 << level for level in range(depth))]
    return np.asarray(np.multiply.outer(side_weights(facts), np.repeat(level_weights(depth), sizes)))


def tree_of(cells: np.ndarray) -> np.ndarray:
    """The tree of these counts of cells: the root, then the nodes level by level."""
    levels = []
    while len(cells) > 1:
        levels.append(cells[1::2] - cells[::2])
        cells = cells[1::2] + cells[::2]
    return np.concatenate([cells, *levels[::-1]])


def _cells(tree: np.ndarray) -> np.ndarray:
    """The counts of the cells of a tree."""
    cells, at = tree[:1], 1
    while at < len(tree):
        nodes = tree[at : 2 * at]
        cells, at = np.stack([cells - nodes, cells + nodes], axis=1).ravel() / 2, 2 * at
    return cells


def _rates(cells: np.ndarray) -> np.ndarray:
    """How a sum over the cells, with these factors, changes with each number of the tree."""
    levels = np.floor(np.log2(np.arange(1, len(cells))))
    return np.asarray(tree_of(cells) / len(cells) * 2 ** np.append(0, levels))


def _area(own: np.ndarray, rest: np.ndarray, noise: np.ndarray) -> _Figure:
    n, others = float(own[0]), float(rest[0])
    if min(n, others) <= 0:
        return _NOTHING
    own, rest, used, tied = _pruned(own, rest, noise)

    def above(tree: np.ndarray) -> np.ndarray:
        """Of each cell, the part of a tree below it minus that above it."""
        cells = _cells(tree)
        return np.asarray((2 * np.cumsum(cells) - cells - tree[0]) / tree[0])

    higher, lower = above(rest), -above(own)
    more = float(_cells(own) @ higher) / (2 * n)
    slopes = [(np.clip(each, -1, 1) / 2 - more) / of for each, of in ((higher, n), (lower, others))]
    deviation = math.hypot(*(np.linalg.norm(_rates(each) * by * used) for each, by in zip(slopes, noise, strict=True)))
    return _figure(0.5 + more, deviation, lambda at, spread: auroc_interval(at, n, others, spread), tied / 2 / Z)


def _pruned(own: np.ndarray, rest: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Both trees with zeros for the nodes that are left out; which numbers are not; and the part of the pairs that is
    tied.
    """
    trees, used, tied = np.stack([own, rest]), np.zeros(len(own), bool), 0.0
    below, open_ = trees[:, :1], np.array([True])
    used[0], at = True, 1
    while at < len(own):
        here = slice(at, 2 * at)
        with np.errstate(divide="ignore"):
            loud = np.linalg.norm(noise[:, here] / below, axis=0) > LOUDEST
        used[here] = open_ & (below > 0).all(axis=0) & ~loud
        tied += float(below.clip(0).prod(axis=0)[open_ & ~used[here]].sum())
        trees[:, here] *= used[here]
        nodes = trees[:, here]
        below = np.stack([below - nodes, below + nodes], axis=2).reshape(2, -1) / 2
        open_, at = np.repeat(used[here], 2), 2 * at
    tied += float(below.clip(0).prod(axis=0)[open_].sum())
    return trees[0], trees[1], used, tied / float(own[0] * rest[0])


def _part(tree: np.ndarray, noise: np.ndarray, cut: int, upper: bool) -> _Figure:
    """The part of a tree in the cells from `cut` on, or below it."""
    n = float(tree[0])
    if n <= 0:
        return _NOTHING
    inside = (np.arange(len(tree)) >= cut) == upper
    value = float(_cells(tree)[inside].sum()) / n
    deviation = float(np.linalg.norm(_rates((inside - value) / n) * noise))
    return _figure(value, deviation, lambda at, spread: fraction_interval(at, n, spread))


def _figure(value: float, noise: float, interval: Callable[[float, float], Interval], tied: float = 0.0) -> _Figure:
    at = min(max(value, 0.0), 1.0)
    return _Figure(value, interval(at, tied), noise, interval(at, math.hypot(noise, tied)))


def _mean(of: Sequence[_Figure], independent: bool, alike: bool = False) -> _Figure:
    """independent: whether the errors by the choice of the records are. The noise is, unless it is alike in all."""
    value, noise = (float(each) / len(of) for each in (sum(f.value for f in of), math.hypot(*(f.noise for f in of))))
    noise *= math.sqrt(len(of)) if alike else 1.0
    found = mean([Measure(min(max(f.value, 0.0), 1.0), f.sampling) for f in of], independent)
    assert found is not None
    at, (low, high) = min(max(value, 0.0), 1.0), found.interval
    down, up = (math.hypot(each, Z * noise) for each in (found.value - low, high - found.value))
    return _Figure(value, (low, high), noise, (max(at - down, 0.0), min(at + up, 1.0)))


def expected(deviation: float, depth: int, facts: Facts, threshold: float | None) -> tuple[Measured, Measured]:
    """How sure the mean area and that of a class will be, where it is 0.75: of classes of one size, with the others
    standing evenly everywhere. Arguments as of `ranks_of`.
    """
    cells = 1 << depth
    upto = np.arange(cells + 1) / cells
    n = facts.n * min(facts.k / facts.m, 0.5)
    # A density of 3u² beside one of 1.
    sides = n * np.diff(upto**3), (facts.n - n) * np.diff(upto)
    trees = np.stack([tree_of(each) for each in sides]) * _weights(depth, facts)
    answer = np.repeat(trees[:, None], counted(facts), axis=1)
    ranks, auroc, *_ = ranks_of(answer, deviation, depth, facts, [""] * facts.m, threshold)
    return auroc, ranks[0].auroc
