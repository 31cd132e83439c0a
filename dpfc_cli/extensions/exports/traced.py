"""Functions of JAX as nodes of an ONNX graph.

A function is traced for one row, such as a picture. What depends on the row has one axis more in the graph, the first
one, for rows. So all other sizes are numbers, and a graph takes any number of rows. What does not depend on the row is
computed here, and becomes a constant.
"""

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Var
from numpy.typing import DTypeLike

from dpfc_cli.errors import unsupported
from dpfc_cli.extensions.exports.graph import Graph

Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Seen:
    """What depends on the row: its name in the graph, and its shape for one row."""

    name: str
    shape: Shape


_Axes = tuple[tuple[Shape, Shape], tuple[Shape, Shape]]
"""Of two factors: the axes that are summed over, and those of the batch."""
_Value = _Seen | np.ndarray
"""Where it is the same along an axis, the axis may have the length 1 instead of its own."""


def nodes(graph: Graph, given: str, like: np.ndarray, function: Callable[[jax.Array], jax.Array]) -> str:
    """Add what a function computes, and return the name of its result, (n, …).

    Args:
        graph: the graph.
        given: the name of the function's input in the graph, (n, …).
        like: one row of it. Its type and shape count.
        function: what it computes of a row depends on that row alone.

    Raises:
        UserError: the function has an operation that is not in the tables below.

    """
    traced = jax.make_jaxpr(lambda row: function(row[None])[0])(like)
    work = _Work(graph, given)
    (result,) = work.run(traced, [_Seen(given, like.shape)])
    return work.batched(work.whole(result, traced.out_avals[0].shape))


class _Work:
    """The translation of one function."""

    def __init__(self, graph: Graph, given: str) -> None:
        self.graph = graph
        self._count = graph("Slice", graph("Shape", given), _ints(0), _ints(1))

    def run(self, closed: ClosedJaxpr, inputs: Sequence[_Value]) -> list[_Value]:
        jaxpr = closed.jaxpr
        given = (*map(np.asarray, closed.consts), *inputs)
        values: dict[Var, _Value] = dict(zip((*jaxpr.constvars, *jaxpr.invars), given, strict=True))

        def value(of: Any) -> _Value:
            return np.asarray(of.val, of.aval.dtype) if hasattr(of, "val") else values[of]

        for each in jaxpr.eqns:
            values.update(zip(each.outvars, self.computed(each, [value(of) for of in each.invars]), strict=True))
        return [value(of) for of in jaxpr.outvars]

    def computed(self, equation: Any, inputs: list[_Value]) -> list[_Value]:
        name, said, shapes = equation.primitive.name, equation.params, [each.aval.shape for each in equation.outvars]
        if name == "broadcast_in_dim":
            shape = np.ones(len(shapes[0]), int)
            shape[list(said["broadcast_dimensions"])] = inputs[0].shape
            return [self.reshaped(inputs[0], tuple(shape.tolist()))]
        if name in _ELEMENTWISE and any(isinstance(each, _Seen) for each in inputs):
            # A single number meets arrays.
            inputs = [self.reshaped(each, each.shape or (1,) * len(shapes[0])) for each in inputs]
            made = _ELEMENTWISE[name](self.graph, *map(_node, inputs), **said)
            return [_Seen(made, np.broadcast_shapes(*(each.shape for each in inputs)))]
        inner = said.get("jaxpr", said.get("call_jaxpr"))
        if inner is not None and name != "scan":
            return self.run(inner, inputs)
        whole = [self.whole(each, of.aval.shape) for each, of in zip(inputs, equation.invars, strict=True)]
        if name == "scan" and not said["num_carry"]:
            fixed = said["num_consts"]
            rows = ([self.row(each, i) for each in whole[fixed:]] for i in range(said["length"]))
            steps = zip(*(self.run(inner, [*whole[:fixed], *row]) for row in rows), strict=True)
            return [self.stacked(each, shape) for each, shape in zip(steps, shapes, strict=True)]
        if not any(isinstance(each, _Seen) for each in whole):
            known = equation.primitive.bind(*whole, **said)
            return [np.asarray(each) for each in (known if equation.primitive.multiple_results else [known])]
        if name not in _OTHERS:
            raise unsupported(f"dpfc cannot write the operation '{name}' as ONNX.", "Export the head alone.")
        names = _OTHERS[name](self, shapes[0], *whole, **said)
        return [_Seen(*each) for each in zip([names] if isinstance(names, str) else names, shapes, strict=True)]

    def row(self, value: _Value, i: int) -> _Value:
        if isinstance(value, np.ndarray):
            return np.asarray(value[i])
        return _Seen(self.graph("Gather", value.name, np.int64(i), axis=1), value.shape[1:])

    def stacked(self, rows: Sequence[_Value], shape: Shape) -> _Value:
        return _Seen(_stack(self, shape, *(self.whole(each, shape[1:]) for each in rows), axis=0), shape)

    def reshaped(self, value: _Value, shape: Shape) -> _Value:
        if isinstance(value, np.ndarray):
            return value.reshape(shape)
        return value if value.shape == shape else _Seen(self.graph("Reshape", value.name, _ints(0, *shape)), shape)

    def whole(self, value: _Value, shape: Shape) -> _Value:
        if isinstance(value, np.ndarray):
            return np.broadcast_to(value, shape)
        return value if value.shape == shape else _Seen(self.graph("Expand", value.name, _ints(1, *shape)), shape)

    def batched(self, value: _Value) -> str:
        """The name of a value with the axis for rows."""
        if isinstance(value, _Seen):
            return value.name
        return self.graph("Expand", value, self.graph("Concat", self._count, _ints(*value.shape), axis=0))


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _node(value: _Value) -> str | np.ndarray:
    return value.name if isinstance(value, _Seen) else value


def _moved(axes: Sequence[int]) -> list[int]:
    """Axes of a row's value as those of the graph's."""
    return [int(axis) + 1 for axis in axes]


def _cast(graph: Graph, x: str, *, new_dtype: DTypeLike, **_: object) -> str:
    from onnx import helper

    return graph("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(new_dtype)))


def _slice(work: _Work, shape: Shape, x: _Seen, *, start_indices: Shape, limit_indices: Shape, strides: Any) -> str:
    axes, steps = _ints(*_moved(range(len(shape)))), strides or (1,) * len(shape)
    return work.graph("Slice", x.name, _ints(*start_indices), _ints(*limit_indices), axes, _ints(*steps))


def _rev(work: _Work, shape: Shape, x: _Seen, *, dimensions: Shape) -> str:
    ones = np.ones(len(dimensions), np.int64)
    return work.graph("Slice", x.name, -ones, -ones << 31, _ints(*_moved(dimensions)), -ones)


def _stack(work: _Work, shape: Shape, *parts: _Value, axis: int) -> str:
    one = (*shape[:axis], 1, *shape[axis + 1 :])
    return work.graph("Concat", *(work.batched(work.reshaped(each, one)) for each in parts), axis=axis + 1)


def _product(work: _Work, shape: Shape, *factors: _Value, dimension_numbers: _Axes, **_: object) -> str:
    """A product of matrices, or an Einstein sum."""
    x, y = factors
    (ours, theirs), (our_batch, their_batch) = dimension_numbers
    batch, ranks = len(our_batch), (len(x.shape), len(y.shape))
    ordered = (ours, theirs, our_batch, their_batch) == ((ranks[0] - 1,), (batch,), *[tuple(range(batch))] * 2)
    if ordered and (ranks == (batch + 2, batch + 2) or (batch == 0 and ranks[1] == 2 and isinstance(y, np.ndarray))):
        return work.graph("MatMul", *map(_node, factors))
    left, right = string.ascii_lowercase[: len(x.shape)], list(string.ascii_uppercase[: len(y.shape)])
    for i, j in zip((*ours, *our_batch), (*theirs, *their_batch), strict=True):
        right[j] = left[i]
    first = [left[i] for i in our_batch]
    free = [each for each in (*left, *right) if (each in left) != (each in right)]
    terms = ("." * 3 * isinstance(each, _Seen) + "".join(term) for each, term in ((x, left), (y, right)))
    return work.graph("Einsum", *map(_node, factors), equation=f"{','.join(terms)}->...{''.join((*first, *free))}")


def _same(operator: str, graph: Graph, *inputs: str | np.ndarray, **_: object) -> str:
    return graph(operator, *inputs)


_SAME = ["Add", "Sub", "Mul", "Div", "Max", "Min", "Exp", "Log", "Erf", "Tanh", "Sqrt", "Neg", "Abs"]
_ELEMENTWISE: dict[str, Callable[..., str]] = {
    **{name.lower(): partial(_same, name) for name in _SAME},
    "stop_gradient": partial(_same, "Identity"),
    "logistic": partial(_same, "Sigmoid"),
    "round": partial(_same, "Round"),
    "gt": partial(_same, "Greater"),
    "select_n": lambda graph, which, no, yes: graph("Where", which, yes, no),
    "rsqrt": lambda graph, x, **_: graph("Div", np.float32(1), graph("Sqrt", x)),
    "integer_pow": lambda graph, x, y: graph("Pow", x, np.float32(y)),
    "convert_element_type": _cast,
}
_OTHERS: dict[str, Callable[..., str | list[str]]] = {
    "reshape": lambda work, shape, x, **_: work.reshaped(x, shape).name,
    "squeeze": lambda work, shape, x, **_: work.reshaped(x, shape).name,
    "transpose": lambda work, _, x, permutation: work.graph("Transpose", x.name, perm=[0, *_moved(permutation)]),
    "slice": _slice,
    "rev": _rev,
    "split": lambda work, _, x, sizes, axis: work.graph.several(
        "Split", len(sizes), x.name, _ints(*sizes), axis=axis + 1
    ),
    "concatenate": lambda work, _, *parts, dimension: work.graph(
        "Concat", *map(work.batched, parts), axis=dimension + 1
    ),
    "stack": _stack,
    "reduce_sum": lambda work, _, x, axes, **__: work.graph("ReduceSum", x.name, _ints(*_moved(axes)), keepdims=0),
    "reduce_max": lambda work, _, x, axes, **__: work.graph("ReduceMax", x.name, axes=_moved(axes), keepdims=0),
    "dot_general": _product,
}
