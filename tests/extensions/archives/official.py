"""Tiny data sets in the official layouts."""

import gzip
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np


def idx_bytes(values: np.ndarray) -> bytes:
    return struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


def idx(folder: Path, train: tuple[np.ndarray, ...], test: tuple[np.ndarray, ...] = (), packed: bool = False) -> Path:
    """The four files of MNIST for images (n, H, W) and labels, plain or packed."""
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, part in (("train", train), ("t10k", test)):
        for kind, values in zip(("images-idx3", "labels-idx1"), part, strict=False):
            data, name = idx_bytes(values), f"{prefix}-{kind}-ubyte"
            (folder / f"{name}{'.gz' * packed}").write_bytes(gzip.compress(data, mtime=0) if packed else data)
    return folder


def digits(n: int, start: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """n images of 4 by 4 with the labels 0, 1 … 9, 0 …. Each start gives other images."""
    images = (np.arange(n * 16, dtype=np.int64) + start).astype(np.uint8).reshape(n, 4, 4)
    return images, (np.arange(n) % 10).astype(np.uint8)


CIFAR10_NAMES = [b"airplane", b"automobile", b"bird", b"cat", b"deer", b"dog", b"frog", b"horse", b"ship", b"truck"]


def planes(n: int, seed: int) -> np.ndarray:
    """n images as CIFAR stores them, (n, 3072) bytes: three planes of 32 by 32."""
    return np.random.default_rng(seed).integers(0, 256, (n, 3072), np.uint8)


def cifar10(folder: Path, numbers: tuple[int, ...] = (1, 2), **changes: object) -> Path:
    """`cifar-10-batches-py`: a file of three training images for each number, and a test file. changes: what other
    files hold, or the same files hold instead.
    """

    def contents(data: np.ndarray, labels: list[int]) -> dict[bytes, object]:
        return {b"data": data, b"labels": labels, b"batch_label": b"a batch", b"filenames": [b"a.png"] * len(labels)}

    place = folder / "cifar-10-batches-py"
    place.mkdir(parents=True, exist_ok=True)
    held = {f"data_batch_{number}": contents(planes(3, number), [number % 10, 0, 9]) for number in numbers}
    held |= {"test_batch": contents(planes(2, 99), [3, 4]), "batches.meta": {b"label_names": CIFAR10_NAMES}}
    for name, value in (held | changes).items():
        (place / name).write_bytes(pickle.dumps(value, protocol=3))
    return place


def pack(folder: Path, archive: Path) -> Path:
    """A folder as a .tar.gz, under the folder's own name."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, folder.name)
    return archive
