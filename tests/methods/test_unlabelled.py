"""Records without labels make a head better where classes are clusters, and leave it where they are not."""

from dataclasses import replace

import numpy as np
import pytest

from dpfc_cli.methods import METHODS
from dpfc_cli.methods.method import Solution
from dpfc_cli.methods.unlabelled import adapt
from dpfc_cli.privacy.chain import run
from dpfc_cli.privacy.facts import Facts
from tests.support import blobs, curator

METHOD = METHODS["dp-whitened"]
N, D, M = 3000, 12, 6
FACTS = Facts(n=N, m=M, d=D)
WEAK, STRONG = 0.015, 3.0
"""μ of a head that is mostly noise, and of one that has hardly any."""
X, Y = blobs(2 * N, D, M, seed=7, apart=3.0)


def trained(mu: float, seed: int = 0, y: np.ndarray = Y) -> Solution:
    options = METHOD.defaults(FACTS, mu, {})
    return METHOD.solve(curator(FACTS, METHOD.plan(FACTS, options), mu, X[:N], y[:N], seed), FACTS, options)


def white(head: Solution, x: np.ndarray) -> np.ndarray:
    return np.asarray(run(head.chain, x.astype(np.float32), np), float)


def gain(head: Solution, unlabelled: np.ndarray, y: np.ndarray = Y) -> float:
    """How much more of the second half of X is right after the head was adapted to these records."""
    assert head.evidence is not None
    made = adapt(head.weight, head.bias, head.evidence, white(head, unlabelled))
    z = white(head, X[N:])
    before, after = (
        float((np.argmax(z @ weight + bias, axis=1) == y[N:]).mean())
        for weight, bias in ((head.weight, head.bias), (made.weight, made.bias))
    )
    return after - before


def test_a_noisy_head_finds_its_classes_among_records_without_labels() -> None:
    gains = [gain(trained(WEAK, seed), X[N::2]) for seed in range(5)]
    assert np.mean(gains) > 0.1
    assert min(gains) > -0.02


def test_a_head_with_little_noise_stays_as_good_as_it_is() -> None:
    assert all(gain(trained(STRONG, seed), X[N::2]) > -0.01 for seed in range(3))


def test_classes_that_are_no_clusters_are_not_made_ones() -> None:
    """Each class lies in two clusters, so what expectation-maximisation finds is another thing than the classes."""
    sides = blobs(2 * N, D, 2 * M, seed=9, apart=3.0)
    x, y = sides[0], sides[1] % M
    options = METHOD.defaults(FACTS, STRONG, {})
    oracle = curator(FACTS, METHOD.plan(FACTS, options), STRONG, x[:N], y[:N])
    head = METHOD.solve(oracle, FACTS, options)
    assert head.evidence is not None
    z = white(head, x[N:])
    made = adapt(head.weight, head.bias, head.evidence, z)
    before, after = (
        (np.argmax(z @ w + b, axis=1) == y[N:]).mean() for w, b in ((head.weight, head.bias), (made.weight, made.bias))
    )
    assert after > before - 0.01


@pytest.mark.parametrize("seed", range(3))
def test_records_of_another_kind_do_no_harm(seed: int) -> None:
    others, _ = blobs(N, D, 2, seed=100 + seed, apart=6.0)
    assert gain(trained(WEAK, seed), others) > -0.03


def test_few_records_leave_the_head_as_it_is() -> None:
    head = trained(WEAK)
    assert head.evidence is not None
    made = adapt(head.weight, head.bias, head.evidence, white(head, X[N : N + 7]))
    assert made.strength is None
    np.testing.assert_array_equal(made.weight, head.weight)


def test_an_adapted_head_depends_on_private_records_through_the_releases_alone() -> None:
    """Two data sets and noise that hides the difference: equal answers, so equal heads, evidence and adapted heads."""

    class Fixed:
        def __init__(self) -> None:
            self.random = np.random.default_rng(0)

        def release(self, query: object) -> np.ndarray:
            kind = type(query).__name__
            shape = {"Mean": (1, D), "Gram": (D, D), "Gradient": (D + 1, M)}[kind]
            return self.random.normal(size=shape)

    options = METHOD.defaults(FACTS, WEAK, {})
    first, second = (METHOD.solve(Fixed(), FACTS, options) for _ in range(2))  # type: ignore[arg-type]
    assert first.evidence is not None and second.evidence is not None
    for name, value in vars(first.evidence).items():
        np.testing.assert_array_equal(value, vars(second.evidence)[name])
    one, two = (adapt(head.weight, head.bias, replace(head.evidence), white(head, X[N:])) for head in (first, second))
    np.testing.assert_array_equal(one.weight, two.weight)


def test_the_noise_of_the_evidence_is_what_trainings_show() -> None:
    """The deviations that the judge believes, against heads of the same records with other noise."""
    heads = [trained(WEAK, seed) for seed in range(12)]
    found = []
    for name, deviation in (("early", "early_noise"), ("gradient", "deviation")):
        # In the coordinates of the records, for the white space differs from head to head.
        values = np.stack([getattr(head.evidence, name)[-1] for head in heads])
        values = values - values.mean(axis=1, keepdims=True)
        known = np.mean([getattr(head.evidence, deviation) for head in heads]) * np.sqrt(1 - 1 / M)
        found.append(values.std(axis=0, ddof=1).mean() / known)
    assert found == pytest.approx([1, 1], rel=0.35)
