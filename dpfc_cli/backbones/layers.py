"""What networks of several families compute with."""

import jax
import jax.numpy as jnp

Group = dict[str, jax.Array]
"""The parameters of a part of a network."""


def product(x: jax.Array, y: jax.Array) -> jax.Array:
    """The matrix product of two arrays of one type, as float32."""
    # Accelerators round the factors of float32 products to fewer bits unless they are told not to.
    precision = "highest" if x.dtype == jnp.float32 else None
    product: jax.Array = jnp.matmul(x, y, precision=precision, preferred_element_type=jnp.float32)
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


def gelu(x: jax.Array) -> jax.Array:
    """GELU in its exact form."""
    # jax.nn.gelu uses the complementary error function, which takes three times as long and is no better here.
    return x * (0.5 + 0.5 * jax.lax.erf(x * 0.5**0.5))
