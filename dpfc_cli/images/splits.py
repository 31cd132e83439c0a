"""What readers make data sets of: pictures that are decoded already, or encoded ones (JPEG, PNG and so on), which are
decoded when they are asked for. The bytes of these may be in files of their own, in archives, or in tables.
"""

import errno
import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np

from dpfc_cli.errors import GUARDED, bad_record, conflict, counted, parameter, quoted, secret
from dpfc_cli.files import check_plain
from dpfc_cli.geometry import Geometry
from dpfc_cli.images.sets import (
    Encoded,
    Entry,
    ImageSet,
    LabelTable,
    Pixels,
    Preparation,
    Records,
    Request,
    Split,
    UnreadableError,
    check_size,
    listing_of,
    unread,
    unreadable,
)
from dpfc_cli.sources.classes import Labels, Origin, labelled, stated
from dpfc_cli.sources.groups import NO_PERSON, keys_of
from dpfc_cli.sources.split_files import splits_left_out

UNLABELLED = "it has no label that means a class"


def read_file(path: Path) -> bytes:
    """The bytes of a picture's own file. Raises OSError if it cannot be read or is no file (opening a pipe would wait
    forever), and ValueError if these are more than `MOST_BYTES`.
    """
    check_plain(path)
    with path.open("rb") as file:
        check_size(os.fstat(file.fileno()).st_size)
        return file.read()


@dataclass(frozen=True)
class Files:
    """Pictures in files of their own. names: relative to the folder."""

    folder: Path
    names: list[str]

    def __len__(self) -> int:
        return len(self.names)

    def name(self, i: int) -> str:
        return self.names[i]

    def title(self, i: int) -> str:
        return str(self.folder / self.names[i])

    def read(self, i: int) -> bytes:
        return read_file(self.folder / self.names[i])

    def only(self, records: Records) -> "Files":
        return Files(self.folder, [self.names[i] for i in records])


@dataclass(frozen=True, kw_only=True)
class Listed:
    """What a reader found of a split."""

    labels: Labels
    pictures: Encoded | Pixels  # or all pixels: uint8, (n, H, W, C)
    entries: Iterable[Entry]  # the files of the source
    classes: tuple[str, ...] = ()  # those that the source itself names; they and the entries are the listing
    persons: Iterable[object] | None = None  # what names the person of each picture; None if nobody asked
    unusable: Mapping[int, str] = field(default_factory=dict)  # why pictures cannot be used that the source lacks


def image_set(
    name: str,
    found: Mapping[str, Listed],
    request: Request,
    *,
    classes: tuple[str, ...] | None = None,
    also: Iterable[str] = (),
    remarks: tuple[str, ...] = (),
    noticed: Callable[[], str | None] = lambda: None,
    table: LabelTable | None = None,
) -> ImageSet:
    """The data set of what a reader found.

    Args:
        name: of the data set.
        found: by the source's name of the split.
        request: what the data set is opened with.
        classes: the classes that the data set defines; None: the operator must assert them.
        also: names of classes that the source has even where no picture is of them.
        remarks: as in `ImageSet`.
        noticed: as in `ImageSet`.
        table: as in `ImageSet`.

    Raises:
        UserError: nobody states the classes, there is no labelled picture to train on, labels do not fit the pictures,
            the splits differ in size, or the size is needed and no picture can be decoded. Labels that mean no class
            and pictures without a person are added to the faults of the request.

    """
    labels = {split: each.labels for split, each in found.items()}
    names = stated(classes or request.classes)
    known = labelled(labels, names, also, request.faults)
    splits = {role: _split(y.astype(np.int32), found[split], request) for role, (split, y) in known.items()}
    if len({split.pixels.shape for split in splits.values()}) > 1:
        raise conflict(
            f"The training and the test images in {quoted(request.place)} differ in size.",
            "Fetch all files from the same source, or give a size that all images are resized and cropped to: "
            f"{parameter('image_size')}.",
        )
    origin: Origin = "data set" if classes else "asserted"
    remarks += splits_left_out(found, (split for split, _ in known.values()))
    return ImageSet(name, names, splits, origin, remarks, noticed, table)


def _split(labels: np.ndarray, found: Listed, request: Request) -> Split:
    pictures, preparation, rule = found.pictures, request.preparation, request.group_by
    if len(pictures) != len(labels):
        raise conflict(
            f"{quoted(request.place)} has {counted(len(pictures), 'image')} and {counted(len(labels), 'label')}.",
            "Images and labels must come from the same copy of the data set. Fetch both again.",
        )
    if isinstance(pictures, np.ndarray) and (labels < 0).any():
        raise bad_record(f"{quoted(request.place)} has images without a label. {GUARDED}", "Fetch both again.")
    labels.setflags(write=False)
    listing, geometry = listing_of(found.classes, found.entries), preparation.geometry
    if isinstance(pictures, np.ndarray):
        return Split(labels=labels, pixels=_Held(pictures, np.arange(len(labels)), geometry), listing=listing)
    remedy, keys = NO_PERSON if rule is None else rule.remedy, None
    if found.persons is not None:
        with request.faults.gathered():
            keys = keys_of(found.persons, str(request.place), lambda i: secret(pictures.name(i)), remedy)
    unusable = {**dict.fromkeys(np.flatnonzero(labels < 0).tolist(), UNLABELLED), **found.unusable}
    shape = _first_shape(pictures, preparation, unusable) if geometry is None else (geometry.crop, geometry.crop, 3)
    pixels = Decoder(pictures, shape, preparation, unusable=unusable)
    return Split(labels=labels, pixels=pixels, listing=listing, keys=keys)


def entry_of(name: str, data: bytes) -> Entry:
    return Entry(name, len(data), hashlib.sha256(data).hexdigest())


class _Held:
    """A `Decode` of pictures that are decoded already, (n, H, W, C): of these records. They have numbers for names."""

    unusable: Mapping[int, str] = MappingProxyType({})

    def __init__(self, images: Pixels, records: Records, geometry: Geometry | None) -> None:
        self._images, self._records, self._geometry = images, records, geometry
        _, height, width, channels = images.shape
        self.shape = (height, width, channels) if geometry is None else (geometry.crop, geometry.crop, 3)

    def __call__(self, start: int, stop: int) -> Pixels:
        _check_range(start, stop, len(self._records))
        found = self._images[self._records[start:stop]]
        if self._geometry is None:
            return found
        from dpfc_cli.images.decoding import brought

        return np.array([brought(each, self._geometry) for each in found], np.uint8).reshape(-1, *self.shape)

    def only(self, records: Records) -> "_Held":
        return _Held(self._images, self._records[records], self._geometry)

    def name(self, i: int) -> str:
        return str(self._records[i])

    title = name


class Decoder:
    """A `Decode` of encoded pictures.

    alone: each picture stands alone, and the others are decoded if one is missing: it is broken.
    unusable: why pictures cannot be used that are known before. Pictures are made grey if their shape has one channel.
    """

    def __init__(
        self,
        pictures: Encoded,
        shape: tuple[int, int, int],
        preparation: Preparation,
        *,
        alone: bool = False,
        unusable: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self._pictures, self.shape, self._preparation, self._alone = pictures, shape, preparation, alone
        self.unusable = unusable
        self.name, self.title = pictures.name, pictures.title

    def __call__(self, start: int, stop: int) -> Pixels:
        _check_range(start, stop, len(self._pictures))
        batch = np.empty((stop - start, *self.shape), np.uint8)
        for row in range(len(batch)):
            title = self.title(start + row)
            if start + row in self.unusable:
                raise unreadable(title, self.unusable[start + row])
            data = _read(self._pictures, start + row, self._alone)
            batch[row] = self._fitting(_decoded(data, title, self._preparation), title)
        return batch

    def only(self, records: Records) -> "Decoder":
        found, unusable = self._pictures.only(records), {}
        if self.unusable:
            unusable = {
                i: self.unusable[record] for i, record in enumerate(records.tolist()) if record in self.unusable
            }
        return Decoder(found, self.shape, self._preparation, alone=self._alone, unusable=unusable)

    def _fitting(self, picture: Pixels, title: str) -> Pixels:
        (height, width, channels), (own_height, own_width, _) = self.shape, picture.shape
        if (height, width) != (own_height, own_width):
            # Without a geometry the first picture decides which, so nobody makes null records then.
            raise unreadable(title, f"it has {own_width} × {own_height} pixels, and must have {width} × {height}")
        if channels == 1:
            from dpfc_cli.images.decoding import grey

            return grey(picture)
        return picture


def _check_range(start: int, stop: int, n: int) -> None:
    """Refuse a range that slicing would shorten silently. A caller that asks for it has lost count of its records."""
    if not 0 <= start <= stop <= n:
        raise IndexError(f"images {start}..{stop} were asked for; there are {n}")


def _first_shape(pictures: Encoded, preparation: Preparation, unusable: Collection[int]) -> tuple[int, int, int]:
    """The shape of the first picture that can be decoded. Those before it are named when all are decoded."""

    def shape(i: int) -> tuple[int, int, int]:
        height, width, channels = _decoded(_read(pictures, i), pictures.title(i), preparation).shape
        return height, width, channels

    known = [i for i in range(len(pictures)) if i not in unusable] or [0]
    for i in known[:-1]:
        with suppress(UnreadableError):
            return shape(i)
    return shape(known[-1])


_OWN = (None, errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
"""What the system says of one file, and not of the disk or of itself. None: it is no plain file."""


def _read(pictures: Encoded, i: int, alone: bool = False) -> bytes:
    title = pictures.title(i)
    try:
        return pictures.read(i)
    except (ValueError, MemoryError) as error:
        # Most commands never decode a picture, and Pillow takes longer to import than the rest of the room.
        from dpfc_cli.images.decoding import refusal

        raise refusal(error, title) from error
    except OSError as error:
        if alone and error.errno in _OWN:
            raise unreadable(title, error.strerror or str(error)) from error
        raise unread(title, error) from error


def _decoded(data: bytes, title: str, preparation: Preparation) -> Pixels:
    from dpfc_cli.images.decoding import decode

    return decode(data, title, preparation)
