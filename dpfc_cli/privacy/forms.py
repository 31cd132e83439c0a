"""How a query is asked for: what a plan fixes of it, in which pieces it is made, and which objects are queries at all.

A plan is made before the first answer. So it holds the *form* of a query: the query with a placeholder for each value
that an earlier answer may decide. Queries of one form have answers of one shape, and the same sensitivity.

The proofs are about the classes of `queries`, with numbers and arrays in their bounds. `check` refuses everything else.
"""

import enum
import sys
from dataclasses import fields, replace
from typing import get_args

import numpy as np

from dpfc_cli.privacy import chain as chains
from dpfc_cli.privacy.chain import Array
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.inputs import Loss
from dpfc_cli.privacy.lattice import LONGEST
from dpfc_cli.privacy.outcomes import Outcomes
from dpfc_cli.privacy.queries import QUERIES, ClassGrams, Gradient, Gram, Hessians, Query
from dpfc_cli.privacy.standings import DEEPEST, Standings

PIECE_BYTES = 64 * 2**20
"""The most bytes of a piece of an answer, unless one matrix has more. See `pieces`."""
LARGEST_OFFSET = 1e6
"""Logits are cut there (`inputs.probabilities`)."""
_FIELDS: dict[type, set[str]] = {kind: {each.name for each in fields(kind)} for kind in QUERIES}


class _Open(enum.Enum):
    OPEN = "open"


OPEN: Array = _Open.OPEN
"""A placeholder in a form, for a value that is known only after earlier answers."""


def opened(query: Query, *names: str) -> Query:
    """The query with `OPEN` in place of the named fields and of all values of its chain.

    Fields that are None or 0 stay as they are, because there these values mean "none".
    """
    held = {name: value for name, value in vars(query).items() if name in names}
    free = [name for name, value in held.items() if isinstance(value, np.ndarray) or value not in (None, 0)]
    chain = chains.with_values(query.chain, [OPEN] * len(query.chain))
    return replace(query, **dict.fromkeys(free, OPEN), chain=chain)  # type: ignore[type-var]


def form(query: Query) -> Query:
    """What a plan fixes of a query.

    This is its class, the kinds of the steps of its chain, its loss and classes, and whether it has a bias. The result
    is hashable. Queries of one form have answers of one shape, and the same sensitivity.
    """
    return opened(query, *query.arrays, *query.numbers, "constant")


def pieces(query: Query, shape: tuple[int, ...]) -> list[Query]:
    """The pieces in which a query is summed and noised, so that memory holds one of them: at most `PIECE_BYTES`, or one
    matrix. Most queries are one piece.

    shape: of its answer. Of the query the form is enough.
    """
    if not isinstance(query, ClassGrams) or query.stop is not None:
        return [query]
    count, side = shape[0], shape[-1]
    size = max(1, PIECE_BYTES // (8 * side**2))
    if count <= size:
        return [query]
    return [replace(query, start=start, stop=min(start + size, count)) for start in range(0, count, size)]


def packed(stack: np.ndarray) -> np.ndarray:
    """The upper triangles of a stack of symmetric matrices: what is kept of a piece."""
    return stack[(slice(None), *np.triu_indices(stack.shape[-1]))]


def unpacked(triangles: np.ndarray, side: int) -> np.ndarray:
    """The matrices of which `packed` has made these triangles."""
    stack, (rows, columns) = np.empty((len(triangles), side, side)), np.triu_indices(side)
    stack[:, rows, columns] = stack[:, columns, rows] = triangles
    return stack


def check(query: Query, facts: Facts) -> None:
    """Check that a query is one that the proofs are about.

    The proofs are about these classes and these shapes. Other objects could break them in three ways. A subclass could
    override `factors`. An attribute of the instance could hide `replace_one` or `scale` of its class. An array of
    another shape could broadcast the residual of one record over the others.

    ValueError: the class of the query is not one of `QUERIES` itself; it has other fields than its own; its chain has
    an unknown step; a number is not positive and finite; or an array is not finite or does not have its exact shape.
    """
    if type(query) not in _FIELDS or vars(query).keys() != _FIELDS[type(query)] or type(query.chain) is not tuple:
        raise ValueError(f"{type(query).__name__} is not a query of the core")
    chains.check(query.chain, facts.d)
    numbers: list[float] = []
    if isinstance(query, Hessians) and not (
        type(query.start) is type(query.stop) is int and 0 <= query.start < query.stop <= facts.m
    ):
        raise ValueError(f"there are no classes {query.start}..{query.stop} of {facts.m}")
    if isinstance(query, ClassGrams) and not (
        type(query.start) is int
        and type(query.stop) in (int, type(None))
        and 0 <= query.start < (facts.m if query.stop is None else query.stop) <= facts.m
        and (query.start == 0 or query.stop is not None)
    ):
        raise ValueError(f"there is no piece {query.start}..{query.stop} of {facts.m} classes")
    if isinstance(query, Outcomes | Standings) and not (
        type(query.groups) is int and query.groups >= 1 and facts.m % query.groups == 0
    ):
        raise ValueError(f"{facts.m} classes are not those of {query.groups!r:.40} subgroups")
    if isinstance(query, Outcomes) and not (
        type(query.by_class) is bool
        and type(query.best) is int
        and 1 <= query.best < (2 if query.by_class else max(facts.m // query.groups, 2))
        and query.shape(facts)[1] <= LONGEST
    ):
        raise ValueError(f"outcomes of {facts.m} classes cannot be counted so")
    if isinstance(query, Standings) and not (
        type(query.depth) is int and 1 <= query.depth <= DEEPEST and query.shape(facts)[1] <= LONGEST
    ):
        raise ValueError(f"standings of {facts.m} classes cannot be counted so")
    if isinstance(query, Gram | Gradient | Hessians):
        # The type first: an object of another class could claim to equal 0.
        none = type(query.constant) in chains.NUMBERS and query.constant == 0
        numbers.append(1.0 if none else query.constant)
    if isinstance(query, Gradient):
        numbers += [query.clip, 1.0 if query.radius is None else query.radius]
        loss: object = query.loss
        if type(loss) is not str or loss not in get_args(Loss):
            raise ValueError(f"unknown loss {query.loss!r}")
        if type(query.offset) not in chains.NUMBERS or not abs(query.offset) <= LARGEST_OFFSET:
            raise ValueError(f"{query.offset!r:.40} is no offset of logits")
    # An int beyond float64 is smaller than infinity.
    if not all(type(v) in chains.NUMBERS and 0 < v <= sys.float_info.max for v in numbers):
        raise ValueError(f"{query.kind} was asked for with numbers that are not positive and finite")
    for name, shape in query.array_shapes(facts).items():
        array: Array = getattr(query, name)
        # An object that only behaves like an array could bring its own code into the map over the records.
        plain = type(array) is np.ndarray and array.shape == shape and array.dtype == np.float64
        if not plain or not np.isfinite(array).all():
            raise ValueError(f"{query.kind}: {name} must be a finite float64 array of shape {shape}")
