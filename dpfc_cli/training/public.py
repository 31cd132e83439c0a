"""Public features beside private ones: read before anything is charged, and reduced to their mean.

They come from the same backbone and from records that nobody needs to protect, so what is computed of them is a public
fact, and using it with what was released is post-processing. The guarantee does not depend on them.

**What may be taken for public** is one rule (`check_public`), for all sets of which somebody asserts that nobody needs
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
from typing import Any

import numpy as np

from dpfc_cli.errors import UserError, conflict, damaged, parameter, quoted
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head
from dpfc_cli.ledger.facts import Charge, Set
from dpfc_cli.ledger.file import ledger_path, read
from dpfc_cli.ledger.totals import Ledger
from dpfc_cli.methods.whitened import NORMALISE, Public
from dpfc_cli.privacy import chain as chains
from dpfc_cli.privacy.oracle import Progress
from dpfc_cli.training.calibrate import Calibrated
from dpfc_cli.training.request import SPLIT

ROWS = 8192


def inform(calibrated: Calibrated, public: FeatureSet, progress: Progress | None = None) -> Calibrated:
    """The same training with public features beside the private ones, after `check`. Plan and guarantee stay.

    progress(done, total) counts records. UserError where the public set is damaged.
    """
    public.verify(SPLIT)
    manifest, n = public.manifest, public.split(SPLIT).n
    origin = {"name": public.name, "rows": n, "fingerprint": manifest.fingerprint, "backbone": manifest.backbone}
    known = Public(mean=mean_of(public, SPLIT, progress), origin=origin)
    return replace(calibrated, options=replace(calibrated.options, public=known))


def check(calibrated: Calibrated, private: FeatureSet, public: FeatureSet) -> None:
    """UserError where the method has no use for public features, where they are the private records, or where they come
    from another backbone.
    """
    why = "Only dp-whitened releases the mean that they improve."
    check_method(calibrated, "public_features", "public", why)
    check_other(private, public, "public_features")


def check_method(calibrated: Calibrated, name: str, option: str, why: str) -> None:
    """UserError where the method has no use for something public, or has no noise. name: the parameter that names it.
    option: its name among the method's public options. why: why other methods have no use for it.
    """
    if option not in calibrated.method.public:
        one = "Leave it out, or use dp-whitened."
        many = "Leave it out: dp-whitened is for records with one label."
        raise conflict(
            f"{parameter(name)} is no option of {calibrated.method.name}. {why}",
            one if calibrated.facts.k == 1 else many,
        )
    if calibrated.mechanism is None:
        raise conflict(f"{parameter(name)} has no effect with {parameter('non_private')}.", "Leave it out.")


def check_other(private: FeatureSet, public: FeatureSet, option: str) -> None:
    """UserError unless the set can be public (`check_public`) and has the same features. option: its parameter."""
    check_public(public, option, private=private)
    mine, other = recipe(private.manifest), recipe(public.manifest)
    names = differing(private, public)
    differ = [f"{name} ({other.get(name)}, not {mine.get(name)})" for name in names]
    if differ:
        raise conflict(
            f"{quoted(public.folder)} has features of another backbone than '{private.folder}'. They differ in "
            f"{', '.join(differ)}.",
            f"Extract the public pictures with the same {parameter('model')} and options as the private ones.",
        )


def warnings_of(public: FeatureSet) -> list[str]:
    """What cannot be refused, because only the operator can know it."""
    if public.manifest.backbone.get("name") != "imported":
        return []
    return [
        f"'{public.folder}' was imported. dpfc cannot know that its features come from the private ones' backbone, nor "
        "that none of its records is a private one: you assert both."
    ]


def mean_of(on: FeatureSet, split: str, progress: Progress | None = None) -> np.ndarray:
    """The mean of the records of a split, each scaled to length 1. UserError where none of them is finite.

    A record of zeros is one that could not be decoded.
    """
    used, total = 0, np.zeros(on.dim)
    for start, x, _ in on.stream(split)(ROWS):
        z = unit_rows(x)
        used, total = used + len(z), total + z.sum(axis=0)
        if progress:
            progress(start + len(x), on.split(split).n)
    if not used:
        raise damaged(f"{quoted(on.folder)} holds no finite features.", "Name another set.")
    return total / used


def unit_rows(x: np.ndarray) -> np.ndarray:
    """The finite records, each scaled to length 1, without those of zeros."""
    x = x.astype(np.float32)
    return np.asarray(chains.run((NORMALISE,), x[np.isfinite(x).all(axis=1) & x.any(axis=1)], np))


def differing(one: FeatureSet, other: FeatureSet) -> list[str]:
    mine, theirs = recipe(one.manifest), recipe(other.manifest)
    return [name for name in mine | theirs if mine.get(name) != theirs.get(name)]


def recipe(manifest: Manifest) -> dict[str, Any]:
    return {**manifest.backbone, "dimensions": manifest.dim}


def check_public(
    on: FeatureSet,
    option: str,
    *,
    split: str | None = None,
    private: FeatureSet | None = None,
    head: Head | None = None,
) -> None:
    """Refuse a set that cannot be public. UserError: see the top of this module; or a ledger is damaged.

    option: the parameter that names it. split: the only split that is read; None: all of them. private, head: what it
    is to be used beside.
    """
    read_splits: Collection[str] = on.splits if split is None else (split,)
    if private is not None and any(_holds(private, on, each) for each in read_splits):
        why = "it holds the private records themselves"
    elif protected(on, read_splits, private):
        why = "it was trained on with a guarantee"
    elif head is not None and head.card.private and head.card.features.name == on.name:
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
