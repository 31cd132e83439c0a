"""A small feature set as arrays in a folder."""

from pathlib import Path

import numpy as np
import pytest

from tests.support import blobs


@pytest.fixture
def data(tmp_path: Path) -> str:
    x, y = blobs(600, 6, 3)
    for name, part in (("train", slice(0, 400)), ("test", slice(400, 600))):
        np.save(tmp_path / f"{name}_x.npy", x[part])
        np.save(tmp_path / f"{name}_y.npy", y[part])
    return str(tmp_path)
