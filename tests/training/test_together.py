"""A training of several processes, seen from process 0: what is said when another process is lost."""

import json

import numpy as np
import pytest

from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.processes import LostError
from dpfc_cli.training import ledger
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Privacy, Request
from dpfc_cli.training.together import Leader
from dpfc_cli.training.train import finish, plan


class Alone:
    """The only process of a training. Another one is missed as soon as `asks` is asked."""

    number, count = 0, 1

    def __init__(self, asks: str) -> None:
        self._asks = asks
        self.told: list[str] = []

    def tell(self, message: bytes) -> None:
        asked = json.loads(message)["ask"] if message[:1] == b"{" else ""
        if asked == self._asks:
            raise LostError("Process 1 has failed.", "Start them again.", code="lost")
        self.told.append(asked)

    def gathered(self, value: str) -> list[str]:
        return [value]

    def added(self, array: np.ndarray) -> np.ndarray:
        return array


def request(features: FeatureSet, processes: Alone) -> Request:
    return Request(
        features=features,
        folder=features.folder.parent / "heads",
        privacy=Privacy(epsilon=2.0),
        method="dp-fc",
        options={"steps": 3},
        leader=Leader(processes),  # type: ignore[arg-type]
    )


def test_a_process_that_is_lost_before_the_first_sum_leaves_a_training_that_says_that_it_is_charged(
    features: FeatureSet,
) -> None:
    checked = plan(request(features, Alone("sum")), Observer())
    with pytest.raises(LostError) as lost:
        finish(checked, Observer())
    assert any("stays charged" in note for note in lost.value.__notes__)
    (row,) = ledger.read(ledger.ledger_path(features.folder))
    assert row.state == "stopped"
    again = finish(plan(request(features, Alone("nothing")), Observer()), Observer())
    (row,) = ledger.read(ledger.ledger_path(features.folder))
    assert (row.state, again.path.exists()) == ("written", True)


def test_a_process_that_is_lost_after_the_head_was_written_changes_nothing(features: FeatureSet) -> None:
    """To start such a training again would charge a second one."""
    asked = request(features, Alone("end"))
    trained = finish(plan(asked, Observer()), Observer())
    assert asked.leader is not None
    asked.leader.end()
    assert trained.path.exists()
