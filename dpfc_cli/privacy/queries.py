"""The sums that may be asked for: what one record adds, and the proof that it is bounded.

A record is a feature vector x and a set of labels, given as a row y of m zeros and ones. A query states two *factors*
of a record, integer rows `left` and `right` on the lattice, and its contribution is their outer product (for
`ClassGrams`: y ⊗ q ⊗ q). The sum over records is then a matrix product of integers, which `kernels` computes exactly
and fast, and which `contribution` spells out for one record.

**Sensitivity.** Each class proves: a contribution's Euclidean norm, as integers, is at most 4ᵇ = `lattice.unit`. The
null record adds zero, so under zero-out adjacency the integer sums of neighbours differ by at most 4ᵇ: sensitivity 1 in
units of 4ᵇ. Under replace-one adjacency they differ by at most `replace_one` · 4ᵇ: by the triangle inequality 2, and
for sums of Gram type √2, since for contributions A, B with ⟨A, B⟩ ≥ 0 we have ‖A − B‖² ≤ ‖A‖² + ‖B‖². Both hold
whatever parameters a solver passes: norms rest on `Lattice.vector` alone, and what is not negative in a Gram is a
square, a label or p·(1 − p) of a p in [0, 1].

Queries carry arrays and numbers, never callables. `scale` turns one integer unit into the query's natural units, which
is post-processing.
"""

import enum
import math
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Protocol, get_args

import numpy as np

from dpfc_cli.privacy import chain as chains
from dpfc_cli.privacy.chain import Chain, norms, run
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Lattice, Reals

Loss = Literal["sigmoid", "softmax"]
Grid = Lattice | Reals
NO_LABEL = -1
"""A record with no other label than this is the null record, which adds nothing to any sum."""


class _Open(enum.Enum):
    OPEN = "open"


OPEN: Any = _Open.OPEN
"""Stands in a form for a value that is known only when earlier answers are."""


class Query(Protocol):
    """What every query states."""

    kind: ClassVar[str]
    words: ClassVar[str]
    """What is summed, as a statement says it."""
    arrays: ClassVar[tuple[str, ...]]
    """Names of the fields that hold arrays; the others are hashable."""
    numbers: ClassVar[tuple[str, ...]]
    """Names of the fields with numbers that may come from earlier answers."""
    replace_one: ClassVar[float]
    symmetric: ClassVar[bool]
    """The answer is a symmetric matrix (or a stack of them) and is noised on its triangle."""

    @property
    def chain(self) -> Chain: ...

    def shape(self, facts: Facts) -> tuple[int, ...]:
        """Of the answer."""
        ...

    def array_shapes(self, facts: Facts) -> dict[str, tuple[int, ...]]:
        """Of each field named in `arrays`."""
        ...

    def scale(self, facts: Facts, grid: Grid) -> float: ...
    def factors(self, x: Any, y: Any, facts: Facts, grid: Grid, xp: Any) -> tuple[Any, Any]: ...


def opened(query: Query, *names: str) -> Query:
    """The query with those of its fields and all values of its chain made `OPEN`. None and 0 stay: they mean "none"."""
    known: Any = query
    held = {field.name: getattr(query, field.name) for field in fields(known) if field.name in names}
    free = [name for name, value in held.items() if isinstance(value, np.ndarray) or value not in (None, 0)]
    chain = chains.with_values(query.chain, [OPEN] * len(query.chain))
    return replace(query, **dict.fromkeys(free, OPEN), chain=chain)  # type: ignore[type-var]


def form(query: Query) -> Query:
    """What a plan fixes of a query: its class, the kinds of its chain's steps, loss and classes, whether it has a bias.

    It is hashable. Queries of one form have answers of one shape, and one sensitivity.
    """
    return opened(query, *query.arrays, *query.numbers, "constant")


def sensitivity(query: "Query | type[Query]", facts: Facts) -> float:
    """The most that one record can change the sum, in units of the lattice's 4ᵇ: 1 under zero-out adjacency,
    `replace_one` under replace-one.
    """
    return 1.0 if facts.adjacency == "zero-out" else query.replace_one


def prepare(x: Any, labels: Any, m: int, xp: Any) -> tuple[Any, Any, Any]:
    """Records, label rows and the mask of valid records.

    x: B × d features; labels: B × k, `NO_LABEL` (−1) for "none". A record is null if it has no label (so padding and
    records outside a sample are given none), a label outside −1..m−1, or a feature that is NaN or infinite. A null
    record's features are replaced by zeros before they meet anything else. Labels are a set: a class named twice
    counts once. Returns float32 B × d, float64 B × m of 0 and 1, bool B × 1.
    """
    x = x.astype(xp.float32)
    known = xp.all((labels >= NO_LABEL) & (labels < m), axis=-1) & xp.any(labels >= 0, axis=-1)
    valid = (known & xp.all(xp.isfinite(x), axis=-1))[:, None]
    y = xp.any(labels[:, :, None] == xp.arange(m), axis=1)
    return xp.where(valid, x, xp.float32(0)), xp.where(valid, y, False).astype(xp.float64), valid


def inputs(chain: Chain, constant: float, x: Any, xp: Any, radius: float | None = None) -> Any:
    """What the linear head sees of a record: chain(x), and behind it a constant feature for the bias (none if 0).

    radius: the length that each such vector is scaled to; None: as it is.
    """
    z = run(chain, x, xp)
    if constant:
        z = xp.concatenate([z, xp.full_like(z[:, :1], constant)], axis=-1)
    if radius is not None:
        length = norms(z, xp)
        z = z * (radius / xp.where(length > 0, length, 1.0))
    return z


def probabilities(logits: Any, loss: Loss, xp: Any) -> Any:
    """Class probabilities of logits (B × m, float32): finite and in [0, 1] whatever the logits are."""
    logits = xp.clip(xp.nan_to_num(logits, nan=0.0), -1e6, 1e6)
    if loss == "softmax":
        odds = xp.exp(xp.maximum(logits - xp.max(logits, axis=-1, keepdims=True), -80.0))
        return odds / xp.sum(odds, axis=-1, keepdims=True)
    return 1 / (1 + xp.exp(xp.clip(-logits, -60.0, 60.0)))


def _bound(constant: float) -> float:
    """The norm that `inputs` should not exceed: the chain ends in the unit ball. `Lattice.vector` enforces it."""
    return math.sqrt(1 + constant**2)


def _side(facts: Facts, constant: float) -> int:
    return facts.d + (1 if constant else 0)


@dataclass(frozen=True)
class Gram:
    """Σ z zᵀ over records, z = inputs(x): G of Algorithms 3 and 4. Symmetric, side d or d + 1.

    Proof: the contribution is q qᵀ with Σ q² ≤ 4ᵇ, and ‖q qᵀ‖_F = ‖q‖² ≤ 4ᵇ. For two records ⟨aaᵀ, bbᵀ⟩ = (a·b)² ≥ 0,
    hence √2 under replace-one. ∎
    """

    chain: Chain
    constant: float = 0.0
    kind: ClassVar[str] = "gram"
    words: ClassVar[str] = "sum over records of all products of two features"
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

    def factors(self, x: Any, y: Any, facts: Facts, grid: Grid, xp: Any) -> tuple[Any, Any]:
        q = grid.vector(inputs(self.chain, self.constant, x, xp) / _bound(self.constant), grid.unit, xp)
        return q, q


@dataclass(frozen=True)
class Mean:
    """Σ z over records, z = chain(x): n times their mean. 1 × d.

    Proof: the contribution is 2ᵇ·q with Σ q² ≤ 4ᵇ, hence of norm at most 4ᵇ. ∎
    """

    chain: Chain
    kind: ClassVar[str] = "mean"
    words: ClassVar[str] = "sum of the clipped feature vectors"
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

    def factors(self, x: Any, y: Any, facts: Facts, grid: Grid, xp: Any) -> tuple[Any, Any]:
        q = grid.vector(run(self.chain, x, xp), grid.unit, xp)
        return xp.full_like(q[:, :1], grid.one), q


@dataclass(frozen=True)
class ClassSums:
    """Σ_{i: y_ij = 1} x_i for every class j: b_j of Algorithm 3. m × d.

    Proof: the contribution is 2ᵇ·(y ⊗ q) with at most k ones in y and Σ q² ≤ 4ᵇ/k, so its squared norm is at most
    4ᵇ·k·4ᵇ/k. ∎
    """

    chain: Chain
    kind: ClassVar[str] = "class_sums"
    words: ClassVar[str] = "sum of the clipped feature vectors, class by class"
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

    def factors(self, x: Any, y: Any, facts: Facts, grid: Grid, xp: Any) -> tuple[Any, Any]:
        return y * grid.one, grid.vector(run(self.chain, x, xp), grid.unit // facts.k, xp)


@dataclass(frozen=True)
class ClassGrams:
    """Σ_{i: y_ij = 1} x_i x_iᵀ for every class j: A_j of Algorithm 3. m × d × d, each symmetric.

    Proof: the contribution is y ⊗ q qᵀ with at most k ones in y and Σ q² ≤ ⌊√(16ᵇ/k)⌋, so its squared norm is at most
    k·(Σ q²)² ≤ 16ᵇ. For two records the inner product is |L ∩ L'|·(a·b)² ≥ 0, hence √2 under replace-one. ∎
    """

    chain: Chain
    kind: ClassVar[str] = "class_grams"
    words: ClassVar[str] = "the gram, class by class"
    arrays: ClassVar[tuple[str, ...]] = ()
    numbers: ClassVar[tuple[str, ...]] = ()
    replace_one: ClassVar[float] = math.sqrt(2)
    symmetric: ClassVar[bool] = True

    def shape(self, facts: Facts) -> tuple[int, ...]:
        return (facts.m, facts.d, facts.d)

    def array_shapes(self, facts: Facts) -> dict[str, tuple[int, ...]]:
        return {}

    def scale(self, facts: Facts, grid: Grid) -> float:
        return 1 / grid.radius(self._squared(facts, grid), facts.d) ** 2

    def factors(self, x: Any, y: Any, facts: Facts, grid: Grid, xp: Any) -> tuple[Any, Any]:
        return y, grid.vector(run(self.chain, x, xp), self._squared(facts, grid), xp)

    def _squared(self, facts: Facts, grid: Grid) -> int:
        return math.isqrt(grid.unit**2 // facts.k)


@dataclass(frozen=True)
class Gradient:
    """Σ clip(∇ℓ(θ; x, y)) over records: g_t of Algorithm 4. θ and the answer are (d or d + 1) × m.

    For a linear model the gradient of one record is z ⊗ r with r = σ(zᵀθ) − y, and its norm is ‖z‖·‖r‖, so it is
    clipped without ever being formed: z/‖z‖ ⊗ r·min(‖z‖, C_g/‖r‖). The softmax's target is a distribution: a record of
    several labels has y/|y|. theta: finite float64; clip: C_g > 0; radius: the length that every z is scaled to first,
    None for none.

    Proof: the contribution is q ⊗ s with Σ q² ≤ 4ᵇ and Σ s² ≤ 4ᵇ, and ‖q ⊗ s‖ = ‖q‖·‖s‖ ≤ 4ᵇ. Logits are float32 and
    may round as they please: they change s, not its bound, and they depend on this record and on θ alone. ∎
    """

    chain: Chain
    theta: np.ndarray
    clip: float
    constant: float = 1.0
    loss: Loss = "sigmoid"
    radius: float | None = None
    kind: ClassVar[str] = "gradient"
    words: ClassVar[str] = "sum of the loss's clipped gradients over records"
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

    def factors(self, x: Any, y: Any, facts: Facts, grid: Grid, xp: Any) -> tuple[Any, Any]:
        z = inputs(self.chain, self.constant, x, xp, self.radius)
        logits = z.astype(xp.float32) @ self.theta.astype(xp.float32)
        p = probabilities(logits, self.loss, xp)
        length = xp.sqrt(xp.sum(z * z, axis=-1, keepdims=True))
        direction = z / xp.where(length > 0, length, 1.0)
        target = y / xp.maximum(xp.sum(y, axis=-1, keepdims=True), 1.0) if self.loss == "softmax" else y
        residual = (p.astype(xp.float64) - target) * (length / self.clip)
        return grid.vector(direction, grid.unit, xp), grid.vector(residual, grid.unit, xp)


@dataclass(frozen=True)
class Hessians:
    """Σ s_j·z zᵀ with s_j = p_j(1 − p_j), for the classes start..stop−1: H_j of Algorithm 2, a block of classes at a
    time.

    The Hessian of the sigmoid loss with respect to θ_j. theta: side × m, finite float64. The answer is a stack of
    symmetric matrices, (stop − start) × side × side.

    Proof: the contribution is s ⊗ q qᵀ with Σ s_j² ≤ S² and Σ q² ≤ Q, S·Q = 4ᵇ, so its norm is at most S·Q. In natural
    units S stands for √c/4 with c = stop − start, which ‖s‖ never exceeds as s_j ≤ ¼, and Q for C²: the unit is
    √c·C²/4, the paper's sensitivity for c = m. For two records the inner product is (s·s')(a·b)² ≥ 0, since s is not
    negative: √2 under replace-one. ∎
    """

    chain: Chain
    theta: np.ndarray
    start: int
    stop: int
    constant: float = 0.0
    kind: ClassVar[str] = "hessians"
    words: ClassVar[str] = "sums of the loss's second derivatives, class by class"
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

    def factors(self, x: Any, y: Any, facts: Facts, grid: Grid, xp: Any) -> tuple[Any, Any]:
        (weights, features), columns = grid.weighted, slice(self.start, self.stop)
        z = inputs(self.chain, self.constant, x, xp)
        p = probabilities(z.astype(xp.float32) @ self.theta[:, columns].astype(xp.float32), "sigmoid", xp)
        curvature = (p * (1 - p)).astype(xp.float64) * (4 / math.sqrt(self.stop - self.start))
        return grid.vector(curvature, weights, xp), grid.vector(z / _bound(self.constant), features, xp)


QUERIES = (Mean, Gram, ClassSums, ClassGrams, Gradient, Hessians)


def check(query: Query, facts: Facts) -> None:
    """ValueError unless the query is one of `QUERIES` itself, with its own fields and no others, a chain of known
    steps, positive finite numbers and finite arrays of their exact shapes.

    The proofs above are about these classes and these shapes: a subclass could override `factors`, an attribute of the
    instance could stand before `replace_one` or `scale`, and an array of another shape could broadcast one record's
    residual over the others.
    """
    known: Any = query
    if (
        type(query) not in QUERIES
        or vars(query).keys() != {field.name for field in fields(known)}
        or type(query.chain) is not tuple
    ):
        raise ValueError(f"{type(query).__name__} is not a query of the core")
    chains.check(query.chain, facts.d)
    numbers: list[float] = []
    if isinstance(query, Hessians) and not (
        type(query.start) is type(query.stop) is int and 0 <= query.start < query.stop <= facts.m
    ):
        raise ValueError(f"there are no classes {query.start}..{query.stop} of {facts.m}")
    if isinstance(query, Gram | Gradient | Hessians):
        numbers.append(1.0 if query.constant == 0 else query.constant)
    if isinstance(query, Gradient):
        numbers += [query.clip, 1.0 if query.radius is None else query.radius]
        loss: Any = query.loss
        if type(loss) is not str or loss not in get_args(Loss):
            raise ValueError(f"unknown loss {query.loss!r}")
    if not all(type(v) in chains.NUMBERS and 0 < v < math.inf for v in numbers):
        raise ValueError(f"{query.kind} was asked for with numbers that are not positive and finite")
    for name, shape in query.array_shapes(facts).items():
        array: Any = getattr(query, name)
        # An object that behaves like an array could bring code of its own into the map over the records.
        plain = type(array) is np.ndarray and array.shape == shape and array.dtype == np.float64
        if not plain or not np.isfinite(array).all():
            raise ValueError(f"{query.kind}: {name} must be a finite float64 array of shape {shape}")


def contribution(query: Query, x: np.ndarray, labels: np.ndarray, facts: Facts, grid: Grid) -> np.ndarray:
    """What one record adds to the sum, in lattice integers: the definition that the kernels are held against.

    x: d features; labels: k labels, −1 for "none". Returns the query's shape, float64 holding integers.
    """
    x, y, valid = prepare(x[None], labels[None], facts.m, np)
    left, right = query.factors(x, y, facts, grid, np)
    if isinstance(query, ClassGrams | Hessians):
        added = left[0][:, None, None] * np.outer(right[0], right[0])
    else:
        added = np.outer(left[0], right[0])
    return np.where(valid[0, 0], added, 0.0)
