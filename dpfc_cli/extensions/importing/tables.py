"""The sources of imported features: arrays under names, in one of several formats, as tables of rows.

docs/data.md lists formats and names. x is n × d, float16, 32 or 64. y is n or n × k integers, −1 for "no label"; or n
texts, the names of classes. Beside them there may be groups, n integers or texts. Labels and groups are read at once,
if memory can hold what they declare. Features are read a range of rows at a time, so memory stays bounded,
however well they are compressed. Nothing is unpickled, and no link is followed out of an HDF5 file.
"""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from dpfc_cli.arrays import NPY, Array, arrays_in
from dpfc_cli.errors import UserError, conflict, missing, parameter, quoted, unsupported
from dpfc_cli.extensions.importing.table import Table, Tables, checked, files_left_out, left_out, with_groups
from dpfc_cli.extraction.arrays import BLOCK, ROWS
from dpfc_cli.features.hdf5 import ARRAYS
from dpfc_cli.sources.classes import USUAL_NAMES
from dpfc_cli.sources.groups import GROUPS, names_persons
from dpfc_cli.sources.person_hints import column_of

SPLITS = ("train", "test")
NAMES = "{train,test}_{x,y}.npy"
ACCEPTED = f"a folder with {NAMES}, or an .npy, .npz, .safetensors, .h5, .parquet or .csv file"
COLUMNS = (".parquet", ".csv")
"""How the names of files of columns end."""
FEATURES = ("features", "feature", "embeddings", "embedding", "x")
"""Usual names of features, in any capitals. Those of one split are also `train_x`, `x_train` and `train/x`."""
Arrays = Mapping[str, Callable[[], Array]]
"""What opens each array of a source, by its name."""


@contextmanager
def opened(
    path: Path, column: str | None = None, label_column: str | None = None, group_column: str | None = None
) -> Iterator[Tables]:
    """The tables of a source. They can be read until the end of the block.

    Args:
        path: the source.
        column: the name of the features, if it is not a usual one.
        label_column: the name of the labels, if it is not a usual one.
        group_column: the name of the groups, if it is not `groups`.

    Raises:
        UserError: the source cannot be imported.

    """
    with ExitStack() as stack:
        kind, splits = path.suffix.lower(), list(SPLITS)
        arrays = _arrays(path, kind, stack)
        if arrays is None:
            from dpfc_cli.extensions.importing.columns import open_columns

            found = open_columns(str(path), column, label_column, group_column)
        else:
            named = arrays
            if kind == NPY and not path.is_dir():
                # Others that lie beside one file may be of other records: only those that are named are taken.
                column, splits = column or path.stem, ["train"]
                label_column = label_column or _beside(path, arrays)
                named = {name: arrays[name] for name in (path.stem, label_column, group_column or "") if name in arrays}
            tables, used = _named(path, named, splits, column, label_column, group_column)
            remarks = left_out("array", sorted(set(named) - used))
            if path.is_dir():
                remarks += files_left_out(path, [path / f"{name}{NPY}" for name in arrays])
            found = Tables(splits=tables, noticed=lambda: array_of_persons(arrays), remarks=remarks)
        if "train" not in found.splits:
            raise missing(
                f"{quoted(path)} has no train_x and train_y.", "Name the arrays train_x, train_y, test_x and test_y."
            )
        widths = sorted({table.d for table in found.splits.values()})
        if len(widths) > 1:
            raise conflict(
                f"Train and test features of {quoted(path)} differ in width: {widths}.",
                "Both must come from the same backbone.",
            )
        lacking = [split for split, table in found.splits.items() if table.keys is None]
        if lacking and len(lacking) < len(found.splits):
            raise missing(
                f"{quoted(path)} has no groups for its {lacking[0]} records, but it has some for the others.",
                f"Give them groups, too: an array '{lacking[0]}_{GROUPS}', or a column in each file.",
            )
        yield found


def _arrays(path: Path, kind: str, stack: ExitStack) -> Arrays | None:
    """The arrays of a source; None if they are columns of parquet or CSV files."""
    if path.is_dir():
        arrays = _in_folder(path)
        tables = any(any(path.rglob(f"*{ending}")) for ending in COLUMNS)
        usual = any(_usual(arrays, split, known) for split in SPLITS for known in (FEATURES, USUAL_NAMES))
        if not arrays and not tables:
            what = f"{quoted(path)} has neither arrays nor files of columns."
            raise missing(what, f"Give {ACCEPTED}.")
        return arrays if usual or not tables else None
    if kind in COLUMNS:
        return None
    if kind not in ARRAYS:
        what = f"{quoted(path)} is of no format that dpfc knows."
        raise unsupported(what, f"Give {ACCEPTED}.")
    found = arrays_in(path, stack, ARRAYS)
    beside = _in_folder(path.parent) if kind == NPY else {}
    return {**beside, **{name: partial(found.__getitem__, name) for name in found}}


def _in_folder(folder: Path) -> Arrays:
    """The arrays of a folder. Those that are not asked for are not opened."""
    files = sorted(file for file in folder.glob(f"*{NPY}") if not file.name.startswith("."))
    return {file.stem: partial(_first, file) for file in files}


def _first(file: Path) -> Array:
    return arrays_in(file, ExitStack())[file.stem]


def _usual(arrays: Collection[str], split: str, known: Sequence[str]) -> list[str]:
    """The arrays of a split that have one of the usual names. Names without a split are of the one for training."""
    forms = {form for name in known for form in (f"{split}_{name}", f"{split}/{name}", f"{name}_{split}")}
    forms |= set(known if split == "train" else ())
    return [name for name in arrays if name.casefold() in forms]


def _beside(path: Path, arrays: Arrays) -> str:
    """The labels of an array: those of its split, if its name has one, or else those without a split."""
    match = _SPLIT.search(path.stem.casefold())
    others = [name for name in arrays if name != path.stem]
    known = _usual(others, match[1] or match[2], USUAL_NAMES) if match else []
    found = [name for name in known if _SPLIT.search(name)]
    found = found or [name for name in others if name.casefold() in USUAL_NAMES]
    if not found:
        raise missing(f"There are no labels beside {quoted(path)}.", f"Put them there as y{NPY}.")
    return _only(path, found, "label_column")


def _only(path: Path, found: Sequence[str], option: str) -> str:
    if len(found) > 1:
        raise conflict(
            f"{quoted(path)} has several usual names of the same: {', '.join(found)}.",
            f"Say which one is meant: {parameter(option)}. Or take the others out.",
        )
    return found[0]


def _named(
    path: Path,
    arrays: Arrays,
    splits: Sequence[str],
    column: str | None,
    label_column: str | None,
    group_column: str | None,
) -> tuple[dict[str, Table], set[str | None]]:
    """The tables by split, and the names of the arrays in them."""
    tables, used = dict[str, Table](), set[str | None]()
    for split in splits:
        x = _found(path, arrays, split, FEATURES, "column", column)
        y = _found(path, arrays, split, USUAL_NAMES, "label_column", label_column)
        if x is None and y is None:
            continue
        if x is None or y is None:
            raise missing(
                f"{quoted(path)} cannot be read: it has '{x or y}', but no {'labels' if y is None else 'features'} "
                "for it.",
                f"It holds {_listed(arrays)}. Name them train_x and train_y, or 'features' and 'labels', or say their "
                f"names with {parameter('column')} and {parameter('label_column')}.",
            )
        tables[split] = checked(str(path), arrays[x](), arrays[y](), x, y)
        groups = _found(path, arrays, split, (GROUPS,), "group_column", group_column)
        used |= {x, y, groups}
        if groups is not None:
            tables[split] = with_groups(tables[split], str(path), arrays[groups](), groups)
    return tables, used


def _found(path: Path, arrays: Arrays, split: str, usual: Sequence[str], option: str, given: str | None) -> str | None:
    """The name of the array that holds features, labels or groups of a split, if there is one."""
    if given is None:
        found = _usual(arrays, split, usual)
        return _only(path, found, option) if found else None
    names = [f"{split}/{given}", f"{split}_{given}", *([given] * (split == "train"))]
    found = [name for name in names if name in arrays]
    if split == "train" and not found:
        raise missing(f"{quoted(path)} has no '{given}'.", f"It holds {_listed(arrays)}.", parameter=option)
    return found[0] if found else None


def _listed(arrays: Arrays) -> str:
    return ", ".join(sorted(arrays)) or "nothing"


# Arrays that seem to name persons

_SPLIT = re.compile("^(train|test)[_/]|_(train|test)$")
"""What says in the name of an array which split it is of."""


def array_of_persons(arrays: Arrays) -> str | None:
    """What the arrays are called, without their split, that seem to name persons; None if there are none. Arrays of
    other names are not opened.
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
