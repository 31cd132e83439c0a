"""What is public of a feature set, and what may be taken for public.

The latter is one rule (`check_public`), for all sets of which somebody asserts that nobody needs
to protect them. Such a set gives public features, or is there to tune on, to forecast on, to calibrate on, or to score
class vectors on. Names of sets, the listings of their sources and the ledger beside them decide. Records are never
compared: how many of a public set are private ones would be a fact about private records.

- What breaks a promise is refused: the private set under any name; a set of which a ledger says that its records were
  used with a guarantee, which would no longer be true; and a set of the name that a private head was trained on.
- What only the operator can know is a warning. Everything else is the operator's assertion, and the card and the
  statement say so.

`evaluate` asserts nothing: it says of each split what its figures mean.
"""

from collections.abc import Collection
from dataclasses import replace

from dpfc_cli.errors import UserError, parameter, quoted
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.facts import Charge, Set
from dpfc_cli.ledger.file import ledger_path, read
from dpfc_cli.ledger.totals import Ledger
from dpfc_cli.privacy.facts import Adjacency, Facts
from dpfc_cli.records.card import Card

SPLIT = "train"
"""The split that is trained on."""


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


def check_public(
    on: FeatureSet,
    option: str,
    *,
    split: str | None = None,
    private: FeatureSet | None = None,
    card: Card | None = None,
) -> None:
    """Refuse a set that cannot be public. UserError: see the top of this module; or a ledger is damaged.

    option: the parameter that names it. split: the only split that is read; None: all of them. private, card: what it
    is to be used beside.
    """
    read_splits: Collection[str] = on.splits if split is None else (split,)
    if private is not None and any(_holds(private, on, each) for each in read_splits):
        why = "it holds the private records themselves"
    elif protected(on, read_splits, private):
        why = "it was trained on with a guarantee"
    elif card is not None and card.private and card.features.name == on.name:
        why = "the head was trained on a set of this name"
    else:
        return
    other = "" if split is None else f", or another split of this one: {parameter('split')}"
    which = quoted(on.folder) if split is None else f"The split '{split}' of {quoted(on.folder)}"
    raise UserError(
        f"{which} is not public: {why}. What is computed of it without noise would depend on private records, and no "
        "ledger would know.",
        f"Name a set of other records, which nobody needs to protect: {parameter(option)}{other}. A charge with a "
        "guarantee is a promise that stays. To practise on public records, train on them with "
        f"{parameter('seed')}: then they stay public.",
        code="private-records",
    )


def protected(on: FeatureSet, splits: Collection[str], private: FeatureSet | None = None) -> bool:
    """Whether a ledger has a charge with a guarantee on one of these splits, see `was_on`. private: the set that they
    are to be used beside, which may have a ledger of its own.
    """
    books = [read(path) for path in {ledger_path(each.folder) for each in (on, private) if each is not None}]
    return any(
        was_on(book, charge, on, split)
        for book in books
        for charge in book.charges
        if charge.private
        for split in splits
    )


def was_on(book: Ledger, charge: Charge, on: FeatureSet, split: str) -> bool:
    """Whether a charge is on records that a split may have, see `_alike`."""
    said = [each.listing.get(charge.split) for each in book.all(Set) if each.set == charge.set]
    return _alike(book, charge.set, charge.split, said, on, split)


def _alike(book: Ledger, of: str, its: str, said: Collection[str | None], on: FeatureSet, split: str) -> bool:
    """Whether a split of a set may have records of another set's: it is the same, they are of one source, or people are
    said to be the same. of, its, said: a set, its split, and the listings of that.
    """
    same = of == on.manifest.id
    if same and (its == split or on.manifest.hold_out):
        # Splits held out of one source have the same listing, but no record in common.
        return its == split
    mine, theirs = (book.populations_of(each) or frozenset() for each in (of, on.manifest.id))
    return _listing(on, split) in said or (not same and bool(mine & theirs))


def _listing(features: FeatureSet, split: str) -> str:
    """The digest of the listing of a split's source. It is the same for all splits held out of one source, and for all
    sets of one source with other backbones.
    """
    return features.manifest.identity.listing[split]


def _holds(private: FeatureSet, on: FeatureSet, split: str) -> bool:
    """Whether a split may have the private records."""
    book = read(ledger_path(private.folder))
    return _alike(book, private.manifest.id, SPLIT, [_listing(private, SPLIT)], on, split)
