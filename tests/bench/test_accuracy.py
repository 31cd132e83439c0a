"""The table of accuracies and the family of made-up sets."""

from pathlib import Path

import numpy as np
import pytest

from bench import accuracy, synthetic
from bench.cells import Cell
from bench.sets import load
from bench.synthetic import Family


@pytest.mark.parametrize("name", ["tabular", "few-records", "deficient"])
def test_a_made_up_set_has_the_properties_that_it_states(name: str) -> None:
    family = synthetic.FAMILY[name]
    made = synthetic.draw(family)
    x, y = made["train_x"].astype(np.float64), made["train_y"]
    assert x.shape == (family.n, family.d)
    assert set(np.unique(y)) == set(range(family.m))
    assert (x.mean(axis=0) ** 2).sum() / (x**2).sum(axis=1).mean() == pytest.approx(family.offset, abs=0.08)
    assert np.linalg.matrix_rank(x - x.mean(axis=0), tol=1e-2) == (family.rank or family.d)


def test_unequal_classes_and_heavy_tails() -> None:
    base = Family(4000, 8, 4, decay=0.5, apart=2.0)
    counts = np.bincount(synthetic.draw(Family(4000, 8, 4, decay=0.5, apart=2.0, zipf=1.0))["train_y"])
    assert 3 < counts[0] / counts[3] < 5
    longest = [np.abs(synthetic.draw(f)["train_x"]).max() for f in (base, Family(4000, 8, 4, 0.5, 2.0, tails=3))]
    assert longest[1] > 2 * longest[0]


def test_the_family_is_written_once_and_read_as_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "FAMILY", {"small": Family(200, 6, 3, decay=1.0, apart=3.0)})
    (place,) = synthetic.write(tmp_path)
    assert load(str(place)).x.shape == (200, 6)
    before = (place / "train_x.npy").stat().st_mtime_ns
    synthetic.write(tmp_path)
    assert (place / "train_x.npy").stat().st_mtime_ns == before


def test_a_table_shows_what_is_done_and_nothing_else() -> None:
    done = {Cell("a", "dp-fc", 1.0, seed).key: value for seed, value in enumerate((80.0, 82.0))}
    done[Cell("a", "dp-fc", None).key] = 90.0
    lines = accuracy.table([Path("a")], ["dp-fc", "dp-ls"], [1.0], done).splitlines()
    assert lines[2] == "| a | `dp-fc` | 81.0 ± 1.4 | 90.0 |"
    assert lines[3] == "| a | `dp-ls` | – | – |"


def test_cells_cover_every_combination_once() -> None:
    cells = accuracy.cells_of([Path("a"), Path("b")], ["dp-fc"], [0.1, 1.0], 3)
    assert len(set(cells)) == len(cells) == 2 * 2 * 3 + 2
