"""Making a feature set shard by shard, so that a kill loses one shard at most and leaves nothing that looks finished.

A set is made in `NAME.partial/`: each shard under a temporary name, renamed when whole, its digest noted beside it. A
second run with the same `identity` (data set, listing, backbone, settings) goes on with the missing shards; a run with
another one is refused. The folder gets its real name when the last shard and the manifest are in place.
"""

import fcntl
import hashlib
import itertools
import json
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dpfc_cli.errors import UserError
from dpfc_cli.features.manifest import MANIFEST, Manifest, Shard, SplitFacts, load, write_durably

SHARD_BYTES = 128 * 2**20
SHARD_ROWS = 16_384
CHUNK_ROWS = 1_024


@dataclass(frozen=True)
class Task:
    """One shard still to be made: records [start, stop) of a split."""

    split: str
    file: str
    start: int
    stop: int


def shard_ranges(n: int, shards: int) -> list[tuple[int, int]]:
    """N records cut into `shards` contiguous ranges whose lengths differ by at most one."""
    cuts = [n * i // shards for i in range(shards + 1)]
    return list(itertools.pairwise(cuts))


def default_shards(n: int, row_bytes: int) -> int:
    """Shards of at most 16,384 rows and about 128 MB."""
    return max(1, -(-n // max(1, min(SHARD_ROWS, SHARD_BYTES // row_bytes))))


class FeatureWriter:
    """Writes one feature set. Call `tasks`, write each with `shard`, then `finish`."""

    def __init__(
        self,
        folder: Path,
        rows: dict[str, int],
        dim: int,
        dtype: str,
        labels_per_record: int,
        identity: dict[str, Any],
        shards: int | None = None,
    ) -> None:
        self.folder, self.dim, self.dtype, self.k = folder, dim, dtype, labels_per_record
        self._partial = folder.with_name(folder.name + ".partial")
        width = dim * np.dtype(dtype).itemsize
        counts = {s: min(n, shards) if shards else default_shards(n, width) for s, n in rows.items()}
        self._all = [
            Task(split, f"{split}-{i:05d}-of-{counts[split]:05d}.h5", start, stop)
            for split, n in rows.items()
            for i, (start, stop) in enumerate(shard_ranges(n, counts[split]))
        ]
        settings = {
            "identity": identity,
            "rows": rows,
            "dim": dim,
            "dtype": dtype,
            "k": labels_per_record,
            "shards": counts,
        }
        self._settings = json.dumps(settings, sort_keys=True, indent=1)
        self.resumed = self._open()

    @property
    def tasks(self) -> list[Task]:
        """The shards still to be made."""
        return [t for t in self._all if not (self._partial / (t.file + ".sha256")).exists()]

    @contextmanager
    def shard(self, task: Task) -> Iterator["ShardSink"]:
        """A sink for the rows of one shard; the file gets its name when the sink is full and closed without an
        error.
        """
        path = self._partial / task.file
        temporary = path.with_name(path.name + ".tmp")
        with h5py.File(temporary, "w", libver="latest", track_order=False) as file:
            sink = ShardSink(file, task, self.dim, self.dtype, self.k)
            yield sink
            if sink.filled != task.stop - task.start:
                raise RuntimeError(f"{task.file}: {sink.filled} rows of {task.stop - task.start}")
        _fsync(temporary)
        digest = sha256_of(temporary)
        os.replace(temporary, path)
        write_durably(path.with_name(path.name + ".sha256"), digest)

    def finish(self, manifest: Manifest) -> Manifest:
        """Write the manifest with the shards' digests and give the folder its name. Returns the manifest as written."""
        splits: dict[str, SplitFacts] = {}
        for task in self._all:
            note = self._partial / (task.file + ".sha256")
            shard = Shard(task.file, task.stop - task.start, note.read_text())
            before = splits[task.split].shards if task.split in splits else ()
            splits[task.split] = SplitFacts(task.stop, (*before, shard))
        whole = Manifest(**{**manifest.__dict__, "splits": splits})
        write_durably(self._partial / MANIFEST, whole.to_json())
        # Killed before the rename, a later run finds everything in place and renames; killed after it, the notes stay.
        os.replace(self._partial, self.folder)
        for note in self.folder.glob("*.sha256"):
            note.unlink()
        (self.folder / "settings.json").unlink()
        self._unlock()
        return whole

    def _open(self) -> bool:
        """Make or reopen the partial folder; True when it already held this very task."""
        settings = self._partial / "settings.json"
        try:
            self._partial.mkdir(parents=True, exist_ok=True)
            self._unlock = weakref.finalize(self, os.close, _locked(self._partial))
            if settings.exists():
                if settings.read_text() != self._settings:
                    raise UserError(
                        f"'{self._partial}' was begun from another source or with other settings.",
                        "Run the command that began it, or delete that folder, or choose another --out.",
                    )
                return True
            write_durably(settings, self._settings)
        except BlockingIOError as error:
            raise UserError(
                f"Another process is making '{self.folder}'.", "Wait for it, or choose another --out."
            ) from error
        except OSError as error:
            raise UserError(
                f"'{self.folder}' cannot be written: {error.strerror or error}.", "Choose a writable place with --out."
            ) from error
        return False


def _locked(folder: Path) -> int:
    """A descriptor of the folder that holds its lock until it is closed or the process ends. BlockingIOError if
    taken.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class ShardSink:
    """Rows into one shard, in order."""

    def __init__(self, file: h5py.File, task: Task, dim: int, dtype: str, k: int) -> None:
        rows = task.stop - task.start
        chunk = min(rows, CHUNK_ROWS)
        labels = (rows,) if k == 1 else (rows, k)
        self._x = file.create_dataset("features", (rows, dim), dtype, chunks=(chunk, dim), track_times=False)
        self._y = file.create_dataset("labels", labels, "int32", track_times=False)
        # Which records of the split these are, so that a shard cannot stand in for another.
        file.create_dataset("index", data=np.arange(task.start, task.stop), dtype="int64", track_times=False)
        self._dtype = dtype
        self.filled = 0

    def append(self, features: np.ndarray, labels: np.ndarray) -> None:
        """The next rows. UserError if a feature is NaN or infinite (also after rounding to the shard's dtype)."""
        with np.errstate(over="ignore"):
            rows = features.astype(self._dtype)
        if not np.isfinite(rows).all():
            bad = self.filled + int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
            raise UserError(
                f"A feature is NaN, infinite or beyond {self._dtype} (first in row {bad} of the shard being written). "
                "This message depends on a record: it is for the data's curator only.",
                "Mend the source, or use --dtype float32 if the features are merely large.",
            )
        stop = self.filled + len(rows)
        self._x[self.filled : stop] = rows
        self._y[self.filled : stop] = labels
        self.filled = stop


def already_complete(folder: Path, identity: dict[str, Any]) -> bool:
    """True when `folder` is a finished set of this identity; UserError when it is a set, or anything, of another
    one.
    """
    if not folder.exists():
        return False
    manifest = load(folder)
    if manifest.source.get("identity") == identity:
        return True
    raise UserError(
        f"'{folder}' exists and was made from another source or with other settings.",
        "Choose another --out, or delete it.",
    )


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
