"""Imported features as a table: one split's features, readable in ranges of rows, with its labels."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfc_cli.errors import UserError, parameter
from dpfc_cli.memory import check_fits

Rows = Callable[[int, int], np.ndarray]
"""rows(start, stop): the rows [start, stop)."""


@dataclass(frozen=True, kw_only=True)
class Array:
    """An array in a file. read(start, stop): its rows of that range."""

    shape: tuple[int, ...]
    dtype: Any
    read: Rows


def sliced(array: Any) -> Rows:
    """The rows of what can be sliced, as NumPy arrays."""
    return lambda start, stop: np.asarray(array[start:stop])


@dataclass(frozen=True, kw_only=True)
class Table:
    """One split as found.

    Attributes:
        n: the number of records.
        d: the length of a feature vector.
        dtype: of the features.
        rows: reads a range of the features, (stop - start) × d.
        y: the labels, n × k integers.
        counted: k is the most labels that some record has, not a fact of the layout.

    """

    n: int
    d: int
    dtype: np.dtype[Any]
    rows: Rows
    y: np.ndarray
    counted: bool = False


@dataclass(frozen=True, kw_only=True)
class Tables:
    """What a source holds: its splits by name, and the names of the classes, if it has them."""

    splits: dict[str, Table]
    classes: tuple[str, ...] | None = None


FLOATS = tuple(map(np.dtype, (np.float16, np.float32, np.float64)))


def checked(source: str, x: Array, y: Array, x_name: str, y_name: str) -> Table:
    """The table of the features x with the labels y. Raises UserError if they do not fit together.

    Nothing is read before that. Numbers in another order of bytes are turned into this machine's.
    """
    native = _check_features(source, x.shape, x.dtype, x_name)
    n, d = x.shape
    _check_labels(source, y.shape, y.dtype, n, y_name)
    rows = x.read if np.dtype(x.dtype) == native else lambda start, stop: x.read(start, stop).astype(native)
    labels = y.read(0, n)
    return Table(n=n, d=d, dtype=native, rows=rows, y=labels[:, None] if labels.ndim == 1 else labels)


def _check_features(source: str, shape: tuple[int, ...], dtype: Any, name: str) -> np.dtype[Any]:
    """The dtype of features in this machine's order of bytes. UserError if they are no floats, have another shape, or
    there are none.
    """
    native = np.dtype(dtype).newbyteorder("=") if isinstance(dtype, np.dtype | type) else None
    if len(shape) != 2:
        remedy = "Features are an n × d array: a row for each record, and a column for each dimension."
    elif min(shape) < 1:
        remedy = "There must be at least one record, and a feature of at least one dimension. Was the array filled?"
    elif native is None or native not in FLOATS:
        remedy = "Features are an n × d array of float16, 32 or 64. Convert them (in NumPy: x.astype('float32'))."
    else:
        return native
    raise UserError(
        f"'{source}': {name} has shape {shape} and dtype {dtype}.", remedy, code="damaged", path=source, array=name
    )


def _check_labels(source: str, shape: tuple[int, ...], dtype: Any, n: int, name: str) -> None:
    """UserError for labels of n records that are no integers, have another shape, or are more than memory can hold."""
    kind = dtype.kind if isinstance(dtype, np.dtype) else "?"
    remedy = None
    if kind in "OSUT":
        remedy = (
            "Labels are integers, not text: give each class its number, from 0. Say the names of the classes, in this "
            f"order, with {parameter('classes')}."
        )
    elif kind not in "iu":
        remedy = "Labels are n, or n × k, integers: the number of the class, from 0 (in NumPy: y.astype('int64'))."
    elif len(shape) not in (1, 2) or shape[0] != n or 0 in shape:
        remedy = "Labels are n, or n × k, integers: one row for each record, in the order of the features."
    if remedy is not None:
        raise UserError(
            f"'{source}': {name} has shape {shape} and dtype {dtype} beside {n} rows of features.",
            remedy,
            code="damaged",
            path=source,
            array=name,
        )
    # As they are, as int64, and twice more while they are compared.
    check_fits(Path(source), f"'{name}'", 8 * math.prod(shape), copies=4)


def unread(path: Path, kind: str, error: Exception, remedy: str) -> UserError:
    """The error for a file that cannot be read as what it should be."""
    refused = isinstance(error, OSError) and error.errno is not None
    return UserError(
        f"'{path}' cannot be read as {kind}: {error}.",
        remedy,
        code="unreadable" if refused else "damaged",
        path=str(path),
    )
