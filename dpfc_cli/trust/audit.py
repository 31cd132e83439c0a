"""The audit: an attack on what is claimed, and the privacy that the attack proves absent.

A proof can be wrong and a program can differ from its proof. So the audit plays the adversary that differential
privacy is about: one who knows all records but one, the *canary*, and guesses from what was released whether it took
part. How often a guess is right bounds ε from below, whatever the proof says. If that bound exceeds the claim, the
claim is false.

**The game.** One comparison is two independent runs, one with the canary and one where its record is null, and a
number computed from each run's answers. The guess is that the larger one belongs to the canary. If a run is μ-GDP,
then (with, without) and (without, with) are a √2·μ-GDP pair by composition (Dong, Roth and Su 2022, Corollary 3.3).
The test errs under either order with the same probability e, hence e ≥ Φ(−√2·μ/2), so

    P(right) ≤ Φ(μ/√2),

and a Clopper-Pearson lower bound on P(right) is one on μ, and by `accounting.epsilon_for` one on ε at δ. This is the
method of Nasr et al. 2023 ("Tight auditing of differentially private machine learning"), in which false positives and
false negatives at a threshold do what the order of a pair does here. A pair needs no threshold, so none is chosen
after the fact; one binomial bound at the whole error probability takes the place of two at half of it; and noise that
is the same in every run is seen, which no threshold need see. Ties count as wrong.

**Two levels.** *Release level*: the adversary sees every answer, as the theorem in `privacy.curator` lets it. All
answers come from the real `Curator`, one release after the other, with the sampler, lattice and sums of a training;
nothing is cached or shortened. Queries are fixed beforehand, so the other records add the same to both runs and
cancel. The best number is then the projection on the canary's contributions, each measured in standard deviations of
its noise: normal with variance μ² and mean μ² apart. *Whole training*: the adversary sees the head alone, and the
number is the margin of the canary's class in the canary's scores. How far it stays below the claim says how much a
head hides of its answers.

**Worst case.** The canary is clipped (it is ten times as long as other records) and lies on an axis that is its own.
The curator's theorem holds whatever θ a solver passes, so θ is moved to where the canary's contribution is longest:
into `aimed` queries, which reach the whole sensitivity. Differences between classes and steps need contributions that
differ, so they are taken on the queries `asked` in a real training.

**Several statistics.** Noise that classes or steps share is invisible in a sum and bare in a difference; a fault in
one kind of release hides behind the sound noise of the others. So there is a statistic for the sum of all releases,
for each kind alone, and for each kind's differences between classes and between steps. The error probability is
divided over them (Bonferroni), nine tenths to the sum of all.

The bound at the confidence asked for exceeds a true and tight claim in one audit out of 20 at 95 %. An accusation must
be rarer, so `violated` demands a bound above the claim at an error probability of `FALSE_ALARM`.

The audit makes its own data. Its result is not noised and would have to be paid for if it came from private records;
and it is about the mechanism, for which data made to be the worst case tell more. It refutes, and never proves:
zero-out adjacency, full passes, one canary, and faults that these statistics see.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from dpfc_cli.methods.method import Method, Solution
from dpfc_cli.privacy.accounting import LEAST_EPSILON, Guarantee, delta_of, epsilon_for
from dpfc_cli.privacy.chain import run as run_chain
from dpfc_cli.privacy.curator import BlockStream, Curator, Unprotected
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import MOST_BITS, Lattice
from dpfc_cli.privacy.noise import Bits, SeededBits
from dpfc_cli.privacy.oracle import Mechanism, Oracle, Progress
from dpfc_cli.privacy.queries import Query, contribution, inputs

FACTS = Facts(n=200, m=3, d=8)
"""Small, for the guarantee does not depend on n, m or d; m and d differ so that an answer's class axis shows."""
LABEL = FACTS.m - 1
"""The canary's."""
FALSE_ALARM = 1e-4
"""Probability that a method whose claim is true is called violated."""
MAIN_SHARE = 0.9
"""Of the error probability, for the sum of all releases; the other statistics share the rest."""
DIFFERENCES = 1_000
"""Most pairs for differences, whose faults are gross: this many can show an ε of 20."""
_SURE = 30.0
"""A logit whose probability is 0 or 1 to float32."""

Directions = dict[str, list[np.ndarray]]
"""For each statistic the array that each release's answer is projected on."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """In `wins` of `runs` pairs the statistic was larger with the canary. share: of the error probability."""

    statistic: str
    wins: int
    runs: int
    share: float


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A lower bound on μ, and the ε at the claim's δ that it means. statistic: the one that reached it. runs: pairs."""

    epsilon: float
    mu: float
    statistic: str
    runs: int


@dataclass(frozen=True, kw_only=True)
class Audit:
    """One method's claim, and what the attacks reach at the confidence asked for."""

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
    """Attack `method` on `FACTS`, calibrated to `claim`. runs, trainings: pairs at either level. progress counts pairs.

    ValueError for a plan with sampled releases, whose privacy is not Gaussian.
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
    seen, hidden = (_bound(found, 1 - confidence, claim.delta) for found in (released, trained))
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
    """`runs` pairs over the aimed queries for the sums, `few` over the asked ones for the differences."""
    asked = _asked(method, options, mechanism)
    aimed = [_aimed(query) for query in asked]
    sums = _sums(aimed, mechanism.sigmas)
    differences = _differences(asked, mechanism.sigmas)
    others = len(sums) + len(differences) - 1
    wins = [
        *_wins(_answers(aimed, sums, mechanism, bits), runs, stage),
        *(
            _wins(_answers(asked, differences, mechanism, bits), few, lambda done: stage(runs + done))
            if differences
            else ()
        ),
    ]
    counts = [runs] * len(sums) + [few] * len(differences)
    shares = [MAIN_SHARE if others else 1.0] + [(1 - MAIN_SHARE) / max(others, 1)] * others
    named = zip([*sums, *differences], wins, counts, shares, strict=True)
    return [Comparison(statistic=name, wins=int(won), runs=count, share=share) for name, won, count, share in named]


def whole_training(
    method: Method[Any, Any],
    options: Any,
    mechanism: Mechanism,
    trainings: int,
    bits: Bits,
    stage: Callable[[int], None] = lambda done: None,
) -> Comparison:
    """`trainings` pairs of whole trainings, compared by the canary's margin."""

    def margin(stream: BlockStream) -> np.ndarray:
        return _margin(method.solve(Curator(mechanism, Unprotected(stream), bits), FACTS, options))

    return Comparison(
        statistic="the canary's margin", wins=int(_wins(margin, trainings, stage)[0]), runs=trainings, share=1.0
    )


def lower_mu(wins: int, runs: int, error: float) -> float:
    """The μ that `wins` right guesses in `runs` comparisons refute everything below of: √2·Φ⁻¹ of the Clopper-Pearson
    lower bound at that error probability; 0 where it is no better than a coin.
    """
    if 2 * wins <= runs:
        return 0.0
    successes = np.arange(wins, runs + 1)
    ways = [math.lgamma(runs + 1) - math.lgamma(k + 1) - math.lgamma(runs - k + 1) for k in range(wins, runs + 1)]

    def at_least(p: float) -> float:
        return float(np.exp(np.array(ways) + successes * math.log(p) + (runs - successes) * math.log1p(-p)).sum())

    low, high = 0.5, wins / runs
    if at_least(low) >= error:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if middle < 1 and at_least(middle) < error else (low, middle)
    return math.sqrt(2) * NormalDist().inv_cdf(low)


def least_runs(mu: float) -> int:
    """The fewest pairs of runs that could show a claim of μ to be false: with fewer, guesses that are all right could
    not.
    """
    wrong = math.erfc(mu / 2) / 2
    return math.floor(math.log(MAIN_SHARE * FALSE_ALARM / 2) / math.log1p(-wrong)) + 1


def strongest(comparisons: list[Comparison], error: float) -> tuple[float, Comparison]:
    """The largest lower bound on μ, valid with probability 1 − error for all statistics together, and whose it is."""
    bounds = [lower_mu(c.wins, c.runs, c.share * error) for c in comparisons]
    best = int(np.argmax(bounds))
    return bounds[best], comparisons[best]


def _bound(comparisons: list[Comparison], error: float, delta: float) -> Bound:
    mu, best = strongest(comparisons, error)
    # `epsilon_for` never answers less than its least ε, which for a lower bound would be too much.
    epsilon = epsilon_for(mu, delta) if delta_of(LEAST_EPSILON, mu) > delta else 0.0
    return Bound(epsilon=epsilon, mu=mu, statistic=best.statistic, runs=best.runs)


# The records


def _records(canary: bool) -> tuple[np.ndarray, np.ndarray]:
    """Normal records without the last coordinate, and the canary, which is that coordinate, or the null record."""
    x = np.random.default_rng(0).normal(size=(FACTS.n, FACTS.d)).astype(np.float32)
    labels = (np.arange(FACTS.n, dtype=np.int32) % FACTS.m)[:, None]
    x[:, -1] = 0
    x[-1] = 10 * np.max(np.linalg.norm(x, axis=1)) * np.eye(FACTS.d, dtype=np.float32)[-1]
    labels[-1] = LABEL if canary else -1
    return x, labels


def _stream(canary: bool) -> BlockStream:
    x, labels = _records(canary)

    def blocks(rows: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        for start in range(0, FACTS.n, rows):
            yield start, x[start : start + rows], labels[start : start + rows]

    return blocks


_LATTICE = Lattice(MOST_BITS)
"""For directions only: a curator's lattice may be coarser, which changes a direction by its rounding."""


def _added(query: Query) -> np.ndarray:
    """What the canary adds, in units of the sensitivity."""
    x, labels = _records(canary=True)
    return contribution(query, x[-1], labels[-1], FACTS, _LATTICE) / _LATTICE.unit


# The queries


class _Listening:
    """An oracle that remembers what it was asked."""

    def __init__(self, inner: Oracle) -> None:
        self._inner = inner
        self.asked: list[Query] = []

    def release(self, query: Query) -> np.ndarray:
        self.asked.append(query)
        return self._inner.release(query)


def _asked(method: Method[Any, Any], options: Any, mechanism: Mechanism) -> list[Query]:
    """The queries of one training without the canary. Its noise need not be secret: the records are made up."""
    oracle = _Listening(Curator(mechanism, Unprotected(_stream(canary=False)), SeededBits(0)))
    method.solve(oracle, FACTS, options)
    return oracle.asked


def _aimed(query: Query) -> Query:
    """The query with θ moved along the canary to where the canary adds most; itself if it has no θ.

    Tried: the θ at hand, and those that give every class an even chance (longest Hessian), every class but the canary's
    (longest sigmoid residual) or one wrong class (longest softmax residual) certainty.
    """
    if "theta" not in query.arrays:
        return query
    given: Any = query
    own = np.arange(FACTS.m) == LABEL
    x, _ = _records(canary=True)
    z = inputs(given.chain, given.constant, x[-1:], np, getattr(given, "radius", None))[0]
    candidates = [query]
    for logits in (0.0 * own, np.where(own, -_SURE, _SURE), np.where(np.arange(FACTS.m) == 0, _SURE, -_SURE)):
        moved = given.theta + np.outer(z, logits - z @ given.theta) / (z @ z)
        candidates.append(replace(given, theta=moved))
    return max(candidates, key=lambda candidate: float(np.linalg.norm(_added(candidate))))


# The statistics


def _sums(queries: list[Query], sigmas: tuple[float, ...]) -> Directions:
    """The optimal statistic of all releases together, and that of each kind alone."""
    added = [_added(q) / s for q, s in zip(queries, sigmas, strict=True)]
    kinds = list(dict.fromkeys(q.kind for q in queries))
    sums = {"all releases": added}
    for kind in kinds if len(kinds) > 1 else ():
        sums[kind] = [a * (q.kind == kind) for q, a in zip(queries, added, strict=True)]
    return _in_answers(sums, queries, sigmas)


def _differences(queries: list[Query], sigmas: tuple[float, ...]) -> Directions:
    """For each kind, contrasts between classes and between steps: noise that they share cancels."""
    added = [_added(q) / s for q, s in zip(queries, sigmas, strict=True)]
    differences: Directions = {}
    for kind in dict.fromkeys(q.kind for q in queries):
        own = [i for i, q in enumerate(queries) if q.kind == kind]
        axes = [axis for axis, length in enumerate(added[own[0]].shape) if length == FACTS.m]
        shared: list[tuple[str, list[np.ndarray]]] = []
        if axes:
            shared.append(("classes", [added[i].mean(axis=axes[0], keepdims=True) for i in own]))
        if len({added[i].shape for i in own}) == 1 and len(own) > 1:
            shared.append(("steps", [np.mean([added[i] for i in own], axis=0)] * len(own)))
        for what, means in shared:
            contrast = [np.zeros_like(a) for a in added]
            for i, mean in zip(own, means, strict=True):
                contrast[i] = added[i] - mean
            differences[f"{kind}, between {what}"] = contrast
    return _in_answers(differences, queries, sigmas)


def _in_answers(standardised: Directions, queries: list[Query], sigmas: tuple[float, ...]) -> Directions:
    """Directions for answers in natural units, from directions for answers in standard deviations of their noise.

    The noise of a symmetric answer is σ/√2 off the diagonal, on numbers that stand there twice: projecting the whole
    matrix weighs them rightly.
    """
    deviations = [s * q.scale(FACTS, _LATTICE) * _LATTICE.unit for q, s in zip(queries, sigmas, strict=True)]
    return {name: [u / d for u, d in zip(us, deviations, strict=True)] for name, us in standardised.items()}


def _answers(
    queries: list[Query], directions: Directions, mechanism: Mechanism, bits: Bits
) -> Callable[[BlockStream], np.ndarray]:
    """A run of all releases by a fresh curator, and the statistics of its answers."""
    stacked = [np.array([us[r].ravel() for us in directions.values()]) for r in range(len(queries))]

    def statistics(stream: BlockStream) -> np.ndarray:
        curator = Curator(mechanism, Unprotected(stream), bits)
        answers = [u @ curator.release(q).ravel() for q, u in zip(queries, stacked, strict=True)]
        return np.asarray(np.sum(answers, axis=0))

    return statistics


def _margin(solution: Solution) -> np.ndarray:
    """The canary's score at its own class above its mean score; one number."""
    x, _ = _records(canary=True)
    scores = run_chain(solution.chain, x[-1:], np) @ solution.weight + solution.bias
    return np.asarray(scores[:, LABEL] - scores.mean(axis=1))


def _wins(statistics: Callable[[BlockStream], np.ndarray], runs: int, stage: Callable[[int], None]) -> np.ndarray:
    """In how many of `runs` pairs each statistic is larger with the canary."""
    without, present = _stream(canary=False), _stream(canary=True)
    wins: np.ndarray = np.zeros(1, np.int64)
    for done in range(1, runs + 1):
        wins = wins + (statistics(present) > statistics(without))
        stage(done)
    return wins
