"""Sets that share some records: a cap on one of them holds for the records that are in both."""

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dpfc_cli.training.cap import set_cap
from dpfc_cli.training.ledger import ledger_path
from dpfc_cli.training.told import share_records

from dpfc_cli.errors import UserError
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.privacy.accounting import epsilon_for, mu_for
from dpfc_cli.training import account as accounts
from dpfc_cli.training import cap as caps
from dpfc_cli.training import charge as charging
from dpfc_cli.training import kept_digests, ledger, limit, other_ledgers, sharing
from dpfc_cli.training.charge import charge
from dpfc_cli.training.request import Privacy
from tests.training.caps import meanwhile
from tests.training.sharing import DELTA, account, alone_in, evaluated, of, over, ready, spent


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone_in(tmp_path, monkeypatch)


def test_a_cap_holds_for_each_record_whichever_set_was_trained_on() -> None:
    a, low, high, apart = of("a", range(10)), of("low", range(6)), of("high", range(6, 20)), of("apart", range(20, 30))
    set_cap(a, 2.0, delta=DELTA)
    charge(ready(low, 1.5))
    with pytest.raises(UserError, match=r"epsilon = 2 at delta = 0\.001 for a") as refused:
        ready(low, 1.5)
    assert refused.value.code == "over-cap"
    # No record is in both.
    charge(ready(high, 1.5))
    for epsilon in (9.0, 9.0):
        charge(ready(apart, epsilon))
    fits = account(a).left(DELTA)
    assert fits == account(low).left(DELTA) == refused.value.fields["left"]
    assert fits is not None
    with pytest.raises(UserError, match="does not fit"):
        ready(a, fits + 0.01)
    charge(ready(a, fits))
    for features in (a, low, high):
        assert not over(features)
        with pytest.raises(UserError, match="does not fit"):
            ready(features, 0.1)
    assert account(apart).in_force == []


def test_a_cap_that_other_sets_have_passed_already_is_refused() -> None:
    a, b, c = of("a", range(10)), of("b", range(5)), of("c", range(5, 10))
    charge(ready(b, 1.0))
    charge(ready(c, 1.5))
    with pytest.raises(UserError, match="would promise what is not true") as refused:
        set_cap(a, 1.4, delta=DELTA)
    assert refused.value.fields["least"] == 1.5
    set_cap(a, 1.5, delta=DELTA)
    assert account(a).left(DELTA) == 0
    # For b there is more, because its records are not those of c.
    left = math.sqrt(mu_for(1.5, DELTA) ** 2 - mu_for(1.0, DELTA) ** 2)
    assert account(b).left(DELTA) == pytest.approx(epsilon_for(left, DELTA), rel=1e-3)


def test_what_a_cap_leaves_is_told_of_the_records_that_it_holds_for() -> None:
    """The cap is set for `b`, and no record of `c` is there."""
    a, b, c = of("a", range(10)), of("b", range(5)), of("c", range(5, 10))
    set_cap(b, 1.5, delta=DELTA)
    charge(ready(b, 1.0))
    charge(ready(c, 1.4))
    left = math.sqrt(mu_for(1.5, DELTA) ** 2 - mu_for(1.0, DELTA) ** 2)
    assert account(a).left(DELTA) == pytest.approx(epsilon_for(left, DELTA), rel=1e-3)


def test_trainings_that_no_cap_can_be_kept_with_are_refused_where_records_are_shared() -> None:
    a, b = of("a", range(10)), of("b", range(9, 12))
    set_cap(a, 2.0, delta=DELTA)
    for privacy in (Privacy(), Privacy(epsilon=1.0, delta=DELTA, seed=1)):
        with pytest.raises(UserError, match="These records have a cap"):
            ready(b, privacy=privacy)


def test_a_training_that_was_stopped_goes_on_with_no_records_but_those_that_were_charged() -> None:
    """The set was made again, of another part of its source, and another set has a cap on these records."""

    def again(records: range, test: range = range(40, 44), **how: Any) -> FeatureSet:
        shutil.rmtree("features/one", ignore_errors=True)
        return of("one", records, test=test, part=True, **how)

    stopped = charge(ready(again(range(10))))
    assert stopped.answers is not None
    stopped.answers.close()
    set_cap(of("other", range(10, 20)), 0.5, delta=DELTA)
    with pytest.raises(UserError, match="does not fit"):
        ready(again(range(10, 20)))
    assert ready(again(range(10))).unfinished is not None
    # Records that are not trained on change nothing.
    assert ready(again(range(10), test=range(44, 48))).unfinished is not None
    # Without digests nothing is known of the records.
    assert ready(again(range(10), kind=None)).unfinished is None
    for keeps in (lambda made: set_cap(made, 9.0, delta=DELTA), lambda made: evaluated(made, 0.1)):
        made = again(range(10, 20))
        keeps(made)
        with pytest.raises(UserError, match="does not fit"):
            ready(made)


def ignored(patch: pytest.MonkeyPatch) -> None:
    """Caps and trainings of sets that share records are not looked at."""
    patch.setattr(accounts, "shared", lambda *given, **named: sharing.Shared())


def not_kept(patch: pytest.MonkeyPatch) -> None:
    """The digests are put beside the ledger after its first row. So a first training is not seen by another one."""
    real, charged = kept_digests.keep, ledger.charge
    patch.setattr(charging, "keep", lambda *given: None)

    def late(path: Path, *given: Any) -> Any:
        receipt = charged(path, *given)
        real(path, path.with_name(path.name.removesuffix(".ledger.sqlite")))
        return receipt

    patch.setattr(ledger, "charge", late)


def not_locked(patch: pytest.MonkeyPatch) -> None:
    """The ledgers of sets that share records are read, and not locked."""
    real = sharing.shared

    def unlocked(*given: Any, **named: Any) -> sharing.Shared:
        return replace(real(*given, **named), ledgers=frozenset(), sources=frozenset())

    patch.setattr(accounts, "shared", unlocked)


def nothing(patch: pytest.MonkeyPatch) -> None:
    """No fault."""


@pytest.mark.parametrize(
    ("first", "second", "fault"),
    [
        *[("a", "b", fault) for fault in (nothing, ignored, not_locked)],
        *[("b", "a", fault) for fault in (nothing, ignored, not_locked)],
        *[("b", "c", fault) for fault in (nothing, ignored, not_locked)],
    ],
)
def test_two_trainings_on_sets_that_share_records_never_pass_a_cap_together_unless_a_fault_is_planted(
    first: str, second: str, fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cap is set for `a`. `b` and `c` have no ledger yet. The second training is charged while the first one is."""
    sets = {"a": of("a", range(10)), "b": of("b", range(5, 15)), "c": of("c", range(9, 20))}
    set_cap(sets["a"], 1.5, delta=DELTA)
    one, other = ready(sets[first], 1.2), ready(sets[second], 1.2)
    with monkeypatch.context() as patch:
        fault(patch)
        seen = meanwhile(patch, limit, "check", lambda: charge(other))
        charge(one)
    passes = fault is not nothing
    assert seen == ["done" if passes else "busy"]
    assert over(sets["a"]) == passes
    if not passes:
        with pytest.raises(UserError, match="does not fit"):
            charge(other)


@pytest.mark.parametrize("fault", [nothing, not_kept])
def test_a_cap_and_the_first_training_of_a_set_that_shares_records_do_not_miss_each_other(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither ledger exists. Each of the two must see the digests that the other one has just put down."""
    a, b = of("a", range(10)), of("b", range(9, 20))
    other = ready(b, 1.2)
    with monkeypatch.context() as patch:
        fault(patch)
        if fault is not_kept:
            patch.setattr(caps, "keep", lambda *given: None)
        seen = meanwhile(patch, caps, "_check", lambda: charge(other), skip=1)
        set_cap(a, 1.0, delta=DELTA)
    assert seen == ["done" if fault is not_kept else "busy"]
    if fault is nothing:
        with pytest.raises(UserError, match="does not fit"):
            charge(other)


# All splits


def test_a_cap_holds_for_pictures_of_a_test_split_that_another_set_trains_on() -> None:
    """`bigger` has all test records of `whole`, and one more. The digests beside the ledger tell it for good."""
    whole, bigger = of("whole", range(10), test=range(20, 30)), of("bigger", range(20, 31))
    set_cap(whole, 1.0, delta=DELTA)
    for gone in (False, True):
        if gone:
            shutil.rmtree("features/whole")
        with pytest.raises(UserError, match=r"epsilon = 1 at delta = 0\.001 for whole") as refused:
            ready(bigger, 3.0)
        assert refused.value.code == "over-cap"
        assert [(share.name, share.records) for share in account(bigger).shared.shares] == [("whole", 10)]
    charge(ready(bigger, 0.8))
    assert account(of("unrelated", range(50, 60))).in_force == []


def test_a_cap_holds_for_a_set_whose_records_are_exactly_the_test_split_of_the_capped_one() -> None:
    """Also if there are no digests: both have one listing. Only the digests tell it once the set is gone."""
    for kind, numbers in ((None, 0), ("file", 100)):
        whole = of(f"whole{kind}", range(numbers, numbers + 10), test=range(numbers + 20, numbers + 30), kind=kind)
        other = of(f"other{kind}", range(numbers + 20, numbers + 30), kind=kind)
        set_cap(whole, 1.0, delta=DELTA)
        with pytest.raises(UserError, match="does not fit under the cap"):
            ready(other, 3.0)
        charge(ready(other, 0.6))
        with pytest.raises(UserError, match="does not fit"):
            evaluated(whole, 0.9)
        evaluated(whole, 0.1)
        assert account(whole).private == 0
        assert account(whole, split="test").epsilon(DELTA) == spent(0.6, 0.1)
        if kind is not None:
            shutil.rmtree(whole.folder)
            with pytest.raises(UserError, match="does not fit under the cap"):
                ready(other, 0.9)


@pytest.mark.parametrize("kind", [None, "file"])
def test_a_cap_on_what_a_set_tests_on_holds_for_its_evaluations_and_not_for_its_trainings(kind: str | None) -> None:
    """No record that the set trains on is in the capped one. That is so, too, if only its ledger is left."""
    whole, other = of("whole", range(10), test=range(20, 30), kind=kind), of("other", range(20, 30), kind=kind)
    set_cap(other, 1.0, delta=DELTA)
    charge(ready(whole, 3.0))
    evaluated(whole, 0.5)
    with pytest.raises(UserError, match="epsilon = 1 at delta"):
        evaluated(whole, 0.9)
    for gone in (False, True):
        if gone:
            shutil.rmtree(whole.folder)
        held = {split: account(whole, split=split).in_force for split in ("train", "test")}
        assert {split: [name for name, _ in found] for split, found in held.items()} == {"train": [], "test": ["other"]}


def test_a_training_on_a_test_split_of_another_set_waits_for_a_cap_that_is_being_set_there() -> None:
    """Without digests the listing alone tells it. The other ledger has trainings on its training records alone."""
    whole, other = of("whole", range(10), test=range(20, 30), kind=None), of("other", range(20, 30), kind=None)
    charge(ready(whole, 0.5))
    assert account(other).ledgers == {ledger_path(whole.folder).resolve()}
    assert account(other).entries == []


def test_a_cap_that_was_set_for_another_version_of_a_set_is_not_replaced_for_others() -> None:
    """The ledger has two caps, each for records that another set has. Each of them stays in force for that set."""
    set_cap(of("one", range(10), test=range(20, 30)), 1.0, delta=DELTA)
    shutil.rmtree("features/one")
    set_cap(of("one", range(40, 50), test=range(60, 70)), 5.0, delta=DELTA)
    for numbers in (range(9, 12), range(29, 32), range(20, 30)):
        with pytest.raises(UserError, match="epsilon = 1 at"):
            ready(of(f"other{numbers}", numbers), 1.1)
    charge(ready(of("later", range(49, 52)), 4.5))
    assert [cap.epsilon for _, cap in account(of("same", range(10))).caps] == [1.0]


# Persons


def test_a_cap_for_persons_holds_for_the_persons_of_each_split() -> None:
    """A training for persons counts with its own μ, and not with twice that."""
    one = of("one", range(8), test=range(20, 28), persons=True)
    evaluated(one, 0.5)
    ((_, cap),) = set_cap(one, 1.0, delta=DELTA).in_force
    assert cap.protects == ("person", ledger.persons_of(one.manifest))
    charge(ready(one, 0.9))
    for split, epsilon in (("train", 0.9), ("test", 0.5)):
        (held,) = account(one, split=split).in_force
        left = limit.mu_of_cap(1.0, DELTA) ** 2 - mu_for(epsilon, DELTA) ** 2
        assert account(one, split=split).room(held[1]) == pytest.approx(left, rel=1e-6)
        with pytest.raises(UserError, match="does not fit"):
            evaluated(one, 0.9, split)


def test_a_training_that_would_not_protect_the_persons_of_a_capped_set_is_refused() -> None:
    one, larger = of("one", range(8), persons=True), of("larger", range(14), persons=True)
    set_cap(one, 2.0, delta=DELTA)
    with pytest.raises(UserError, match="would not protect these persons"):
        ready(larger)
    charge(ready(one))


# What somebody says


@pytest.mark.parametrize("fault", [False, True])
def test_a_cap_and_the_first_training_of_a_set_that_is_said_to_share_records_do_not_miss_each_other(
    fault: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was said is in the ledger of `a`. No ledger has a training or a cap."""
    a, b = of("a", range(10), kind=None), of("b", range(50, 60), kind=None)
    share_records(a, [b])
    other = ready(b, 1.2)
    with monkeypatch.context() as patch:
        if fault:
            patch.setattr(other_ledgers, "begun", lambda *given: False)
        seen = meanwhile(patch, caps, "_check", lambda: charge(other), skip=1)
        set_cap(a, 1.0, delta=DELTA)
    assert seen == ["done" if fault else "busy"]
    assert over(a) == fault


def test_what_is_said_of_a_set_before_its_first_training_counts_for_its_cap() -> None:
    one, other = of("one", range(8), kind=None), of("other", range(100, 108), kind=None)
    share_records(one, [other])
    set_cap(one, 1.0, delta=DELTA)
    with pytest.raises(UserError, match="does not fit"):
        ready(other, 1.1)
    charge(ready(other, 1.0))
    with pytest.raises(UserError, match=r"Nothing more fits"):
        ready(one, 0.1)
