"""What the tests of a training share."""

from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.features.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from tests.support import blobs


@pytest.fixture
def features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FeatureSet:
    """120 records of 3 classes, in a folder that the test runs in."""
    # Heads of other trainings may lie where the tests are run.
    monkeypatch.chdir(tmp_path)
    x, y = blobs(120, 5, 3)
    np.savez(tmp_path / "raw.npz", train_x=x, train_y=y)
    import_features(tmp_path / "raw.npz", tmp_path / "set", classes=("a", "b", "c"))
    return FeatureSet(tmp_path / "set")
