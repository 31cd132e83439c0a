"""Folders of image files, a sub-folder for each class.

    PATH/train/<class>/*.jpg and PATH/test/<class>/*.jpg      (or other usual names of splits, see `split_files`)
    PATH/<class>/*.jpg                                        (training images only)

If the operator asserts the classes, each folder must be one of them. Otherwise the classes are inferred: they are the
names of the folders of all splits, sorted. A folder's name is not a public fact, because the folder may hold the one
patient with a rare disease.

In both cases the records are in the sorted order of the folders, and so is the listing. So the same images have the
same listing. Images are listed when the set is opened and decoded when they are asked for, so a set may be larger than
memory.
"""

import os
import stat
from pathlib import Path

import numpy as np

from dpfc_cli.errors import GUARDED, UserError, counted, parameter
from dpfc_cli.files import named_twice
from dpfc_cli.images import dicom
from dpfc_cli.images.dataset import DataSet
from dpfc_cli.images.encoded import Files, encoded_split
from dpfc_cli.images.preparation import Preparation
from dpfc_cli.images.sets import Entry, ImageSet, Split
from dpfc_cli.sources.classes import Origin
from dpfc_cli.sources.split_files import TEST_SPLITS, TRAIN_SPLITS

EXTENSIONS = frozenset(
    (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp", *dicom.SUFFIXES)
)
EXPECTED = (
    "Images must be in PATH/<class>/, or in PATH/train/<class>/ and, if there are test images, PATH/test/<class>/. "
    f"The folder train may also be called {' or '.join(TRAIN_SPLITS[1:])}, "
    f"and test {', '.join(TEST_SPLITS[1:-1])} or {TEST_SPLITS[-1]}."
)


def open_folder(path: Path, preparation: Preparation, classes: tuple[str, ...] | None = None) -> ImageSet:
    """Open a folder of image files.

    Args:
        path: the folder.
        preparation: what is done with the pictures. Without a geometry all must have the size of the first one.
        classes: the classes that the operator asserts, in the order in which labels count them, or None.

    Raises:
        UserError: the folder has another layout, holds a class that is not asserted, or cannot be read.

    """
    try:
        return _opened(path, preparation, classes)
    except OSError as error:
        raise UserError(
            f"'{error.filename or path}' cannot be read: {error.strerror or error}.",
            "Repair it (does a link lead nowhere? is a permission missing?), or remove it.",
            code="unreadable",
            path=str(error.filename or path),
        ) from error


def _opened(path: Path, preparation: Preparation, classes: tuple[str, ...] | None) -> ImageSet:
    folders = _split_folders(path)
    found = tuple(sorted({name for folder in folders.values() for name in _class_names(folder)}))
    if not found:
        raise UserError(
            f"No class folders in {' or '.join(map(str, folders.values()))}.",
            EXPECTED,
            code="missing",
            path=str(path),
        )
    files = {split: _files(folder, found) for split, folder in folders.items()}
    for split, folder in folders.items():
        if not files[split]:
            raise UserError(
                f"No images in the class folders of '{folder}'.",
                f"{EXPECTED} They are files that end in {', '.join(sorted(EXTENSIONS))}.",
                code="missing",
                path=str(folder),
            )
    numbers = _numbers(found, classes)
    splits = {split: _split(folders[split], files[split], found, numbers, preparation) for split in folders}
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
            f"The class folder '{unknown}' is not among the {counted(len(classes), 'class')} of "
            f"{parameter('classes')}. {GUARDED}",
            "Give the names of all class folders. There may be more classes than folders.",
            code="conflict",
            parameter="classes",
        )
    return [number[name] for name in found]


def _split_folders(path: Path) -> dict[str, Path]:
    if not path.is_dir():
        raise UserError(
            f"'{path}' is not a folder.",
            "Name the folder of images as imagefolder:PATH.",
            code="missing",
            parameter="dataset",
            path=str(path),
        )
    train = [path / name for name in TRAIN_SPLITS if (path / name).is_dir()]
    if not train:
        return {"train": path}
    if len(train) > 1:
        raise UserError(
            f"Which is for training, '{train[0]}' or '{train[1]}'?",
            "Move the images into one of them.",
            code="conflict",
            paths=[str(folder) for folder in train],
        )
    test = next((path / name for name in TEST_SPLITS if (path / name).is_dir()), None)
    return {"train": train[0]} | ({} if test is None else {"test": test})


def _class_names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]


def _files(folder: Path, found: tuple[str, ...]) -> list[tuple[int, Entry]]:
    """The number of the class folder and the entry of every image of a split, sorted by class, then by name."""
    files: list[tuple[int, Entry]] = []
    linked = False
    for place, name in enumerate(found):
        if not (folder / name).is_dir():
            continue
        linked |= (folder / name).is_symlink()
        with os.scandir(folder / name) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
        for entry in listed:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                raise UserError(
                    f"The class folder '{folder / name}' holds a folder, '{entry.name}'.",
                    f"{EXPECTED} Name the folder above the classes.",
                    code="conflict",
                    path=entry.path,
                )
            if os.path.splitext(entry.name)[1].lower() in EXTENSIONS:
                facts = entry.stat()
                if not stat.S_ISREG(facts.st_mode):
                    # Opening a pipe would wait forever.
                    raise UserError(f"'{entry.path}' is not a file.", "Remove it.", code="unreadable", path=entry.path)
                linked |= entry.is_symlink() or facts.st_nlink > 1
                files.append((place, Entry(f"{name}/{entry.name}", facts.st_size, "")))
    # Without links no file has two names, and millions of files are not looked at again.
    twice = named_twice(folder / entry.name for _, entry in files) if linked else None
    if twice is not None:
        raise UserError(
            f"'{twice}' is a picture that is there twice, as a link or under a second name. It would count as two "
            f"records, and the guarantee is for one. {GUARDED}",
            "Leave one of them.",
            code="conflict",
            path=str(twice),
        )
    return files


def _split(
    folder: Path,
    files: list[tuple[int, Entry]],
    found: tuple[str, ...],
    numbers: list[int],
    preparation: Preparation,
) -> Split:
    labels = np.array([numbers[place] for place, _ in files], np.int32)
    names = [entry.name for _, entry in files]
    # Folders without a picture do not belong to the listing.
    filled = tuple(found[place] for place in sorted({place for place, _ in files}))
    return encoded_split(
        labels,
        Files(folder, names),
        preparation,
        classes=filled,
        entries=(entry for _, entry in files),
        name=names.__getitem__,
    )


IMAGEFOLDER = DataSet(
    name="imagefolder",
    open=lambda request: open_folder(request.place, request.preparation, request.classes),
    location="path",
    asserted=True,
    resembles=os.path.isdir,
)
