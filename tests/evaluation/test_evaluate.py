"""How good a head is: figures, their intervals, and what is refused or said about them."""

import itertools
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import confusion_matrix

from dpfc_cli.errors import GUARDED
from dpfc_cli.evaluation.evaluate import compare, evaluate
from dpfc_cli.evaluation.exact import Evaluation
from dpfc_cli.evaluation.statistics import Measure, auroc_interval, calibration, difference, mean
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head
from dpfc_cli.heads.metrics import Interval, wilson
from tests.hostile import a_card
from tests.support import feature_set, refuses, replace


def a_set(folder: Path, m: int, test_y: np.ndarray, wrong: int = 0) -> FeatureSet:
    """A set whose test records point to their first label's class, but the first `wrong` ones to the next class."""
    first = test_y.reshape(len(test_y), -1)[:, 0]
    pointed = (first + (np.arange(len(first)) < wrong)) % m
    train_y = np.arange(2 * m).reshape(-1, 1).repeat(test_y.ndim, axis=1).squeeze() % m
    arrays = {"train_x": np.eye(m)[np.arange(2 * m) % m], "test_x": np.eye(m)[pointed]}
    folder.mkdir(parents=True)
    np.savez(
        folder / "arrays.npz",
        **{name: x.astype(np.float32) for name, x in arrays.items()},
        train_y=train_y,
        test_y=test_y,
    )
    classes, several = [f"class {j}" for j in range(m)], test_y[0].size
    return feature_set(folder / "arrays.npz", folder / "set", classes=classes, labels_per_record=several)


def head_of(features: FeatureSet, **own: Any) -> Head:
    """A head that scores class j by coordinate j, and says that it was trained on these features."""
    manifest, m = features.manifest, len(features.manifest.classes)
    trained_on: dict[str, Any] = {
        "name": features.name,
        "split": "train",
        "fingerprint": manifest.fingerprint,
        "hold_out": 0.0,
    }
    card = a_card(manifest.classes, facts={"n": manifest.splits["train"].n}, **(trained_on | own))
    return Head(chain=(), weight=np.eye(m), bias=np.zeros(m), card=card)


def changed(features: FeatureSet, **fields: Any) -> FeatureSet:
    """The set with another manifest in memory."""
    features.manifest = replace(features.manifest, **fields)
    return features


@pytest.fixture
def seven(tmp_path: Path) -> FeatureSet:
    """70 test records of seven classes, ten each; the first seven are scored wrong."""
    return a_set(tmp_path / "seven", 7, np.arange(70) % 7, wrong=7)


def test_every_accuracy_comes_with_the_number_of_records_and_an_interval(seven: FeatureSet) -> None:
    found = evaluate(head_of(seven), seven)
    assert (found.split, found.n, found.top1, found.interval) == ("test", 70, 0.9, wilson(63, 70))
    assert found.top5 is not None
    assert found.top5_interval == wilson(round(70 * found.top5), 70)
    assert [each.name for each in found.per_class] == list(seven.manifest.classes)
    assert {(each.n, each.top1, each.interval) for each in found.per_class} == {(10, 0.9, wilson(9, 10))}
    assert (found.private_split, found.warnings) == (False, ())
    with pytest.raises(FrozenInstanceError):
        found.top1 = 1.0  # type: ignore[misc]


def test_sets_of_labels_have_a_mean_average_precision_and_single_labels_confusions(
    seven: FeatureSet, tmp_path: Path
) -> None:
    single, told = evaluate(head_of(seven), seven), list[tuple[str, int, int | None]]()
    assert {single.mean_average_precision, *(each.average_precision for each in single.per_class)} == {None}
    y = np.stack([np.arange(12) % 3, np.full(12, -1)], axis=1)
    several = a_set(tmp_path / "several", 4, y)
    result = evaluate(head_of(several), several, progress=lambda *each: told.append(each))
    assert told == [("Evaluating", 12, 12), ("Ranking the records", 12, 12)]
    assert (result.mean_average_precision, result.confusions, result.calibration) == (1, None, None)
    assert [(each.n, each.average_precision) for each in result.per_class] == [(4, 1), (4, 1), (4, 1), (0, None)]
    # Of five classes or fewer one of the best five would always be right.
    assert (single.top5 is None, result.top5, result.top5_interval) == (False, None, None)
    assert (result.per_class[3].top1, result.per_class[3].interval) == (None, None)


def test_each_class_is_told_from_the_rest_with_a_threshold_or_as_the_head_decides(seven: FeatureSet) -> None:
    found = evaluate(head_of(seven), seven)
    assert (found.threshold, found.balanced_accuracy) == (
        None,
        mean([each.sensitivity for each in found.per_class], True),
    )
    one = found.per_class[1]
    assert one.sensitivity == Measure(0.9, wilson(9, 10))
    # One record of the class before was taken for it.
    assert one.specificity == Measure(59 / 60, wilson(59, 60))
    area = (9 * 59.5 + 29.5) / 600
    assert one.auroc is not None
    assert one.auroc.value == pytest.approx(area)
    assert one.auroc.interval == pytest.approx(auroc_interval(area, 10, 60))
    assert found.auroc == mean([each.auroc for each in found.per_class])
    # The best class has e/(e + 6), 0.31.
    for threshold, rates in ((0.3, (0.9, 59 / 60)), (0.4, (0.0, 1.0)), (0.01, (1.0, 0.0))):
        at = evaluate(head_of(seven), seven, threshold=threshold)
        measures = at.per_class[1].sensitivity, at.per_class[1].specificity
        assert tuple(each.value for each in measures if each) == rates
        assert at.balanced_accuracy is not None
        assert at.threshold == threshold
        assert at.balanced_accuracy.value == pytest.approx(sum(rates) / 2)
    with refuses("bad-value", parameter="threshold"):
        evaluate(head_of(seven), seven, threshold=1.0)


def test_of_the_split_of_the_training_there_is_no_more_than_an_accuracy_and_it_is_not_for_publication(
    seven: FeatureSet,
) -> None:
    found = evaluate(head_of(seven), seven, "train")
    assert (found.private_split, found.confusions, found.calibration) == (True, None, None)
    assert [("Do not publish them" in warning) for warning in found.warnings] == [True]


def test_features_that_do_not_fit_the_head_are_refused(seven: FeatureSet) -> None:
    head, own = head_of(seven), seven.manifest
    for fields, named in (({"classes": ("class 1", "b")}, "classes"), ({"dim": 9}, "7 dimensions")):
        seven.manifest = own
        with refuses("conflict", match=named, parameter="features"):
            evaluate(head, changed(seven, **fields))


def test_a_set_may_lack_classes_of_the_head_and_have_them_in_another_order(tmp_path: Path) -> None:
    head = head_of(a_set(tmp_path / "all", 3, np.arange(6) % 3))
    few = a_set(tmp_path / "few", 3, np.array([1, 1, 1, 0]), wrong=2)
    # Its records point to the classes 2, 2, 1, 0.
    found = evaluate(head, changed(few, classes=("class 1", "class 2")))
    assert [(each.name, each.n) for each in found.per_class] == [("class 0", 0), ("class 1", 1), ("class 2", 3)]
    assert found.top1 == 0.5


def test_a_split_that_is_missing_or_damaged_or_has_no_label_is_refused(seven: FeatureSet, tmp_path: Path) -> None:
    with refuses("missing", match="'validation'"):
        evaluate(head_of(seven), seven, "validation")
    shard = seven.folder / seven.split("test").shards[0].file
    shard.write_bytes(shard.read_bytes()[:-100])
    with refuses("damaged"):
        evaluate(head_of(seven), seven)
    null = a_set(tmp_path / "null", 3, np.arange(6) % 3)

    def unlabelled(split: str, **_: bool) -> Any:
        return lambda rows: iter([(0, np.zeros((6, 3), np.float32), np.full((6, 1), -1))])

    null.stream = unlabelled  # type: ignore[assignment, method-assign]
    with refuses("missing", parameter="split") as caught:
        evaluate(head_of(null), null)
    assert GUARDED not in str(caught.value)
    with refuses("missing", parameter="split") as caught:
        evaluate(head_of(null), null, "train")
    assert GUARDED in str(caught.value)


def test_features_made_in_another_way_are_warned_of(seven: FeatureSet) -> None:
    # All imported sets of these classes have one fingerprint, whatever made them.
    for other in ({"fingerprint": "another"}, {"name": "another"}):
        assert len(evaluate(head_of(seven, **other), seven).warnings) == 1


def test_held_out_pictures_that_the_head_may_have_seen_are_warned_of(seven: FeatureSet) -> None:
    def held_out(manifest: Manifest) -> dict[str, Any]:
        return {**manifest.source, "identity": {**manifest.source["identity"], "hold_out": 0.1}}

    changed(seven, source=held_out(seven.manifest))
    assert evaluate(head_of(seven, hold_out=0.1), seven).warnings == ()
    for own in ({"hold_out": 0.2}, {"hold_out": 0.1, "name": "another"}):
        *_, warning = evaluate(head_of(seven, **own), seven).warnings
        assert "the head has seen some of these" in warning


# What is confused, and what the probabilities are worth


def records_of(features: FeatureSet) -> tuple[np.ndarray, np.ndarray]:
    (_, x, y), *more = features.stream("test")(1000)
    assert not more
    return x, y


def turned(head: Head, seed: int, size: float = 0.8) -> Head:
    """A head that is wrong now and then."""
    noise = np.random.default_rng(seed).normal(size=head.weight.shape)
    return replace(head, weight=3 * (head.weight + size * noise))


def test_confusions_are_those_of_scikit_learn_without_the_zeros(seven: FeatureSet) -> None:
    head = turned(head_of(seven), 0)
    x, y = records_of(seven)
    expected = confusion_matrix(y[:, 0], head.scores(x).argmax(axis=1), labels=range(7))
    found = evaluate(head, seven).confusions
    assert found is not None
    names = seven.manifest.classes
    assert [(names.index(each.label), names.index(each.predicted), each.n) for each in found] == [
        (i, j, expected[i, j]) for i in range(7) for j in range(7) if expected[i, j]
    ]
    assert len(found) > 7


def test_calibration_is_that_of_the_softmax_of_the_scores(seven: FeatureSet) -> None:
    head = turned(head_of(seven), 1)
    x, y = records_of(seven)
    scores = head.scores(x)
    expected = calibration(softmax(scores, axis=1).max(axis=1), scores.argmax(axis=1) == y[:, 0])
    found = evaluate(head, seven).calibration
    assert found is not None
    assert found.error == pytest.approx(expected.error)
    assert found.by_chance == pytest.approx(expected.by_chance)
    assert [(each.n, each.right) for each in found.bins] == [(each.n, each.right) for each in expected.bins]


# Several heads


def test_heads_are_compared_with_the_first_on_the_same_records(seven: FeatureSet) -> None:
    heads, told = [turned(head_of(seven), seed) for seed in range(3)], list[tuple[str, int, int | None]]()
    found = compare(heads, seven, progress=lambda *each: told.append(each))
    assert told == [("Evaluating", 70, 70), ("Ranking the records", 70, 70)], "they are read once for all heads"
    assert found.evaluations == tuple(evaluate(head, seven) for head in heads)
    x, y = records_of(seven)
    right = [head.scores(x).argmax(axis=1) == y[:, 0] for head in heads]
    assert found.differences == tuple(
        difference(int((each & ~right[0]).sum()), int((~each & right[0]).sum()), 70) for each in right[1:]
    )
    assert all(each.only_this and each.only_other for each in found.differences)
    for each, difference_ in zip(found.evaluations[1:], found.differences, strict=True):
        assert difference_.gain == pytest.approx(each.top1 - found.evaluations[0].top1)


def intervals(of: Evaluation) -> list[Interval]:
    assert of.calibration is not None
    measures = [of.auroc, of.balanced_accuracy]
    measures += (measure for each in of.per_class for measure in (each.sensitivity, each.specificity, each.auroc))
    ends = [each.interval for each in measures if each is not None]
    parts = (each.interval for each in of.per_class), ends, (each.interval for each in of.calibration.bins)
    found = [of.interval, of.top5_interval, *itertools.chain(*parts), (of.calibration.by_chance, 0.0)]
    return [each or (0.0, 0.0) for each in found]


def test_more_pictures_of_the_same_persons_make_no_interval_narrower(
    seven: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four equal records of each person tell no more than one. Null records (zeros, here) tell nothing."""
    heads = [turned(head_of(seven), seed) for seed in range(2)]
    arrays: dict[str, Any] = {}
    for split in ("train", "test"):
        (x, y), n = seven.arrays(split), seven.split(split).n
        arrays[f"{split}_x"] = np.pad(x.repeat(4, 0), ((0, 9), (0, 0)))
        arrays[f"{split}_y"] = np.pad(y[:, 0].repeat(4), (0, 9))
        arrays[f"{split}_groups"] = np.array([f"{split} {i // 4}" for i in range(4 * n + 9)])
    np.savez(tmp_path / "four.npz", **arrays)
    four = feature_set(tmp_path / "four.npz", tmp_path / "four", classes=list(seven.manifest.classes))
    real = four.stream

    def with_nulls(*given: Any, **named: Any) -> Any:
        blocks = real(*given, **named)
        return lambda rows: ((i, x, np.where(x.any(1)[:, None], y, -1), *more) for i, x, y, *more in blocks(rows))

    monkeypatch.setattr(four, "stream", with_nulls)
    found, alone = compare(heads, four), compare(heads, seven)
    for many, few in zip(found.evaluations, alone.evaluations, strict=True):
        assert many.n == 4 * few.n
        np.testing.assert_allclose(intervals(many), intervals(few))
    assert found.differences[0].interval == pytest.approx(alone.differences[0].interval)


def test_label_sets_are_compared_by_whether_the_best_class_is_a_label(tmp_path: Path) -> None:
    y = np.stack([np.arange(12) % 3, np.full(12, -1)], axis=1)
    several = a_set(tmp_path / "several", 4, y)
    found = compare([head_of(several), turned(head_of(several), 3, 2.0)], several)
    assert found.evaluations[0].mean_average_precision == 1
    assert found.differences[0].gain == pytest.approx(found.evaluations[1].top1 - 1)
    assert found.differences[0].gain < 0


def test_heads_that_do_not_fit_are_counted_and_the_first_is_named(seven: FeatureSet) -> None:
    good = head_of(seven)
    narrow = replace(good, weight=np.eye(5, 7))
    other = replace(good, card=replace(good.card, classes=tuple(f"c{j}" for j in range(7))))
    with refuses("conflict", parameter="features") as caught:
        compare([good, narrow, other], seven)
    assert "head 2: the head takes 5 dimensions" in str(caught.value)
    assert "head 3" not in str(caught.value)
    assert caught.value.fields["heads"] == ["head 2", "head 3"]


def test_one_head_is_no_comparison_a_split_of_a_training_is_refused_and_a_warning_is_said_once(
    seven: FeatureSet,
) -> None:
    head = head_of(seven)
    with refuses("bad-value", parameter="heads"):
        compare([head], seven)
    elsewhere, odd = head_of(seven, split="other"), head_of(seven, fingerprint="another")
    with refuses("private-records", parameter="split"):
        compare([elsewhere, head], seven, "train")
    found = compare([odd, head, odd], seven)
    (warning,) = found.warnings
    assert [warning in each.warnings for each in found.evaluations] == [True, False, True]
