"""Reading a feature set: nothing is believed before it is checked.

h5py follows external links, raw external storage and virtual data sets without a word, so that a hostile shard could
make a training read any file of the machine. Each data set must therefore be a hard link to plain, unfiltered storage
in its own file, with the shape and dtype of the manifest, before a single value is read.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from dpfc_cli.errors import UserError
from dpfc_cli.features.manifest import MANIFEST, PARTIAL, Manifest, Shard, SplitFacts, load, unreadable
from dpfc_cli.features.writer import sha256_of

Blocks = Iterator[tuple[int, np.ndarray, np.ndarray]]


class FeatureSet:
    """A finished feature set: its folder and manifest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest: Manifest = load(folder)

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def split(self, name: str) -> SplitFacts:
        """A split's facts; UserError when the set has no such split."""
        try:
            return self.manifest.splits[name]
        except KeyError:
            remedy = f"It has: {', '.join(self.manifest.splits)}."
            if name == "test":
                remedy += " Of pictures, dpfc extract --hold-out 0.1 takes one out of the training split."
            raise UserError(f"'{self.folder}' has no split '{name}'.", remedy) from None

    def verify(self, split: str, progress: Callable[[int, int], None] | None = None) -> None:
        """Check every shard of a split: present, unchanged since it was made, and of the stated layout. UserError
        otherwise.
        """
        facts = self.split(split)
        for i, (shard, start) in enumerate(_starts(facts)):
            path = self.folder / shard.file
            with self._open(shard, start):
                pass
            if sha256_of(path) != shard.sha256:
                raise _broken(path, "its contents are not those of the manifest (truncated, damaged or replaced)")
            if progress:
                progress(i + 1, len(facts.shards))

    def stream(self, split: str) -> Callable[[int], Blocks]:
        """The split as blocks. Called with a number of rows, it yields (start, features, labels) in the global order,
        cut at multiples of that number whatever the shards are.

        features: rows × d in the stored dtype; labels: rows × k int32. Memory is bounded by one block.
        """
        facts = self.split(split)

        return lambda rows: cut(self._pieces(facts, rows), rows)

    def _pieces(self, facts: SplitFacts, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for shard, start in _starts(facts):
            with self._open(shard, start) as (x, y):
                for at in range(0, shard.rows, rows):
                    features = x[at : at + rows]
                    yield features, y[at : at + rows].reshape(len(features), -1)

    @contextmanager
    def _open(self, shard: Shard, start: int) -> Iterator[tuple[h5py.Dataset, h5py.Dataset]]:
        path, k = self.folder / shard.file, self.manifest.labels_per_record
        with opened_hdf5(path) as file:
            index = plain_dataset(file, path, "index", (shard.rows,), "int64")
            if not np.array_equal(index[:], np.arange(start, start + shard.rows)):
                raise _broken(path, "its records are not those that belong in its place")
            yield (
                plain_dataset(file, path, "features", (shard.rows, self.manifest.dim), self.manifest.dtype),
                plain_dataset(file, path, "labels", (shard.rows,) if k == 1 else (shard.rows, k), "int32"),
            )


def opened_hdf5(path: Path) -> h5py.File:
    """The file, to be read. UserError where it cannot be opened: what is damaged is told from what is merely not ours
    to read at the moment.
    """
    try:
        return h5py.File(path, "r")
    except FileNotFoundError as error:
        raise _broken(path, "it is missing") from error
    except BlockingIOError as error:
        raise UserError(
            f"'{path}' is locked: another program has it open for writing.", "Close it there, and try again."
        ) from error
    except OSError as error:
        if error.errno is None:
            raise _broken(path, "it is truncated or not HDF5") from error
        raise unreadable(path, error) from error


def plain_dataset(file: h5py.File, path: Path, name: str, shape: tuple[int, ...], dtype: str) -> h5py.Dataset:
    """The data set `name` of an open file, if it is stored plainly in that file with this shape and dtype. UserError
    otherwise.
    """
    dataset = local_dataset(file, path, name)
    if dataset.id.get_create_plist().get_nfilters():
        raise _broken(path, f"'{name}' is stored through filters, which dpfc does not run")
    if dataset.shape != shape or dataset.dtype != np.dtype(dtype):
        raise _broken(path, f"'{name}' has shape {dataset.shape} and dtype {dataset.dtype}, not {shape} and {dtype}")
    return dataset


def local_dataset(group: h5py.Group, path: Path, name: str) -> h5py.Dataset:
    """The data set `name` of a group, if its data lie in that very file. UserError otherwise."""
    link = group.get(name, getlink=True)
    if link is None:
        raise _broken(path, f"it has no data set '{name}'")
    if not isinstance(link, h5py.HardLink):
        raise _broken(path, f"'{name}' is a link to another place, which dpfc does not follow")
    dataset = group[name]
    if not isinstance(dataset, h5py.Dataset):
        raise _broken(path, f"'{name}' is not a data set")
    if dataset.is_virtual or dataset.external is not None:
        raise _broken(path, f"'{name}' keeps its data in other files, which dpfc does not follow")
    return dataset


def cut(pieces: Iterable[tuple[np.ndarray, np.ndarray]], rows: int) -> Blocks:
    """Pieces (features, labels) of any lengths as blocks (start, features, labels) of `rows`; the last is shorter."""
    waiting: list[tuple[np.ndarray, np.ndarray]] = []
    start = held = 0
    for x, y in pieces:
        while len(x):
            take = min(rows - held, len(x))
            waiting.append((x[:take], y[:take]))
            x, y, held = x[take:], y[take:], held + take
            if held == rows:
                yield start, *_joined(waiting)
                start, held, waiting = start + rows, 0, []
    if waiting:
        yield start, *_joined(waiting)


def _starts(facts: SplitFacts) -> list[tuple[Shard, int]]:
    """Each shard with the index of its first record."""
    ends = itertools.accumulate(shard.rows for shard in facts.shards)
    return [(shard, end - shard.rows) for shard, end in zip(facts.shards, ends, strict=True)]


def newest(folder: Path) -> FeatureSet:
    """The feature set in `folder` whose manifest is newest. UserError when there is none."""
    found = sorted(folder.glob(f"*/{MANIFEST}"), key=lambda p: p.stat().st_mtime_ns) if folder.is_dir() else []
    found = [p for p in found if not p.parent.name.endswith(PARTIAL)]
    if not found:
        raise UserError(
            f"No feature set found in '{folder}'.",
            "Make one with 'dpfc extract --dataset digits' or 'dpfc import PATH', or name one with --features.",
        )
    return FeatureSet(found[-1].parent)


def _joined(pieces: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate([x for x, _ in pieces]), np.concatenate([y for _, y in pieces])


def _broken(path: Path, why: str) -> UserError:
    return UserError(
        f"'{path}' cannot be used: {why}.", "Make the file anew ('dpfc extract' and 'dpfc import' make feature sets)."
    )
