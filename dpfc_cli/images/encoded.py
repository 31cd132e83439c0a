"""Splits of pictures that are decoded when they are asked for, wherever their bytes lie."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpfc_cli.backbones.geometry import Geometry
from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.images.sets import Decode, Entry, Pixels, Records, Split, check_range, listing_of


class Encoded(Protocol):
    """Pictures as their source holds them. Several threads read at once.

    name: for messages. read: the picture's bytes; OSError or UserError if the source fails. only: some of them.
    """

    def name(self, i: int) -> str: ...

    def read(self, i: int) -> bytes: ...

    def only(self, records: Records) -> "Encoded": ...


@dataclass(frozen=True)
class Files:
    """Pictures in files of their own."""

    folder: Path
    names: list[str]

    def name(self, i: int) -> str:
        return str(self.folder / self.names[i])

    def read(self, i: int) -> bytes:
        return (self.folder / self.names[i]).read_bytes()

    def only(self, records: Records) -> "Files":
        return Files(self.folder, [self.names[i] for i in records])


def encoded_split(
    labels: NDArray[np.integer],
    pictures: Encoded,
    geometry: Geometry | None,
    classes: tuple[str, ...],
    entries: Iterable[Entry],
    name: Callable[[int], str],
) -> Split:
    """The split of encoded pictures, brought to `geometry`, or all of the first one's size. Raises UserError if the
    first cannot be decoded where its size is needed.

    classes: those that the data set defines; they and the entries make the listing. name(i): what the source calls
    picture i, wherever the source lies.
    """
    shape = _decoded(pictures, 0, None).shape if geometry is None else (geometry.crop, geometry.crop, 3)
    kept = labels.astype(np.int32)
    kept.setflags(write=False)

    def only(records: Records) -> Decode:
        return _decoder(pictures.only(records), len(records), (height, width, channels), geometry)

    height, width, channels = shape
    return Split(
        kept,
        (height, width, channels),
        _decoder(pictures, len(kept), (height, width, channels), geometry),
        only,
        listing_of(classes, entries),
        geometry is not None,
        name,
    )


def _decoder(pictures: Encoded, n: int, shape: tuple[int, int, int], geometry: Geometry | None) -> Decode:
    def pixels(start: int, stop: int) -> Pixels:
        check_range(start, stop, n)
        batch = np.empty((stop - start, *shape), np.uint8)
        for row in range(len(batch)):
            picture = _decoded(pictures, start + row, geometry)
            if picture.shape != shape:
                # Never a null record: one picture, the first, would make null records of all others.
                raise UserError(
                    f"'{pictures.name(start + row)}' has another size than the first image. {GUARDED}",
                    "Give --image-size to resize and crop all images to.",
                )
            batch[row] = picture
        return batch

    return pixels


def _decoded(pictures: Encoded, i: int, geometry: Geometry | None) -> Pixels:
    # Most commands never decode a picture, and Pillow takes longer to import than the rest of the room.
    from dpfc_cli.images.decoding import decode

    try:
        data = pictures.read(i)
    except OSError as error:
        raise UserError(
            f"'{pictures.name(i)}' cannot be read: {error.strerror or error}.",
            "Check that the data set is still where it was, and run the same command again to go on.",
        ) from error
    return decode(data, pictures.name(i), geometry)
