"""The Vision Transformer (Dosovitskiy et al. 2021) and its descendants, as one function of parameters and patches.

Pre-norm blocks: x + a(n(x)) + m(n(x + a(n(x)))), with what the checkpoint has of: a class token, a distillation token
(DeiT), registers (Darcet et al. 2024), a normalisation before the blocks (CLIP), LayerScale (Touvron et al. 2021,
DINOv2), gated MLPs (SwiGLU, DINOv2's largest), and pooling by attention (MAP; Zhai et al. 2022, SigLIP). The feature is
the vector before the classifier, after the final normalisation:

    cls     the class token
    mean    the mean of the patches' tokens (averaged before the normalisation if the checkpoint was trained so)
    map     the output of the attention pooling

Normalisations, softmax and sums over tokens are computed in float32 in both precisions; float32 means full float32 also
on devices whose matrix products would round to fewer bits.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpfc_cli.backbones.checkpoint import Parameters
from dpfc_cli.backbones.models import Activation
from dpfc_cli.backbones.resample import antialiased, interpolated

Group = dict[str, jax.Array]


@dataclass(frozen=True)
class Architecture:
    """What the parameters' shapes do not tell, and what of them the program is made for."""

    heads: int
    epsilon: float
    activation: Activation
    pool: str
    gated: bool


def pool_of(outer: dict[str, Any]) -> str:
    """The pooling the checkpoint was trained with."""
    if "map.probe" in outer:
        return "map"
    return "cls" if "cls" in outer and "fc_norm.weight" not in outer else "mean"


def position(parameters: Parameters, grid: int) -> tuple[np.ndarray, np.ndarray]:
    """Position embeddings of the prefix (0, 1 or 2, D) and of the patches of a grid × grid picture (grid², D).

    Resized by bicubic interpolation: without antialiasing for checkpoints of the transformers library, as it does, but
    for its DINOv2 with registers; with antialiasing, as timm does, for all others. (Google's own code interpolates
    linearly between aligned corners; the same weights shall give the same features from either file.)
    """
    table = parameters.outer["position"]
    side = int(len(table) ** 0.5)
    prefix, patches = np.split(table, [len(table) - side * side])
    if side == grid:
        return prefix, patches
    plain = parameters.dialect == "transformers" and "registers" not in parameters.outer
    matrix = (interpolated if plain else antialiased)(side, grid)
    square = patches.astype(np.float64).reshape(side, side, -1)
    return prefix, np.einsum("yi,xj,ijd->yxd", matrix, matrix, square, optimize=True).reshape(grid * grid, -1)


def features(outer: Group, blocks: list[Group], x: jax.Array, a: Architecture) -> jax.Array:
    """Patches (B, N, p·p·3), normalised, to float32 (B, D).

    The blocks are written out one after the other. A scan over stacked blocks compiles faster (1.2 s of CPU against 2.8
    for 40 blocks) and runs slower, by a sixth at small batches, for it copies each block's weights out of the stack.
    """
    tokens = embed(outer, x, a)
    for block in blocks:
        tokens = transform(block, tokens, a)
    return pool(outer, tokens, a)


def embed(outer: Group, x: jax.Array, a: Architecture) -> jax.Array:
    """The tokens (B, prefix + N, D): class, distillation and register tokens, then the patches."""
    kernel = outer["patch.weight"]
    x = _product(x.astype(kernel.dtype), kernel) + outer.get("patch.bias", 0) + outer["position"]
    if "prefix" in outer:
        prefix = jnp.broadcast_to(outer["prefix"], (len(x), *outer["prefix"].shape))
        x = jnp.concatenate([prefix.astype(x.dtype), x], 1)
    return _norm(x, outer, "prenorm", a) if "prenorm.weight" in outer else x


def transform(block: Group, x: jax.Array, a: Architecture) -> jax.Array:
    """One block, (B, N, D) to the same."""
    y = _attention(_dense(_norm(x, block, "norm1", a), block, "qkv"), a.heads)
    x = x + _dense(y, block, "out") * block.get("scale1", 1)
    y = _mlp(_norm(x, block, "norm2", a), block, a)
    return x + y * block.get("scale2", 1)


def pool(outer: Group, x: jax.Array, a: Architecture) -> jax.Array:
    """(B, N, D) to float32 (B, D)."""
    prefix = outer["prefix"].shape[0] if "prefix" in outer else 0
    if a.pool == "cls":
        x = _norm(x[:, 0], outer, "norm" if "norm.weight" in outer else "fc_norm", a)
    elif a.pool == "map":
        x = _attention_pool(_norm(x, outer, "norm", a), _under(outer, "map."), a)
    elif "fc_norm.weight" in outer:
        x = _norm(x[:, prefix:].mean(1, dtype=jnp.float32), outer, "fc_norm", a)
    else:
        x = _norm(x[:, prefix:], outer, "norm", a).mean(1, dtype=jnp.float32)
    return x.astype(jnp.float32)


def _attention(qkv: jax.Array, heads: int) -> jax.Array:
    """(B, N, 3·D) to (B, N, D)."""
    batch, count, width = qkv.shape
    q, k, v = jnp.moveaxis(qkv.reshape(batch, count, 3, heads, -1), (2, 3), (0, 2))
    return _mix(q, k, v).swapaxes(1, 2).reshape(batch, count, width // 3)


def _mix(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Scaled dot-product attention on (B, heads, N, D / heads)."""
    scores = _product(q * q.shape[-1] ** -0.5, k.swapaxes(2, 3)).astype(jnp.float32)
    return _product(jax.nn.softmax(scores, -1).astype(v.dtype), v)


def _attention_pool(x: jax.Array, head: Group, a: Architecture) -> jax.Array:
    """One learnt query over all tokens, then a residual MLP."""
    batch, _, width = x.shape
    query, rest = jnp.split(head["qkv.weight"], [width], 1)
    query_bias, rest_bias = jnp.split(head["qkv.bias"], [width])
    q = jnp.broadcast_to(_product(head["probe"], query) + query_bias, (batch, 1, width))
    k, v = jnp.split(_product(x, rest) + rest_bias, 2, 2)
    split = [each.reshape(batch, -1, a.heads, width // a.heads).swapaxes(1, 2) for each in (q, k, v)]
    y = _dense(_mix(*split).swapaxes(1, 2).reshape(batch, width), head, "out")
    hidden = _activate(_dense(_norm(y, head, "norm", a), head, "fc1"), a.activation)
    return y + _dense(hidden, head, "fc2")


def _mlp(x: jax.Array, block: Group, a: Architecture) -> jax.Array:
    hidden = _dense(x, block, "fc1")
    if a.gated:
        gate, up = jnp.split(hidden, 2, -1)
        hidden = jax.nn.silu(gate) * up
    else:
        hidden = _activate(hidden, a.activation)
    return _dense(hidden, block, "fc2")


def _activate(x: jax.Array, activation: Activation) -> jax.Array:
    if activation == "quick_gelu":
        return x * jax.nn.sigmoid(1.702 * x)
    return jax.nn.gelu(x, approximate=activation == "gelu_tanh")


def _dense(x: jax.Array, group: Group, name: str) -> jax.Array:
    return _product(x, group[f"{name}.weight"]) + group[f"{name}.bias"]


def _product(x: jax.Array, y: jax.Array) -> jax.Array:
    # Full float32 also on accelerators, whose default rounds the factors to fewer bits.
    product: jax.Array = jnp.matmul(x, y, precision="highest" if x.dtype == jnp.float32 else None)
    return product


def _norm(x: jax.Array, group: Group, name: str, a: Architecture) -> jax.Array:
    """Over the last axis, in float32."""
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + a.epsilon)
    return (centred * scale * group[f"{name}.weight"] + group[f"{name}.bias"]).astype(x.dtype)


def _under(group: Group, prefix: str) -> Group:
    return {name.removeprefix(prefix): array for name, array in group.items() if name.startswith(prefix)}
