"""Fuzz targets that are folders of several files. The first byte of an input says which file the rest is."""

import contextlib
import json
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa

from dpfc_cli.errors import UserError
from dpfc_cli.extraction import slides
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.extraction.request import Import
from dpfc_cli.images import by_person, open_images
from dpfc_cli.images.unlabelled import in_arrow
from dpfc_cli.sources.groups import rule_of
from tests.torture.target import SQUARE, Target, look, picture, saved, written

# A folder of `save_to_disk`

_ARROW = ("dataset_dict.json", "train/state.json", "train/data-0.arrow", "test/data-0.arrow")


def _arrow(split: str, labels: Any = (0, 1, 0)) -> bytes:
    """Pictures with labels, and with persons who are in no other split, in batches of two."""
    image = pa.array([{"bytes": picture("PNG"), "path": name} for name in ("a.png", None, "ü.png")])
    table = pa.table({"image": image, "label": labels, "who": [f"{split}{i}" for i in (1, 0, 1)]})
    features = {"image": {"_type": "Image"}, "label": {"names": ["flu", "cold"], "_type": "ClassLabel"}}
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})

    def write(file: Any) -> None:
        with pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table, max_chunksize=2)

    return saved(write)


_WHOLE_ARROW = {split: _arrow(split) for split in ("train", "test")}
_STATE = json.dumps({"_data_files": [{"filename": "data-0.arrow"}]}).encode()
_DICT = json.dumps({"splits": ["train", "test"]}).encode()


def _run_arrow(data: bytes, place: Path) -> None:
    top = place / "saved"
    for split, whole in _WHOLE_ARROW.items():
        (top / split).mkdir(parents=True)
        (top / split / "state.json").write_bytes(_STATE)
        (top / split / "data-0.arrow").write_bytes(whole)
    (top / "dataset_dict.json").write_bytes(_DICT)
    (top / _ARROW[data[0] % 4 if data else 0]).write_bytes(data[1:])
    # One reader may refuse what another one takes.
    with contextlib.suppress(UserError):
        plain = in_arrow(top)
        for i in range(min(plain.n, 4)):
            plain.pictures.read(i)
            plain.name(i)
    with contextlib.suppress(UserError):
        look(open_images(f"arrow:{top}", geometry=SQUARE))
    found, groupings = by_person(open_images(f"arrow:{top}", geometry=SQUARE, group_by=rule_of("column:who")))
    assert all(len(grouping.ids) == found.splits[name].n for name, grouping in groupings.items())
    look(found)


# Slides

_PATCHES = np.arange(12, dtype=np.float32).reshape(4, 3)
_CSV = b"case_id,slide_id,label,split\np1,a,tumour,train\np2,b,normal,train\np1,c,tumour,train\np3,d,normal,test\n"
_LINES = b"".join(
    json.dumps({"slide_id": name, "label": label, "patient": person}).encode() + b"\n"
    for name, label, person in (("a", 1, "ü"), ("b", 0, "q"), ("c.svs", 1, "ü"), ("sub/d", 0, "r"))
)


def _slide(name: str = "features", libver: str = "latest", values: np.ndarray = _PATCHES, **options: Any) -> bytes:
    def write(path: Path) -> None:
        with h5py.File(path, "w", libver=libver) as file:
            made = file.create_dataset(name, data=values, track_times=False, **options)
            made.attrs["encoder"] = "uni"
            file.create_dataset("coords", data=np.zeros((len(values), 2), np.int64), track_times=False)

    return written(write, ".h5")


_WHOLE_SLIDE = _slide()


def _run_slides(data: bytes, place: Path) -> None:
    """The first byte also says what is asked for. The rest is a table in CSV or JSON lines, or a slide."""
    folder, asked = place / "slides", data[0] if data else 0
    (folder / "sub").mkdir(parents=True)
    for name in ("a", "b", "c", "sub/d"):
        (folder / f"{name}.h5").write_bytes(_WHOLE_SLIDE)
    kind = asked % 4
    table = place / ("slides.jsonl" if kind == 1 else "slides.csv")
    table.write_bytes(_CSV)
    (table if kind < 2 else folder / "b.h5").write_bytes(data[1:])
    on_error = "null" if asked & 4 else "refuse"
    given: dict[str, Any] = {
        "table": table,
        "on_error": on_error,
        "most_null": 0.5 if asked & 4 else None,
        "pool_by": "patient" if asked & 8 else None,
    }
    told: list[str] = []
    if asked & 16:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = import_features(f"slides:{folder}", place / "made", **given, warn=told.append).features
        splits, rows = made.splits, {split: made.arrays(split) for split in made.splits}
    else:
        tables = slides.pooled(folder, Import(f"slides:{folder}", warn=told.append, **given), None, place / "made")
        splits = {name: each.n for name, each in tables.splits.items()}
        rows = {name: (each.rows(0, each.n), each.y) for name, each in tables.splits.items()}
    if kind > 1 and splits != {"train": 2 if asked & 8 else 3, "test": 1}:
        raise AssertionError("the number of records depends on what is in a slide")
    nulls = sum(int((y < 0).sum()) for _, y in rows.values())
    if (nulls > 0) != bool(told) or (nulls and on_error == "refuse"):
        raise AssertionError("null records that nobody is told of")


FOLDERS = {
    "arrow": Target(
        seeds=lambda: [
            b"\x00" + _DICT,
            b"\x01" + _STATE,
            b"\x02" + _arrow("train"),
            b"\x03" + _arrow("test", pa.array([1, 0, 1], pa.uint8())),
        ],
        run=_run_arrow,
    ),
    "slides": Target(
        seeds=lambda: [
            *(b"\x00" + _CSV, b"\x09" + _LINES, b"\x10" + _CSV),
            *(b"\x02" + _slide("feats", values=_PATCHES.astype(np.float16)), b"\x0e" + _slide(libver="earliest")),
            *(b"\x06" + _slide(values=_PATCHES[None]), b"\x16" + _slide(chunks=(1, 3), maxshape=(None, 3))),
            b"\x06" + _slide(chunks=(2, 3), compression="gzip", shuffle=True),
        ],
        run=_run_slides,
    ),
}
