"""Where the classes stand with the records of a private evaluation: what areas under ROC curves are computed of.

`queries` says what a query is, and what its proof has to show.

A record *stands* somewhere in [0, 1] for each class (`inputs.standing`). This range is cut into 2^depth cells. For each
class there are two *trees* of counts: of the records that have it as a label, and of the others. The root counts all of
them. Each node halves a range: it has the number of records in the upper half minus that of the lower half, down to
the single cells. So a record is in the root and in one node of each level, with 1 or −1. (This is the wavelet transform
of Haar; Xiao, Wang and Gehrke 2010, "Differential privacy via wavelet transforms".) Of all records below a cell only a
few noisy nodes are added up, wherever the records lie. With noise in each cell it would be hundreds.

**Weights.** Noise is equal in all coordinates, so what is multiplied by more has less noise. They are functions of
public facts:

- An area changes the less by a node the deeper it lies. So the square of a level's weight falls by 2^(−1/4) from level
  to level.
- Of a class of n/m records there are m − 1 times as many others. A record is one of the others for m − k classes. So it
  counts there with less: with classes of one size the noise of an area is smallest if the squares of the two weights
  are as k^(−3/2) to (m − k)^(−3/2).
- With two classes and one label the first class stands where the second one does not. So the second alone is counted.
"""

import math
from dataclasses import dataclass, replace
from types import ModuleType
from typing import ClassVar

import numpy as np

from dpfc_cli.privacy.chain import Array, Chain, run
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.inputs import of_subgroups, standing
from dpfc_cli.privacy.lattice import LONGEST, Lattice, Reals

DEEPEST = 10
LEAST_DEPTH = 8
"""Of fewer cells, all records of a class could lie in one of them, where nothing tells them apart."""


def counted(facts: Facts) -> int:
    """For how many classes records are counted: the last ones."""
    return 1 if facts.m == 2 and facts.k == 1 else facts.m


def depth_of(facts: Facts) -> int | None:
    """How deep the trees are; None where there are too many classes for trees."""
    depth = min(DEEPEST, int(math.log2(LONGEST / (2 * counted(facts)))))
    return depth if depth >= LEAST_DEPTH else None


def level_weights(depth: int) -> list[float]:
    """Of the root, and of each level. The sum of their squares is 1."""
    squares = [1.0, *(2 ** (-level / 4) for level in range(depth))]
    return [math.sqrt(each / sum(squares)) for each in squares]


def side_weights(facts: Facts) -> tuple[float, float]:
    """Of records that have a class, and of the others. For k labels the sum of the squares over all classes is 1."""
    if counted(facts) == 1:
        return 1.0, 1.0
    ratio = min((facts.k / max(facts.m - facts.k, 1)) ** 0.75, 1.0)
    own = 1 / math.sqrt(facts.k + (facts.m - facts.k) * ratio**2)
    return own, own * ratio


@dataclass(frozen=True)
class Standings:
    """The trees of all counted classes, with their weights: of the records that have the class, then of the others; for
    each class the root and the nodes, level by level; in the row of the record's subgroup. Subgroups ×
    (2·classes·2^depth).

    Proof: the contribution is 2ᵇ·q with Σ q² ≤ 4ᵇ, in one row. So its norm is at most 2ᵇ·2ᵇ = 4ᵇ. ∎

    Scores that overflow change the cell, but not the bound. With fewer labels than k the row of weights is shorter than
    1, because one of the others never counts more than one that has the class.

    weight: d × m, bias: m, both finite float64: the head. groups: see `Outcomes`.
    """

    chain: Chain
    weight: np.ndarray
    bias: np.ndarray
    depth: int
    groups: int = 1
    kind: ClassVar[str] = "standings"
    words: ClassVar[str] = "how the records with and without each class are spread over the probability that it has"
    arrays: ClassVar[tuple[str, ...]] = ("weight", "bias")
    numbers: ClassVar[tuple[str, ...]] = ()
    replace_one: ClassVar[float] = 2.0
    symmetric: ClassVar[bool] = False

    def shape(self, facts: Facts) -> tuple[int, ...]:
        return (self.groups, 2 * counted(self._of_one(facts)) << self.depth)

    def array_shapes(self, facts: Facts) -> dict[str, tuple[int, ...]]:
        m = facts.m // self.groups
        return {"weight": (facts.d, m), "bias": (m,)}

    def scale(self, facts: Facts, grid: Lattice | Reals) -> float:
        return 1 / (grid.radius(grid.unit, self.shape(facts)[1]) * grid.one)

    def factors(self, x: Array, y: Array, facts: Facts, grid: Lattice | Reals, xp: ModuleType) -> tuple[Array, Array]:
        group, y = of_subgroups(y, self.groups, xp)
        facts, width = self._of_one(facts), self.shape(facts)[1]
        first, cells = facts.m - counted(facts), 1 << self.depth
        at = standing(run(self.chain, x, xp) @ self.weight + self.bias, facts.k > 1, xp)[:, first:, None]
        cell = xp.clip(xp.floor(at * cells), 0, cells - 1)
        root, *weights = level_weights(self.depth)
        tree = [xp.full_like(cell, root)]
        for level, weight in enumerate(weights):
            half = xp.floor(cell / 2 ** (self.depth - level - 1))
            node = xp.floor(half / 2)
            tree.append(xp.where(node == xp.arange(1 << level), weight * (2 * (half - 2 * node) - 1), 0.0))
        row = xp.concatenate(tree, axis=-1)
        own, other = side_weights(facts)
        has = y[:, first:, None] > 0
        rows = [xp.where(has, own * row, 0.0), xp.where(has, 0.0, other * row)]
        q = grid.vector(xp.concatenate(rows, axis=1).reshape(len(x), width), grid.unit, xp)
        return group * grid.one, q

    def _of_one(self, facts: Facts) -> Facts:
        """The facts of one subgroup."""
        return replace(facts, m=facts.m // self.groups)
