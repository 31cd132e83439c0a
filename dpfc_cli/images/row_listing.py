"""What the row groups of parquet files list: labels, persons and digests, and the files that they name."""

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.files import named_twice
from dpfc_cli.images.picture_columns import Columns, check_image, check_person, has_paths, image_column, is_text
from dpfc_cli.images.row_groups import (
    RowGroups,
    elsewhere,
    names_in,
    read_group,
    readable_parquet,
    refuse_giant,
    refuse_more_rows_than_bytes,
)
from dpfc_cli.images.sets import Entry, Given, Progress
from dpfc_cli.images.tables import Listed, check_labels
from dpfc_cli.sources.groups import Keys, joined
from dpfc_cli.sources.key_columns import keys_of_column, values_of_column
from dpfc_cli.sources.names import inside


def listed(paths: list[Path], columns: Columns, progress: Progress | None) -> Listed:
    """List the files of a split, and read their labels.

    Raises:
        UserError: a file cannot be read, differs from the others, or has a row group too large for the memory.

    """
    found, entries = _Found(columns.image), list[Entry]()
    labels, keys = list[Given](), list[Keys]()
    for done, path in enumerate(paths, 1):
        with readable_parquet(path):
            file = found.opened(path)
            y = file.read([columns.label]).column(0)
            check_labels(y, path, columns.label)
            if columns.person is not None:
                check_person(file.schema_arrow, columns.person, str(path))
                keys.append(keys_of_column(path, columns.person))
                if len(keys[-1].codes) != len(y):
                    raise ValueError(f"it has {len(keys[-1].codes)} persons for {len(y)} rows")
            found.add(file, path)
            texts = is_text(y.type)
            labels.append(y.cast(pa.string()).to_pylist() if texts else y.to_numpy().astype(np.int64))
        entries.append(_entry(path, labels[-1]))
        if progress is not None:
            progress("Listing", done, len(paths))
    entries += _checked(found.files, paths)
    return Listed(found.pictures(), _joined(labels), entries, joined(keys) if keys else None)


def values_in(path: Path, column: str) -> Iterator[object]:
    """The values of a column of a file; nothing if it has no such column. UserError if the file cannot be read."""
    with readable_parquet(path):
        yield from values_of_column(path, column)


def pictures_in(paths: list[Path], source: str) -> RowGroups:
    """The pictures of some files, without their labels.

    Args:
        paths: the files.
        source: what the user calls them, for messages.

    Raises:
        UserError: a file cannot be read, differs from the others, or has a row group too large for the memory.

    """
    with readable_parquet(paths[0]):
        found = _Found(image_column(pq.read_schema(paths[0]), source))
    for path in paths:
        with readable_parquet(path):
            found.add(found.opened(path), path)
    return found.pictures()


class _Found:
    """The row groups of files, one file after the other. files: those of the rows that hold no bytes."""

    def __init__(self, column: str) -> None:
        self._column, self._has_paths = column, False
        self._groups: list[tuple[Path, int]] = []
        self._rows, self._before = [0], 0
        self.files: dict[int, Path] = {}

    def opened(self, path: Path) -> Any:
        """A file. UserError if it declares more rows than it has bytes, or has no such column of pictures."""
        file = pq.ParquetFile(path)
        declared = sum(file.metadata.row_group(number).num_rows for number in range(file.num_row_groups))
        refuse_more_rows_than_bytes(max(declared, file.metadata.num_rows), path)
        check_image(file.schema_arrow, self._column, path)
        return file

    def add(self, file: Any, path: Path) -> None:
        """Add the row groups of a file."""
        own = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        for number in range(file.num_row_groups):
            refuse_giant(file.metadata.row_group(number).total_byte_size, path)
            self._groups.append((path, number))
        named = _named_files(path, file.schema_arrow, self._column, own)
        self.files.update((self._before + row, name) for row, name in named.items())
        self._has_paths |= has_paths(file.schema_arrow, self._column)
        self._rows += own
        self._before += sum(own)

    def pictures(self) -> RowGroups:
        return RowGroups(self._column, self._groups, np.cumsum(self._rows), files=self.files, has_paths=self._has_paths)


def _joined(labels: list[Given]) -> Given:
    """The labels of several files, one after the other."""
    if all(isinstance(part, np.ndarray) for part in labels):
        return np.concatenate([np.zeros(0, np.int64), *labels])
    return [label for part in labels for label in part]


def _named_files(path: Path, schema: Any, column: str, rows: list[int]) -> dict[int, Path]:
    """The files that rows name by their path, because they hold no bytes. rows: of each row group.

    Statistics in the file say which rows hold none, but PyArrow ends the process if those are damaged. So the first row
    is looked at. If it holds its bytes, all others are taken to do so, and reading stops at one that does not.
    """
    if not has_paths(schema, column) or not sum(rows):
        return {}
    # Without a buffer PyArrow would read all pictures of the row group.
    first = next(pq.ParquetFile(path, buffer_size=1 << 16).iter_batches(1, columns=[f"{column}.bytes"]), None)
    if first is None:
        raise ValueError(f"it has no pictures, and says {sum(rows)}")
    if first.column(0).flatten()[0].null_count == 0:
        return {}
    found: dict[int, Path] = {}
    before = 0
    for number, count in enumerate(rows):
        for row, name in names_in(path, number, column, read_group(path, number, f"{column}.bytes")):
            named = inside(path.parent, name)
            if named is None or not named.exists():
                raise elsewhere(path, name)
            found[before + row] = named
        before += count
    return found


def _checked(files: dict[int, Path], paths: list[Path]) -> list[Entry]:
    """The entries of the files that rows name."""
    entries = []
    for file in files.values():
        try:
            facts = file.stat()
        except OSError as error:
            raise UserError(
                f"'{file}' cannot be read: {error.strerror or error}.", "Check it.", code="unreadable", path=str(file)
            ) from error
        if not stat.S_ISREG(facts.st_mode):
            raise UserError(f"'{file}' is not a file.", "Remove it.", code="unreadable", path=str(file))
        entries.append(Entry(os.path.relpath(file, paths[0].parent.absolute()), facts.st_size, ""))
    twice = named_twice(files.values())
    if twice is not None:
        raise UserError(
            f"Two rows name '{twice}', or it is there under two names. It would count as two records, and the "
            f"guarantee is for one. {GUARDED}",
            "Leave one of them.",
            code="conflict",
            path=str(twice),
        )
    return entries


def _entry(path: Path, labels: Given) -> Entry:
    """The file's entry. Its digest is of the labels and the footer, which holds each column's place and extremes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(size - 8, 0))
        footer = int.from_bytes(file.read(4), "little")
        file.seek(max(size - 8 - footer, 0))
        digest = hashlib.sha256(file.read(footer + 8))
    digest.update(labels.tobytes() if isinstance(labels, np.ndarray) else json.dumps(labels).encode())
    return Entry(path.name, size, digest.hexdigest())
