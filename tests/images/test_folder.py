"""Folders of image files: folders name the classes, pixels are decoded when asked for, one rule for every image."""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpfc_cli.errors import UserError
from dpfc_cli.images import Geometry, ImageSet, open_images

ORIENTATION = 0x0112
QUARTER_TURN_CLOCKWISE = 6


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
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


def opened(folder: Path, image_size: int | None = None) -> ImageSet:
    geometry = None if image_size is None else Geometry(resize=image_size, crop=image_size)
    return open_images(f"imagefolder:{folder}", geometry=geometry)


def test_train_and_test_folders_become_splits_in_sorted_order(save: Callable[..., Path], tmp_path: Path) -> None:
    save("train/dog/b.png", (3, 0, 0))
    save("train/dog/a.png", (2, 0, 0))
    save("train/cat/z.png", (1, 0, 0))
    save("test/dog/a.png", (4, 0, 0))
    data = opened(tmp_path)
    train, test = data.splits["train"], data.splits["test"]
    assert data.name == "imagefolder"
    assert data.classes == ("cat", "dog")
    assert train.image_shape == (4, 6, 3)
    np.testing.assert_array_equal(train.labels, [0, 1, 1])
    np.testing.assert_array_equal(train.pixels(0, 3)[:, 0, 0, 0], [1, 2, 3])
    np.testing.assert_array_equal(train.pixels(1, 2)[:, 0, 0, 0], [2])
    np.testing.assert_array_equal(test.labels, [1])
    np.testing.assert_array_equal(test.pixels(0, 1)[:, 0, 0, 0], [4])
    assert train.labels.dtype == np.int32
    assert train.pixels(0, 3).dtype == np.uint8


@pytest.mark.parametrize("train", ["train", "training"])
@pytest.mark.parametrize("test", ["test", "testing", "val", "valid", "validation"])
def test_the_splits_may_go_by_the_names_that_are_usual(
    save: Callable[..., Path], tmp_path: Path, train: str, test: str
) -> None:
    save(f"{train}/a/1.png")
    save(f"{train}/a/2.png")
    save(f"{test}/a/1.png")
    assert {name: split.n for name, split in opened(tmp_path).splits.items()} == {"train": 2, "test": 1}


@pytest.mark.parametrize("kind", ["symbolic", "hard", "folder"])
def test_a_picture_that_would_count_twice_is_refused(save: Callable[..., Path], tmp_path: Path, kind: str) -> None:
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


def test_a_set_of_links_to_other_files_is_read(save: Callable[..., Path], tmp_path: Path) -> None:
    elsewhere = [save(f"store/{i}.png") for i in range(2)]
    for name, file in zip("ab", elsewhere, strict=True):
        (tmp_path / "set" / name).mkdir(parents=True)
        (tmp_path / "set" / name / "1.png").symlink_to(file)
    assert opened(tmp_path / "set").splits["train"].n == 2


def test_two_folders_for_training_are_refused(save: Callable[..., Path], tmp_path: Path) -> None:
    save("train/a/1.png")
    save("training/a/1.png")
    with pytest.raises(UserError, match="Which is for training"):
        opened(tmp_path)


def test_the_error_for_another_layout_names_the_right_ones(save: Callable[..., Path], tmp_path: Path) -> None:
    save("testing/a/1.png")
    with pytest.raises(UserError, match="testing' holds a folder, 'a'") as caught:
        opened(tmp_path)
    assert "PATH/train/<class>/" in caught.value.remedy
    assert "training" in caught.value.remedy


def test_class_folders_alone_are_training_images(save: Callable[..., Path], tmp_path: Path) -> None:
    save("a/1.png")
    save("b/1.png")
    assert {name: split.n for name, split in opened(tmp_path).splits.items()} == {"train": 2}


def test_classes_are_those_of_all_splits_and_may_be_empty(save: Callable[..., Path], tmp_path: Path) -> None:
    save("train/b/1.png")
    save("test/a/1.png")
    (tmp_path / "train" / "c").mkdir()
    data = opened(tmp_path)
    assert data.classes == ("a", "b", "c")
    np.testing.assert_array_equal(data.splits["train"].labels, [1])
    np.testing.assert_array_equal(data.splits["test"].labels, [0])


def test_classes_that_are_only_folder_names_count_as_inferred(save: Callable[..., Path], tmp_path: Path) -> None:
    """The name of a folder with one patient, who has a rare disease, is not a public fact."""
    save("flu/1.png")
    save("rare/1.png")
    assert opened(tmp_path).origin == "inferred"


def test_asserted_classes_give_the_labels_and_change_neither_records_nor_listing(
    save: Callable[..., Path], tmp_path: Path
) -> None:
    for colour, name in enumerate(("train/b/1.png", "train/c/1.png", "test/a/1.png")):
        save(name, (colour, 0, 0))
    inferred = opened(tmp_path)
    asserted = open_images(f"imagefolder:{tmp_path}", classes=("c", "never seen", "a", "b"))
    assert (asserted.origin, asserted.classes) == ("asserted", ("c", "never seen", "a", "b"))
    assert (asserted.renumbered, inferred.renumbered) == (True, False)
    np.testing.assert_array_equal(asserted.splits["train"].labels, [3, 0])
    np.testing.assert_array_equal(asserted.splits["test"].labels, [2])
    np.testing.assert_array_equal(asserted.splits["train"].pixels(0, 2), inferred.splits["train"].pixels(0, 2))
    # They are the same records, so the budget spent on them is the same too.
    assert asserted.splits["train"].listing == inferred.splits["train"].listing
    more = open_images(f"imagefolder:{tmp_path}", classes=("a", "b", "c", "d"))
    assert not more.renumbered
    np.testing.assert_array_equal(more.splits["train"].labels, inferred.splits["train"].labels)


def test_a_folder_that_is_no_asserted_class_is_refused_in_private(save: Callable[..., Path], tmp_path: Path) -> None:
    save("flu/1.png")
    save("rare/1.png")
    with pytest.raises(UserError, match=r"'rare' is not among the 2 classes.*do not publish"):
        open_images(f"imagefolder:{tmp_path}", classes=("flu", "cold"))


def test_only_visible_files_with_an_image_extension_count(save: Callable[..., Path], tmp_path: Path) -> None:
    save("a/1.PNG")
    save("a/2.JpEg")
    save("a/._1.png")
    save(".hidden/1.png")
    (tmp_path / "a" / "notes.txt").write_text("no image")
    data = opened(tmp_path)
    assert data.classes == ("a",)
    assert data.splits["train"].n == 2


def test_only_the_images_asked_for_are_decoded(save: Callable[..., Path], tmp_path: Path) -> None:
    save("a/1.png")
    (tmp_path / "a" / "2.png").write_bytes(b"no image")
    train = opened(tmp_path).splits["train"]
    assert train.pixels(0, 1).shape == (1, 4, 6, 3)
    with pytest.raises(UserError, match=r"2\.png"):
        train.pixels(1, 2)


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("L", 77, (77, 77, 77)),
        ("1", 1, (255, 255, 255)),
        ("LA", (77, 0), (77, 77, 77)),
        ("RGBA", (1, 2, 3, 0), (1, 2, 3)),
        ("P", 0, (0, 0, 0)),
    ],
)
def test_every_mode_becomes_rgb(
    save: Callable[..., Path],
    tmp_path: Path,
    mode: str,
    colour: int | tuple[int, int] | tuple[int, int, int, int],
    expected: tuple[int, int, int],
) -> None:
    save("a/1.png", colour, mode=mode)
    np.testing.assert_array_equal(opened(tmp_path).splits["train"].pixels(0, 1)[0, 0, 0], expected)


def test_sixteen_bits_keep_their_high_byte(save: Callable[..., Path], tmp_path: Path) -> None:
    save("a/1.png", 40000, mode="I;16")
    np.testing.assert_array_equal(opened(tmp_path).splits["train"].pixels(0, 1)[0], 40000 >> 8)


def test_values_without_a_range_are_refused(save: Callable[..., Path], tmp_path: Path) -> None:
    save("a/1.tif", 40000, mode="I")
    with pytest.raises(UserError, match="no stated range"):
        opened(tmp_path)


def test_cmyk_is_converted_and_a_palettes_transparency_dropped(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.new("CMYK", (6, 4), (0, 255, 255, 0)).save(tmp_path / "a" / "1.jpg", quality=100)
    palette = Image.new("P", (6, 4), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    palette.save(tmp_path / "a" / "2.png", transparency=bytes([0, 0]))
    red, dark = opened(tmp_path).splits["train"].pixels(0, 2)
    np.testing.assert_allclose(red[0, 0], [255, 0, 0], atol=3)
    np.testing.assert_array_equal(dark[0, 0], [10, 20, 30])


@pytest.mark.parametrize("extension", ["gif", "png", "webp"])
def test_of_an_animation_the_first_frame_is_taken(tmp_path: Path, extension: str) -> None:
    (tmp_path / "a").mkdir()
    frames = [Image.new("RGB", (6, 4), colour) for colour in ((200, 0, 0), (0, 200, 0))]
    frames[0].save(tmp_path / "a" / f"1.{extension}", save_all=True, append_images=frames[1:], lossless=True)
    np.testing.assert_array_equal(opened(tmp_path).splits["train"].pixels(0, 1)[0, 0, 0], [200, 0, 0])


def test_exif_orientation_is_not_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = QUARTER_TURN_CLOCKWISE
    (tmp_path / "a").mkdir()
    stored = Image.fromarray(np.array([[[255, 0, 0], [0, 0, 255]]], np.uint8))
    stored.save(tmp_path / "a" / "1.png", exif=exif)
    np.testing.assert_array_equal(opened(tmp_path).splits["train"].pixels(0, 1)[0], [[[255, 0, 0], [0, 0, 255]]])


@pytest.mark.parametrize("form", ["EPS", "ICO", "TGA"])
def test_only_common_formats_are_offered_to_a_decoder(tmp_path: Path, form: str) -> None:
    (tmp_path / "a").mkdir()
    Image.new("RGB", (16, 16)).save(tmp_path / "a" / "1.png", format=form)
    with pytest.raises(UserError, match="not an image of a known format"):
        opened(tmp_path)


def test_without_an_image_size_all_images_must_have_the_size_of_the_first(
    save: Callable[..., Path], tmp_path: Path
) -> None:
    save("a/1.png")
    save("a/2.png", size=(4, 6))
    train = opened(tmp_path).splits["train"]
    with pytest.raises(UserError, match=r"2\.png.*do not publish") as caught:
        train.pixels(0, 2)
    assert (caught.value.code, caught.value.fields["parameter"]) == ("bad-record", "image_size")


@pytest.mark.parametrize("size", [(9, 6), (6, 9), (6, 6), (60, 7), (3, 2), (1, 1000)])
def test_with_an_image_size_every_image_becomes_a_square(
    save: Callable[..., Path], tmp_path: Path, size: tuple[int, int]
) -> None:
    save("a/1.png", size=size)
    train = opened(tmp_path, image_size=6).splits["train"]
    assert train.image_shape == (6, 6, 3)
    assert train.pixels(0, 1).shape == (1, 6, 6, 3)


@pytest.mark.parametrize("wide", [True, False])
def test_the_crop_keeps_the_centre(tmp_path: Path, wide: bool) -> None:
    columns = np.zeros((4, 12, 3), np.uint8)
    columns[:, 4:8] = 200
    (tmp_path / "a").mkdir()
    Image.fromarray(columns if wide else columns.transpose(1, 0, 2)).save(tmp_path / "a" / "1.png")
    np.testing.assert_array_equal(opened(tmp_path, image_size=4).splits["train"].pixels(0, 1)[0], 200)


def test_the_crop_is_the_centre_of_the_image_resized_by_its_shorter_side(tmp_path: Path) -> None:
    noise = np.random.default_rng(5).integers(0, 256, (8, 24, 3), np.uint8)
    (tmp_path / "a").mkdir()
    Image.fromarray(noise).save(tmp_path / "a" / "1.png")
    expected = np.asarray(Image.fromarray(noise).resize((12, 4), Image.Resampling.BICUBIC))[:, 4:8]
    np.testing.assert_array_equal(opened(tmp_path, image_size=4).splits["train"].pixels(0, 1)[0], expected)


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


def test_an_image_bomb_is_an_error(save: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save("a/1.png", size=(20, 20))
    monkeypatch.setattr("dpfc_cli.images.decoding.MOST_PIXELS", 399)
    with pytest.raises(UserError, match="more than 399 pixels"):
        opened(tmp_path)


@pytest.mark.parametrize("change", ["add", "rename", "size", "class"])
def test_another_source_has_another_listing(save: Callable[..., Path], tmp_path: Path, change: str) -> None:
    file = save("a/1.png")
    save("a/2.png")
    before = opened(tmp_path).splits["train"].listing
    assert opened(tmp_path).splits["train"].listing == before
    if change == "add":
        save("a/3.png")
    elif change == "rename":
        file.rename(tmp_path / "a" / "0.png")
    elif change == "size":
        file.write_bytes(file.read_bytes() + b"\0")
    else:
        (tmp_path / "a").rename(tmp_path / "0")
    assert opened(tmp_path).splits["train"].listing != before


def test_a_class_without_a_picture_leaves_the_listing_alone(save: Callable[..., Path], tmp_path: Path) -> None:
    """The pictures are the same, so what is spent on them must add up."""
    save("train/b/1.png")
    before = opened(tmp_path).splits["train"].listing
    (tmp_path / "train" / "a").mkdir()
    save("test/c/1.png")
    assert opened(tmp_path).splits["train"].listing == before


def test_the_listing_does_not_depend_on_where_the_folder_is(save: Callable[..., Path], tmp_path: Path) -> None:
    save("one/a/1.png")
    save("two/a/1.png")
    assert opened(tmp_path / "one").splits["train"].listing == opened(tmp_path / "two").splits["train"].listing


def test_a_folder_in_a_class_folder_is_refused_and_not_ignored(save: Callable[..., Path], tmp_path: Path) -> None:
    save("a/1.png")
    save("a/deeper/1.png")
    with pytest.raises(UserError, match="deeper"):
        opened(tmp_path)


def test_a_folder_without_classes_or_images_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No class folders"):
        opened(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(UserError, match="No images"):
        opened(tmp_path)


def test_a_test_folder_that_is_not_sorted_by_class_is_an_error_and_not_ignored(
    save: Callable[..., Path], tmp_path: Path
) -> None:
    save("train/a/1.png")
    save("val/1.png")
    with pytest.raises(UserError, match=r"No images in the class folders of .*val"):
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


def test_a_missing_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        opened(tmp_path / "nowhere")


def test_what_is_not_a_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "1.png")
    with pytest.raises(UserError, match="is not a file"):
        opened(tmp_path)
    (tmp_path / "a" / "1.png").unlink()
    (tmp_path / "a" / "1.png").symlink_to("nowhere")
    with pytest.raises(UserError, match=r"1\.png.*cannot be read"):
        opened(tmp_path)


def test_a_range_past_the_end_is_refused(save: Callable[..., Path], tmp_path: Path) -> None:
    save("a/1.png")
    with pytest.raises(IndexError):
        opened(tmp_path).splits["train"].pixels(0, 2)
