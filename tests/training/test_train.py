"""The way of a whole training: what Python asks for, what comes before the charge, and what is said at the end."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dpfc_cli
from dpfc_cli.errors import UserError
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head
from dpfc_cli.ledger.caps import set_cap
from dpfc_cli.methods import METHODS
from dpfc_cli.training import charged as charges_module
from dpfc_cli.training import public, tuning
from dpfc_cli.training.calibrate import Calibrated, warnings_of
from dpfc_cli.training.charged import question
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Request
from dpfc_cli.training.run import run
from dpfc_cli.training.train import plan, train
from tests.support import blobs, refuses, replace
from tests.training.requests import account, charges, checked, ready, states
from tests.training.stopped import Listener, killed

# Before the charge


def asked(features: FeatureSet, **changed: Any) -> Request:
    given = {"method": "dp-adam", "steps": 2, "epsilon": 2.5, **changed}
    return Request(features=features, folder=Path("heads"), **given)


def test_a_public_set_that_is_the_private_one_is_refused_before_anything_is_said_or_read(
    sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Listener()
    monkeypatch.setattr(public, "mean_of", lambda *given: pytest.fail("the public features were read"))
    with refuses("private-records", parameter="public_features"):
        plan(asked(sets["a"], method="dp-whitened", public_features=sets["b"], epsilon=0.01), told)
    assert told.warned == []


Tune = Callable[[Calibrated], object]


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> Callable[[Tune], None]:
    """Replaces the trials, which take long. What happens meanwhile is given."""

    def replaced(tune: Tune) -> None:
        monkeypatch.setattr(tuning, "prepare", lambda *given: SimpleNamespace(known=SimpleNamespace(name="b")))
        monkeypatch.setattr(tuning, "warnings_of", lambda trials: ["a poor stand-in"])
        said = {"name": "b", "fingerprint": "f", "facts": {"n": 20, "m": 2}, "runs": 1}
        said |= {"tried": [], "finalists": [], "chosen": {}}
        monkeypatch.setattr(tuning, "tune", lambda made, *rest: replace(tune(made) or made, parts={"tuning": said}))

    monkeypatch.setattr(public, "warnings_of", lambda features: [f"{features.name} was imported"])
    return replaced


def test_each_warning_is_told_once(sets: dict[str, FeatureSet], tuned: Callable[[Tune], None]) -> None:
    tuned(lambda calibrated: None)
    told = Listener()
    made = plan(asked(sets["a"], tune_on=sets["b"], epsilon=0.01), told)
    noise = warnings_of(made.calibrated)
    assert noise
    assert told.warned == [*noise, "b was imported", "a poor stand-in"]


def test_features_that_changed_during_the_tuning_are_refused(
    sets: dict[str, FeatureSet], tuned: Callable[[Tune], None]
) -> None:
    (shard,) = (sets["a"].folder / each.file for each in sets["a"].split("train").shards)
    tuned(lambda calibrated: shard.write_bytes(shard.read_bytes()[:-1] + b"x") and None)
    with refuses("damaged"):
        plan(asked(sets["a"], tune_on=sets["b"]), Listener())


def test_what_was_chosen_is_rehearsed(sets: dict[str, FeatureSet], tuned: Callable[[Tune], None]) -> None:
    """The options that were tuned may let a method ask for something else than it has planned."""

    def solve(oracle: Any, facts: Any, options: Any) -> Any:
        return METHODS["dp-adam"].solve(oracle, facts, replace(options, steps=1))

    tuned(lambda calibrated: replace(calibrated, method=replace(calibrated.method, solve=solve)))
    with refuses("unsupported"):
        plan(asked(sets["a"], tune_on=sets["b"]), Listener())


def test_a_tuned_training_that_was_stopped_goes_on_under_the_name_that_was_charged(
    sets: dict[str, FeatureSet], tuned: Callable[[Tune], None]
) -> None:
    """And another choice is another training: it is held against the cap before it is charged."""
    tuned(lambda calibrated: replace(calibrated, options=replace(calibrated.options, learning_rate=2.0)))
    set_cap(sets["a"], 2.5)
    wanted, told = asked(sets["a"], tune_on=sets["b"]), Listener()
    before = plan(wanted, told)
    killed(before)
    assert before.calibrated.options.learning_rate == 2.0
    before.path.parent.mkdir()
    before.path.touch()
    again = plan(wanted, told)
    assert again.unfinished is not None
    assert (again.path, again.calibrated) == (before.path, before.calibrated)
    assert told.said[-1].endswith("It resumes, and nothing more is charged: 0 of its 2 releases have their answers.")
    assert again.after.charges == account(sets["a"]).charges
    tuned(lambda calibrated: replace(calibrated, options=replace(calibrated.options, learning_rate=0.5)))
    with refuses("over-cap", parameter="epsilon"):
        plan(wanted, told)


# The end


def test_errors_of_the_charge_say_themselves_what_is_charged(
    sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(kind: type[BaseException], *given: Any) -> Any:
        raise UserError("The disk is full.", "Make room.") if kind is UserError else kind("a defect")

    for kind, said in ((UserError, []), (ValueError, ["It was stopped during the charge"])):
        with monkeypatch.context() as patch:
            patch.setattr(charges_module, "append", functools.partial(failing, kind))
            with pytest.raises(kind) as end:
                run(ready(sets["a"]), Observer())
        assert [note.split(":")[0] for note in getattr(end.value, "__notes__", [])] == said
    monkeypatch.setattr(Observer, "confirm", lambda *given: False)
    with refuses("declined"):
        run(checked(sets["a"]), Observer())
    assert charges(sets["a"]) == ()


@pytest.mark.parametrize("epsilon", [1.0, 1.00004, 1.0000004])
def test_no_name_and_no_question_says_less_than_is_spent(features: FeatureSet, epsilon: float) -> None:
    ready = checked(features, epsilon=epsilon)
    named = float(ready.path.name.removesuffix(".safetensors").rpartition("-eps")[2])
    asked = float(question(ready.charge, ready.features.name, ready.after).split()[2])
    assert epsilon <= named <= 1.001 * epsilon
    assert epsilon <= asked <= 1.00001 * epsilon


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
    with pytest.warns(dpfc_cli.TrainingWarning, match="noise") as told:
        train(features, epsilon=0.01, method="dp-ls", out=tmp_path / "a.safetensors", observer=None)
    # They point to the line that asked, so each of several lines is warned of.
    assert {warning.filename for warning in told} == {__file__}
    # Whoever gives a seed out of habit learns here what it takes away.
    with pytest.warns(dpfc_cli.TrainingWarning):
        train(features, epsilon=8.0, seed=1, method="dp-ls", out=tmp_path / "b.research.safetensors", observer=None)


def test_numbers_of_numpy_are_numbers_in_ledger_and_card(features: FeatureSet, tmp_path: Path) -> None:
    made = train(
        features,
        epsilon=np.int64(8),  # type: ignore[arg-type]
        delta=np.float32(1e-5),  # type: ignore[arg-type]
        method="dp-ls",
        budget_split=np.array([0.2, 0.2, 0.6]),  # type: ignore[arg-type]
        negative_weight=np.float32(0.5),  # type: ignore[arg-type]
        out=tmp_path / "a.safetensors",
    )
    (row,) = charges(features)
    assert (row.epsilon, row.delta) == (8.0, float(np.float32(1e-5)))
    assert {type(row.epsilon), type(row.delta)} == {float}
    assert made.head.card.options["budget_split"] == (0.2, 0.2, 0.6)
    assert json.loads(made.head.card.json)["options"]["negative_weight"] == 0.5
