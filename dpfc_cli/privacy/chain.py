"""Per-record preprocessing: a chain of steps from a small closed set, the same in training and in prediction.

A step is data, never a callable, so a head's file can carry it and the core can run it on records. Each step maps one
record by itself. The code is written for any array namespace `xp` (NumPy or `jax.numpy`). But for `Linear` it avoids
every operation whose result could depend on the order of a floating-point sum, so that it gives the same numbers from
any block shape and on any number of devices. (NumPy and XLA may differ in a last bit where XLA multiplies by a
reciprocal, and XLA takes denormal float32 for zero.)

No proof rests on a chain: `Lattice.vector` bounds what comes out of it, whatever arrays its steps hold.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

NUMBERS = (int, float, np.float64)
"""What a number may be. Not their subclasses, which could carry code."""
NORM_BITS = 18
"""Records are measured on a grid of this many bits below their largest coordinate; see `norms`."""


@dataclass(frozen=True)
class Clip:
    """x ↦ x·min(1, C/‖x‖)/C: clip to norm C, then measure in units of C. The result has norm at most 1.

    norm: C > 0, in the features' own units. With a C below every record's norm (the paper's 0.005) each record is
    scaled to norm 1.
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


def norms(v: Any, xp: Any) -> Any:
    """Euclidean norms of the rows of v (B × d, float64), as B × 1, to a relative error of √d·2⁻¹⁹.

    The coordinates are rounded to integers on a grid tied to the row's largest one; their squares sum exactly (d·2³⁶ <
    2⁵³ for d ≤ 2¹⁷), so the result is the same number in any order and on any IEEE machine. Rows of zeros give 0.
    """
    largest = xp.max(xp.abs(v), axis=-1, keepdims=True)
    step = xp.where(largest > 0, largest, 1.0) / 2.0**NORM_BITS
    # A denormal row would make the step 0: such a row counts as zero.
    grid = xp.rint(v / xp.where(step > 0, step, 1.0))
    return step * xp.sqrt(xp.sum(grid * grid, axis=-1, keepdims=True))


def into_ball(v: Any, xp: Any) -> Any:
    """The rows of v, those longer than 1 scaled down to norm 1 (to the accuracy of `norms`)."""
    return v / xp.maximum(norms(v, xp), 1.0)


def run(chain: Chain, x: Any, xp: Any) -> Any:
    """The chain on every row of x (B × d, float32, finite): B × d float64."""
    z = x.astype(xp.float64)
    for step in chain:
        if isinstance(step, Clip):
            z = into_ball(z / step.norm, xp)
        elif isinstance(step, Centre):
            z = z - step.mean
        else:
            z = (z.astype(xp.float32) @ step.matrix.astype(xp.float32)).astype(xp.float64)
    return z


def values(chain: Chain) -> list[Any]:
    """The number or array of each step."""
    return [getattr(step, _FIELDS[type(step)]) for step in chain]


def with_values(chain: Chain, given: Sequence[Any]) -> Chain:
    """The chain with others. With None for each it is hashable, and stands for all of its form."""
    return tuple(replace(step, **{_FIELDS[type(step)]: value}) for step, value in zip(chain, given, strict=True))


def check(chain: Chain, d: int) -> None:
    """ValueError unless every step is of a known class, with a positive finite number or a finite float64 array of its
    exact shape.
    """
    for step in chain:
        value: Any = getattr(step, _FIELDS.get(type(step), ""), None)
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
    """The chain as a head's card carries it, without its arrays."""
    names = {kind: name for name, kind in _NAMES.items()}
    return [{"step": names[type(s)]} | ({"norm": s.norm} if isinstance(s, Clip) else {}) for s in chain]


def arrays(chain: Chain) -> list[np.ndarray]:
    """Those of its steps, in order: what a head carries beside the card."""
    return [value for value in values(chain) if isinstance(value, np.ndarray)]


def from_json(steps: list[dict[str, Any]], held: Sequence[np.ndarray], d: int) -> Chain:
    """The chain of a card with its arrays; ValueError for a step that this version does not know."""
    if any(step.get("step") not in _NAMES for step in steps):
        raise ValueError(f"unknown preprocessing step in {steps!r}")
    kinds: list[Any] = [_NAMES[step["step"]] for step in steps]
    if len(held) != sum(kind is not Clip for kind in kinds):
        raise ValueError("the arrays of its preprocessing are missing")
    left = iter(held)
    chain = tuple(k(float(s["norm"]) if k is Clip else next(left)) for s, k in zip(steps, kinds, strict=True))
    check(chain, d)
    return chain
