"""What public records are worth: the three rows of the table."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from bench import cells, starts
from bench.cells import Cell
from dpfc_cli.extraction.importing import import_features
from tests.support import blobs


def made(folder: Path, name: str, seed: int) -> str:
    x, y = blobs(400, 6, 3, seed)
    np.savez(folder / f"{name}.npz", train_x=x[:300], train_y=y[:300], test_x=x[300:], test_y=y[300:])
    import_features(folder / f"{name}.npz", folder / name, classes=("a", "b", "c"))
    return str(folder / name)


def test_what_is_public_changes_a_cell_and_its_key(tmp_path: Path) -> None:
    mine = made(tmp_path, "mine", 0)
    np.save(tmp_path / "vectors.npy", np.eye(3, 6))
    plain = Cell(mine, "dp-whitened", 0.5)
    for informed in (replace(plain, public=mine), replace(plain, start=str(tmp_path / "vectors.npy"))):
        assert informed.key != plain.key
        assert (cells.train(informed).weight != cells.train(plain).weight).any()


def test_hostile_starts_are_wrong_each_in_its_own_way() -> None:
    vectors = np.vstack([np.eye(5), np.zeros((1, 5))])
    made_of = starts.hostile(vectors)
    assert set(starts.rows_of("mine", None, Path("folder"))) == {"no start", "right", *made_of}
    moved = {name: int((found != vectors).any(axis=1).sum()) for name, found in made_of.items()}
    assert (moved["two-swapped"], moved["half-permuted"], moved["zeros"], moved["long"]) == (2, 2, 5, 5)
    assert sorted(map(tuple, made_of["permuted"])) == sorted(map(tuple, vectors))
    assert moved["permuted"] >= 4


def test_vectors_alone_never_predict_a_class_without_one(tmp_path: Path) -> None:
    x, y = np.eye(4).repeat(3, axis=0), np.arange(4).repeat(3)
    for split in ("train", "test"):
        np.save(tmp_path / f"{split}_x.npy", x)
        np.save(tmp_path / f"{split}_y.npy", y)
    np.save(tmp_path / starts.VECTORS, np.diag([3.0, 1.0, 2.0, 0.0]))
    assert starts.alone(str(tmp_path)) == 75
