"""Sums over processes. (`test_distributed` has real processes, which add small arrays.)"""

import numpy as np
import pytest

from dpfc_cli.kernels.processes import PIECE, added


@pytest.mark.parametrize("shape", [(0,), (3,), (PIECE,), (PIECE + 5,), (3, PIECE // 2 + 1)])
@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_each_number_of_a_large_array_is_added_once(shape: tuple[int, ...], dtype: type) -> None:
    """A process that is alone gets its own array back, in place."""
    array: np.ndarray = np.arange(2**52, 2**52 + np.prod(shape)).astype(dtype).reshape(shape)
    before = array.copy()
    assert added(array) is array
    assert np.array_equal(array, before)
