"""Which rows of ledgers are about the same records, by the listings of their sources alone."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

from dpfc_cli.features.manifest import load_any, unreadable
from dpfc_cli.folders import features_folder
from dpfc_cli.training import other_ledgers
from dpfc_cli.training.kept_digests import splits_of
from dpfc_cli.training.ledger import Book, Entry, about, read_all, real, records_of
from dpfc_cli.training.request import SPLIT


def rows_about(ledger: Path, named: Path, split: str) -> list[Entry]:
    """The rows about a split under any name, by its listing alone. Digests of records are not read.

    Raises:
        UserError: a ledger, or the manifest, cannot be read.

    """
    own = read_all(ledger)
    records, elsewhere = listed(ledger.with_name(other_ledgers.name_of(ledger)), own, split)
    if split == SPLIT:
        records |= {cap.records for cap in own.caps} | {each.records for each in own.overlaps}
    others, *_ = others_around(ledger, named)
    beside = linked(ledger, others, records, elsewhere)
    now = {listing for listing, _ in splits_of(ledger.with_name(other_ledgers.name_of(ledger)))}
    # A row about a split that the set no longer has may be about any of its records.
    mine = (
        row
        for row in own.entries
        if (row in about([row], split, records) and not elsewhere(row)) or row.records not in now
    )
    return [*mine, *(row for rows in beside.values() for row in rows)]


def others_around(ledger: Path, named: Path | None) -> tuple[dict[Path, Book], list[Path], list[Path], list[str]]:
    """The other ledgers around a set; and what `other_ledgers.search` says besides."""
    roots = [ledger.parent, *([] if named is None else [named.parent]), features_folder()]
    try:
        found, left, folders, nowhere = other_ledgers.search(roots)
    except OSError as error:
        raise unreadable(Path(error.filename or ledger.parent), error) from error
    return (
        {path: read_all(path) for lies, path in sorted(found.items()) if lies != real(ledger)},
        left,
        folders,
        nowhere,
    )


def listed(folder: Path, own: Book, split: str) -> tuple[set[str], Callable[[Entry], bool]]:
    """The listings of a split; and whether a row is about another split for sure."""
    records = {row.records for row in own.entries if row.split == split}
    if (manifest := load_any(folder)) is None:
        return records, lambda row: False
    # The ledger may be older than the set, which may have had a split of that name.
    records |= {records_of(manifest, split)} if split in manifest.splits else set()
    return records, partial(other_ledgers.elsewhere, manifest, split)


def linked(
    ledger: Path, others: Mapping[Path, Book], records: Collection[str], elsewhere: Callable[[Entry], bool]
) -> dict[Path, list[Entry]]:
    """The rows of other ledgers about these records."""
    cut = other_ledgers.cut
    return {
        path: [
            row for row in book.entries if row.records in records and not (elsewhere(row) and cut(path) == cut(ledger))
        ]
        for path, book in others.items()
    }
