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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfc_cli.errors import GUARDED, UserError, counted, parameter
from dpfc_cli.sources.classes import Origin
from dpfc_cli.sources.digests import Digests, Kind, digests_of_pixels
from dpfc_cli.sources.groups import Grouping, Keys, check_apart, grouped
from dpfc_cli.sources.held_out import held_out as rule
from dpfc_cli.sources.held_out import second_test_split

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int32]
Records = NDArray[np.int64]
"""Numbers of records. They ascend, unless the records are brought together by persons."""
Decode = Callable[[int, int], Pixels]
"""Decodes the pictures start to stop - 1: (stop - start, H, W, C)."""
Progress = Callable[[str, int, int | None], None]
"""Called as progress(stage, done, total or None)."""

LARGEST = 1 << 30
"""Bytes of the largest file that is read into memory as a whole. The largest official one has 155 MB. This bounds what
a damaged or hostile header can make dpfc allocate."""


class UnreadableError(UserError):
    """One picture cannot be decoded. The picture itself is damaged, not the disk or the archive it lies on.

    fields["reason"]: what is wrong with it.
    """


class Entry(NamedTuple):
    """One file of a source. sha256: of its bytes, in hex, or '' if they were not read."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Split:
    """One part of a data set. Its records have a fixed order.

    Args:
        labels: int32, (n,).
        image_shape: (H, W, C), C = 1 or 3.
        pixels: pixels(start, stop) decodes that range of pictures: uint8, (stop - start, H, W, C). Several threads may
            call it at once. It raises UnreadableError if a picture cannot be decoded. It may have a `kind` and
            `digests`, (n,): those of the pictures that it has read.
        only: only(records) is a `pixels` of these records alone.
        listing: SHA-256 in hex of what the source is made of.
        prepared: the pictures were brought to a `Geometry`.
        name: name(i) is what the source calls picture i, or its number if it has no name.
        title: title(i) is what messages call picture i: its name and where it lies.
        keys: the person of each picture, if the user asked for persons.

    """

    labels: Labels
    image_shape: tuple[int, int, int]
    pixels: Decode
    only: Callable[[Records], Decode]
    listing: str
    prepared: bool = False
    name: Callable[[int], str] = str
    title: Callable[[int], str] = str
    keys: Keys | None = None

    @property
    def n(self) -> int:
        """The number of records."""
        return len(self.labels)

    @property
    def kind(self) -> Kind | None:
        """What the digests of the records are made of (see `sources.digests`); None if the source makes none."""
        return getattr(self.pixels, "kind", None)

    def digests(self, start: int, stop: int) -> Digests | None:
        """The digests of the pictures start to stop - 1, which must be decoded by then. None if there are none."""
        found: Digests | None = getattr(self.pixels, "digests", None)
        return None if found is None else found[start:stop]

    def spread(self, n: int) -> "Split":
        """Take n records from all over the listing, or all records if there are no more than n."""
        return self if n >= self.n else self.part(spread(n, self.n))

    def part(self, records: Records) -> "Split":
        """These records alone. The listing stays, because the privacy budget spent on a part of the pictures is spent
        on the same pictures.
        """

        def only(some: Records) -> Decode:
            return self.only(records[some])

        def name(i: int) -> str:
            return self.name(int(records[i]))

        def title(i: int) -> str:
            return self.title(int(records[i]))

        pixels, keys = self.only(records), None if self.keys is None else self.keys.part(records)
        return replace(self, labels=self.labels[records], pixels=pixels, only=only, name=name, title=title, keys=keys)


@dataclass(frozen=True)
class ImageSet:
    """A data set.

    Args:
        name: the data set's name in the table, for instance 'imagefolder'.
        classes: the names of the classes, in the order in which labels count them.
        splits: 'train', and 'test' if the data set has one.
        origin: who states that the classes are public.
        renumbered: the classes were asserted, and labels count them in another order than inferred classes would have.
        remarks: what the user should know of how the source was read, in sentences.
        noticed: the rule that would bring together pictures that seem to be of one person; None if none do. It may take
            long. It is asked only where the user gave no rule.

    """

    name: str
    classes: tuple[str, ...]
    splits: dict[str, Split]
    origin: Origin = "data set"
    renumbered: bool = False
    remarks: tuple[str, ...] = ()
    noticed: Callable[[], str | None] = lambda: None


def held_out(source: ImageSet, fraction: float) -> ImageSet:
    """Make a test split from a part of the training pictures, by their own names or by their persons.

    `sources.held_out` says which. In parquet, IDX and CIFAR files pictures have no names, and their places count as
    names. These change when the files are written anew. Both splits keep the listing of the whole.

    Args:
        source: a data set without a test split.
        fraction: about this part of the training pictures becomes the test split, between 0 and 1.

    Returns:
        The data set with both splits.

    Raises:
        UserError: there is a test split already (code "conflict"), or one of the splits would be empty (code
            "bad-value").

    """
    if "test" in source.splits:
        raise second_test_split(source.name, source.splits["test"].n, "image")
    train = source.splits["train"]
    records = rule(train.n, fraction, "image", train.name, train.keys)
    return replace(source, splits={split: train.part(own) for split, own in records.items()})


def by_person(source: ImageSet) -> tuple[ImageSet, dict[str, Grouping]]:
    """Bring the pictures of each person together.

    Args:
        source: a data set that knows the persons.

    Returns:
        The same pictures in another order, with the same listing; and for each split the order and the groups.

    Raises:
        UserError: a person has pictures in two splits.

    """
    keys = {name: split.keys for name, split in source.splits.items() if split.keys is not None}
    check_apart(keys, source.name)
    groupings = {name: grouped(own) for name, own in keys.items()}
    splits = {name: source.splits[name].part(grouping.order) for name, grouping in groupings.items()}
    return replace(source, splits=splits), groupings


def spread(n: int, total: int) -> Records:
    """Choose n of `total` records, one from each of n equal stretches. The choice is the same every time.

    Sources are often sorted by class, so the first n records would all be of one class. Other sources repeat their
    classes in turn, so every k-th record would be of one class. Therefore the place inside the stretch varies: it
    follows the multiples of the golden ratio (Knuth, The Art of Computer Programming 3, section 6.4), which stay away
    from every simple fraction.

    Returns:
        The numbers of the records, (n,), ascending.

    """
    i = np.arange(n, dtype=np.int64)
    start, stop = i * total // n, (i + 1) * total // n
    place = i * 2_654_435_769 % 2**32
    return start + (place * (stop - start) >> 32)


def in_memory(
    source: str, images: Pixels, labels: NDArray[np.integer], classes: tuple[str, ...], listing: str
) -> Split:
    """The split of pictures that are decoded already.

    Args:
        source: what the split is called in messages, the beginning of a sentence.
        images: uint8, (n, H, W, C).
        labels: n integers from 0 to len(classes) - 1.
        classes: the names of the classes.
        listing: the listing of the split's source.

    Raises:
        UserError: images, labels and classes do not fit together (code "conflict" or "bad-record"), or there are no
            images (code "missing").

    """
    if len(images) != len(labels):
        raise UserError(
            f"{source} has {counted(len(images), 'image')} and {counted(len(labels), 'label')}.",
            "Images and labels must come from the same copy of the data set. Fetch both again.",
            code="conflict",
            source=source,
            images=len(images),
            labels=len(labels),
        )
    if len(images) == 0:
        raise UserError(
            f"{source} holds no images.", "Name a folder with at least one image.", code="missing", source=source
        )
    if labels.min() < 0 or labels.max() >= len(classes):
        raise UserError(
            f"{source} has labels outside 0..{len(classes) - 1}. {GUARDED}",
            "Check that the files are those of the data set you named, or fetch them again.",
            code="bad-record",
            source=source,
        )
    kept = labels.astype(np.int32)
    kept.setflags(write=False)
    _, height, width, channels = images.shape
    return Split(
        labels=kept,
        image_shape=(height, width, channels),
        pixels=_Held(images),
        only=lambda records: _Held(images[records]),
        listing=listing,
    )


class _Held:
    """A `Decode` of pictures that are decoded already. digests: of those that were asked for so far."""

    kind: Kind = "pixels"

    def __init__(self, images: Pixels) -> None:
        self._images, self.digests = images, np.zeros(len(images), np.uint64)

    def __call__(self, start: int, stop: int) -> Pixels:
        check_range(start, stop, len(self._images))
        found = np.ascontiguousarray(self._images[start:stop])
        self.digests[start:stop] = digests_of_pixels(found)
        return found


def unreadable(title: str, reason: str) -> UnreadableError:
    """The error for a picture that cannot be decoded."""
    return UnreadableError(
        f"'{title}' cannot be decoded: {reason}. {GUARDED}",
        "Remove it, replace it by an 8-bit PNG or JPEG, or keep it as a record without content: "
        f"{parameter('on_error')} null.",
        code="bad-record",
        parameter="on_error",
        path=title,
        reason=reason,
    )


def check_range(start: int, stop: int, n: int) -> None:
    """Refuse a range that slicing would shorten silently. A caller that asks for it has lost count of its records."""
    if not 0 <= start <= stop <= n:
        raise IndexError(f"images {start}..{stop} were asked for; there are {n}")


def listing_of(classes: tuple[str, ...], entries: Iterable[Entry]) -> str:
    """The listing of a source: SHA-256 in hex of its classes and of its files in their order."""
    digest = hashlib.sha256(json.dumps(classes).encode())
    for entry in entries:
        digest.update(b"\n" + json.dumps(entry).encode())
    return digest.hexdigest()


def entry_of(name: str, data: bytes) -> Entry:
    """The entry of a file with these bytes."""
    return Entry(name, len(data), hashlib.sha256(data).hexdigest())
