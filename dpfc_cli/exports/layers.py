"""What graphs of several families are made of: normalised pixels, patches, and the layers of networks, in float32."""

from typing import Any

import numpy as np

from dpfc_cli.backbones.vision_transformer.models import Activation
from dpfc_cli.exports.graph import Graph

Group = dict[str, np.ndarray]
_FLOAT = 1


def arrays(group: Any) -> Group:
    """The arrays of a group, as float32 on the host."""
    return {name: np.asarray(array).astype(np.float32, copy=False) for name, array in group.items()}


def whole(*values: int) -> np.ndarray:
    """A shape, or axes."""
    return np.array(values, np.int64)


def normalised(graph: Graph, pixels: str, mean: tuple[float, ...], std: tuple[float, ...]) -> str:
    """(x / 255 - mean) / std of bytes (n, S, S, 3)."""
    scale, shift = 1 / (255 * np.array(std)), np.array(mean) / np.array(std)
    seen = graph("Mul", graph("Cast", pixels, to=_FLOAT), scale.astype(np.float32))
    return str(graph("Sub", seen, shift.astype(np.float32)))


def patches(graph: Graph, x: str, side: int, patch: int, channels: int) -> str:
    """Cut (n, S, S, C) into patches, (n, N, p·p·C). What no whole patch covers is dropped."""
    grid = side // patch
    if grid * patch < side:
        x = graph("Slice", x, whole(0, 0), whole(grid * patch, grid * patch), whole(1, 2))
    cut = graph("Reshape", x, whole(0, grid, patch, grid, patch, channels))
    cut = graph("Transpose", cut, perm=[0, 1, 3, 2, 4, 5])
    return str(graph("Reshape", cut, whole(0, grid * grid, patch * patch * channels)))


class Layers:
    """Layers that take their parameters from groups of arrays by name, and add their nodes to the graph."""

    def __init__(self, graph: Graph) -> None:
        self.g = graph

    def dense(self, x: str, group: Group, name: str) -> str:
        return str(self.g("Add", self.g("MatMul", x, group[f"{name}.weight"]), group[f"{name}.bias"]))

    def scaled(self, x: str, group: Group, name: str) -> str:
        """Each channel multiplied by a number, if the group has these numbers."""
        return str(self.g("Mul", x, group[name])) if name in group else x

    def normed(self, x: str, group: Group, name: str, epsilon: float) -> str:
        """Layer normalisation over the last axis."""
        weight, bias = group[f"{name}.weight"], group[f"{name}.bias"]
        return str(self.g("LayerNormalization", x, weight, bias, axis=-1, epsilon=epsilon))

    def activated(self, x: str, activation: Activation) -> str:
        if activation == "quick_gelu":
            return str(self.g("Mul", x, self.g("Sigmoid", self.g("Mul", x, np.float32(1.702)))))
        if activation == "gelu_tanh":
            cube = self.g("Mul", self.g("Mul", self.g("Mul", x, x), x), np.float32(0.044715))
            inner = self.g("Tanh", self.g("Mul", self.g("Add", x, cube), np.float32((2 / np.pi) ** 0.5)))
        else:
            inner = self.g("Erf", self.g("Mul", x, np.float32(0.5**0.5)))
        half = self.g("Mul", self.g("Add", inner, np.float32(1)), np.float32(0.5))
        return str(self.g("Mul", x, half))
