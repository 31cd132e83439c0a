"""Making a feature set shard by shard. An interruption loses one shard at most, and leaves nothing that looks finished.

On a file system (`_Folder`) a set is made in `NAME.partial/`, by one process, which holds a lock on the folder. (It is
flock's: it ends with the process, in any case.) Each shard gets its name when it is whole. When all shards and the
manifest are in place, the folder gets its real name.

**At a URL** (`_Bucket`) there are neither locks nor renaming, so a set is made under its own name, and the manifest,
which comes last, makes it one. Two processes may make the same set at once, and nothing wrong is ever stored:
everything is made by requests that make a whole object or none, and never over another one. So no shard changes once it
is there. The names of the shards have a number that was drawn with the settings, so shards of other settings are
never taken. Who finds a shard that another process has made describes what is stored, not what it made itself. Of two
manifests the first counts, and all of its shards are there. What may be lost is work.

**Going on.** `settings.json` says what the set is made of and how (its identity: data set, listing, backbone, options),
its classes, and whose records it has. A second run with the same settings makes the shards that are missing. A run with
other settings is refused if there is a finished shard, which it would have to delete. (Of the population alone it may
say otherwise.) If there is none, what was begun is removed and the new run starts from nothing. A run that ends without
a finished shard removes what it began. Whether bad records are refused or become null records is no such setting. A run
that refuses them does not complete a set that has some (`Broken.approve`).

**Who may read.** A shard holds values of records, so it is for its owner alone (mode 0600) from its first byte on. So
are the manifest and the settings, which have digests of the whole, and the folder. At a URL the bucket decides.
"""

import hashlib
import json
import os
import re
import secrets
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from dpfc_cli import files
from dpfc_cli.annotations.broken import Broken
from dpfc_cli.errors import Note, UserError, conflict, counted, parameter, printable, quoted, unsupported
from dpfc_cli.features.hdf5 import opened_hdf5, plain_dataset
from dpfc_cli.features.lookup import GO_ON, unfinished
from dpfc_cli.features.manifest import MANIFEST, SETTINGS, Manifest, Shard, SplitFacts, load
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.features.shards import PlannedShard, ShardSink, number_of_shards, shard_ranges, without_label, writing
from dpfc_cli.places import entries_in, exists, remote

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
        width = manifest.dim * np.dtype(manifest.dtype).itemsize
        counts = {split: number_of_shards(n, width) for split, n in broken.sizes.items()}
        made_of = {"identity": manifest.source["identity"], "classes": manifest.classes}
        settings = json.dumps({**made_of, "population": population, "shards": counts}, sort_keys=True, indent=1)
        self._place = (_Folder if remote(folder) is None else _Bucket)(folder)
        with writing(folder):
            resumed = self._place.begun(settings)
        self._all = [
            PlannedShard(
                split=split, file=f"{split}-{i:05d}-of-{counts[split]:05d}{self._place.run}.h5", start=start, stop=stop
            )
            for split, n in broken.sizes.items()
            for i, (start, stop) in enumerate(shard_ranges(n, counts[split]))
        ]
        self._own: dict[str, tuple[str, np.ndarray]] = {}
        self.resumed = len(self.missing) if resumed else None

    @property
    def missing(self) -> list[PlannedShard]:
        """The shards that are not made yet."""
        with writing(self.folder):
            there = self._place.names()
        return [planned for planned in self._all if planned.file not in there]

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
            made = self._place.put(planned.file, data)
        if made:
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
            # Killed before the set has its name, a later run finds everything in place. Killed after it, a later run
            # tidies up.
            self._place.name(whole, register or (lambda folder, whole: None))
            _tidy(self.folder)
            self.close()
            return whole

    def _described(self) -> Manifest:
        """The manifest with its shards, if not too many records are null. Its id is random; or that of a run which was
        killed before the set had its name: it may be written down.
        """
        shards, nulls = defaultdict[str, list[Shard]](list), defaultdict[str, list[np.ndarray]](list)
        for planned in self._all:
            digest, null = self._own.get(planned.file) or self._found(planned)
            nulls[planned.split].append(planned.start + null)
            shards[planned.split].append(Shard(file=planned.file, rows=planned.rows, sha256=digest))
        splits = {
            split: SplitFacts(
                n=self._broken.sizes[split],
                shards=tuple(own),
                groups=None if self._groups is None else int(self._groups[split][-1]) + 1,
            )
            for split, own in shards.items()
        }
        self._broken.approve({split: np.concatenate(parts) for split, parts in nulls.items()})
        known = secrets.token_hex(16)
        with suppress(UserError):
            begun = load(self._place.folder)
            known = begun.id if begun.splits == splits else known
        return replace(self._manifest, splits=splits, id=known)

    def discard(self) -> None:
        """Remove what was made. `close` then leaves nothing."""
        self._place.remove(*(planned.file for planned in self._all), MANIFEST)

    def close(self) -> None:
        """Release the lock. Finished shards stay; if there is none, nothing stays."""
        self._place.close()

    def _found(self, planned: PlannedShard) -> tuple[str, np.ndarray]:
        """The SHA-256 of a shard that another process has made, and the rows of its null records."""
        path, k = self._place.folder / planned.file, self._manifest.labels_per_record
        far = remote(path)
        data = None if far is None else far.bytes_from()
        with opened_hdf5(path, data) as file:
            shape = (planned.rows,) if k == 1 else (planned.rows, k)
            labels = np.asarray(plain_dataset(file, path, "labels", shape, "int32")[:])
        digest = files.sha256_of(path) if data is None else hashlib.sha256(data).hexdigest()
        return digest, np.flatnonzero(without_label(labels))


class _Folder:
    """Where a set is made on a file system.

    Attributes:
        folder: where its shards lie meanwhile.
        run: what their names have before their ending.

    """

    run = ""

    def __init__(self, folder: Path) -> None:
        self._final, self.folder = folder, unfinished(folder)
        with writing(folder):
            with suppress(FileExistsError):
                self.folder.mkdir(mode=0o700, parents=True)
            # Another process may complete the set meanwhile, or remove what it began.
            with suppress(BlockingIOError, FileNotFoundError):
                self._unlock = weakref.finalize(self, files.let_go, files.locked(self.folder))
                if not folder.exists():
                    return
                with suppress(OSError):
                    self.folder.rmdir()
                self._unlock()
        raise _busy(folder)

    def names(self) -> set[str]:
        return {each.name for each in self.folder.iterdir()}

    def put(self, name: str, data: memoryview | bytes) -> bool:
        """Make a shard. Returns whether it was made, and there was none of that name."""
        files.replace(self.folder / name, [data], mode=0o600)
        return True

    def begun(self, settings: str) -> bool:
        """Begin the set, or go on with it: True. UserError if it was begun with other settings."""
        resumed, place = not self._emptied(), self.folder / SETTINGS
        if resumed and _agree(place, settings) is None:
            self._unlock()
            raise _otherwise(self.folder)
        files.replace(place, settings.encode(), mode=0o600)
        return resumed

    def name(self, whole: Manifest, register: Register) -> None:
        """Give the set its name."""
        files.replace(self.folder / MANIFEST, whole.to_json(), mode=0o600)
        register(self._final, whole)
        os.replace(self.folder, self._final)
        files.sync(self._final.parent)

    def remove(self, *names: str) -> None:
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        with suppress(OSError):
            # The folder has another name if the set is complete.
            if self._unlock.alive and self.folder.exists() and self._emptied():
                self.folder.rmdir()
        self._unlock()

    def _emptied(self) -> bool:
        """Remove what was begun and not finished. True if there is no finished shard."""
        if not any(self.folder.glob("*.h5")):
            _tidy(self.folder)
            return True
        for left in self.folder.glob(f"*{files.TEMPORARY}"):
            left.unlink(missing_ok=True)
        return False


class _Bucket:
    """The same at a URL."""

    run = ""

    def __init__(self, folder: Path) -> None:
        self.folder, self._named = folder, False

    def names(self) -> set[str]:
        # A folder that has nothing in it is not there.
        with suppress(FileNotFoundError), entries_in(self.folder) as entries:
            return {each.name for each in entries}
        return set()

    def put(self, name: str, data: memoryview | bytes) -> bool:
        far = remote(self.folder / name)
        return far is not None and far.make(bytes(data))

    def begun(self, settings: str) -> bool:
        place, run_drawn = self.folder / SETTINGS, f"-{secrets.token_hex(4)}"
        drawn = json.dumps({**json.loads(settings), "run": run_drawn}, sort_keys=True, indent=1).encode()
        while not self.put(SETTINGS, drawn):
            if (run := _agree(place, settings)) is not None:
                self.run = run
                break
            if self._shards() and exists(place):
                raise _otherwise(self.folder)
            place.unlink(missing_ok=True)
        else:
            self.run = run_drawn
            if self.put(SETTINGS, drawn):
                raise unsupported(
                    f"The server of {quoted(self.folder)} writes over what is there, though it is asked not to. Two "
                    "processes could spoil a set.",
                    "Use a server that knows conditional writes (If-None-Match), or make the set on a file system.",
                )
        if exists(self.folder / MANIFEST):
            self.remove(SETTINGS)
            raise _busy(self.folder)
        return bool(self._shards())

    def name(self, whole: Manifest, register: Register) -> None:
        lost = {shard.file for split in whole.splits.values() for shard in split.shards} - self.names()
        if lost:
            raise _busy(self.folder)
        register(self.folder, whole)
        # The server may have made it, and its answer was lost.
        if not self.put(MANIFEST, whole.to_json()) and load(self.folder).id != whole.id:
            raise _busy(self.folder)
        self._named = True

    def remove(self, *names: str) -> None:
        for name in self.names() & set(names):
            (self.folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        with suppress(OSError):
            if not self._named and not self._shards():
                self.remove(SETTINGS)

    def _shards(self) -> set[str]:
        """The finished shards, of this run if it is known."""
        return {name for name in self.names() if name.endswith(f"{self.run}.h5")}


def _agree(place: Path, settings: str) -> str | None:
    """What the names of the shards of a set that was begun have before their ending, if it was begun with these
    settings (of the population alone it may say otherwise); None if with other ones.
    """
    found, known = None, json.loads(settings)
    with suppress(FileNotFoundError, ValueError):
        found = files.json_in(place)
    if not isinstance(found, dict):
        return None
    run = str(found.pop("run", ""))
    same = {**found, "population": known["population"]} == known
    return run if same and re.fullmatch("(-[0-9a-f]{8})?", run) else None


def _busy(folder: Path) -> UserError:
    what = f"Another process is making {quoted(folder)}, or has just made it."
    return UserError(what, "Wait for it, and run the same command again.", code="busy")


def _otherwise(folder: Path) -> UserError:
    return conflict(
        f"{quoted(folder)} was begun from another source or with other settings.",
        f"Run the command that began it, with the same {parameter('population')}. Or delete that folder, or choose "
        f"another {parameter('out')}.",
    )


def _tidy(folder: Path) -> None:
    with suppress(OSError):
        for left in folder.glob(f"*{files.TEMPORARY}") if remote(folder) is None else ():
            left.unlink(missing_ok=True)
        (folder / SETTINGS).unlink(missing_ok=True)


def complete(folder: Path, wanted: Manifest, check: Callable[[FeatureSet], None]) -> FeatureSet | None:
    """The finished set in `folder`; None if nothing lies there. UserError: it has another identity or other classes
    than `wanted`, it is no set, or `check` raises one.
    """
    if not exists(folder if remote(folder) is None else folder / MANIFEST):
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
    partial = unfinished(folder) if remote(folder) is None else folder

    def made() -> int:
        with suppress(OSError), entries_in(partial) as entries:
            return sum(each.name.endswith(".h5") for each in entries)
        return 0

    try:
        yield
    except UserError as refused:
        if made():
            refused.add_note(Note(printable(f"'{partial}' stays. {GO_ON}")))
        raise
    except KeyboardInterrupt as stopped:
        said = "No shard was finished, so nothing was kept. Run the same command to begin again."
        if (folder / MANIFEST).exists():
            _tidy(folder)
            said = f"'{folder}' is complete."
        elif count := made():
            said = f"{counted(count, 'finished shard')} kept in '{partial}'. Run the same command to go on."
        stopped.add_note(Note(printable(said)))
        raise
