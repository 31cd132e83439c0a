"""An audit, and its runs: each is all releases of a training, or a whole training, by the real curator."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dpfc_cli.errors import UserError, parameter
from dpfc_cli.extensions.audit.attacks import ALL, Attack, Directions, attacks, contrasts
from dpfc_cli.extensions.audit.canary import Canary, Pair, facts_of, stream
from dpfc_cli.extensions.audit.game import (
    FALSE_ALARM,
    MAIN_SHARE,
    Bound,
    Comparison,
    bound,
    least_runs,
    refuted,
)
from dpfc_cli.extensions.audit.request import MOST_RUNS, Auditing
from dpfc_cli.extensions.audit.signals import Signals
from dpfc_cli.methods import METHODS, AnyMethod, method_named
from dpfc_cli.methods.method import Solution
from dpfc_cli.options import takes
from dpfc_cli.privacy.accounting import Guarantee, Privacy
from dpfc_cli.privacy.chain import run as run_chain
from dpfc_cli.privacy.curator import Curator, Unprotected
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.noise import Bits, SeededBits, SystemBits
from dpfc_cli.privacy.oracle import Mechanism, Oracle
from dpfc_cli.privacy.passes import BlockStream
from dpfc_cli.privacy.queries import Query
from dpfc_cli.progress import Progress
from dpfc_cli.training.calibrate import calibrate

DIFFERENCES = 1_000
"""The most pairs for differences. Faults that differences show are large, and this many pairs can show an ε of 20."""
STEPS = 3
"""Of methods that iterate: enough to tell steps apart. All steps run the same code."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one kind of releases gives away by itself. claimed: ε of these releases with their planned noise.
    attainable: ε that this attack would reach with infinitely many runs. reached: the lower bound with so many.
    """

    kind: str
    claimed: float
    attainable: float
    reached: float
    runs: int


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The claim of one method, and what the attacks reach at the given confidence.

    release_level: the bound if the attacker sees all answers; whole_training: if the attacker sees the head alone.
    attainable: ε that the attack on all answers would reach with infinitely many runs. parts: each kind of releases by
    itself, if there are several. least_trainings: fewer pairs of trainings could not refute the claim. by: the
    statistics that refute it.
    """

    method: str
    claim: Guarantee
    release_level: Bound
    whole_training: Bound
    attainable: float
    parts: tuple[Part, ...]
    least_trainings: int
    violated: bool
    by: tuple[str, ...]


@takes(Auditing)
def audit_methods(wanted: Auditing) -> tuple[Audit, ...]:
    """Attack trainings on made-up records, and bound their ε from below: an empirical check of the proofs and of the
    program. No feature set and no ledger is touched.

    Returns:
        What the attacks reach, for each method.

    Raises:
        UserError: a value makes no sense, or there are too few runs to refute the claim.

    Examples:
        assert not any(found.violated for found in dpfc.audit_methods(epsilon=1.0))

    """
    return tuple(audits(wanted))


def audits(wanted: Auditing) -> Iterator[Audit]:
    """As `audit_methods`, one by one."""
    facts = facts_of(wanted.records_per_person, wanted.labels_per_record, wanted.adjacency)
    able = (each for each in METHODS.values() if wanted.sampling_rate is None or "sampling_rate" in each.declared)
    for method in able if wanted.method == "all" else [method_named(wanted.method, facts)]:
        yield _audited(wanted, facts, method)


def _audited(wanted: Auditing, facts: Facts, method: AnyMethod) -> Audit:
    asked = {"sampling_rate": wanted.sampling_rate} if wanted.sampling_rate is not None else {}
    asked |= {"steps": STEPS} if "steps" in method.declared else {}
    c = calibrate(method, facts, asked, Privacy(epsilon=wanted.epsilon, delta=wanted.delta, allow_large_delta=True))
    claim, mechanism, runs, trainings = c.worth, c.noise, wanted.runs, wanted.trainings
    least = least_runs(Signals.of(mechanism))
    if runs < least:
        raise UserError(
            f"{parameter('runs')} {runs} is too few to show that a claim of epsilon = {wanted.epsilon:g} at delta = "
            f"{wanted.delta:g} is false, even if every guess were right.",
            f"Give {parameter('runs')} {least} or more."
            if least <= MOST_RUNS
            else f"Audit a smaller {parameter('epsilon')}.",
        )
    given, tried = prepared(method, c.options, mechanism)
    bits = SystemBits()

    def done(what: str, pairs: int, of: int | None) -> None:
        if wanted.progress:
            wanted.progress(f"Attacking {what} of {method.name}", pairs, of)

    released = release_level(given, tried, runs, min(runs, DIFFERENCES), bits, done)
    trained = [whole_training(method, c.options, tried[0], trainings, bits, done)]
    # A false alarm may come from either level.
    by = [name for found in (released, trained) for name in refuted(found, FALSE_ALARM / 2)]
    error = 1 - wanted.confidence
    seen, hidden = (bound(found, error, claim.delta) for found in (released, trained))
    return Audit(
        method=method.name,
        claim=claim,
        release_level=seen,
        whole_training=hidden,
        attainable=released[0].reachable.epsilon(claim.delta),
        parts=_parts(released, mechanism, error, claim.delta),
        least_trainings=least_runs(Signals.of(mechanism), 1.0),
        violated=bool(by),
        by=tuple(by),
    )


def release_level(
    given: list[Query], tried: list[Attack], runs: int, few: int, bits: Bits, done: Progress = lambda *_: None
) -> list[Comparison]:
    """Compare `runs` pairs of each attack on aimed queries, and `few` pairs on the asked queries for the differences.
    The first comparison is that of all releases together. given, tried: see `prepared`.
    """
    mechanism = tried[0].mechanism
    between = contrasts(given, mechanism, tried[0].pair)
    others = sum(len(attack.statistics) for attack in tried) - 1 + len(between)
    less = (1 - MAIN_SHARE) / max(others, 1)
    found: list[Comparison] = []
    for attack in tried:
        answers = _answers(attack.queries, attack.directions, mechanism, bits)
        seen = _played(answers, attack.pair, mechanism, runs, next(iter(attack.statistics)), done)
        found += [
            Comparison(
                statistic=name,
                wins=_wins(attack.values(name, seen)),
                runs=runs,
                share=less if name != ALL else MAIN_SHARE if others else 1.0,
                claimed=attack.claimed(name),
                reachable=attack.reachable(name),
            )
            for name in attack.statistics
        ]
    if between:
        answers = _answers(given, [directions for _, directions in between.values()], mechanism, bits)
        seen = _played(answers, tried[0].pair, mechanism, few, "differences", done)
        for i, (name, (own, _)) in enumerate(between.items()):
            wins, signals = _wins(seen[..., i]), Signals.of(mechanism, own=own)
            found.append(
                Comparison(statistic=name, wins=wins, runs=few, share=less, claimed=signals, reachable=signals)
            )
    return found


def whole_training(
    method: AnyMethod, options: object, attack: Attack, trainings: int, bits: Bits, done: Progress = lambda *_: None
) -> Comparison:
    """Compare `trainings` pairs of whole trainings by the margin of the canary. attack: that on all releases."""
    mechanism = attack.mechanism

    def margin(blocks: BlockStream) -> np.ndarray:
        solution = method.solve(Curator(mechanism, Unprotected(blocks), bits), mechanism.facts, options)
        sides = [_margin(solution, side) for side in attack.pair.sides]
        return np.array(sides[0] - sum(sides[1:]))

    return Comparison(
        statistic="the canary's margin",
        wins=_wins(_played(margin, attack.pair, mechanism, trainings, "heads", done)),
        runs=trainings,
        share=1.0,
        claimed=attack.claimed(ALL),
        reachable=attack.reachable(ALL),
    )


def _parts(released: list[Comparison], mechanism: Mechanism, error: float, delta: float) -> tuple[Part, ...]:
    kinds = {release.kind for release in mechanism.plan.releases}
    return tuple(
        Part(
            kind=each.statistic,
            claimed=each.claimed.epsilon(delta),
            attainable=each.reachable.epsilon(delta),
            reached=bound([each], error, delta).epsilon,
            runs=each.runs,
        )
        for each in released
        if each.statistic in kinds
    )


# The runs


class _Listening(Oracle):
    """An oracle that remembers the queries."""

    def __init__(self, inner: Oracle) -> None:
        self._inner = inner
        self.asked: list[Query] = []

    def release(self, query: Query) -> np.ndarray:
        self.asked.append(query)
        return self._inner.release(query)


def prepared(method: AnyMethod, options: object, mechanism: Mechanism) -> tuple[list[Query], list[Attack]]:
    """The queries of one training without the canary, and the attacks on them. The first one is on all releases."""
    blocks = stream(mechanism.facts, None, mechanism.plan.sampled)
    # Its noise need not be secret, because the records are made up.
    oracle = _Listening(Curator(mechanism, Unprotected(blocks), SeededBits(0)))
    method.solve(oracle, mechanism.facts, options)
    return oracle.asked, attacks(oracle.asked, mechanism)


def _answers(
    queries: list[Query], directions: Directions, mechanism: Mechanism, bits: Bits
) -> Callable[[BlockStream], np.ndarray]:
    """A run of all releases by a new curator, and the projections of its answers."""
    stacked = [np.array([us[r].ravel() for us in directions]) for r in range(len(queries))]

    def projections(blocks: BlockStream) -> np.ndarray:
        curator = Curator(mechanism, Unprotected(blocks), bits)
        answers = [u @ curator.release(q).ravel() for q, u in zip(queries, stacked, strict=True)]
        return np.asarray(np.sum(answers, axis=0))

    return projections


def _margin(solution: Solution, canary: Canary) -> float:
    """The canary's mean score for its own classes minus its mean score."""
    scores = (run_chain(solution.chain, canary.x[None], np) @ solution.weight + solution.bias)[0]
    return float(scores[canary.labels].mean() - scores.mean())


def _played(
    run: Callable[[BlockStream], np.ndarray], pair: Pair, mechanism: Mechanism, runs: int, what: str, done: Progress
) -> np.ndarray:
    """The numbers that pairs of runs give: pairs × 2 × numbers. The first of two is with the first canary."""
    one, other = (stream(mechanism.facts, side, mechanism.plan.sampled) for side in (pair.one, pair.other))
    seen = []
    for i in range(runs):
        seen.append(np.stack([run(one), run(other)]))
        done(what, i + 1, runs)
    return np.array(seen)


def _wins(values: np.ndarray) -> int:
    """In how many pairs the statistic is larger with the first canary. values: pairs × 2."""
    return int((values[:, 0] > values[:, 1]).sum())
