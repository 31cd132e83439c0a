"""The sources of imported features: arrays under names, in memory or in a file, as tables of rows.

docs/extensions/importing.md lists formats and names. x is n × d, float16, 32 or 64. y is n or n × k integers, −1 for
"no label"; or n texts, the names of classes. Beside them there may be groups, n integers or texts. Labels and groups
are read at once, if memory can hold what they declare. Features are read a range of rows at a time, so memory stays
bounded, however well they are compressed. Nothing is unpickled, and no link is followed out of an HDF5 file.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from dpfc_cli.annotations.classes import USUAL_NAMES
from dpfc_cli.annotations.groups import GROUPS, names_persons
from dpfc_cli.annotations.person_hints import column_of
from dpfc_cli.annotations.split_files import TEST_SPLITS, TRAIN_SPLITS, all_below, plain, splits_by_role
from dpfc_cli.annotations.subgroups import Named, codes_of
from dpfc_cli.arrays import NPY, Array, arrays_in, sliced
from dpfc_cli.errors import UserError, conflict, missing, parameter, quoted, unsupported
from dpfc_cli.extensions.importing.table import Table, Tables, checked, files_left_out, left_out, with_groups
from dpfc_cli.extraction.arrays import BLOCK, ROWS
from dpfc_cli.features.hdf5 import ARRAYS
from dpfc_cli.places import entries_in

NAMES = "{train,test}_{x,y}.npy"
ACCEPTED = f"a folder with {NAMES}, or an .npz, .safetensors, .h5, .parquet or .csv file"
COLUMNS = (".parquet", ".csv")
"""How the names of files of columns end."""
FEATURES = ("features", "feature", "embeddings", "embedding", "x")
"""Usual names of features, in any capitals. Those of one split are also `train_x`, `x_train` and `train/x`."""
ROLES = {"column": FEATURES, "label_column": USUAL_NAMES, "group_column": (GROUPS,)}
"""What arrays hold, by the parameter that names them, and their usual names."""
_WORDS = "|".join(TRAIN_SPLITS + TEST_SPLITS)
_PARTS = re.compile(f"(?:({_WORDS})[_/])?(.+?)(?:_({_WORDS}))?", re.IGNORECASE)
Arrays = Mapping[str, Callable[[], Array]]
"""What opens each array of a source, by its name."""


def in_memory(given: Mapping[str, object]) -> Arrays:
    """Arrays of NumPy, JAX, PyTorch and other libraries, and lists. What lies in this machine's memory is not copied.

    Opening one raises a UserError if NumPy cannot read it.
    """
    return {name: partial(_held, name, array) for name, array in given.items()}


def _held(name: str, given: object) -> Array:
    try:
        known = hasattr(given, "__array__") or isinstance(given, Sequence)
        found = np.asarray(given) if known else np.from_dlpack(given)  # type: ignore[arg-type]
        if np.ma.is_masked(given):
            raise ValueError
    except Exception as error:
        raise unsupported(
            f"'{name}' is a {type(given).__name__} that NumPy cannot read, or it has masked values.",
            "Give an array that NumPy reads. Of PyTorch: x.detach().cpu().float().",
        ) from error
    if found.dtype.kind in "OT" and all(isinstance(each, str) for each in found.ravel().tolist()):
        found = found.astype(str)
    return Array(found.shape, found.dtype, sliced(found))


@contextmanager
def opened(
    path: Path,
    arrays: Arrays | None = None,
    column: str | None = None,
    label_column: str | None = None,
    group_column: str | None = None,
    subgroups: Named | None = None,
) -> Iterator[Tables]:
    """The tables of a source. They can be read until the end of the block.

    Args:
        path: the source, or what messages call the arrays.
        arrays: what the source holds, if it is in memory.
        column: the name of the features, if it is not a usual one.
        label_column: the name of the labels, if it is not a usual one.
        group_column: the name of the groups, if it is not `groups`.
        subgroups: columns to keep, with their values.

    Raises:
        UserError: the source cannot be imported.

    """
    with ExitStack() as stack:
        folder = path if arrays is None and path.is_dir() else None
        arrays = _arrays(path, stack) if arrays is None else arrays
        if arrays is None:
            from dpfc_cli.extensions.importing.columns import open_columns

            found = open_columns(str(path), column, label_column, group_column, subgroups or {})
        else:
            found = _of_arrays(path, arrays, subgroups or {}, column, label_column, group_column)
            if folder is not None:
                left = files_left_out(folder, [folder / f"{name}{NPY}" for name in arrays])
                found = replace(found, remarks=found.remarks + left)
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
                "Give them groups, too: an array beside that of their features, or a column in each file.",
            )
        yield found


def _arrays(path: Path, stack: ExitStack) -> Arrays | None:
    """The arrays of a source; None if they are columns of parquet or CSV files."""
    kind = path.suffix.lower()
    if path.is_dir():
        with entries_in(path) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(NPY) and entry.name[0] != ".")
        files = [path / name for name in names]
        # Those that are not asked for are not opened.
        arrays = {file.stem: partial(_first, file) for file in files}
        tables = any(each.name.endswith(COLUMNS) for each in all_below(path))
        if not arrays and not tables:
            raise missing(f"{quoted(path)} has neither arrays nor files of columns.", f"Give {ACCEPTED}.")
        usual = any(_parts(name)[1].casefold() in (*FEATURES, *USUAL_NAMES) for name in arrays)
        return arrays if usual or not tables else None
    if kind in COLUMNS:
        return None
    if kind not in ARRAYS or kind == NPY:
        raise unsupported(f"{quoted(path)} is of no format that dpfc knows.", f"Give {ACCEPTED}.")
    found = arrays_in(path, stack, ARRAYS)
    return {name: partial(found.__getitem__, name) for name in found}


def _first(file: Path) -> Array:
    return arrays_in(file, ExitStack())[file.stem]


def _parts(name: str) -> tuple[str | None, str]:
    """The split that is in the name of an array, and the rest of the name."""
    match = _PARTS.fullmatch(name)
    before, rest, after = match.groups() if match else (None, name, None)
    split = before or after
    return split and plain(split.lower()), rest


def _of_arrays(path: Path, arrays: Arrays, subgroups: Named, *given: str | None) -> Tables:
    """The tables of arrays. given: their names, in the order of `ROLES`."""
    asked = dict(zip(ROLES, given, strict=True))
    tables, used = dict[str, Table](), set[str | None]()
    found = {
        word: [_found(path, arrays, word, role, asked[role]) for role in ROLES] for word in ("train", *TEST_SPLITS)
    }
    for split, word in splits_by_role([word for word, (x, y, _) in found.items() if x or y]).items():
        x, y, groups = names = found[word]
        if x is None or y is None:
            raise missing(
                f"{quoted(path)} has '{x or y}', but no {'labels' if y is None else 'features'} for it.",
                f"It holds {_listed(arrays)}. Name what is missing {word}_{'y' if y is None else 'x'}, or say its name "
                f"with {parameter('label_column' if y is None else 'column')}.",
            )
        used.update(names)
        table = checked(str(path), arrays[x](), arrays[y](), x, y)
        table = table if groups is None else with_groups(table, str(path), arrays[groups](), groups)
        kept = {each: _found(path, arrays, word, "subgroups", each) for each in subgroups}
        lacking = next(
            (each for each, name in kept.items() if name is None or arrays[name]().shape != (table.n,)), None
        )
        if lacking is not None:
            raise missing(f"{quoted(path)} has no '{lacking}' for each {split} record.", "Give it, or leave it out.")
        used.update(kept.values())
        values = {each: _values(arrays[name]()) for each, name in kept.items() if name is not None}
        tables[split] = replace(table, subgroups=codes_of(values, subgroups) if kept else None)
    remarks = left_out("array", sorted(set(arrays) - used))
    return Tables(splits=tables, noticed=lambda: array_of_persons(arrays), remarks=remarks)


def _found(path: Path, arrays: Arrays, split: str, role: str, given: str | None) -> str | None:
    """The name of the array that holds features, labels or groups of a split, if there is one."""
    parts = {name: _parts(name) for name in arrays}
    if given is None:
        found = [
            name
            for name, (own, rest) in parts.items()
            if (own or "train", rest.casefold() in ROLES[role]) == (split, True)
        ]
        return _only(path, found, role) if found else None
    found = [name for name in arrays if parts[name] == (split, given)] or [given] * (
        split == "train" and given in arrays
    )
    if split == "train" and not found:
        raise missing(f"{quoted(path)} has no '{given}'.", f"It holds {_listed(arrays)}.", parameter=role)
    return found[0] if found else None


def _only(path: Path, found: Sequence[str], option: str) -> str:
    if len(found) > 1:
        raise conflict(
            f"{quoted(path)} has several usual names of the same: {', '.join(found)}.",
            f"Say which one is meant: {parameter(option)}. Or take the others out.",
        )
    return found[0]


def _listed(arrays: Arrays) -> str:
    return ", ".join(sorted(arrays)) or "nothing"


# Arrays that seem to name persons


def array_of_persons(arrays: Arrays) -> str | None:
    """What the arrays are called, without their split, that seem to name persons; None if there are none. Arrays of
    other names are not opened.
    """
    known: dict[str, list[Callable[[], Array]]] = {}
    for name, opened in arrays.items():
        if names_persons(own := _parts(name)[1]):
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
