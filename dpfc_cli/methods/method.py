"""What a method is: a handful of pure functions under a name."""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from dpfc_cli.privacy.chain import Chain
from dpfc_cli.privacy.oracle import Facts, Oracle, Plan

Options = TypeVar("Options")


@dataclass(frozen=True)
class Solution:
    """A linear head without its card: scores are chain(x)·weight + bias. weight: d × m; bias: m. converged: of what
    runs to an optimum, whether it got there.
    """

    chain: Chain
    weight: np.ndarray
    bias: np.ndarray
    converged: bool | None = None


@dataclass(frozen=True)
class Method(Generic[Options]):
    """One way to train.

    defaults(facts, mu, given) fills the options that the user left open from public facts alone; mu is None for the
    non-private twin. plan(facts, options) and solve(oracle, facts, options) are as `privacy.oracle` describes. grid:
    what tuning tries, factors of the defaults; of options that the plan does not depend on.
    """

    name: str
    title: str
    options: type[Options]
    defaults: Callable[[Facts, float | None, Mapping[str, Any]], Options]
    plan: Callable[[Facts, Options], Plan]
    solve: Callable[[Oracle, Facts, Options], Solution]
    grid: Mapping[str, tuple[float, ...]]
    copies: int = 1
    """How many arrays of each answer's shape the solver keeps at once."""
    idle: tuple[str, ...] = ("split",)
    """Options that have no effect without noise."""


def factors(method: Method[Any], given: Mapping[str, Any]) -> list[dict[str, float]]:
    """Every point of the grid over the options that are not given."""
    open_options = {name: values for name, values in method.grid.items() if name not in given}
    return [dict(zip(open_options, point, strict=True)) for point in itertools.product(*open_options.values())]


def scaled(
    method: Method[Any], facts: Facts, mu: float, given: Mapping[str, Any], point: Mapping[str, float]
) -> dict[str, Any]:
    """The given options and those of a point, as values: its factors times the defaults, to four digits."""
    defaults = method.defaults(facts, mu, given)
    return {**given, **{name: float(f"{getattr(defaults, name) * factor:.4g}") for name, factor in point.items()}}


def state_bytes(method: Method[Any], plan: Plan) -> int:
    """Bytes of a training's largest state, from the plan alone, at 8 bytes a number.

    Beside what the solver keeps: while the largest answer is made, its exact sum as floats and
    as integers, and its noise; while a square matrix is decomposed, the copies and the workspace that LAPACK takes.
    """
    kept = method.copies * sum(math.prod(shape) for shape in {r.shape for r in plan.releases})
    square = max((r.shape[-1] ** 2 for r in plan.releases if r.shape[-1] == r.shape[-2]), default=0)
    return 8 * (kept + max(3 * plan.largest, 6 * square))
