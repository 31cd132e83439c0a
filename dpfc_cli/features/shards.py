"""One shard of a feature set: which records it has, and its file while rows are written to it."""

import io
import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import h5py
import numpy as np

from dpfc_cli.errors import GUARDED, UserError, parameter
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.folders import moved_by
from dpfc_cli.sources.digests import Digests

SHARD_BYTES = 128 * 2**20
SHARD_ROWS = 16_384
CHUNK_ROWS = 1_024


@dataclass(frozen=True, kw_only=True)
class PlannedShard:
    """A shard to be made: the records [start, stop) of a split, and the name of the file."""

    split: str
    file: str
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


def shard_ranges(n: int, shards: int) -> list[tuple[int, int]]:
    """N records cut into `shards` contiguous ranges. Their lengths differ by at most one."""
    cuts = [n * i // shards for i in range(shards + 1)]
    return list(itertools.pairwise(cuts))


def default_shards(n: int, row_bytes: int) -> int:
    """How many shards n records make, if a shard has at most 16,384 rows and about 128 MB."""
    return max(1, -(-n // max(1, min(SHARD_ROWS, SHARD_BYTES // row_bytes))))


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raise UserError where the system does not let us write the set that is to lie in `folder`."""
    try:
        yield
    except OSError as error:
        raise unwritable(folder, error) from error


def unwritable(folder: Path, error: OSError) -> UserError:
    """The refusal of a set that is to lie in `folder`: the system does not let us write it."""
    return UserError(
        f"'{folder}' cannot be written: {error.strerror or error}.",
        f"Make room, or choose another place: {moved_by(folder.parent) or parameter('out')}. The same command goes on.",
        code="unwritable",
        path=str(folder),
    )


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C is raised at the end of the block, and not inside it.

    HDF5 calls methods of `Storage`, and goes on if one of them raises an exception. What it calls next then fails for
    reasons of Python's own, and the file cannot be closed. Only the main thread is interrupted, and only by a handler.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    pressed: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _, frame: pressed.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if pressed:
            handler(signal.SIGINT, pressed[0])


def closed(file: h5py.File) -> None:
    """Close a file. Ctrl-C waits until it is closed."""
    with uninterrupted():
        file.close()


class Storage(io.FileIO):
    """The file that HDF5 writes a shard to. It takes everything, even what the disk does not.

    HDF5 may end the process if a write fails, for instance on a full disk while a file is closed. So it is told of no
    failure. failed: why the first write failed; the file is worth nothing then.
    """

    failed: OSError | None = None

    def __init__(self, descriptor: int, folder: Path) -> None:
        super().__init__(descriptor, "w+")
        self._folder = folder

    def check(self) -> None:
        """UserError if something could not be written."""
        if self.failed is not None:
            raise unwritable(self._folder, self.failed) from self.failed

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size, begin = len(rest), self.tell()
        while len(rest) and self.failed is None:
            try:
                rest = rest[super().write(rest) :]
            except OSError as error:
                self.failed = error
        self.seek(begin + size)
        return size

    def readinto(self, buffer: Any) -> int:
        rest = memoryview(buffer).cast("B")
        size = len(rest)
        try:
            while len(rest) and (read := super().readinto(rest)):
                rest = rest[read:]
        except OSError as error:
            self.failed = self.failed or error
        rest[:] = bytes(len(rest))
        return size

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.failed = self.failed or error
            return size or 0

    def close(self) -> None:
        try:
            super().close()
        except OSError as error:
            self.failed = self.failed or error


class ShardSink:
    """Takes the rows of one shard, in order."""

    def __init__(
        self,
        file: h5py.File,
        planned: PlannedShard,
        manifest: Manifest,
        tolerant: bool,
        check: Callable[[], None],
        groups: np.ndarray | None,
    ) -> None:
        rows, dim, dtype, k = planned.rows, manifest.dim, manifest.dtype, manifest.labels_per_record
        chunk = min(rows, CHUNK_ROWS)
        labels = (rows,) if k == 1 else (rows, k)
        with uninterrupted():
            self._x = file.create_dataset("features", (rows, dim), dtype, chunks=(chunk, dim), track_times=False)
            self._y = file.create_dataset("labels", labels, "int32", track_times=False)
            # The numbers of the records in the split, so that the reader notices if shards were exchanged.
            file.create_dataset("index", data=np.arange(planned.start, planned.stop), dtype="int64", track_times=False)
            if groups is not None:
                # A null record keeps its group: whether it is null depends on its bytes.
                file.create_dataset("groups", data=groups, dtype="int64", track_times=False)
        self._dtype, self._tolerant, self._check = dtype, tolerant, check
        self.digests: list[Digests] = []
        self.filled = 0

    def append(
        self,
        features: np.ndarray,
        labels: np.ndarray,
        null: np.ndarray | None = None,
        digests: Digests | None = None,
    ) -> None:
        """Write the next rows.

        A null record is stored as zeros with the label −1. A tolerant writer also makes one of every row that has a
        feature that is not finite in the dtype of the shard (float16 ends at 65,504).

        Args:
            features: rows × d, floats. The features of null records are not looked at.
            labels: rows (rows × k if k > 1), integers, −1 for no label.
            null: rows, booleans: which of the rows are null records. Only a tolerant writer takes them. Default: none.
            digests: rows, of what the records were made of: for all rows of a set, or for none.

        Raises:
            UserError: a feature is not finite, and the writer is not tolerant.

        """
        with np.errstate(over="ignore"):
            rows = features.astype(self._dtype)
        bad = ~np.isfinite(rows).all(axis=1)
        if null is not None:
            bad |= null
        if bad.any():
            if not self._tolerant:
                row = self.filled + int(np.flatnonzero(bad)[0])
                raise UserError(
                    f"A feature is NaN, infinite or beyond {self._dtype} (first in row {row} of the shard being "
                    f"written). {GUARDED}",
                    f"Correct the source. If the features are merely large, set {parameter('dtype')} to float32.",
                    code="bad-record",
                    row=row,
                    dtype=self._dtype,
                )
            rows[bad] = 0
            labels = np.where(bad if labels.ndim == 1 else bad[:, None], -1, labels)
        stop = self.filled + len(rows)
        with uninterrupted():
            self._x[self.filled : stop] = rows
            self._y[self.filled : stop] = labels
        self._check()
        if digests is not None:
            self.digests.append(digests.copy())
        self.filled = stop
