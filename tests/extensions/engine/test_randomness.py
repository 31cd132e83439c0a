"""Every random word of a training of several processes comes from the system of process 0, and is used once."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import dpfc_cli as dpfc
from dpfc_cli.extensions.engine.leader import Leader, serve
from dpfc_cli.training.calibrate import Calibrated
from dpfc_cli.training.request import Request
from tests.extensions.engine.test_leader import Met
from tests.privacy.test_parts import Room
from tests.support import LOST
from tests.test_randomness import alone, each_word_is_used_once
from tests.test_randomness import features as sets  # noqa: F401


def shared(wanted: Request) -> tuple[Calibrated, dpfc.Head]:
    """A training by two processes. They are threads here, and the same system hands them their words."""
    room = Room(2)
    first, second = (Met(room, number) for number in range(2))
    leader = Leader(first)  # type: ignore[arg-type]
    with ThreadPoolExecutor() as pool:
        other = pool.submit(serve, second, wanted.features)  # type: ignore[arg-type]
        try:
            made = alone(replace(wanted, summing=leader))
            leader.end()
            other.result(LOST)
        except BaseException:
            room.barrier.abort()
            raise
    assert second.added_once > 0
    return made


@pytest.mark.usefixtures("sets")
@pytest.mark.parametrize("training", ["an answer in pieces", "samples of persons"])
def test_each_word_of_a_training_comes_from_the_system_once_even_if_it_was_killed(
    training: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    each_word_is_used_once(shared, training, monkeypatch)
