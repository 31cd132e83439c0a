"""MNIST and Fashion-MNIST: the four IDX files, plain or packed. What is damaged is refused."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.images import open_images

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"

Write = Callable[..., Path]
Digits = Callable[..., tuple[np.ndarray, np.ndarray]]


def test_images_and_labels_are_those_of_the_files(idx_folder: Write, digits_of: Digits) -> None:
    (images, labels), (test_images, test_labels) = digits_of(12), digits_of(5, start=7)
    data = open_images("mnist", idx_folder((images, labels), (test_images, test_labels)))
    assert data.name == "mnist"
    assert data.classes == tuple("0123456789")
    train, test = data.splits["train"], data.splits["test"]
    assert (train.n, test.n) == (12, 5)
    assert train.image_shape == (4, 4, 1)
    assert train.labels.dtype == np.int32
    np.testing.assert_array_equal(train.labels, labels)
    np.testing.assert_array_equal(train.pixels(0, 12)[..., 0], images)
    np.testing.assert_array_equal(train.pixels(3, 5)[..., 0], images[3:5])
    np.testing.assert_array_equal(test.pixels(0, 5)[..., 0], test_images)
    assert train.pixels(2, 2).shape == (0, 4, 4, 1)


def test_fashion_mnist_has_its_own_classes(idx_folder: Write, digits_of: Digits) -> None:
    data = open_images("fashion-mnist", idx_folder(digits_of(3)))
    assert data.classes[0] == "T-shirt/top"
    assert len(data.classes) == 10


def test_packed_or_plain_is_the_same_data_set(idx_folder: Write, digits_of: Digits, tmp_path: Path) -> None:
    plain = open_images("mnist", idx_folder(digits_of(6), folder=tmp_path / "plain")).splits["train"]
    packed = open_images("mnist", idx_folder(digits_of(6), packed=True, folder=tmp_path / "packed")).splits["train"]
    assert plain.listing == packed.listing
    np.testing.assert_array_equal(plain.pixels(0, 6), packed.pixels(0, 6))


@pytest.mark.parametrize("change", ["pixel", "label", "order"])
def test_another_source_has_another_listing(idx_folder: Write, digits_of: Digits, change: str) -> None:
    images, labels = digits_of(6)
    before = open_images("mnist", idx_folder((images, labels))).splits["train"].listing
    images, labels = images.copy(), labels.copy()
    if change == "pixel":
        images[4, 0, 0] ^= 1
    elif change == "label":
        labels[4] ^= 1
    else:
        images, labels = images[::-1].copy(), labels[::-1].copy()
    assert open_images("mnist", idx_folder((images, labels))).splits["train"].listing != before


@pytest.mark.parametrize("place", [".", "mnist", "MNIST/raw"])
def test_the_folder_may_be_named_or_hold_it(idx_folder: Write, digits_of: Digits, tmp_path: Path, place: str) -> None:
    idx_folder(digits_of(3), folder=tmp_path / place)
    assert open_images("mnist", tmp_path).splits["train"].n == 3


def test_without_test_files_there_is_no_test_split(idx_folder: Write, digits_of: Digits) -> None:
    assert list(open_images("mnist", idx_folder(digits_of(3))).splits) == ["train"]


@pytest.mark.parametrize("missing", [LABELS, "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_half_a_split_is_an_error_that_names_the_missing_file(
    idx_folder: Write, digits_of: Digits, missing: str
) -> None:
    folder = idx_folder(digits_of(3), digits_of(2))
    (folder / missing).unlink()
    with pytest.raises(UserError, match=missing):
        open_images("mnist", folder)


def test_a_folder_without_the_files_is_an_error_that_names_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=IMAGES) as caught:
        open_images("mnist", tmp_path)
    assert str(tmp_path / "MNIST/raw") in caught.value.what
    assert (caught.value.code, caught.value.fields["parameter"]) == ("missing", "data_dir")


@pytest.mark.parametrize("name", [IMAGES, LABELS])
@pytest.mark.parametrize("packed", [False, True])
def test_every_truncation_is_an_error_that_names_the_file(
    idx_folder: Write, digits_of: Digits, name: str, packed: bool
) -> None:
    folder = idx_folder(digits_of(2), packed=packed)
    file = folder / (f"{name}.gz" if packed else name)
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(UserError, match=name):
            open_images("mnist", folder)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x08\x03" + b"\xff" * 12,
        b"\x00\x00\x08\x01" + b"\x00\x00\x00\x01" + b"\x00" * 9,
        b"\x00\x00\x0d\x03" + b"\x00\x00\x00\x01" * 3 + b"\x00" * 4,
        b"<html>404 Not Found</html>",
    ],
    ids=["giant", "labels", "floats", "html"],
)
def test_another_header_is_an_error(idx_folder: Write, digits_of: Digits, data: bytes) -> None:
    folder = idx_folder(digits_of(2))
    (folder / IMAGES).write_bytes(data)
    with pytest.raises(UserError, match=IMAGES):
        open_images("mnist", folder)


def test_bytes_after_the_end_are_an_error(idx_folder: Write, digits_of: Digits) -> None:
    folder = idx_folder(digits_of(2))
    (folder / IMAGES).write_bytes((folder / IMAGES).read_bytes() + b"\x00")
    with pytest.raises(UserError, match="holds more"):
        open_images("mnist", folder)


def test_a_damaged_packed_file_is_an_error(idx_folder: Write, digits_of: Digits) -> None:
    folder = idx_folder(digits_of(2), packed=True)
    file = folder / f"{IMAGES}.gz"
    packed = bytearray(gzip.compress(gzip.decompress(file.read_bytes()), 0, mtime=0))
    packed[-12] ^= 1
    file.write_bytes(packed)
    with pytest.raises(UserError, match="cannot be read") as caught:
        open_images("mnist", folder)
    assert caught.value.code == "damaged"


def test_there_must_be_one_label_for_each_image(idx_folder: Write, digits_of: Digits) -> None:
    with pytest.raises(UserError, match="3 images and 4 labels"):
        open_images("mnist", idx_folder((digits_of(3)[0], digits_of(4)[1])))


def test_a_label_out_of_range_is_a_private_error_that_does_not_show_it(idx_folder: Write, digits_of: Digits) -> None:
    images, labels = digits_of(3)
    labels[1] = 77
    folder = idx_folder((images, labels))
    with pytest.raises(UserError, match="do not publish") as caught:
        open_images("mnist", folder)
    assert "77" not in str(caught.value).replace(str(folder), "")


def test_train_and_test_images_must_have_one_size(idx_folder: Write, digits_of: Digits) -> None:
    other = np.zeros((2, 5, 5), np.uint8), np.zeros(2, np.uint8)
    with pytest.raises(UserError, match="differ in size"):
        open_images("mnist", idx_folder(digits_of(3), other))


def test_an_empty_split_is_an_error(idx_folder: Write, digits_of: Digits) -> None:
    with pytest.raises(UserError, match="no images"):
        open_images("mnist", idx_folder(digits_of(0)))


@pytest.mark.parametrize("bounds", [(0, 4), (-1, 2), (2, 1)])
def test_a_range_that_slicing_would_shorten_is_refused(
    idx_folder: Write, digits_of: Digits, bounds: tuple[int, int]
) -> None:
    with pytest.raises(IndexError):
        open_images("mnist", idx_folder(digits_of(3))).splits["train"].pixels(*bounds)
