"""Every random word of a training on an engine comes from the system of the driver, and is used once."""

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

import dpfc_cli as dpfc
from dpfc_cli.extensions.engine.engine import Together
from dpfc_cli.training.calibrate import Calibrated
from dpfc_cli.training.request import Request
from tests.test_randomness import alone, each_word_is_used_once
from tests.test_randomness import features as sets  # noqa: F401


class Here:
    """Workers in this process, three of them, which take turns. The same system would hand them their words. What they
    get and give goes the way of bytes.
    """

    def __init__(self) -> None:
        self.tasks = 0

    def __len__(self) -> int:
        return 3

    def shared(self, value: bytes) -> bytes:
        return value

    def job(self, make: Callable[[], Any]) -> list[Any]:
        return [pickle.loads(pickle.dumps(make))() for _ in range(3)]

    def each(
        self, job: list[Any], tasks: Mapping[Any, Callable[[], tuple[Any, ...]]], size: int, own: bool
    ) -> Iterator[tuple[Any, Any]]:
        assert own
        for key in reversed(list(tasks)):
            work = job[key[1] % 3]
            self.tasks += 1
            yield (
                key,
                pickle.loads(pickle.dumps(work({each for each in tasks if each[1] % 3 == key[1] % 3}, *tasks[key]()))),
            )


def shared(wanted: Request) -> tuple[Calibrated, dpfc.Head]:
    """A training by three workers."""
    pool = Here()
    made = alone(replace(wanted, summing=Together(pool)))  # type: ignore[arg-type]
    assert pool.tasks > 3
    return made


@pytest.mark.usefixtures("sets")
@pytest.mark.parametrize("training", ["an answer in pieces", "samples of persons"])
def test_each_word_of_a_training_comes_from_the_system_once_even_if_it_was_killed(
    training: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    each_word_is_used_once(shared, training, monkeypatch)
