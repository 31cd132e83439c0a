"""Exact products of integer factors: sums over the records of a block.

All entries are integers and all partial sums stay below 2⁵³ (`privacy.lattice`). So float64 is exact here for any order
of the sum, on BLAS and on XLA. On one CPU device the BLAS of the host is several times faster than the float64 product
of XLA, and NumPy hands AᵀA to `dsyrk`. With other devices the product runs where the factors are stored. Adding the
partial sums of the devices is exact as well.
"""

import functools
import itertools
import threading
from collections.abc import Iterator
from queue import SimpleQueue

import jax
import jax.numpy as jnp
import numpy as np

from dpfc_cli import threads
from dpfc_cli.kernels.rows import on_host

Factor = jax.Array | np.ndarray
Pair = tuple[Factor, Factor | None]
"""The factors of a block. None: the right one is the left one."""
SUMS = 1 << 27
"""Bytes that the sums of all threads may take, and as many for the blocks that they multiply or that wait."""
WIDE = 256
"""Rows that are widened to float64 and multiplied at a time. They stay in the cache."""
PANEL = 4096
SMALL = 1 << 20
"""Multiplications that take less time than it takes to start threads for them."""
QUICK = 1 << 25
"""Multiplications for which NumPy is as fast as SciPy, and SciPy takes long to be imported."""
NARROW = 192
"""If a panel has fewer columns than this, the products are too small to be fast."""


@functools.cache
def check_exact() -> None:
    """ArithmeticError if products of integers are not exact on the devices of this machine. Some accelerators have no
    true float64.

    This is also the first use of the devices, so it shows what JAX cannot do. A process looks once.
    """
    # As large as real factors, because a library may choose its kernel by size. The sums come near 2⁵².
    a = np.random.default_rng(0).integers(2**20, 2**21, size=(1024, 64)).astype(np.float64)
    exact = a.astype(np.int64).T @ a.astype(np.int64)
    # By what multiplies the factors of a training: BLAS, or the devices.
    made = outer_sum(a, a.copy() if on_host() else jax.device_put(a))
    if made.dtype != np.float64 or not np.array_equal(made.astype(np.int64), exact):
        raise ArithmeticError(f"{jax.devices()[0].platform} devices do not compute exactly in float64")


@jax.jit
def _device_product(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.matmul(left.astype(jnp.float64).T, right, precision=jax.lax.Precision.HIGHEST)


def summed(
    factors: Iterator[tuple[Factor, ...]], shape: tuple[int, ...], *, alone: bool = False, integers: bool = True
) -> np.ndarray:
    """Σ over blocks and rows of left ⊗ right: p × q (`shape`), float64, on the host.

    On the host each thread multiplies blocks of its own, with one thread of BLAS. The threads of one product would wait
    for one another, and for those that compute the next factors. If there is room for one thread only, the products
    take all threads of BLAS. Small blocks are multiplied by this thread.

    factors: blocks (left, right), see `outer_sum`. They are asked for in this thread, in their order. alone: left ⊗
    left is summed. integers: the factors are integers, so the sum does not depend on the order.
    """
    if not (integers and on_host()):
        total = np.zeros(shape)
        for left, right in factors:
            total += outer_sum(left, left if alone else right, integers)
        return total
    pairs: Iterator[Pair] = ((left, None if alone else right) for left, right in factors)
    first = next(pairs, None)
    if first is None:
        return np.zeros(shape)
    count = _threads_for(first, shape)
    if first[1] is not None and first[0].size * shape[1] > QUICK:
        # Before there are threads: a BLAS that is loaded later has all cores in each of them.
        import scipy.linalg.blas  # noqa: F401
    pairs, first = itertools.chain([first], pairs), None
    if count == 1:
        # One block at a time, with the threads of BLAS.
        total = np.zeros(shape, order="F")
        for pair in pairs:
            total = _added(total, *pair)
        return np.ascontiguousarray(total)
    sums: SimpleQueue[np.ndarray] = SimpleQueue()
    for _ in range(count):
        sums.put(np.zeros(shape, order="F"))

    def add(pair: Pair) -> None:
        total = sums.get()
        try:
            total = _added(total, *pair)
        finally:
            sums.put(total)

    for _ in threads.in_threads(add, pairs, count, count + 1):
        pass
    return np.ascontiguousarray(sum((sums.get() for _ in range(count - 1)), sums.get()))


def _threads_for(block: Pair, shape: tuple[int, ...]) -> int:
    """How many threads multiply blocks like this one: as many as `SUMS` has room for, of their sums and of the blocks.

    Of several threads, one block more than there are threads is there at a time.
    """
    left, right = block
    if left.size * shape[1] <= SMALL:
        return 1
    # A Gram matrix is made beside the sum that it is added to.
    sums = 8 * shape[0] * shape[1] * (2 if right is None else 1)
    held = left.nbytes + (0 if right is None else right.nbytes)
    return max(1, min(threads.cores(), threads.MOST, SUMS // sums, SUMS // max(1, int(held)) - 1))


def _added(total: np.ndarray, left: Factor, right: Factor | None) -> np.ndarray:
    """The total plus the `outer_sum` of integers, on the host. right: None for `left` itself.

    The total is in the order of Fortran, and overwritten: BLAS then adds to it while it multiplies. This takes two
    thirds of the time of a product and a sum of NumPy.
    """
    if right is None:
        np.add(total.T, gram(_widened(np.asarray(left))), out=total.T)
        return total
    left, right = np.asarray(left), np.asarray(right)
    if len(left) != len(right):
        raise ValueError(f"{len(left)} factors cannot be multiplied by {len(right)}")
    if left.size * right.shape[1] <= QUICK:
        total += _widened(left).T @ right
        return total
    from scipy.linalg.blas import dgemm

    for at in range(0, len(left), WIDE):
        wide = _widened(left[at : at + WIDE])
        total = dgemm(1.0, wide.T, right[at : at + WIDE].T, 1.0, total, trans_b=True, overwrite_c=True)
    return total


@jax.jit
def _device_weighted_grams(weights: jax.Array, q: jax.Array) -> jax.Array:
    # One class after the other, so that the device holds the weighted factors of one class only.
    products: jax.Array = jax.lax.map(lambda w: _device_product(q * w[:, None], q), weights.T)
    return products


def outer_sum(left: Factor, right: Factor, integers: bool = True) -> np.ndarray:
    """Σ over rows of left ⊗ right, which is leftᵀ·right: p × q, float64, on the host.

    left: B × p, integers in any type that holds them. right: B × q, integers in float64. If it is the same object as
    `left`, half the work is enough. integers: False: real numbers, which are multiplied in the type of the left factor,
    where that is faster.
    """
    # Factors that were changed on the host have blocks of many shapes. A device would compile a product for each.
    if not (on_host() or isinstance(right, np.ndarray)):
        return np.asarray(_device_product(jnp.asarray(left), right))
    a, b = np.asarray(left), np.asarray(right)
    if left is right:
        return gram(_widened(a))
    return np.asarray(_widened(a).T @ b if integers else a.T @ b.astype(a.dtype))


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


def add_class_grams(total: np.ndarray, labels: np.ndarray, q: np.ndarray) -> None:
    """Add q qᵀ to total[j] (m × d × d, float64) for each row q with the label j. In place, on the host, each class by
    one thread. labels: B, from 0 to m − 1. q: B × d, integers in any type that holds them.
    """
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]

    def add(j: int) -> None:
        rows = order[slice(*np.searchsorted(ordered, (j, j + 1)))]
        total[j] += gram(q[rows].astype(np.float64))

    for _ in threads.in_threads(add, np.unique(labels), threads.MOST if q.size * q.shape[1] > SMALL else 0):
        pass


def add_weighted_grams(total: np.ndarray, weights: Factor, q: Factor) -> None:
    """Add Σ over rows of w_j·q qᵀ to total[j], for every column j of the weights. In place, on the host. The products
    are made where the factors are stored. total: m × d × d, weights: B × m, q: B × d; integers in float64.
    """
    if not (on_host() or isinstance(q, np.ndarray) or isinstance(weights, np.ndarray)):
        total += np.asarray(_device_weighted_grams(weights, q))
        return
    w, rows = np.asarray(weights), np.asarray(q)

    def add(j: int) -> None:
        _add_symmetric(total[j], rows * w[:, j : j + 1], rows)

    most = max(1, SUMS // max(1, rows.nbytes)) if w.shape[1] * rows.size * rows.shape[1] > SMALL else 0
    for _ in threads.in_threads(add, range(w.shape[1]), most):
        pass


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
