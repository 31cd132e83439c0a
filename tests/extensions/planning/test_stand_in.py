"""A stand-in: how many records a training on it has, how it is scored, and what is refused before the first one."""

import errno
from pathlib import Path
from typing import Any

import pytest

from dpfc_cli.extensions.planning import stand_in, tuning
from dpfc_cli.extensions.planning.forecast import forecast
from dpfc_cli.extensions.planning.stand_in import RUNS
from dpfc_cli.extensions.planning.tuning import Trials
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.kernels import products
from dpfc_cli.privacy.queries import Gram
from tests.closed import failing
from tests.support import CHAIN, calibrated_at, plan_of, refuses, replace
from tests.training.requests import FACTS, small


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FeatureSet:
    """20 records of two classes to train on, and 6 to test on."""
    monkeypatch.chdir(tmp_path)
    return small("known", 20, 6)


@pytest.mark.parametrize("steps", [2, None])
def test_each_draw_is_trained_on_at_each_epsilon_and_the_last_one_without_noise(
    known: FeatureSet, steps: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draw is read once, so all trainings on it follow one another. Of hits the fraction is scored. Without steps a
    training without noise would go on until the optimum: none is made, and no score is invented.
    """
    asked, told = list[tuple[int, float | None]](), list[tuple[str, int, int | None]]()

    def score(self: Trials, seed: int, mu: float | None, options: object) -> float:
        asked.append((seed, mu))
        return len(self.draws[seed].test) / 2

    monkeypatch.setattr(tuning.Trials, "_score", score)
    given: dict[str, Any] = {"method": "dp-fc", **({"steps": steps} if steps else {})}
    found = forecast(
        records=20, classes=2, on=known, epsilons=[1.0, 2.0], progress=lambda *far: told.append(far), **given
    )
    each = [(seed, outlook.mu) for seed in range(RUNS) for outlook in found.outlooks]
    assert asked == [*each, *([(RUNS - 1, None)] if steps else [])]
    assert {score for outlook in found.outlooks for score in outlook.scores} == {0.5}
    assert found.stand_in is not None
    assert found.stand_in.noiseless == (0.5 if steps else None)
    assert told == [("Training on known", i, 2 * RUNS + 1) for i in range(1, len(asked) + 1)]


def trials(known: FeatureSet, n: int, m: int, memory: float | None = None) -> Trials:
    """Of n private records of m classes, of which only the facts are known."""
    facts = replace(FACTS, n=n, m=m)
    calibrated = calibrated_at(facts, plan_of(facts, (Gram(CHAIN, 0.2), 1.0)), 0.3)
    return stand_in._trials(None, known, calibrated, memory)


def test_there_are_as_many_records_of_each_class_as_there_will_be(known: FeatureSet) -> None:
    for n, m, records in ((10, 2, 10), (30, 2, 30), (30, 4, 15), (3, 4, 2), (2, 4, 2), (7, 3, 5)):
        assert trials(known, n, m).facts == replace(FACTS, n=records, m=2)


def test_what_this_machine_cannot_do_is_refused_before_the_first_training(
    known: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refuses("memory", parameter="pool"):
        trials(known, 30, 2, memory=1)
    monkeypatch.setattr(products, "check_exact", failing(errno.EIO))
    with refuses("unsupported"):
        trials(known, 30, 2)
