"""Odd numbers from callers, and a file of trials that holds something else."""

import json
import os
from fractions import Fraction
from pathlib import Path

import h5py
import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.training.request import requested
from dpfc_cli.training.tuning import _labels, _read, _stream, drawn
from tests.hostile import altered, places

TRIAL = {"trial": "a" * 64, "score": 0.5}


@pytest.mark.parametrize("place", list(places(TRIAL)), ids=lambda place: ".".join(map(str, place)) or "all")
def test_lines_that_hold_something_else_are_no_trials(tmp_path: Path, place: tuple[str, ...]) -> None:
    path = tmp_path / "set.tuning.jsonl"
    path.write_text("\n".join([json.dumps(TRIAL), *altered(TRIAL, place), json.dumps({"trial": "b", "score": 1})]))
    kept = _read(path)
    assert (kept["b"], kept["a" * 64] if place != ("score",) else 0.5) == (1.0, 0.5)
    assert all(type(name) is str and 0 <= score <= 2**53 for name, score in kept.items())


def test_a_line_that_is_no_text_is_no_trial(tmp_path: Path) -> None:
    path = tmp_path / "set.tuning.jsonl"
    path.write_bytes(b"\xff\xfe\n" + json.dumps(TRIAL).encode())
    assert _read(path) == {"a" * 64: 0.5}


def test_a_file_of_trials_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert _read(tmp_path / "pipe") == {}


def test_labels_without_a_class_are_none(tmp_path: Path) -> None:
    """They lie in shards of a stranger; an import refuses them."""
    x, y = np.ones((20, 2), np.float32), np.arange(20) % 2
    np.savez(tmp_path / "a.npz", train_x=x, train_y=y)
    known, _ = import_features(tmp_path / "a.npz", tmp_path / "known", classes=("a", "b"))
    with h5py.File(tmp_path / "known" / "train-00000-of-00001.h5", "r+") as file:
        file["labels"][:4] = [2, 2**31 - 1, -7, -(2**31)]
    labels = _labels(known, "train")
    assert labels[:, 0].tolist() == [-1] * 4 + y[4:].tolist()
    draw = drawn(known, [labels], Facts(n=20, m=2, d=2), seed=0)
    blocks = _stream(known, "train", np.arange(20), draw.table, 1)(7)
    assert np.concatenate([found for _, _, found in blocks])[:4, 0].tolist() == [-1] * 4


@pytest.mark.parametrize("name", ["epsilon", "delta", "noise_multiplier", "memory"])
@pytest.mark.parametrize("value", [10**400, Fraction(10**400), True, "1", [1.0]])
def test_what_is_no_number_of_this_machine_is_refused(name: str, value: object) -> None:
    features = FeatureSet.__new__(FeatureSet)
    with pytest.raises(UserError) as caught:
        requested(features, Path(), options={}, **{name: value})  # type: ignore[arg-type]
    assert caught.value.fields["parameter"] == name
