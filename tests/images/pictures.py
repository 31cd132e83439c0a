"""Small pictures, and tiny data sets in the official layouts, for the tests of `dpfc_cli.images`."""

import gzip
import io
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dpfc_cli.geometry import Geometry
from dpfc_cli.images import catalogue
from dpfc_cli.images.sets import ImageSet, Preparation, Request, Split
from dpfc_cli.sources.classes import composed
from dpfc_cli.sources.split_files import TEST_SPLITS, TRAIN_SPLITS, is_clutter

SQUARE = Geometry(resize=8, crop=8)
CLASSES = ("flu", "cold", "rare")
"""Those that tables name."""
AS_SQUARE = Preparation(geometry=SQUARE)


def request(geometry: Geometry | None = None, window: Any = None, exif: bool = False, **asked: Any) -> Request:
    return Request(preparation=Preparation(geometry=geometry, window=window, exif=exif), **asked)


def open_images(source: str, data_dir: Path | None = None, geometry: Geometry | None = None, **asked: Any) -> ImageSet:
    """Open a data set. If the test names no classes, they are the folders, or those that tables of tests have."""
    kind, _, place = source.partition(":")
    if kind == "imagefolder" and "label_column" not in asked:
        asked.setdefault("classes", folders_in(Path(place)))
    elif kind in ("parquet", "arrow"):
        asked.setdefault("classes", CLASSES)
    return catalogue.open_images(source, data_dir, request(geometry, **asked))


def drawn(place: Path, train: int, test: int, ending: str) -> None:
    """Pictures of many sizes in 3 classes, in folders of splits and classes."""
    rng = np.random.default_rng(0)
    for split, n in (("train", train), ("test", test)):
        for i in range(n):
            path = place / split / f"c{i % 3}" / f"{i:03d}{ending}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (*rng.integers(8, 30, 2), 3), np.uint8)).save(path)


def folders_in(place: Path) -> tuple[str, ...]:
    """The names of the class folders, sorted, and more if there are fewer than two."""
    tops = [each for each in place.glob("*") if each.is_dir() and not is_clutter(each.name)]
    inner = [each for top in tops if top.name in TRAIN_SPLITS + TEST_SPLITS for each in top.iterdir() if each.is_dir()]
    names = sorted({composed(each.name) for each in inner or tops})
    return (*names, "other", "more")[: max(2, len(names))]


def png(value: int, size: tuple[int, int] = (6, 4)) -> bytes:
    """A picture in which every value is `value`."""
    file = io.BytesIO()
    Image.new("RGB", size, (value, value, value)).save(file, "PNG")
    return file.getvalue()


def tar(path: Path, members: list[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def values(split: Split) -> np.ndarray:
    """The first value of each picture: for a picture that `png` made, its value."""
    return split.pixels(0, split.n)[:, 0, 0, 0]


def files(folder: Path, *names: str) -> str:
    """Pictures in files of these names. Picture i is full of i. Returns the name of the data set."""
    for i, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(i))
    return f"imagefolder:{folder}"


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
