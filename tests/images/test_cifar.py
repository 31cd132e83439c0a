"""CIFAR-10 and CIFAR-100 in their official layouts, packed or unpacked. What is damaged is refused."""

import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.images import open_images

ARCHIVE = "cifar-10-python.tar.gz"


def test_pixels_are_red_green_blue_by_row(
    cifar10_folder: Callable[..., Path], planes: Callable[[int, int], np.ndarray]
) -> None:
    train = open_images("cifar10", cifar10_folder()).splits["train"]
    stored = planes(3, 1)
    first = train.pixels(0, 1)[0]
    assert first.shape == (32, 32, 3)
    assert first[0, 1, 0] == stored[0, 1]
    assert first[1, 0, 1] == stored[0, 1024 + 32]
    assert first[31, 31, 2] == stored[0, 3071]


def test_files_are_joined_in_the_order_of_their_numbers(
    cifar10_folder: Callable[..., Path], planes: Callable[[int, int], np.ndarray]
) -> None:
    data = open_images("cifar10", cifar10_folder(numbers=(10, 2, 1)))
    train = data.splits["train"]
    assert train.n == 9
    np.testing.assert_array_equal(train.labels, [1, 0, 9, 2, 0, 9, 0, 0, 9])
    for position, number in enumerate((1, 2, 10)):
        expected = planes(3, number).reshape(3, 3, 32, 32).transpose(0, 2, 3, 1)
        np.testing.assert_array_equal(train.pixels(3 * position, 3 * position + 3), expected)
    np.testing.assert_array_equal(data.splits["test"].labels, [3, 4])
    assert data.classes[:2] == ("airplane", "automobile")
    assert train.labels.dtype == np.int32


def test_folder_parent_archive_and_its_folder_are_one_data_set(
    cifar10_folder: Callable[..., Path], pack: Callable[[Path, str], Path], tmp_path: Path
) -> None:
    folder = cifar10_folder(folder=tmp_path / "loose")
    archive = pack(folder, ARCHIVE)
    apart = tmp_path / "apart" / ARCHIVE
    apart.parent.mkdir()
    archive.rename(apart)
    sets = [open_images("cifar10", path) for path in (folder, folder.parent, apart, apart.parent)]
    for split in ("train", "test"):
        assert len({one.splits[split].listing for one in sets}) == 1
        for one in sets[1:]:
            n = one.splits[split].n
            np.testing.assert_array_equal(one.splits[split].pixels(0, n), sets[0].splits[split].pixels(0, n))


def test_a_changed_file_changes_the_listing(cifar10_folder: Callable[..., Path]) -> None:
    before = open_images("cifar10", cifar10_folder(numbers=(1,))).splits["train"].listing
    after = open_images("cifar10", cifar10_folder(numbers=(1, 3))).splits["train"].listing
    assert before != after


def test_cifar100_has_its_fine_labels(tmp_path: Path, planes: Callable[[int, int], np.ndarray]) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    fine = [f"fine {i}".encode() for i in range(100)]
    for name, contents in {
        "train": {b"data": planes(2, 1), b"fine_labels": [99, 5], b"coarse_labels": [1, 2]},
        "test": {b"data": planes(1, 2), b"fine_labels": [42], b"coarse_labels": [1]},
        "meta": {b"fine_label_names": fine, b"coarse_label_names": [b"x"] * 20},
    }.items():
        (folder / name).write_bytes(pickle.dumps(contents, 2))
    data = open_images("cifar100", tmp_path)
    np.testing.assert_array_equal(data.splits["train"].labels, [99, 5])
    assert data.classes[42] == "fine 42"
    assert len(data.classes) == 100


def test_nothing_but_regular_members_of_the_official_folder_is_read(
    cifar10_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = cifar10_folder(folder=tmp_path / "loose")
    archive = tmp_path / ARCHIVE
    with tarfile.open(archive, "w:gz") as tar:
        for file in sorted(folder.iterdir()):
            tar.add(file, f"./cifar-10-batches-py/{file.name}")
        for name in ("cifar-10-batches-py/data_batch_7", "../data_batch_8", "/etc/data_batch_9", "other/data_batch_9"):
            member = tarfile.TarInfo(name)
            member.type = tarfile.SYMTYPE if name.endswith("7") else tarfile.REGTYPE
            member.linkname = "/etc/passwd"
            tar.addfile(member, io.BytesIO(b""))
    assert open_images("cifar10", archive).splits["train"].n == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == [ARCHIVE, "loose"]


def test_a_file_that_is_there_twice_is_refused(cifar10_folder: Callable[..., Path], tmp_path: Path) -> None:
    """A record that is counted twice would double the sensitivity."""
    folder = cifar10_folder(folder=tmp_path / "loose")
    with tarfile.open(tmp_path / ARCHIVE, "w:gz") as tar:
        tar.add(folder, folder.name)
        tar.add(folder / "data_batch_1", f"{folder.name}/data_batch_1")
    with pytest.raises(UserError, match="twice"):
        open_images("cifar10", tmp_path)


def test_every_truncation_of_the_archive_is_an_error(
    cifar10_folder: Callable[..., Path], pack: Callable[[Path, str], Path], tmp_path: Path
) -> None:
    archive = pack(cifar10_folder(folder=tmp_path / "loose"), ARCHIVE).rename(tmp_path / ARCHIVE)
    whole = archive.read_bytes()
    for length in [*range(0, len(whole), 997), *range(len(whole) - 40, len(whole))]:
        archive.write_bytes(whole[:length])
        with pytest.raises(UserError, match=ARCHIVE):
            open_images("cifar10", archive)


def test_a_flipped_bit_in_the_archive_is_an_error(
    cifar10_folder: Callable[..., Path], pack: Callable[[Path, str], Path], tmp_path: Path
) -> None:
    archive = pack(cifar10_folder(folder=tmp_path / "loose"), ARCHIVE).rename(tmp_path / ARCHIVE)
    whole = archive.read_bytes()
    for position in range(64, len(whole), 1009):  # after the file name in gzip's header, which nobody reads
        archive.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
        with pytest.raises(UserError):
            open_images("cifar10", archive)


@pytest.mark.parametrize("name", ["data_batch_1", "test_batch", "batches.meta"])
def test_a_truncated_file_is_an_error_that_names_it(cifar10_folder: Callable[..., Path], name: str) -> None:
    folder = cifar10_folder()
    (folder / name).write_bytes((folder / name).read_bytes()[:-5])
    with pytest.raises(UserError, match=name):
        open_images("cifar10", folder)


def test_a_hostile_file_is_named(cifar10_folder: Callable[..., Path]) -> None:
    folder = cifar10_folder()
    (folder / "data_batch_2").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(UserError, match=r"data_batch_2.* os\.system"):
        open_images("cifar10", folder)


@pytest.mark.parametrize(
    ("data", "labels", "said"),
    [
        (np.zeros((2, 3071), np.uint8), [0, 1], "3072 each"),
        (np.zeros((2, 3072), np.int32), [0, 1], "3072 each"),
        (np.zeros(3072, np.uint8), [0], "3072 each"),
        (b"text", [0], "3072 each"),
        (np.zeros((2, 3072), np.uint8), [0, 1, 2], "2 images and 3 labels"),
        (np.zeros((2, 3072), np.uint8), [0, None], "integers"),
        (np.zeros((2, 3072), np.uint8), [0, True], "integers"),
        (np.zeros((2, 3072), np.uint8), [0, 2**70], "integers"),
        (np.zeros((2, 3072), np.uint8), 7, "integers"),
        (np.zeros((2, 3072), np.uint8), [0, 10], "outside 0..9"),
        (np.zeros((2, 3072), np.uint8), [0, -1], "outside 0..9"),
    ],
)
def test_a_file_of_another_form_is_an_error(
    cifar10_folder: Callable[..., Path], data: object, labels: object, said: str
) -> None:
    folder = cifar10_folder(data_batch_1={b"data": data, b"labels": labels})
    with pytest.raises(UserError, match=said):
        open_images("cifar10", folder)


@pytest.mark.parametrize("names", [[b"a"] * 10, [b"only", b"two"], None, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]], ids=str)
def test_the_classes_must_be_ten_different_names(cifar10_folder: Callable[..., Path], names: object) -> None:
    with pytest.raises(UserError, match="10 different classes"):
        open_images("cifar10", cifar10_folder(**{"batches.meta": {b"label_names": names}}))


def test_without_training_images_there_is_no_data_set(cifar10_folder: Callable[..., Path]) -> None:
    with pytest.raises(UserError, match="file of training images"):
        open_images("cifar10", cifar10_folder(numbers=()))


def test_without_a_test_file_there_is_no_test_split(cifar10_folder: Callable[..., Path]) -> None:
    folder = cifar10_folder()
    (folder / "test_batch").unlink()
    assert list(open_images("cifar10", folder).splits) == ["train"]


def test_a_folder_without_the_data_set_is_an_error_that_names_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cifar-10-batches-py.*cifar-10-python\.tar\.gz"):
        open_images("cifar10", tmp_path)
