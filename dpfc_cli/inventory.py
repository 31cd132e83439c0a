"""What there is: feature sets with what was spent on them, and heads with what they claim."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpfc_cli.errors import UserError
from dpfc_cli.features.lookup import finished
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head, without_charge
from dpfc_cli.ledger.file import ledger_path, read
from dpfc_cli.ledger.populations import known_set
from dpfc_cli.ledger.totals import Ledger
from dpfc_cli.privacy.accounting import default_delta
from dpfc_cli.training.request import facts_of


@dataclass(frozen=True, kw_only=True)
class ListedSet:
    """A feature set. persons: how many each split has, if the set knows which records belong to one person. population:
    whose records they are; None where nothing is said. trainings: of the population, as the ledger has them. epsilon:
    what the private ones cost together at `delta`, 0 if there are none. unprotected: trainings that no ε covers. These
    three are None where the ledger cannot be read, or lacks the set. warning: what to tell if heads of this set have no
    charge in the ledger.
    """

    path: str
    name: str
    backbone: str
    records: dict[str, int]
    persons: dict[str, int] | None
    classes: int
    dim: int
    population: str | None
    trainings: int | None
    epsilon: float | None
    delta: float
    unit: str
    unprotected: int | None
    warning: str | None


@dataclass(frozen=True, kw_only=True)
class ListedHead:
    """A head. epsilon, delta: what it claims; None if it claims nothing."""

    path: str
    method: str
    claim: str
    epsilon: float | None
    delta: float | None
    features: str
    date: str | None


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """All feature sets of one folder and all heads of another. unreadable: files among them that are neither, and why
    not.
    """

    sets: tuple[ListedSet, ...]
    heads: tuple[ListedHead, ...]
    unreadable: tuple[tuple[str, str], ...]


def inventory(features: Path, heads: Path) -> Inventory:
    """The feature sets in `features` and the heads in `heads`, by name. Nothing is refused: see `unreadable`."""
    sets: list[ListedSet] = []
    found: list[ListedHead] = []
    unreadable: list[tuple[str, str]] = []
    cards: list[tuple[Path, Mapping[str, Any]]] = []
    for path in sorted(heads.glob("*.safetensors")):
        try:
            card = Head.load(path).card
            found.append(_head(path, card))
            cards.append((path, card))
        except UserError as error:
            unreadable.append((str(path), _what(error)))
    for folder in sorted(finished(features)):
        try:
            listed = _listed(folder)
        except UserError as error:
            unreadable.append((str(folder), _what(error)))
            continue
        try:
            features_, book = FeatureSet(folder), read(ledger_path(folder))
            known_set(book, features_)
            sets.append(_with_account(listed, book, features_.manifest, cards))
        except UserError as error:
            sets.append(listed)
            unreadable.append((str(error.fields.get("path", ledger_path(folder))), _what(error)))
    unreadable = list(dict.fromkeys(unreadable))
    return Inventory(sets=tuple(sets), heads=tuple(found), unreadable=tuple(unreadable))


def _listed(folder: Path) -> ListedSet:
    features = FeatureSet(folder)
    persons = {name: split.groups for name, split in features.manifest.splits.items() if split.groups is not None}
    facts = facts_of(features)
    return ListedSet(
        path=str(folder),
        name=folder.name,
        backbone=str(features.manifest.backbone.get("name")),
        records=dict(features.splits),
        persons=persons or None,
        classes=facts.m,
        dim=facts.d,
        population=None,
        trainings=None,
        epsilon=None,
        delta=default_delta(facts.n),
        unit=facts.unit,
        unprotected=None,
        warning=None,
    )


def _with_account(
    listed: ListedSet, book: Ledger, manifest: Manifest, cards: Iterable[tuple[Path, Mapping[str, Any]]]
) -> ListedSet:
    account = book.account_of(manifest.id)
    return replace(
        listed,
        population=account.population if book.populations_of(manifest.id) is not None else None,
        trainings=len(account.charges),
        epsilon=account.epsilon(listed.delta),
        unit=account.unit,
        unprotected=account.unprotected,
        warning=without_charge(cards, {listed.name}, book.path, book.known),
    )


def _what(error: UserError) -> str:
    return error.text(lambda name: name)[0]


def _head(path: Path, card: Mapping[str, Any]) -> ListedHead:
    return ListedHead(
        path=str(path),
        method=card["method"],
        claim=card["claim"],
        epsilon=card["epsilon"],
        delta=card["delta"],
        features=card["features"]["name"],
        date=card.get("date"),
    )
