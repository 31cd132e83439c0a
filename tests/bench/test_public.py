"""What public records are worth: the three rows of the table."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from bench import cells
from bench.cells import Cell
from tests.support import blobs, feature_set


def made(folder: Path, name: str, seed: int) -> str:
    x, y = blobs(400, 6, 3, seed)
    np.savez(folder / f"{name}.npz", train_x=x[:300], train_y=y[:300], test_x=x[300:], test_y=y[300:])
    feature_set(folder / f"{name}.npz", folder / name, classes=("a", "b", "c"))
    return str(folder / name)


def test_what_is_public_changes_a_cell_and_its_key(tmp_path: Path) -> None:
    mine = made(tmp_path, "mine", 0)
    np.save(tmp_path / "vectors.npy", np.eye(3, 6))
    plain = Cell(mine, "dp-whitened", 0.5)
    for informed in (replace(plain, public=mine), replace(plain, start=str(tmp_path / "vectors.npy"))):
        assert informed.key != plain.key
        assert (cells.train(informed).weight != cells.train(plain).weight).any()
