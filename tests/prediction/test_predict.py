"""What a head says of pictures is what it says of their features: from any source, and with no other backbone."""

import errno
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from safetensors.numpy import save_file

from dpfc_cli import Head, predict
from dpfc_cli.backbones import preprocess
from dpfc_cli.errors import UserError
from dpfc_cli.features.manifest import fingerprint_of
from dpfc_cli.heads import backbone as rebuild
from dpfc_cli.images import pictures
from dpfc_cli.prediction import sources
from dpfc_cli.prediction.predict import Predictions
from tests import instead
from tests.images.pictures import there
from tests.prediction.conftest import COUNT, Scene, features_of, head_of
from tests.support import refuses, replace


def computed(scene: Scene, batch: int | None = None) -> np.ndarray:
    """The features that are computed for the folder."""
    recipe = rebuild.recipe_of(scene.head)
    backbone = recipe.load(None, batch, None)
    source = sources.Pictures(sources.pictures_at(str(scene.photos)), recipe, backbone)
    return np.concatenate([block.features for block in source.blocks()])


def names(found: Predictions) -> list[str | None]:
    return [row.best for row in found]


def test_features_of_scattering_are_those_that_extract_wrote(digits: Scene) -> None:
    found = computed(digits)
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, features_of(digits.features))


def test_features_of_a_vit_are_those_that_extract_wrote(colours: Scene) -> None:
    found = computed(colours, batch=7)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, features_of(colours.features))


def test_rows_are_what_the_head_says_of_the_features(digits: Scene) -> None:
    x, head = features_of(digits.features), digits.head
    found = list(predict(head, digits.photos, top=3))
    assert [row.best for row in found] == head.predict(x)
    assert [row.name for row in found[:2]] == ["low/000.png", "low/001.png"]
    wanted = -np.sort(-head.probabilities(x), axis=1)[:, :3]
    np.testing.assert_array_equal([row.probabilities for row in found], wanted)
    assert [len(row.classes) for row in predict(head, x, top=99)] == [10] * COUNT


def test_probabilities_are_the_softmax_of_scores_or_of_each_class_its_own(digits: Scene) -> None:
    x = features_of(digits.features)
    scores = digits.head.scores(x)
    found = digits.head.probabilities(x, temperature=2.0)
    np.testing.assert_allclose(found, np.exp(scores / 2) / np.exp(scores / 2).sum(axis=1, keepdims=True), rtol=1e-12)
    card = replace(digits.head.card, facts=replace(digits.head.card.facts, k=2))
    several = Head(chain=(), weight=1e3 * digits.head.weight, bias=digits.head.bias, card=card)
    np.testing.assert_allclose(
        several.probabilities(x, temperature=1e3), 1 / (1 + np.exp(-scores)), rtol=1e-9, atol=1e-12
    )
    assert np.isfinite(several.probabilities(x)).all()
    with refuses("bad-value", parameter="temperature"):
        digits.head.probabilities(x, temperature=0.0)


KINDS = ["list", *(["tar"] if there("webdataset") else []), "parquet", "set", "npy", "npz", "safetensors"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_source_gives_the_same_rows(digits: Scene, tmp_path: Path, kind: str) -> None:
    pictures = sorted(digits.photos.rglob("*.png"))
    place = tmp_path / f"found.{kind}"
    x = features_of(digits.features)
    if kind == "list":
        # As editors on Windows write it.
        place.write_text("".join(f"{path}\n" for path in pictures), "utf-8-sig", newline="\r\n")
    elif kind == "tar":
        with tarfile.open(place, "w") as archive:
            for path in pictures:
                archive.add(path, path.name)
            archive.addfile(tarfile.TarInfo("readme.txt"))
    elif kind == "parquet":
        held = [{"bytes": path.read_bytes(), "path": None} for path in pictures]
        pq.write_table(pa.table({"picture": held}), place, row_group_size=5)
    elif kind == "set":
        place = digits.features.folder
    elif kind == "npy":
        np.save(place, x)
    elif kind == "npz":
        np.savez(place, features=x, labels=np.zeros(COUNT, int))
    else:
        save_file({"anything": x}, place)
    found = predict(digits.head, place)
    # Of a set all splits are predicted, the test split first.
    assert names(found)[:COUNT] == digits.head.predict(x)
    assert found.n == COUNT + (digits.features.splits["train"] if kind == "set" else 0)
    first = {
        **{"list": str(pictures[0]), "tar": "000.png", "parquet": "found.parquet/0", "set": "test/0"},
        **dict.fromkeys(("npy", "npz", "safetensors"), "0"),
    }
    assert next(iter(found)).name == first[kind]


def test_what_is_no_picture_and_no_users_file_is_left_out(digits: Scene, tmp_path: Path) -> None:
    shutil.copytree(digits.photos / "low", tmp_path / "in" / "deep" / "er")
    for name in (".hidden.png", "._000.png", "Thumbs.db", "notes.txt"):
        (tmp_path / "in" / name).write_bytes(b"none")
    (tmp_path / "in" / "again").symlink_to(tmp_path / "in" / "deep")
    found = predict(digits.head, tmp_path / "in")
    assert found.n == COUNT // 2
    assert found.remarks == (
        "Left out, because their names do not end as those of pictures: 1 file (1 .txt).",
        "Links to folders are not followed: 1 link.",
    )


def test_a_picture_that_cannot_be_read_has_a_row_and_the_others_are_predicted(digits: Scene, tmp_path: Path) -> None:
    good = str(digits.photos / "low" / "000.png")
    damaged, pipe, folder, large = (tmp_path / name for name in ("damaged.png", "pipe.png", "folder.png", "large.png"))
    damaged.write_bytes(Path(good).read_bytes()[:60])
    os.mkfifo(pipe)
    folder.mkdir()
    Image.new("L", (9, 8)).save(large)
    listed = tmp_path / "list.txt"
    listed.write_text("\n".join(map(str, (good, damaged, tmp_path / "missing.png", pipe, folder, large, good))))
    rows = list(predict(digits.head, listed))
    wanted = [
        *(None, "unrecognized data stream", "No such file or directory", "it is no regular file"),
        *("it is no regular file", "it has 9 × 8 pixels", None),
    ]
    for row, error in zip(rows, wanted, strict=True):
        assert (row.error is None) == (error is None) == bool(row.classes)
        assert error is None or error in str(row.error) or "unrecognized" in error
    assert rows[0].classes == rows[-1].classes
    assert rows[0].probabilities == rows[-1].probabilities


def test_a_failing_disk_stops_the_run(digits: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(path: Path) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(pictures, "read_file", failing)
    with refuses("unreadable"):
        list(predict(digits.head, digits.photos))


def test_features_that_are_no_numbers_have_a_row_with_an_error(digits: Scene) -> None:
    x = features_of(digits.features).astype(np.float64)
    x[3, 5], x[4, 0] = np.nan, 1e300
    rows = list(predict(digits.head, x))
    assert [i for i, row in enumerate(rows) if row.error] == [3, 4]
    assert "NaN, infinite" in str(rows[3].error)


def test_a_grey_head_takes_colour_pictures(digits: Scene, tmp_path: Path) -> None:
    for path in (digits.photos / "low").iterdir():
        Image.open(path).convert("RGB").save(tmp_path / path.name)
    assert names(predict(digits.head, tmp_path)) == names(predict(digits.head, digits.photos / "low"))


# --- No other backbone.


def test_other_weights_are_refused_before_they_are_read(colours: Scene) -> None:
    assert colours.weights is not None
    data = colours.weights.read_bytes()
    try:
        colours.weights.write_bytes(data[:100])
        with refuses("conflict", parameter="weights"):
            predict(colours.head, colours.photos)
    finally:
        colours.weights.write_bytes(data)


def test_weights_of_a_file_must_be_named(colours: Scene) -> None:
    backbone = colours.features.manifest.backbone
    own = {**backbone, "weights": {**backbone["weights"], "id": "own.safetensors"}}
    with refuses("missing", parameter="weights"):
        predict(head_of(colours.features, backbone=own), colours.photos)


def test_a_card_that_does_not_give_the_fingerprint_or_the_size_for_a_network_is_refused(colours: Scene) -> None:
    resized: dict[str, Any] = {"resize": 18, "crop": 16, "filter": "bicubic"}
    own = colours.features.manifest
    for changed in (
        {"preparation": None, "fingerprint": fingerprint_of(own.backbone, own.classes, own.dim, own.dtype, None)},
        *({"dtype": "float16"}, {"dtype": "object"}, {"preparation": None}),
        *({"preparation": resized}, {"preparation": {**resized, "resize": 19, "exif": True}}),
    ):
        with refuses("unsupported", parameter="head"):
            predict(head_of(colours.features, **changed), colours.photos)


def test_a_backbone_that_computes_something_else_is_refused(colours: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a later version might: what it says of itself is another thing than the card says."""
    real = preprocess.Recipe.describe
    monkeypatch.setattr(preprocess.Recipe, "describe", lambda recipe: {**real(recipe), "filter": "another"})
    with refuses("conflict", parameter="head"):
        predict(colours.head, colours.photos)


def test_a_window_that_no_card_states_is_not_guessed(colours: Scene) -> None:
    stated = {"resize": 18, "crop": 16, "filter": "bicubic", "window": [0.0, 4095.0]}
    own = colours.features.manifest
    fingerprint = fingerprint_of(own.backbone, own.classes, own.dim, own.dtype, stated)
    with refuses("unsupported", parameter="head"):
        rebuild.recipe_of(head_of(colours.features, fingerprint=fingerprint))
    told = rebuild.recipe_of(head_of(colours.features, fingerprint=fingerprint, preparation=stated))
    assert told.preparation.window == (0.0, 4095.0)


def test_a_card_without_a_backbone_predicts_features_alone(digits: Scene) -> None:
    for backbone, named in (
        ({"name": "imported"}, "imported"),
        ({"name": "vit-of-tomorrow"}, "'name'"),
        ({"name": "scattering", "image_shape": [10**9, 8, 1]}, r"'image_shape\[0\]'"),
        ({"name": "scattering", "image_shape": [8, 8]}, "'image_shape'"),
        ({}, "'name'"),
    ):
        head = head_of(digits.features, backbone=backbone)
        with refuses("unsupported", match=named, parameter="head"):
            predict(head, digits.photos)
        assert len(list(predict(head, features_of(digits.features)))) == COUNT


# --- What is no source.


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda place: None, "missing"),
        (lambda place: place.mkdir(), "missing"),
        (lambda place: place.write_bytes(bytes(range(256)) * 9), "missing"),
        (lambda place: place.write_bytes(b"x" * 40_000), "missing"),
        (lambda place: place.write_bytes(b"\n\n"), "missing"),
        (lambda place: place.write_bytes("Müller;Jürgen;1.png\n".encode()), "missing"),
        (os.mkfifo, "damaged"),
    ],
)
def test_what_is_no_source_is_refused(digits: Scene, tmp_path: Path, make: Any, code: str) -> None:
    make(tmp_path / "given")
    with refuses(code, parameter="source") as refused:
        predict(digits.head, tmp_path / "given")
    assert "Müller" not in str(refused.value)


@pytest.mark.parametrize("given", ["a" * 5_000, "a\0b", "", "a/" * 3_000, "nowhere.npy", "nowhere.parquet"])
def test_what_is_no_possible_path_is_refused(digits: Scene, given: str, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        with refuses("missing"):
            predict(digits.head, given)


def test_features_that_do_not_fit_are_refused(digits: Scene, tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", a=np.zeros((3, 324)), b=np.zeros((3, 324)), c=np.zeros(3))
    np.save(tmp_path / "narrow.npy", np.zeros((3, 7)))
    for name, shape in (("two.npz", "n × 324"), ("narrow.npy", "3 × 7")):
        with refuses("conflict", match=shape, parameter="source"):
            predict(digits.head, tmp_path / name)
    for array in (np.zeros((3, 7)), np.zeros(324), np.array([["x"] * 324])):
        with pytest.raises(UserError):
            predict(digits.head, array)
    with refuses("conflict", parameter="weights"):
        predict(digits.head, np.zeros((3, 324)), weights="x")
    with refuses("bad-value", parameter="top"):
        predict(digits.head, np.zeros((3, 324)), top=0)


def test_of_features_that_were_made_in_another_way_it_is_said(digits: Scene) -> None:
    """They may have the same width by chance."""
    assert predict(digits.head, digits.features).warnings == ()
    (said,) = predict(head_of(digits.features, fingerprint="another"), digits.features).warnings
    assert "made in another way" in said


def test_a_list_may_end_its_names_as_find_does(digits: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = sorted(map(str, digits.photos.rglob("*.png")))
    for text in ("\0".join(paths), "\r\n".join(paths)):
        instead.stdin(monkeypatch, text)
        assert [row.name for row in predict(digits.head, "-")] == paths


def test_a_path_comes_before_the_name_of_a_feature_set(
    digits: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(digits.features.folder, "features/ward")
    assert len(predict(digits.head, "ward")) == digits.features.split("train").n + COUNT
    shutil.copytree(digits.photos, "ward")
    assert len(predict(digits.head, "ward")) == COUNT
