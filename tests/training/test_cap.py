"""A cap is never passed, on whichever set of the records somebody trains."""

import math
import os
import pwd
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dpfc_cli.training.cap import set_cap
from dpfc_cli.training.ledger import ledger_path

from dpfc_cli.errors import UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.privacy.accounting import mu_for
from dpfc_cli.training import ledger, limit
from dpfc_cli.training.charge import charge
from dpfc_cli.training.observer import Observer, TrainingWarning
from dpfc_cli.training.request import Privacy, Request
from dpfc_cli.training.train import charge_of, finish, plan
from tests.support import blobs
from tests.training.caps import account, ready, row


def test_a_cap_that_is_set_for_one_set_counts_for_all_sets_of_the_records(sets: dict[str, FeatureSet]) -> None:
    found = set_cap(sets["a"], 3.0, by="an officer", note="the plan")
    ((name, cap),) = found.in_force
    assert (name, cap.epsilon, cap.delta, cap.who, cap.note) == ("a", 3.0, 1e-5, "an officer", "the plan")
    # Whoever trains on another set waits for a change of the cap.
    assert account(sets["b"]).ledgers == {ledger_path(sets["a"].folder).resolve()}
    charge(ready(sets["b"], 2.5))
    for features in sets.values():
        assert account(features).in_force == [("a", cap)]
        assert account(features).left(1e-5) == 1.458
        assert account(features).not_counted == ()
        with pytest.raises(UserError, match="does not fit") as refused:
            ready(features, 1.6)
        assert refused.value.fields["left"] == 1.458
    charge(ready(sets["c"], 1.458))
    assert account(sets["a"]).left(1e-5) < 0.04  # type: ignore[operator]
    # The strictest one holds, wherever it was set.
    set_cap(sets["a"], 8.0)
    set_cap(sets["b"], 3.1)
    assert [name for name, _ in account(sets["c"]).in_force] == ["b", "a"]
    with pytest.raises(UserError, match=r"epsilon = 3\.1 at delta = 1e-05 for b"):
        ready(sets["c"], 1.6)


def test_a_cap_that_would_be_false_from_the_start_is_refused(sets: dict[str, FeatureSet]) -> None:
    charge(ready(sets["b"], 2.0))
    with pytest.raises(UserError, match="would promise what is not true") as refused:
        set_cap(sets["a"], 1.9)
    assert (refused.value.code, refused.value.fields["least"]) == ("over-cap", 2.0)
    assert not account(sets["a"]).caps
    set_cap(sets["a"], 2.0)
    with pytest.raises(UserError, match="Nothing more fits"):
        ready(sets["a"], 1e-4)
    for name in "bc":
        records = ledger.records_of(sets[name].manifest)
        ledger.charge(ledger_path(sets[name].folder), row(100.0, records=records))
    with pytest.raises(UserError, match="would promise what is not true") as refused:
        set_cap(sets["a"], 100.0)
    assert (refused.value.fields["least"], refused.value.remedy) == (None, "No cap holds any more at this delta.")


def grown_to(name: str) -> FeatureSet:
    """A set that is made again, of some more pictures."""
    shutil.rmtree(Path("features", name))
    x, y = blobs(40, 3, 2)
    np.savez("more.npz", train_x=x, train_y=y)
    return import_features(Path("more.npz"), Path("features", name).absolute(), classes=("a", "b")).features


def test_a_cap_outlives_the_set_that_it_was_set_for(sets: dict[str, FeatureSet]) -> None:
    """A set that is made again does not lose its cap. It can be changed as any other."""
    set_cap(sets["a"], 1.0)
    charge(ready(sets["a"], 0.9))
    grown = grown_to("a")
    with pytest.raises(UserError, match="does not fit under the cap of these records: epsilon = 1 "):
        ready(grown, 0.9)
    assert [cap.epsilon for _, cap in set_cap(grown, 2.0).in_force] == [2.0]
    # The others still have the records that the first cap was on. They are in the larger set, too.
    assert [cap.epsilon for _, cap in account(sets["b"]).in_force] == [1.0, 2.0]
    charge(ready(grown, 0.9))


def test_a_cap_of_another_set_holds_for_a_set_whose_rows_are_about_its_records(sets: dict[str, FeatureSet]) -> None:
    """No digests are needed for that: the ledger of the set that was made again has rows of before."""
    charge(ready(sets["a"], 0.9))
    set_cap(sets["b"], 2.0)
    charge(ready(sets["b"], 0.5))
    grown = grown_to("a")
    for left in Path("features").rglob("*.digests"):
        left.unlink()
    assert [(name, cap.epsilon) for name, cap in account(grown).in_force] == [("b", 2.0)]
    assert [entry.epsilon for entry in account(grown).entries] == [0.9, 0.5]
    with pytest.raises(UserError, match="does not fit under the cap of these records: epsilon = 2 "):
        ready(grown, 1.9)


def test_a_cap_is_removed_where_it_was_set(sets: dict[str, FeatureSet]) -> None:
    set_cap(sets["a"], 1.0)
    with pytest.raises(UserError, match="b has no cap; one is set for a") as refused:
        set_cap(sets["b"], None)
    assert refused.value.code == "missing"
    set_cap(sets["b"], 2.0)
    assert [name for name, _ in set_cap(sets["a"], None, note="the study ended").in_force] == ["b"]
    assert set_cap(sets["b"], None).in_force == []
    with pytest.raises(UserError, match="There is nothing to remove"):
        set_cap(sets["a"], None)
    assert not ledger_path(sets["c"].folder).exists()
    charge(ready(sets["c"]))
    assert [cap.epsilon for _, cap in account(sets["c"]).caps] == [1.0, None, 2.0, None]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        *[({"epsilon": value}, "Epsilon must lie between") for value in (0.0, -1.0, 1e-5, 101.0, math.inf, math.nan)],
        *[({"epsilon": value}, "cap must be a number") for value in ("3", True)],
        *[({"delta": value}, "Delta must lie between") for value in (0.0, 1.0, -1e-5)],
        ({"delta": 0.05}, "is larger than 1/n"),
        ({"epsilon": 100.0, "delta": 1e-20}, "uses up delta"),
        ({"epsilon": None, "delta": 1e-5}, "delta has no meaning"),
        *[({"by": value}, "by must be a text of 1 to 100 characters") for value in ("", "x" * 101, "\ud800", 7)],
        *[({"note": value}, "note must be a text of 1 to 500 characters") for value in ("", "x" * 501, "a\0")],
    ],
)
def test_a_cap_that_makes_no_sense_is_refused(sets: dict[str, FeatureSet], given: dict[str, Any], says: str) -> None:
    epsilon, rest = given.get("epsilon", 3.0), {name: value for name, value in given.items() if name != "epsilon"}
    with pytest.raises(UserError) as refused:
        set_cap(sets["a"], epsilon, **rest)
    assert says in str(refused.value)
    assert not ledger_path(sets["a"].folder).exists()


def test_a_cap_that_is_refused_leaves_nothing_beside_the_set(sets: dict[str, FeatureSet]) -> None:
    charge(ready(sets["b"], 2.0))
    before = sorted(Path("features").rglob("*"))
    for epsilon, says in ((1.9, "would promise what is not true"), (None, "There is nothing to remove")):
        with pytest.raises(UserError, match=says):
            set_cap(sets["a"], epsilon)
    assert sorted(Path("features").rglob("*")) == before
    set_cap(sets["a"], 2.0)
    assert {path.name for path in Path("features").glob("a.*")} == {"a.ledger.sqlite", "a.ledger.digests"}


def test_a_cap_may_have_the_delta_of_one_record_in_n(sets: dict[str, FeatureSet]) -> None:
    assert set_cap(sets["a"], 3.0, delta=1 / 30).caps[0][1].delta == 1 / 30


def test_a_ledger_is_locked_for_its_rows_if_nothing_else_is_left_of_its_set(sets: dict[str, FeatureSet]) -> None:
    charge(ready(sets["a"], 0.9))
    before = account(sets["b"])
    shutil.rmtree("features/a")
    for left in Path("features").rglob("*.digests"):
        left.unlink()
    assert account(sets["b"]).linked == before.linked != ()
    assert account(sets["b"]).ledgers == before.ledgers == {ledger.real(Path("features/a.ledger.sqlite"))}


def test_a_private_head_that_is_continued_is_charged_for_its_new_releases_alone(sets: dict[str, FeatureSet]) -> None:
    set_cap(sets["a"], 2.0)
    first = finish(ready(sets["a"], 1.0), Observer())
    wanted = Request(
        features=sets["a"],
        folder=Path("heads"),
        privacy=Privacy(epsilon=1.5),
        options={"steps": 2},
        public_head=first.path,
    )
    with pytest.warns(TrainingWarning, match="a useless public start"):
        charge(plan(wanted, Observer()))
    assert limit.spent(account(sets["a"]).own) == pytest.approx(mu_for(1.0, 1e-5) ** 2 + mu_for(1.5, 1e-5) ** 2)


def test_the_row_says_who_and_why_and_the_head_does_not(sets: dict[str, FeatureSet]) -> None:
    done = finish(ready(sets["a"], by="Ada of ward 7", purpose="a first look"), Observer())
    (entry,) = account(sets["a"]).own
    assert (entry.who, entry.purpose, entry.state) == ("Ada of ward 7", "a first look", "written")
    for word in (b"Ada", b"ward", b"first look"):
        assert word not in done.path.read_bytes()
    charged = charge(ready(sets["b"]))
    assert charged.receipt.entry.who == pwd.getpwuid(os.getuid()).pw_name


def test_the_question_before_a_charge_says_what_the_cap_leaves(sets: dict[str, FeatureSet]) -> None:
    assert charge_of(ready(sets["a"])) == "ε = 2.5 to a"
    set_cap(sets["a"], 3.0)
    assert charge_of(ready(sets["a"])) == "ε = 2.5 to a (under the cap ε = 1.458 is left then)"


def test_earlier_trainings_without_a_guarantee_are_in_no_sum(sets: dict[str, FeatureSet]) -> None:
    """No cap covers them. It can be set all the same, for what comes after them."""
    for privacy in (Privacy(), Privacy(epsilon=9.0, seed=1)):
        charge(ready(sets["a"], privacy=privacy))
    set_cap(sets["a"], 2.5)
    assert limit.spent(account(sets["a"]).entries) == 0
    assert (account(sets["a"]).left(1e-5), account(sets["a"]).unprotected) == (2.5, 2)
    charge(ready(sets["b"], 2.5))


def test_the_rows_of_all_sets_are_told_in_the_order_of_time(sets: dict[str, FeatureSet]) -> None:
    records = ledger.records_of(sets["a"].manifest)
    for month, name in enumerate("bacab", start=1):
        at = f"2026-0{month}-02T03:04:05+00:00"
        ledger.charge(ledger_path(sets[name].folder), row(0.1, at=at, records=records))
    assert [name for name, _ in account(sets["a"]).rows] == list("bacab")
