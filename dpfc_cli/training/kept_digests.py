"""The digests of a set's records: in its folder, and beside its ledger. See `sharing`."""

import glob
import os
import stat
from pathlib import Path

import numpy as np

from dpfc_cli.errors import UserError
from dpfc_cli.features import digests
from dpfc_cli.features.digests import Stored
from dpfc_cli.features.manifest import load, load_any
from dpfc_cli.folders import DIGESTS, LEDGER
from dpfc_cli.training.ledger import real, records_of

Source = tuple[str, str]
"""A listing, and a split."""


def beside(ledger: Path) -> Path:
    """The file of digests that lies beside a ledger."""
    place = real(ledger)
    return place.with_name(place.name.removesuffix(LEDGER) + DIGESTS)


def kept_beside(ledger: Path) -> tuple[Stored, ...]:
    """The digests that lie beside another ledger; none where they are not open to us. UserError where they are damaged.

    Somebody may open the ledger of a set to others and not the set. Then nothing is known of its records.
    """
    path = beside(ledger)
    return digests.stored_in(path) if os.access(path, os.R_OK) else ()


def own_digests(ledger: Path, folder: Path) -> tuple[Stored, ...]:
    """The digests of the records of a set: those beside its ledger, and those in its folder, if it is there."""
    kept, now = digests.stored_in(beside(ledger)), in_folder(folder)
    return (*kept, *(each for each in now if each.section not in [one.section for one in kept]))


def source_of(stored: Stored) -> Source:
    """Whose digests these are."""
    return stored.section.records, stored.section.split


def splits_of(folder: Path) -> frozenset[Source]:
    """What the splits of the set in a folder are; none if there is no set, or if it is not open to us."""
    try:
        manifest = load(folder)
    except UserError:
        return frozenset()
    return frozenset((records_of(manifest, s), s) for s in manifest.splits)


def in_folder(folder: Path) -> tuple[Stored, ...]:
    """The digests of the records of the set in a folder, of each split; none if they are not known.

    Raises:
        UserError: they are damaged, or not open to us.

    """
    if (manifest := load_any(folder)) is None:
        return ()
    known = {(records_of(manifest, split), split) for split in manifest.splits}
    return tuple(each for each in digests.stored_in(folder / digests.FILE) if source_of(each) in known)


def charged(ledger: Path, folder: Path, split: str) -> bool:
    """Whether a split of a set has the records of which digests lie beside its ledger, and no others.

    A source may have other records than at the charge, or another part of it may be in the set. Digests are kept at
    every charge and with every cap. So where there are more than the set has, it cannot be told which were charged.

    Raises:
        UserError: a file of digests is damaged.

    """
    source = records_of(load(folder), split), split
    kept = {each.section for each in digests.stored_in(beside(ledger)) if source_of(each) == source}
    return kept == {each.section for each in in_folder(folder) if source_of(each) == source}


def keep(ledger: Path, folder: Path) -> None:
    """Put the digests of a set beside its ledger, which must be locked. What lies there stays.

    If there are digests of other records of the same source, such as another part of it, all of them are kept together.

    Raises:
        UserError: they cannot be written, or a file of digests is damaged.

    """
    path = beside(ledger)
    kept = {each.section.key: each for each in digests.stored_in(path)}
    new = {}
    for each in in_folder(folder):
        there = kept.get(each.section.key)
        if there is None:
            new[each.section.key] = each.read()
        elif there.section != each.section and 0 in digests.common(each, [there]):
            new[each.section.key] = np.concatenate([there.read(), each.read()])
    if not new:
        return
    sections = [(each.section, each.read()) for key, each in kept.items() if key not in new]
    sections += [digests.section_of(*key, values) for key, values in new.items()]
    try:
        # What a killed process has left.
        for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
            left.unlink()
        mode = stat.S_IMODE((path if path.exists() else folder / digests.FILE).stat().st_mode)
        digests.write(path, sections, mode & 0o666)
    except OSError as error:
        raise UserError(
            f"'{path}' cannot be written: {error.strerror or error}. It has to say which records are charged. Nothing "
            "was charged.",
            "Make that place writable, with room left.",
            code="unwritable",
            path=str(path),
        ) from error
