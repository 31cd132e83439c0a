"""CIFAR-10 and CIFAR-100 from their official archives, and from nothing else: their pickles are programs."""

import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.extensions.archives.cifar import HUNDRED, TEN, Layout, open_cifar
from dpfc_cli.images.sets import ImageSet, Request
from tests.support import refuses


def planes(n: int, seed: int) -> np.ndarray:
    """n images as CIFAR stores them, (n, 3072) bytes: three planes of 32 by 32."""
    return np.random.default_rng(seed).integers(0, 256, (n, 3072), np.uint8)


def python2(data: np.ndarray, name: bytes, labels: list[int]) -> bytes:
    """What Python 2's cPickle writes in protocol 2 for {'data': array, name: list}: as in the official files."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value

    shape = b"(" + b"".join(b"M" + struct.pack("<H", length) for length in data.shape) + b"t"
    empty = b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + b"K\x00\x85" + text(b"b") + b"\x87R"
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R" + b"(K\x03" + text(b"|") + b"NNN"
    dtype += b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = empty + b"(K\x01" + shape + dtype + b"\x89" + text(data.tobytes()) + b"tb"
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(name) + listed + b"u."


def name_of(layout: Layout) -> str:
    return layout.remote.place.name


def archived(folder: Path, layout: Layout, **files: bytes) -> Layout:
    """An archive of these files, and the layout for which it is the official one."""
    with tarfile.open(folder / name_of(layout), "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{layout.folder}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    data = (folder / name_of(layout)).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    return layout._replace(remote=layout.remote._replace(size=len(data), sha256=digest))


def ten(folder: Path) -> Layout:
    """Three training images in each of five files, and two for testing."""
    files = {f"data_batch_{i}": python2(planes(3, i), b"labels", [i, 0, 9]) for i in (1, 2, 3, 4, 5)}
    return archived(folder, TEN, **files, test_batch=python2(planes(2, 99), b"labels", [3, 4]))


def opened(layout: Layout, place: Path) -> ImageSet:
    return open_cifar(layout, Request(place=place))


def test_files_are_joined_in_the_order_of_their_numbers_and_pixels_are_colours_by_row(tmp_path: Path) -> None:
    layout = ten(tmp_path)
    for place in (tmp_path, tmp_path / name_of(layout)):
        data = opened(layout, place)
        train = data.splits["train"]
        assert train.labels.tolist() == [label for i in range(1, 6) for label in (i, 0, 9)]
        for i in range(5):
            expected = planes(3, i + 1).reshape(3, 3, 32, 32).transpose(0, 2, 3, 1)
            np.testing.assert_array_equal(train.pixels(3 * i, 3 * i + 3), expected)
        first = train.pixels(0, 1)[0]
        assert (first[0, 1, 0], first[1, 0, 1], first[31, 31, 2]) == tuple(planes(3, 1)[0, [1, 1024 + 32, 3071]])
        assert data.splits["test"].labels.tolist() == [3, 4]
        assert (data.classes[:2], train.labels.dtype) == (("airplane", "automobile"), np.dtype(np.int32))


def test_cifar100_has_its_fine_labels(tmp_path: Path) -> None:
    train, test = python2(planes(2, 1), b"fine_labels", [99, 5]), python2(planes(1, 2), b"fine_labels", [42])
    data = opened(archived(tmp_path, HUNDRED, train=train, test=test), tmp_path)
    assert data.splits["train"].labels.tolist() == [99, 5]
    assert len(data.classes) == len(set(HUNDRED.classes)) == 100


class Hostile:
    """Pickles as a call that makes a file."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.witness),)


def test_nothing_of_another_archive_is_read(tmp_path: Path) -> None:
    layout, place = ten(tmp_path), tmp_path / name_of(TEN)
    whole, witness = place.read_bytes(), tmp_path / "ran"
    archived(tmp_path, TEN, data_batch_1=pickle.dumps(Hostile(witness)))
    hostile = place.read_bytes()
    for data in (hostile, whole[:-1], whole + b"\0", whole[:99] + bytes([whole[99] ^ 1]) + whole[100:], b""):
        place.write_bytes(data)
        with refuses("damaged", path=str(place), parameter="data_dir"):
            opened(layout, tmp_path)
    assert not witness.exists()
    # It was hostile.
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(hostile))) as archive:
        pickle.loads(archive.extractfile(archive.next()).read())  # type: ignore[arg-type,union-attr]
    assert witness.exists()
    place.unlink()
    with refuses("missing", match=r"cifar-10-python\.tar\.gz", parameter="data_dir"):
        opened(layout, tmp_path)
    os.mkfifo(place)
    with pytest.raises(Exception, match="official"):
        opened(layout, tmp_path)
