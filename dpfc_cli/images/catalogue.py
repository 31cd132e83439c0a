"""The data sets that dpfc knows by name, and the one door to them."""

from pathlib import Path

from dpfc_cli.errors import UserError, unknown
from dpfc_cli.images.cifar import LAYOUTS, open_cifar
from dpfc_cli.images.digits import open_digits
from dpfc_cli.images.folder import open_folder
from dpfc_cli.images.idx import open_idx
from dpfc_cli.images.sets import ImageSet, Progress

DATASETS = ("digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "imagefolder:PATH")
FOLDER = "imagefolder"


def open_images(
    dataset: str,
    data_dir: Path | None = None,
    image_size: int | None = None,
    progress: Progress | None = None,
) -> ImageSet:
    """The data set of that name, one of `DATASETS`.

    data_dir: the folder that holds its files, or that folder's parent; without it they come from the cache, and are
    downloaded into it first (progress is told how far). image_size: for image folders, the side in pixels to resize
    and crop to. Raises UserError when the files are missing, damaged or not what they should be.
    """
    kind, _, path = dataset.partition(":")
    if kind == FOLDER:
        return _open_folder(path, data_dir, image_size)
    if dataset not in DATASETS:
        raise unknown("data set", dataset, DATASETS)
    if image_size is not None:
        raise UserError(
            f"The images of '{dataset}' have one size already; an image size is for image folders.",
            "Leave the image size out; the backbone's own preprocessing resizes.",
        )
    if dataset == "digits":
        if data_dir is not None:
            raise UserError("The digits come with dpfc and are in no folder of yours.", "Leave out --data-dir.")
        return open_digits()
    folder = _download(dataset, progress) if data_dir is None else data_dir
    return open_cifar(dataset, folder) if dataset in LAYOUTS else open_idx(dataset, folder)


def _open_folder(path: str, data_dir: Path | None, image_size: int | None) -> ImageSet:
    if not path or data_dir is not None:
        raise UserError(
            "A folder of images is named in the data set itself.", "Write imagefolder:PATH and leave out --data-dir."
        )
    # The shell expands '~' at the start of a word only, and here it follows a colon.
    return open_folder(Path(path).expanduser(), image_size)


def _download(dataset: str, progress: Progress | None) -> Path:
    # Most runs never open a connection; what only this needs takes longer to import than the rest of the room.
    from dpfc_cli.images.download import fetch

    return fetch(dataset, progress)
