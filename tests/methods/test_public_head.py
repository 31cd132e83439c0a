"""Public starts in DP-Whitened: good ones help where noise hides the classes, others are found out, and no release
changes.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from dpfc_cli.methods import METHODS
from dpfc_cli.methods.public_head import (
    GOOD,
    LARGEST,
    PRIOR,
    SMALLEST,
    PublicHead,
    agreement,
    pace,
    scale,
    start_of,
    trust,
)
from dpfc_cli.methods.whitened import doubt, weighed
from dpfc_cli.privacy.accounting import mu_for
from dpfc_cli.privacy.facts import Facts
from tests.support import Watching, accuracy, blobs, curator

METHOD = METHODS["dp-whitened"]
M, D = 12, 30
FACTS = Facts(n=1500, m=M, d=D)
X, Y = blobs(3000, D, M, apart=3.0)
CENTRES = np.stack([X[j == Y].mean(axis=0) for j in range(M)], axis=1)


def head(vectors: np.ndarray) -> PublicHead:
    return PublicHead(vectors=vectors.astype(np.float64), origin={})


def rng(seed: int = 3) -> np.random.Generator:
    return np.random.default_rng(seed)


VECTORS = {
    "good": CENTRES + 0.5 * rng().normal(size=(D, M)),
    "random": rng(4).normal(size=(D, M)),
    "permuted": np.roll(CENTRES, 1, axis=1),
    "long": 1e3 * CENTRES,
    "half of the classes": np.where(np.arange(M) % 2, CENTRES, 0.0),
}


def learned(epsilon: float, vectors: np.ndarray | None, runs: int = 5) -> tuple[float, float]:
    """Mean accuracy on other records of the same classes, and mean trust."""
    mu, found, trusted = mu_for(epsilon, 1e-4), [], []
    options = METHOD.defaults(FACTS, mu, {"public_head": None if vectors is None else head(vectors)})
    for seed in range(runs):
        oracle = curator(FACTS, METHOD.plan(FACTS, options), mu, X[:1500], Y[:1500], seed)
        solution = METHOD.solve(oracle, FACTS, options)
        found.append(accuracy(solution, X[1500:], Y[1500:]))
        trusted.append(solution.trusted or 0.0)
    return float(np.mean(found)), float(np.mean(trusted))


def test_a_good_start_helps_where_noise_hides_the_classes_and_costs_nothing_elsewhere() -> None:
    assert learned(0.02, VECTORS["good"])[0] > learned(0.02, None)[0] + 0.3
    assert learned(8.0, VECTORS["good"])[0] > learned(8.0, None)[0] - 0.005


@pytest.mark.parametrize("name", ["random", "permuted"])
def test_a_useless_start_is_found_out(name: str) -> None:
    plain, _ = learned(1.0, None)
    reached, trusted = learned(1.0, VECTORS[name])
    assert trusted < 0.1
    assert reached > plain - 0.02


@pytest.mark.parametrize("name", ["long", "half of the classes"])
def test_neither_length_nor_missing_classes_matter(name: str) -> None:
    plain, _ = learned(1.0, None)
    reached, trusted = learned(1.0, VECTORS[name])
    assert trusted > 0.9
    assert reached > plain - 0.005


@pytest.mark.parametrize(
    "vectors",
    [np.zeros((D, M)), np.outer(rng().normal(size=D), np.arange(1, M + 1)), np.eye(1, M, 3) * np.ones((D, 1))],
    ids=["zeros", "all alike but for rounding", "one class"],
)
def test_vectors_that_tell_no_classes_apart_are_no_start(vectors: np.ndarray) -> None:
    assert start_of(vectors, np.eye(D), np.ones(D)) is None
    plain, started = (learned(1.0, given, runs=1) for given in (None, vectors))
    assert plain == started


def test_a_start_is_there_even_where_noise_hides_the_whole_covariance() -> None:
    start = start_of(VECTORS["good"], np.eye(D), np.zeros(D))
    assert start is not None
    # Every direction then counts alike: scores of records of length 1 have the standard deviation 1.
    assert np.square(start.theta).sum() / M / D == pytest.approx(1)


def test_noise_that_looks_like_variance_does_not_shrink_a_start() -> None:
    """Records have the total variance 1 at most, whatever a noisy covariance says."""
    one, many = (start_of(VECTORS["good"], np.eye(D), np.full(D, total / D)) for total in (1.0, 50.0))
    assert one is not None
    assert many is not None
    assert many.theta == pytest.approx(one.theta)


def test_a_start_changes_no_release_but_the_weights_that_a_gradient_is_taken_at() -> None:
    mu = 0.5
    asked = []
    for given in (None, head(VECTORS["good"])):
        options = METHOD.defaults(FACTS, mu, {"public_head": given})
        plan = METHOD.plan(FACTS, options)
        oracle = Watching(curator(FACTS, plan, mu, X[:1500], Y[:1500]))
        METHOD.solve(oracle, FACTS, options)
        hash(options)
        asked.append((plan, [(q.kind, q.shape(FACTS)) for q in oracle.queries], oracle.answers[:3]))
    assert asked[0][:2] == asked[1][:2]
    # The start is added after the first gradient: up to there the same bits give the same answers.
    assert all(np.array_equal(a, b) for a, b in zip(asked[0][2], asked[1][2], strict=True))


def test_the_noise_of_the_agreement_is_what_public_facts_say() -> None:
    """The gradient of records without labels is noise alone."""
    options = METHOD.defaults(FACTS, 0.5, {})
    start = start_of(VECTORS["good"], np.eye(D), np.ones(D))
    assert start is not None
    sigma = 1 / (0.5 * math.sqrt(options.budget_split[2] / options.steps))
    radius, found = 2.0, []
    for seed in range(400):
        noise = sigma * options.gradient_clip * radius * rng(100 + seed).normal(size=(D, M))
        found.append(agreement(noise, start, FACTS.n * options.gradient_clip * radius / math.sqrt(M)))
    # The standard deviation of 400 samples errs by 3.5 %.
    assert np.std(found) == pytest.approx(doubt(FACTS, options), rel=0.15)


def test_replacement_doubles_the_doubt() -> None:
    options = METHOD.defaults(FACTS, 0.5, {})
    assert doubt(replace(FACTS, adjacency="replace-one"), options) == pytest.approx(2 * doubt(FACTS, options))


def test_trust_is_the_prior_under_noise_and_follows_the_agreement_without() -> None:
    assert trust(0.0, 1e6) == pytest.approx(PRIOR, abs=1e-6)
    for deviation in (0.0, 0.001, 0.01, 0.1, 1.0):
        found = [trust(agreed, deviation) for agreed in np.linspace(-1, 1, 201)]
        assert all(0 <= value <= 1 for value in found)
        assert all(b >= a - 1e-12 for a, b in itertools.pairwise(found))
    assert trust(0.0, 0.01) < 0.02
    assert trust(GOOD, 0.01) > 0.999
    assert trust(-5.0, 0.0) < 0.02


def test_the_scale_grows_with_the_doubt_within_its_bounds() -> None:
    found = [scale(v) for v in (0.0, 0.01, 0.05, 0.1, 0.2, 0.7, 50.0)]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (SMALLEST, LARGEST)
    assert scale(0.1) == pytest.approx(1.0)


def test_steps_get_shorter_with_the_doubt_and_longer_with_the_agreement() -> None:
    found = [pace(GOOD, v) for v in (0.0, 0.001, 0.02, 0.05, 0.2, 50.0)]
    assert found == sorted(found, reverse=True)
    assert found[:2] == [1, 1]
    assert found[-1] > 0
    for deviation in (0.01, 0.1):
        found = [pace(agreed, deviation) for agreed in (-1.0, 0.1, 0.3, 0.7)]
        assert found == sorted(found)
    assert pace(GOOD, 0.08) == pytest.approx(GOOD)
    # Where the noise hides the agreement, it is that of good starts.
    assert pace(5.0, 100.0) == pytest.approx(pace(GOOD, 100.0), rel=0.01)


def test_every_class_begins_with_the_same_mass() -> None:
    """The mean of exp(score) over normal records is 1 for each class, whether its vector is known or not."""
    start = start_of(VECTORS["half of the classes"] * np.linspace(1, 5, M), np.eye(D), np.full(D, 1 / D))
    assert start is not None
    size = 0.7
    records = rng().normal(size=(200_000, D)) / math.sqrt(D)
    mass = np.exp(records @ (size * start.theta) + start.bias(size)).mean(axis=0)
    # The standard deviation of exp(score) is below 1.5, so the mean of 200,000 errs by less than 0.004.
    assert mass == pytest.approx(np.ones(M), abs=0.02)


def test_steps_are_shorter_as_far_as_a_start_is_believed_and_most_for_classes_with_a_vector() -> None:
    options = METHOD.defaults(FACTS, 0.05, {})
    start = start_of(VECTORS["half of the classes"], np.eye(D), np.full(D, 1 / D))
    assert start is not None
    known = np.arange(M) % 2 == 1
    for sign, believed in ((-1, True), (1, False)):
        gradient = sign * 100 * start.theta
        trusted, theta, paces = weighed(start, gradient, 2.0, FACTS, options)
        assert (trusted > 0.5) == believed
        agreed = agreement(gradient, start, FACTS.n * options.gradient_clip * 2.0 / math.sqrt(M))
        step = pace(agreed, doubt(FACTS, options))
        assert paces[known] == pytest.approx(1 - trusted * (1 - step))
        assert paces[~known] == pytest.approx(1 - trusted * (1 - min(2 * step, 1)))
        assert (theta[-1, ~known] == 0).all()
        assert (theta[-1, known] < 0).all()
