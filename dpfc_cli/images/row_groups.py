"""Parquet files of pictures, read with PyArrow: labels at once, pictures one row group at a time.

The row groups in memory are those that the threads are reading: two, or more if they are small. (The hub writes row
groups of 100 to 1,000 pictures.)
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpfc_cli.errors import GUARDED, UserError, counted
from dpfc_cli.images.prefetch import PIECE, cores
from dpfc_cli.images.sets import Entry, Progress, Records, reading_code
from dpfc_cli.sources.label_columns import hub_class_names, label_column

LARGEST_GROUP = 2 << 30
"""Bytes of the largest row group that is read."""
_AGAIN = "Fetch the file again, or leave it out."


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Where a file holds what. classes: the names that the file gives to the classes, or None."""

    image: str
    label: str
    classes: tuple[str, ...] | None


@dataclass(frozen=True)
class Listed:
    """A split of parquet files: its pictures, their labels (n,), and the entries of its files."""

    pictures: "RowGroups"
    labels: NDArray[np.int64]
    entries: list[Entry]


def columns_of(path: Path, source: str) -> Columns:
    """Which columns of a file hold pictures and labels. source: what the user calls the files, for messages.

    Raises:
        UserError: the file cannot be read, or has no such columns, or more than one of them.

    """
    with _readable(path):
        schema = pq.read_schema(path)
    integers = [field.name for field in schema if pa.types.is_integer(field.type)]
    image, label = _image_column(schema, source), label_column(integers, source)
    return Columns(image=image, label=label, classes=hub_class_names(schema.metadata, label))


class RowGroups:
    """Pictures in the row groups of several files.

    Args:
        column: the column that holds them.
        groups: the file of each row group, and its number in the file. There are g of them.
        starts: the first record of each row group, and the end of the last one, (g + 1,).
        records: the records that are wanted, (n,); all if None. Other pictures of a row group are not kept in memory.

    """

    span = 4 * PIECE * cores()
    """More pictures than all threads read at one moment. So many pictures are kept in memory, in whole row groups."""

    def __init__(
        self, column: str, groups: list[tuple[Path, int]], starts: NDArray[np.int64], records: Records | None = None
    ) -> None:
        self._column, self._groups, self._starts = column, groups, starts
        self._records = np.arange(starts[-1]) if records is None else records
        # The first wanted picture of each group, counted as `read` counts.
        self._firsts = np.searchsorted(self._records, starts)
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._lock = Lock()

    def name(self, i: int) -> str:
        group = self._group(i)
        path, number = self._groups[group]
        return f"{path}: row {int(self._records[i] - self._starts[group])} of row group {number}"

    def called(self, i: int) -> str:
        """The place of a picture, with its file's name. Parquet has no other names. It stays if the file is moved."""
        group = self._group(i)
        path, number = self._groups[group]
        return f"{path.name}/{number}/{int(self._records[i] - self._starts[group])}"

    def read(self, i: int) -> bytes:
        group = self._group(i)
        data = self._pictures(group)[i - int(self._firsts[group])].as_py()
        # The decoder refuses an empty picture.
        return data if isinstance(data, bytes) else b""

    def only(self, records: Records) -> "RowGroups":
        return RowGroups(self._column, self._groups, self._starts, self._records[records])

    def _group(self, i: int) -> int:
        return int(np.searchsorted(self._firsts, i, "right")) - 1

    def _pictures(self, group: int) -> Any:
        # One thread reads a group. The others that need it wait, and then find it here.
        with self._lock:
            if group not in self._kept:
                path, number = self._groups[group]
                rows = int(self._starts[group + 1] - self._starts[group])
                with _readable(path):
                    pictures = _read(path, number, f"{self._column}.bytes")
                    if len(pictures) != rows:
                        # Pictures would get the labels of others.
                        raise ValueError(f"its row group {number} has {len(pictures)} pictures, and says {rows}")
                wanted = self._records[slice(*self._firsts[group : group + 2])] - self._starts[group]
                self._kept[group] = pictures if len(wanted) == len(pictures) else pictures.take(pa.array(wanted))
                while len(self._kept) > 2 and sum(map(len, self._kept.values())) > self.span:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(group)
            return self._kept[group]


def listed(paths: list[Path], columns: Columns, progress: Progress | None) -> Listed:
    """List the files of a split, and read their labels.

    Raises:
        UserError: a file cannot be read, differs from the others, or has a row group too large for the memory.

    """
    groups: list[tuple[Path, int]] = []
    rows, labels, entries = [0], [np.zeros(0, np.int64)], []
    for done, path in enumerate(paths, 1):
        with _readable(path):
            file = pq.ParquetFile(path)
            declared = sum(file.metadata.row_group(number).num_rows for number in range(file.num_row_groups))
            _refuse_more_rows_than_bytes(max(declared, file.metadata.num_rows), path)
            y = file.read([columns.label]).column(0)
            if y.null_count or not pa.types.is_integer(y.type):
                raise UserError(
                    f"'{path}' has labels in '{columns.label}' that are not integers. {GUARDED}",
                    "Correct them: every label must be an integer.",
                    code="bad-record",
                    path=str(path),
                    column=columns.label,
                )
            _check_image(file.schema_arrow, columns.image, path)
            for number in range(file.num_row_groups):
                _refuse_giant(file.metadata.row_group(number).total_byte_size, path)
                groups.append((path, number))
                rows.append(file.metadata.row_group(number).num_rows)
            labels.append(y.to_numpy().astype(np.int64))
        entries.append(_entry(path, labels[-1]))
        if progress is not None:
            progress("Listing", done, len(paths))
    return Listed(RowGroups(columns.image, groups, np.cumsum(rows)), np.concatenate(labels), entries)


def _entry(path: Path, labels: NDArray[np.int64]) -> Entry:
    """The file's entry. Its digest is of the labels and the footer, which holds each column's place and extremes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(size - 8, 0))
        footer = int.from_bytes(file.read(4), "little")
        file.seek(max(size - 8 - footer, 0))
        digest = hashlib.sha256(file.read(footer + 8))
    digest.update(labels.tobytes())
    return Entry(path.name, size, digest.hexdigest())


def _read(path: Path, number: int, column: str) -> Any:
    """The pictures of a row group.

    A picture that is repeated may be stored once. So a small row group may expand to any size, and its declared size
    says nothing. Therefore it is read in batches that cannot be larger than a row group may be, and they are counted.
    """
    file = pq.ParquetFile(path)
    group = file.metadata.row_group(number)
    _refuse_giant(group.total_byte_size, path)
    rows = max(1, min(group.num_rows, LARGEST_GROUP // max(1, group.total_byte_size)))
    parts, size = [], 0
    for batch in file.iter_batches(rows, row_groups=[number], columns=[column]):
        parts.append(batch.column(0).flatten()[0])
        size += parts[-1].nbytes
        _refuse_giant(size, path)
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _refuse_more_rows_than_bytes(rows: int, path: Path) -> None:
    """A repeated label takes no bytes, so a file of 1 kB may declare billions of records. Pictures take some bytes."""
    size = path.stat().st_size
    if rows > size:
        raise UserError(
            f"'{path}' declares {counted(rows, 'record')} in {counted(size, 'byte')}.",
            _AGAIN,
            code="damaged",
            path=str(path),
        )


def _refuse_giant(size: int, path: Path) -> None:
    if size > LARGEST_GROUP:
        raise UserError(
            f"'{path}' has a row group of {size / 1e9:.1f} GB. dpfc holds row groups in memory.",
            "Write the file again with smaller row groups: pyarrow's write_table(…, row_group_size=1000).",
            code="memory",
            path=str(path),
            bytes=size,
        )


def _image_column(schema: Any, source: str) -> str:
    found = [field.name for field in schema if _holds_bytes(field.type)]
    if len(found) != 1:
        raise UserError(
            f"'{source}' has {'no column' if not found else f'several columns {found}'} of pictures.",
            "One column must be a struct of 'bytes' and 'path', as the Hugging Face hub writes images. "
            "If the files hold features and not pictures, use 'dpfc import'.",
            code="conflict" if found else "missing",
            path=source,
            known=found,
        )
    return str(found[0])


def _holds_bytes(kind: Any) -> bool:
    if not pa.types.is_struct(kind):
        return False
    at = kind.get_field_index("bytes")
    return at >= 0 and bool(pa.types.is_binary(kind[at].type) or pa.types.is_large_binary(kind[at].type))


def _check_image(schema: Any, image: str, path: Path) -> None:
    if image not in schema.names or not _holds_bytes(schema.field(image).type):
        raise UserError(
            f"'{path}' has no pictures in column '{image}', but other files of the data set do.",
            _AGAIN,
            code="conflict",
            path=str(path),
            column=image,
        )


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, LookupError, ValueError, TypeError, pa.ArrowException) as error:
        what = f"'{path}' cannot be read as parquet: {error}."
        raise UserError(what, _AGAIN, code=reading_code(error), path=str(path)) from error
