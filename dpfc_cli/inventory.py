"""What there is: feature sets with what was spent on them, and heads with what they claim."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpfc_cli.annotations.broken import REFUSED
from dpfc_cli.errors import UserError
from dpfc_cli.features.lookup import GO_ON, begun, finished
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import sha256_of
from dpfc_cli.heads.head import Head
from dpfc_cli.ledger.file import ledger_path, read
from dpfc_cli.ledger.populations import known_set
from dpfc_cli.ledger.public import facts_of
from dpfc_cli.ledger.standing import without_charge
from dpfc_cli.ledger.totals import Ledger
from dpfc_cli.privacy.accounting import default_delta
from dpfc_cli.records.card import Card
from dpfc_cli.records.figures import Figures


@dataclass(frozen=True, kw_only=True)
class ListedSet:
    """A feature set. persons: how many each split has, if the set knows which records belong to one person. population:
    whose records they are, 'a or b' of several; None where nothing is said. charges: of the population on which most
    was spent, trainings and evaluations. epsilon: what the private ones cost together at `delta`, 0 if there are none.
    unprotected: trainings that no ε covers. These three are None where the ledger cannot be read, or lacks the set.
    warning: what to tell if heads of its ledger's sets have no charge there.
    """

    path: str
    name: str
    backbone: str
    records: dict[str, int]
    persons: dict[str, int] | None
    classes: int
    dim: int
    population: str | None
    charges: int | None
    epsilon: float | None
    delta: float
    unit: str
    unprotected: int | None
    warning: str | None


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """All feature sets of one folder, and the cards of all heads of another by their files.

    released: what evaluations have released of them, the oldest first. unreadable: what lies among them and is neither,
    and why. failed: why a ledger cannot be read (then nobody knows what was spent); None if all can.
    """

    sets: tuple[ListedSet, ...]
    heads: Mapping[Path, Card]
    released: Mapping[Path, Sequence[Figures]]
    unreadable: tuple[tuple[str, str], ...]
    failed: UserError | None = None


def inventory(features: Path, heads: Path) -> Inventory:
    """The feature sets in `features` and the heads in `heads`, by name. Nothing is refused: see `unreadable`."""
    sets: list[ListedSet] = []
    unreadable: list[tuple[str, str]] = []
    cards: dict[Path, Card] = {}
    failed, figures = None, dict[str, dict[str, Figures]]()
    for path in sorted(heads.glob("*.safetensors")):
        try:
            cards[path] = Head.load(path).card
        except UserError as error:
            unreadable.append((str(path), _what(error)))
    unreadable += [
        (str(each), f"It is not complete, and as private as its source. {GO_ON}") for each in begun(features)
    ]
    said = "It tells what was wrong with private records. Delete it when you have read it."
    unreadable += [(str(each), said) for each in sorted(features.glob(f"*{REFUSED}"))]
    for folder in sorted(finished(features)):
        try:
            known = FeatureSet(folder)
        except UserError as error:
            unreadable.append((str(folder), _what(error)))
            continue
        book, place = None, ledger_path(folder)
        try:
            book = read(place)
            for each in book.released.values():
                figures.setdefault(each.head_sha256, {})[each.charge] = each
            known_set(book, known)
        except UserError as error:
            # A ledger that only lacks the set could be read.
            failed = failed or (error if book is None else None)
            book = None
            unreadable.append((str(error.fields.get("path", place)), _what(error)))
        sets.append(_listed(known, book, cards.items()))
    digests = {path: sha256_of(path) for path in cards} if figures else {}
    released = {path: tuple(figures[digest].values()) for path, digest in digests.items() if digest in figures}
    return Inventory(
        sets=tuple(sets), heads=cards, released=released, unreadable=tuple(dict.fromkeys(unreadable)), failed=failed
    )


def _listed(known: FeatureSet, book: Ledger | None, cards: Iterable[tuple[Path, Card]]) -> ListedSet:
    """A set, with what its ledger says if it can be read and has the set."""
    manifest, facts, name = known.manifest, facts_of(known), known.folder.name
    persons = {split: each.groups for split, each in manifest.splits.items() if each.groups is not None}
    account, delta = None if book is None else book.account_of(manifest.id), default_delta(facts.n)
    named = book is not None and book.populations_of(manifest.id) is not None
    return ListedSet(
        path=str(known.folder),
        name=name,
        backbone=str(manifest.backbone.get("name")),
        records=dict(known.splits),
        persons=persons or None,
        classes=facts.m,
        dim=facts.d,
        population=account.told()["population"] if account and named else None,
        charges=len(account.charges) if account else None,
        epsilon=account.epsilon(delta) if account else None,
        delta=delta,
        unit=account.unit if account and account.charges else facts.unit,
        unprotected=account.unprotected if account else None,
        warning=without_charge(cards, book) if book else None,
    )


def _what(error: UserError) -> str:
    return error.text(lambda name: name)[0]
