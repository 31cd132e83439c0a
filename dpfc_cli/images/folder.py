"""Folders of image files, a sub-folder for each class.

    PATH/train/<class>/*.jpg and PATH/test/<class>/*.jpg      (or val/, valid/ or validation/ in place of test/)
    PATH/<class>/*.jpg                                        (training images only)

The classes are the names of the folders, of all splits together, in sorted order; a folder without images is a class
without records. Images are listed when the set is opened and decoded when they are asked for, so a set may be larger
than memory.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dpfc_cli.errors import UserError
from dpfc_cli.images.encoded import Files, encoded_split
from dpfc_cli.images.geometry import Geometry
from dpfc_cli.images.sets import Entry, ImageSet, Split
from dpfc_cli.shards import TEST_SPLITS

EXTENSIONS = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"))


def open_folder(path: Path, geometry: Geometry | None, name: str = "imagefolder") -> ImageSet:
    """The data set of the image files below `path`, brought to `geometry`, or all of the first one's size."""
    try:
        return _opened(path, geometry, name)
    except OSError as error:
        raise UserError(
            f"'{error.filename or path}' cannot be read: {error.strerror or error}.",
            "Mend it (a link to nothing? no permission?), or remove it.",
        ) from error


def _opened(path: Path, geometry: Geometry | None, name: str) -> ImageSet:
    folders = _split_folders(path)
    classes = tuple(sorted({name for folder in folders.values() for name in _class_names(folder)}))
    if not classes:
        raise UserError(
            f"No class folders in {' or '.join(map(str, folders.values()))}.",
            "Give each class a folder of its own: PATH/train/<class>/ and PATH/test/<class>/, or PATH/<class>/.",
        )
    files = {split: list(_files(folder, classes)) for split, folder in folders.items()}
    for split, folder in folders.items():
        if not files[split]:
            raise UserError(
                f"No images in the class folders of '{folder}'.",
                f"Images are files directly in a class folder that end in {', '.join(sorted(EXTENSIONS))}.",
            )
    splits = {split: _split(folders[split], files[split], classes, geometry) for split in folders}
    return ImageSet(name, classes, splits)


def _split_folders(path: Path) -> dict[str, Path]:
    if not path.is_dir():
        raise UserError(f"'{path}' is not a folder.", "Name the folder of images as imagefolder:PATH.")
    if not (path / "train").is_dir():
        return {"train": path}
    test = next((path / name for name in TEST_SPLITS if (path / name).is_dir()), None)
    return {"train": path / "train"} | ({} if test is None else {"test": test})


def _class_names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]


def _files(folder: Path, classes: tuple[str, ...]) -> Iterator[tuple[int, Entry]]:
    """Label and entry of every image of a split: by class, then by name."""
    for label, name in enumerate(classes):
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
                    "Images must be directly in their class's folder; name the folder above the classes.",
                )
            if os.path.splitext(entry.name)[1].lower() in EXTENSIONS:
                facts = entry.stat()
                if not stat.S_ISREG(facts.st_mode):
                    # Opening a pipe would wait for ever.
                    raise UserError(f"'{entry.path}' is not a file.", "Remove it.")
                yield label, (f"{name}/{entry.name}", facts.st_size, "")


def _split(folder: Path, files: list[tuple[int, Entry]], classes: tuple[str, ...], geometry: Geometry | None) -> Split:
    labels = np.array([label for label, _ in files], np.int32)
    pictures = Files(folder, [entry[0] for _, entry in files])
    return encoded_split(labels, pictures, geometry, classes, (entry for _, entry in files))
