"""Parquet files of pictures, read with PyArrow: labels at once, pictures one row group at a time.

The row groups in memory are those that the threads are reading: two, or more if they are small. (The hub writes row
groups of 100 to 1,000 pictures.)
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpfc_cli.errors import GUARDED, UserError, counted
from dpfc_cli.images.encoded import read_file
from dpfc_cli.images.picture_columns import AGAIN
from dpfc_cli.images.prefetch import PIECE
from dpfc_cli.images.sets import Records
from dpfc_cli.memory import free_memory
from dpfc_cli.sources.reading import readable
from dpfc_cli.threads import cores

LARGEST_GROUP = 2 << 30
"""Bytes of the largest row group that is read."""
HELD = 512 << 20
"""The least bytes of pictures that are held at once, if they are wanted in another order than that of the file."""


class RowGroups:
    """Pictures in the row groups of several files.

    Args:
        column: the column that holds them.
        groups: the file of each row group, and its number in the file. There are g of them.
        starts: the first record of each row group, and the end of the last one, (g + 1,).
        records: the records that are wanted, (n,); all if None. Other pictures of a row group are not kept in memory.
        files: the files of the records whose rows hold no bytes.
        has_paths: whether rows have paths beside their bytes.

    """

    span = 4 * PIECE * cores()
    """More pictures than all threads read at one moment. So many pictures are kept in memory, in whole row groups."""

    def __init__(
        self,
        column: str,
        groups: list[tuple[Path, int]],
        starts: NDArray[np.int64],
        records: Records | None = None,
        files: dict[int, Path] | None = None,
        has_paths: bool = False,
    ) -> None:
        self._files, self._has_paths = files or {}, has_paths
        self._column, self._groups, self._starts = column, groups, starts
        self._records = np.arange(starts[-1]) if records is None else records
        # The first wanted picture of each group, counted as `read` counts.
        self._firsts = np.searchsorted(self._records, starts)
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._lock = Lock()

    def name(self, i: int) -> str:
        if (file := self._files.get(int(self._records[i]))) is not None:
            return str(file)
        group = self._group(i)
        path, number = self._groups[group]
        return f"{path}: row {int(self._records[i] - self._starts[group])} of row group {number}"

    def __len__(self) -> int:
        return len(self._records)

    def place(self, i: int) -> str:
        """The file of a picture and the number of its row there, from 0."""
        group = self._group(i)
        path, number = self._groups[group]
        # The row groups of a file follow one another.
        return f"{path.name}/{int(self._records[i] - self._starts[group - number])}"

    def called(self, i: int) -> str:
        """The place of a picture, with its file's name. Parquet has no other names. It stays if the file is moved."""
        group = self._group(i)
        path, number = self._groups[group]
        return f"{path.name}/{number}/{int(self._records[i] - self._starts[group])}"

    def read(self, i: int) -> bytes:
        if (file := self._files.get(int(self._records[i]))) is not None:
            return read_file(file)
        group = self._group(i)
        data = self._pictures(group)[i - int(self._firsts[group])].as_py()
        # The decoder refuses an empty picture.
        return data if isinstance(data, bytes) else b""

    def only(self, records: Records) -> "RowGroups | Scattered":
        if (np.diff(records) < 0).any():
            return Scattered(self, records)
        return RowGroups(self._column, self._groups, self._starts, self._records[records], self._files, self._has_paths)

    def own_file(self, i: int) -> Path | None:
        """The file of picture i, if its row holds no bytes."""
        return self._files.get(int(self._records[i]))

    def mean_size(self) -> float:
        """The mean number of bytes of a row, as the files declare them."""
        files = {path: pq.read_metadata(path) for path in {path for path, _ in self._groups}}
        size = sum(files[path].row_group(number).total_byte_size for path, number in self._groups)
        return float(size / self._starts[-1])

    def several(self, wanted: Records) -> Iterator[tuple[NDArray[np.int64], list[bytes]]]:
        """Read pictures in ascending order, each row group once. It keeps nothing.

        Yields:
            The places in `wanted` of some of them, and their bytes.

        """
        groups = np.searchsorted(self._firsts, wanted, "right") - 1
        for group in np.unique(groups).tolist():
            places = np.flatnonzero(groups == group)
            rows = self._records[wanted[places]] - self._starts[group]
            found = self._read(group).take(pa.array(rows)).to_pylist()
            yield places, [data if isinstance(data, bytes) else b"" for data in found]

    def _group(self, i: int) -> int:
        return int(np.searchsorted(self._firsts, i, "right")) - 1

    def _pictures(self, group: int) -> Any:
        # One thread reads a group. The others that need it wait, and then find it here.
        with self._lock:
            if group not in self._kept:
                pictures = self._read(group)
                wanted = self._records[slice(*self._firsts[group : group + 2])] - self._starts[group]
                self._kept[group] = pictures if len(wanted) == len(pictures) else pictures.take(pa.array(wanted))
                while len(self._kept) > 2 and sum(map(len, self._kept.values())) > self.span:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(group)
            return self._kept[group]

    def _read(self, group: int) -> Any:
        path, number = self._groups[group]
        rows = int(self._starts[group + 1] - self._starts[group])
        with readable_parquet(path):
            pictures = read_group(path, number, f"{self._column}.bytes")
            if len(pictures) != rows:
                # Pictures would get the labels of others.
                raise ValueError(f"its row group {number} has {len(pictures)} pictures, and says {rows}")
            if pictures.null_count and self._has_paths:
                for row, name in names_in(path, number, self._column, pictures):
                    # This is never a null record: whether its file was looked for depends on the first row.
                    if int(self._starts[group]) + row not in self._files:
                        raise elsewhere(path, name)
        return pictures


class Scattered:
    """Pictures of row groups in an order of their own, such as person by person.

    To read a row group for each picture would take a hundred times as long. So the pictures are divided into windows.
    When the first picture of a window is wanted, all of its pictures are read, each row group once. A window has about
    an eighth of the free memory, or `HELD` bytes if that is more. Two are held: threads may work at the end of one and
    at the beginning of the next.

    Args:
        pictures: the pictures in their own order.
        records: which of them are wanted, in the order that is wanted, (n,).

    """

    def __init__(self, pictures: RowGroups, records: Records) -> None:
        self._pictures, self._records = pictures, records
        self._held = max(HELD, free_memory() / 8)
        self._span = max(1, int(min(self._held / max(pictures.mean_size(), 1), len(records))))
        self._windows: OrderedDict[int, list[bytes]] = OrderedDict()
        self._lock = Lock()

    def name(self, i: int) -> str:
        return self._pictures.name(int(self._records[i]))

    def read(self, i: int) -> bytes:
        if (file := self._pictures.own_file(int(self._records[i]))) is not None:
            return read_file(file)
        # One thread reads a window. The others wait.
        with self._lock:
            while i // self._span not in self._windows:
                self._fill(i // self._span)
            self._windows.move_to_end(i // self._span)
            return self._windows[i // self._span][i % self._span]

    def only(self, records: Records) -> "RowGroups | Scattered":
        return self._pictures.only(self._records[records])

    def _fill(self, window: int) -> None:
        """Read a window. Or make all windows smaller, if it has more bytes than two should have."""
        wanted = self._records[window * self._span : (window + 1) * self._span]
        held, size = [b""] * len(wanted), 0
        while len(self._windows) > 1:
            self._windows.popitem(last=False)
        for places, found in self._pictures.several(wanted):
            size += sum(map(len, found))
            if size > 2 * self._held and self._span > 1:
                self._span = max(1, self._span // 2)
                self._windows.clear()
                return
            for place, data in zip(places.tolist(), found, strict=True):
                held[place] = data
        self._windows[window] = held


def schema_of(path: Path) -> Any:
    """The schema of a file. UserError if it cannot be read."""
    with readable_parquet(path):
        return pq.read_schema(path)


def names_in(path: Path, number: int, column: str, pictures: Any) -> list[tuple[int, str]]:
    """The rows of a row group that hold no bytes and have a path, and their paths."""
    empty = np.flatnonzero(pictures.is_null().to_numpy(zero_copy_only=False)).tolist()
    if not empty:
        return []
    names = read_group(path, number, f"{column}.path").to_pylist()
    if len(names) != len(pictures):
        raise ValueError(f"its row group {number} has {len(names)} paths for {len(pictures)} pictures")
    return [(row, names[row]) for row in empty if names[row] is not None]


def elsewhere(path: Path, name: str) -> UserError:
    return UserError(
        f"'{path}' does not hold all its pictures, but names files, and '{name}' was not found. Such a file must lie "
        f"in '{path.parent}' or below it, and the first row must name one, too. {GUARDED}",
        "Move the parquet file into the folder of the pictures, if its paths begin there. Or write it with the "
        "pictures in it: with Hugging Face datasets, map the data set with datasets.table.embed_table_storage before "
        "to_parquet.",
        code="missing",
        path=str(path),
    )


def read_group(path: Path, number: int, column: str) -> Any:
    """The pictures of a row group.

    A picture that is repeated may be stored once. So a small row group may expand to any size, and its declared size
    says nothing. Therefore it is read in batches that cannot be larger than a row group may be, and they are counted.
    """
    file = pq.ParquetFile(path)
    group = file.metadata.row_group(number)
    refuse_giant(group.total_byte_size, path)
    rows = max(1, min(group.num_rows, LARGEST_GROUP // max(1, group.total_byte_size)))
    parts, size = [], 0
    for batch in file.iter_batches(rows, row_groups=[number], columns=[column]):
        parts.append(batch.column(0).flatten()[0])
        size += parts[-1].nbytes
        refuse_giant(size, path)
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def refuse_more_rows_than_bytes(rows: int, path: Path) -> None:
    """A repeated label takes no bytes, so a file of 1 kB may declare billions of records. Pictures take some bytes."""
    size = path.stat().st_size
    if rows > size:
        raise UserError(
            f"'{path}' declares {counted(rows, 'record')} in {counted(size, 'byte')}.",
            AGAIN,
            code="damaged",
            path=str(path),
        )


def refuse_giant(size: int, path: Path) -> None:
    if size > LARGEST_GROUP:
        raise UserError(
            f"'{path}' has a row group of {size / 1e9:.1f} GB. dpfc holds row groups in memory.",
            "Write the file again with smaller row groups: pyarrow's write_table(…, row_group_size=1000).",
            code="memory",
            path=str(path),
            bytes=size,
        )


def readable_parquet(path: Path) -> AbstractContextManager[None]:
    return readable(path, "parquet", AGAIN, pa.ArrowException)
