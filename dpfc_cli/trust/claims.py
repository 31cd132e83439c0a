"""What a training claims, and the releases that it makes: their types and ranges, and that the figures agree.

The card of a head and the row of a ledger say both, and both are files that others may have changed. That the figures
agree does not prove that the training was as they say.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, get_args

from dpfc_cli import rounding
from dpfc_cli.privacy.accounting import LARGEST_EPSILON, LEAST_DELTA, LEAST_EPSILON, Claim, delta_of, epsilon_for
from dpfc_cli.privacy.facts import Adjacency
from dpfc_cli.privacy.poisson import Sampled
from dpfc_cli.privacy.poisson import epsilon_for as poisson_epsilon
from dpfc_cli.privacy.queries import QUERIES
from dpfc_cli.schema import Check, among, closed, each, fault, null, number, record, test, whole

COMPUTED = "that the coordinator computed this head as the plan says: a site cannot check it"

_LEAST, _LARGEST = 1e-100, 1e100
"""No training has a σ or a μ beyond them. The sums of their squares are numbers of float64."""
_SAMPLED = 32
"""Each kind of sampled releases takes time to compose: a hostile card must not take hours. A method has one kind."""
EPSILON = number(LEAST_EPSILON, LARGEST_EPSILON)
"""An ε that is claimed."""


def _is_time(value: Any) -> bool:
    with suppress(ValueError, TypeError):
        return bool(datetime.fromisoformat(value).isoformat() == value and value[-6:] == "+00:00")
    return False


TIME = test(_is_time)
"""A moment, in UTC, as ledgers and cards write it."""
_CLAIMED: dict[str, Check] = {
    "epsilon": EPSILON,
    "delta": number(LEAST_DELTA, 1 - 2**-53),
    "mu": number(_LEAST, _LARGEST),
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
    sigma = number(_LEAST, _LARGEST) if values["claim"] != "non-private" else number(0, 0)
    claimed = _CLAIMED if values["claim"] == "private" else dict.fromkeys(_CLAIMED, null)
    return fault(values, record({**claimed, "plan": each(closed({**_RELEASE, "sigma": sigma}), least=1)}))


def figures_fault(values: Mapping[str, Any], sampled: bool = True) -> str | None:
    """What contradicts between the shares and the noise of the releases, μ, ε, δ and η. None if nothing does.

    values: `claim_fault` finds no fault in them; a card may have `seeded`, what seeded noise would be worth. sampled:
    whether ε is computed again of sampled releases, too. That may take seconds.
    """
    plan = values["plan"]
    if is_sampled(plan) and values["adjacency"] != "zero-out":
        return f"there is no accounting for sampled releases under {values['adjacency']} adjacency"
    if sum(release["rate"] < 1 for release in plan) > _SAMPLED:
        return f"more than {_SAMPLED} kinds of sampled releases are not accounted for"
    total = sum(release["times"] * release["share"] for release in plan)
    if not math.isclose(total, 1, rel_tol=1e-9):
        return f"the shares of the releases add up to {total:.6g}, not to 1"
    private, seeded = values["claim"] == "private", values.get("seeded")
    if seeded is not None and values["claim"] != "research":
        return "it names a seed, and its noise came from none"
    stated = values if private else seeded
    if stated is None:
        return None
    if private and not math.isclose(mu_squared(plan), values["mu"] ** 2, rel_tol=1e-9):
        return f"the noise of the releases is that of mu = {mu_of(plan):.6g}, and mu = {values['mu']:.6g} is stated"
    if is_sampled(plan) and not sampled:
        return None
    epsilon, delta, eta = stated["epsilon"], stated["delta"], stated.get("eta", 0.0)
    # A ledger has thousands of rows. To compute δ is faster than to search for ε, and says as much.
    if not is_sampled(plan) and _is_delta(epsilon, delta, mu_of(plan), eta):
        return None
    cost = epsilon_of(plan, delta, eta)
    if is_sampled(plan) and same_epsilon(cost, epsilon):
        return None
    return f"the releases cost {rounding.cost(cost, delta)}, and epsilon = {rounding.epsilon(epsilon)} is stated"


def _is_delta(epsilon: float, delta: float, mu: float, eta: float) -> bool:
    """Whether δ belongs to ε, μ and η. A training computes ε from μ, or μ from ε, within 1e-9. In δ that is at most
    some hundred times as much. The least ε that is stated may stand for less.
    """
    needed = delta_of(epsilon, mu) + (1 + math.exp(epsilon)) * eta
    if epsilon <= LEAST_EPSILON * (1 + 1e-6):
        return needed <= delta * (1 + 1e-6)
    return math.isclose(needed, delta, rel_tol=1e-6)


def same_epsilon(one: float | None, other: float | None) -> bool:
    """Whether both are the same ε, as far as trainings compute it: they stop within 1e-6. None: more than is stated."""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-5)


def large_delta(delta: float, n: int, unit: str) -> str | None:
    """What a δ above 1/n allows, in a sentence; None where it is not above."""
    if delta <= 1 / n:
        return None
    publishes = f"a mechanism that publishes all of one {unit} would satisfy it"
    return f"delta = {delta:g} is larger than 1/n = {1 / n:.2g}: {publishes}"


def is_sampled(plan: Sequence[Mapping[str, Any]]) -> bool:
    return any(release["rate"] < 1 for release in plan)


def mu_squared(releases: Iterable[Mapping[str, Any]]) -> float:
    """Σ times/σ² of releases: the μ² of their noise. A sampled release counts as if it were a full pass."""
    return math.fsum(release["times"] / release["sigma"] ** 2 for release in releases)


def mu_of(releases: Iterable[Mapping[str, Any]]) -> float:
    return math.sqrt(mu_squared(releases))


def masked_epsilon(card: Mapping[str, Any], at: int = 1) -> float:
    """ε of a unit at so many sites, where masks hide the answers of sites in their sum (`federation.masks` has the
    proof). It holds while no more than `colluding` sites tell, and none of its own. card: with a `federation`.

    A unit counts as often as it is there in the sum of all, or once in each answer: the smaller one is true.
    """
    known = card["federation"]
    count = len(known["sites"])
    factor = min(at / math.sqrt(count - known["colluding"]), math.sqrt(at))
    return epsilon_for(factor * card["mu"], card["delta"], count * card["eta"])


def epsilon_of(releases: Sequence[Mapping[str, Any]], delta: float, eta: float) -> float:
    """ε at δ of releases, as a card or a row has them. eta: the sum of their trainings' η."""
    mu = mu_of(r for r in releases if r["rate"] == 1)
    sampled = [Sampled(sigma=r["sigma"], rate=r["rate"], times=r["times"]) for r in releases if r["rate"] < 1]
    return poisson_epsilon(sampled, mu, delta, eta) if sampled else epsilon_for(mu, delta, eta)
