"""Sets that share some records: what is spent on one of them counts for the records that are in both."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dpfc_cli.training.account import account_of, other_accounts
from dpfc_cli.training.cap import set_cap
from dpfc_cli.training.kept_digests import beside
from dpfc_cli.training.ledger import ledger_path
from dpfc_cli.training.same_records import rows_about
from dpfc_cli.training.told import share_records

from dpfc_cli.errors import UserError
from dpfc_cli.features import digests
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.privacy.accounting import epsilon_for, mu_for
from dpfc_cli.training import ledger, sharing
from dpfc_cli.training.charge import charge
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.train import train
from tests.training.sharing import DELTA, account, alone_in, draw, evaluated, features_of, of, ready, spent, total


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone_in(tmp_path, monkeypatch)


# What counts


def test_the_account_is_that_of_the_record_that_the_trainings_cost_most() -> None:
    sets = {"a": range(10), "b": range(5), "c": range(5, 12), "d": range(4, 6), "e": range(20, 30)}
    made = {name: of(name, numbers) for name, numbers in sets.items()}
    cost = {"a": 1.0, "b": 0.5, "c": 0.7, "d": 0.2, "e": 5.0}
    for name, epsilon in cost.items():
        charge(ready(made[name], epsilon))

    def largest(name: str) -> float:
        """Record by record."""
        of_record = [[cost[other] for other in sets if i in sets[other]] for i in sets[name]]
        return max(epsilon_for(math.hypot(*(mu_for(each, DELTA) for each in some)), DELTA) for some in of_record)

    for name in sets:
        assert total(made[name]) == pytest.approx(largest(name), rel=1e-6)
        assert account(made[name]).exact
        assert account(made[name]).not_counted == ()
    # Record 4 is in b and d, record 5 in c and d, and none is in b and c.
    assert total(made["a"]) == spent(1.0, 0.7, 0.2)
    assert {share.name: share.records for share in account(made["a"]).shared.shares} == {"b": 5, "c": 5, "d": 2}


def test_where_too_many_sets_are_to_be_compared_all_is_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are compared in parts. Whether a record is in sets of two parts is not known then."""
    one = of("one", range(9))
    for name, numbers in {"a": range(3), "b": range(3, 6), "c": range(6, 9), "d": range(3)}.items():
        charge(ready(of(name, numbers), 0.5))
    assert (total(one), account(one).exact) == (spent(0.5, 0.5), True)
    monkeypatch.setattr(sharing, "MOST_COMPARED", 3)
    assert (total(one), account(one).exact) == (spent(0.5, 0.5, 0.5, 0.5), False)


def test_rows_about_a_source_count_whichever_ledger_has_its_digests() -> None:
    """A copy of a set was charged by an earlier version, or its test records were: no digests lie beside these rows."""
    one, b, c = of("one", range(10)), of("b", range(5, 15)), of("c", range(5))
    shutil.copytree("features/b", "features/copy")
    (Path("features/copy") / digests.FILE).unlink()
    copy = FeatureSet(Path("features/copy"))
    for features, epsilon in ((b, 0.5), (c, 0.7), (copy, 0.3)):
        charge(ready(features, epsilon))
    assert not beside(ledger_path(copy.folder)).exists()
    assert total(one) == spent(0.7)
    charge(ready(copy, 1.0))
    assert total(one) == spent(0.5, 0.3, 1.0)
    (row,) = account(c).own
    ledger.charge(ledger_path(c.folder), replace(row, split="test"))
    assert {share.name for share in account(one).shared.shares} == {"b", "c", "copy"}
    # Which test records those are is not known, so they may be any.
    assert total(one) == spent(0.5, 0.3, 1.0, 0.7)


def test_sets_that_have_nothing_in_common_are_not_said_and_those_of_which_nothing_is_known_are() -> None:
    made = [
        of("one", range(8)),
        of("two", range(8, 16)),
        of("old", range(4), kind=None),
        of("packed", range(30, 38), kind="pixels"),
    ]
    for features in made[:2]:
        charge(ready(features))
        assert account(features).not_counted == ()
    for features in made[2:]:
        charge(ready(features))
    assert [account(each).not_counted for each in made] == [
        *[("old", "packed")] * 2,
        ("one", "packed", "two"),
        ("old", "one", "two"),
    ]


def test_a_ledger_that_outlives_its_set_knows_its_records_still() -> None:
    one, other = of("one", range(8)), of("other", range(4, 12))
    charge(ready(one))
    shutil.rmtree("features/one")
    assert total(other) == spent(1.0)
    # It is made again, of other pictures. Its ledger has rows of both.
    charge(ready(of("one", range(20, 28)), 0.5))
    assert total(other) == spent(1.0)
    assert total(of("third", range(22, 24))) == spent(0.5)
    # Whoever asks by the ledger alone gets the same.
    charge(ready(other, 0.2))
    shutil.rmtree("features/other")
    assert account_of(Path("features/other.ledger.sqlite").absolute()).epsilon(DELTA) == spent(1.0, 0.2)


def test_a_ledger_that_is_gone_while_its_digests_are_there_is_told_if_they_share_records() -> None:
    one, other = of("one", range(8), test=range(90, 94)), of("other", range(4, 12))
    apart = of("apart", range(50, 58))
    charge(ready(one))
    assert account(other).ledgers == {ledger.real(ledger_path(one.folder))}
    ledger_path(one.folder).unlink()
    assert account(other).ledgers == frozenset()
    assert "The ledger of one is gone" in str(account(other).warning)
    assert "The ledger of one is gone" in str(account(one).warning)
    assert (account(apart).warning, account(apart).not_counted) == (None, ())
    assert account(of("old", range(3), kind=None)).not_counted == ("one",)


def test_another_part_of_a_source_adds_to_what_is_known_of_it() -> None:
    """A row of a ledger says which source was charged, and not which part of it."""
    charge(ready(of("one", range(8), part=True)))
    shutil.rmtree("features/one")
    charge(ready(of("one", range(6, 10), part=True)))
    (kept,) = digests.stored_in(beside(Path("features/one.ledger.sqlite")))
    assert kept.section.count == 12
    charge(ready(FeatureSet(Path("features/one"))))
    assert digests.stored_in(beside(Path("features/one.ledger.sqlite"))) == (kept,)
    assert account(of("low", range(2))).private == account(of("high", range(9, 11))).private == 3
    # None of them was there before.
    shutil.rmtree("features/one")
    charge(ready(of("one", range(20, 25), part=True)))
    assert account(of("new", range(24, 26))).private == account(of("old", range(2))).private == 4


# All splits


def test_a_test_split_that_another_set_trained_on_counts_for_its_evaluation() -> None:
    whole, bigger = of("whole", range(10), test=range(20, 30)), of("bigger", range(20, 31))
    assert other_accounts(ledger_path(whole.folder), whole.folder) == []
    charge(ready(bigger, 1.0))
    # The ledger of the set itself has no row yet.
    (other,) = other_accounts(ledger_path(whole.folder), whole.folder)
    assert (other.split, other.epsilon(DELTA)) == ("test", spent(1.0))
    evaluated(whole, 0.5)
    assert account(whole, split="test").epsilon(DELTA) == total(bigger) == spent(1.0, 0.5)
    assert (total(whole), account(whole).not_counted) == (0.0, ())
    with pytest.raises(UserError, match="would promise what is not true"):
        set_cap(whole, 1.0, delta=DELTA)


def test_what_is_in_two_splits_counts_in_both_accounts() -> None:
    """Five records are in both splits of `a`, and `b` is its test split. The cap holds for them, too."""
    a, b = of("a", range(10), test=range(5, 15)), of("b", range(5, 15))
    set_cap(a, 1.0, delta=DELTA)
    charge(ready(b, 0.9))
    with pytest.raises(UserError, match="does not fit under the cap"):
        ready(a, 0.9)
    alone = of("alone", range(30, 40), test=range(39, 45))
    charge(ready(alone, 0.5))
    evaluated(alone, 0.6)
    for split in ("train", "test"):
        assert account(alone, split=split).epsilon(DELTA) == spent(0.5, 0.6)


def test_a_picture_that_is_in_what_was_held_out_and_in_the_rest_counts_in_both_accounts() -> None:
    """There, both splits have one listing."""
    for i in range(12):
        draw(Path("photos", "ab"[i % 2], f"{i}.png"), i % 4)
    held = features_of("imagefolder:photos", "held", hold_out=0.4)
    train_digests, test_digests = digests.stored_in(held.folder / digests.FILE)
    assert 1 in digests.common(train_digests, [test_digests])
    charge(ready(held, 0.5))
    evaluated(held, 0.6)
    for split in held.splits:
        assert account(held, split=split).epsilon(DELTA) == spent(0.5, 0.6)
    # The ledger alone does not tell one split from the other. So both rows are about both, and each counts once.
    shutil.rmtree(held.folder)
    for split in held.splits:
        assert account_of(ledger_path(held.folder), split=split).epsilon(DELTA) == spent(0.5, 0.6)


def rows_of_one_source(features: FeatureSet, split: str) -> list[float]:
    """The ε of the rows about a split, as they are known without digests. An account has the same rows."""
    rows = rows_about(ledger_path(features.folder), features.folder, split)
    known = account(features, split=split)
    assert rows == [*known.own, *(row for _, row in known.linked)]
    return [row.epsilon or 0.0 for row in rows]


def test_what_another_set_held_out_is_not_in_the_rest_as_long_as_that_set_says_how() -> None:
    for i in range(12):
        draw(Path("photos", "ab"[i % 2], f"{i}.png"), i)
    held = features_of("imagefolder:photos", "held", hold_out=0.4)
    shutil.copytree(held.folder, "features/copy")
    copy = FeatureSet(Path("features/copy"))
    for features, epsilon in ((held, 0.3), (copy, 0.5)):
        charge(ready(features, epsilon))
        evaluated(features, epsilon + 0.1)
    assert [rows_of_one_source(held, split) for split in ("train", "test")] == [[0.3, 0.5], [0.4, 0.6]]
    shutil.rmtree(copy.folder)
    assert [rows_of_one_source(held, split) for split in ("train", "test")] == [[0.3, 0.5, 0.6], [0.4, 0.5, 0.6]]
    # A ledger does not tell which of the records that its set had before are in which split now.
    shutil.copytree(held.folder, "features/copy")
    shutil.rmtree(held.folder)
    held = of("held", range(30, 40), test=range(40, 50))
    assert rows_of_one_source(held, "train") == [0.3, 0.4, 0.5, 0.6]


@pytest.mark.parametrize("what", ["a cap", "what is said of another set"])
def test_what_a_ledger_has_about_the_records_that_its_set_had_before_links_their_rows(what: str) -> None:
    one = of("one", range(50, 60), test=range(20, 25))
    shutil.copytree(one.folder, "features/twin")
    charge(ready(FeatureSet(Path("features/twin")), 0.2))
    if what == "a cap":
        set_cap(one, 3.0, delta=DELTA)
    else:
        share_records(one, [of("other", range(60, 70))])
    assert rows_of_one_source(one, "test") == []
    shutil.rmtree(one.folder)
    assert rows_of_one_source(of("one", range(70, 80)), "train") == [0.2]


def test_persons_are_in_one_split_also_if_two_of_them_have_the_same_picture() -> None:
    held = of("held", range(10), test=range(9, 19), persons=True)
    charge(ready(held, 0.5))
    evaluated(held, 0.6)
    assert total(held) == spent(0.5)
    assert account(held, split="test").epsilon(DELTA) == spent(0.6)


def test_an_evaluation_makes_a_set_no_more_doubtful_than_its_training() -> None:
    whole = of("whole", range(10), test=range(20, 30))
    charge(ready(whole, 0.5))
    evaluated(whole, 0.5)
    assert account(of("unrelated", range(50, 60))).not_counted == ()


def test_what_is_said_of_a_set_is_said_of_all_its_splits() -> None:
    a, b = of("a", range(10), test=range(20, 30)), of("b", range(40, 50), test=range(60, 70))
    share_records(b, [a])
    for features, epsilon in ((a, 0.5), (b, 0.6)):
        evaluated(features, epsilon)
    assert total(a) == spent(0.6)
    assert total(b) == spent(0.5)
    assert account(a, split="test").epsilon(DELTA) == account(b, split="test").epsilon(DELTA) == spent(0.5, 0.6)
    assert [each.name for each in account(a, split="test").overlaps] == ["a"]


def test_a_source_is_not_known_by_the_digests_of_a_part_of_it() -> None:
    """`full` has no digests, and has rows of the whole source. What `part` has of it says nothing of the rest."""
    full, apart = of("full", range(10), kind=None, part=True), of("apart", range(5, 10))
    charge(ready(full, 1.0))
    assert account(apart).not_counted == ("full",)
    part = of("part", range(4), part=True)
    charge(ready(part, 0.5))
    assert account(apart).not_counted == ("full",)
    # Records of the part may be in `full`, and so may all others that `near` has.
    near, other = of("near", range(3, 20)), of("beyond", range(10, 20))
    charge(ready(other, 0.7))
    assert total(near) == spent(1.0, 0.7)


# Persons


def test_persons_of_another_source_are_other_persons() -> None:
    """What is known is which records are in both. For one of them a training for persons counts with twice its μ."""
    one, larger = of("one", range(8), persons=True), of("larger", range(14), persons=True)
    charge(ready(one, 0.5))
    assert (account(one).unit, account(one).exact) == ("person", True)
    charge(ready(larger, 0.3))
    for features in (one, larger):
        known = account(features)
        assert (known.unit, known.exact) == ("record", False)
        double = 2 * math.hypot(mu_for(0.5, DELTA), mu_for(0.3, DELTA))
        assert known.epsilon(DELTA) == pytest.approx(epsilon_for(double, DELTA), rel=1e-6)
    with pytest.raises(UserError, match="do not protect the persons of one"):
        set_cap(one, 9.0, delta=DELTA)


def test_for_persons_all_sets_are_added_up() -> None:
    """One record of a person may be in one set, and the next one in another."""
    persons, low, high = of("p", range(10), persons=True), of("low", range(5)), of("high", range(5, 10))
    charge(ready(low, 0.5))
    charge(ready(high, 0.5))
    assert total(persons) == spent(0.5, 0.5)
    assert not account(persons).exact
    assert total(low) == spent(0.5)


# What somebody says


def test_what_was_said_once_counts_from_then_on_for_both_and_cannot_be_left_out() -> None:
    one, other = of("one", range(8), kind=None), of("other", range(100, 108), kind=None)
    set_cap(one, 1.5, delta=DELTA)
    charge(ready(one))
    assert (account(other).entries, account(other).not_counted) == ([], ("one",))
    # In a rehearsal it counts, and is not written down.
    records = ledger.records_of(one.manifest)
    with pytest.raises(UserError, match="does not fit"):
        ready(other, 1.4, also=(one,))
    assert account(other, also=[records]).epsilon(DELTA) == spent(1.0)
    assert account(other).overlaps == ()
    with pytest.raises(UserError, match="does not fit"):
        trained(other, 1.4, also=[one], by="Ada")
    (said,) = account(other).overlaps
    assert (said.name, said.who, said.records, said.other) == (
        *("one", "Ada", ledger.records_of(other.manifest), records),
    )
    with pytest.raises(UserError, match="does not fit"):
        trained(other, 1.4)
    trained(other, 0.4)
    for features in (one, other):
        assert total(features) == spent(1.0, 0.4)
        assert account(features).not_counted == ()
        assert not account(features).exact
    share_records(one, [other])
    share_records(other, [one], by="Eve")
    assert account(one).overlaps == account(other).overlaps == (said,)
    assert account(of("third", range(50, 58))).overlaps == ()


def trained(features: FeatureSet, epsilon: float, **more: Any) -> None:
    class Quiet(Observer):
        def warn(self, text: str) -> None:
            """Such small sets give many warnings."""

    train(features, epsilon=epsilon, delta=DELTA, steps=2, observer=Quiet(), **more)


def test_where_it_is_not_known_which_records_are_shared_all_that_is_connected_counts() -> None:
    """Records of `b` may be in `a`, and then in `c` or in what is said of `c`. Those of `e` are not."""
    made = {"a": of("a", range(10)), "b": of("b", range(50, 60), kind=None), "c": of("c", range(9, 20))}
    made |= {"d": of("d", range(60, 70)), "e": of("e", range(19, 30)), "f": of("f", range(80, 90))}
    for features in made.values():
        charge(ready(features, 0.5))
    assert total(made["a"]) == spent(0.5, 0.5)
    share_records(made["b"], [made["a"]])
    share_records(made["c"], [made["d"]])
    for name in "abcde":
        # All of them are connected, with e by record 19, which c has.
        assert total(made[name]) == spent(*[0.5] * 5), name
        assert not account(made[name]).exact
    assert (total(made["f"]), account(made["f"]).not_counted) == (spent(0.5), ("b",))


def test_a_set_that_was_never_trained_on_connects_others() -> None:
    """Records of `a` may be in `b`, whose files are those of `c`."""
    a, b, c = of("a", range(10), kind=None), of("b", range(50, 60)), of("c", range(59, 70))
    for features in (a, c):
        charge(ready(features, 0.5))
    share_records(a, [b])
    for features in (a, b, c):
        assert total(features) == spent(0.5, 0.5)


def test_what_makes_no_sense_to_be_said_is_refused() -> None:
    one = of("one", range(8))
    shutil.copytree("features/one", "features/copy")
    share_records(one, [FeatureSet(Path("features/copy"))])
    assert not ledger_path(one.folder).exists(), "sets of one source are linked in any case"
    with pytest.raises(UserError, match="names one itself") as refused:
        share_records(one, [one])
    assert refused.value.fields["parameter"] == "also"
    Path("elsewhere").mkdir()
    far = of("far", range(5))
    shutil.move("features/far", "elsewhere/far")
    with pytest.raises(UserError, match="where it is not looked for"):
        share_records(one, [FeatureSet(Path("elsewhere/far"))])
    Path("features/far").symlink_to(Path("elsewhere/far").absolute())
    share_records(one, [FeatureSet(Path("features/far"))])
    with pytest.raises(UserError, match="by must be a text"):
        share_records(one, [far], by="")


def test_what_was_said_before_the_first_training_stays_if_the_set_is_made_again() -> None:
    other = of("other", range(100, 108), kind=None)
    share_records(of("one", range(8), kind=None), [other])
    shutil.rmtree("features/one")
    charge(ready(other, 1.0))
    assert total(of("one", range(9), kind=None)) == spent(1.0)
