"""Exact products of integer factors: sums over the records of a block.

All entries are integers and all partial sums stay below 2⁵³ (`privacy.lattice`), so float64 is exact here in any order,
on BLAS as on XLA. On one CPU device the host's BLAS is several times faster than XLA's float64 product, and NumPy hands
AᵀA to `dsyrk`; with other devices the product runs where the factors lie, and the partial sums of the devices are
added, exactly.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


@functools.cache
def _on_host() -> bool:
    return jax.local_device_count() == 1 and jax.local_devices()[0].platform == "cpu"


@jax.jit
def _device_product(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.matmul(left.T, right, precision=jax.lax.Precision.HIGHEST)


def outer_sum(left: jax.Array, right: jax.Array) -> np.ndarray:
    """Σ over rows of left ⊗ right: leftᵀ·right, float64."""
    if _on_host():
        a = np.asarray(left)
        b = a if left is right else np.asarray(right)
        return np.asarray(a.T @ b)
    return np.asarray(_device_product(left, right))


def add_class_grams(total: np.ndarray, members: jax.Array, q: jax.Array) -> None:
    """total[j] += Σ q qᵀ over the rows whose members[:, j] is 1, for every class j. In place, on the host.

    A record adds to the Grams of its own classes only: the work is that of one Gram per label, whatever the number of
    classes.
    """
    member, rows = np.asarray(members) > 0, np.asarray(q)
    for j in np.flatnonzero(member.any(axis=0)):
        own = rows[member[:, j]]
        total[j] += own.T @ own
