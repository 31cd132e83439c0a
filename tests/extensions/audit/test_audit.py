"""The bound of the audit comes near true claims, stays below them, and exceeds every claim that a planted fault makes
false.

The threshold of each fault is the audit's own: a true claim is refuted with probability 1e-4 at most, over all seeds.
"""

import bisect
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpfc_cli.extensions.audit import attacks, canary, game
from dpfc_cli.extensions.audit import audit as runs
from dpfc_cli.extensions.audit.signals import Signals
from dpfc_cli.kernels import rows
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.public_head import PublicHead
from dpfc_cli.privacy import chain as chains
from dpfc_cli.privacy import curator as curators
from dpfc_cli.privacy import passes, persons, poisson, sums
from dpfc_cli.privacy.accounting import epsilon_for, mu_for
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Lattice
from dpfc_cli.privacy.noise import Bits, SeededBits, bernoulli
from dpfc_cli.privacy.oracle import Mechanism
from dpfc_cli.privacy.queries import ClassGrams, ClassSums, Gradient, Gram, Query
from tests import instead
from tests.extensions.audit.once import sums_computed_once

DELTA = 1e-5
FACTS = canary.facts_of()
REPLACED, LABELLED = canary.facts_of(adjacency="replace-one"), canary.facts_of(labels=3)
PERSONS = canary.facts_of(4)


@dataclass(frozen=True)
class Claim:
    """A mechanism to attack: on full passes all its releases together are (ε, 1e-5)-private. started: from a public
    start that favours the class of the canary in its own direction.
    """

    method: str
    epsilon: float
    facts: Facts = FACTS
    started: bool = False
    given: tuple[tuple[str, Any], ...] = ()

    @property
    def mechanism(self) -> Mechanism:
        method = METHODS[self.method]
        plan = method.plan(self.facts, method.planned(self.facts, dict(self.given), True))
        return Mechanism(facts=self.facts, plan=plan, mu=mu_for(self.epsilon, DELTA))

    @property
    def options(self) -> Any:
        method, given = METHODS[self.method], dict(self.given)
        made = method.complete(self.facts, method.planned(self.facts, given, True), self.mechanism, given)
        if not self.started:
            return made
        vectors = np.zeros((self.facts.d, self.facts.m))
        vectors[-1, FACTS.m - 1], vectors[0, 0] = 1.0, 1.0
        return replace(made, public_head=PublicHead(vectors=vectors, origin={}))

    def attacked(self, pairs: int, few: int = 1) -> list[game.Comparison]:
        """The comparisons at release level. few: of pairs for the differences."""
        given, tried = runs.prepared(METHODS[self.method], self.options, self.mechanism)
        with sums_computed_once():
            return runs.release_level(given, tried, pairs, few, SeededBits(0))


def claim(method: str, epsilon: float, facts: Facts = FACTS, started: bool = False, **given: Any) -> Claim:
    return Claim(method, epsilon, facts, started, tuple(given.items()))


@contextmanager
def one_class_in_each_block(facts: Facts = FACTS) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        instead.block_bytes(patch, 8 * (facts.d + 1) ** 2)
        yield


MORE = {
    "label sets",
    "replace-one, gradients",
    "two labels, persons, replace-one",
    "noise shared by the classes of gradients",
    "the mean without noise",
    "no clip of gradients",
    "persons, records of a person are taken to be orthogonal",
    "replace-one, √2 where 2 is needed",
    "replace-one, 1 where √2 is needed",
    "sampled, noise times the rate",
    "label sets, class Grams of records with one label",
    "blocks, the noise of a single release",
}
"""Others of their kind stand for them in `make test`."""


def of_each_kind(cases: dict[str, Any]) -> list[Any]:
    """The cases of a test by their names: those in `MORE` are long."""
    return [pytest.param(*case, id=name, marks=[pytest.mark.long] * (name in MORE)) for name, case in cases.items()]


# Honest methods

HONEST = {
    "sums and Grams": (claim("dp-ls", 8.0), 100, 0.5),
    "gradients from a public start": (claim("dp-whitened", 8.0, started=True, steps=2), 100, 0.5),
    "Hessians in blocks": (claim("dp-newton", 8.0, steps=1), 80, 0.5),
    "samples": (claim("dp-sgd", 8.0, steps=1, sampling_rate=0.5), 400, 0.3),
    "persons": (claim("dp-ls", 8.0, PERSONS), 80, 0.5),
    "label sets": (claim("dp-ls", 8.0, LABELLED), 100, 0.5),
    "replace-one, sums and Grams": (claim("dp-ls", 8.0, REPLACED), 80, 0.4),
    "replace-one, gradients": (claim("dp-sgd", 8.0, REPLACED, steps=1), 250, 0.5),
}
"""Each mechanism with a number of pairs, and the part of the claimed μ that the bound must reach with them."""


@pytest.mark.parametrize(("honest", "pairs", "part"), of_each_kind(HONEST))
def test_a_true_claim_is_approached_and_not_refuted(honest: Claim, pairs: int, part: float) -> None:
    with one_class_in_each_block():
        found = honest.attacked(pairs, 20)
    assert found[0].statistic == attacks.ALL
    assert found[0].least(0.05) > part * found[0].claimed.mu
    assert game.refuted(found, game.FALSE_ALARM / 2) == []


def test_a_head_alone_shows_less_than_all_answers() -> None:
    honest = claim("dp-whitened", 4.0, started=True, steps=2)
    method, mechanism = METHODS["dp-whitened"], honest.mechanism
    _, tried = runs.prepared(method, honest.options, mechanism)
    trained = runs.whole_training(method, honest.options, tried[0], 40, SeededBits(0))
    assert trained.claimed.mu == pytest.approx(mechanism.mu)
    assert game.refuted([trained], game.FALSE_ALARM / 2) == []


def test_hessians_in_blocks_are_attacked_block_by_block() -> None:
    with one_class_in_each_block():
        found = claim("dp-newton", 8.0, steps=1).attacked(1)
    assert [len(each.claimed.each) for each in found[:3]] == [4, 1, 3]


KINDS_OF_FACTS = {
    "zero-out": FACTS,
    "replace-one": REPLACED,
    "persons": PERSONS,
    "two labels, persons, replace-one": canary.facts_of(labels=2, records=2, adjacency="replace-one"),
}


@pytest.mark.parametrize("facts", of_each_kind({name: (facts,) for name, facts in KINDS_OF_FACTS.items()}))
def test_the_canaries_change_every_release_by_the_whole_sensitivity(
    facts: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under replace-one, the best canaries for each kind do. The features of dp-newton have a constant part, so they
    cannot be quite opposite. Zero-out is shown of all methods, the others of one for each kind of release.
    """
    (*_, last) = canary.stream(facts, None)(facts.records)
    assert (last[2][-1] == -1).all(), "a unit that is null has no label"
    # Those of FACTS: a function that is compiled for one kind of facts serves others.
    instead.block_rows(monkeypatch, 256)
    for name in METHODS if facts is FACTS else ("dp-ls", "dp-whitened", "dp-newton"):
        # Of few dimensions the default of the bias would make the constant part large.
        given: dict[str, Any] = {"bias_feature": 0.2} if name == "dp-newton" else {}
        given |= {"steps": 2} if "steps" in METHODS[name].declared else {}
        attacked = Claim(name, 1.0, facts, given=tuple(given.items()))
        mechanism = attacked.mechanism
        _, tried = runs.prepared(METHODS[name], attacked.options, mechanism)
        kinds = {release.kind for release in mechanism.plan.releases}
        assert set().union(*(a.statistics for a in tried)) > kinds or len(tried) == 1
        for attack in tried:
            for statistic, own in attack.statistics.items():
                lengths = [np.linalg.norm(attack.added[r]) for r in own]
                assert max(lengths) < 1 + 1e-12
                # Records in a Gram matrix may be centred, and the noise in their mean may make a canary shorter.
                assert statistic == attacks.ALL or min(lengths) > (0.85 if statistic == "gram" else 0.98), name
        if facts.adjacency == "zero-out":
            assert len(tried) == 1
            assert tried[0].reachable(attacks.ALL).mu > 0.99 * mechanism.mu, name


def test_no_pair_is_the_worst_for_sums_and_for_grams() -> None:
    """Of the budget of dp-ls, w = 0.3 goes to Grams and 1 − w to sums. If the canaries have the cosine c, the Grams
    keep 1 − c² of theirs, and the sums keep (1 − c)/2. The best c is −(1 − w)/(4w).
    """
    replaced = claim("dp-ls", 1.0, REPLACED)
    _, found = runs.prepared(METHODS["dp-ls"], replaced.options, replaced.mechanism)
    best = max(0.3 * (1 - c**2) + 0.7 * (1 - c) / 2 for c in np.linspace(-1, 1, 2001))
    reached = found[0].reachable(attacks.ALL).mu / replaced.mechanism.mu
    assert reached**2 == pytest.approx(best, abs=1e-3)
    assert [set(a.statistics) for a in found] == [{attacks.ALL}, {"gram", "class_grams"}, {"class_sums"}]


# The bound


@pytest.mark.parametrize(("pairs", "slack"), [(50, 0.05), (2_000, 0.01)])
@pytest.mark.parametrize("mu", [0.05, 0.27, 2.0])
def test_the_bound_exceeds_the_truth_as_often_as_it_says_and_no_more(mu: float, pairs: int, slack: float) -> None:
    """Exact: under the best attack that μ allows, the probability of enough wins to make the bound too large."""
    error = 0.05
    too_many = bisect.bisect_right(range(pairs + 1), mu, key=lambda wins: game.lower_mu(wins, pairs, error))
    wrong = stats.binom.sf(too_many - 1, pairs, stats.norm.cdf(mu / math.sqrt(2)))
    assert error - slack <= wrong <= error


def test_the_bound_is_clopper_pearsons() -> None:
    for wins, pairs in ((700, 1000), (99, 100), (100, 100), (5_700, 10_000)):
        exact = stats.binomtest(wins, pairs, alternative="greater").proportion_ci(0.99, "exact").low
        assert game.lower_mu(wins, pairs, 0.01) == pytest.approx(math.sqrt(2) * stats.norm.ppf(exact), rel=1e-9)
    assert game.lower_mu(50, 100, 0.05) == game.lower_mu(0, 100, 0.05) == game.lower_mu(52, 100, 0.05) == 0
    # A typical bound at 10,000 pairs reaches four fifths of ε = 1.
    mu = mu_for(1.0, DELTA)
    typical = round(10_000 * stats.norm.cdf(mu / math.sqrt(2)))
    assert 0.85 < epsilon_for(game.lower_mu(typical, 10_000, 0.05 * game.MAIN_SHARE), DELTA) < 0.9


def test_the_least_runs_are_just_enough_for_right_guesses_to_refute() -> None:
    error = game.MAIN_SHARE * game.FALSE_ALARM / 2
    for mu in (0.01, 0.27, 2.0):
        least = game.least_runs(Signals(((mu, 1.0),)))
        assert game.lower_mu(least, least, error) > mu >= game.lower_mu(least - 1, least - 1, error)


# Samples

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
Noise = Callable[[Query, tuple[int, ...], int, Bits], np.ndarray]
DRAW: Noise = curators.draw_noise


def patched(*changes: tuple[object, str, Any], compiled: bool = False) -> Planted:
    """The fault that other values stand in these places. compiled: compiled maps have the right ones inside."""

    @contextmanager
    def planted() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for target, name, value in changes:
                patch.setattr(target, name, value)
            if compiled:
                rows.compiled.cache_clear()
            yield
        if compiled:
            rows.compiled.cache_clear()

    return planted


def drawn(noise: Noise) -> Planted:
    return patched((curators, "draw_noise", noise))


def shared_by_classes(query: Query, shape: tuple[int, ...], sigma: int, bits: Bits) -> np.ndarray:
    own = DRAW(query, shape, sigma, bits)
    return np.take(own, np.zeros(FACTS.m, int), axis=shape.index(FACTS.m)) if FACTS.m in shape else own


def shared_by(releases: int, kind: str) -> Noise:
    """So many releases of a kind, one after the other, have the same noise."""
    first: list[np.ndarray] = []

    def draw(query: Query, shape: tuple[int, ...], sigma: int, bits: Bits) -> np.ndarray:
        own = DRAW(query, shape, sigma, bits)
        if query.kind != kind:
            return own
        if len(first) == releases:
            first.clear()
        first.append(own)
        return first[0].copy()

    return draw


def less(part: float, kind: str) -> Noise:
    """The releases of a kind have this part of their noise."""

    def draw(query: Query, shape: tuple[int, ...], sigma: int, bits: Bits) -> np.ndarray:
        return DRAW(query, shape, max(1, int(sigma * part)) if query.kind == kind else sigma, bits)

    return draw


def unbounded_vector(self: Lattice, v: Any, squared: int, xp: Any) -> Any:
    return xp.rint(v * self.radius(squared, v.shape[-1]))


def counted_twice(*given: Any) -> Any:
    return 2 * EXACT_SUM(*given)


EXACT_SUM = sums.exact_sum
UNCLIPPED = (Lattice, "vector", unbounded_vector)


def unbounded(query: Query, left: np.ndarray, right: np.ndarray, unit: int) -> tuple[np.ndarray, np.ndarray]:
    return left, right


def by_block(
    query: Query, factors: Iterable[tuple[Any, Any, np.ndarray]], lattice: Lattice
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for left, right, numbers in factors:
        yield persons._clipped(query, np.asarray(left), np.asarray(right), numbers, lattice)


def by_the_mean_length(query: Query, left: np.ndarray, right: np.ndarray, unit: int) -> tuple[np.ndarray, np.ndarray]:
    """Scales by 1/√k, as if the records of a person never added up, and does not check it."""
    scale = np.full((len(left), 1, 1), left.shape[1] ** -0.5)
    return persons._scaled(query, left, right, scale)


IN_TWO_BLOCKS = (passes, "block_rows", lambda facts: facts.records - 2)
"""The canary's records are the last ones. Two of the four lie in a block of their own."""


def as_with_one_label(kind: type[Query]) -> Planted:
    """The fault that a record with several labels is bounded like one with a single label."""
    real = kind.factors

    def factors(self: Query, x: Any, y: Any, facts: Facts, grid: Any, xp: Any) -> Any:
        return real(self, x, y, replace(facts, k=1), grid, xp)

    return patched((kind, "factors", factors), compiled=True)


def sample(draw: Callable[[float, int, Bits], np.ndarray]) -> Planted:
    return patched((curators, "bernoulli", draw))


def first_sample_for_ever() -> Callable[[float, int, Bits], np.ndarray]:
    """One sample is drawn, and kept for all releases and all runs. The canary is in it."""
    kept: list[np.ndarray] = []

    def draw(rate: float, count: int, bits: Bits) -> np.ndarray:
        while not kept or not kept[0][-1]:
            kept[:] = [bernoulli(rate, count, bits)]
        return kept[0].copy()

    return draw


ON_SAMPLES = claim("dp-sgd", 8.0, steps=2, sampling_rate=0.25)
CHANGING = claim("dp-sgd", 4.0, steps=3, sampling_rate=0.5, learning_rate=20.0, loss="softmax", bias_feature=1.0)
FAULTS: dict[str, tuple[Claim, Planted, int, int]] = {
    "noise shared by classes": (claim("dp-ls", 4.0), drawn(shared_by_classes), 1, 100),
    "noise shared by the classes of gradients": (claim("dp-sgd", 4.0, steps=2), drawn(shared_by_classes), 1, 100),
    "the same noise at every step": (claim("dp-newton", 4.0, steps=2), drawn(shared_by(2, "gradient")), 1, 100),
    "the same noise in every run": (
        claim("dp-ls", 4.0),
        drawn(lambda query, shape, sigma, bits: DRAW(query, shape, sigma, SeededBits(len(shape)))),
        80,
        1,
    ),
    "half the sigma": (claim("dp-sgd", 5.0, steps=1), drawn(less(0.5, "gradient")), 280, 1),
    "one release without noise": (claim("dp-ls", 4.0), drawn(less(0.0, "class_sums")), 60, 1),
    "the mean without noise": (claim("dp-whitened", 4.0, steps=1), drawn(less(0.0, "mean")), 60, 1),
    "no clip": (
        claim("dp-fc", 4.0, steps=1),
        patched(UNCLIPPED, (chains, "into_ball", lambda v, xp: v), compiled=True),
        80,
        1,
    ),
    "no clip of gradients": (
        claim("dp-whitened", 4.0, started=True, steps=2),
        patched(UNCLIPPED, compiled=True),
        200,
        1,
    ),
    "records counted twice": (claim("dp-newton", 5.0, steps=1), patched((sums, "exact_sum", counted_twice)), 280, 1),
    "persons, records are bounded and persons are not": (
        claim("dp-sgd", 6.0, PERSONS, steps=1),
        patched(IN_TWO_BLOCKS, (persons, "_bounded", unbounded)),
        100,
        1,
    ),
    "persons, a person is bounded in each block by itself": (
        claim("dp-ls", 6.0, PERSONS),
        patched(IN_TWO_BLOCKS, (persons, "clipped", by_block)),
        150,
        1,
    ),
    "persons, records of a person are taken to be orthogonal": (
        claim("dp-ls", 6.0, PERSONS),
        patched(IN_TWO_BLOCKS, (persons, "_bounded", by_the_mean_length)),
        150,
        1,
    ),
    "replace-one, the noise of zero-out for sums and Grams": (
        claim("dp-ls", 8.0, REPLACED),
        patched((curators, "sensitivity", lambda query, facts: 1.0)),
        150,
        1,
    ),
    "replace-one, √2 where 2 is needed": (
        claim("dp-sgd", 9.0, REPLACED, steps=1),
        patched((Gradient, "replace_one", math.sqrt(2))),
        600,
        1,
    ),
    "replace-one, 1 where √2 is needed": (
        claim("dp-fc", 9.0, REPLACED, steps=1, budget_split=(0.95, 0.05)),
        patched((Gram, "replace_one", 1.0)),
        600,
        1,
    ),
    "sampled, all take part": (ON_SAMPLES, sample(lambda rate, count, bits: np.ones(count, bool)), 100, 1),
    "sampled, at twice the rate": (
        claim("dp-sgd", 8.0, steps=1, sampling_rate=0.25),
        sample(lambda rate, count, bits: bernoulli(2 * rate, count, bits)),
        800,
        1,
    ),
    "sampled, one sample is kept for ever": (ON_SAMPLES, sample(first_sample_for_ever()), 100, 1),
    "sampled, noise times the rate": (
        claim("dp-sgd", 8.0, steps=3, sampling_rate=0.25),
        drawn(less(0.25, "gradient")),
        300,
        1,
    ),
    "sampled, the same noise at every step": (CHANGING, drawn(shared_by(3, "gradient")), 1, 60),
    "label sets, class sums of records with one label": (
        claim("dp-ls", 9.0, LABELLED),
        as_with_one_label(ClassSums),
        200,
        1,
    ),
    "label sets, class Grams of records with one label": (
        claim("dp-ls", 30.0, LABELLED),
        as_with_one_label(ClassGrams),
        250,
        1,
    ),
    "blocks, the noise of a single release": (
        claim("dp-newton", 12.0, steps=1),
        drawn(less(1 / math.sqrt(3), "hessians")),
        200,
        1,
    ),
    "blocks that share their noise": (claim("dp-newton", 4.0, steps=2), drawn(shared_by(3, "hessians")), 1, 60),
}
"""Each fault with the claim that it makes false and the number of pairs that it takes: for the sums, and for the
differences. One method is enough for each mechanism: that the attack on a method is as strong as it can be is shown
above without a fault, for every release of every method.
"""


@pytest.mark.parametrize(("made", "planted", "pairs", "few"), of_each_kind(FAULTS))
def test_a_planted_fault_refutes_the_claim(made: Claim, planted: Planted, pairs: int, few: int) -> None:
    with planted(), one_class_in_each_block(made.facts):
        found = made.attacked(pairs, few)
    assert game.refuted(found, game.FALSE_ALARM / 2), [(c.statistic, c.wins, c.runs) for c in found]


def test_a_forgotten_release_in_the_ledger_is_caught() -> None:
    """The claim is the composition of the releases in a row. The whole row is not refuted. A row without one release
    is. One method is enough: rows of all methods are composed by the same code.
    """
    made = claim("dp-fc", 8.0, steps=1)
    signals = [1 / sigma**2 for sigma in made.mechanism.sigmas]
    whole, forgetful = math.sqrt(sum(signals)), math.sqrt(sum(signals[:-1]))
    reached = game.bound(made.attacked(900), game.FALSE_ALARM / 2, 1e-5).mu
    assert forgetful < reached < whole == pytest.approx(made.mechanism.mu)
