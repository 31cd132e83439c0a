"""Public starts in DP-Whitened: good ones help where noise hides the classes, others are found out, and no release
changes.
"""

import functools
import math
from dataclasses import replace

import numpy as np
import pytest

from dpfc_cli.methods import METHODS
from dpfc_cli.methods.public_head import JUDGED, PublicHead, Start, judged, start_of
from dpfc_cli.methods.whitened import Public, doubt
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


@functools.cache
def with_start(epsilon: float, name: str | None) -> tuple[float, float]:
    return learned(epsilon, None if name is None else VECTORS[name])


def learned(epsilon: float, vectors: np.ndarray | None, runs: int = 3) -> tuple[float, float]:
    """Mean accuracy on other records of the same classes, and mean trust in the classes with a vector."""
    mu, found, trusted = mu_for(epsilon, 1e-4), [], []
    options = METHOD.defaults(FACTS, mu, {"public_head": None if vectors is None else head(vectors)})
    for seed in range(runs):
        oracle = curator(FACTS, METHOD.plan(FACTS, options), mu, X[:1500], Y[:1500], seed)
        solution = METHOD.solve(oracle, FACTS, options)
        found.append(accuracy(solution, X[1500:], Y[1500:]))
        trusted.append(
            0.0 if vectors is None or solution.trusted is None else solution.trusted[vectors.any(axis=0)].mean()
        )
    return float(np.mean(found)), float(np.mean(trusted))


def test_a_good_start_helps_where_noise_hides_the_classes_and_costs_nothing_elsewhere() -> None:
    assert with_start(0.02, "good")[0] > with_start(0.02, None)[0] + 0.3
    assert with_start(8.0, "good")[0] > with_start(8.0, None)[0] - 0.005


def test_a_useless_start_is_found_out() -> None:
    for name in ("random", "permuted"):
        reached, trusted = with_start(1.0, name)
        assert trusted < 0.1
        assert reached > with_start(1.0, None)[0] - 0.02


def test_a_start_in_doubt_is_judged_by_more_gradients() -> None:
    """By four gradients alone the permuted one would have the trust 0.4."""
    assert with_start(0.1, "good")[1] > 0.95
    assert with_start(0.1, "permuted")[1] < 0.25


def test_neither_length_nor_missing_classes_matter() -> None:
    for name in ("long", "half of the classes"):
        reached, trusted = with_start(1.0, name)
        assert trusted > 0.9
        assert reached > with_start(1.0, None)[0] - 0.005


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


def test_what_is_public_changes_no_release_but_the_weights_that_a_gradient_is_taken_at() -> None:
    asked = []
    for given in ({}, {"public_head": head(VECTORS["good"])}, {"public": Public(mean=np.ones(D) / 9)}):
        options = METHOD.defaults(FACTS, 0.5, given)
        plan = METHOD.plan(FACTS, options)
        oracle = Watching(curator(FACTS, plan, 0.5, X[:1500], Y[:1500]))
        METHOD.solve(oracle, FACTS, options)
        hash(options)
        asked.append((plan, [(q.kind, q.shape(FACTS)) for q in oracle.queries], oracle.answers[:3]))
    assert asked[0][:2] == asked[1][:2] == asked[2][:2]
    # The first gradient is at zero: up to there the same bits give the same answers.
    assert all(np.array_equal(a, b) for a, b in zip(asked[0][2], asked[1][2], strict=True))


def start_from(name: str) -> Start:
    start = start_of(VECTORS[name], np.eye(D), np.full(D, 1 / D))
    assert start is not None
    return start


def test_the_noise_of_the_agreement_is_what_public_facts_say() -> None:
    """The gradients of records without labels are noise alone."""
    options, start = METHOD.defaults(FACTS, 0.5, {}), start_from("good")
    sigma = 1 / (0.5 * math.sqrt(options.budget_split[2] / options.steps))
    clip = options.gradient_clip * 2.0
    found = []
    for seed in range(400):
        gradient = sigma * clip * rng(100 + seed).normal(size=(JUDGED, D, M)).mean(axis=0)
        found.append(start.agreements(gradient).mean() / (FACTS.n * clip / M))
    # The standard deviation of 400 samples errs by 3.5 %.
    assert np.std(found) == pytest.approx(doubt(FACTS, options), rel=0.15)


def test_replacement_doubles_the_doubt() -> None:
    options = METHOD.defaults(FACTS, 0.5, {})
    assert doubt(replace(FACTS, adjacency="replace-one"), options) == pytest.approx(2 * doubt(FACTS, options))


def test_trust_is_whole_under_noise_and_follows_the_agreement_without() -> None:
    found, level, _ = judged(np.zeros(M), 1e6)
    assert found == pytest.approx(np.ones(M))
    assert level == pytest.approx(0.35)
    for deviation in (0.0, 0.01, 0.1, 1.0):
        trusts = np.array([judged(np.full(M, agreed), deviation)[0][0] for agreed in np.linspace(-0.5, 0.5, 41)])
        assert ((trusts >= 0) & (trusts <= 1)).all()
        assert (np.diff(trusts) >= -1e-9).all()
    assert judged(np.zeros(M), 0.05)[0].max() < 0.1
    assert judged(np.full(M, 0.35), 0.05)[0].min() > 0.99


def test_a_start_that_disagrees_is_not_a_worse_one() -> None:
    assert judged(np.full(M, -0.4), 0.2)[0] == pytest.approx(judged(np.zeros(M), 0.2)[0])


def test_what_the_noise_hides_of_a_class_the_others_tell() -> None:
    """The same agreement is believed where nearly all classes agree, and doubted where half of them do not."""
    most, half = (judged(np.append(np.where(np.arange(100) < wrong, 0.0, 0.35), 0.08), 0.1)[0] for wrong in (0, 50))
    assert most[-1] > 0.9
    assert half[-1] < 0.7
    assert half[50:-1].min() > 0.9
    assert half[:50].max() < 0.3


@pytest.mark.parametrize(
    ("noise", "lost", "taken"), [(0.1, 0.005, 0.03), (0.3, 0.02, 0.5), (1.0, 0.01, 1), (3.0, 0.01, 1)]
)
def test_a_good_start_is_hardly_ever_lost_and_a_useless_one_is_found_once_the_noise_allows(
    noise: float, lost: float, taken: float
) -> None:
    """noise: the standard deviation of that in the mean of 60 classes, in units of the agreement of good ones.

    Of other seeds at most 2 of 1,000 good starts are lost. Useless ones are trusted by 0.02 and 0.4 on average.
    """
    deviation = 0.3 * noise * math.sqrt(60)
    good, useless = (
        np.array(
            [
                judged(rng(seed).normal(level, math.hypot(level / 3, deviation), 60), deviation)[0].mean()
                for seed in range(200)
            ]
        )
        for level in (0.3, 0.0)
    )
    assert (good < 0.5).mean() <= lost
    assert useless.mean() <= taken


def test_every_class_begins_with_about_the_same_mass() -> None:
    """The mean of exp(score) over normal records is near 1 for each class, whether its vector is known or not."""
    start = start_from("half of the classes")
    weights = start.weights(np.where(start.known, 0.7, 0.0), 0.6)
    records = np.hstack([rng().normal(size=(50_000, D)) / math.sqrt(D), np.full((50_000, 1), 0.6)])
    # Without biases those with a vector would have 1.6.
    assert np.exp(records @ weights).mean(axis=0) == pytest.approx(np.ones(M), abs=0.15)
