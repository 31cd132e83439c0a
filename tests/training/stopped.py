"""Trainings that are stopped, as the tests make them."""

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpfc_cli as dpfc
from dpfc_cli.errors import UserError
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.folders import LEDGER, LEDGER_LOCKS
from dpfc_cli.ledger.answers import begun
from dpfc_cli.privacy import curator
from dpfc_cli.training.charged import Charged
from dpfc_cli.training.check import Checked
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.run import Trained, spending
from tests import instead

STEPS = 4
"""dp-fc releases a Gram matrix before them."""


class Listener(Observer):
    """Keeps what it is told and asked. Warnings are said, too."""

    def __init__(self) -> None:
        self.said, self.warned, self.asked = list[str](), list[str](), list[str]()
        self.stages: list[tuple[str, int, int | None]] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.said.append(text)
        self.warned.append(text)

    def progress(self, stage: str, done: int, total: int | None) -> None:
        self.stages.append((stage, done, total))

    def confirm(self, charge: str, refused: UserError | None) -> bool:
        self.asked.append(charge)
        return True


def train(features: FeatureSet, observer: Observer | None = None, **given: Any) -> Trained:
    chosen = {} if "method" in given else {"method": "dp-fc", "steps": STEPS}
    wanted: dict[str, Any] = {**chosen, "epsilon": 1.0, "by": "me", **given}
    return dpfc.train(features, observer=observer or Listener(), **wanted)


def kept() -> list[str]:
    """The charges of the ledger of the working folder that have answers. Each has a lock."""
    found = sorted(begun(Path(LEDGER)))
    assert sorted(path.name for path in Path(LEDGER_LOCKS).glob("*")) == found
    return found


class Killed(BaseException):
    """Stops a process where nothing else does."""


def killed(ready: Checked) -> Charged:
    """Charge a training, and kill its process before its first answer."""
    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        instead.settle(patch)
        with spending(ready, Observer().confirm) as paid:
            raise Killed
    return paid


def killed_at(
    number: int, monkeypatch: pytest.MonkeyPatch, call: tuple[Any, str] = (curator, "draw_noise"), **given: Any
) -> None:
    """Kill the next training when it draws the noise of that release, or at another call. Its process settles
    nothing.
    """
    real, drawn = getattr(*call), [0]

    def dying(*arguments: Any) -> Any:
        drawn[0] += 1
        if drawn[0] == number + 1:
            raise Killed
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(*call, dying)
        instead.settle(patch)
        features = FeatureSet(Path("set"))
        with pytest.raises(Killed):
            train(features, **given)


def assert_one_answer_each(before: dict[int, np.ndarray], after: dict[int, np.ndarray]) -> None:
    for number in before.keys() & after.keys():
        assert np.array_equal(before[number], after[number]), f"release {number} has two answers"


def failing(*given: object) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
