"""Run a per-record map over a block of records: jit-compiled, and spread over all devices.

The map is traced with its scalars fixed and its arrays as arguments. So the T steps of a training share one compiled
function. Random numbers are not used here: a random key inside a jitted function would be a constant.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

RowMap = Callable[..., tuple[jax.Array, ...]]


PIECE = 256
"""Records that a CPU computes at a time. Their numbers stay in its cache between the operations."""
CHUNK = 2048
"""Records that one call computes on a CPU: some pieces. So several threads share a block, and little of the last block
is computed for nothing.
"""


@functools.cache
def on_host() -> bool:
    """Whether one CPU device computes everything."""
    return jax.local_device_count() == 1 and jax.local_devices()[0].platform == "cpu"


def chunk(size: int) -> int:
    """How many records of blocks of `size` one call should compute. A CPU computes pieces of the same shape for both
    numbers, so the results are the same to the last bit.
    """
    return CHUNK if on_host() and size % CHUNK == 0 else size


@functools.cache
def _sharding(rows: int) -> NamedSharding | None:
    """Split blocks of `rows` records evenly over devices: the largest power of two of them that divides the block."""
    devices = jax.local_devices()
    count = 1
    while count * 2 <= len(devices) and rows % (count * 2) == 0:
        count *= 2
    if count == 1:
        return None
    return NamedSharding(Mesh(np.array(devices[:count]), ("records",)), PartitionSpec("records"))  # type: ignore[no-untyped-call]


@functools.cache
def compiled(row_map: RowMap) -> RowMap:
    """`row_map(block, arrays, xp)` as a jitted function of the first two arguments. Equal maps are compiled once."""

    def in_pieces(block: tuple[jax.Array, ...], arrays: dict[str, object]) -> tuple[jax.Array, ...]:
        count = len(block[0])
        if not on_host() or count % PIECE:
            return row_map(block, arrays, xp=jnp)
        pieces = tuple(array.reshape(-1, PIECE, *array.shape[1:]) for array in block)
        made = jax.lax.map(lambda piece: row_map(piece, arrays, xp=jnp), pieces)
        return tuple(array.reshape(count, *array.shape[2:]) for array in made)

    return jax.jit(in_pieces)


def run(row_map: RowMap, block: tuple[np.ndarray, ...], arrays: dict[str, object]) -> tuple[jax.Array, ...]:
    """What a map makes of a block (arrays with B rows), on the devices: arrays with B rows. It may still be computed
    when this returns. row_map: hashable. arrays: and numbers, of the query. TypeError: JAX computes in 32 bits.
    """
    if jnp.result_type(float) != np.float64:
        raise TypeError("lattice factors must be float64: JAX is not in 64-bit mode")
    sharding = _sharding(len(block[0]))
    placed = block if sharding is None else jax.device_put(block, sharding)
    # By default, accelerators multiply float32 numbers with fewer bits. Heads are scored with all bits.
    # JAX can be set to stop at the first NaN. Then the end of a training would tell of a record.
    with jax.default_matmul_precision("highest"), jax.debug_nans(False), jax.debug_infs(False):
        return compiled(row_map)(placed, arrays)


ALIGNED = 64
"""JAX takes an array of the host without a copy, if its address is a multiple of this."""


def joined(made: list[tuple[jax.Array, ...]], count: int) -> tuple[np.ndarray, ...]:
    """The first `count` rows of what `run` has made of the parts of a block, in one array of the host for each."""
    if len(made) == 1:
        return tuple(np.asarray(array)[:count] for array in made[0])
    return tuple(_joined([np.asarray(each) for each in parts], count) for parts in zip(*made, strict=True))


def _joined(parts: list[np.ndarray], count: int) -> np.ndarray:
    first = parts[0]
    raw = np.empty(count * first[0].nbytes + ALIGNED, np.uint8)
    begin = -raw.ctypes.data % ALIGNED
    whole = raw[begin : begin + count * first[0].nbytes].view(first.dtype).reshape(count, *first.shape[1:])
    at = 0
    for part in parts:
        whole[at : at + len(part)] = part[: count - at]
        at += len(part)
    return whole
