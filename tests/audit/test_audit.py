"""The bound of the audit comes near true claims, stays below them, and exceeds every claim that a planted fault makes
false.
"""

import bisect
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpfc_cli.audit import attacks, canary, game
from dpfc_cli.audit import audit as audit_runs
from dpfc_cli.audit.signals import Signals
from dpfc_cli.kernels import rows
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.method import Method
from dpfc_cli.methods.public_head import PublicHead
from dpfc_cli.privacy import chain as chain_module
from dpfc_cli.privacy import curator as curator_module
from dpfc_cli.privacy import passes, persons, sums
from dpfc_cli.privacy.accounting import epsilon_for, mu_for
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Lattice
from dpfc_cli.privacy.noise import Bits, SeededBits
from dpfc_cli.privacy.oracle import Plan
from dpfc_cli.privacy.queries import Query
from dpfc_cli.training.calibrate import Calibrated, calibrate
from dpfc_cli.training.request import Privacy

Draw = Callable[[Query, tuple[int, ...], int, Bits], np.ndarray]
DRAW: Draw = curator_module.draw_noise
DELTA = 1e-5


def calibrated(method: Method, epsilon: float, steps: int = 2, facts: Facts = canary.FACTS) -> Calibrated:
    given = {"steps": steps} if "steps" in method.declared else {}
    return calibrate(method, facts, given, Privacy(epsilon=epsilon, delta=DELTA))


# Honest methods


def started(method: Method, epsilon: float) -> Calibrated:
    """From a public start that favours the class of the canary in its own direction."""
    c, vectors = calibrated(method, epsilon), np.zeros((canary.FACTS.d, canary.FACTS.m))
    vectors[-1, canary.LABEL], vectors[0, 0] = 1.0, 1.0
    return replace(c, options=replace(c.options, public_head=PublicHead(vectors=vectors, origin={})))


BY_PERSON = ("dp-ls", "dp-whitened")
OF_THEIR_OWN = [name for name in METHODS if name not in ("dp-momentum", "dp-adam")]
"""The releases of the other first-order methods are those of dp-sgd."""


def of_persons(method: Method, epsilon: float, steps: int = 2) -> Calibrated:
    """The unit is a person with four records."""
    return calibrated(method, epsilon, steps, canary.facts_of(4))


@pytest.mark.parametrize(
    ("method", "made"),
    [
        *((METHODS[name], calibrated) for name in OF_THEIR_OWN),
        (METHODS["dp-whitened"], started),
        *((METHODS[name], of_persons) for name in BY_PERSON),
    ],
    ids=[
        *OF_THEIR_OWN,
        "dp-whitened from a start",
        *(f"{name} for persons" for name in BY_PERSON),
    ],
)
def test_an_honest_method_comes_near_its_claim_and_is_not_accused(
    method: Method, made: Callable[[Method, float], Calibrated]
) -> None:
    c = made(method, 4.0)
    assert c.guarantee is not None
    assert c.mechanism is not None
    mu, bits = c.guarantee.mu, SeededBits(0)
    given, tried = audit_runs.prepared(c.method, c.options, c.mechanism)
    found = audit_runs.release_level(given, tried, 400, 50, bits)
    reached, by = game.strongest(found, 0.05)
    assert by.statistic == "all releases"
    assert epsilon_for(reached, DELTA) > 0.5 * 4
    trained = audit_runs.whole_training(c.method, c.options, tried[0], 40, bits)
    for comparisons in (found, [trained]):
        assert game.strongest(comparisons, game.FALSE_ALARM / 2)[0] <= mu


KINDS_OF_FACTS = {
    "zero-out": canary.facts_of(),
    "replace-one": canary.facts_of(adjacency="replace-one"),
    "two labels": canary.facts_of(labels=2),
    "persons": canary.facts_of(records=4),
    "two labels, persons, replace-one": canary.facts_of(labels=2, records=2, adjacency="replace-one"),
}


@pytest.mark.parametrize(
    ("method", "facts"),
    [
        pytest.param(method, facts, id=f"{method.name}, {what}")
        for what, facts in KINDS_OF_FACTS.items()
        for method in METHODS.values()
        if what == "zero-out" or method.name in OF_THEIR_OWN
    ],
)
def test_the_canaries_change_every_release_by_the_whole_sensitivity(
    method: Method, facts: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under replace-one, the best canaries for each kind do. The features of dp-newton have a constant part, so they
    cannot be quite opposite.
    """
    # Those of FACTS: a function that is compiled for one kind of facts serves others.
    monkeypatch.setattr(passes, "block_rows", lambda facts: 256)
    c = calibrated(method, 1.0, facts=facts)
    assert c.mechanism is not None
    _, tried = audit_runs.prepared(method, c.options, c.mechanism)
    assert set().union(*(a.statistics for a in tried)) > {r.kind for r in c.plan.releases} or len(tried) == 1
    for attack in tried:
        for name, own in attack.statistics.items():
            lengths = [np.linalg.norm(attack.added[r]) for r in own]
            assert max(lengths) < 1 + 1e-12
            # Records in a Gram matrix may be centred, and the noise in their mean may make a canary shorter.
            assert name == attacks.ALL or min(lengths) > (0.85 if name == "gram" else 0.98)
    if facts.adjacency == "zero-out":
        assert len(tried) == 1
        assert tried[0].reachable(attacks.ALL).mu > 0.99 * c.mechanism.mu


# The bound


@pytest.mark.parametrize(("runs", "slack"), [(50, 0.05), (2_000, 0.01)])
@pytest.mark.parametrize("mu", [0.05, 0.27, 2.0])
def test_the_bound_exceeds_the_truth_as_often_as_it_says_and_no_more(mu: float, runs: int, slack: float) -> None:
    """Exact: under the best attack that μ allows, the probability of enough wins to make the bound too large."""
    error = 0.05
    too_many = bisect.bisect_right(range(runs + 1), mu, key=lambda wins: game.lower_mu(wins, runs, error))
    wrong = stats.binom.sf(too_many - 1, runs, stats.norm.cdf(mu / math.sqrt(2)))
    assert error - slack <= wrong <= error


def test_the_bound_is_clopper_pearsons() -> None:
    for wins, runs in ((700, 1000), (99, 100), (100, 100), (5_700, 10_000)):
        exact = stats.binomtest(wins, runs, alternative="greater").proportion_ci(0.99, "exact").low
        assert game.lower_mu(wins, runs, 0.01) == pytest.approx(math.sqrt(2) * stats.norm.ppf(exact), rel=1e-9)
    assert game.lower_mu(50, 100, 0.05) == game.lower_mu(0, 100, 0.05) == game.lower_mu(52, 100, 0.05) == 0


@pytest.mark.parametrize("mu", [0.01, 0.27, 0.93, 2.0])
def test_the_least_runs_are_just_enough_for_right_guesses_to_refute(mu: float) -> None:
    least = game.least_runs(Signals(((mu, 1.0),)))
    error = game.MAIN_SHARE * game.FALSE_ALARM / 2
    assert game.lower_mu(least, least, error) > mu >= game.lower_mu(least - 1, least - 1, error)


def test_a_typical_bound_at_ten_thousand_runs_reaches_four_fifths_of_epsilon_one() -> None:
    mu = mu_for(1.0, DELTA)
    typical = round(10_000 * stats.norm.cdf(mu / math.sqrt(2)))
    reached = game.lower_mu(typical, 10_000, 0.05 * game.MAIN_SHARE)
    assert 0.85 < epsilon_for(reached, DELTA) < 0.9


# Planted faults


def noise(draw: Callable[[Plan], Draw]) -> Callable[[Plan], AbstractContextManager[None]]:
    """The fault that noise is drawn by `draw`."""

    @contextmanager
    def planted(plan: Plan) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(curator_module, "draw_noise", draw(plan))
            yield

    return planted


@noise
def shared_by_classes(plan: Plan) -> Draw:
    def draw(query: Query, shape: tuple[int, ...], sigma: int, bits: Bits) -> np.ndarray:
        own = DRAW(query, shape, sigma, bits)
        if canary.FACTS.m not in shape:
            return own
        return np.take(own, np.zeros(canary.FACTS.m, int), axis=shape.index(canary.FACTS.m))

    return draw


@noise
def the_same_at_every_step(plan: Plan) -> Draw:
    drawn: list[tuple[str, np.ndarray]] = []

    def draw(query: Query, shape: tuple[int, ...], sigma: int, bits: Bits) -> np.ndarray:
        if len(drawn) == len(plan.releases):
            drawn.clear()
        before = [old for kind, old in drawn if kind == query.kind]
        drawn.append((query.kind, before[0] if before else DRAW(query, shape, sigma, bits)))
        return drawn[-1][1].copy()

    return draw


@noise
def half_the_sigma(plan: Plan) -> Draw:
    return lambda query, shape, sigma, bits: DRAW(query, shape, sigma // 2, bits)


@noise
def the_same_in_every_run(plan: Plan) -> Draw:
    return lambda query, shape, sigma, bits: DRAW(query, shape, sigma, SeededBits(len(shape)))


@noise
def none_in_the_first_release(plan: Plan) -> Draw:
    first = plan.releases[0].kind
    return lambda query, shape, sigma, bits: DRAW(query, shape, 1 if query.kind == first else sigma, bits)


def unclipped(chain: bool) -> Callable[[Plan], AbstractContextManager[None]]:
    """The fault of a lattice that bounds nothing. chain: the chain does not clip either."""

    def vector(self: Lattice, v: object, squared: int, xp: object) -> object:
        return xp.rint(v * self.radius(squared, v.shape[-1]))  # type: ignore[attr-defined, operator]

    @contextmanager
    def planted(plan: Plan) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Lattice, "vector", vector)
            if chain:
                patch.setattr(chain_module, "into_ball", lambda v, xp: v)
            # Maps that are compiled already contain the clip. Those compiled now will lack it.
            rows.compiled.cache_clear()
            yield
        rows.compiled.cache_clear()

    return planted


@contextmanager
def records_counted_twice(plan: Plan) -> Iterator[None]:
    exact = sums.exact_sum
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "exact_sum", lambda *given: 2 * exact(*given))
        yield


FAULTS = {
    "noise shared by classes": (shared_by_classes, 1, 100, ("dp-ls", "dp-newton", "dp-sgd", "dp-whitened")),
    "the same noise at every step": (the_same_at_every_step, 1, 100, ("dp-fc", "dp-newton")),
    "the same noise in every run": (the_same_in_every_run, 100, 1, ("dp-fc", "dp-ls")),
    "half the sigma": (half_the_sigma, 300, 1, ("dp-whitened", "dp-sgd")),
    "one release without noise": (none_in_the_first_release, 100, 1, ("dp-ls", "dp-whitened", "dp-newton")),
    "no clip": (unclipped(chain=True), 100, 1, ("dp-fc", "dp-sgd")),
    "no clip of gradients": (unclipped(chain=False), 400, 1, ("dp-whitened", "dp-sgd")),
    "records counted twice": (records_counted_twice, 300, 1, ("dp-fc", "dp-newton", "dp-whitened")),
}
"""Each fault with the number of pairs that it takes, for the sums and for the differences, and the methods in which it
is planted. That the attack on a method is as strong as it can be is shown above without a fault, for every release of
every method.
"""
CASES = [(name, fault) for fault, (*_, names) in FAULTS.items() for name in names]


@pytest.mark.parametrize(
    ("name", "fault", "made"),
    # A start changes where the gradients are, and no noise.
    [*((*case, calibrated) for case in CASES), ("dp-whitened", "no clip of gradients", started)],
)
def test_planted_faults_are_caught(name: str, fault: str, made: Callable[[Method, float], Calibrated]) -> None:
    c = made(METHODS[name], 4.0)
    assert c.guarantee is not None
    assert c.mechanism is not None
    planted, runs, few, _ = FAULTS[fault]
    with planted(c.plan):
        found = audit_runs.release_level(
            *audit_runs.prepared(c.method, c.options, c.mechanism), runs, few, SeededBits(0)
        )
    reached, by = game.strongest(found, game.FALSE_ALARM / 2)
    assert reached > c.guarantee.mu, f"{fault} is not caught: {by}"


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


OF_PERSONS: dict[str, dict[str, Callable[..., Any]]] = {
    "records are bounded and persons are not": {"_bounded": unbounded},
    "a person is bounded in each block by itself": {"clipped": by_block},
    "records of a person are taken to be orthogonal": {"_bounded": by_the_mean_length},
}


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        *(("dp-ls", fault) for fault in OF_PERSONS),
        ("dp-whitened", "a person is bounded in each block by itself"),
        ("dp-sgd", "records are bounded and persons are not"),
    ],
)
def test_planted_faults_of_persons_are_caught(name: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    c = of_persons(METHODS[name], 4.0)
    assert c.guarantee is not None
    assert c.mechanism is not None
    # The canary's records are the last ones. Two of the four lie in a block of their own.
    monkeypatch.setattr(passes, "block_rows", lambda facts: facts.records - 2)
    for function, planted in OF_PERSONS[fault].items():
        monkeypatch.setattr(persons, function, planted)
    given, tried = audit_runs.prepared(c.method, c.options, c.mechanism)
    found = audit_runs.release_level(given, tried, 150, 1, SeededBits(0))
    reached, by = game.strongest(found, game.FALSE_ALARM / 2)
    assert reached > c.guarantee.mu, f"{fault} is not caught: {by}"


def test_a_forgotten_release_in_the_ledger_is_caught() -> None:
    """The claim is the composition of the releases in a row. The whole row is not refuted. A row without one release
    is. One method is enough: rows of all methods are composed by the same code, and an audit of dp-ls takes longer.
    """
    c = calibrated(METHODS["dp-fc"], 8.0, steps=1)
    assert c.guarantee is not None
    assert c.mechanism is not None
    row = c.releases
    whole, forgetful = (math.sqrt(sum(r["times"] / r["sigma"] ** 2 for r in rs)) for rs in (row, row[:-1]))
    given, tried = audit_runs.prepared(c.method, c.options, c.mechanism)
    found = audit_runs.release_level(given, tried, 900, 1, SeededBits(0))
    reached, _ = game.strongest(found, game.FALSE_ALARM / 2)
    assert forgetful < reached < whole == pytest.approx(c.guarantee.mu)
