"""A forecast: what the stand-in matches, what follows from public facts alone, and that no private record is read."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.federation import plan_of
from dpfc_cli.evaluation.evaluate import evaluate
from dpfc_cli.extensions.planning import forecast as forecasts
from dpfc_cli.extensions.planning import tuning
from dpfc_cli.extensions.planning.forecast import forecast, stated_facts
from dpfc_cli.extensions.planning.request import Forecasting
from dpfc_cli.extensions.planning.stand_in import RUNS
from dpfc_cli.features.manifest import MANIFEST
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.caps import check as check_caps
from dpfc_cli.ledger.facts import Cap, new_id
from dpfc_cli.ledger.file import append, ledger_path, read
from dpfc_cli.ledger.totals import Ledger
from dpfc_cli.methods import METHODS
from dpfc_cli.options import MethodName
from dpfc_cli.privacy import accounting, poisson
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.oracle import Mechanism
from dpfc_cli.records import statement
from dpfc_cli.training import check, public
from dpfc_cli.training.calibrate import HIDES, POOR, calibrate, kept, warnings_of
from dpfc_cli.training.card import charge_of_training
from dpfc_cli.training.train import train
from tests.support import blobs, feature_set, refuses, replace
from tests.training import test_public as public_sets

QUICK: dict[str, Any] = {"method": "dp-fc", "steps": 3}


FACTS: dict[str, Any] = {"records": 100, "classes": 3, "dimensions": 6}


def test_a_forecast_for_sites_has_the_noise_of_their_plan() -> None:
    shown = forecast(records=250, classes=3, dimensions=6, epsilons=[2.0])
    assert shown._repr_html_().count("<tr>") == len(shown.told())
    (alone,) = shown.outlooks
    (joint,) = forecast(records=1000, classes=3, dimensions=6, epsilons=[2.0], sites=4).outlooks
    plan = plan_of([250] * 4, 6, 3, [2.0] * 4)
    solver = plan.solver
    assert solver.guarantee is not None
    heard = replace(solver, guarantee=replace(solver.guarantee, mu=solver.noise.mu))
    assert joint.kept == pytest.approx(kept(heard), rel=1e-9)
    assert (joint.mu, joint.guess) == (alone.mu, alone.guess), "the claim is that of each site"
    for wrong in ({"sites": 1000}, {"sites": 2, "method": "dp-sgd"}):
        with refuses("conflict", parameter="sites"):
            forecast(records=1000, classes=3, dimensions=6, **wrong)


PARTS = {"public": slice(600), "private": slice(600, 1200)}


def made(folder: Path, name: str, n: int, m: int, seed: int, d: int = 6) -> FeatureSet:
    """n records to train on and 200 to test on, in m classes that lie close together."""
    return written(folder, name, *blobs(n + 200, d, m, seed, apart=2.0), n, m)


def written(folder: Path, name: str, x: np.ndarray, y: np.ndarray, n: int, m: int) -> FeatureSet:
    """A set of these records, the first n of them to train on."""
    folder.mkdir(exist_ok=True)
    np.savez(folder / f"{name}.npz", train_x=x[:n], train_y=y[:n], test_x=x[n:], test_y=y[n:])
    return feature_set(folder / f"{name}.npz", folder / name, classes=tuple("abcdefgh"[:m]))


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FeatureSet]:
    """A private set of 400 records in 4 classes, and stand-ins."""
    folder = tmp_path_factory.mktemp("sets")
    return {
        "private": made(folder, "private", 400, 4, seed=0),
        "alike": made(folder, "alike", 600, 6, seed=1),
        "fewer classes": made(folder, "fewer", 600, 2, seed=2),
        "fewer records": made(folder, "few", 100, 4, seed=3),
        "fewer of both": made(folder, "least", 50, 2, seed=4),
    }


@pytest.mark.parametrize(
    ("stand_in", "records", "classes", "less"),
    [("alike", 400, 4, 1), ("fewer classes", 200, 2, 1), ("fewer records", 100, 4, 4), ("fewer of both", 50, 2, 4)],
)
def test_a_class_says_as_much_against_the_noise_as_it_will(
    sets: dict[str, FeatureSet], stand_in: str, records: int, classes: int, less: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Facts, float]] = []

    def spy(mechanism: Mechanism, *_: Any, **__: Any) -> check._Rehearsal:
        asked.append((mechanism.facts, mechanism.mu))
        return check._Rehearsal(mechanism.plan, mechanism.facts)

    monkeypatch.setattr(tuning, "Curator", spy)
    monkeypatch.setattr(tuning, "NonPrivate", lambda facts, _, plan, **__: check._Rehearsal(plan, facts))
    found = forecast(sets["private"], on=sets[stand_in], epsilons=[1.0], adjacency="replace-one", **QUICK)
    facts = Facts(n=records, m=classes, d=6, adjacency="replace-one")
    assert [each for each, _ in asked] == [facts] * RUNS
    assert [mu for _, mu in asked] == pytest.approx([found.outlooks[0].mu * less] * RUNS)
    assert found.stand_in is not None
    assert found.stand_in.facts == facts
    # n·μ/m, against the noise of a class, is that of the private training.
    assert facts.n * asked[0][1] / facts.m == pytest.approx(400 * found.outlooks[0].mu / 4)
    said = " ".join(found.stand_in.unmatched)
    assert ("2 classes for 4" in said) == (classes < 4)
    assert (f"learns from {records} records" in said) == (less > 1)
    assert ("4 times smaller" in " ".join(found.stand_in.matched)) == (less > 1)


@pytest.mark.filterwarnings("ignore::dpfc_cli.TrainingWarning")
def test_a_training_on_records_like_the_stand_in_ends_in_the_interval(tmp_path: Path) -> None:
    # Seeds are fixed. One in twenty draws of seeds would end outside.
    x, y = blobs(1200, 6, 4, apart=2.0)
    known, private = (written(tmp_path, name, x[at], y[at], 400, 4) for name, at in PARTS.items())
    [each] = forecast(private, on=known, epsilons=[2.0], **QUICK).outlooks
    head = train(private, epsilon=2.0, seed=7, out=tmp_path / "a.research.safetensors", **QUICK).head
    then = evaluate(head, private).top1
    assert each.interval is not None
    assert each.interval[0] < then < each.interval[1]
    assert each.interval[1] - each.interval[0] < 0.5


def test_the_interval_is_that_of_one_more_draw_of_a_normal_distribution() -> None:
    # t of 4 degrees of freedom at 97.5 % is 2.776.
    low, high = forecasts.interval_of([0.50, 0.52, 0.54, 0.56, 0.58])
    half = 2.7764 * math.sqrt(0.001) * math.sqrt(1.2)
    assert (low, high) == pytest.approx((0.54 - half, 0.54 + half), abs=1e-5)
    assert forecasts.interval_of([0.0, 1.0]) == (0.0, 1.0)


def test_more_epsilon_helps_and_no_noise_helps_most(sets: dict[str, FeatureSet]) -> None:
    found = forecast(sets["private"], on=sets["alike"], epsilons=[8.0, 0.01, 8], steps=3)
    assert [each.epsilon for each in found.outlooks] == [0.01, 8.0]
    least, most = found.outlooks
    assert found.stand_in is not None
    assert found.stand_in.noiseless is not None
    assert least.accuracy is not None
    assert most.accuracy is not None
    assert 0.1 < least.accuracy < most.accuracy - 0.2 < found.stand_in.noiseless - 0.1
    assert json.loads(json.dumps(found.to_json()))["outlooks"][1]["accuracy"] == most.accuracy


def test_no_private_record_is_read_and_nothing_is_charged(sets: dict[str, FeatureSet], tmp_path: Path) -> None:
    expected = forecast(sets["private"], on=sets["alike"], cap=3.0, epsilons=[1.0], **QUICK)
    # A set without its records, and without a ledger.
    bare = tmp_path / "private"
    bare.mkdir()
    shutil.copy(sets["private"].folder / MANIFEST, bare)
    before = {path: path.stat().st_mtime_ns for path in (*tmp_path.rglob("*"), tmp_path)}
    assert forecast(FeatureSet(bare), on=sets["alike"], cap=3.0, epsilons=[1.0], **QUICK) == expected
    assert {path: path.stat().st_mtime_ns for path in (*tmp_path.rglob("*"), tmp_path)} == before
    assert read(ledger_path(sets["alike"].folder)).charges == ()
    # The facts alone say the same.
    assert forecast(records=400, classes=4, on=sets["alike"], cap=3.0, epsilons=[1.0], **QUICK) == expected


@pytest.mark.parametrize(("method", "epsilon"), [("dp-whitened", 0.1), ("dp-ls", 1.0), ("dp-ls", 3.0)])
def test_as_many_trainings_fit_as_the_cap_then_allows(
    sets: dict[str, FeatureSet], method: MethodName, epsilon: float, tmp_path: Path
) -> None:
    [each] = forecast(sets["private"], epsilons=[epsilon], cap=3.0, method=method).outlooks
    assert each.fitting is not None
    calibrated = calibrate(METHODS[method], Facts(n=400, m=4, d=6), {}, Privacy(epsilon=epsilon))
    features = sets["private"]
    cap = Cap(by="me", population=None, unit="record", epsilon=3.0, delta=1e-5)
    known = read(ledger_path(features.folder))
    row = charge_of_training(calibrated, features, "a.safetensors", "me", None)

    def after(count: int) -> Ledger:
        made = (replace(row, id=new_id()) for _ in range(count))
        return Ledger(path=known.path, facts=(*known.facts, cap, *made))

    check_caps(after(each.fitting - 1), row)
    with refuses("over-cap"):
        check_caps(after(each.fitting), row)
    # What is spent already takes its part.
    copy = shutil.copytree(features.folder.parent, tmp_path / "sets") / features.folder.name
    append(ledger_path(copy), lambda _: [row], "The charge")
    [then] = forecast(FeatureSet(copy), epsilons=[epsilon], cap=3.0, method=method).outlooks
    assert then.fitting == each.fitting - 1


def test_without_a_stand_in_no_accuracy_is_invented() -> None:
    found = forecast(persons=300, records=900, classes=3, model="deit-ti16", epsilons=[0.1, 8.0])
    assert found.facts == Facts(n=300, rows=900, m=3, d=192, unit="person")
    assert found.stand_in is None
    assert {(each.accuracy, each.interval, each.scores) for each in found.outlooks} == {(None, None, ())}
    assert any(f"At epsilon = 0.1 {HIDES}" in text for text in found.warnings)
    for each in found.outlooks:
        # It is the rule by which a training warns.
        calibrated = calibrate(METHODS["dp-whitened"], found.facts, {}, Privacy(epsilon=each.epsilon))
        assert (kept(calibrated) < POOR) == any(HIDES in text for text in warnings_of(calibrated))
        # Of persons, and not of records.
        assert each.kept == kept(calibrated)


def test_what_is_kept_is_not_said_of_methods_that_the_rule_was_not_fitted_to() -> None:
    for method, known in (("dp-whitened", True), ("dp-fc", True), ("dp-newton", False), ("dp-ls", False)):
        given: dict[str, Any] = {**FACTS, "method": method}
        found = forecast(**given, epsilons=[0.001, 8.0])
        assert [each.kept is not None for each in found.outlooks] == [known, known]
        # It is no more than the rule says, in any case.
        assert any(f"At epsilon = 0.001 {HIDES}" in text for text in found.warnings)


def test_a_person_is_one_record_of_the_stand_in(sets: dict[str, FeatureSet]) -> None:
    found = forecast(persons=80, records=200, classes=4, on=sets["alike"], epsilons=[0.1], **QUICK)
    assert found.stand_in is not None
    assert found.stand_in.facts == Facts(n=80, m=4, d=6)
    assert "a person is one record here" in " ".join(found.stand_in.unmatched)
    # The noise hides the classes, but the accuracies of trainings say it better.
    assert found.outlooks[0].kept is None
    assert found.warnings == tuple(public.warnings_of(sets["alike"])) != ()


def test_sampled_trainings_fit_under_no_cap_and_say_nothing_of_several_records(monkeypatch: pytest.MonkeyPatch) -> None:
    # The accounting of samples takes seconds.
    monkeypatch.setattr(poisson, "mu_for", lambda *_: 0.5)
    facts: dict[str, Any] = {"records": 1000, "classes": 2, "dimensions": 8, "epsilons": [1.0]}
    sampling: dict[str, Any] = {"method": "dp-sgd", "sampling_rate": 0.1, "steps": 1}

    def said(**given: Any) -> list[str]:
        return [text.split()[0] for text in forecast(**facts, **given).warnings if "sampled trainings" in text]

    [each] = forecast(cap=9.0, records_per_person=2, **facts, **sampling).outlooks
    assert (each.fitting, each.for_person) == (0, None)
    guessed = accounting.attack(1.0, 1e-5, statement.FALSE_ALARMS)
    assert (each.guess, each.found) == (guessed.accuracy, guessed.power)
    assert said(cap=9.0, records_per_person=2, **sampling) == ["No", "Little"]
    # What was not asked for needs no word.
    assert said(cap=9.0, **sampling) == ["No"]
    assert said(records_per_person=2, **sampling) == ["Little"]
    assert said(**sampling) == said(cap=9.0, records_per_person=2) == []


def test_for_several_records_of_a_person_no_figure_is_stated_that_says_nothing() -> None:
    def of(records: int) -> float | None:
        [each] = forecast(**FACTS, epsilons=[1.0], records_per_person=records).outlooks
        return each.for_person

    assert of(1) == pytest.approx(1.0, rel=1e-6)
    assert 1 < (of(5) or 0) <= accounting.LARGEST_EPSILON
    assert of(1000) is None


def test_half_is_kept_where_signal_and_noise_are_equal_and_more_with_more_epsilon() -> None:
    outlooks = forecast(**FACTS, epsilons=[1e-4, 0.1, 1.0, 8.0, 100.0]).outlooks
    parts = [each.kept or 0.0 for each in outlooks]
    assert 0 <= parts[0] < 1e-3
    assert parts == sorted(parts)
    assert 0.99 < parts[-1] <= 1
    for each, part in zip(outlooks, parts, strict=True):
        noise = math.sqrt(FACTS["dimensions"]) / each.mu
        assert (part > 0.5) == (FACTS["records"] / FACTS["classes"] > noise)
    # One record in place of another changes a sum by twice as much.
    (less,) = forecast(**FACTS, epsilons=[1.0], adjacency="replace-one").outlooks
    assert less.kept is not None
    assert less.kept < parts[2]


def test_label_sets_are_judged_by_mean_average_precision(tmp_path: Path) -> None:
    x, y = blobs(300, 6, 3)
    both = np.stack([y, np.where(np.arange(300) % 2, (y + 1) % 3, -1)], axis=1)
    np.savez(tmp_path / "a.npz", train_x=x, train_y=both)
    known = feature_set(tmp_path / "a.npz", tmp_path / "a", classes=3, labels_per_record=2)
    found = forecast(records=240, classes=3, on=known, epsilons=[8.0], steps=3)
    [each] = found.outlooks
    assert (found.facts.k, found.method) == (2, "dp-fc")
    assert each.accuracy is not None
    assert 0.6 < each.accuracy <= 1


@pytest.mark.parametrize(
    ("given", "code", "named"),
    [
        ({}, "missing", "records"),
        ({**FACTS, "model": "vit-b16"}, "conflict", "dimensions"),
        ({"records": 100, "classes": 3, "model": "scattering"}, "conflict", "model"),
        ({"records": 100, "classes": 3, "model": "vit-b"}, "unknown-name", None),
        ({**FACTS, "epsilons": [0]}, "bad-value", "epsilon"),
        ({**FACTS, "epsilons": ["1"]}, "bad-value", "epsilons"),
        ({**FACTS, "delta": 0.5}, "bad-value", "delta"),
        ({**FACTS, "cap": 0}, "bad-value", "cap"),
        ({**FACTS, "persons": 50, "records_per_person": 3}, "conflict", "records_per_person"),
        ({**FACTS, "negative_weight": 3}, "conflict", "negative_weight"),
        ({**FACTS, "on": "digits"}, "bad-value", "on"),
        ({**FACTS, "records": 1}, "bad-value", "records"),
        ({**FACTS, "records": True}, "bad-value", "records"),
        ({**FACTS, "persons": 101}, "conflict", "persons"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], code: str, named: str | None) -> None:
    with refuses(code, parameter=named):
        forecast(**given)


def test_a_stand_in_that_cannot_stand_for_the_records_is_refused(sets: dict[str, FeatureSet], tmp_path: Path) -> None:
    private = sets["private"]
    with refuses("private-records", parameter="on"):
        forecast(private, on=private)
    with refuses("conflict", parameter="model"):
        forecast(private, on=made(tmp_path, "wide", 90, 3, 1, d=7))
    with refuses("conflict", parameter="dimensions"):
        forecast(records=9, classes=2, dimensions=7, on=sets["alike"])
    with refuses("conflict", parameter="classes"):
        forecast(private, classes=3)
    one = FeatureSet(sets["fewer classes"].folder)
    one.manifest = replace(one.manifest, classes=("a",))
    with refuses("conflict"):
        forecast(private, on=one)


def facts(**stated: Any) -> Facts:
    return stated_facts(Forecasting(**({"classes": 2, "dimensions": 6} | stated)))


def test_facts_are_what_is_stated(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("flu\ncold\nnone\n")
    for stated, expected in (
        ({"records": 100}, Facts(n=100, m=2, d=6)),
        ({"persons": 50, "records": 51}, Facts(n=50, m=2, d=6, rows=51, unit="person")),
        ({"records": 9, "adjacency": "replace-one"}, Facts(n=9, m=2, d=6, adjacency="replace-one")),
        ({"records": 9, "classes": ("flu", "cold", "none")}, Facts(n=9, m=3, d=6)),
        ({"records": 9, "classes": tmp_path / "classes.txt"}, Facts(n=9, m=3, d=6)),
    ):
        assert facts(**stated) == expected


def test_numbers_of_numpy_become_plain_ones() -> None:
    """What is said of a forecast is written as JSON."""
    found = facts(records=np.int64(9), persons=np.int32(5), classes=np.int64(3), dimensions=np.uint8(4))
    assert found == Facts(n=5, m=3, d=4, rows=9, unit="person")
    assert {type(found.n), type(found.m), type(found.d), type(found.rows)} == {int}


def test_a_forecast_says_nothing_of_private_records_in_a_public_set(tmp_path: Path) -> None:
    """It is shown to anyone."""
    private = public_sets.made(tmp_path, "private", *blobs(300, 6, 3))
    clean, mixed = (
        [said.replace(each.name, "") for said in forecast(private, on=each, epsilons=[1.0], method="dp-ls").warnings]
        for each in public_sets.mixtures(tmp_path)
    )
    assert clean == mixed
