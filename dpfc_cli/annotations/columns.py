"""Columns of parquet and Arrow files, read with PyArrow: what they hold, which one has the labels, and their values.

What the footer of a file says of values (the least one, how many are missing) is never looked at: PyArrow ends the
process if that is damaged. Texts are read as the numbers that stand for them, because a text may be repeated at no
cost.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PosixPath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpfc_cli.annotations.classes import usual_label
from dpfc_cli.annotations.groups import Keys, joined, keys_of, names_persons
from dpfc_cli.errors import UserError, conflict, parameter, quoted
from dpfc_cli.places import remote
from dpfc_cli.reading import readable

ROWS = 2**16
"""The rows that are read at once."""
BUFFER, FAR_BUFFER = 1 << 20, 8 << 20
"""Bytes of a column that are read at once from the disk, or by one request."""
AGAIN = "Fetch the file again, or leave it out."
Fits = Callable[[pa.DataType], bool]
"""Whether a type of a column is one of those that are wanted."""


class Held(PosixPath):
    """The path, or URL, of a file of another format, whose table is held in memory as parquet."""

    parquet: pa.Buffer
    text: str

    def __str__(self) -> str:
        return self.text


def held(path: Path, table: pa.Table) -> Held:
    """The table under this path."""
    found, out = Held(str(path)), pa.BufferOutputStream()
    found.text = str(path)
    pq.write_table(table, out)
    found.parquet = out.getvalue()
    return found


@contextmanager
def parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """A parquet file, as long as the block lasts. UserError if it cannot be read, also in the block."""
    with readable(path, "parquet", AGAIN, pa.ArrowException, plain=not isinstance(path, Held)), _opened(path) as file:
        yield file


def _opened(path: Path, *texts: str) -> pq.ParquetFile:
    """A parquet file. texts: columns that are read as the numbers of their different values."""
    # Without a buffer PyArrow reads whole columns of a row group, and a file may have only one.
    source: object = pa.BufferReader(path.parquet) if isinstance(path, Held) else path
    size = BUFFER
    if remote(path) is not None:
        source, size = path.open("rb", buffering=0), FAR_BUFFER
    return pq.ParquetFile(source, read_dictionary=texts, buffer_size=size, pre_buffer=False)


def rows_of(file: pq.ParquetFile) -> list[int]:
    """How many rows each row group of a parquet file says that it has."""
    return [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]


def batches(file: pq.ParquetFile, names: list[str], most: int = ROWS, skip: int = 0) -> Iterator[pa.RecordBatch]:
    """Some columns of a parquet file, at most so many rows at once. Row groups before the first row are not read.
    ValueError if a row group has other rows than it says: records would get the labels of others.
    """
    for number, rows in enumerate(rows_of(file)):
        if skip >= rows:
            skip -= rows
            continue
        found = 0
        for batch in file.iter_batches(most, row_groups=[number], columns=names):
            found += len(batch)
            if found > rows:
                break
            if skip < len(batch):
                yield batch.slice(skip)
            skip = max(0, skip - len(batch))
        if found != rows:
            raise ValueError(f"its row group {number} has other rows than the {rows:,} that it says")


def column_of(file: pq.ParquetFile, path: Path, name: str) -> Iterator[pa.Array]:
    """The values of a column of a parquet file, part by part; nothing if it has no such column. Raises as `batches`."""
    names = file.schema_arrow.names
    if name not in names:
        return
    texts = [name] if is_text(file.schema_arrow.field(names.index(name)).type) else []
    with _opened(path, *texts) as as_numbers:
        # PyArrow cannot read texts as numbers that are stored as differences.
        with suppress(OSError):
            next(as_numbers.iter_batches(1, columns=[name]), None)
            file = as_numbers
        yield from (batch.column(0) for batch in batches(file, [name]))


# What columns hold


def is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_integer(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_integer(kind))


def is_key(kind: pa.DataType) -> bool:
    """Whether a column of this type may name persons: integers or texts."""
    return is_integer(kind) or is_text(kind)


def is_label(kind: pa.DataType) -> bool:
    """Whether a column of this type may hold labels, one for each row."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return is_key(kind) or bool(pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def seeming(schema: pa.Schema, *others: str) -> tuple[str, ...]:
    """The columns that seem to name persons, by their names. others: columns that are known to hold something else."""
    named = (field for field in schema if field.name not in others and names_persons(field.name))
    return tuple(dict.fromkeys(field.name for field in named if not pa.types.is_nested(field.type)))


def chosen(schema: pa.Schema, given: str | None, fits: Fits, what: str, option: str, source: str) -> str:
    """The given column, or the only one that fits. what: what it holds. option: the parameter that names it. UserError
    if there is no such column, or more than one.
    """
    fitting = [str(field.name) for field in schema if fits(field.type)]
    if given in fitting or (given is None and len(fitting) == 1):
        return given or fitting[0]
    problem = f"no column '{given}' of {what}" if given else f"{len(fitting) or 'no'} columns of {what}"
    raise UserError(
        f"{quoted(source)} has {problem}.",
        f"Name one with {parameter(option)}. Columns of {what}: {', '.join(fitting) or 'none'}.",
        code="conflict" if fitting and not given else "missing",
    )


def label_column(schema: pa.Schema, given: str | None, fits: Fits, what: str, source: str, *others: str | None) -> str:
    """The column of labels: the one that the user names; or of a usual name; or the only one of numbers beside the
    others. UserError if there is none, or several. what: what it holds.
    """
    if given is not None:
        return chosen(schema, given, fits, what, "label_column", source)
    fitting = [field for field in schema if fits(field.type) and field.name not in others]
    numbers = [field for field in fitting if is_integer(field.type.value_type if is_list(field.type) else field.type)]
    usual = usual_label([field.name for field in fitting], source)
    return usual or chosen(numbers, None, fits, "labels", "label_column", source)


def same(schema: pa.Schema, name: str, fits: Fits, path: Path) -> pa.DataType:
    """The type of a column that another file has, too. UserError if this file has no such column."""
    if schema.names.count(name) != 1 or not fits(schema.field(name).type):
        raise conflict(
            f"{quoted(path)} has no column '{name}' as the first file has.",
            "Give all files the same columns, or leave this one out.",
        )
    return schema.field(name).type


# Values


def integers(values: pa.Array) -> NDArray[np.int64]:
    """Integers of any width as int64, −1 where there is none, and the largest one in the place of those beyond it."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_uint64(values.type):
        values = pc.min_element_wise(values, pa.scalar(2**63 - 1, pa.uint64()), skip_nulls=False)
    return np.asarray(values.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False))


def encoded(part: pa.Array) -> pa.DictionaryArray:
    """A part of a column as a dictionary of its different values, with indices."""
    if pa.types.is_string_view(part.type):
        part = part.cast(pa.large_string())
    if pa.types.is_float16(part.type):
        part = part.cast(pa.float64())
    return part if pa.types.is_dictionary(part.type) else part.dictionary_encode()


def coded(parts: Iterable[pa.Array]) -> Iterator[tuple[list[object], NDArray[np.int64]]]:
    """For each part of a column: its different values, and for each row the place of its own there, −1 for none."""
    for part in map(encoded, parts):
        codes = integers(part.indices)
        # A dictionary may be that of many parts.
        used = np.unique(codes[codes >= 0])
        places = np.where(codes < 0, -1, np.searchsorted(used, codes))
        yield part.dictionary.take(pa.array(used)).to_pylist(), places


def values_in(parts: Iterable[pa.Array]) -> Iterator[object]:
    """The values of a column, None where there is none. A text that is repeated is held once."""
    for values, places in coded(parts):
        yield from (None if place < 0 else values[place] for place in places.tolist())


def keys_in(parts: Iterable[pa.Array], source: str, name: str) -> Keys:
    """The persons that a column names, which `is_key`. UserError if a row has none."""
    found, start = [Keys([], np.zeros(0, np.int64))], 0

    def called(i: int) -> str:
        return f"row {start + i} of {name}"

    for values, places in coded(parts):
        found.append(keys_of(values, source, called, codes=places))
        start += len(places)
    return joined(found)
