"""The Vision Transformer (Dosovitskiy et al. 2021) and its descendants, as one function of parameters and patches.

Pre-norm blocks: x + a(n(x)) + m(n(x + a(n(x)))), with what the checkpoint has of: a class token, a distillation token
(DeiT), registers (Darcet et al. 2024), a normalisation before the blocks (CLIP), LayerScale (Touvron et al. 2021,
DINOv2), gated MLPs (SwiGLU, DINOv2's largest), and pooling by attention (MAP; Zhai et al. 2022, SigLIP). The feature is
the vector before the classifier, after the final normalisation:

    cls     the class token
    mean    the mean of the patches' tokens (averaged before the normalisation if the checkpoint was trained so)
    map     the output of the attention pooling

In bfloat16 the factors of matrix products are rounded to it, and nothing else: the sum over blocks, normalisations,
softmax and activations stay float32, which costs nothing where they are fused with the products. float32 means full
float32 also on devices whose matrix products would round to fewer bits.
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
    """The tokens, float32 (B, prefix + N, D): class, distillation and register tokens, then the patches."""
    kernel = outer["patch.weight"]
    x = _product(x.astype(kernel.dtype), kernel) + outer.get("patch.bias", 0) + outer["position"]
    if "prefix" in outer:
        x = jnp.concatenate([jnp.broadcast_to(outer["prefix"], (len(x), *outer["prefix"].shape)), x], 1)
    return _norm(x, outer, "prenorm", a) if "prenorm.weight" in outer else x


def transform(block: Group, x: jax.Array, a: Architecture) -> jax.Array:
    """One block, float32 (B, N, D) to the same."""
    y = _attention(_dense(_norm(x, block, "norm1", a), block, "qkv"), block["qkv.weight"].dtype, a.heads)
    x = x + _dense(y, block, "out") * block.get("scale1", 1)
    return x + _mlp(_norm(x, block, "norm2", a), block, a) * block.get("scale2", 1)


def pool(outer: Group, x: jax.Array, a: Architecture) -> jax.Array:
    """(B, N, D) to (B, D), float32."""
    prefix = outer["prefix"].shape[0] if "prefix" in outer else 0
    if a.pool == "cls":
        return _norm(x[:, 0], outer, "norm" if "norm.weight" in outer else "fc_norm", a)
    if a.pool == "map":
        return _attention_pool(_norm(x, outer, "norm", a), _under(outer, "map."), a)
    if "fc_norm.weight" in outer:
        return _norm(x[:, prefix:].mean(1), outer, "fc_norm", a)
    return _norm(x[:, prefix:], outer, "norm", a).mean(1)


def _attention(qkv: jax.Array, dtype: Any, heads: int) -> jax.Array:
    """float32 (B, N, 3·D) to (B, N, D) of dtype."""
    batch, count, width = qkv.shape
    q, k, v = jnp.moveaxis(qkv.reshape(batch, count, 3, heads, -1), (2, 3), (0, 2))
    return _mix(q, k, v, dtype).swapaxes(1, 2).reshape(batch, count, width // 3)


def _mix(q: jax.Array, k: jax.Array, v: jax.Array, dtype: Any) -> jax.Array:
    """Scaled dot-product attention on float32 (B, heads, N, D / heads), computed and returned as dtype."""
    scores = _product((q * q.shape[-1] ** -0.5).astype(dtype), k.swapaxes(2, 3).astype(dtype))
    return _product(jax.nn.softmax(scores, -1).astype(dtype), v.astype(dtype)).astype(dtype)


def _attention_pool(x: jax.Array, head: Group, a: Architecture) -> jax.Array:
    """One learnt query over all tokens, then a residual MLP."""
    batch, _, width = x.shape
    kernel = head["qkv.weight"]
    q = _product(head["probe"].astype(kernel.dtype), kernel[:, :width]) + head["qkv.bias"][:width]
    kv = _product(x.astype(kernel.dtype), kernel[:, width:]) + head["qkv.bias"][width:]
    parts = (jnp.broadcast_to(q, (batch, 1, width)), *jnp.split(kv, 2, 2))
    q, k, v = (each.reshape(batch, -1, a.heads, width // a.heads).swapaxes(1, 2) for each in parts)
    y = _dense(_mix(q, k, v, kernel.dtype).swapaxes(1, 2).reshape(batch, width), head, "out")
    return y + _mlp(_norm(y, head, "norm", a), head, a)


def _mlp(x: jax.Array, block: Group, a: Architecture) -> jax.Array:
    hidden = _dense(x, block, "fc1")
    # The pooling's MLP is never gated: shapes tell.
    if hidden.shape[-1] != len(block["fc2.weight"]):
        gate, up = jnp.split(hidden, 2, -1)
        hidden = jax.nn.silu(gate) * up
    else:
        hidden = _activate(hidden, a.activation)
    return _dense(hidden, block, "fc2")


def _activate(x: jax.Array, activation: Activation) -> jax.Array:
    if activation == "quick_gelu":
        return x * jax.nn.sigmoid(1.702 * x)
    if activation == "gelu_tanh":
        return jax.nn.gelu(x, approximate=True)
    # jax.nn.gelu takes the complementary error function, which costs three times as much and gains nothing here.
    return x * (0.5 + 0.5 * jax.lax.erf(x * 0.5**0.5))


def _dense(x: jax.Array, group: Group, name: str) -> jax.Array:
    kernel = group[f"{name}.weight"]
    return _product(x.astype(kernel.dtype), kernel) + group[f"{name}.bias"]


def _product(x: jax.Array, y: jax.Array) -> jax.Array:
    """The matrix product of two arrays of one type, as float32."""
    # Full float32 also on accelerators, whose default rounds the factors to fewer bits.
    precision = "highest" if x.dtype == jnp.float32 else None
    product: jax.Array = jnp.matmul(x, y, precision=precision, preferred_element_type=jnp.float32)
    return product


def _norm(x: jax.Array, group: Group, name: str, a: Architecture) -> jax.Array:
    """Over the last axis of float32."""
    centred = x - x.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + a.epsilon)
    return centred * scale * group[f"{name}.weight"] + group[f"{name}.bias"]


def _under(group: Group, prefix: str) -> Group:
    return {name.removeprefix(prefix): array for name, array in group.items() if name.startswith(prefix)}
