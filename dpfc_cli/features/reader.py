"""Reading a feature set. Everything is checked before it is used: see `hdf5`."""

import copy
import hashlib
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from dpfc_cli.errors import UserError, conflict, counted, missing, parameter, printable, quoted
from dpfc_cli.features.hdf5 import broken, opened_hdf5, plain_dataset, readable, rows_of
from dpfc_cli.features.manifest import MANIFEST, Manifest, Shard, SplitFacts, load
from dpfc_cli.files import sha256_of
from dpfc_cli.folders import features_folder
from dpfc_cli.places import place_of, remote
from dpfc_cli.reading import unread
from dpfc_cli.show.document import Told

if TYPE_CHECKING:
    import h5py

NO_CLASS = np.iinfo(np.int32).max
"""A label that is the number of no class."""
_INDICES = 2**16
"""Record numbers that are compared at a time."""
Blocks = Iterator[tuple[Any, ...]]
"""Blocks of consecutive records: (number of the first record, features, labels)."""


class FeatureSet(Told):
    """A finished feature set.

        features = FeatureSet("features/digits-scattering")
        x, y = features.arrays("test")

    Args:
        folder: the folder of the set, or its URL. To find a set by its name, use `open_features`.

    Attributes:
        folder: the folder.
        manifest: the description of the set: public facts, and digests for integrity.

    Raises:
        UserError: there is no feature set in that folder, or its manifest is damaged. The shards are not checked yet:
            `verify` checks all of a split, and reading checks each shard's layout.

    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = place_of(folder)
        self._file = _file(self.folder)
        self.manifest: Manifest = load(self.folder)
        self._numbers: np.ndarray | None = None
        self._subgroup: tuple[int, int | None] | None = None

    def told(self) -> dict[str, str]:
        records = ", ".join(f"{name} {n:,}" for name, n in self.splits.items())
        counts = f"{self.dim} dimensions, {counted(len(self.classes), 'class')}"
        return {"folder": printable(str(self.folder)), "records": records, "features": counts}

    @property
    def name(self) -> str:
        """The name of the set: that of its folder, after links were followed."""
        return self.folder.resolve().name

    @property
    def scratch(self) -> Path:
        """A folder of this machine for files that are needed for a while, as large as the set."""
        return self.folder.resolve() if remote(self.folder) is None else features_folder()

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes. The label j means classes[j]."""
        return self.manifest.classes

    @property
    def dim(self) -> int:
        """The length of a feature vector, d."""
        return self.manifest.dim

    @property
    def splits(self) -> dict[str, int]:
        """The number of records of each split, by the split's name."""
        return {name: facts.n for name, facts in self.manifest.splits.items()}

    def split(self, name: str) -> SplitFacts:
        """The number of records of a split, and its shards. Raises UserError if the set has no split of that name."""
        try:
            return self.manifest.splits[name]
        except KeyError:
            remedy = f"It has: {', '.join(self.manifest.splits)}."
            if name == "test":
                remedy += (
                    f" 'dpfc extract' and 'dpfc import' with {parameter('hold_out')} 0.1 make one of a part of the "
                    "training split."
                )
            raise missing(f"{quoted(self.folder)} has no split '{name}'.", remedy) from None

    def with_classes(self, classes: Sequence[str]) -> "FeatureSet":
        """The same records with labels that are numbers in another list of classes, which has all classes of the set.

        A label that is no class of the set stays none. UserError where the list lacks a class.
        """
        own = self.manifest.classes
        lacking = [name for name in own if name not in classes]
        if lacking:
            raise conflict(
                f"{quoted(self.folder)} has a class that is not among those that are wanted: "
                f"'{printable(lacking[0])}'.",
                "Make it again with the names of the classes that all agreed on.",
            )
        found = copy.copy(self)
        found.manifest = replace(self.manifest, classes=tuple(classes))
        numbers = [classes.index(name) for name in own]
        found._numbers = np.array([*numbers, NO_CLASS, -1], np.int32)
        return found

    def of_subgroups(self, column: str, value: str | None = None) -> "FeatureSet":
        """The same records, of which those without this value of a column are null records. Without a value, those that
        have none of its values are; and where the value has the number i, a label j becomes i·m + j, of m classes.

        UserError: the set has not kept such a column.
        """
        known = self.manifest.subgroups or {}
        if column not in known:
            raise missing(
                f"{quoted(self.folder)} has no subgroups by '{printable(column)}'.",
                f"It has: {', '.join(known) or 'none'}. 'dpfc extract' and 'dpfc import' keep a column with "
                f"{parameter('subgroups')} COLUMN=VALUE,VALUE.",
                parameter="subgroups",
            )
        found = copy.copy(self)
        found._subgroup = list(known).index(column), None if value is None else known[column].index(value)
        return found

    def is_same(self) -> bool:
        """Whether the folder still has the set that was opened. False: it was made anew, or is gone."""
        if self._file is not None and _file(self.folder) == self._file:
            return True
        try:
            return replace(load(self.folder), classes=self.classes) == self.manifest
        except UserError:
            return False

    def check_same(self) -> None:
        """UserError where the folder no longer has the set that was opened (`is_same`)."""
        if not self.is_same():
            raise conflict(
                f"{quoted(self.folder)} has another feature set now than the one that was opened.",
                "Type the command again. It then takes what is there.",
            )

    def again(self) -> "FeatureSet":
        """The same set, opened again: by another process, or on another machine, which may have a copy. UserError:
        there is another set, or none.
        """
        found, there = copy.copy(self), FeatureSet(self.folder)
        # Who opens it looks at the manifest once, and at its file from then on.
        found._file = None
        found.check_same()
        found._file = there._file
        return found

    def verify(
        self,
        split: str,
        progress: Callable[[int, int], None] | None = None,
        records: range | None = None,
    ) -> None:
        """Check every shard of a split: it is there, unchanged since it was made, and has the stated layout.

        Args:
            split: the name of the split.
            progress: called as progress(done, total), in shards.
            records: only the shards that hold some of these records. None: all of them.

        Raises:
            UserError: there is no such split, or a shard fails the check.

        """
        facts = self.split(split)
        shards = _starts(facts, records)
        for i, (shard, *_) in enumerate(self._opened(facts, shards), 1):
            path = self.folder / shard.file
            # At a URL, the very bytes that are used are compared.
            if remote(path) is None:
                try:
                    found = sha256_of(path)
                except OSError as error:
                    raise unread(path, error) from error
                _check_digest(path, found, shard)
            if progress:
                progress(i, len(shards))

    def watched(self, stream: Callable[[int], Blocks]) -> Callable[[int], Blocks]:
        """A stream of this set that ends with a UserError where another set has taken its place.

        Each block is looked at before it is given away: a part of a pass has no end here.
        """

        def checked(rows: int) -> Blocks:
            for block in stream(rows):
                self.check_same()
                yield block

        return checked

    def stream(self, split: str, begin: int = 0, *, groups: bool = False) -> Callable[[int], Blocks]:
        """A function that reads a split in blocks, in the order of the records. Memory is bounded by one block.

        Args:
            split: the name of the split.
            begin: the number of the first record that is read. Shards before it are not opened.
            groups: whether blocks have the group of each record, the person to whom it belongs, as a fourth part.

        Returns:
            A function of the number of rows per block. It yields (start, features, labels): the number of the first
            record; rows × d in the stored dtype; rows × k int32, −1 for no label. From `begin` on, blocks are cut at
            multiples of the number of rows, however the shards are cut. The last block may be shorter. With groups
            (rows, int64): those of a split have the numbers 0 to P - 1. They never decrease from record to record, and
            none is missing. So the records of a group lie together, but they may lie in several blocks.

        Raises:
            UserError: there is no such split, or the set has no groups. While reading: a shard is missing, or does not
                have the stated layout, or the groups are not numbered in this way.

        """
        facts, parts = self.split(split), 3 if groups else 2
        if groups and facts.groups is None:
            raise missing(
                f"{quoted(self.folder)} does not say which records belong to one person.",
                f"Extract with {parameter('group_by')}, or import with an array or a column of groups.",
            )
        return lambda rows: (
            (start, *block[:parts]) for start, block in _cut(self._pieces(facts, rows, begin), rows, begin)
        )

    def arrays(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """A whole split in memory.

        Args:
            split: the name of the split.

        Returns:
            Features, n × d in the stored dtype, and labels, n × k int32 with −1 for no label.

        Raises:
            UserError: there is no such split, or a shard is missing or does not have the stated layout.

        """
        [(_, x, y)] = self.stream(split)(self.split(split).n)
        return x, y

    def _pieces(self, facts: SplitFacts, rows: int, begin: int) -> Iterator[tuple[np.ndarray, ...]]:
        """Features and labels, and groups if there are any, in the order of the records, from `begin` on."""
        for shard, start, columns in self._opened(facts, _starts(facts, range(begin, facts.n))):
            for at in range(max(0, begin - start), shard.rows, rows):
                x, y, *groups = (rows_of(column, self.folder / shard.file, at, rows) for column in columns)
                values = groups.pop() if self.manifest.subgroups else None
                y = y.reshape(len(x), -1)
                if self._numbers is not None:
                    # −1 stays −1, and what was no class stays none.
                    last = len(self._numbers) - 2
                    y = self._numbers[np.where((y >= -1) & (y < last), y, last)]
                if self._subgroup is not None and values is not None:
                    column, only = self._subgroup
                    own, m = values[:, column, None], len(self.manifest.classes)
                    if only is None:
                        y = np.where((y >= 0) & (y < m) & (own >= 0), own * m + y, -1)
                    else:
                        y = np.where(own == only, y, -1)
                yield x, y.astype(np.int32, copy=False), *groups

    def _opened(
        self, facts: SplitFacts, shards: list[tuple[Shard, int]]
    ) -> Iterator[tuple[Shard, int, list["h5py.Dataset"]]]:
        """Each of these shards, the number of its first record, and its data sets: features, labels, and groups if the
        set is grouped. Their layout, their place and their groups are checked.
        """
        k, dim = self.manifest.labels_per_record, self.manifest.dim
        # The group of the record before: −1 before the first record, None if it is not known.
        before = None if shards and shards[0][1] else -1
        for shard, start in shards:
            path, n = self.folder / shard.file, shard.rows
            with readable(path), opened_hdf5(path, _bytes(path, shard)) as file:
                index = plain_dataset(file, path, "index", (n,), "int64")
                for at in range(0, n, _INDICES):
                    found = rows_of(index, path, at, _INDICES)
                    if not np.array_equal(found, np.arange(start + at, start + at + len(found))):
                        raise broken(path, "its records are not those that belong in its place")
                columns = [
                    plain_dataset(file, path, "features", (n, dim), self.manifest.dtype),
                    plain_dataset(file, path, "labels", (n,) if k == 1 else (n, k), "int32"),
                ]
                if self.manifest.grouped:
                    columns.append(plain_dataset(file, path, "groups", (n,), "int64"))
                    before = _last_group(columns[-1], path, n, before)
                    if start + n == facts.n and before + 1 != facts.groups:
                        raise broken(path, "it does not end with the last group of the manifest")
                if kept := self.manifest.subgroups:
                    columns.append(plain_dataset(file, path, "subgroups", (n, len(kept)), "int32"))
                if not self.manifest.grouped and "groups" in file:
                    raise broken(path, "it has groups, and the manifest has none")
                yield shard, start, columns


def _bytes(path: Path, shard: Shard) -> bytes | None:
    """The bytes of a shard at a URL, which are those of the manifest; None for one of this machine."""
    if (far := remote(path)) is None:
        return None
    with readable(path):
        data = far.bytes_from()
    _check_digest(path, hashlib.sha256(data).hexdigest(), shard)
    return data


def _check_digest(path: Path, found: str, shard: Shard) -> None:
    if found != shard.sha256:
        raise broken(path, "its contents are not those of the manifest (truncated, damaged or replaced)")


def _file(folder: Path) -> tuple[Any, ...] | None:
    """What tells the file of a manifest from others, without reading it. None if there is none."""
    try:
        if (far := remote(folder / MANIFEST)) is not None:
            return far.tag()
        found = os.stat(folder / MANIFEST)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _last_group(groups: "h5py.Dataset", path: Path, rows: int, before: int | None) -> int:
    """The last of a shard's groups. UserError unless each record has the group of the record before it, or the next
    one. before: the group of the record before the first, −1 if there is none, None if it is not known.
    """
    for at in range(0, rows, _INDICES):
        found = rows_of(groups, path, at, _INDICES)
        before = int(found[0]) if before is None else before
        # Differences of int64 may overflow, and then look like steps. Equal numbers do not.
        steps = found != np.concatenate(([before], found[:-1]))
        expected = before + np.cumsum(steps)
        if not np.array_equal(found, expected) or found[0] < 0:
            raise broken(path, "its groups are not numbered one after the other, as its place demands")
        before = int(found[-1])
    return -1 if before is None else before


def cut(pieces: Iterable[tuple[np.ndarray, np.ndarray]], rows: int) -> Blocks:
    """Pieces (features, labels) of any lengths as blocks (start, features, labels) of `rows`; the last is shorter."""
    return ((start, x, y) for start, (x, y) in _cut(pieces, rows))


def _cut(
    pieces: Iterable[tuple[np.ndarray, ...]], rows: int, start: int = 0
) -> Iterator[tuple[int, tuple[np.ndarray, ...]]]:
    """Pieces of arrays that have a row for each record, as blocks (start, arrays) of `rows`."""
    waiting: list[tuple[np.ndarray, ...]] = []
    held = 0
    for piece in pieces:
        while len(piece[0]):
            take = min(rows - held, len(piece[0]))
            waiting.append(tuple(part[:take] for part in piece))
            piece, held = tuple(part[take:] for part in piece), held + take
            if held == rows:
                yield start, _joined(waiting)
                start, held, waiting = start + rows, 0, []
    if waiting:
        yield start, _joined(waiting)


def _starts(facts: SplitFacts, records: range | None = None) -> list[tuple[Shard, int]]:
    """Each shard with the number of its first record. records: only those that hold some of these."""
    starts, first, last = facts.starts, 0, len(facts.shards)
    if records is not None:
        first, last = bisect_right(starts, records.start) - 1, bisect_left(starts, records.stop)
    return list(zip(facts.shards[first:last], starts[first:last], strict=False))


def _joined(pieces: list[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    if len(pieces) == 1:
        return pieces[0]
    return tuple(np.concatenate(parts) for parts in zip(*pieces, strict=True))
