"""Small pictures for the tests of `dpfc_cli.images`."""

import io
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpfc_cli import points
from dpfc_cli.annotations.classes import composed
from dpfc_cli.annotations.split_files import TEST_SPLITS, TRAIN_SPLITS, is_clutter
from dpfc_cli.geometry import Geometry
from dpfc_cli.images import catalogue
from dpfc_cli.images.pictures import Preparation
from dpfc_cli.images.sets import DataSet, ImageSet, Request, Split, Unlabelled


def unlabelled(kind: str, place: Path) -> Unlabelled:
    """The pictures of a format, without labels."""
    found: DataSet = points.load(catalogue.GROUP, f"{kind}:", DataSet)
    assert found.unlabelled is not None
    return found.unlabelled(str(place))


def added(monkeypatch: pytest.MonkeyPatch, dataset: DataSet) -> None:
    """A package adds a data set."""
    entry: Any = SimpleNamespace(name=dataset.name, value="", dist=None, load=lambda: dataset)
    monkeypatch.setitem(points.added(catalogue.GROUP), dataset.name, entry)


def there(*sources: str) -> tuple[str, ...]:
    """Those of these formats before a path that some package adds."""
    return tuple(name for name in sources if f"{name}:" in points.added(catalogue.GROUP))


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
    elif kind == "parquet":
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
    return np.asarray(split.pixels(0, split.n)[:, 0, 0, 0])


def files(folder: Path, *names: str) -> str:
    """Pictures in files of these names. Picture i is full of i. Returns the name of the data set."""
    for i, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(i))
    return f"imagefolder:{folder}"
