"""What a training claims, and the releases that it makes: their types and ranges, and that the figures agree.

The card of a head and the row of a ledger say both, and both are files that others may have changed. That the figures
agree does not prove that the training was as they say.
"""

import math
from collections.abc import Mapping
from typing import Any, get_args

from dpfc_cli.privacy.accounting import LARGEST_EPSILON, LEAST_DELTA, LEAST_EPSILON, Claim, delta_of
from dpfc_cli.privacy.facts import Adjacency
from dpfc_cli.privacy.queries import QUERIES
from dpfc_cli.schema import Check, among, closed, each, fault, null, number, record, whole

_LARGEST = 1e150
"""The largest σ and μ: float64 has their squares."""
_CLAIMED: dict[str, Check] = {
    "epsilon": number(LEAST_EPSILON, LARGEST_EPSILON),
    "delta": number(LEAST_DELTA, 1 - 2**-53),
    "mu": number(0, _LARGEST, beyond=True),
    "eta": number(0, 1),
}
_RELEASE: dict[str, Check] = {
    "kind": among([query.kind for query in QUERIES]),
    "shape": each(whole(1)),
    "share": number(0, 1, beyond=True),
    "rate": number(0, 1, beyond=True),
    "times": whole(1),
}
_CLAIM = record({"claim": among(get_args(Claim)), "adjacency": among(get_args(Adjacency))})


def claim_fault(values: Any) -> str | None:
    """The place of the first value that makes no sense: of `claim`, `adjacency`, `epsilon`, `delta`, `mu`, `eta` and
    `plan`, the list of releases. None if all do.
    """
    wrong = fault(values, _CLAIM)
    if wrong is not None:
        return wrong
    sigma = number(0, _LARGEST, beyond=True) if values["claim"] != "non-private" else number(0, 0)
    claimed = _CLAIMED if values["claim"] == "private" else dict.fromkeys(_CLAIMED, null)
    return fault(values, record({**claimed, "plan": each(closed({**_RELEASE, "sigma": sigma}), least=1)}))


def figures_agree(values: Mapping[str, Any]) -> bool:
    """Whether the shares add up to 1, Σ times/σ² = μ², and ε belongs to δ, μ and η. `claim_fault` finds no fault there.

    What sampled releases cost is not computed again here: it takes seconds.
    """
    plan = values["plan"]
    sampled = any(release["rate"] < 1 for release in plan)
    if sampled and values["adjacency"] != "zero-out":
        return False
    if not math.isclose(sum(release["times"] * release["share"] for release in plan), 1, rel_tol=1e-9):
        return False
    if values["claim"] != "private":
        return True
    epsilon, delta, mu, eta = (values[name] for name in _CLAIMED)
    # Not divided by the square of σ, which may be 0 in float64.
    spent = sum(release["times"] / release["sigma"] / release["sigma"] for release in plan)
    if not math.isclose(spent, mu * mu, rel_tol=1e-9):
        return False
    return sampled or epsilon_agrees(epsilon, delta, mu, eta)


def epsilon_agrees(epsilon: float, delta: float, mu: float, eta: float) -> bool:
    """Whether ε belongs to δ, μ and η, for full passes."""
    # A training computes ε from μ, or μ from ε, within 1e-9. In δ that is at most some hundred times as much.
    needed = delta_of(epsilon, mu) + (1 + math.exp(epsilon)) * eta
    too_much, too_little = needed > delta * (1 + 1e-6), needed < delta * (1 - 1e-6)
    return not too_much and (not too_little or epsilon <= LEAST_EPSILON * (1 + 1e-6))
