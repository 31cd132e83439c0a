"""Imported features as a table: one split's features, readable in ranges of rows, with its labels."""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpfc_cli.annotations.classes import text_of
from dpfc_cli.annotations.groups import keys_in
from dpfc_cli.annotations.split_files import all_below, files_by_ending
from dpfc_cli.arrays import FLOATS, Array
from dpfc_cli.errors import counted, damaged, quoted
from dpfc_cli.extraction.arrays import Records
from dpfc_cli.memory import check_fits
from dpfc_cli.places import place_of

MOST_NAMED = 20
"""Of what is left out, the most names that are said."""
_INTEGER = re.compile("|0|[1-9][0-9]{0,17}")


@dataclass(frozen=True, kw_only=True)
class Table(Records):
    """One split as found.

    Attributes:
        counted: the number of labels is the most that some record has, not a fact of the layout.
        nulls: records without a label are null records. Their features are NaN.

    """

    counted: bool = False
    nulls: bool = False


@dataclass(frozen=True, kw_only=True)
class Tables:
    """What a source holds: its splits by name, and the names that numbers as labels stand for, if it has them. person:
    the column of persons of a table beside the files. noticed: the name of what seems to name persons, though the user
    did not say so, or None. It may take long. remarks: what the user should know of how it was read, in sentences.
    """

    splits: dict[str, Table]
    classes: tuple[str, ...] | None = None
    person: str | None = None
    noticed: Callable[[], str | None] = lambda: None
    remarks: tuple[str, ...] = ()


def left_out(noun: str, names: Collection[str]) -> tuple[str, ...]:
    """What is said of columns or arrays that are not used."""
    return (f"Left out: {counted(len(names), noun)} ({listed(names)}).",) if names else ()


def listed(names: Collection[str]) -> str:
    """The first names, as a message lists them."""
    first = [f"'{name}'" if name else "one without a name" for name in [*names][:MOST_NAMED]]
    return ", ".join(first + ["…"] * (len(names) > MOST_NAMED))


def files_left_out(folder: Path, used: Collection[Path]) -> tuple[str, ...]:
    """What is said of the files of a folder, if it is one, that are not used."""
    there = {*all_below(folder)}
    left = Counter(path.suffix for path in sorted(there.difference(used)))
    return (f"Left out: {files_by_ending(left)}.",) if left else ()


FIXED = "Texts have a fixed length (in NumPy: y.astype('U'); for HDF5: np.char.encode(y.astype('U'), 'utf-8'))."


def with_groups(table: Table, source: str, groups: Array, name: str) -> Table:
    """The table with the group of each record. Raises UserError if they do not fit together.

    Texts of HDF5 must have a fixed length. Others lie in a heap of the file. HDF5 reads a damaged heap without end.
    """
    kind = groups.dtype.kind if isinstance(groups.dtype, np.dtype) else "?"
    if groups.shape != (table.n,) or kind not in "iuSU":
        raise damaged(
            f"{quoted(source)}: {name} has shape {groups.shape} and dtype {groups.dtype} beside {table.n} rows of "
            "features.",
            f"Groups are n integers or n texts: for each record the person to whom it belongs. {FIXED}",
        )
    # As they are, sorted, and twice more while they are compared.
    check_fits(place_of(source), f"'{name}'", max(8, groups.dtype.itemsize) * table.n, copies=4)
    return replace(table, keys=keys_in(groups.read(0, table.n), source, name))


def checked(source: str, x: Array, y: Array, x_name: str, y_name: str) -> Table:
    """The table of the features x with the labels y. Raises UserError if they do not fit together.

    Nothing is read before that. Numbers in another order of bytes are turned into this machine's.
    """
    native = _check_features(source, x.shape, x.dtype, x_name)
    n, d = x.shape
    _check_labels(source, y.shape, y.dtype, n, y_name)
    rows = x.read if np.dtype(x.dtype) == native else lambda start, stop: x.read(start, stop).astype(native)
    labels, names = y.read(0, n), None
    if labels.dtype.kind not in "iu":
        labels, names = _of_texts(labels, source, y_name)
    return Table(n=n, d=d, dtype=native, rows=rows, y=labels[:, None] if labels.ndim == 1 else labels, names=names)


def numbered(
    values: Sequence[object], codes: np.ndarray, *, digits: bool = False
) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Labels as integers, if all are, and None. Or as numbers of their sorted texts, and these. −1 for no label.

    Args:
        values: labels, in any order, some perhaps twice.
        codes: n or n × k, the place of each record's label, −1 for none.
        digits: texts may be integers, because the format has no others. It changes no meaning, but the listing.

    """
    texts = [text_of(value) for value in values]
    if all(type(value) is int for value in values) or (digits and all(map(_INTEGER.fullmatch, texts))):
        return np.array([*(min(int(text or -1), 2**63 - 1) for text in texts), -1], np.int64)[codes], None
    names = tuple(sorted({text for text in texts if text}))
    place = {name: i for i, name in enumerate(names)}
    table = np.array([*(place.get(text, -1) for text in texts), -1], np.int64)
    return table[codes], names


def _of_texts(labels: np.ndarray, source: str, name: str) -> tuple[np.ndarray, tuple[str, ...] | None]:
    values, codes = np.unique(labels, return_inverse=True)
    try:
        texts = [value.decode() if isinstance(value, bytes) else value for value in values.tolist()]
    except UnicodeDecodeError as error:
        raise damaged(f"{quoted(source)}: {name} has texts that are not UTF-8.", FIXED) from error
    return numbered(texts, codes.reshape(labels.shape))


def _check_features(source: str, shape: tuple[int, ...], dtype: Any, name: str) -> np.dtype[Any]:
    """The dtype of features in this machine's order of bytes. UserError if they are no floats, have another shape, or
    there are none.
    """
    native = np.dtype(dtype).newbyteorder("=") if isinstance(dtype, np.dtype | type) else None
    if len(shape) == 2 and min(shape) > 0 and native is not None and native in FLOATS:
        return native
    raise damaged(
        f"{quoted(source)}: {name} has shape {shape} and dtype {dtype}.",
        "Features are an n × d array of float16, 32 or 64 (in NumPy: x.astype('float32')), with at least one record.",
    )


def _check_labels(source: str, shape: tuple[int, ...], dtype: Any, n: int, name: str) -> None:
    """UserError for labels of n records that are neither numbers nor texts, have another shape, or are too many for the
    memory.
    """
    kind = dtype.kind if isinstance(dtype, np.dtype) else "?"
    if kind not in "iufbSU" or not (shape == (n,) or (len(shape) == 2 and shape[0] == n and shape[1])):
        raise damaged(
            f"{quoted(source)}: {name} has shape {shape} and dtype {dtype} beside {n} rows of features.",
            "Labels are n, or n × k: names of the classes, or their places, integers from 0 (in NumPy: "
            f"y.astype('int64')). {FIXED}",
        )
    # As they are, as int64, and twice more while they are compared.
    check_fits(place_of(source), f"'{name}'", max(8, dtype.itemsize) * math.prod(shape), copies=4)
