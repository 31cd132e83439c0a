"""What a method sees: public facts, a plan of releases, and one oracle that answers the plan's queries.

A method first states a `Plan`: which sums it will ask for, in which order, and which share of the privacy budget each
gets. Then it calls `oracle.release(query)` for each of them, and computes a head from the answers. It never sees a
record. What it computes from answers is post-processing, which costs no privacy.

The plan is made of the query classes themselves (`queries.form`), so the kind and the shape of an answer are stated in
one place. `Plan.due` is the one check that a query is the one that was planned.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.queries import Query, form

Progress = Callable[[int, int], None]
"""progress(done, total)."""


class PlanError(RuntimeError):
    """A method or a stream of records broke its contract. This is a defect of dpfc, never a user's mistake."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """One planned release.

    form: the query without the values that earlier answers decide. shape: of the answer. share: its part of μ². rate:
    the probability with which each record takes part, drawn by the curator for this release alone (Poisson sampling);
    1 is a full pass.
    """

    form: Query
    shape: tuple[int, ...]
    share: float
    rate: float = 1.0

    @property
    def kind(self) -> str:
        """The query's kind."""
        return self.form.kind


def planned(query: Query, facts: Facts, share: float, rate: float = 1.0) -> Release:
    """The release that `query` will ask for. Its values may be `queries.OPEN`."""
    return Release(form=form(query), shape=query.shape(facts), share=share, rate=rate)


@dataclass(frozen=True)
class Plan:
    """The releases of one training, in order. Their shares are made to sum to 1.

    equal: the number of releases as the paper counts them, which is what one noise multiplier for a whole training
    refers to. It differs from the number of `releases` where one release of the paper is made in blocks of classes.
    None: it does not differ.
    """

    releases: tuple[Release, ...]
    equal: int | None = None

    def __post_init__(self) -> None:
        if not self.releases or any(not r.share > 0 for r in self.releases):
            raise ValueError("a plan needs releases, each with a positive share")
        if any(not 0 < r.rate <= 1 for r in self.releases):
            raise ValueError("a sampling rate lies in (0, 1]")

    @property
    def count(self) -> int:
        """The number of releases as the paper counts them."""
        return self.equal or len(self.releases)

    @property
    def sampled(self) -> bool:
        """Whether a release sees a Poisson sample instead of all records."""
        return any(r.rate < 1 for r in self.releases)

    @property
    def shares(self) -> tuple[float, ...]:
        """Fractions of μ², in plan order."""
        total = math.fsum(r.share for r in self.releases)
        return tuple(r.share / total for r in self.releases)

    def sigmas(self, mu: float) -> tuple[float, ...]:
        """Noise multipliers σ_r = 1/(μ·√w_r), so that Σ 1/σ_r² = μ²: full passes compose so exactly
        (Dong, Roth and Su 2022, Corollary 3.3).
        """
        return tuple(1 / (mu * math.sqrt(w)) for w in self.shares)

    @property
    def coordinates(self) -> int:
        """An upper bound on the number of noise samples that the whole plan draws."""
        return sum(math.prod(r.shape) for r in self.releases)

    @property
    def largest(self) -> int:
        """Numbers in the largest answer."""
        return max(math.prod(r.shape) for r in self.releases)

    def due(self, released: int, query: Query, facts: Facts) -> Release:
        """The release number `released`, if `query` asks for it. PlanError otherwise."""
        if released == len(self.releases):
            raise PlanError("the plan has no release left")
        due, shape = self.releases[released], query.shape(facts)
        if (form(query), shape) != (due.form, due.shape):
            raise PlanError(
                f"release {released} is planned as {due.kind} {due.shape}, asked for as {query.kind} {shape}"
                f"{'' if (query.kind, shape) != (due.kind, due.shape) else ' of another form'}"
            )
        return due

    def described(self, sigmas: tuple[float, ...] | None) -> list[dict[str, Any]]:
        """The releases as card and ledger state them, JSON-able, equal neighbours counted once.

        sigmas: noise multipliers in plan order; None without noise, which is stated as 0.
        """
        sigmas = sigmas or (0.0,) * len(self.releases)
        rows = [(r.kind, r.shape, w, s, r.rate) for r, w, s in zip(self.releases, self.shares, sigmas, strict=True)]
        names = ("kind", "shape", "share", "sigma", "rate")
        return [
            {**dict(zip(names, row, strict=True)), "times": len(list(same))} for row, same in itertools.groupby(rows)
        ]


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """A plan with its noise. It is a function of public facts: all that the curator needs beside the records.

    mu: the μ of Gaussian differential privacy that the noise is scaled to. (Where releases are sampled it only names
    the noise, and `poisson` says what that is worth.)
    """

    facts: Facts
    plan: Plan
    mu: float

    @cached_property
    def sigmas(self) -> tuple[float, ...]:
        """The noise multiplier of each release, in plan order. Curator, card and ledger all read this one."""
        return self.plan.sigmas(self.mu)


class Oracle(Protocol):
    """The only way from records to a method."""

    def release(self, query: Query) -> np.ndarray:
        """The noised sum over all records of what `query` takes from each: float64, in the query's natural units."""
        ...
