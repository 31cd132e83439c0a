"""Exact products of integer factors: sums over the records of a block.

All entries are integers and all partial sums stay below 2⁵³ (`privacy.lattice`). So float64 is exact here for any order
of the sum, on BLAS and on XLA. On one CPU device the BLAS of the host is several times faster than the float64 product
of XLA, and NumPy hands AᵀA to `dsyrk`. With other devices the product runs where the factors are stored. Adding the
partial sums of the devices is exact as well.
"""

import functools
import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from threadpoolctl import ThreadpoolController

THREADS = 8
"""The most threads that multiply. Each of them holds a sum and a block."""
SUMS = 1 << 27
"""Bytes that the sums of all threads may take."""
WIDE = 512
"""Rows that are widened to float64 at a time. They stay in the cache until they are multiplied."""
PANEL = 4096
NARROW = 192
"""If a panel has fewer columns than this, the products are too small to be fast."""


@functools.cache
def _on_host() -> bool:
    return jax.local_device_count() == 1 and jax.local_devices()[0].platform == "cpu"


def check_exact() -> None:
    """Check that products of integers are exact on the devices of this machine. Some accelerators have no true float64.

    This is also the first use of the devices, so it shows what JAX cannot do.

    Raises:
        ArithmeticError: a product is not exact.

    """
    # As large as real factors, because a library may choose its kernel by size. The sums come near 2⁵².
    a = np.random.default_rng(0).integers(2**20, 2**21, size=(1024, 64)).astype(np.float64)
    exact = a.astype(np.int64).T @ a.astype(np.int64)
    device = np.asarray(_device_product(jnp.asarray(a), jnp.asarray(a)))
    if device.dtype != np.float64 or not np.array_equal(device.astype(np.int64), exact):
        raise ArithmeticError(f"{jax.devices()[0].platform} devices do not compute exactly in float64")


@jax.jit
def _device_product(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.matmul(left.astype(jnp.float64).T, right, precision=jax.lax.Precision.HIGHEST)


def summed(
    factors: Iterator[tuple[Any, ...]], shape: tuple[int, ...], *, alone: bool = False, integers: bool = True
) -> np.ndarray:
    """Σ over blocks and rows of left ⊗ right.

    On the host each thread multiplies blocks of its own, with one thread of BLAS. The threads of one product would wait
    for one another, and for those that compute the next factors.

    Args:
        factors: blocks (left, right), see `outer_sum`. They are asked for in this thread, in their order.
        shape: p × q.
        alone: left ⊗ left is summed.
        integers: the factors are integers, so the sum does not depend on the order.

    Returns:
        p × q, float64, on the host.

    """
    pairs = ((left, left if alone else right) for left, right in factors)
    threads = min(_cores(), THREADS, SUMS // (8 * shape[0] * shape[1])) if integers and _on_host() else 1
    if threads <= 1:
        total = np.zeros(shape)
        for left, right in pairs:
            total += outer_sum(left, right)
        return total
    sums: SimpleQueue[np.ndarray] = SimpleQueue()
    for _ in range(threads):
        sums.put(np.zeros(shape))

    def add(left: Any, right: Any) -> None:
        mine = sums.get()
        _add_outer(mine, left, right)
        sums.put(mine)

    waiting: deque[Future[None]] = deque()
    with _blas().limit(limits=1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        for pair in pairs:
            waiting.append(pool.submit(add, *pair))
            if len(waiting) > threads:
                waiting.popleft().result()
        for each in waiting:
            each.result()
    return sum((sums.get() for _ in range(threads - 1)), sums.get())


def _cores() -> int:
    """How many processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def outer_sum(left: jax.Array | np.ndarray, right: jax.Array | np.ndarray) -> np.ndarray:
    """Σ over rows of left ⊗ right, which is leftᵀ·right; float64.

    Args:
        left: B × p, integers in any type that holds them.
        right: B × q, integers in float64. If it is the same object as `left`, half the work is enough.

    Returns:
        p × q, on the host.

    """
    # Factors that were changed on the host have blocks of many shapes. A device would compile a product for each.
    if not (_on_host() or isinstance(right, np.ndarray)):
        return np.asarray(_device_product(jnp.asarray(left), right))
    a = _widened(np.asarray(left))
    return gram(a) if left is right else np.asarray(a.T @ np.asarray(right))


def _add_outer(total: np.ndarray, left: Any, right: Any) -> None:
    """Add the `outer_sum` of integers to the total, in place, on the host."""
    a, b = np.asarray(left), np.asarray(right)
    step = len(a) if a.dtype == np.float64 else WIDE
    for at in range(0, len(a), step):
        total += outer_sum(a, a) if left is right else _widened(a[at : at + step]).T @ b[at : at + step]


_held = threading.local()


def _widened(a: np.ndarray) -> np.ndarray:
    """The same numbers in float64. What was widened before in this thread may be overwritten: the system takes longer
    to find new memory for a block than it takes to write to it.
    """
    if a.dtype == np.float64:
        return a
    if getattr(_held, "wide", np.empty(0)).shape != a.shape:
        _held.wide = np.empty(a.shape)
    np.copyto(_held.wide, a)
    return np.asarray(_held.wide)


def gram(a: np.ndarray) -> np.ndarray:
    """aᵀ·a, in panels of columns. With about 10,000 columns or more, one call of `dsyrk` by NumPy crashes in
    OpenBLAS.
    """
    side = a.shape[1]
    total = np.empty((side, side))
    for i in range(0, side, PANEL):
        rows = slice(i, i + PANEL)
        for j in range(0, i + PANEL, PANEL):
            columns = slice(j, j + PANEL)
            total[rows, columns] = a[:, rows].T @ a[:, columns]
            total[columns, rows] = total[rows, columns].T
    return total


def add_weighted_grams(total: np.ndarray, weights: jax.Array | np.ndarray, q: jax.Array | np.ndarray) -> None:
    """Add Σ over rows of w_j·q qᵀ to total[j], for every column j of the weights. In place, on the host.

    If the weights are labels (0 or 1), a record adds to the Gram matrices of its own classes only. The work is then
    that of one Gram matrix per label, for any number of classes.

    Args:
        total: m × d × d, float64.
        weights: B × m, integers in float64.
        q: B × d, integers in float64.

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

    No BLAS routine does this for two factors. The panels save 25 to 40 % of the full product.
    """
    side = len(total)
    width = -(-side // max(2, side // NARROW))
    for i in range(0, side, width):
        stop = min(i + width, side)
        product = left[:, i:stop].T @ right[:, i:]
        total[i:stop, i:] += product
        total[stop:, i:stop] += product[:, stop - i :].T
