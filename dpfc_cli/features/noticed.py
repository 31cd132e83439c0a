"""Arrays beside features that seem to name persons."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain

import numpy as np

from dpfc_cli.errors import UserError
from dpfc_cli.features.table import ROWS, Array
from dpfc_cli.sources.groups import names_persons
from dpfc_cli.sources.noticed import column_of

BLOCK = 2**26
"""Bytes that are read at once."""
_SPLIT = re.compile("^(train|test)[_/]|_(train|test)$")
"""What says in the name of an array which split it is of."""


def array_of_persons(arrays: Mapping[str, Callable[[], Array]]) -> str | None:
    """What the arrays are called, without their split, that seem to name persons; None if there are none.

    Args:
        arrays: the arrays by name. Those of other names are not opened.

    """
    known: dict[str, list[Callable[[], Array]]] = {}
    for name, opened in arrays.items():
        if names_persons(own := _SPLIT.sub("", name)):
            known.setdefault(own, []).append(opened)
    return next((name for name, parts in known.items() if _persons(name, parts)), None)


def _persons(name: str, parts: list[Callable[[], Array]]) -> bool:
    """Whether the arrays of all splits name persons. Where values cannot be read, the name of the array decides."""
    try:
        arrays = [opened() for opened in parts]
        listed = [array for array in arrays if array.shape and math.prod(array.shape) == array.shape[0]]
        # Others are never read: texts without a fixed length are objects, or lie in a heap.
        read = all(isinstance(array.dtype, np.dtype) and array.dtype.kind in "iufSU" for array in listed)
        return not read or column_of({name: chain.from_iterable(map(_values, listed))}) is not None
    except UserError:
        return True


def _values(array: Array) -> Iterator[object]:
    step = max(1, min(ROWS, BLOCK // max(1, array.dtype.itemsize)))
    for at in range(0, array.shape[0], step):
        for value in array.read(at, min(at + step, array.shape[0])).ravel().tolist():
            yield value.decode("utf-8", "replace") if isinstance(value, bytes) else value
