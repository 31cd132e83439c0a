"""Heads in JAX: a head is a pytree of its numbers, and its scores are a pure function of these and of features.

The precision is JAX's own: float32, unless `jax_enable_x64` says otherwise. `Head.scores` of NumPy is float64.
"""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dpfc_cli.privacy.chain import Centre, Chain, Clip, values, with_values


@cache
def register(kind: type) -> None:
    """Make heads of this class pytrees. What JAX makes of one has everything but its card, file and evidence."""

    def flatten(head: Any) -> tuple[Any, Any]:
        form = with_values(head.chain, [None] * len(head.chain)), head.classes, head.several_labels
        return (head.weight, head.bias, *values(head.chain)), form

    def unflatten(form: Any, numbers: Any) -> Any:
        (chain, classes, several), (weight, bias, *steps) = form, numbers
        known = {"chain": with_values(chain, steps), "classes": classes, "several_labels": several}
        head: Any = object.__new__(kind)
        head.__dict__.update(known, weight=weight, bias=bias)
        return head

    jax.tree_util.register_pytree_node(kind, flatten, unflatten)


def scores(chain: Chain, weight: Any, bias: Any, x: Any) -> jax.Array:
    """The scores of feature vectors x, … × d → … × m. They have derivatives, and numbers that are NaN stay NaN."""
    z = jnp.asarray(x, float)
    for step in chain:
        if isinstance(step, Clip):
            z = _clipped(z, step.norm)
        elif isinstance(step, Centre):
            z = z - jnp.asarray(step.mean, float)
        else:
            z = _product(z, step.matrix)
    return _product(z, weight) + jnp.asarray(bias, float)


def _clipped(z: jax.Array, norm: Any) -> jax.Array:
    """Divide the rows of z by max(norm, ‖z‖), without a square that is too large or too small for the precision."""
    unit = lax.stop_gradient(jnp.maximum(jnp.max(jnp.abs(z), axis=-1, keepdims=True), norm))
    z, norm = z / unit, norm / unit
    return z / jnp.sqrt(jnp.maximum(jnp.sum(z * z, axis=-1, keepdims=True), norm * norm))


def _product(z: jax.Array, matrix: Any) -> jax.Array:
    # Accelerators would round the factors first.
    return jnp.matmul(z, jnp.asarray(matrix, float), precision="highest")
