"""The runs of an audit: each is a training, or all releases of one, by the real curator."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfc_cli.methods.method import Method, Solution
from dpfc_cli.privacy.accounting import Guarantee
from dpfc_cli.privacy.chain import run as run_chain
from dpfc_cli.privacy.curator import BlockStream, Curator, Unprotected
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.noise import Bits, SeededBits
from dpfc_cli.privacy.oracle import Mechanism, Oracle, Progress
from dpfc_cli.privacy.queries import Query
from dpfc_cli.trust.audit.attacks import Directions, aimed, differences, sums
from dpfc_cli.trust.audit.canary import LABEL, records, stream
from dpfc_cli.trust.audit.game import FALSE_ALARM, MAIN_SHARE, WHOLE_SHARE, Bound, Comparison, bound, strongest

DIFFERENCES = 1_000
"""The most pairs for differences. Faults that differences show are large, and this many pairs can show an ε of 20."""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The claim of one method, and what the attacks reach at the given confidence.

    Attributes:
        method: the name of the method.
        claim: the guarantee that is attacked.
        release_level: the bound if the attacker sees all answers.
        whole_training: the bound if the attacker sees the head alone.
        violated: whether the claim is refuted.

    """

    method: str
    claim: Guarantee
    release_level: Bound
    whole_training: Bound
    violated: bool


def audit(
    method: Method[Any, Any],
    options: Any,
    mechanism: Mechanism,
    claim: Guarantee,
    runs: int,
    trainings: int,
    confidence: float,
    bits: Bits,
    progress: Progress | None = None,
) -> Audit:
    """Attack a method on the records of `FACTS`, or on persons with several of them (`facts_of`).

    Args:
        method: the method.
        options: its options.
        mechanism: its plan with its noise.
        claim: the guarantee that the mechanism is calibrated to.
        runs: the number of pairs at release level.
        trainings: the number of pairs of whole trainings.
        confidence: of the bounds, such as 0.95.
        bits: the source of random bits for the noise.
        progress: progress(done, total) is told of the number of pairs.

    Raises:
        ValueError: the plan has sampled releases. Their privacy is not Gaussian.

    """
    if mechanism.plan.sampled:
        raise ValueError("only full passes are audited")
    few = min(runs, DIFFERENCES)
    total = runs + few + trainings

    def stage(before: int) -> Callable[[int], None]:
        return lambda done: progress(before + done, total) if progress else None

    released = release_level(method, options, mechanism, runs, few, bits, stage(0))
    trained = [whole_training(method, options, mechanism, trainings, bits, stage(runs + few))]
    # A false alarm may come from either level.
    alarms = [strongest(found, FALSE_ALARM / 2)[0] for found in (released, trained)]
    seen, hidden = (bound(found, 1 - confidence, claim.delta) for found in (released, trained))
    return Audit(
        method=method.name,
        claim=claim,
        release_level=seen,
        whole_training=hidden,
        violated=max(alarms) > claim.mu,
    )


def release_level(
    method: Method[Any, Any],
    options: Any,
    mechanism: Mechanism,
    runs: int,
    few: int,
    bits: Bits,
    stage: Callable[[int], None] = lambda done: None,
) -> list[Comparison]:
    """Compare `runs` pairs on the aimed queries for the sums, and `few` pairs on the asked queries for the differences.

    Args:
        method: the method.
        options: its options.
        mechanism: its plan with its noise.
        runs: the number of pairs for the sums.
        few: the number of pairs for the differences.
        bits: the source of random bits for the noise.
        stage: told of the number of pairs that are done.

    """
    given = asked(method, options, mechanism)
    moved = [aimed(query) for query in given]
    whole, contrasts = sums(moved, mechanism.sigmas), differences(given, mechanism.sigmas)
    others = len(whole) + len(contrasts) - 1
    wins = [
        *_wins(_answers(moved, whole, mechanism, bits), mechanism.facts, runs, stage),
        *(
            _wins(_answers(given, contrasts, mechanism, bits), mechanism.facts, few, lambda done: stage(runs + done))
            if contrasts
            else ()
        ),
    ]
    counts = [runs] * len(whole) + [few] * len(contrasts)
    shares = [MAIN_SHARE if others else 1.0] + [(1 - MAIN_SHARE) / max(others, 1)] * others
    named = zip([*whole, *contrasts], wins, counts, shares, strict=True)
    return [Comparison(statistic=name, wins=int(won), runs=count, share=share) for name, won, count, share in named]


def whole_training(
    method: Method[Any, Any],
    options: Any,
    mechanism: Mechanism,
    trainings: int,
    bits: Bits,
    stage: Callable[[int], None] = lambda done: None,
) -> Comparison:
    """Compare `trainings` pairs of whole trainings by the margin of the canary.

    Args:
        method: the method.
        options: its options.
        mechanism: its plan with its noise.
        trainings: the number of pairs.
        bits: the source of random bits for the noise.
        stage: told of the number of pairs that are done.

    """

    def margin(blocks: BlockStream) -> np.ndarray:
        return _margin(method.solve(Curator(mechanism, Unprotected(blocks), bits), mechanism.facts, options))

    return Comparison(
        statistic="the canary's margin",
        wins=int(_wins(margin, mechanism.facts, trainings, stage)[0]),
        runs=trainings,
        share=WHOLE_SHARE,
    )


class _Listening:
    """An oracle that remembers the queries."""

    def __init__(self, inner: Oracle) -> None:
        self._inner = inner
        self.asked: list[Query] = []

    def release(self, query: Query) -> np.ndarray:
        self.asked.append(query)
        return self._inner.release(query)


def asked(method: Method[Any, Any], options: Any, mechanism: Mechanism) -> list[Query]:
    """The queries of one training without the canary. Its noise need not be secret, because the records are made up."""
    oracle = _Listening(Curator(mechanism, Unprotected(stream(canary=False, facts=mechanism.facts)), SeededBits(0)))
    method.solve(oracle, mechanism.facts, options)
    return oracle.asked


def _answers(
    queries: list[Query], directions: Directions, mechanism: Mechanism, bits: Bits
) -> Callable[[BlockStream], np.ndarray]:
    """A run of all releases by a new curator, and the statistics of its answers."""
    stacked = [np.array([us[r].ravel() for us in directions.values()]) for r in range(len(queries))]

    def statistics(blocks: BlockStream) -> np.ndarray:
        curator = Curator(mechanism, Unprotected(blocks), bits)
        answers = [u @ curator.release(q).ravel() for q, u in zip(queries, stacked, strict=True)]
        return np.asarray(np.sum(answers, axis=0))

    return statistics


def _margin(solution: Solution) -> np.ndarray:
    """The canary's score for its own class minus its mean score; one number."""
    x, _ = records(canary=True)
    scores = run_chain(solution.chain, x[-1:], np) @ solution.weight + solution.bias
    return np.asarray(scores[:, LABEL] - scores.mean(axis=1))


def _wins(
    statistics: Callable[[BlockStream], np.ndarray], facts: Facts, runs: int, stage: Callable[[int], None]
) -> np.ndarray:
    """In how many of `runs` pairs each statistic is larger with the canary."""
    without, present = stream(canary=False, facts=facts), stream(canary=True, facts=facts)
    wins: np.ndarray = np.zeros(1, np.int64)
    for done in range(1, runs + 1):
        wins = wins + (statistics(present) > statistics(without))
        stage(done)
    return wins
