"""What this room hands on: data sets of pictures with labels, from whatever format.

A data set has splits. A split holds its labels in memory and decodes a range of its pictures when asked. Labels are
small, so they may be held. All pictures together may be larger than memory, so nobody asks for all of them at once.

The *listing* of a split is a digest of its source: classes, file names, sizes, order, and the digests of the files that
were read anyway. An extraction that was stopped uses it to refuse other pictures than it began with.

The class names, the shape of the pictures and their number are public facts, stated by whoever supplies the data set.
Nothing else that depends on the pictures leaves this room, except in errors. Those errors say that they must not be
published.
"""

import errno
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfc_cli.annotations.classes import Labels, Origin, labelled, stated
from dpfc_cli.annotations.groups import NO_PERSON, By, Grouping, Keys, Rule, check_apart, grouped, keys_of
from dpfc_cli.annotations.split_files import held_out as rule
from dpfc_cli.annotations.split_files import splits_left_out
from dpfc_cli.annotations.subgroups import Named, codes_of
from dpfc_cli.downloads import Remote
from dpfc_cli.errors import Faults, conflict, counted, parameter, quoted, secret
from dpfc_cli.images.pictures import Pictures, Pixels, Preparation, Records, UnreadableError, unread, unreadable
from dpfc_cli.progress import Progress

UNLABELLED = "it has no label that means a class"


_OWN = (None, errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
"""What the system says of one file, and not of the disk or of itself. None: it is no plain file."""


class Decoder:
    """Pictures of one shape, (H, W, C) with C = 1 or 3, decoded when they are asked for. Several threads may call it.

    Args:
        pictures: they.
        preparation: how they are prepared.
        shape: of all of them. None: that of the first one that can be decoded, if the preparation has no geometry.
            Pictures are made grey if it has one channel.
        alone: whether each picture stands alone, and the others are decoded if one is missing: it is broken.
        unusable: why pictures cannot be used that the source lacks, or that have no label.

    """

    def __init__(
        self,
        pictures: Pictures,
        preparation: Preparation,
        shape: tuple[int, int, int] | None = None,
        *,
        alone: bool = False,
        unusable: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        # A view of a mapping cannot be sent to another process.
        self._pictures, self.preparation, self._alone, self.unusable = pictures, preparation, alone, dict(unusable)
        self.name, self.title = pictures.name, pictures.title
        geometry = preparation.geometry
        whole = shape if geometry is None else (geometry.crop, geometry.crop, 3)
        self.shape = shape or whole or self._first_shape()

    def __call__(self, start: int, stop: int) -> Pixels:
        """Decode the pictures start to stop - 1: (stop - start, H, W, C). UnreadableError if one cannot be decoded."""
        # Slicing would shorten the range silently. A caller that asks for it has lost count of its records.
        if not 0 <= start <= stop <= len(self._pictures):
            raise IndexError(f"images {start}..{stop} were asked for; there are {len(self._pictures)}")
        batch = np.empty((stop - start, *self.shape), np.uint8)
        for row, i in enumerate(range(start, stop)):
            if i in self.unusable:
                raise unreadable(self.title(i), self.unusable[i])
            batch[row] = self._fitting(self._decoded(i), i)
        return batch

    def only(self, records: Records) -> "Decoder":
        unusable = {i: self.unusable[record] for i, record in enumerate(records.tolist()) if record in self.unusable}
        found = self._pictures.only(records)
        return Decoder(found, self.preparation, self.shape, alone=self._alone, unusable=unusable)

    def _first_shape(self) -> tuple[int, int, int]:
        """The shape of the first picture that can be decoded. Those before it are named when all are decoded."""
        *known, last = [i for i in range(len(self._pictures)) if i not in self.unusable] or [0]
        for i in known:
            with suppress(UnreadableError):
                return self._shape(i)
        return self._shape(last)

    def _shape(self, i: int) -> tuple[int, int, int]:
        height, width, channels = self._decoded(i).shape
        return height, width, channels

    def _decoded(self, i: int) -> Pixels:
        title = self.title(i)
        try:
            data = self._pictures.read(i)
        except (ValueError, MemoryError) as error:
            # Most commands never decode a picture, and Pillow takes longer to import than the rest of the room.
            from dpfc_cli.images.decoding import refusal

            raise refusal(error, title) from error
        except OSError as error:
            if self._alone and error.errno in _OWN:
                raise unreadable(title, error.strerror or str(error)) from error
            raise unread(title, error) from error
        if isinstance(data, np.ndarray) and self.preparation.geometry is None:
            return data
        from dpfc_cli.images.decoding import decode

        return decode(data, title, self.preparation)

    def _fitting(self, picture: Pixels, i: int) -> Pixels:
        (height, width, channels), (own_height, own_width, own) = self.shape, picture.shape
        if (height, width) != (own_height, own_width):
            # Without a geometry the first picture decides which, so nobody makes null records then.
            why = f"it has {own_width} × {own_height} pixels, and must have {width} × {height}"
            raise unreadable(self.title(i), why)
        if channels < own:
            from dpfc_cli.images.decoding import grey

            return grey(picture)
        return picture


class Entry(NamedTuple):
    """One file of a source."""

    name: str
    size: int
    sha256: str  # of its bytes, in hex, or '' if they were not read


@dataclass(frozen=True, eq=False, kw_only=True)
class Split:
    """One part of a data set. Its records have a fixed order."""

    labels: NDArray[np.int32]  # (n,)
    pixels: Decoder
    listing: str  # SHA-256 in hex of what the source is made of
    keys: Keys | None = None  # the person of each picture, if the user asked for persons
    subgroups: NDArray[np.int32] | None = None  # the numbers of its values in columns that are kept, n × columns

    @property
    def n(self) -> int:
        return len(self.labels)

    def spread(self, n: int) -> "Split":
        """Take n records from all over the listing, or all records if there are no more than n."""
        return self if n >= self.n else self.part(spread(n, self.n))

    def part(self, records: Records) -> "Split":
        """These records alone. The listing stays, because the privacy budget spent on a part of the pictures is spent
        on the same pictures.
        """
        keys = None if self.keys is None else self.keys.part(records)
        values = None if self.subgroups is None else self.subgroups[records]
        pixels = self.pixels.only(records)
        return replace(self, labels=self.labels[records], pixels=pixels, keys=keys, subgroups=values)


@dataclass(frozen=True)
class ImageSet:
    """A data set."""

    name: str  # in the table, for instance 'imagefolder'
    classes: tuple[str, ...]  # their names, in the order in which labels count them
    splits: dict[str, Split]  # 'train', and 'test' if the data set has one
    origin: Origin = "data set"  # who states that the classes are public
    remarks: tuple[str, ...] = ()  # what the user should know of how the source was read, in sentences
    noticed: Callable[[], str | None] = lambda: None
    """The rule that would bring together pictures that seem to be of one person; None if none do. It may take long. It
    is asked only where the user gave no rule."""


# What a source of pictures is


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a data set is opened with."""

    place: Path = Path()  # the file, folder or pattern that holds its files, if they are not included in dpfc
    preparation: Preparation = field(default_factory=Preparation)
    classes: tuple[str, ...] | None = None  # those that the operator asserts
    progress: Progress | None = None  # told while files are downloaded or listed
    label_column: str | None = None  # the column, or the key, that holds the labels, if it is not a usual one
    table: Path | None = None  # the table of labels, if it does not lie beside the pictures under its usual name
    file_column: str | None = None  # the column of that table that names the picture, if it is not a usual one
    group_by: Rule | None = None  # how the person of a picture is found
    subgroups: Named = field(default_factory=dict)  # columns to keep, with their values
    faults: Faults = field(default_factory=Faults, compare=False)  # what is wrong and does not hide what follows


class Unlabelled(NamedTuple):
    """Pictures without labels, in a fixed order: what a head is applied to.

    Unlike in a data set to train on, each picture stands alone here: one that is missing, damaged or of another size is
    broken, and the others are decoded. remarks: as in `ImageSet`.
    """

    pictures: Pictures
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set, or a format of data sets. A package adds one by an entry point of the group `dpfc.sources`, called as
    a user types it: `digits`, or before a path `imagefolder:`.

    Attributes:
        name: the same without the colon.
        open: opens it. UserError: it is not there, or cannot be read.
        location: where its files are: in the package; in a folder that the user names apart from the data set (or in
            the cache, if it can be downloaded); or at the path in its name, `imagefolder:PATH`.
        pixels: whether its pictures are pixels of 8 bits already, of one size.
        groups: the rules by which it finds the person of a picture.
        tabled: whether its labels may stand in a table.
        remotes: the files to download if the user names no folder, if that is possible.
        holds: whether a path is of this format, where the user does not say so.
        unlabelled: the pictures at a path, or of a pattern, without labels. UserError as `open`.

    """

    name: str
    open: Callable[[Request], ImageSet]
    location: Literal["included", "data_dir", "path"]
    pixels: bool = False
    groups: tuple[By, ...] = ()
    tabled: bool = False
    remotes: tuple[Remote, ...] = ()
    holds: Callable[[Path], bool] = lambda path: False
    unlabelled: Callable[[str], Unlabelled] | None = None

    @property
    def asserted(self) -> bool:
        """Whether the operator states the classes. A data set whose own files dpfc knows defines them."""
        return self.location == "path"


def listing_of(classes: tuple[str, ...], entries: Iterable[object]) -> str:
    """The listing of a source: SHA-256 in hex of its classes and of its files in their order."""
    digest = hashlib.sha256(json.dumps(classes).encode())
    for entry in entries:
        digest.update(b"\n" + json.dumps(entry).encode())
    return digest.hexdigest()


# From what a reader found


@dataclass(frozen=True, kw_only=True)
class Listed:
    """What a reader found of a split."""

    labels: Labels
    pictures: Pictures
    entries: Iterable[Entry]  # the files of the source
    classes: tuple[str, ...] = ()  # those that the source itself names; they and the entries are the listing
    persons: Iterable[object] | None = None  # what names the person of each picture; None if nobody asked
    subgroups: Mapping[str, Iterable[object]] = field(default_factory=dict)  # the values of columns that are kept
    unusable: Mapping[int, str] = field(default_factory=dict)  # why pictures cannot be used that the source lacks


def image_set(
    name: str,
    found: Mapping[str, Listed],
    request: Request,
    *,
    classes: tuple[str, ...] | None = None,
    also: Iterable[str] = (),
    remarks: tuple[str, ...] = (),
) -> ImageSet:
    """The data set of what a reader found.

    Args:
        name: of the data set.
        found: by the source's name of the split.
        request: what the data set is opened with.
        classes: the classes that the data set defines; None: the operator must assert them.
        also: names of classes that the source has even where no picture is of them.
        remarks: as in `ImageSet`.

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
    return ImageSet(name, names, splits, origin, remarks)


def _split(labels: np.ndarray, found: Listed, request: Request) -> Split:
    pictures, rule, keys = found.pictures, request.group_by, None
    if len(pictures) != len(labels):
        raise conflict(
            f"{quoted(request.place)} has {counted(len(pictures), 'image')} and {counted(len(labels), 'label')}.",
            "Images and labels must come from the same copy of the data set. Fetch both again.",
        )
    labels.setflags(write=False)
    if found.persons is not None:
        remedy = NO_PERSON if rule is None else rule.remedy
        with request.faults.gathered():
            keys = keys_of(found.persons, str(request.place), lambda i: secret(pictures.name(i)), remedy)
    unusable = {**dict.fromkeys(np.flatnonzero(labels < 0).tolist(), UNLABELLED), **found.unusable}
    return Split(
        labels=labels,
        pixels=Decoder(pictures, request.preparation, unusable=unusable),
        listing=listing_of(found.classes, found.entries),
        keys=keys,
        subgroups=codes_of(found.subgroups, request.subgroups) if found.subgroups else None,
    )


def entry_of(name: str, data: bytes) -> Entry:
    return Entry(name, len(data), hashlib.sha256(data).hexdigest())


# Parts of a data set


def held_out(source: ImageSet, fraction: float) -> ImageSet:
    """Make a test split from a part of the training pictures, by their own names or by their persons.

    `annotations.split_files` says which, and has the errors. In parquet, IDX and CIFAR files pictures have no names,
    and their places count as names. These change when the files are written anew. Both splits keep the whole's listing.
    """
    train = source.splits["train"]
    sizes = {name: split.n for name, split in source.splits.items()}
    records = rule(source.name, sizes, fraction, "image", train.pixels.name, train.keys)
    return replace(source, splits={split: train.part(own) for split, own in records.items()})


def by_person(source: ImageSet) -> tuple[ImageSet, dict[str, Grouping]]:
    """The pictures of each person brought together: the same pictures in another order, with the same listing; and for
    each split the order and the groups. UserError if a person has pictures in two splits.
    """
    keys = {name: split.keys for name, split in source.splits.items() if split.keys is not None}
    check_apart(keys)
    groupings = {name: grouped(own) for name, own in keys.items()}
    splits = {name: source.splits[name].part(grouping.order) for name, grouping in groupings.items()}
    return replace(source, splits=splits), groupings


def spread(n: int, total: int) -> Records:
    """Choose n of `total` records, one from each of n equal stretches: (n,), ascending, the same every time.

    Sources are often sorted by class, so the first n records would all be of one class. Other sources repeat their
    classes in turn, so every k-th record would be of one class. Therefore the place inside the stretch varies: it
    follows the multiples of the golden ratio (Knuth, The Art of Computer Programming 3, section 6.4), which stay away
    from every simple fraction.
    """
    i = np.arange(n, dtype=np.int64)
    start, stop = i * total // n, (i + 1) * total // n
    place = i * 2_654_435_769 % 2**32
    return start + (place * (stop - start) >> 32)
