"""Parquet files as tables of features: one column of lists of floats, all of one length, and one of labels."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpfc_cli.errors import GUARDED, UserError, parameter
from dpfc_cli.features.table import ROWS, Array, Table, Tables, checked, sliced, unread
from dpfc_cli.files import check_plain
from dpfc_cli.memory import check_fits
from dpfc_cli.sources.groups import GROUPS
from dpfc_cli.sources.groups import joined as joined_keys
from dpfc_cli.sources.key_columns import is_key, keys_of_column
from dpfc_cli.sources.label_columns import hub_class_names
from dpfc_cli.sources.label_columns import label_column as usual_label
from dpfc_cli.sources.split_files import TEST_SPLITS, files_by_split

BLOCK = 2**26
"""Bytes of the features that are read at once."""
_FLOATS = {pa.float16(): np.float16, pa.float32(): np.float32, pa.float64(): np.float64}


def open_columns(pattern: str, column: str | None, label_column: str | None, group_column: str | None = None) -> Tables:
    """The tables of parquet files, by split. The name of a file says which split it belongs to.

    Args:
        pattern: a file, a folder, or a pattern of names.
        column: the column of features; by default the only one that holds lists of floats.
        label_column: the column of labels; by default one of a usual name, or the only one of integers.
        group_column: the column of integers or texts that name persons; by default `groups`, if there is one.

    Raises:
        UserError: the files cannot be read, or have no such columns.

    """
    found = files_by_split(pattern, ".parquet")
    test = next((split for split in TEST_SPLITS if split in found), None)
    used = {role: found[split] for role, split in (("train", "train"), ("test", test)) if split in found}
    if "train" not in used:
        return Tables(splits={})
    with _readable(used["train"][0]):
        schema = pq.read_schema(used["train"][0])
    x = _chosen(schema, column, _is_vector, "lists of floats", "column", pattern)
    g = group_column or (GROUPS if GROUPS in schema.names else None)
    if g is not None:
        _chosen(schema, g, is_key, "integers or texts", "group_column", pattern)
    y = label_column or usual_label([f.name for f in schema if _is_label(f.type) and f.name != g], pattern)
    _chosen(schema, y, _is_label, "integers, or of lists of them", "label_column", pattern)
    splits = {role: _table(paths, x, y, g) for role, paths in used.items()}
    return Tables(splits=splits, classes=hub_class_names(schema.metadata, y))


class Column:
    """The rows of one column of lists, over several files. Reading forwards reads each file once.

    Args:
        name: the name of the column.
        d: the length of the lists.
        groups: the row groups in order: (file, number of the group in it, rows).

    """

    def __init__(self, name: str, d: int, groups: list[tuple[Path, int, int]]) -> None:
        self._name, self._d, self._groups = name, d, groups
        self._at = 0
        self._stream = self._from(0)
        self._held = np.empty((0, d))

    def rows(self, start: int, stop: int) -> np.ndarray:
        """The rows [start, stop), (stop - start) × d."""
        if start != self._at:
            self._stream, self._held = self._from(start), self._held[:0]
        pieces, missing = [], stop - start
        while missing:
            if not len(self._held):
                self._held = next(self._stream)
            pieces.append(self._held[:missing])
            self._held = self._held[missing:]
            missing -= len(pieces[-1])
        self._at = stop
        return np.concatenate(pieces)

    def _from(self, start: int) -> Iterator[np.ndarray]:
        """Blocks of rows from row `start` to the end."""
        for path, group, rows in self._groups:
            if start >= rows:
                start -= rows
                continue
            with _readable(path), pq.ParquetFile(path, pre_buffer=False) as file:
                count = max(1, min(ROWS, BLOCK // (8 * max(self._d, 1))))
                for batch in file.iter_batches(count, row_groups=[group], columns=[self._name]):
                    block = _matrix(batch.column(0), self._d, path, self._name)
                    skipped = min(start, len(block))
                    start -= skipped
                    if skipped < len(block):
                        yield block[skipped:]


def _table(paths: list[Path], x: str, y: str, g: str | None) -> Table:
    """The table of the files of one split, with columns x and y, and g if it names persons."""
    groups, labels, keys = [], [], []
    d, dtype, listed = 0, None, False
    for path in paths:
        with _readable(path), pq.ParquetFile(path) as file:
            field = _field(file.schema_arrow, x, _is_vector, path)
            listed = listed or not pa.types.is_integer(_field(file.schema_arrow, y, _is_label, path).type)
            if g is not None:
                _field(file.schema_arrow, g, is_key, path)
            _check_declared(file, x, y, path, field.type)
            groups += [(path, i, file.metadata.row_group(i).num_rows) for i in range(file.num_row_groups)]
            labels.append(_labels(file.read([y]).column(0), path, y))
            keys += [] if g is None else [keys_of_column(path, g)]
            kind = _FLOATS[field.type.value_type]
            if dtype not in (None, kind):
                raise UserError(
                    f"'{path}' stores '{x}' with another precision than the files before it.",
                    "Store the features of all files with the same precision.",
                    code="conflict",
                    path=str(path),
                    column=x,
                )
            dtype, d = kind, d or _width(file, x, path)
    n = sum(rows for _, _, rows in groups)
    if n and not d:
        raise _unequal(paths[0], x, d)
    column = Column(x, d, groups)
    wide = max(part.shape[1] for part in labels)
    padded = [np.pad(part, ((0, 0), (0, wide - part.shape[1])), constant_values=-1) for part in labels]
    joined = np.concatenate(padded)
    features = Array(shape=(n, d), dtype=dtype, read=column.rows)
    table = checked(str(paths[0]), features, Array(shape=joined.shape, dtype=joined.dtype, read=sliced(joined)), x, y)
    return replace(table, counted=listed, keys=joined_keys(keys) if keys else None)


def _check_declared(file: Any, x: str, y: str, path: Path, kind: Any) -> None:
    """Raise UserError if memory cannot hold the labels of a file, or one of its records, by what its footer declares.

    A list of equal numbers takes some bytes in the file, however long it is.
    """
    labels = 0
    for i in range(file.num_row_groups):
        group = file.metadata.row_group(i)
        for j in range(group.num_columns):
            name = file.schema.column(j).path.split(".")[0]
            if name not in (x, y):
                continue
            column = group.column(j)
            labels += 8 * column.num_values if name == y else 0
            if name == x:
                # Where lists differ in length, one of them may have all the numbers.
                even = group.num_rows and column.num_values % group.num_rows == 0
                held = column.num_values // group.num_rows if even else column.num_values
                check_fits(path, f"a list of '{x}'", held * np.dtype(_FLOATS[kind.value_type]).itemsize, copies=4)
    check_fits(path, f"'{y}'", labels, copies=4)


def _width(file: Any, x: str, path: Path) -> int:
    """The length of the list in the first row. All others must have the same."""
    for batch in file.iter_batches(1, columns=[x]):
        return len(batch.column(0)[0].as_py() or ())
    return 0


def _matrix(lists: Any, d: int, path: Path, name: str) -> np.ndarray:
    """Lists of length d as rows × d. Raises UserError if one is missing or has another length."""
    values = lists.flatten()
    equal = lists.null_count == 0 and len(values) == d * len(lists)
    if not equal or pc.any(pc.not_equal(pc.list_value_length(lists), d)).as_py():
        raise _unequal(path, name, d)
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(len(lists), d)


def _unequal(path: Path, name: str, d: int) -> UserError:
    return UserError(
        f"'{path}' has lists in '{name}' that are missing or not {d} long. {GUARDED}"
        if d
        else f"'{path}' begins with a list in '{name}' that is missing or empty. {GUARDED}",
        "All records need features of the same length.",
        code="bad-record",
        path=str(path),
        column=name,
        dimensions=d,
    )


def _labels(column: Any, path: Path, name: str) -> np.ndarray:
    """Labels as n × k: k = 1 for a column of integers, the longest list for one of lists. Short lists end in −1."""
    lists = column.combine_chunks()
    if pa.types.is_integer(column.type):
        return _integers(lists)[:, None]
    lengths = np.asarray(pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)).astype(int)
    longest = max(int(lengths.max(initial=0)), 1)
    check_fits(
        path, f"'{name}', with as many labels for each record as the longest list has,", 8 * len(lists) * longest, 4
    )
    y = np.full((len(lists), longest), -1, np.int64)
    y[np.arange(longest) < lengths[:, None]] = _integers(lists.flatten())
    return y


def _integers(values: Any) -> np.ndarray:
    """Integers of any width as int64, −1 where there is none. Raises ArrowInvalid for one beyond int64."""
    return np.asarray(values.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False))


def _chosen(schema: Any, given: str | None, fits: Any, what: str, option: str, source: str) -> str:
    """The given column, or the only one that fits. what: what it holds; option: the parameter that names it."""
    fitting = [str(field.name) for field in schema if fits(field.type)]
    if given is not None and given in fitting:
        return given
    if given is None and len(fitting) == 1:
        return fitting[0]
    problem = f"no column '{given}' of {what}" if given else f"{len(fitting) or 'no'} columns of {what}"
    raise UserError(
        f"'{source}' has {problem}.",
        f"Name one with {parameter(option)}. Columns of {what}: {', '.join(fitting) or 'none'}.",
        code="missing",
        parameter=option,
        path=source,
        known=fitting,
    )


def _field(schema: Any, name: str, fits: Any, path: Path) -> Any:
    if name not in schema.names or not fits(schema.field(name).type):
        raise UserError(
            f"'{path}' has no column '{name}' as the first file has.",
            "Give all files the same columns.",
            code="conflict",
            path=str(path),
            column=name,
        )
    return schema.field(name)


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_vector(kind: Any) -> bool:
    return _is_list(kind) and kind.value_type in _FLOATS


def _is_label(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or (_is_list(kind) and pa.types.is_integer(kind.value_type)))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        check_plain(path)
        yield
    except (OSError, LookupError, ValueError, TypeError, pa.ArrowException) as error:
        raise unread(path, "parquet", error, "Write it again, or leave it out.") from error
