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

PANEL = 4096
NARROW = 192
"""Columns of a panel below which the products become too small to be fast."""


@functools.cache
def _on_host() -> bool:
    return jax.local_device_count() == 1 and jax.local_devices()[0].platform == "cpu"


def check_exact() -> None:
    """ArithmeticError unless products of integers on this machine's devices are exact.

    Not every accelerator has a true float64. Also the first use of the devices: what JAX cannot do shows here.
    """
    # As large as real factors: a library may choose its kernel by size. Sums come near 2⁵².
    a = np.random.default_rng(0).integers(2**20, 2**21, size=(1024, 64)).astype(np.float64)
    exact = a.astype(np.int64).T @ a.astype(np.int64)
    device = np.asarray(_device_product(jnp.asarray(a), jnp.asarray(a)))
    if device.dtype != np.float64 or not np.array_equal(device.astype(np.int64), exact):
        raise ArithmeticError(f"{jax.devices()[0].platform} devices do not compute exactly in float64")


@jax.jit
def _device_product(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.matmul(left.T, right, precision=jax.lax.Precision.HIGHEST)


def outer_sum(left: jax.Array, right: jax.Array) -> np.ndarray:
    """Σ over rows of left ⊗ right: leftᵀ·right, float64."""
    if not _on_host():
        return np.asarray(_device_product(left, right))
    a = np.asarray(left)
    return gram(a) if left is right else np.asarray(a.T @ np.asarray(right))


def gram(a: np.ndarray) -> np.ndarray:
    """aᵀ·a in panels of columns: OpenBLAS's `dsyrk`, which NumPy calls for aᵀ·a, crashes from about 10,000 columns."""
    side = a.shape[1]
    total = np.empty((side, side))
    for i in range(0, side, PANEL):
        rows = slice(i, i + PANEL)
        for j in range(0, i + PANEL, PANEL):
            columns = slice(j, j + PANEL)
            total[rows, columns] = a[:, rows].T @ a[:, columns]
            total[columns, rows] = total[rows, columns].T
    return total


def add_weighted_grams(total: np.ndarray, weights: jax.Array, q: jax.Array) -> None:
    """total[j] += Σ w_j·q qᵀ over rows, for every column j of weights. In place, on the host.

    Where the weights are labels (0 or 1), a record adds to the Grams of its own classes only: the work is that of one
    Gram per label, whatever the number of classes.
    """
    w, rows = np.asarray(weights), np.asarray(q)
    weighted = np.empty_like(rows)
    for j in np.flatnonzero(w.any(axis=0)):
        taken = w[:, j] != 0
        if (w[taken, j] == 1).all():
            total[j] += gram(rows[taken])
        else:
            _add_symmetric(total[j], np.multiply(rows, w[:, j : j + 1], out=weighted), rows)


def _add_symmetric(total: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
    """Add leftᵀ·right, known to be symmetric, to total: panels from the diagonal to the right, mirrored.

    No BLAS routine does this for two factors; panels save 25 to 40 % of the full product.
    """
    side = len(total)
    width = -(-side // max(2, side // NARROW))
    for i in range(0, side, width):
        stop = min(i + width, side)
        product = left[:, i:stop].T @ right[:, i:]
        total[i:stop, i:] += product
        total[stop:, i:stop] += product[:, stop - i :].T
