"""Making a feature set shard by shard. An interruption loses one shard at most, and leaves nothing that looks finished.

A set is made in `NAME.partial/`. Each shard is written under a temporary name and renamed when it is complete; its
digest is then noted in a file beside it. When all shards and the manifest are in place, the folder gets its real name.

`unfinished` says when a second run makes the shards that are missing.

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
import json
import os
import re
import secrets
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dpfc_cli import files
from dpfc_cli.errors import UserError, parameter
from dpfc_cli.features import digests
from dpfc_cli.features.hdf5 import opened_hdf5, plain_dataset
from dpfc_cli.features.manifest import MANIFEST, Manifest, Shard, SplitFacts, load
from dpfc_cli.features.shards import (
    PlannedShard,
    ShardSink,
    Storage,
    closed,
    default_shards,
    shard_ranges,
    uninterrupted,
    unwritable,
    writing,
)
from dpfc_cli.features.unfinished import (
    PATIENCE,
    SETTINGS,
    ReplacedError,
    begun_shards,
    claimed,
    continues,
    let_go,
    locked,
    locked_soon,
    tidy,
    written_first,
)
from dpfc_cli.folders import PARTIAL
from dpfc_cli.sources.digests import Digests, Kind

Approve = Callable[[dict[str, np.ndarray]], None]
Register = Callable[[Path, Path, Manifest], None]
"""Told of a set that is made, before it gets its name: where it will lie, where it lies, and its manifest."""
Task = tuple[int, int]
"""(i, N): this process makes the i-th of N parts of the work. i counts from 1."""


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
        self._groups, self._kind = groups, kind
        self._task, self._tolerant = task, tolerant
        self._partial = folder.with_name(folder.name + PARTIAL)
        width = dim * np.dtype(dtype).itemsize
        parts = 1 if task is None else task[1]
        counts = {s: min(n, shards or max(default_shards(n, width), parts)) for s, n in rows.items()}
        if shards is None:
            # A set begun by another number of processes may have another number of shards. We keep that number.
            counts = begun_shards(self._partial, counts, rows, identity)
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
        with writing(self.folder):
            return [planned for planned in self._all[first - 1 :: step] if not self._made(planned)]

    def claim(self, planned: PlannedShard) -> bool:
        """Reserve a shard for this process, before `shard` writes it.

        Returns:
            False if another process has made the shard, or is making it.

        """
        if planned.file in self._claims:
            return True
        path = self._temporary(planned)
        with writing(self.folder):
            descriptor = claimed(path)
            if descriptor is None:
                return False
            self._claims[planned.file] = descriptor
            if not self._made(planned):
                return True
            path.unlink()
        let_go(self._claims.pop(planned.file))
        return False

    @contextmanager
    def shard(self, planned: PlannedShard) -> Iterator["ShardSink"]:
        """A sink for the rows of one shard. The file gets its name at the end of the block, if there was no error."""
        if not self.claim(planned):
            raise RuntimeError(f"{planned.file} is another process's")
        path, temporary = self._partial / planned.file, self._temporary(planned)
        try:
            with ExitStack() as stack:
                with writing(self.folder):
                    # We write through the descriptor that holds the lock, to the very file that `claim` made.
                    os.ftruncate(self._claims[planned.file], 0)
                    storage = stack.enter_context(Storage(os.dup(self._claims[planned.file]), self.folder))
                    if not os.path.samestat(os.fstat(storage.fileno()), os.lstat(temporary)):
                        raise RuntimeError(f"{temporary} was replaced while it was opened")
                with uninterrupted():
                    file = h5py.File(storage, "w", libver="latest", track_order=False)
                    stack.callback(closed, file)
                ids = None if self._groups is None else self._groups[planned.split][planned.start : planned.stop]
                sink = ShardSink(file, planned, self.dim, self.dtype, self.k, self._tolerant, storage.check, ids)
                yield sink
                if sink.filled != planned.rows:
                    raise RuntimeError(f"{planned.file}: {sink.filled} rows of {planned.rows}")
            storage.check()
            with writing(self.folder):
                files.sync(temporary)
                digest = files.sha256_of(temporary)
                if sink.digests:
                    digests.note(self._digests(planned), sink.digests)
                os.replace(temporary, path)
                # The note says that the shard is there, so the shard's name must reach the disk first.
                files.sync(self._partial)
                files.replace(self._note(planned), digest.encode())
        finally:
            let_go(self._claims.pop(planned.file))

    def finish(
        self, manifest: Manifest, approve: Approve | None = None, register: Register | None = None
    ) -> Manifest | None:
        """Write the manifest, and give the folder its name.

        Args:
            manifest: the description of the set. Its splits and its id are filled in here.
            approve: told the numbers of the null records of each split, when all shards are in place, whichever process
                made them. If it raises an error, the set stays unfinished.
            register: told of the set when all of its files are in place. If it raises an error, the set stays
                unfinished.

        Returns:
            The manifest as written; None if other processes are still making shards. The last of them will finish.

        """
        with writing(self.folder):
            return self._finished(manifest, approve, register)

    def _finished(self, manifest: Manifest, approve: Approve | None, register: Register | None) -> Manifest | None:
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
            known = self._known()
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
        source = {**manifest.source, "identity": identity}
        whole = replace(manifest, splits=splits, source=source, id=self._id(splits))
        if known is not None and self._kind is not None:
            digests.write(self._partial / digests.FILE, self._kind, known)
        files.replace(self._partial / MANIFEST, whole.to_json())
        if register is not None:
            register(self.folder, self._partial, whole)
        # Killed before the renaming, a later run finds everything in place and renames. Killed after it, a later run
        # tidies up.
        os.replace(self._partial, self.folder)
        files.sync(self.folder.parent)
        tidy(self.folder)
        self.close()
        return whole

    def _id(self, splits: dict[str, SplitFacts]) -> str:
        """A new random id. Or that of a run which was killed before the set had its name: it may be written down."""
        with suppress(UserError):
            begun = load(self._partial)
            if begun.splits == splits:
                return begun.id
        return secrets.token_hex(16)

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

    def _known(self) -> Digests | None:
        """The digests of all records; None where a shard has none."""
        parts = [digests.noted(self._digests(each), each.rows) for each in self._all]
        whole = [part for part in parts if part is not None]
        return np.concatenate(whole) if len(whole) == len(parts) else None

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
            self._unlock = weakref.finalize(self, let_go, locked(self._partial, fcntl.LOCK_EX))
        except (BlockingIOError, FileNotFoundError):
            # Others are at work, or one of them has finished.
            return not self._partial.exists()
        return True

    def _open(self) -> bool:
        """Make or reopen the partial folder. True if it already held this very set."""
        settings = self._partial / SETTINGS
        kind = fcntl.LOCK_EX if self._task is None else fcntl.LOCK_SH
        try:
            descriptor = self._entered(kind)
            self._unlock = weakref.finalize(self, let_go, descriptor)
            if written_first(settings, self._settings):
                return False
            files.check_plain(settings)
            begun = settings.read_text(encoding="utf-8", errors="replace")
            if not continues(begun, self._settings):
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
            raise unwritable(self.folder, error) from error
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


def _release(claims: dict[str, int]) -> None:
    let_go(*claims.values())


def _check_groups(rows: dict[str, int], groups: Mapping[str, np.ndarray] | None) -> None:
    """Raise ValueError for numbers of groups that no reader would take."""
    for split, ids in (groups or {}).items():
        n = rows[split]
        if ids.shape != (n,) or ids.dtype != np.int64 or ids[0] != 0 or not np.isin(np.diff(ids), (0, 1)).all():
            raise ValueError(f"the groups of {split} are not numbered in the order of the records")
