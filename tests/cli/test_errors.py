"""What the user can mend: one message with a remedy, an exit code of its kind, nothing written, nothing charged."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import Result

from dpfc_cli.errors import Note, UserError
from dpfc_cli.folders import LEDGER
from dpfc_cli.privacy import curator
from dpfc_cli.training import charged
from tests import instead
from tests.cli.conftest import Dpfc, charges, each_is_refused, error_of, snapshot

TRAIN = ["train", "--epsilon", "1"]


def test_what_the_system_refuses_is_no_defect(dpfc: Dpfc, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a disk that fails where no room has words for it."""

    def refused(*_: object) -> None:
        error = OSError(errno.EIO, "planted", "features/file")
        error.add_note(Note("The training was charged."))
        raise error

    instead.converted(monkeypatch, refused)
    error = error_of(dpfc("budget", "--sigma", "10", "--json", ends=7))
    assert (error["code"], error["notes"]) == ("unreadable", ["The training was charged."])
    assert all(said in error["message"] for said in ("features/file", os.strerror(errno.EIO)))


MISTAKES = {
    "train": "conflict epsilon", "train --epsilon nan": "bad-value epsilon", "train blobs --epsilon 1": "bad-value",
    "train --epsilon 1 --method dp-sl": "unknown-name method", "extract --dataset cifar11": "unknown-name cifar11",
    "budget --sigma 10 --delta 2": "bad-value delta", "budget --sigma 0": "bad-value sigma",
    "train --epsilon 1 --delta 1e-5 --delta 1e-6": "bad-value",
    "train --epsilon 1 --negative-weight 1": "conflict negative_weight",
    "train --epsilon 1 --features nowhere": "missing nowhere",
    "train --epsilon 1 --out heads/a.nonprivate.safetensors": "bad-value out",
    "train --non-private --out heads/a.safetensors": "bad-value out",
    "train --epsilon 1 --seed 1 --out heads/a.safetensors": "bad-value out",
    "train --epsilon 1 --out arrays/train_x.npy/a.safetensors": "missing out",
    f"train --epsilon 1 --out heads/{'x' * 240}.safetensors": "unwritable out",
    "train --epsilon 1 --memory 1MB": "memory pool", "train --epsilon 1 --budget-split half": "bad-value budget_split",
    "train --epsilon 1 --sampling-rate 0.1": "conflict sampling_rate",
    "train --non-private --damping 5": "conflict damping",
    "statement arrays/train_x.npy": "damaged arrays/train_x.npy", "evaluate": "missing epsilon",
    "budget --features nowhere": "missing nowhere", "budget --features arrays": "missing arrays",
}  # fmt: skip


def test_mistakes_are_named_and_change_nothing(dpfc: Dpfc, features: Path) -> None:
    each_is_refused(dpfc, MISTAKES)


def failed(ended: Result) -> tuple[int, str]:
    """The exit code of an error, and the code that its object has."""
    said = error_of(ended)
    assert said["message"]
    assert said["remedy"]
    assert (ended.exit_code, ended.stdout) == (said["exit_code"], "")
    return ended.exit_code, said["code"]


def test_each_kind_of_error_has_its_exit_code_and_with_json_its_code(dpfc: Dpfc, features: Path) -> None:
    assert failed(dpfc("train", "--json", "--eps", "1")) == (2, "unknown-name")
    assert failed(dpfc("train", "--json", "--epsilon", "high")) == (2, "bad-value")
    assert dpfc(*TRAIN).exit_code == 0
    assert failed(dpfc(*TRAIN, "--json")) == (6, "exists")
    assert dpfc("cap", "2", "--features", "blobs").exit_code == 0
    assert failed(dpfc("train", "--epsilon", "3", "--json")) == (3, "over-cap")
    Path(*features.parts, "manifest.json").write_text("{")
    assert failed(dpfc("--json", *TRAIN)) == (5, "damaged")


def test_a_near_name_is_suggested_for_what_is_not_known(dpfc: Dpfc, features: Path) -> None:
    assert dpfc(*TRAIN).exit_code == 0
    for line, near in (
        ("train --eps 1", "'--epsilon'"),
        ("train -epsilon 1", "'--epsilon'"),
        ("train --no x", "'--noise-multiplier' or '--non-private'"),
        ("--quite list", "'--quiet'"),
        ("trian", "'train'"),
        ("train --epsilon 1 --method dp-s", "'dp-sgd'"),
        ("train --epsilon 1 --method fc", "'dp-fc'"),
        ("statement blobs", "'blobs-dp-whitened-eps1'"),
        ("train --epsilon 1 --features blob", "'blobs'"),
    ):
        ended = dpfc(*line.split(), ends=2)
        assert f"Did you mean {near}?" in ended.stderr
    assert "mean" not in dpfc("extract", "digits", "--zzz", "c10", ends=2).stderr


def test_damaged_features_are_refused_before_anything_is_charged(dpfc: Dpfc, features: Path) -> None:
    shard = next(features.glob("train-*"))
    shard.write_bytes(shard.read_bytes()[:-500])
    before = snapshot()
    ended = dpfc(*TRAIN, ends=5)
    assert shard.name in ended.stderr
    assert snapshot() == before


def test_ctrl_c_ends_with_130_and_says_what_stands(dpfc: Dpfc, features: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def stopped(*args: object) -> None:
        raise KeyboardInterrupt

    instead.draw_noise(monkeypatch, stopped)
    ended = dpfc(*TRAIN, ends=130)
    assert LEDGER in ended.stderr, "where it stays charged"
    assert [path.name for path in Path("features/ledger.locks").iterdir()] == [charges()[0].id]
    assert len(charges()) == 1
    # Its head lies nowhere.
    for told in (dpfc("list", ends=0).stdout, dpfc("evaluate", ends=2).stderr):
        assert "'dpfc budget'" in " ".join(told.split())


def test_a_place_that_a_variable_names_is_not_blamed_on_a_flag(
    dpfc: Dpfc, features: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, line in (("DPFC_HEADS", TRAIN), ("DPFC_FEATURES", ["extract", "digits"])):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "arrays/train_x.npy")
            ended = dpfc(*line)
        assert ended.exit_code == 7
        assert variable in ended.stderr
        assert "--out" not in ended.stderr


OUT = ("train", "--epsilon", "1", "--out", "heads/a.safetensors")


def failing(real: Callable[..., np.ndarray], from_call: int) -> Callable[..., np.ndarray]:
    """A function with a defect that shows later. Its exception has a note of another library, with a value."""
    calls: list[int] = []

    def broken(*given: object) -> np.ndarray:
        calls.append(1)
        if len(calls) >= from_call:
            error = ZeroDivisionError("secret 12345")
            error.add_note("secret 12345")
            raise error
        return real(*given)

    return broken


@pytest.mark.parametrize("error", [UserError("What", "Do this."), KeyboardInterrupt()], ids=["refused", "stopped"])
def test_a_note_of_another_library_is_not_shown(
    error: BaseException, dpfc: Dpfc, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        error.add_note("secret 12345")
        raise error

    instead.converted(monkeypatch, refuse)
    ended = dpfc("budget", "--sigma", "1")
    assert ended.exit_code in (2, 130)
    assert "12345" not in ended.output


@pytest.mark.parametrize("from_call", [1, 3])
def test_a_defect_after_the_charge_says_that_the_training_is_charged_and_goes_on(
    from_call: int, dpfc: Dpfc, features: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = curator.draw_noise
    instead.draw_noise(monkeypatch, failing(real, from_call))
    ended = dpfc(*OUT, "--json", ends=1)
    told = error_of(ended)
    assert (told["code"], "ZeroDivisionError" in told["message"]) == ("defect", True)
    (stands,) = told["notes"]
    assert LEDGER in stands
    assert "12345" not in ended.output
    instead.draw_noise(monkeypatch, real)
    again = dpfc("-v", *OUT, ends=0)
    assert str(from_call - 1) in again.stderr.split()
    assert len(charges()) == 1


def test_a_defect_before_the_charge_says_that_nothing_was_charged(
    dpfc: Dpfc, features: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: object) -> str:
        raise RuntimeError("12345")

    monkeypatch.setattr(charged, "question", broken)
    assert "Nothing" in dpfc(*OUT).stderr
    assert (charges(), Path("heads").exists()) == ((), False)
