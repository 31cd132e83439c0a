"""Labels that stand elsewhere than in the usual place: names in parquet, tables beside pictures, keys of WebDataset."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.images import ImageSet, open_images
from dpfc_cli.images.sets import UnreadableError
from tests.images.pictures import SQUARE, png, tar, values

NAMED = ["flu", "rare", "flu", "cold"]
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def opened(source: str, **options: Any) -> ImageSet:
    return open_images(source, geometry=SQUARE, **options)


def rows(path: Path, pictures: Sequence[tuple[bytes | None, str | None]], group: int = 2, **columns: object) -> Path:
    """A parquet file with a struct of bytes and path for each picture."""
    image = pa.array([{"bytes": data, "path": name} for data, name in pictures], IMAGE)
    pq.write_table(pa.table({"image": image, **columns}), path, row_group_size=group)
    return path


def pictures(folder: Path, names: list[str]) -> None:
    """Picture i is full of i."""
    for i, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(i))


def in_parquet(folder: Path, labels: list[str]) -> str:
    rows(folder / "train.parquet", [(png(i), None) for i in range(len(labels))], label=labels)
    return f"parquet:{folder}"


def in_a_table(folder: Path, labels: list[str]) -> str:
    names = [f"{i}.png" for i in range(len(labels))]
    pictures(folder, names)
    lines = [f"{name},{label}" for name, label in zip(names, labels, strict=True)]
    (folder / "metadata.csv").write_text("\n".join(["file_name,label", *reversed(lines)]))
    return f"imagefolder:{folder}"


def in_archives(folder: Path, labels: list[str]) -> str:
    members = []
    for i, label in enumerate(labels):
        members += [(f"{i}.png", png(i)), (f"{i}.json", json.dumps({"width": 6, "label": label}).encode())]
    tar(folder / "train.tar", members)
    return f"webdataset:{folder}"


PLACES = (in_parquet, in_a_table, in_archives)


@pytest.mark.parametrize("place", PLACES)
def test_names_of_classes_are_labels(tmp_path: Path, place: Callable[[Path, list[str]], str]) -> None:
    found = opened(place(tmp_path, NAMED))
    train = found.splits["train"]
    assert (found.classes, found.origin, found.renumbered) == (("cold", "flu", "rare"), "inferred", False)
    np.testing.assert_array_equal(train.labels, [1, 2, 1, 0])
    np.testing.assert_array_equal(values(train), range(4))
    # The same classes, asserted in another order, are other numbers of the same records.
    asserted = opened(place(tmp_path, NAMED), classes=("flu", "cold", "never seen", "rare"))
    assert (asserted.origin, asserted.renumbered) == ("asserted", True)
    np.testing.assert_array_equal(asserted.splits["train"].labels, [0, 3, 0, 1])
    assert asserted.splits["train"].listing == train.listing
    with pytest.raises(UserError, match="'rare' is not among the 2 classes") as refused:
        opened(place(tmp_path, NAMED), classes=("flu", "cold"))
    assert GUARDED in refused.value.what
    assert opened(place(tmp_path, NAMED[::-1])).splits["train"].listing != train.listing


@pytest.mark.parametrize("place", [in_parquet, in_a_table])
def test_a_name_that_is_missing_is_no_class(tmp_path: Path, place: Callable[[Path, list[str]], str]) -> None:
    with pytest.raises(UserError, match="Some train images have the name of a class as label, and others do not"):
        opened(place(tmp_path, ["flu", "", "cold"]))
    with pytest.raises(UserError, match="no labelled training images"):
        opened(place(tmp_path, ["", ""]))


# --- Parquet


def test_the_column_of_labels_can_be_named(tmp_path: Path) -> None:
    rows(tmp_path / "a.parquet", [(png(0), None), (png(1), None)], label=["x", "y"], site=[4, 3], note=["b", "a"])
    assert opened(f"parquet:{tmp_path}").classes == ("x", "y")
    np.testing.assert_array_equal(opened(f"parquet:{tmp_path}", label_column="site").splits["train"].labels, [4, 3])
    assert opened(f"parquet:{tmp_path}", label_column="note").classes == ("a", "b")
    with pytest.raises(UserError, match="no column 'image' of integers or texts") as refused:
        opened(f"parquet:{tmp_path}", label_column="image")
    assert refused.value.code == "missing"


@pytest.mark.parametrize("absolute", [True, False])
def test_rows_with_a_path_and_no_bytes_are_files_beside_the_table(tmp_path: Path, absolute: bool) -> None:
    """`Dataset.to_parquet` writes them for local pictures."""
    names = ["a/0.png", "b/1.png", "2.png", "a/3.png"]
    pictures(tmp_path, names)
    told = [(None, str(tmp_path / name) if absolute else name) for name in names]
    rows(tmp_path / "train.parquet", told, label=[0, 1, 0, 1])
    train = opened(f"parquet:{tmp_path}").splits["train"]
    np.testing.assert_array_equal(values(train), range(4))
    np.testing.assert_array_equal(values(train.part(np.array([1, 3]))), [1, 3])
    assert train.title(1) == str(tmp_path / "b/1.png")
    # The files are part of what the source is.
    (tmp_path / "2.png").write_bytes(png(2, (9, 9)))
    assert opened(f"parquet:{tmp_path}").splits["train"].listing != train.listing


def test_each_row_has_its_bytes_or_its_file_and_none_that_is_gone_is_a_null_record(tmp_path: Path) -> None:
    pictures(tmp_path, ["0.png", "1.png", "2.png"])
    told = [(None, "0.png"), (png(7), "1.png"), (None, None), (None, "2.png")]
    rows(tmp_path / "train.parquet", told, group=3, label=[0, 1, 0, 1])
    train = opened(f"parquet:{tmp_path}").splits["train"]
    assert [train.pixels(i, i + 1)[0, 0, 0, 0] for i in (0, 1, 3)] == [0, 7, 2]
    with pytest.raises(UnreadableError, match="row 2"):
        train.pixels(2, 3)
    (tmp_path / "0.png").unlink()
    with pytest.raises(UserError) as refused:
        train.pixels(0, 1)
    assert (type(refused.value), refused.value.code) == (UserError, "unreadable")


def test_a_row_without_bytes_after_one_that_has_them_stops_the_run_and_is_no_null_record(tmp_path: Path) -> None:
    """Otherwise the first row would decide whether the others are null records."""
    pictures(tmp_path, ["1.png"])
    told = [(png(0), "0.png"), (None, None), (png(2), None), (None, "1.png")]
    rows(tmp_path / "train.parquet", told, group=2, label=[0, 1, 0, 1])
    train = opened(f"parquet:{tmp_path}").splits["train"]
    with pytest.raises(UnreadableError, match="row 1"):
        train.pixels(1, 2)
    for start in (2, 3):
        with pytest.raises(UserError) as refused:
            train.pixels(start, start + 1)
        assert (type(refused.value), refused.value.code) == (UserError, "missing")


def test_rows_name_no_files_elsewhere_or_twice_or_what_is_no_file(tmp_path: Path) -> None:
    place = tmp_path / "data"
    pictures(tmp_path, ["secret.png", "data/0.png"])
    os.link(place / "0.png", place / "1.png")
    os.mkfifo(place / "pipe")
    for names, code in (
        *(([name], "missing") for name in ("../secret.png", "/etc/hostname", "nowhere.png", f"{tmp_path}/secret.png")),
        # It would count as two records.
        *((["0.png", second], "conflict") for second in ("./0.png", "1.png")),
        (["pipe"], "damaged"),
    ):
        rows(place / "train.parquet", [(None, name) for name in names], label=list(range(len(names))))
        with pytest.raises(UserError) as refused:
            opened(f"parquet:{place}")
        assert refused.value.code == code, names
        assert code == "damaged" or GUARDED in refused.value.what


# --- WebDataset


def test_what_systems_leave_in_archives_is_no_record(tmp_path: Path) -> None:
    clutter = [("._0.png", b"x"), (".DS_Store", b"x"), ("__MACOSX/._0.png", b"x"), ("Thumbs.db", b"x")]
    tar(tmp_path / "train.tar", [*clutter, ("0.png", png(0)), ("0.cls", b"1"), ("./._0.cls", b"x")])
    assert opened(f"webdataset:{tmp_path}").splits["train"].n == 1


def packed(folder: Path, facts: object, extra: tuple[tuple[str, bytes], ...] = ()) -> str:
    text = facts if isinstance(facts, bytes) else json.dumps(facts).encode()
    tar(folder / "train.tar", [("0.jpg", png(0)), ("0.json", text), ("0.txt", b"a cat"), *extra])
    return f"webdataset:{folder}"


def test_the_label_of_img2datasets_json_is_under_the_key_that_is_named(tmp_path: Path) -> None:
    facts = {"caption": "a cat", "key": "000", "status": "success", "width": 6, "breed": 2, "kind": "cat"}
    with pytest.raises(UserError, match=r"no label\. It has: 'caption', 'key', 'status'") as refused:
        opened(packed(tmp_path, facts))
    assert refused.value.fields["parameter"] == "label_column"
    np.testing.assert_array_equal(opened(packed(tmp_path, facts), label_column="breed").splits["train"].labels, [2])
    assert opened(packed(tmp_path, facts), label_column="kind").classes == ("cat",)


def test_a_class_of_its_own_comes_before_the_json_unless_a_key_is_named(tmp_path: Path) -> None:
    source = packed(tmp_path, {"label": 3}, (("0.cls", b"1"),))
    np.testing.assert_array_equal(opened(source).splits["train"].labels, [1])
    np.testing.assert_array_equal(opened(source, label_column="label").splits["train"].labels, [3])


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (b"{", "cannot be read as JSON"),
        (b"[1]", "is no JSON object"),
        (b" " * (1 << 21), "larger than 1 MiB"),
        ({"label": True}, "under 'label'"),
        ({"label": -1}, "under 'label'"),
        ({"label": 1.5}, "under 'label'"),
        ({"label": ""}, "under 'label'"),
        ({"label": 10**30}, "under 'label'"),
        ({}, "It has: nothing"),
    ],
)
def test_a_json_without_a_label_is_refused(tmp_path: Path, facts: object, says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        opened(packed(tmp_path, facts))
    assert GUARDED in refused.value.what


# --- Image folders


@pytest.mark.parametrize("top", [True, False])
def test_a_table_may_lie_beside_the_pictures_of_a_split_or_above(tmp_path: Path, top: bool) -> None:
    pictures(tmp_path, ["train/images/0.png", "train/images/1.png", "test/2.png"])
    (tmp_path / "train" / "images" / "unnamed.png").write_bytes(png(9))
    for split, names in (("train", ["images/0.png", "images/1.png"]), ("test", ["2.png"])):
        lines = [json.dumps({"file_name": name, "kind": i, "patient": "p"}) for i, name in enumerate(names)]
        (tmp_path / split / "metadata.jsonl").write_text("\n".join(lines))
    if top:
        names = ["train/images/0.png", "train/images/1.png", "test/2.png"]
        lines = [f"{name},{kind},p" for name, kind in zip(names, (0, 1, 0), strict=True)]
        (tmp_path / "metadata.csv").write_text("\n".join(["file_name,kind,patient", *lines]))
        for split in ("train", "test"):
            (tmp_path / split / "metadata.jsonl").unlink()
    found = opened(f"imagefolder:{tmp_path}", label_column="kind", classes=("a", "b"))
    assert {name: split.n for name, split in found.splits.items()} == {"train": 2, "test": 1}
    np.testing.assert_array_equal(found.splits["train"].labels, [0, 1])
    np.testing.assert_array_equal(values(found.splits["test"]), [2])
    assert found.splits["train"].name(1) == "images/1.png"


def test_folders_of_classes_come_before_a_table_unless_its_column_is_named(tmp_path: Path) -> None:
    """A set that was extracted by its folders stays the same set when a table is put there."""
    pictures(tmp_path, ["a/0.png", "b/1.png"])
    before = opened(f"imagefolder:{tmp_path}").splits["train"].listing
    (tmp_path / "metadata.csv").write_text("file_name,label\na/0.png,x\nb/1.png,y\n")
    found = opened(f"imagefolder:{tmp_path}")
    assert (found.classes, found.splits["train"].listing) == (("a", "b"), before)
    assert opened(f"imagefolder:{tmp_path}", label_column="label").classes == ("x", "y")
    with pytest.raises(UserError, match="among the 2 classes") as refused:
        opened(f"imagefolder:{tmp_path}", classes=("x", "y"))
    assert "label_column" in refused.value.remedy


@pytest.mark.parametrize(
    ("text", "label_column", "says"),
    [
        ("file_name,kind\n0.png,1\n", None, "no column of labels. It has: file_name, kind"),
        ("file_name,kind\n0.png,1\n", "label", "no column 'label'. It has: file_name, kind"),
        ("file_name,label\n0.png,1\n1.png,0\n2.png,0\n", None, "names 2 files that cannot be found, such as '1.png'"),
        (None, "label", "There is no metadata.csv or metadata.jsonl in"),
    ],
)
def test_a_table_that_does_not_fit_its_pictures_is_refused(
    tmp_path: Path, text: str | None, label_column: str | None, says: str
) -> None:
    pictures(tmp_path, ["0.png"])
    if text is not None:
        (tmp_path / "metadata.csv").write_text(text)
    with pytest.raises(UserError, match=says):
        opened(f"imagefolder:{tmp_path}", label_column=label_column)


def test_a_picture_that_a_table_names_twice_through_a_link_is_refused(tmp_path: Path) -> None:
    pictures(tmp_path, ["0.png"])
    (tmp_path / "1.png").symlink_to("0.png")
    (tmp_path / "metadata.csv").write_text("file_name,label\n0.png,1\n1.png,0\n")
    with pytest.raises(UserError, match="there twice"):
        opened(f"imagefolder:{tmp_path}")


def test_class_folders_have_folders_of_their_own_if_the_classes_are_named(tmp_path: Path) -> None:
    """Then a wrong level cannot be taken for the classes."""
    names = ["flu/p1/0.png", "flu/p1/deep/1.png", "flu/2.png", "rare/p1/3.png"]
    pictures(tmp_path, names)
    with pytest.raises(UserError, match="holds a folder") as refused:
        opened(f"imagefolder:{tmp_path}")
    assert "say which classes there are" in refused.value.remedy
    found = opened(f"imagefolder:{tmp_path}", classes=("flu", "rare")).splits["train"]
    assert [found.name(i) for i in range(found.n)] == ["flu/2.png", *names[:2], names[3]]
    np.testing.assert_array_equal(found.labels, [0, 0, 0, 1])
    np.testing.assert_array_equal(values(found), [2, 0, 1, 3])
    with pytest.raises(UserError, match="'flu' is not among"):
        opened(f"imagefolder:{tmp_path}", classes=("p1", "p2"))
    (tmp_path / "flu" / "loop").symlink_to(tmp_path / "flu")
    with pytest.raises(UserError, match="is a link to a folder"):
        opened(f"imagefolder:{tmp_path}", classes=("flu", "rare"))


def test_what_is_left_out_is_told_and_what_systems_leave_behind_is_not(tmp_path: Path) -> None:
    pictures(tmp_path, ["a/0.png", "b/1.png"])
    for name in ("a/Thumbs.db", "a/.DS_Store", "a/._0.png", "__MACOSX/a/._0.png", "a/@eaDir/0.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    found = opened(f"imagefolder:{tmp_path}")
    assert (found.classes, found.splits["train"].n, found.remarks) == (("a", "b"), 2, ())
    for name in ("a/0.heic", "a/1.HEIC", "b/IM0001"):
        (tmp_path / name).write_bytes(png(1))
    (said,) = opened(f"imagefolder:{tmp_path}").remarks
    assert "3 files (2 .heic, 1 without an ending)" in said
