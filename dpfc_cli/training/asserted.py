"""What may be taken for public: one rule for all sets of which somebody asserts that nobody needs to protect them.

Such a set gives public features, or is there to tune on, to forecast on, to calibrate on, or to score class vectors on.
Names of sets, the listings of their sources and the ledger beside them decide. Records are never compared: how many of
a public set are private ones would be a fact about private records.

- What breaks a promise is refused: the private set under any name; a set of which a ledger says that its records were
  used with a guarantee, which would no longer be true; and a set of the name that a private head was trained on.
- What only the operator can know is a warning. Everything else is the operator's assertion, and the card and the
  statement say so.

`evaluate` asserts nothing: it says of each split what its figures mean.
"""

from collections.abc import Collection

from dpfc_cli.errors import UserError, parameter
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head
from dpfc_cli.ledger.facts import Charge, Set
from dpfc_cli.ledger.file import ledger_path, read
from dpfc_cli.ledger.totals import Ledger
from dpfc_cli.training.request import SPLIT
from dpfc_cli.trust.statement import hold_out_of


def check_public(
    on: FeatureSet,
    option: str,
    *,
    split: str | None = None,
    private: FeatureSet | None = None,
    head: Head | None = None,
) -> None:
    """Refuse a set that cannot be public.

    Args:
        on: the set.
        option: the parameter that names it.
        split: the only split that is read; None: all of them.
        private: the private set that it is to be used beside, if there is one.
        head: the head that it is to be used with, if there is one.

    Raises:
        UserError: see the top of this module; or a ledger is damaged.

    """
    read_splits: Collection[str] = on.splits if split is None else (split,)
    if private is not None and _is(private, on, read_splits):
        why = "it holds the private records themselves"
    elif protected(on, read_splits, private):
        why = "it was trained on with a guarantee"
    elif head is not None and head.card["claim"] == "private" and head.card["features"]["name"] == on.name:
        why = "the head was trained on a set of this name"
    else:
        return
    other = "" if split is None else f", or another split of this one: {parameter('split')}"
    which = f"'{on.folder}'" if split is None else f"The split '{split}' of '{on.folder}'"
    raise UserError(
        f"{which} is not public: {why}. What is computed of it without noise would depend on private records, and no "
        "ledger would know.",
        f"Name a set of other records, which nobody needs to protect: {parameter(option)}{other}. A charge with a "
        "guarantee is a promise that stays. To practise on public records, train on them with "
        f"{parameter('seed')} or {parameter('non_private')}: then they stay public.",
        code="private-records",
        parameter=option,
        path=str(on.folder),
        **({} if split is None else {"split": split}),
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
    """Whether a charge is on a split, on records of the same source, or on people who are said to be the same."""
    # Splits of one set may have one listing, and no record in common. Those of different sets may have some.
    if charge.set == on.manifest.id:
        return charge.split == split
    said = (each.listing.get(charge.split) for each in book.all(Set) if each.set == charge.set)
    return _listing(on, split) in said or book.share(charge.set, on.manifest.id)


def _listing(features: FeatureSet, split: str) -> str:
    """The digest of the listing of a split's source. Splits that were held out of one source have one listing, and so
    have sets of other backbones.
    """
    return str(features.manifest.source["identity"]["listing"][split])


def _is(private: FeatureSet, on: FeatureSet, splits: Collection[str]) -> bool:
    same = on.manifest.id == private.manifest.id
    if same and SPLIT not in splits and hold_out_of(on.manifest):
        # Splits that were held out of one source have one listing, and no record in common.
        return False
    if _listing(private, SPLIT) in {_listing(on, split) for split in splits}:
        return True
    return not same and read(ledger_path(private.folder)).share(private.manifest.id, on.manifest.id)
