"""Small pictures and archives of them, for the tests of `dpfc_cli.images`."""

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from dpfc_cli.images import Geometry, Preparation, Split

SQUARE = Geometry(resize=8, crop=8)
AS_SQUARE = Preparation(geometry=SQUARE)


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
