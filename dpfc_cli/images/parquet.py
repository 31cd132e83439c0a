"""Parquet as the Hugging Face hub lays out pictures: a column of {bytes, path} and a column of integer labels.

The classes' names are those of the `ClassLabel` in the schema's `huggingface` metadata; without it how many there are
is asserted by the operator, or inferred. Labels are read when the set is opened, pictures a row group at a time. Kept
are the groups that the threads are at: two, or more where groups are small (the hub writes 100 to 1,000 pictures each).
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpfc_cli.backbones.geometry import Geometry
from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.images.encoded import encoded_split
from dpfc_cli.images.prefetch import PIECE, cores
from dpfc_cli.images.sets import Entry, ImageSet, Progress, Records, labelled
from dpfc_cli.sources.label_columns import class_names, label_column
from dpfc_cli.sources.split_files import shards

LARGEST_GROUP = 2 << 30
_AGAIN = "Fetch the file again, or leave it out."


def open_parquet(
    pattern: str, geometry: Geometry | None, classes: tuple[str, ...] | None, progress: Progress | None
) -> ImageSet:
    """The data set of the files that `pattern` names. classes: as the operator asserts them, where the files do not."""
    found = shards(pattern, ".parquet")
    with _readable(pattern):
        schema = pq.read_schema(found.get("train", next(iter(found.values())))[0])
    integers = [field.name for field in schema if pa.types.is_integer(field.type)]
    image, label = _image_column(schema, pattern), label_column(integers, pattern)
    own = class_names(schema.metadata, label)
    if own and classes:
        raise UserError(f"The files of '{pattern}' name their classes themselves.", "Leave out --classes.")
    tables = {split: _listed(paths, image, label, progress) for split, paths in found.items()}
    labels = {split: y for split, (_, y, _) in tables.items()}
    names, origin, used = labelled(labels, own or classes)
    splits = {
        role: encoded_split(
            labels[split], tables[split][0], geometry, own or (), tables[split][2], tables[split][0].called
        )
        for role, split in used.items()
    }
    return ImageSet("parquet", names, splits, "data set" if own else origin)


class RowGroups:
    """Pictures in the row groups of a few files. starts: (g + 1,), the first record of each group, and their end.
    records: those that are wanted, (n,); of a row group no others are kept.
    """

    span = 4 * PIECE * cores()
    """Pictures that threads are at in one moment, with room to spare: as many row groups are kept."""

    def __init__(
        self, column: str, groups: list[tuple[Path, int]], starts: NDArray[np.int64], records: Records | None = None
    ) -> None:
        self._column, self._groups, self._starts = column, groups, starts
        self._records = np.arange(starts[-1]) if records is None else records
        # Of each group the first that is wanted, as `read` counts.
        self._firsts = np.searchsorted(self._records, starts)
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._lock = Lock()

    def name(self, i: int) -> str:
        group = self._group(i)
        path, number = self._groups[group]
        return f"{path}: row {int(self._records[i] - self._starts[group])} of row group {number}"

    def called(self, i: int) -> str:
        """File and row of a picture, wherever the file lies: parquet has no other name for it."""
        group = self._group(i)
        path, number = self._groups[group]
        return f"{path.name}/{number}/{int(self._records[i] - self._starts[group])}"

    def read(self, i: int) -> bytes:
        group = self._group(i)
        data = self._pictures(group)[i - int(self._firsts[group])].as_py()
        # An empty picture is the decoder's to refuse.
        return data if isinstance(data, bytes) else b""

    def only(self, records: Records) -> "RowGroups":
        return RowGroups(self._column, self._groups, self._starts, self._records[records])

    def _group(self, i: int) -> int:
        return int(np.searchsorted(self._firsts, i, "right")) - 1

    def _pictures(self, group: int) -> Any:
        # One thread reads, and the others that need the same group find it.
        with self._lock:
            if group not in self._kept:
                path, number = self._groups[group]
                with _readable(path):
                    table = pq.ParquetFile(path).read_row_group(number, columns=[f"{self._column}.bytes"])
                    pictures = table.column(0).combine_chunks().flatten()[0]
                wanted = self._records[slice(*self._firsts[group : group + 2])] - self._starts[group]
                self._kept[group] = pictures if len(wanted) == len(pictures) else pictures.take(pa.array(wanted))
                while len(self._kept) > 2 and sum(map(len, self._kept.values())) > self.span:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(group)
            return self._kept[group]


def _listed(
    paths: list[Path], image: str, label: str, progress: Progress | None
) -> tuple[RowGroups, NDArray[np.int64], list[Entry]]:
    """Where the pictures of a split are, their labels, and the entries of its files."""
    groups: list[tuple[Path, int]] = []
    rows, labels, entries = [0], [np.zeros(0, np.int64)], []
    for done, path in enumerate(paths, 1):
        with _readable(path):
            file = pq.ParquetFile(path)
            y = file.read([label]).column(0)
            if y.null_count or not pa.types.is_integer(y.type):
                raise UserError(f"'{path}' has labels in '{label}' that are no integers. {GUARDED}", "Mend them.")
            _check_image(file.schema_arrow, image, path)
            for number in range(file.num_row_groups):
                _refuse_giant(file.metadata.row_group(number), path)
                groups.append((path, number))
                rows.append(file.metadata.row_group(number).num_rows)
            labels.append(y.to_numpy().astype(np.int64))
        entries.append(_entry(path, labels[-1]))
        if progress is not None:
            progress("Listing", done, len(paths))
    return RowGroups(image, groups, np.cumsum(rows)), np.concatenate(labels), entries


def _entry(path: Path, labels: NDArray[np.int64]) -> Entry:
    """The file by name, size, footer (which holds every column's place and extremes) and labels."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(size - 8, 0))
        footer = int.from_bytes(file.read(4), "little")
        file.seek(max(size - 8 - footer, 0))
        digest = hashlib.sha256(file.read(footer + 8))
    digest.update(labels.tobytes())
    return path.name, size, digest.hexdigest()


def _refuse_giant(group: Any, path: Path) -> None:
    if group.total_byte_size > LARGEST_GROUP:
        raise UserError(
            f"'{path}' has a row group of {group.total_byte_size / 1e9:.1f} GB, which would have to be held in memory.",
            "Write the file anew with smaller ones: pyarrow's write_table(…, row_group_size=1000).",
        )


def _image_column(schema: Any, source: str) -> str:
    found = [field.name for field in schema if _holds_bytes(field.type)]
    if len(found) != 1:
        raise UserError(
            f"'{source}' has {'no column' if not found else f'columns {found}'} of pictures.",
            "One column must be a struct of 'bytes' and 'path', as the Hugging Face hub writes images. "
            "Features rather than pictures? Then dpfc import.",
        )
    return str(found[0])


def _holds_bytes(kind: Any) -> bool:
    if not pa.types.is_struct(kind):
        return False
    at = kind.get_field_index("bytes")
    return at >= 0 and bool(pa.types.is_binary(kind[at].type) or pa.types.is_large_binary(kind[at].type))


def _check_image(schema: Any, image: str, path: Path) -> None:
    if image not in schema.names or not _holds_bytes(schema.field(image).type):
        raise UserError(f"'{path}' has no pictures in column '{image}', as its neighbours do.", _AGAIN)


@contextmanager
def _readable(path: Path | str) -> Iterator[None]:
    try:
        yield
    except (OSError, LookupError, ValueError, TypeError, pa.ArrowException) as error:
        raise UserError(f"'{path}' cannot be read as parquet: {error}.", _AGAIN) from error
