"""The plan of a federation: one JSON file that all sites have agreed on, and all that follows from it.

The plan has public facts alone. Its SHA-256 is what operators compare. What each site releases, with how much noise,
and how the answers are added, are functions of it.

**Weights.** Site h has n_h units, and its answers have noise of μ_h. If units are alike, the best estimate of a mean of
means A_h/n_h weighs them by the reciprocals of their variances, n_h²·μ_h². So the answers A_h themselves get weights
a_h ∝ n_h·μ_h². The sum of a_h·A_h then is an answer about n = Σ a_h·n_h units, with noise of 1/μ² = Σ a_h²/μ_h².

**Masks** hide each answer in the sum over all sites, see `masks`. Then all weights are 1, all sites have the same ε,
and they add integers of one lattice: the one that is exact for all records together, and for H times the noise of a
site. Without masks all H − 1 other sites may collude.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from msgspec import Meta, field, structs

from dpfc_cli import points
from dpfc_cli.errors import UserError, conflict, damaged, missing, parameter, quoted, unsupported
from dpfc_cli.extensions.federation.card import Federated, Site
from dpfc_cli.extensions.federation.masks import keep, new_key, point
from dpfc_cli.features.manifest import fingerprint_of
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import bytes_in, json_in
from dpfc_cli.folders import LEDGER_KEYS
from dpfc_cli.ledger.facts import new_id
from dpfc_cli.ledger.file import ledger_path
from dpfc_cli.ledger.public import facts_of
from dpfc_cli.methods import FEDERATED, METHODS
from dpfc_cli.methods.public_head import PublicHead
from dpfc_cli.options import Value
from dpfc_cli.privacy.accounting import LARGEST_EPSILON, LEAST_DELTA, LEAST_EPSILON, Privacy, default_delta
from dpfc_cli.privacy.facts import Adjacency, Facts, Unit
from dpfc_cli.privacy.lattice import lattice_for
from dpfc_cli.privacy.oracle import Mechanism
from dpfc_cli.reading import readable
from dpfc_cli.records.card import Start
from dpfc_cli.records.claims import Epsilon
from dpfc_cli.structs import Count, Fault, Id, Record, Scalar, Values, decoded, encoded, fields_of
from dpfc_cli.training.calibrate import Calibrated, calibrate
from dpfc_cli.version import TRAINING, code_digest

PLAN, AGAIN = "a plan", "Name the file, or ask whoever made it for it again."
Method = Annotated[str, Meta(pattern=rf"\A({'|'.join(FEDERATED)})\Z")]
Name = Annotated[str, Meta(pattern=r"\A[a-z0-9][a-z0-9-]{0,39}\Z")]
Key = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Delta = Annotated[float, Meta(ge=LEAST_DELTA, le=1)]
Classes = Annotated[tuple[str, ...], Meta(min_length=1)]
Kind = TypeVar("Kind", bound=Record)


def _code() -> str:
    # With masks the noise of all sites is the same: what makes it of ε is theirs, too.
    return code_digest(*TRAINING, "dpfc_cli.extensions.federation", "dpfc_cli.training.calibrate")


class Part(Site, omit_defaults=False):
    """What one site brings, and its public key for masks."""

    name: Name
    key: Key


class Recipe(Record):
    """What makes the features of all sites."""

    backbone: Values
    dim: Count
    dtype: str
    preparation: Values | None

    def fingerprint(self, classes: Sequence[str]) -> str:
        return fingerprint_of(self.backbone, classes, self.dim, self.dtype, self.preparation)


class Invitation(Part):
    """What one site says of itself to whoever makes the plan."""

    k: Count
    classes: Classes
    features: Recipe
    format: Literal["dpfc-invitation-1"] = "dpfc-invitation-1"

    @property
    def data(self) -> bytes:
        return _bytes(self)


class Policy(Record, omit_defaults=True):
    """What a site agrees to at most. sites: the others. colluding: "all" is without masks."""

    epsilon: Epsilon | None = None
    delta: Delta | None = None
    adjacency: tuple[Adjacency, ...] | None = None
    colluding: tuple[Count | Literal["all"], ...] | None = None
    methods: tuple[Method, ...] | None = None
    sites: tuple[Name, ...] | None = None


class Federation(Record, dict=True):
    """A plan. Its fields are those of the file.

    Attributes:
        id: random.
        sites: what each of them brings.
        method: a name of `FEDERATED`.
        options: those that were given.
        classes: their names, in the order of the head.
        k: the labels of a record at most.
        features: what makes the features.
        adjacency: of all claims.
        delta: of all claims.
        colluding: how many of the other sites may tell what they know, or add no noise. All of them: without masks.
        start: public class vectors from which the coordinator starts, as a card names them; None: there are none. No
            site needs them: its claim holds for every query.
        code: of noise, heads and masks (`version.code_digest`). What a plan means is what this code makes of it.

    """

    id: Id
    sites: Annotated[tuple[Part, ...], Meta(min_length=2)]
    method: Method
    options: Mapping[str, Scalar | tuple[Scalar, ...]]
    classes: Classes
    k: Count
    features: Recipe
    adjacency: Adjacency
    delta: Delta
    colluding: Count
    start: Start | None = None
    format: Literal["dpfc-federation-1"] = "dpfc-federation-1"
    code: str = field(default_factory=_code)

    @property
    def data(self) -> bytes:
        return _bytes(self)

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def fingerprint(self) -> str:
        return self.features.fingerprint(self.classes)

    def part(self, name: str) -> Part:
        """What a site brings. UserError if it is none of the sites."""
        found = next((each for each in self.sites if each.name == name), None)
        if found is None:
            known = ", ".join(each.name for each in self.sites)
            raise missing(f"'{name}' is no site of this plan.", f"It has: {known}.")
        return found

    def facts(self, n: int, records: int | None) -> Facts:
        counts = {"n": n, "m": len(self.classes), "d": self.features.dim, "k": self.k}
        unit: Unit = "record" if self.sites[0].records is None else "person"
        return Facts(**counts, rows=records, adjacency=self.adjacency, unit=unit)

    @property
    def masked(self) -> bool:
        """Whether each answer is hidden in the sum of all."""
        return self.colluding < len(self.sites) - 1

    @cached_property
    def claims(self) -> tuple[Calibrated, ...]:
        """What each site releases and claims, in the order of `sites`. It claims what holds whoever colludes."""
        found = tuple(
            calibrate(
                METHODS[self.method],
                self.facts(each.n, each.records),
                self.options,
                Privacy(epsilon=each.epsilon, delta=self.delta),
            )
            for each in self.sites
        )
        if not self.masked:
            return found
        noise, records = found[0].noise, sum(claim.facts.records for claim in found)
        longest = max(noise.facts.d + 1, noise.facts.m)
        pool = lattice_for(records, len(found) * max(noise.sigmas), longest).bits
        return tuple(replace(each, mechanism=replace(each.noise, pool=pool)) for each in found)

    @cached_property
    def weights(self) -> tuple[float, ...]:
        """What the answers of each site are multiplied by; the largest is 1."""
        both = zip(self.sites, self.claims, strict=True)
        raw = [1.0 if self.masked else each.n * claim.noise.mu**2 for each, claim in both]
        return tuple(each / max(raw) for each in raw)

    @cached_property
    def solver(self) -> Calibrated:
        """What the coordinator solves: facts and noise of the weighted sums. Its guarantee is that of the site with the
        largest μ.
        """
        weights, parts = self.weights, self.sites
        n, rows = (
            round(math.fsum(a * (count or 0) for a, count in zip(weights, counts, strict=True)))
            for counts in ([each.n for each in parts], [each.records for each in parts])
        )
        mu = math.fsum((a / claim.noise.mu) ** 2 for a, claim in zip(weights, self.claims, strict=True)) ** -0.5
        facts, method = self.facts(n, rows or None), METHODS[self.method]
        most = max(self.claims, key=lambda claim: claim.noise.mu)
        planned = method.planned(facts, most.given, True)
        mechanism = Mechanism(facts=facts, plan=method.plan(facts, planned), mu=mu, pool=most.noise.pool)
        if any(claim.plan != mechanism.plan for claim in self.claims):
            raise ValueError(f"the plan of {method.name} depends on the number of records")
        options = method.complete(facts, planned, mechanism, most.given)
        return replace(most, facts=facts, mechanism=mechanism, options=options)

    def claim(self, name: str) -> Calibrated:
        """The training of a site: its own plan, noise and claim, with the options of the head that all of them make."""
        own, options = self.claims[self.sites.index(self.part(name))], self.solver.options
        if self.start is not None:
            # What the card says of it is all that a site has.
            options = replace(options, public_head=PublicHead(vectors=np.zeros((0, 0)), origin=encoded(self.start)))
        return replace(own, options=options, parts={"federation": self.described(name)})

    def described(self, name: str | None = None) -> Federated:
        """What a card says of the plan. name: of the site whose card it is; None: the coordinator's."""
        sites = tuple(_only(Site, each) for each in self.sites)
        return Federated(plan=self.digest, colluding=self.colluding, sites=sites, site=name)


def _bytes(values: Record) -> bytes:
    return (json.dumps(encoded(values), indent=1, sort_keys=True) + "\n").encode()


def load(path: Path) -> Federation:
    """The plan in a file. UserError: it is none, another dpfc made it, or its noise or δ is out of range."""
    plan = _read(path, Federation, PLAN)
    if plan.code != _code():
        raise conflict(
            f"{quoted(path)} was made by another version of dpfc.",
            "All sites and the coordinator need the version that made the plan.",
        )
    sites, start = plan.sites, plan.start
    named, keys = {each.name for each in sites}, {point(each.key) for each in sites}
    counted, units = all(each.n <= (each.records or each.n) for each in sites), {each.records is None for each in sites}
    started, without = (len(plan.classes), ()) if start is None else (start.classes, start.without)
    with readable(path, PLAN, AGAIN):
        if bytes_in(path) != plan.data:
            raise ValueError("it is not as dpfc writes it, so equal plans may have other digests")
        if None in keys or min(len(named), len(keys)) < len(sites) or len(set(plan.classes)) < len(plan.classes):
            raise ValueError("two of its sites have one name or key, or two of its classes one name")
        if len(units) > 1 or not counted:
            raise ValueError("its sites do not protect the same unit")
        if plan.colluding >= len(sites) or (plan.masked and len({each.epsilon for each in sites}) > 1):
            raise ValueError("more sites collude than there are others, or masks are for several epsilon")
        if not len(plan.classes) - started == len(without) == len({*without} & {*plan.classes}):
            raise ValueError("its start has other classes")
        if start is not None and (start.trusted, start.doubted) != (None, None):
            raise ValueError("nothing is known of its start before the training")
        if start is not None and "public_head" not in plan.solver.method.public:
            raise ValueError("its method has no use for a start")
    return plan


def class_vectors(plan: Federation, start: Path | str) -> PublicHead:
    """Public class vectors in a file, as `dpfc train --public-head` takes them. UserError: they do not fit, or no
    package reads them.
    """
    if "public_head" not in points.added("dpfc.hooks"):
        raise unsupported(
            f"No package that is installed reads {quoted(start)}.", f"Leave out {parameter('public_head')}."
        )
    hook = points.load("dpfc.hooks", "public_head", type)(public_head=start)
    found: PublicHead = hook.vectors(plan.solver, plan.classes, plan.features.dim)
    return found


def check_policy(plan: Federation, name: str, path: Path) -> None:
    """Compare a plan with what a site agrees to at most. Unit and backbone are those of its own set (`site_of`).

    path: a JSON file with some of `epsilon`, `delta`, `adjacency`, `methods`, `sites` (the others), and `colluding`
    ("all": without masks).
    UserError: it cannot be read or has no limit, or the plan has something that it does not allow.
    """
    allowed, others = _read(path, Policy, "a policy"), {each.name for each in plan.sites} - {name}
    limits = {key: limit for key, limit in fields_of(allowed).items() if limit is not None}
    if not limits:
        raise damaged(f"The policy {quoted(path)} has no limit, so it would allow every plan.", "Write one into it.")
    has: dict[str, Any] = {
        **{"epsilon": plan.part(name).epsilon, "delta": plan.delta},
        **{"adjacency": {plan.adjacency}, "methods": {plan.method}, "sites": others},
        "colluding": {plan.colluding if plan.masked else "all"},
    }
    broken = []
    for key, limit in limits.items():
        if not isinstance(limit, tuple) and has[key] > limit:
            broken.append(f"{key} {has[key]} for this site, more than {limit}")
        elif isinstance(limit, tuple) and (strange := has[key] - set(limit)):
            broken.append(f"{key} {', '.join(sorted(map(str, strange)))}")
    if broken:
        raise conflict(
            f"The policy {quoted(path)} does not allow what the plan has: {'; '.join(broken)}.",
            "Ask for another plan, or whoever wrote the policy.",
        )


def invitation(features: FeatureSet, name: str, epsilon: float) -> Invitation:
    """What a site brings, for whoever makes the plan. Its private key and a copy stay beside the ledger: the site takes
    no plan that says something else of it (`offered`).

    UserError for a name or an ε that no plan can have, or where no key can be made.
    """
    facts, manifest = facts_of(features), features.manifest
    made = Invitation(
        name=name,
        n=facts.n,
        records=facts.rows,
        epsilon=epsilon,
        key=f"09{'00' * 31}",
        k=facts.k,
        classes=manifest.classes,
        features=Recipe(
            backbone=manifest.backbone,
            dim=manifest.dim,
            dtype=manifest.dtype,
            preparation=manifest.identity.preparation,
        ),
    )
    try:
        decoded(json.loads(made.data), Invitation)
    except Fault as fault:
        raise UserError(
            f"'{fault.place}' of this invitation makes no sense.",
            f"{parameter('name')} has small letters, digits and dashes; {parameter('epsilon')} lies in "
            f"{LEAST_EPSILON:g} to {LARGEST_EPSILON:g}.",
        ) from None
    # What is refused leaves no key.
    key = new_key(keys_of(features))
    made = structs.replace(made, key=key)
    keep(keys_of(features) / f"{key}.json", made.data)
    return made


def offered(features: FeatureSet, key: str) -> Part | None:
    """What a site has said of itself in its invitation with that key; None if it has made none."""
    path = keys_of(features) / f"{key}.json"
    return _only(Part, _read(path, Invitation, "an invitation")) if path.exists() else None


def _only(kind: type[Kind], of: Record) -> Kind:
    """The fields of a record that another one has."""
    return kind(**{name: getattr(of, name) for name in kind.__struct_fields__})


def keys_of(features: FeatureSet) -> Path:
    """The folder with a site's invitations and their private keys."""
    return ledger_path(features.folder).parent / LEDGER_KEYS


def agreed(
    invitations: Sequence[Path],
    method: str = "auto",
    options: Mapping[str, Value] | None = None,
    delta: float | None = None,
    adjacency: Adjacency = "zero-out",
    colluding: int | None = None,
    start: Path | str | None = None,
) -> Federation:
    """The plan of all who are invited. Its classes are those of all sites, in the order in which they come.

    method: "auto" is dp-whitened for one label per record, and dp-fc for several. delta: None: the smallest of the
    sites' defaults. colluding: how many of the other sites may; None: all of them, without masks. start: a file of
    public class vectors, see `class_vectors`. UserError: the sites do not fit together, or the method is none
    of `FEDERATED`.
    """
    found = [_read(path, Invitation, "an invitation") for path in invitations]
    names = [each.name for each in found]
    keys = {point(each.key) for each in found}
    if len(found) < 2 or None in keys or min(len(set(names)), len(keys)) < len(names):
        raise UserError(
            "A federation needs two sites, each with a name and a key of its own.",
            "Give an invitation of each. Each invitation makes a key.",
        )
    first, others = found[0], len(found) - 1
    if colluding is not None and not 1 <= colluding < others:
        raise UserError(
            f"{parameter('colluding')} {colluding} of {len(found)} sites: it can be 1 to the number of sites − 2"
            f"{f', here {others - 1}' if others > 1 else ', so masks need three sites'}.",
            "Leave it out, and there are no masks: all other sites may collude.",
        )
    colluding = others if colluding is None else colluding
    for what, of in (
        ("epsilon", lambda one: one.epsilon if colluding < others else None),
        ("labels per record", lambda one: one.k),
        ("unit", lambda one: one.records is None),
        ("backbone", lambda one: one.features.fingerprint(())),
    ):
        other = next((each.name for each in found if of(each) != of(first)), None)
        if other is not None:
            raise conflict(
                f"'{other}' has another {what} than '{first.name}'.",
                "All sites make their features in the same way, with the same backbone, and protect the same unit. "
                "With masks, all spend the same epsilon.",
            )
    method = (FEDERATED[0] if first.k == 1 else FEDERATED[1]) if method == "auto" else method
    if method not in FEDERATED:
        raise unsupported(f"A federation cannot train {method}.", f"Choose {', '.join(FEDERATED)}.")
    given = METHODS[method].taken(options or {})
    made = Federation(
        id=new_id(),
        sites=tuple(_only(Part, each) for each in found),
        method=method,
        options=given,
        classes=tuple(dict.fromkeys(name for each in found for name in each.classes)),
        k=first.k,
        features=first.features,
        adjacency=adjacency,
        colluding=colluding,
        delta=min(default_delta(each.n) for each in found) if delta is None else delta,
    )
    try:
        _ = made.solver
    except ValueError as error:
        raise UserError(f"There is no such plan: {error}.", "Ask for other invitations.", code="bad-value") from error
    if start is not None:
        made = structs.replace(made, start=decoded(class_vectors(made, start).origin, Start))
    return made


def _read(path: Path, kind: type[Kind], what: str) -> Kind:
    with readable(path, what, AGAIN):
        return decoded(json_in(path), kind)
