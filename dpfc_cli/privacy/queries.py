"""The sums that a method may ask for: what one record adds, and the proof that this is bounded.

A record is a feature vector x and a set of labels. The labels are given as a row y of m zeros and ones. A query
computes two *factors* of a record, `left` and `right`. Both are rows of integers on the lattice. The *contribution* of
the record is their outer product (for `ClassGrams` and `Hessians`: left ⊗ right ⊗ right). So the sum over records is a
matrix product of integers. `kernels` computes it exactly and fast, and `contribution` defines it for one record.

**Sensitivity.** The sensitivity is the largest change that one record can cause in a sum. Each class below, and
`Outcomes` and `Standings` in modules of their own, prove this bound: the Euclidean norm of a contribution, in integers,
is at most 4ᵇ = `lattice.unit`. What follows for two neighbouring data sets depends on the adjacency:

- Zero-out: the null record adds zero. So the integer sums of neighbours differ by at most 4ᵇ. In units of 4ᵇ the
  sensitivity is 1.
- Replace-one: the integer sums of neighbours differ by at most `replace_one` · 4ᵇ. By the triangle inequality
  `replace_one` = 2 is enough. For sums of Gram type and for `Outcomes` √2 is enough: if two contributions A and B have
  ⟨A, B⟩ ≥ 0, then ‖A − B‖² ≤ ‖A‖² + ‖B‖².

Both bounds hold for all parameters that a method passes. The norms rely on `Lattice.vector` alone. The condition
⟨A, B⟩ ≥ 0 holds because all the factors of that inner product are non-negative: squares, labels, cells, or p·(1 − p)
with p in [0, 1].

A query holds arrays and numbers, never functions. `scale` turns one integer unit into the natural units of the query.
This is post-processing, so it costs no privacy.
"""

import math
from dataclasses import KW_ONLY, dataclass
from types import ModuleType
from typing import ClassVar, Protocol

import numpy as np

from dpfc_cli.privacy.chain import Array, Chain, run
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.inputs import Loss, inputs, prepare, probabilities
from dpfc_cli.privacy.lattice import Lattice, Reals
from dpfc_cli.privacy.outcomes import Outcomes
from dpfc_cli.privacy.standings import Standings

Grid = Lattice | Reals


class Query(Protocol):
    """What every query states."""

    kind: ClassVar[str]
    words: ClassVar[str]
    """What is summed, in words for a statement."""
    arrays: ClassVar[tuple[str, ...]]
    """Names of the fields that hold arrays. The other fields are hashable."""
    numbers: ClassVar[tuple[str, ...]]
    """Names of the fields that hold numbers which may depend on earlier answers."""
    replace_one: ClassVar[float]
    """The sensitivity under replace-one adjacency, in units of 4ᵇ."""
    symmetric: ClassVar[bool]
    """Whether the answer is a symmetric matrix, or a stack of them. Then noise is drawn for one triangle and
    mirrored.
    """

    @property
    def chain(self) -> Chain: ...

    def shape(self, facts: Facts) -> tuple[int, ...]: ...

    def array_shapes(self, facts: Facts) -> dict[str, tuple[int, ...]]:
        """The shape of each field that `arrays` names."""
        ...

    def scale(self, facts: Facts, grid: Grid) -> float: ...
    def factors(self, x: Array, y: Array, facts: Facts, grid: Grid, xp: ModuleType) -> tuple[Array, Array]: ...


def sensitivity(query: "Query | type[Query]", facts: Facts) -> float:
    """The largest change of the sum that one unit can cause, in units of 4ᵇ.

    It is 1 under zero-out adjacency and `replace_one` under replace-one adjacency.
    """
    return 1.0 if facts.adjacency == "zero-out" else query.replace_one


def _bound(constant: float) -> float:
    """The norm that `inputs` should not exceed, because the chain ends in the unit ball. `Lattice.vector` enforces
    it.
    """
    return math.sqrt(1 + constant**2)


def _side(facts: Facts, constant: float) -> int:
    return facts.d + (1 if constant else 0)


@dataclass(frozen=True)
class Gram:
    """Σ z zᵀ over records, with z = inputs(x): the Gram matrix G of Algorithms 3 and 4. Symmetric, with side d or
    d + 1.

    Proof: the contribution is q qᵀ with Σ q² ≤ 4ᵇ, and ‖q qᵀ‖_F = ‖q‖² ≤ 4ᵇ. For two records with factors a and b,
    ⟨aaᵀ, bbᵀ⟩ = (a·b)² ≥ 0. Hence √2 under replace-one adjacency. ∎
    """

    chain: Chain
    constant: float = 0.0
    kind: ClassVar[str] = "gram"
    words: ClassVar[str] = "for each pair of features, the sum over records of their product"
    arrays: ClassVar[tuple[str, ...]] = ()
    numbers: ClassVar[tuple[str, ...]] = ()
    replace_one: ClassVar[float] = math.sqrt(2)
    symmetric: ClassVar[bool] = True

    def shape(self, facts: Facts) -> tuple[int, ...]:
        return (_side(facts, self.constant),) * 2

    def array_shapes(self, facts: Facts) -> dict[str, tuple[int, ...]]:
        return {}

    def scale(self, facts: Facts, grid: Grid) -> float:
        return (_bound(self.constant) / grid.radius(grid.unit, _side(facts, self.constant))) ** 2

    def factors(self, x: Array, y: Array, facts: Facts, grid: Grid, xp: ModuleType) -> tuple[Array, Array]:
        q = grid.vector(inputs(self.chain, self.constant, x, xp) / _bound(self.constant), grid.unit, xp)
        return q, q


@dataclass(frozen=True)
class Mean:
    """Σ z over records, with z = chain(x): n times their mean. 1 × d.

    Proof: the contribution is 2ᵇ·q with Σ q² ≤ 4ᵇ. So its norm is at most 2ᵇ·2ᵇ = 4ᵇ. ∎
    """

    chain: Chain
    kind: ClassVar[str] = "mean"
    words: ClassVar[str] = "the sum over records of the clipped feature vector"
    arrays: ClassVar[tuple[str, ...]] = ()
    numbers: ClassVar[tuple[str, ...]] = ()
    replace_one: ClassVar[float] = 2.0
    symmetric: ClassVar[bool] = False

    def shape(self, facts: Facts) -> tuple[int, ...]:
        return (1, facts.d)

    def array_shapes(self, facts: Facts) -> dict[str, tuple[int, ...]]:
        return {}

    def scale(self, facts: Facts, grid: Grid) -> float:
        return 1 / (grid.radius(grid.unit, facts.d) * grid.one)

    def factors(self, x: Array, y: Array, facts: Facts, grid: Grid, xp: ModuleType) -> tuple[Array, Array]:
        q = grid.vector(run(self.chain, x, xp), grid.unit, xp)
        return xp.full_like(q[:, :1], grid.one), q


@dataclass(frozen=True)
class ClassSums:
    """Σ_{i: y_ij = 1} x_i for every class j: b_j of Algorithm 3. m × d.

    Proof: the contribution is 2ᵇ·(y ⊗ q) with at most k ones in y and Σ q² ≤ 4ᵇ/k. So its squared norm is at most
    4ᵇ·k·4ᵇ/k = 16ᵇ. ∎
    """

    chain: Chain
    kind: ClassVar[str] = "class_sums"
    words: ClassVar[str] = "for each class, the sum over its records of the clipped feature vector"
    arrays: ClassVar[tuple[str, ...]] = ()
    numbers: ClassVar[tuple[str, ...]] = ()
    replace_one: ClassVar[float] = 2.0
    symmetric: ClassVar[bool] = False

    def shape(self, facts: Facts) -> tuple[int, ...]:
        return (facts.m, facts.d)

    def array_shapes(self, facts: Facts) -> dict[str, tuple[int, ...]]:
        return {}

    def scale(self, facts: Facts, grid: Grid) -> float:
        return 1 / (grid.radius(grid.unit // facts.k, facts.d) * grid.one)

    def factors(self, x: Array, y: Array, facts: Facts, grid: Grid, xp: ModuleType) -> tuple[Array, Array]:
        return y * grid.one, grid.vector(run(self.chain, x, xp), grid.unit // facts.k, xp)


@dataclass(frozen=True)
class ClassGrams:
    """Σ_{i: y_ij = 1} x_i x_iᵀ for every class j: A_j of Algorithm 3. m × d × d, each matrix symmetric.

    Proof: the contribution is y ⊗ q qᵀ with at most k ones in y and Σ q² ≤ ⌊√(16ᵇ/k)⌋. So its squared norm is at most
    k·(Σ q²)² ≤ 16ᵇ. For two records with label sets L and L' and factors a and b, the inner product is
    |L∩L'|·(a·b)² ≥ 0. Hence √2 under replace-one adjacency. ∎

    With `start` and `stop` this is a piece: the matrices of the classes start..stop−1. They are coordinates of the
    whole answer, as it is without a piece: a record has the same factors in all pieces.

    start, stop: the first class of a piece, and the class after the last one; None for the whole.
    """

    chain: Chain
    start: int = 0
    stop: int | None = None
    kind: ClassVar[str] = "class_grams"
    words: ClassVar[str] = "for each class and each pair of features, the sum over its records of their product"
    arrays: ClassVar[tuple[str, ...]] = ()
    numbers: ClassVar[tuple[str, ...]] = ()
    replace_one: ClassVar[float] = math.sqrt(2)
    symmetric: ClassVar[bool] = True

    def shape(self, facts: Facts) -> tuple[int, ...]:
        return (facts.m if self.stop is None else self.stop - self.start, facts.d, facts.d)

    def array_shapes(self, facts: Facts) -> dict[str, tuple[int, ...]]:
        return {}

    def scale(self, facts: Facts, grid: Grid) -> float:
        return 1 / grid.radius(self._squared(facts, grid), facts.d) ** 2

    def factors(self, x: Array, y: Array, facts: Facts, grid: Grid, xp: ModuleType) -> tuple[Array, Array]:
        return y, grid.vector(run(self.chain, x, xp), self._squared(facts, grid), xp)

    def _squared(self, facts: Facts, grid: Grid) -> int:
        return math.isqrt(grid.unit**2 // facts.k)


@dataclass(frozen=True)
class Gradient:
    """Σ clip(∇ℓ(θ; x, y)) over records: g_t of Algorithm 4. θ and the answer are (d or d + 1) × m.

    For a linear model the gradient of one record is z ⊗ r with r = σ(zᵀθ) − y. Its norm is ‖z‖·‖r‖. So it can be
    clipped without computing it: the clipped gradient is z/‖z‖ ⊗ r·min(‖z‖, C_g/‖r‖). With the softmax loss the target
    is a distribution. A record with several labels has the target y/|y|.

    Proof: the contribution is q ⊗ s with Σ q² ≤ 4ᵇ and Σ s² ≤ 4ᵇ, and ‖q ⊗ s‖ = ‖q‖·‖s‖ ≤ 4ᵇ. Logits are float32
    numbers, and their rounding does not matter. It changes s, but not the bound on s, and it depends on this record, on
    θ, on `offset` and on the record's place in its block alone. (Places matter for samples only: see `sums`.) z may be
    of any length, so the chain may be empty: then gradients of raw features are clipped. ∎

    theta: θ, the current weights: finite float64. clip: C_g > 0, the norm that each gradient is clipped to. constant:
    the value of the bias feature; 0 for none. radius: the length that every z is scaled to first; None for no scaling.
    offset: a bias of every class that is not learned, finite: r = σ(zᵀθ + offset) − y.
    """

    chain: Chain
    theta: np.ndarray
    _: KW_ONLY
    clip: float
    constant: float = 1.0
    loss: Loss = "sigmoid"
    radius: float | None = None
    offset: float = 0.0
    kind: ClassVar[str] = "gradient"
    words: ClassVar[str] = "the sum over records of the clipped gradient of the loss (its change with the weights)"
    arrays: ClassVar[tuple[str, ...]] = ("theta",)
    numbers: ClassVar[tuple[str, ...]] = ("clip", "radius")
    replace_one: ClassVar[float] = 2.0
    symmetric: ClassVar[bool] = False

    def shape(self, facts: Facts) -> tuple[int, ...]:
        return (_side(facts, self.constant), facts.m)

    def array_shapes(self, facts: Facts) -> dict[str, tuple[int, ...]]:
        return {"theta": self.shape(facts)}

    def scale(self, facts: Facts, grid: Grid) -> float:
        return self.clip / (grid.radius(grid.unit, _side(facts, self.constant)) * grid.radius(grid.unit, facts.m))

    def direction(self, x: Array, facts: Facts, grid: Grid, xp: ModuleType) -> tuple[Array, Array]:
        """What does not depend on θ, for records B × d, float32 and finite: the direction q of z in integers, B × side,
        and the length of z, B × 1; float64.
        """
        z = inputs(self.chain, self.constant, x, xp, self.radius)
        length = xp.sqrt(xp.sum(z * z, axis=-1, keepdims=True))
        return grid.vector(z / xp.where(length > 0, length, 1.0), grid.unit, xp), length

    def residual(self, q: Array, length: Array, y: Array, facts: Facts, grid: Grid, xp: ModuleType) -> Array:
        """What depends on θ: the residual s in integers, B × m, float64. q: B × side, the direction, in any type that
        holds its integers. length: B × 1, float64. y: B × m, the label rows.
        """
        unit = (length / grid.radius(grid.unit, _side(facts, self.constant))).astype(xp.float32)
        logits = (q.astype(xp.float32) @ self.theta.astype(xp.float32)) * unit
        logits = logits + xp.float32(self.offset) if self.offset else logits
        p = probabilities(logits, self.loss, xp)
        target = y / xp.maximum(xp.sum(y, axis=-1, keepdims=True), 1.0) if self.loss == "softmax" else y
        return grid.vector((p.astype(xp.float64) - target) * (length / self.clip), grid.unit, xp)

    def factors(self, x: Array, y: Array, facts: Facts, grid: Grid, xp: ModuleType) -> tuple[Array, Array]:
        q, length = self.direction(x, facts, grid, xp)
        return q, self.residual(q, length, y, facts, grid, xp)


@dataclass(frozen=True)
class Hessians:
    """Σ s_j·z zᵀ with s_j = p_j(1 − p_j), for the classes start..stop−1: H_j of Algorithm 2, for one block of classes.

    This is the Hessian (the matrix of second derivatives) of the sigmoid loss with respect to θ_j. The answer is a
    stack of symmetric matrices, (stop − start) × side × side, where side is d or d + 1.

    Proof: the contribution is s ⊗ q qᵀ with Σ s_j² ≤ S², Σ q² ≤ Q and S·Q = 4ᵇ. So its norm is at most S·Q = 4ᵇ. For
    two records the inner product is (s·s')(a·b)² ≥ 0, because s and s' are not negative. Hence √2 under replace-one
    adjacency. ∎

    Scale: let c = stop − start. In natural units S stands for √c/4, which ‖s‖ never exceeds because s_j ≤ ¼. Q stands
    for C². So one unit is √c·C²/4. This is the paper's sensitivity for c = m.

    theta: side × m, finite float64. start, stop: the first class of the block, and the class after the last one.
    constant: the value of the bias feature; 0 for none.
    """

    chain: Chain
    theta: np.ndarray
    start: int
    stop: int
    constant: float = 0.0
    kind: ClassVar[str] = "hessians"
    words: ClassVar[str] = "for each class, the sum over records of the second derivatives of the loss"
    arrays: ClassVar[tuple[str, ...]] = ("theta",)
    numbers: ClassVar[tuple[str, ...]] = ()
    replace_one: ClassVar[float] = math.sqrt(2)
    symmetric: ClassVar[bool] = True

    def shape(self, facts: Facts) -> tuple[int, ...]:
        return (self.stop - self.start, *(_side(facts, self.constant),) * 2)

    def array_shapes(self, facts: Facts) -> dict[str, tuple[int, ...]]:
        return {"theta": (_side(facts, self.constant), facts.m)}

    def scale(self, facts: Facts, grid: Grid) -> float:
        (weights, features), side = grid.weighted, _side(facts, self.constant)
        quarter = math.sqrt(self.stop - self.start) / 4 / grid.radius(weights, self.stop - self.start)
        return quarter * (_bound(self.constant) / grid.radius(features, side)) ** 2

    def factors(self, x: Array, y: Array, facts: Facts, grid: Grid, xp: ModuleType) -> tuple[Array, Array]:
        (weights, features), columns = grid.weighted, slice(self.start, self.stop)
        z = inputs(self.chain, self.constant, x, xp)
        p = probabilities(z.astype(xp.float32) @ self.theta[:, columns].astype(xp.float32), "sigmoid", xp)
        curvature = (p * (1 - p)).astype(xp.float64) * (4 / math.sqrt(self.stop - self.start))
        return grid.vector(curvature, weights, xp), grid.vector(z / _bound(self.constant), features, xp)


QUERIES = (Mean, Gram, ClassSums, ClassGrams, Gradient, Hessians, Outcomes, Standings)


def contribution(query: Query, x: np.ndarray, labels: np.ndarray, facts: Facts, grid: Grid) -> np.ndarray:
    """What one record (d features; k labels, −1 for "none") adds to the sum: the shape of the answer, float64 with
    integer values of the lattice. This is the definition that the kernels are tested against.
    """
    x, y, valid = prepare(x[None], labels[None], facts.m, np)
    left, right = query.factors(x, y, facts, grid, np)
    if isinstance(query, ClassGrams | Hessians):
        weights = left[0][query.start : query.stop] if isinstance(query, ClassGrams) else left[0]
        added = weights[:, None, None] * np.outer(right[0], right[0])
    else:
        added = np.outer(left[0], right[0])
    return np.where(valid[0, 0], added, 0.0)
