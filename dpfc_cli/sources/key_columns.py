"""The persons in a column of a parquet file, read with PyArrow."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpfc_cli.memory import check_fits
from dpfc_cli.sources.groups import Keys, joined, keys_coded, names_persons

ROWS = 2**16
"""The rows that are read at once."""


def is_key(kind: Any) -> bool:
    """Whether a column of this type may name persons: integers or texts."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind))


def seeming(schema: Any, *others: str) -> tuple[str, ...]:
    """The columns that seem to name persons, by their names. others: columns that are known to hold something else."""
    named = (field for field in schema if field.name not in others and names_persons(field.name))
    return tuple(dict.fromkeys(field.name for field in named if not pa.types.is_nested(field.type)))


def values_of(column: Any) -> Iterator[object]:
    """The values of a part of a column, None where there is none. A text that is repeated is held once."""
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    values = coded.dictionary.to_pylist()
    return (None if code is None else values[code] for code in coded.indices.to_pylist())


def values_of_column(path: Path, name: str) -> Iterator[object]:
    """The values of a column of a file, whatever they are; none if there is no such column.

    Raises:
        OSError, ValueError and others of PyArrow: the file cannot be read.

    """
    with pq.ParquetFile(path, read_dictionary=[name], pre_buffer=False) as file:
        if name in file.schema_arrow.names:
            for batch in file.iter_batches(ROWS, columns=[name]):
                yield from values_of(batch.column(0))


def keys_of_column(path: Path, name: str) -> Keys:
    """The persons of a file's rows, by a column that `is_key`.

    Texts are read as the numbers that stand for them, because a text may be repeated at no cost. What the footer says
    of a column is not looked at: PyArrow ends the process if that is damaged.

    Raises:
        UserError: a row has no person, or memory cannot hold the numbers of so many rows.
        OSError, ValueError and others of PyArrow: the file cannot be read.

    """
    found, start = [Keys([], np.zeros(0, np.int64))], 0
    with pq.ParquetFile(path, read_dictionary=[name], pre_buffer=False) as file:
        check_fits(path, f"'{name}'", 8 * file.metadata.num_rows, copies=4)
        for batch in file.iter_batches(ROWS, columns=[name]):
            part = batch.column(0)
            coded = part if pa.types.is_dictionary(part.type) else part.dictionary_encode()
            codes = np.asarray(coded.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False))
            # The dictionary is that of many batches.
            used = np.unique(codes[codes >= 0])
            places = np.where(codes < 0, -1, np.searchsorted(used, codes))
            values = coded.dictionary.take(pa.array(used)).to_pylist()
            found.append(keys_coded(values, places, str(path), name, start))
            start += len(places)
    return joined(found)
