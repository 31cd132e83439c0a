"""The convex track of a public benchmark: its figures, its files, and the table of the page."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bench import cells, convex_track
from bench.sets import load
from tests.support import feature_set

ROOT = Path(__file__).parents[2]


def test_the_table_is_that_of_the_page_with_the_smallest_lead_first() -> None:
    made = [*convex_track.table(cells.read(ROOT / convex_track.RESULTS))]
    assert "\n\n" + "\n".join(made) + "\n\n" in (ROOT / "docs/accuracy.md").read_text("utf-8")
    leads = [float(row.split("|")[-2]) for row in made[1:]]
    assert leads == sorted(leads)


def test_the_figures_are_accuracy_and_auroc(data: str) -> None:
    cell = convex_track.trainings(data, 0.3)[0]
    test = load(data)
    scores = cells.train(cell).scores(test.test_x)
    p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    above = [np.mean(p[test.test_y == j, j][:, None] > p[test.test_y != j, j]) for j in range(3)]
    expected = 100 * np.average(above, weights=np.bincount(test.test_y))
    assert convex_track.figures(cell) == pytest.approx((100 * np.mean(p.argmax(axis=1) == test.test_y), expected))


@pytest.mark.parametrize("several", [False, True])
def test_features_of_the_benchmark_become_a_set(several: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    y = np.array([[0, 1, 1], [0, 0, 0], [1, 1, 1]]) if several else np.array([0, 2, 1])
    for split in ("train", "test"):
        for part, values in (("X", np.eye(3, 4, dtype=np.float32)), ("Y", y)):
            (tmp_path / f"set_{split}_{part}.pt").write_bytes(values.dumps())
    # A tensor has numpy(). PyTorch is not needed for the tests.
    read = lambda path: SimpleNamespace(numpy=lambda: np.load(path, allow_pickle=True))  # noqa: E731
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(load=read))
    convex_track.take(str(tmp_path / "set"))
    classes = ("a", "b", "c", "none")[: 3 + several]
    made = feature_set(tmp_path / "set.npz", tmp_path / "made", classes=classes, labels_per_record=3 if several else 1)
    ((_, _, labels),) = made.stream("train")(8)
    expected = [{1, 2}, {3}, {0, 1, 2}] if several else [{0}, {2}, {1}]
    assert [set(row[row >= 0]) for row in labels] == expected
