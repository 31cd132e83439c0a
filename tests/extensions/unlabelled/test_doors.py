"""`predict --adapt` and `train --unlabelled`, by their Python functions and as commands."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpfc_cli as dpfc
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head
from dpfc_cli.structs import encoded
from tests.support import blobs, feature_set, refuses
from tests.training.requests import checked, request
from tests.training.stopped import Listener

train: Any = dpfc.train
predict: Any = dpfc.predict
"""They take the options that packages add, which type checkers do not know."""
N, D, M = 6000, 16, 20
CLASSES = tuple(f"class {k}" for k in range(M))
NOISY: dict[str, Any] = {"method": "dp-whitened", "steps": 12, "seed": 0, "epsilon": 0.05}


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[FeatureSet, FeatureSet, np.ndarray]:
    """Private records, public ones of the same classes, and the labels of these."""
    folder = tmp_path_factory.mktemp("known")
    x, y = blobs(2 * N, D, M, seed=7, apart=5.0)
    for name, rows in (("private", slice(0, N)), ("public", slice(N, 2 * N))):
        np.savez(folder / f"{name}.npz", train_x=x[rows], train_y=y[rows])
    sets = [
        feature_set(folder / f"{name}.npz", folder / "features" / name, classes=CLASSES)
        for name in ("private", "public")
    ]
    return sets[0], sets[1], y[N:]


@pytest.fixture
def head(known: tuple[FeatureSet, FeatureSet, np.ndarray], tmp_path: Path) -> Head:
    made: Head = train(known[0], **NOISY, observer=Listener(), out=tmp_path / "noisy").head
    return made


def right(rows: dpfc.Predictions, labels: np.ndarray) -> float:
    return float(np.mean([row.best == CLASSES[label] for row, label in zip(rows, labels, strict=True)]))


def test_what_is_predicted_makes_a_noisy_head_better_and_its_file_stays(
    known: tuple[FeatureSet, FeatureSet, np.ndarray], head: Head
) -> None:
    assert head.path is not None
    before = head.path.read_bytes()
    loaded = Head.load(head.path)
    x = known[1].arrays("train")[0]
    plain, adapted = (predict(loaded, x, adapt=adapt) for adapt in (False, True))
    assert right(adapted, known[2]) > right(plain, known[2]) + 0.01
    assert any("together" in said for said in adapted.remarks)
    assert not plain.remarks
    assert [row.probabilities for row in adapted] == [row.probabilities for row in adapted]
    assert head.path.read_bytes() == before


def test_a_record_that_cannot_be_used_has_its_row_and_adapts_nothing(
    known: tuple[FeatureSet, FeatureSet, np.ndarray], head: Head
) -> None:
    x = known[1].arrays("train")[0][:400].copy()
    clean = [row.probabilities for row in predict(head, x, adapt=True)]
    found = list(predict(head, np.vstack([x, np.full((1, D), np.nan)]), adapt=True))
    assert found[-1].error
    assert [row.probabilities for row in found[:-1]] == clean


def test_the_records_that_a_head_was_trained_on_do_not_adapt_it(
    known: tuple[FeatureSet, FeatureSet, np.ndarray], head: Head
) -> None:
    """Its predictions of others would depend on them without noise."""
    with refuses("conflict"):
        predict(head, known[0], adapt=True)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_head_of_few_steps_is_read_again_and_adapts(
    known: tuple[FeatureSet, FeatureSet, np.ndarray], tmp_path: Path, steps: int
) -> None:
    made = train(known[0], **{**NOISY, "steps": steps}, observer=Listener(), out=tmp_path / "few")
    assert predict(Head.load(made.path), known[1], adapt=True).remarks


def test_heads_that_leave_nothing_to_judge_by_are_refused(
    known: tuple[FeatureSet, FeatureSet, np.ndarray], tmp_path: Path
) -> None:
    other = train(known[0], method="dp-ls", seed=0, epsilon=1, observer=Listener(), out=tmp_path / "other").head
    with refuses("unsupported"):
        predict(other, known[1], adapt=True)


def test_a_training_with_public_records_releases_what_it_releases_without_them(
    known: tuple[FeatureSet, FeatureSet, np.ndarray],
) -> None:
    private, public, _ = known
    told = Listener()
    plain = checked(private, method="dp-whitened").calibrated
    informed = checked(private, told, method="dp-whitened", unlabelled=public).calibrated
    assert (informed.plan, informed.mechanism, informed.guarantee) == (plain.plan, plain.mechanism, plain.guarantee)
    assert encoded(informed.parts["unlabelled"])["rows"] == N
    assert ["was imported" in said for said in told.warned] == [True]


def test_a_head_of_public_records_says_so_and_is_better(
    known: tuple[FeatureSet, FeatureSet, np.ndarray], head: Head, tmp_path: Path
) -> None:
    private, public, labels = known
    made = train(private, **NOISY, observer=Listener(), unlabelled=public, again=True, out=tmp_path / "made").head
    x = public.arrays("train")[0]
    scores = [float(np.mean(each.predict(x) == np.array(CLASSES)[labels])) for each in (head, made)]
    assert scores[1] > scores[0] + 0.01
    assert made.path is not None
    assert encoded(made.card.parts["unlabelled"])["rows"] == N
    assert "operator asserts that they are public" in str(made.statement())
    with refuses("unsupported"):
        predict(made, public, adapt=True)


def test_public_records_that_are_private_or_of_no_use_are_refused(
    known: tuple[FeatureSet, FeatureSet, np.ndarray],
) -> None:
    private, public, _ = known
    with refuses("private-records", parameter="unlabelled"):
        checked(private, Listener(), method="dp-whitened", unlabelled=private)
    with refuses("conflict"):
        checked(private, Listener(), method="dp-ls", steps=None, unlabelled=public)
    assert request(private, unlabelled=None).hooks == ()
