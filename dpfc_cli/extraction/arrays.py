"""A feature set of features that are there already, in memory or in files that are read a range of rows at a time."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from dpfc_cli.annotations.broken import Broken
from dpfc_cli.annotations.groups import Keys, grouped
from dpfc_cli.annotations.split_files import held_out
from dpfc_cli.annotations.subgroups import subgroups_of
from dpfc_cli.arrays import Rows, sliced
from dpfc_cli.errors import parameter, quoted, unwritable
from dpfc_cli.extraction import making
from dpfc_cli.extraction.request import Making
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.features.shards import without_label
from dpfc_cli.features.writer import FeatureWriter
from dpfc_cli.folders import PARTIAL
from dpfc_cli.ledger.populations import check_name
from dpfc_cli.memory import check_fits, free_memory
from dpfc_cli.places import exists, is_dir, remote
from dpfc_cli.progress import Progress

ROWS, BLOCK = 4_096, 2**26
"""The most rows that are read at once, and their bytes in float64."""
LEAST_HELD = 2**26
"""Bytes of rows that are held in another order, however little memory is free."""


@dataclass(frozen=True, kw_only=True)
class Records:
    """The records of one split.

    Attributes:
        n: their number.
        d: the length of a feature vector.
        dtype: of the features.
        rows: reads a range of the features, (stop - start) × d.
        y: the labels, n × k integers, −1 for none.
        names: the labels as texts, if the source has no integers: label j is names[j]. They are sorted.
        keys: the person of each record, if the source says so.
        subgroups: the numbers of its values in the columns that are kept, n × columns.

    """

    n: int
    d: int
    dtype: np.dtype[np.generic]
    rows: Rows
    y: np.ndarray
    names: tuple[str, ...] | None = None
    keys: Keys | None = None
    subgroups: np.ndarray | None = None

    def part(self, order: np.ndarray) -> Self:
        """The records in another order, or some of them alone. order: their numbers, each once at most.

        The source is read forwards only, from its beginning to its end, as often as needed: many formats can be read in
        no other way. Each time, a quarter of the free memory is filled with the rows that are wanted next.
        """
        keys = None if self.keys is None else self.keys.part(order)
        before = getattr(self.rows, "__self__", None)
        source, wanted = (before.source, before.order[order]) if isinstance(before, _Ordered) else (self, order)
        values = None if self.subgroups is None else self.subgroups[order]
        rows = _Ordered(source, wanted).rows
        return replace(self, n=len(order), rows=rows, y=self.y[order], keys=keys, subgroups=values)

    @property
    def step(self) -> int:
        """How many rows are read at once. Only the size of a row decides."""
        return max(1, min(ROWS, BLOCK // (8 * self.d)))


class _Ordered:
    def __init__(self, source: Records, order: np.ndarray) -> None:
        self.source, self.order = source, order
        self._start, self._held = 0, np.empty((0, source.d), source.dtype)

    def rows(self, start: int, stop: int) -> np.ndarray:
        if not self._start <= start <= stop <= self._start + len(self._held):
            free = max(LEAST_HELD, free_memory() / 4)
            most = min(free / (self.source.d * self.source.dtype.itemsize), self.source.n)
            self._fill(start, min(start + max(int(most), stop - start), len(self.order)))
        return self._held[start - self._start : stop - self._start]

    def _fill(self, start: int, stop: int) -> None:
        wanted, step = self.order[start:stop], self.source.step
        places = np.argsort(wanted)
        records = wanted[places]
        self._held = np.empty((0, self.source.d), self.source.dtype)
        held = np.empty((stop - start, self.source.d), self.source.dtype)
        for at in range(int(records[0]) // step * step, int(records[-1]) + 1, step):
            first, last = np.searchsorted(records, (at, at + step))
            if first < last:
                block = self.source.rows(at, min(at + step, self.source.n))
                held[places[first:last]] = block[records[first:last] - at]
        self._start, self._held = start, held


def in_memory(x: np.ndarray, y: np.ndarray, keys: Keys | None = None) -> Records:
    """Records in memory. x: n × d floats. y: n or n × k numbers of classes, −1 for none."""
    return Records(n=len(x), d=x.shape[1], dtype=x.dtype, rows=sliced(x), y=y.reshape(len(y), -1), keys=keys)


class Source(NamedTuple):
    """What records are of.

    Attributes:
        path: the file or the folder.
        classes: their names, as somebody asserts them.
        k: the most labels of a record.
        labels: of each split the numbers of the classes, n × k, −1 for none; None: these are `y`.
        person: how persons were found, as the manifest says it.
        feature: what a feature is, if that is known.

    """

    path: Path
    classes: tuple[str, ...]
    k: int
    labels: Mapping[str, np.ndarray] | None = None
    person: dict[str, str] | None = None
    feature: str | None = None


def make_of(
    splits: Mapping[str, Records], source: Source, out: Path, wanted: Making, dtype: str | None = None
) -> tuple[FeatureSet, bool]:
    """Make a feature set of records, or find it.

    Args:
        splits: the records.
        source: what they are of.
        out: where the set is to lie.
        wanted: whose they are, what is held out, which records may be null, and whom to tell.
        dtype: of the stored features. Default: float16 if all of them are, else float32.

    Returns:
        The set, and whether it was made now.

    Raises:
        UserError: it cannot be made.

    """
    check_name(wanted.population)
    half = all(own.dtype == np.float16 for own in splits.values())
    dtype, k, path = dtype or ("float16" if half else "float32"), source.k, source.path
    _check_room(path, out, splits, k, dtype)
    listing = _listing(splits, wanted.progress)
    if source.labels is not None:
        splits = {split: replace(own, y=source.labels[split], names=None) for split, own in splits.items()}
    identity: dict[str, Any] = {"imported": path.name, "listing": listing, "k": k, "dtype": dtype}
    if wanted.hold_out is not None:
        # The records have no names, so their places count as names. Both splits keep the listing of the whole.
        identity |= {"listing": {**listing, "test": listing["train"]}, "hold_out": wanted.hold_out}
        sizes, train = {split: own.n for split, own in splits.items()}, splits["train"]
        parts = held_out(str(path), sizes, wanted.hold_out, "record", keys=train.keys)
        splits = {split: train.part(records) for split, records in parts.items()}
    # The listing is that of the source. So the ledger knows the records, with groups and without.
    groupings = {split: grouped(own.keys) for split, own in splits.items() if own.keys is not None}
    asked = subgroups_of(wanted.subgroups)
    if groupings:
        identity["groups"] = {split: grouping.digest for split, grouping in groupings.items()}
        splits = {split: own.part(groupings[split].order) for split, own in splits.items()}
    values = {split: own.subgroups for split, own in splits.items()}
    if (digests := making.subgroups_in(values, asked)) is not None:
        identity["subgroups"] = digests
    manifest = Manifest(
        classes=source.classes,
        dim=splits["train"].d,
        dtype=dtype,
        labels_per_record=k,
        origin="asserted",
        splits={},
        backbone={"name": "imported", **({} if source.feature is None else {"feature": source.feature})},
        source={"dataset": path.stem if exists(path) and not is_dir(path) else path.name, "identity": identity},
        versions={"numpy": np.__version__},
        grouped_by=source.person if groupings else None,
        subgroups=asked or None,
    )
    features = making.found(out, manifest, wanted.population)
    if features is not None:
        return features, False

    def write(writer: FeatureWriter) -> int:
        return _write(writer, splits, k, wanted.progress)

    sizes = {split: own.n for split, own in splits.items()}
    nulls = Broken("record", sizes, lambda split, i: f"record {i} of {split}", wanted.share)
    kept = {split: each for split, each in values.items() if each is not None}
    given: dict[str, Any] = {"groupings": groupings, "subgroups": kept, "population": wanted.population}
    made = making.make(wanted, out, manifest, write, nulls, **given, keep=False)
    return made.features, True


def _listing(splits: Mapping[str, Records], progress: Progress | None) -> dict[str, str]:
    """A digest of each split's values: the same for every format, and for every order of the classes.

    With it, a resumed call can tell that the source has changed. It stays in the manifest and the ledger.
    """
    digests = {}
    for split, own in splits.items():
        digest = hashlib.sha256(f"{(own.n, own.d)} {own.dtype} {own.y.shape}".encode())
        digest.update(b"" if own.names is None else json.dumps(own.names).encode())
        for at in range(0, own.n, own.step):
            stop = min(at + own.step, own.n)
            digest.update(np.ascontiguousarray(own.rows(at, stop)).tobytes())
            digest.update(own.y[at:stop].astype("<i8").tobytes())
            if progress:
                progress(f"Reading {split}", stop, own.n)
        digests[split] = digest.hexdigest()
    return digests


def _write(writer: FeatureWriter, splits: Mapping[str, Records], k: int, progress: Progress | None) -> int:
    """Write the shards that are missing. Returns how many records they have."""
    missing = writer.missing
    for planned in missing:
        own = splits[planned.split]
        with writer.shard(planned) as sink:
            for at in range(planned.start, planned.stop, own.step):
                stop = min(at + own.step, planned.stop)
                y = np.full((stop - at, k), -1, np.int32)
                y[:, : own.y.shape[1]] = own.y[at:stop]
                sink.append(own.rows(at, stop), y[:, 0] if k == 1 else y, without_label(y))
                if progress:
                    progress(f"Importing {planned.split}", stop, own.n)
    return sum(planned.rows for planned in missing)


def _check_room(path: Path, out: Path, splits: Mapping[str, Records], k: int, dtype: str) -> None:
    """Raise UserError if memory cannot hold a row, or the disk the feature set. So a small file that expands without
    end stops nothing.
    """
    for own in splits.values():
        check_fits(path, "one record", 8 * own.d, copies=8)
    width = np.dtype(dtype).itemsize
    needed = sum(own.n * (own.d * width + 4 * k + (8 if own.keys is None else 16)) for own in splits.values())
    if remote(out) is not None:
        return
    partial = out.with_name(out.name + PARTIAL)
    made = sum(file.stat().st_size for file in partial.glob("*.h5"))
    place = next(folder for folder in partial.absolute().parents if os.path.isdir(folder))
    free = shutil.disk_usage(place).free
    if needed - made > free:
        raise unwritable(
            f"{quoted(path)} says that it holds {' + '.join(f'{own.n:,}' for own in splits.values())} records. They "
            f"take {needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free in '{place}'.",
            f"Check the file. If it is right, choose another {parameter('out')}, or make room.",
            needed=needed,
            allowed=free,
        )
