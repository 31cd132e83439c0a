"""The audit: attacks on what is claimed, and the lower bound on ε that an attack proves.

A proof can be wrong, and a program can differ from its proof. So the audit plays the attacker that differential privacy
protects against. This attacker knows all records but one, the *canary*. From what was released the attacker guesses
whether the canary took part. How often the guess is right gives a lower bound on ε that does not depend on any proof.
If the bound exceeds the claim, the claim is false.

**The game.** One comparison is a pair of independent runs. One run has the canary. In the other run the record of the
canary is null. A number, the *statistic*, is computed from the answers of each run. The guess is that the larger number
belongs to the run with the canary. If a run is μ-GDP, then by composition (with, without) and (without, with) are a
√2·μ-GDP pair (Dong, Roth and Su 2022, Corollary 3.3). The test has the same error probability e under both orders. So
e ≥ Φ(−√2·μ/2), and

    P(right) ≤ Φ(μ/√2).

A Clopper-Pearson lower bound on P(right) therefore gives a lower bound on μ, and `accounting.epsilon_for` turns this
into a lower bound on ε at δ. This is the method of Nasr et al. 2023 ("Tight auditing of differentially private machine
learning"), with one change. In that paper false positives and false negatives at a threshold play the role that the
order of a pair has here. A pair needs no threshold, so no threshold can be chosen after the fact. One binomial bound at
the whole error probability replaces two bounds at half of it. And a pair detects noise that is the same in every run,
which a threshold may miss. Ties count as wrong.

**Two levels.** *Release level*: the attacker sees every answer, as the theorem in `privacy.curator` allows. All answers
come from the real `Curator`, one release after the other, with the sampler, the lattice and the sums of a training.
Nothing is cached or shortened. The queries are fixed beforehand, so the other records add the same to both runs and
cancel. The best statistic is then the projection on the contributions of the canary, each measured in standard
deviations of its noise. It is normal with variance μ², and its means in the two runs differ by μ². *Whole training*:
the attacker sees the head alone. The statistic is the margin of the canary's class in the scores of the canary. The
bound is then lower than the claim. The difference shows how much of its answers a head hides.

**Worst case.** The canary is clipped, because it is ten times as long as the other records. It lies on an axis where
all other records are zero. The theorem of the curator holds for every θ that a method passes. So θ is moved to where
the contribution of the canary is longest. These `_aimed` queries reach the whole sensitivity. Differences between
classes and between steps need contributions that differ. So they are computed from the queries that were `_asked` in a
real training.

**Several statistics.** If classes or steps share their noise, a sum does not show it, but a difference does. A fault in
one kind of release can be hidden by the correct noise of the others. So there is a statistic for the sum of all
releases, one for each kind alone, and one for the differences between classes and between steps of each kind. The error
probability is divided over them (Bonferroni): nine tenths go to the sum of all.

At 95 % confidence the bound exceeds a claim that is true and tight in one audit out of 20. An accusation must be rarer.
So `violated` requires that a bound at the error probability `FALSE_ALARM` exceeds the claim.

**Persons.** If the unit is a person, each person has the same number of records, and the canary is a person with copies
of the worst record. Their clipped sum is as long as one record's. If a program clips records and not persons, or counts
a person twice, the canary shows it.

The audit makes its own data. Its result has no noise, so it would have to be paid for if it came from private records.
It is about the mechanism, and worst-case data show more about that. An audit can refute a claim. It can never prove
one. It covers zero-out adjacency, full passes, one canary, and faults that these statistics can detect.
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
from dpfc_cli.privacy.curator import Curator, Unprotected
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import MOST_BITS, Lattice
from dpfc_cli.privacy.noise import Bits, SeededBits
from dpfc_cli.privacy.oracle import Mechanism, Oracle, Progress
from dpfc_cli.privacy.queries import Query, contribution, inputs
from dpfc_cli.privacy.sums import BlockStream

FACTS = Facts(n=200, m=3, d=8)
"""Small, because the guarantee does not depend on n, m or d. m and d differ, so the axis of the classes can be found in
an answer.
"""
LABEL = FACTS.m - 1
"""The class of the canary."""


def facts_of(records: int | None) -> Facts:
    """The facts of an audit. records: of each person; None if the unit is a record."""
    return FACTS if records is None else replace(FACTS, rows=records * FACTS.n, unit="person")


FALSE_ALARM = 1e-4
"""An upper bound on the probability that a method with a true claim is called violated."""
WHOLE_SHARE = 1.0
"""The fraction of the error probability for the one statistic of whole trainings."""
MAIN_SHARE = 0.9
"""The fraction of the error probability for the sum of all releases. The other statistics divide the rest."""
DIFFERENCES = 1_000
"""The most pairs for differences. Faults that differences show are large, and this many pairs can show an ε of 20."""
_SURE = 30.0
"""A logit with a probability of 0 or 1 in float32."""

Directions = dict[str, list[np.ndarray]]
"""For each statistic the array that the answer of each release is projected on."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result of a statistic: in `wins` of `runs` pairs it was larger with the canary.

    Attributes:
        statistic: its name.
        wins: the number of right guesses.
        runs: the number of pairs.
        share: the fraction of the error probability that it gets.

    """

    statistic: str
    wins: int
    runs: int
    share: float


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A lower bound on μ, and the lower bound on ε that follows at the δ of the claim.

    Attributes:
        epsilon: ε.
        mu: μ.
        statistic: the statistic that reached it.
        runs: the number of pairs of that statistic.

    """

    epsilon: float
    mu: float
    statistic: str
    runs: int


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
    asked = _asked(method, options, mechanism)
    aimed = [_aimed(query) for query in asked]
    sums = _sums(aimed, mechanism.sigmas)
    differences = _differences(asked, mechanism.sigmas)
    others = len(sums) + len(differences) - 1
    wins = [
        *_wins(_answers(aimed, sums, mechanism, bits), mechanism.facts, runs, stage),
        *(
            _wins(_answers(asked, differences, mechanism, bits), mechanism.facts, few, lambda done: stage(runs + done))
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
    """Compare `trainings` pairs of whole trainings by the margin of the canary.

    Args:
        method: the method.
        options: its options.
        mechanism: its plan with its noise.
        trainings: the number of pairs.
        bits: the source of random bits for the noise.
        stage: told of the number of pairs that are done.

    """

    def margin(stream: BlockStream) -> np.ndarray:
        return _margin(method.solve(Curator(mechanism, Unprotected(stream), bits), mechanism.facts, options))

    return Comparison(
        statistic="the canary's margin",
        wins=int(_wins(margin, mechanism.facts, trainings, stage)[0]),
        runs=trainings,
        share=WHOLE_SHARE,
    )


def lower_mu(wins: int, runs: int, error: float) -> float:
    """The lower bound on μ that `wins` right guesses in `runs` comparisons prove.

    It is √2·Φ⁻¹ of the Clopper-Pearson lower bound on the probability of a right guess. It is 0 if the guesses are no
    better than chance.

    Args:
        wins: the number of right guesses.
        runs: the number of comparisons.
        error: the probability that the bound is too large.

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


def least_runs(mu: float, share: float = MAIN_SHARE) -> int:
    """The smallest number of pairs that could refute a claim of μ. With fewer pairs not even right guesses alone could
    do it. share: the fraction of the error probability that their statistic gets.
    """
    wrong = math.erfc(mu / 2) / 2
    return math.floor(math.log(share * FALSE_ALARM / 2) / math.log1p(-wrong)) + 1


def strongest(comparisons: list[Comparison], error: float) -> tuple[float, Comparison]:
    """The largest lower bound on μ, and the comparison that gives it.

    The bound is valid with probability 1 − error for all statistics together.
    """
    bounds = [lower_mu(c.wins, c.runs, c.share * error) for c in comparisons]
    best = int(np.argmax(bounds))
    return bounds[best], comparisons[best]


def _bound(comparisons: list[Comparison], error: float, delta: float) -> Bound:
    mu, best = strongest(comparisons, error)
    # `epsilon_for` never returns less than `LEAST_EPSILON`. For a lower bound this would be too much.
    epsilon = epsilon_for(mu, delta) if delta_of(LEAST_EPSILON, mu) > delta else 0.0
    return Bound(epsilon=epsilon, mu=mu, statistic=best.statistic, runs=best.runs)


# The records


def _records(canary: bool) -> tuple[np.ndarray, np.ndarray]:
    """Normal records with a last coordinate of zero, and the canary, which lies on the last coordinate, or the null
    record.
    """
    x = np.random.default_rng(0).normal(size=(FACTS.n, FACTS.d)).astype(np.float32)
    labels = (np.arange(FACTS.n, dtype=np.int32) % FACTS.m)[:, None]
    x[:, -1] = 0
    x[-1] = 10 * np.max(np.linalg.norm(x, axis=1)) * np.eye(FACTS.d, dtype=np.float32)[-1]
    labels[-1] = LABEL if canary else -1
    return x, labels


def _stream(canary: bool, facts: Facts) -> BlockStream:
    parts: tuple[np.ndarray, ...] = _records(canary)
    if facts.rows is not None:
        parts = tuple(np.repeat(each, facts.rows // facts.n, axis=0) for each in (*parts, np.arange(facts.n)))

    def blocks(rows: int) -> Iterator[tuple[Any, ...]]:
        for start in range(0, facts.records, rows):
            yield start, *(part[start : start + rows] for part in parts)

    return blocks


_LATTICE = Lattice(MOST_BITS)
"""For directions only. The lattice of a curator may be coarser, but this changes a direction by its rounding alone."""


def _added(query: Query) -> np.ndarray:
    """What the canary adds, in units of the sensitivity."""
    x, labels = _records(canary=True)
    return contribution(query, x[-1], labels[-1], FACTS, _LATTICE) / _LATTICE.unit


# The queries


class _Listening:
    """An oracle that remembers the queries."""

    def __init__(self, inner: Oracle) -> None:
        self._inner = inner
        self.asked: list[Query] = []

    def release(self, query: Query) -> np.ndarray:
        self.asked.append(query)
        return self._inner.release(query)


def _asked(method: Method[Any, Any], options: Any, mechanism: Mechanism) -> list[Query]:
    """The queries of one training without the canary. Its noise need not be secret, because the records are made up."""
    oracle = _Listening(Curator(mechanism, Unprotected(_stream(canary=False, facts=mechanism.facts)), SeededBits(0)))
    method.solve(oracle, mechanism.facts, options)
    return oracle.asked


def _aimed(query: Query) -> Query:
    """The query with θ moved along the canary to where the canary adds most. A query without θ stays as it is.

    Four candidates are compared: the given θ, and three that give certain probabilities for the canary. One gives every
    class an even chance (longest Hessian). One gives certainty to every class except that of the canary (longest
    sigmoid residual). One gives certainty to one wrong class (longest softmax residual).
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
    """For each kind, contrasts between classes and between steps. Noise that these share cancels in a contrast."""
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
    """Turn directions for answers in standard deviations of their noise into directions for answers in natural units.

    The noise of a symmetric answer is σ/√2 off the diagonal, and each of these numbers occurs twice. A projection of
    the whole matrix gives them the right weight.
    """
    deviations = [s * q.scale(FACTS, _LATTICE) * _LATTICE.unit for q, s in zip(queries, sigmas, strict=True)]
    return {name: [u / d for u, d in zip(us, deviations, strict=True)] for name, us in standardised.items()}


def _answers(
    queries: list[Query], directions: Directions, mechanism: Mechanism, bits: Bits
) -> Callable[[BlockStream], np.ndarray]:
    """A run of all releases by a new curator, and the statistics of its answers."""
    stacked = [np.array([us[r].ravel() for us in directions.values()]) for r in range(len(queries))]

    def statistics(stream: BlockStream) -> np.ndarray:
        curator = Curator(mechanism, Unprotected(stream), bits)
        answers = [u @ curator.release(q).ravel() for q, u in zip(queries, stacked, strict=True)]
        return np.asarray(np.sum(answers, axis=0))

    return statistics


def _margin(solution: Solution) -> np.ndarray:
    """The canary's score for its own class minus its mean score; one number."""
    x, _ = _records(canary=True)
    scores = run_chain(solution.chain, x[-1:], np) @ solution.weight + solution.bias
    return np.asarray(scores[:, LABEL] - scores.mean(axis=1))


def _wins(
    statistics: Callable[[BlockStream], np.ndarray], facts: Facts, runs: int, stage: Callable[[int], None]
) -> np.ndarray:
    """In how many of `runs` pairs each statistic is larger with the canary."""
    without, present = _stream(canary=False, facts=facts), _stream(canary=True, facts=facts)
    wins: np.ndarray = np.zeros(1, np.int64)
    for done in range(1, runs + 1):
        wins = wins + (statistics(present) > statistics(without))
        stage(done)
    return wins
