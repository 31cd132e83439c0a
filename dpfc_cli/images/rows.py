"""Pictures in the rows of files, read with PyArrow: in row groups of parquet, or in batches of an Arrow stream.

Of parquet, the row groups in memory are those that the threads are reading: three, or more if they are small. (The hub
writes row groups of 100 to 1,000 pictures.) A stream is mapped into memory, and its batches are slices of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpfc_cli.errors import GUARDED, UserError, counted
from dpfc_cli.images.encoded import read_file
from dpfc_cli.images.memory import check_size
from dpfc_cli.images.prefetch import PIECE
from dpfc_cli.images.sets import Records
from dpfc_cli.memory import free_memory
from dpfc_cli.sources.columns import AGAIN, parquet
from dpfc_cli.threads import cores

LARGEST_GROUP = 2 << 30
"""Bytes of the largest row group that is read."""
HELD = 512 << 20
"""The least bytes of pictures that are held at once, if they are wanted in another order than that of the file."""
SPAN = 4 * PIECE * cores()
"""More pictures than all threads read at one moment. So many are kept in memory, in whole row groups."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """A row group of a parquet file, or a batch of a stream.

    Attributes:
        path: the file.
        column: the column of pictures.
        number: of this group in its file.
        first: the number of its first row in the file.
        rows: how many it says that it has.
        size: the bytes of all its columns, as the file says.
        mapped: the pictures of a batch, which lie in the file. None: they must be read.
        files: the files that rows name because they hold no bytes, by row.

    """

    path: Path
    column: str
    number: int
    first: int
    rows: int
    size: int = 0
    mapped: Any = None
    files: Mapping[int, Path] = field(default_factory=dict)

    def read(self) -> Any:
        """The bytes of the pictures of a row group."""
        with parquet(self.path) as file:
            pictures = read_group(file, self.path, self.number, self.column)
            if len(pictures) != self.rows:
                # Pictures would get the labels of others.
                raise ValueError(f"its row group {self.number} has {len(pictures)} pictures, and says {self.rows}")
            for row, name in names_in(pictures):
                # This is never a null record: whether its file was looked for depends on the first row.
                if row not in self.files:
                    raise elsewhere(self.path, name)
            return bytes_of(pictures)


class Pictures:
    """Pictures in the groups of several files.

    Pictures of parquet are read in windows. When the first picture of a window is wanted, all are read, each row group
    once. A window is a row group, or what is wanted of it, and three are held. If pictures are wanted in an order of
    their own, such as person by person, two windows are held. Each then has about an eighth of the free memory, or
    `HELD` bytes if that is more. Several are held because threads work at the end of one and at the beginning of the
    next.

    Args:
        groups: the groups.
        records: the records that are wanted, in the order that is wanted, (n,); all if None.

    """

    def __init__(self, groups: list[Group], records: Records | None = None) -> None:
        self._groups = groups
        self._starts = np.cumsum([0, *(group.rows for group in groups)])
        n = int(self._starts[-1])
        self._records = np.arange(n) if records is None else records
        ordered = not (np.diff(self._records) < 0).any()
        self._windows, self._least, self._most = 3, SPAN, float("inf")
        # The first picture of each window, and the end of the last one.
        self._bounds = np.unique(np.searchsorted(self._records, self._starts))
        if not ordered:
            self._windows, self._least, self._most = 2, 0, max(HELD, free_memory() / 8)
            mean = sum(group.size for group in groups) / n
            span = max(1, int(min(self._most / max(mean, 1), len(self._records))))
            self._bounds = np.append(np.arange(0, len(self._records), span), len(self._records))
        self._kept: dict[tuple[int, int], list[bytes]] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._records)

    def place(self, i: int) -> tuple[Path, int]:
        """The file of picture i, and the number of its row there."""
        group, row = self._at(i)
        return group.path, group.first + row

    def name(self, i: int) -> str:
        group, row = self._at(i)
        return str(group.files.get(row) or f"{group.path}: row {group.first + row}")

    def called(self, i: int) -> str:
        """The place of picture i, with its file's name. It stays if the file is moved."""
        group, row = self._at(i)
        # What is held out depends on these names, so they stay as they are.
        where = group.first + row if group.mapped is not None else f"{group.number}/{row}"
        return f"{group.path.name}/{where}"

    def only(self, records: Records) -> "Pictures":
        return Pictures(self._groups, self._records[records])

    def read(self, i: int) -> bytes:
        group, row = self._at(i)
        if row in group.files:
            return read_file(group.files[row])
        if group.mapped is not None:
            picture = group.mapped[row]
            check_size(len(picture.as_buffer()) if picture.is_valid else 0)
            return picture.as_py() or b""
        window = self._window(i)
        if (held := self._kept.get(window)) is None:
            # One thread reads a window. The others that need it wait, and then find it.
            with self._lock:
                while (held := self._kept.get(window := self._window(i))) is None:
                    self._fill(*window)
        return held[i - window[0]]

    def _window(self, i: int) -> tuple[int, int]:
        """The first picture of the window that picture i is in, and the end of the window."""
        bounds = self._bounds
        at = int(np.searchsorted(bounds, i, "right"))
        return int(bounds[at - 1]), int(bounds[at])

    def _at(self, i: int) -> tuple[Group, int]:
        record = int(self._records[i])
        number = int(np.searchsorted(self._starts, record, "right")) - 1
        return self._groups[number], record - int(self._starts[number])

    def _fill(self, start: int, stop: int) -> None:
        """Read a window. Or halve all windows, if it has more bytes than two should have."""
        while len(self._kept) >= self._windows and sum(map(len, self._kept.values())) > self._least:
            del self._kept[next(iter(self._kept))]
        wanted = self._records[start:stop]
        groups = np.searchsorted(self._starts, wanted, "right") - 1
        # The decoder refuses an empty picture.
        held, size = [b""] * len(wanted), 0
        for number in np.unique(groups).tolist():
            places = np.flatnonzero(groups == number)
            own = pa.array(wanted[places] - self._starts[number])
            for place, data in zip(places.tolist(), self._groups[number].read().take(own).to_pylist(), strict=True):
                held[place] = data or b""
                size += len(held[place])
            if size > 2 * self._most and len(held) > 1:
                self._bounds = np.unique(np.append(self._bounds, (self._bounds[:-1] + self._bounds[1:]) // 2))
                self._kept.clear()
                return
        self._kept[start, stop] = held


def read_group(file: Any, path: Path, number: int, column: str) -> Any:
    """The pictures of a row group, with their paths if they have some.

    A picture that is repeated may be stored once. So a small row group may expand to any size, and its declared size
    says nothing. Therefore it is read in batches that cannot be larger than a row group may be, and they are counted.
    """
    group = file.metadata.row_group(number)
    refuse_giant(group.total_byte_size, path)
    rows = max(1, min(group.num_rows, LARGEST_GROUP // max(1, group.total_byte_size)))
    parts, size = [], 0
    names = [f"{column}.bytes", f"{column}.path"]
    for batch in file.iter_batches(rows, row_groups=[number], columns=names):
        parts.append(batch.column(0))
        size += parts[-1].nbytes
        refuse_giant(size, path)
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def bytes_of(pictures: Any) -> Any:
    """The bytes of pictures, null where there are none."""
    return pictures.flatten()[pictures.type.get_field_index("bytes")]


def names_in(pictures: Any) -> Iterator[tuple[int, str]]:
    """The rows that hold no bytes and name a file: their numbers, and the names."""
    at, data = pictures.type.get_field_index("path"), bytes_of(pictures)
    if at >= 0 and data.null_count:
        names = pictures.flatten()[at]
        for row in pc.indices_nonzero(pc.and_(data.is_null(), names.is_valid())).to_pylist():
            yield row, names[row].as_py()


def elsewhere(path: Path, name: str) -> UserError:
    return UserError(
        f"'{path}' does not hold all its pictures, but names files such as '{name}'. {GUARDED}",
        "Write it with the pictures in it: with Hugging Face datasets, map the data set with "
        "datasets.table.embed_table_storage. Files that parquet names are read if they lie in its folder or below it, "
        "and if its first row names one, too.",
        code="missing",
        path=str(path),
    )


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
