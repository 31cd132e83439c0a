"""What is said of a head's scores is what a person would count."""

import numpy as np
import pytest

from dpfc_cli.heads import metrics
from dpfc_cli.heads.head import Scorer
from dpfc_cli.heads.metrics import score, wilson
from tests.support import stream_of


def test_top_1_top_5_and_per_class_are_counted() -> None:
    """A head that scores class j by coordinate j."""
    plain = Scorer(chain=(), weight=np.eye(7), bias=np.zeros(7))
    x = np.array([[6, 5, 4, 3, 2, 1, 0]] * 4 + [[0, 9, 0, 0, 0, 0, 0]], np.float32)
    y = np.array([0, 4, 5, 1, 1])
    scores = score(plain, stream_of(x, y)(2))
    assert (scores.n, scores.top1, scores.top5) == (5, 2, 4)
    assert scores.rows.tolist() == [1, 2, 0, 0, 1, 1, 0]
    assert scores.hits.tolist() == [1, 1, 0, 0, 0, 0, 0]


def test_label_sets_count_any_of_their_labels_and_unlabelled_rows_not_at_all() -> None:
    plain = Scorer(chain=(), weight=np.eye(3), bias=np.zeros(3))
    x = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], np.float32)
    y = np.array([[2, 0, 2], [-1, -1, -1], [0, 1, 1]])
    scores = score(plain, stream_of(x, y)(8))
    assert (scores.n, scores.top1) == (2, 1)
    assert scores.rows.tolist() == [2, 1, 1]
    assert scores.hits.tolist() == [1, 0, 0]


@pytest.mark.parametrize(("hits", "n"), [(0, 7), (1, 1), (137, 150), (150, 150), (9_312, 10_000)])
def test_the_interval_holds_every_probability_that_the_hits_do_not_contradict(hits: int, n: int) -> None:
    """Its ends are where hits/n is 1.96 standard deviations away, unless they are 0 or 1."""
    low, high = wilson(hits, n)
    assert 0 <= low <= hits / n <= high <= 1
    assert (low == 0, high == 1) == (hits == 0, hits == n)
    for end in {low, high} - {0.0, 1.0}:
        assert abs(hits / n - end) == pytest.approx(1.959963984540054 * (end * (1 - end) / n) ** 0.5)


@pytest.mark.parametrize("numbers", [2**26, 1])
def test_average_precision_is_scikit_learns_also_with_ties_and_in_chunks(
    monkeypatch: pytest.MonkeyPatch, numbers: int
) -> None:
    from sklearn.metrics import average_precision_score

    monkeypatch.setattr(metrics, "CHUNK_NUMBERS", numbers)
    rng = np.random.default_rng(0)
    plain = Scorer(chain=(), weight=np.eye(4), bias=np.zeros(4))
    x = rng.integers(0, 6, size=(60, 4)).astype(np.float32)
    y = np.where(rng.random((60, 2)) < 0.8, rng.integers(0, 3, (60, 2)), -1)
    labelled = (y >= 0).any(axis=1)
    sets = (y[:, :, None] == np.arange(4)).any(axis=1)[labelled]
    found = metrics.average_precisions(plain, lambda: stream_of(x, y)(16), 60)
    for j in range(3):
        assert found[j] == pytest.approx(average_precision_score(sets[:, j], x[labelled, j]))
    assert np.isnan(found[3])
