"""Sums over processes. (`test_distributed` has real processes, which add small arrays.)"""

import numpy as np
import pytest

from dpfc_cli.extensions.engine import adding


@pytest.mark.parametrize("shape", [(0,), (3,), (16,), (21,), (3, 9)])
@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_each_number_of_a_large_array_is_added_once(
    shape: tuple[int, ...], dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is alone gets its own array back, in place."""
    monkeypatch.setattr(adding, "PIECE", 16)
    array: np.ndarray = np.arange(2**52, 2**52 + np.prod(shape)).astype(dtype).reshape(shape)
    before = array.copy()
    assert adding.added(array) is array
    assert np.array_equal(array, before)
