"""A label means the same in each format of features as it does beside pictures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpfc_cli.extensions.importing.importing import import_features
from tests.annotations.test_classes import the_same
from tests.extensions.importing.formats import Write, hdf5, npy, npz, safetensors


def of_features(write: Write) -> Callable[[Path, Any], dict[str, Any]]:
    def made(folder: Path, label: Any) -> dict[str, Any]:
        y = np.array([label] * 2)
        if write is hdf5 and y.dtype.kind == "U":
            y = np.char.encode(y, "utf-8")
        if write is safetensors and y.dtype.kind == "U":
            pytest.skip("safetensors have no texts")
        return {"path": write(folder, {"train_x": np.eye(2, 3, dtype=np.float32), "train_y": y})}

    return made


def of_columns(folder: Path, label: Any) -> dict[str, Any]:
    pq.write_table(pa.table({"f": [0.5, 1.5], "label": [label] * 2}), folder / "a.parquet")
    return {"path": folder / "a.parquet"}


def of_lists(folder: Path, label: Any) -> dict[str, Any]:
    kind = pa.array([label]).type
    if pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        pytest.skip("lists of labels are of integers or texts")
    pq.write_table(pa.table({"f": [0.5, 1.5], "label": [[label]] * 2}), folder / "a.parquet")
    return {"path": folder / "a.parquet"}


def of_csv(folder: Path, label: Any) -> dict[str, Any]:
    (folder / "a.csv").write_text(f"f,label\n0.5,{label}\n1.5,{label}\n")
    return {"path": folder / "a.csv"}


def of_slides(folder: Path, label: Any) -> dict[str, Any]:
    (folder / "table.csv").write_text(f"slide,label\n0,{label}\n1,{label}\n")
    for i in range(2):
        with h5py.File(folder / f"{i}.h5", "w") as file:
            file["features"] = np.ones((2, 3), np.float32)
    return {"path": f"slides:{folder}", "table": folder / "table.csv"}


FORMATS = (of_columns, of_lists, of_csv, of_slides, *map(of_features, (npz, npy, hdf5, safetensors)))


@pytest.mark.parametrize("write", FORMATS)
def test_a_label_means_the_same_in_each_format(write: Callable[[Path, Any], dict[str, Any]], tmp_path: Path) -> None:
    the_same(write, named, tmp_path)


def named(source: dict[str, Any], classes: tuple[str, ...], out: Path) -> list[str]:
    y = import_features(**source, out=out, classes=classes, labels_per_record=1).features.arrays("train")[1].ravel()
    return [classes[label] for label in y]
