"""What public records are worth: the three rows of the table."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench import cells, public
from bench.cells import Cell
from dpfc_cli.features.importing import import_features
from dpfc_cli.training import tuning
from tests.support import blobs


def made(folder: Path, name: str, seed: int) -> str:
    x, y = blobs(400, 6, 3, seed)
    np.savez(folder / f"{name}.npz", train_x=x[:300], train_y=y[:300], test_x=x[300:], test_y=y[300:])
    import_features(folder / f"{name}.npz", folder / name, classes=("a", "b", "c"))
    return str(folder / name)


def test_options_are_those_that_the_product_chooses_on_the_public_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = made(tmp_path, "mine", 0), made(tmp_path, "theirs", 1)
    monkeypatch.setattr(tuning, "choose", lambda scores: max(scores))
    cell = public.tuned(mine, theirs, 2.0)
    assert (cell.data, cell.epsilon) == (mine, 2.0)
    assert set(cell.given) == {"learning_rate", "bias_feature"}
    monkeypatch.setattr(tuning, "choose", lambda scores: 0)
    assert public.tuned(mine, theirs, 2.0) == Cell(mine, "dp-whitened", 2.0)


def test_public_moments_change_a_cell_and_its_key(tmp_path: Path) -> None:
    mine, theirs = made(tmp_path, "mine", 0), made(tmp_path, "theirs", 1)
    plain = Cell(mine, "dp-whitened", 0.5)
    informed = replace(plain, public=theirs)
    assert informed.key != plain.key
    assert (cells.train(informed).weight != cells.train(plain).weight).any()


def test_gains_are_paired_by_seed_with_the_first_row() -> None:
    plain = Cell("a", "dp-whitened", 1.0)
    other = replace(plain, public="b")
    done = {replace(plain, seed=s).key: 50.0 + 10 * s for s in range(2)}
    done |= {replace(other, seed=s).key: 51.0 + 10 * s for s in range(2)}
    lines = list(public.table({"alone": [plain], "with": [other]}, [1.0], 2, done))
    assert lines[2:] == ["| alone | 55.0 ± 7.1 |", "| with | +1.0 ± 0.0 |"]
