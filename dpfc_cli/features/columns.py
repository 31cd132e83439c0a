"""Parquet files as tables of features: one column of lists of floats, all of one length, or a column of floats for each
feature; and one column of labels, integers or texts.
"""

import fnmatch
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpfc_cli.errors import GUARDED, UserError, parameter
from dpfc_cli.features.table import ROWS, Array, Table, Tables, checked, numbered, sliced
from dpfc_cli.memory import check_fits
from dpfc_cli.sources.groups import GROUPS
from dpfc_cli.sources.groups import joined as joined_keys
from dpfc_cli.sources.key_columns import is_key, keys_of_column, seeming, values_of_column
from dpfc_cli.sources.label_columns import USUAL_NAMES, hub_class_names
from dpfc_cli.sources.label_columns import label_column as usual_label
from dpfc_cli.sources.noticed import column_of
from dpfc_cli.sources.reading import readable
from dpfc_cli.sources.split_files import TEST_SPLITS, files_by_split

BLOCK = 2**26
"""Bytes of the features that are read at once."""
_FLOATS = {pa.float16(): np.float16, pa.float32(): np.float32, pa.float64(): np.float64}


def open_columns(pattern: str, column: str | None, label_column: str | None, group_column: str | None = None) -> Tables:
    """The tables of parquet files, by split. The name of a file says which split it belongs to.

    Args:
        pattern: a file, a folder, or a pattern of names.
        column: the column of features, or a pattern such as 'f*' that fits the name of a column for each feature. By
            default the only one that holds lists of floats; or else all that hold floats, in their order.
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
    g = group_column or (GROUPS if GROUPS in schema.names else None)
    if g is not None:
        _chosen(schema, g, is_key, "integers or texts", "group_column", pattern)
    y = label_column or _label_column(schema, g, pattern)
    _chosen(schema, y, _is_label, "integers, texts, or lists of integers", "label_column", pattern)
    x = _features(schema, column, y, g, pattern)
    splits = {role: _table(paths, x, y, g) for role, paths in used.items()}
    files = [path for paths in used.values() for path in paths]
    seem = () if g is not None else seeming(schema, y, *([x] if isinstance(x, str) else []))
    return Tables(
        splits=splits,
        classes=hub_class_names(schema.metadata, y),
        noticed=lambda: column_of({name: _values(files, name) for name in seem}),
    )


def _values(paths: list[Path], name: str) -> Iterator[object]:
    """The values of a column of some files."""
    for path in paths:
        with _readable(path):
            yield from values_of_column(path, name)


def _features(schema: Any, column: str | None, y: str, g: str | None, source: str) -> tuple[str, ...] | str:
    """The column of lists, or the columns of the features."""
    pattern = column if column is not None and set(column) & set("*?") else None
    fitting = [f.name for f in schema if f.type in _FLOATS and f.name not in (y, g)]
    if pattern is not None:
        fitting = fnmatch.filter(fitting, pattern)
    elif column is not None or any(_is_vector(field.type) for field in schema):
        fitting = []
    if pattern is None and not fitting:
        return _chosen(schema, column, _is_vector, "lists of floats", "column", source)
    if not fitting or len(set(schema.names)) < len(schema.names):
        raise UserError(
            f"'{source}' has {'two columns of one name' if fitting else f'no column of floats named {pattern!r}'}.",
            f"Name the columns of features: {parameter('column')} 'f*'. It has: {', '.join(schema.names[:20])}.",
            code="missing",
            parameter="column",
            path=source,
        )
    return tuple(fitting)


def _label_column(schema: Any, g: str | None, source: str) -> str:
    """The column of labels: one of integers (or lists of them) or of texts with a usual name, or the only one of
    integers.
    """
    integers = [f.name for f in schema if _is_label(f.type) and not _is_text(f.type) and f.name != g]
    text = next((name for name in USUAL_NAMES if name in schema.names and _is_text(schema.field(name).type)), None)
    return usual_label(integers, source) if text is None or set(integers) & set(USUAL_NAMES) else text


class Column:
    """The rows of one column of lists, or of a column for each feature, over several files. Reading forwards reads each
    file once.

    Args:
        name: the name of the column, or those of the columns.
        d: the length of the lists, or the number of columns.
        groups: the row groups in order: (file, number of the group in it, rows).

    """

    def __init__(self, name: tuple[str, ...] | str, d: int, groups: list[tuple[Path, int, int]]) -> None:
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
                count, held = max(1, min(ROWS, BLOCK // (8 * max(self._d, 1)))), 0
                for batch in file.iter_batches(count, row_groups=[group], columns=_listed(self._name)):
                    block = _block(batch, self._name, self._d, path)
                    held += len(block)
                    if held > rows:
                        break
                    skipped = min(start, len(block))
                    start -= skipped
                    if skipped < len(block):
                        yield block[skipped:]
                if held != rows:
                    # Records would get the labels of others.
                    raise ValueError(f"its row group {group} has other rows than the {rows:,} that it says")


def _listed(name: tuple[str, ...] | str) -> list[str]:
    return [name] if isinstance(name, str) else list(name)


def _block(batch: Any, name: tuple[str, ...] | str, d: int, path: Path) -> np.ndarray:
    """The features of a batch, rows × d."""
    if isinstance(name, str):
        return _matrix(batch.column(0), d, path, name)
    # PyArrow gives columns in the order of the file.
    columns = [batch.column(each) for each in name]
    lacking = next((each for each, column in zip(name, columns, strict=True) if column.null_count), None)
    if lacking is not None:
        raise UserError(
            f"'{path}' has a record without a value in '{lacking}'. {GUARDED}",
            "All records need all features: fill it up, or leave the record out.",
            code="bad-record",
            path=str(path),
            column=lacking,
        )
    return np.stack([np.asarray(column.to_numpy(zero_copy_only=False)) for column in columns], axis=1)


def _table(paths: list[Path], x: tuple[str, ...] | str, y: str, g: str | None) -> Table:
    """The table of the files of one split, with columns x and y, and g if it names persons."""
    groups, keys = [], []
    labels: list[np.ndarray] = []
    texts: list[str] = []
    by_name = False
    d, dtype, listed = 0, None, False
    for path in paths:
        with _readable(path), pq.ParquetFile(path) as file:
            kind, held = _kind(file.schema_arrow, x, path), _field(file.schema_arrow, y, _is_label, path).type
            listed = listed or _is_list(held)
            if g is not None:
                _field(file.schema_arrow, g, is_key, path)
            _check_declared(file, x, y, path, kind)
            groups += [(path, i, file.metadata.row_group(i).num_rows) for i in range(file.num_row_groups)]
            if labels and by_name != _is_text(held):
                raise UserError(
                    f"'{path}' has texts in '{y}', and other files have numbers, or the other way round.",
                    "Take texts everywhere, or numbers everywhere.",
                    code="conflict",
                    path=str(path),
                    column=y,
                )
            by_name = _is_text(held)
            labels.append(_texts(path, y, texts) if by_name else _labels(file.read([y]).column(0), path, y))
            keys += [] if g is None else [keys_of_column(path, g)]
            if dtype not in (None, kind):
                raise UserError(
                    f"'{path}' stores '{_listed(x)[0]}' with another precision than the files before it.",
                    "Store the features of all files with the same precision.",
                    code="conflict",
                    path=str(path),
                    column=_listed(x)[0],
                )
            dtype, d = kind, d or (_width(file, x, path) if isinstance(x, str) else len(x))
    n = sum(rows for _, _, rows in groups)
    if n and not d:
        raise _unequal(paths[0], _listed(x)[0], d)
    column = Column(x, d, groups)
    wide = max(part.shape[1] for part in labels)
    padded = [np.pad(part, ((0, 0), (0, wide - part.shape[1])), constant_values=-1) for part in labels]
    joined = np.concatenate(padded)
    features = Array(shape=(n, d), dtype=dtype, read=column.rows)
    # A text is looked up by its number only after all files were read.
    table = checked(
        str(paths[0]), features, Array(shape=joined.shape, dtype=joined.dtype, read=sliced(joined)), _listed(x)[0], y
    )
    if by_name:
        codes, names = numbered(texts, joined[:, 0])
        table = replace(table, y=codes[:, None], names=names)
    return replace(table, counted=listed, keys=joined_keys(keys) if keys else None)


def _kind(schema: Any, x: tuple[str, ...] | str, path: Path) -> Any:
    """The dtype of the features of a file: of several columns the widest one."""
    if isinstance(x, str):
        return _FLOATS[_field(schema, x, _is_vector, path).type.value_type]
    return np.result_type(*(_FLOATS[_field(schema, name, _FLOATS.__contains__, path).type] for name in x)).type


def _texts(path: Path, name: str, texts: list[str]) -> np.ndarray:
    """Labels that are texts as n × 1 places in `texts`, to which those of the file are added; −1 where there is none.

    Texts are read as the numbers that stand for them, because a text may be repeated at no cost.
    """
    found = [np.zeros(0, np.int64)]
    with pq.ParquetFile(path, read_dictionary=[name], pre_buffer=False) as file:
        for batch in file.iter_batches(ROWS, columns=[name]):
            part = batch.column(0)
            coded = part if pa.types.is_dictionary(part.type) else part.dictionary_encode()
            codes = _integers(coded.indices)
            # The dictionary is that of many batches.
            used = np.unique(codes[codes >= 0])
            found.append(np.where(codes < 0, -1, np.searchsorted(used, codes) + len(texts)))
            texts += coded.dictionary.take(pa.array(used)).to_pylist()
    return np.concatenate(found)[:, None]


def _check_declared(file: Any, x: tuple[str, ...] | str, y: str, path: Path, kind: Any) -> None:
    """Raise UserError if memory cannot hold the labels of a file, or one of its records, by what its footer declares.

    A list of equal numbers takes some bytes in the file, however long it is.
    """
    labels = 0
    for i in range(file.num_row_groups):
        group = file.metadata.row_group(i)
        for j in range(group.num_columns):
            name = file.schema.column(j).path.split(".")[0]
            if name not in (x, y):
                # A column of floats holds one number for each record, and is read a few rows at a time.
                continue
            column = group.column(j)
            labels += 8 * column.num_values if name == y else 0
            if name == x:
                # Where lists differ in length, one of them may have all the numbers.
                even = group.num_rows and column.num_values % group.num_rows == 0
                held = column.num_values // group.num_rows if even else column.num_values
                check_fits(path, f"a list of '{x}'", held * np.dtype(kind).itemsize, copies=4)
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


def _is_text(kind: Any) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_label(kind: Any) -> bool:
    return bool(
        _is_text(kind) or pa.types.is_integer(kind) or (_is_list(kind) and pa.types.is_integer(kind.value_type))
    )


def _readable(path: Path) -> AbstractContextManager[None]:
    return readable(path, "parquet", "Write it again, or leave it out.", pa.ArrowException)
