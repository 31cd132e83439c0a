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
Write = Callable[..., Path]
Planes = Callable[[int, int], np.ndarray]


def test_files_are_joined_in_the_order_of_their_numbers_and_pixels_are_colours_by_row(
    cifar10_folder: Write, planes: Planes
) -> None:
    data = open_images("cifar10", cifar10_folder(numbers=(10, 2, 1)))
    train = data.splits["train"]
    np.testing.assert_array_equal(train.labels, [1, 0, 9, 2, 0, 9, 0, 0, 9])
    for position, number in enumerate((1, 2, 10)):
        expected = planes(3, number).reshape(3, 3, 32, 32).transpose(0, 2, 3, 1)
        np.testing.assert_array_equal(train.pixels(3 * position, 3 * position + 3), expected)
    first = train.pixels(0, 1)[0]
    assert (first[0, 1, 0], first[1, 0, 1], first[31, 31, 2]) == tuple(planes(3, 1)[0, [1, 1024 + 32, 3071]])
    np.testing.assert_array_equal(data.splits["test"].labels, [3, 4])
    assert (data.classes[:2], train.labels.dtype) == (("airplane", "automobile"), np.dtype(np.int32))


def test_folder_parent_archive_and_its_folder_are_one_data_set_and_another_file_makes_another(
    cifar10_folder: Write, pack: Write, tmp_path: Path
) -> None:
    folder = cifar10_folder(folder=tmp_path / "loose")
    apart = tmp_path / "apart" / ARCHIVE
    apart.parent.mkdir()
    pack(folder, ARCHIVE).rename(apart)
    sets = [open_images("cifar10", path) for path in (folder, folder.parent, apart, apart.parent)]
    for split in ("train", "test"):
        assert len({one.splits[split].listing for one in sets}) == 1
        for one in sets[1:]:
            n = one.splits[split].n
            np.testing.assert_array_equal(one.splits[split].pixels(0, n), sets[0].splits[split].pixels(0, n))
    other = open_images("cifar10", cifar10_folder(numbers=(1, 3), folder=tmp_path / "other"))
    assert other.splits["train"].listing != sets[0].splits["train"].listing
    (folder / "test_batch").unlink()
    assert list(open_images("cifar10", folder).splits) == ["train"]


def test_cifar100_has_its_fine_labels(tmp_path: Path, planes: Planes) -> None:
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
    assert (data.classes[42], len(data.classes)) == ("fine 42", 100)


def test_nothing_but_regular_members_of_the_official_folder_is_read(cifar10_folder: Write, tmp_path: Path) -> None:
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


def test_a_file_that_is_there_twice_is_refused(cifar10_folder: Write, tmp_path: Path) -> None:
    """A record that is counted twice would double the sensitivity."""
    folder = cifar10_folder(folder=tmp_path / "loose")
    with tarfile.open(tmp_path / ARCHIVE, "w:gz") as tar:
        tar.add(folder, folder.name)
        tar.add(folder / "data_batch_1", f"{folder.name}/data_batch_1")
    with pytest.raises(UserError, match="twice"):
        open_images("cifar10", tmp_path)


def test_every_truncation_and_every_flipped_bit_of_the_archive_is_an_error(
    cifar10_folder: Write, pack: Write, tmp_path: Path
) -> None:
    archive = pack(cifar10_folder(folder=tmp_path / "loose"), ARCHIVE).rename(tmp_path / ARCHIVE)
    whole = archive.read_bytes()
    harmed = [whole[:length] for length in (*range(0, len(whole), 997), *range(len(whole) - 40, len(whole)))]
    # After the file name in gzip's header, which nobody reads.
    harmed += [whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in range(64, len(whole), 1009)]
    for data in harmed:
        archive.write_bytes(data)
        with pytest.raises(UserError, match=ARCHIVE):
            open_images("cifar10", archive)


def test_a_truncated_or_hostile_file_is_an_error_that_names_it(cifar10_folder: Write) -> None:
    folder = cifar10_folder()
    for name in ("data_batch_1", "test_batch", "batches.meta"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:-5])
        with pytest.raises(UserError, match=name):
            open_images("cifar10", folder)
        (folder / name).write_bytes(whole)
    (folder / "data_batch_2").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(UserError, match=r"data_batch_2.* os\.system"):
        open_images("cifar10", folder)


PICTURES = np.zeros((2, 3072), np.uint8)


def test_a_file_of_another_form_is_an_error(cifar10_folder: Write, tmp_path: Path) -> None:
    forms: list[tuple[object, object, str]] = [
        *((data, [0, 1], "3072 each") for data in (PICTURES[:, 1:], PICTURES.astype(np.int32), PICTURES[0], b"text")),
        (PICTURES, [0, 1, 2], "2 images and 3 labels"),
        *((PICTURES, labels, "integers") for labels in ([0, None], [0, True], [0, 2**70], 7)),
        *((PICTURES, labels, r"outside 0\.\.9") for labels in ([0, 10], [0, -1])),
    ]
    for data, labels, said in forms:
        with pytest.raises(UserError, match=said):
            open_images("cifar10", cifar10_folder(data_batch_1={b"data": data, b"labels": labels}))
    for names in ([b"a"] * 10, [b"only", b"two"], None, [*range(1, 11)]):
        with pytest.raises(UserError, match="10 different classes"):
            open_images("cifar10", cifar10_folder(**{"batches.meta": {b"label_names": names}}))
    with pytest.raises(UserError, match="file of training images"):
        open_images("cifar10", cifar10_folder(numbers=(), folder=tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"cifar-10-batches-py.*cifar-10-python\.tar\.gz"):
        open_images("cifar10", tmp_path / "empty")
