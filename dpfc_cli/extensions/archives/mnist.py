"""IDX, the format of MNIST and Fashion-MNIST: a magic number, the dimensions, then the bytes.

A file must end where its header says. So a cut-off copy and a wrong file are found before any picture is used. The
listing is a digest of the unpacked bytes, so it is the same for `.gz` files and plain ones.
"""

import gzip
import io
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from dpfc_cli.annotations.classes import coded
from dpfc_cli.extensions.archives.official import LARGEST, mirrored, missing
from dpfc_cli.images.pictures import Held, Pixels
from dpfc_cli.images.sets import DataSet, Entry, ImageSet, Listed, Request, entry_of, image_set
from dpfc_cli.reading import readable

TEN_DIGITS = tuple("0123456789")
"""The names of the classes of MNIST."""
GARMENTS = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
"""The names of the classes of Fashion-MNIST."""

NAMES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
"""Images and labels of each split."""
UNSIGNED_BYTE = 0x08


def open_idx(dataset: str, classes: tuple[str, ...], request: Request, subfolders: tuple[str, ...]) -> ImageSet:
    """Open a data set of IDX files with the names of MNIST's. Raises UserError if a file is missing or damaged, or the
    files do not fit together. subfolders: other places of the files below the folder.
    """
    wanted, folder = NAMES["train"][0], request.place
    places = [folder, *(folder / place for place in subfolders)]
    place = next((place for place in places if _find(place, wanted)), None)
    if place is None:
        raise missing(dataset, f"'{wanted}' or '{wanted}.gz', also not in {' or '.join(subfolders)}", folder)
    present = [split for split in NAMES if any(_find(place, name) for name in NAMES[split])]
    return image_set(
        dataset, {split: _listed(dataset, place, split, classes) for split in present}, request, classes=classes
    )


def parse(stream: io.BufferedIOBase, name: str, dimensions: int) -> tuple[Pixels, Entry]:
    """Read an IDX stream of unsigned bytes: the array, in the shape that the header states, and the file's entry.
    ValueError if it is none of so many dimensions, or is shorter or longer than its header says.
    """
    header = stream.read(4 + 4 * dimensions)
    if len(header) < 4 + 4 * dimensions or header[:4] != bytes([0, 0, UNSIGNED_BYTE, dimensions]):
        raise ValueError(f"it does not begin like an IDX file of bytes in {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", header[4:])
    size = math.prod(shape)
    if size > LARGEST:
        raise ValueError(f"it announces {size} bytes")
    body = stream.read(size + 1)
    if len(body) != size:
        raise ValueError(f"it announces {size} bytes and holds {'more' if len(body) > size else len(body)}")
    return np.frombuffer(body, np.uint8).reshape(shape), entry_of(name, header + body)


def _find(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _listed(dataset: str, folder: Path, split: str, classes: tuple[str, ...]) -> Listed:
    images, labels = NAMES[split]
    (pictures, first), (numbers, second) = _read(dataset, folder, images, 3), _read(dataset, folder, labels, 1)
    return Listed(
        labels=coded(numbers.astype(np.int64)),
        pictures=Held(pictures[..., np.newaxis]),
        entries=[first, second],
        classes=classes,
    )


def _read(dataset: str, folder: Path, name: str, dimensions: int) -> tuple[Pixels, Entry]:
    """An array and its entry, which has the name without '.gz'."""
    path = _find(folder, name)
    if path is None:
        raise missing(dataset, f"'{name}' or '{name}.gz' beside the others", folder)
    with (
        readable(path, "an IDX file", "Fetch it again.", EOFError, zlib.error),
        gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream,
    ):
        return parse(stream, name, dimensions)


def _data_set(
    name: str, classes: tuple[str, ...], torchvision: str, folders: tuple[str, ...], *files: tuple[int, str]
) -> DataSet:
    """The entry of a data set with MNIST's file names.

    torchvision: the folder in which torchvision keeps the files. folders: addresses that serve all files, packed.
    files: size and SHA-256 of each packed file, in the order of `NAMES`.
    """
    packed = [f"{file}.gz" for split in NAMES.values() for file in split]
    return DataSet(
        name=name,
        open=lambda request: open_idx(name, classes, request, (name, torchvision, "raw")),
        location="data_dir",
        pixels=True,
        remotes=tuple(
            mirrored(name, folders, name=file, size=size, sha256=sha256)
            for file, (size, sha256) in zip(packed, files, strict=True)
        ),
    )


# The publisher's own address comes first if it is served over https.
MNIST = _data_set(
    "mnist",
    TEN_DIGITS,
    "MNIST/raw",
    ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"),
    (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
)
FASHION_MNIST = _data_set(
    "fashion-mnist",
    GARMENTS,
    "FashionMNIST/raw",
    (
        "https://fashion-mnist.s3.eu-central-1.amazonaws.com",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
    ),
    (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
    (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
    (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
    (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
)
