"""Odd numbers from callers, and a file of trials that holds something else."""

import json
import os
from fractions import Fraction
from pathlib import Path

import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.training.request import requested
from dpfc_cli.training.tuning import _read
from tests.hostile import altered, places

TRIAL = {"trial": "a" * 64, "score": 0.5}


@pytest.mark.parametrize("place", list(places(TRIAL)), ids=lambda place: ".".join(map(str, place)) or "all")
def test_lines_that_hold_something_else_are_no_trials(tmp_path: Path, place: tuple[str, ...]) -> None:
    path = tmp_path / "set.tuning.jsonl"
    path.write_text("\n".join([json.dumps(TRIAL), *altered(TRIAL, place), json.dumps({"trial": "b", "score": 1})]))
    kept = _read(path)
    assert (kept["b"], kept["a" * 64] if place != ("score",) else 0.5) == (1.0, 0.5)
    assert all(type(name) is str and 0 <= score <= 1 for name, score in kept.items())


def test_a_file_of_trials_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert _read(tmp_path / "pipe") == {}


@pytest.mark.parametrize("name", ["epsilon", "delta", "noise_multiplier", "memory"])
@pytest.mark.parametrize("value", [10**400, Fraction(10**400), True, "1", [1.0]])
def test_what_is_no_number_of_this_machine_is_refused(name: str, value: object) -> None:
    from dpfc_cli.features.reader import FeatureSet

    features = FeatureSet.__new__(FeatureSet)
    with pytest.raises(UserError) as caught:
        requested(features, Path(), options={}, **{name: value})  # type: ignore[arg-type]
    assert caught.value.fields["parameter"] == name
