"""The attacks: queries that are aimed at the canary, and statistics of their answers."""

from dataclasses import replace
from typing import Any

import numpy as np

from dpfc_cli.privacy.lattice import MOST_BITS, Lattice
from dpfc_cli.privacy.queries import Query, contribution, inputs
from dpfc_cli.trust.audit.canary import FACTS, LABEL, records

_SURE = 30.0
"""A logit with a probability of 0 or 1 in float32."""

Directions = dict[str, list[np.ndarray]]
"""For each statistic the array that the answer of each release is projected on."""

_LATTICE = Lattice(MOST_BITS)
"""For directions only. The lattice of a curator may be coarser, but this changes a direction by its rounding alone."""


def added(query: Query) -> np.ndarray:
    """What the canary adds, in units of the sensitivity."""
    x, labels = records(canary=True)
    return contribution(query, x[-1], labels[-1], FACTS, _LATTICE) / _LATTICE.unit


def aimed(query: Query) -> Query:
    """The query with θ moved along the canary to where the canary adds most. A query without θ stays as it is.

    Four candidates are compared: the given θ, and three that give certain probabilities for the canary. One gives every
    class an even chance (longest Hessian). One gives certainty to every class except that of the canary (longest
    sigmoid residual). One gives certainty to one wrong class (longest softmax residual).
    """
    if "theta" not in query.arrays:
        return query
    given: Any = query
    own = np.arange(FACTS.m) == LABEL
    x, _ = records(canary=True)
    z = inputs(given.chain, given.constant, x[-1:], np, getattr(given, "radius", None))[0]
    candidates = [query]
    for logits in (0.0 * own, np.where(own, -_SURE, _SURE), np.where(np.arange(FACTS.m) == 0, _SURE, -_SURE)):
        moved = given.theta + np.outer(z, logits - z @ given.theta) / (z @ z)
        candidates.append(replace(given, theta=moved))
    return max(candidates, key=lambda candidate: float(np.linalg.norm(added(candidate))))


# The statistics


def sums(queries: list[Query], sigmas: tuple[float, ...]) -> Directions:
    """The optimal statistic of all releases together, and that of each kind alone."""
    each = [added(q) / s for q, s in zip(queries, sigmas, strict=True)]
    kinds = list(dict.fromkeys(q.kind for q in queries))
    found = {"all releases": each}
    for kind in kinds if len(kinds) > 1 else ():
        found[kind] = [a * (q.kind == kind) for q, a in zip(queries, each, strict=True)]
    return _in_answers(found, queries, sigmas)


def differences(queries: list[Query], sigmas: tuple[float, ...]) -> Directions:
    """For each kind, contrasts between classes and between steps. Noise that these share cancels in a contrast."""
    each = [added(q) / s for q, s in zip(queries, sigmas, strict=True)]
    found: Directions = {}
    for kind in dict.fromkeys(q.kind for q in queries):
        own = [i for i, q in enumerate(queries) if q.kind == kind]
        axes = [axis for axis, length in enumerate(each[own[0]].shape) if length == FACTS.m]
        shared: list[tuple[str, list[np.ndarray]]] = []
        if axes:
            shared.append(("classes", [each[i].mean(axis=axes[0], keepdims=True) for i in own]))
        if len({each[i].shape for i in own}) == 1 and len(own) > 1:
            shared.append(("steps", [np.mean([each[i] for i in own], axis=0)] * len(own)))
        for what, means in shared:
            contrast = [np.zeros_like(a) for a in each]
            for i, mean in zip(own, means, strict=True):
                contrast[i] = each[i] - mean
            found[f"{kind}, between {what}"] = contrast
    return _in_answers(found, queries, sigmas)


def _in_answers(standardised: Directions, queries: list[Query], sigmas: tuple[float, ...]) -> Directions:
    """Turn directions for answers in standard deviations of their noise into directions for answers in natural units.

    The noise of a symmetric answer is σ/√2 off the diagonal, and each of these numbers occurs twice. A projection of
    the whole matrix gives them the right weight.
    """
    deviations = [s * q.scale(FACTS, _LATTICE) * _LATTICE.unit for q, s in zip(queries, sigmas, strict=True)]
    return {name: [u / d for u, d in zip(us, deviations, strict=True)] for name, us in standardised.items()}
