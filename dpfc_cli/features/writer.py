"""Making a feature set shard by shard. An interruption loses one shard at most, and leaves nothing that looks finished.

A set is made in `NAME.partial/`. Each shard is written under a temporary name and renamed when it is complete; its
digest is then noted in a file beside it. When all shards and the manifest are in place, the folder gets its real name.

**Going on.** The identity of a set says what it is made of and how: data set, listing, backbone, settings. A second run
with the same identity makes the shards that are missing. A run with another identity is refused if there is a finished
shard, which it would have to delete. If there is none, what was begun is removed and the new run starts from nothing. A
run that ends without a finished shard removes what it began.

A run that keeps bad records as null records (`on_error`) may also go on with what was begun without that setting: the
finished shards of such a run contain no bad records. From then on the identity of the set has that setting, whichever
process finishes it.

**Several processes** may make one set in a folder that they share. Task i of N makes every N-th shard, and the process
that finds all shards in place finishes the set. Each process holds a lock on the folder while it works; the processes
share this lock, but a process that works alone holds it alone. Each process also holds a lock on the shard that it is
making, so that no two processes make the same shard at a time, even if N changes between runs. Finishing takes the
folder's lock alone, so the last process that gives up the shared lock finishes the set. The locks are flock's: they end
with the process, in any case.

**Who may read.** A shard holds values of records, so it is for its owner alone (mode 0600) from its first byte on. So
are the digests of records (`digests`). The folder and the manifest get the modes that the umask allows. To share a set,
change the modes of its files: `chmod g+r features/NAME/*.h5 features/NAME/*.digests`. The processes that make one set
are of one user.
"""

import fcntl
import io
import itertools
import json
import os
import re
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import h5py
import numpy as np

from dpfc_cli import files, schema
from dpfc_cli.errors import GUARDED, UserError, counted, parameter
from dpfc_cli.features import digests
from dpfc_cli.features.digests import Section
from dpfc_cli.features.locks import PATIENCE, ReplacedError, claimed, locked, locked_soon
from dpfc_cli.features.manifest import GROUPED_VERSION, MANIFEST, VERSION, Manifest, Shard, SplitFacts, load
from dpfc_cli.features.reader import opened_hdf5, plain_dataset
from dpfc_cli.folders import PARTIAL, moved_by
from dpfc_cli.sources.digests import Digests, Kind

SETTINGS = "settings.json"
SHARD_BYTES = 128 * 2**20
SHARD_ROWS = 16_384
CHUNK_ROWS = 1_024

Approve = Callable[[dict[str, np.ndarray]], None]
Task = tuple[int, int]
"""(i, N): this process makes the i-th of N parts of the work. i counts from 1."""


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


class FeatureWriter:
    """Writes one feature set.

    Take the shards from `missing`, write each one with `shard`, then call `finish`. Call `close` in any case.

    Args:
        folder: where the set is to lie.
        rows: the number of records of each split.
        dim: the length of a feature vector.
        dtype: "float16" or "float32".
        labels_per_record: the most labels that a record can have.
        identity: what the set is made of and how, as JSON-able values.
        shards: the number of shards per split; by default it depends on the size.
        task: the part of the shards that this process makes; None: all of them, and no other process takes part.
        tolerant: whether the set may contain null records. A record with features that are not finite then becomes one;
            otherwise it is an error.
        groups: the group of each record of each split, if the set is grouped: 0, …, 0, 1, …, P - 1. The identity must
            say which records belong together.
        kind: what digests of the records are made of (`sources.digests`); None if there are none.

    Raises:
        UserError: the folder cannot be written, another process works on it, or it was begun with another identity.

    """

    def __init__(
        self,
        folder: Path,
        *,
        rows: dict[str, int],
        dim: int,
        dtype: str,
        labels_per_record: int,
        identity: dict[str, Any],
        shards: int | None = None,
        task: Task | None = None,
        tolerant: bool = False,
        groups: Mapping[str, np.ndarray] | None = None,
        kind: Kind | None = None,
    ) -> None:
        self.folder, self.dim, self.dtype, self.k = folder, dim, dtype, labels_per_record
        _check_groups(rows, groups)
        self._groups, self._kind, self._records = groups, kind, identity.get("listing", {})
        self._task, self._tolerant = task, tolerant
        self._partial = folder.with_name(folder.name + PARTIAL)
        width = dim * np.dtype(dtype).itemsize
        parts = 1 if task is None else task[1]
        counts = {s: min(n, shards or max(default_shards(n, width), parts)) for s, n in rows.items()}
        if shards is None:
            # A set begun by another number of processes may have another number of shards. We keep that number.
            counts = self._begun(counts, rows, identity)
        self._all = [
            PlannedShard(split=split, file=f"{split}-{i:05d}-of-{counts[split]:05d}.h5", start=start, stop=stop)
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
        self._release = weakref.finalize(self, _release, self._claims)
        self._unlock: Callable[[], object] = lambda: None
        self.resumed = self._open()

    @property
    def missing(self) -> list[PlannedShard]:
        """The shards that this process still has to make."""
        first, step = self._task or (1, 1)
        with _writing(self.folder):
            return [planned for planned in self._all[first - 1 :: step] if not self._made(planned)]

    def claim(self, planned: PlannedShard) -> bool:
        """Reserve a shard for this process, before `shard` writes it.

        Returns:
            False if another process has made the shard, or is making it.

        """
        if planned.file in self._claims:
            return True
        path = self._temporary(planned)
        with _writing(self.folder):
            descriptor = claimed(path)
            if descriptor is None:
                return False
            self._claims[planned.file] = descriptor
            if not self._made(planned):
                return True
            path.unlink()
        _close(self._claims.pop(planned.file))
        return False

    @contextmanager
    def shard(self, planned: PlannedShard) -> Iterator["ShardSink"]:
        """A sink for the rows of one shard. The file gets its name at the end of the block, if there was no error."""
        if not self.claim(planned):
            raise RuntimeError(f"{planned.file} is another process's")
        path, temporary = self._partial / planned.file, self._temporary(planned)
        try:
            with ExitStack() as stack:
                with _writing(self.folder):
                    # We write through the descriptor that holds the lock, to the very file that `claim` made.
                    os.ftruncate(self._claims[planned.file], 0)
                    storage = stack.enter_context(_Storage(os.dup(self._claims[planned.file]), self.folder))
                    if not os.path.samestat(os.fstat(storage.fileno()), os.lstat(temporary)):
                        raise RuntimeError(f"{temporary} was replaced while it was opened")
                with _uninterrupted():
                    file = h5py.File(storage, "w", libver="latest", track_order=False)
                    stack.callback(_closed, file)
                ids = None if self._groups is None else self._groups[planned.split][planned.start : planned.stop]
                sink = ShardSink(file, planned, self.dim, self.dtype, self.k, self._tolerant, storage.check, ids)
                yield sink
                if sink.filled != planned.rows:
                    raise RuntimeError(f"{planned.file}: {sink.filled} rows of {planned.rows}")
            storage.check()
            with _writing(self.folder):
                files.sync(temporary)
                digest = files.sha256_of(temporary)
                if sink.digests:
                    digests.note(self._digests(planned), sink.digests)
                os.replace(temporary, path)
                # The note says that the shard is there, so the shard's name must reach the disk first.
                files.sync(self._partial)
                files.replace(self._note(planned), digest.encode())
        finally:
            _close(self._claims.pop(planned.file))

    def finish(self, manifest: Manifest, approve: Approve | None = None) -> Manifest | None:
        """Write the manifest, and give the folder its name.

        Args:
            manifest: the description of the set. Its splits and its version are filled in here.
            approve: told the numbers of the null records of each split, when all shards are in place, whichever process
                made them. If it raises an error, the set stays unfinished.

        Returns:
            The manifest as written; None if other processes are still making shards. The last of them will finish.

        """
        with _writing(self.folder):
            return self._finished(manifest, approve)

    def _finished(self, manifest: Manifest, approve: Approve | None) -> Manifest | None:
        if self._task is not None and not self._alone():
            return None
        if not self._partial.exists():
            return load(self.folder)
        if not all(map(self._made, self._all)):
            self._unlock()
            return None
        try:
            # Another process may have begun to keep null records meanwhile.
            identity = files.json_in(self._partial / SETTINGS)["identity"]
            notes = {planned.file: self._note(planned).read_text(encoding="ascii") for planned in self._all}
            known = self._sections()
            if not all(re.fullmatch("[0-9a-f]{64}", note) for note in notes.values()):
                raise ValueError("a note is no digest")
        except (ValueError, LookupError, TypeError) as error:
            raise UserError(
                f"'{self._partial}' is damaged: its settings or the notes beside its shards cannot be read.",
                "Delete that folder, and run the command again.",
                code="damaged",
                path=str(self._partial),
            ) from error
        splits: dict[str, SplitFacts] = {}
        for planned in self._all:
            shard = Shard(file=planned.file, rows=planned.rows, sha256=notes[planned.file])
            before = splits[planned.split].shards if planned.split in splits else ()
            groups = None if self._groups is None else int(self._groups[planned.split][-1]) + 1
            splits[planned.split] = SplitFacts(n=planned.stop, shards=(*before, shard), groups=groups)
        if approve is not None:
            approve(self._nulls())
        version = VERSION if self._groups is None else GROUPED_VERSION
        whole = replace(manifest, splits=splits, source={**manifest.source, "identity": identity}, version=version)
        if known:
            digests.write(self._partial / digests.FILE, known)
        files.replace(self._partial / MANIFEST, whole.to_json())
        # Killed before the renaming, a later run finds everything in place and renames. Killed after it, a later run
        # tidies up.
        os.replace(self._partial, self.folder)
        files.sync(self.folder.parent)
        _tidy(self.folder)
        self.close()
        return whole

    def close(self) -> None:
        """Release all locks. Finished shards stay; if there is none, nothing stays."""
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
        """Remove what was begun, unless there is a finished shard. True if there was none.

        The caller holds the folder's lock alone.
        """
        if any(self._partial.glob("*.sha256")):
            return False
        others = (path for end in (".h5", digests.NOTE, ".tmp") for path in self._partial.glob(f"*{end}"))
        for left in (self._partial / SETTINGS, *others):
            left.unlink(missing_ok=True)
        return True

    def _nulls(self) -> dict[str, np.ndarray]:
        """The numbers of the null records of each split. They are read from the shards: others may have made some."""
        found: dict[str, list[np.ndarray]] = {planned.split: [] for planned in self._all}
        for planned in self._all:
            path = self._partial / planned.file
            with opened_hdf5(path) as file:
                shape = (planned.rows,) if self.k == 1 else (planned.rows, self.k)
                labels = np.asarray(plain_dataset(file, path, "labels", shape, "int32")[:])
            null = (labels < 0).reshape(planned.rows, -1).all(axis=1)
            found[planned.split].append(planned.start + np.flatnonzero(null))
        return {split: np.concatenate(parts) for split, parts in found.items()}

    def _sections(self) -> list[tuple[Section, Digests]]:
        """The digests of all splits, of which each shard has them. A run of an earlier version made none."""
        found = []
        for split in dict.fromkeys(planned.split for planned in self._all):
            parts = [digests.noted(self._digests(each), each.rows) for each in self._all if each.split == split]
            whole = [part for part in parts if part is not None]
            if self._kind is not None and split in self._records and len(whole) == len(parts):
                found.append(digests.section_of(self._records[split], split, self._kind, np.concatenate(whole)))
        return found

    def _digests(self, planned: PlannedShard) -> Path:
        return self._partial / (planned.file + digests.NOTE)

    def _temporary(self, planned: PlannedShard) -> Path:
        return self._partial / (planned.file + ".tmp")

    def _note(self, planned: PlannedShard) -> Path:
        return self._partial / (planned.file + ".sha256")

    def _made(self, planned: PlannedShard) -> bool:
        return self._note(planned).exists()

    def _alone(self) -> bool:
        """Exchange the shared lock for one that we hold alone. False if others hold it: they will come here, too."""
        self._unlock()
        try:
            self._unlock = weakref.finalize(self, _close, locked(self._partial, fcntl.LOCK_EX))
        except (BlockingIOError, FileNotFoundError):
            # Others are at work, or one of them has finished.
            return not self._partial.exists()
        return True

    def _begun(self, counts: dict[str, int], rows: dict[str, int], identity: dict[str, Any]) -> dict[str, int]:
        """The numbers of shards with which the set was begun; `counts` if it was not."""
        try:
            stored = files.json_in(self._partial / SETTINGS)
        except (OSError, ValueError):
            return counts
        numbers = schema.record({split: schema.whole(1, n) for split, n in rows.items()})
        known = schema.record({"identity": schema.anything, "shards": numbers})
        if schema.fault(stored, known) is not None:
            return counts
        return (
            {split: stored["shards"][split] for split in counts} if _goes_on(identity, stored["identity"]) else counts
        )

    def _open(self) -> bool:
        """Make or reopen the partial folder. True if it already held this very set."""
        settings = self._partial / SETTINGS
        kind = fcntl.LOCK_EX if self._task is None else fcntl.LOCK_SH
        try:
            descriptor = self._entered(kind)
            self._unlock = weakref.finalize(self, _close, descriptor)
            if _written_first(settings, self._settings):
                return False
            files.check_plain(settings)
            begun = settings.read_text(encoding="utf-8", errors="replace")
            if not _continues(begun, self._settings):
                if self._gave_way(descriptor, kind):
                    return False
                self._unlock()
                raise UserError(
                    f"'{self._partial}' was begun from another source or with other settings.",
                    f"Run the command that began it, or delete that folder, or choose another {parameter('out')}.",
                    code="conflict",
                    path=str(self._partial),
                )
            if begun != self._settings:
                files.replace(settings, self._settings.encode())
        except BlockingIOError as error:
            raise UserError(
                f"Another process is making '{self.folder}'.",
                f"Wait for it, or choose another {parameter('out')}. To divide the work between several processes, "
                f"give each of them its {parameter('task')}.",
                code="busy",
                path=str(self.folder),
            ) from error
        except ReplacedError as error:
            raise UserError(
                f"'{self.folder}' was completed by another process just now.",
                "Continue with that set.",
                code="exists",
                path=str(self.folder),
            ) from error
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        return True

    def _entered(self, kind: int) -> int:
        """A descriptor that holds the lock of the partial folder, which is made if it is not there."""
        for _ in range(PATIENCE):
            self._partial.mkdir(parents=True, exist_ok=True)
            try:
                return locked_soon(self._partial, kind)
            except FileNotFoundError as error:
                # Either the set was completed, or a process that ended without a shard has removed the folder. In the
                # second case we make it again.
                if self.folder.exists():
                    raise ReplacedError from error
        raise BlockingIOError

    def _gave_way(self, descriptor: int, kind: int) -> bool:
        """Replace what was begun with other settings. False if it has a finished shard, or if somebody is at work."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if not self._emptied():
            return False
        files.replace(self._partial / SETTINGS, self._settings.encode())
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        return True


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Raise UserError where the system does not let us write the set that is to lie in `folder`."""
    try:
        yield
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"'{folder}' cannot be written: {error.strerror or error}.",
        f"Make room, or choose another place: {moved_by(folder.parent) or parameter('out')}. The same command goes on.",
        code="unwritable",
        path=str(folder),
    )


def _tidy(folder: Path) -> None:
    """Remove what only an unfinished set needs from a finished one."""
    with suppress(OSError):
        notes = (*folder.glob("*.sha256"), *folder.glob(f"*.h5{digests.NOTE}"))
        for left in (*notes, *folder.glob("*.tmp"), folder / SETTINGS):
            left.unlink(missing_ok=True)


def _close(*descriptors: int) -> None:
    """Let go of locks. Nothing is written through these descriptors, so nothing is lost if that fails."""
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)


def _release(claims: dict[str, int]) -> None:
    _close(*claims.values())


def _written_first(path: Path, text: str) -> bool:
    """Write a file unless there is one of that name; False if there was. Of several processes one is first."""
    if path.exists():
        return False
    temporary = files.temporary_beside(path)
    try:
        files.write_synced(temporary, text.encode())
        return files.publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C is raised at the end of the block, and not inside it.

    HDF5 calls methods of `_Storage`, and goes on if one of them raises an exception. What it calls next then fails for
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


def _closed(file: h5py.File) -> None:
    with _uninterrupted():
        file.close()


class _Storage(io.FileIO):
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
            raise _unwritable(self._folder, self.failed) from self.failed

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
        dim: int,
        dtype: str,
        k: int,
        tolerant: bool = False,
        check: Callable[[], None] = lambda: None,
        groups: np.ndarray | None = None,
    ) -> None:
        rows = planned.rows
        chunk = min(rows, CHUNK_ROWS)
        labels = (rows,) if k == 1 else (rows, k)
        with _uninterrupted():
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
            if null.shape != bad.shape or null.dtype != np.bool_:
                raise ValueError(f"null is {null.dtype} {null.shape}, not bool {bad.shape}")
            if null.any() and not self._tolerant:
                raise ValueError("this set was begun as one without null records")
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
        with _uninterrupted():
            self._x[self.filled : stop] = rows
            self._y[self.filled : stop] = labels
        self._check()
        if digests is not None:
            self.digests.append(digests.copy())
        self.filled = stop


def _check_groups(rows: dict[str, int], groups: Mapping[str, np.ndarray] | None) -> None:
    """Raise ValueError for numbers of groups that no reader would take."""
    for split, ids in (groups or {}).items():
        n = rows[split]
        if ids.shape != (n,) or ids.dtype != np.int64 or ids[0] != 0 or not np.isin(np.diff(ids), (0, 1)).all():
            raise ValueError(f"the groups of {split} are not numbered in the order of the records")


def _goes_on(identity: dict[str, Any], begun: Any) -> bool:
    """Whether shards that were made under the identity `begun` may become part of a set of `identity`.

    They may if both are the same. They also may if the only difference is that `begun` refused bad records: then the
    finished shards contain none.
    """
    return begun in (identity, {name: value for name, value in identity.items() if name != "on_error"})


def _continues(begun: str, wanted: str) -> bool:
    """`_goes_on`, for the settings of a partial set."""
    try:
        old, new = files.json_of(begun), files.json_of(wanted)
        return _goes_on(new["identity"], old["identity"]) and {**old, "identity": None} == {**new, "identity": None}
    except (ValueError, LookupError, TypeError):
        return False


def already_complete(folder: Path, identity: dict[str, Any]) -> bool:
    """Whether `folder` is a finished set of this identity, or one that may take its place (see `_goes_on`).

    Raises:
        UserError: the folder is a set of another identity, or something else.

    """
    if not folder.exists():
        return False
    manifest = load(folder)
    if _goes_on(identity, manifest.source.get("identity")):
        # The run that finished it may have been killed before it tidied up.
        _tidy(folder)
        return True
    raise UserError(
        f"'{folder}' exists and was made from another source or with other settings.",
        f"Choose another {parameter('out')}, or delete it.",
        code="exists",
        path=str(folder),
    )


def asserted(folder: Path, wanted: Manifest) -> Manifest:
    """The manifest of a finished set. Classes that `wanted` asserts replace the ones that it has so far."""
    manifest = load(folder)
    if wanted.origin == "asserted" and (manifest.origin, manifest.classes) != (wanted.origin, wanted.classes):
        manifest = replace(manifest, origin=wanted.origin, classes=wanted.classes)
        with _writing(folder):
            files.replace(folder / MANIFEST, manifest.to_json())
    return manifest


def kept(folder: Path) -> str:
    """What there is of a feature set after its making was stopped, in a sentence, and what to do next."""
    partial = folder.with_name(folder.name + PARTIAL)
    if (folder / MANIFEST).exists():
        return f"'{folder}' is complete."
    made = len(list(partial.glob("*.h5")))
    if not made:
        return "No shard was finished, so nothing was kept. Run the same command to begin again."
    return f"{counted(made, 'finished shard')} kept in '{partial}'. Run the same command to go on."
