"""The audit of claims under replace-one adjacency, for Poisson samples, label sets and Hessians in blocks: bounds stay
below true claims, and planted faults refute the claims that they make false.

The threshold of each test is the audit's own: a true claim is refuted with probability 1e-4 at most, over all seeds.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from dpfc_cli.audit import attacks, canary, game
from dpfc_cli.audit import audit as runs
from dpfc_cli.audit.signals import Signals
from dpfc_cli.kernels import rows
from dpfc_cli.methods import METHODS, linear
from dpfc_cli.privacy import curator as curator_module
from dpfc_cli.privacy import poisson
from dpfc_cli.privacy.accounting import epsilon_for, mu_for
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.noise import Bits, SeededBits, bernoulli
from dpfc_cli.privacy.oracle import Mechanism
from dpfc_cli.privacy.queries import ClassGrams, ClassSums, Gradient, Gram, Query

DELTA = 1e-5
REPLACED = canary.facts_of(adjacency="replace-one")
LABELLED = canary.facts_of(labels=3)


@dataclass(frozen=True)
class Claim:
    """A mechanism to attack: on full passes all its releases together would be (ε, 1e-5)-private."""

    method: str
    facts: Facts
    epsilon: float
    given: dict[str, Any]

    @property
    def mechanism(self) -> Mechanism:
        method = METHODS[self.method]
        plan = method.plan(self.facts, method.planned(self.facts, self.given, True))
        return Mechanism(facts=self.facts, plan=plan, mu=mu_for(self.epsilon, DELTA))

    @property
    def options(self) -> Any:
        method = METHODS[self.method]
        return method.complete(self.facts, method.planned(self.facts, self.given, True), self.mechanism, self.given)

    def attacked(self, pairs: int, few: int = 1) -> list[game.Comparison]:
        given, tried = runs.prepared(METHODS[self.method], self.options, self.mechanism)
        return runs.release_level(given, tried, pairs, few, SeededBits(0))


@contextmanager
def one_class_in_each_block(facts: Facts = canary.FACTS) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "BLOCK_BYTES", 8 * (facts.d + 1) ** 2)
        yield


# True claims


@pytest.mark.parametrize(
    ("claim", "pairs", "part"),
    [
        (Claim("dp-ls", REPLACED, 8.0, {}), 80, 0.4),
        (Claim("dp-sgd", REPLACED, 8.0, {"steps": 1}), 250, 0.5),
        (Claim("dp-sgd", canary.FACTS, 8.0, {"steps": 1, "sampling_rate": 0.5}), 400, 0.3),
        (Claim("dp-ls", LABELLED, 8.0, {}), 120, 0.5),
    ],
    ids=["replace-one, sums and Grams", "replace-one", "sampled", "label sets"],
)
def test_a_true_claim_is_approached_and_not_refuted(claim: Claim, pairs: int, part: float) -> None:
    found = claim.attacked(pairs, 20)
    assert found[0].statistic == attacks.ALL
    assert found[0].least(0.05) > part * found[0].claimed.mu
    assert game.refuted(found, game.FALSE_ALARM) == []


def test_hessians_in_blocks_are_attacked_block_by_block() -> None:
    with one_class_in_each_block():
        found = Claim("dp-newton", canary.FACTS, 8.0, {"steps": 1}).attacked(80)
    assert [len(each.claimed.each) for each in found[:3]] == [4, 1, 3]
    assert found[0].least(0.05) > 0.5 * found[0].claimed.mu
    assert game.refuted(found, game.FALSE_ALARM) == []


# What the best attack reaches


def test_no_pair_is_the_worst_for_sums_and_for_grams() -> None:
    """Of the budget of dp-ls, w = 0.3 goes to Grams and 1 − w to sums. If the canaries have the cosine c, the Grams
    keep 1 − c² of theirs, and the sums keep (1 − c)/2. The best c is −(1 − w)/(4w).
    """
    claim = Claim("dp-ls", REPLACED, 1.0, {})
    _, found = runs.prepared(METHODS["dp-ls"], claim.options, claim.mechanism)
    best = max(0.3 * (1 - c**2) + 0.7 * (1 - c) / 2 for c in np.linspace(-1, 1, 2001))
    reached = found[0].reachable(attacks.ALL).mu / claim.mechanism.mu
    assert reached**2 == pytest.approx(best, abs=1e-3)
    assert [set(a.statistics) for a in found] == [{attacks.ALL}, {"gram", "class_grams"}, {"class_sums"}]


SAMPLED = [((1.0, 0.1),) * 3, ((2.0, 0.3),) * 2, ((0.5, 0.5), (0.7, 1.0))]


@pytest.mark.parametrize("each", SAMPLED)
def test_the_most_right_guesses_on_samples_are_those_of_the_likelihood_ratio(
    each: tuple[tuple[float, float], ...],
) -> None:
    """200,000 simulated pairs: five standard deviations, and the rounding of the grid, which is on one side."""
    rng, pairs = np.random.default_rng(0), 200_000
    sizes, rates = np.array(each).T

    def loss(x: np.ndarray) -> np.ndarray:
        return np.asarray(np.log1p(rates * np.expm1(sizes * x - sizes**2 / 2)).sum(axis=1))

    present = rng.normal(size=(pairs, len(each))) + sizes * (rng.random((pairs, len(each))) < rates)
    right = float((loss(present) > loss(rng.normal(size=(pairs, len(each))))).mean())
    assert right - 5 * 0.0012 < Signals(each).right < right + 5 * 0.0012 + 0.0005


def test_samples_of_all_units_are_full_passes() -> None:
    full, nearly = (Signals(((0.7, rate),) * 3).right for rate in (1.0, 1 - 1e-12))
    assert full == pytest.approx(nearly, abs=5e-4)
    assert nearly > full


def test_a_bound_on_samples_is_as_large_as_the_right_guesses_prove_and_no_larger() -> None:
    claimed = Signals(((0.8, 0.3),) * 2)
    wins = round(claimed.right * 100_000)
    found = game.Comparison(statistic="", wins=wins, runs=100_000, share=1.0, claimed=claimed, reachable=claimed)
    assert 0.8 * claimed.mu < found.least(0.05) < claimed.mu
    assert not found.refutes(0.05)
    assert replace(found, wins=wins + 700).refutes(0.05)
    assert replace(found, wins=50_000).least(0.05) == 0


def test_epsilon_of_a_bound_is_what_the_accounting_states() -> None:
    assert Signals(((0.3, 1.0), (0.4, 1.0))).epsilon(DELTA) == pytest.approx(epsilon_for(0.5, DELTA))
    mixed = Signals(((0.5, 0.2), (0.5, 0.2), (0.3, 1.0)))
    stated = poisson.epsilon_for([poisson.Sampled(sigma=2.0, rate=0.2, times=2)], 0.3, DELTA)
    assert mixed.epsilon(DELTA) == pytest.approx(stated)
    assert Signals(((1e-9, 1.0),)).epsilon(DELTA) == 0


# Planted faults

Planted = Callable[[], AbstractContextManager[None]]


def patched(target: object, name: str, value: Any) -> Planted:
    @contextmanager
    def planted() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(target, name, value)
            yield

    return planted


def drawn(noise: Callable[[Query, np.ndarray], np.ndarray]) -> Planted:
    """The fault that the noise of an answer is this function of the right noise."""
    real = curator_module.draw_noise

    def draw(query: Query, shape: tuple[int, ...], sigma: int, bits: Bits) -> np.ndarray:
        return noise(query, real(query, shape, sigma, bits))

    return patched(curator_module, "draw_noise", draw)


def as_with_one_label(kind: type[Query]) -> Planted:
    """The fault that a record with several labels is bounded like one with a single label."""
    real = kind.factors

    def factors(self: Query, x: Any, y: Any, facts: Facts, grid: Any, xp: Any) -> Any:
        return real(self, x, y, replace(facts, k=1), grid, xp)

    @contextmanager
    def planted() -> Iterator[None]:
        # Maps that are compiled already bound the record as they should.
        rows.compiled.cache_clear()
        with patched(kind, "factors", factors)():
            yield
        rows.compiled.cache_clear()

    return planted


def all_take_part(rate: float, count: int, bits: Bits) -> np.ndarray:
    return np.ones(count, bool)


def at_twice_the_rate(rate: float, count: int, bits: Bits) -> np.ndarray:
    return bernoulli(2 * rate, count, bits)


def first_sample_for_ever() -> Callable[[float, int, Bits], np.ndarray]:
    """One sample is drawn, and kept for all releases and all runs. The canary is in it."""
    kept: list[np.ndarray] = []

    def draw(rate: float, count: int, bits: Bits) -> np.ndarray:
        while not kept or not kept[0][-1]:
            kept[:] = [bernoulli(rate, count, bits)]
        return kept[0].copy()

    return draw


def shared_by(releases: int, kind: str) -> Planted:
    """The fault that so many releases of a kind, one after the other, have the same noise."""
    first: list[np.ndarray] = []

    def noise(query: Query, own: np.ndarray) -> np.ndarray:
        if query.kind != kind:
            return own
        if len(first) == releases:
            first.clear()
        first.append(own)
        return first[0].copy()

    return drawn(noise)


ON_SAMPLES = Claim("dp-sgd", canary.FACTS, 8.0, {"steps": 2, "sampling_rate": 0.25})
ONE_SAMPLE = replace(ON_SAMPLES, given={"steps": 1, "sampling_rate": 0.25})
IN_BLOCKS = Claim("dp-newton", canary.FACTS, 12.0, {"steps": 1})
BERNOULLI, SENSITIVITY = (curator_module, "bernoulli"), (curator_module, "sensitivity")
FAULTS: dict[str, tuple[Claim, Planted, int, int]] = {
    "replace-one, the noise of zero-out for sums and Grams": (
        Claim("dp-ls", REPLACED, 8.0, {}),
        patched(*SENSITIVITY, lambda query, facts: 1.0),
        150,
        1,
    ),
    "replace-one, √2 where 2 is needed": (
        Claim("dp-sgd", REPLACED, 9.0, {"steps": 1}),
        patched(Gradient, "replace_one", math.sqrt(2)),
        600,
        1,
    ),
    "replace-one, 1 where √2 is needed": (
        Claim("dp-fc", REPLACED, 9.0, {"steps": 1, "budget_split": (0.95, 0.05)}),
        patched(Gram, "replace_one", 1.0),
        600,
        1,
    ),
    "sampled, all take part": (ON_SAMPLES, patched(*BERNOULLI, all_take_part), 100, 1),
    "sampled, at twice the rate": (ONE_SAMPLE, patched(*BERNOULLI, at_twice_the_rate), 800, 1),
    "sampled, one sample is kept for ever": (ON_SAMPLES, patched(*BERNOULLI, first_sample_for_ever()), 100, 1),
    "sampled, noise times the rate": (
        replace(ON_SAMPLES, given={"steps": 3, "sampling_rate": 0.25}),
        drawn(lambda query, own: own // 4),
        300,
        1,
    ),
    "sampled, the same noise at every step": (
        Claim(
            "dp-sgd", canary.FACTS, 4.0, {"steps": 3, "sampling_rate": 0.5, "learning_rate": 20.0, "loss": "softmax"}
        ),
        shared_by(3, "gradient"),
        1,
        60,
    ),
    "label sets, class sums of records with one label": (
        Claim("dp-ls", LABELLED, 9.0, {}),
        as_with_one_label(ClassSums),
        200,
        1,
    ),
    "label sets, class Grams of records with one label": (
        Claim("dp-ls", LABELLED, 30.0, {}),
        as_with_one_label(ClassGrams),
        250,
        1,
    ),
    "blocks, the noise of a single release": (
        IN_BLOCKS,
        drawn(lambda query, own: np.rint(own / math.sqrt(3)).astype(np.int64) if query.kind == "hessians" else own),
        200,
        1,
    ),
    "blocks that share their noise": (
        Claim("dp-newton", canary.FACTS, 4.0, {"steps": 2}),
        shared_by(3, "hessians"),
        1,
        60,
    ),
}
"""Each fault with the claim that it makes false and the number of pairs that it takes: for the sums, and for the
differences.
"""


@pytest.mark.parametrize(("claim", "planted", "pairs", "few"), FAULTS.values(), ids=list(FAULTS))
def test_planted_faults_refute_the_claim(claim: Claim, planted: Planted, pairs: int, few: int) -> None:
    with planted(), one_class_in_each_block(claim.facts):
        found = claim.attacked(pairs, few)
    assert game.refuted(found, game.FALSE_ALARM / 2), [(c.statistic, c.wins, c.runs) for c in found]
