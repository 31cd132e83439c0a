"""The account of a set of records: all trainings on them that the ledgers know.

The total of full passes is exact: it is the smallest ε that holds for all their releases together (Dong, Roth and Su
2022, Corollary 3.3). The corollary lets each training depend on what the earlier ones released, but it takes their
noise as fixed in advance. If someone looks at one head to decide whether to train another, and with how much noise, the
noise is chosen adaptively. The sum of what was spent is then no guarantee by itself: a bound that is only known
afterwards may depend on the records. A *cap* that is fixed in advance is one. If Σ 1/σ² over all full passes is never
let above μ², whatever was seen before, everything that was released is μ-GDP together. This is a privacy filter in the
sense of Rogers, Roth, Ullman and Vadhan (2016), which tell it from an odometer, a total that is valid at any time and
has to be larger. For Gaussian differential privacy the filter costs nothing: Smith and Thakurta (2022), "Fully adaptive
composition for Gaussian differential privacy"; Koskela, Tobaben and Honkela (2023), "Individual privacy accounting with
Gaussian differential privacy". So for full passes:

- planned in advance, the total is the guarantee;
- under a cap (`limit`, or any other rule, fixed in advance, that keeps the total below one), the ε of the cap is;
- without either, the total says what the trainings spent, and no more.

For Poisson-sampled releases the total is an upper bound, and only for trainings that were planned in advance: we know
of no such filter for the composition that is used here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpfc_cli.features.manifest import MANIFEST, load
from dpfc_cli.training import limit, other_ledgers, same_records
from dpfc_cli.training.kept_digests import kept_beside, own_digests, source_of, splits_of
from dpfc_cli.training.ledger import (
    RECORD,
    Book,
    Cap,
    Entry,
    Overlap,
    Unit,
    about,
    composes_exactly,
    persons_of,
    read_all,
    real,
    records_of,
    together,
    unit_of,
)
from dpfc_cli.training.request import SPLIT
from dpfc_cli.training.sharing import Known, Shared, of_others, shared


@dataclass(frozen=True, kw_only=True)
class Case:
    """What counts for some of the records of a set. caps: of each source, because a cap replaces those before it that
    were set for the same one.
    """

    entries: list[Entry]
    caps: list[list[limit.Named]]

    @property
    def in_force(self) -> list[limit.Named]:
        """The caps that hold."""
        return [each for caps in self.caps for each in limit.in_force(caps)]


@dataclass(frozen=True, kw_only=True)
class Account:
    """What was spent on the same records.

    ledger: of the feature set. name: of the feature set. folders: where ledgers were looked for. own: the rows of the
    ledger. linked: rows of other ledgers about the same source, each with the name of its feature set. shared: rows and
    caps about other sources that share records with this one. not_counted: other feature sets that have a ledger, or
    that are links which lead nowhere, if it is not known whether they share records with this one. lost: heads of this
    set whose training is in no ledger. gone: sets that share records, and whose ledger is gone. caps: all caps on this
    source, the newest of a ledger last, each with the name of its feature set. ledgers: where the other ledgers about
    these records really lie. overlaps: what somebody says of sets that share records with this one. protects: what a
    training on them protects. split: which records.
    """

    ledger: Path
    name: str
    folders: tuple[Path, ...]
    own: tuple[Entry, ...]
    linked: tuple[tuple[str, Entry], ...]
    not_counted: tuple[str, ...]
    lost: tuple[str, ...]
    caps: tuple[tuple[str, Cap], ...]
    ledgers: frozenset[Path]
    overlaps: tuple[Overlap, ...]
    protects: Unit
    split: str
    shared: Shared

    @property
    def rows(self) -> list[tuple[str, Entry]]:
        """All rows with the names of their feature sets, oldest first."""
        others = [(share.name, row) for share in self.shared.shares for row in share.entries]
        return sorted([*((self.name, row) for row in self.own), *self.linked, *others], key=lambda each: each[1].at)

    @property
    def names(self) -> list[str]:
        """The names of the feature sets that count."""
        others = (share.name for share in self.shared.shares)
        return sorted({self.name, *(name for name, _ in self.linked), *others})

    @property
    def entries(self) -> list[Entry]:
        """All rows. Not all of them need to count for one record: see `cases`."""
        return [row for _, row in self.rows]

    @property
    def cases(self) -> list[Case]:
        """What counts together for some of the records. Each record has one of these cases, or a part of one."""
        base = [*self.own, *(row for _, row in self.linked)]
        found = []
        for case in self.shared.cases:
            there = [self.shared.shares[i] for i in case]
            caps = self._groups(self.caps) or [[]]
            for share in there:
                caps += self._groups([(share.name, cap) for cap in share.caps])
            found.append(Case(entries=[*base, *(row for share in there for row in share.entries)], caps=caps))
        return found

    def _groups(self, caps: Iterable[limit.Named]) -> list[list[limit.Named]]:
        """Caps that replace one another: those of this ledger, and those of another one for the same records."""
        found: dict[tuple[str, str], list[limit.Named]] = {}
        for name, cap in caps:
            key = ("", "") if name == self.name else (name, cap.records)
            found.setdefault(key, []).append((name, cap))
        return list(found.values())

    def check(self, entry: Entry) -> None:
        """Refuse a training that a cap does not allow for one of these records (`limit.check`)."""
        for case in self.cases:
            for caps in case.caps:
                limit.check(caps, case.entries, entry)

    def room(self, cap: Cap, of: Unit | None = None) -> float:
        """What all trainings leave of a cap, for the record that has least of it (`limit.room`)."""
        held = [case for case in self.cases if any(each == cap for _, each in case.in_force)]
        return min(limit.room(cap, case.entries, of) for case in held or self.cases)

    @property
    def private(self) -> int:
        """The number of trainings with a guarantee."""
        return sum(row.claim == "private" for row in self.entries)

    @property
    def unprotected(self) -> int:
        """The number of trainings without a guarantee, which no ε covers."""
        return len(self.entries) - self.private

    @property
    def exact(self) -> bool:
        """Whether `epsilon` is the smallest that can be claimed. Otherwise it is an upper bound."""
        doubled = bool(self.shared.shares) and any(row.unit != "record" for row in self.entries if row.mu is not None)
        return not self.shared.summed and not doubled and all(composes_exactly(each.entries) for each in self.cases)

    def epsilon(self, delta: float) -> float:
        """ε at δ of all private trainings together, for one `unit`, under zero-out adjacency. It is for the record (or
        person) that they cost most.
        """
        return max(together(case.entries, delta, self._unit) for case in self.cases)

    @property
    def unit(self) -> str:
        """What `epsilon` protects: a person if all private trainings protect the same persons, or else a record."""
        return self._unit[0]

    @property
    def _unit(self) -> Unit:
        if any(share.entries for share in self.shared.shares):
            return RECORD
        made = {row.protects for row in self.entries if row.mu is not None}
        return self.protects if made <= {self.protects} else RECORD

    @property
    def all_caps(self) -> list[limit.Named]:
        """All caps on some of these records."""
        found = [*self.caps, *((share.name, cap) for share in self.shared.shares for cap in share.caps)]
        return list(dict.fromkeys(found))

    @property
    def in_force(self) -> list[limit.Named]:
        """The caps that hold for some of the records, the strictest first, each with the name of the feature set that
        it was set for.
        """
        return limit.strictest_first(dict.fromkeys(each for case in self.cases for each in case.in_force))

    def left(self, delta: float) -> float | None:
        """The largest ε of four digits at δ that one more training may spend under all caps: 0 if nothing fits, and
        None if there is no cap.
        """
        if not self.in_force:
            return None
        left = min(self.room(cap, self.protects) for _, cap in self.in_force)
        return limit.fitting(left, delta) or 0.0

    @property
    def warning(self) -> str | None:
        """What to tell if heads of this set have no row, or if the ledger of a set that shares records is gone."""
        if not self.lost and self.shared.gone:
            return (
                f"The ledger of {', '.join(self.shared.gone)} is gone. Some of these records were charged to it. What "
                "was spent there is in no sum. Put it back beside its digests."
            )
        if not self.lost:
            return None
        others = f" and {len(self.lost) - 1} more" if len(self.lost) > 1 else ""
        return (
            f"The ledgers do not have the training of '{self.lost[0]}'{others}, made of {self.name}. A ledger is gone "
            "or was put back from an older backup, the set was moved without its ledger, or the training was done "
            "elsewhere. What was spent there is in no sum. Put the ledger back beside the set's folder."
        )

    def with_planned(self, entry: Entry) -> "Account":
        """The account as it will be after one more training."""
        return replace(self, own=(*self.own, entry))

    def to_json(self, deltas: tuple[float, ...]) -> dict[str, Any]:
        """For programs."""
        shown = ("at", "method", "claim", "epsilon", "delta", "adjacency", "head", "state", "sha256", "purpose")
        said, held = ("at", "epsilon", "delta", "note", "trainings"), self.in_force
        return {
            "ledger": str(self.ledger),
            "split": self.split,
            "feature_sets": self.names,
            "not_counted": list(self.not_counted),
            "adjacency": "zero-out",
            "unit": self.unit,
            "exact": self.exact,
            "epsilon": {f"{delta:g}": self.epsilon(delta) for delta in deltas},
            "unprotected": self.unprotected,
            "heads_without_row": list(self.lost),
            "ledgers_gone": list(self.shared.gone),
            "caps": [
                {
                    **{key: getattr(cap, key) for key in said},
                    **{"by": cap.who, "feature_set": name, "in_force": (name, cap) in held},
                }
                for name, cap in self.all_caps
            ],
            "left": {f"{delta:g}": self.left(delta) for delta in deltas} if held else None,
            "trainings": [
                {**{key: getattr(row, key) for key in shown}, "by": row.who, "feature_set": name}
                for name, row in self.rows
            ],
        }


def account_of(
    ledger: Path,
    named: Path | None = None,
    cards: Iterable[tuple[Path, Mapping[str, Any]]] = (),
    split: str = SPLIT,
    also: Iterable[str] = (),
) -> Account:
    """The account that a ledger gives, and those that can be found from it.

    Each split has its own, see `ledger.about`. A cap holds for the records of each of them.

    Ledgers are looked for in the folder of this one, in the folder where the set was named, in the folder for feature
    sets, and wherever sets in these folders really lie. So sets that are links are found from one another.

    Args:
        ledger: of the feature set.
        named: the path by which the set was named, if it was.
        cards: of the heads that may have been trained on the set, with their files.
        split: the records.
        also: listings of sets that share records with this one, as somebody says who has not written it down yet.

    Raises:
        UserError: a ledger, or a file of digests, cannot be read.

    """
    own = read_all(ledger)
    others, left, folders, nowhere = same_records.others_around(ledger, named)
    gone, alone = [path for path in left if path != real(ledger)], real(ledger) in left
    names = other_ledgers.names_of([ledger, *others, *gone])
    folder, fingerprint = ledger.with_name(other_ledgers.name_of(ledger)), None
    records, elsewhere = same_records.listed(folder, own, split)
    capped = {row.records for row in own.entries if row.split == split} | {cap.records for cap in own.caps}
    protects, persons, present = RECORD, dict[str | None, str | None](), set[str]()
    if (folder / MANIFEST).exists():
        manifest = load(folder)
        present = {records_of(manifest, each) for each in {SPLIT, split} & set(manifest.splits)}
        capped |= present
        fingerprint = manifest.fingerprint
        if split in manifest.splits and (known := persons_of(manifest, split)) is not None:
            protects = ("person", known)
            persons = {persons_of(manifest): known}
    if split == SPLIT:
        records |= {cap.records for cap in own.caps} | {each.records for each in own.overlaps}
    linked = same_records.linked(ledger, others, records, elsewhere)
    # A cap names the training records, and holds for those of each split.
    ledgers = {path: other_ledgers.known(names[path], path, book) for path, book in others.items()}
    here = {each for each, other in ledgers.items() if records & {one for one, s in other.known if s != SPLIT}}
    caps = {path: [cap for cap in book.caps if cap.records in capped or path in here] for path, book in others.items()}

    def here_now(row: Entry) -> Entry:
        """A row, with other persons if it is about other records than those that the set has now."""
        return row if not present or row.records in present else of_others(row)

    # A cap names the persons of the training split.
    held = {
        path: [replace(cap, persons=persons.get(cap.persons, cap.persons)) for cap in found]
        for path, found in {ledger: own.caps, **caps}.items()
    }
    told = [overlap for book in (own, *others.values()) for overlap in book.overlaps]
    pairs = frozenset(frozenset((each.records, each.other)) for each in told)
    pairs |= {frozenset((listing, other)) for listing in records for other in also}
    mine = [row for row in about(own.entries, split, records) if not elsewhere(row)]
    stored = own_digests(ledger, folder)
    rest = Book(entries=tuple(row for row in own.entries if row not in mine))
    apart = {
        *((listing, split) for listing in records),
        *((row.records, row.split) for row in own.entries),
        *splits_of(folder),
        *map(source_of, stored),
    }
    shares = shared(
        records,
        [each for each in stored if each.section.split == split],
        [
            # A picture may be in two splits of the set.
            Known(
                name=names[ledger], path=ledger, book=rest, stored=tuple(e for e in stored if e.section.split != split)
            ),
            *(
                replace(each, book=other_ledgers.without(each.book, linked[path], caps[path]))
                for path, each in ledgers.items()
            ),
            *(Known(name=names[path], path=path, stored=kept_beside(path), of="gone") for path in gone),
            # A set may connect others before it is trained on.
            *(other_ledgers.untrained(place) for place in (other_ledgers.sets_in(folders) if pairs else [])),
        ],
        pairs,
        by_person=protects != RECORD,
        split=split,
        apart=apart,
        now=splits_of(folder),
    )
    lost = [
        str(path)
        for path, card in cards
        if card["features"]["fingerprint"] == fingerprint
        and not any(other_ledgers.has_row_of(book.entries, card) for book in (own, *others.values()))
    ]
    if not present:
        # The set is gone, and its trainings say what it protected.
        found = [*mine, *(row for rows in linked.values() for row in rows)]
        protects = unit_of(found) if len({row.records for row in found if row.mu is not None}) < 2 else RECORD
    return Account(
        ledger=ledger,
        protects=protects,
        name=names[ledger],
        folders=tuple(folders),
        split=split,
        own=tuple(map(here_now, mine)),
        linked=tuple((names[path], here_now(row)) for path, rows in linked.items() for row in rows),
        not_counted=tuple(sorted({*shares.unknown, *nowhere})),
        lost=tuple(lost),
        shared=replace(shares, gone=(names[ledger], *shares.gone)) if alone else shares,
        overlaps=tuple(each for each in told if capped & {each.records, each.other}),
        caps=tuple((names[path], cap) for path, found in held.items() for cap in found),
        ledgers=frozenset(
            real(path)
            for path, book in others.items()
            if linked[path] or caps[path] or path in here or other_ledgers.begun(path, book, capped | shares.sources)
        )
        | (shares.ledgers - {real(ledger)}),
    )


def other_accounts(ledger: Path, named: Path | None = None) -> list[Account]:
    """The accounts of the splits that are not trained on, as far as something was spent there."""
    splits = {row.split for row in read_all(ledger).entries}
    if (folder := ledger.with_name(other_ledgers.name_of(ledger))).joinpath(MANIFEST).exists():
        splits |= set(load(folder).splits)
    found = [account_of(ledger, named, split=split) for split in sorted(splits - {SPLIT})]
    return [account for account in found if account.entries]
