"""Parquet and CSV files as tables of features: one column of lists of floats, all of one length, or a column of floats
for each feature; and one column of labels. A CSV file is read as a whole.
"""

import fnmatch
import math
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, read_csv

from dpfc_cli.arrays import Array, sliced
from dpfc_cli.errors import GUARDED, UserError, bad_record, conflict, missing, parameter, quoted, secret
from dpfc_cli.features.table import ROWS, Table, Tables, checked, numbered
from dpfc_cli.memory import check_fits
from dpfc_cli.reading import readable
from dpfc_cli.sources import columns, person_hints
from dpfc_cli.sources.classes import USUAL_NAMES, hub_class_names
from dpfc_cli.sources.columns import is_key, is_label, is_list, parquet
from dpfc_cli.sources.groups import GROUPS, Keys, names_persons
from dpfc_cli.sources.groups import joined as joined_keys
from dpfc_cli.sources.metadata import encoding_of, separator_of
from dpfc_cli.sources.split_files import files_by_split, splits_by_role

BLOCK = 2**26
"""Bytes of the features that are read at once."""
_FLOATS = {pa.float16(): np.float16, pa.float32(): np.float32, pa.float64(): np.float64}


def open_columns(pattern: str, column: str | None, label_column: str | None, group_column: str | None = None) -> Tables:
    """The tables of parquet or CSV files, by split. The name of a file says which split it belongs to.

    Args:
        pattern: a file, a folder, or a pattern of names. In a folder, CSV files count if there are no others.
        column: the column of features, or a pattern such as 'f*' that fits the name of a column for each feature. By
            default the only one that holds lists of floats; or else all that hold floats, in their order.
        label_column: the column of labels; by default one of a usual name, or the only one of integers.
        group_column: the column of integers or texts that name persons; by default `groups`, if there is one.

    Raises:
        UserError: the files cannot be read, or have no such columns.

    """
    folder = Path(pattern)
    csv = not any(folder.rglob("*.parquet")) if folder.is_dir() else pattern.lower().endswith(".csv")
    found = files_by_split(pattern, ".csv" if csv else ".parquet")
    used = {role: found[split] for role, split in splits_by_role(found).items()}
    if csv:
        given = {label_column, group_column, GROUPS, *USUAL_NAMES}
        used = {role: [_of_csv(path, given) for path in paths] for role, paths in used.items()}
    if "train" not in used:
        return Tables(splits={})
    with parquet(used["train"][0]) as file:
        schema = file.schema_arrow
    g = group_column or (GROUPS if GROUPS in schema.names else None)
    if g is not None:
        columns.chosen(schema, g, is_key, "integers or texts", "group_column", pattern)
    y = columns.label_column(schema, label_column, _is_label, "labels", pattern, g)
    x = _features(schema, column, y, g, pattern)

    def values(name: str) -> Iterator[object]:
        for paths in used.values():
            for path in paths:
                with parquet(path) as file:
                    yield from columns.values_in(columns.column_of(file, path, name))

    seem = () if g is not None else columns.seeming(schema, y, *([x] if isinstance(x, str) else []))
    return Tables(
        splits={role: _table(paths, x, y, g) for role, paths in used.items()},
        classes=hub_class_names(schema.metadata, y),
        noticed=lambda: person_hints.column_of({name: values(name) for name in seem}),
    )


def _of_csv(path: Path, given: Collection[str | None]) -> Path:
    """A CSV file as parquet in memory. All its numbers are features, but for integers in the given columns and in those
    that seem to name persons. A column without a name (a number for each line) is left out.
    """
    with readable(path, "a CSV file", "Write it again.", pa.ArrowException):
        check_fits(path, "the table", path.stat().st_size, copies=6)
        encoding = encoding_of(path)
        with path.open(encoding=encoding) as file:
            first, second = file.readline(), file.readline()
        separator = separator_of(first)
        try:
            table = read_csv(
                path,
                ReadOptions(encoding=encoding.removesuffix("-sig")),
                ParseOptions(delimiter=separator),
                ConvertOptions(
                    decimal_point="," if separator == ";" and "." not in second else ".",
                    # 007 may be a label.
                    column_types={name: pa.string() for name in given if name is not None},
                ),
            )
        except pa.ArrowInvalid as error:
            # Its text repeats a whole line.
            raise ValueError(f"a line does not fit those before it: {secret(error)}. {GUARDED}") from error
        # A row of features has fractions. Names of columns may be integers.
        numbers = [name for name in table.column_names if _is_number(name)]
        if len(numbers) == table.num_columns or not all(map(str.isdecimal, numbers)):
            raise ValueError(f"its first line has numbers, and must name the columns. {GUARDED}")
        if "" in table.column_names:
            table = table.drop_columns([""])
        for i, field in enumerate(table.schema):
            if pa.types.is_integer(field.type) and field.name not in given and not names_persons(field.name):
                table = table.set_column(i, field.name, table.column(i).cast(pa.float64()))
        return columns.Held(path, table)


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        return math.isfinite(float(text))
    return False


def _features(schema: Any, column: str | None, y: str, g: str | None, source: str) -> tuple[str, ...] | str:
    """The column of lists, or the columns of the features."""
    pattern = column if column is not None and set(column) & set("*?") else None
    fitting = [f.name for f in schema if f.type in _FLOATS and f.name not in (y, g)]
    if pattern is not None:
        fitting = fnmatch.filter(fitting, pattern)
    elif column is not None or any(_is_vector(field.type) for field in schema):
        fitting = []
    if pattern is None and not fitting:
        return columns.chosen(schema, column, _is_vector, "lists of floats", "column", source)
    if not fitting or len(set(schema.names)) < len(schema.names):
        raise missing(
            f"{quoted(source)} has "
            f"{'two columns of one name' if fitting else f'no column of floats named {pattern!r}'}.",
            f"Name the columns of features: {parameter('column')} 'f*'. It has: {', '.join(schema.names[:20])}.",
        )
    return tuple(fitting)


class Column:
    """The rows of one column of lists, or of a column for each feature, over several files. Reading forwards reads each
    file once.

    Args:
        name: the name of the column, or those of the columns.
        d: the length of the lists, or the number of columns.
        files: the files in their order, and the rows of each.

    """

    def __init__(self, name: tuple[str, ...] | str, d: int, files: dict[Path, int]) -> None:
        self._name, self._d, self._files = name, d, files
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
        most = max(1, min(ROWS, BLOCK // (8 * max(self._d, 1))))
        for path, rows in self._files.items():
            if start < rows:
                with parquet(path) as file:
                    for batch in columns.batches(file, _listed(self._name), most, start):
                        yield _block(batch, self._name, self._d, path)
            start = max(0, start - rows)


def _listed(name: tuple[str, ...] | str) -> list[str]:
    return [name] if isinstance(name, str) else list(name)


def _block(batch: Any, name: tuple[str, ...] | str, d: int, path: Path) -> np.ndarray:
    """The features of a batch, rows × d."""
    if isinstance(name, str):
        return _matrix(batch.column(0), d, path, name)
    # PyArrow gives columns in the order of the file.
    parts = [batch.column(each) for each in name]
    lacking = next((each for each, part in zip(name, parts, strict=True) if part.null_count), None)
    if lacking is not None:
        raise bad_record(
            f"{quoted(path)} has a record without a value in '{lacking}'. {GUARDED}",
            "All records need all features: fill it up, or leave the record out.",
        )
    return np.stack([np.asarray(part.to_numpy(zero_copy_only=False)) for part in parts], axis=1)


def _table(paths: list[Path], x: tuple[str, ...] | str, y: str, g: str | None) -> Table:
    """The table of the files of one split, with columns x and y, and g if it names persons."""
    files, kinds = dict[Path, int](), set[str]()
    labels, values, keys = [np.zeros((0, 1), np.int64)], list[object](), list[Keys]()
    d, first = 0, _listed(x)[0]
    for path in paths:
        with parquet(path) as file:
            kind, held = _kind(file.schema_arrow, x, path), columns.same(file.schema_arrow, y, _is_label, path)
            if len(kinds | {kind.__name__}) > 1:
                raise conflict(
                    f"{quoted(path)} has {kind.__name__} in '{first}', and the files before it have {kinds.pop()}.",
                    "Store a column with the same kind of values in all files.",
                )
            kinds.add(kind.__name__)
            _check_declared(file, x, y, path, kind)
            n = files[path] = sum(columns.rows_of(file))
            labels += [_labels(part, n, path, y, values) for part in columns.column_of(file, path, y)]
            if g is not None:
                columns.same(file.schema_arrow, g, is_key, path)
                check_fits(path, f"'{g}'", 8 * n, copies=4)
                keys.append(columns.keys_in(columns.column_of(file, path, g), str(path), g))
            d = d or (_width(file, x) if isinstance(x, str) else len(x))
    n = sum(files.values())
    if n and not d:
        raise _unequal(paths[0], first, d)
    wide = max(part.shape[1] for part in labels)
    joined = np.concatenate([np.pad(part, ((0, 0), (0, wide - part.shape[1])), constant_values=-1) for part in labels])
    features = Array((n, d), kind, Column(x, d, files).rows)
    given, names = numbered(values, joined, digits=isinstance(paths[0], columns.Held))
    table = checked(str(paths[0]), features, Array(given.shape, given.dtype, sliced(given)), first, y)
    return replace(table, names=names, counted=is_list(held), keys=joined_keys(keys) if keys else None)


def _kind(schema: Any, x: tuple[str, ...] | str, path: Path) -> Any:
    """The dtype of the features of a file: of several columns the widest one."""
    if isinstance(x, str):
        return _FLOATS[columns.same(schema, x, _is_vector, path).value_type]
    return np.result_type(*(_FLOATS[columns.same(schema, name, _FLOATS.__contains__, path)] for name in x)).type


def _check_declared(file: Any, x: tuple[str, ...] | str, y: str, path: Path, kind: Any) -> None:
    """Raise UserError if memory cannot hold the labels of a file, or one of its records, by what its footer declares.

    A list of equal numbers takes some bytes in the file, however long it is.
    """
    for j in range(file.metadata.num_columns):
        name = file.schema.column(j).path.split(".")[0]
        groups = [file.metadata.row_group(i) for i in range(file.num_row_groups if name in (x, y) else 0)]
        values = [group.column(j).num_values for group in groups]
        if name == y:
            check_fits(path, f"'{y}'", 8 * sum(values), copies=4)
        elif groups:
            # Where lists differ in length, one of them may have all the numbers.
            rows = [max(group.num_rows, 1) for group in groups]
            longest = max(v // n if v % n == 0 else v for v, n in zip(values, rows, strict=True))
            check_fits(path, f"a list of '{x}'", longest * np.dtype(kind).itemsize, copies=4)


def _width(file: Any, x: str) -> int:
    """The length of the list in the first row. All others must have the same."""
    first = next(file.iter_batches(1, columns=[x]), None)
    return 0 if first is None else len(first.column(0)[0].as_py() or ())


def _matrix(lists: Any, d: int, path: Path, name: str) -> np.ndarray:
    """Lists of length d as rows × d. Raises UserError if one is missing or has another length."""
    values = lists.flatten()
    equal = lists.null_count == 0 and len(values) == d * len(lists)
    if not equal or pc.any(pc.not_equal(pc.list_value_length(lists), d)).as_py():
        raise _unequal(path, name, d)
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(len(lists), d)


def _unequal(path: Path, name: str, d: int) -> UserError:
    return bad_record(
        f"{quoted(path)} has lists in '{name}' that are missing or not {d} long. {GUARDED}"
        if d
        else f"{quoted(path)} begins with a list in '{name}' that is missing or empty. {GUARDED}",
        "All records need features of the same length.",
    )


def _labels(part: Any, n: int, path: Path, name: str, values: list[object]) -> np.ndarray:
    """Labels as rows × k: k = 1 for a column of single ones, the longest list for one of lists. Short lists end in −1.

    n: the rows of the file, whose labels must fit the memory. values: the labels are put there, and y has their places.
    """
    listed = is_list(part.type)
    [(found, places)] = columns.coded([part.flatten() if listed else part])
    own = np.where(places < 0, -1, places + len(values))
    values += found
    if not listed:
        return own[:, None]
    lengths = np.asarray(pc.list_value_length(part).fill_null(0).to_numpy(zero_copy_only=False)).astype(int)
    longest = max(int(lengths.max(initial=0)), 1)
    check_fits(path, f"'{name}', with as many labels for each record as the longest list has,", 8 * n * longest, 4)
    y = np.full((len(part), longest), -1, np.int64)
    y[np.arange(longest) < lengths[:, None]] = own
    return y


def _is_vector(kind: Any) -> bool:
    return is_list(kind) and kind.value_type in _FLOATS


def _is_label(kind: Any) -> bool:
    return is_key(kind.value_type) if is_list(kind) else is_label(kind)
