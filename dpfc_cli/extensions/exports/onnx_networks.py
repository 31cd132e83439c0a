"""The networks of backbones as ONNX graphs: what `backbones` computes from prepared pictures, in float32.

Axes are (picture, row, column, channel), but for scattering: (picture, channel, angles …, row, column), so that a
transform of rows and columns is two products of matrices.
"""

from typing import Any

import numpy as np

from dpfc_cli.backbones.convnext import EPSILON
from dpfc_cli.backbones.convnext.network import Network
from dpfc_cli.backbones.scattering import transform
from dpfc_cli.backbones.scattering.wavelets import ANGLES, SCALES, axis, padded, wavelets
from dpfc_cli.backbones.stated import Activation
from dpfc_cli.backbones.vision_transformer.transformer import Transformer
from dpfc_cli.backbones.vision_transformer.vit import Architecture
from dpfc_cli.extensions.exports.graph import Graph

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
    return graph("Sub", seen, shift.astype(np.float32))


def patches(graph: Graph, x: str, side: int, patch: int, channels: int) -> str:
    """Cut (n, S, S, C) into patches, (n, N, p·p·C). What no whole patch covers is dropped."""
    grid = side // patch
    if grid * patch < side:
        x = graph("Slice", x, whole(0, 0), whole(grid * patch, grid * patch), whole(1, 2))
    cut = graph("Reshape", x, whole(0, grid, patch, grid, patch, channels))
    cut = graph("Transpose", cut, perm=[0, 1, 3, 2, 4, 5])
    return graph("Reshape", cut, whole(0, grid * grid, patch * patch * channels))


class Layers:
    """Layers that take their parameters from groups of arrays by name, and add their nodes to the graph."""

    def __init__(self, graph: Graph) -> None:
        self.g = graph

    def dense(self, x: str, group: Group, name: str) -> str:
        return self.g("Add", self.g("MatMul", x, group[f"{name}.weight"]), group[f"{name}.bias"])

    def scaled(self, x: str, group: Group, name: str) -> str:
        """Each channel multiplied by a number, if the group has these numbers."""
        return self.g("Mul", x, group[name]) if name in group else x

    def normed(self, x: str, group: Group, name: str, epsilon: float) -> str:
        weight, bias = group[f"{name}.weight"], group[f"{name}.bias"]
        return self.g("LayerNormalization", x, weight, bias, axis=-1, epsilon=epsilon)

    def activated(self, x: str, activation: Activation) -> str:
        if activation == "quick_gelu":
            return self.g("Mul", x, self.g("Sigmoid", self.g("Mul", x, np.float32(1.702))))
        if activation == "gelu_tanh":
            cube = self.g("Mul", self.g("Mul", self.g("Mul", x, x), x), np.float32(0.044715))
            inner = self.g("Tanh", self.g("Mul", self.g("Add", x, cube), np.float32((2 / np.pi) ** 0.5)))
        else:
            inner = self.g("Erf", self.g("Mul", x, np.float32(0.5**0.5)))
        half = self.g("Mul", self.g("Add", inner, np.float32(1)), np.float32(0.5))
        return self.g("Mul", x, half)


# Vision Transformers


def transformer(graph: Graph, pixels: str, backbone: Transformer) -> str:
    """The features of pictures, from uint8 (n, S, S, 3) to float32 (n, D). Normalisation is a part of it."""
    outer, recipe = arrays(backbone.outer), backbone.recipe
    network = _Transformer(graph, backbone.architecture)
    seen = normalised(graph, pixels, recipe.mean, recipe.std)
    x = network.embed(outer, patches(graph, seen, recipe.geometry.crop, backbone.patch, 3))
    for block in backbone.blocks:
        x = network.block(arrays(block), x)
    return network.pool(outer, x)


class _Transformer(Layers):
    """The parts of `vit`, each adding its nodes to the graph."""

    def __init__(self, graph: Graph, architecture: Architecture) -> None:
        super().__init__(graph)
        self.a = architecture

    def embed(self, outer: Group, patches: str) -> str:
        x = self.g("MatMul", patches, outer["patch.weight"])
        x = self.g("Add", x, outer["position"] + outer.get("patch.bias", np.float32(0)))
        if "prefix" in outer:
            ahead = outer["prefix"][None]
            rows = self.g("Slice", self.g("Shape", x), whole(0), whole(1))
            shape = self.g("Concat", rows, whole(*ahead.shape[1:]), axis=0)
            x = self.g("Concat", self.g("Expand", ahead, shape), x, axis=1)
        return self.norm(x, outer, "prenorm") if "prenorm.weight" in outer else x

    def block(self, group: Group, x: str) -> str:
        qkv = self.dense(self.norm(x, group, "norm1"), group, "qkv")
        q, k, v = self.split(qkv, 3)
        y = self.attention(q, k, v, len(group["out.weight"]))
        y = self.dense(y, group, "out")
        x = self.g("Add", x, self.scaled(y, group, "scale1"))
        y = self.mlp(self.norm(x, group, "norm2"), group)
        return self.g("Add", x, self.scaled(y, group, "scale2"))

    def pool(self, outer: Group, x: str) -> str:
        """The feature. A pooling of several vectors has their names with a plus between them."""
        found = [self.pooled(outer, x, each) for each in self.a.pool.split("+")]
        return found[0] if len(found) == 1 else self.g("Concat", *found, axis=1)

    def pooled(self, outer: Group, x: str, pool: str) -> str:
        ahead = len(outer["prefix"]) if "prefix" in outer else 0
        if pool == "cls":
            first = self.g("Gather", x, np.array(0), axis=1)
            return self.norm(first, outer, "norm" if "norm.weight" in outer else "fc_norm")
        if pool == "map":
            return self.attention_pool(self.norm(x, outer, "norm"), outer)
        if ahead:
            x = self.g("Slice", x, whole(ahead), whole(2**31 - 1), whole(1))
        if "fc_norm.weight" in outer:
            return self.norm(self.mean(x), outer, "fc_norm")
        return self.mean(self.norm(x, outer, "norm"))

    def attention_pool(self, x: str, outer: Group) -> str:
        """Attention of one learnt query, which is a constant, over all tokens. Then a residual MLP."""
        head = {name.removeprefix("map."): array for name, array in outer.items() if name.startswith("map.")}
        width = head["probe"].shape[-1]
        kernel, bias = head["qkv.weight"], head["qkv.bias"]
        probe = head["probe"].astype(np.float64) @ kernel[:, :width] + bias[:width]
        q = self.g.constant(probe.astype(np.float32)[None])
        kv = self.g("Add", self.g("MatMul", x, kernel[:, width:]), bias[width:])
        k, v = self.split(kv, 2)
        y = self.attention(q, k, v, width)
        y = self.g("Gather", self.dense(y, head, "out"), np.array(0), axis=1)
        return self.g("Add", y, self.mlp(self.norm(y, head, "norm"), head))

    def attention(self, q: str, k: str, v: str, width: int) -> str:
        queries, keys, values = self.heads(q, (0, 2, 1, 3)), self.heads(k, (0, 2, 3, 1)), self.heads(v, (0, 2, 1, 3))
        scale = np.float32((width // self.a.heads) ** -0.5)
        scores = self.g("MatMul", self.g("Mul", queries, scale), keys)
        mixed = self.g("MatMul", self.g("Softmax", scores, axis=-1), values)
        together = self.g("Transpose", mixed, perm=[0, 2, 1, 3])
        return self.g("Reshape", together, whole(0, 0, width))

    def heads(self, x: str, order: tuple[int, ...]) -> str:
        """The last axis divided among the heads, and the axes in that order."""
        return self.g("Transpose", self.g("Reshape", x, whole(0, 0, self.a.heads, -1)), perm=list(order))

    def split(self, x: str, parts: int) -> list[str]:
        return self.g.several("Split", parts, x, axis=-1)

    def mlp(self, x: str, group: Group) -> str:
        hidden = self.dense(x, group, "fc1")
        if group["fc1.weight"].shape[1] != len(group["fc2.weight"]):
            gate, up = self.split(hidden, 2)
            hidden = self.g("Mul", self.g("Mul", gate, self.g("Sigmoid", gate)), up)
        else:
            hidden = self.activated(hidden, self.a.activation)
        return self.dense(hidden, group, "fc2")

    def norm(self, x: str, group: Group, name: str) -> str:
        return self.normed(x, group, name, self.a.epsilon)

    def mean(self, x: str) -> str:
        return self.g("ReduceMean", x, axes=[1], keepdims=0)


# ConvNeXt


def convnext(graph: Graph, pixels: str, backbone: Network) -> str:
    """The features of pictures, from uint8 (n, S, S, 3) to float32 (n, D). Normalisation is a part of it."""
    outer, network, recipe = arrays(backbone.outer), _ConvNeXt(graph), backbone.recipe
    side = recipe.geometry.crop
    x, side = network.strided(normalised(graph, pixels, recipe.mean, recipe.std), side, outer, "stem")
    x = network.normed(x, outer, "stem_norm", EPSILON)
    for i, stage in enumerate(backbone.blocks):
        if i:
            x, side = network.strided(network.normed(x, outer, f"down_norm{i}", EPSILON), side, outer, f"down{i}")
        for block in stage:
            x = network.block(arrays(block), x)
    return network.normed(graph("ReduceMean", x, axes=[1, 2], keepdims=0), outer, "norm", backbone.epsilon)


class _ConvNeXt(Layers):
    """The parts of the network, each adding its nodes to the graph."""

    def strided(self, x: str, side: int, group: Group, name: str) -> tuple[str, int]:
        """A convolution of neighbouring squares, and the side of its result."""
        kernel = group[f"{name}.weight"]
        patch, _, channels, width = kernel.shape
        cut = patches(self.g, x, side, patch, channels)
        y = self.g("Add", self.g("MatMul", cut, kernel.reshape(-1, width)), group[f"{name}.bias"])
        grid = side // patch
        return self.g("Reshape", y, whole(0, grid, grid, width)), grid

    def block(self, group: Group, x: str) -> str:
        kernel = group["depthwise.weight"]
        side, channels = kernel.shape[0], kernel.shape[-1]
        planes = self.g("Transpose", x, perm=[0, 3, 1, 2])
        filters = np.ascontiguousarray(kernel.reshape(side, side, channels).transpose(2, 0, 1)[:, None])
        y = self.g("Conv", planes, filters, group["depthwise.bias"], group=channels, pads=[side // 2] * 4)
        y = self.normed(self.g("Transpose", y, perm=[0, 2, 3, 1]), group, "norm", EPSILON)
        y = self.dense(self.activated(self.dense(y, group, "fc1"), "gelu"), group, "fc2")
        return self.g("Add", x, self.scaled(y, group, "scale"))


# Scattering

Parts = tuple[str, str]
"""The real and the imaginary part."""


def scattering(graph: Graph, pixels: str, image_shape: tuple[int, int, int], pooling: str) -> str:
    """The features of pictures, from uint8 (n, H, W, C) to float32 (n, d). The division by 255 is a part of it."""
    height, width, _ = image_shape
    network = _Scattering(graph)
    planes = graph("Transpose", graph("Cast", pixels, to=_FLOAT), perm=[0, 3, 1, 2])
    orders = network.coefficients(graph("Div", planes, np.float32(255)), height, width)
    maps = graph("Concat", *map(network.standardised, orders), axis=2)
    if pooling == "mean":
        maps = graph("ReduceMean", maps, axes=[3, 4], keepdims=1)
    return graph("Reshape", maps, np.array([0, -1]))


class _Scattering:
    """The parts of the transform, each adding its nodes to the graph."""

    def __init__(self, graph: Graph) -> None:
        self.g = graph

    def coefficients(self, planes: str, height: int, width: int) -> list[str]:
        """The maps of each order, (n, C, maps, H/4, W/4)."""
        r, c = axis(height), axis(width)
        sides = padded(height), padded(width)
        fine, coarse = (np.moveaxis(wavelets(*sides, scale), -1, 1).astype(np.float32) for scale in range(SCALES))
        spectrum = self.transformed(r.pixels, c.pixels, planes)
        u1_fine = self.modulus(self.filtered(spectrum, fine, sides), r.inverse, c.inverse)
        u1_coarse = self.modulus(
            self.halved(self.filtered(spectrum, coarse, sides), sides), r.inverse_half, c.inverse_half
        )
        again = self.filtered(self.transformed(r.forward, c.forward, u1_fine), coarse, sides)
        u2 = self.modulus(self.halved(again, sides), r.inverse_half, c.inverse_half)
        s0 = self.g("Unsqueeze", self.transformed(r.low_pixels, c.low_pixels, planes), np.array([2]))
        s1_fine = self.transformed(r.low, c.low, u1_fine)
        s1_coarse, s2 = (self.transformed(r.low_half, c.low_half, each) for each in (u1_coarse, u2))
        s2 = self.g("Reshape", s2, np.array([0, 0, ANGLES * ANGLES, len(r.low), len(c.low)]))
        return [s0, self.g("Concat", s1_fine, s1_coarse, axis=2), s2]

    def transformed(self, rows: np.ndarray, columns: np.ndarray, x: str) -> str:
        y = self.g("MatMul", rows.astype(np.float32), x)
        return self.g("MatMul", y, np.ascontiguousarray(columns.T, np.float32))

    def filtered(self, x: str, wavelet: np.ndarray, sides: tuple[int, int]) -> Parts:
        """Apply filters (4, L, M, N) to coefficients (…, M, N): (…, L, M, N) of each part."""
        ee, oo, eo, oe = wavelet
        down, across = self.mirrored(x, -2, sides[0]), self.mirrored(x, -1, sides[1])
        both = self.mirrored(down, -1, sides[1])
        x, down, across, both = (self.g("Unsqueeze", each, np.array([-3])) for each in (x, down, across, both))
        real = self.g("Sub", self.g("Mul", x, ee), self.g("Mul", both, oo))
        return real, self.g("Add", self.g("Mul", across, eo), self.g("Mul", down, oe))

    def mirrored(self, x: str, along: int, size: int) -> str:
        """Put the coefficient of -k in the place of k, along one axis."""
        return self.g("Gather", x, -np.arange(size) % size, axis=along)

    def halved(self, parts: Parts, sides: tuple[int, int]) -> Parts:
        """Subsample both images by two: aliases add up."""
        m, n = sides[0] // 2, sides[1] // 2
        corners = [(whole(i, j), whole(i + m, j + n), whole(-2, -1)) for i in (0, m) for j in (0, n)]
        real, imaginary = (self.g("Sum", *(self.g("Slice", x, *corner) for corner in corners)) for x in parts)
        return real, imaginary

    def modulus(self, parts: Parts, rows: np.ndarray, columns: np.ndarray) -> str:
        squares = [self.g("Mul", y, y) for y in (self.transformed(rows, columns, x) for x in parts)]
        return self.g("Sqrt", self.g("Add", *squares))

    def standardised(self, maps: str) -> str:
        """Each record of an order with mean 0 and variance 1, or less if it is nearly constant."""
        centred = self.g("Sub", maps, self.mean(maps))
        variance = self.g("Add", self.mean(self.g("Mul", centred, centred)), np.float32(transform.EPSILON))
        return self.g("Div", centred, self.g("Sqrt", variance))

    def mean(self, maps: str) -> str:
        return self.g("ReduceMean", maps, axes=[1, 2, 3, 4], keepdims=1)
