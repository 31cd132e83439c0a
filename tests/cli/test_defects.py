"""A defect of dpfc: what is said of it, and of what it leaves behind."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.cli import budget
from dpfc_cli.errors import UserError
from dpfc_cli.privacy import curator
from dpfc_cli.training import run
from dpfc_cli.training import train as trainings
from tests.cli.conftest import Dpfc, charges

TRAIN = ("train", "--epsilon", "1", "--out", "heads/a.safetensors")
GOES_ON = "stays charged. No head was written. The same command goes on where it stopped, and charges nothing more."


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

    monkeypatch.setattr(budget, "_converted", refuse)
    ended = dpfc("budget", "--sigma", "1")
    assert ended.exit_code in (2, 130)
    assert "12345" not in ended.output


@pytest.mark.parametrize("from_call", [1, 3])
def test_a_defect_after_the_charge_says_that_the_training_is_charged_and_goes_on(
    from_call: int, dpfc: Dpfc, features: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = curator.draw_noise
    monkeypatch.setattr(curator, "draw_noise", failing(real, from_call))
    ended = dpfc(*TRAIN)
    assert ended.exit_code == 1
    said = " ".join(ended.stderr.split())
    assert "A defect in dpfc: ZeroDivisionError." in said
    assert GOES_ON in said
    assert said.index(GOES_ON) < said.index("Run again with 'dpfc -v")
    assert "12345" not in ended.output
    monkeypatch.setattr(curator, "draw_noise", real)
    again = dpfc("-v", *TRAIN)
    assert again.exit_code == 0
    assert f"{from_call - 1} of its" in again.stderr
    assert len(charges()) == 1


def test_a_training_whose_answers_are_not_kept_says_that_another_one_is_charged(
    dpfc: Dpfc, features: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curator, "draw_noise", failing(curator.draw_noise, 1))
    said = " ".join(dpfc(*TRAIN[:3], "--seed", "1").stderr.split())
    assert "stays charged. No head was written. The same command makes a new training, which is charged, too." in said
    assert "goes on" not in said


@pytest.mark.parametrize("raised", [RuntimeError("12345"), UserError("A thing.", "Mend it.")], ids=repr)
def test_so_does_one_before_the_first_record(
    raised: Exception, dpfc: Dpfc, features: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: object) -> None:
        raise raised

    monkeypatch.setattr(run, "charged_standing", broken)
    assert GOES_ON in " ".join(dpfc(*TRAIN).stderr.split())


def test_one_before_the_charge_says_that_nothing_was_charged(
    dpfc: Dpfc, features: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: object) -> str:
        raise RuntimeError("12345")

    monkeypatch.setattr(trainings, "charge_of", broken)
    assert "Nothing was charged, and no head was written." in dpfc(*TRAIN).stderr
    assert not charges()
