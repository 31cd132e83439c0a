"""The plain recipe: an early version of DP-Whitened, and all versions between the two. For research only.

The recipe differs from the product in this:

- Its first release has twice the weight of the others: class sums of whole records, where the others are gradients
  clipped at half the length of a record.
- The bias feature is as long as a whitened coordinate.
- Negative eigenvalues are cut at 0, and the damping is half the edge of the noise.
- There is no momentum, and the total step is at most 150.
- The total step is ρ^0.85·(m/30)^¼, and the damping is proportional to the edge, however large that is.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from dpfc_cli.methods import whitened
from dpfc_cli.methods.method import Solution
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.oracle import Oracle
from dpfc_cli.privacy.queries import Gradient, Query, sensitivity

INGREDIENTS = ("equal weights", "short constant", "shrinkage", "momentum", "total step")
"""In the order in which they are added to the recipe. The shrinkage comes with damping by a quarter of the edge. The
momentum comes with a largest stable step and a total step of up to 300. The rule for the total step comes with the
damping of large edges. All of them together are the product."""


def options(ingredients: Sequence[str]) -> dict[str, Any]:
    """The options of the method that a variant with these ingredients changes."""
    bias = {} if "short constant" in ingredients else {"bias_feature": 1.0}
    return bias if "shrinkage" in ingredients else {**bias, "damping": 0.5}


@contextmanager
def only(ingredients: Sequence[str]) -> Iterator[None]:
    """In this context `whitened.solve` has only these ingredients. Its options are given separately."""
    with ExitStack() as stack:
        if "shrinkage" not in ingredients:
            stack.enter_context(mock.patch.object(whitened, "shrink", lambda values, spread: values))
        if "momentum" not in ingredients:
            stack.enter_context(mock.patch.object(whitened, "STABLE", math.inf))
        if "total step" not in ingredients:
            longest = 300.0 if "momentum" in ingredients else 150.0
            stack.enter_context(mock.patch.object(whitened, "DROWNED", math.inf))
            stack.enter_context(mock.patch.object(whitened, "total_step", partial(total_step, longest)))
        yield


def total_step(longest: float, dimension: float, facts: Facts, options: whitened.Options) -> float:
    """The rule of the recipe for the total step."""
    rho = facts.n * options.mu / (sensitivity(Gradient, facts) * dimension)
    return options.learning_rate * min(math.pow(rho, 0.85) * math.pow(facts.m / 30, 0.25), longest)


class FirstWhole(Oracle):
    """An oracle that clips its first gradient at the full length of a record: at θ = 0 it gives class sums."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle, self._first = oracle, True

    def release(self, query: Query) -> np.ndarray:
        if isinstance(query, Gradient) and self._first:
            assert query.radius is not None
            query, self._first = replace(query, clip=query.radius), False
        return self._oracle.release(query)


def solve(ingredients: Sequence[str], oracle: Oracle, facts: Facts, options: whitened.Options) -> Solution:
    """`whitened.solve` with only these ingredients."""
    with only(ingredients):
        return whitened.solve(oracle if "equal weights" in ingredients else FirstWhole(oracle), facts, options)
