"""The sources of imported features: arrays under names, in one of several formats, as tables of rows.

| format | holds |
| --- | --- |
| a folder of .npy | `train_x.npy`, `train_y.npy`, perhaps `test_x.npy`, `test_y.npy` |
| one .npy, with its labels beside it | `X.npy` and `y.npy`; or any name, and `y.npy` or `labels.npy` |
| .npz, .safetensors, HDF5 (.h5, .hdf5) | these names, or `train/features`, `train/labels`, or `features`, `labels` |
| .parquet: a file, a folder or a pattern | a column of lists of floats, or one of floats for each feature; labels |

`X_train`, `y_train` (scikit-learn's names), and `X`, `y` are also known. x is n × d, float16, 32 or 64. y is n or n × k
integers, −1 for "no label"; or n texts, the names of classes. Beside them there may be groups:
`train_groups`, `train/groups`, `groups`, or a column of that name, n integers or texts. Labels and groups are read at
once, if memory can hold what they declare. Features are read a range of rows at a time, so memory stays bounded,
however well they are compressed. Nothing is unpickled, and no link is followed out of an HDF5 file.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpfc_cli import npz
from dpfc_cli.errors import UserError, parameter
from dpfc_cli.features.noticed import array_of_persons
from dpfc_cli.features.table import Array, Rows, Table, Tables, checked, sliced, with_groups
from dpfc_cli.files import check_plain
from dpfc_cli.memory import check_fits, proved
from dpfc_cli.sources.groups import GROUPS
from dpfc_cli.sources.reading import unread

SPLITS = ("train", "test")
NAMES = "{train,test}_{x,y}.npy"
ACCEPTED = f"a folder with {NAMES}, or an .npy, .npz, .safetensors, .h5 or .parquet file"
BUILT_IN = frozenset((1, 2, 3, 4, 5, 6, 32000))
"""HDF5's filters: deflate, shuffle, fletcher32, szip, nbit, scale-offset, and h5py's lzf."""
COMPRESSING = frozenset((1, 4, 5, 6, 32000))


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
        kind = path.suffix.lower()
        if not path.exists() and kind != ".parquet":
            raise UserError(f"There is no '{path}'.", f"Name {ACCEPTED}.", code="missing", path=str(path))
        if kind == ".parquet" or (path.is_dir() and not _holds_arrays(path)):
            from dpfc_cli.features.columns import open_columns

            if path.is_dir() and not any(path.rglob("*.parquet")):
                what = f"'{path}' has neither arrays nor .parquet files."
                raise UserError(what, f"Give {ACCEPTED}.", code="missing", path=str(path))
            found = open_columns(str(path), column, label_column, group_column)
        elif path.is_dir():
            _refuse_names(path, column=column, label_column=label_column, group_column=group_column)
            found = Tables(splits=_folder(path), noticed=lambda: _file_of_persons(path))
        elif kind == NPY:
            _refuse_names(path, column=column, label_column=label_column, group_column=group_column)
            found = Tables(splits={"train": _pair(path)}, noticed=lambda: _file_of_persons(path.parent))
        elif kind in _FORMATS:
            arrays = _FORMATS[kind](path, stack)
            found = Tables(
                splits=_named(path, arrays, column, label_column, group_column),
                noticed=lambda: array_of_persons({name: partial(arrays.__getitem__, name) for name in arrays}),
            )
        else:
            raise UserError(
                f"'{path}' is of no format that dpfc knows.", f"Give {ACCEPTED}.", code="unsupported", path=str(path)
            )
        if "train" not in found.splits:
            raise UserError(
                f"'{path}' has no train_x and train_y.",
                "Name the arrays train_x, train_y, test_x and test_y.",
                code="missing",
                path=str(path),
            )
        widths = sorted({table.d for table in found.splits.values()})
        if len(widths) > 1:
            raise UserError(
                f"Train and test features differ in width: {widths}.",
                "Both must come from the same backbone.",
                code="conflict",
                path=str(path),
                dimensions=widths,
            )
        lacking = [split for split, table in found.splits.items() if table.keys is None]
        if lacking and len(lacking) < len(found.splits):
            raise UserError(
                f"'{path}' has no groups for its {lacking[0]} records, but it has some for the others.",
                f"Give them groups, too: an array '{lacking[0]}_{GROUPS}', or a column in each file.",
                code="missing",
                path=str(path),
                split=lacking[0],
            )
        yield found


FEATURES = ("{}_x", "{}/features", "X_{}", "x_{}")
LABELS = ("{}_y", "{}/labels", "y_{}")
"""Names of the arrays of a split."""
BARE = {"features": "labels", "X": "y", "x": "y"}
"""Names of arrays in a source without splits."""


def _usual(split: str, labels: bool) -> list[str]:
    """The usual names of the features, or of the labels, of a split."""
    bare = dict.fromkeys(BARE.values() if labels else BARE)
    return [each.format(split) for each in (LABELS if labels else FEATURES)] + (list(bare) if split == "train" else [])


def _in_folder(path: Path, split: str, labels: bool) -> Path | None:
    """The .npy of the features, or of the labels, of a split in a folder."""
    files = (path / f"{name}{NPY}" for name in _usual(split, labels) if "/" not in name)
    return next((file for file in files if file.exists()), None)


def _holds_arrays(path: Path) -> bool:
    return any(_in_folder(path, split, labels) for split in SPLITS for labels in (False, True))


def _file_of_persons(folder: Path) -> str | None:
    """The .npy in a folder that seems to name persons, or None."""
    found = array_of_persons({file.stem: partial(_npy, file) for file in sorted(folder.glob(f"*{NPY}"))})
    return None if found is None else f"{found}{NPY}"


def _pair(path: Path) -> Table:
    """The table of one .npy of features, with the labels beside it."""
    own = {name.format("train"): labels.format("train") for name, labels in zip(FEATURES, LABELS, strict=False)}
    names = [own.get(path.stem), "y_train" if path.stem in ("X_train", "x_train") else None, BARE.get(path.stem)]
    named = [name for name in (*names, "y", "labels") if name is not None]
    found = next((path.with_name(f"{name}{NPY}") for name in named if path.with_name(f"{name}{NPY}").exists()), None)
    if found is None or found == path:
        raise UserError(
            f"There are no labels beside '{path}'.",
            f"Put them there as {named[0]}{NPY}.",
            code="missing",
            path=str(path),
        )
    return checked(str(path.parent), _npy(path), _npy(found), path.stem, found.stem)


def _refuse_names(path: Path, **names: str | None) -> None:
    """Raise UserError if names are given for a folder of arrays."""
    given = next((name for name, value in names.items() if value), None)
    if given:
        raise UserError(
            f"The arrays {'beside' if path.is_file() else 'in'} '{path}' are known by their files' names.",
            f"Name them {NAMES}, and leave out {parameter(given)}.",
            code="conflict",
            parameter=given,
            path=str(path),
        )


def _named(
    path: Path, arrays: dict[str, Array], column: str | None, label_column: str | None, group_column: str | None
) -> dict[str, Table]:
    """The splits among the arrays of one file, by their names."""
    tables = {}
    for split in SPLITS:
        x = _found(path, arrays, split, _usual(split, labels=False), "column", column)
        y = _found(path, arrays, split, _usual(split, labels=True), "label_column", label_column)
        if x is None and y is None:
            continue
        if x is None or y is None:
            raise UserError(
                f"'{path}' cannot be read: it has '{x or y}', but no {'labels' if y is None else 'features'} for it.",
                f"It holds {_listed(arrays)}. Name them train_x and train_y, or 'features' and 'labels', or say their "
                f"names with {parameter('column')} and {parameter('label_column')}.",
                code="missing",
                path=str(path),
                known=sorted(arrays),
            )
        tables[split] = checked(str(path), arrays[x], arrays[y], x, y)
        usual = [f"{split}_{GROUPS}", f"{split}/{GROUPS}"] + [GROUPS] * (split == "train")
        groups = _found(path, arrays, split, usual, "group_column", group_column)
        if groups is not None:
            tables[split] = with_groups(tables[split], str(path), arrays[groups], groups)
    return tables


def _found(
    path: Path, arrays: dict[str, Array], split: str, usual: list[str], option: str, given: str | None
) -> str | None:
    """The name of the array that holds features, labels or groups of a split, if there is one."""
    names = [f"{split}/{given}", f"{split}_{given}", *([given] * (split == "train"))] if given else usual
    found = [name for name in names if name in arrays]
    if given and split == "train" and not found:
        raise UserError(
            f"'{path}' has no '{given}'.",
            f"It holds {_listed(arrays)}.",
            code="missing",
            parameter=option,
            path=str(path),
            known=sorted(arrays),
        )
    return found[0] if found else None


def _listed(arrays: dict[str, Array]) -> str:
    return ", ".join(sorted(arrays)) or "nothing"


def _folder(path: Path) -> dict[str, Table]:
    tables = {}
    for split in SPLITS:
        x, y = _in_folder(path, split, labels=False), _in_folder(path, split, labels=True)
        if x or y:
            x, y = x or path / f"{split}_x{NPY}", y or path / f"{split}_y{NPY}"
            tables[split] = checked(str(path), _npy(x), _npy(y), x.stem, y.stem)
            groups = path / f"{split}_{GROUPS}.npy"
            if groups.exists():
                tables[split] = with_groups(tables[split], str(path), _npy(groups), groups.stem)
    return tables


def arrays_in(path: Path, stack: ExitStack) -> dict[str, Array]:
    """The arrays in a file of one of the formats `ARRAYS`, by name. Nothing is said of what they hold.

    Args:
        path: the file.
        stack: it closes the file.

    Raises:
        UserError: the file cannot be read.

    """
    kind = path.suffix.lower()
    return {path.stem: _npy(path)} if kind == NPY else _FORMATS[kind](path, stack)


def _npy(path: Path) -> Array:
    try:
        check_plain(path)
        # np.load would accept other formats under this name, too.
        with path.open("rb") as file:
            npz.header(file)
        array = np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, *npz.BROKEN) as error:
        raise unread(
            path, "a .npy array", error, "Both {split}_x.npy and {split}_y.npy must be complete, plain arrays."
        ) from error
    return Array(shape=array.shape, dtype=array.dtype, read=sliced(array))


def _npz(path: Path, stack: ExitStack) -> dict[str, Array]:
    try:
        found = npz.opened(path, stack)
    except (OSError, *npz.BROKEN) as error:
        raise unread(
            path, "an .npz of features", error, "It must hold train_x and train_y (and test_x, test_y)."
        ) from error
    return {
        name: Array(shape=array.shape, dtype=array.dtype, read=_guarded(array.rows, path))
        for name, array in found.items()
    }


def _safetensors(path: Path, stack: ExitStack) -> dict[str, Array]:
    from safetensors import SafetensorError, safe_open

    kinds: dict[str, Any] = {"F16": np.float16, "F32": np.float32, "F64": np.float64}
    kinds |= {"I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64}
    kinds |= {"U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64}
    try:
        check_plain(path)
        file = stack.enter_context(safe_open(path, framework="numpy"))
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise unread(path, "safetensors", error, "Write it again.") from error
    kinds = {name: np.dtype(kind) for name, kind in kinds.items()}
    # A type that is not in `kinds` stays a name: the error about it then says which type it is.
    return {
        name: Array(
            shape=tuple(part.get_shape()),
            dtype=kinds.get(part.get_dtype(), part.get_dtype()),
            read=_guarded(sliced(part), path),
        )
        for name, part in slices.items()
    }


def _guarded(read: Rows, path: Path) -> Rows:
    """Rows of a file that may be damaged."""

    def rows(start: int, stop: int) -> np.ndarray:
        try:
            return read(start, stop)
        except UserError:
            raise
        # The library may raise anything for a damaged file.
        except Exception as error:
            raise unread(path, "features", error, "Write it again.") from error

    return rows


def _hdf5(path: Path, stack: ExitStack) -> dict[str, Array]:
    from dpfc_cli.features.hdf5 import local_dataset, opened_hdf5, rows_of

    found: dict[str, Array] = {}

    def rows(dataset: Any) -> Rows:
        chunk = math.prod(dataset.chunks or ()) * dataset.dtype.itemsize

        def read(start: int, stop: int) -> np.ndarray:
            # HDF5 calls a lack of memory in a filter a failure of the filter, as it calls a damaged chunk.
            with proved(4 * chunk):
                return rows_of(dataset, path, start, stop - start)

        return read

    try:
        file = stack.enter_context(opened_hdf5(path))
        places = [(file, "")] + [(file[split], f"{split}/") for split in SPLITS if _is_group(file, split)]
        for group, prefix in places:
            for name in group:
                if _is_group(group, name):
                    continue
                dataset = local_dataset(group, path, name)
                check_stored(dataset, path, name)
                found[prefix + name] = Array(
                    # A data set without a data space has no shape.
                    shape=dataset.shape or (),
                    dtype=dataset.dtype,
                    read=_guarded(rows(dataset), path),
                )
    # h5py turns HDF5's errors into any of these.
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError) as error:
        raise unread(path, "HDF5", error, "Write it again.") from error
    return found


def check_stored(dataset: Any, path: Path, name: str) -> None:
    """Raise UserError for a filter that is not built into HDF5, and for chunks that memory cannot hold.

    HDF5 would load such a filter from a folder that an environment variable names. It expands a chunk as a whole, even
    if one row of it is read. Numbers that are compressed twice could expand by a factor of a million.
    """
    made = dataset.id.get_create_plist()
    filters = [made.get_filter(i)[0] for i in range(made.get_nfilters())]
    foreign = [number for number in filters if number not in BUILT_IN]
    if not foreign and sum(number in COMPRESSING for number in filters) > 1:
        foreign = [number for number in filters if number in COMPRESSING][1:]
    if dataset.chunks is not None:
        check_fits(path, f"a chunk of '{name}'", math.prod(dataset.chunks) * dataset.dtype.itemsize, copies=3)
    if foreign:
        raise UserError(
            f"'{path}': '{name}' is stored through filter {foreign[0]}, which dpfc does not run there.",
            "Write it without compression, or with gzip or lzf alone.",
            code="unsupported",
            path=str(path),
            array=name,
        )


def _is_group(group: Any, name: str) -> bool:
    import h5py

    return isinstance(group.get(name, getlink=True), h5py.HardLink) and isinstance(group[name], h5py.Group)


_FORMATS: dict[str, Callable[[Path, ExitStack], dict[str, Array]]] = {
    ".npz": _npz,
    ".safetensors": _safetensors,
    ".h5": _hdf5,
    ".hdf5": _hdf5,
}
NPY = ".npy"
ARRAYS = (NPY, *_FORMATS)
"""How the names of files of arrays end."""
