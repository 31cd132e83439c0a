"""What is said of a head's scores is what a person would count."""

import numpy as np
import pytest

from dpfc_cli.heads import metrics
from dpfc_cli.heads.head import Scorer, as_probabilities
from dpfc_cli.heads.metrics import score, wilson
from dpfc_cli.privacy.inputs import standing
from tests.support import replace, stream_of


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


@pytest.mark.parametrize("threshold", [None, 0.9])
@pytest.mark.parametrize("several", [True, False])
@pytest.mark.parametrize("numbers", [2**26, 1])
def test_classes_are_ranked_and_said_as_scikit_learn_counts_it_also_with_ties_and_in_chunks(
    monkeypatch: pytest.MonkeyPatch, numbers: int, several: bool, threshold: float | None
) -> None:
    from sklearn.metrics import average_precision_score, confusion_matrix, roc_auc_score

    monkeypatch.setattr(metrics, "CHUNK_NUMBERS", numbers)
    rng = np.random.default_rng(0)
    plain = Scorer(chain=(), weight=np.eye(4), bias=np.zeros(4))
    x = rng.integers(0, 6, size=(60, 4)).astype(np.float32)
    y = np.where(rng.random((60, 2)) < 0.8, rng.integers(0, 3, (60, 2)), -1)
    labelled = (y >= 0).any(axis=1)
    sets = (y[:, :, None] == np.arange(4)).any(axis=1)[labelled]
    turned = replace(plain, weight=-np.eye(4))
    both = metrics.ranked([plain, turned], lambda: stream_of(x, y)(16), 60, several, threshold)
    for head, found in zip((plain, turned), both, strict=True):
        scores = head.scores(x[labelled])
        p = as_probabilities(scores, several).round(12)
        said = p >= 0.5 if several else p.argmax(axis=1)[:, None] == np.arange(4)
        said = said if threshold is None else p >= threshold
        for j in range(3):
            assert found.auroc[j] == pytest.approx(roc_auc_score(sets[:, j], p[:, j]))
            assert found.precision[j] == pytest.approx(average_precision_score(sets[:, j], p[:, j]))
            (spared, _), (_, hits) = confusion_matrix(sets[:, j], said[:, j])
            counts = found.positives[j], found.negatives[j], found.found[j], found.spared[j]
            assert counts == (sets[:, j].sum(), (~sets[:, j]).sum(), hits, spared)
        assert np.isnan([found.auroc[3], found.precision[3]]).all()


@pytest.mark.parametrize("several", [True, False])
def test_where_a_class_stands_has_the_order_of_the_probability_and_no_limit_of_its_precision(several: bool) -> None:
    scores = np.random.default_rng(0).normal(size=(200, 4)) * 5
    p = as_probabilities(scores, several)
    odds = (p / (1 - p)) ** 0.25
    assert np.allclose(standing(scores, several, np), odds / (1 + odds))
    # Probabilities of 1 to the last bit, and beyond float64.
    sure = standing(np.array([[50.0, 0.0], [60.0, 0.0], [1e308, -1e308], [-np.inf, np.inf]]), several, np)
    assert standing(np.array([[np.nan, 1.0]]), several, np)[0, 0] < 1e-9
    assert 0.999 < sure[0, 0] < sure[1, 0] < sure[2, 0] == sure[3, 1] == 1
    assert standing(np.zeros((1, 2)), several, np).tolist() == [[0.5, 0.5]]
    assert metrics.standing_of(0.9) == pytest.approx(3**0.5 / (1 + 3**0.5))
