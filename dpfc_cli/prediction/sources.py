"""What is predicted: pictures, or features that are there already.

A source gives blocks of feature vectors in a fixed order.
"""

import codecs
import itertools
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpfc_cli import backbones, points
from dpfc_cli.arrays import FLOATS, Array, arrays_in
from dpfc_cli.backbones import Backbone
from dpfc_cli.errors import UserError, conflict, counted, missing, parameter, quoted
from dpfc_cli.features.hdf5 import ARRAYS
from dpfc_cli.features.lookup import set_at
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.backbone import Recipe
from dpfc_cli.heads.head import Head, made_otherwise, of_training
from dpfc_cli.images import catalogue, kinds
from dpfc_cli.images.folder import in_folder
from dpfc_cli.images.pictures import Files
from dpfc_cli.images.prefetch import batches
from dpfc_cli.images.sets import Decoder, Unlabelled
from dpfc_cli.places import exists, is_dir, place_of
from dpfc_cli.reading import readable

STDIN = "-"
ROWS = 4096
"""Feature vectors in a block."""
BLOCK = 2**26
"""Bytes that a block of features should not exceed."""
LARGEST_LIST = 2**30
"""Bytes of the largest list of files that is read."""
ACCEPTED = (
    "a folder of pictures, a list of files ('-' for standard input), a .tar or .parquet file of pictures, a feature "
    f"set, or a file of features ({', '.join(ARRAYS)})"
)


class Block(NamedTuple):
    """Consecutive records. start: the number of the first one. features: B × d. broken: why a record has no features,
    by its row. What stands in its row is not looked at.
    """

    start: int
    features: np.ndarray
    broken: dict[int, str]


class Source(ABC):
    """Records to predict. n: how many. noun: what one is called. In sentences, remarks: how the source was read;
    warnings: why the predictions may mean little. private: whether these are the records that the head was trained on.
    """

    n: int
    noun = "record"
    private = False
    remarks: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @abstractmethod
    def name(self, i: int) -> str:
        """What record i is called."""

    @abstractmethod
    def blocks(self) -> Generator[Block, None, None]:
        """All records. If you do not read it to its end, close it."""


class Pictures(Source):
    """Pictures, with the backbone that computes their features."""

    noun = "picture"

    def __init__(self, found: Unlabelled, recipe: Recipe, backbone: Backbone) -> None:
        self.n, self.remarks = len(found.pictures), found.remarks
        self._found, self._recipe, self._backbone = found, recipe, backbone

    def name(self, i: int) -> str:
        return self._found.pictures.name(i)

    def blocks(self) -> Generator[Block, None, None]:
        recipe, step = self._recipe, self._backbone.batch
        decoder = Decoder(self._found.pictures, recipe.preparation, recipe.image_shape, alone=True)
        wanted = ((None, decoder, at, min(at + step, self.n)) for at in range(0, self.n, step))
        with closing(batches(wanted)) as decoded:
            pixels = ((batch, batch.pixels) for _, batch in decoded)
            for batch, features in backbones.computed(self._backbone, pixels):
                with np.errstate(over="ignore"):
                    # As a feature set keeps them.
                    yield Block(batch.start, features.astype(recipe.dtype), batch.broken)


class Stored(Source):
    """The records of a feature set, split by split, called SPLIT/NUMBER."""

    def __init__(self, features: FeatureSet, warnings: tuple[str, ...]) -> None:
        self._features, self.warnings = features, warnings
        self._splits = sorted(features.splits)
        self._starts = [0, *itertools.accumulate(features.splits[name] for name in self._splits)]
        self.n = self._starts[-1]

    def name(self, i: int) -> str:
        place = next(k for k in range(len(self._splits)) if i < self._starts[k + 1])
        return f"{self._splits[place]}/{i - self._starts[place]}"

    def blocks(self) -> Generator[Block, None, None]:
        for split, first in zip(self._splits, self._starts, strict=False):
            self._features.verify(split)
            for at, x, _ in self._features.stream(split)(_rows(4 * self._features.dim)):
                yield Block(first + at, x, {})


class Matrix(Source):
    """The rows of an array, called by their numbers. width: of a row, in bytes. opened: what gives it, for one pass."""

    def __init__(self, n: int, width: int, opened: Callable[[], AbstractContextManager[Array]]) -> None:
        self.n, self._width, self._opened = n, width, opened

    def name(self, i: int) -> str:
        return str(i)

    def blocks(self) -> Generator[Block, None, None]:
        step = _rows(self._width)
        with self._opened() as array:
            for at in range(0, self.n, step):
                yield Block(at, array.read(at, min(at + step, self.n)), {})


def _rows(width: int) -> int:
    """How many rows of so many bytes are read at a time."""
    return max(1, min(ROWS, BLOCK // width))


def of_array(x: np.ndarray, head: Head) -> Matrix:
    if x.dtype.kind not in "fiu" or x.ndim != 2:
        raise UserError(
            f"{parameter('source')} is an array of shape {x.shape} and dtype {x.dtype}.",
            f"Give n × {head.dim} numbers, or the path of pictures.",
        )
    _check_width(x.shape[1], head, "The array")

    array = Array(shape=x.shape, dtype=x.dtype, read=lambda start, stop: x[start:stop])
    return Matrix(len(x), x.itemsize * head.dim, lambda: nullcontext(array))


def of_set(features: FeatureSet, head: Head) -> Stored:
    _check_width(features.dim, head, f"'{features.folder}'")
    found = Stored(features, made_otherwise(head, features, "the predictions"))
    found.private = of_training(head, features)
    return found


def features_at(given: str, head: Head) -> Source | None:
    """The features at a path or of the name of a feature set; None if there are pictures, or nothing. UserError: they
    cannot be read, or have another width than those that the head takes.
    """
    found, path = set_at(given), place_of(given).expanduser()
    if found is not None:
        return of_set(found, head)
    if path.suffix.lower() not in ARRAYS or not exists(path):
        return None
    with _fitting(path, head) as array:
        n, width = array.shape[0], np.dtype(array.dtype).itemsize * head.dim
    return Matrix(n, width, lambda: _fitting(path, head))


@contextmanager
def _fitting(path: Path, head: Head) -> Iterator[Array]:
    with ExitStack() as stack:
        found = arrays_in(path, stack, ARRAYS)
        fitting = [
            array
            for array in found.values()
            # A type that NumPy does not have is a text.
            if isinstance(array.dtype, np.dtype)
            and array.dtype.newbyteorder("=") in FLOATS
            and (len(array.shape), *array.shape[1:]) == (2, head.dim)
            and array.shape[0]
        ]
        if len(fitting) != 1:
            held = ", ".join(f"'{name}' {' × '.join(map(str, each.shape)) or 'one'}" for name, each in found.items())
            raise conflict(
                f"{quoted(path)} has {'no array' if not fitting else counted(len(fitting), 'array')} of n × {head.dim} "
                f"floats, which is what the head takes. It holds: {held or 'nothing'}.",
                "Give a file with one array of features, from the backbone that the head was trained on.",
                parameter="source",
            )
        yield fitting[0]


def pictures_at(given: str) -> Unlabelled:
    """The pictures at a path, of a pattern, or of a list on standard input ('-'). UserError: there is nothing, or
    nothing of a kind that is known.
    """
    name, colon, after = given.partition(":")
    if colon and name + colon in points.added(catalogue.GROUP) and not os.path.exists(given):
        # As `extract` names it. The files themselves say their format.
        given = after
    path = place_of(given).expanduser()
    found = next((each.unlabelled(given) for each in catalogue.formats() if each.unlabelled and each.holds(path)), None)
    if found is None:
        found = in_folder(path) if given != STDIN and is_dir(path) else _listed(given, path)
    if not len(found.pictures):
        raise missing(
            f"{quoted(given)} has no pictures: files that end in {', '.join(sorted(kinds.endings()))}.",
            f"Name another {parameter('source')}.",
        )
    return found


def _listed(given: str, path: Path) -> Unlabelled:
    """One picture, or those of a list. A path in it that is not absolute begins in the working folder."""
    if given == STDIN:
        names = _names(sys.stdin.buffer.read(LARGEST_LIST + 1), "standard input")
    elif not exists(path):
        raise missing(f"There is no {quoted(given)}.", f"Name {ACCEPTED}.", parameter="source")
    elif kinds.ending_of(path.name) in kinds.endings():
        names = [given]
    else:
        kind = f"a list of files ({parameter('source')})"
        with readable(path, kind, f"Name {ACCEPTED}."), path.open("rb") as file:
            names = _names(file.read(LARGEST_LIST + 1), given)
    kinds.check_readable(names)
    return Unlabelled(Files(Path(), names))


def _names(data: bytes, source: str) -> list[str]:
    """The lines of a list of files, or what `find -print0` writes. UserError if it is no such list."""
    # Some editors put a mark ahead.
    data = data.removeprefix(codecs.BOM_UTF8)
    lines = data.split(b"\0") if b"\0" in data else data.splitlines()
    names = [line.decode("utf-8", "surrogateescape") for line in lines if line.strip()]
    # The lines of a table are no paths, and could be about patients: none of them becomes the name of a row.
    if len(data) > LARGEST_LIST or not names or not exists(place_of(names[0])):
        raise missing(
            f"{quoted(source)} is no list of files: its first line names none that is there.",
            f"A list has the path of a picture on each line, from the working folder on. A table (CSV) is none. Name "
            f"{ACCEPTED}.",
            parameter="source",
        )
    return names


def _check_width(d: int, head: Head, source: str) -> None:
    if d != head.dim:
        raise conflict(
            f"{source} has features of {d} dimensions, and the head takes {head.dim}.",
            "Give features of the backbone that the head was trained on.",
            parameter="source",
        )
