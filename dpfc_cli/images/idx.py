"""IDX, the format of MNIST and Fashion-MNIST: a magic number, the dimensions, then the bytes.

A file must end where its header says. So a cut-off copy and a wrong file are found before any picture is used. The
listing is a digest of the unpacked bytes, so it is the same for `.gz` files and plain ones.
"""

import gzip
import io
import math
import struct
import zlib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np

from dpfc_cli.errors import Code, UserError, parameter
from dpfc_cli.images.dataset import DataSet, mirrored
from dpfc_cli.images.sets import LARGEST, Entry, ImageSet, Pixels, Split, entry_of, in_memory, listing_of
from dpfc_cli.sources.reading import reading_code

TEN_DIGITS = tuple("0123456789")
"""The names of the classes of MNIST."""
GARMENTS = (
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
)
"""The names of the classes of Fashion-MNIST."""

NAMES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
"""Images and labels of each split."""
UNSIGNED_BYTE = 0x08


def open_idx(dataset: str, classes: tuple[str, ...], folder: Path, subfolders: tuple[str, ...]) -> ImageSet:
    """Open a data set of IDX files with the names of MNIST's.

    Args:
        dataset: its name.
        classes: the names of its classes.
        folder: the folder that the user named.
        subfolders: other places of the files below that folder.

    Raises:
        UserError: a file is missing or damaged, or the files do not fit together.

    """
    place = _place(dataset, folder, subfolders)
    present = [split for split in NAMES if any(_find(place, name) for name in NAMES[split])]
    splits = {split: _split(place, split, classes) for split in present}
    if len({split.image_shape for split in splits.values()}) > 1:
        raise UserError(
            f"The training and the test images in '{place}' differ in size.",
            "Fetch all four files from the same source.",
            code="conflict",
            path=str(place),
        )
    return ImageSet(dataset, classes, splits)


def parse(stream: io.BufferedIOBase, source: str, dimensions: int) -> tuple[Pixels, Entry]:
    """Read an IDX stream of unsigned bytes.

    Args:
        stream: the unpacked bytes.
        source: the file's path, for messages.
        dimensions: how many dimensions the array must have.

    Returns:
        The array, in the shape that the header states, and the file's entry. The entry's name is the file's name
        without folder and '.gz', so that a data set keeps its listing when it is moved.

    Raises:
        UserError: the stream is not such a file, or is shorter or longer than its header says (code "damaged").

    """
    header = stream.read(4 + 4 * dimensions)
    if len(header) < 4 + 4 * dimensions or header[:4] != bytes([0, 0, UNSIGNED_BYTE, dimensions]):
        raise _damaged(source, f"does not begin like an IDX file of bytes in {dimensions} dimensions")
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


def _place(dataset: str, folder: Path, subfolders: tuple[str, ...]) -> Path:
    wanted = NAMES["train"][0]
    places = [folder, *(folder / place for place in subfolders)]
    found = next((place for place in places if _find(place, wanted)), None)
    if found is None:
        raise UserError(
            f"No '{wanted}' or '{wanted}.gz' in any of: {', '.join(map(str, places))}.",
            f"Name the folder that holds the IDX files of {dataset} with {parameter('data_dir')}, or leave it out to "
            "download them.",
            code="missing",
            parameter="data_dir",
            path=str(folder),
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
            f"'{folder}' has neither '{name}' nor '{name}.gz'.",
            "Put the missing file beside the others, or fetch all of them again.",
            code="missing",
            path=str(folder / name),
        )
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            return parse(stream, str(path), dimensions)
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(str(path), f"cannot be read ({error})", reading_code(error)) from error


def _damaged(name: str, what: str, code: Code = "damaged") -> UserError:
    return UserError(
        f"'{name}' {what}.",
        "The file is damaged or is not what its name says. Fetch it again.",
        code=code,
        path=name,
    )


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
        open=lambda request: open_idx(name, classes, request.place, (name, torchvision, "raw")),
        location="data_dir",
        small=True,
        remotes=tuple(
            mirrored(folders, name=file, size=size, sha256=sha256)
            for file, (size, sha256) in zip(packed, files, strict=True)
        ),
    )


# The publisher's own address comes first if it is served over https.
DATA_SETS = (
    _data_set(
        "mnist",
        TEN_DIGITS,
        "MNIST/raw",
        ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"),
        (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
    _data_set(
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
    ),
)


FILES = ("digits-images-idx3-ubyte", "digits-labels-idx1-ubyte")
TRAIN = 1400
DARKEST = 16


def open_digits() -> ImageSet:
    """The UCI optical handwritten digits, grey values scaled from 0..16 to 0..255."""
    (images, images_entry), (labels, labels_entry) = (
        parse(io.BytesIO(_file(name).read_bytes()), name, dimensions)
        for name, dimensions in zip(FILES, (3, 1), strict=True)
    )
    grey = np.rint(images * (255 / DARKEST)).astype(np.uint8)[..., np.newaxis]
    entries = [images_entry, labels_entry]

    def split(part: slice, *more: Entry) -> Split:
        listing = listing_of(TEN_DIGITS, [*entries, *more])
        return in_memory("The set of digits in dpfc", grey[part], labels[part], TEN_DIGITS, listing)

    # Both splits come from the same files. The ledger must tell their records apart.
    test = split(slice(TRAIN, None), Entry("test", len(labels) - TRAIN, labels_entry.sha256))
    return ImageSet("digits", TEN_DIGITS, {"train": split(slice(None, TRAIN)), "test": test})


def _file(name: str) -> Traversable:
    """A file of the digits. A wheel puts it inside the package, a source checkout has it beside the package."""
    installed = resources.files("dpfc_cli").joinpath("sample_data", name)
    checkout = Path(__file__).parents[2] / "sample_data" / name
    found = next((file for file in (installed, checkout) if file.is_file()), None)
    if found is None:
        raise UserError(
            f"'{name}' is neither at '{installed}' nor at '{checkout}'.",
            "This copy of dpfc is incomplete. Install dpfc again.",
            code="missing",
            path=str(installed),
        )
    return found


DIGITS = DataSet(name="digits", open=lambda request: open_digits(), location="included", small=True)
