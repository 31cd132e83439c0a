"""Making a feature set shard by shard, so that a kill loses one shard at most and leaves nothing that looks finished.

A set is made in `NAME.partial/`: each shard under a temporary name, renamed when whole, its digest noted beside it. A
second run with the same `identity` (data set, listing, backbone, settings) goes on with the missing shards; a run with
another one is refused once there is a finished shard to lose; before that, what was begun gives way, and a run that
ends without one leaves nothing behind. One that keeps bad records as null records (`on_error`) also goes on with what
was begun without that, for finished shards of such a run have none; from then on the set is its, whoever ends it. The
folder gets its real name when the last shard and the manifest are in place.

**Several processes** may make one set in a folder that they share: process i of N makes every N-th shard, and whichever
finds all of them in place finishes. Each holds a lock on the folder while it works, shared with the others' (a process
by itself holds it alone), and one on the shard it is making, so that no shard is made twice at a time even if N
changes between runs. To finish takes the folder's lock alone, so the last to let go of it does. The locks are flock's:
they end with the process, however it ends.
"""

import fcntl
import hashlib
import itertools
import json
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.features.locks import PATIENCE, ReplacedError, claimed, locked, locked_soon
from dpfc_cli.features.manifest import MANIFEST, PARTIAL, Manifest, Shard, SplitFacts, load, write_durably, write_first

SETTINGS = "settings.json"
SHARD_BYTES = 128 * 2**20
SHARD_ROWS = 16_384
CHUNK_ROWS = 1_024


Share = tuple[int, int]
"""(i, N): the i-th of N parts, from 1."""


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
    """Writes one feature set. Call `tasks`, write each with `shard`, then `finish`, and `close` it in any case.

    share: which part of the shards is this process's; None for all, alone. tolerant: records whose features are not
    finite become null records (zeros, label −1) instead of an error.
    """

    def __init__(
        self,
        folder: Path,
        rows: dict[str, int],
        dim: int,
        dtype: str,
        labels_per_record: int,
        identity: dict[str, Any],
        shards: int | None = None,
        share: Share | None = None,
        tolerant: bool = False,
    ) -> None:
        self.folder, self.dim, self.dtype, self.k = folder, dim, dtype, labels_per_record
        self._share, self._tolerant = share, tolerant
        self._partial = folder.with_name(folder.name + PARTIAL)
        width = dim * np.dtype(dtype).itemsize
        parts = 1 if share is None else share[1]
        counts = {s: min(n, shards or max(default_shards(n, width), parts)) for s, n in rows.items()}
        if shards is None:
            # Begun by another number of processes, it has another number of shards, which is as good.
            counts = self._begun(counts, identity)
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
        self._claims: dict[str, int] = {}
        self._release = weakref.finalize(self, _close, self._claims)
        self._unlock: Callable[[], object] = lambda: None
        self.resumed = self._open()

    @property
    def tasks(self) -> list[Task]:
        """The shards of this process that are still to be made."""
        first, step = self._share or (1, 1)
        return [task for task in self._all[first - 1 :: step] if not self._made(task)]

    def claim(self, task: Task) -> bool:
        """Take a shard to make, ahead of `shard`; False when another process has made it or is at it."""
        if task.file in self._claims:
            return True
        path = self._temporary(task)
        descriptor = claimed(path)
        if descriptor is None:
            return False
        if self._made(task):
            path.unlink()
            os.close(descriptor)
            return False
        self._claims[task.file] = descriptor
        return True

    @contextmanager
    def shard(self, task: Task) -> Iterator["ShardSink"]:
        """A sink for the rows of one shard; the file gets its name when the sink is full and closed without an
        error.
        """
        if not self.claim(task):
            raise RuntimeError(f"{task.file} is another process's")
        path, temporary = self._partial / task.file, self._temporary(task)
        try:
            # The lock on the file is ours; HDF5 would want one of its own.
            with h5py.File(temporary, "w", libver="latest", track_order=False, locking=False) as file:
                sink = ShardSink(file, task, self.dim, self.dtype, self.k, self._tolerant)
                yield sink
                if sink.filled != task.stop - task.start:
                    raise RuntimeError(f"{task.file}: {sink.filled} rows of {task.stop - task.start}")
            _fsync(temporary)
            digest = sha256_of(temporary)
            os.replace(temporary, path)
            write_durably(self._note(task), digest)
        finally:
            os.close(self._claims.pop(task.file))

    def finish(self, manifest: Manifest) -> Manifest | None:
        """Write the manifest with the shards' digests and give the folder its name. Returns the manifest as written;
        None when other processes are still making shards, of which the last will finish.
        """
        if self._share is not None and not self._alone():
            return None
        if not self._partial.exists():
            return load(self.folder)
        if not all(map(self._made, self._all)):
            self._unlock()
            return None
        # Another process may have begun to keep null records since.
        identity = json.loads((self._partial / SETTINGS).read_text())["identity"]
        splits: dict[str, SplitFacts] = {}
        for task in self._all:
            shard = Shard(task.file, task.stop - task.start, self._note(task).read_text())
            before = splits[task.split].shards if task.split in splits else ()
            splits[task.split] = SplitFacts(task.stop, (*before, shard))
        whole = replace(manifest, splits=splits, source={**manifest.source, "identity": identity})
        write_durably(self._partial / MANIFEST, whole.to_json())
        # Killed before the rename, a later run finds everything in place and renames; killed after it, the notes stay.
        os.replace(self._partial, self.folder)
        for left in (*self.folder.glob("*.sha256"), *self.folder.glob("*.tmp")):
            left.unlink()
        (self.folder / SETTINGS).unlink()
        self.close()
        return whole

    def close(self) -> None:
        """Let go of all locks; what is finished stays, and nothing else."""
        self._unlock()
        self._release()
        with suppress(OSError):
            descriptor = locked(self._partial, fcntl.LOCK_EX)
            try:
                if self._emptied():
                    self._partial.rmdir()
            finally:
                os.close(descriptor)

    def _emptied(self) -> bool:
        """Remove what was begun, unless there is a finished shard: whether there was none. Under the folder's lock."""
        if any(self._partial.glob("*.sha256")):
            return False
        for left in (self._partial / SETTINGS, *self._partial.glob("*.h5"), *self._partial.glob("*.tmp")):
            left.unlink(missing_ok=True)
        return True

    def _temporary(self, task: Task) -> Path:
        return self._partial / (task.file + ".tmp")

    def _note(self, task: Task) -> Path:
        return self._partial / (task.file + ".sha256")

    def _made(self, task: Task) -> bool:
        return self._note(task).exists()

    def _alone(self) -> bool:
        """Let go of the shared lock and take it alone, unless others hold it. They will come here, too."""
        self._unlock()
        try:
            self._unlock = weakref.finalize(self, os.close, locked(self._partial, fcntl.LOCK_EX))
        except (BlockingIOError, FileNotFoundError):
            # Others are at work, or one of them has finished.
            return not self._partial.exists()
        return True

    def _begun(self, counts: dict[str, int], identity: dict[str, Any]) -> dict[str, int]:
        """The numbers of shards with which the set was begun, if it was."""
        try:
            stored = json.loads((self._partial / SETTINGS).read_text())
            if not _goes_on(identity, stored["identity"]):
                return counts
            return {split: int(stored["shards"][split]) for split in counts}
        except (OSError, ValueError, KeyError, TypeError):
            return counts

    def _open(self) -> bool:
        """Make or reopen the partial folder; True when it already held this very task."""
        settings = self._partial / SETTINGS
        kind = fcntl.LOCK_EX if self._share is None else fcntl.LOCK_SH
        try:
            descriptor = self._entered(kind)
            self._unlock = weakref.finalize(self, os.close, descriptor)
            if write_first(settings, self._settings):
                return False
            begun = settings.read_text()
            if not _continues(begun, self._settings):
                if self._gave_way(descriptor, kind):
                    return False
                self._unlock()
                raise UserError(
                    f"'{self._partial}' was begun from another source or with other settings.",
                    "Run the command that began it, or delete that folder, or choose another --out.",
                )
            if begun != self._settings:
                write_durably(settings, self._settings)
        except BlockingIOError as error:
            raise UserError(
                f"Another process is making '{self.folder}'.",
                "Wait for it, or choose another --out. To share the work, give each process its --task.",
            ) from error
        except ReplacedError as error:
            raise UserError(f"'{self.folder}' was completed by another process just now.", "Go on with it.") from error
        except OSError as error:
            raise UserError(
                f"'{self.folder}' cannot be written: {error.strerror or error}.", "Choose a writable place with --out."
            ) from error
        return True

    def _entered(self, kind: int) -> int:
        """A descriptor of the partial folder, made if need be, that holds its lock."""
        for _ in range(PATIENCE):
            self._partial.mkdir(parents=True, exist_ok=True)
            try:
                return locked_soon(self._partial, kind)
            except FileNotFoundError as error:
                # Else one that ended without a shard has removed it, and there is nothing to tell.
                if self.folder.exists():
                    raise ReplacedError from error
        raise BlockingIOError

    def _gave_way(self, descriptor: int, kind: int) -> bool:
        """Begin anew in the place of what was begun otherwise, if it has no finished shard and nobody is at work."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if not self._emptied():
            return False
        write_durably(self._partial / SETTINGS, self._settings)
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        return True


def _close(claims: dict[str, int]) -> None:
    for descriptor in claims.values():
        os.close(descriptor)


class ShardSink:
    """Rows into one shard, in order. tolerant: what is not finite becomes the null record."""

    def __init__(self, file: h5py.File, task: Task, dim: int, dtype: str, k: int, tolerant: bool = False) -> None:
        rows = task.stop - task.start
        chunk = min(rows, CHUNK_ROWS)
        labels = (rows,) if k == 1 else (rows, k)
        self._x = file.create_dataset("features", (rows, dim), dtype, chunks=(chunk, dim), track_times=False)
        self._y = file.create_dataset("labels", labels, "int32", track_times=False)
        # Which records of the split these are, so that a shard cannot stand in for another.
        file.create_dataset("index", data=np.arange(task.start, task.stop), dtype="int64", track_times=False)
        self._dtype, self._tolerant = dtype, tolerant
        self.filled = 0

    def append(self, features: np.ndarray, labels: np.ndarray) -> None:
        """The next rows. UserError, or null records, where a feature is NaN or infinite (also after rounding to the
        shard's dtype: float16 ends at 65,504).
        """
        with np.errstate(over="ignore"):
            rows = features.astype(self._dtype)
        null = ~np.isfinite(rows).all(axis=1)
        if null.any():
            if not self._tolerant:
                raise UserError(
                    f"A feature is NaN, infinite or beyond {self._dtype} (first in row "
                    f"{self.filled + int(np.flatnonzero(null)[0])} of the shard being written). {GUARDED}",
                    "Mend the source, or use --dtype float32 if the features are merely large.",
                )
            rows[null] = 0
            labels = np.where(null if labels.ndim == 1 else null[:, None], -1, labels)
        stop = self.filled + len(rows)
        self._x[self.filled : stop] = rows
        self._y[self.filled : stop] = labels
        self.filled = stop


def _goes_on(identity: dict[str, Any], begun: Any) -> bool:
    """Whether what was made under the identity `begun` has its place in a set of `identity`: the same one, or the same
    but for bad records, which were refused. Then there are none in it.
    """
    return begun in (identity, {name: value for name, value in identity.items() if name != "on_error"})


def _continues(begun: str, wanted: str) -> bool:
    """`_goes_on`, of the settings of a partial set."""
    try:
        old, new = json.loads(begun), json.loads(wanted)
        return _goes_on(new["identity"], old["identity"]) and {**old, "identity": None} == {**new, "identity": None}
    except (ValueError, LookupError, TypeError):
        return False


def already_complete(folder: Path, identity: dict[str, Any]) -> bool:
    """True when `folder` is a finished set of this identity, or as good as one (`_goes_on`); UserError when it
    is a set, or anything, of another one.
    """
    if not folder.exists():
        return False
    manifest = load(folder)
    if _goes_on(identity, manifest.source.get("identity")):
        return True
    raise UserError(
        f"'{folder}' exists and was made from another source or with other settings.",
        "Choose another --out, or delete it.",
    )


def asserted(folder: Path, wanted: Manifest) -> Manifest:
    """The manifest of a set made before; what is asserted of it now replaces what was inferred or asserted then."""
    manifest = load(folder)
    if wanted.origin == "asserted" and (manifest.origin, manifest.classes) != (wanted.origin, wanted.classes):
        manifest = replace(manifest, origin=wanted.origin, classes=wanted.classes)
        write_durably(folder / MANIFEST, manifest.to_json())
    return manifest


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
