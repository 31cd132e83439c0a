"""What a training method sees: public facts, a plan of releases, and one oracle that answers the queries of the plan.

A *release* is one noisy sum. A method first states a `Plan`: which sums it will ask for, in which order, and which
share of the privacy budget each one gets. Then it calls `oracle.release(query)` for each of them, and it computes a
head from the answers. It never sees a record. Computing with answers is post-processing, which costs no privacy.

The plan is made of the query classes themselves (`forms.form`), so the kind and the shape of an answer are stated in
one place. `Plan.due` is the one check that a query is the one that was planned.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.forms import OPEN, form, pieces
from dpfc_cli.privacy.queries import ClassGrams, Query

DIGEST = 32
"""Bytes that say which query the pieces of an answer are of."""
Progress = Callable[[int, int], None]
"""progress(done, total)."""
Stages = Callable[[str, int, int], None]
"""stages(stage, done, total). A stage takes about equally long for each of the things that it counts.

It is the kind of a query, where releases of this kind follow one another: their passes count records. `MAKING` and
`TAKING` count the classes of an answer in pieces, which are made, and then taken by a method.
"""
MAKING, TAKING = "making", "taking"


class PlanError(RuntimeError):
    """A method or a stream of records did not do what it must do. This is a defect of dpfc, never a mistake of the
    user.
    """


@dataclass(frozen=True, kw_only=True)
class Release:
    """One planned release.

    Attributes:
        form: the query, without the values that depend on earlier answers.
        shape: the shape of the answer.
        share: the fraction of the privacy budget μ² that this release gets.
        rate: the probability with which each unit takes part. The curator draws this for each release anew (Poisson
            sampling). 1 means a full pass: every unit takes part.

    """

    form: Query
    shape: tuple[int, ...]
    share: float
    rate: float

    @property
    def kind(self) -> str:
        return self.form.kind

    @property
    def pieces(self) -> list[Query]:
        """The pieces in which it is made, see `forms.pieces`."""
        return pieces(self.form, self.shape)

    @property
    def parts(self) -> list[tuple[int, ...]]:
        """The shapes of what is kept of it, in order: the answer; of an answer in pieces, which query it is of, and the
        pieces without what is below their diagonals.
        """
        if len(self.pieces) == 1:
            return [self.shape]
        side = self.shape[-1]
        stops = [piece.stop - piece.start for piece in self.pieces if isinstance(piece, ClassGrams) and piece.stop]
        return [(DIGEST,), *((count, side * (side + 1) // 2) for count in stops)]

    @property
    def held(self) -> int:
        """How many numbers of its answer are in memory at once."""
        return math.prod(self.shape[1:]) * -(-self.shape[0] // len(self.pieces))


def planned(query: Query, facts: Facts, share: float, rate: float = 1.0) -> Release:
    """The release that `query` will ask for: its values may be `forms.OPEN`. share, rate: as of a `Release`."""
    return Release(form=form(query), shape=query.shape(facts), share=share, rate=rate)


def _said(value: object) -> str:
    """A field of a form. Its numbers are not known yet."""
    if isinstance(value, tuple):
        return " → ".join(type(step).__name__ for step in value)
    return "a number" if value is OPEN else str(value)


def _is_piece(form: Query) -> bool:
    return isinstance(form, ClassGrams) and form.stop is not None


@dataclass(frozen=True)
class Plan:
    """The releases of one training, in order. Their shares are scaled so that they sum to 1.

    equal: the number of releases as the paper counts them. One noise multiplier for a whole training refers to this
    number. It differs from the number of `releases` if one release of the paper is made in several blocks of classes.
    None: it does not differ.
    """

    releases: tuple[Release, ...]
    equal: int | None = None

    def __post_init__(self) -> None:
        if not self.releases or any(not r.share > 0 for r in self.releases):
            raise ValueError("a plan needs releases, each with a positive share")
        if any(not 0 < r.rate <= 1 for r in self.releases):
            raise ValueError("a sampling rate lies in (0, 1]")
        if any(r.rate < 1 and (len(r.pieces) > 1 or _is_piece(r.form)) for r in self.releases):
            raise ValueError("an answer in pieces has no sample")

    @property
    def count(self) -> int:
        """The number of releases as the paper counts them."""
        return self.equal or len(self.releases)

    @property
    def sampled(self) -> bool:
        """Whether any release sees a Poisson sample instead of all records."""
        return any(r.rate < 1 for r in self.releases)

    @property
    def shares(self) -> tuple[float, ...]:
        """The fractions of μ² that the releases get, in plan order. They sum to 1."""
        total = math.fsum(r.share for r in self.releases)
        return tuple(r.share / total for r in self.releases)

    def sigmas(self, mu: float) -> tuple[float, ...]:
        """The noise multipliers σ_r = 1/(μ·√w_r) of releases with shares w_r, in plan order.

        Then Σ 1/σ_r² = μ². For full passes this is exactly the composition of all releases (Dong, Roth and Su 2022,
        Corollary 3.3).
        """
        return tuple(1 / (mu * math.sqrt(w)) for w in self.shares)

    @property
    def coordinates(self) -> int:
        """An upper bound on the number of noise samples that the whole plan draws."""
        return sum(math.prod(r.shape) for r in self.releases)

    @property
    def largest(self) -> int:
        """The number of entries of the largest answer, or of the largest piece."""
        return max(r.held for r in self.releases)

    @property
    def stacked(self) -> int:
        """How many numbers are kept of answers in pieces, while their training runs."""
        return sum(math.prod(part) for r in self.releases for part in r.parts if len(r.parts) > 1)

    def due(self, released: int, query: Query, facts: Facts) -> Release:
        """The next release of the plan, if `query` asks for it. released: how many have begun. PlanError: the plan has
        no release left, or `query` is not the next one.
        """
        if released == len(self.releases):
            raise PlanError("the plan has no release left")
        due, shape = self.releases[released], query.shape(facts)
        if (form(query), shape) != (due.form, due.shape):
            what = f"release {released} is planned as {due.kind} {due.shape}, asked for as {query.kind} {shape}"
            if (query.kind, shape) != (due.kind, due.shape):
                raise PlanError(what)
            asked, held = vars(form(query)), vars(due.form)
            other = [name for name in held if asked[name] != held[name]]
            raise PlanError(f"{what} with {'; '.join(f'{n} {_said(asked[n])}, not {_said(held[n])}' for n in other)}")
        return due


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """A plan with its noise. It is a function of public facts, and it is all that the curator needs beside the records.

    Attributes:
        facts: the public facts.
        plan: the releases.
        mu: the μ of Gaussian differential privacy that the noise is scaled to. (If releases are sampled, μ is only the
            name of this noise; `poisson` computes the ε and δ that it gives.)
        pool: the bits of the lattice, if the answers of several curators are to be added as integers. Then an answer
            is these integers, int64 in the bytes of float64. None: the finest lattice, and answers in natural units.

    """

    facts: Facts
    plan: Plan
    mu: float
    pool: int | None = None

    @cached_property
    def sigmas(self) -> tuple[float, ...]:
        """The noise multiplier of each release, in plan order. Curator, card and ledger all read this one."""
        return self.plan.sigmas(self.mu)


class Oracle(Protocol):
    """The only way from the records to a method."""

    def release(self, query: Query) -> np.ndarray:
        """The sum of the query's contributions over all records, with noise; float64, in the natural units of the
        query.
        """
        ...

    def pieces(self, query: Query) -> Iterator[np.ndarray]:
        """The same answer in pieces, which follow one another along its first axis. They can be taken once, and
        before those of the next answer that is made in pieces.

        All of it is made when this returns, before the first piece is taken.
        """
        return iter([self.release(query)])
