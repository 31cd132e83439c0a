"""Options chosen on public labelled features: how records stand in for the private ones, and what is chosen."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli import training, tuning
from dpfc_cli.errors import UserError
from dpfc_cli.features.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.privacy.oracle import Facts
from dpfc_cli.solvers import METHODS
from dpfc_cli.trust import ledger, statement
from tests.support import blobs


def made(folder: Path, name: str, n: int, m: int, seed: int, tested: bool = True, d: int = 6) -> FeatureSet:
    x, y = blobs(n + 200, d, m, seed)
    arrays = {"train_x": x[:n], "train_y": y[:n]} | ({"test_x": x[n:], "test_y": y[n:]} if tested else {})
    np.savez(folder / f"{name}.npz", **arrays)
    import_features(folder / f"{name}.npz", folder / "features" / name, classes=tuple("abcdefgh"[:m]))
    return FeatureSet(folder / "features" / name)


@pytest.fixture
def private(tmp_path: Path) -> FeatureSet:
    return made(tmp_path, "private", 400, 3, seed=0)


@pytest.fixture
def known(tmp_path: Path) -> FeatureSet:
    return made(tmp_path, "known", 500, 5, seed=1)


def calibrated(
    private: FeatureSet, method: str = "dp-fc", epsilon: float = 1.0, **given: object
) -> training.Calibrated:
    facts = training.facts_of(private, "zero-out")
    return training.calibrate(METHODS[method], facts, {"steps": 3, **given}, training.Privacy(epsilon))


def labels_of(features: FeatureSet, *splits: str) -> list[np.ndarray]:
    return [np.concatenate([y for _, _, y in features.stream(split)(64)]) for split in splits]


def whole(stream: tuning.BlockStream, rows: int = 50) -> tuple[np.ndarray, np.ndarray]:
    blocks = list(stream(rows))
    assert [start for start, _, _ in blocks] == list(range(0, rows * len(blocks), rows))
    return np.concatenate([x for _, x, _ in blocks]), np.concatenate([y for _, _, y in blocks])


def test_a_draw_has_as_many_classes_and_records_as_there_are_and_labels_of_its_own(known: FeatureSet) -> None:
    labels = labels_of(known, "train", "test")
    draw = tuning.drawn(known, labels, Facts(n=250, m=3, d=6, adjacency="replace-one"), seed=1)
    assert draw.facts == Facts(n=250, m=3, d=6, adjacency="replace-one")
    x, y = whole(draw.train)
    assert x.shape == (250, 6)
    assert set(np.unique(y)) == {0, 1, 2}
    every = np.concatenate([x for _, x, _ in known.stream("train")(64)])
    rows = [int(np.flatnonzero((every == row).all(axis=1))[0]) for row in x]
    assert rows == sorted(set(rows))
    # One class of the set is one class of the draw.
    assert len(set(zip(labels[0][rows, 0].tolist(), y[:, 0].tolist(), strict=True))) == 3
    tested, answers = whole(draw.test)
    assert len(tested) == draw.test_rows == (np.isin(labels[1], np.unique(labels[0][rows]))).sum()
    assert set(np.unique(answers)) == {0, 1, 2}


def test_runs_draw_other_classes_and_records_and_the_same_run_the_same(known: FeatureSet) -> None:
    labels, facts = labels_of(known, "train", "test"), Facts(n=100, m=2, d=6)
    first, again, other = (whole(tuning.drawn(known, labels, facts, seed).train)[0] for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


def test_without_a_test_split_records_are_held_out(tmp_path: Path) -> None:
    known = made(tmp_path, "untested", 500, 3, seed=1, tested=False)
    draw = tuning.drawn(known, labels_of(known, "train"), Facts(n=10_000, m=3, d=6), seed=1)
    assert (draw.facts.n, draw.test_rows) == (400, 100)
    kept, held = whole(draw.train)[0], whole(draw.test)[0]
    assert not (kept[:, None] == held).all(axis=2).any()


def test_fewer_records_get_less_noise_so_that_each_has_as_much(private: FeatureSet, tmp_path: Path) -> None:
    few = made(tmp_path, "few", 100, 3, seed=2)
    c = calibrated(private)
    assert c.guarantee is not None
    tuned = tuning.tune(c, {"steps": 3}, private, few).tuning
    assert tuned is not None
    assert tuned["facts"] == {"n": 100, "m": 3, "mu": c.guarantee.mu * 4}


def test_what_is_chosen_beats_the_defaults_by_more_than_chance() -> None:
    assert tuning.choose({0: [0.5, 0.6, 0.7], 1: [0.6, 0.7, 0.81], 2: [0.4, 0.5, 0.6]}) == 1
    # As good on average, but now better, now worse.
    assert tuning.choose({0: [0.5, 0.6, 0.7], 1: [0.7, 0.5, 0.75], 2: [0.4, 0.5, 0.6]}) == 0
    assert tuning.choose({0: [0.5, 0.5], 1: [0.5, 0.5]}) == 0


def test_a_bad_default_is_replaced_and_what_was_given_stays(
    private: FeatureSet, known: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    timid = replace(METHODS["dp-fc"], grid={"eta": (1.0, 1e5), "lam": (1.0, 2.0)})
    c = replace(calibrated(private, epsilon=8.0, lam=0.01, eta=1e-4), method=timid)
    kept = tuning.tune(c, {"steps": 3, "lam": 0.01, "gradient_clip": 0.3}, private, known)
    assert (kept.options.lam, kept.options.gradient_clip, kept.options.steps) == (0.01, 0.3, 3)
    assert kept.tuning is not None
    assert [tried["factors"] for tried in kept.tuning["tried"]] == [{}, {"eta": 1e5}]
    monkeypatch.setitem(timid.grid, "eta", (1.0, 1e-6))  # type: ignore[arg-type]
    worse = tuning.tune(c, {"steps": 3, "lam": 0.01}, private, known)
    assert worse.tuning is not None
    assert worse.tuning["chosen"] == {}
    assert worse.options == timid.defaults(c.facts, worse.guarantee.mu, {"steps": 3, "lam": 0.01})  # type: ignore[union-attr]


def test_the_guarantee_stays_and_no_ledger_is_charged(private: FeatureSet, known: FeatureSet, tmp_path: Path) -> None:
    before = calibrated(private, "dp-whitened")
    after = tuning.tune(before, {"steps": 3}, private, known)
    assert (after.plan, after.guarantee) == (before.plan, before.guarantee)
    for features in (private, known):
        assert not ledger.ledger_path(features.folder).exists()
    oracle = training.prepare(private, after)
    head, _ = training.run(private, after, oracle, tmp_path / "a.safetensors", lambda *_: None)
    assert json.loads(json.dumps(head.card))["tuning"]["name"] == "known"
    assert dict(statement.rows(head.card))["tuned on"].startswith(
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
        tuning.tune(c, {"steps": 3}, private, known)
    told: list[tuple[int, int]] = []
    resumed = tuning.tune(c, {"steps": 3}, private, known, progress=lambda done, total: told.append((done, total)))
    assert len(counted) == 4 + 9 + 4 * tuning.RUNS - 3
    assert told == [(i, 29) for i in range(1, 30)]
    path = known.folder.with_name("known.tuning.jsonl")
    path.write_text(path.read_text() + '{"trial": "cut')
    monkeypatch.setattr(tuning, "quality", lambda *_: pytest.fail("computed again"))
    assert tuning.tune(c, {"steps": 3}, private, known) == resumed
    # Another budget is another choice.
    with pytest.raises(pytest.fail.Exception):
        tuning.tune(calibrated(private, epsilon=2.0), {"steps": 3}, private, known)


def test_a_place_that_cannot_be_written_does_not_stop_a_choice(private: FeatureSet, known: FeatureSet) -> None:
    known.folder.with_name("known.tuning.jsonl").mkdir()
    assert tuning.tune(calibrated(private), {"steps": 3}, private, known).tuning is not None


def test_what_makes_no_sense_is_refused(private: FeatureSet, known: FeatureSet, tmp_path: Path) -> None:
    c = calibrated(private)
    for features, given, said in (
        (private, {}, "the private records themselves"),
        (made(tmp_path, "wide", 90, 3, 1, d=7), {}, "another backbone"),
        (made(tmp_path, "one", 90, 1, 1), {}, "too few labelled records"),
        (known, {"eta": 1.0, "lam": 1.0}, "nothing to choose: eta, lam are given"),
    ):
        with pytest.raises(UserError, match=said):
            tuning.tune(c, {"steps": 3, **given}, private, features)
    without = training.calibrate(c.method, c.facts, {}, training.Privacy())
    with pytest.raises(UserError, match="no effect with --non-private"):
        tuning.tune(without, {}, private, known)
    with pytest.raises(UserError, match=r"up to 1 labels per record, .* up to 2"):
        tuning.tune(replace(c, facts=replace(c.facts, k=2)), {"steps": 3}, private, known)


def test_label_sets_are_judged_by_mean_average_precision(tmp_path: Path) -> None:
    sets = []
    for name, seed in (("mine", 0), ("theirs", 1)):
        x, y = blobs(300, 6, 3, seed)
        both = np.stack([y, np.where(np.arange(300) % 2, (y + 1) % 3, -1)], axis=1)
        np.savez(tmp_path / f"{name}.npz", train_x=x, train_y=both)
        import_features(tmp_path / f"{name}.npz", tmp_path / "features" / name, classes=("a", "b", "c"))
        sets.append(FeatureSet(tmp_path / "features" / name))
    mine, theirs = sets
    tuned = tuning.tune(calibrated(mine, epsilon=8.0), {"steps": 3}, mine, theirs).tuning
    assert tuned is not None
    # Guessing ranks half of the records of each class, and half of the records have two of three classes, first.
    assert 0.6 < max(tried["score"] for tried in tuned["tried"]) <= 1


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_grid_around_its_defaults_that_its_plan_does_not_hang_on(method: str) -> None:
    facts, m = Facts(n=1000, m=3, d=6), METHODS[method]
    points = list(itertools.product(*m.grid.values()))
    assert tuple(1.0 for _ in m.grid) in points
    plans = {m.plan(facts, m.defaults(facts, 1.0, tuning.scaled(m, facts, 1.0, {}, p))) for p in tuning.factors(m, {})}
    assert len(plans) == 1
