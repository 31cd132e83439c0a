"""Sets that share some records: which they are, and which trainings count for which records.

Ledgers of exactly the same source are linked by its listing (`account`). A set that grew, a part of a set, or a second
extraction with more pictures has another listing, and the same records all the same. Two things tell that:

- **Digests** of single records (`sources.digests`). They lie in the folder of a set and, since its first training,
  beside its ledger, because the ledger outlives the set. A record that is in several sets has one digest, so it is
  known for each record in which sets it is.
- **Somebody says so** (`--also`). That is a row of the ledger, so it need not be repeated and cannot be left out. Which
  records the two sets share is not known, so it may be all of them.

**What counts.** A record is in some of the sets: its *pattern*. All trainings on these sets see it, so their releases
compose for it, and all caps that were set for one of them are caps for it. The account of a set is the largest one over
its records. A pattern that is a part of another one has no more trainings and no more caps, so the largest patterns
decide. These are the *cases*. Each is composed by itself, so the account is exact.

In three cases it is the sum over all sets that are connected, which is an upper bound. If somebody says that sets share
records, it is not known which ones. Then the records of one set may be in each set that is connected with the other
one, by digests or by words. If the set knows persons, one record of a person may be in one set and the next one in
another. And where there are more than 63 sets to compare with, they are not looked at together.

**Units.** Which records belong to which person is a fact about one source. A training that protects the persons of
another source is not known to protect the persons of this one. So the account of a set that shares records with others
is for one record (`ledger.weight`).

**Before a row is written** the digests of its set are put beside its ledger, under the lock of that ledger, and only
then the other sets are looked for. So of two trainings on sets that share records, at least one finds the other, and
waits for it.
"""

import glob
import hashlib
import os
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from dpfc_cli.errors import UserError
from dpfc_cli.features import digests
from dpfc_cli.features.digests import MOST_COMPARED, Stored
from dpfc_cli.features.manifest import MANIFEST, load
from dpfc_cli.folders import DIGESTS, LEDGER
from dpfc_cli.training.ledger import Book, Cap, Entry, real, records_of
from dpfc_cli.training.request import SPLIT

Pairs = frozenset[frozenset[str]]
"""Listings of two sets each that somebody says share records."""
Source = tuple[str, str]
"""A listing, and a split."""
Row = TypeVar("Row", Entry, Cap)


@dataclass(frozen=True, kw_only=True)
class Known:
    """Another ledger, or what there is of one.

    name: of its feature set. path: where it lies. stored: digests of records. of: "ledger", with the digests beside it;
    "gone", if only they are left; or "set", with the digests in the folder of the set.
    """

    name: str
    path: Path
    book: Book = field(default_factory=Book)
    stored: tuple[Stored, ...] = ()
    of: Literal["ledger", "gone", "set"] = "ledger"

    @property
    def sources(self) -> set[Source]:
        """What its rows are about."""
        return {
            *((row.records, row.split) for row in self.book.entries),
            *((cap.records, SPLIT) for cap in self.book.caps),
        }


@dataclass(frozen=True, kw_only=True)
class Share:
    """The rows and caps of another ledger that are about one source.

    name: of its feature set. records: how many different records of the set that is asked about are known to be there;
    None if somebody says that there are some.
    """

    name: str
    records: int | None
    entries: tuple[Entry, ...]
    caps: tuple[Cap, ...]


@dataclass(frozen=True, kw_only=True)
class Shared:
    """What other ledgers have to do with the records of a set.

    shares: what counts for some of its records. cases: which of them count together, by their places. summed: whether
    all were put together, because it is not known which records are where. sources: listings of the set and of all that
    share records with it. ledgers: where their ledgers lie. unknown: names of sets of which it is not known whether
    they share records. gone: names of sets that share records, and whose ledger is gone.
    """

    shares: tuple[Share, ...] = ()
    cases: tuple[frozenset[int], ...] = (frozenset(),)
    summed: bool = False
    sources: frozenset[str] = frozenset()
    ledgers: frozenset[Path] = frozenset()
    unknown: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


def beside(ledger: Path) -> Path:
    """The file of digests that lies beside a ledger."""
    place = real(ledger)
    return place.with_name(place.name.removesuffix(LEDGER) + DIGESTS)


def kept_beside(ledger: Path) -> tuple[Stored, ...]:
    """The digests that lie beside another ledger; none where they are not open to us. UserError where they are damaged.

    Somebody may open the ledger of a set to others and not the set. Then nothing is known of its records.
    """
    path = beside(ledger)
    return digests.stored_in(path) if not path.exists() or os.access(path, os.R_OK) else ()


def own_digests(ledger: Path, folder: Path) -> tuple[Stored, ...]:
    """The digests of the records of a set: those beside its ledger, and those in its folder, if it is there."""
    kept, now = digests.stored_in(beside(ledger)), in_folder(folder)
    return (*kept, *(each for each in now if each.section not in [one.section for one in kept]))


def in_folder(folder: Path) -> tuple[Stored, ...]:
    """The digests of the training records of the set in a folder; none if they are not known.

    Raises:
        UserError: they are damaged, or not open to us.

    """
    if not (folder / MANIFEST).exists():
        return ()
    listing = records_of(load(folder))
    found = digests.stored_in(folder / digests.FILE)
    return tuple(each for each in found if (each.section.records, each.section.split) == (listing, SPLIT))


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
            left.unlink(missing_ok=True)
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


def shared(
    records: Collection[str],
    own: Sequence[Stored],
    others: Sequence[Known],
    pairs: Pairs,
    by_person: bool,
    apart: Collection[str] = (),
) -> Shared:
    """What other ledgers have to do with the records of a set.

    Args:
        records: the listings of the set. Rows about these are not looked at: they count in any case.
        own: the digests of the set.
        others: the other ledgers.
        pairs: which sets share records, as somebody says.
        by_person: whether the set knows persons.
        apart: the listings of its other splits. They have other records.

    Raises:
        UserError: a file of digests is damaged.

    """
    others = [
        replace(each, stored=tuple(s for s in each.stored if s.section.records not in records)) for each in others
    ]
    skipped = {*records, *apart}
    places = [(each, source) for each in others for source in sorted(each.sources) if source[0] not in skipped]
    found = _Patterns(own, others)
    near = {other.section.records for _, other in found.targets if found.counts[other]}
    summed = by_person or found.summed
    reached: set[str] = set(records) | near
    if any(pair & reached for pair in pairs):
        reached, summed = _connected(reached, others, pairs), True
    # If it is known which records a part of a source has, and none of them is here, its rows do not count.
    parts = [source for _, source in places if summed or not found.of(source) or found.count(source)]
    counted = [(each, source) for each, source in places if source[0] in reached and source in parts]
    shares = tuple(_share(each, source, found.count(source)) for each, source in counted)
    patterns = {
        frozenset(i for i, (_, source) in enumerate(counted) if found.has(pattern, source))
        for pattern in found.patterns
    }
    if summed:
        patterns = {frozenset(range(len(shares)))}
    silent = bool(own) and set(records) <= {each.section.records for each in own}
    left = [(each, source) for each, source in places if (each, source) not in counted]
    doubted = {each.name for each, source in left if not (silent and _disjoint(own, found.of(source)))}
    lost = [each for each in others if each.of == "gone"]
    gone = {each.name for each in lost if any(one.section.records in reached for one in each.stored)}
    doubted |= {each.name for each in lost if not all(silent and _disjoint(own, [one]) for one in each.stored)} - gone
    return Shared(
        shares=shares,
        cases=_largest(patterns),
        summed=summed and bool(shares),
        sources=frozenset(reached),
        ledgers=frozenset(
            real(each.path)
            for each in others
            if each.of == "ledger"
            and reached & {*(one.section.records for one in each.stored), *(listing for listing, _ in each.sources)}
        ),
        unknown=tuple(sorted(doubted)),
        gone=tuple(sorted(gone)),
    )


class _Patterns:
    """Which sections of other ledgers have the records of a set.

    targets: all sections that were compared, with their ledgers. counts: how many different records each of them has.
    patterns: which of them have one record. summed: there are too many to tell.
    """

    def __init__(self, own: Sequence[Stored], others: Sequence[Known]) -> None:
        self.targets = [(each, one) for each in others for one in each.stored]
        self.counts = Counter[Stored]()
        self.patterns: set[frozenset[Stored]] = set()
        self.summed = False
        for mine in own:
            alike = [one for _, one in self.targets if one.section.kind == mine.section.kind]
            parts = [alike[at : at + MOST_COMPARED] for at in range(0, len(alike), MOST_COMPARED)]
            self.summed |= len(parts) > 1
            for part in parts:
                self._add(part, digests.common(mine, part))

    def _add(self, part: Sequence[Stored], found: dict[int, int]) -> None:
        counts = Counter[Stored]()
        for pattern, count in found.items():
            there = frozenset(one for bit, one in enumerate(part) if pattern >> bit & 1)
            self.patterns.add(there)
            for one in there:
                counts[one] += count
        self.counts |= counts

    def of(self, source: Source) -> list[Stored]:
        """The digests of a source, whichever ledger they lie beside."""
        return [one for _, one in self.targets if (one.section.records, one.section.split) == source]

    def count(self, source: Source) -> int:
        """How many different records a source has; 0 if that is not known."""
        return max((self.counts[one] for one in self.of(source)), default=0)

    def has(self, pattern: frozenset[Stored], source: Source) -> bool:
        """Whether records of this pattern are in a source, or may be."""
        known = self.of(source)
        return not known or any(one in pattern for one in known)


def _share(each: Known, source: Source, count: int) -> Share:
    return Share(
        name=each.name,
        records=count or None,
        entries=tuple(_of_others(row) for row in each.book.entries if (row.records, row.split) == source),
        caps=tuple(_of_others(cap) for cap in each.book.caps if (cap.records, SPLIT) == source),
    )


def _of_others(row: Row) -> Row:
    """A row of another source. Its persons are others, whatever their digest is: it says who belongs together there."""
    if row.persons is None:
        return row
    return replace(row, persons=hashlib.sha256(f"{row.records} {row.persons}".encode()).hexdigest())


def _disjoint(own: Sequence[Stored], known: Iterable[Stored]) -> bool:
    """Whether digests can tell that a set has nothing in common with a source, if none of them is the same."""
    kinds = {one.section.kind for one in known}
    return all(mine.section.kind in kinds and mine.section.kind != "row" for mine in own)


def _largest(patterns: Iterable[frozenset[int]]) -> tuple[frozenset[int], ...]:
    """The patterns that are no part of another one; one without anything if there are none."""
    found: list[frozenset[int]] = []
    for pattern in sorted(patterns, key=len, reverse=True):
        if not any(pattern <= larger for larger in found):
            found.append(pattern)
    return tuple(sorted(found, key=sorted)) or (frozenset(),)


def _connected(reached: set[str], others: Sequence[Known], pairs: Pairs) -> set[str]:
    """All listings that are connected with some, by words or by digests."""
    known: dict[str, list[Stored]] = {}
    for each in others:
        for one in each.stored:
            known.setdefault(one.section.records, []).append(one)
    reached, waiting = set(reached), sorted(reached)
    everything = {*known, *(listing for pair in pairs for listing in pair)}
    while waiting:
        listing = waiting.pop()
        for other in sorted(everything - reached):
            if {listing, other} in pairs or _meet(known.get(listing, []), known.get(other, [])):
                reached.add(other)
                waiting.append(other)
    return reached


def _meet(some: Sequence[Stored], others: Sequence[Stored]) -> bool:
    """Whether two sources have a record in common."""
    return any(
        one.section.kind == other.section.kind and 1 in digests.common(one, [other]) for one in some for other in others
    )
