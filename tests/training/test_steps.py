"""A training is one value that grows: no step can be left out, and what can be refused is refused before the charge."""

import ast
import functools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dpfc_cli
from dpfc_cli.errors import UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads import head as head_files
from dpfc_cli.heads.head import Head
from dpfc_cli.ledger.file import ledger_path
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.method import state_bytes
from dpfc_cli.privacy import curator as curator_module
from dpfc_cli.privacy import sums
from dpfc_cli.privacy.curator import Curator, NonPrivate
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.noise import SeededBits, SystemBits
from dpfc_cli.privacy.oracle import Mechanism
from dpfc_cli.training import check as checks
from dpfc_cli.training import run as runs
from dpfc_cli.training.calibrate import Calibrated, calibrate
from dpfc_cli.training.charge import Charged, charge
from dpfc_cli.training.check import check
from dpfc_cli.training.machine import check_memory
from dpfc_cli.training.observer import TRAINING, Observer
from dpfc_cli.training.request import Privacy, facts_of
from dpfc_cli.training.run import run
from dpfc_cli.training.train import charge_of, finish, train
from tests.support import blobs
from tests.training.requests import charges, checked, ledger, request, states

PACKAGE = Path(dpfc_cli.__file__).parent


# The order is in the types


@functools.cache
def calls() -> set[tuple[str, str]]:
    """What each module calls: ("Curator", "training/run.py") for `Curator(…)` and for `curator.Curator(…)`."""
    return {
        (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""), module)
        for path in PACKAGE.rglob("*.py")
        for module in [path.relative_to(PACKAGE).as_posix()]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    }


def callers(name: str) -> set[str]:
    """The modules that call a class of that name."""
    return {module for called, module in calls() if called == name}


def test_each_value_is_made_by_its_own_step_alone() -> None:
    assert callers("Receipt") == {"training/charge.py"}
    assert callers("Charged") == callers("Paid") == {"training/charge.py"}
    assert callers("Checked") == {"training/check.py"}
    assert callers("Trained") == {"training/run.py"}
    assert callers("Calibrated") == {"training/calibrate.py"}


def test_curators_are_made_of_charged_records_or_of_records_that_are_said_to_be_unprotected() -> None:
    trained = {"training/run.py", "training/tuning.py", "audit/audit.py"}
    assert callers("Curator") == trained | {"evaluation/private.py"}
    # A forecast trains without noise, too, on public records.
    assert callers("NonPrivate") == {"training/run.py", "training/tuning.py"}
    assert callers("Unprotected") == {"training/tuning.py", "audit/audit.py"}


def test_nothing_but_records_makes_a_curator(features: FeatureSet) -> None:
    ready = checked(features)
    mechanism = ready.calibrated.mechanism
    assert mechanism is not None
    for uncharged in (features.stream("train"), ready, features):
        with pytest.raises(TypeError, match="a curator takes Records"):
            Curator(mechanism, uncharged, SeededBits(0))  # type: ignore[arg-type]
    assert isinstance(charge(ready), Charged)


def test_up_to_the_charge_no_record_is_read_into_a_sum_and_nothing_is_written(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "exact_sum", lambda *a: pytest.fail("records were summed"))
    monkeypatch.setattr(FeatureSet, "stream", lambda *a: pytest.fail("records were read"))
    before = sorted(p for p in features.folder.parent.rglob("*"))
    ready = checked(features)
    assert charges(features) == ()
    assert sorted(p for p in features.folder.parent.rglob("*")) == before
    assert ready.account.charges == ()


@pytest.mark.parametrize("epsilon", [1.0, 1.00004, 1.0000004])
def test_no_name_and_no_question_says_less_than_is_spent(features: FeatureSet, epsilon: float) -> None:
    ready = checked(features, privacy=Privacy(epsilon=epsilon))
    named = float(ready.path.name.removesuffix(".safetensors").rpartition("-eps")[2])
    asked = float(charge_of(ready).split()[2])
    assert epsilon <= named <= 1.001 * epsilon
    assert epsilon <= asked <= 1.00001 * epsilon


@pytest.mark.parametrize("seed", [None, 1])
def test_a_charge_that_fails_leaves_nothing(features: FeatureSet, seed: int | None) -> None:
    ready = checked(features, privacy=Privacy(epsilon=2.0, seed=seed))
    path = ledger_path(features.folder)
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError) as refused:
        charge(ready)
    assert refused.value.code in ("unreadable", "unwritable")
    assert list(ready.path.parent.iterdir()) == []


def test_one_charge_pays_for_one_curator(features: FeatureSet) -> None:
    """A second one would release the same sums with other noise, and nobody would have paid for them."""
    charged = charge(checked(features))
    made = run(charged, Observer())
    mechanism = charged.checked.calibrated.mechanism
    assert mechanism is not None
    for again in (charged, replace(charged)):
        with pytest.raises(RuntimeError, match="was used already"):
            run(again, Observer())
        with pytest.raises(RuntimeError, match="was used already"):
            Curator(mechanism, again, SeededBits(0))
        with pytest.raises(RuntimeError, match="was used already"):
            NonPrivate(mechanism.facts, again)
    assert (states(features), len(ledger(features).written(made.sha256))) == (["written"], 1)


def test_a_charge_pays_for_no_other_training(features: FeatureSet) -> None:
    charged = charge(checked(features))
    louder = checked(features, privacy=Privacy(epsilon=90.0))
    with pytest.raises(RuntimeError, match="for another training"):
        run(replace(charged, checked=louder), Observer())
    with pytest.raises(TypeError, match="takes Records"):
        NonPrivate(facts_of(features), SimpleNamespace(opened=lambda: features.stream("train")))  # type: ignore[arg-type]


def test_a_training_takes_600_mebibytes_beside_the_state_of_its_method(features: FeatureSet) -> None:
    calibrated = checked(features).calibrated
    needed = state_bytes(calibrated.method, calibrated.plan) + 600 * 2**20
    check_memory(calibrated.method, calibrated.plan, calibrated.facts, needed)
    with pytest.raises(UserError, match=r"needs about 629 MB \(3 classes, 5 dimensions\)") as refused:
        check_memory(calibrated.method, calibrated.plan, calibrated.facts, needed - 1)
    assert refused.value.code == "memory"
    assert (refused.value.fields["needed"], refused.value.fields["allowed"]) == (needed, needed - 1)


def test_persons_take_300_mebibytes_more_and_only_class_matrices_have_a_way_out() -> None:
    facts, privacy = Facts(n=20, m=3, d=5, rows=60), Privacy(epsilon=1.0)
    for name, way_out in (("dp-fc", False), ("dp-ls", True)):
        alone, persons = (calibrate(METHODS[name], each, {}, privacy) for each in (replace(facts, rows=None), facts))
        needed = state_bytes(persons.method, persons.plan) + 900 * 2**20
        check_memory(alone.method, alone.plan, alone.facts, needed - 300 * 2**20)
        check_memory(persons.method, persons.plan, persons.facts, needed)
        with pytest.raises(UserError, match="This training needs") as refused:
            check_memory(persons.method, persons.plan, persons.facts, needed - 1)
        assert ("dp-fc" in refused.value.remedy) is way_out


def test_a_place_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for place in ("empty", "new", "new/deeper"):
        checks._try_place(tmp_path / place / "a.safetensors")
    with pytest.raises(UserError, match="cannot be written"):
        checks._try_place(tmp_path / "new" / "deeper" / f"{'x' * 300}.safetensors")
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        checks._try_place(tmp_path / "file" / "a.safetensors")


def test_what_cannot_be_computed_is_refused_before_the_charge(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, quiet = request(features), checked(features).calibrated
    with pytest.raises(UserError, match="This training needs"):
        check(replace(asked, memory=1.0), quiet, Observer())
    loud = calibrate(METHODS["dp-fc"], facts_of(features), {}, Privacy(noise_multiplier=1e13, delta=1e-5))
    with pytest.raises(UserError, match="The noise is too strong"):
        check(asked, loud, Observer())

    def fails() -> None:
        raise RuntimeError("no such device")

    (features.folder.parent / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        check(replace(asked, out=features.folder.parent / "file" / "a.safetensors"), quiet, Observer())
    with monkeypatch.context() as patched:
        patched.setattr(head_files, "check_card", lambda card: fails())
        with pytest.raises(RuntimeError, match="no such device"):
            check(asked, quiet, Observer())
    monkeypatch.setattr("dpfc_cli.kernels.products.check_exact", fails)
    with pytest.raises(UserError, match="No such device"):
        check(asked, quiet, Observer())
    assert charges(features) == ()


def test_a_charge_for_persons_opens_records_with_their_persons(tmp_path: Path) -> None:
    x, y = blobs(60, 5, 3)
    np.savez(tmp_path / "a.npz", train_x=x, train_y=y, train_groups=np.arange(60) // 3)
    features = import_features(tmp_path / "a.npz", tmp_path / "features" / "a", classes=3).features
    charged = charge(checked(features, privacy=Privacy(epsilon=90.0, delta=1e-5)))
    assert [block[-1].tolist() for block in charged.opened()(60)] == [(np.arange(60) // 3).tolist()]


@pytest.mark.parametrize(("seed", "kind"), [(None, SystemBits), (5, SeededBits)])
def test_the_noise_is_the_operating_systems_unless_a_seed_was_given(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch, seed: int | None, kind: type
) -> None:
    taken: list[Any] = []
    real = curator_module.Curator

    def made(mechanism: Mechanism, records: Any, bits: Any, *others: Any) -> Curator:
        taken.append(bits)
        return real(mechanism, records, bits, *others)

    monkeypatch.setattr(curator_module, "Curator", made)
    told: list[tuple[str, int, int | None]] = []

    class Listening(Observer):
        def progress(self, stage: str, done: int, total: int | None) -> None:
            told.append((stage, done, total))

    trained = run(charge(checked(features, privacy=Privacy(epsilon=1.0, seed=seed))), Listening())
    assert [type(bits) for bits in taken] == [kind]
    assert told
    for stage in dict.fromkeys(stage for stage, _, _ in told):
        assert stage.startswith(f"{TRAINING}, ")
        mine = [each[1:] for each in told if each[0] == stage]
        assert mine == sorted(mine)
        assert {total for _, total in mine} == {mine[-1][0]}
    assert trained.head.path == trained.path
    assert Head.load(trained.path).card["ledger"]["epsilon"] == (None if seed else pytest.approx(1.0))


def test_a_ledger_that_cannot_be_read_any_more_is_told_and_the_head_is_kept(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged = charge(checked(features))

    def broken(*_: Any) -> Any:
        raise UserError("The disk is gone.", "Find it.")

    monkeypatch.setattr(runs, "settle", broken)
    monkeypatch.setattr(runs, "read", broken)
    told: list[str] = []

    class Listening(Observer):
        def warn(self, text: str) -> None:
            told.append(text)

    trained = run(charged, Listening())
    assert trained.path.exists()
    assert trained.spent.charges == (charged.receipt.charge,)
    assert any("the ledger does not say so. The disk is gone." in text for text in told)


# Nothing is derived twice


@pytest.mark.parametrize("method", METHODS)
def test_sigmas_are_computed_once_and_read_by_all(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"steps": 2} if "steps" in METHODS[method].declared else {}
    calls: list[float] = []
    sigmas: Any = Mechanism.sigmas
    real = sigmas.func
    monkeypatch.setattr(sigmas, "func", lambda self: (calls.append(self.mu), real(self))[1])
    calibrated = calibrate(METHODS[method], Facts(n=100, m=3, d=4), given, Privacy(epsilon=1.0))
    assert calibrated.mechanism is not None
    described = [r["sigma"] for r in calibrated.releases for _ in range(r["times"])]
    assert described == list(calibrated.mechanism.sigmas)
    assert calls == [calibrated.mechanism.mu]


def test_a_delta_above_one_over_n_is_refused_unless_insisted_on(features: FeatureSet) -> None:
    method, facts = METHODS["dp-ls"], facts_of(features)
    with pytest.raises(UserError, match="larger than 1/n") as refused:
        calibrate(method, facts, {}, Privacy(epsilon=1.0, delta=0.01))
    assert refused.value.fields["parameter"] == "delta"
    made: Calibrated = calibrate(method, facts, {}, Privacy(epsilon=1.0, delta=0.01, allow_large_delta=True))
    assert made.guarantee is not None
    assert made.guarantee.delta == 0.01


def test_a_card_says_whether_a_training_without_noise_reached_its_optimum(features: FeatureSet) -> None:
    card = finish(checked(features, method="dp-fc", options={}, privacy=Privacy()), Observer()).head.card
    assert card["converged"] is True
    assert "converged" not in finish(checked(features), Observer()).head.card


# From Python


def test_a_training_from_python_is_one_call(features: FeatureSet, tmp_path: Path) -> None:
    made = train(features, epsilon=8.0, method="dp-ls", out=tmp_path / "a.safetensors")
    assert made.path == tmp_path / "a.safetensors"
    head = Head.load(made.path)
    assert head.statement()["this head"].startswith("differentially private, epsilon = 8")
    assert made.spent.epsilon(1e-5) == pytest.approx(8.0)
    x, y = blobs(120, 5, 3)
    assert np.mean([name == "abc"[label] for name, label in zip(head.predict(x), y, strict=True)]) > 0.8
    assert states(features) == ["written"]


def test_warnings_are_python_warnings(features: FeatureSet, tmp_path: Path) -> None:
    with pytest.warns(dpfc_cli.TrainingWarning, match="noise"):
        train(features, epsilon=0.01, method="dp-ls", out=tmp_path / "a.safetensors")


def test_wrong_parameters_say_which(features: FeatureSet) -> None:
    for given, code, said in (
        ({"epsilon": 1.0, "non_private": True}, "conflict", "State the privacy once"),
        ({"non_private": True, "seed": 3}, "conflict", "seed has no effect"),
        ({"epsilon": 1.0, "method": "dp-sl"}, "unknown-name", "Did you mean 'dp-ls'"),
        ({"epsilon": 1.0, "learning_rate": "fast"}, "bad-value", "learning_rate must be a number"),
        ({"epsilon": 1.0, "ridge": 1.0}, "conflict", "ridge is no option of dp-whitened"),
        ({"epsilon": "2"}, "bad-value", "epsilon must be a number, not '2'"),
        ({"epsilon": True}, "bad-value", "epsilon must be a number, not True"),
        ({"epsilon": 1.0, "delta": "1e-5"}, "bad-value", "delta must be a number"),
        ({"epsilon": 1.0, "memory": "8GB"}, "bad-value", "memory must be a number"),
        ({"epsilon": 1.0, "seed": "abc"}, "bad-value", "seed must be a whole number"),
        ({"epsilon": 1.0, "steps": 2.5}, "bad-value", "steps must be a whole number"),
        ({"epsilon": 1.0, "budget_split": 0.5}, "bad-value", "budget_split 0.5 is not 3 positive fractions"),
        ({"epsilon": 1.0, "public_features": "x"}, "bad-value", "public_features is a str, not a feature set"),
    ):
        with pytest.raises(UserError, match=said) as refused:
            train(features, **given)
        assert refused.value.code == code
    assert charges(features) == ()


def test_numbers_of_numpy_are_numbers_in_ledger_and_card(features: FeatureSet, tmp_path: Path) -> None:
    made = train(
        features,
        epsilon=np.int64(8),  # type: ignore[arg-type]
        delta=np.float32(1e-5),  # type: ignore[arg-type]
        method="dp-ls",
        budget_split=np.array([0.2, 0.2, 0.6]),
        negative_weight=np.float32(0.5),
        out=tmp_path / "a.safetensors",
    )
    (row,) = charges(features)
    assert (row.epsilon, row.delta) == (8.0, float(np.float32(1e-5)))
    assert {type(row.epsilon), type(row.delta)} == {float}
    assert made.head.card["options"]["budget_split"] == (0.2, 0.2, 0.6)
    assert json.loads(json.dumps(dict(made.head.card)))["options"]["negative_weight"] == 0.5


def test_a_string_is_no_feature_set() -> None:
    with pytest.raises(UserError, match="features is a str, not a feature set"):
        train("digits", epsilon=1.0)  # type: ignore[arg-type]
