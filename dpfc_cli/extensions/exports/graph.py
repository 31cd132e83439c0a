"""ONNX graphs: nodes and constants, written to files of any size.

A file of ONNX holds at most 2 GiB. Larger constants go into a second file beside it ("external data").
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

if TYPE_CHECKING:
    from onnx import NodeProto, ValueInfoProto

Values = dict[str, tuple[DTypeLike, tuple[str | int, ...]]]
"""The dtype and the shape of inputs or outputs, by name. A text in a shape stands for any number."""
OPSET = 17
"""The first version with layer normalisation. Runtimes since 2022 have it."""
IR_VERSION = 8
"""The version of the file format that belongs to the opset."""
LARGEST = 2**31 - 2**26
"""Bytes of constants that one file holds. The rest of 2 GiB is for nodes and texts."""
_ALIGNED = 64
_SMALL = 64
"""Bytes of the largest constant that is always in the model: shapes and axes are read before the graph runs."""


class Graph:
    """A graph that is being made. Call it with an operator and its inputs to add a node."""

    def __init__(self) -> None:
        self._nodes: list[NodeProto] = []
        self._arrays: dict[str, np.ndarray] = {}
        self._small: dict[tuple[object, ...], str] = {}

    def constant(self, array: np.ndarray) -> str:
        """The name of a constant. Small ones of the same value have the same name."""
        key = (array.dtype.str, array.shape, array.tobytes()) if array.nbytes <= _SMALL else None
        if key in self._small:
            return self._small[key]
        name = f"constant_{len(self._arrays)}"
        self._arrays[name] = array
        if key is not None:
            self._small[key] = name
        return name

    def __call__(self, operator: str, *inputs: "str | np.ndarray | np.generic", **attributes: Any) -> str:
        """Add a node, and return the name of its output. inputs: names of values, or arrays, which become constants."""
        return self.several(operator, 1, *inputs, **attributes)[0]

    def several(
        self, operator: str, outputs: int, *inputs: "str | np.ndarray | np.generic", **attributes: Any
    ) -> list[str]:
        """Add a node that has several outputs, and return their names."""
        from onnx import helper

        names = [each if isinstance(each, str) else self.constant(np.asarray(each)) for each in inputs]
        made = [f"{operator.lower()}_{len(self._nodes)}_{i}" for i in range(outputs)]
        self._nodes.append(helper.make_node(operator, names, made, **attributes))
        return made

    def name(self, value: str, as_: str) -> None:
        from onnx import helper

        self._nodes.append(helper.make_node("Identity", [value], [as_]))

    def files(
        self,
        inputs: Values,
        outputs: Values,
        texts: Mapping[str, str],
        name: str,
    ) -> dict[str, Iterable[bytes]]:
        """The bytes of the model, and of the file beside it if there must be one, as `Files`. texts: the
        metadata. name: of the file.
        """
        from onnx import external_data_helper, helper, numpy_helper

        from dpfc_cli.version import __version__

        apart = sum(array.nbytes for array in self._arrays.values()) > LARGEST
        beside = ".data"
        constants, outside, at = [], [], 0
        for each, array in self._arrays.items():
            constants.append(numpy_helper.from_array(np.asarray(array, order="C"), each))
            if apart and array.nbytes > _SMALL:
                external_data_helper.set_external_data(constants[-1], name + beside, at, array.nbytes)
                constants[-1].ClearField("raw_data")
                outside.append(array)
                at += array.nbytes + -array.nbytes % _ALIGNED
        inner = helper.make_graph(self._nodes, "dpfc", _declared(inputs), _declared(outputs), constants)
        model = helper.make_model(
            inner,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="dpfc",
            producer_version=__version__,
        )
        helper.set_model_props(model, dict(texts))
        parts: dict[str, Iterable[bytes]] = {beside: _bytes(outside)} if apart else {}
        return {**parts, "": [model.SerializeToString(deterministic=True)]}


def _declared(values: Values) -> "list[ValueInfoProto]":
    from onnx import helper

    return [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
        for name, (dtype, shape) in values.items()
    ]


def _bytes(arrays: Iterable[np.ndarray]) -> Iterator[bytes]:
    for array in arrays:
        yield array.tobytes()
        yield bytes(-array.nbytes % _ALIGNED)
