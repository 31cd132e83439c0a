"""Parquet and CSV files as tables of features: one column of lists of floats, all of one length, or a column of floats
for each feature; and one column of labels. A CSV file is read as a whole.

All values say which columns of a CSV hold numbers, and never one of them: a column that holds numbers and something
else, such as decimal commas, is refused. The other columns stay texts.
"""

import csv
import fnmatch
import math
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpfc_cli.annotations import columns, person_hints, split_files
from dpfc_cli.annotations.classes import USUAL_NAMES, hub_class_names, usual_label
from dpfc_cli.annotations.columns import is_key, is_label, is_list, parquet
from dpfc_cli.annotations.csv_files import csv_in
from dpfc_cli.annotations.groups import GROUPS, Keys, names_persons
from dpfc_cli.annotations.groups import joined as joined_keys
from dpfc_cli.annotations.metadata import FILE_NAMES
from dpfc_cli.annotations.subgroups import Named, codes_of
from dpfc_cli.arrays import Array, sliced
from dpfc_cli.errors import GUARDED, UserError, bad_record, conflict, counted, missing, parameter, quoted
from dpfc_cli.extensions.importing.table import Table, Tables, checked, files_left_out, left_out, listed, numbered
from dpfc_cli.extraction.arrays import BLOCK, ROWS
from dpfc_cli.files import json_of
from dpfc_cli.memory import check_fits
from dpfc_cli.places import place_of
from dpfc_cli.reading import readable

VALUES = 2**20
"""Values of a CSV file that are read at once."""
_FLOATS: dict[pa.DataType, np.dtype[np.floating]] = {
    kind: np.dtype(kind.to_pandas_dtype()) for kind in (pa.float16(), pa.float32(), pa.float64())
}
_INDEX = re.compile(r"|unnamed: ?[0-9]+|index|level_[0-9]+|__index_level_[0-9]+__")
"""What programs call the column of the rows' own numbers or names, in small letters."""
_NUMBER = "^[+-]?([0-9]+[.,]?[0-9]*|[.,][0-9]+)([eE][+-]?[0-9]+)?$"
"""A number, perhaps with a decimal comma."""
_THOUSANDS = "^[+-]?[1-9][0-9]{0,2}([.,' \u00a0\u202f][0-9]{3})+([.,][0-9]+)?$"
"""A number that may be written in groups of three digits."""


def open_columns(
    pattern: str,
    column: str | None,
    label_column: str | None,
    group_column: str | None = None,
    subgroups: Named | None = None,
) -> Tables:
    """The tables of parquet or CSV files, by split: a file's name says which one, and for training a column `split`.

    Args:
        pattern: a file, a folder, or a pattern of names. In a folder, CSV files count if there are no others.
        column: the column of features, or a pattern such as 'f*' that fits the name of a column for each feature. By
            default the only one that holds lists of floats; or else all that hold floats and may be features by their
            names, in their order.
        label_column: the column of labels; by default one of a usual name, or the only one of integers.
        group_column: the column of integers or texts that name persons; by default `groups`, if there is one.
        subgroups: columns to keep, with their values.

    Raises:
        UserError: the files cannot be read, or have no such columns.

    """
    folder = place_of(pattern)
    of_csv = pattern.lower().endswith(".csv")
    if folder.is_dir():
        of_csv = not any(path.name.endswith(".parquet") for path in split_files.all_below(folder))
    found = split_files.files_by_split(pattern, ".csv" if of_csv else ".parquet")
    roles = split_files.splits_by_role(found)
    used = {role: found[split] for role, split in roles.items()}
    if of_csv:
        given = (column, label_column, group_column or GROUPS)
        used = {role: [_of_csv(path, *given) for path in paths] for role, paths in used.items()}
    if "train" not in used:
        return Tables(splits={})
    with parquet(used["train"][0]) as file:
        schema = file.schema_arrow
    g = group_column or (GROUPS if GROUPS in schema.names else None)
    if g is not None:
        columns.chosen(schema, g, is_key, "integers or texts", "group_column", pattern)
    y = columns.label_column(schema, label_column, _is_label, "labels", pattern, g)
    x, kept = _features(schema, column, y, g, pattern), subgroups or {}
    for each in kept:
        columns.chosen(schema, each, is_label, "subgroups", "subgroups", pattern)
        if each in _listed(x):
            raise conflict(
                f"{quoted(pattern)}: '{each}' would be a feature, too.",
                f"Say which columns are features: {parameter('column')}.",
                parameter="subgroups",
            )

    def values(name: str, *roles: str) -> Iterator[object]:
        for path in chain.from_iterable(used[role] for role in roles):
            with parquet(path) as file:
                yield from columns.values_in(columns.column_of(file, path, name))

    seem = () if g is not None else columns.seeming(schema, y, *([x] if isinstance(x, str) else []))
    taken, left = {y, g, *_listed(x), *kept}, dict[str, None]()
    for path in chain.from_iterable(used.values()):
        with parquet(path) as file:
            left |= dict.fromkeys(name for name in file.schema_arrow.names if name not in taken)
    tables = {role: _table(paths, x, y, g) for role, paths in used.items()}
    for role, table in tables.items() if kept else ():
        codes = codes_of({each: values(each, role) for each in kept}, kept)
        tables[role] = replace(table, subgroups=codes)
    remarks = split_files.splits_left_out(found, roles.values())
    if (s := split_files.split_column(left)) is not None:
        rows, train = split_files.rows_by_split(values(s, "train"), pattern), tables.pop("train")
        if sum(map(len, rows.values())) != train.n or (tables and set(rows) != {"train"}):
            raise conflict(
                f"{quoted(pattern)} has a column '{s}', and files without it, or named as those for testing.",
                "Say it in one way: by the names of the files, or in the column.",
            )
        roles = split_files.splits_by_role(rows)
        tables |= {role: train.part(rows[split]) for role, split in roles.items()}
        remarks += split_files.splits_left_out(rows, roles.values())
        del left[s]
    remarks += left_out("column", left)
    # A CSV has no integers: the number of a row looks like a feature. Numbers in names do not tell columns apart.
    forms = dict.fromkeys(re.sub("[0-9]+", "…", name) for name in _listed(x))
    if of_csv and len(forms) > 1:
        remarks += (f"Features are {counted(len(x), 'column')}, called {listed(forms)}.",)
    return Tables(
        splits=tables,
        classes=hub_class_names(schema.metadata, y),
        noticed=lambda: person_hints.column_of({name: values(name, *used) for name in seem}),
        remarks=(*remarks, *files_left_out(folder, {*chain(*found.values())})),
    )


def _of_csv(path: Path, column: str | None, label_column: str | None, group_column: str) -> Path:
    """A CSV file as parquet in memory. What may be a feature, and holds numbers, is float64. All else is texts."""
    with readable(path, "a CSV file", "Write it again.", csv.Error):
        check_fits(path, "the table", path.stat().st_size, copies=6)
        table = csv_in(path)
        # A row of features has fractions. Names of columns may be integers.
        numbers = [name for name in table.names if _is_number(name)]
        if len(numbers) == len([*filter(None, table.names)]) or not all(map(str.isdecimal, numbers)):
            raise ValueError(f"its first line has numbers, and must name the columns. {GUARDED}")
        parts = [[pa.array([], pa.string())] for _ in table.names]
        while block := [values for _, values in islice(table.rows, max(1, VALUES // len(parts)))]:
            for part, values in zip(parts, zip(*block, strict=True), strict=True):
                part.append(pa.array(values, pa.string()))
        texts = dict[str, pa.ChunkedArray]()
        for name, part in zip(table.names, parts, strict=True):
            values = pc.utf8_trim_whitespace(pa.chunked_array(part))
            # Spreadsheets leave empty columns behind the others.
            if name or pc.any(pc.not_equal(values, "")).as_py():
                if name in texts:
                    raise ValueError("it has values in two columns without a name")
                texts[name] = values
        others = (label_column or usual_label(texts, path), group_column)
        may = {name: values for name, values in texts.items() if _may_be_feature(name, column, others)}
        return columns.held(path, pa.table(texts | _numbers(path, may, table.separator)))


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        return math.isfinite(float(text))
    return False


def _numbers(path: Path, texts: Mapping[str, pa.ChunkedArray], separator: str) -> dict[str, pa.ChunkedArray]:
    """The columns that hold numbers, as float64. UserError if one of them holds something else, too, such as decimal
    commas, or if its points may be thousands. separator: what lies between values. In a table for the comma as decimal
    mark, which has semicolons, the point may separate thousands.
    """
    found, odd, points = dict[str, pa.ChunkedArray](), list[str](), list[bool]()
    for name, values in texts.items():
        if (numbers := _floats(values)) is not None:
            found[name], pointed = numbers, values.filter(pc.match_substring(values, "."))
            if len(pointed):
                points.append(pc.all(pc.match_substring_regex(pointed, _THOUSANDS)).as_py())
        elif pc.any(pc.match_substring_regex(values, f"{_NUMBER}|{_THOUSANDS}")).as_py():
            odd.append(f"'{name}'")
    remedy = "Write numbers as 1234.5, without separators of thousands."
    if odd:
        raise bad_record(
            f"{quoted(path)} has columns that hold numbers, and in some lines something else, nothing, or a decimal "
            f"comma: {', '.join(odd[:20])}. {GUARDED}",
            f"{remedy} If a number is missing, fill it up, or leave the record out. Of columns that are no features, "
            f"leave them out, or name the others: {parameter('column')} 'f*'.",
        )
    if separator == ";" and points and all(points):
        what = f"Each point of a number in {quoted(path)} may be a decimal mark, or separate thousands."
        raise bad_record(f"{what} {GUARDED}", f"{remedy} Write 1.5 as 1.50, or separate the values by commas.")
    return found


def _floats(texts: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Texts as float64; None if one of them is no finite number with a decimal point."""
    with suppress(pa.ArrowInvalid):
        numbers = texts.cast(pa.float64())
        if pc.all(pc.is_finite(numbers)).as_py() is not False:
            return numbers
    return None


def _may_be_feature(name: str, column: str | None, others: Collection[str | None]) -> bool:
    """Whether a column of numbers is a feature by its name: the pattern says so, or else it is none that is usual for
    persons, files or labels. Others, and the index of a table, are never features.
    """
    if name in others or _INDEX.fullmatch(name.casefold()):
        return False
    if (pattern := _pattern(column)) is not None:
        return fnmatch.fnmatchcase(name, pattern)
    return not names_persons(name) and name.casefold() not in (*FILE_NAMES, *USUAL_NAMES, split_files.SPLIT_COLUMN)


def _pattern(column: str | None) -> str | None:
    return column if column is not None and set(column) & set("*?") else None


def _index(schema: pa.Schema) -> list[str]:
    """The columns that pandas wrote as the index of a table."""
    with suppress(TypeError, KeyError, ValueError):
        return [name for name in json_of(schema.metadata[b"pandas"])["index_columns"] if isinstance(name, str)]
    return []


def _features(schema: pa.Schema, column: str | None, y: str, g: str | None, source: str) -> tuple[str, ...] | str:
    """The column of lists, or the columns of the features."""
    pattern = _pattern(column)
    floats = [field.name for field in schema if field.type in _FLOATS]
    fitting = [name for name in floats if _may_be_feature(name, column, (y, g, *_index(schema)))]
    if pattern is None and (column is not None or any(_is_vector(field.type) for field in schema) or not fitting):
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


def _block(batch: pa.RecordBatch, name: tuple[str, ...] | str, d: int, path: Path) -> np.ndarray:
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
            if len(kinds | {kind.name}) > 1:
                raise conflict(
                    f"{quoted(path)} has {kind.name} in '{first}', and the files before it have {kinds.pop()}.",
                    "Store a column with the same kind of values in all files.",
                )
            kinds.add(kind.name)
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


def _kind(schema: pa.Schema, x: tuple[str, ...] | str, path: Path) -> np.dtype[np.floating]:
    """The dtype of the features of a file: of several columns the widest one."""
    if isinstance(x, str):
        return _FLOATS[columns.same(schema, x, _is_vector, path).value_type]
    return np.result_type(*(_FLOATS[columns.same(schema, name, _FLOATS.__contains__, path)] for name in x))


def _check_declared(
    file: pq.ParquetFile, x: tuple[str, ...] | str, y: str, path: Path, kind: np.dtype[np.floating]
) -> None:
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
            check_fits(path, f"a list of '{x}'", longest * kind.itemsize, copies=4)


def _width(file: pq.ParquetFile, x: str) -> int:
    """The length of the list in the first row. All others must have the same."""
    first = next(file.iter_batches(1, columns=[x]), None)
    return 0 if first is None else len(first.column(0)[0].as_py() or ())


def _matrix(lists: pa.Array, d: int, path: Path, name: str) -> np.ndarray:
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


def _labels(part: pa.Array, n: int, path: Path, name: str, values: list[object]) -> np.ndarray:
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


def _is_vector(kind: pa.DataType) -> bool:
    return is_list(kind) and kind.value_type in _FLOATS


def _is_label(kind: pa.DataType) -> bool:
    return is_key(kind.value_type) if is_list(kind) else is_label(kind)
