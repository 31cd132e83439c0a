"""The ledgers around that of a set: where they lie, what they know, and which of their rows are about its records."""

import errno
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpfc_cli.errors import UserError, parameter
from dpfc_cli.features.manifest import MANIFEST, Manifest, load_any, unreadable
from dpfc_cli.folders import DIGESTS, LEDGER
from dpfc_cli.training.kept_digests import in_folder, kept_beside, splits_of
from dpfc_cli.training.ledger import Book, Cap, Entry, ledger_path, persons_of, real, records_of
from dpfc_cli.training.sharing import Known
from dpfc_cli.trust.statement import hold_out_of

_NO_SET = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""What the system says of a manifest that is not there."""


def known(name: str, path: Path, book: Book) -> Known:
    """Another ledger, and all splits that it is about."""
    splits = {*((row.records, row.split) for row in book.entries), *splits_of(path.with_name(name_of(path)))}
    return Known(name=name, path=path, book=book, stored=kept_beside(path), splits=frozenset(splits))


def without(book: Book, entries: Iterable[Entry], caps: Iterable[Cap]) -> Book:
    """What is left of a ledger if some of its rows are counted already."""
    entries, caps = list(entries), list(caps)
    return replace(
        book,
        entries=tuple(row for row in book.entries if row not in entries),
        caps=tuple(cap for cap in book.caps if cap not in caps),
    )


def untrained(folder: Path) -> Known:
    """What the folder of a set knows of its records."""
    try:
        stored = in_folder(folder)
    except UserError:
        # Nobody has spent anything on it. Whoever trains on it is told.
        stored = ()
    return Known(name=folder.name, path=folder, stored=stored, splits=splits_of(folder), of="set")


def elsewhere(manifest: Manifest, split: str, row: Entry) -> bool:
    """Whether a row is about another split of a set than this one, and so about none of its records.

    Splits that were held out have one listing. Which records are in which follows from their names and the fraction,
    and a larger fraction holds out the records of a smaller one and more. So if the other split has as many records as
    the row says, it is the same one. This is not so if only some of the records were taken. Where the set knows
    persons, the digest of which records are whose says it.
    """
    identity = manifest.source["identity"]
    if row.split == split or row.split not in manifest.splits or not hold_out_of(manifest):
        return False
    if row.persons is not None or manifest.grouped:
        return row.persons is not None and row.persons == persons_of(manifest, row.split)
    return row.n == manifest.splits[row.split].n and identity.get("spread") is None


def cut(ledger: Path) -> tuple[Any, ...] | None:
    """How the records of a set were divided into splits. None if there is no set beside its ledger."""
    try:
        manifest = _manifest_beside(ledger)
    except UserError:
        return None
    identity = None if manifest is None else manifest.source["identity"]
    return None if identity is None else tuple(identity.get(name) for name in ("hold_out", "spread", "groups"))


def begun(ledger: Path, book: Book, records: set[str]) -> bool:
    """Whether a ledger without trainings may be one of these records: its first row may be about to be written."""
    if book.entries or book.caps:
        return False
    try:
        manifest = _manifest_beside(ledger)
        return manifest is not None and any(records_of(manifest, split) in records for split in manifest.splits)
    except UserError:
        return True


def _manifest_beside(ledger: Path) -> Manifest | None:
    """Of the set beside a ledger; None if there is no set. UserError where it is damaged, or closed to us."""
    return load_any(real(ledger).with_name(name_of(real(ledger))))


def newest_ledger(folder: Path) -> Path:
    """The ledger in a folder of feature sets that was charged last. UserError where there is none."""
    try:
        paths, sets = (_all_in(folder), sets_in([folder])) if os.path.exists(folder) else ([], [])
    except OSError as error:
        raise unreadable(folder, error) from error
    # A set may be a link to a folder elsewhere: its ledger then lies there.
    known = (*_ending(paths, LEDGER), *map(ledger_path, sets))
    found = {path for path in known if os.path.exists(path)}
    if not found:
        raise UserError(
            f"Nothing to show: there is no ledger in '{folder}', and neither {parameter('sigma')} nor "
            f"{parameter('epsilon')} was given.",
            "Try 'dpfc budget --sigma 10 --steps 10', or train something first.",
            code="missing",
            path=str(folder),
        )
    return max(found, key=lambda p: p.stat().st_mtime_ns).absolute()


def search(roots: list[Path]) -> tuple[dict[Path, Path], list[Path], list[Path], list[str]]:
    """Every ledger in some folders, and in the folders where sets in them really lie.

    Returns:
        The ledgers, each under its real path; where ledgers were of which only the digests are left; the folders; and
        the names of links in them that lead nowhere, or to where we cannot look for others.

    Raises:
        OSError: one of the folders that are given cannot be listed.

    """
    waiting: list[tuple[Path, str | None]] = [(real(root), None) for root in roots]
    found: dict[Path, Path] = {}
    left: list[Path] = []
    folders: list[Path] = []
    nowhere: list[str] = []
    while waiting:
        folder, link = waiting.pop(0)
        if folder in folders:
            continue
        try:
            paths = _all_in(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError:
            if link is None:
                raise
            nowhere.append(link)
            continue
        folders.append(folder)
        nowhere += [path.name for path in paths if os.path.islink(path) and not os.path.exists(path)]
        places = [path.with_name(path.name.removesuffix(DIGESTS) + LEDGER) for path in _ending(paths, DIGESTS)]
        left += [path for path in places if not os.path.lexists(path)]
        sets = sets_in([folder])
        # Of the set of a link the ledger lies beside the real folder, if there is one.
        away = [path for path in map(ledger_path, sets) if os.path.lexists(path)]
        for path in (*_ending(paths, LEDGER), *away):
            found.setdefault(real(path), path)
        waiting += [(real(ledger_path(path).parent), path.name) for path in sets]
    return found, left, folders, nowhere


def sets_in(folders: Iterable[Path]) -> list[Path]:
    """The sets in some folders. What is closed to us may be one. OSError where a folder cannot be listed."""
    return [path for folder in folders for path in _all_in(folder) if _may_be_set(path)]


def _all_in(folder: Path) -> list[Path]:
    """What lies in a folder. OSError where it cannot be listed: `Path.glob` would say nothing of that."""
    return [folder / name for name in sorted(os.listdir(folder))]


def _ending(paths: Iterable[Path], end: str) -> list[Path]:
    return [path for path in paths if path.name.endswith(end)]


def _may_be_set(folder: Path) -> bool:
    try:
        os.stat(folder / MANIFEST)
    except PermissionError:
        return True
    except OSError as error:
        if error.errno not in _NO_SET:
            raise
        return False
    return True


def names_of(ledgers: list[Path]) -> dict[Path, str]:
    """The names of feature sets by their ledgers. Sets of one name are told apart by their paths."""
    names = {path: name_of(path) for path in ledgers}
    many = Counter(names.values())
    return {path: name if many[name] == 1 else str(path.with_name(name)) for path, name in names.items()}


def has_row_of(rows: tuple[Entry, ...], card: Mapping[str, Any]) -> bool:
    """Whether a head's training is the row that its card names. A head of an earlier version names none."""
    standing = card.get("ledger")
    if standing is None:
        return True
    number = standing["training"]
    if len(rows) < number:
        return False
    row = rows[number - 1]
    # A head that started from a private one has the releases of both, and shares of their common budget.
    own = card["plan"][card.get("public_head", {}).get("releases", 0) :]
    made = (row.at, row.method, row.claim, _unshared(row.plan))
    return made == (card.get("date"), card["method"], card["claim"], _unshared(own))


def _unshared(releases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in release.items() if name != "share"} for release in releases]


def name_of(ledger: Path) -> str:
    return ledger.name.removesuffix(LEDGER)
