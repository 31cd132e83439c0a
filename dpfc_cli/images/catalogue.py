"""The table of data sets, and the functions that open one by its name."""

import os
from pathlib import Path

from dpfc_cli.backbones.geometry import Geometry
from dpfc_cli.errors import UserError, parameter, unknown
from dpfc_cli.images import cifar, digits, folder, idx, imagenet, parquet, webdataset
from dpfc_cli.images.dataset import DataSet, Request
from dpfc_cli.images.sets import ImageSet, Progress

_ALL: tuple[DataSet, ...] = (
    digits.DIGITS,
    *idx.DATA_SETS,
    *cifar.DATA_SETS,
    imagenet.IMAGENET,
    folder.IMAGEFOLDER,
    parquet.PARQUET,
    webdataset.WEBDATASET,
)
CATALOGUE: dict[str, DataSet] = {entry.name: entry for entry in _ALL}
"""Every data set by its name."""
DATASETS = tuple(entry.usage for entry in _ALL)
"""What a user may type as a data set. PATH stands for a path."""


def check(dataset: str, data_dir: Path | None = None, classes: tuple[str, ...] | None = None) -> None:
    """Refuse what can be refused before any file is opened.

    Args:
        dataset: what the user typed, one of `DATASETS` with a path in the place of PATH.
        data_dir: the folder that the user named for the data set's files, or None.
        classes: the classes that the operator asserts, or None.

    Raises:
        UserError: the name is unknown (code "unknown-name"), its path or its folder is not given (code "missing"), or
            the data set does not take the folder or the classes (code "conflict").

    """
    entry, path = _entry(dataset)
    if entry.location == "path" and not path:
        raise UserError(
            f"'{entry.name}' needs the path of its files.",
            f"Write {entry.usage}.",
            code="missing",
            parameter="dataset",
            name=entry.name,
        )
    if entry.location == "path" and data_dir is not None:
        raise _not_taken(entry, "data_dir", f"'{dataset}' names its files itself.")
    if entry.location == "included" and data_dir is not None:
        raise _not_taken(entry, "data_dir", f"The files of '{entry.name}' are part of dpfc.")
    if entry.location == "data_dir" and data_dir is None and not entry.remotes:
        raise UserError(
            f"dpfc cannot download '{entry.name}'.",
            f"{entry.obtain} Then name the folder that holds it: {parameter('data_dir')}.",
            code="missing",
            parameter="data_dir",
            name=entry.name,
        )
    if classes is not None and not entry.asserted:
        raise _not_taken(entry, "classes", f"'{entry.name}' names its classes itself.")


def small(dataset: str) -> bool:
    """Whether all pictures have one small size, which the backbone's own preprocessing resizes."""
    return dataset in CATALOGUE and CATALOGUE[dataset].small


def open_images(
    dataset: str,
    data_dir: Path | None = None,
    geometry: Geometry | None = None,
    classes: tuple[str, ...] | None = None,
    progress: Progress | None = None,
) -> ImageSet:
    """Open a data set. Pictures are decoded later, when they are asked for.

    Args:
        dataset: one of `DATASETS`, with a path in the place of PATH.
        data_dir: the folder that holds the data set's files, or that folder's parent. None: they are in the cache, and
            are downloaded into it first.
        geometry: the size to bring pictures of many sizes to; None: all must have the size of the first one. Pictures
            of a data set with one small size stay as they are.
        classes: the names of the classes, which the operator asserts where the format has no list of them.
        progress: called while files are downloaded or listed.

    Returns:
        The data set with its splits.

    Raises:
        UserError: as `check`; or the files are missing, damaged, or not those of this data set.

    Example:
        open_images("digits").splits["train"].pixels(0, 10)  # uint8, (10, 8, 8, 1)

    """
    check(dataset, data_dir, classes)
    entry, path = _entry(dataset)
    if entry.location == "data_dir":
        place = _download(entry, progress) if data_dir is None else data_dir
    else:
        place = Path(path)
    return entry.open(Request(place=_expanded(place), geometry=geometry, classes=classes, progress=progress))


def _entry(dataset: str) -> tuple[DataSet, str]:
    """The entry of a data set, and the path in its name ('' if there is none)."""
    name, colon, path = dataset.partition(":")
    entry = CATALOGUE.get(name)
    if entry is None or (colon and entry.location != "path"):
        raise _unknown(dataset)
    return entry, path


def _unknown(dataset: str) -> UserError:
    """The error for a name that is not in the table. A user who typed a path reads how to write it."""
    path = _expanded(dataset)
    suggested = [f"{entry.name}:{dataset}" for entry in CATALOGUE.values() if dataset and entry.resembles(path)]
    if not suggested:
        return unknown("data set", dataset, DATASETS)
    return UserError(
        f"'{dataset}' is a path. dpfc must also know the format of the files there.",
        f"Write {' or '.join(suggested)}.",
        code="unknown-name",
        parameter="dataset",
        name=dataset,
        known=list(DATASETS),
        suggested=suggested,
    )


def _not_taken(entry: DataSet, name: str, why: str) -> UserError:
    """The error for a parameter that the data set does not take."""
    return UserError(why, f"Leave out {parameter(name)}.", code="conflict", parameter=name, name=entry.name)


def _expanded(path: str | Path) -> Path:
    """The path with '~' replaced. The shell does so at the start of a word only, and here it may follow a colon."""
    return Path(os.path.expanduser(path))


def _download(entry: DataSet, progress: Progress | None) -> Path:
    # Most runs download nothing, and what a download needs takes long to import.
    from dpfc_cli.images.download import fetch

    return fetch(entry.name, entry.remotes, progress)
