"""Classes that are alike share what a noisy head says of them, as far as the head bears it out."""

import numpy as np
import pytest

from dpfc_cli.methods.similarity import shrunk

M, D, NOISE = 40, 60, 1.0
GROUPS = np.eye(8)[np.arange(M) % 8]


def theta(size: float, within: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights of classes of which those of a group are alike but for `within`, and the same with noise."""
    random = np.random.default_rng(seed)
    true = size * (random.normal(size=(D, 8)) @ GROUPS.T + within * random.normal(size=(D, M)))
    true -= true.mean(axis=1, keepdims=True)
    noisy = true + NOISE * random.normal(size=true.shape)
    return true, noisy - noisy.mean(axis=1, keepdims=True)


def alignment(found: np.ndarray, true: np.ndarray) -> float:
    return float((found * true).sum() / np.linalg.norm(found) / np.linalg.norm(true))


@pytest.mark.parametrize("size", [0.2, 0.5, 1.0])
def test_a_noisy_head_comes_nearer_to_the_truth_if_similar_classes_are_known(size: float) -> None:
    for seed in range(5):
        true, noisy = theta(size, 0.3, seed)
        assert alignment(shrunk(noisy, GROUPS, NOISE)[0], true) > alignment(noisy, true) + 0.03


def test_groups_that_say_nothing_leave_the_directions_as_they_are() -> None:
    """What is left is a common factor, which changes no prediction."""
    for seed in range(5):
        true, noisy = theta(1.0, 0.3, seed)
        wrong = np.random.default_rng(seed).permutation(GROUPS)
        found, left = shrunk(noisy, wrong, NOISE)
        assert alignment(found, true) > alignment(noisy, true) - 0.02
        assert left < NOISE


def test_without_noise_or_knowledge_a_head_stays_what_it_is() -> None:
    _, noisy = theta(1.0, 0.3, 0)
    for vectors, variance in ((None, NOISE), (GROUPS, 0.0), (np.ones((M, 3)), NOISE)):
        found, left = shrunk(noisy, vectors, variance)
        np.testing.assert_array_equal(found, noisy)
        assert left == variance
    np.testing.assert_allclose(shrunk(noisy, GROUPS, 1e-9)[0], noisy, atol=0.01)


def test_what_remains_of_the_noise_is_what_is_said_to_remain() -> None:
    """With weights that are held fixed, noise alone goes through as it says."""
    _, noisy = theta(0.3, 0.3, 1)
    found, left = shrunk(noisy, GROUPS, NOISE)
    kept = np.linalg.lstsq(noisy, found, rcond=None)[0]
    noise = np.random.default_rng(2).normal(size=(20_000, M)) * np.sqrt(NOISE)
    noise -= noise.mean(axis=1, keepdims=True)
    through = noise @ kept
    assert through.var() * M / (M - 1) == pytest.approx(left, rel=0.05)
