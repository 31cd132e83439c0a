"""A stand-in: how the trainings on it are scored, and what is said of them."""

import errno
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.kernels import products
from dpfc_cli.planning import stand_in
from dpfc_cli.planning.stand_in import RUNS, StandIn
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.queries import Gram
from dpfc_cli.training.tuning import Draw, Trials
from tests.closed import failing
from tests.support import CHAIN, calibrated_at, plan_of
from tests.training.requests import FACTS, GRADIENT, small

PRIVATE = Facts(n=2000, m=4, d=6)


PERSONS = replace(PRIVATE, n=1000, rows=2000, unit="person")


NOBODY_KNOWS = "how hard your classes are to tell apart, which only your records say"


def draw(n: int, m: int, tested: int) -> Draw:
    facts = replace(PRIVATE, n=n, m=m)
    return Draw(facts=facts, train=np.arange(n), split="test", test=np.arange(tested), table=np.arange(m + 1))


class Scored:
    """Stands for trials on `known`: each training has all hits. asked: what was trained, in order."""

    def __init__(self, facts: Facts, draws: list[Draw], noiseless: bool = True) -> None:
        self.facts, self.draws, self.known = facts, draws, SimpleNamespace(name="known")
        self.asked = list[tuple[int, float | None]]()
        self._noiseless = noiseless

    def run(self, point: dict[str, float], seed: int, mu: float) -> float:
        assert not point
        self.asked.append((seed, mu))
        return len(self.draws[seed].test)

    def noiseless(self, seed: int) -> float | None:
        self.asked.append((seed, None))
        return len(self.draws[seed].test) if self._noiseless else None


DRAWS = [draw(100, 4, 10 + i) for i in range(RUNS)]


TWO = [calibrated_at(FACTS, plan_of(FACTS, (GRADIENT, 1.0)), mu) for mu in (0.3, 0.4)]


def tried(scored: Scored, told: Any = None) -> tuple[stand_in.Scores, float | None]:
    return stand_in._tried(cast(Trials, scored), TWO, told)


def test_each_draw_is_trained_on_at_each_epsilon_and_the_last_one_without_noise() -> None:
    """A draw is read once, so all trainings on it follow one another. Of hits the fraction is scored."""
    scored, told = Scored(PRIVATE, DRAWS), list[tuple[str, int, int | None]]()
    scores, noiseless = tried(scored, lambda *given: told.append(given))
    assert scored.asked == [*((seed, mu) for seed in range(RUNS) for mu in (0.3, 0.4)), (RUNS - 1, None)]
    assert (scores, noiseless) == ([(1.0,) * RUNS] * 2, 1.0)
    assert told == [("Training on known", i, 2 * RUNS + 1) for i in range(1, 2 * RUNS + 2)]


def test_a_mean_average_precision_is_no_number_of_hits() -> None:
    scores, noiseless = tried(Scored(replace(PRIVATE, k=2), DRAWS))
    assert (scores[0], noiseless) == (tuple(float(len(each.test)) for each in DRAWS), float(len(DRAWS[-1].test)))


def test_where_no_training_is_made_without_noise_no_score_is_invented() -> None:
    assert tried(Scored(PRIVATE, DRAWS, noiseless=False))[1] is None


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FeatureSet:
    """20 records of two classes."""
    monkeypatch.chdir(tmp_path)
    return small("known", 20)


def trials(known: FeatureSet, n: int, m: int, memory: float | None = None) -> Trials:
    """Of n private records of m classes, of which only the facts are known."""
    facts = replace(FACTS, n=n, m=m)
    calibrated = calibrated_at(facts, plan_of(facts, (Gram(CHAIN, 0.2), 1.0)), 0.3)
    return stand_in._trials(None, known, calibrated, memory)


@pytest.mark.parametrize(
    ("n", "m", "records"), [(10, 2, 10), (30, 2, 30), (30, 4, 15), (3, 4, 2), (2, 4, 2), (7, 3, 5)]
)
def test_there_are_as_many_records_of_each_class_as_there_will_be(
    known: FeatureSet, n: int, m: int, records: int
) -> None:
    assert trials(known, n, m).facts == replace(FACTS, n=records, m=2)


def test_what_this_machine_cannot_do_is_refused_before_the_first_training(
    known: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="This training needs about") as refused:
        trials(known, 30, 2, memory=1)
    assert refused.value.code == "memory"
    monkeypatch.setattr(products, "check_exact", failing(errno.EIO))
    with pytest.raises(UserError, match="cannot compute on this machine's devices") as refused:
        trials(known, 30, 2)
    assert refused.value.code == "unsupported"


@pytest.mark.parametrize(
    ("private", "stands_for", "draws", "matched", "unmatched"),
    [
        (
            *(PRIVATE, PRIVATE, [draw(2000, 4, 50)] * 2),
            ("the number of classes (4)", "the number of records of a training (2,000)", "the noise"),
            (NOBODY_KNOWS,),
        ),
        (
            *(PRIVATE, replace(PRIVATE, n=1000, m=2), [draw(1000, 2, 50)] * 2),
            ("the number of records of a training (1,000: as many for each class as there will be)", "the noise"),
            (
                "known has 2 classes for 4. They are easier to tell apart: expect less than this",
                NOBODY_KNOWS,
            ),
        ),
        (
            *(PERSONS, PERSONS, [draw(500, 4, 60), draw(400, 4, 50)]),
            ("the number of classes (4)", "the noise for the persons of a class (σ is 2.5 times smaller)"),
            (
                "a training learns from 400 records of known, not from 1,000",
                "a person is one record here: expect more than this if persons have several",
                NOBODY_KNOWS,
            ),
        ),
    ],
    ids=["all alike", "fewer classes", "fewer records than persons"],
)
def test_it_is_said_what_will_be_the_same_and_what_will_not(
    private: Facts, stands_for: Facts, draws: list[Draw], matched: tuple[str, ...], unmatched: tuple[str, ...]
) -> None:
    """Where draws differ, the smallest is the one that counts."""
    assert stand_in._stand_in(cast(Trials, Scored(stands_for, draws)), private, 0.9) == StandIn(
        name="known", facts=draws[-1].facts, tested=50, noiseless=0.9, matched=matched, unmatched=unmatched
    )
