"""CIFAR-10 and CIFAR-100 from their official Python archives, packed or unpacked.

The archive is never unpacked to disk: its members are read one by one, by name, and every other member, links and
absolute paths included, is passed over. The number of batches and of images in a batch is free, so that a subset in
the official layout is a data set too. CIFAR-100 is read with its 100 fine labels. The listing is of the batches'
bytes, so it is the same packed and unpacked.
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

from dpfc_cli.errors import UserError
from dpfc_cli.images.sets import LARGEST, Entry, ImageSet, Pixels, Split, entry_of, in_memory, listing_of
from dpfc_cli.images.unpickle import read_pickle

SIDE, CHANNELS = 32, 3
AGAIN = "Fetch the data set again, or leave out --data-dir to download it."


@dataclass(frozen=True)
class Layout:
    """Where a CIFAR keeps what. train: a pattern of file names, its group the number of the batch."""

    archive: str
    folder: str
    train: str
    test: str
    meta: str
    names: str
    labels: str
    classes: int


LAYOUTS = {
    "cifar10": Layout(
        "cifar-10-python.tar.gz",
        "cifar-10-batches-py",
        r"data_batch_([1-9]\d{0,5})",
        "test_batch",
        "batches.meta",
        "label_names",
        "labels",
        10,
    ),
    "cifar100": Layout(
        "cifar-100-python.tar.gz",
        "cifar-100-python",
        "train()",
        "test",
        "meta",
        "fine_label_names",
        "fine_labels",
        100,
    ),
}


@dataclass(frozen=True)
class Batch:
    """The contents of one file of images. images: (n, 32, 32, 3). labels: (n,)."""

    images: Pixels
    labels: NDArray[np.int64]
    entry: Entry


def open_cifar(dataset: str, path: Path) -> ImageSet:
    """The data set `cifar10` or `cifar100` from its archive or its unpacked folder; `path` is or holds either."""
    layout = LAYOUTS[dataset]
    place = _place(dataset, layout, path)
    classes: tuple[str, ...] | None = None
    train: dict[int, Batch] = {}
    test: Batch | None = None
    for name, data in _files(place, layout):
        source = str(place / name)
        if name == layout.meta:
            classes = _classes(read_pickle(data, source), layout, source)
        elif name == layout.test:
            test = _batch(data, layout, name, source)
        elif match := re.fullmatch(layout.train, name):
            train[int(match[1] or 0)] = _batch(data, layout, name, source)
    if classes is None or not train:
        missing = layout.meta if classes is None else "a batch of training images"
        raise UserError(f"'{place}' does not hold {missing}.", AGAIN)
    splits = {"train": _split(place, "train", [train[number] for number in sorted(train)], classes)}
    if test is not None:
        splits["test"] = _split(place, "test", [test], classes)
    return ImageSet(dataset, classes, splits)


def _place(dataset: str, layout: Layout, path: Path) -> Path:
    folders = [folder for folder in (path, path / layout.folder) if (folder / layout.meta).is_file()]
    archives = [archive for archive in (path, path / layout.archive) if archive.is_file()]
    if not folders and not archives:
        raise UserError(
            f"'{path}' is not and does not hold '{layout.folder}' (with '{layout.meta}') or '{layout.archive}'.",
            f"Name the folder that holds either with --data-dir, or leave it out to download {dataset}.",
        )
    return (folders + archives)[0]


def _files(place: Path, layout: Layout) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of the files of a folder or an archive that belong to the data set, each name once."""
    try:
        yield from _in_folder(place, layout) if place.is_dir() else _in_archive(place, layout)
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise UserError(f"'{place}' cannot be read: {error}.", AGAIN) from error


def _in_folder(place: Path, layout: Layout) -> Iterator[tuple[str, bytes]]:
    for file in sorted(place.iterdir()):
        if _belongs(file.name, layout) and file.is_file():
            _refuse_giant(str(file), file.stat().st_size)
            yield file.name, file.read_bytes()


def _in_archive(place: Path, layout: Layout) -> Iterator[tuple[str, bytes]]:
    seen: set[str] = set()
    with gzip.open(place) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
        for member in archive:
            folder, _, name = member.name.removeprefix("./").rpartition("/")
            if folder != layout.folder or not _belongs(name, layout) or not member.isreg():
                continue
            if name in seen:
                raise UserError(f"'{place}' holds '{member.name}' twice.", AGAIN)
            seen.add(name)
            _refuse_giant(f"{place}: {member.name}", member.size)
            contents = archive.extractfile(member)
            if contents is not None:
                yield name, contents.read()
        # The archive's own checksum follows its last member, and only reading to the end compares it.
        while stream.read(LARGEST >> 10):
            pass


def _belongs(name: str, layout: Layout) -> bool:
    return name in (layout.meta, layout.test) or re.fullmatch(layout.train, name) is not None


def _refuse_giant(name: str, size: int) -> None:
    if size > LARGEST:
        raise UserError(f"'{name}' has {size} bytes: no batch is that large.", AGAIN)


def _classes(meta: dict[str, object], layout: Layout, source: str) -> tuple[str, ...]:
    listed = meta.get(layout.names)
    names = [_name(item) for item in listed] if isinstance(listed, list) else []
    if len(names) != layout.classes or len(set(names)) != len(names) or not all(names):
        raise UserError(f"'{source}' does not list {layout.classes} different classes under '{layout.names}'.", AGAIN)
    return tuple(names)


def _name(item: object) -> str:
    """A class's name, which Python 2 wrote as bytes; '' for anything else."""
    if isinstance(item, bytes):
        return item.decode("utf-8", "replace")
    return item if isinstance(item, str) else ""


def _batch(data: bytes, layout: Layout, name: str, source: str) -> Batch:
    """One file's images, from planes of red, green and blue to pixels, and its labels."""
    contents = read_pickle(data, source)
    images = contents.get("data")
    pixels = SIDE * SIDE * CHANNELS
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (pixels,):
        raise UserError(f"'{source}' does not hold bytes of images under 'data', {pixels} each.", AGAIN)
    labels = contents.get(layout.labels)
    if isinstance(labels, np.ndarray) and labels.ndim == 1:
        labels = labels.tolist()
    if not isinstance(labels, list) or any(type(label) is not int or abs(label) >> 31 for label in labels):
        raise UserError(f"'{source}' does not hold a list of integers under '{layout.labels}'.", AGAIN)
    planes = images.reshape(-1, CHANNELS, SIDE, SIDE)
    batch = Batch(planes.transpose(0, 2, 3, 1), np.array(labels, np.int64), entry_of(name, data))
    if len(batch.images) != len(batch.labels):
        raise UserError(f"'{source}' has {len(batch.images)} images and {len(batch.labels)} labels.", AGAIN)
    return batch


def _split(place: Path, name: str, batches: list[Batch], classes: tuple[str, ...]) -> Split:
    images = np.concatenate([batch.images for batch in batches])
    labels = np.concatenate([batch.labels for batch in batches])
    listing = listing_of(classes, [batch.entry for batch in batches])
    return in_memory(f"The {name} split in '{place}'", images, labels, classes, listing)
