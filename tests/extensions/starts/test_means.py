"""The mean of public records: what is read for it, and what it changes."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from dpfc_cli.extensions.starts.means import mean_of
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.structs import encoded
from tests.support import refuses
from tests.training.requests import checked, three
from tests.training.stopped import Listener


@pytest.fixture
def other(tmp_path: Path) -> FeatureSet:
    return three(tmp_path, "other", 1)


def test_the_mean_is_that_of_all_finite_records(other: FeatureSet) -> None:
    """A record with a zero in it is a record. One of zeros alone could not be decoded."""
    x = other.arrays("train")[0].copy()
    parts = np.array_split(x, len(other.split("train").shards))
    x[6, 3], x[7], x[8, 2], x[9, 0] = 0, 0, np.nan, np.inf
    overwrite(other, parts)
    told: list[tuple[int, int]] = []
    unit = np.delete(x, [7, 8, 9], axis=0).astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    assert np.allclose(mean_of(other, "train", lambda *far: told.append(far)), unit.mean(axis=0), atol=1e-5)
    assert told[-1] == (120, 120)
    overwrite(other, [np.full_like(part, np.nan) for part in parts])
    with refuses("damaged"):
        mean_of(other, "train")


def overwrite(features: FeatureSet, parts: list[np.ndarray]) -> None:
    """As shards that dpfc did not write may have it."""
    for shard, part in zip(features.split("train").shards, parts, strict=True):
        with h5py.File(features.folder / shard.file, "r+") as file:
            file["features"][:] = part


def test_a_training_with_public_features_releases_what_it_releases_without_them(
    private: FeatureSet, other: FeatureSet
) -> None:
    told = Listener()
    plain = checked(private, method="dp-whitened").calibrated
    informed = checked(private, told, method="dp-whitened", public_features=other).calibrated
    assert (informed.plan, informed.mechanism, informed.guarantee) == (plain.plan, plain.mechanism, plain.guarantee)
    assert encoded(informed.parts["public_features"])["rows"] == 120
    assert ["was imported" in said for said in told.warned] == [True]


def test_public_features_that_are_damaged_or_private_are_refused(private: FeatureSet, other: FeatureSet) -> None:
    with refuses("private-records", parameter="public_features"):
        checked(private, Listener(), method="dp-whitened", public_features=private)
    shard = other.folder / other.split("train").shards[0].file
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    with refuses("damaged"):
        checked(private, Listener(), method="dp-whitened", public_features=other)
