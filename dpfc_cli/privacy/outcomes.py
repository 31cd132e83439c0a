"""The counts of a private evaluation: how many records a head gets right.

`queries` says what a query is, and what its proof has to show.
"""

import itertools
import math
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

import numpy as np

from dpfc_cli.privacy.chain import Array, Chain, run
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.inputs import of_subgroups
from dpfc_cli.privacy.lattice import Lattice, Reals


@dataclass(frozen=True)
class Outcomes:
    """How many records a linear classifier gets right: each record is counted in the cell of its outcome, in the row of
    its subgroup. Subgroups × cells.

    Scores are chain(x)·weight + bias, as those of a head. Of equal scores the lower class number wins. The cells are

    - of all records: (right, wrong), or with `best` > 1: (right, right with one of the best `best` classes but not with
      the best one, wrong);
    - or for each class (`by_class`): right for class 0, 1, …, then wrong for class 0, 1, …. A record is counted for
      each of its labels j: as right if j is the best class.

    Proof: the contribution is 2ᵇ·q with Σ q² ≤ 4ᵇ, in one row. So its norm is at most 2ᵇ·2ᵇ = 4ᵇ. For two records the
    inner product is 4ᵇ·(q·q') in the same row, or 0. No integer of q or q' is negative: they are rounded multiples of
    cells, which are 0 or 1. Hence √2 under replace-one adjacency. ∎

    Scores that overflow change the cell, but not the bound.

    Scale: a record has 1 in one cell, or by class in at most k cells, one for each label. The row of cells is divided
    by the root of this number, so its norm is at most 1, and one cell stands for one record.

    weight: d × m, bias: m, both finite float64. best: with how many classes a record is still counted apart from the
    wrong ones; 1 for none. groups: the number of subgroups: the facts then have so many times m classes (`inputs`).
    """

    chain: Chain
    weight: np.ndarray
    bias: np.ndarray
    best: int = 1
    by_class: bool = False
    groups: int = 1
    kind: ClassVar[str] = "outcomes"
    words: ClassVar[str] = "how many records a head gets right and how many it gets wrong"
    arrays: ClassVar[tuple[str, ...]] = ("weight", "bias")
    numbers: ClassVar[tuple[str, ...]] = ()
    replace_one: ClassVar[float] = math.sqrt(2)
    symmetric: ClassVar[bool] = False

    def shape(self, facts: Facts) -> tuple[int, ...]:
        return (self.groups, 2 * facts.m // self.groups if self.by_class else 2 + (self.best > 1))

    def array_shapes(self, facts: Facts) -> dict[str, tuple[int, ...]]:
        m = facts.m // self.groups
        return {"weight": (facts.d, m), "bias": (m,)}

    def scale(self, facts: Facts, grid: Lattice | Reals) -> float:
        return math.sqrt(self._most(facts)) / (grid.radius(grid.unit, self.shape(facts)[1]) * grid.one)

    def factors(self, x: Array, y: Array, facts: Facts, grid: Lattice | Reals, xp: ModuleType) -> tuple[Array, Array]:
        # Finite, so that all scores are above that of a class which is no label.
        scores = xp.nan_to_num(run(self.chain, x, xp) @ self.weight + self.bias, nan=np.finfo(np.float64).min)
        group, y = of_subgroups(y, self.groups, xp)
        classes, labels = xp.arange(scores.shape[-1]), y > 0
        if self.by_class:
            right = labels & (classes == xp.argmax(scores, axis=-1)[:, None])
            cells = [right, labels & ~right]
        else:
            own = xp.where(labels, scores, -math.inf)
            score, label = xp.max(own, axis=-1, keepdims=True), xp.argmax(own, axis=-1)[:, None]
            before = xp.sum((scores > score) | ((scores == score) & (classes < label)), axis=-1, keepdims=True)
            ends = (0, 1, self.best, len(classes)) if self.best > 1 else (0, 1, len(classes))
            cells = [(before >= low) & (before < high) for low, high in itertools.pairwise(ends)]
        row = xp.concatenate(cells, axis=-1).astype(xp.float64) / math.sqrt(self._most(facts))
        q = grid.vector(row, grid.unit, xp)
        return group * grid.one, q

    def _most(self, facts: Facts) -> int:
        """In how many cells one record is counted at most."""
        return facts.k if self.by_class else 1
