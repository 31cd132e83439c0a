"""Making a feature set shard by shard. An interruption loses one shard at most, and leaves nothing that looks finished.

A set is made in `NAME.partial/`, by one process, which holds a lock on the folder. (It is flock's: it ends with the
process, in any case.) Each shard gets its name when it is whole. When all shards and the manifest are in place, the
folder gets its real name.

**Going on.** `settings.json` says what the set is made of and how (its identity: data set, listing, backbone, options),
its classes, and whose records it has. A second run with the same settings makes the shards that are missing. A run with
other settings is refused if there is a finished shard, which it would have to delete. (Of the population alone it may
say otherwise.) If there is none, what was begun is removed and the new run starts from nothing. A run that ends without
a finished shard removes what it began. Whether bad records are refused or become null records is no such setting. A run
that refuses them does not complete a set that has some (`Broken.approve`).

**Who may read.** A shard holds values of records, so it is for its owner alone (mode 0600) from its first byte on. So
are the manifest and the settings, which have digests of the whole, and the folder.
"""

import hashlib
import json
import os
import secrets
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from dpfc_cli import files
from dpfc_cli.annotations.broken import Broken
from dpfc_cli.errors import Note, UserError, conflict, counted, parameter, printable, quoted
from dpfc_cli.features.hdf5 import opened_hdf5, plain_dataset
from dpfc_cli.features.lookup import GO_ON
from dpfc_cli.features.manifest import MANIFEST, Manifest, Shard, SplitFacts, load
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.features.shards import PlannedShard, ShardSink, number_of_shards, shard_ranges, without_label, writing
from dpfc_cli.folders import PARTIAL

SETTINGS = "settings.json"
"""The name of the file in which an unfinished set says what it is made of and how."""
Register = Callable[[Path, Manifest], None]
"""Told of a set that is made, before it gets its name: where it will lie, and its manifest."""


class FeatureWriter:
    """Writes one feature set.

    Take the shards from `missing`, write each one with `shard`, then call `finish`. Call `close` in any case.

    Args:
        folder: where the set is to lie.
        manifest: the description of the set. Its splits and its id are filled in at the end.
        broken: what knows of null records, of how many there may be, and of the number of records of each split. A
            record with features that are not finite becomes one if any is allowed; otherwise it is an error.
        groups: the group of each record of each split, if the set is grouped: 0, …, 0, 1, …, P - 1. The identity must
            say which records belong together.
        population: whose records they are.
        subgroups: the numbers of the values of each record of each split, n × columns, if the manifest names columns.

    Attributes:
        resumed: how many shards were still to be made when this process continued what another one began; None if it
            began the set.

    Raises:
        UserError: the folder cannot be written, another process makes the set, or it was begun with other settings.

    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        broken: Broken,
        groups: Mapping[str, np.ndarray] | None = None,
        population: str | None = None,
        subgroups: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.folder, self._manifest, self._broken, self._groups = folder, manifest, broken, groups
        self._subgroups = subgroups
        self._partial = folder.with_name(folder.name + PARTIAL)
        width = manifest.dim * np.dtype(manifest.dtype).itemsize
        counts = {split: number_of_shards(n, width) for split, n in broken.sizes.items()}
        self._all = [
            PlannedShard(split=split, file=f"{split}-{i:05d}-of-{counts[split]:05d}.h5", start=start, stop=stop)
            for split, n in broken.sizes.items()
            for i, (start, stop) in enumerate(shard_ranges(n, counts[split]))
        ]
        self._own: dict[str, tuple[str, np.ndarray]] = {}
        made_of = {"identity": manifest.source["identity"], "classes": manifest.classes}
        settings = json.dumps({**made_of, "population": population, "shards": counts}, sort_keys=True, indent=1)
        self._unlock = self._locked()
        with writing(folder):
            resumed = self._begun(settings)
        self.resumed = len(self.missing) if resumed else None

    @property
    def missing(self) -> list[PlannedShard]:
        """The shards that are not made yet."""
        with writing(self.folder):
            return [planned for planned in self._all if not (self._partial / planned.file).exists()]

    @contextmanager
    def shard(self, planned: PlannedShard) -> Iterator["ShardSink"]:
        """A sink for the rows of one shard. The file gets its name at the end of the block, if there was no error."""
        sink = self.sink(planned)()
        yield sink
        self.put(planned, sink.whole(), sink.null)

    def sink(self, planned: PlannedShard) -> Callable[[], ShardSink]:
        """What makes a sink for the rows of one shard, in any process."""
        ids, values = (
            None if each is None else each[planned.split][planned.start : planned.stop]
            for each in (self._groups, self._subgroups)
        )
        return partial(ShardSink, planned, self._manifest, self._broken.tolerant, ids, values)

    def put(self, planned: PlannedShard, data: memoryview, null: Sequence[int]) -> None:
        """Write a whole shard. data: its bytes. null: which of its rows are null records."""
        with writing(self.folder):
            files.replace(self._partial / planned.file, [data], mode=0o600)
        self._own[planned.file] = hashlib.sha256(data).hexdigest(), np.array(null, np.int64)

    def finish(self, register: Register | None = None) -> Manifest:
        """Write the manifest, and give the folder its name. All shards are made.

        Args:
            register: told of the set when all of its files are in place. If it raises an error, the set stays
                unfinished.

        Returns:
            The manifest as written.

        Raises:
            UserError: too many records are null. The set stays unfinished.

        """
        with writing(self.folder):
            whole = self._described()
            files.replace(self._partial / MANIFEST, whole.to_json(), mode=0o600)
            if register is not None:
                register(self.folder, whole)
            # Killed before the renaming, a later run finds everything in place and renames. Killed after it, a later
            # run tidies up.
            os.replace(self._partial, self.folder)
            files.sync(self.folder.parent)
            _tidy(self.folder)
            self.close()
            return whole

    def _described(self) -> Manifest:
        """The manifest with its shards, if not too many records are null. Its id is random; or that of a run which was
        killed before the set had its name: it may be written down.
        """
        splits, nulls = dict[str, SplitFacts](), dict[str, list[np.ndarray]]()
        for planned in self._all:
            digest, null = self._own.get(planned.file) or self._found(planned)
            nulls.setdefault(planned.split, []).append(planned.start + null)
            shard = Shard(file=planned.file, rows=planned.rows, sha256=digest)
            before = splits[planned.split].shards if planned.split in splits else ()
            groups = None if self._groups is None else int(self._groups[planned.split][-1]) + 1
            splits[planned.split] = SplitFacts(n=planned.stop, shards=(*before, shard), groups=groups)
        self._broken.approve({split: np.concatenate(parts) for split, parts in nulls.items()})
        known = secrets.token_hex(16)
        with suppress(UserError):
            begun = load(self._partial)
            known = begun.id if begun.splits == splits else known
        return replace(self._manifest, splits=splits, id=known)

    def discard(self) -> None:
        """Remove what was made. `close` then leaves nothing."""
        for name in (*(planned.file for planned in self._all), MANIFEST):
            (self._partial / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Release the lock. Finished shards stay; if there is none, nothing stays."""
        with suppress(OSError):
            # The folder has another name if the set is complete.
            if self._unlock.alive and self._partial.exists() and self._emptied():
                self._partial.rmdir()
        self._unlock()

    def _emptied(self) -> bool:
        """Remove what was begun and not finished. True if there is no finished shard."""
        if not any(self._partial.glob("*.h5")):
            _tidy(self._partial)
            return True
        for left in self._partial.glob(f"*{files.TEMPORARY}"):
            left.unlink(missing_ok=True)
        return False

    def _found(self, planned: PlannedShard) -> tuple[str, np.ndarray]:
        """The SHA-256 of a shard that an earlier process has made, and the rows of its null records."""
        path, k = self._partial / planned.file, self._manifest.labels_per_record
        with opened_hdf5(path) as file:
            shape = (planned.rows,) if k == 1 else (planned.rows, k)
            labels = np.asarray(plain_dataset(file, path, "labels", shape, "int32")[:])
        return files.sha256_of(path), np.flatnonzero(without_label(labels))

    def _locked(self) -> "weakref.finalize[..., FeatureWriter]":
        """Lock the partial folder, which is made if it is not there. Returns what unlocks it."""
        with writing(self.folder):
            with suppress(FileExistsError):
                self._partial.mkdir(mode=0o700, parents=True)
            # Another process may complete the set meanwhile, or remove what it began.
            with suppress(BlockingIOError, FileNotFoundError):
                unlock = weakref.finalize(self, files.let_go, files.locked(self._partial))
                if not self.folder.exists():
                    return unlock
                with suppress(OSError):
                    self._partial.rmdir()
                unlock()
        what = f"Another process is making {quoted(self.folder)}, or has just made it."
        raise UserError(what, "Wait for it, and run the same command again.", code="busy")

    def _begun(self, settings: str) -> bool:
        """Begin the set, or go on with it: True. UserError if it was begun with other settings."""
        resumed, place, known = not self._emptied(), self._partial / SETTINGS, json.loads(settings)
        if resumed:
            found = None
            with suppress(FileNotFoundError, ValueError):
                found = files.json_in(place)
            if not isinstance(found, dict) or {**found, "population": known["population"]} != known:
                self._unlock()
                raise conflict(
                    f"{quoted(self._partial)} was begun from another source or with other settings.",
                    f"Run the command that began it, with the same {parameter('population')}. Or delete that folder, "
                    f"or choose another {parameter('out')}.",
                )
        files.replace(place, settings.encode(), mode=0o600)
        return resumed


def _tidy(folder: Path) -> None:
    with suppress(OSError):
        for left in (*folder.glob(f"*{files.TEMPORARY}"), folder / SETTINGS):
            left.unlink(missing_ok=True)


def complete(folder: Path, wanted: Manifest, check: Callable[[FeatureSet], None]) -> FeatureSet | None:
    """The finished set in `folder`; None if nothing lies there. UserError: it has another identity or other classes
    than `wanted`, it is no set, or `check` raises one.
    """
    if not folder.exists():
        return None
    manifest = load(folder)
    if (manifest.source["identity"], manifest.classes) != (wanted.source["identity"], wanted.classes):
        raise UserError(
            f"{quoted(folder)} exists and was made from another source, with other settings or classes.",
            f"Choose another {parameter('out')}, or delete it.",
            code="exists",
        )
    check(FeatureSet(folder))
    # The run that finished it may have been killed before it tidied up.
    _tidy(folder)
    return FeatureSet(folder)


@contextmanager
def saying_what_is_kept(folder: Path) -> Iterator[None]:
    """A refusal and Ctrl-C say what there is of the set after its making was stopped, and what to do next."""
    partial = folder.with_name(folder.name + PARTIAL)
    try:
        yield
    except UserError as refused:
        if partial.exists():
            refused.add_note(Note(printable(f"'{partial}' stays. {GO_ON}")))
        raise
    except KeyboardInterrupt as stopped:
        made = len(list(partial.glob("*.h5")))
        said = "No shard was finished, so nothing was kept. Run the same command to begin again."
        if (folder / MANIFEST).exists():
            _tidy(folder)
            said = f"'{folder}' is complete."
        elif made:
            said = f"{counted(made, 'finished shard')} kept in '{partial}'. Run the same command to go on."
        stopped.add_note(Note(printable(said)))
        raise
