"""Options chosen on public labelled features: how records stand in for the private ones, and what is chosen."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.methods import METHODS, dp_fc
from dpfc_cli.methods.method import Given, Method, factors, scaled
from dpfc_cli.privacy.curator import Curator
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.oracle import Mechanism
from dpfc_cli.privacy.passes import BlockStream
from dpfc_cli.training import tuning
from dpfc_cli.training.calibrate import Calibrated, calibrate
from dpfc_cli.training.machine import stack_for, training_bytes
from dpfc_cli.training.request import Privacy, facts_of
from dpfc_cli.trust import statement
from tests.support import blobs, trained
from tests.training.requests import charges


def made(folder: Path, name: str, n: int, m: int, seed: int, tested: bool = True, d: int = 6) -> FeatureSet:
    x, y = blobs(n + 200, d, m, seed)
    arrays = {"train_x": x[:n], "train_y": y[:n]} | ({"test_x": x[n:], "test_y": y[n:]} if tested else {})
    np.savez(folder / f"{name}.npz", allow_pickle=True, **arrays)
    import_features(folder / f"{name}.npz", folder / "features" / name, classes=tuple("abcdefgh"[:m]))
    return FeatureSet(folder / "features" / name)


@pytest.fixture
def private(tmp_path: Path) -> FeatureSet:
    return made(tmp_path, "private", 400, 3, seed=0)


@pytest.fixture
def known(tmp_path: Path) -> FeatureSet:
    return made(tmp_path, "known", 500, 5, seed=1)


def calibrated(private: FeatureSet, method: str = "dp-fc", epsilon: float = 1.0, **given: object) -> Calibrated:
    return calibrate(METHODS[method], facts_of(private), {"steps": 3, **given}, Privacy(epsilon=epsilon))


def labels_of(features: FeatureSet, *splits: str) -> list[np.ndarray]:
    return [np.concatenate([y for _, _, y in features.stream(split)(64)]) for split in splits]


def whole(stream: BlockStream, rows: int = 50) -> tuple[np.ndarray, np.ndarray]:
    blocks = list(stream(rows))
    assert [start for start, _, _ in blocks] == list(range(0, rows * len(blocks), rows))
    return np.concatenate([x for _, x, _ in blocks]), np.concatenate([y for _, _, y in blocks])


def trained_of(known: FeatureSet, draw: tuning.Draw) -> tuple[np.ndarray, np.ndarray]:
    return whole(tuning._stream(known, "train", draw.train, draw.table, 1))


def held_of(known: FeatureSet, draw: tuning.Draw) -> tuple[np.ndarray, np.ndarray]:
    return whole(tuning._stream(known, draw.split, draw.test, draw.table, 1))


def tune(c: Calibrated, private: FeatureSet, known: FeatureSet, progress=None):  # type: ignore[no-untyped-def]
    return tuning.tune(c, tuning.prepare(c, private, known), progress)


@pytest.mark.parametrize("memory", [0, 2**30])
def test_a_draw_has_as_many_classes_and_records_as_there_are_and_labels_of_its_own(
    known: FeatureSet, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "IN_MEMORY", memory)
    labels = labels_of(known, "train", "test")
    draw = tuning.drawn(known, labels, Facts(n=250, m=3, d=6, adjacency="replace-one"), seed=1)
    assert draw.facts == Facts(n=250, m=3, d=6, adjacency="replace-one")
    x, y = trained_of(known, draw)
    assert x.shape == (250, 6)
    assert set(np.unique(y)) == {0, 1, 2}
    every = np.concatenate([x for _, x, _ in known.stream("train")(64)])
    rows = [int(np.flatnonzero((every == row).all(axis=1))[0]) for row in x]
    assert rows == sorted(set(rows))
    # One class of the set is one class of the draw.
    assert len(set(zip(labels[0][rows, 0].tolist(), y[:, 0].tolist(), strict=True))) == 3
    tested, answers = held_of(known, draw)
    assert len(tested) == (np.isin(labels[1], np.unique(labels[0][rows]))).sum()
    assert set(np.unique(answers)) == {0, 1, 2}


def test_runs_draw_other_classes_and_records_and_the_same_run_the_same(known: FeatureSet) -> None:
    labels, facts = labels_of(known, "train", "test"), Facts(n=100, m=2, d=6)
    first, again, other = (trained_of(known, tuning.drawn(known, labels, facts, seed))[0] for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


def test_without_a_test_split_records_are_held_out(tmp_path: Path) -> None:
    known = made(tmp_path, "untested", 500, 3, seed=1, tested=False)
    draw = tuning.drawn(known, labels_of(known, "train"), Facts(n=10_000, m=3, d=6), seed=1)
    assert draw.facts.n == 400
    kept, held = trained_of(known, draw)[0], held_of(known, draw)[0]
    assert (len(kept), len(held)) == (400, 100)
    assert not (kept[:, None] == held).all(axis=2).any()


def test_fewer_records_get_less_noise_so_that_each_has_as_much(
    private: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, c = made(tmp_path, "few", 100, 3, seed=2), calibrated(private)
    asked: set[tuple[int, float]] = set()

    class Spy(Curator):
        def __init__(self, mechanism: Mechanism, *rest: Any, **others: Any) -> None:
            asked.add((mechanism.facts.n, mechanism.mu))
            super().__init__(mechanism, *rest, **others)

    monkeypatch.setattr(tuning, "Curator", Spy)
    tune(c, private, few)
    assert c.guarantee is not None
    assert asked == {(100, c.guarantee.mu * 4)}


def test_what_is_chosen_beats_the_defaults_by_more_than_chance() -> None:
    assert tuning.choose({0: [0.5, 0.6, 0.7], 1: [0.6, 0.7, 0.81], 2: [0.4, 0.5, 0.6]}) == 1
    # As good on average, but now better, now worse.
    assert tuning.choose({0: [0.5, 0.6, 0.7], 1: [0.7, 0.5, 0.75], 2: [0.4, 0.5, 0.6]}) == 0
    assert tuning.choose({0: [0.5, 0.5], 1: [0.5, 0.5]}) == 0


def test_chance_replaces_a_default_three_times_in_a_hundred() -> None:
    rng = np.random.default_rng(0)
    alike = rng.normal(size=(4000, tuning.FINALISTS + 1, tuning.RUNS))
    replaced = np.mean([tuning.choose(dict(enumerate(scores.tolist()))) != 0 for scores in alike])
    assert 0.015 < replaced < 0.045


def tried(grid: dict[str, tuple[float, ...]], **changed: Any) -> Any:
    """DP-FC with another grid."""

    class Tried(Method[Any, Any]):
        @property
        def grid(self) -> dict[str, tuple[float, ...]]:
            return grid

    return Tried(**{**vars(METHODS["dp-fc"]), **changed})


def test_a_bad_default_is_replaced_and_what_was_given_stays(private: FeatureSet, known: FeatureSet) -> None:
    def backwards(facts: Facts, planned: dp_fc.Planned, noise: Mechanism | None, given: Given) -> dp_fc.Options:
        options = dp_fc.complete(facts, planned, noise, given)
        return options if "learning_rate" in given else replace(options, learning_rate=-options.learning_rate)

    given = {"steps": 3, "damping": 0.01, "gradient_clip": 0.3}
    method = tried({"learning_rate": (1.0, -1.0), "damping": (1.0, 2.0)}, complete=backwards)
    c = calibrate(method, facts_of(private), given, Privacy(epsilon=8.0))
    tuned = tune(c, private, known)
    assert tuned.tuning is not None
    assert tuned.tuning["chosen"] == {"learning_rate": -1.0}
    expected = replace(c.options, learning_rate=pytest.approx(-c.options.learning_rate, rel=1e-3))
    assert tuned.options == expected
    assert (tuned.options.damping, tuned.options.gradient_clip, tuned.options.steps) == (0.01, 0.3, 3)


def test_trials_for_persons_are_made_on_single_records_with_the_noise_of_a_person(
    private: FeatureSet, known: FeatureSet
) -> None:
    facts = replace(facts_of(private), n=100, rows=400, unit="person")
    draw = tuning.drawn(known, labels_of(known, "train", "test"), facts, 0)
    assert (draw.facts.n, draw.facts.rows, draw.facts.unit) == (100, None, "record")


def test_a_good_default_stays(private: FeatureSet, known: FeatureSet) -> None:
    method = tried({"learning_rate": (1.0, 1e-6)})
    c = replace(calibrated(private, epsilon=8.0), method=method)
    tuned = tune(c, private, known)
    assert tuned.tuning is not None
    assert (tuned.tuning["chosen"], tuned.options) == ({}, c.options)


def test_the_guarantee_stays_and_no_ledger_is_charged(private: FeatureSet, known: FeatureSet, tmp_path: Path) -> None:
    before = calibrated(private, "dp-whitened")
    after = tune(before, private, known)
    assert (after.plan, after.guarantee) == (before.plan, before.guarantee)
    for features in (private, known):
        assert charges(features) == ()
    head = trained(private, after, tmp_path).head
    assert json.loads(json.dumps(head.card))["tuning"]["name"] == "known"
    assert dict(statement.rows(head.card, ""))["tuned on"].startswith(
        "known: 12 settings on 300 of its records of 3 classes"
    )


def test_a_choice_that_was_stopped_goes_on(
    private: FeatureSet, known: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    c, quality = calibrated(private), tuning.quality
    counted: list[int] = []

    def failing(*args: object) -> float:
        counted.append(1)
        if len(counted) == 4:
            raise KeyboardInterrupt
        return quality(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(tuning, "quality", failing)
    with pytest.raises(KeyboardInterrupt):
        tune(c, private, known)
    told: list[tuple[int, int]] = []
    resumed = tune(c, private, known, progress=lambda done, total: told.append((done, total)))
    assert len(counted) == 4 + 9 + 4 * tuning.RUNS - 3
    assert told == [(i, 29) for i in range(1, 30)]
    path = known.folder.with_name("known.tuning.jsonl")
    path.write_text(path.read_text() + '{"trial": "cut')
    monkeypatch.setattr(tuning, "quality", lambda *_: pytest.fail("computed again"))
    assert tune(c, private, known) == resumed
    # What follows a line that was cut is not lost.
    assert len(tuning._read(path)) == 29
    with path.open("a") as file:
        file.write('\n{"trial": "more", "score": "much"}\n' + json.dumps({"trial": "more", "score": 1}) + "\n")
    assert tuning._read(path)["more"] == 1
    # Another budget is another choice.
    with pytest.raises(pytest.fail.Exception):
        tune(calibrated(private, epsilon=2.0), private, known)


def test_other_records_under_the_same_name_are_tried_anew(private: FeatureSet, known: FeatureSet) -> None:
    c = calibrated(private)
    trials = tuning.prepare(c, private, known)
    trials.run({}, 0)
    for change in (
        {"source": {"identity": {"listing": {"train": "other", "test": "other"}}}},
        {"splits": {"train": known.manifest.splits["train"]}},
    ):
        known.manifest = replace(known.manifest, **change)
        other = tuning.prepare(c, private, known)
        other.run({}, 0)
        assert len(tuning._read(other._path)) == len(trials._kept) + 1
        trials = other
    again = tuning.prepare(replace(c, facts=replace(c.facts, n=399)), private, known)
    assert again._key(trials.draws[0], 1.0, {}, 0) != trials._key(trials.draws[0], 1.0, {}, 0)


def test_a_poor_stand_in_is_said_to_be_one(private: FeatureSet, known: FeatureSet, tmp_path: Path) -> None:
    assert tuning.warnings_of(tuning.prepare(calibrated(private), private, known)) == []
    poor = made(tmp_path, "poor", 100, 2, seed=3)
    classes, records = tuning.warnings_of(tuning.prepare(calibrated(private), private, poor))
    assert "2 classes for 3" in classes
    assert "100 records for 400" in records


def test_a_place_that_cannot_be_written_does_not_stop_a_choice(private: FeatureSet, known: FeatureSet) -> None:
    known.folder.with_name("known.tuning.jsonl").mkdir()
    assert tune(calibrated(private), private, known).tuning is not None


def test_what_makes_no_sense_is_refused(private: FeatureSet, known: FeatureSet, tmp_path: Path) -> None:
    c, one = calibrated(private), made(tmp_path, "one", 90, 2, 1)
    one.manifest = replace(one.manifest, classes=("a",))
    for features, given, said in (
        (private, {}, "the private records themselves"),
        (made(tmp_path, "wide", 90, 3, 1, d=7), {}, "another backbone"),
        (one, {}, "too few labelled records"),
        (known, {"learning_rate": 1.0, "damping": 1.0}, "nothing to choose: learning_rate, damping are given"),
    ):
        with pytest.raises(UserError, match=said):
            tune(replace(c, given={**c.given, **given}), private, features)
    without = calibrate(c.method, c.facts, {}, Privacy())
    with pytest.raises(UserError, match="no effect with non_private"):
        tune(without, private, known)
    both = tmp_path / "both.npz"
    np.savez(
        both,
        train_x=blobs(300, 6, 3)[0],
        test_x=blobs(400, 6, 3)[0],
        train_y=blobs(300, 6, 3)[1],
        test_y=blobs(400, 6, 3)[1],
    )
    import_features(both, tmp_path / "features" / "both", classes=("a", "b", "c"))
    hidden = FeatureSet(tmp_path / "features" / "both")
    listing = dict(hidden.manifest.source["identity"]["listing"]) | {
        "test": private.manifest.source["identity"]["listing"]["train"]
    }
    hidden.manifest = replace(hidden.manifest, source={"identity": {"listing": listing}})
    with pytest.raises(UserError, match="the private records themselves"):
        tuning.prepare(c, private, hidden)
    with pytest.raises(UserError, match=r"up to 1 labels per record, .* up to 2"):
        tune(replace(c, facts=replace(c.facts, k=2)), private, known)


def test_label_sets_are_judged_by_mean_average_precision(tmp_path: Path) -> None:
    sets = []
    for name, seed in (("mine", 0), ("theirs", 1)):
        x, y = blobs(300, 6, 3, seed)
        both = np.stack([y, np.where(np.arange(300) % 2, (y + 1) % 3, -1)], axis=1)
        np.savez(tmp_path / f"{name}.npz", train_x=x, train_y=both)
        import_features(tmp_path / f"{name}.npz", tmp_path / "features" / name, classes=("a", "b", "c"))
        sets.append(FeatureSet(tmp_path / "features" / name))
    mine, theirs = sets
    tuned = tune(calibrated(mine, epsilon=8.0), mine, theirs).tuning
    assert tuned is not None
    # Guessing ranks half of the records of each class, and half of the records have two of three classes, first.
    assert 0.6 < max(tried["score"] for tried in tuned["tried"]) <= 1


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_grid_around_its_defaults_that_its_plan_does_not_hang_on(method: str) -> None:
    facts, m = Facts(n=1000, m=3, d=6), METHODS[method]
    points = list(itertools.product(*m.grid.values()))
    assert tuple(1.0 for _ in m.grid) in points
    plans = {m.plan(facts, m.defaults(facts, 1.0, scaled(m, facts, 1.0, {}, p))) for p in factors(m, {})}
    assert len(plans) == 1


def test_trials_take_the_memory_that_was_allowed(
    private: FeatureSet, known: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers in pieces lie in memory beside all else that a training needs, with noise and without."""
    given: list[Any] = []
    monkeypatch.setattr(tuning, "stack_for", lambda *each: (given.append(each), stack_for(*each))[1])
    c = calibrate(METHODS["dp-ls"], facts_of(private), {}, Privacy(epsilon=1.0))
    trials = tuning.prepare(c, private, known, 2**30)
    trials.noiseless(0)
    trials.run({}, 0)
    assert len(given) == 2
    facts = trials.draws[0].facts
    for plan, others, memory, folder in given:
        assert (others, memory, folder) == (training_bytes(c.method, plan, facts), 2**30, known.folder.resolve())
