"""Folders of image files: folders or a table name the classes, and pictures are decoded when they are asked for."""

import json
import os
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.annotations.groups import rule_of
from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.extraction.extract import extract
from dpfc_cli.geometry import Geometry
from dpfc_cli.images.sets import ImageSet
from tests.images.pictures import SQUARE, files, open_images, png, values
from tests.support import refuses


def opened(folder: Path, **options: Any) -> ImageSet:
    return open_images(f"imagefolder:{folder}", geometry=SQUARE, **options)


def refused(folder: Path, code: str, match: str | None = None, **options: Any) -> UserError:
    with refuses(code, match) as caught:
        opened(folder, **options)
    return caught.value


def sizes(data: ImageSet) -> dict[str, int]:
    return {name: split.n for name, split in data.splits.items()}


# Labels by folders


def test_train_and_test_folders_become_splits_in_sorted_order(tmp_path: Path) -> None:
    files(tmp_path, "train/cat/z.png", "train/dog/a.png", "train/dog/b.png", "test/dog/a.png")
    data = open_images(f"imagefolder:{tmp_path}")
    train, test = data.splits["train"], data.splits["test"]
    assert (data.name, data.classes, data.origin) == ("imagefolder", ("cat", "dog"), "asserted")
    assert (train.pixels.shape, train.labels.dtype) == ((4, 6, 3), np.dtype(np.int32))
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 1, 1], [1])
    assert (values(train).tolist(), values(test).tolist()) == ([0, 1, 2], [3])
    np.testing.assert_array_equal(train.pixels(1, 2)[:, 0, 0, 0], [1])
    with pytest.raises(IndexError):
        train.pixels(0, 4)


def test_the_splits_may_go_by_the_names_that_are_usual(tmp_path: Path) -> None:
    for train in ("train", "training"):
        for test in ("test", "testing", "val", "valid", "validation", "dev"):
            place = tmp_path / f"{train}-{test}"
            files(place, f"{train}/a/1.png", f"{train}/a/2.png", f"{test}/a/1.png", "external/a/1.png")
            found = opened(place)
            assert (sizes(found), found.remarks[0].endswith(": 'external'.")) == ({"train": 2, "test": 1}, True)
    files(tmp_path / "both", "train/a/1.png", "training/a/1.png")
    refused(tmp_path / "both", "bad-value")
    # A folder called train beside others is a class.
    files(tmp_path / "class", "car/1.png", "plane/2.png", "train/3.png")
    assert opened(tmp_path / "class").classes == ("car", "plane", "train")
    files(tmp_path / "class", "train/p1/4.png")
    found = opened(tmp_path / "class", classes=("car", "plane", "train"))
    assert found.splits["train"].labels.tolist() == [0, 1, 2, 2]


def test_names_are_the_same_in_whatever_form_unicode_has_them(tmp_path: Path) -> None:
    """A Mac writes an é as two characters."""
    classes = ("Fläche", "Größe")
    files(tmp_path, *(unicodedata.normalize("NFD", f"{name}/é.png") for name in classes))
    assert opened(tmp_path).classes == classes
    assert opened(tmp_path, classes=classes[::-1]).splits["train"].labels.tolist() == [1, 0]
    lines = [f"{name}/é.png,{unicodedata.normalize('NFD', name)}" for name in classes]
    (tmp_path / "metadata.csv").write_text("\n".join(["file_name,label", *lines]))
    found = opened(tmp_path, classes=classes, label_column="label")
    assert sorted(found.splits["train"].labels.tolist()) == [0, 1]


@pytest.mark.parametrize("kind", ["symbolic", "hard", "folder", "table"])
def test_a_picture_that_would_count_twice_is_refused(tmp_path: Path, kind: str) -> None:
    """Its two records would be one picture's, and the guarantee is for one record."""
    files(tmp_path, "train/a/1.png", "train/b/2.png")
    picture, other = tmp_path / "train" / "a" / "1.png", tmp_path / "train" / "b" / "1.png"
    if kind == "hard":
        other.hardlink_to(picture)
    elif kind == "folder":
        (tmp_path / "train" / "c").symlink_to(tmp_path / "train" / "a")
    else:
        other.symlink_to(picture)
    options = {}
    if kind == "table":
        (tmp_path / "metadata.csv").write_text("file_name,label\ntrain/a/1.png,1\ntrain/b/1.png,0\n")
        options = {"label_column": "label", "classes": ("a", "b")}
    error = refused(tmp_path, "conflict", "twice", **options)
    assert GUARDED in error.what


def test_classes_are_those_of_all_splits_and_may_be_empty(tmp_path: Path) -> None:
    files(tmp_path, "train/b/1.png", "test/a/1.png")
    (tmp_path / "train" / "c").mkdir()
    data = opened(tmp_path)
    assert data.classes == ("a", "b", "c")
    assert [split.labels.tolist() for split in data.splits.values()] == [[1], [0]]


def test_asserted_classes_give_the_labels_and_change_neither_records_nor_listing(tmp_path: Path) -> None:
    files(tmp_path, "train/b/1.png", "train/c/1.png", "test/a/1.png")
    sorted_ = opened(tmp_path, classes=("a", "b", "c"))
    asserted = opened(tmp_path, classes=("c", "never seen", "a", "b"))
    assert (asserted.origin, asserted.classes) == ("asserted", ("c", "never seen", "a", "b"))
    assert [split.labels.tolist() for split in asserted.splits.values()] == [[3, 0], [2]]
    np.testing.assert_array_equal(values(asserted.splits["train"]), values(sorted_.splits["train"]))
    # They are the same records, so the budget spent on them is the same too.
    assert asserted.splits["train"].listing == sorted_.splits["train"].listing
    assert GUARDED in refused(tmp_path, "conflict", "'…'", classes=("a", "b")).what


def test_another_source_has_another_listing_wherever_it_is(tmp_path: Path) -> None:
    def listing(*names: str, extra: bytes = b"") -> str:
        place = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        files(place, *names)
        (place / names[-1]).write_bytes((place / names[-1]).read_bytes() + extra)
        return opened(place).splits["train"].listing

    before = listing("a/1.png", "a/2.png")
    assert listing("a/1.png", "a/2.png") == before
    others = [listing("a/1.png", "a/2.png", "a/3.png"), listing("a/0.png", "a/2.png"), listing("0/1.png", "0/2.png")]
    assert before not in [*others, listing("a/1.png", "a/2.png", extra=b"\0")]
    # A class without a picture: what is spent on the same pictures must add up.
    (tmp_path / "0" / "b").mkdir()
    assert opened(tmp_path / "0").splits["train"].listing == before


def test_another_layout_is_an_error_that_names_the_right_ones_and_nothing_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "class" / "a").mkdir(parents=True)
    files(tmp_path, "testing/testing/a/1.png", "unsorted/train/a/1.png", "unsorted/val/1.png")
    for place, named in (("empty", "empty"), ("class", "class"), ("unsorted", "val")):
        wrong = refused(tmp_path / place, "bad-value", named)
        assert ("PATH/train/<class>/" in wrong.remedy, wrong.exit_code) == (True, 2)
    refused(tmp_path / "nowhere", "missing", "nowhere")


def test_class_folders_may_have_folders_of_their_own(tmp_path: Path) -> None:
    """Then a wrong level cannot be taken for the classes."""
    names = ["flu/p1/0.png", "flu/p1/deep/1.png", "flu/2.png", "rare/p1/3.png"]
    files(tmp_path, *names)
    assert refused(tmp_path, "conflict", classes=None).fields["parameter"] == "classes"
    found = opened(tmp_path, classes=("flu", "rare")).splits["train"]
    assert [found.pixels.name(i) for i in range(found.n)] == ["flu/2.png", *names[:2], names[3]]
    assert (found.labels.tolist(), values(found).tolist()) == ([0, 0, 0, 1], [2, 0, 1, 3])
    refused(tmp_path, "conflict", "PERSON", classes=("p1", "p2"))
    (tmp_path / "flu" / "loop").symlink_to(tmp_path / "flu")
    refused(tmp_path, "bad-value", classes=("flu", "rare"))


def test_what_is_left_out_is_told_and_what_systems_leave_behind_is_not(tmp_path: Path) -> None:
    files(tmp_path, "a/0.PNG", "b/1.JpEg")
    for name in ("a/Thumbs.db", "a/.DS_Store", "a/._0.png", "__MACOSX/a/._0.png", "a/@eaDir/0.png", ".hidden/1.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    found = opened(tmp_path)
    assert (found.classes, found.splits["train"].n, found.remarks) == (("a", "b"), 2, ())
    files(tmp_path, "a/0.heic", "a/1.HEIC", "b/IM0001", "b/scan.anna müller", "b/1.2.840.851241")
    (said,) = opened(tmp_path).remarks
    assert "5 files (2 .heic, 2 of other endings, 1 without an ending)" in said


def test_what_is_no_file_or_cannot_be_read_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    place = tmp_path / "a" / "1.png"
    os.mkfifo(place)
    refused(tmp_path, "bad-value", "'…'")
    for target, code in (("/dev/zero", "bad-value"), ("nowhere", "missing"), ("1.png", "unreadable")):
        place.unlink()
        place.symlink_to(target)
        assert "1.png'" in str(refused(tmp_path, code, "'…'").full)
    place.unlink()
    (tmp_path / "b").symlink_to("b")
    refused(tmp_path, "unreadable", "'…'")


def test_names_that_are_not_utf8_are_those_of_files_and_of_no_class(tmp_path: Path) -> None:
    try:
        files(tmp_path / "good", *(os.fsdecode(name) for name in (b"a/1\xff.png", b"b/1.png")))
        files(tmp_path / "bad", *(os.fsdecode(name) for name in (b"a/1.png", b"b\xff/1.png")))
    except OSError:
        pytest.skip("this file system has no such names")
    assert values(opened(tmp_path / "good").splits["train"]).tolist() == [0, 1]
    # No manifest could hold it. The extraction ended with a defect, after all pictures.
    with refuses("conflict", parameter="classes") as error:
        extract(f"imagefolder:{tmp_path / 'bad'}", image_size=8, out=tmp_path / "set", classes=("a", "b"))
    str(error.value).encode()
    assert "b\\udcff'" in (tmp_path / "set.refused.txt").read_text()


# Pictures


def test_only_the_images_asked_for_are_decoded_and_none_of_gigabytes_is_read(tmp_path: Path) -> None:
    files(tmp_path, "a/1.png")
    (tmp_path / "a" / "2.png").write_bytes(b"no image")
    (tmp_path / "a" / "3.png").write_bytes(b"")
    os.truncate(tmp_path / "a" / "3.png", 1 << 40)
    train = opened(tmp_path).splits["train"]
    assert train.pixels(0, 1).shape == (1, 8, 8, 3)
    with refuses("bad-record", parameter="on_error"):
        train.pixels(1, 2)
    with refuses("bad-record", parameter="on_error"):
        train.pixels(2, 3)


def test_without_an_image_size_all_images_must_have_the_size_of_the_first(tmp_path: Path) -> None:
    files(tmp_path, "a/1.png")
    (tmp_path / "a" / "2.png").write_bytes(png(2, (4, 6)))
    train = open_images(f"imagefolder:{tmp_path}").splits["train"]
    with refuses("bad-record", match="do not publish", parameter="on_error"):
        train.pixels(0, 2)
    files(tmp_path / "split", "train/a/1.png", "test/a/1.png")
    (tmp_path / "split" / "test" / "a" / "1.png").write_bytes(png(2, (4, 6)))
    with refuses("conflict", parameter="image_size"):
        open_images(f"imagefolder:{tmp_path / 'split'}")
    six = Geometry(resize=6, crop=6)
    for size in ((9, 6), (6, 9), (6, 6), (60, 7), (3, 2), (1, 1000)):
        (tmp_path / "a" / "2.png").write_bytes(png(2, size))
        train = open_images(f"imagefolder:{tmp_path}", geometry=six, classes=("a", "split")).splits["train"]
        assert train.pixels(0, 2).shape == (2, 6, 6, 3)


# Labels in a table


@pytest.mark.parametrize("top", [True, False])
def test_a_table_may_lie_beside_the_pictures_of_a_split_or_above(tmp_path: Path, top: bool) -> None:
    names = ["train/images/0.png", "train/images/1.png", "test/2.png"]
    files(tmp_path, *names, "train/images/unnamed.png")
    if top:
        lines = [f"{name},{kind},p" for name, kind in zip(names, (0, 1, 0), strict=True)]
        (tmp_path / "metadata.csv").write_text("\n".join(["file_name,kind,patient", *lines]))
    else:
        for split, own in (("train", ["images/0.png", "images/1.png"]), ("test", ["2.png"])):
            lines = [json.dumps({"file_name": name, "kind": i, "patient": "p"}) for i, name in enumerate(own)]
            (tmp_path / split / "metadata.jsonl").write_text("\n".join(lines))
    found = opened(tmp_path, label_column="kind", classes=("a", "b"))
    assert sizes(found) == {"train": 2, "test": 1}
    assert (found.splits["train"].labels.tolist(), values(found.splits["test"]).tolist()) == ([0, 1], [2])
    assert found.splits["train"].pixels.name(1) == "images/1.png"
    # One picture is in no line. Nobody shall believe that it was used.
    assert [": 1 picture." in said for said in found.remarks] == [True]


def test_a_column_of_splits_says_which_pictures_are_for_testing(tmp_path: Path) -> None:
    files(tmp_path, *(f"{i}.png" for i in range(5)))
    rows = [f"{i}.png,{'ab'[i % 2]},{split}" for i, split in enumerate(("test", "train", "val", "TEST", "Training"))]
    (tmp_path / "metadata.csv").write_text("\n".join(["file_name,label,Split", *rows]))
    found = opened(tmp_path, classes=("a", "b"))
    assert {name: values(split).tolist() for name, split in found.splits.items()} == {"train": [1, 4], "test": [0, 3]}
    assert [said.endswith(": 'val'.") for said in found.remarks] == [True]
    (tmp_path / "metadata.csv").write_text("\n".join(["file_name,label,split", *rows, "5.png,a,fold 1"]))
    refused(tmp_path, "bad-record", classes=("a", "b"))


def test_folders_of_classes_come_before_a_table_unless_its_column_is_named(tmp_path: Path) -> None:
    """A set that was extracted by its folders stays the same set when a table is put there."""
    files(tmp_path, "a/0.png", "b/1.png")
    before = opened(tmp_path).splits["train"].listing
    (tmp_path / "metadata.csv").write_text("file_name,label\na/0.png,x\nb/1.png,y\n")
    found = opened(tmp_path)
    assert (found.classes, found.splits["train"].listing) == (("a", "b"), before)
    assert ["metadata.csv" in said for said in found.remarks] == [True]
    assert opened(tmp_path, label_column="label", classes=("y", "x")).splits["train"].labels.tolist() == [1, 0]
    assert "label_column" in refused(tmp_path, "conflict", classes=("x", "y")).remedy


def test_class_folders_count_beside_a_table_of_persons(tmp_path: Path) -> None:
    files(tmp_path / "bilder", "a/0.png", "a/1.png", "b/2.png")
    place = tmp_path / "patienten.csv"
    place.write_text("Bild;Patientennummer\na/0.png;7\na/1.png;8\nb/2.png;7\n")
    given = {"table": place, "group_by": rule_of("column:Patientennummer")}
    error = refused(tmp_path / "bilder", "missing", "2 .*'…'", **given)
    assert error.fields["parameter"] == "file_column"
    found = opened(tmp_path / "bilder", file_column="Bild", **given)
    train = found.splits["train"]
    assert (found.classes, train.labels.tolist()) == (("a", "b"), [0, 0, 1])
    assert train.keys is not None
    assert train.keys.codes.tolist() == [0, 1, 0]
    # A table whose names begin elsewhere: which pictures it lacks is said, and where its names begin.
    place.write_text("file_name,Patientennummer\nbilder/a/0.png,7\na/1.png,8\n")
    error = refused(tmp_path / "bilder", "bad-record", "2 pictures", **given)
    assert (f"begin in '{tmp_path / 'bilder'}'" in error.what, "\na/0.png\nb/2.png\n" in str(error.full)) == (
        True,
        True,
    )


def test_folders_of_persons_above_those_of_classes_are_refused(tmp_path: Path) -> None:
    """Nobody is led to give the names of patients as classes."""
    files(tmp_path, "Müller/flu/0.png", "Müller/cold/1.png", "Meier/flu/2.png")
    rule = rule_of("folder:1")
    refused(tmp_path, "conflict", "PERSON", classes=("flu", "cold"), group_by=rule)
    refused(tmp_path, "conflict", "2 labels", classes=("flu", "none"), group_by=rule)


def test_a_table_that_does_not_fit_its_pictures_is_refused(tmp_path: Path) -> None:
    files(tmp_path, "0.png", "3.png", "4.png")
    given = {"label_column": "label", "classes": ("a", "b"), "group_by": rule_of("column:p")}
    refused(tmp_path, "missing", "metadata.csv or metadata.jsonl", **given)
    for text, label_column, code, says in (
        ("file_name,kind,p\n0.png,1,1\n", None, "missing", "3 .*'…'"),
        ("file_name,kind,p\n0.png,1,1\n", "label", "missing", "'label'.* 3 .*'…'"),
        # All that keeps lines from being records is said at once.
        ("file_name,label,p\n/1,1,1\n0.png,1,\n3.png,,1\n4.png,1,1\n4.png,1,1\n", None, "bad-record", "and 2 more"),
    ):
        (tmp_path / "metadata.csv").write_text(text)
        refused(tmp_path, code, says, **{**given, "label_column": label_column})
    (tmp_path / "metadata.csv").write_text("Bild;Diagnose;Fall\n0.png;1;7\n")
    error = refused(tmp_path, "missing", "'who'", group_by=rule_of("column:who"))
    assert all(f"‹{option}›" in error.remedy for option in ("file_column", "label_column", "group_by"))


def test_a_table_may_lie_anywhere_and_have_names_without_endings(tmp_path: Path) -> None:
    """As people have them: of another name, with other columns, beside folders that are no classes."""
    files(tmp_path / "pictures", "part 1/p17.png", "part 1/p18.png", "part 2/é.jpg")
    rows = (
        "id;Diagnosis;who",
        "part 1/p17;flu;1",
        "part 1/p18.png;cold;2",
        f"part 2/{unicodedata.normalize('NFD', 'é')};flu;1",
    )
    for place in (tmp_path / "elsewhere.CSV", tmp_path / "pictures" / "labels.csv"):
        place.write_text("\n".join(rows), encoding="utf-8-sig")
        given = {"table": place, "label_column": "Diagnosis", "classes": ("cold", "flu")}
        error = refused(tmp_path / "pictures", "missing", "3 ", **given)
        assert (error.fields["parameter"], "Diagnosis;" in error.what) == ("file_column", False)
        given["group_by"] = rule_of("column:who")
        found = opened(tmp_path / "pictures", file_column="id", **given).splits["train"]
        assert [found.pixels.name(i) for i in range(3)] == ["part 1/p17.png", "part 1/p18.png", "part 2/é.jpg"]
        assert (found.labels.tolist(), found.keys and found.keys.codes.tolist()) == ([1, 0, 1], [0, 1, 0])
