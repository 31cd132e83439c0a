"""The persons in a column of a parquet file, read with PyArrow."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpfc_cli.memory import check_fits
from dpfc_cli.sources.groups import Keys, joined, keys_coded

ROWS = 2**16
"""The rows that are read at once."""


def is_key(kind: Any) -> bool:
    """Whether a column of this type may name persons: integers or texts."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind))


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
