"""The attacks: which canaries, at which queries, and which statistics of the answers."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpfc_cli.extensions.audit.canary import Canary, Pair, pairs
from dpfc_cli.extensions.audit.signals import Signals
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.inputs import inputs
from dpfc_cli.privacy.lattice import MOST_BITS, Lattice
from dpfc_cli.privacy.oracle import Mechanism
from dpfc_cli.privacy.queries import Mean, Query, contribution, sensitivity

ALL = "all releases"
SAME = 0.99
"""If canaries give a kind of releases this part of what the best canaries for it give, they are not exchanged."""
_SURE = 30.0
"""A logit with a probability of 0 or 1 in float32."""
_LATTICE = Lattice(MOST_BITS)
"""For directions only. The lattice of a curator may be coarser, but this changes a direction by its rounding alone."""

Directions = list[list[np.ndarray]]
"""For each number that is computed from the answers: the array that the answer of each release is projected on."""


@dataclass(frozen=True, eq=False)
class Attack:
    """All releases of one mechanism, with queries that are aimed at one pair of canaries.

    added: for each release the difference between the canaries' contributions, in units of the sensitivity.
    statistics: their names, each with the releases that it sees.
    """

    mechanism: Mechanism
    pair: Pair
    queries: list[Query]
    added: list[np.ndarray]
    statistics: dict[str, list[int]]

    @property
    def signals(self) -> np.ndarray:
        """The distance between the two runs in each answer, in standard deviations of the noise."""
        return np.array([np.linalg.norm(a) for a in self.added]) / self.mechanism.sigmas

    @property
    def directions(self) -> Directions:
        """One number for each release: its answer along the difference, in standard deviations of the noise."""
        unit = [a / max(float(np.linalg.norm(a)), 1e-300) for a in self.added]
        alone = [[u * (r == own) for r, u in enumerate(unit)] for own in range(len(unit))]
        return _in_answers(alone, self.queries, self.mechanism)

    def claimed(self, name: str) -> Signals:
        """What the releases of a statistic may give away at most."""
        return Signals.of(self.mechanism, own=self.statistics[name])

    def reachable(self, name: str) -> Signals:
        """What they give away to this attack, if the noise is as planned."""
        return Signals.of(self.mechanism, self.signals, self.statistics[name])

    def values(self, name: str, seen: np.ndarray) -> np.ndarray:
        """The statistic of each run: the logarithm of the likelihood ratio of its releases. seen: the numbers of
        `directions` in the last axis.
        """
        own = self.statistics[name]
        rates = np.array([r.rate for r in self.mechanism.plan.releases])[own]
        shift = self.signals[own] * seen[..., own] - np.square(self.signals[own]) / 2
        with np.errstate(divide="ignore"):
            return np.asarray(np.logaddexp(np.log1p(-rates), np.log(rates) + shift).sum(axis=-1))


def attacks(asked: list[Query], mechanism: Mechanism) -> list[Attack]:
    """The best canaries for all releases together and, where others are better for one kind of releases alone, those.

    The first attack is the one on all releases. Under zero-out adjacency one pair is the best for every release. Under
    replace-one adjacency opposite contributions are the best for sums, and orthogonal ones for Grams.
    """
    releases = range(len(asked))
    kinds = {kind: [r for r in releases if asked[r].kind == kind] for kind in dict.fromkeys(q.kind for q in asked)}
    wanted = {ALL: list(releases), **(kinds if len(kinds) > 1 else {})}
    possible = []
    for pair in pairs(mechanism.facts):
        queries = [aimed(query, pair, mechanism.facts) for query in asked]
        added = [difference(query, pair, mechanism.facts) for query in queries]
        possible.append(Attack(mechanism, pair, queries, added, {}))

    def strength(attack: Attack, name: str) -> float:
        return float(np.linalg.norm(attack.signals[wanted[name]]))

    found: list[Attack] = []
    for name, own in wanted.items():
        best = max(possible, key=lambda attack: strength(attack, name))
        good = next((a for a in found if strength(a, name) > SAME * strength(best, name)), best)
        if good not in found:
            found.append(good)
        good.statistics[name] = own
    return found


# The queries


def difference(query: Query, pair: Pair, facts: Facts) -> np.ndarray:
    """The contribution of the first canary minus that of the second one, in units of the sensitivity."""
    one, other = (_added(query, side, facts) for side in (pair.one, pair.other))
    return np.asarray((one - other) / sensitivity(query, facts))


def _added(query: Query, canary: Canary | None, facts: Facts) -> np.ndarray:
    """What a unit adds, in units of 4ᵇ. A person adds the clipped sum of equal records."""
    if canary is None:
        return np.zeros(query.shape(facts))
    own = contribution(query, canary.x, canary.labels, facts, _LATTICE) / _LATTICE.unit
    if facts.rows is None or isinstance(query, Mean):
        return own
    records = facts.rows // facts.n
    return np.asarray(own * min(records, 1 / max(float(np.linalg.norm(own)), 1e-300)))


def aimed(query: Query, pair: Pair, facts: Facts) -> Query:
    """The query with θ moved along the canaries to where they differ most. A query without θ stays as it is.

    The theorem of the curator holds for every θ. Five candidates are compared: the given θ, and four that give certain
    probabilities for the canaries. One gives every class an even chance (longest Hessian). One gives certainty to every
    class except those of the canary (longest sigmoid residual). One gives certainty to one wrong class (longest softmax
    residual). One gives even chances to the classes of either canary, and none to the others (opposite residuals).
    """
    if "theta" not in query.arrays:
        return query
    given: Any = query
    x = np.stack([side.x for side in pair.sides])
    z = inputs(given.chain, given.constant, x, np, getattr(given, "radius", None))
    own = np.array([np.isin(np.arange(facts.m), side.labels) for side in pair.sides])
    candidates = [query]
    for logits in (
        0.0 * own,
        np.where(own, -_SURE, _SURE),
        np.where(np.arange(facts.m) == 0, _SURE, -_SURE) + 0.0 * own,
        np.where(own.any(axis=0), 0.0, -_SURE) + 0.0 * own,
    ):
        moved = given.theta + np.linalg.pinv(z) @ (logits - z @ given.theta)
        candidates.append(replace(given, theta=moved))
    return max(candidates, key=lambda candidate: float(np.linalg.norm(difference(candidate, pair, facts))))


# Differences


def contrasts(asked: list[Query], mechanism: Mechanism, pair: Pair) -> dict[str, tuple[list[int], list[np.ndarray]]]:
    """For each kind of releases, contrasts between classes, between steps, and between the blocks of a step. Noise that
    these share cancels in them. Of each: the releases that it sees, and the array that each answer is projected on.
    """
    each = [difference(q, pair, mechanism.facts) / s for q, s in zip(asked, mechanism.sigmas, strict=True)]
    found: dict[str, tuple[list[int], list[np.ndarray]]] = {}
    for kind in dict.fromkeys(q.kind for q in asked):
        own = [i for i, q in enumerate(asked) if q.kind == kind]
        axes = [axis for axis, length in enumerate(each[own[0]].shape) if length == mechanism.facts.m]
        shared: list[tuple[str, list[np.ndarray]]] = []
        if axes:
            shared.append(("classes", [each[i].mean(axis=axes[0], keepdims=True) for i in own]))
        if len({each[i].shape for i in own}) == 1 and len(own) > 1:
            shared.append(("steps", [np.mean([each[i] for i in own], axis=0)] * len(own)))
            # The blocks of a step follow one another.
            step = np.cumsum(np.diff(own, prepend=own[0]) > 1)
            if 0 < step[-1] < len(own) - 1:
                alike = [[each[i] for i, s in zip(own, step, strict=True) if s == t] for t in step]
                shared.append(("blocks", [np.mean(blocks, axis=0) for blocks in alike]))
        for what, means in shared:
            contrast = [np.zeros_like(a) for a in each]
            for i, mean in zip(own, means, strict=True):
                contrast[i] = each[i] - mean
            found[f"{kind}, between {what}"] = (own, _in_answers([contrast], asked, mechanism)[0])
    return found


def _in_answers(standardised: Directions, queries: list[Query], mechanism: Mechanism) -> Directions:
    """Turn directions for answers in standard deviations of their noise into directions for answers in natural units.

    The noise of a symmetric answer is σ/√2 off the diagonal, and each of these numbers occurs twice. A projection of
    the whole matrix gives them the right weight.
    """
    facts = mechanism.facts
    deviations = [
        s * sensitivity(q, facts) * q.scale(facts, _LATTICE) * _LATTICE.unit
        for q, s in zip(queries, mechanism.sigmas, strict=True)
    ]
    return [[u / d for u, d in zip(us, deviations, strict=True)] for us in standardised]
