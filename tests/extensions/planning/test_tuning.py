"""Tuning on public records: which are drawn, how trials are made and kept, what is chosen, and when it is checked."""

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from dpfc_cli.extensions.planning import tuning
from dpfc_cli.extensions.planning.tuning import Draw, Trials, drawn, prepare, quality
from dpfc_cli.features.manifest import MANIFEST
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Scorer
from dpfc_cli.ledger.caps import set_cap
from dpfc_cli.ledger.public import facts_of
from dpfc_cli.methods import METHODS, dp_fc
from dpfc_cli.methods.method import Given, Method, factors, scaled
from dpfc_cli.methods.whitened import Public
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.noise import SeededBits
from dpfc_cli.privacy.oracle import Mechanism
from dpfc_cli.privacy.passes import BlockStream
from dpfc_cli.records import statement
from dpfc_cli.structs import encoded
from dpfc_cli.training.calibrate import HIDES, Calibrated, calibrate
from tests.hostile import altered, places
from tests.support import blobs, feature_set, refuses, replace, stream_of, trained
from tests.training.requests import account, charges, checked
from tests.training.stopped import Listener, killed


def made(folder: Path, name: str, n: int, m: int, seed: int, d: int = 4) -> FeatureSet:
    x, y = blobs(n + 50, d, m, seed)
    np.savez(folder / f"{name}.npz", train_x=x[:n], train_y=y[:n], test_x=x[n:], test_y=y[n:])
    return feature_set(folder / f"{name}.npz", folder / name, classes=tuple("abcdefgh"[:m]))


Pair = tuple[FeatureSet, FeatureSet]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    return made(folder, "private", 90, 3, 0), made(folder, "public", 200, 3, 1)


@pytest.fixture
def sets(pair: Pair, tmp_path: Path) -> Pair:
    """A private set of 90 records, and a public one of 200 with no trials from before: three classes, a test split."""
    for each in pair:
        shutil.copytree(each.folder, tmp_path / each.name)
    shutil.copy(pair[0].folder.parent / "ledger.sqlite", tmp_path)
    return FeatureSet(tmp_path / "private"), FeatureSet(tmp_path / "public")


def calibrated(private: FeatureSet, method: str = "dp-fc", epsilon: float = 1.0, **given: object) -> Calibrated:
    return calibrate(METHODS[method], facts_of(private), given or {"steps": 2}, Privacy(epsilon=epsilon))


def tune(c: Calibrated, sets: Pair) -> Calibrated:
    return tuning.tune(c, prepare(c, *sets))


def trials_of(sets: Pair, method: str = "dp-fc", **given: Any) -> Trials:
    return prepare(calibrated(sets[0], method, **given), *sets)


def kept(known: FeatureSet) -> int:
    """How many trials were finished."""
    path = known.folder.with_name(f"{known.name}.tuning.jsonl")
    return len(path.read_text().split()) // 4 if path.exists() else 0


# What is chosen


def test_what_is_chosen_beats_the_defaults_by_more_than_chance() -> None:
    assert tuning.choose({0: [0.5, 0.6, 0.7], 1: [0.6, 0.7, 0.81], 2: [0.4, 0.5, 0.6]}) == 1
    # As good on average, but now better, now worse.
    assert tuning.choose({0: [0.5, 0.6, 0.7], 1: [0.7, 0.5, 0.75], 2: [0.4, 0.5, 0.6]}) == 0
    assert tuning.choose({0: [0.5, 0.5], 1: [0.5, 0.5]}) == 0
    # Chance replaces a default three times in a hundred.
    alike = np.random.default_rng(0).normal(size=(4000, tuning.FINALISTS + 1, tuning.RUNS))
    replaced = np.mean([tuning.choose(dict(enumerate(scores.tolist()))) != 0 for scores in alike])
    assert 0.015 < replaced < 0.045


def tried(grid: dict[str, tuple[float, ...]], **changed: Any) -> Any:
    """DP-FC with another grid."""

    class Tried(Method[Any, Any]):
        @property
        def grid(self) -> dict[str, tuple[float, ...]]:
            return grid

    return Tried(**{**vars(METHODS["dp-fc"]), **changed})


def chosen_of(tuned: Calibrated) -> object:
    return encoded(tuned.parts["tuning"])["chosen"]


def test_a_bad_default_is_replaced_and_a_good_one_and_what_was_given_stay(sets: Pair) -> None:
    def backwards(facts: Facts, planned: dp_fc.Planned, noise: Mechanism | None, given: Given) -> dp_fc.Options:
        options = dp_fc.complete(facts, planned, noise, given)
        return options if "learning_rate" in given else replace(options, learning_rate=-options.learning_rate)

    given = {"steps": 3, "damping": 0.01, "gradient_clip": 0.3}
    method = tried({"learning_rate": (1.0, -1.0), "damping": (1.0, 2.0)}, complete=backwards)
    c = calibrate(method, facts_of(sets[0]), given, Privacy(epsilon=8.0))
    tuned = tune(c, sets)
    assert chosen_of(tuned) == {"learning_rate": -1.0}
    assert tuned.options == replace(c.options, learning_rate=pytest.approx(-c.options.learning_rate, rel=1e-3))
    c = replace(calibrated(sets[0], epsilon=8.0), method=tried({"learning_rate": (1.0, -1.0)}))
    tuned = tune(c, sets)
    assert (chosen_of(tuned), tuned.options) == ({}, c.options)


def test_what_is_known_of_public_records_the_parts_of_a_card_the_plan_and_the_guarantee_stay(sets: Pair) -> None:
    before, known = calibrated(sets[0], "dp-whitened"), Public(mean=np.ones(4) / 9)
    before = replace(before, options=replace(before.options, public=known), parts={"other": {}})
    after = tune(before, sets)
    assert (after.plan, after.mechanism, after.guarantee) == (before.plan, before.mechanism, before.guarantee)
    assert after.options.public is known
    assert set(after.parts) == {"other", "tuning"}


def test_card_and_statement_say_on_what_the_options_were_chosen_and_no_trial_is_charged(
    sets: Pair, tmp_path: Path
) -> None:
    after = tune(calibrated(sets[0], "dp-whitened"), sets)
    assert [charges(each) for each in sets] == [(), ()]
    head = trained(sets[0], after, tmp_path).head
    assert json.loads(head.card.json)["tuning"]["name"] == "public"
    said = statement.document(head.card, "").facts["tuned on"]
    assert said.startswith("public: 12 settings on 90 of its records of 3 classes")


def test_the_three_best_of_the_first_run_are_tried_again(sets: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them and the defaults in five other runs, whose mean decides."""
    trials, tried, told = trials_of(sets), list[tuple[int, int]](), list[tuple[int, int]]()
    first, later = [50, 10, 80, 20, 60, 70, 30, 40, 5], {0: 50, 2: 55, 5: 90, 4: 60}

    def run(point: Any, seed: int) -> float:
        tried.append((trials.points.index(point), seed))
        at = tried[-1][0]
        return float(first[at] if seed == 0 else later[at] + seed % 2)

    monkeypatch.setattr(trials, "run", run)
    c = calibrated(sets[0])
    tuned = tuning.tune(c, trials, lambda *each: told.append(each))
    assert tried == [*((i, 0) for i in range(9)), *((i, seed) for seed in range(1, 6) for i in (0, 2, 5, 4))]
    assert told == [(done, 29) for done in range(1, 30)]
    chosen = trials.points[5]
    assert tuned.given == scaled(c.method, trials.facts, trials.mu(trials.facts), {"steps": 2}, chosen)
    assert tuned.parts["tuning"] == {
        **{"name": "public", "fingerprint": sets[1].manifest.fingerprint, "facts": {"n": 90, "m": 3}, "runs": 5},
        "tried": [{"factors": point, "score": score} for point, score in zip(trials.points, first, strict=True)],
        "finalists": [
            {"factors": trials.points[i], "score": pytest.approx(score + 0.6), "sd": pytest.approx(0.3**0.5)}
            for i, score in later.items()
        ],
        "chosen": chosen,
    }


def test_every_method_has_a_grid_around_its_defaults_that_its_plan_does_not_hang_on() -> None:
    facts = Facts(n=1000, m=3, d=6)
    for m in METHODS.values():
        points = list(itertools.product(*m.grid.values()))
        assert tuple(1.0 for _ in m.grid) in points
        assert len({m.plan(facts, m.defaults(facts, 1.0, scaled(m, facts, 1.0, {}, p))) for p in factors(m, {})}) == 1


# Whole trainings


class Meanwhile(Listener):
    """Does something after so many trials."""

    def __init__(self, after: int, act: Callable[[], object]) -> None:
        super().__init__()
        self._after, self._act = after, act

    def progress(self, stage: str, done: int, total: int | None) -> None:
        super().progress(stage, done, total)
        if stage.startswith("Tuning on ") and done == self._after:
            self._act()


def stop() -> None:
    raise KeyboardInterrupt


def test_a_choice_that_was_stopped_goes_on_and_is_told_of_once(sets: Pair) -> None:
    private, known = sets
    asked: dict[str, Any] = {"tune_on": known, "steps": 2, "epsilon": 0.01}
    with pytest.raises(KeyboardInterrupt):
        checked(private, Meanwhile(4, stop), **asked)
    assert kept(known) == 4
    path = known.folder.with_name("public.tuning.jsonl")
    # What follows a line that was cut is not lost.
    path.write_text(path.read_text() + '{"trial": "cut')
    told = Listener()
    chosen = checked(private, told, **asked).calibrated
    assert kept(known) >= 29
    assert [far[1:] for far in told.stages if far[0] == "Tuning on public"] == [(i, 29) for i in range(1, 30)]
    assert ["was imported" in said or HIDES in said for said in told.warned] == [True, True]
    before = path.read_bytes()
    assert checked(private, Listener(), **asked).calibrated == chosen
    assert path.read_bytes() == before
    # Another budget is another choice.
    checked(private, Listener(), **{**asked, "epsilon": 0.02})
    assert path.read_bytes() != before


def test_features_that_were_damaged_meanwhile_are_refused_and_no_trial_is_lost(sets: Pair) -> None:
    private, known = sets
    (shard,) = (private.folder / each.file for each in private.split("train").shards)
    whole = shard.read_bytes()
    with refuses("damaged"):
        checked(private, Meanwhile(29, lambda: shard.write_bytes(whole[:-1] + b"x")), tune_on=known)
    shard.write_bytes(whole)
    finished = kept(known)
    checked(private, Listener(), tune_on=known)
    assert kept(known) == finished


def test_what_can_be_found_out_in_seconds_is_refused_before_the_first_trial(sets: Pair, tmp_path: Path) -> None:
    private, known = sets
    set_cap(private, 1.0)
    (tmp_path / "there.safetensors").touch()
    for code, given in (
        ("over-cap", {}),
        ("memory", {"epsilon": 0.5, "memory": 1.0}),
        ("exists", {"epsilon": 0.5, "out": tmp_path / "there.safetensors"}),
        ("missing", {"epsilon": 0.5, "out": tmp_path / "nowhere" / "a.safetensors"}),
    ):
        with refuses(code):
            checked(private, Listener(), tune_on=known, **given)
    assert kept(known) == 0


def test_a_tuned_training_that_was_stopped_goes_on_and_another_choice_is_another_training(sets: Pair) -> None:
    private, known = sets
    set_cap(private, 2.5)
    before = checked(private, Listener(), tune_on=known)
    killed(before)
    # It may have been killed after its head was written.
    before.path.parent.mkdir()
    before.path.touch()
    again = checked(private, told := Listener(), tune_on=known)
    assert again.unfinished is not None
    assert (again.path, again.calibrated) == (before.path, before.calibrated)
    assert "It resumes, and nothing more is charged" in told.said[-1]
    assert again.after.charges == account(private).charges
    with refuses("over-cap", parameter="epsilon"):
        checked(private, Listener(), tune_on=known, damping=0.5)


def test_a_place_that_cannot_be_written_does_not_stop_a_choice(sets: Pair) -> None:
    sets[1].folder.with_name("public.tuning.jsonl").mkdir()
    assert tune(calibrated(sets[0]), sets).parts


def test_what_makes_no_sense_is_refused(sets: Pair, tmp_path: Path) -> None:
    private, known = sets
    one = made(tmp_path, "one", 90, 2, 1)
    one.manifest = replace(one.manifest, classes=("a",))
    for features, given, code, named in (
        (private, {}, "private-records", "tune_on"),
        (made(tmp_path, "wide", 90, 3, 1, d=7), {}, "conflict", "model"),
        (one, {}, "conflict", None),
        (known, {"learning_rate": 1.0, "damping": 1.0}, "conflict", "tune_on"),
        (known, {"epsilon": None, "non_private": True, "steps": None}, "conflict", "tune_on"),
    ):
        with refuses(code, parameter=named):
            checked(private, Listener(), tune_on=features, **given)


# Trials


def test_each_run_has_the_records_of_its_own_draw(sets: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they fit into memory or not."""
    trials, known = trials_of(sets), sets[1]
    rows = {split: np.concatenate([x for _, x, _ in known.stream(split)(64)]) for split in ("train", "test")}
    for seed, most in ((0, 2**30), (1, 0), (1, 2**30), (0, 0)):
        monkeypatch.setattr(tuning, "IN_MEMORY", most)
        draw, streams = trials.draws[seed], trials._streams(seed)
        for stream, split, taken in zip(streams, ("train", draw.split), (draw.train, draw.test), strict=True):
            assert (rows_in(stream)[0] == rows[split][taken]).all()
    assert (trials.draws[0].train != trials.draws[1].train).any()


def test_trials_have_noise_of_seeds_that_no_training_is_given(sets: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice is not made on the noise of the training that it is made for. All points of a run have the same."""
    seeds: list[int] = []
    monkeypatch.setattr(tuning, "SeededBits", lambda seed: (seeds.append(seed), SeededBits(seed))[1])
    trials = trials_of(sets)
    for point, seed in (({}, 0), ({"learning_rate": 2.0}, 0), ({}, 1)):
        trials.run(point, seed)
    assert seeds == [2**40, 2**40, 2**40 + 1]


@pytest.mark.parametrize(("largest", "small"), [(46, False), (45, False), (44, True)])
def test_a_stand_in_with_less_than_half_of_the_records_is_said_to_be_small(
    sets: Pair, largest: int, small: bool
) -> None:
    trials = trials_of(sets)
    trials.draws = [replace(trials.draws[0], facts=replace(trials.facts, n=n)) for n in (20, largest, 20)]
    assert bool(tuning.warnings_of(trials)) == small


def test_a_trial_is_known_by_all_that_its_score_depends_on(sets: Pair) -> None:
    """One that is known is not computed again."""
    trials, known = trials_of(sets, steps=2, damping=0.01), sets[1]
    for _ in range(2):
        trials.run({}, 0)
    trials_of(sets, damping=0.01, steps=2).run({}, 0)
    assert kept(known) == 1
    for point, mu, seed in (({}, 1.5, 0), ({"learning_rate": 2.0}, None, 0), ({}, None, 1)):
        trials.run(point, seed, mu)
    assert kept(known) == 4
    first = trials.draws[0]
    changes: tuple[tuple[object, str, object], ...] = (
        (trials, "given", {"steps": 2, "damping": 0.02}),
        (trials, "draws", [replace(first, facts=replace(first.facts, adjacency="replace-one"))]),
        (trials, "facts", replace(trials.facts, n=91)),
        (trials, "facts", replace(trials.facts, m=4)),
        (trials, "method", tried({}, name="other")),
        (known, "manifest", replace(known.manifest, dtype="float64")),
        (known, "manifest", replace(known.manifest, source={"identity": {"listing": {"train": "1", "test": "2"}}})),
    )
    for count, (thing, name, value) in enumerate(changes, start=5):
        setattr(thing, name, value)
        for _ in range(2):
            trials.noiseless(0)
        assert kept(known) == count, name


def test_an_optimum_is_not_looked_for_beside_trials(sets: Pair) -> None:
    assert trials_of(sets, "dp-fc", learning_rate=1.0).noiseless(0) is None
    assert trials_of(sets, "dp-fc", steps=2).noiseless(0) is not None


def test_lines_that_hold_something_else_are_no_trials(sets: Pair) -> None:
    found = trials_of(sets).run({}, 0)
    path = sets[1].folder.with_name("public.tuning.jsonl")
    trial = json.loads(path.read_text())
    for place in places(trial):
        for lines in ([*altered(trial, place), json.dumps(trial)], [json.dumps(trial), *altered(trial, place)]):
            path.write_bytes(data := b"\xff\xfe\n" + "\n".join(lines).encode())
            again = trials_of(sets).run({}, 0)
            assert again == found or (place == ("score",) and lines[0] == json.dumps(trial) and 0 <= again <= 2**53)
            assert path.read_bytes() == data


# Draws


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


def test_a_draw_has_as_many_records_as_there_are_units_and_the_same_neighbours(sets: Pair) -> None:
    labels = tuning.labels_of(sets[1])
    persons = Facts(n=100, rows=400, m=2, d=4, unit="person", adjacency="replace-one")
    draw = drawn(sets[1], labels, persons, 0)
    assert draw.facts == Facts(n=len(draw.train), m=2, d=4, adjacency="replace-one")
    assert len(draw.train) == len({*draw.train.tolist()}) == 100
    assert draw.test.tolist() == np.flatnonzero(draw.table[labels[1][:, 0]] >= 0).tolist()


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


@pytest.mark.parametrize("block", [16, 8192])
def test_records_are_read_in_order_with_labels_of_the_draw(
    labelled: FeatureSet, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the blocks, and with as many places for labels as the private records have."""
    monkeypatch.setattr(tuning, "ROWS", block)
    rows, table = np.array([0, 3, 4, 31, 64, 65, 99]), np.array([1, -1, 0, -1], np.int32)
    x, y = rows_in(tuning._stream(labelled, "train", rows, table, 3))
    assert (x[:, 0] == 4.0 * rows).all()
    first = [[1, -1], [1, -1], [-1, 0], [-1, -1], [-1, 0], [0, -1], [1, -1]]
    assert y.tolist() == [[*each, -1] for each in first]


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
    assert rows_in(tuning._stream(known, "train", np.arange(20), draw.table, 1))[1][:4, 0].tolist() == [-1] * 4
