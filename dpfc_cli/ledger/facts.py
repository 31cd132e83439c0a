"""What a ledger has in it: facts of six kinds.

A fact has a random id and never changes. A later one may name facts that it replaces. On disk a fact is its id, its
kind and the JSON of all other fields, with sorted keys.
"""

import json
import os
import pwd
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from typing import Annotated, Literal

from msgspec import Meta, field

from dpfc_cli.errors import UserError, parameter
from dpfc_cli.privacy import filters
from dpfc_cli.privacy.accounting import Claim
from dpfc_cli.privacy.facts import Adjacency, Unit
from dpfc_cli.records.claims import (
    Claimed,
    Delta,
    Epsilon,
    Mu,
    Releases,
    figures_fault,
    is_sampled,
    is_time,
    mu_squared,
)
from dpfc_cli.records.figures import Figures
from dpfc_cli.structs import Count, Digest, Fault, Fraction, Id, Json, Record, Whole, decoded, encoded

State = Literal["stopped", "resumed", "written"]
"""What became of a charge. Without an outcome it runs, or was killed."""
EVALUATION = "evaluation"
"""The method of a charge that is no training: noisy figures of how good a head is."""
MOST_NAME, MOST_NOTE = 100, 500
"""Characters of a name, and of a purpose or a note."""
RESERVED = "dataset:"
"""How the names of populations begin that are not the user's to give: those of public data sets."""
_KEPT = r"[^\0\ud800-\udfff]"
"""A character that a ledger keeps: one that UTF-8 has, but NUL. It is shown escaped."""
Name = Annotated[str, Meta(pattern=rf"\A{_KEPT}{{1,{MOST_NAME}}}\Z")]
Note = Annotated[str, Meta(pattern=rf"\A{_KEPT}{{1,{MOST_NOTE}}}\Z")]
File = Annotated[str, Meta(pattern=r"\A(?!\.\.?\Z)[^/\0]+\Z")]
Some = Annotated[str, Meta(min_length=1)]
_Figure = Annotated[float, Meta(ge=0, le=1e150)]


def new_id() -> str:
    """A new random id: 128 bits, as 32 hexadecimal digits."""
    return secrets.token_hex(16)


def now() -> str:
    """What is written as the time of a fact, and of a head: UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Fact(Record):
    """What all facts have. id: see `new_id`. at: UTC. by: who says so. replaces: ids of facts that hold no longer."""

    id: Id = field(default_factory=new_id)
    at: str = field(default_factory=now)
    by: Name
    replaces: tuple[Id, ...] = ()

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()

    @property
    def body(self) -> str:
        """All fields but the id, as the ledger keeps them."""
        values = encoded(self)
        del values["id"]
        return json.dumps(values, sort_keys=True)


class Set(Fact):
    """There is a feature set, and who is in it.

    set: its id, from its manifest. A set may have several facts: a later one may say who is in it. name: of its folder.
    records: the SHA-256 of what its manifest says of its shards. listing: of each split, the digest of its source's
    listing. population: whose records these are; None: nothing is said. adopted: it was made elsewhere, and what was
    spent on it before is not known.
    """

    set: Id
    name: File
    records: Digest
    listing: Mapping[str, Some]
    population: Name | None = None
    adopted: bool = False


class Charge(Fact):
    """A training, or a private evaluation of a head (`EVALUATION`), that is about to release something of a split.

    epsilon, delta: what is claimed; mu names the noise (and is its μ where nothing was sampled), eta is the sampler's
    η; None where nothing is claimed (seeded noise, or none). releases: as a card has them. unit: what is protected. n:
    how many of them. head: the name of its file. digest: of all that the training computes with; of an evaluation, the
    SHA-256 of the head. purpose: what it is for.
    """

    set: Id
    split: Some
    method: Some
    claim: Claim
    epsilon: Epsilon | None
    delta: Delta | None
    mu: Mu | None
    eta: Fraction | None
    adjacency: Adjacency
    unit: Unit
    n: Count
    releases: Releases
    head: File
    digest: Digest
    purpose: Note | None = None

    @property
    def private(self) -> bool:
        """Whether it has a guarantee."""
        return self.claim == "private"

    @property
    def claimed(self) -> Claimed:
        """What is claimed of its releases."""
        alike = {name: getattr(self, name) for name in Claimed.__struct_fields__ if name != "plan"}
        return Claimed(**alike, plan=self.releases)

    @property
    def sampled(self) -> bool:
        """Whether a release sees a Poisson sample."""
        return is_sampled(self.releases)

    def weight(self, unit: Unit) -> float:
        """How many times its μ it spends for a unit, see `filters.weight`."""
        return filters.weight(unit, self.unit, self.adjacency)

    def spent(self, unit: Unit) -> float:
        """Σ times·(weight/σ)² over its releases: its μ² for a unit, all counted as full passes. 0 if not private."""
        return self.weight(unit) ** 2 * mu_squared(self.releases) if self.private else 0.0


class Outcome(Fact):
    """What became of a charge.

    charge: its id. state: it ended with a file ("written"), it was stopped, or it goes on now ("resumed"). head,
    sha256: the file that was written, if one was; of an evaluation, the SHA-256 of the figures. answers: how many
    answers, and parts of answers, are kept by now. after: the outcome before this one, or None.
    """

    charge: Id
    state: State
    head: File | None = None
    sha256: Digest | None = None
    answers: Whole = 0
    after: Id | None = None


class Released(Fact):
    """What a private evaluation has released. It lies beside its charge, and the outcome of that has its SHA-256. So
    whoever has a copy of the ledger has what was paid for, and no row can be changed unnoticed.
    """

    figures: Figures


class Cap(Fact, dict=True):
    """How much all charges of a population may spend together, from now on.

    population: None: each of them. epsilon, delta: None where caps are removed. note: why.
    """

    population: Name | None
    unit: Unit
    epsilon: _Figure | None = None
    delta: _Figure | None = None
    note: Note | None = None

    @cached_property
    def most(self) -> float | None:
        """M, the μ² that may be spent; None where caps are removed. ValueError where ε or δ is out of range."""
        if self.epsilon is None or self.delta is None:
            return None
        return filters.most(self.epsilon, self.delta)


class Merge(Fact):
    """Another ledger was united with this one (`merge`).

    apart: populations of which only one ledger had heard, and which have nobody in common with the others. same: names
    in the other ledger of populations that have another name here. ignored: facts of the other ledger that replace
    facts which this one had, too. They do not.
    """

    apart: tuple[Name, ...] = ()
    same: Mapping[str, Name] = field(default_factory=dict)
    ignored: tuple[Id, ...] = ()


KINDS: Mapping[str, type[Fact]] = {kind.__name__.lower(): kind for kind in (Set, Charge, Outcome, Released, Cap, Merge)}


def fact_of(fact: str, kind: str, body: Json) -> Fact:
    """The fact that a row of a ledger has. ValueError for what dpfc does not write."""
    if kind not in KINDS or not isinstance(body, dict) or "id" in body:
        raise ValueError("it is of no kind of fact")
    made = decoded({**body, "id": fact}, KINDS[kind])
    if not is_time(made.at):
        raise Fault("at")
    sound = True
    if isinstance(made, Charge):
        sound = made.claimed.misfit is None and figures_fault(made.claimed, sampled=False) is None
    elif isinstance(made, Cap):
        sound = (made.epsilon is None) is (made.delta is None) and made.most != 0
    if not sound:
        raise ValueError("the figures contradict one another")
    return made


def is_keepable(value: object, most: int = MOST_NOTE) -> bool:
    """Whether a ledger keeps it: a text of 1 to so many characters."""
    return type(value) is str and bool(re.fullmatch(f"{_KEPT}{{1,{most}}}", value))


def account_name() -> str:
    """The name of the account that runs this process, or its number where it has none. It proves nothing."""
    with suppress(KeyError):
        name = pwd.getpwuid(os.getuid()).pw_name
        if is_keepable(name, MOST_NAME):
            return name
    return f"account {os.getuid()}"


def noted(name: str, value: str | None) -> str | None:
    """The value of a parameter that goes into the ledger. UserError where a ledger would not keep it."""
    most = MOST_NAME if name == "by" else MOST_NOTE
    if value is not None and not is_keepable(value, most):
        what = f"{parameter(name)} must be a text of 1 to {most} characters."
        raise UserError(what, "Give another one, or leave it out.", parameter=name)
    return value
