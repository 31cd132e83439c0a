"""Vision Transformers as ONNX graphs: what `backbones.vision_transformer.vit` computes, in float32."""

from typing import Any

import numpy as np

from dpfc_cli.backbones.vision_transformer.transformer import Transformer
from dpfc_cli.backbones.vision_transformer.vit import Architecture
from dpfc_cli.exports.graph import Graph

Group = dict[str, np.ndarray]
_FLOAT = 1


def features(graph: Graph, pixels: str, backbone: Transformer) -> str:
    """The features of pictures, from uint8 (n, S, S, 3) to float32 (n, D). Normalisation is a part of it."""
    placed, blocks, setting = backbone.parts
    outer = _arrays(placed)
    recipe, a = setting.recipe, setting.architecture
    mean, std = np.array(recipe.mean), np.array(recipe.std)
    seen = graph("Mul", graph("Cast", pixels, to=_FLOAT), (1 / (255 * std)).astype(np.float32))
    seen = graph("Sub", seen, (mean / std).astype(np.float32))
    network = _Network(graph, a)
    x = network.embed(outer, _patches(graph, seen, recipe.geometry.crop, setting.patch))
    for block in blocks:
        x = network.block(_arrays(block), x)
    return network.pool(outer, x)


def _arrays(group: Any) -> Group:
    return {name: np.asarray(array).astype(np.float32, copy=False) for name, array in group.items()}


def _patches(graph: Graph, seen: str, side: int, patch: int) -> str:
    """Cut (n, S, S, 3) into patches, (n, N, p·p·3). Pixels that no whole patch covers are dropped."""
    grid = side // patch
    if grid * patch < side:
        seen = graph("Slice", seen, _whole(0, 0), _whole(grid * patch, grid * patch), _whole(1, 2))
    cut = graph("Reshape", seen, _whole(0, grid, patch, grid, patch, 3))
    cut = graph("Transpose", cut, perm=[0, 1, 3, 2, 4, 5])
    return str(graph("Reshape", cut, _whole(0, grid * grid, patch * patch * 3)))


def _whole(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


class _Network:
    """The parts of `vit`, each adding its nodes to the graph."""

    def __init__(self, graph: Graph, architecture: Architecture) -> None:
        self.g, self.a = graph, architecture

    def embed(self, outer: Group, patches: str) -> str:
        x = self.g("MatMul", patches, outer["patch.weight"])
        x = self.g("Add", x, outer["position"] + outer.get("patch.bias", np.float32(0)))
        if "prefix" in outer:
            ahead = outer["prefix"][None]
            rows = self.g("Slice", self.g("Shape", x), _whole(0), _whole(1))
            shape = self.g("Concat", rows, _whole(*ahead.shape[1:]), axis=0)
            x = self.g("Concat", self.g("Expand", ahead, shape), x, axis=1)
        return self.norm(x, outer, "prenorm") if "prenorm.weight" in outer else str(x)

    def block(self, group: Group, x: str) -> str:
        qkv = self.dense(self.norm(x, group, "norm1"), group, "qkv")
        q, k, v = self.split(qkv, 3)
        y = self.attention(q, k, v, len(group["out.weight"]))
        y = self.dense(y, group, "out")
        x = self.g("Add", x, self.scaled(y, group, "scale1"))
        y = self.mlp(self.norm(x, group, "norm2"), group)
        return str(self.g("Add", x, self.scaled(y, group, "scale2")))

    def pool(self, outer: Group, x: str) -> str:
        """The feature. A pooling of several vectors has their names with a plus between them."""
        found = [self.pooled(outer, x, each) for each in self.a.pool.split("+")]
        return found[0] if len(found) == 1 else str(self.g("Concat", *found, axis=1))

    def pooled(self, outer: Group, x: str, pool: str) -> str:
        ahead = len(outer["prefix"]) if "prefix" in outer else 0
        if pool == "cls":
            first = self.g("Gather", x, np.array(0), axis=1)
            return self.norm(first, outer, "norm" if "norm.weight" in outer else "fc_norm")
        if pool == "map":
            return self.attention_pool(self.norm(x, outer, "norm"), outer)
        if ahead:
            x = self.g("Slice", x, _whole(ahead), _whole(2**31 - 1), _whole(1))
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
        return str(self.g("Add", y, self.mlp(self.norm(y, head, "norm"), head)))

    def attention(self, q: str, k: str, v: str, width: int) -> str:
        """Scaled dot-product attention of (B, N, D)."""
        queries, keys, values = self.heads(q, (0, 2, 1, 3)), self.heads(k, (0, 2, 3, 1)), self.heads(v, (0, 2, 1, 3))
        scale = np.float32((width // self.a.heads) ** -0.5)
        scores = self.g("MatMul", self.g("Mul", queries, scale), keys)
        mixed = self.g("MatMul", self.g("Softmax", scores, axis=-1), values)
        together = self.g("Transpose", mixed, perm=[0, 2, 1, 3])
        return str(self.g("Reshape", together, _whole(0, 0, width)))

    def heads(self, x: str, order: tuple[int, ...]) -> str:
        """The last axis divided among the heads, and the axes in that order."""
        return str(self.g("Transpose", self.g("Reshape", x, _whole(0, 0, self.a.heads, -1)), perm=list(order)))

    def split(self, x: str, parts: int) -> list[str]:
        found: list[str] = self.g("Split", x, outputs=parts, axis=-1)
        return found

    def mlp(self, x: str, group: Group) -> str:
        hidden = self.dense(x, group, "fc1")
        if group["fc1.weight"].shape[1] != len(group["fc2.weight"]):
            gate, up = self.split(hidden, 2)
            hidden = self.g("Mul", self.g("Mul", gate, self.g("Sigmoid", gate)), up)
        else:
            hidden = self.activated(hidden)
        return self.dense(hidden, group, "fc2")

    def activated(self, x: str) -> str:
        if self.a.activation == "quick_gelu":
            inner = self.g("Sigmoid", self.g("Mul", x, np.float32(1.702)))
            return str(self.g("Mul", x, inner))
        if self.a.activation == "gelu_tanh":
            cube = self.g("Mul", self.g("Mul", self.g("Mul", x, x), x), np.float32(0.044715))
            inner = self.g("Tanh", self.g("Mul", self.g("Add", x, cube), np.float32((2 / np.pi) ** 0.5)))
        else:
            inner = self.g("Erf", self.g("Mul", x, np.float32(0.5**0.5)))
        half = self.g("Mul", self.g("Add", inner, np.float32(1)), np.float32(0.5))
        return str(self.g("Mul", x, half))

    def dense(self, x: str, group: Group, name: str) -> str:
        return str(self.g("Add", self.g("MatMul", x, group[f"{name}.weight"]), group[f"{name}.bias"]))

    def scaled(self, x: str, group: Group, name: str) -> str:
        return str(self.g("Mul", x, group[name])) if name in group else x

    def norm(self, x: str, group: Group, name: str) -> str:
        weight, bias = group[f"{name}.weight"], group[f"{name}.bias"]
        return str(self.g("LayerNormalization", x, weight, bias, axis=-1, epsilon=self.a.epsilon))

    def mean(self, x: str) -> str:
        return str(self.g("ReduceMean", x, axes=[1], keepdims=0))
