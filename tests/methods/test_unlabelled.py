"""Records without labels make a head better where classes are clusters, and leave it where they are not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpfc_cli.methods import METHODS
from dpfc_cli.methods.method import Solution
from dpfc_cli.methods.unlabelled import ARRAYS, NUMBERS, Adapted, Unlabelled, adapt
from dpfc_cli.privacy.chain import run
from dpfc_cli.privacy.facts import Facts
from tests.support import blobs, curator

METHOD = METHODS["dp-whitened"]
N, D, M = 6000, 16, 20
FACTS = Facts(n=N, m=M, d=D)
WEAK, STRONG = 0.02, 3.0
"""μ of a head that is mostly noise, and of one that has hardly any."""
APART = 5.0
CLUSTERS = blobs(2 * N, D, M, seed=7, apart=APART)
Set = tuple[np.ndarray, np.ndarray]


def trained(mu: float, seed: int = 0, on: Set = CLUSTERS, unlabelled: np.ndarray | None = None) -> Solution:
    options = METHOD.defaults(FACTS, mu, {})
    if unlabelled is not None:
        options = replace(options, unlabelled=Unlabelled(records=unlabelled))
    oracle = curator(FACTS, METHOD.plan(FACTS, options), mu, on[0][:N], on[1][:N], seed)
    return METHOD.solve(oracle, FACTS, options)


def white(head: Solution, x: np.ndarray) -> np.ndarray:
    return np.asarray(run(head.chain, x.astype(np.float32), np), float)


def adapted(head: Solution, unlabelled: np.ndarray) -> Adapted:
    assert head.evidence is not None
    return adapt(head.weight, head.bias, head.evidence, white(head, unlabelled))


def gain(head: Solution, unlabelled: np.ndarray, on: Set = CLUSTERS) -> float:
    """How much more of the other half is right after the head was adapted to these records."""
    made = adapted(head, unlabelled)
    z, y = white(head, on[0][N:]), on[1][N:]
    before, after = (
        float((np.argmax(z @ weight + bias, axis=1) == y).mean())
        for weight, bias in ((head.weight, head.bias), (made.weight, made.bias))
    )
    return after - before


def test_a_noisy_head_finds_its_classes_among_records_without_labels() -> None:
    gains = [gain(trained(WEAK, seed), CLUSTERS[0][N : N + N // 2]) for seed in range(3)]
    assert np.mean(gains) > 0.05
    assert min(gains) >= 0


def test_a_head_with_little_noise_stays_as_good_as_it_is() -> None:
    assert gain(trained(STRONG), CLUSTERS[0][N : N + N // 2]) > -0.01


def test_classes_that_are_no_clusters_are_not_made_ones() -> None:
    """Each class lies in two clusters, so what expectation-maximisation would find are not the classes."""
    x, y = blobs(2 * N, D, 2 * M, seed=9, apart=APART)
    sides = x, y % M
    assert gain(trained(STRONG, on=sides), x[N:], sides) > -0.01


@pytest.mark.parametrize("mu", [WEAK, STRONG])
def test_records_without_clusters_do_no_harm(mu: float) -> None:
    noise = np.random.default_rng(3).normal(size=(N // 2, D)) @ np.linalg.cholesky(np.cov(CLUSTERS[0].T)).T
    assert gain(trained(mu), noise + CLUSTERS[0].mean(axis=0)) > -0.01


@pytest.mark.parametrize("mu", [5 * WEAK, STRONG])
def test_records_of_another_kind_leave_the_head_as_it_is(mu: float) -> None:
    """Other clusters, and the same ones in another place."""
    head = trained(mu)
    for others in (blobs(N // 2, D, M, seed=8, apart=APART)[0] + 3.0, CLUSTERS[0][N : N + N // 2] + 3.0):
        assert adapted(head, others).share == 0


def test_other_shares_of_the_classes_are_balanced() -> None:
    """Of most classes there are few records among those without labels."""
    x, y = CLUSTERS[0][N : 2 * N], CLUSTERS[1][N : 2 * N]
    gains = []
    for seed in range(3):
        random = np.random.default_rng(seed)
        taken = random.random(len(y)) < (1 / (1 + random.permutation(M)))[y]
        gains.append(gain(trained(5 * WEAK, seed), x[taken]))
    assert min(gains) >= 0
    assert np.mean(gains) > 0


def test_a_handful_of_records_leaves_the_head_as_it_is() -> None:
    head = trained(WEAK)
    made = adapted(head, CLUSTERS[0][N : N + 7])
    assert made.share == 0
    np.testing.assert_array_equal(made.weight, head.weight)


def test_the_same_records_give_the_same_head() -> None:
    head = trained(WEAK)
    first, second = (adapted(head, CLUSTERS[0][N : N + N // 4]) for _ in range(2))
    assert first.share > 0
    np.testing.assert_array_equal(first.weight, second.weight)


def test_a_training_with_public_records_is_the_head_adapted_to_them() -> None:
    """And nothing else: what is released, and its noise, are the same. Such a head is not adapted again."""
    head, records = trained(WEAK), CLUSTERS[0][N : N + N // 2]
    made, known = trained(WEAK, unlabelled=records), adapted(head, records)
    assert known.share > 0
    np.testing.assert_allclose(made.weight, known.weight, rtol=1e-5)
    assert made.evidence is None


def test_the_noise_that_the_judge_expects_is_what_trainings_show() -> None:
    """In the row of the bias, which has the same meaning in every white space."""
    left = [each for seed in range(12) if (each := trained(WEAK, seed).evidence) is not None]
    rows = np.stack([each.gradient[-1] for each in left])
    known = np.mean([each.deviation for each in left]) * np.sqrt(1 - 1 / M)
    assert rows.std(axis=0, ddof=1).mean() == pytest.approx(known, rel=0.3)


@pytest.mark.parametrize("name", [*ARRAYS, *NUMBERS])
@pytest.mark.parametrize("value", [0.0, 3e38, -1e-30, 1e308])
def test_a_head_with_any_numbers_gives_finite_scores(name: str, value: float) -> None:
    head = trained(WEAK)
    assert head.evidence is not None
    was = getattr(head.evidence, name)
    hostile: dict[str, Any] = {name: np.full(was.shape, value) if name in ARRAYS else value}
    made = adapted(replace(head, evidence=replace(head.evidence, **hostile)), CLUSTERS[0][N : N + 100])
    assert np.isfinite(made.weight).all()
    assert np.isfinite(made.bias).all()


def test_records_of_one_dimension_or_too_large_for_the_precision_do_not_stop_a_training() -> None:
    x, y = blobs(N, 1, 2, seed=1)
    facts = Facts(n=N, m=2, d=1)
    options = METHOD.defaults(facts, WEAK, {})
    oracle = curator(facts, METHOD.plan(facts, options), WEAK, x, y, 0)
    head = METHOD.solve(oracle, facts, options)
    assert np.isfinite(adapted(head, x).weight).all()
    assert head.evidence is not None
    assert adapt(head.weight, head.bias, head.evidence, np.full((100, 1), 1e39)).share == 0
