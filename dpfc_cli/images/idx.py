"""IDX, the format of MNIST and Fashion-MNIST: a magic number, the dimensions, then the bytes.

A file is read only as far as its own header promises, and must end there, so a truncated copy and a wrong file are told
from a good one before any picture is used. The listing is of the unpacked bytes: `.gz` or plain is the same data set.
"""

import gzip
import io
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from dpfc_cli.errors import UserError
from dpfc_cli.images.sets import LARGEST, Entry, ImageSet, Pixels, Split, entry_of, in_memory, listing_of

DIGITS = tuple("0123456789")
CLASSES = {
    "mnist": DIGITS,
    "fashion-mnist": (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
}
PLACES = {
    "mnist": (".", "mnist", "MNIST/raw", "raw"),
    "fashion-mnist": (".", "fashion-mnist", "FashionMNIST/raw", "raw"),
}
"""Where the files may lie below the folder that the user names: there, in one named so, or as torchvision keeps
them."""

NAMES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
UNSIGNED_BYTE = 0x08


def open_idx(dataset: str, folder: Path) -> ImageSet:
    """The data set `mnist` or `fashion-mnist` from the IDX files in `folder`, or in a usual sub-folder of it."""
    place = _place(dataset, folder)
    present = [split for split in NAMES if any(_find(place, name) for name in NAMES[split])]
    splits = {split: _split(place, split, CLASSES[dataset]) for split in present}
    if len({split.image_shape for split in splits.values()}) > 1:
        raise UserError(
            f"The training and the test images in '{place}' differ in size.",
            "Fetch all four files from the same source.",
        )
    return ImageSet(dataset, CLASSES[dataset], splits)


def parse(stream: io.BufferedIOBase, source: str, dimensions: int) -> tuple[Pixels, Entry]:
    """The unsigned bytes that an IDX stream holds, shaped as its header says, and the entry of what was read.

    The entry's name is the file's own, without folder and '.gz', so that a data set keeps its listing when it is moved.
    """
    header = stream.read(4 + 4 * dimensions)
    if len(header) < 4 + 4 * dimensions or header[:4] != bytes([0, 0, UNSIGNED_BYTE, dimensions]):
        raise _damaged(source, f"does not begin as an IDX file of bytes in {dimensions} dimensions does")
    shape = struct.unpack(f">{dimensions}I", header[4:])
    size = math.prod(shape)
    if size > LARGEST:
        raise _damaged(source, f"announces {size} bytes")
    body = stream.read(size + 1)
    if len(body) != size:
        raise _damaged(source, f"announces {size} bytes and holds {'more' if len(body) > size else len(body)}")
    return np.frombuffer(body, np.uint8).reshape(shape), entry_of(Path(source).name.removesuffix(".gz"), header + body)


def _find(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _place(dataset: str, folder: Path) -> Path:
    wanted = NAMES["train"][0]
    places = [folder / place for place in PLACES[dataset]]
    found = next((place for place in places if _find(place, wanted)), None)
    if found is None:
        raise UserError(
            f"No '{wanted}' or '{wanted}.gz' in any of: {', '.join(map(str, places))}.",
            f"Name the folder that holds the IDX files of {dataset} with --data-dir, or leave it out to download them.",
        )
    return found


def _split(folder: Path, split: str, classes: tuple[str, ...]) -> Split:
    pictures, pictures_entry = _read(folder, NAMES[split][0], 3)
    labels, labels_entry = _read(folder, NAMES[split][1], 1)
    source = f"The {split} split in '{folder}'"
    listing = listing_of(classes, [pictures_entry, labels_entry])
    return in_memory(source, pictures[..., np.newaxis], labels, classes, listing)


def _read(folder: Path, name: str, dimensions: int) -> tuple[Pixels, Entry]:
    path = _find(folder, name)
    if path is None:
        raise UserError(
            f"'{folder}' has neither '{name}' nor '{name}.gz'.", "Put the missing file beside the others, or fetch all."
        )
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            return parse(stream, str(path), dimensions)
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(str(path), f"cannot be read ({error})") from error


def _damaged(name: str, what: str) -> UserError:
    return UserError(f"'{name}' {what}.", "The file is damaged or is not what its name says; fetch it again.")
