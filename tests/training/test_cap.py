"""A cap is never passed, whoever trains, on whichever set of the records, and whenever."""

import json
import math
import os
import pwd
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpfc_cli.errors import UserError
from dpfc_cli.features.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.privacy.accounting import delta_of, epsilon_for, mu_for
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.noise import ETA_PER_SAMPLE
from dpfc_cli.privacy.queries import Gradient
from dpfc_cli.training import account as accounts
from dpfc_cli.training import cap as caps
from dpfc_cli.training import charge as charging
from dpfc_cli.training import ledger, limit, other_ledgers
from dpfc_cli.training.account import Account, account_of
from dpfc_cli.training.calibrate import calibrate
from dpfc_cli.training.cap import set_cap
from dpfc_cli.training.card import entry_of
from dpfc_cli.training.charge import charge
from dpfc_cli.training.check import Checked, check
from dpfc_cli.training.ledger import Cap, Entry, ledger_path, tables, writing
from dpfc_cli.training.observer import Observer, TrainingWarning
from dpfc_cli.training.request import Privacy, Request
from dpfc_cli.training.train import charge_of, finish, plan
from tests.hostile import set_of
from tests.support import CHAIN, blobs, calibrated_at, plan_of

AT = "2026-01-02T03:04:05+00:00"
FACTS = Facts(n=100, m=2, d=2)
GRADIENT = Gradient(CHAIN, np.zeros((3, 2)), clip=1.0)
EPSILONS, DELTAS = st.floats(1e-4, 100), st.sampled_from([1e-9, 1e-6, 1e-5, 1e-3])


def row(epsilon: float, delta: float = 1e-5, *, releases: int = 3, rate: float = 1.0, **changed: Any) -> Entry:
    """The row of a training that spends ε at δ in equal releases."""
    plan = plan_of(FACTS, *[(GRADIENT, 1.0)] * releases, rate=rate)
    made = entry_of(calibrated_at(FACTS, plan, mu_for(epsilon, delta)), set_of(FACTS), "h.safetensors", AT)
    return replace(made, **{"epsilon": epsilon, "delta": delta, **changed})


def cap_of(epsilon: float | None, delta: float = 1e-5, **changed: Any) -> Cap:
    figures: dict[str, Any] = {"epsilon": epsilon, "delta": None, "mu": None, "eta": None}
    if epsilon is not None:
        figures |= {"delta": delta, "mu": limit.mu_of_cap(epsilon, delta), "eta": limit.RESERVE}
    return Cap(**{"at": AT, "records": "r", "who": "an officer", **figures, **changed})


def allowed(cap: Cap, entries: list[Entry], entry: Entry) -> bool:
    try:
        limit.check([("set", cap)], entries, entry)
    except UserError as error:
        return error.code != "over-cap"
    return True


# The figures


@settings(max_examples=50, deadline=None, derandomize=True)
@given(EPSILONS, DELTAS)
def test_a_cap_stands_for_no_more_than_its_epsilon(epsilon: float, delta: float) -> None:
    mu = limit.mu_of_cap(epsilon, delta)
    assert delta_of(epsilon, mu * math.sqrt(1 + limit.ROUNDING)) + (1 + math.exp(epsilon)) * limit.RESERVE <= delta
    assert delta_of(epsilon, mu * (1 + 1e-8)) + (1 + math.exp(epsilon)) * limit.RESERVE > delta


@settings(max_examples=50, deadline=None, derandomize=True)
@given(EPSILONS, DELTAS, st.integers(1, 40), st.integers(1, 5))
def test_parts_of_a_cap_fill_it_and_one_more_does_not_fit(epsilon: float, delta: float, n: int, releases: int) -> None:
    mu = limit.mu_of_cap(epsilon, delta) / math.sqrt(n)
    sigma = math.sqrt(releases) / mu
    release = {"kind": "gradient", "shape": [3, 2], "share": 1 / releases, "sigma": sigma, "rate": 1, "times": releases}
    part = replace(row(1.0), epsilon=1.0, mu=mu, eta=0.0, releases=json.dumps([release]))
    cap = cap_of(epsilon, delta)
    assert allowed(cap, [part] * (n - 1), part)
    assert not allowed(cap, [part] * n, part)
    assert limit.room(cap, [part] * n) < mu**2 * 1e-6


def test_a_training_of_the_caps_own_epsilon_and_delta_fits() -> None:
    for epsilon in (1e-4, 0.3, 1.0, 3.0, 8.0, 50.0):
        for delta in (1e-9, 1e-5):
            assert allowed(cap_of(epsilon, delta), [], row(epsilon, delta))
            assert not allowed(cap_of(epsilon, delta), [row(epsilon, delta)], row(1e-4, delta))
            assert limit.fitting(limit.room(cap_of(epsilon, delta), []), delta) == epsilon


@settings(max_examples=50, deadline=None, derandomize=True)
@example(10.0, 1e-4, 1e-9, 1e-9)
@example(3.0, 1e-4, 1e-9, 1e-9)
@given(EPSILONS, EPSILONS, DELTAS, DELTAS)
def test_the_epsilon_that_is_said_to_fit_does_and_none_that_is_larger_by_a_digit(
    epsilon: float, used: float, of_cap: float, delta: float
) -> None:
    cap, before = cap_of(epsilon, of_cap), row(used, delta)
    if not allowed(cap, [], before):
        return
    left = limit.room(cap, [before])
    fits = limit.fitting(left, delta) if left > 0 else None
    if fits is None:
        assert not allowed(cap, [before], row(1e-4, delta))
        return
    assert float(f"{fits:.4g}") == fits
    assert allowed(cap, [before], row(fits, delta))
    digit = 10.0 ** (math.floor(math.log10(fits)) - 3)
    assert fits + 1.001 * digit > 100 or not allowed(cap, [before], row(fits + 1.001 * digit, delta))


@pytest.mark.parametrize(("too_much", "fits"), [(1.001, 1.0), (1.0, 0.9999), (0.1001, 0.1), (0.1, 0.09999)])
def test_the_epsilon_below_one_that_hardly_does_not_fit_is_the_next_one_of_four_digits(
    too_much: float, fits: float
) -> None:
    left = mu_for(too_much * (1 - 5e-9), 1e-5) ** 2
    assert mu_for(too_much, 1e-5) ** 2 > left
    assert limit.fitting(left, 1e-5) == fits


@pytest.mark.parametrize("epsilon", [1e-4, 0.5, 1.0, 3.0])
def test_the_least_cap_for_one_training_is_its_own_epsilon(epsilon: float) -> None:
    assert limit.least([row(epsilon)], 1e-5) == epsilon


def test_the_least_cap_may_be_the_largest_one() -> None:
    assert limit.least([row(99.995)], 1e-5) == 100.0


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(EPSILONS, min_size=1, max_size=4), DELTAS, DELTAS)
def test_the_least_cap_that_is_true_holds_and_none_that_is_smaller_by_a_digit(
    epsilons: list[float], delta: float, of_cap: float
) -> None:
    entries = [row(epsilon, delta) for epsilon in epsilons]
    least = limit.least(entries, of_cap)
    if least is None:
        assert limit.room(cap_of(100.0, of_cap), entries) < 0
        return
    assert float(f"{least:.4g}") == least
    assert limit.room(cap_of(least, of_cap), entries) >= 0
    digit = 10.0 ** (math.floor(math.log10(least)) - 3)
    if least - 1.001 * digit >= 1e-4:
        assert limit.room(cap_of(least - 1.001 * digit, of_cap), entries) < 0


def test_the_distance_of_the_sampler_is_capped_too() -> None:
    assert limit.RESERVE == ETA_PER_SAMPLE * 2**50
    cap = cap_of(3.0)
    whole = replace(row(0.1), eta=limit.RESERVE)
    assert allowed(cap, [], whole)
    assert not allowed(cap, [whole], row(0.1))
    with pytest.raises(ValueError, match="uses up delta"):
        limit.mu_of_cap(100.0, 1e-20)


def filled(seed: int, rule: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """The logarithm of the likelihood ratio of 100,000 runs of adaptive releases under a cap of M = 1, which the last
    release fills. rule: what a run has spent, and how loud it is asked to be → how loud the next release is.
    """
    rng = np.random.default_rng(seed)
    spent, ratio = np.zeros(100_000), np.zeros(100_000)
    for step in range(12):
        # Whoever looks lucky goes on louder, and the last one takes what is left.
        wish = np.where(ratio > 0.2, 0.6, 0.15) if step < 11 else np.full(len(spent), 9.0)
        a = rule(spent, wish)
        ratio += a * rng.normal(size=len(a)) - a**2 / 2
        spent += a**2
    return ratio


def test_adaptive_releases_under_a_cap_are_one_gaussian_mechanism_and_without_one_they_are_not() -> None:
    """By the theorem of `limit` the logarithm is N(−M/2, M). Kolmogorov's distance exceeds 0.0073 by chance with
    probability 5e-5.
    """

    def distance(found: np.ndarray) -> float:
        normal, n = NormalDist(-0.5, 1.0), len(found)
        true = np.array([normal.cdf(value) for value in np.sort(found)])
        return float(max((np.arange(1, n + 1) / n - true).max(), (true - np.arange(n) / n).max()))

    assert distance(filled(1, lambda spent, wish: np.minimum(wish, np.sqrt(np.maximum(1 - spent, 0))))) < 0.0073
    # A training that may pass the cap once, as where the check looks at what was spent before it alone.
    assert distance(filled(1, lambda spent, wish: np.where(spent < 1, np.minimum(wish, 0.6), 0))) > 0.02


# Which cap holds, and for whom


def test_the_newest_cap_of_each_ledger_holds_and_the_strictest_one_comes_first() -> None:
    found = limit.in_force(
        [("a", cap_of(1.0)), ("a", cap_of(3.0)), ("b", cap_of(2.0)), ("c", cap_of(0.5)), ("c", cap_of(None))]
    )
    assert [(name, cap.epsilon) for name, cap in found] == [("b", 2.0), ("a", 3.0)]
    # ε = 2 at δ = 1e-9 is less than at 1e-5.
    found = limit.in_force([("a", cap_of(2.0, 1e-5)), ("b", cap_of(2.0, 1e-9))])
    assert [cap.delta for _, cap in found] == [1e-9, 1e-5]


@pytest.mark.parametrize("state", ["charged", "written", "stopped", "unknown"])
def test_every_row_counts_whatever_became_of_it(state: Any) -> None:
    before = replace(row(2.5), state=state)
    assert allowed(cap_of(3.0), [before], row(1.4))
    assert not allowed(cap_of(3.0), [before], row(1.5))


def test_rows_under_replace_one_count_with_their_whole_mu() -> None:
    for adjacency in ("zero-out", "replace-one"):
        changed: dict[str, Any] = {"adjacency": adjacency}
        assert allowed(cap_of(3.0), [row(2.5, **changed)], row(1.4, **changed))
        assert not allowed(cap_of(3.0), [row(2.5, **changed)], row(1.5, **changed))


def test_earlier_sampled_releases_count_as_full_passes() -> None:
    sampled = row(2.5, rate=0.01)
    assert limit.spent([sampled]) == pytest.approx(limit.spent([row(2.5)]), rel=1e-12)
    assert not allowed(cap_of(3.0), [sampled], row(1.5))


def test_earlier_trainings_without_a_guarantee_are_in_no_sum(sets: dict[str, FeatureSet]) -> None:
    """No cap covers them. It can be set all the same, for what comes after them."""
    for privacy in (Privacy(), Privacy(epsilon=9.0, seed=1)):
        charge(ready(sets["a"], privacy=privacy))
    set_cap(sets["a"], 2.5)
    assert limit.spent(account(sets["a"]).entries) == 0
    assert (account(sets["a"]).left(1e-5), account(sets["a"]).unprotected) == (2.5, 2)
    charge(ready(sets["b"], 2.5))


(_SAMPLED,) = row(1.0, rate=0.1).plan
PARTLY_SAMPLED = replace(row(1.0), releases=json.dumps([{**_SAMPLED, "rate": 1.0}, _SAMPLED]))


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (row(1.0, rate=0.1), "for sampled ones there is no proof"),
        (PARTLY_SAMPLED, "for sampled ones there is no proof"),
        (replace(row(1.0), claim="research", epsilon=None, delta=None, mu=None, eta=None), "no cap is kept with it"),
    ],
)
def test_a_training_that_no_cap_can_be_kept_with_is_refused_under_one(entry: Entry, says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        limit.check([("set", cap_of(100.0))], [], entry)
    assert (refused.value.code, refused.value.fields["cap"]) == ("conflict", 100.0)
    limit.check([("set", cap_of(100.0)), ("set", cap_of(None))], [], entry)


def test_a_refusal_says_which_cap_and_what_still_fits() -> None:
    with pytest.raises(UserError) as refused:
        limit.check([("digits", cap_of(3.0))], [row(2.5)], row(2.0, 1e-6))
    said, fields = refused.value, refused.value.fields
    assert said.what == (
        "This training does not fit under the cap of these records: epsilon = 3 at delta = 1e-05 for digits. At "
        f"delta = 1e-06 epsilon = {fields['left']:.4g} still fits."
    )
    assert fields["left"] == pytest.approx(
        epsilon_for(math.sqrt(mu_for(3.0, 1e-5) ** 2 - mu_for(2.5, 1e-5) ** 2), 1e-6), rel=1e-3
    )
    assert {name: fields[name] for name in ("feature_set", "cap", "cap_delta", "asked", "delta")} == {
        **{"feature_set": "digits", "cap": 3.0, "cap_delta": 1e-5, "asked": 2.0, "delta": 1e-6}
    }
    with pytest.raises(UserError, match=r"Nothing more fits\."):
        limit.check([("digits", cap_of(3.0))], [row(3.0)], row(1e-4))


# Sets of the same records


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sets of the same records."""
    folder = tmp_path_factory.mktemp("sets")
    x, y = blobs(30, 3, 2)
    np.savez(folder / "raw.npz", train_x=x, train_y=y)
    import_features(folder / "raw.npz", folder / "features" / "a", classes=("a", "b"))
    for name in ("b", "c"):
        shutil.copytree(folder / "features" / "a", folder / "features" / name)
    return folder


@pytest.fixture
def sets(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, FeatureSet]:
    monkeypatch.chdir(tmp_path)
    for variable in ("DPFC_FEATURES", "DPFC_HEADS"):
        monkeypatch.delenv(variable, raising=False)
    shutil.copytree(made / "features", tmp_path / "features")
    return {name: FeatureSet(Path("features", name)) for name in "abc"}


def ready(features: FeatureSet, epsilon: float = 2.5, **changed: Any) -> Checked:
    """A training that is checked and not charged yet."""
    privacy = changed.pop("privacy", Privacy(epsilon=epsilon))
    request = Request(features=features, folder=Path("heads"), privacy=privacy, **changed)
    given = {} if privacy.claim == "non-private" else {"steps": 2}
    made = calibrate(request.chosen, request.facts, given, request.privacy)
    return check(request, made, Observer())


def account(features: FeatureSet) -> Account:
    return account_of(ledger_path(features.folder), features.folder)


def test_a_cap_that_is_set_for_one_set_counts_for_all_sets_of_the_records(sets: dict[str, FeatureSet]) -> None:
    found = set_cap(sets["a"], 3.0, by="an officer", note="the plan")
    ((name, cap),) = found.in_force
    assert (name, cap.epsilon, cap.delta, cap.who, cap.note) == ("a", 3.0, 1e-5, "an officer", "the plan")
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


def test_a_cap_outlives_the_set_that_it_was_set_for(sets: dict[str, FeatureSet], tmp_path: Path) -> None:
    """A set that is made again, of some more pictures, does not lose its cap. It can be changed as any other."""
    set_cap(sets["a"], 1.0)
    charge(ready(sets["a"], 0.9))
    shutil.rmtree("features/a")
    x, y = blobs(40, 3, 2)
    np.savez(tmp_path / "more.npz", train_x=x, train_y=y)
    grown = import_features(tmp_path / "more.npz", tmp_path / "features" / "a", classes=("a", "b")).features
    with pytest.raises(UserError, match="does not fit under the cap of these records: epsilon = 1 "):
        ready(grown, 0.9)
    assert [cap.epsilon for _, cap in set_cap(grown, 2.0).in_force] == [2.0]
    # The others still have the records that the first cap was on. They are in the larger set, too.
    assert [cap.epsilon for _, cap in account(sets["b"]).in_force] == [1.0, 2.0]
    charge(ready(grown, 0.9))


def test_a_cap_is_removed_where_it_was_set(sets: dict[str, FeatureSet]) -> None:
    set_cap(sets["a"], 1.0)
    with pytest.raises(UserError, match="b has no cap; one is set for a") as refused:
        set_cap(sets["b"], None)
    assert refused.value.code == "missing"
    assert set_cap(sets["a"], None, note="the study ended").in_force == []
    with pytest.raises(UserError, match="There is nothing to remove"):
        set_cap(sets["a"], None)
    assert not ledger_path(sets["b"].folder).exists()
    charge(ready(sets["b"]))
    assert [cap.epsilon for _, cap in account(sets["b"]).caps] == [1.0, None]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        *[({"epsilon": value}, "Epsilon must lie between") for value in (0.0, -1.0, 1e-5, 101.0, math.inf, math.nan)],
        *[({"epsilon": value}, "cap must be a number") for value in ("3", True)],
        *[({"delta": value}, "Delta must lie between") for value in (0.0, 1.0, -1e-5)],
        ({"delta": 0.1}, "is larger than 1/n"),
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


# Two at once. In each scenario something else happens between the check of one row and its commit.


def meanwhile(patch: pytest.MonkeyPatch, place: Any, name: str, does: Callable[[], object], skip: int = 0) -> list[str]:
    """Let `does` happen once, as by another process, after a check was passed and before the row is written. Nobody
    waits for a lock. Returns a list in which the code of the refusal will be. skip: checks of before the locks.
    """
    seen, calls = list[str](), count()
    real, connect = getattr(place, name), sqlite3.connect
    patch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **{**k, "timeout": 0}))

    def checked(*given: Any) -> None:
        real(*given)
        if next(calls) == skip:
            seen.append("done")
            try:
                does()
            except UserError as error:
                seen[0] = error.code

    patch.setattr(place, name, checked)
    return seen


def over(features: FeatureSet) -> bool:
    """Whether more is spent than the caps allow."""
    now = account(features)
    return any(limit.room(cap, now.entries) < 0 for _, cap in now.in_force)


def unlocked(patch: pytest.MonkeyPatch) -> None:
    """The check is done first, and then the row is written."""
    real = ledger.charge

    def apart(path: Path, entry: Entry, allow: ledger.Allow) -> ledger.Receipt:
        allow(account_of(path).ledgers)
        return real(path, entry)

    patch.setattr(ledger, "charge", apart)


def late(patch: pytest.MonkeyPatch) -> None:
    """The ledger is locked by its first write, and not before it is read."""

    class Late(sqlite3.Connection):
        def execute(self, sql: str, *given: Any) -> sqlite3.Cursor:
            return super().execute("BEGIN" if sql == "BEGIN IMMEDIATE" else sql, *given)

    connect = sqlite3.connect
    patch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=Late))


def unheld(patch: pytest.MonkeyPatch) -> None:
    """Linked ledgers are read, and not locked."""
    patch.setattr(writing, "_hold", lambda connection: None)


def alone(patch: pytest.MonkeyPatch) -> None:
    """Nobody asks for the linked ledgers to be locked."""
    real = accounts.account_of
    for place in (charging, caps):
        patch.setattr(place, "account_of", lambda *given, **named: replace(real(*given, **named), ledgers=frozenset()))


def nothing(patch: pytest.MonkeyPatch) -> None:
    """No fault."""


@pytest.mark.parametrize(
    ("first", "second", "fault", "passes"),
    [
        *[("a", "a", fault, fault in (unlocked, late)) for fault in (nothing, unlocked, late)],
        *[("a", "b", fault, fault is not nothing) for fault in (nothing, unlocked, late, unheld, alone)],
        *[("b", "a", fault, fault is not nothing) for fault in (nothing, unheld, alone)],
        *[("b", "c", fault, fault is not nothing) for fault in (nothing, unheld, alone)],
    ],
)
def test_two_trainings_that_do_not_fit_together_are_never_both_charged_unless_a_fault_is_planted(
    sets: dict[str, FeatureSet],
    first: str,
    second: str,
    fault: Callable[[pytest.MonkeyPatch], None],
    passes: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cap is set for `a`. The second training is charged while the first one is."""
    set_cap(sets["a"], 3.0)
    one, other = ready(sets[first]), ready(sets[second])
    with monkeypatch.context() as patch:
        fault(patch)
        seen = meanwhile(patch, limit, "check", lambda: charge(other))
        charge(one)
    assert seen == ["done" if passes else "busy"]
    assert over(sets["a"]) == passes
    if not passes:
        assert len(account(sets["a"]).entries) == 1
        with pytest.raises(UserError, match="does not fit"):
            charge(other)


@pytest.mark.parametrize("fault", [False, True])
def test_a_cap_and_the_first_training_of_another_set_do_not_miss_each_other(
    sets: dict[str, FeatureSet], fault: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither ledger exists. Each of the two must see the file that the other one has just made."""
    other = ready(sets["b"])
    with monkeypatch.context() as patch:
        if fault:
            patch.setattr(other_ledgers, "begun", lambda *given: False)
        seen = meanwhile(patch, caps, "_check", lambda: charge(other), skip=1)
        set_cap(sets["a"], 1.0)
    assert seen == ["done" if fault else "busy"]
    assert over(sets["a"]) == fault
    if not fault:
        with pytest.raises(UserError, match="does not fit"):
            charge(other)


def test_a_cap_that_was_lowered_after_the_check_counts_at_the_charge(sets: dict[str, FeatureSet]) -> None:
    set_cap(sets["a"], 3.0)
    planned = ready(sets["b"])
    set_cap(sets["a"], 1.0)
    with pytest.raises(UserError, match="does not fit under the cap of these records: epsilon = 1 "):
        charge(planned)
    assert account(sets["b"]).entries == []
    assert not list(Path("heads").iterdir()), "the place that was kept for the head is free again"


def test_what_was_charged_to_a_linked_ledger_before_it_was_locked_is_seen(
    sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`a` finds the ledger of `b`, and waits for it. Meanwhile `b` is charged."""
    set_cap(sets["c"], 3.0)
    charge(ready(sets["b"], 0.1))
    one, other = ready(sets["c"]), ready(sets["b"])
    real, charged = writing._hold, list[int]()

    def held(connection: sqlite3.Connection) -> None:
        if not charged:
            charged.append(1)
            monkeypatch.setattr(writing, "_hold", real)
            charge(other)
        real(connection)

    monkeypatch.setattr(writing, "_hold", held)
    with pytest.raises(UserError, match="does not fit"):
        charge(one)
    assert charged == [1]
    assert not over(sets["a"])


@pytest.mark.parametrize(("own", "linked"), [("a", "b"), ("b", "a")])
def test_linked_ledgers_are_let_go_after_the_row_is_on_disk(
    sets: dict[str, FeatureSet], own: str, linked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of them was locked first."""
    charge(ready(sets[linked]))
    planned, path = ready(sets[own]), ledger_path(sets[own].folder)
    real, connect, held, there = writing._hold, sqlite3.connect, list[sqlite3.Connection](), list[int]()

    class Watched(sqlite3.Connection):
        def close(self) -> None:
            if self in held:
                there.append(len(ledger.read(path)))
            super().close()

    def hold(connection: sqlite3.Connection) -> None:
        held.append(connection)
        real(connection)

    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=Watched))
    monkeypatch.setattr(writing, "_hold", hold)
    charge(planned)
    assert there == [1]


def test_a_linked_ledger_that_may_only_be_read_is_locked_for_reading(
    sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_cap(sets["a"], 3.0)
    mine, other = ready(sets["b"]), ready(sets["a"])
    theirs = ledger_path(sets["a"].folder)
    real = tables.connected
    with monkeypatch.context() as patch:
        patch.setattr(tables, "connected", lambda path, mode: real(path, "ro" if path == theirs else mode))
        with pytest.raises(UserError, match="cannot be written: attempt to write a readonly database"):
            charge(other)

        def meddle() -> None:
            patch.setattr(tables, "connected", real)
            charge(other)

        seen = meanwhile(patch, limit, "check", meddle)
        charge(mine)
    assert seen == ["busy"]
    assert not over(sets["a"])


def test_ledgers_of_other_records_are_not_locked(
    sets: dict[str, FeatureSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = blobs(30, 3, 2, seed=9)
    np.savez(tmp_path / "other.npz", train_x=x, train_y=y)
    import_features(tmp_path / "other.npz", tmp_path / "features" / "other", classes=("a", "b"))
    other = FeatureSet(Path("features/other"))
    set_cap(sets["a"], 3.0)
    charge(ready(other, 50.0))
    assert account(sets["a"]).not_counted == ("other",)
    one, two = ready(sets["b"]), ready(other, 50.0)
    seen = meanwhile(monkeypatch, limit, "check", lambda: charge(two))
    charge(one)
    assert seen == ["done"]


def test_a_cap_is_held_against_what_was_charged_after_the_first_look(
    sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, looked = caps._check, list[int]()

    def checked(*given: Any) -> None:
        real(*given)
        looked.append(1)
        if len(looked) == 1:
            charge(ready(sets["b"]))

    monkeypatch.setattr(caps, "_check", checked)
    with pytest.raises(UserError, match="would promise what is not true"):
        set_cap(sets["a"], 1.0)
    assert not account(sets["a"]).caps


# Units


def of_persons(entry: Entry, which: str = "a") -> Entry:
    return replace(entry, unit="person", persons=which * 64)


def test_for_a_record_a_training_that_protects_persons_counts_with_twice_its_mu() -> None:
    one, other = row(0.5), of_persons(row(0.5))
    assert limit.spent([other]) == pytest.approx(4 * limit.spent([one]))
    assert ledger.together([one, other], 1e-5) == pytest.approx(epsilon_for(math.sqrt(5) * mu_for(0.5, 1e-5), 1e-5))
    assert ledger.unit_of([one, other]) == ledger.RECORD
    assert not ledger.composes_exactly([one, other])
    cap = cap_of(1.0)
    for n in range(4):
        fits = limit.fitting(limit.room(cap, [one] * n, other.protects), 1e-5)
        assert fits is not None
        assert allowed(cap, [one] * n, of_persons(row(fits)))
        assert not allowed(cap, [one] * n, of_persons(row(fits * 1.01)))


def test_a_sampled_training_for_persons_counts_for_a_record_as_full_passes() -> None:
    """The bound of a sample is for a unit that takes part or does not. One record of a person is none."""
    sampled = replace(row(0.5, releases=3, rate=0.1, mu=0.9), unit="person", persons="a" * 64)
    sigma = sampled.plan[0]["sigma"]
    found = ledger.together([row(0.5), sampled], 1e-5)
    mu = math.sqrt(mu_for(0.5, 1e-5) ** 2 + 3 * 4 / sigma**2)
    assert found == pytest.approx(epsilon_for(mu, 1e-5))
    # By itself it is for persons, and the sample counts.
    assert ledger.together([sampled], 1e-5) < epsilon_for(0.9, 1e-5)


def test_a_cap_for_persons_after_a_training_for_records_says_why_there_is_none(tmp_path: Path) -> None:
    x, y = blobs(60, 2, 2)
    np.savez(tmp_path / "a.npz", train_x=x, train_y=y, train_groups=np.arange(60) // 3)
    features = import_features(tmp_path / "a.npz", tmp_path / "features" / "a", classes=("a", "b")).features
    ledger.charge(ledger_path(features.folder), row(1.0, records=ledger.records_of(features.manifest)))
    with pytest.raises(UserError, match="do not protect the persons of a"):
        set_cap(features, 50.0, delta=1e-5)


def test_trainings_for_the_same_persons_are_summed_for_these_persons() -> None:
    rows = [of_persons(row(0.5)), of_persons(row(1.0))]
    assert ledger.unit_of(rows) == ("person", "a" * 64)
    assert ledger.composes_exactly(rows)
    plain = [replace(each, unit="record", persons=None) for each in rows]
    assert ledger.together(rows, 1e-5) == ledger.together(plain, 1e-5)
    assert ledger.unit_of([*rows, of_persons(row(1.0), "b")]) == ledger.RECORD


@pytest.mark.parametrize("other", [row(0.1), of_persons(row(0.1), "b")], ids=["a record", "other persons"])
def test_under_a_cap_for_persons_only_trainings_that_protect_them_are_made(other: Entry) -> None:
    cap = cap_of(3.0, unit="person", persons="a" * 64)
    assert allowed(cap, [], of_persons(row(1.0)))
    with pytest.raises(UserError, match=r"for each person for set\. This training would not protect these persons"):
        limit.check([("set", cap)], [], other)
    assert limit.room(cap, [other]) == -math.inf
    assert limit.least([other], 1e-5, cap.protects) is None


@pytest.mark.parametrize("changed", [{"unit": "person"}, {"persons": "a" * 64}, {"unit": "family"}])
def test_rows_and_caps_that_contradict_themselves_about_persons_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"contradict|'unit'"):
        ledger.check(replace(row(1.0), **changed))
    with pytest.raises(ValueError, match=r"contradict|'unit'"):
        ledger.check_cap(cap_of(1.0, **changed))
