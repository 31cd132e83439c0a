"""Folders of image files, a sub-folder for each class.

    PATH/train/<class>/*.jpg and PATH/test/<class>/*.jpg      (or other names of the two, see `shards`)
    PATH/<class>/*.jpg                                        (training images only)

The classes are those that the operator asserts, among which each folder must be; otherwise the names of the folders, of
all splits together, in sorted order, which nobody but the records vouches for: a folder may hold the one patient of a
rare disease. Either way the records lie in the sorted order of the folders, and the listing is of these, so that the
same images are known for the same. Images are listed when the set is opened and decoded when they are asked for, so a
set may be larger than memory.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dpfc_cli.backbones.geometry import Geometry
from dpfc_cli.errors import GUARDED, UserError, counted
from dpfc_cli.images.encoded import Files, encoded_split
from dpfc_cli.images.sets import Entry, ImageSet, Origin, Split
from dpfc_cli.sources.split_files import TEST_SPLITS, TRAIN_SPLITS

EXTENSIONS = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"))
EXPECTED = (
    "Images lie in PATH/<class>/, or in PATH/train/<class>/ and perhaps PATH/test/<class>/; train may be called "
    f"{' or '.join(TRAIN_SPLITS[1:])}, and test {', '.join(TEST_SPLITS[1:-1])} or {TEST_SPLITS[-1]}."
)


def open_folder(path: Path, geometry: Geometry | None, classes: tuple[str, ...] | None = None) -> ImageSet:
    """The data set of the image files below `path`, brought to `geometry`, or all of the first one's size. classes: as
    the operator asserts them, in the order in which labels count them.
    """
    try:
        return _opened(path, geometry, classes)
    except OSError as error:
        raise UserError(
            f"'{error.filename or path}' cannot be read: {error.strerror or error}.",
            "Mend it (a link to nothing? no permission?), or remove it.",
        ) from error


def _opened(path: Path, geometry: Geometry | None, classes: tuple[str, ...] | None) -> ImageSet:
    folders = _split_folders(path)
    found = tuple(sorted({name for folder in folders.values() for name in _class_names(folder)}))
    if not found:
        raise UserError(f"No class folders in {' or '.join(map(str, folders.values()))}.", EXPECTED)
    files = {split: list(_files(folder, found)) for split, folder in folders.items()}
    for split, folder in folders.items():
        if not files[split]:
            raise UserError(
                f"No images in the class folders of '{folder}'.",
                f"{EXPECTED} They are files that end in {', '.join(sorted(EXTENSIONS))}.",
            )
    numbers = _numbers(found, classes)
    splits = {split: _split(folders[split], files[split], found, numbers, geometry) for split in folders}
    origin: Origin = "inferred" if classes is None else "asserted"
    return ImageSet("imagefolder", classes or found, splits, origin, numbers != list(range(len(found))))


def _numbers(found: tuple[str, ...], classes: tuple[str, ...] | None) -> list[int]:
    """The label of each class folder. UserError for a folder that is not among the asserted classes."""
    if classes is None:
        return list(range(len(found)))
    number = {name: label for label, name in enumerate(classes)}
    unknown = next((name for name in found if name not in number), None)
    if unknown is not None:
        raise UserError(
            f"The class folder '{unknown}' is not among the {counted(len(classes), 'class')} of --classes. {GUARDED}",
            "Give the folders' names, separated by commas or in a file with one a line; there may be classes without a "
            "folder.",
        )
    return [number[name] for name in found]


def _split_folders(path: Path) -> dict[str, Path]:
    if not path.is_dir():
        raise UserError(f"'{path}' is not a folder.", "Name the folder of images as imagefolder:PATH.")
    train = [path / name for name in TRAIN_SPLITS if (path / name).is_dir()]
    if not train:
        return {"train": path}
    if len(train) > 1:
        raise UserError(f"Which is for training, '{train[0]}' or '{train[1]}'?", "Move the images into one of them.")
    test = next((path / name for name in TEST_SPLITS if (path / name).is_dir()), None)
    return {"train": train[0]} | ({} if test is None else {"test": test})


def _class_names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]


def _files(folder: Path, found: tuple[str, ...]) -> Iterator[tuple[int, Entry]]:
    """Number of the class folder and entry of every image of a split: by class, then by name."""
    for place, name in enumerate(found):
        if not (folder / name).is_dir():
            continue
        with os.scandir(folder / name) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
        for entry in listed:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                raise UserError(
                    f"The class folder '{folder / name}' holds a folder, '{entry.name}'.",
                    f"{EXPECTED} Name the folder above the classes.",
                )
            if os.path.splitext(entry.name)[1].lower() in EXTENSIONS:
                facts = entry.stat()
                if not stat.S_ISREG(facts.st_mode):
                    # Opening a pipe would wait for ever.
                    raise UserError(f"'{entry.path}' is not a file.", "Remove it.")
                yield place, (f"{name}/{entry.name}", facts.st_size, "")


def _split(
    folder: Path,
    files: list[tuple[int, Entry]],
    found: tuple[str, ...],
    numbers: list[int],
    geometry: Geometry | None,
) -> Split:
    labels = np.array([numbers[place] for place, _ in files], np.int32)
    names = [entry[0] for _, entry in files]
    entries = (entry for _, entry in files)
    # Folders without a picture are no part of what the records are.
    held = tuple(found[place] for place in sorted({place for place, _ in files}))
    return encoded_split(labels, Files(folder, names), geometry, held, entries, names.__getitem__)
