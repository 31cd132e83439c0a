"""Functions of JAX give as ONNX what they give as JAX, for any number of pictures."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest

from dpfc_cli.extensions.exports.graph import Graph, Values
from dpfc_cli.extensions.exports.traced import nodes
from tests.support import refuses

SHAPE = (4, 6, 3)
W = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)


def functions() -> dict[str, Callable[[jax.Array], jax.Array]]:
    """From float32 (4, 6, 3)."""
    return {
        "a constant": lambda x: jnp.ones((2, 3), jnp.float32),
        "a constant along one axis": lambda x: jnp.concatenate([jnp.broadcast_to(W[:, 0], (4, 1, 3)), x], 1),
        "a mean that is a part of the result": lambda x: jnp.broadcast_to(x.mean(1, keepdims=True), x.shape),
        "a loop": lambda x: jax.lax.map(lambda row: jnp.stack([row @ W, jnp.exp(-(row @ W))]), x),
        "a loop over constants": lambda x: jax.lax.map(lambda row: x[0] * row, jnp.asarray(W.T)),
        "products": lambda x: jnp.einsum("abc,dbc->bad", x, x) / jnp.einsum("abc,abd->bac", x, x).sum((1, 2)).mean(),
        "products of rows": lambda x: jnp.einsum("abc,bc->ba", x, jnp.asarray(W[:, :2].reshape(6, 1) * W[0, :3])),
        "a loop with the same in each row": lambda x: jax.lax.map(lambda row: jnp.broadcast_to(row[:1], (2, 3)), x),
        "a product with a matrix on the left": lambda x: jnp.asarray(W.T) @ x[0].T,
        "backwards, and in steps": lambda x: jnp.flip(x, (0, 2))[1::2, ::3],
        "a softmax": lambda x: jax.nn.softmax(x / 9, 1),
        "activations": lambda x: jax.nn.silu(x) + jax.nn.gelu(-x) + jax.nn.relu(x - 9) + jnp.sqrt(x**3 + 1),
    }


@pytest.mark.parametrize("name", functions())
def test_a_function_of_jax_gives_the_same_as_onnx(name: str) -> None:
    def function(pixels: jax.Array) -> jax.Array:
        return functions()[name](pixels.astype(jnp.float32) / 100)

    shown = np.random.default_rng(1).integers(0, 256, (7, *SHAPE)).astype(np.uint8)
    expected = np.asarray(jax.vmap(function)(jnp.asarray(shown)))
    graph = Graph()
    graph.name(nodes(graph, "pixels", shown[0], jax.vmap(function)), "found")
    inputs: Values = {"pixels": (np.uint8, ("n", *SHAPE))}
    outputs: Values = {"found": (np.float32, ("n", *expected.shape[1:]))}
    session = onnxruntime.InferenceSession(b"".join(graph.files(inputs, outputs, {}, "a.onnx")[""]))
    for count in (7, 1):
        (found,) = session.run(None, {"pixels": shown[:count]})
        np.testing.assert_allclose(found, expected[:count], rtol=1e-5, atol=1e-5)


def test_an_operation_without_a_translation_is_refused() -> None:
    def sorted_by_jax(pixels: jax.Array) -> Any:
        return jnp.sort(pixels)

    with refuses("unsupported", match="sort"):
        nodes(Graph(), "pixels", np.zeros(SHAPE, np.uint8), sorted_by_jax)
