"""The way of a whole training: what Python asks for, what comes before the charge, and what is said at the end."""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.caps import set_cap
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy.oracle import PlanError
from dpfc_cli.training import charge as charges_module
from dpfc_cli.training import public, tuning
from dpfc_cli.training import train as trains
from dpfc_cli.training.answers import Answers
from dpfc_cli.training.calibrate import Calibrated, calibrate, warnings_of
from dpfc_cli.training.charge import charge
from dpfc_cli.training.check import Checked
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Privacy, Request, facts_of
from dpfc_cli.training.train import account_with, charge_of, finish, plan, train
from tests.training.requests import account, charges, ready


class Told(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.warned: list[str] = []
        self.said: list[str] = []
        self.asked: list[str] = []

    def warn(self, text: str) -> None:
        self.warned.append(text)

    def say(self, text: str) -> None:
        self.said.append(text)

    def confirm(self, charge: str) -> bool:
        self.asked.append(charge)
        return True


# From Python


def asked_by(monkeypatch: pytest.MonkeyPatch, features: FeatureSet, **given: Any) -> Any:
    """The request that a call makes, and the observers of both halves of the way."""
    monkeypatch.setattr(trains, "plan", lambda *seen: seen)
    monkeypatch.setattr(trains, "finish", lambda planned, observer: (*planned, observer))
    return train(features, **given)


@pytest.mark.parametrize(
    ("given", "privacy"),
    [
        ({"epsilon": 2.0}, Privacy(epsilon=2.0)),
        (
            {"epsilon": 2.0, "delta": 0.1, "allow_large_delta": True},
            Privacy(epsilon=2.0, delta=0.1, allow_large_delta=True),
        ),
        ({"noise_multiplier": 3.0, "seed": 0}, Privacy(noise_multiplier=3.0, seed=0)),
        ({"non_private": True}, Privacy()),
    ],
)
def test_all_that_is_given_is_asked_for(
    given: dict[str, Any], privacy: Privacy, sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFC_HEADS", "elsewhere")
    a, b, c = sets.values()
    same: dict[str, Any] = {
        **{"method": "dp-ls", "public_features": b, "public_head": "h.npz", "tune_on": c, "memory": 1e9},
        **{"by": "Ada", "purpose": "a look"},
        **({} if "non_private" in given else {"adjacency": "replace-one"}),
    }
    observer = Observer()
    found = asked_by(monkeypatch, a, **given, **same, out="o.safetensors", ridge=0.5, observer=observer)
    own: dict[str, Any] = {"out": Path("o.safetensors"), "options": {"ridge": 0.5}}
    wanted = Request(features=a, folder=Path("elsewhere"), privacy=privacy, **same, **own)
    assert found == (wanted, observer, observer)


def test_what_is_not_given_has_its_default(sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch) -> None:
    request, observer, same = asked_by(monkeypatch, sets["a"], epsilon=1.0)
    assert request == Request(features=sets["a"], folder=request.folder, privacy=Privacy(epsilon=1.0))
    assert type(observer) is Observer
    assert same is observer


# Before the charge


def asked(features: FeatureSet, **changed: Any) -> Request:
    given = {"method": "dp-sgd", "options": {"steps": 2}, "privacy": Privacy(epsilon=2.5), **changed}
    return Request(features=features, folder=Path("heads"), **given)


def test_a_slow_calibration_is_told(sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibration itself says when it is slow."""

    def slow(method: object, facts: object, options: object, privacy: object, told: Callable[[], None]) -> Calibrated:
        told()
        return calibrate(METHODS["dp-sgd"], facts_of(sets["a"]), {"steps": 2}, Privacy(epsilon=2.5))

    monkeypatch.setattr(trains, "calibrate", slow)
    told = Told()
    plan(asked(sets["a"]), told)
    assert told.said == ["Calibrating the noise for sampled releases. This takes some seconds."]


def test_a_public_set_that_is_the_private_one_is_refused_before_anything_is_said_or_read(
    sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    monkeypatch.setattr(public, "mean_of", lambda *given: pytest.fail("the public features were read"))
    with pytest.raises(UserError, match="the private records themselves"):
        plan(asked(sets["a"], method="dp-whitened", public_features=sets["b"], privacy=Privacy(epsilon=0.01)), told)
    assert told.warned == []


Tune = Callable[[Calibrated], object]


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> Callable[[Tune], None]:
    """Replaces the trials, which take long. What happens meanwhile is given."""

    def replaced(tune: Tune) -> None:
        monkeypatch.setattr(tuning, "prepare", lambda *given: SimpleNamespace(known=SimpleNamespace(name="b")))
        monkeypatch.setattr(tuning, "warnings_of", lambda trials: ["a poor stand-in"])
        monkeypatch.setattr(tuning, "tune", lambda calibrated, *rest: tune(calibrated) or calibrated)

    monkeypatch.setattr(public, "warnings_of", lambda features: [f"{features.name} was imported"])
    return replaced


def test_each_warning_is_told_once(sets: dict[str, FeatureSet], tuned: Callable[[Tune], None]) -> None:
    tuned(lambda calibrated: None)
    told = Told()
    made = plan(asked(sets["a"], tune_on=sets["b"], privacy=Privacy(epsilon=0.01)), told)
    noise = warnings_of(made.calibrated)
    assert noise
    assert told.warned == [*noise, "b was imported", "a poor stand-in"]


def test_features_that_changed_during_the_tuning_are_refused(
    sets: dict[str, FeatureSet], tuned: Callable[[Tune], None]
) -> None:
    (shard,) = (sets["a"].folder / each.file for each in sets["a"].split("train").shards)
    tuned(lambda calibrated: shard.write_bytes(shard.read_bytes()[:-1] + b"x") and None)
    with pytest.raises(UserError, match="are not those of the manifest"):
        plan(asked(sets["a"], tune_on=sets["b"]), Told())


def test_what_was_chosen_is_rehearsed(sets: dict[str, FeatureSet], tuned: Callable[[Tune], None]) -> None:
    """The options that were tuned may let a method ask for something else than it has planned."""

    def solve(oracle: Any, facts: Any, options: Any) -> Any:
        return METHODS["dp-sgd"].solve(oracle, facts, replace(options, steps=1))

    tuned(lambda calibrated: replace(calibrated, method=replace(calibrated.method, solve=solve)))
    with pytest.raises(PlanError, match="1 of 2 planned releases"):
        plan(asked(sets["a"], tune_on=sets["b"]), Told())


def stopped(made: Checked) -> Checked:
    """The training is charged and stopped before its first answer."""
    charged = charge(made)
    assert charged.answers is not None
    charged.answers.close()
    return made


def test_a_tuned_training_that_was_stopped_goes_on_under_the_name_that_was_charged(
    sets: dict[str, FeatureSet], tuned: Callable[[Tune], None]
) -> None:
    """And another choice is another training: it is held against the cap before it is charged."""
    tuned(lambda calibrated: replace(calibrated, options=replace(calibrated.options, learning_rate=2.0)))
    set_cap(sets["a"], 2.5)
    wanted, told = asked(sets["a"], tune_on=sets["b"]), Told()
    before = stopped(plan(wanted, told))
    assert before.calibrated.options.learning_rate == 2.0
    before.path.touch()
    again = plan(wanted, told)
    assert again.unfinished is not None
    assert (again.path, again.calibrated) == (before.path, before.calibrated)
    assert told.said[-1].endswith("It goes on, and nothing more is charged: 0 of its 2 releases have their answers.")
    assert account_with(again).charges == account(sets["a"]).charges
    tuned(lambda calibrated: replace(calibrated, options=replace(calibrated.options, learning_rate=0.5)))
    with pytest.raises(UserError, match="does not fit under the cap"):
        plan(wanted, told)


def test_what_is_new_is_not_said_to_go_on(sets: dict[str, FeatureSet]) -> None:
    told = Told()
    made = plan(asked(sets["a"]), told)
    assert told.said == []
    (row,) = account_with(made).charges
    assert (row.head, row.epsilon) == (made.path.name, 2.5)


# The end


def test_without_a_guarantee_no_epsilon_is_charged(sets: dict[str, FeatureSet]) -> None:
    assert charge_of(ready(sets["a"], privacy=Privacy())) == "no ε to a"


def test_what_goes_on_is_not_asked_for_again(sets: dict[str, FeatureSet]) -> None:
    stopped(ready(sets["a"]))
    told = Told()
    finish(ready(sets["a"]), told)
    assert told.asked == []
    finish(ready(sets["a"]), told)
    assert len(told.asked) == 1


@pytest.mark.parametrize("seed", [None, 1], ids=["answers", "no answers"])
def test_a_training_that_is_stopped_before_its_run_tidies_up_says_the_same_and_leaves_as_little(
    seed: int | None, sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trains, "run", killed)
    closed: list[int] = []
    close = Answers.close
    monkeypatch.setattr(Answers, "close", lambda self: (closed.append(1), close(self))[1])
    with pytest.raises(KeyboardInterrupt) as end:
        finish(ready(sets["a"], privacy=Privacy(epsilon=2.5, seed=seed)), Observer())
    assert ["stays charged" in note for note in end.value.__notes__] == [True]
    assert len(charges(sets["a"])) == 1
    assert list(Path("heads").iterdir()) == []
    assert len(closed) == (seed is None)


def test_errors_of_the_charge_say_themselves_what_is_charged(
    sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(kind: type[BaseException], *given: Any) -> Any:
        raise UserError("The disk is full.", "Make room.") if kind is UserError else kind("a defect")

    for kind, said in ((UserError, []), (ValueError, ["It was stopped during the charge"])):
        monkeypatch.setattr(charges_module, "append", functools.partial(failing, kind))
        with pytest.raises(kind) as end:
            finish(ready(sets["a"]), Observer())
        assert [note.split(":")[0] for note in getattr(end.value, "__notes__", [])] == said


def test_a_user_error_of_the_run_says_that_it_is_charged(
    sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise UserError("The disk is full.", "Make room.")

    monkeypatch.setattr(trains, "run", full)
    with pytest.raises(UserError) as end:
        finish(ready(sets["a"]), Observer())
    assert ["stays charged" in note for note in end.value.__notes__] == [True]
