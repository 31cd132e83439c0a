"""MNIST and Fashion-MNIST: the four IDX files, plain or packed."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.images.catalogue import open_images
from dpfc_cli.images.sets import ImageSet
from tests.extensions.archives.official import digits, idx
from tests.support import refuses

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def refused(folder: Path, code: str, match: str) -> UserError:
    with refuses(code, match) as caught:
        open_images("mnist", folder)
    return caught.value


def test_images_and_labels_are_those_of_the_files(tmp_path: Path) -> None:
    (images, labels), (test_images, test_labels) = digits(12), digits(5, start=7)
    folder = idx(tmp_path, (images, labels), (test_images, test_labels))
    data = open_images("mnist", folder)
    assert (data.name, data.classes) == ("mnist", tuple("0123456789"))
    train, test = data.splits["train"], data.splits["test"]
    assert (train.n, test.n, train.pixels.shape, train.labels.dtype) == (12, 5, (4, 4, 1), np.dtype(np.int32))
    np.testing.assert_array_equal(train.labels, labels)
    np.testing.assert_array_equal(train.pixels(0, 12)[..., 0], images)
    np.testing.assert_array_equal(train.pixels(3, 5)[..., 0], images[3:5])
    np.testing.assert_array_equal(test.pixels(0, 5)[..., 0], test_images)
    assert train.pixels(2, 2).shape == (0, 4, 4, 1)
    for bounds in ((0, 13), (-1, 2), (2, 1)):
        with pytest.raises(IndexError):
            train.pixels(*bounds)
    fashion = open_images("fashion-mnist", folder)
    assert (fashion.classes[0], len(fashion.classes)) == ("T-shirt/top", 10)


def test_packed_or_plain_or_deeper_it_is_the_same_data_set_and_another_source_is_another(tmp_path: Path) -> None:
    images, labels = digits(6)
    made = 0

    def opened(images: np.ndarray, labels: np.ndarray, place: str = ".", packed: bool = False) -> ImageSet:
        nonlocal made
        made += 1
        idx(tmp_path / f"{made}" / place, (images, labels), packed=packed)
        return open_images("mnist", tmp_path / f"{made}")

    plain = opened(images, labels)
    assert list(plain.splits) == ["train"]
    for other in (
        opened(images, labels, packed=True),
        opened(images, labels, "mnist"),
        opened(images, labels, "MNIST/raw"),
    ):
        assert other.splits["train"].listing == plain.splits["train"].listing
        np.testing.assert_array_equal(other.splits["train"].pixels(0, 6), images[..., None])
    changed, relabelled = images.copy(), labels.copy()
    changed[4, 0, 0] ^= 1
    relabelled[4] ^= 1
    for different in ((changed, labels), (images, relabelled), (images[::-1].copy(), labels[::-1].copy())):
        assert opened(*different).splits["train"].listing != plain.splits["train"].listing


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    error = refused(tmp_path, "missing", IMAGES)
    assert "MNIST/raw" in error.what
    assert error.fields["parameter"] == "data_dir"
    for missing in (LABELS, "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        folder = idx(tmp_path, digits(3), digits(2))
        (folder / missing).unlink()
        refused(folder, "missing", missing)


@pytest.mark.parametrize("name", [IMAGES, LABELS])
def test_every_truncation_and_another_header_are_errors_that_name_the_file(name: str, tmp_path: Path) -> None:
    for packed in (False, True):
        folder = idx(tmp_path / f"{packed}", digits(2), packed=packed)
        file = folder / (f"{name}.gz" if packed else name)
        whole = file.read_bytes()
        for length in range(len(whole)):
            file.write_bytes(whole[:length])
            refused(folder, "damaged", name)
    plain = gzip.decompress(whole)
    giant, floats = b"\x00\x00\x08\x03" + b"\xff" * 12, b"\x00\x00\x0d\x03" + b"\x00\x00\x00\x01" * 3 + b"\x00" * 4
    for data in (giant, floats, plain + b"\0", b"<html>404 Not Found</html>"):
        file.write_bytes(gzip.compress(data))
        refused(folder, "damaged", name)
    flipped = bytearray(gzip.compress(plain, 0, mtime=0))
    flipped[-12] ^= 1
    file.write_bytes(flipped)
    refused(folder, "damaged", name)


def test_files_that_do_not_fit_together_are_refused_and_a_label_is_not_shown(tmp_path: Path) -> None:
    images, labels = digits(3)
    for train, test, code, says in (
        ((images, digits(4)[1]), (), "conflict", "3 .* 4 "),
        ((images, labels), (np.zeros((2, 5, 5), np.uint8), np.zeros(2, np.uint8)), "conflict", "size"),
        (digits(0), (), "missing", "do not publish"),
        ((images, np.array([0, 77, 1], np.uint8)), (), "bad-record", "do not publish"),
    ):
        folder = idx(tmp_path, train, test)
        assert "77" not in str(refused(folder, code, says)).replace(str(folder), "")
        for file in folder.glob("*ubyte"):
            file.unlink()
