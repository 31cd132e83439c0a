"""What the tests of a training share."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.privacy import curator
from dpfc_cli.privacy.queries import Query
from tests import instead
from tests.support import blobs, feature_set
from tests.training.requests import three


@pytest.fixture
def features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FeatureSet:
    """120 records of 3 classes, in a folder that the test runs in."""
    # Heads of other trainings may lie where the tests are run.
    monkeypatch.chdir(tmp_path)
    x, y = blobs(120, 5, 3)
    np.savez(tmp_path / "raw.npz", train_x=x, train_y=y)
    feature_set(tmp_path / "raw.npz", tmp_path / "set", classes=("a", "b", "c"))
    return FeatureSet(tmp_path / "set")


@pytest.fixture
def heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads are written beside what the test makes."""
    monkeypatch.setenv("DPFC_HEADS", str(tmp_path / "heads"))


@pytest.fixture
def private(tmp_path: Path) -> FeatureSet:
    return three(tmp_path, "private", 0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sets of the same records."""
    folder = tmp_path_factory.mktemp("sets")
    x, y = blobs(30, 3, 2)
    np.savez(folder / "raw.npz", train_x=x, train_y=y)
    for name in "abc":
        feature_set(folder / "raw.npz", folder / "features" / name, classes=("a", "b"))
    return folder


@pytest.fixture
def sets(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, FeatureSet]:
    monkeypatch.chdir(tmp_path)
    for variable in ("DPFC_FEATURES", "DPFC_HEADS"):
        monkeypatch.delenv(variable, raising=False)
    shutil.copytree(made / "features", tmp_path / "features")
    return {name: FeatureSet(Path("features", name)) for name in "abc"}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, np.ndarray]]:
    """Each answer that a method sees, with the number of its release."""
    found: list[tuple[int, np.ndarray]] = []
    release = curator.Curator.release

    def watched(self: curator.Curator, query: Query) -> np.ndarray:
        number = self.released
        found.append((number, release(self, query).copy()))
        return found[-1][1]

    instead.release(monkeypatch, watched)
    return found
