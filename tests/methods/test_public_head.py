"""Public starts in DP-Whitened: good ones help where noise hides the classes, others are found out, and no release
changes.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dpfc_cli.methods import METHODS
from dpfc_cli.methods.public_head import (
    CLASS_PUSH,
    CLASS_TAKEN,
    CLASSES,
    GOOD,
    LARGEST,
    PUSH,
    SMALLEST,
    STARTS,
    TAKEN,
    Belief,
    Odds,
    PublicHead,
    Start,
    pace,
    scale,
    start_of,
    trust,
    trust_in_classes,
)
from dpfc_cli.methods.whitened import doubt
from dpfc_cli.privacy.accounting import mu_for
from dpfc_cli.privacy.facts import Facts
from tests.support import Watching, accuracy, blobs, curator

METHOD = METHODS["dp-whitened"]
M, D = 12, 30
DIMENSION = 1000.0
"""The effective dimension."""
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
        trusted.append(0.0 if solution.trusted is None else solution.trusted.mean())
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


def start_from(name: str) -> Start:
    start = start_of(VECTORS[name], np.eye(D), np.full(D, 1 / D))
    assert start is not None
    return start


def belief_in(start: Start, deviation: float) -> Belief:
    """A belief that measures in a unit of 1."""
    return Belief(start=start, longest=1.0, deviation=deviation, dimension=DIMENSION)


def gradient_of(start: Start, agreed: np.ndarray) -> np.ndarray:
    """A gradient without noise in which each class has the agreement that is given."""
    lengths = np.linalg.norm(start.theta, axis=0)
    return np.asarray(-agreed * start.theta / np.where(start.known, lengths, 1.0) / math.sqrt(M))


def test_the_noise_of_the_agreement_is_what_public_facts_say() -> None:
    """The gradient of records without labels is noise alone."""
    options = METHOD.defaults(FACTS, 0.5, {})
    start = start_from("good")
    sigma = 1 / (0.5 * math.sqrt(options.budget_split[2] / options.steps))
    radius, found = 2.0, []
    for seed in range(400):
        belief = Belief(
            start=start,
            longest=FACTS.n * options.gradient_clip * radius / math.sqrt(M),
            deviation=doubt(FACTS, options),
            dimension=DIMENSION,
        )
        belief.see(sigma * options.gradient_clip * radius * rng(100 + seed).normal(size=(D, M)))
        belief.trusted = np.ones(M)
        found.append(belief.agreed)
    # The standard deviation of 400 samples errs by 3.5 %.
    assert np.std(found) == pytest.approx(doubt(FACTS, options), rel=0.15)


def test_replacement_doubles_the_doubt() -> None:
    options = METHOD.defaults(FACTS, 0.5, {})
    assert doubt(replace(FACTS, adjacency="replace-one"), options) == pytest.approx(2 * doubt(FACTS, options))


def of_starts(agreed: np.ndarray, deviation: float) -> np.ndarray:
    return trust(agreed, deviation, STARTS)


@pytest.mark.parametrize(("found_in", "odds", "coarse"), [(of_starts, STARTS, 0), (trust_in_classes, CLASSES, 0.025)])
def test_trust_is_the_prior_under_noise_and_follows_the_agreement_without(
    found_in: Callable[[np.ndarray, float], np.ndarray], odds: Odds, coarse: float
) -> None:
    # The fractions that are compared lie 0.025 apart. The mean of them errs by that squared.
    assert found_in(np.zeros(1), 1e6) == pytest.approx(odds.prior, abs=1e-6 + coarse**2)
    for deviation in (0.0, 0.001, 0.01, 0.1, 1.0):
        found = found_in(np.linspace(-1, 1, 201), deviation)
        assert ((found >= 0) & (found <= 1)).all()
        assert (np.diff(found) >= -1e-12).all()
    assert found_in(np.zeros(1), 0.01) < (0.3 if odds is CLASSES else 0.02)
    assert found_in(np.array([GOOD]), 0.01) > 0.999
    assert found_in(np.array([-5.0]), 0.0) == found_in(np.zeros(1), 0.0)


def test_what_the_noise_hides_of_a_class_the_others_tell() -> None:
    """The same agreement is believed where nearly all classes agree, and doubted where half of them do not."""
    deviation, doubtful = 0.15, 0.12
    others = np.full(100, GOOD)
    most, half = (
        trust_in_classes(np.append(np.where(np.arange(100) < wrong, 0.0, others), doubtful), deviation)
        for wrong in (0, 50)
    )
    assert most[-1] > 0.9
    assert half[-1] < 0.5
    assert half[50:-1].min() > 0.85
    assert half[:50].max() < 0.3
    # One class alone tells little of the fraction: it is judged by the prior.
    assert trust_in_classes(np.array([doubtful]), deviation) == pytest.approx(
        trust(np.array([doubtful]), deviation, CLASSES), abs=0.01
    )


def test_a_class_with_another_ones_vector_is_found_out_by_later_gradients_and_the_others_are_kept() -> None:
    """A wrong class agrees with nothing at first, and is pushed back afterwards."""
    start, deviation = start_from("good"), 0.04
    wrong, found = np.arange(M) < 2, []
    for seed in range(30):
        belief, noise = belief_in(start, deviation), rng(seed)
        for _ in range(12):
            held = belief.size * belief.trusted
            agreed = np.where(wrong, 0.0, (1 - CLASS_TAKEN * held) * GOOD) - CLASS_PUSH * held
            belief.see(gradient_of(start, agreed) + deviation * noise.normal(size=(D, M)))
            found.append(belief.trusted)
    first, last = found[::12], found[11::12]
    # One gradient does not tell them apart: the agreement of a class has a noise of 0.14. Means of 30 runs err by 0.04.
    assert np.mean(first, axis=0)[wrong].min() > 0.5
    assert np.mean(last, axis=0)[wrong].max() < 0.55
    assert np.mean(last, axis=0)[~wrong].min() > 0.95
    # Means hide runs that go wrong. Of other seeds 76 % of 600 wrong classes are found, and in 1 of 300 runs the good
    # ones are lost, all together. So 60 wrong classes and 30 runs miss these bounds once in 10,000 at most.
    assert (np.array(last)[:, wrong] < 0.5).mean() > 0.5
    assert (np.array(last)[:, ~wrong] > 0.5).mean() > 0.9


def test_what_a_good_start_takes_from_later_gradients_is_not_held_against_it() -> None:
    """Agreements fall once the start is in. Without that in the account, a good start would be doubted."""
    for deviation in (0.02, 0.08, 0.3):
        belief = belief_in(start_from("good"), deviation)
        for _ in range(12):
            held = float(belief.trusted.mean())
            left = max(1 - TAKEN * scale(deviation) * held, 0)
            belief.see(gradient_of(belief.start, np.full(M, left * GOOD - PUSH * held)))
        assert belief.trusted.min() > 0.7


def test_the_trust_in_a_start_as_a_whole_never_grows_after_the_first_gradient() -> None:
    belief = belief_in(start_from("half of the classes"), 0.05)
    belief.see(gradient_of(belief.start, np.full(M, 0.05)))
    # Classes without a vector have the trust in the start as a whole.
    first = belief.trusted[~belief.start.known]
    assert (first < 0.5).all()
    for _ in range(12):
        belief.see(gradient_of(belief.start, np.full(M, 2.0)))
    assert (belief.trusted[~belief.start.known] == first).all()


def test_the_scale_grows_with_the_doubt_within_its_bounds() -> None:
    found = [scale(v) for v in (0.0, 0.01, 0.05, 0.1, 0.2, 0.7, 50.0)]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (SMALLEST, LARGEST)
    assert scale(0.1) == pytest.approx(1.0)


def test_steps_get_shorter_with_the_noise_and_longer_with_the_agreement() -> None:
    found = [pace(GOOD, v, 20.0) for v in (0.0, 0.001, 0.05, 0.1, 0.2, 50.0)]
    assert found == sorted(found, reverse=True)
    assert found[:2] == [1, 1]
    assert 0 < found[-1] < found[-2] < found[-3] < 1
    for deviation in (0.01, 0.1):
        found = [pace(agreed, deviation, 20.0) for agreed in (-1.0, 0.1, 0.3, 0.7)]
        assert found == sorted(found)
    # A quarter of the noise in all directions of all classes is enough for full steps, and half of that for half.
    assert [pace(GOOD, 0.08, noises) for noises in (4 * GOOD / 0.08, 8 * GOOD / 0.08)] == pytest.approx([1.0, 0.5])
    # Where the noise hides the agreement, it is that of good starts.
    assert pace(5.0, 100.0, 20.0) == pytest.approx(pace(GOOD, 100.0, 20.0), rel=0.01)


def test_wrong_classes_do_not_shorten_the_steps_of_good_ones() -> None:
    """Classes with longer steps get longer scores, and take the records of the others."""
    start, deviation = start_from("good"), 0.03
    paces = []
    for count in range(M // 2 + 1):
        belief = belief_in(start, deviation)
        belief.see(gradient_of(start, np.where(np.arange(M) < count, 0.0, 0.8 * GOOD)))
        # What is still believed of the wrong ones counts. All classes together agree by 0.8·GOOD·(M − count)/M.
        assert 0.6 * GOOD < belief.agreed < 0.81 * GOOD
        paces.append(float(belief.paces()[-1]))
    assert min(paces) > paces[0] - 0.03
    assert paces[0] < 0.4 < 0.55 < paces[-1]


def test_every_class_begins_with_the_same_mass() -> None:
    """The mean of exp(score) over normal records is 1 for each class, whether its vector is known or not."""
    start = start_of(VECTORS["half of the classes"] * np.linspace(1, 5, M), np.eye(D), np.full(D, 1 / D))
    assert start is not None
    size = 0.7
    records = rng().normal(size=(200_000, D)) / math.sqrt(D)
    mass = np.exp(records @ (size * start.theta) + start.bias(np.full(M, size))).mean(axis=0)
    # The standard deviation of exp(score) is below 1.5, so the mean of 200,000 errs by less than 0.004.
    assert mass == pytest.approx(np.ones(M), abs=0.02)


def test_steps_are_shorter_as_far_as_a_start_is_believed_and_most_for_classes_with_a_vector() -> None:
    start, deviation = start_from("half of the classes"), 0.2
    for agreed, believed in ((1.0, True), (-1.0, False)):
        belief = belief_in(start, deviation)
        assert (belief.paces() == 1).all()
        assert not belief.weights(1.0).any()
        belief.see(gradient_of(start, np.full(M, agreed)))
        assert ((belief.trusted > 0.5) == believed).all()
        step = pace(belief.agreed, deviation, math.sqrt(M * DIMENSION))
        good = belief.trusted[start.known].mean() / belief.trusted[~start.known][0]
        shorter = np.where(start.known, (1 - step) * good, 1 - min(2 * step, 1))
        assert belief.paces() == pytest.approx(1 - belief.trusted * shorter)
        weights = belief.weights(0.5)
        assert weights[:-1] == pytest.approx(belief.trusted * scale(deviation) * start.theta)
        assert (weights[-1, ~start.known] == 0).all()
        assert (weights[-1, start.known] < 0).all()
