"""The same arrays in every format that can be imported: `train_x`, `train_y`, and others such as `train_groups`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file

Arrays = dict[str, Any]
Write = Callable[[Path, Arrays], Any]
"""Writes arrays into a folder, and returns the source to import."""


class Foreign:
    """An array of a library of which NumPy knows DLPack alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__


def memory(library: Callable[[np.ndarray], object] = np.asarray) -> Write:
    """No file: the arrays, as another library has them."""
    return lambda _, arrays: {name: library(array) for name, array in arrays.items()}


LIBRARIES = {"NumPy": memory(), "JAX": memory(jnp.asarray), "DLPack": memory(Foreign)}


def by_path(arrays: Arrays) -> Arrays:
    """The same arrays under names such as 'train/features'."""
    parts = {name: name.split("_", 1) for name in arrays}
    usual = {"x": "features", "y": "labels"}
    return {f"{split}/{usual.get(what, what)}": arrays[name] for name, (split, what) in parts.items()}


def npz(folder: Path, arrays: Arrays) -> Path:
    np.savez_compressed(folder / "a.npz", allow_pickle=True, **arrays)
    return folder / "a.npz"


def npy(folder: Path, arrays: Arrays) -> Path:
    (folder / "npy").mkdir()
    for name, array in arrays.items():
        np.save(folder / "npy" / f"{name}.npy", array)
    return folder / "npy"


def safetensors(folder: Path, arrays: Arrays) -> Path:
    save_file(arrays, folder / "a.safetensors")
    return folder / "a.safetensors"


def safetensors_by_path(folder: Path, arrays: Arrays) -> Path:
    return safetensors(folder, by_path(arrays))


def hdf5_flat(folder: Path, arrays: Arrays) -> Path:
    with h5py.File(folder / "a.h5", "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, compression="gzip", chunks=True)
    return folder / "a.h5"


def hdf5(folder: Path, arrays: Arrays) -> Path:
    return hdf5_flat(folder, by_path(arrays))


def vectors(x: np.ndarray, kind: str = "list") -> pa.Array:
    """A column of vectors: of lists, of large lists or of lists of fixed length."""
    values = pa.array(x.ravel(), {2: pa.float16(), 4: pa.float32(), 8: pa.float64()}[x.dtype.itemsize])
    if kind == "fixed":
        return pa.FixedSizeListArray.from_arrays(values, x.shape[1])
    offsets = np.arange(0, x.size + 1, x.shape[1])
    if kind == "large":
        return pa.LargeListArray.from_arrays(pa.array(offsets), values)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def parquet(kind: str = "list", label: str = "label") -> Write:
    """Two files for each split, with small row groups."""

    def write(folder: Path, arrays: Arrays) -> Path:
        place = folder / "parquet"
        place.mkdir()
        for split in {name.split("_")[0] for name in arrays}:
            own = {name.removeprefix(f"{split}_"): a for name, a in arrays.items() if name.startswith(f"{split}_")}
            table = pa.table({"embedding": vectors(own.pop("x"), kind), label: own.pop("y"), **own})
            for i, part in enumerate((table[: len(table) // 3], table[len(table) // 3 :])):
                pq.write_table(part, place / f"{split}-{i:05d}-of-00002.parquet", row_group_size=7)
        return place

    return write
