"""What is written down of a training: the head's card, the charge and the head's file name.

All of them are functions of the training's own values, so they agree.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs

from dpfc_cli.annotations.classes import Origin
from dpfc_cli.errors import UserError, parameter, printable, quoted
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads import head as heads
from dpfc_cli.ledger.facts import Charge
from dpfc_cli.ledger.public import SPLIT
from dpfc_cli.outputs import check_new
from dpfc_cli.privacy.accounting import Claim
from dpfc_cli.records.card import (
    Card,
    Counts,
    Features,
    Grouped,
    Prepared,
    Source,
    Standing,
    Start,
    Versions,
    part_of,
)
from dpfc_cli.records.claims import Seeded
from dpfc_cli.rounding import rounded_up
from dpfc_cli.structs import decoded, encoded, fields_of, optional
from dpfc_cli.version import __version__

if TYPE_CHECKING:
    from dpfc_cli.methods.method import Solution
    from dpfc_cli.methods.public_head import PublicHead
    from dpfc_cli.training.calibrate import Calibrated, Planned


def charge_of(
    planned: "Planned",
    method: str,
    features: FeatureSet,
    head: str,
    digest: str,
    by: str,
    purpose: str | None = None,
    split: str = SPLIT,
) -> Charge:
    """What is charged to the ledger.

    `by` and `purpose` go into no card: a head is handed over, and it need not say who made it. method: `EVALUATION` for
    what is no training. head: the name of the file that is to be written, or is evaluated. digest: of all that the
    training computes with; of an evaluation, the SHA-256 of the head.
    """
    stated = fields_of(planned.stated)
    return Charge(
        by=by,
        set=features.manifest.id,
        split=split,
        method=method,
        n=planned.facts.n,
        releases=stated.pop("plan"),
        **stated,
        head=head,
        digest=digest,
        purpose=purpose,
    )


def charge_of_training(
    calibrated: "Calibrated", features: FeatureSet, head: str, by: str, purpose: str | None
) -> Charge:
    """What a training charges. Equal trainings have the same digest, whoever makes them and whatever for."""
    parts = encoded(calibrated.parts) or None
    computed = (calibrated.options, calibrated.facts, parts, encoded(calibrated.stated.plan))
    said = (calibrated.method.name, calibrated.method.source, calibrated.claimed)
    noise, manifest = calibrated.privacy.seed, features.manifest
    digest = digest_of(manifest.id, manifest.fingerprint, noise, *computed, *said)
    return charge_of(calibrated, calibrated.method.name, features, head, digest, by, purpose)


def digest_of(*parts: object) -> str:
    """A digest of all that a training computes with, beside the records. Equal trainings have the same."""
    digest = hashlib.sha256()
    for part in parts:
        _add(digest, part)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            digest.update(f"{field.name}=".encode())
            _add(digest, getattr(value, field.name))
    else:
        digest.update((json.dumps(value, sort_keys=True, default=repr) + ";").encode())


def card_of(calibrated: "Calibrated", features: FeatureSet, at: str, solution: "Solution", standing: Standing) -> Card:
    manifest = features.manifest
    known = Features(
        name=features.name,
        fingerprint=manifest.fingerprint,
        backbone=manifest.backbone,
        preparation=optional(manifest.identity.preparation, Prepared),
        dtype=manifest.dtype,
        hold_out=manifest.hold_out,
        grouped_by=optional(manifest.grouped_by, Grouped) if calibrated.facts.unit == "person" else None,
        split=SPLIT,
    )
    return card_with(calibrated, known, manifest.classes, manifest.origin, at, solution, standing)


def card_with(
    calibrated: "Calibrated",
    features: Features,
    classes: Sequence[str],
    origin: Origin,
    at: str,
    solution: "Solution",
    standing: Standing | None,
) -> Card:
    """The head's card.

    classes, origin: their names, and who states them. standing: see `standing_of`. Of what is public the card says
    where it came from; its arrays are no option. Of the solution it says only whether a training without noise reached
    its optimum, and how far a public start was trusted, class by class.
    """
    facts, method, options = calibrated.facts, calibrated.method, calibrated.options
    start = options.public_head if "public_head" in method.public else None
    return Card(
        **fields_of(calibrated.stated),
        method=method.name,
        date=at,
        options=method.in_force(options, calibrated.mechanism is not None),
        facts=Counts(n=facts.n, m=facts.m, d=facts.d, k=facts.k, origin=origin, records=facts.rows),
        classes=tuple(classes),
        features=features,
        versions=Versions(dpfc=__version__),
        seeded=seeded_of(calibrated),
        method_source=None if method.source is None else Source(**method.source),
        ledger=standing,
        public_head=None if start is None else _begun(start, solution.trusted, classes),
        converged=solution.converged,
        parts={name: part_of(name, part) for name, part in calibrated.parts.items()},
    )


def seeded_of(calibrated: "Calibrated") -> Seeded | None:
    """The seed, and the ε and δ that the noise would be worth if nobody could repeat it."""
    guarantee, seed = calibrated.guarantee, calibrated.privacy.seed
    if guarantee is None or seed is None:
        return None
    return Seeded(seed=seed, epsilon=guarantee.epsilon, delta=guarantee.delta)


def _begun(start: "PublicHead", trusted: np.ndarray | None, classes: Sequence[str]) -> Start:
    """Where a start came from, and how far it was trusted: the mean over the classes that have a vector, and the names
    of those that were not believed.
    """
    origin = decoded(start.origin, Start)
    if trusted is None:
        return origin
    known = np.any(start.vectors, axis=0)
    doubted = [name for name, has, by in zip(classes, known, trusted, strict=True) if has and by < 0.5]
    return structs.replace(origin, trusted=float(trusted[known].mean()), doubted=tuple(doubted))


def with_ending(out: Path, claim: Claim) -> Path:
    """The file of a head that was named, maybe without the ending that says its claim. A folder is none."""
    return out if heads.ending(out.name) or out.is_dir() else out.with_name(out.name + heads.SUFFIXES[claim])


def path_of(calibrated: "Calibrated", features: FeatureSet, out: Path | None, folder: Path) -> Path:
    """Where the head goes: `out`, or a new name in `folder`. It is named by what was asked for, not by what came out.

    UserError: see `check_name`.
    """
    claim = calibrated.claim
    if out is None:
        guarantee, suffix = calibrated.guarantee, heads.SUFFIXES[claim]
        asked = f"-eps{rounded_up(guarantee.epsilon, 4)}" if guarantee else ""
        asked += f"-seed{calibrated.privacy.seed}" if claim == "research" else ""
        # A set that was made elsewhere may have any name.
        return heads.free_name(folder, f"{printable(features.name)}-{calibrated.method.name}{asked}", suffix)
    check_name(out, claim)
    return out


def check_name(out: Path, claim: Claim) -> None:
    """UserError where the file of a head is not printable, has no folder, ends as another claim demands, or exists."""
    check_new(out)
    if heads.ending(out.name) != heads.SUFFIXES[claim]:
        raise UserError(
            f"{parameter('out')} {quoted(out)} must end in {heads.SUFFIXES[claim]}, because the head will be {claim}.",
            "Change the name.",
        )
    if out.exists():
        raise UserError(
            f"{quoted(out)} exists. A head is never overwritten: its privacy was paid for.",
            f"Choose another {parameter('out')}, or move it away.",
            code="exists",
        )
