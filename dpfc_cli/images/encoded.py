"""Splits of encoded pictures (JPEG, PNG and so on), which are decoded when they are asked for.

The bytes of the pictures may be in files of their own, in archives, or in tables.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpfc_cli.errors import GUARDED, UserError, parameter
from dpfc_cli.images.dataset import Preparation
from dpfc_cli.images.memory import check_size
from dpfc_cli.images.sets import Decode, Entry, Pixels, Records, Split, UnreadableError, check_range, listing_of
from dpfc_cli.sources.digests import Kind, digest_of
from dpfc_cli.sources.groups import Keys


class Encoded(Protocol):
    """Encoded pictures in their source. Several threads may read at once."""

    def name(self, i: int) -> str:
        """What picture i is called in messages."""
        ...

    def read(self, i: int) -> bytes:
        """The bytes of picture i.

        Raises OSError or UserError if the source fails, and ValueError if these are more than `MOST_BYTES`.
        """
        ...

    def only(self, records: Records) -> "Encoded":
        """These pictures alone."""
        ...


def read_file(path: Path) -> bytes:
    """The bytes of a picture's own file. Raises OSError, and ValueError if these are more than `MOST_BYTES`."""
    with path.open("rb") as file:
        check_size(os.fstat(file.fileno()).st_size)
        return file.read()


@dataclass(frozen=True)
class Files:
    """Pictures in files of their own. names: relative to the folder."""

    folder: Path
    names: list[str]

    def name(self, i: int) -> str:
        return str(self.folder / self.names[i])

    def read(self, i: int) -> bytes:
        return read_file(self.folder / self.names[i])

    def only(self, records: Records) -> "Files":
        return Files(self.folder, [self.names[i] for i in records])


def encoded_split(
    labels: NDArray[np.integer],
    pictures: Encoded,
    preparation: Preparation,
    *,
    classes: tuple[str, ...],
    entries: Iterable[Entry],
    name: Callable[[int], str],
    keys: Keys | None = None,
) -> Split:
    """The split of encoded pictures.

    Args:
        labels: the label of each picture, (n,).
        pictures: the pictures.
        preparation: what is done with them. Without a geometry all must have the size of the first one.
        classes: the classes that the data set defines. The listing consists of them and of the entries.
        entries: the files of the source.
        name: name(i) is what the source calls picture i. It does not depend on where the source is stored.
        keys: the person of each picture, if they are known.

    Raises:
        UserError: the size of the pictures is needed, and none can be decoded.

    """
    geometry = preparation.geometry
    shape = _first_shape(pictures, len(labels), preparation) if geometry is None else (geometry.crop, geometry.crop, 3)
    kept = labels.astype(np.int32)
    kept.setflags(write=False)

    def only(records: Records) -> Decode:
        return _Decoder(pictures.only(records), len(records), (height, width, channels), preparation)

    height, width, channels = shape
    return Split(
        labels=kept,
        image_shape=(height, width, channels),
        pixels=_Decoder(pictures, len(kept), (height, width, channels), preparation),
        only=only,
        listing=listing_of(classes, entries),
        prepared=geometry is not None,
        name=name,
        title=pictures.name,
        keys=keys,
    )


def _first_shape(pictures: Encoded, n: int, preparation: Preparation) -> tuple[int, ...]:
    """The shape of the first picture that can be decoded. Those before it are named when all are decoded."""
    for i in range(n - 1):
        with suppress(UnreadableError):
            return _decoded(_read(pictures, i), pictures.name(i), preparation).shape
    return _decoded(_read(pictures, n - 1), pictures.name(n - 1), preparation).shape


class _Decoder:
    """A `Decode` of encoded pictures, n of this shape. digests: of those that were read so far."""

    kind: Kind = "file"

    def __init__(self, pictures: Encoded, n: int, shape: tuple[int, int, int], preparation: Preparation) -> None:
        self._pictures, self._shape, self._preparation = pictures, shape, preparation
        self.digests = np.zeros(n, np.uint64)

    def __call__(self, start: int, stop: int) -> Pixels:
        check_range(start, stop, len(self.digests))
        batch = np.empty((stop - start, *self._shape), np.uint8)
        for row in range(len(batch)):
            name, data = self._pictures.name(start + row), _read(self._pictures, start + row)
            self.digests[start + row] = digest_of(data)
            picture = _decoded(data, name, self._preparation)
            if picture.shape != self._shape:
                # This is never a null record: the first picture alone could turn all others into null records.
                raise UserError(
                    f"'{name}' has another size than the first image. {GUARDED}",
                    f"Give a size that all images are resized and cropped to: {parameter('image_size')}.",
                    code="bad-record",
                    parameter="image_size",
                    path=name,
                )
            batch[row] = picture
        return batch


def _read(pictures: Encoded, i: int) -> bytes:
    try:
        return pictures.read(i)
    except (ValueError, MemoryError) as error:
        # Most commands never decode a picture, and Pillow takes longer to import than the rest of the room.
        from dpfc_cli.images.decoding import refusal

        raise refusal(error, pictures.name(i)) from error
    except OSError as error:
        raise UserError(
            f"'{pictures.name(i)}' cannot be read: {error.strerror or error}.",
            "Check that the data set is still where it was, and run the same command again to continue.",
            code="unreadable",
            path=pictures.name(i),
        ) from error


def _decoded(data: bytes, name: str, preparation: Preparation) -> Pixels:
    from dpfc_cli.images.decoding import decode

    return decode(data, name, preparation)
