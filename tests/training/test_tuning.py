"""Tuning on public records: which are drawn, how trials are made and kept, and what is chosen."""

import itertools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from dpfc_cli.features.manifest import MANIFEST
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Scorer
from dpfc_cli.ledger.public import facts_of
from dpfc_cli.methods import METHODS, dp_fc
from dpfc_cli.methods.method import Given, Method, factors, scaled
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.noise import SeededBits
from dpfc_cli.privacy.oracle import Mechanism
from dpfc_cli.privacy.passes import BlockStream
from dpfc_cli.training import tuning
from dpfc_cli.training.calibrate import Calibrated, calibrate
from dpfc_cli.training.tuning import Draw, Trials, drawn, prepare, quality
from tests.hostile import altered, places
from tests.support import blobs, feature_set, refuses, replace, stream_of, trained
from tests.training.requests import charges


def made(folder: Path, name: str, n: int, m: int, seed: int, tested: bool = True, d: int = 6) -> FeatureSet:
    x, y = blobs(n + 200, d, m, seed)
    arrays = {"train_x": x[:n], "train_y": y[:n]} | ({"test_x": x[n:], "test_y": y[n:]} if tested else {})
    np.savez(folder / f"{name}.npz", allow_pickle=True, **arrays)
    feature_set(folder / f"{name}.npz", folder / "features" / name, classes=tuple("abcdefgh"[:m]))
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


def test_a_draw_has_as_many_classes_and_records_as_there_are_and_labels_of_its_own(known: FeatureSet) -> None:
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
    assert tuned.parts["tuning"]["chosen"] == {"learning_rate": -1.0}
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
    assert (tuned.parts["tuning"]["chosen"], tuned.options) == ({}, c.options)


def test_the_guarantee_stays_and_no_ledger_is_charged(private: FeatureSet, known: FeatureSet, tmp_path: Path) -> None:
    before = calibrated(private, "dp-whitened")
    after = tune(before, private, known)
    assert (after.plan, after.guarantee) == (before.plan, before.guarantee)
    for features in (private, known):
        assert charges(features) == ()
    head = trained(private, after, tmp_path).head
    assert json.loads(head.card.json)["tuning"]["name"] == "known"


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
    path = known.folder.with_name("known.tuning.jsonl")
    # What follows a line that was cut is not lost.
    path.write_text(path.read_text() + '{"trial": "cut')
    resumed = tune(c, private, known, progress=lambda done, total: told.append((done, total)))
    assert len(counted) == 4 + 9 + 4 * tuning.RUNS - 3
    assert told == [(i, 29) for i in range(1, 30)]
    monkeypatch.setattr(tuning, "quality", lambda *_: pytest.fail("computed again"))
    assert tune(c, private, known) == resumed
    # Another budget is another choice.
    with pytest.raises(pytest.fail.Exception):
        tune(calibrated(private, epsilon=2.0), private, known)


def test_a_place_that_cannot_be_written_does_not_stop_a_choice(private: FeatureSet, known: FeatureSet) -> None:
    known.folder.with_name("known.tuning.jsonl").mkdir()
    assert tune(calibrated(private), private, known).parts


def test_what_makes_no_sense_is_refused(private: FeatureSet, known: FeatureSet, tmp_path: Path) -> None:
    c, one = calibrated(private), made(tmp_path, "one", 90, 2, 1)
    one.manifest = replace(one.manifest, classes=("a",))
    for features, given, code, named in (
        (private, {}, "private-records", "tune_on"),
        (made(tmp_path, "wide", 90, 3, 1, d=7), {}, "conflict", "model"),
        (one, {}, "conflict", None),
        (known, {"learning_rate": 1.0, "damping": 1.0}, "conflict", "tune_on"),
    ):
        with refuses(code, parameter=named):
            tune(replace(c, given={**c.given, **given}), private, features)
    without = calibrate(c.method, c.facts, {}, Privacy())
    with refuses("conflict", parameter="tune_on"):
        tune(without, private, known)


def test_every_method_has_a_grid_around_its_defaults_that_its_plan_does_not_hang_on() -> None:
    facts = Facts(n=1000, m=3, d=6)
    for m in METHODS.values():
        points = list(itertools.product(*m.grid.values()))
        assert tuple(1.0 for _ in m.grid) in points
        assert len({m.plan(facts, m.defaults(facts, 1.0, scaled(m, facts, 1.0, {}, p))) for p in factors(m, {})}) == 1


PAIR = tuple[FeatureSet, FeatureSet]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> PAIR:
    """A private set of 90 records, and a public one of 200. Both have three classes and a test split."""
    folder = tmp_path_factory.mktemp("pair")
    sets = []
    for name, n, seed in (("private", 90, 0), ("public", 200, 1)):
        x, y = blobs(n + 50, 4, 3, seed)
        np.savez(folder / f"{name}.npz", train_x=x[:n], train_y=y[:n], test_x=x[n:], test_y=y[n:])
        sets.append(feature_set(folder / f"{name}.npz", folder / name, classes=("a", "b", "c")))
    return sets[0], sets[1]


@pytest.fixture
def sets(pair: PAIR, tmp_path: Path) -> PAIR:
    """Both, with no trials from before."""
    return pair[0], FeatureSet(shutil.copytree(pair[1].folder, tmp_path / "public"))


def of_pair(private: FeatureSet, method: str = "dp-fc", **given: object) -> Calibrated:
    given = given or {"steps": 2}
    return calibrate(METHODS[method], facts_of(private), given, Privacy(epsilon=1.0))


def trials_of(sets: PAIR, method: str = "dp-fc", **given: object) -> Trials:
    return prepare(of_pair(sets[0], method, **given), *sets)


def rows_of(known: FeatureSet, split: str, rows: np.ndarray) -> np.ndarray:
    """Those records of a split."""
    found: np.ndarray = np.concatenate([x for _, x, _ in known.stream(split)(64)])[rows]
    return found


def test_each_run_has_the_records_of_its_own_draw(sets: PAIR, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they fit into memory or not."""
    trials = trials_of(sets)
    for seed, most in ((0, 2**30), (1, 0), (1, 2**30), (0, 0)):
        monkeypatch.setattr(tuning, "IN_MEMORY", most)
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
    calibration = of_pair(sets[0])
    tuned = tuning.tune(calibration, trials, lambda *each: told.append(each))
    assert tried == [*((i, 0) for i in range(9)), *((i, seed) for seed in range(1, 6) for i in (0, 2, 5, 4))]
    assert told == [(done, 29) for done in range(1, 30)]
    chosen = trials.points[5]
    assert tuned.given == scaled(calibration.method, trials.facts, trials.mu(trials.facts), {"steps": 2}, chosen)
    assert tuned.parts["tuning"] == {
        **{"name": "public", "fingerprint": sets[1].manifest.fingerprint, "facts": {"n": 90, "m": 3}, "runs": 5},
        "tried": [{"factors": point, "score": score} for point, score in zip(trials.points, first, strict=True)],
        "finalists": [
            {"factors": trials.points[i], "score": pytest.approx(score + 0.6), "sd": pytest.approx(0.3**0.5)}
            for i, score in later.items()
        ],
        "chosen": chosen,
    }


def test_a_trial_is_known_by_all_that_its_score_depends_on(sets: PAIR, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is known is not computed again."""
    computed: list[int] = []
    monkeypatch.setattr(tuning, "quality", lambda *_: len(computed.append(1) or computed))
    trials = trials_of(sets, steps=2, damping=0.01)
    facts, manifest, first = trials.facts, sets[1].manifest, trials.draws[0]
    assert [trials.run({}, 0), trials.run({}, 0)] == [1, 1]
    assert trials_of(sets, damping=0.01, steps=2).run({}, 0) == 1, "in any order"
    assert [trials.run({}, 0, 1.5), trials.noiseless(0), trials.run({"learning_rate": 2.0}, 0)] == [2, 3, 4]
    changes: Sequence[tuple[object, str, object]] = (
        (trials, "given", {"steps": 2, "damping": 0.02}),
        (trials, "draws", [replace(first, facts=replace(first.facts, adjacency="replace-one"))]),
        (trials, "facts", replace(facts, n=91)),
        (trials, "facts", replace(facts, m=4)),
        (trials, "method", tried({}, name="other")),
        (tuning, "code_digest", lambda *packages: "other"),
        (sets[1], "manifest", replace(manifest, dtype="float64")),
        (sets[1], "manifest", replace(manifest, source={"identity": {"listing": {"train": "1", "test": "2"}}})),
        (sets[1], "manifest", replace(manifest, splits={"train": manifest.splits["train"]})),
    )
    for count, (thing, name, value) in enumerate(changes, start=5):
        with monkeypatch.context() as patched:
            patched.setattr(thing, name, value)
            assert trials.noiseless(0) == count, (name, value)
    assert [trials.run({}, 0), trials.run({}, 1)] == [1, count + 1]


def test_trials_are_refused_where_the_training_would_not_have_the_memory(sets: PAIR) -> None:
    with refuses("memory"):
        prepare(of_pair(sets[0]), *sets, 1.0)


def test_an_optimum_is_not_looked_for_beside_trials(sets: PAIR) -> None:
    assert trials_of(sets, "dp-fc", learning_rate=1.0).noiseless(0) is None
    assert trials_of(sets, "dp-fc", steps=2).noiseless(0) is not None


@pytest.fixture(scope="module")
def labelled_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 records of three classes to train on and 40 to test on. Each fourth one has a second label."""
    folder = tmp_path_factory.mktemp("draws")
    x = np.arange(560, dtype=np.float32).reshape(140, 4)
    y = np.stack([np.arange(140) % 3, np.where(np.arange(140) % 4, -1, (np.arange(140) + 1) % 3)], axis=1)
    np.savez(folder / "set.npz", train_x=x[:100], train_y=y[:100], test_x=x[100:], test_y=y[100:])
    feature_set(folder / "set.npz", folder / "set", classes=("a", "b", "c"), labels_per_record=2, dtype="float32")
    return folder / "set"


@pytest.fixture
def labelled(labelled_folder: Path) -> FeatureSet:
    return FeatureSet(labelled_folder)


def rows_in(blocks: BlockStream) -> tuple[np.ndarray, np.ndarray]:
    found = list(blocks(7))
    return np.concatenate([x for _, x, _ in found]), np.concatenate([y for _, _, y in found])


def draw_of(labelled: FeatureSet, train: np.ndarray, test: np.ndarray | None = None, seed: int = 0, m: int = 3) -> Draw:
    """The draw of a set whose records have these labels."""
    return drawn(labelled, [train] if test is None else [train, test], Facts(n=50, m=m, d=4, k=2), seed)


def column(*labels: int) -> np.ndarray:
    return np.array(labels)[:, None]


def test_only_classes_that_have_training_records_are_drawn(labelled: FeatureSet) -> None:
    labels = column(*[0, 2] * 20)
    for seed in range(8):
        draw = draw_of(labelled, labels, labels, seed, m=2)
        assert draw.table.tolist() == [0, -1, 1, -1]
        assert draw.facts.m == 2


def test_a_record_with_one_label_of_the_draw_is_drawn(labelled: FeatureSet) -> None:
    labels = np.array([[0, -1], [1, 2], [2, 0], [-1, -1]] * 5)
    draw = draw_of(labelled, labels, labels)
    assert draw.train.tolist() == draw.test.tolist() == [i for i in range(20) if i % 4 != 3]


def test_what_is_left_beside_the_held_out_records_is_cut_to_the_private_number(labelled: FeatureSet) -> None:
    draw = draw_of(labelled, column(*[0, 1, 2] * 50))
    assert (len(draw.train), len(draw.test), draw.facts.n, draw.split) == (50, 30, 50, "train")
    assert not set(draw.train) & set(draw.test)


def test_a_draw_needs_two_classes_two_records_and_one_to_test_on(labelled: FeatureSet) -> None:
    pair, none = column(0, 1), column(-1)
    assert draw_of(labelled, pair, column(1)).facts.n == 2
    for train, test, counts in (
        (column(0, 0), pair, (1, 2, 1)),
        (np.array([[0, 1]]), pair, (2, 1, 2)),
        (pair, none, (2, 2, 0)),
        (column(0, 1, 0, 1), None, (2, 4, 0)),
    ):
        with refuses("conflict", match="{} classes, {} .* {} ".format(*counts), path=str(labelled.folder)):
            draw_of(labelled, train, test)


def test_records_are_read_in_order_with_labels_of_the_draw(
    labelled: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the blocks, and with as many places for labels as the private records have."""
    rows, table = np.array([0, 3, 4, 31, 64, 65, 99]), np.array([1, -1, 0, -1], np.int32)
    for block in (16, 8192):
        monkeypatch.setattr(tuning, "ROWS", block)
        x, y = rows_in(tuning._stream(labelled, "train", rows, table, 3))
        assert (x[:, 0] == 4.0 * rows).all()
        assert y.tolist() == [
            *([1, -1, -1], [1, -1, -1], [-1, 0, -1], [-1, -1, -1], [-1, 0, -1], [0, -1, -1], [1, -1, -1]),
        ]  # fmt: skip


def test_hits_are_counted_of_one_label_and_ranks_of_several() -> None:
    x = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1]]
    head = Scorer(chain=(), weight=np.eye(3), bias=np.zeros(3))
    labels = np.array([0, 1, 2, 0, 2])
    assert quality(head, stream_of(x, labels), 1, 5) == 4
    both = np.stack([labels, np.full(5, -1)], axis=1)
    # The last record of class 2 has the same score for it as those of other classes.
    assert quality(head, stream_of(x[:4], both[:4]), 2, 4) == 1.0
    assert quality(head, stream_of(x, both), 2, 5) < 1.0


def test_a_damaged_set_and_one_without_training_records_are_refused(labelled_folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(labelled_folder, tmp_path / "copy"))
    assert [len(each) for each in tuning.labels_of(FeatureSet(copy))] == [100, 40]
    (shard,) = FeatureSet(copy).split("test").shards
    (copy / shard.file).write_bytes((copy / shard.file).read_bytes()[:-1] + b"x")
    with refuses("damaged"):
        tuning.labels_of(FeatureSet(copy))
    said = json.loads((copy / MANIFEST).read_text())
    del said["splits"]["train"], said["source"]["identity"]["listing"]["train"]
    (copy / MANIFEST).write_text(json.dumps(said))
    with refuses("missing", match="'train'"):
        tuning.labels_of(FeatureSet(copy))


def test_a_stand_in_has_labels_of_the_same_kind_and_no_more_of_them(labelled: FeatureSet, tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", train_x=np.ones((9, 4), np.float32), train_y=np.arange(9) % 3)
    private = feature_set(tmp_path / "p.npz", tmp_path / "p", classes=("a", "b", "c"))
    for theirs, ours, fits in ((1, 1, True), (2, 2, True), (2, 3, True), (3, 2, False), (1, 2, False), (2, 1, False)):
        labelled.manifest = replace(labelled.manifest, labels_per_record=theirs)
        if fits:
            tuning.check_stand_in(private, labelled, ours, "on")
            continue
        with refuses("conflict", match=f" {theirs} labels .* {ours}", path=str(labelled.folder)):
            tuning.check_stand_in(private, labelled, ours, "on")


def test_lines_that_hold_something_else_are_no_trials(sets: PAIR, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "quality", lambda *_: 0.5)
    trials_of(sets).run({}, 0)
    path = sets[1].folder.with_name("public.tuning.jsonl")
    monkeypatch.setattr(tuning, "quality", lambda *_: pytest.fail("computed again"))
    trial = json.loads(path.read_text())
    for place in places(trial):
        for lines in ([*altered(trial, place), json.dumps(trial)], [json.dumps(trial), *altered(trial, place)]):
            path.write_bytes(b"\xff\xfe\n" + "\n".join(lines).encode())
            found = trials_of(sets).run({}, 0)
            assert found == 0.5 or (place == ("score",) and lines[0] == json.dumps(trial) and 0 <= found <= 2**53)


def test_labels_without_a_class_are_none(tmp_path: Path) -> None:
    """They lie in shards of a stranger; an import refuses them."""
    x, y = np.ones((20, 2), np.float32), np.arange(20) % 2
    np.savez(tmp_path / "a.npz", train_x=x, train_y=y)
    known = feature_set(tmp_path / "a.npz", tmp_path / "known", classes=("a", "b"))
    with h5py.File(tmp_path / "known" / "train-00000-of-00001.h5", "r+") as file:
        file["labels"][:4] = [2, 2**31 - 1, -7, -(2**31)]
    # The shard is not the one that was verified any more.
    known.verify = lambda *given: None  # type: ignore[method-assign]
    (labels,) = tuning.labels_of(known)
    assert labels[:, 0].tolist() == [-1] * 4 + y[4:].tolist()
    draw = drawn(known, [labels], Facts(n=20, m=2, d=2), seed=0)
    blocks = tuning._stream(known, "train", np.arange(20), draw.table, 1)(7)
    assert np.concatenate([found for _, _, found in blocks])[:4, 0].tolist() == [-1] * 4
