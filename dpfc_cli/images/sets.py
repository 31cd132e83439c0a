"""What this room hands on: splits of pictures, whatever format they came from.

A split is labels in memory and a function that decodes a range of pictures. Labels are small, so they may be held;
pictures may be larger than memory, so nobody downstream may ask for all of them at once. The *listing* names the
source (classes, file names, sizes, order and, where the bytes were read anyway, their digest): an extraction that
stopped half-way can refuse to go on with other pictures than it began with.

Class names, image shape and the number of pictures are public facts, asserted by whoever supplies the data set. Nothing
else that depends on the pictures leaves this room, but for errors, and those say that they are not for the public.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpfc_cli.errors import GUARDED, UserError, counted
from dpfc_cli.sources.split_files import TEST_SPLITS

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int32]
Records = NDArray[np.int64]
"""Numbers of records, ascending."""
Decode = Callable[[int, int], Pixels]
Progress = Callable[[str, int, int | None], None]
Origin = Literal["data set", "asserted", "inferred"]
Entry = tuple[str, int, str]
"""One file of a source: its name, its size in bytes, and the sha256 of its bytes or ''."""

LARGEST = 1 << 30
"""No file of the formats read into memory is larger (the largest official one has 155 MB): a bound on what a damaged or
hostile header can make us allocate."""

MOST_INFERRED = 100_000


class UnreadableError(UserError):
    """A single picture cannot be decoded: the fault is the record's own, not the disk's or the archive's."""


@dataclass(frozen=True, eq=False)
class Split:
    """One part of a data set, its records in a fixed order.

    labels: (n,) int32. image_shape: (H, W, C) with C 1 or 3. pixels(start, stop): uint8 (stop - start, H, W, C), the
    pictures of that range; several threads may call it at once, and UnreadableError says that a picture cannot be
    decoded. only(records): a `pixels` of those records alone. listing: sha256 in hex of what the source is made of.
    prepared: the pictures were brought to a `Geometry`. name(i): what the source calls picture i; where it does not,
    its number.
    """

    labels: Labels
    image_shape: tuple[int, int, int]
    pixels: Decode
    only: Callable[[Records], Decode]
    listing: str
    prepared: bool = False
    name: Callable[[int], str] = str

    @property
    def n(self) -> int:
        return len(self.labels)

    def spread(self, n: int) -> "Split":
        """That many records from all over the listing, or all if there are no more."""
        return self if n >= self.n else self.part(spread(n, self.n))

    def part(self, records: Records) -> "Split":
        """Those records alone. The listing stays: they are the same pictures, and a budget spent on a part of them is
        spent on them.
        """

        def only(some: Records) -> Decode:
            return self.only(records[some])

        def name(i: int) -> str:
            return self.name(int(records[i]))

        return replace(self, labels=self.labels[records], pixels=self.only(records), only=only, name=name)


@dataclass(frozen=True)
class ImageSet:
    """A data set: its name, its classes, its splits ('train', perhaps 'test'), and who says that the classes are
    public: the data set's own definition, the operator ("asserted"), or nobody but the labels ("inferred").
    renumbered: the labels count the asserted classes otherwise than they would count the inferred ones.
    """

    name: str
    classes: tuple[str, ...]
    splits: dict[str, Split]
    origin: Origin = "data set"
    renumbered: bool = False


def held_out(source: ImageSet, fraction: float) -> ImageSet:
    """The set with about that part of its training pictures as the split 'test'. UserError where it has one already,
    or where either would be empty.

    A picture's own name decides, by its hash: no other picture, added or removed, moves it. (In parquet, IDX and CIFAR
    files pictures have places for names, which move when the files are made anew.) So the two are not exactly in that
    proportion, and how many there are in each tells of the names alone. Smaller fractions hold out a part of what
    larger ones do. The listing of both stays the whole's.
    """
    if "test" in source.splits:
        raise UserError(
            f"'{source.name}' has a test split already, of {counted(source.splits['test'].n, 'image')}.",
            "Leave out --hold-out.",
        )
    train = source.splits["train"]
    out = np.fromiter((_hashed(train.name(i)) < fraction for i in range(train.n)), bool, train.n)
    if out.all() or not out.any():
        raise UserError(
            f"--hold-out {fraction:g} of {counted(train.n, 'image')} leaves one of the two splits empty.",
            "Give another fraction, or put test images into a folder of their own.",
        )
    parts = {"train": train.part(np.flatnonzero(~out)), "test": train.part(np.flatnonzero(out))}
    return replace(source, splits=source.splits | parts)


def _hashed(name: str) -> float:
    """A number in [0, 1) from a name alone."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
    # 53 bits are what a float holds exactly.
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def spread(n: int, total: int) -> Records:
    """Of `total` records n, one of each of n equal stretches, ascending: (n,), the same ones every time.

    Sources are often sorted by class, so the first n would be of one; and some take their classes in turn, so every
    so many-th would be. Hence each stretch gives one from another place of it, by the multiples of the golden ratio
    (Knuth, The Art of Computer Programming 3, section 6.4), which come near no fraction.
    """
    i = np.arange(n, dtype=np.int64)
    start, stop = i * total // n, (i + 1) * total // n
    place = i * 2_654_435_769 % 2**32
    return start + (place * (stop - start) >> 32)


def in_memory(
    source: str, images: Pixels, labels: NDArray[np.integer], classes: tuple[str, ...], listing: str
) -> Split:
    """The split of pictures already decoded. images: uint8 (n, H, W, C); labels: n integers in 0..len(classes)-1.

    Raises UserError, naming the source, when the two do not fit together.
    """
    if len(images) != len(labels):
        raise UserError(
            f"{source} has {counted(len(images), 'image')} and {counted(len(labels), 'label')}.",
            "Images and labels must come from the same copy of the data set; fetch both again.",
        )
    if len(images) == 0:
        raise UserError(f"{source} holds no images.", "Name a folder with at least one image.")
    if labels.min() < 0 or labels.max() >= len(classes):
        raise UserError(
            f"{source} has labels outside 0..{len(classes) - 1}. {GUARDED}",
            "Check that the files are those of the data set you named, or fetch them again.",
        )
    kept = labels.astype(np.int32)
    kept.setflags(write=False)
    _, height, width, channels = images.shape
    return Split(kept, (height, width, channels), _held(images), lambda records: _held(images[records]), listing)


def _held(images: Pixels) -> Decode:
    def pixels(start: int, stop: int) -> Pixels:
        check_range(start, stop, len(images))
        return np.ascontiguousarray(images[start:stop])

    return pixels


def labelled(
    labels: dict[str, NDArray[np.int64]], classes: tuple[str, ...] | None
) -> tuple[tuple[str, ...], Origin, dict[str, str]]:
    """What the labels of a format without a list of classes mean: (classes, who says so, split by role).

    labels: of each split as the source names it. classes: as the operator asserts them, or None. Splits are 'train' and
    what the source has for 'test'; one without any label (−1 throughout), as published test sets are, is passed over.
    Raises UserError for labels out of range.
    """
    known = {split: y for split, y in labels.items() if len(y) and (y >= 0).any()}
    if "train" not in known:
        raise UserError("There are no labelled training images.", "Name their files or folder 'train…'.")
    test = next((split for split in TEST_SPLITS if split in known), None)
    used = {"train": "train"} | ({} if test is None else {"test": test})
    highest = max(int(known[split].max()) for split in used.values())
    if classes is None and highest >= MOST_INFERRED:
        raise UserError(
            f"The labels seem to name {highest + 1:,} classes. {GUARDED}", "Say how many there are: --classes."
        )
    names = tuple(str(j) for j in range(highest + 1)) if classes is None else classes
    for split in used.values():
        if known[split].min() < 0 or known[split].max() >= len(names):
            raise UserError(
                f"The {split} images have labels outside 0..{len(names) - 1}. {GUARDED}",
                "Check them, and --classes.",
            )
    return names, "inferred" if classes is None else "asserted", used


def check_range(start: int, stop: int, n: int) -> None:
    """Refuse what slicing would clip: a caller that asks past the end has lost count of its records."""
    if not 0 <= start <= stop <= n:
        raise IndexError(f"images {start}..{stop} were asked for; there are {n}")


def listing_of(classes: tuple[str, ...], entries: Iterable[Entry]) -> str:
    """The listing of a source: its classes, then its files in their order."""
    digest = hashlib.sha256(json.dumps(classes).encode())
    for entry in entries:
        digest.update(b"\n" + json.dumps(entry).encode())
    return digest.hexdigest()


def entry_of(name: str, data: bytes) -> Entry:
    """The entry of a file whose bytes are at hand."""
    return name, len(data), hashlib.sha256(data).hexdigest()
