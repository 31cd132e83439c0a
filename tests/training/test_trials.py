"""The trials of a choice: their records, their noise, what they keep and what is known of them from before."""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.method import scaled
from dpfc_cli.privacy import curator, forms
from dpfc_cli.privacy.noise import SeededBits
from dpfc_cli.training import tuning
from dpfc_cli.training.calibrate import Calibrated, calibrate
from dpfc_cli.training.machine import InFile, Stack
from dpfc_cli.training.request import Privacy, facts_of
from dpfc_cli.training.tuning import Trials, prepare
from tests.support import blobs

PAIR = tuple[FeatureSet, FeatureSet]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> PAIR:
    """A private set of 90 records, and a public one of 200. Both have three classes and a test split."""
    folder = tmp_path_factory.mktemp("pair")
    sets = []
    for name, n, seed in (("private", 90, 0), ("public", 200, 1)):
        x, y = blobs(n + 50, 4, 3, seed)
        np.savez(folder / f"{name}.npz", train_x=x[:n], train_y=y[:n], test_x=x[n:], test_y=y[n:])
        sets.append(import_features(folder / f"{name}.npz", folder / name, classes=("a", "b", "c")).features)
    return sets[0], sets[1]


@pytest.fixture
def sets(pair: PAIR, tmp_path: Path) -> PAIR:
    """Both, with no trials from before."""
    return pair[0], FeatureSet(shutil.copytree(pair[1].folder, tmp_path / "public"))


def calibrated(private: FeatureSet, method: str = "dp-fc", **given: object) -> Calibrated:
    given = given or {"steps": 2}
    return calibrate(METHODS[method], facts_of(private), given, Privacy(epsilon=1.0))


def trials_of(sets: PAIR, method: str = "dp-fc", **given: object) -> Trials:
    return prepare(calibrated(sets[0], method, **given), *sets)


def rows_of(known: FeatureSet, split: str, rows: np.ndarray) -> np.ndarray:
    """Those records of a split."""
    found: np.ndarray = np.concatenate([x for _, x, _ in known.stream(split)(64)])[rows]
    return found


def test_each_run_has_the_records_of_its_own_draw(sets: PAIR) -> None:
    trials = trials_of(sets)
    for seed in (0, 1, 1, 0):
        draw, streams = trials.draws[seed], trials._streams(seed)
        for stream, split, rows in zip(streams, ("train", draw.split), (draw.train, draw.test), strict=True):
            x = np.concatenate([x for _, x, _ in stream(64)])
            assert (x == rows_of(sets[1], split, rows)).all()
    assert (trials.draws[0].train != trials.draws[1].train).any()


def test_trials_have_noise_of_seeds_that_no_training_is_given(sets: PAIR, monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice is not made on the noise of the training that it is made for. All points of a run have the same."""
    seeds: list[int] = []
    monkeypatch.setattr(tuning, "SeededBits", lambda seed: (seeds.append(seed), SeededBits(seed))[1])
    trials = trials_of(sets)
    for point, seed in (({}, 0), ({"learning_rate": 2.0}, 0), ({}, 1)):
        trials.run(point, seed)
    assert seeds == [2**40, 2**40, 2**40 + 1]


def test_noise_per_record_is_that_of_the_training_whatever_its_budget(sets: PAIR) -> None:
    trials = trials_of(sets)
    few = replace(trials.facts, n=30)
    assert trials.mu(few) == trials._mu * 3
    assert trials.mu(few, 2.0) == 6.0


def test_a_score_is_a_number_of_hits(sets: PAIR) -> None:
    score = trials_of(sets).run({}, 0)
    assert score == int(score)
    assert 1 < score <= 50


def test_a_stand_in_with_less_than_half_of_the_records_is_said_to_be_small(sets: PAIR) -> None:
    """What counts is the largest draw."""
    trials = trials_of(sets)
    first, *others = trials.draws
    for n, said in ((46, False), (45, False), (44, True), (31, True)):
        trials.draws = [replace(each, facts=replace(each.facts, n=20)) for each in others]
        trials.draws.append(replace(first, facts=replace(first.facts, n=n)))
        assert bool(tuning.warnings_of(trials)) == said


def test_the_three_best_of_the_first_run_are_tried_again(sets: PAIR, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them and the defaults in five other runs, whose mean decides."""
    trials = trials_of(sets)
    trials.draws[1] = replace(trials.draws[1], facts=replace(trials.draws[1].facts, n=77))
    assert len(trials.draws) == 6
    tried: list[tuple[int, int]] = []
    told: list[tuple[int, int]] = []
    first = [50, 10, 80, 20, 60, 70, 30, 40, 5]
    later = {0: 50, 2: 55, 5: 90, 4: 60}

    def run(point: Any, seed: int) -> float:
        tried.append((trials.points.index(point), seed))
        at = tried[-1][0]
        return float(first[at] if seed == 0 else later[at] + seed % 2)

    monkeypatch.setattr(trials, "run", run)
    calibration = calibrated(sets[0])
    tuned = tuning.tune(calibration, trials, lambda *each: told.append(each))
    assert tried == [*((i, 0) for i in range(9)), *((i, seed) for seed in range(1, 6) for i in (0, 2, 5, 4))]
    assert told == [(done, 29) for done in range(1, 30)]
    chosen = trials.points[5]
    assert tuned.given == scaled(calibration.method, trials.facts, trials._mu, {"steps": 2}, chosen)
    assert tuned.tuning == {
        **{"name": "public", "fingerprint": sets[1].manifest.fingerprint, "facts": {"n": 90, "m": 3}, "runs": 5},
        "tried": [{"factors": point, "score": score} for point, score in zip(trials.points, first, strict=True)],
        "finalists": [
            {"factors": trials.points[i], "score": pytest.approx(score + 0.6), "sd": pytest.approx(0.3**0.5)}
            for i, score in later.items()
        ],
        "chosen": chosen,
    }


def test_fewer_points_than_finalists_are_all_tried_again(sets: PAIR, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = trials_of(sets)
    del trials.points[2:]
    monkeypatch.setattr(trials, "run", lambda point, seed: 1.0)
    told: list[tuple[int, int]] = []
    assert tuning.tune(calibrated(sets[0]), trials, lambda *each: told.append(each)).tuning is not None
    assert told == [(done, 12) for done in range(1, 13)]


def test_a_trial_is_known_by_all_that_its_score_depends_on(sets: PAIR, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = trials_of(sets)
    facts, manifest = trials.facts, sets[1].manifest
    known = trials._key(trials.draws[0], 1.0, {"a": 1, "b": 2}, 0)
    assert trials._key(trials.draws[0], 1.0, {"b": 2, "a": 1}, 0) == known, "in any order"
    keys = [
        known,
        trials._key(trials.draws[0], 1.5, {"a": 1, "b": 2}, 0),
        trials._key(trials.draws[0], None, {"a": 1, "b": 2}, 0),
        trials._key(trials.draws[0], 1.0, {"a": 1, "b": 3}, 0),
        trials._key(trials.draws[0], 1.0, {"a": 1, "b": 2}, 1),
        trials._key(replace(trials.draws[0], facts=replace(facts, n=12)), 1.0, {"a": 1, "b": 2}, 0),
    ]
    changes: Sequence[tuple[object, str, object]] = (
        (trials, "facts", replace(facts, n=91)),
        (trials, "facts", replace(facts, m=4)),
        (trials, "method", METHODS["dp-ls"]),
        (tuning, "code_digest", lambda: "other"),
        (sets[1], "manifest", replace(manifest, dtype="float64")),
        (sets[1], "manifest", replace(manifest, source={"identity": {"listing": {"train": "1", "test": "2"}}})),
        (sets[1], "manifest", replace(manifest, splits={"train": manifest.splits["train"]})),
    )
    for thing, name, value in changes:
        with monkeypatch.context() as patched:
            patched.setattr(thing, name, value)
            keys.append(trials._key(trials.draws[0], 1.0, {"a": 1, "b": 2}, 0))
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    "given", [{"learning_rate": 1.0, "damping": 1.0}, {"steps": 2, "learning_rate": 1.0, "damping": 1.0}]
)
def test_there_is_nothing_to_choose_where_all_that_is_tuned_is_given(sets: PAIR, given: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="has nothing to choose: learning_rate, damping are given") as refused:
        trials_of(sets, **given)
    assert (refused.value.code, refused.value.fields["parameter"]) == ("conflict", "tune_on")


def test_trials_are_refused_where_the_training_would_not_have_the_memory(sets: PAIR) -> None:
    with pytest.raises(UserError) as refused:
        prepare(calibrated(sets[0]), *sets, 1.0)
    assert refused.value.code == "memory"


def test_an_optimum_is_not_looked_for_beside_trials(sets: PAIR) -> None:
    assert trials_of(sets, "dp-fc", learning_rate=1.0).noiseless(0) is None
    assert trials_of(sets, "dp-fc", steps=2).noiseless(0) is not None


def test_large_answers_are_made_with_shelves_that_are_cleared(sets: PAIR, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    cleared: list[Any] = []
    given: list[Any] = []

    class Watched(InFile):
        def __init__(self, folder: Path) -> None:
            assert folder == sets[1].folder.resolve()
            made.append(self)
            super().__init__(folder)

        def clear(self) -> None:
            cleared.append(self)
            super().clear()

    class Stacked(Watched, Stack):
        pass

    def spied(real: Any) -> Any:
        return lambda *each, **named: (given.extend((named["shelf"], named["stack"])), real(*each, **named))[1]

    monkeypatch.setattr(forms, "PIECE_BYTES", 1)
    monkeypatch.setattr(tuning, "InFile", Watched)
    monkeypatch.setattr(tuning, "stack_for", lambda plan, others, memory, folder: Stacked(folder))
    monkeypatch.setattr(tuning, "Curator", spied(curator.Curator))
    monkeypatch.setattr(tuning, "NonPrivate", spied(curator.NonPrivate))
    large = trials_of(sets, "dp-ls", feature_clip=1.0)
    large.run({}, 0)
    large.noiseless(0)
    assert [type(each) for each in made] == [Watched, Stacked] * 2
    assert given == made
    assert set(made) == set(cleared)
    # If a trial fails, too.
    monkeypatch.setattr(large, "method", replace(large.method, solve=lambda *_: pytest.fail("it fails")))
    with pytest.raises(pytest.fail.Exception, match="it fails"):
        large.run({}, 1)
    assert len(made) == 6
    assert set(made) == set(cleared)
    # Small answers are made at once.
    trials_of(sets).run({}, 0)
    assert (len(made), given[-2:]) == (7, [None, made[-1]])


def test_a_pipe_where_trials_are_kept_is_not_waited_for(sets: PAIR) -> None:
    os.mkfifo(sets[1].folder.with_name("public.tuning.jsonl"))
    assert trials_of(sets).run({}, 0) > 0


def test_a_trial_of_other_code_is_not_taken_for_one_of_this(sets: PAIR, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sets[1].folder.with_name("public.tuning.jsonl")

    def kept() -> int:
        """How many trials are kept after one was wanted."""
        trials_of(sets).run({}, 0)
        return len(path.read_text().split())

    first = kept()
    assert kept() == first
    monkeypatch.setattr(tuning, "code_digest", lambda: "other")
    assert kept() == 2 * first


def test_a_trial_is_kept_in_a_line_of_its_own(sets: PAIR) -> None:
    path = sets[1].folder.with_name("public.tuning.jsonl")
    trials = trials_of(sets)
    scores = [trials.run({}, seed) for seed in (0, 1)]
    lines = [json.loads(line) for line in path.read_text().split("\n") if line]
    assert [line["score"] for line in lines] == scores
    assert path.read_text()[0] == path.read_text()[-1] == "\n"
    assert not path.stat().st_mode & 0o111
