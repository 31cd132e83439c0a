"""`train --class-similarity`: files of groups and of vectors, what is refused, and what is claimed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpfc_cli as dpfc
from dpfc_cli.extensions.starts.similar import similarity_in
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head
from tests.extensions.starts.starts import saved
from tests.support import blobs, feature_set, refuses
from tests.training.requests import checked, head_of
from tests.training.stopped import Listener

pytestmark = pytest.mark.usefixtures("heads")
CLASSES = ("otter", "Red fox", "Wolf")


def groups(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_groups_and_vectors_are_those_of_the_named_classes(tmp_path: Path) -> None:
    made = groups(
        tmp_path / "g.csv", "Class,group,note\nwolf,Wild Dogs,\nRED_FOX,wild_dogs,x\notter,weasels,\nbear,bears,\n"
    )
    found, said = similarity_in(made, CLASSES)
    assert (found.vectors @ found.vectors.T).tolist() == [[1, 0, 0], [0, 1, 1], [0, 1, 1]]
    assert said.holds == "groups"
    rows = np.array([[1, 0], [0, 4], [0, 2]], np.float32)
    found, said = similarity_in(saved(tmp_path / "v.safetensors", rows, ("Wolf", "otter", "red fox")), CLASSES)
    assert found.vectors.tolist() == [[0, 1], [0, 1], [1, 0]]
    assert said.holds == "vectors"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("class,group\notter,a\nWolf,b\n", "red fox"),
        ("class,group\notter,a\nWolf,b\nRed fox,b\nWolf,a\n", "Wolf"),
        ("class,group\notter,a\nWolf,a\nRed fox,a\n", "apart"),
        ("class,group\notter,a\nWolf,\nRed fox,a\n", "no group"),
        ("name,group\notter,a\n", "class and group"),
    ],
)
def test_a_file_that_says_too_little_is_refused_before_anything_is_charged(
    tmp_path: Path, private: FeatureSet, text: str, said: str
) -> None:
    made = groups(tmp_path / "g.csv", text)
    with refuses("conflict", said, parameter="class_similarity"):
        checked(private, Listener(), method="dp-whitened", class_similarity=made)


def test_files_that_are_none_and_methods_without_use_for_one_are_refused(tmp_path: Path, private: FeatureSet) -> None:
    with refuses("missing", parameter="class_similarity"):
        checked(private, Listener(), method="dp-whitened", class_similarity=tmp_path / "none.csv")
    with refuses("conflict", parameter="class_similarity"):
        checked(private, Listener(), method="dp-whitened", class_similarity=groups(tmp_path / "v.safetensors", "x"))
    made = groups(tmp_path / "g.csv", "class,group\n" + "".join(f"{name},{name}\n" for name in private.classes))
    with refuses("conflict"):
        checked(private, Listener(), method="dp-ls", class_similarity=made)


def test_a_training_with_it_releases_what_it_releases_without_it_and_says_so(
    tmp_path: Path, private: FeatureSet
) -> None:
    made = groups(tmp_path / "g.csv", "class,group\n" + "".join(f"{name},{name[0]}\n" for name in private.classes))
    plain = checked(private, method="dp-whitened").calibrated
    informed = checked(private, Listener(), method="dp-whitened", class_similarity=made).calibrated
    assert (informed.plan, informed.mechanism, informed.guarantee) == (plain.plan, plain.mechanism, plain.guarantee)
    head = head_of(private, method="dp-whitened", epsilon=1.0, class_similarity=made).head
    assert "g.csv" in head.statement()["similar classes"]
    assert head.path is not None
    loaded = Head.load(head.path)
    assert loaded.evidence is not None
    assert loaded.evidence.similarity is not None


def test_similar_classes_make_a_noisy_head_better(tmp_path: Path) -> None:
    """The classes lie around centres of groups."""
    n, d, m = 4000, 16, 24
    centres, of = blobs(n, d, 6, seed=3, apart=6.0)
    random = np.random.default_rng(4)
    side = random.integers(m // 6, size=n)
    x, y = centres + 2.0 * random.normal(size=(6, m // 6, d))[of, side], of * (m // 6) + side
    np.savez(tmp_path / "set.npz", train_x=x[: n // 2], train_y=y[: n // 2])
    names = tuple(f"class {k}" for k in range(m))
    features = feature_set(tmp_path / "set.npz", tmp_path / "features", classes=names)
    made = groups(tmp_path / "g.csv", "class,group\n" + "".join(f"class {k},{k // (m // 6)}\n" for k in range(m)))
    train: Any = dpfc.train
    gains = []
    for seed in range(5):
        both = [
            train(features, method="dp-whitened", epsilon=0.2, seed=seed, observer=Listener(), again=True, **more).head
            for more in ({}, {"class_similarity": made})
        ]
        right = [np.mean(head.scores(x[n // 2 :]).argmax(axis=1) == y[n // 2 :]) for head in both]
        gains.append(right[1] - right[0])
    assert np.mean(gains) > 0.01
