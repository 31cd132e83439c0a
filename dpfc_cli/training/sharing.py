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

In four cases it is the sum over all sets that are connected, which is an upper bound. If somebody says that sets share
records, it is not known which ones. Then the records of one set may be in each set that is connected with the other
one, by digests or by words. If the set knows persons, one record of a person may be in one set and the next one in
another. If its records have digests of two kinds, it is not known which of them are of one record. And where there are
more than 63 sets to compare with, they are not looked at together.

**Splits.** All of this is about the records of one split of a set: each has its own digests and its own account. The
rows of a ledger name a split. Its caps name the training records and hold for those of each split. The splits of one
set have different records, unless digests show that one is in both. But a ledger outlives its set. If the set was made
anew, what was in the other split may be in this one now. So a row about a split that the set no longer has counts,
unless digests show that none of its records is here. For persons it counts even then, because a person may have had
other records there. It does not count for them if digests show that all records of that split are in another split now.

**Units.** Which records belong to which person is a fact about one source. A training that protects the persons of
another source is not known to protect the persons of this one. So the account of a set that shares records with others
is for one record (`ledger.weight`).

**Before a row is written** the digests of its set are put beside its ledger, under the lock of that ledger, and only
then the other sets are looked for. So of two trainings on sets that share records, at least one finds the other, and
waits for it.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

from dpfc_cli.features import digests
from dpfc_cli.features.digests import MOST_COMPARED, Stored
from dpfc_cli.training.kept_digests import Source, source_of
from dpfc_cli.training.ledger import Book, Cap, Entry, real
from dpfc_cli.training.request import SPLIT

Pairs = frozenset[frozenset[str]]
"""Listings of two sets each that somebody says share records."""
Place = tuple["Known", Source]
"""A ledger, and one of the sources that it is about."""
Row = TypeVar("Row", Entry, Cap)


@dataclass(frozen=True, kw_only=True)
class Known:
    """Another ledger, or what there is of one.

    name: of its feature set. path: where it lies. book: the rows that may count. stored: digests of records. splits:
    all that it is known to be about. of: "ledger", with the digests beside it; "gone", if only they are left; or "set",
    with the digests in the folder of the set.
    """

    name: str
    path: Path
    book: Book = field(default_factory=Book)
    stored: tuple[Stored, ...] = ()
    splits: frozenset[Source] = frozenset()
    of: Literal["ledger", "gone", "set"] = "ledger"

    @property
    def known(self) -> set[Source]:
        """All that it is known to be about, by its rows, its digests and its set."""
        return {*self.splits, *self.sources, *map(source_of, self.stored)}

    @property
    def sources(self) -> set[Source]:
        """What its rows and caps are about. A cap names the training records, and holds for those of each split."""
        found = {(row.records, row.split) for row in self.book.entries}
        if self.book.caps:
            found |= {(cap.records, SPLIT) for cap in self.book.caps}
            found |= {each for each in (*self.splits, *map(source_of, self.stored)) if each[1] != SPLIT}
        return found

    def caps(self, source: Source) -> tuple[Cap, ...]:
        """The caps that hold for a source."""
        return tuple(cap for cap in self.book.caps if (cap.records, SPLIT) == source or source[1] != SPLIT)


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


def shared(
    records: Collection[str],
    own: Sequence[Stored],
    others: Sequence[Known],
    pairs: Pairs,
    by_person: bool,
    *,
    split: str = SPLIT,
    apart: Collection[Source] = (),
    now: Collection[Source] = (),
) -> Shared:
    """What other ledgers have to do with the records of a split of a set.

    Args:
        records: the listings of these records. Their rows are not among those of `others`: they count in any case.
        own: their digests.
        others: the other ledgers, and what the set's own one has about other splits.
        pairs: which sets share records, as somebody says.
        by_person: whether the set knows persons.
        split: which split it is.
        apart: all splits that the set has or had, as far as its ledger and digests know.
        now: the splits that the set has. A record lies in one of them, unless digests tell that a picture is there
            twice.

    Raises:
        UserError: a file of digests is damaged.

    """
    here, same = {(listing, split) for listing in records}, {listing for listing, _ in apart} | set(records)
    pairs = _of_all_splits(pairs, [*others, Known(name="", path=Path(), splits=frozenset((*apart, *here)))])
    alone = [each for each in others if each.of == "gone"]
    others = [replace(each, stored=tuple(s for s in each.stored if source_of(s) not in here)) for each in others]
    places = [(each, source) for each in others for source in sorted(each.sources)]
    found = _Patterns(own, others, {source for _, source in places})
    near = {other.section.records for _, other in found.targets if found.counts[other]}
    summed = by_person or found.summed or len({each.section.kind for each in own}) > 1
    besides = [one for each in others for one in each.stored if source_of(one) in now]
    # Where there is no set, nothing was made anew.
    there = {listing for listing, _ in now or apart}
    silent = bool(own) and set(records) <= {each.section.records for each in own}
    reached: set[str] = set(records) | near
    if any(pair & reached for pair in pairs):
        reached, summed = _connected(reached, others, pairs), True

    def counts(place: Place) -> bool:
        known, both = found.of(place), found.count(place)
        if place[1][0] in there:
            # Persons lie in one split as a whole.
            return both > 0 and not by_person
        if place[1][0] in same:
            # The set was made anew since then. What was in another split may be in this one now.
            kept = found.beside(place)
            if both and not by_person:
                return True
            # If all of it lies in another split, its persons do so as a whole.
            return not _within(kept, besides) and (by_person or not (silent and _disjoint(own, kept)))
        # If it is known which records a part of a source has, and none of them is here, its rows do not count.
        return place[1][0] in reached and (summed or not known or both > 0)

    counted = [place for place in places if counts(place)]
    # It counts, and digests cannot tell for which records.
    summed |= any(found.of(place) and not found.count(place) for place in counted)
    shares = tuple(_share(each, source, found.count((each, source))) for each, source in counted)
    patterns = {
        frozenset(i for i, place in enumerate(counted) if found.has(pattern, place)) for pattern in found.patterns
    }
    if summed:
        patterns = {frozenset(range(len(shares)))}
    left = [place for place in places if place not in counted and place[1][0] not in same]
    doubted = {place[0].name for place in left if not (silent and _disjoint(own, found.beside(place)))}
    lost = [
        replace(each, stored=tuple(s for s in each.stored if source_of(s) in here or s.section.records not in there))
        for each in alone
    ]
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

    def __init__(self, own: Sequence[Stored], others: Sequence[Known], charged: Collection[Source]) -> None:
        self.targets = [(each, one) for each in others for one in each.stored]
        self.counts = Counter[Stored]()
        # A record may be in no other section.
        self.patterns: set[frozenset[Stored]] = {frozenset()}
        self.summed = False
        for mine in own:
            alike = [one for _, one in self.targets if one.section.kind == mine.section.kind]
            # Where nothing is charged, it need not be known which of them have one record.
            some, rest = ([one for one in alike if (source_of(one) in charged) is is_] for is_ in (True, False))
            self.summed |= len(some) > MOST_COMPARED
            for all_of in (some, rest):
                for at in range(0, len(all_of), MOST_COMPARED):
                    part = all_of[at : at + MOST_COMPARED]
                    self._add(part, digests.common(mine, part))

    def _add(self, part: Sequence[Stored], found: dict[int, int]) -> None:
        counts = Counter[Stored]()
        for pattern, count in found.items():
            there = frozenset(one for bit, one in enumerate(part) if pattern >> bit & 1)
            self.patterns.add(there)
            for one in there:
                counts[one] += count
        self.counts |= counts

    def beside(self, place: Place) -> list[Stored]:
        """The digests of a source that lie beside the ledger."""
        ledger, source = place
        return [one for each, one in self.targets if each is ledger and source_of(one) == source]

    def of(self, place: Place) -> list[Stored]:
        """The digests of a source: those beside the ledger, or else those of as many records beside another one.

        A row says which source was charged, and not which part of it. So the latter may be of other records.
        """
        ledger, source = place
        rows = [row for row in ledger.book.entries if (row.records, row.split) == source]
        charged = {row.n if row.unit == "record" else None for row in rows}
        known = [one for _, one in self.targets if source_of(one) == source]
        return self.beside(place) or [one for one in known if {one.section.count} == charged]

    def count(self, place: Place) -> int:
        """How many different records a source has; 0 if that is not known."""
        return max((self.counts[one] for one in self.of(place)), default=0)

    def has(self, pattern: frozenset[Stored], place: Place) -> bool:
        """Whether records of this pattern are in a source, or may be."""
        known = self.of(place)
        return not known or any(one in pattern for one in known)


def _share(each: Known, source: Source, count: int) -> Share:
    return Share(
        name=each.name,
        records=count or None,
        entries=tuple(of_others(row) for row in each.book.entries if (row.records, row.split) == source),
        caps=tuple(map(of_others, each.caps(source))),
    )


def of_others(row: Row) -> Row:
    """A row about another source. Its persons are others, whatever their digest is: it says which records belong
    together there, and not which records these are.
    """
    if row.persons is None:
        return row
    return replace(row, persons=hashlib.sha256(f"{row.records} {row.persons}".encode()).hexdigest())


def _disjoint(own: Sequence[Stored], known: Iterable[Stored]) -> bool:
    """Whether digests can tell that a set has nothing in common with a source, if none of them is the same."""
    kinds = {one.section.kind for one in known}
    return all(mine.section.kind in kinds and mine.section.kind != "row" for mine in own)


def _within(known: Sequence[Stored], others: Sequence[Stored]) -> bool:
    """Whether digests tell that each record of these sections lies in one of the others."""

    def there(one: Stored) -> bool:
        alike = [other for other in others if other.section.kind == one.section.kind]
        found = digests.common(one, alike)
        # What has no digest may be anywhere.
        return 0 not in found and sum(found.values()) == one.section.count

    return bool(known) and all(map(there, known))


def _largest(patterns: Iterable[frozenset[int]]) -> tuple[frozenset[int], ...]:
    """The patterns that are no part of another one."""
    found: list[frozenset[int]] = []
    for pattern in sorted(patterns, key=len, reverse=True):
        if not any(pattern <= larger for larger in found):
            found.append(pattern)
    return tuple(sorted(found, key=sorted))


def _of_all_splits(pairs: Pairs, sets: Iterable[Known]) -> Pairs:
    """Sets that share records may share those of any split. What somebody says names their training records."""
    splits: dict[str, set[str]] = {}
    for each in sets:
        known = each.known
        for listing, split in known:
            if split == SPLIT:
                splits.setdefault(listing, set()).update(one for one, _ in known)
    found = set[frozenset[str]]()
    for pair in pairs:
        first, *_, last = [splits.get(listing, set()) | {listing} for listing in pair] * 2
        found |= {frozenset((one, other)) for one in first for other in last}
    return frozenset(found)


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
        for other in everything - reached:
            if {listing, other} in pairs or _meet(known.get(listing, []), known.get(other, [])):
                reached.add(other)
                waiting.append(other)
    return reached


def _meet(some: Sequence[Stored], others: Sequence[Stored]) -> bool:
    """Whether two sources have a record in common."""
    return any(
        one.section.kind == other.section.kind and 1 in digests.common(one, [other]) for one in some for other in others
    )
