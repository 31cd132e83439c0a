"""ImageNet: folders and archives, with a packed or an unpacked kit, give the same pictures."""

import errno
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from dpfc_cli.errors import UserError
from tests.images.pictures import SQUARE, open_images, png, tar, values
from tests.support import refuses

WNIDS = ("n01440764", "n01443537", "n02084071")


@pytest.fixture
def imagenet(tmp_path: Path) -> Callable[[str], Path]:
    """A function that writes ImageNet in one of its layouts: 3 classes of 4 training images, 6 validation images."""
    train = {w: [(f"{w}_{j}.JPEG", png(10 * i + j)) for j in (3, 1, 2, 0)] for i, w in enumerate(WNIDS)}
    truth = [2, 0, 1, 1, 0, 2]
    val = [(f"ILSVRC2012_val_{i + 1:08d}.JPEG", png(100 + i)) for i in range(6)]
    # The kit numbers the classes from 1, in its own order. Inner nodes of the hierarchy come last.
    numbers = {0: 2, 1: 3, 2: 1}

    def write(layout: str) -> Path:
        folder = tmp_path / layout
        if layout == "folders":
            for w, images in train.items():
                for name, data in images:
                    file(folder / "train" / w / name, data)
            for label, (name, data) in zip(truth, val, strict=True):
                file(folder / "val" / WNIDS[label] / name, data)
            return folder
        inner = []
        for w in reversed(WNIDS):
            inner.append((f"{w}.tar", tar(tmp_path / f"{w}.tar", train[w]).read_bytes()))
        tar(folder / "ILSVRC2012_img_train.tar", inner)
        tar(folder / "ILSVRC2012_img_val.tar", val)
        synsets = np.zeros(4, [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("num_children", "O")])
        for row, label in enumerate((2, 0, 1)):
            synsets[row] = (numbers[label], WNIDS[label], 0)
        synsets[3] = (4, "n00001740", 3)
        mat = io.BytesIO()
        savemat(mat, {"synsets": synsets})
        kit = folder / "ILSVRC2012_devkit_t12"
        file(kit / "data" / "meta.mat", mat.getvalue())
        lines = "".join(f"{numbers[label]}\n" for label in truth)
        file(kit / "data" / "ILSVRC2012_validation_ground_truth.txt", lines.encode())
        if layout == "packed":
            with tarfile.open(folder / "ILSVRC2012_devkit_t12.tar.gz", "w:gz") as archive:
                archive.add(kit, kit.name)
            for path in (*(kit / "data").iterdir(), kit / "data", kit):
                path.rmdir() if path.is_dir() else path.unlink()
        return folder

    def file(path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    return write


@pytest.mark.parametrize("layout", ["folders", "packed", "unpacked"])
def test_imagenet_is_the_same_from_folders_and_from_its_archives(imagenet: Callable[[str], Path], layout: str) -> None:
    data = open_images("imagenet", imagenet(layout), SQUARE, classes=WNIDS)
    train, test = data.splits["train"], data.splits["test"]
    assert (data.name, data.classes, data.origin) == ("imagenet", WNIDS, "asserted")
    np.testing.assert_array_equal(train.labels, np.repeat([0, 1, 2], 4))
    np.testing.assert_array_equal(values(train), [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23])
    np.testing.assert_array_equal(test.labels, [0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(values(test), [101, 104, 102, 103, 100, 105])
    reference = open_images("imagenet", imagenet("folders"), SQUARE, classes=WNIDS)
    assert train.listing == reference.splits["train"].listing
    assert test.listing == reference.splits["test"].listing


def test_imagenet_without_its_kit_has_no_validation_labels_and_says_so(imagenet: Callable[[str], Path]) -> None:
    folder = imagenet("packed")
    kit = folder / "ILSVRC2012_devkit_t12.tar.gz"
    data = kit.read_bytes()
    kit.write_bytes(data[:100])
    with refuses("damaged"):
        open_images("imagenet", folder, SQUARE, classes=WNIDS)
    kit.unlink()
    with refuses("damaged"):
        open_images("imagenet", folder, SQUARE, classes=WNIDS)
    (folder / "ILSVRC2012_img_val.tar").unlink()
    assert set(open_images("imagenet", folder, SQUARE, classes=WNIDS).splits) == {"train"}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("ILSVRC2012_validation_ground_truth.txt", b"1\n2\n"),
        ("ILSVRC2012_validation_ground_truth.txt", b"7\n" * 6),
        ("ILSVRC2012_validation_ground_truth.txt", b"one\n" * 6),
        ("meta.mat", b"MATLAB 5.0 MAT-file"),
    ],
)
def test_a_kit_that_does_not_fit_is_refused(imagenet: Callable[[str], Path], name: str, data: bytes) -> None:
    folder = imagenet("unpacked")
    (folder / "ILSVRC2012_devkit_t12" / "data" / name).write_bytes(data)
    with pytest.raises(UserError):
        open_images("imagenet", folder, SQUARE, classes=WNIDS)


def test_imagenet_that_is_not_there_says_where_to_get_it(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        with pytest.raises(UserError) as caught:
            open_images("imagenet", folder, SQUARE, classes=WNIDS)
        assert "image-net.org" in caught.value.remedy
        assert (caught.value.code, caught.value.fields["parameter"]) == ("missing", "data_dir")


@pytest.mark.parametrize("layout", ["folders", "unpacked"])
def test_folders_and_archives_state_no_classes(imagenet: Callable[[str], Path], layout: str) -> None:
    """They may be pictures of other people, and be called as one of them."""
    folder = imagenet(layout)
    for classes in (None, WNIDS[1:]):
        with refuses("conflict", parameter="classes"):
            open_images("imagenet", folder, SQUARE, classes=classes)
    found = open_images("imagenet", folder, SQUARE, classes=("rare", *WNIDS[::-1]))
    assert found.classes == ("rare", *WNIDS[::-1])
    assert found.splits["train"].labels.tolist() == [3] * 4 + [2] * 4 + [1] * 4
    assert found.splits["test"].labels.tolist() == [3, 3, 2, 2, 1, 1]


def test_a_kit_that_declares_too_much_is_damaged_and_a_lack_of_memory_says_nothing(
    imagenet: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = imagenet("unpacked")

    def fail(error: BaseException) -> Callable[..., object]:
        def failing(*_: object, **__: object) -> object:
            raise error

        return failing

    monkeypatch.setattr("scipy.io.loadmat", fail(MemoryError()))
    with refuses("damaged"):
        open_images("imagenet", folder, SQUARE, classes=WNIDS)
    with monkeypatch.context() as patch:
        patch.setattr("dpfc_cli.memory.mmap.mmap", fail(OSError(errno.ENOMEM, "Cannot allocate memory")))
        with pytest.raises(MemoryError, match="does not give"):
            open_images("imagenet", folder, SQUARE, classes=WNIDS)
