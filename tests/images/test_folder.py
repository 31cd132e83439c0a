"""Folders of image files: folders name the classes, pixels are decoded when asked for, one rule for every image."""

import io
import os
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpfc_cli.errors import UserError
from dpfc_cli.images import Geometry, ImageSet, open_images

Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """A function that writes an image of one colour below the folder of the test."""

    def write(
        name: str,
        colour: int | tuple[int, ...] = (10, 20, 30),
        size: tuple[int, int] = (6, 4),
        mode: str = "RGB",
        **options: Any,
    ) -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, size, colour).save(file, **options)
        return file

    return write


def opened(folder: Path, image_size: int | None = None, classes: tuple[str, ...] | None = None) -> ImageSet:
    geometry = None if image_size is None else Geometry(resize=image_size, crop=image_size)
    return open_images(f"imagefolder:{folder}", geometry=geometry, classes=classes)


def sizes(data: ImageSet) -> dict[str, int]:
    return {name: split.n for name, split in data.splits.items()}


# Which images there are, and of which class


def test_train_and_test_folders_become_splits_in_sorted_order(save: Save, tmp_path: Path) -> None:
    for i, name in enumerate(("train/cat/z.png", "train/dog/a.png", "train/dog/b.png", "test/dog/a.png"), 1):
        save(name, (i, 0, 0))
    data = opened(tmp_path)
    train, test = data.splits["train"], data.splits["test"]
    assert (data.name, data.classes, data.origin, train.image_shape) == (
        "imagefolder",
        ("cat", "dog"),
        "inferred",
        (4, 6, 3),
    )
    np.testing.assert_array_equal(train.labels, [0, 1, 1])
    np.testing.assert_array_equal(train.pixels(0, 3)[:, 0, 0, 0], [1, 2, 3])
    np.testing.assert_array_equal(train.pixels(1, 2)[:, 0, 0, 0], [2])
    np.testing.assert_array_equal(test.labels, [1])
    np.testing.assert_array_equal(test.pixels(0, 1)[:, 0, 0, 0], [4])
    assert (train.labels.dtype, train.pixels(0, 3).dtype) == (np.dtype(np.int32), np.dtype(np.uint8))
    with pytest.raises(IndexError):
        train.pixels(0, 4)


def test_the_splits_may_go_by_the_names_that_are_usual(save: Save, tmp_path: Path) -> None:
    for train in ("train", "training"):
        for test in ("test", "testing", "val", "valid", "validation"):
            place = f"{train}-{test}"
            for name in (f"{train}/a/1.png", f"{train}/a/2.png", f"{test}/a/1.png"):
                save(f"{place}/{name}")
            assert sizes(opened(tmp_path / place)) == {"train": 2, "test": 1}
    save("both/train/a/1.png")
    save("both/training/a/1.png")
    with pytest.raises(UserError, match="Which is for training"):
        opened(tmp_path / "both")
    save("classes/a/1.png")
    save("classes/b/1.png")
    assert sizes(opened(tmp_path / "classes")) == {"train": 2}


def test_a_folder_called_train_beside_others_is_a_class(save: Save, tmp_path: Path) -> None:
    for name in ("car/1.png", "plane/2.png", "train/3.png"):
        save(name)
    assert opened(tmp_path).classes == ("car", "plane", "train")
    save("train/p1/4.png")
    found = opened(tmp_path, classes=("car", "plane", "train"))
    assert found.splits["train"].labels.tolist() == [0, 1, 2, 2]


def test_names_are_the_same_in_whatever_form_unicode_has_them(save: Save, tmp_path: Path) -> None:
    """A Mac writes an é as two characters."""
    classes = ("Fläche", "Größe")
    for i, name in enumerate(classes):
        save(unicodedata.normalize("NFD", f"{name}/é.png"), (i, 0, 0))
    assert opened(tmp_path).classes == classes
    assert opened(tmp_path, classes=classes[::-1]).splits["train"].labels.tolist() == [1, 0]
    lines = [f"{name}/é.png,{unicodedata.normalize('NFD', name)}" for name in classes]
    (tmp_path / "metadata.csv").write_text("\n".join(["file_name,label", *lines]))
    found = open_images(f"imagefolder:{tmp_path}", classes=classes, label_column="label")
    assert sorted(found.splits["train"].labels.tolist()) == [0, 1]


@pytest.mark.parametrize("kind", ["symbolic", "hard", "folder"])
def test_a_picture_that_would_count_twice_is_refused(save: Save, tmp_path: Path, kind: str) -> None:
    """Its two records would be one picture's, and the guarantee is for one record."""
    picture = save("train/a/1.png")
    save("train/b/2.png")
    if kind == "symbolic":
        (tmp_path / "train" / "b" / "1.png").symlink_to(picture)
    elif kind == "hard":
        (tmp_path / "train" / "b" / "1.png").hardlink_to(picture)
    else:
        (tmp_path / "train" / "c").symlink_to(picture.parent)
    with pytest.raises(UserError, match="twice") as caught:
        opened(tmp_path)
    assert caught.value.code == "conflict"


def test_a_set_of_links_to_other_files_is_read(save: Save, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / "set" / name).mkdir(parents=True)
        (tmp_path / "set" / name / "1.png").symlink_to(save(f"store/{name}.png"))
    assert opened(tmp_path / "set").splits["train"].n == 2


def test_classes_are_those_of_all_splits_and_may_be_empty(save: Save, tmp_path: Path) -> None:
    save("train/b/1.png")
    save("test/a/1.png")
    (tmp_path / "train" / "c").mkdir()
    data = opened(tmp_path)
    assert data.classes == ("a", "b", "c")
    assert (data.splits["train"].labels.tolist(), data.splits["test"].labels.tolist()) == ([1], [0])


def test_asserted_classes_give_the_labels_and_change_neither_records_nor_listing(save: Save, tmp_path: Path) -> None:
    for colour, name in enumerate(("train/b/1.png", "train/c/1.png", "test/a/1.png")):
        save(name, (colour, 0, 0))
    inferred = opened(tmp_path)
    asserted = opened(tmp_path, classes=("c", "never seen", "a", "b"))
    assert (asserted.origin, asserted.classes) == ("asserted", ("c", "never seen", "a", "b"))
    assert (asserted.renumbered, inferred.renumbered) == (True, False)
    assert [split.labels.tolist() for split in asserted.splits.values()] == [[3, 0], [2]]
    np.testing.assert_array_equal(asserted.splits["train"].pixels(0, 2), inferred.splits["train"].pixels(0, 2))
    # They are the same records, so the budget spent on them is the same too.
    assert asserted.splits["train"].listing == inferred.splits["train"].listing
    more = opened(tmp_path, classes=("a", "b", "c", "d"))
    assert not more.renumbered
    np.testing.assert_array_equal(more.splits["train"].labels, inferred.splits["train"].labels)
    with pytest.raises(UserError, match=r"'c' is not among the 2 classes.*do not publish"):
        opened(tmp_path, classes=("a", "b"))


def test_only_visible_files_with_an_image_extension_count(save: Save, tmp_path: Path) -> None:
    for name in ("a/1.PNG", "a/2.JpEg", "a/._1.png", ".hidden/1.png"):
        save(name)
    (tmp_path / "a" / "notes.txt").write_text("no image")
    data = opened(tmp_path)
    assert (data.classes, sizes(data)) == (("a",), {"train": 2})


def test_another_source_has_another_listing_wherever_it_is(save: Save, tmp_path: Path) -> None:
    def listing(*names: str, extra: bytes = b"") -> str:
        place = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        for name in names:
            file = save(f"{place.name}/{name}")
        file.write_bytes(file.read_bytes() + extra)
        return opened(place).splits["train"].listing

    before = listing("a/1.png", "a/2.png")
    assert listing("a/1.png", "a/2.png") == before
    others = [listing("a/1.png", "a/2.png", "a/3.png"), listing("a/0.png", "a/2.png"), listing("0/1.png", "0/2.png")]
    assert before not in [*others, listing("a/1.png", "a/2.png", extra=b"\0")]
    # A class without a picture: what is spent on the same pictures must add up.
    (tmp_path / "0" / "b").mkdir()
    assert opened(tmp_path / "0").splits["train"].listing == before


def test_another_layout_is_an_error_that_names_the_right_ones_and_nothing_is_ignored(
    save: Save, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "class" / "a").mkdir(parents=True)
    save("testing/testing/a/1.png")
    save("unsorted/train/a/1.png")
    save("unsorted/val/1.png")
    for place, says in (
        ("empty", "No class folders"),
        ("class", "No images"),
        ("testing", "testing' holds a folder, 'a'"),
        ("unsorted", r"No images in the class folders of .*val"),
        ("nowhere", "nowhere"),
    ):
        with pytest.raises(UserError, match=says) as caught:
            opened(tmp_path / place)
        assert place == "nowhere" or "PATH/train/<class>/" in caught.value.remedy


def test_what_is_not_a_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "1.png")
    with pytest.raises(UserError, match="is not a file"):
        opened(tmp_path)
    (tmp_path / "a" / "1.png").unlink()
    (tmp_path / "a" / "1.png").symlink_to("nowhere")
    with pytest.raises(UserError, match=r"1\.png.*cannot be read"):
        opened(tmp_path)


# What an image becomes


def test_only_the_images_asked_for_are_decoded(save: Save, tmp_path: Path) -> None:
    save("a/1.png")
    (tmp_path / "a" / "2.png").write_bytes(b"no image")
    train = opened(tmp_path).splits["train"]
    assert train.pixels(0, 1).shape == (1, 4, 6, 3)
    with pytest.raises(UserError, match=r"2\.png"):
        train.pixels(1, 2)


def test_every_mode_becomes_rgb(save: Save, tmp_path: Path) -> None:
    for mode, colour, expected in (
        ("L", 77, (77, 77, 77)),
        ("1", 1, (255, 255, 255)),
        ("LA", (77, 0), (77, 77, 77)),
        ("RGBA", (1, 2, 3, 0), (1, 2, 3)),
        ("P", 0, (0, 0, 0)),
        ("I;16", 40000, (40000 >> 8,) * 3),
    ):
        save("a/1.png", colour, mode=mode)
        np.testing.assert_array_equal(opened(tmp_path).splits["train"].pixels(0, 1)[0, 0, 0], expected)
    palette = Image.new("P", (6, 4), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    palette.save(tmp_path / "a" / "2.png", transparency=bytes([0, 0]))
    Image.new("CMYK", (6, 4), (0, 255, 255, 0)).save(tmp_path / "a" / "1.png", "JPEG", quality=100)
    red, dark = opened(tmp_path).splits["train"].pixels(0, 2)
    np.testing.assert_allclose(red[0, 0], [255, 0, 0], atol=3)
    np.testing.assert_array_equal(dark[0, 0], [10, 20, 30])


def test_of_an_animation_the_first_frame_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    frames = [Image.new("RGB", (6, 4), colour) for colour in ((200, 0, 0), (0, 200, 0))]
    for end in ("gif", "png", "webp"):
        frames[0].save(tmp_path / "a" / f"1.{end}", save_all=True, append_images=frames[1:], lossless=True)
    assert (opened(tmp_path).splits["train"].pixels(0, 3)[:, 0, 0] == [200, 0, 0]).all()


@pytest.mark.parametrize("form", ["EPS", "ICO", "TGA"])
def test_only_common_formats_are_offered_to_a_decoder(tmp_path: Path, form: str) -> None:
    (tmp_path / "a").mkdir()
    Image.new("RGB", (16, 16)).save(tmp_path / "a" / "1.png", format=form)
    with pytest.raises(UserError, match="not an image of a known format"):
        opened(tmp_path)


def test_without_an_image_size_all_images_must_have_the_size_of_the_first(save: Save, tmp_path: Path) -> None:
    save("a/1.png")
    save("a/2.png", size=(4, 6))
    train = opened(tmp_path).splits["train"]
    with pytest.raises(UserError, match=r"2\.png.*do not publish") as caught:
        train.pixels(0, 2)
    assert (caught.value.code, caught.value.fields["parameter"]) == ("bad-record", "image_size")
    for size in ((9, 6), (6, 9), (6, 6), (60, 7), (3, 2), (1, 1000)):
        save("a/2.png", size=size)
        assert opened(tmp_path, image_size=6).splits["train"].pixels(0, 2).shape == (2, 6, 6, 3)


def test_the_crop_is_the_centre_of_the_image_resized_by_its_shorter_side(tmp_path: Path) -> None:
    noise = np.random.default_rng(5).integers(0, 256, (8, 24, 3), np.uint8)
    (tmp_path / "a").mkdir()
    Image.fromarray(noise).save(tmp_path / "a" / "1.png")
    Image.fromarray(noise.transpose(1, 0, 2)).save(tmp_path / "a" / "2.png")
    expected = np.asarray(Image.fromarray(noise).resize((12, 4), Image.Resampling.BICUBIC))[:, 4:8]
    wide, high = opened(tmp_path, image_size=4).splits["train"].pixels(0, 2)
    np.testing.assert_array_equal(wide, expected)
    np.testing.assert_array_equal(high, expected.transpose(1, 0, 2))


def test_every_truncation_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    """Decoders of JPEG like to fill the missing part with grey."""
    (tmp_path / "a").mkdir()
    file = tmp_path / "a" / "1.jpg"
    noise = np.random.default_rng(1).integers(0, 256, (32, 32, 3), np.uint8)
    Image.fromarray(noise).save(file, quality=90)
    whole = file.read_bytes()
    train = opened(tmp_path).splits["train"]
    for length in range(0, len(whole) - 2, 13):
        file.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"1\.jpg.*do not publish"):
            train.pixels(0, 1)


def test_an_image_bomb_is_an_error(save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save("a/1.png", size=(20, 20))
    monkeypatch.setattr("dpfc_cli.images.decoding.MOST_PIXELS", 399)
    with pytest.raises(UserError, match="more than 399 pixels"):
        opened(tmp_path)


def test_pillows_warnings_about_a_picture_are_not_shown(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("RGB", (6, 4)).save(file, "TIFF")
    # The entry is SamplesPerPixel, a SHORT of count 1. Pillow logs a complaint that there are far too many.
    entry = b"\x15\x01\x03\x00\x01\x00\x00\x00"
    (tmp_path / "1.tif").write_bytes(file.getvalue().replace(entry + b"\x03", entry + b"\x99"))
    # This needs a process of its own, because pytest handles every logger.
    program = """
import sys
from dpfc_cli.errors import UserError
from dpfc_cli.images import Preparation
from dpfc_cli.images.decoding import decode
try:
    decode(open(sys.argv[1], "rb").read(), "1.tif", Preparation())
except UserError:
    print("refused")
"""
    command = [sys.executable, "-c", program, str(tmp_path / "1.tif")]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("refused\n", "")
