"""Tables of features as people have them: each is read right or refused, and nothing vanishes without a word."""

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.extensions.importing.columns import open_columns
from dpfc_cli.extensions.importing.importing import import_features
from dpfc_cli.extensions.importing.tables import opened
from tests.extensions.importing.formats import vectors
from tests.support import refuses

X = np.array([[0.5, -1.25, 30.0], [1234.5, 2e-3, 41.0], [-0.75, 1.0, 52.0], [3.5, 7.125, 63.0]])
LABELS = ["flu", "cold", "flu", "größe"]


class Found(NamedTuple):
    x: list[list[float]]
    labels: list[str]
    remarks: tuple[str, ...]


def found(path: Path, column: str | None = None, label_column: str | None = None, **other: Any) -> Found:
    """What a table holds, with labels as texts."""
    tables = open_columns(str(path), column, label_column, **other)
    table = tables.splits["train"]
    names = table.names or tuple(map(str, range(table.y.max() + 1)))
    return Found(table.rows(0, table.n).tolist(), [names[i] for i in table.y[:, 0]], tables.remarks)


def written(folder: Path, text: str | bytes, name: str = "a.csv") -> Path:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / name


# All ways of writing the same table

SEPARATORS, QUOTES, ENCODINGS = ",;\t|", ("", '"'), ("utf-8", "utf-8-sig", "cp1252")
HEADERS = (
    "plain",
    "blanks",
    "capitals",
    "sep=",
    "empty lines",
    "empty column",
    "duplicate",
    "comment",
    "short line",
    "utf-16",
)
INDICES = (None, "", "Unnamed: 0", "index")
ODD = {"NA": "NA", "?": "?", "empty": "", "thousands": "1,234.5", "decimal comma": "1234,5"}
"""What stands in one line in place of a number."""
KINDS = ("floats", "texts beside", "dates beside", "booleans beside", *ODD)
ENDS = ("\n", "\r\n", "\r")
REFUSED = {"duplicate", "comment", "short line", "utf-16", *ODD}


def cells(kind: str, index: str | None) -> list[list[str]]:
    beside = {"texts beside": "ward 7", "dates beside": "2024-05-17", "booleans beside": "True"}.get(kind)
    rows = [["f0", "f1", "age", *([] if beside is None else ["site"]), "label"]]
    for i, (values, label) in enumerate(zip(X.tolist(), LABELS, strict=True)):
        row = [*map(repr, values[:2]), str(int(values[2]))]
        row[0] = ODD.get(kind, row[0]) if i == 1 else row[0]
        rows.append([*row, *([] if beside is None else [beside]), label])
    return [([index if i == 0 else str(i - 1)] if index is not None else []) + row for i, row in enumerate(rows)]


def table_of(separator: str, quote: str, encoding: str, header: str, kind: str, index: str | None, end: str) -> bytes:
    rows = cells(kind, index)
    if header == "blanks":
        rows[0] = [f" {name} " for name in rows[0]]
    elif header == "capitals":
        rows[0][-1] = "Label"
    elif header == "empty column":
        rows = [[*row, ""] for row in rows]
    elif header == "duplicate":
        rows[0][rows[0].index("f1")] = "F0"
    elif header == "short line":
        rows[-1].pop(0)
    lines = [separator.join(f"{quote}{value}{quote}" for value in row) for row in rows]
    lines = {"sep=": [f"sep={separator}"], "comment": ["# measured in May"]}.get(header, []) + lines
    lines += ["", separator * (len(rows[0]) - 1)] if header == "empty lines" else []
    return (end.join(lines) + end).encode("utf-16" if header == "utf-16" else encoding)


VARIANTS = [*((header, "floats") for header in HEADERS), *(("plain", kind) for kind in KINDS[1:])]
GRID = [
    (*base, *VARIANTS[(6 * i + j) % len(VARIANTS)], INDICES[(i + j) % len(INDICES)], ENDS[(i + j) % len(ENDS)])
    for i, base in enumerate(product(SEPARATORS, QUOTES, ENCODINGS))
    for j in range(6)
]
"""All ways to separate, to quote and to encode; with each of them six of the other oddities."""


def independent(path: Path, separator: str, encoding: str, header: str) -> tuple[list[list[float]], list[str]]:
    """What another reader finds, who is told how the table is written."""
    table = pa.csv.read_csv(
        path,
        pa.csv.ReadOptions(encoding=encoding.removesuffix("-sig"), skip_rows=int(header == "sep=")),
        pa.csv.ParseOptions(delimiter=separator),
    )
    columns = {
        name.strip().lower(): column.drop_null().to_pylist()
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    x = np.column_stack([columns[name] for name in ("f0", "f1", "age")]).astype(float)
    return x.tolist(), [label for label in columns["label"] if label]


def test_a_table_is_read_as_another_reader_does_or_refused_however_it_is_written(tmp_path: Path) -> None:
    for i, (separator, quote, encoding, header, kind, index, end) in enumerate(GRID):
        path = written(tmp_path, table_of(separator, quote, encoding, header, kind, index, end), f"{i}.csv")
        if {header, kind} & REFUSED:
            with pytest.raises(UserError) as caught:
                found(path)
            assert caught.value.code in ("damaged", "bad-record"), GRID[i]
        else:
            ours = found(path)
            assert ours[:2] == (X.tolist(), LABELS) == independent(path, separator, encoding, header), GRID[i]
            left = ([] if index is None else [index]) + ["site"] * ("beside" in kind)
            assert all((f"'{name}'" if name else "without a name") in " ".join(ours.remarks) for name in left)
            assert any(said.startswith("Left out") for said in ours.remarks) == bool(left)


# What has two readings, or none

WRONG: dict[str, tuple[str | bytes, str]] = {
    "two separators": ("a;b, c;label\n1,5;2;0\n", "damaged"),
    "decimal commas": ("f0;f1;label\n0,5;1;0\n1,25;2;1\n", "bad-record"),
    "a row with more values": ("f0,f1,label\n1,2,0,\n", "damaged"),
    "names of rows without a name of their column": ("f0,label\n1,2.5,0\n2,3.5,1\n", "damaged"),
    "no names": ("1.5,2,0\n2.5,3,1\n", "damaged"),
    "whole numbers as names": ("5,3,1\n2,3,1\n", "damaged"),
    "values in columns without names": ("f0,,,label\n1,2,3,0\n", "damaged"),
    "a quotation mark that is not closed": ('f0,label\n1,"a\n2,b\n3,c\n', "damaged"),
    "a text behind the quotation mark": ('f0,label\n1,"a\n2,b\n3,c"d\n', "damaged"),
    "zero bytes at the end": (b"f0,label\n1,0\n" + bytes(512), "damaged"),
    "nothing": ("", "damaged"),
    "a number that is none": ("f0,label\n1,0\nnan,1\n", "bad-record"),
    "one text among numbers": ("f0,site,label\n1,7,0\n2,north,1\n", "bad-record"),
    "a comma that may separate thousands": ("f0;f1;label\n1,234;1;0\n12,000;2;1\n", "bad-record"),
    "a point that may separate thousands": ("f0;f1;label\n1.234;1;0\n12.000;2;1\n", "bad-record"),
    "groups by blanks": ("f0,f1,label\n1,1 234 567,0\n2,7 654 321,1\n", "bad-record"),
    "both marks": ("f0;f1;label\n0,5;1;0\n1;0.25;1\n", "bad-record"),
    "a label and a target": ("f0,label,target\n1,0,1\n", "conflict"),
    "no labels": ("f0,f1\n1,0\n", "missing"),
    "no numbers": ("f0,label\na,0\n", "missing"),
}


def test_a_table_with_two_readings_is_refused(tmp_path: Path) -> None:
    for name, (text, code) in WRONG.items():
        with pytest.raises(UserError) as caught:
            found(written(tmp_path, text))
        assert caught.value.code == code, name
        assert code != "bad-record" or GUARDED in caught.value.what


def test_texts_stay_as_they_were_written_and_what_numbers_or_names_records_is_no_feature(tmp_path: Path) -> None:
    text = "Index;image_id;patient_id;target;f0;note\r\n1;17;3.5;001;0.5;\r\n2;18;4.5;1;1.25;\r\n"
    read = found(written(tmp_path, text))
    assert read[:2] == ([[0.5], [1.25]], ["001", "1"])
    assert all(f"'{name}'" in read.remarks[0] for name in ("Index", "image_id", "patient_id", "note"))
    quoted = 'f0,label\n1,"a, ""b""\nc"\n\n2,NA\n'
    assert found(written(tmp_path, quoted))[:2] == ([[1.0], [2.0]], ['a, "b"\nc', "NA"])
    declared = "sep=;\na;b, c;label\n1.5;2;0\n"
    assert found(written(tmp_path, declared))[:2] == ([[1.5, 2.0]], ["0"])


def test_a_pattern_chooses_the_columns_and_the_others_are_named(tmp_path: Path) -> None:
    """Others may then hold anything."""
    text = "f0,g,age,f_note,label,target\n1,0.5,NA,x,a,7\n2,0.25,31,y,b,8\n"
    read = found(written(tmp_path, text), column="f*", label_column="label")
    assert read[:2] == ([[1.0], [2.0]], ["a", "b"])
    assert all(f"'{name}'" in read.remarks[0] for name in ("g", "age", "f_note", "target"))


def test_what_the_other_formats_do_not_use_is_named_too(tmp_path: Path) -> None:
    pandas = {b"pandas": b'{"index_columns": ["row"], "columns": []}'}
    table = pa.table(
        {"row": [0.0, 1.0], "__index_level_0__": [0.5, 1.5], "f0": [1.5, 2.5], "age": [30, 31], "Label": [0, 1]}
    )
    pq.write_table(table.replace_schema_metadata(pandas), tmp_path / "a.parquet")
    read = found(tmp_path / "a.parquet")
    assert read[:2] == ([[1.5], [2.5]], ["0", "1"])
    assert all(f"'{name}'" in read.remarks[0] for name in ("row", "__index_level_0__", "age"))
    (tmp_path / "splits").mkdir()
    for split in ("train", "test", "val"):
        pq.write_table(pa.table({"f0": [1.5], "label": [0]}), tmp_path / "splits" / f"{split}.parquet")
    written(tmp_path / "splits", "more", "notes.txt")
    said, more = found(tmp_path / "splits").remarks
    assert (said.endswith(": 'val'."), more) == (True, "Left out: 1 file (1 .txt).")
    held: dict[str, Any] = {"X": X, "y": np.arange(4), "scores": X, "age": np.arange(4)}
    np.savez(tmp_path / "a.npz", **held)
    save_file(held, tmp_path / "a.safetensors")
    (tmp_path / "arrays").mkdir()
    for name, array in held.items():
        np.save(tmp_path / "arrays" / f"{name}.npy", array)
    for source in ("a.npz", "a.safetensors", "arrays"):
        told = list[str]()
        import_features(tmp_path / source, tmp_path / f"set of {source}", classes=4, warn=told.append)
        assert told == ["Left out: 2 arrays ('age', 'scores')."]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_column_of_splits_says_which_rows_are_for_testing(tmp_path: Path, ending: str) -> None:
    def written(splits: Sequence[object], name: str = "a") -> None:
        table = pa.table({"f0": X[:, 0], "row": np.arange(4.0), "label": [0, 1, 2, 3], "Split": splits})
        write = pa.csv.write_csv if ending == "csv" else pq.write_table
        write(table, tmp_path / f"{name}.{ending}")

    written(["Train", "val", "training", "test"])
    with opened(tmp_path / f"a.{ending}") as tables:
        parts = {
            split: (table.rows(0, table.n)[:, 1].tolist(), table.y[:, 0].tolist())
            for split, table in tables.splits.items()
        }
        assert parts == {"train": ([0, 2], [0, 2]), "test": ([3], [3])}
        assert tables.remarks[0].endswith(": 'val'.")
        # The number of a row is no feature, and only its name shows it.
        assert any("'row'" in said for said in tables.remarks) == (ending == "csv")
    for words in (["train", "test", "", "train"], [0, 1, 2, 3]):
        written(words)
        with refuses("bad-record"), opened(tmp_path / f"a.{ending}"):
            pass
    written(["train", "test", "train", "train"])
    written(["test"] * 4, "test")
    with refuses("conflict"), opened(tmp_path):
        pass


# Names

FEATURES = ("features", "feature", "Embeddings", "embedding", "x", "X")
NAMES = ("label", "labels", "Target", "targets", "class", "CLASSES", "fine_label", "y")


def as_arrays(path: Path, x: str, y: str, **more: Any) -> Path:
    np.savez(path / "a.npz", **{x: X, y: np.arange(4), **more})
    return path / "a.npz"


def as_columns(path: Path, x: str, y: str, **more: Any) -> Path:
    pq.write_table(pa.table({x: vectors(X), y: [0, 1, 2, 3], **more}), path / "a.parquet")
    return path / "a.parquet"


def as_csv(path: Path, x: str, y: str, **more: Any) -> Path:
    names = [f"{x}{i}" for i in range(3)]
    rows = [[*map(repr, values), str(i), *(str(i) for _ in more)] for i, values in enumerate(X.tolist())]
    return written(path, "\n".join(map(",".join, [[*names, y, *more], *rows])))


@pytest.mark.parametrize("write", [as_arrays, as_columns, as_csv])
def test_usual_names_are_the_same_in_all_formats_and_two_of_them_are_refused(
    tmp_path: Path, write: Callable[..., Path]
) -> None:
    for x, y in (*((x, "label") for x in FEATURES), *(("features", y) for y in NAMES)):
        with opened(write(tmp_path, x, y)) as tables:
            table = tables.splits["train"]
            assert (table.rows(0, 4).tolist(), table.y[:, 0].tolist()) == (X.tolist(), [0, 1, 2, 3]), (x, y)
    two = write(tmp_path, "features", "label", target=np.arange(4))
    with refuses("conflict", parameter="label_column"), opened(two):
        pass
    with opened(two, label_column="target") as tables:
        assert tables.splits["train"].d == 3
        assert "'label'" in tables.remarks[0]
