"""The data sets that dpfc knows by name, and the one door to them."""

from pathlib import Path

from dpfc_cli.backbones.geometry import Geometry
from dpfc_cli.errors import UserError, unknown
from dpfc_cli.images.cifar import LAYOUTS, open_cifar
from dpfc_cli.images.digits import open_digits
from dpfc_cli.images.folder import open_folder
from dpfc_cli.images.idx import open_idx
from dpfc_cli.images.imagenet import open_imagenet
from dpfc_cli.images.sets import ImageSet, Progress
from dpfc_cli.images.webdataset import open_webdataset

SMALL = ("digits", "mnist", "fashion-mnist", "cifar10", "cifar100")
PLACED = ("imagefolder", "parquet", "webdataset")
DATASETS = (*SMALL, "imagenet", *(f"{name}:PATH" for name in PLACED))
"""Data sets of one small size; those that are named with their place, whose classes the operator may have to assert;
and all of them."""


def check(dataset: str, data_dir: Path | None = None, classes: tuple[str, ...] | None = None) -> None:
    """Refuse what can be refused before a file is touched. UserError for an unknown name or options that contradict
    it.
    """
    kind, colon, path = dataset.partition(":")
    if kind in PLACED and (not path or data_dir is not None):
        raise UserError(
            f"The files of '{kind}' are named in the data set itself.", f"Write {kind}:PATH and leave out --data-dir."
        )
    if kind not in PLACED and (colon or kind not in DATASETS):
        raise unknown("data set", dataset, DATASETS)
    if kind == "digits" and data_dir is not None:
        raise UserError("The digits come with dpfc and are in no folder of yours.", "Leave out --data-dir.")
    if kind == "imagenet" and data_dir is None:
        raise UserError(
            "ImageNet cannot be downloaded without an account of yours.",
            "Get it from image-net.org and name the folder that holds it with --data-dir.",
        )
    if classes is not None and kind not in PLACED:
        raise UserError(f"'{kind}' names its classes itself.", "Leave out --classes.")


def small(dataset: str) -> bool:
    """Whether the pictures have one small size, which the backbone's own preprocessing resizes."""
    return dataset in SMALL


def open_images(
    dataset: str,
    data_dir: Path | None = None,
    geometry: Geometry | None = None,
    classes: tuple[str, ...] | None = None,
    progress: Progress | None = None,
) -> ImageSet:
    """The data set of that name, one of `DATASETS`.

    data_dir: the folder that holds its files, or that folder's parent; without it they come from the cache, and are
    downloaded into it first (progress is told how far). geometry: what pictures of many sizes are brought to; those of
    one small size come as they are. classes: names, asserted where the format has none. Raises UserError when the files
    are missing, damaged or not what they should be.
    """
    check(dataset, data_dir, classes)
    if small(dataset):
        return _small(dataset, data_dir, progress)
    kind, _, path = dataset.partition(":")
    # The shell expands '~' at the start of a word only, and here it follows a colon.
    place = (data_dir or Path(path)).expanduser()
    if kind == "imagefolder":
        return open_folder(place, geometry, classes)
    if kind == "imagenet":
        return open_imagenet(place, geometry, progress)
    if kind == "webdataset":
        return open_webdataset(str(place), geometry, classes, progress)
    # PyArrow takes longer to import than all of this room.
    from dpfc_cli.images.parquet import open_parquet

    return open_parquet(str(place), geometry, classes, progress)


def _small(dataset: str, data_dir: Path | None, progress: Progress | None) -> ImageSet:
    if dataset == "digits":
        return open_digits()
    folder = _download(dataset, progress) if data_dir is None else data_dir
    return open_cifar(dataset, folder) if dataset in LAYOUTS else open_idx(dataset, folder)


def _download(dataset: str, progress: Progress | None) -> Path:
    # Most runs never open a connection; what only this needs takes longer to import than the rest of the room.
    from dpfc_cli.images.download import fetch

    return fetch(dataset, progress)
