"""Folders of image files, a sub-folder for each class.

    PATH/train/<class>/*.jpg and PATH/test/<class>/*.jpg      (or other usual names of splits, see `split_files`)
    PATH/<class>/*.jpg                                        (training images only)

If the operator asserts the classes, each folder must be one of them. Then the folder of a class may have folders of its
own, such as one for each patient. Otherwise the classes are inferred: they are the names of the folders of all splits,
sorted. A folder's name is not a public fact, because the folder may hold the one patient with a rare disease. Deeper
folders are refused then, for nothing tells on which level the classes are.

In both cases the records are in the sorted order of the folders, and so is the listing. So the same images have the
same listing. Images are listed when the set is opened and decoded when they are asked for, so a set may be larger than
memory.

The labels may also stand in a table beside the images, `metadata.csv` (see `sources.metadata`). It is read if the
operator names its column of labels, or if there are no folders of classes. The images are then those of the table, in
the sorted order of their names.

Persons are found by the folders below the class, by the name, by a column of that table, by a table of its own, or, for
DICOM files without a table, by the element that the operator names.
"""

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from dpfc_cli.errors import GUARDED, UserError, counted, parameter
from dpfc_cli.files import named_twice
from dpfc_cli.images import dicom
from dpfc_cli.images.dataset import DataSet
from dpfc_cli.images.encoded import Files, encoded_split
from dpfc_cli.images.folder_persons import is_dicom, noticed, persons_of
from dpfc_cli.images.labels import labelled
from dpfc_cli.images.preparation import Preparation
from dpfc_cli.images.sets import Entry, ImageSet, Split
from dpfc_cli.sources.classes import Origin
from dpfc_cli.sources.groups import Keys, Rule
from dpfc_cli.sources.label_columns import USUAL_NAMES
from dpfc_cli.sources.metadata import FILE_NAME, NAMES, Metadata, Value, metadata_of, read
from dpfc_cli.sources.names import inside, is_clutter
from dpfc_cli.sources.split_files import TEST_SPLITS, TRAIN_SPLITS

EXTENSIONS = frozenset(
    (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp", *dicom.SUFFIXES)
)
EXPECTED = (
    "Images must be in PATH/<class>/, or in PATH/train/<class>/ and, if there are test images, PATH/test/<class>/. "
    f"The folder train may also be called {' or '.join(TRAIN_SPLITS[1:])}, "
    f"and test {', '.join(TEST_SPLITS[1:-1])} or {TEST_SPLITS[-1]}."
)


def open_folder(
    path: Path,
    preparation: Preparation,
    classes: tuple[str, ...] | None = None,
    label_column: str | None = None,
    group_by: Rule | None = None,
) -> ImageSet:
    """Open a folder of image files.

    Args:
        path: the folder.
        preparation: what is done with the pictures. Without a geometry all must have the size of the first one.
        classes: the classes that the operator asserts, in the order in which labels count them, or None.
        label_column: the column of the table beside the images that holds the labels, or None.
        group_by: how the person of an image is found, or None.

    Raises:
        UserError: the folder has another layout, holds a class that is not asserted, or cannot be read.

    """
    try:
        return _opened(path, preparation, classes, label_column, group_by)
    except OSError as error:
        raise UserError(
            f"'{error.filename or path}' cannot be read: {error.strerror or error}.",
            "Repair it (does a link lead nowhere? is a permission missing?), or remove it.",
            code="unreadable",
            path=str(error.filename or path),
        ) from error


def _opened(
    path: Path,
    preparation: Preparation,
    classes: tuple[str, ...] | None,
    label_column: str | None,
    group_by: Rule | None,
) -> ImageSet:
    folders = _split_folders(path)
    found = tuple(sorted({name for folder in folders.values() for name in _class_names(folder)}))
    tables = {split: metadata_of(folder) or metadata_of(path) for split, folder in folders.items()}
    if label_column is not None or (not found and tables["train"] is not None):
        return _tabled(path, folders, tables, preparation, classes, label_column, group_by)
    if not found:
        raise UserError(
            f"No class folders in {' or '.join(map(str, folders.values()))}.",
            EXPECTED,
            code="missing",
            path=str(path),
        )
    numbers = _numbers(found, classes, tables["train"])
    skipped = Counter[str]()
    # Whoever names a level below the classes says on which level they are.
    deep = classes is not None or (group_by is not None and group_by.by == "folder")
    files = {split: _files(folder, found, deep, skipped) for split, folder in folders.items()}
    for split, folder in folders.items():
        if not files[split]:
            raise UserError(
                f"No images in the class folders of '{folder}'.",
                f"{EXPECTED} They are files that end in {', '.join(sorted(EXTENSIONS))}.",
                code="missing",
                path=str(folder),
            )
    _check_decoders(entry.name for listed in files.values() for _, entry in listed)
    listed = {split: [entry.name for _, entry in files[split]] for split in folders}
    keys = persons_of(path, folders, tables, listed, group_by, classes_above=True)
    splits = {
        split: _split(folders[split], files[split], found, numbers, preparation, keys.get(split)) for split in folders
    }
    origin: Origin = "inferred" if classes is None else "asserted"
    renumbered = numbers != list(range(len(found)))
    seem = partial(noticed, folders, tables, listed)
    return ImageSet("imagefolder", classes or found, splits, origin, renumbered, _remarks(skipped), seem)


def _check_decoders(names: Iterable[str]) -> None:
    """Refuse DICOM files at once if the package for them is missing."""
    if any(map(is_dicom, names)):
        dicom.check_installed()


def _remarks(skipped: Counter[str]) -> tuple[str, ...]:
    """What is said of files that are left out, with how many there are of each ending."""
    if not skipped:
        return ()
    kinds = ", ".join(f"{count:,} {ending or 'without an ending'}" for ending, count in skipped.most_common(10))
    return (
        f"Left out, because their names do not end as those of pictures: {counted(skipped.total(), 'file')} ({kinds}).",
    )


def _tabled(
    path: Path,
    folders: dict[str, Path],
    tables: dict[str, Path | None],
    preparation: Preparation,
    classes: tuple[str, ...] | None,
    label_column: str | None,
    group_by: Rule | None,
) -> ImageSet:
    """The images that tables name, with the labels that stand there."""
    known: dict[Path, Metadata] = {}
    entries: dict[str, list[Entry]] = {}
    labels: dict[str, list[Value]] = {}
    for split, folder in folders.items():
        table = tables[split]
        if table is None:
            raise UserError(
                f"There is no {' or '.join(NAMES)} in '{folder}'.",
                f"Leave out {parameter('label_column')}, or put a table there with a column '{FILE_NAME}'.",
                code="missing",
                parameter="label_column",
                path=str(folder),
            )
        known[table] = known.get(table) or read(table)
        found = sorted(_rows(known[table], folder.absolute(), label_column))
        missing = [name for name, _ in found if not (folder / name).exists()]
        if missing:
            raise UserError(
                f"'{table}' names {counted(len(missing), 'file')} that cannot be found, such as '{missing[0]}'. "
                f"{GUARDED}",
                f"Put them there, or take their lines out of the table. The names in '{FILE_NAME}' begin in the folder "
                "of the table.",
                code="missing",
                path=str(folder / missing[0]),
                count=len(missing),
            )
        entries[split] = [_entry(folder, name, str(label)) for name, label in found]
        labels[split] = [label for _, label in found]
        if not found:
            raise UserError(
                f"'{table}' names no file in '{folder}'.", EXPECTED, code="missing", path=str(table), split=split
            )
        twice = named_twice(folder / entry.name for entry in entries[split])
        if twice is not None:
            raise _counted_twice(twice)
    _check_decoders(entry.name for listed in entries.values() for entry in listed)
    meant = labelled(labels, classes)
    listed = {split: [entry.name for entry in entries[split]] for split in meant.used.values()}
    keys = persons_of(path, folders, tables, listed, group_by, classes_above=False)
    splits = {}
    for role, split in meant.used.items():
        names = [entry.name for entry in entries[split]]
        splits[role] = encoded_split(
            meant.labels[split],
            Files(folders[split], names),
            preparation,
            classes=(),
            entries=entries[split],
            name=names.__getitem__,
            keys=keys.get(split),
        )
    seem = partial(noticed, folders, tables, listed, {split: meant.labels[split].tolist() for split in listed})
    return ImageSet("imagefolder", meant.classes, splits, meant.origin, meant.renumbered, noticed=seem)


def _rows(table: Metadata, folder: Path, label_column: str | None) -> Iterator[tuple[str, Value]]:
    """The name in the folder and the label of each picture of the folder that a table names."""
    column = label_column or next((name for name in USUAL_NAMES if name in table.columns), None)
    if column is None or column not in table.columns:
        raise UserError(
            f"'{table.path}' has no column {'of labels' if column is None else repr(column)}. It has: "
            f"{', '.join((FILE_NAME, *table.columns))}.",
            f"Name the column that holds the labels: {parameter('label_column')}.",
            code="missing",
            parameter="label_column",
            path=str(table.path),
        )
    values = table.columns[column]
    # CSV has no numbers, only texts.
    counts = all(value is None or isinstance(value, int) or (value.isdecimal() and len(value) < 10) for value in values)
    for file, value in zip(table.files, values, strict=True):
        if (name := inside(folder, str(file))) is not None:
            yield os.path.relpath(name, folder), int(value) if counts and value is not None else value


def _entry(folder: Path, name: str, label: str) -> Entry:
    """The entry of a picture that a table names. The label stands in the digest's place, so the listing has it."""
    facts = (folder / name).stat()
    if not stat.S_ISREG(facts.st_mode):
        raise _no_file(folder / name)
    return Entry(name, facts.st_size, label)


def _no_file(path: Path) -> UserError:
    return UserError(f"'{path}' is not a file.", "Remove it.", code="unreadable", path=str(path))


def _counted_twice(path: Path) -> UserError:
    return UserError(
        f"'{path}' is a picture that is there twice, as a link or under a second name. It would count as two records, "
        f"and the guarantee is for one. {GUARDED}",
        "Leave one of them.",
        code="conflict",
        path=str(path),
    )


def _numbers(found: tuple[str, ...], classes: tuple[str, ...] | None, table: Path | None) -> list[int]:
    """The label of each class folder. UserError for a folder that is not among the asserted classes.

    table: the table beside the images, for the message.
    """
    if classes is None:
        return list(range(len(found)))
    number = {name: label for label, name in enumerate(classes)}
    unknown = next((name for name in found if name not in number), None)
    if unknown is not None:
        raise UserError(
            f"The class folder '{unknown}' is not among the {counted(len(classes), 'class')} of "
            f"{parameter('classes')}. {GUARDED}",
            "Give the names of all class folders. There may be more classes than folders."
            + (f" Or take the labels of '{table.name}': {parameter('label_column')}." if table else ""),
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
        return [
            entry.name
            for entry in entries
            if not entry.name.startswith(".") and not is_clutter(entry.name) and entry.is_dir()
        ]


def _files(folder: Path, found: tuple[str, ...], deep: bool, skipped: Counter[str]) -> list[tuple[int, Entry]]:
    """The number of the class folder and the entry of every image of a split, sorted by class, then by name.

    Args:
        folder: of the split.
        found: the names of the class folders.
        deep: whether the folder of a class may have folders of its own.
        skipped: counts the endings of the files that are no images.

    """
    files: list[tuple[int, Entry]] = []
    linked = False
    for place, name in enumerate(found):
        if not (folder / name).is_dir():
            continue
        linked |= (folder / name).is_symlink()
        for file, entry in sorted(_listed(folder / name, name, deep), key=lambda listed: listed[0]):
            ending = os.path.splitext(entry.name)[1].lower()
            if ending not in EXTENSIONS:
                skipped[ending] += 1
                continue
            facts = entry.stat()
            if not stat.S_ISREG(facts.st_mode):
                # Opening a pipe would wait forever.
                raise _no_file(Path(entry.path))
            linked |= entry.is_symlink() or facts.st_nlink > 1
            files.append((place, Entry(file, facts.st_size, "")))
    # Without links no file has two names, and millions of files are not looked at again.
    twice = named_twice(folder / entry.name for _, entry in files) if linked else None
    if twice is not None:
        raise _counted_twice(twice)
    return files


def _listed(place: Path, name: str, deep: bool) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
    """The files in a class folder that are the user's, each with its name from the class on."""
    with os.scandir(place) as entries:
        found = list(entries)
    for entry in found:
        if entry.name.startswith(".") or is_clutter(entry.name):
            continue
        if not entry.is_dir():
            yield f"{name}/{entry.name}", entry
        elif not deep:
            raise UserError(
                f"The class folder '{place}' holds a folder, '{entry.name}'. {GUARDED}",
                f"{EXPECTED} Name the folder above the classes. If each class folder has folders of its own, say which "
                f"classes there are: {parameter('classes')}.",
                code="conflict",
                path=entry.path,
            )
        elif entry.is_symlink():
            raise UserError(
                f"'{entry.path}' is a link to a folder, inside a class folder.",
                "Put the folder itself there: links to folders may lead in a circle.",
                code="unsupported",
                path=entry.path,
            )
        else:
            yield from _listed(Path(entry.path), f"{name}/{entry.name}", deep)


def _split(
    folder: Path,
    files: list[tuple[int, Entry]],
    found: tuple[str, ...],
    numbers: list[int],
    preparation: Preparation,
    keys: Keys | None,
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
        keys=keys,
    )


IMAGEFOLDER = DataSet(
    name="imagefolder",
    open=lambda request: open_folder(
        request.place, request.preparation, request.classes, request.label_column, request.group_by
    ),
    location="path",
    asserted=True,
    groups=("folder", "name", "column", "table"),
    resembles=os.path.isdir,
)
