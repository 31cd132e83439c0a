"""The Vision Transformer (Dosovitskiy et al. 2021) and its variants, as one function of parameters and patches.

A block computes x + a(n(x)) + m(n(x + a(n(x)))), with normalisation n, attention a and MLP m. The following parts are
used if the checkpoint has them: a class token, registers (Darcet et al. 2024), a normalisation before the blocks
(CLIP), LayerScale (Touvron et al. 2021, DINOv2), gated MLPs (SwiGLU, in the largest DINOv2 and Virchow2), and attention
pooling (MAP; Zhai et al. 2022, SigLIP). The feature is the vector before the classifier, after the final normalisation:

    cls     the class token
    mean    the mean of the patches' tokens
    map     the output of the attention pooling
    cls+mean  the class token and the mean, one behind the other (Virchow2; DINOv2's own linear classifiers)

With bfloat16, the factors of matrix products are rounded, and on an NVIDIA GPU their results. The sum over blocks,
normalisations, softmax and activations stay float32. This costs little time where they are fused with the products.
With float32, matrix products use full float32 precision, also on devices that would round their factors by default.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpfc_cli.backbones import preprocess
from dpfc_cli.backbones.vision_transformer.models import Activation

Group = dict[str, jax.Array]
"""The parameters of a part of a network."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What the shapes of the parameters do not show.

    Attributes:
        heads: number of attention heads.
        epsilon: added to the variance in normalisations.
        activation: of the MLPs.
        pool: which vector is the feature: cls, mean, map or cls+mean.
        causal: whether a token sees only itself and those before it (CLIP's text tower).

    """

    heads: int
    epsilon: float
    activation: Activation
    pool: str
    causal: bool = False


def position(table: np.ndarray, grid: int, *, antialiased: bool) -> tuple[np.ndarray, np.ndarray]:
    """Position embeddings (count, D) for a picture of grid × grid patches: those of the tokens before the patches
    (count, D) and those of the patches (grid², D).

    They are resized by bicubic interpolation, with antialiasing as timm does it, or without, as transformers does.
    """
    side = int(len(table) ** 0.5)
    prefix, patches = np.split(table, [len(table) - side * side])
    if side == grid:
        return prefix, patches
    matrix = (preprocess.antialiased if antialiased else preprocess.interpolated)(side, grid)
    square = patches.astype(np.float64).reshape(side, side, -1)
    return prefix, np.einsum("yi,xj,ijd->yxd", matrix, matrix, square, optimize=True).reshape(grid * grid, -1)


LARGEST = 32 << 20
"""Bytes of scores beyond which a CPU attends with one head after the other: with 1,370 tokens that takes 0.86 times as
long, for it need not take the memory from the system anew."""


def features(outer: Group, blocks: list[Group], x: jax.Array, a: Architecture) -> jax.Array:
    """The features of pictures: from normalised patches x (B, N, p·p·3) to float32 (B, D).

    The compiled program contains every block. A scan over stacked blocks compiles faster (1.2 s of CPU time instead of
    2.8 s for 40 blocks), but runs slower, by a sixth for small batches, because it copies the weights of each block out
    of the stack.
    """
    tokens = embed(outer, x, a)
    for block in blocks:
        tokens = transform(block, tokens, a)
    return pool(outer, tokens, a)


def embed(outer: Group, x: jax.Array, a: Architecture) -> jax.Array:
    """The tokens, float32 (B, prefix + N, D): class and register tokens, then those of the patches."""
    kernel = outer["patch.weight"]
    x = product(x.astype(kernel.dtype), kernel) + outer.get("patch.bias", 0) + outer["position"]
    if "prefix" in outer:
        x = jnp.concatenate([jnp.broadcast_to(outer["prefix"], (len(x), *outer["prefix"].shape)), x], 1)
    return norm(x, outer, "prenorm", a.epsilon) if "prenorm.weight" in outer else x


def transform(block: Group, x: jax.Array, a: Architecture) -> jax.Array:
    """One block: from float32 (B, N, D) to the same shape."""
    y = _attention(dense(norm(x, block, "norm1", a.epsilon), block, "qkv"), block["qkv.weight"].dtype, a)
    x = x + dense(y, block, "out") * block.get("scale1", 1)
    return x + _mlp(norm(x, block, "norm2", a.epsilon), block, a) * block.get("scale2", 1)


def pool(outer: Group, x: jax.Array, a: Architecture) -> jax.Array:
    """The feature: from float32 (B, N, D) to (B, D)."""
    if a.pool == "cls+mean":
        return jnp.concatenate([pool(outer, x, replace(a, pool=each)) for each in ("cls", "mean")], -1)
    prefix = outer["prefix"].shape[0] if "prefix" in outer else 0
    if a.pool == "cls":
        return norm(x[:, 0], outer, "norm", a.epsilon)
    if a.pool == "map":
        return _attention_pool(norm(x, outer, "norm", a.epsilon), _under(outer, "map."), a)
    return norm(x[:, prefix:], outer, "norm", a.epsilon).mean(1)


def _attention(qkv: jax.Array, dtype: Any, a: Architecture) -> jax.Array:
    """Self-attention: from float32 (B, N, 3·D) to (B, N, D) of dtype."""
    batch, count, width = qkv.shape
    divided = qkv.reshape(batch, count, 3, a.heads, -1)
    if dtype == jnp.bfloat16 and tensor_cores() and not a.causal and divided.shape[-1] in range(8, 129, 8):
        # cuDNN keeps no scores: a whole network takes .8 of the time with 197 tokens, and half with 1,370.
        q, k, v = jnp.moveaxis(divided.astype(dtype), 2, 0)
        return jax.nn.dot_product_attention(q, k, v, implementation="cudnn").reshape(batch, count, width // 3)
    q, k, v = jnp.moveaxis(divided, (2, 3), (0, 2))
    return _mix(q, k, v, dtype, a.causal).swapaxes(1, 2).reshape(batch, count, width // 3)


def _mix(q: jax.Array, k: jax.Array, v: jax.Array, dtype: Any, causal: bool = False) -> jax.Array:
    """Scaled dot-product attention on float32 (B, heads, N, D / heads), computed and returned as dtype."""
    if q.ndim == 4 and 4 * q.size // q.shape[-1] * k.shape[-2] > LARGEST and jax.default_backend() == "cpu":
        heads = (q.swapaxes(0, 1), k.swapaxes(0, 1), v.swapaxes(0, 1))
        mixed: jax.Array = jax.lax.map(lambda head: _mix(head[0], head[1], head[2], dtype, causal), heads)
        return mixed.swapaxes(0, 1)
    scores = product((q * q.shape[-1] ** -0.5).astype(dtype), k.swapaxes(-2, -1).astype(dtype)).astype(jnp.float32)
    if causal:
        scores = jnp.where(np.tri(scores.shape[-1], dtype=bool), scores, -jnp.inf)
    return product(jax.nn.softmax(scores, -1).astype(dtype), v.astype(dtype)).astype(dtype)


def _attention_pool(x: jax.Array, head: Group, a: Architecture) -> jax.Array:
    """Attention of one learnt query over all tokens, then a residual MLP."""
    batch, _, width = x.shape
    kernel = head["qkv.weight"]
    q = product(head["probe"].astype(kernel.dtype), kernel[:, :width]) + head["qkv.bias"][:width]
    kv = product(x.astype(kernel.dtype), kernel[:, width:]) + head["qkv.bias"][width:]
    parts = (jnp.broadcast_to(q, (batch, 1, width)), *jnp.split(kv, 2, 2))
    q, k, v = (each.reshape(batch, -1, a.heads, width // a.heads).swapaxes(1, 2) for each in parts)
    y = dense(_mix(q, k, v, kernel.dtype).swapaxes(1, 2).reshape(batch, width), head, "out")
    return y + _mlp(norm(y, head, "norm", a.epsilon), head, a)


def _mlp(x: jax.Array, block: Group, a: Architecture) -> jax.Array:
    hidden = dense(x, block, "fc1")
    # The shapes show whether an MLP is gated. That of the attention pooling never is.
    if hidden.shape[-1] != len(block["fc2.weight"]):
        gate, up = jnp.split(hidden, 2, -1)
        hidden = jax.nn.silu(gate) * up
    else:
        hidden = _activate(hidden, a.activation)
    return dense(hidden, block, "fc2")


def _activate(x: jax.Array, activation: Activation) -> jax.Array:
    if activation == "quick_gelu":
        return x * jax.nn.sigmoid(1.702 * x)
    if activation == "gelu_tanh":
        return jax.nn.gelu(x, approximate=True)
    # jax.nn.gelu uses the complementary error function, which takes three times as long and is no better here.
    return x * (0.5 + 0.5 * jax.lax.erf(x * 0.5**0.5))


def _under(group: Group, prefix: str) -> Group:
    return {name.removeprefix(prefix): array for name, array in group.items() if name.startswith(prefix)}


# Layers


@cache
def tensor_cores() -> bool:
    """Whether JAX computes on an NVIDIA GPU that has units for products of bfloat16 (compute capability 8)."""
    generation = str(getattr(jax.local_devices()[0], "compute_capability", "")).partition(".")[0]
    return generation.isdigit() and int(generation) >= 8


def product(x: jax.Array, y: jax.Array) -> jax.Array:
    """The matrix product of two arrays of one type, summed in float32. It is float32, but of their type on an NVIDIA
    GPU, which would wait for its memory otherwise.
    """
    # Accelerators round the factors of float32 products to fewer bits unless they are told not to.
    precision = "highest" if x.dtype == jnp.float32 else None
    kept = x.dtype if tensor_cores() else jnp.float32
    product: jax.Array = jnp.matmul(x, y, precision=precision, preferred_element_type=kept)
    return product


def dense(x: jax.Array, group: Group, name: str) -> jax.Array:
    """An affine map of the last axis, as float32."""
    kernel = group[f"{name}.weight"]
    return product(x.astype(kernel.dtype), kernel) + group[f"{name}.bias"]


def norm(x: jax.Array, group: Group, name: str, epsilon: float | jax.Array) -> jax.Array:
    """Layer normalisation over the last axis, in float32."""
    centred = x - x.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + epsilon)
    return centred * scale * group[f"{name}.weight"] + group[f"{name}.bias"]
