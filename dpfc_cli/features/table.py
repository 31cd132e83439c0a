"""Imported features as a table: one split's features, readable in ranges of rows, with its labels."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfc_cli.errors import UserError

Rows = Callable[[int, int], np.ndarray]
"""rows(start, stop): the rows [start, stop)."""


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


def checked(
    source: str, shape: tuple[int, ...], dtype: Any, rows: Rows, y: np.ndarray, x_name: str, y_name: str
) -> Table:
    """The table of features of that shape and dtype with the labels y. Raises UserError if they do not fit together."""
    if len(shape) != 2 or dtype not in (np.float16, np.float32, np.float64) or min(shape) < 1:
        raise UserError(
            f"'{source}': {x_name} has shape {shape} and dtype {dtype}.",
            "Features are an n × d array of float16, 32 or 64.",
            code="damaged",
            path=source,
            array=x_name,
        )
    labels = y[:, None] if y.ndim == 1 else y
    if labels.ndim != 2 or not np.issubdtype(y.dtype, np.integer) or len(labels) != shape[0] or labels.shape[1] < 1:
        raise UserError(
            f"'{source}': {y_name} has shape {y.shape} and dtype {y.dtype} beside {shape[0]} rows of features.",
            "Labels are n, or n × k, integers.",
            code="damaged",
            path=source,
            array=y_name,
        )
    return Table(n=shape[0], d=shape[1], dtype=np.dtype(dtype), rows=rows, y=labels)
