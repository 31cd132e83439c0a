"""What is claimed, and the releases that it is claimed of: typed, and whether the figures agree.

The card of a head and the row of a ledger say both, and both are files that others may have changed. That the figures
agree does not prove that the training was as they say.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated

from msgspec import Meta

from dpfc_cli import rounding
from dpfc_cli.privacy import accounting
from dpfc_cli.privacy.accounting import LARGEST_EPSILON, LEAST_DELTA, LEAST_EPSILON, delta_of, epsilon_for
from dpfc_cli.privacy.facts import Adjacency, Unit
from dpfc_cli.privacy.oracle import Plan
from dpfc_cli.privacy.poisson import Sampled
from dpfc_cli.privacy.poisson import epsilon_for as poisson_epsilon
from dpfc_cli.privacy.queries import QUERIES
from dpfc_cli.structs import Count, Fraction, Record, Whole

_LEAST, _LARGEST = 1e-100, 1e100
"""No training has a σ or a μ beyond them. The sums of their squares are numbers of float64."""
_FIGURES = ("epsilon", "delta", "mu", "eta")
_SAMPLED = 32
"""Each kind of sampled releases takes time to compose: a hostile card must not take hours. A method has one kind."""

Epsilon = Annotated[float, Meta(ge=LEAST_EPSILON, le=LARGEST_EPSILON)]
"""An ε that is claimed."""
Delta = Annotated[float, Meta(ge=LEAST_DELTA, le=1 - 2**-53)]
Mu = Annotated[float, Meta(ge=_LEAST, le=_LARGEST)]
_Part = Annotated[float, Meta(gt=0, le=1)]
_Kind = Annotated[str, Meta(pattern=rf"\A({'|'.join(query.kind for query in QUERIES)})\Z")]


class Release(Record):
    """Equal noisy sums that follow one another.

    Attributes:
        kind: of the query.
        shape: of the answer.
        share: the fraction of μ² that each of them gets.
        sigma: the noise multiplier; 0 without noise.
        rate: the probability with which a unit takes part; 1 for a full pass.
        times: how many there are.

    """

    kind: _Kind
    shape: tuple[Count, ...]
    share: _Part
    sigma: Annotated[float, Meta(ge=0, le=_LARGEST)]
    rate: _Part
    times: Count


Releases = Annotated[tuple[Release, ...], Meta(min_length=1)]


class Seeded(Record):
    """The seed of noise that can be repeated, and what the noise would be worth if nobody could repeat it."""

    seed: Whole
    epsilon: Epsilon
    delta: Annotated[float, Meta(ge=LEAST_DELTA, le=1)]


class Claimed(Record, omit_defaults=True):
    """What is claimed of releases. The figures are None unless the claim is "private".

    Attributes:
        claim: whether there is a guarantee.
        epsilon: ε.
        delta: δ.
        mu: the name of the noise; its μ if nothing was sampled.
        eta: the sampler's distance from the ideal noise, over all samples.
        adjacency: which data sets are neighbours.
        unit: what is protected.
        plan: the releases, in order.

    """

    claim: accounting.Claim
    epsilon: Epsilon | None
    delta: Delta | None
    mu: Mu | None
    eta: Fraction | None
    adjacency: Adjacency
    unit: Unit
    plan: Releases

    @property
    def private(self) -> bool:
        """Whether it has a guarantee."""
        return self.claim == "private"

    @property
    def sampled(self) -> bool:
        """Whether a release sees a Poisson sample."""
        return is_sampled(self.plan)

    @property
    def guarantee(self) -> accounting.Guarantee:
        """What is guaranteed. The claim is "private"."""
        return accounting.Guarantee(**{name: getattr(self, name) for name in _FIGURES})

    @property
    def misfit(self) -> str | None:
        """The first value that its claim cannot have. None if all fit."""
        wrong = [name for name in _FIGURES if (getattr(self, name) is None) is self.private]
        least, most = (0.0, 0.0) if self.claim == "non-private" else (_LEAST, _LARGEST)
        wrong += [f"plan[{i}].sigma" for i, each in enumerate(self.plan) if not least <= each.sigma <= most]
        return next(iter(wrong), None)


def is_time(value: str) -> bool:
    """Whether it is a moment, in UTC, as ledgers and cards write it."""
    with suppress(ValueError):
        return datetime.fromisoformat(value).isoformat() == value and value[-6:] == "+00:00"
    return False


def described(plan: Plan, sigmas: Sequence[float] | None) -> tuple[Release, ...]:
    """The releases of a plan as a card and a ledger state them. sigmas: in plan order; None: without noise."""
    sigmas = sigmas or [0.0] * len(plan.releases)
    rows = [(r.kind, r.shape, w, s, r.rate) for r, w, s in zip(plan.releases, plan.shares, sigmas, strict=True)]
    return tuple(
        Release(kind=kind, shape=shape, share=share, sigma=sigma, rate=rate, times=len(list(same)))
        for (kind, shape, share, sigma, rate), same in itertools.groupby(rows)
    )


def figures_fault(of: Claimed, seeded: Seeded | None = None, sampled: bool = True) -> str | None:
    """What contradicts between the shares and the noise of the releases, μ, ε, δ and η. None if nothing does.

    seeded: what seeded noise would be worth, as a card says. sampled: whether ε is computed again of sampled releases,
    too. That may take seconds.
    """
    plan = of.plan
    if of.sampled and of.adjacency != "zero-out":
        return f"there is no accounting for sampled releases under {of.adjacency} adjacency"
    if sum(release.rate < 1 for release in plan) > _SAMPLED:
        return f"more than {_SAMPLED} kinds of sampled releases are not accounted for"
    total = sum(release.times * release.share for release in plan)
    if not math.isclose(total, 1, rel_tol=1e-9):
        return f"the shares of the releases add up to {total:.6g}, not to 1"
    if seeded is not None and of.claim != "research":
        return "it names a seed, and its noise came from none"
    if of.private:
        claimed = of.guarantee
        epsilon, delta, eta = claimed.epsilon, claimed.delta, claimed.eta
        if not math.isclose(mu_squared(plan), claimed.mu**2, rel_tol=1e-9):
            return f"the noise of the releases is that of mu = {mu_of(plan):.6g}, and mu = {claimed.mu:.6g} is stated"
    elif seeded is not None:
        epsilon, delta, eta = seeded.epsilon, seeded.delta, 0.0
    else:
        return None
    if of.sampled and not sampled:
        return None
    # A ledger has thousands of rows. To compute δ is faster than to search for ε, and says as much.
    if not of.sampled and _is_delta(epsilon, delta, mu_of(plan), eta):
        return None
    cost = epsilon_of(plan, delta, eta)
    if of.sampled and same_epsilon(cost, epsilon):
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


def delta_said(delta: float, n: int, unit: str) -> str:
    """δ against 1/n, in a sentence."""
    times = 1 / (n * delta)
    against = f"{int(times):,} times smaller than" if times >= 10 else "close to (a smaller one costs little)"
    said = f"delta = {delta:g} is {against} 1/n, at which a mechanism might publish all of one {unit}"
    return large_delta(delta, n, unit) or said


def is_sampled(plan: Iterable[Release]) -> bool:
    return any(release.rate < 1 for release in plan)


def mu_squared(releases: Iterable[Release]) -> float:
    """Σ times/σ² of releases: the μ² of their noise. A sampled release counts as if it were a full pass."""
    return math.fsum(release.times / release.sigma**2 for release in releases)


def mu_of(releases: Iterable[Release]) -> float:
    return math.sqrt(mu_squared(releases))


def epsilon_of(releases: Sequence[Release], delta: float, eta: float) -> float:
    """ε at δ of releases. eta: the sum of their trainings' η."""
    mu = mu_of(r for r in releases if r.rate == 1)
    sampled = [Sampled(sigma=r.sigma, rate=r.rate, times=r.times) for r in releases if r.rate < 1]
    return poisson_epsilon(sampled, mu, delta, eta) if sampled else epsilon_for(mu, delta, eta)
