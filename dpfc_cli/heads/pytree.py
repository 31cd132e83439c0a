"""Heads in JAX: a head is a pytree of its numbers, and its scores are a pure function of these and of features.

The precision is JAX's own: float32, unless `jax_enable_x64` says otherwise. `Head.scores` of NumPy is float64.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpfc_cli.privacy.chain import Centre, Chain, Clip, values, with_values


class Form(NamedTuple):
    """What of a head is no number: its chain without values, its classes, and whether a record may have several."""

    chain: Chain
    classes: tuple[str, ...]
    several_labels: bool


@cache
def register(kind: type, form: Callable[[Any], Form], made: Callable[[Form, Chain, Any, Any], Any]) -> None:
    """Make heads of this class pytrees. made: a head of its form, and of its chain, weight and bias."""

    def unflatten(form: Form, children: Any) -> Any:
        weight, bias, *steps = children
        return made(form, with_values(form.chain, steps), weight, bias)

    jax.tree_util.register_pytree_node(
        kind, lambda head: ((head.weight, head.bias, *values(head.chain)), form(head)), unflatten
    )


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
