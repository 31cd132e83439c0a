"""What is looked at before the charge: a training that was stopped, the caps, and the room it needs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features import shards
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.caps import set_cap
from dpfc_cli.ledger.file import ledger_path
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.method import state_bytes
from dpfc_cli.privacy import forms
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.training.calibrate import calibrate
from dpfc_cli.training.charge import Charged, charge
from dpfc_cli.training.check import answers_beside, check
from dpfc_cli.training.machine import stack_bytes, training_bytes, working_bytes
from dpfc_cli.training.observer import CHECKING, Observer, TrainingWarning
from dpfc_cli.training.request import Privacy
from dpfc_cli.training.run import run
from tests.training.requests import ready, request


def stopped(features: FeatureSet, **changed: Any) -> Charged:
    """A training that was charged and stopped before its first answer."""
    made = charge(ready(features, **changed))
    assert made.answers is not None
    made.answers.close()
    return made


def refused(features: FeatureSet, **changed: Any) -> None:
    with pytest.raises(UserError, match="does not fit under the cap"):
        ready(features, **changed)


# What was charged and what is to be charged


@pytest.mark.parametrize("out", [None, Path("elsewhere", "mine.safetensors")])
def test_what_was_charged_goes_on_and_is_not_held_against_the_cap_again(
    sets: dict[str, FeatureSet], out: Path | None
) -> None:
    set_cap(sets["a"], 2.5)
    before = stopped(sets["a"], out=out)
    again = ready(sets["a"], out=out)
    assert again.unfinished is not None
    assert again.unfinished.charge == before.receipt.charge
    # Another command is a training of its own.
    refused(sets["a"], out=out, purpose="another")


def test_what_goes_on_has_the_name_that_was_charged(sets: dict[str, FeatureSet]) -> None:
    """A head of this name may be there: the training may have been killed after it was written."""
    before = stopped(sets["a"])
    before.checked.path.touch()
    assert ready(sets["a"]).path == before.checked.path
    assert ready(sets["a"], purpose="another").path != before.checked.path


def test_what_is_tuned_is_held_against_the_cap_before_it_is_tuned(sets: dict[str, FeatureSet]) -> None:
    set_cap(sets["a"], 2.0)
    refused(sets["a"], tune_on=sets["b"])


def test_what_is_tuned_may_be_a_training_that_was_stopped(sets: dict[str, FeatureSet]) -> None:
    """Its options are known after the tuning. Only then it is clear which training it is, and whether it is charged."""
    set_cap(sets["a"], 2.5)
    stopped(sets["a"])
    said: list[str] = []

    class Listening(Observer):
        def say(self, text: str) -> None:
            said.append(text)

    wanted = replace(ready(sets["a"]).request, tune_on=sets["b"])
    calibrated = calibrate(wanted.chosen, wanted.facts, {"steps": 2}, wanted.privacy)
    assert check(wanted, calibrated, Listening()).unfinished is None
    assert said == []


def test_a_ledger_that_is_gone_or_too_old_is_refused_or_told(sets: dict[str, FeatureSet]) -> None:
    path = ledger_path(sets["a"].folder)
    before = path.read_bytes()
    run(charge(ready(sets["a"])), Observer())
    path.write_bytes(before)
    with pytest.warns(TrainingWarning, match="does not have the training"):
        ready(sets["a"])
    path.unlink()
    with pytest.raises(UserError) as gone:
        ready(sets["a"])
    assert (gone.value.code, gone.value.fields["path"]) == ("missing", str(path))


def test_progress_is_told_in_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shards, "SHARD_ROWS", 8192)
    told: list[tuple[str, int, int | None]] = []

    class Listening(Observer):
        def progress(self, stage: str, done: int, total: int | None) -> None:
            told.append((stage, done, total))

    np.savez("raw.npz", train_x=np.zeros((16384, 1), np.float32), train_y=np.arange(16384) % 2)
    wanted = request(import_features("raw.npz", "set", classes=("a", "b")).features)
    check(wanted, calibrate(wanted.chosen, wanted.facts, wanted.options, wanted.privacy), Listening())
    assert told == [(CHECKING, 1, 2), (CHECKING, 2, 2)]


# Room


def test_several_labels_take_350_mebibytes_more_where_there_are_class_grams() -> None:
    one, two = Facts(n=1000, m=3, d=4), Facts(n=1000, m=3, d=4, k=2)
    for name, more in (("dp-ls", 350 * 2**20), ("dp-fc", 0)):
        method = METHODS[name]
        plan = method.plan(one, method.planned(one, {}, True))
        assert training_bytes(method, plan, one) == state_bytes(method, plan) + working_bytes(one)
        assert training_bytes(method, plan, two) == training_bytes(method, plan, one) + more


def test_answers_in_pieces_take_500_mebibytes_and_four_times_what_a_matrix_is_larger_than_a_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method, facts, matrix = METHODS["dp-ls"], Facts(n=1000, m=3, d=4), 8 * 4**2
    for piece, more in ((3 * matrix, 0), (2 * matrix, 500 * 2**20), (matrix - 28, 500 * 2**20 + 4 * 28)):
        monkeypatch.setattr(forms, "PIECE_BYTES", piece)
        plan = method.plan(facts, method.planned(facts, {}, True))
        assert training_bytes(method, plan, facts) == state_bytes(method, plan) + working_bytes(facts) + more


def test_only_answers_in_pieces_that_are_kept_take_room_beside_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody goes on with a training whose seed is known."""
    facts = Facts(n=1000, m=3, d=4)
    made, seeded = (calibrate(METHODS["dp-ls"], facts, {}, Privacy(epsilon=1.0, seed=seed)) for seed in (None, 1))
    assert answers_beside(made, None) == 0
    monkeypatch.setattr(forms, "PIECE_BYTES", 1)
    assert (answers_beside(made, None), answers_beside(seeded, None)) == (stack_bytes(made.plan), 0)
    assert stack_bytes(made.plan) > 0
