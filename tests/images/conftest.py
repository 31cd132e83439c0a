"""Tiny data sets in the official layouts, for the tests of `dpfc_cli.images`."""

import gzip
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

CIFAR10_NAMES = [b"airplane", b"automobile", b"bird", b"cat", b"deer", b"dog", b"frog", b"horse", b"ship", b"truck"]


def idx_bytes(values: np.ndarray) -> bytes:
    return struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


@pytest.fixture
def idx_folder(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes the four files of MNIST for images (n, H, W) and labels, plain or packed."""

    def write(
        train: tuple[np.ndarray, np.ndarray],
        test: tuple[np.ndarray, np.ndarray] | None = None,
        packed: bool = False,
        folder: Path = tmp_path,
    ) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for prefix, part in (("train", train), ("t10k", test)):
            for kind, values in zip(("images-idx3", "labels-idx1"), part or (), strict=False):
                data = idx_bytes(values)
                name = f"{prefix}-{kind}-ubyte"
                if packed:
                    (folder / f"{name}.gz").write_bytes(gzip.compress(data, mtime=0))
                else:
                    (folder / name).write_bytes(data)
        return folder

    return write


@pytest.fixture
def digits_of() -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """A function that makes n images of 4 by 4 with the labels 0, 1 … 9, 0 …. Each start gives other images."""

    def make(n: int, start: int = 0) -> tuple[np.ndarray, np.ndarray]:
        images = (np.arange(n * 16, dtype=np.int64) + start).astype(np.uint8).reshape(n, 4, 4)
        return images, (np.arange(n) % 10).astype(np.uint8)

    return make


@pytest.fixture
def planes() -> Callable[[int, int], np.ndarray]:
    """A function that makes n images as CIFAR stores them, (n, 3072) bytes: three planes of 32 by 32."""

    def make(n: int, seed: int) -> np.ndarray:
        return np.random.default_rng(seed).integers(0, 256, (n, 3072), np.uint8)

    return make


@pytest.fixture
def cifar10_folder(tmp_path: Path, planes: Callable[[int, int], np.ndarray]) -> Callable[..., Path]:
    """A function that writes `cifar-10-batches-py`: a file of three training images for each number, and a test file.

    changes: what other files hold, or the same files hold instead.
    """

    def write(numbers: tuple[int, ...] = (1, 2), folder: Path = tmp_path, **changes: object) -> Path:
        place = folder / "cifar-10-batches-py"
        place.mkdir(parents=True, exist_ok=True)
        files = {f"data_batch_{number}": contents(planes(3, number), [number % 10, 0, 9]) for number in numbers}
        files |= {"test_batch": contents(planes(2, 99), [3, 4]), "batches.meta": {b"label_names": CIFAR10_NAMES}}
        for name, value in (files | changes).items():
            (place / name).write_bytes(pickle.dumps(value, protocol=2))
        return place

    def contents(data: np.ndarray, labels: list[int]) -> dict[bytes, object]:
        return {b"data": data, b"labels": labels, b"batch_label": b"a batch", b"filenames": [b"a.png"] * len(labels)}

    return write


@pytest.fixture
def pack() -> Callable[[Path, str], Path]:
    """A function that packs a folder into a .tar.gz beside it, under the folder's own name."""

    def make(folder: Path, name: str) -> Path:
        archive = folder.parent / name
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(folder, folder.name)
        return archive

    return make
