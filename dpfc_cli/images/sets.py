"""What this room hands on: data sets of pictures with labels, from whatever format.

A data set has splits. A split holds its labels in memory and decodes a range of its pictures when asked. Labels are
small, so they may be held. All pictures together may be larger than memory, so nobody asks for all of them at once.

The *listing* of a split is a digest of its source: classes, file names, sizes, order, and the digests of the files that
were read anyway. An extraction that was stopped uses it to refuse other pictures than it began with.

The class names, the shape of the pictures and their number are public facts, stated by whoever supplies the data set.
Nothing else that depends on the pictures leaves this room, except in errors. Those errors say that they must not be
published.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dpfc_cli.downloads import Remote
from dpfc_cli.errors import GUARDED, Faults, UserError, parameter, secret
from dpfc_cli.geometry import Geometry
from dpfc_cli.progress import Progress
from dpfc_cli.sources.classes import Origin
from dpfc_cli.sources.groups import By, Grouping, Keys, Rule, check_apart, grouped
from dpfc_cli.sources.split_files import held_out as rule

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int32]
Records = NDArray[np.int64]
"""Numbers of records. They ascend, unless the records are brought together by persons."""
Window = tuple[float, float]
"""The grey values that become black and white. Those between them become the levels between."""

Notice = Literal["dark", "frames", "rescaled", "turned"]
"""What is noticed of a picture. dark: it uses less than a quarter of the values that its file can hold, and there is no
window. frames: it has more of them than the one that is taken. rescaled: its file says what grey values mean, and there
is no window. turned: its EXIF orientation is not that of its pixels, and it is not turned."""

MOST_BYTES = 512 << 20
"""The most bytes of an encoded picture. One of `decoding.MOST_PIXELS` without compression has 270 MB (RGB)."""


class UnreadableError(UserError):
    """One picture cannot be decoded. The picture itself is damaged, not the disk or the archive it lies on.

    fields["reason"]: what is wrong with it.
    """


class Entry(NamedTuple):
    """One file of a source."""

    name: str
    size: int
    sha256: str  # of its bytes, in hex, or '' if they were not read


class Named(Protocol):
    """Pictures, by number."""

    def name(self, i: int) -> str:
        """What the source calls picture i, wherever it is stored; or its number if it has no name."""
        ...

    def title(self, i: int) -> str:
        """What messages call picture i: its name and where it lies."""
        ...


class Encoded(Named, Protocol):
    """Encoded pictures in their source. Several threads may read at once."""

    def __len__(self) -> int: ...

    def read(self, i: int) -> bytes:
        """The bytes of picture i.

        Raises OSError or UserError if the source fails, and ValueError if these are more than `MOST_BYTES`.
        """
        ...

    def only(self, records: Records) -> "Encoded": ...


class Decode(Named, Protocol):
    """Pictures of one shape, (H, W, C) with C = 1 or 3. Several threads may call it at once. unusable: why pictures
    cannot be used that the source lacks, or that have no label.
    """

    shape: tuple[int, int, int]
    unusable: Mapping[int, str]

    def __call__(self, start: int, stop: int) -> Pixels:
        """Decode the pictures start to stop - 1: (stop - start, H, W, C). UnreadableError if one cannot be decoded."""
        ...

    def only(self, records: Records) -> "Decode": ...


@dataclass(frozen=True, eq=False, kw_only=True)
class Split:
    """One part of a data set. Its records have a fixed order."""

    labels: Labels  # (n,)
    pixels: Decode
    listing: str  # SHA-256 in hex of what the source is made of
    keys: Keys | None = None  # the person of each picture, if the user asked for persons

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
        return replace(self, labels=self.labels[records], pixels=self.pixels.only(records), keys=keys)


class LabelTable(NamedTuple):
    """A table that names pictures."""

    path: Path
    lines: Mapping[str, int]  # where a picture is named, by its title
    wrong: Collection[int]  # the lines that cannot be records


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
    table: LabelTable | None = None  # the table that names its pictures, if there is one


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """How pictures are prepared."""

    geometry: Geometry | None = None  # the size to bring them to; None: they keep their size
    window: Window | None = None
    """For grey values of more than 8 bits; None: all values that the file can hold are levels."""
    exif: bool = False  # whether a picture is turned as its EXIF orientation says
    notices: set[Notice] = field(default_factory=set, compare=False)
    """Why some picture may look otherwise than its owner expects: threads that decode add to it."""

    def describe(self) -> dict[str, Any] | None:
        """The choices as JSON values, as manifests state them; None if nothing is done."""
        said: dict[str, Any] = {} if self.geometry is None else self.geometry.describe()
        if self.window is not None:
            said["window"] = [float(value) for value in self.window]
        if self.exif:
            said["exif"] = True
        return said or None


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
    faults: Faults = field(default_factory=Faults, compare=False)  # what is wrong and does not hide what follows


@dataclass(frozen=True, kw_only=True)
class Unlabelled:
    """Pictures without labels, in a fixed order: what a head is applied to.

    Unlike in a data set to train on, each picture stands alone here: one that is missing, damaged or of another size is
    broken, and the others are decoded.

    Attributes:
        pictures: they.
        name: name(i) is what the source calls picture i.
        remarks: what the user should know of how the source was read, in sentences.

    """

    pictures: Encoded
    name: Callable[[int], str]
    remarks: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        return len(self.pictures)


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
        remotes: the files to download if the user names no folder, if that is possible.
        obtain: where the user gets files that cannot be downloaded, a sentence for messages.
        holds: whether a path is of this format, where the user does not say so.
        unlabelled: the pictures at a path, or of a pattern, without labels. UserError as `open`.

    """

    name: str
    open: Callable[[Request], ImageSet]
    location: Literal["included", "data_dir", "path"]
    pixels: bool = False
    groups: tuple[By, ...] = ()
    remotes: tuple[Remote, ...] = ()
    obtain: str = ""
    holds: Callable[[Path], bool] = lambda path: False
    unlabelled: Callable[[str], Unlabelled] | None = None

    @property
    def asserted(self) -> bool:
        """Whether the operator states the classes. A data set whose own files dpfc knows defines them."""
        return self.location == "path" or not (self.remotes or self.location == "included")


def listing_of(classes: tuple[str, ...], entries: Iterable[object]) -> str:
    """The listing of a source: SHA-256 in hex of its classes and of its files in their order."""
    digest = hashlib.sha256(json.dumps(classes).encode())
    for entry in entries:
        digest.update(b"\n" + json.dumps(entry).encode())
    return digest.hexdigest()


# Parts of a data set


def held_out(source: ImageSet, fraction: float) -> ImageSet:
    """Make a test split from a part of the training pictures, by their own names or by their persons.

    `sources.split_files` says which, and has the errors. In parquet, IDX and CIFAR files pictures have no names, and
    their places count as names. These change when the files are written anew. Both splits keep the whole's listing.
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


# What a picture can fail with


def unreadable(title: str, reason: str) -> UnreadableError:
    return UnreadableError(
        f"{secret(title)} cannot be decoded: {reason}. {GUARDED}",
        "Remove it, replace it by an 8-bit PNG or JPEG, or keep it as a record without content: "
        f"{parameter('on_error')} null.",
        code="bad-record",
        reason=reason,
    )


def unread(title: str, error: OSError) -> UserError:
    """The error for a picture that the system does not let us read. This is no property of the picture."""
    return UserError(
        f"{secret(title)} cannot be read: {error.strerror or error}. {GUARDED}",
        "Check that it is still where it was, and the disk. Then run the same command again to continue.",
        code="unreadable",
    )


def check_size(encoded: int) -> None:
    """Refuse a picture of so many bytes if they are more than `MOST_BYTES`, with a ValueError."""
    if encoded > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
