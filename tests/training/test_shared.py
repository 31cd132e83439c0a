"""Which rows of other ledgers count for the records of a set, by their listings and digests. No set is made."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dpfc_cli.training.ledger import Book, Cap, Entry, real
from dpfc_cli.training.sharing import Known, Shared, shared

from dpfc_cli.features import digests
from dpfc_cli.features.digests import Stored
from dpfc_cli.training import sharing
from tests.training.rows import DIGEST, cap, row

Kept = Callable[..., Stored]
ROW = row()
NO_PAIRS: sharing.Pairs = frozenset()


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    """Makes a file with the digests of some records, which are numbers."""
    numbers = count()

    def make(records: str, known: Iterable[int], split: str = "train", kind: Any = "file") -> Stored:
        path = tmp_path / f"{next(numbers)}"
        digests.write(path, [digests.section_of(records, split, kind, np.array([*known], np.uint64))])
        (found,) = digests.stored_in(path)
        return found

    return make


def rows(*records: str, **changed: Any) -> tuple[Entry, ...]:
    return tuple(replace(ROW, records=each, **changed) for each in records)


def ledger(name: str, *stored: Stored, about: Iterable[Entry] = (), caps: Iterable[Cap] = (), **more: Any) -> Known:
    """Another ledger with these rows and caps, and these digests."""
    return Known(
        name=name,
        path=Path(f"{name}.ledger.sqlite"),
        book=Book(entries=(*about,), caps=(*caps,)),
        stored=stored,
        **more,
    )


def of(own: Iterable[Stored], *others: Known, pairs: Iterable[str] = (), **more: Any) -> Shared:
    """What others have to do with the records "r". pairs: "rs" says that r and s share records."""
    said = frozenset(map(frozenset, pairs))
    return shared(**{"records": {"r"}, "by_person": False, **more, "own": [*own], "others": others, "pairs": said})


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("at_a_time", [9, 5])
def test_the_cases_are_those_of_the_records_one_by_one(
    kept: Kept, seed: int, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven sets that were charged, five that were not, and two that were and share nothing."""
    asked, real_common = list[int](), digests.common

    def common(own: Stored, others: Any) -> dict[int, int]:
        asked.append(len(others))
        return real_common(own, others)

    monkeypatch.setattr(digests, "common", common)
    monkeypatch.setattr(sharing, "MOST_COMPARED", at_a_time)
    rng = np.random.default_rng(seed)
    held = {f"s{i}": {int(j) for j in rng.integers(1, 20, rng.integers(2, 7))} for i in range(12)}
    held |= {"apart": {50, 51}, "beyond": {52}}
    others = [
        ledger(name, kept(name, [*numbers, 60]), about=rows(name) if i < 7 or i > 11 else ())
        for i, (name, numbers) in enumerate(held.items())
    ]
    # A record that is there twice is one record.
    found = of([kept("r", [*range(1, 20), 5])], *others)
    charged = [name for name in [*held][:7] if held[name]]
    assert [(share.name, share.records) for share in found.shares] == [(name, len(held[name])) for name in charged]
    of_record = {frozenset(i for i, name in enumerate(charged) if j in held[name]) for j in range(1, 20)}
    largest = {each for each in of_record if not any(each < other for other in of_record)}
    assert found.summed == (at_a_time < 9)
    assert found.cases == ((frozenset(range(7)),) if found.summed else tuple(sorted(largest, key=sorted)))
    assert found.sources == {"r", *[*held][:12]}
    assert found.ledgers == {real(Path(f"{name}.ledger.sqlite")) for name in [*held][:12]}
    assert found.unknown == found.gone == ()
    assert max(asked) <= at_a_time


def test_without_other_ledgers_nothing_is_shared(kept: Kept) -> None:
    assert of([kept("r", [1])]) == of([]) == Shared(sources=frozenset("r"))
    assert of([kept("r", [1])], by_person=True) == Shared(sources=frozenset("r"))


def test_each_source_of_a_ledger_is_a_share_of_its_own_in_one_order(kept: Kept) -> None:
    names = [f"{i}" * 3 for i in (5, 3, 8, 1, 7, 2, 6, 4)]
    other = ledger("other", *(kept(name, [*range(1, int(name[0]) + 1), 90]) for name in names), about=rows(*names))
    found = of([kept("r", range(1, 10))], other)
    assert [[each.records for each in share.entries] for share in found.shares] == [[name] for name in sorted(names)]
    assert [(share.name, share.records) for share in found.shares] == [("other", i) for i in range(1, 9)]
    assert found.cases == (frozenset(range(8)),)


def test_names_are_told_in_one_order() -> None:
    names = [f"{i}" * 3 for i in (5, 3, 8, 1, 7, 2, 6, 4)]
    found = of([], *(ledger(name, about=rows(name)) for name in names))
    assert found.unknown == tuple(sorted(names))
    assert (found.shares, found.gone) == ((), ())


def test_digests_beside_a_ledger_are_what_it_charged(kept: Kept) -> None:
    """Three ledgers have rows of one source, and each has the digests of another part of it."""
    others = [ledger("a", kept("s", [1, 2]), about=rows("s")), ledger("b", kept("s", [3]), about=rows("s"))]
    apart = ledger("c", kept("s", [90]), about=rows("s"))
    found = of([kept("r", [1, 2, 3])], *others, apart)
    assert [(share.name, share.records) for share in found.shares] == [("a", 2), ("b", 1)]
    assert (found.cases, found.unknown) == ((frozenset({0}), frozenset({1})), ())


@pytest.mark.parametrize(
    ("charged", "known"),
    [
        (rows("s", n=3), True),
        (rows("s", n=4), False),
        (rows("s", n=3) + rows("s", n=4), False),
        (rows("s", n=3, unit="person", persons=DIGEST), False),
        # Rows of other sources say nothing of it.
        (rows("s", n=3) + rows("t", n=4), True),
    ],
)
def test_digests_beside_another_ledger_tell_what_was_charged_if_they_are_as_many(
    kept: Kept, charged: tuple[Entry, ...], known: bool
) -> None:
    """If it is not known which records of a source that shares some were charged, they may be any."""
    others = [
        ledger("a", kept("s", [1, 2, 9])),
        ledger("b", about=charged),
        ledger("c", kept("u", [3]), about=rows("u")),
    ]
    found = of([kept("r", [1, 2, 3])], *others)
    assert [share.records for share in found.shares] == [2 if known else None, 1]
    assert found.cases == ((frozenset({0}), frozenset({1})) if known else (frozenset({0, 1}),))


def test_digests_of_two_kinds_beside_a_ledger_are_of_the_same_records(kept: Kept) -> None:
    other = ledger("a", kept("s", [1, 2]), kept("s", [1, 2, 3, 7, 8], kind="pixels"), about=rows("s"))
    found = of([kept("r", [1, 2, 3])], other)
    assert ([share.records for share in found.shares], found.cases, found.summed) == ([2], (frozenset({0}),), False)
    # If the set itself has digests of two kinds, it is not known which of them are of one record.
    both = [kept("r", [1]), kept("r", [7, 8], kind="pixels")]
    apart = ledger("b", kept("t", [9]), about=rows("t"))
    found = of(both, other, apart)
    assert ([(share.name, share.records) for share in found.shares], found.summed) == ([("a", 2)], True)
    assert found.unknown == ("b",)


def test_a_cap_holds_for_the_records_that_it_names_and_for_all_that_are_held_out(kept: Kept) -> None:
    # No cap names the training records v.
    parts = kept("s", [1, 2]), kept("u", [90]), kept("v", [5]), kept("t", [3, 4], split="test")
    of_s, of_u = cap(1.0, records="s"), cap(2.0, records="u")
    found = of([kept("r", range(1, 6))], ledger("a", *parts, caps=(of_s, of_u)))
    assert [(share.caps, share.records) for share in found.shares] == [((of_s,), 2), ((of_s, of_u), 2)]
    assert all(share.entries == () for share in found.shares)
    # A split of which nothing was charged is no source without a cap.
    found = of([kept("r", range(1, 6))], ledger("a", *parts, about=rows("s")))
    assert [(share.caps, share.entries) for share in found.shares] == [((), rows("s"))]
    # The split may be known by its listing alone.
    found = of([], ledger("a", splits=frozenset({("t", "test")}), caps=(of_s,)), pairs=["rt"])
    assert ([share.caps for share in found.shares], found.summed) == ([(of_s,)], True)


def test_persons_of_each_source_are_persons_of_their_own(kept: Kept) -> None:
    whose: dict[str, Any] = {"unit": "person", "persons": DIGEST}
    others = [
        ledger(name, kept(name, [1]), about=rows(name, **whose), caps=[cap(records=name, **whose)]) for name in "ab"
    ]
    found = of([kept("r", [1])], *others)
    persons = [
        {*(row.persons for row in share.entries), *(cap.persons for cap in share.caps)} for share in found.shares
    ]
    assert [len(each) for each in persons] == [1, 1]
    assert len({DIGEST}.union(*persons)) == 3
    assert [share.entries[0].unit for share in found.shares] == ["person"] * 2


def test_for_persons_all_that_share_a_record_count_together(kept: Kept) -> None:
    others = [ledger(name, kept(name, [number]), about=rows(name)) for name, number in (("a", 1), ("b", 2), ("c", 9))]
    found = of([kept("r", [1, 2])], *others, by_person=True)
    assert (found.cases, found.summed, found.unknown) == ((frozenset({0, 1}),), True, ())


# What is known of a set


def test_a_set_shares_nothing_for_sure_only_if_both_have_digests_of_one_kind(kept: Kept) -> None:
    others = [
        ledger("apart", kept("a", [90]), about=rows("a")),
        ledger("pixels", kept("b", [90], kind="pixels"), about=rows("b")),
        ledger("silent", about=rows("c")),
        # Nothing was charged to it.
        ledger("idle"),
    ]
    assert of([kept("r", [1])], *others).unknown == ("pixels", "silent")
    assert of([], *others).unknown == of([], *others, records=set()).unknown == ("apart", "pixels", "silent")
    # The set had other records before, and those are not known.
    assert of([kept("r", [1])], *others, records={"r", "old"}).unknown == ("apart", "pixels", "silent")
    # Rows of imports are digests of features. The same picture may have others elsewhere.
    alike = ledger("rows", kept("d", [90], kind="row"), about=rows("d"))
    assert of([kept("r", [1], kind="row")], alike).unknown == ("rows",)


def test_a_ledger_that_is_gone_is_told_if_its_records_are_shared_or_may_be(kept: Kept) -> None:
    def gone(*stored: Stored, own: Iterable[Stored] = (kept("r", [1, 2]),), **more: Any) -> tuple[Any, ...]:
        found = of(own, ledger("lost", *stored, of="gone"), **more)
        assert (found.shares, found.ledgers) == ((), frozenset())
        return found.gone, found.unknown

    here, apart, other_kind = kept("a", [2, 9]), kept("b", [90]), kept("c", [90], kind="pixels")
    assert gone(here) == gone(here, apart) == gone(apart, here) == gone(here, other_kind) == (("lost",), ())
    assert gone(apart) == ((), ())
    assert gone(other_kind) == gone(apart, other_kind) == ((), ("lost",))
    assert gone(apart, own=()) == gone(apart, records={"r", "old"}) == ((), ("lost",))
    assert gone(apart, own=(kept("r", [1]), kept("r", [7], kind="pixels"))) == ((), ("lost",))
    # Its digests are of the set's own splits: what it had of them is another matter.
    assert gone(kept("a", [2], split="test"), apart=[("a", "test"), ("r", "train")]) == ((), ())
    found = of([kept("r", [1])], *(ledger(name, kept(name, [1]), of="gone") for name in "hdbgcafe"))
    assert found.gone == tuple("abcdefgh")


def test_another_split_of_the_set_counts_if_digests_tell_that_a_picture_is_in_both(kept: Kept) -> None:
    def elsewhere(known: Iterable[int], **more: Any) -> Shared:
        held = ledger("r", kept("t", known, split="test"), about=rows("t", split="test"))
        there = [("r", "train"), ("t", "test")]
        return of([kept("r", [1, 2])], held, apart=there, now=there, **more)

    assert [share.records for share in elsewhere([2, 9]).shares] == [1]
    assert (elsewhere([9]).shares, elsewhere([9]).unknown) == ((), ())
    # Persons lie in one split as a whole.
    assert (elsewhere([2, 9], by_person=True).shares, elsewhere([2, 9], by_person=True).unknown) == ((), ())
    # Without digests, too, a record lies in one split.
    there = [("r", "train"), ("t", "test")]
    without = of([], ledger("r", about=rows("t", split="test")), apart=there, now=there)
    assert (without.shares, without.unknown) == ((), ())


def test_a_split_that_the_set_no_longer_has_counts_unless_digests_tell_that_nothing_of_it_is_here(kept: Kept) -> None:
    def made_anew(own: list[Any], *known: Any, **more: Any) -> tuple[list[int | None], bool]:
        held = ledger("r", *known, about=rows("t", split="test"))
        found = of(own, held, apart=[("r", "train"), ("t", "test")], now=[("r", "train")], **more)
        assert found.unknown == ()
        return [share.records for share in found.shares], found.summed

    here = [kept("r", [1, 2])]
    assert made_anew(here, kept("t", [2, 9], split="test")) == ([1], False)
    assert made_anew(here, kept("t", [8, 9], split="test")) == ([], False)
    # A person may have had other records there.
    assert made_anew(here, kept("t", [8, 9], split="test"), by_person=True) == ([None], True)
    # What digests cannot tell counts for each record.
    assert made_anew(here) == ([None], False)
    assert made_anew([], kept("t", [8, 9], split="test")) == ([None], True)
    # Two rows: of one it is known for which records it counts.
    both = ledger("r", kept("t", [2, 9], split="test"), about=rows("t", "u", split="test"))
    there = [("r", "train"), ("t", "test"), ("u", "test")]
    found = of(here, both, apart=there, now=there[:1])
    assert ([share.records for share in found.shares], found.summed) == ([1, None], False)
    found = of([kept("r", [1, 2]), kept("r", [1], kind="pixels")], both, apart=there, now=there[:1])
    assert found.summed
    rows_of = [kept("r", [1, 2], kind="row")]
    unlike = ledger("r", kept("t", [8, 9], split="test", kind="row"), about=rows("t", "u", split="test"))
    assert of(rows_of, unlike, apart=there, now=there[:1]).summed
    assert made_anew(rows_of, kept("t", [8, 9], split="test", kind="row")) == ([None], True)


def test_a_split_all_of_which_is_in_another_split_now_does_not_count_for_persons(kept: Kept) -> None:
    def counts(*known: Any, own: Iterable[int] = (1, 2)) -> bool:
        held = ledger("r", *known, about=rows("t", split="test"))
        there = [("r", "train"), ("t", "test"), ("v", "test")]
        found = of([kept("r", own)], held, apart=there, now=[("r", "train"), ("v", "test")], by_person=True)
        return bool(found.shares)

    assert not counts(kept("t", [8, 9], split="test"), kept("v", [7, 8, 9], split="test"))
    assert counts(kept("t", [8, 9], split="test"), kept("v", [7, 8], split="test"))
    # One picture of two persons is no other person.
    assert not counts(kept("t", [8, 9], split="test"), kept("v", [7, 8, 9], split="test"), own=[1, 8])
    # Digests of another kind do not tell.
    assert counts(kept("t", [8, 9], split="test"), kept("v", [7, 8, 9], split="test", kind="pixels"))
    some = kept("t", [8, 9], split="test"), kept("t", [4], split="test", kind="pixels")
    assert counts(*some, kept("v", [7, 8, 9], split="test"))
    assert counts(kept("t", [0, 8, 9], split="test"), kept("v", [7, 8, 9], split="test"))
    assert counts(kept("v", [7, 8, 9], split="test"))


def test_what_others_know_of_the_very_same_records_is_not_counted_again(kept: Kept) -> None:
    """Its rows are found by their listing. Here they are taken out already."""
    found = of([kept("r", [1, 2])], ledger("copy", kept("r", [1, 2])))
    assert found == Shared(sources=frozenset("r"))


# What somebody says


def test_what_is_said_connects_sets_by_words_and_by_digests(kept: Kept) -> None:
    """r is said to share records with a, which shares one with b, which is said to share some with c."""
    others = [
        ledger("a", kept("a", [50, 51]), about=rows("a")),
        ledger("b", kept("b", [51, 52]), about=rows("b")),
        ledger("c", about=rows("c")),
        ledger("d", kept("d", [51, 53], kind="pixels"), about=rows("d")),
        ledger("e", kept("e", [54]), about=rows("e")),
    ]
    own = [kept("r", [1])]
    found = of(own, *others, pairs=["ar", "bc"])
    assert [(share.name, share.records) for share in found.shares] == [("a", None), ("b", None), ("c", None)]
    assert (found.cases, found.summed, found.sources) == ((frozenset({0, 1, 2}),), True, frozenset("rabc"))
    assert found.unknown == ("d",)
    # Nobody says anything of r.
    found = of(own, *others, pairs=["bc"])
    assert (found.shares, found.summed, found.sources) == ((), False, frozenset("r"))
    assert found.unknown == ("c", "d")
    both = ledger("f", kept("f", [1]), about=rows("f")), ledger("g", kept("g", [2]), about=rows("g"))
    found = of([kept("r", [1, 2])], *others, *both, pairs=["bc"])
    assert (found.cases, found.summed) == ((frozenset({0}), frozenset({1})), False)
    # A set that nobody trained on connects others, and there is no ledger to be locked.
    found = of(own, ledger("x", kept("x", [54]), of="set"), *others, pairs=["xr"])
    assert ([share.name for share in found.shares], found.sources) == (["e"], frozenset("rxe"))
    assert found.ledgers == {real(Path("e.ledger.sqlite"))}


def test_what_is_said_of_training_records_is_said_of_all_splits_of_both_sets() -> None:
    apart = [("r", "train"), ("rt", "test")]
    other = ledger("a", about=(*rows("s"), *rows("st", split="test"), *rows("x", split="train")))
    alone = ledger("b", about=rows("y", split="test"))
    for split, listing in (("train", "r"), ("test", "rt")):
        found = of([], other, alone, records={listing}, split=split, apart=apart, pairs=["rs"])
        assert [share.entries[0].records for share in found.shares] == ["s", "st", "x"]
        assert found.unknown == ("b",)
    # What is said of a held-out split is said of that split alone.
    found = shared({"r"}, [], [other], frozenset({frozenset({"r", "st"})}), False, apart=apart)
    assert [share.entries[0].records for share in found.shares] == ["st"]
