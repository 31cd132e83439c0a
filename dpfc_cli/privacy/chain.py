"""Preprocessing of single records: a chain of steps from a small closed set, the same in training and in prediction.

A step is data, never a function. So the file of a head can hold it, and the core can run it on records. Each step maps
one record without looking at any other.

The code works with any array namespace `xp` (NumPy or `jax.numpy`). Except for `Linear`, it avoids every operation with
a result that could depend on the order of a floating-point sum. So it gives the same numbers for any shape of the
blocks and any number of devices. (NumPy and XLA may differ in the last bit where XLA multiplies by a reciprocal. XLA
also treats denormal float32 numbers as zero.)

No proof relies on a chain. `Lattice.vector` bounds the output of every chain, whatever the arrays of its steps hold.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

Array = Any
"""An array of NumPy or of JAX. Functions that take one take the module, too (`xp`), and compute the same with both."""
NUMBERS = (int, float, np.float64)
"""The types that a number may have. Subclasses are not accepted, because they could carry code."""
LARGEST = 1e200
"""The largest clipping norm of a head, and the reciprocal of the smallest one."""
NORM_BITS = 18
"""Norms are measured on a grid with this many bits below the largest coordinate of a record; see `norms`."""


@dataclass(frozen=True)
class Clip:
    """x ↦ x·min(1, C/‖x‖)/C: clip to norm C, then measure in units of C. The result has a norm of at most 1.

    norm: C > 0, in the units of the features. If C is smaller than the norm of every record (as the paper's 0.005),
    every record is scaled to norm 1.
    """

    norm: float


@dataclass(frozen=True)
class Centre:
    """x ↦ x − mean. mean: d, float64."""

    mean: np.ndarray


@dataclass(frozen=True)
class Linear:
    """x ↦ Aᵀx, in float32. matrix: A, d × d, float64.

    The product may round differently in blocks of another shape, as logits do.
    """

    matrix: np.ndarray


Step = Clip | Centre | Linear
Chain = tuple[Step, ...]
_NAMES: dict[str, type[Step]] = {"clip": Clip, "centre": Centre, "linear": Linear}
_FIELDS: dict[type[Step], str] = {Clip: "norm", Centre: "mean", Linear: "matrix"}


def norms(v: Array, xp: ModuleType) -> Array:
    """Euclidean norms of the rows of v (B × d, float64), with a relative error of at most √d·2⁻¹⁹: B × 1, float64. That
    of a row of zeros is 0.

    The coordinates are rounded to integers on a grid. The spacing of the grid is the largest coordinate of the row
    divided by 2¹⁸. The squares of these integers sum exactly, because d·2³⁶ ≤ 2⁵³ for d ≤ 2¹⁷. So the result is the
    same number for any order of the sum and on any IEEE machine.
    """
    largest = xp.max(xp.abs(v), axis=-1, keepdims=True)
    step = xp.where(largest > 0, largest, 1.0) / 2.0**NORM_BITS
    # For a row of denormal numbers the step would be 0. Such a row counts as zero.
    grid = xp.rint(v / xp.where(step > 0, step, 1.0))
    return step * xp.sqrt(xp.sum(grid * grid, axis=-1, keepdims=True))


def into_ball(v: Array, xp: ModuleType) -> Array:
    """Scale the rows of v that are longer than 1 to norm 1 (to the accuracy of `norms`). The other rows do not
    change.
    """
    return v / xp.maximum(norms(v, xp), 1.0)


def run(chain: Chain, x: Array, xp: ModuleType) -> Array:
    """Apply the chain to every row of x: from B × d, float32 and finite, to B × d, float64."""
    z = x.astype(xp.float64)
    for step in chain:
        if isinstance(step, Clip):
            z = into_ball(z / step.norm, xp)
        elif isinstance(step, Centre):
            z = z - step.mean
        else:
            z = (z.astype(xp.float32) @ step.matrix.astype(xp.float32)).astype(xp.float64)
    return z


def values(chain: Chain) -> list[Array]:
    """The number or the array of each step."""
    return [getattr(step, _FIELDS[type(step)]) for step in chain]


def with_values(chain: Chain, given: Sequence[Array]) -> Chain:
    """The chain with other numbers and arrays: one value for each step, in order.

    If all of them are hashable placeholders, the result is hashable. It then stands for all chains with these kinds of
    steps.
    """
    return tuple(replace(step, **{_FIELDS[type(step)]: value}) for step, value in zip(chain, given, strict=True))


def check(chain: Chain, d: int) -> None:
    """Check a chain for d dimensions before it is used on records. ValueError: a step is of an unknown class, its
    number is not positive and finite, or its array is not a finite float64 array of exactly the right shape.
    """
    for step in chain:
        value: Array = getattr(step, _FIELDS.get(type(step), ""), None)
        if type(step) is Clip:
            if not (type(value) in NUMBERS and 0 < value < math.inf):
                raise ValueError("a clipping norm must be positive and finite")
        else:
            shape = (d,) if type(step) is Centre else (d, d) if type(step) is Linear else None
            if type(value) is not np.ndarray or value.shape != shape or value.dtype != np.float64:
                raise ValueError(f"{type(step).__name__} is not a step of the core over {d} dimensions")
            if not np.isfinite(value).all():
                raise ValueError(f"{type(step).__name__} must hold finite numbers")


def to_json(chain: Chain) -> list[dict[str, float | str]]:
    """The chain as the card of a head holds it, without its arrays."""
    names = {kind: name for name, kind in _NAMES.items()}
    return [{"step": names[type(s)]} | ({"norm": s.norm} if isinstance(s, Clip) else {}) for s in chain]


def arrays(chain: Chain) -> list[np.ndarray]:
    """The arrays of the steps, in order. A head holds them beside its card."""
    return [value for value in values(chain) if isinstance(value, np.ndarray)]


def from_json(steps: object, held: Sequence[np.ndarray], d: int) -> Chain:
    """The chain, for d dimensions, that a card and its arrays describe. steps: what `to_json` wrote. held: in the order
    of `arrays`. ValueError: this version does not know a step, an array is missing, or a value is not valid (see
    `check`).
    """
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise ValueError("its preprocessing is no list of steps")
    left, chain = list(held), list[Step]()
    for step in steps:
        kind = _NAMES.get(str(step.get("step")))
        if kind is None:
            raise ValueError("unknown preprocessing step")
        value: Array = step.get("norm", None if kind is Clip else 1.0)
        if type(value) is not float or not 1 / LARGEST <= value <= LARGEST:
            raise ValueError("a clipping norm must be positive, and a float32 number in units of it must be finite")
        if kind is not Clip:
            value = left.pop(0) if left else None
        chain.append(kind(value))
    if len(held) != sum(type(step) is not Clip for step in chain):
        raise ValueError("the arrays of its preprocessing are missing")
    check(tuple(chain), d)
    return tuple(chain)
