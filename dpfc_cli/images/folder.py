"""Folders of image files, a sub-folder for each class.

    PATH/train/<class>/*.jpg and PATH/test/<class>/*.jpg      (or val/ or valid/ in place of test/)
    PATH/<class>/*.jpg                                        (training images only)

The classes are the names of the folders, of all splits together, in sorted order; a folder without images is a class
without records. Images are listed when the set is opened and decoded when they are asked for, so a set may be larger
than memory.

What becomes of an image is one rule for all of them, so that nothing about the set's make-up is decided by its
records: turned upright as its EXIF data says, made RGB (grey is repeated, transparency dropped), and, where an image
size is given, cut to the central square and resized to that size (bicubic). Without one, all images must have the
size of the first.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpfc_cli.errors import UserError
from dpfc_cli.images.sets import CURATOR, Entry, ImageSet, Pixels, Split, check_range, listing_of

if TYPE_CHECKING:
    from PIL import Image

EXTENSIONS = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"))
TEST_FOLDERS = ("test", "val", "valid")


def open_folder(path: Path, image_size: int | None) -> ImageSet:
    """The data set of the image files below `path`. image_size: the side in pixels to resize and crop to, or None."""
    if image_size is not None and image_size < 1:
        raise UserError(f"An image size of {image_size} pixels is not possible.", "Give a positive number.")
    folders = _split_folders(path)
    classes = tuple(sorted({name for folder in folders.values() for name in _class_names(folder)}))
    if not classes:
        raise UserError(
            f"No class folders in {' or '.join(map(str, folders.values()))}.",
            "Give each class a folder of its own: PATH/train/<class>/ and PATH/test/<class>/, or PATH/<class>/.",
        )
    files = {split: list(_files(folder, classes)) for split, folder in folders.items()}
    if not files["train"]:
        raise UserError(
            f"No images in the class folders of '{folders['train']}'.",
            f"Images are files directly in a class folder that end in {', '.join(sorted(EXTENSIONS))}.",
        )
    first = folders["train"] / files["train"][0][1][0]
    height, width, channels = decode(first, None).shape if image_size is None else (image_size, image_size, 3)
    splits = {
        split: _split(folders[split], files[split], classes, (height, width, channels), image_size)
        for split in folders
        if files[split]
    }
    return ImageSet("imagefolder", classes, splits)


def decode(file: Path, image_size: int | None) -> Pixels:
    """One image as uint8 (H, W, 3); H = W = image_size where that is given. Raises UserError, naming the file."""
    from PIL import Image, ImageOps

    try:
        with Image.open(file) as opened:
            limit = Image.MAX_IMAGE_PIXELS
            if limit is not None and opened.width * opened.height > limit:
                raise ValueError(f"more than {limit} pixels")
            if opened.mode[0] in "IF":
                raise ValueError("more than 8 bits a channel")
            image = ImageOps.exif_transpose(opened).convert("RGB")
        return np.asarray(image if image_size is None else _square(image, image_size))
    # Decoders raise whatever a damaged file leads them into: not only OSError, but SyntaxError, struct.error and more.
    except Exception as error:
        raise UserError(
            f"'{file}' cannot be decoded: {error}. {CURATOR}",
            "Remove or replace the file, or convert it to an 8-bit PNG or JPEG.",
        ) from error


def _square(image: "Image.Image", side: int) -> "Image.Image":
    """The central square of `image`, resized to `side`.

    Cutting and resizing in one step costs memory for the square alone: resized first, an image of one pixel by a
    million would become `side` by a million times `side`.
    """
    from PIL import Image

    shorter = min(image.size)
    left, top = ((length - shorter) // 2 for length in image.size)
    return image.resize((side, side), Image.Resampling.BICUBIC, box=(left, top, left + shorter, top + shorter))


def _split_folders(path: Path) -> dict[str, Path]:
    if not path.is_dir():
        raise UserError(f"'{path}' is not a folder.", "Name the folder of images as imagefolder:PATH.")
    if not (path / "train").is_dir():
        return {"train": path}
    test = next((path / name for name in TEST_FOLDERS if (path / name).is_dir()), None)
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
                yield label, (f"{name}/{entry.name}", entry.stat().st_size, "")


def _split(
    folder: Path,
    files: list[tuple[int, Entry]],
    classes: tuple[str, ...],
    shape: tuple[int, int, int],
    image_size: int | None,
) -> Split:
    names = [entry[0] for _, entry in files]
    labels = np.array([label for label, _ in files], np.int32)
    labels.setflags(write=False)

    def pixels(start: int, stop: int) -> Pixels:
        check_range(start, stop, len(names))
        batch = np.empty((stop - start, *shape), np.uint8)
        for row, name in enumerate(names[start:stop]):
            image = decode(folder / name, image_size)
            if image.shape != shape:
                raise UserError(
                    f"'{folder / name}' has another size than the first image. {CURATOR}",
                    "Give an image size to resize and crop all images to.",
                )
            batch[row] = image
        return batch

    return Split(labels, shape, pixels, listing_of(classes, (entry for _, entry in files)))
