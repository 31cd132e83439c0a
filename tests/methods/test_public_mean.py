"""The public mean in DP-Whitened: it replaces noise, and it does not override a clear signal."""

import math

import numpy as np
import pytest

from dpfc_cli.methods import METHODS
from dpfc_cli.methods.whitened import NORMALISE, Public, centred, explained
from dpfc_cli.privacy import chain as chains
from dpfc_cli.privacy.accounting import mu_for
from dpfc_cli.privacy.chain import Centre, Clip
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.oracle import Oracle
from tests.support import accuracy, blobs, curator

METHOD = METHODS["dp-whitened"]


def mean_of(x: np.ndarray) -> Public:
    return Public(mean=chains.run((NORMALISE,), x, np).mean(axis=0))


def rotation(d: int, seed: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))[0]


def test_the_public_mean_is_taken_whole_under_noise_and_in_part_from_a_clear_release() -> None:
    public = np.array([0.3, 0.4])
    for released in (public, 0 * public, -3 * public):
        assert explained(released, public, 5.0) == 1
    assert explained(0.6 * public, public, 0.0) == pytest.approx(0.6)
    assert explained(0.6 * public, public, 0.01) == pytest.approx(0.6, abs=0.01)
    assert explained(-public, public, 0.01) == 0
    assert explained(7 * public, public, 0.01) == 1
    assert explained(public, 0 * public, 0.01) == 0


class Answering(Oracle):
    """An oracle with one fixed answer."""

    def __init__(self, answer: np.ndarray) -> None:
        self.answer = answer

    def release(self, query: object) -> np.ndarray:
        return self.answer


def centre_of(mean: np.ndarray, facts: Facts, mu: float, public: np.ndarray | None) -> tuple[np.ndarray, float]:
    known = None if public is None else Public(mean=public)
    options = METHOD.defaults(facts, mu, {"public": known, "budget_split": (0.03, 0.1, 0.87)})
    _, centre, clip = centred(Answering(facts.n * mean[None]), facts, options)
    assert isinstance(centre, Centre)
    assert isinstance(clip, Clip)
    return centre.mean, clip.norm


def test_the_mean_is_the_public_one_under_noise_and_its_own_without() -> None:
    facts, rng = Facts(n=1000, m=3, d=50), np.random.default_rng(2)
    mean = rng.normal(size=50)
    mean *= 0.6 / np.linalg.norm(mean)
    mu = 1 / (0.1 * math.sqrt(0.03) * facts.n)
    noisy = mean + 0.1 * rng.normal(size=50)
    distances = {
        name: np.linalg.norm(centre_of(noisy, facts, mu, public)[0] - mean)
        for name, public in (("none", None), ("same", mean), ("opposite", -mean))
    }
    assert distances["same"] < 0.3 * distances["none"]
    assert distances["opposite"] < 1.1 * distances["none"]
    centre, clip = centre_of(mean, facts, 1e6, rng.normal(size=50) / 10)
    assert np.allclose(centre, mean, atol=1e-6)
    assert clip == pytest.approx(0.8)


def test_a_mean_that_is_all_noise_is_hardly_subtracted() -> None:
    facts = Facts(n=1000, m=3, d=200)
    mu = 1 / (0.5 * math.sqrt(0.03) * facts.n)
    released = 1.3 * 0.5 * np.ones(200)  # Its squared length is 84.5, of which 50 are expected of the noise.
    assert np.linalg.norm(centre_of(released, facts, mu, None)[0]) < 0.2


def test_what_is_subtracted_is_nearer_to_the_mean_than_nothing_is_and_than_what_was_released() -> None:
    facts, rng = Facts(n=1000, m=3, d=192), np.random.default_rng(4)
    for deviation in (0.02, 0.1, 0.2, 0.4):  # the noise is 0.08 to 31 times as long, squared, as records are
        mu = 1 / (deviation * math.sqrt(0.03) * facts.n)
        means = rng.normal(size=(400, 192))
        means *= np.sqrt(rng.uniform(0.1, 0.35, size=(400, 1))) / np.linalg.norm(means, axis=1, keepdims=True)
        noisy = means + deviation * rng.normal(size=means.shape)
        found = np.array([centre_of(row, facts, mu, None)[0] for row in noisy])
        away, nothing, released = (np.square(means - guess).sum(axis=1).mean() for guess in (found, 0, noisy))
        assert away < min(nothing, released)


def features(n: int, m: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Classes in a space with different variances in different directions, like the features of a backbone, and an
    offset.
    """
    x, y = blobs(n, 40, m, seed, apart=3.0)
    return (x * np.arange(1, 41, dtype=np.float32) ** -0.7 + 0.5).astype(np.float32), y


def learned(public: Public | None, runs: int = 3) -> float:
    found, test = [], features(4000, 5, 3)
    x, y = test[0][:500], test[1][:500]
    facts, mu = Facts(n=500, m=5, d=40), mu_for(0.3, 1e-5)
    options = METHOD.defaults(facts, mu, {"public": public})
    for seed in range(runs):
        solution = METHOD.solve(curator(facts, METHOD.plan(facts, options), mu, x, y, seed), facts, options)
        found.append(accuracy(solution, test[0][2000:], test[1][2000:]))
    return float(np.mean(found))


def test_public_features_of_other_classes_help_and_unrelated_ones_do_no_harm() -> None:
    other, _ = features(3000, 9, 11)
    unrelated = (other @ rotation(40, 5)).astype(np.float32)
    plain = learned(None)
    assert learned(mean_of(other)) > plain + 0.02
    assert learned(mean_of(unrelated)) > plain - 0.01
