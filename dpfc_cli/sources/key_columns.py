"""The persons in a column of a parquet file, read with PyArrow."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpfc_cli.memory import check_fits
from dpfc_cli.sources.groups import Keys, joined, keys_coded


def is_key(kind: Any) -> bool:
    """Whether a column of this type may name persons: integers or texts."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind))


def keys_of_column(path: Path, name: str) -> Keys:
    """The persons of a file's rows, by a column that `is_key`.

    Texts are read as the numbers that stand for them, because a text may be repeated at no cost.

    Raises:
        UserError: a row has no person, or memory cannot hold what the file declares.
        OSError, ValueError and others of PyArrow: the file cannot be read.

    """
    found = []
    with pq.ParquetFile(path, read_dictionary=[name]) as file:
        needed = 0
        for i in range(file.num_row_groups):
            group = file.metadata.row_group(i)
            columns = (group.column(j) for j in range(group.num_columns))
            needed += sum(8 * c.num_values + c.total_uncompressed_size for c in columns if c.path_in_schema == name)
        check_fits(path, f"'{name}'", needed, copies=4)
        for part in file.read([name]).column(0).chunks:
            coded = part if pa.types.is_dictionary(part.type) else part.dictionary_encode()
            codes = np.asarray(coded.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False))
            found.append(keys_coded(coded.dictionary.to_pylist(), codes, str(path), name))
    return joined(found)
