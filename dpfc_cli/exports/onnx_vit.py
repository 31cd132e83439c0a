"""Vision Transformers as ONNX graphs: what `backbones.vision_transformer.vit` computes, in float32."""

import numpy as np

from dpfc_cli.backbones.vision_transformer.transformer import Transformer
from dpfc_cli.backbones.vision_transformer.vit import Architecture
from dpfc_cli.exports.graph import Graph
from dpfc_cli.exports.layers import Group, Layers, arrays, normalised, patches, whole


def features(graph: Graph, pixels: str, backbone: Transformer) -> str:
    """The features of pictures, from uint8 (n, S, S, 3) to float32 (n, D). Normalisation is a part of it."""
    placed, blocks, setting = backbone.parts
    outer, recipe = arrays(placed), setting.recipe
    network = _Network(graph, setting.architecture)
    seen = normalised(graph, pixels, recipe.mean, recipe.std)
    x = network.embed(outer, patches(graph, seen, recipe.geometry.crop, setting.patch, 3))
    for block in blocks:
        x = network.block(arrays(block), x)
    return network.pool(outer, x)


class _Network(Layers):
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
        return str(self.g("Add", y, self.mlp(self.norm(y, head, "norm"), head)))

    def attention(self, q: str, k: str, v: str, width: int) -> str:
        """Scaled dot-product attention of (B, N, D)."""
        queries, keys, values = self.heads(q, (0, 2, 1, 3)), self.heads(k, (0, 2, 3, 1)), self.heads(v, (0, 2, 1, 3))
        scale = np.float32((width // self.a.heads) ** -0.5)
        scores = self.g("MatMul", self.g("Mul", queries, scale), keys)
        mixed = self.g("MatMul", self.g("Softmax", scores, axis=-1), values)
        together = self.g("Transpose", mixed, perm=[0, 2, 1, 3])
        return str(self.g("Reshape", together, whole(0, 0, width)))

    def heads(self, x: str, order: tuple[int, ...]) -> str:
        """The last axis divided among the heads, and the axes in that order."""
        return str(self.g("Transpose", self.g("Reshape", x, whole(0, 0, self.a.heads, -1)), perm=list(order)))

    def split(self, x: str, parts: int) -> list[str]:
        found: list[str] = self.g("Split", x, outputs=parts, axis=-1)
        return found

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
        return str(self.g("ReduceMean", x, axes=[1], keepdims=0))
