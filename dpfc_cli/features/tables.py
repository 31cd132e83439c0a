"""Where imported features come from: arrays under names, in one of several formats, as tables of rows.

| format | holds |
| --- | --- |
| a folder of .npy | `train_x.npy`, `train_y.npy`, perhaps `test_x.npy`, `test_y.npy` |
| .npz, .safetensors, HDF5 (.h5, .hdf5) | these names, or `train/features`, `train/labels`, or `features`, `labels` |
| .parquet: a file, a folder or a pattern | a column of lists of floats and one of integers (or lists of them) |

x is n × d, float16, 32 or 64; y is n or n × k integers, −1 for "no label". Labels are read at once, features a range of
rows at a time (but for .npz, which is packed), so memory stays bounded. Nothing is unpickled, and no link is followed
out of an HDF5 file.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfc_cli.errors import UserError

SPLITS = ("train", "test")
NAMES = "{train,test}_{x,y}.npy"
ACCEPTED = f"a folder with {NAMES}, or an .npz, .safetensors, .h5 or .parquet file"
BUILT_IN = frozenset((1, 2, 3, 4, 5, 6, 32000))
"""HDF5's filters: deflate, shuffle, fletcher32, szip, nbit, scale-offset, and h5py's lzf."""

Rows = Callable[[int, int], np.ndarray]


@dataclass(frozen=True)
class Table:
    """One split as found. rows(start, stop): features of that range, (stop - start) × d. y: n × k integers. counted: k
    is not a fact of the layout but the most labels that some record has.
    """

    n: int
    d: int
    dtype: np.dtype[Any]
    rows: Rows
    y: np.ndarray
    counted: bool = False


@dataclass(frozen=True)
class Tables:
    """What a source holds. classes: their names, if the source says them."""

    splits: dict[str, Table]
    classes: tuple[str, ...] | None = None


@contextmanager
def opened(path: Path, column: str | None = None, label_column: str | None = None) -> Iterator[Tables]:
    """The tables of a source, readable until the end of the block. column, label_column: what the features and the
    labels are called, where not as usual. UserError for what cannot be taken.
    """
    with ExitStack() as stack:
        kind = path.suffix.lower()
        if kind == ".parquet" or ((not path.exists() or path.is_dir()) and not _holds_arrays(path)):
            from dpfc_cli.features.columns import open_columns

            found = open_columns(str(path), column, label_column)
        elif path.is_dir():
            _refuse_names(path, column, label_column)
            found = Tables(_folder(path))
        elif kind in _FORMATS:
            found = Tables(_named(path, _FORMATS[kind](path, stack), column, label_column))
        else:
            raise UserError(f"'{path}' is of no format that dpfc knows.", f"Give {ACCEPTED}.")
        if "train" not in found.splits:
            raise UserError(
                f"'{path}' has no train_x and train_y.", "Name the arrays train_x, train_y, test_x and test_y."
            )
        widths = {table.d for table in found.splits.values()}
        if len(widths) > 1:
            raise UserError(
                f"Train and test features differ in width: {sorted(widths)}.", "Both must come from the same backbone."
            )
        yield found


def checked(
    source: str, shape: tuple[int, ...], dtype: Any, rows: Rows, y: np.ndarray, x_name: str, y_name: str
) -> Table:
    """The table of features of that shape and dtype and labels y, if the two make one."""
    if len(shape) != 2 or dtype not in (np.float16, np.float32, np.float64) or min(shape) < 1:
        raise UserError(
            f"'{source}': {x_name} has shape {shape} and dtype {dtype}.",
            "Features are an n × d array of float16, 32 or 64.",
        )
    labels = y[:, None] if y.ndim == 1 else y
    if labels.ndim != 2 or not np.issubdtype(y.dtype, np.integer) or len(labels) != shape[0] or labels.shape[1] < 1:
        raise UserError(
            f"'{source}': {y_name} has shape {y.shape} and dtype {y.dtype} beside {shape[0]} rows of features.",
            "Labels are n, or n × k, integers.",
        )
    return Table(shape[0], shape[1], np.dtype(dtype), rows, labels)


@dataclass(frozen=True)
class Array:
    """An array somewhere. read(start, stop): its rows of that range."""

    shape: tuple[int, ...]
    dtype: Any
    read: Rows


def _holds_arrays(path: Path) -> bool:
    return path.is_dir() and any(path.glob("*_[xy].npy"))


def _refuse_names(path: Path, *names: str | None) -> None:
    if any(names):
        raise UserError(f"The arrays in '{path}' are known by their files' names.", f"Name them {NAMES}.")


def _named(path: Path, arrays: dict[str, Array], column: str | None, label_column: str | None) -> dict[str, Table]:
    """The splits among the arrays of one file, by their names."""
    tables = {}
    for split in SPLITS:
        x = _found(path, arrays, split, ("x", "features"), column)
        y = _found(path, arrays, split, ("y", "labels"), label_column)
        if x is None and y is None:
            continue
        if x is None or y is None:
            raise UserError(
                f"'{path}' cannot be read: it has {x or y} but no {'labels' if y is None else 'features'} to it.",
                f"It holds {', '.join(sorted(arrays)) or 'nothing'}. Name them train_x and train_y, or 'features' and "
                "'labels', or say their names with --column and --label-column.",
            )
        labels = arrays[y].read(0, arrays[y].shape[0] if arrays[y].shape else 0)
        tables[split] = checked(str(path), arrays[x].shape, arrays[x].dtype, arrays[x].read, labels, x, y)
    return tables


def _found(path: Path, arrays: dict[str, Array], split: str, usual: tuple[str, str], given: str | None) -> str | None:
    short, long = usual
    names = [f"{split}/{given}", f"{split}_{given}"] if given else [f"{split}_{short}", f"{split}/{long}"]
    if split == "train":
        names.append(given or long)
    found = [name for name in names if name in arrays]
    if given and split == "train" and not found:
        raise UserError(f"'{path}' has no '{given}'.", f"It holds {', '.join(sorted(arrays)) or 'nothing'}.")
    return found[0] if found else None


def _folder(path: Path) -> dict[str, Table]:
    tables = {}
    for split in SPLITS:
        files = [path / f"{split}_{name}.npy" for name in "xy"]
        if any(file.exists() for file in files):
            x, y = map(_npy, files)
            tables[split] = checked(str(path), x.shape, x.dtype, _slices(x), np.asarray(y), f"{split}_x", f"{split}_y")
    return tables


def _npy(path: Path) -> np.ndarray:
    try:
        # np.load would take other formats under this name, too.
        with path.open("rb") as file:
            if file.read(6) != b"\x93NUMPY":
                raise ValueError("it does not begin like one")
        return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise UserError(
            f"'{path}' cannot be read as a .npy array: {error}.",
            "Both {split}_x.npy and {split}_y.npy must be whole, plain arrays.",
        ) from error


def _slices(array: np.ndarray) -> Rows:
    return lambda start, stop: np.asarray(array[start:stop])


def _npz(path: Path, _stack: ExitStack) -> dict[str, Array]:
    import zipfile
    import zlib

    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("it is not a zip archive")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(
            f"'{path}' cannot be read as an .npz of features: {error}.",
            "It must hold train_x and train_y (and test_x, test_y).",
        ) from error
    return {name: Array(array.shape, array.dtype, _slices(array)) for name, array in arrays.items()}


def _safetensors(path: Path, stack: ExitStack) -> dict[str, Array]:
    from safetensors import SafetensorError, safe_open

    kinds: dict[str, Any] = {"F16": np.float16, "F32": np.float32, "F64": np.float64}
    kinds |= {"I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64, "U8": np.uint8}
    try:
        file = stack.enter_context(safe_open(path, framework="numpy"))
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(f"'{path}' cannot be read as safetensors: {error}.", "Write it anew.") from error
    kinds = {name: np.dtype(kind) for name, kind in kinds.items()}
    # Of other types only the name is known, which says what is wrong with them.
    return {
        name: Array(tuple(part.get_shape()), kinds.get(part.get_dtype(), part.get_dtype()), _parts(part, path))
        for name, part in slices.items()
    }


def _parts(part: Any, path: Path) -> Rows:
    def rows(start: int, stop: int) -> np.ndarray:
        try:
            return np.asarray(part[start:stop])
        # Whatever the library makes of a damaged file.
        except Exception as error:
            raise UserError(f"'{path}' cannot be read: {error}.", "Write it anew.") from error

    return rows


def _hdf5(path: Path, stack: ExitStack) -> dict[str, Array]:

    from dpfc_cli.features.reader import local_dataset, opened_hdf5

    found: dict[str, Array] = {}
    try:
        file = stack.enter_context(opened_hdf5(path))
        places = [(file, "")] + [(file[split], f"{split}/") for split in SPLITS if _is_group(file, split)]
        for group, prefix in places:
            for name in group:
                if _is_group(group, name):
                    continue
                dataset = local_dataset(group, path, name)
                _refuse_plugins(dataset, path, name)
                found[prefix + name] = Array(dataset.shape, dataset.dtype, _parts(dataset, path))
    # HDF5's errors come as whatever h5py takes them for.
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"'{path}' cannot be read as HDF5: {error}.", "Write it anew.") from error
    return found


def _refuse_plugins(dataset: Any, path: Path, name: str) -> None:
    """Filters that HDF5 has built in are run; others would be loaded from wherever an environment variable says."""
    made = dataset.id.get_create_plist()
    foreign = [made.get_filter(i)[0] for i in range(made.get_nfilters()) if made.get_filter(i)[0] not in BUILT_IN]
    if foreign:
        raise UserError(
            f"'{path}': '{name}' is stored through filter {foreign[0]}, which dpfc does not run.",
            "Write it without compression, or with gzip or lzf.",
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
