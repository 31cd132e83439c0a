"""Sums over processes: each brings an array of the same shape, and all get the exact sum.

The processes must be joined before (`jax.distributed`). Integers in float64 stay exact, in any order, as long as their
sum stays below 2⁵³.
"""

import functools
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import dpfc_cli.kernels  # noqa: F401  JAX adds in 64 bits with it.

PIECE = 1 << 22
"""Numbers that are added at a time: 32 MB in each process."""


@functools.cache
def _placed() -> tuple[NamedSharding, Callable[[jax.Array], jax.Array]]:
    """Where a number of each process lies, and the function that adds them."""
    firsts = {device.process_index: device for device in reversed(jax.devices())}
    mesh = Mesh(np.array([firsts[number] for number in sorted(firsts)]), ("processes",))
    add = jax.jit(lambda each: each.sum(0), out_shardings=NamedSharding(mesh, PartitionSpec()))  # type: ignore[no-untyped-call]
    return NamedSharding(mesh, PartitionSpec("processes")), add  # type: ignore[no-untyped-call]


def added(array: np.ndarray) -> np.ndarray:
    """The sum of the arrays of all processes, of any one shape, float64 or int64, contiguous. In place: each of them
    gets it.
    """
    sharding, add = _placed()
    flat = array.reshape(-1)
    for at in range(0, len(flat), PIECE):
        piece = flat[None, at : at + PIECE]
        placed = jax.make_array_from_process_local_data(sharding, piece)  # type: ignore[no-untyped-call]
        flat[at : at + PIECE] = np.asarray(add(placed))
    return array
