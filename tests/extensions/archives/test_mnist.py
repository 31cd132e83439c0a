"""MNIST and Fashion-MNIST: their four official files, and nothing else."""

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np

from dpfc_cli.downloads import Remote
from dpfc_cli.extensions.archives.mnist import GARMENTS, MNIST, open_idx
from dpfc_cli.images.sets import ImageSet, Request
from tests.support import refuses


def idx(values: np.ndarray) -> bytes:
    return struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


def images(n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 256, (n, 28, 28), np.uint8)


def made(folder: Path) -> tuple[Remote, ...]:
    """12 images to train on and 5 to test on, and the files for which these are the official ones."""
    found = []
    arrays = (images(12), np.arange(12, dtype=np.uint8) % 10, images(5), np.arange(5, dtype=np.uint8))
    for remote, array in zip(MNIST.remotes, arrays, strict=True):
        data = gzip.compress(idx(array), mtime=0)
        (folder / remote.place.name).write_bytes(data)
        found.append(remote._replace(size=len(data), sha256=hashlib.sha256(data).hexdigest()))
    return tuple(found)


def opened(remotes: tuple[Remote, ...], folder: Path) -> ImageSet:
    return open_idx("fashion-mnist", GARMENTS, remotes, Request(place=folder))


def test_images_and_labels_are_those_of_the_files(tmp_path: Path) -> None:
    data = opened(made(tmp_path), tmp_path)
    assert (data.name, data.classes) == ("fashion-mnist", GARMENTS)
    for split, n in (("train", 12), ("test", 5)):
        found = data.splits[split]
        assert found.labels.tolist() == [i % 10 for i in range(n)]
        np.testing.assert_array_equal(found.pixels(0, n)[..., 0], images(n))


def test_a_file_that_is_another_one_or_is_not_there_is_named(tmp_path: Path) -> None:
    remotes = made(tmp_path)
    for remote in remotes:
        place = tmp_path / remote.place.name
        whole = place.read_bytes()
        for data in (gzip.compress(idx(images(7))), whole[:-1], whole + b"\0"):
            place.write_bytes(data)
            with refuses("damaged", path=str(place)):
                opened(remotes, tmp_path)
        place.unlink()
        with refuses("missing", match=place.name, parameter="data_dir"):
            opened(remotes, tmp_path)
        place.write_bytes(whole)
