"""What is wanted of a training, before anything is computed or read."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from dpfc_cli.errors import UserError, number, parameter, unknown
from dpfc_cli.features.reader import FeatureSet, check_sets
from dpfc_cli.ledger.facts import account_name, noted
from dpfc_cli.methods import AnyMethod, method_named
from dpfc_cli.privacy.accounting import Claim
from dpfc_cli.privacy.facts import Adjacency, Facts
from dpfc_cli.training.distributed import Leader

SPLIT = "train"
"""The split that is trained on."""


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The privacy that is asked for: ε or a noise multiplier, at δ; or neither, which means no noise.

    epsilon: ε. noise_multiplier: σ of each release, if all releases had the same. delta: δ; None: min(1e-5, 1/n).
    allow_large_delta: accept a δ above 1/n. seed: reproducible noise for research, which protects nothing.
    """

    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float | None = None
    allow_large_delta: bool = False
    seed: int | None = None

    @property
    def claim(self) -> Claim:
        """What may be claimed of the head."""
        if self.epsilon is None and self.noise_multiplier is None:
            return "non-private"
        return "private" if self.seed is None else "research"


@dataclass(frozen=True, kw_only=True)
class Request:
    """One training as it is asked for.

    features: the private records. method: a method's name, or "auto". options: the method's options that are set, by
    name. adjacency: which data sets are neighbours. public_features, tune_on: sets of public records, see
    `training.public` and `training.tuning`. public_head: public class vectors, see `training.public_start`. out:
    the head's file; None: a name of its own in `folder`. memory: bytes that the training may take; None: what the
    machine has free. by, purpose: whose training it is and what for, for the ledger alone. infer_classes: a private
    head may have classes that nobody stated. keep: its answers, so that it can go on after it was stopped. leader: the
    way to other processes; None: there are none.
    """

    features: FeatureSet
    folder: Path
    privacy: Privacy
    method: str = "auto"
    adjacency: Adjacency = "zero-out"
    options: Mapping[str, Any] = field(default_factory=dict)
    public_features: FeatureSet | None = None
    public_head: Path | str | None = None
    tune_on: FeatureSet | None = None
    out: Path | None = None
    memory: float | None = None
    by: str = field(default_factory=account_name)
    purpose: str | None = None
    infer_classes: bool = False
    keep: bool = True
    leader: Leader | None = None

    @property
    def facts(self) -> Facts:
        """The public facts of the records."""
        return facts_of(self.features, self.adjacency, self.privacy.claim != "non-private")

    @property
    def chosen(self) -> AnyMethod:
        """The method of that name."""
        return method_named(self.method, self.facts)


def requested(
    features: FeatureSet,
    folder: Path,
    *,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    non_private: bool = False,
    delta: float | None = None,
    allow_large_delta: bool = False,
    seed: int | None = None,
    adjacency: str | None = None,
    options: Mapping[str, Any],
    **others: Any,
) -> Request:
    """The request of a user. UserError where privacy is not stated exactly once, or where parameters contradict.

    others: the other fields of `Request`.
    """
    if features is None:
        raise UserError("No feature set is given.", "Open one with open_features.", parameter="features")
    check_sets(features=features, **{name: others.get(name) for name in ("public_features", "tune_on")})
    epsilon, delta = number("epsilon", epsilon), number("delta", delta)
    noise_multiplier = number("noise_multiplier", noise_multiplier)
    if (memory := others.get("memory")) is not None:
        others["memory"] = number("memory", memory)
    others["by"] = noted("by", others.get("by")) or account_name()
    others["purpose"] = noted("purpose", others.get("purpose"))
    if seed is not None and type(seed) is not int:
        raise UserError(f"{parameter('seed')} must be a whole number, not {seed!r}.", "Give one.", parameter="seed")
    if sum((epsilon is not None, noise_multiplier is not None, non_private)) != 1:
        raise UserError(
            f"State the privacy once: as {parameter('epsilon')}, as {parameter('noise_multiplier')} or as "
            f"{parameter('non_private')}.",
            f"To begin with: {parameter('epsilon')} 1.",
            code="conflict",
        )
    noisy = {"delta": delta, "allow_large_delta": allow_large_delta or None, "seed": seed, "adjacency": adjacency}
    idle = [name for name, value in noisy.items() if value is not None]
    if non_private and idle:
        raise UserError(
            f"{parameter(idle[0])} has no effect with {parameter('non_private')}.",
            "Leave it out.",
            code="conflict",
            parameter=idle[0],
        )
    privacy = Privacy(
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        delta=delta,
        allow_large_delta=allow_large_delta,
        seed=seed,
    )
    return Request(
        features=features,
        folder=folder,
        privacy=privacy,
        adjacency=adjacency_named(adjacency),
        options=options,
        **others,
    )


def adjacency_named(name: str | None) -> Adjacency:
    """The adjacency of that name; zero-out for None. UserError if there is none."""
    neighbours: dict[str, Adjacency] = {each: each for each in get_args(Adjacency)}
    if name is not None and name not in neighbours:
        raise unknown("adjacency", name, list(neighbours))
    return neighbours[name or "zero-out"]


def facts_of(
    features: FeatureSet, adjacency: Adjacency = "zero-out", protected: bool = True, split: str = SPLIT
) -> Facts:
    """The public facts of a split of a feature set.

    The unit is a person where the set says which records belong to one. Without protection each record is a unit.
    """
    manifest, found = features.manifest, features.split(split)
    known = Facts(n=found.n, m=len(manifest.classes), d=manifest.dim, k=manifest.labels_per_record, adjacency=adjacency)
    if found.groups is None or not protected:
        return known
    return replace(known, n=found.groups, rows=found.n, unit="person")
