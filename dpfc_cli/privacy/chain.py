"""Per-record preprocessing: a chain of steps from a small closed set, the same in training and in prediction.

A step is data, never a callable, so a head's file can carry it and the core can run it on records. Each step maps one
record by itself. The code is written for any array namespace `xp` (NumPy or `jax.numpy`) and avoids every operation
whose result could depend on the order of a floating-point sum, so that it gives the same numbers from any block shape
and on any number of devices. (NumPy and XLA may differ in a last bit where XLA multiplies by a reciprocal, and XLA
takes denormal float32 for zero.)
"""

import math
from dataclasses import dataclass
from typing import Any

NORM_BITS = 18
"""Records are measured on a grid of this many bits below their largest coordinate; see `norms`."""


@dataclass(frozen=True)
class Clip:
    """x ↦ x·min(1, C/‖x‖)/C: clip to norm C, then measure in units of C. The result has norm at most 1.

    norm: C > 0, in the features' own units. With a C below every record's norm (the paper's 0.005) each record is
    scaled to norm 1.
    """

    norm: float


Step = Clip
Chain = tuple[Step, ...]


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
        z = into_ball(z / step.norm, xp)
    return z


def to_json(chain: Chain) -> list[dict[str, float | str]]:
    """The chain as a head's card carries it."""
    return [{"step": "clip", "norm": step.norm} for step in chain]


def from_json(steps: list[dict[str, Any]]) -> Chain:
    """The chain of a card; ValueError for a step that this version does not know."""
    for step in steps:
        if step.get("step") != "clip" or not 0 < step["norm"] < math.inf:
            raise ValueError(f"unknown preprocessing step {step!r}")
    return tuple(Clip(float(step["norm"])) for step in steps)
