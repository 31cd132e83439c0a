"""A working folder with a small feature set, and the command line to use on it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from dpfc_cli.cli import audit, budget, evaluate, extract, import_, statement, train  # noqa: F401
from dpfc_cli.cli.app import app
from tests.support import blobs

Dpfc = Callable[..., Result]


@pytest.fixture
def dpfc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dpfc:
    """Runs a command in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPFC_FEATURES", raising=False)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments))

    return run


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    """600 + 150 records in 3 separable classes, as .npy files."""
    folder = tmp_path / "arrays"
    folder.mkdir()
    for split, n in (("train", 600), ("test", 150)):
        x, y = blobs(n, 8, 3, seed=1, apart=8.0)
        np.save(folder / f"{split}_x.npy", x)
        np.save(folder / f"{split}_y.npy", y)
    return folder


@pytest.fixture
def features(dpfc: Dpfc, arrays: Path) -> Path:
    assert dpfc("import", str(arrays), "--out", "blobs", "--classes", "3").exit_code == 0
    return Path("features/blobs")
