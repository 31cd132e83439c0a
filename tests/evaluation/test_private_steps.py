"""The steps of a private evaluation, one by one: what is planned, refused, charged and told, and each edge of these."""

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.evaluation import private as private_evaluation
from dpfc_cli.evaluation.private import PrivateEvaluation, Ready, fraction, prepare, release
from dpfc_cli.evaluation.request import PrivateScoring
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import sha256_of
from dpfc_cli.heads.head import Head
from dpfc_cli.heads.metrics import Z
from dpfc_cli.ledger.caps import set_cap
from dpfc_cli.ledger.totals import Ledger
from dpfc_cli.privacy import curator as curators
from dpfc_cli.privacy import forms
from dpfc_cli.privacy.accounting import mu_for
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.training.machine import working_bytes
from dpfc_cli.training.request import Privacy, facts_of
from tests.support import blobs
from tests.training.requests import charges, ledger, states

N, D, M = 200, 4, 3


@pytest.fixture
def features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FeatureSet:
    """50 training records and 200 test records of three classes."""
    monkeypatch.chdir(tmp_path)
    x, y = blobs(50 + N, D, M)
    np.savez("raw.npz", train_x=x[:50], train_y=y[:50], test_x=x[50:], test_y=y[50:])
    return import_features("raw.npz", classes=tuple("abc"), labels_per_record=1).features


@pytest.fixture
def head(features: FeatureSet) -> Head:
    """A head of other records, with a guarantee."""
    Path("h.safetensors").write_bytes(b"a head")
    made = {"features": {"name": "other", "split": "train"}, "facts": {"n": 9}}
    card = {"claim": "private", "classes": list("abc"), **made}
    return Head(chain=(), weight=np.eye(D, M), bias=np.zeros(M), card=card, path=Path("h.safetensors"))


# What is planned


def planned(n: int, m: int, epsilon: float, k: int = 1) -> tuple[bool, bool]:
    """Whether the best five are released, and the figures per class."""
    facts, privacy = Facts(n=n, m=m, d=2, k=k), Privacy(epsilon=epsilon, delta=1e-6)
    head = Head(chain=(), weight=np.ones((2, m)), bias=np.zeros(m), card={})
    asked, plan = private_evaluation._planned(head, facts, privacy)
    assert plan.guarantee is not None
    assert plan.mechanism is not None
    assert (plan.facts, plan.privacy, len(plan.plan.releases)) == (facts, privacy, len(asked))
    assert (plan.guarantee.epsilon, plan.guarantee.delta) == (epsilon, 1e-6)
    assert plan.mechanism.sigmas == pytest.approx([math.sqrt(len(asked)) / mu_for(epsilon, 1e-6)] * len(asked))
    assert [query.by_class for query in asked] == [False, True][: len(asked)]
    return asked[0].best > 1, len(asked) == 2


@pytest.mark.parametrize(("m", "k"), [(2, 1), (5, 1), (6, 1), (6, 4)])
def test_figures_are_released_if_their_noise_is_not_larger_than_the_error_by_chance(m: int, k: int) -> None:
    epsilon = 0.05
    one = 4 / mu_for(epsilon, 1e-6) ** 2
    assert planned(math.ceil(one), m, epsilon, k) == (m > 5, False)
    assert planned(math.ceil(one) - 1, m, epsilon, k) == (False, False)
    # Half of the budget each. One record has k classes, and a class has n/m of the records.
    each = 2 * k * m * one
    assert planned(math.ceil(each), m, epsilon, k) == (m > 5, True)
    assert planned(math.ceil(each) - 1, m, epsilon, k) == (m > 5, False)


def test_more_classes_than_a_release_can_have_are_not_counted_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_evaluation, "LONGEST", 6)
    assert [planned(10**6, m, 50.0)[1] for m in (2, 3, 4)] == [True, True, False]


# What is refused


def test_what_can_be_refused_is_refused_before_the_charge(
    features: FeatureSet, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: object) -> None:
        raise UserError("It cannot be done.", "Do it elsewhere.")

    monkeypatch.setattr(private_evaluation, "pay", lambda *given: pytest.fail("it was charged"))
    needed = working_bytes(facts_of(features, split="test"))
    monkeypatch.setattr(private_evaluation, "free_memory", lambda: needed - 1)
    with pytest.raises(UserError, match=r"needs about \d+ MB, and \d+ MB are free") as memory:
        prepare(PrivateScoring(head, features, "test", epsilon=2.0))
    assert memory.value.code == "memory"
    assert memory.value.fields == {"needed": needed, "allowed": needed - 1}
    monkeypatch.setattr(private_evaluation, "free_memory", lambda: needed)
    prepare(PrivateScoring(head, features, "test", epsilon=2.0))
    own = [(private_evaluation, name) for name in ("check_devices", "lattice_of", "_refuse_leaking")]
    for place, name in (*own, (forms, "check")):
        with monkeypatch.context() as patched:
            patched.setattr(place, name, refused)
            with pytest.raises(UserError, match="cannot be done"):
                prepare(PrivateScoring(head, features, "test", epsilon=2.0))
    set_cap(features, 1.0)
    with pytest.raises(UserError, match="does not fit under the cap"):
        prepare(PrivateScoring(head, features, "test", epsilon=2.0))
    prepare(PrivateScoring(head, features, "test", epsilon=0.9))
    with pytest.raises(UserError, match="larger than 1/n") as large:
        prepare(PrivateScoring(head, features, "test", epsilon=0.9, delta=1.01 / N))
    assert "add" not in large.value.remedy, "an evaluation has no option for it"
    with pytest.raises(UserError, match="not read from a file"):
        prepare(PrivateScoring(replace(head, path=None), features, "test", epsilon=0.9))
    assert prepare(PrivateScoring(head, features, "test", epsilon=0.9, delta=1e-7)).planned.privacy.delta == 1e-7
    for wrong in ({"epsilon": "1"}, {"epsilon": 0.5, "delta": "1"}, {"epsilon": 0.5, "purpose": ""}):
        with pytest.raises(UserError) as bad:
            prepare(PrivateScoring(head, features, "test", **wrong))
        assert bad.value.fields["parameter"] == list(wrong)[-1]


LEAKING = "trained on these records without a guarantee"


@pytest.mark.parametrize(
    ("known", "facts", "refused"),
    [
        (("set", "test"), {"n": 200}, True),
        (("set", "test"), {"n": 70, "records": 200}, True),
        (("set", "test"), {"n": 200, "records": 300}, False),
        (("set", "test"), {"n": 199}, False),
        (("set", "train"), {"n": 200}, False),
        (("other", "test"), {"n": 200}, False),
    ],
)
def test_a_head_leaks_if_its_card_says_that_it_saw_the_records(
    known: tuple[str, str], facts: dict[str, int], refused: bool
) -> None:
    known_set: dict[str, Any] = {"name": "set", "manifest": SimpleNamespace(id="0" * 32)}
    features: Any = SimpleNamespace(**known_set, split=lambda name: SimpleNamespace(n=200))

    def ask(claim: str) -> None:
        card = {"claim": claim, "features": dict(zip(("name", "split"), known, strict=True)), "facts": facts}
        head = Head(chain=(), weight=np.eye(2), bias=np.zeros(2), card=card)
        private_evaluation._refuse_leaking(head, "d", features, "test", Ledger(path=Path("ledger.sqlite")))

    ask("private")
    for claim in ("research", "non-private"):
        if refused:
            with pytest.raises(UserError, match=LEAKING) as leaking:
                ask(claim)
            assert leaking.value.fields["parameter"] == "epsilon"
        else:
            ask(claim)


def test_noise_that_is_larger_than_chance_is_told(features: FeatureSet, head: Head) -> None:
    def said(epsilon: float) -> tuple[str, ...]:
        return prepare(PrivateScoring(head, features, "test", epsilon=epsilon), ("before",)).warnings

    first, loud = said(0.1)
    assert first == "before"
    assert "the noise is larger than the error that 200 records have by chance" in loud
    assert said(50.0) == ("before",)


# What is charged and told


def test_the_records_are_told_as_they_are_read(features: FeatureSet, head: Head) -> None:
    told: list[tuple[int, int | None]] = []
    ready = prepare(PrivateScoring(head, features, "test", epsilon=50.0, by="Ada", purpose="paper"))
    assert len(ready.queries) == 2
    found = release(ready, lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert {total for _, total in told} == {told[-1][0]}
    assert (found.head, found.head_sha256) == ("h.safetensors", sha256_of(Path("h.safetensors")))
    assert (found.split, found.unit, found.epsilon) == ("test", "record", 50.0)
    (row,) = charges(features)
    assert (row.head, row.by, row.purpose, row.split) == ("h.safetensors", "Ada", "paper", "test")
    assert (states(features), ledger(features).written(found.sha256)) == (["written"], [row])
    p, sigma = found.top1, row.releases[0]["sigma"]
    assert p is not None
    assert found.noise == pytest.approx(sigma * math.hypot(1 - p, p) / found.n, rel=0.01)


def test_a_record_of_several_labels_moves_several_counts_and_the_noise_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = Head(chain=(), weight=np.ones((2, 6)), bias=np.zeros(6), card={})
    facts, privacy = Facts(n=10**6, m=6, d=2, k=4), Privacy(epsilon=50.0, delta=1e-6)
    asked, plan = private_evaluation._planned(head, facts, privacy)
    silent = SimpleNamespace(release=lambda query: np.zeros((1, 2)))
    monkeypatch.setattr(private_evaluation, "Curator", lambda *given: silent)
    paid: Any = SimpleNamespace(planned=plan)
    (_, total), (_, by_class) = private_evaluation._answers(paid, asked, None)
    assert plan.mechanism is not None
    first, second = plan.mechanism.sigmas
    assert total == pytest.approx(first, rel=1e-3)
    # One record moves the counts of its four classes by 1 each.
    assert by_class == pytest.approx(2 * second, rel=1e-3)


def test_a_charge_that_could_not_be_settled_is_told_with_the_figures(
    features: FeatureSet, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object, **named: object) -> None:
        raise UserError("The disk is full.", "Make room.")

    monkeypatch.setattr(private_evaluation, "settle", full)
    found = release(prepare(PrivateScoring(head, features, "test", epsilon=50.0), ("before",)))
    assert found.top1 is not None
    before, said = found.warnings
    assert (before, "does not say that the figures were released. The disk is full." in said) == ("before", True)
    assert len(found.spent.charges) == 1
    # A ledger that cannot be read any more does not take the figures away.
    ready = prepare(PrivateScoring(head, features, "test", epsilon=50.0))
    monkeypatch.setattr(private_evaluation, "read", full)
    assert len(release(ready).spent.charges) == 2


def stop_of(ready: Ready) -> BaseException:
    with pytest.raises(BaseException) as stop:  # noqa: PT011
        release(ready)
    return stop.value


def test_a_note_says_whether_an_evaluation_that_stopped_is_charged(
    features: FeatureSet, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = prepare(PrivateScoring(head, features, "test", epsilon=1.0))

    def stopping(how: BaseException) -> Any:
        def stopped(*given: object) -> None:
            raise how

        return stopped

    refused = UserError("No.", "Never.")
    with monkeypatch.context() as patched:
        patched.setattr(private_evaluation, "pay", stopping(refused))
        assert stop_of(ready) is refused
        assert not hasattr(refused, "__notes__"), "it says itself what was charged"
        patched.setattr(private_evaluation, "pay", stopping(KeyboardInterrupt()))
        (note,) = stop_of(ready).__notes__
        assert "stopped during the charge: 'dpfc budget' says whether it is charged. No figure" in note
    assert charges(features) == ()
    monkeypatch.setattr(curators, "draw_noise", stopping(refused))
    (note,) = stop_of(ready).__notes__
    assert "stays charged. No figure was released." in note
    assert states(features) == ["stopped"]


# What the counts say


def told(features: FeatureSet, head: Head, *answers: tuple[list[float], float]) -> PrivateEvaluation:
    """The figures of these counts with noise of these standard deviations."""
    ready = prepare(PrivateScoring(head, features, "test", epsilon=1.0), ("a warning",))
    found = [np.stack([counts, np.full(len(counts), noise)]) for counts, noise in answers]
    return private_evaluation._figures(ready, found)


def test_figures_are_fractions_of_the_counts(features: FeatureSet, head: Head) -> None:
    found = told(features, head, ([120.0, 30.0], 3.0))
    assert (found.n, found.top1, found.interval, found.noise) == (150, *fraction(120.0, 30.0, 3.0, 3.0, N))
    assert (found.top5, found.top5_interval, found.top5_noise, found.per_class) == (None,) * 4
    assert (found.warnings, found.delta) == (("a warning",), 1e-5)
    # Right at first, among the five, and wrong.
    found = told(features, head, ([120.0, 20.0, 10.0], 3.0))
    noisier = 3.0 * math.sqrt(2)
    assert (found.top1, found.interval, found.noise) == fraction(120.0, 30.0, 3.0, noisier, N)
    assert (found.top5, found.top5_interval, found.top5_noise) == fraction(140.0, 10.0, noisier, 3.0, N)
    assert [told(features, head, ([each, -40.0], 3.0)).n for each in (30.0, 40.4, 300.0)] == [0, 0, N]


def test_the_figures_of_a_class_are_of_its_own_counts(features: FeatureSet, head: Head) -> None:
    right, wrong = [50.0, 40.0, 30.0], [5.0, 6.0, 7.0]
    found = told(features, head, ([120.0, 18.0], 3.0), ([*right, *wrong], 4.0))
    assert found.per_class is not None
    for each, name, h, w in zip(found.per_class, "abc", right, wrong, strict=True):
        assert (each.name, each.n) == (name, h + w)
        assert (each.top1, each.interval, each.noise) == fraction(h, w, 4.0, 4.0, N)


def test_the_digest_is_of_everything_that_was_released_and_of_nothing_else(features: FeatureSet, head: Head) -> None:
    found = told(features, head, ([120.0, 18.0], 3.0), ([50.0, 40.0, 30.0, 5.0, 6.0, 7.0], 4.0))
    figures = found.figures
    assert set(figures) == {*vars(found)} - {"warnings", "spent"}
    assert [each["class"] for each in figures["per_class"]] == ["a", "b", "c"]
    assert set(figures["per_class"][0]) == {"class", "n", "top1", "interval", "noise"}
    assert found.sha256 == hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest()
    assert replace(found, warnings=()).sha256 == found.sha256
    assert told(features, head, ([120.0, 18.0], 3.0)).figures["per_class"] is None


@pytest.mark.parametrize(
    ("right", "wrong", "a", "b", "n"),
    [
        (120.0, 30.0, 3.0, 5.0, 200), (120.0, 30.0, 5.0, 3.0, 140), (60.0, -3.0, 5.0, 5.0, 57),
        (-2.0, 90.0, 4.0, 6.0, 100), (0.5, 0.3, 0.1, 0.2, 100), (1e4, 2e3, 40.0, 0.0, 10**6), (9.0, 1.0, 0.0, 0.0, 10),
        (30.0, 0.0, 0.0, 16.25, 100),
    ],
)  # fmt: skip
def test_an_interval_has_the_fractions_that_the_counts_do_not_exclude(
    right: float, wrong: float, a: float, b: float, n: int
) -> None:
    value, (low, high), noise = fraction(right, wrong, a, b, n)
    right, wrong = max(right, 0.0), max(wrong, 0.0)
    size = min(max(right + wrong, 1.0), n)
    assert value == right / (right + wrong)
    assert noise == pytest.approx(math.hypot((1 - value) * a, value * b) / (right + wrong))
    p = np.linspace(0, 1, 200_001)
    variance = size * p * (1 - p) + (1 - p) ** 2 * a**2 + p**2 * b**2
    inside = p[((1 - p) * right - p * wrong) ** 2 <= Z**2 * variance * (1 + 1e-12)]
    assert (low, high) == pytest.approx((inside[0], inside[-1]), abs=1e-5)
