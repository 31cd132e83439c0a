"""One shard of a feature set: which records it has, and its bytes.

A shard is made in memory and written when it is whole. HDF5 itself never writes to a disk: it may end the process where
a disk is full.
"""

import io
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from dpfc_cli.errors import GUARDED, bad_record, parameter
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.outputs import unwritable
from dpfc_cli.places import remote

SHARD_BYTES = 64 * 2**20
"""What is larger than 100 MiB goes to a bucket in several requests, of which only the last one has the condition."""
SHARD_ROWS = 16_384
PARTS, BATCH = 32, 256
"""Shards that a split has, if each is of whole batches: so a run that stops loses little."""
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


def number_of_shards(n: int, row_bytes: int) -> int:
    """How many shards a split of n records has. Each has a 32nd of the rows, rounded up to 256, and at most 16,384 rows
    and about 64 MB. row_bytes: the size of a feature vector.
    """
    most = max(1, min(BATCH * -(-n // (PARTS * BATCH)), SHARD_ROWS, SHARD_BYTES // row_bytes))
    return -(-n // most)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raise UserError where the system does not let us write the set that is to lie in `folder`."""
    try:
        yield
    except OSError as error:
        refused = unwritable(folder, error)
        if remote(folder) is not None:
            refused.remedy = "Check the name, the rights and the network. Then run the same command again."
        raise refused from error


def without_label(labels: np.ndarray) -> np.ndarray:
    """Which records are null, (rows,): those that have no label. labels: rows, or rows × k."""
    return np.asarray((labels < 0).reshape(len(labels), -1).all(axis=1))


class ShardSink:
    """Takes the rows of one shard, in order.

    Args:
        planned: the shard.
        manifest: of the set.
        tolerant: whether it takes null records.
        groups: of its records, if the set is grouped.
        subgroups: of its records, if the set has some: rows × columns, numbers of values.

    Attributes:
        filled: how many rows were added.
        null: which of them are null records, by their row.

    """

    def __init__(
        self,
        planned: PlannedShard,
        manifest: Manifest,
        tolerant: bool,
        groups: np.ndarray | None,
        subgroups: np.ndarray | None = None,
    ) -> None:
        rows, dim, dtype, k = planned.rows, manifest.dim, manifest.dtype, manifest.labels_per_record
        self._bytes = io.BytesIO()
        self._file = file = h5py.File(self._bytes, "w", libver="latest", track_order=False)
        chunks, labels = (min(rows, CHUNK_ROWS), dim), (rows,) if k == 1 else (rows, k)
        self._x = file.create_dataset("features", (rows, dim), dtype, chunks=chunks, track_times=False)
        self._y = file.create_dataset("labels", labels, "int32", track_times=False)
        # The numbers of the records in the split, so that the reader notices if shards were exchanged.
        file.create_dataset("index", data=np.arange(planned.start, planned.stop), dtype="int64", track_times=False)
        if groups is not None:
            # A null record keeps its group: whether it is null depends on its bytes.
            file.create_dataset("groups", data=groups, dtype="int64", track_times=False)
        if subgroups is not None:
            file.create_dataset("subgroups", data=subgroups, dtype="int32", track_times=False)
        self._rows, self._dtype, self._tolerant = rows, dtype, tolerant
        self.filled, self.null = 0, list[int]()

    def whole(self) -> memoryview:
        """The bytes of the shard. No rows can be added then. RuntimeError: some lack."""
        if self.filled != self._rows:
            raise RuntimeError(f"a shard has {self.filled} rows of {self._rows}")
        self._file.close()
        return self._bytes.getbuffer()

    def append(self, features: np.ndarray, labels: np.ndarray, null: np.ndarray | None = None) -> None:
        """Write the next rows.

        A null record is stored as zeros with the label −1. A tolerant writer also makes one of every row that has a
        feature that is not finite in the dtype of the shard (float16 ends at 65,504).

        Args:
            features: rows × d, floats. The features of null records are not looked at.
            labels: rows (rows × k if k > 1), integers, −1 for no label.
            null: rows, booleans: which of the rows are null records. Only a tolerant writer takes them. Default: none.

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
                raise bad_record(
                    f"A feature is NaN, infinite or beyond {self._dtype} (first in row {row} of the shard being "
                    f"written). {GUARDED}",
                    f"Correct the source. If the features are merely large, set {parameter('dtype')} to float32.",
                )
            rows[bad] = 0
            labels = np.where(bad if labels.ndim == 1 else bad[:, None], -1, labels)
        self.null += (self.filled + np.flatnonzero(without_label(labels))).tolist()
        stop = self.filled + len(rows)
        self._x[self.filled : stop] = rows
        self._y[self.filled : stop] = labels
        self.filled = stop
