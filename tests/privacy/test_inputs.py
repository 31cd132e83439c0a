"""What a query sees of a record: features, labels, inputs and probabilities, each record by itself."""

import numpy as np

from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.inputs import inputs, prepare, probabilities


def test_a_record_is_prepared_without_looking_at_the_others() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 4)).astype(np.float32)
    x[3, 1], x[5, 0], x[7, 3] = np.nan, np.inf, -np.inf
    labels = rng.integers(-2, 4, size=(40, 2)).astype(np.int32)
    together = prepare(x, labels, 3, np)
    for i in range(40):
        for whole, alone in zip(together, prepare(x[i : i + 1], labels[i : i + 1], 3, np), strict=True):
            assert np.array_equal(whole[i : i + 1], alone)
        null = not np.isfinite(x[i]).all() or not ((labels[i] >= -1) & (labels[i] <= 2)).all() or (labels[i] < 0).all()
        assert together[2][i] == (not null)
        assert set(np.flatnonzero(together[1][i])) == (set() if null else set(labels[i]) - {-1})
        assert np.array_equal(together[0][i], 0 * together[0][i] if null else x[i])
    assert [part.dtype for part in together] == [np.float32, np.float64, bool]


def test_inputs_have_a_constant_feature_and_the_length_that_was_asked_for() -> None:
    x = np.array([[3, 4, 0, 0], [0, 0, 0.5, 0], [0, 0, 0, 0]], np.float32)
    plain = inputs((Clip(1.0),), 0, x, np)
    assert np.allclose(plain, np.array([[0.6, 0.8, 0, 0], [0, 0, 0.5, 0], [0, 0, 0, 0]]), atol=1e-5)
    biased = inputs((Clip(1.0),), 0.25, x, np)
    assert np.array_equal(biased, np.concatenate([plain, np.full((3, 1), 0.25)], axis=1))
    for radius in (0.5, 1.0, 2.0):
        scaled = inputs((Clip(1.0),), 0, x, np, radius)
        assert np.allclose(scaled, radius * np.array([[0.6, 0.8, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]), atol=1e-5)


def test_probabilities_are_those_of_the_loss() -> None:
    logits = np.array([[0.0, 2.0, -1.0]], np.float32)
    assert np.allclose(probabilities(logits, "sigmoid", np), 1 / (1 + np.exp(-logits)), rtol=1e-6)
    assert np.allclose(probabilities(logits, "softmax", np), np.exp(logits) / np.exp(logits).sum(), rtol=1e-6)
    both = np.concatenate([logits, 3 * logits])
    assert np.array_equal(probabilities(both, "softmax", np)[:1], probabilities(logits, "softmax", np))


def test_probabilities_are_finite_whatever_the_logits() -> None:
    logits = np.array([[np.nan, np.inf, -np.inf], [1e30, -1e30, 0], [0, 0, 0]], np.float32)
    for loss in ("sigmoid", "softmax"):
        p = probabilities(logits, loss, np)
        assert ((p >= 0) & (p <= 1)).all()
    assert np.allclose(probabilities(logits[2:], "softmax", np), 1 / 3)
