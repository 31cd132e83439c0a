"""The way of a whole training: what Python asks for, what comes before the charge, and what is said at the end."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpfc_cli
from dpfc_cli.errors import UserError
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head
from dpfc_cli.options import option, takes
from dpfc_cli.records.card import Card
from dpfc_cli.training import charged as charges_module
from dpfc_cli.training.calibrate import Calibrated
from dpfc_cli.training.charged import question
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Hook, Request, Training
from dpfc_cli.training.run import run
from dpfc_cli.training.train import train
from tests.support import blobs, refuses, replace
from tests.training.requests import charges, checked, ready, states
from tests.training.stopped import Listener, killed

# Before the charge


@dataclass(frozen=True, kw_only=True)
class Chosen(Hook):
    """What a package may add: options that it chooses, here a value of the user's."""

    rate: float | None = option("A learning rate.", low=0, high=1)
    faults: tuple[str, ...] = ()

    def choose(self, request: Request, calibrated: Calibrated, observer: Observer) -> Calibrated:
        changed = {name: replace(getattr(calibrated, name), mu=1.0) for name in self.faults}
        return replace(calibrated, options=replace(calibrated.options, learning_rate=self.rate), **changed)

    def ended(self, card: Card, observer: Observer) -> None:
        observer.say(f"trained at {card.options['learning_rate']}")


def test_a_hook_chooses_before_anything_is_charged_and_is_told_of_the_card(features: FeatureSet) -> None:
    """What it chooses decides which training it is."""
    told = Listener()
    made = [checked(features, hooks=(Chosen(rate=rate),)) for rate in (0.5, 0.25)]
    assert [each.calibrated.options.learning_rate for each in made] == [0.5, 0.25]
    assert made[0].charge.digest != made[1].charge.digest
    assert charges(features) == ()
    run(made[0], told)
    assert told.said == ["trained at 0.5"]
    killed(checked(features, hooks=(Chosen(rate=0.25),)))
    resumed = [checked(features, hooks=(Chosen(rate=rate),)).unfinished for rate in (0.5, 0.25)]
    assert [each is not None for each in resumed] == [False, True]


@pytest.mark.parametrize("fault", ["guarantee", "mechanism"])
def test_a_hook_that_changes_what_is_released_is_a_defect(features: FeatureSet, fault: str) -> None:
    with pytest.raises(ValueError, match="Chosen changes what is released"):
        checked(features, hooks=(Chosen(rate=0.5, faults=(fault,)),))
    assert charges(features) == ()


def test_an_option_of_a_hook_is_one_of_the_function(features: FeatureSet) -> None:
    @takes(Training, Chosen)
    def asked(wanted: Training) -> tuple[Hook, ...]:
        """Say what was asked for.

        Returns:
            It.

        """
        return wanted.hooks

    function: Any = asked
    assert function(features, epsilon=1, rate=0.5) == (Chosen(rate=0.5),)
    assert function(features, epsilon=1) == function(features, epsilon=1, rate=None) == ()
    assert "rate: A learning rate." in (asked.__doc__ or "")
    with refuses("bad-value", parameter="rate"):
        function(features, epsilon=1, rate=2)
    with pytest.raises(TypeError, match=r"'rates'.*'rate'"):
        function(features, epsilon=1, rates=2)


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
