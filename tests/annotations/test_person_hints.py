"""Records that seem to be of one person are noticed in every format, and harmless ones are not."""

import json
from pathlib import Path
from typing import Any

import pytest

from dpfc_cli.annotations.groups import USUAL_NAMES, names_persons
from dpfc_cli.annotations.person_hints import PersonsNoticedError, column_of, level_of, repeat
from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.extraction.extract import extract
from tests.images import test_persons as persons
from tests.images.pictures import SQUARE, files, open_images

CLASSES = ("a", "b")


def test_names_of_persons_are_known_however_they_are_written() -> None:
    persons = "PatientID,patient id,Patient-Number,subject,Subjects,anon_subject_id,case_submitter_id,groups,id,ID,MRN"
    persons += ",record_id,PTID,RID,eid,sub,USUBJID"
    others = "label,age,patient_age,PatientSex,file_name,name,key,caption,f17,grid,staircase"
    assert all(map(names_persons, (*persons.split(","), *USUAL_NAMES)))
    assert not any(map(names_persons, others.split(",")))


def test_persons_are_values_that_come_twice_beside_another() -> None:
    for values in (["a", "b", "a"], [1, 2, 3, 4, 1], [" a", "b", "A "], [*range(100_000), 5]):
        assert repeat(values)
    nan = float("nan")
    for none in (range(100_000), [*"abc", None, None, "", ""], [1.0, nan, nan, 2.0], ["unknown"] * 50, []):
        assert not repeat(none)


def test_an_id_that_counts_the_records_of_each_file_names_no_persons() -> None:
    counted = [*range(40), *range(25), *map(str, range(10))]
    assert column_of({"id": counted}) is None
    assert column_of({"id": [1, 1, 1, 2, 2, 3]}) == "id"
    # A column that is called after persons may count them.
    assert column_of({"patient_id": counted}) == "patient_id"


def test_folders_name_persons_where_several_hold_pictures_and_one_several() -> None:
    cases: list[tuple[list[str], list[int] | None, int | None]] = [
        (["1.png", "2.png"], None, None),
        (["p1/1.png", "p1/2.png", "p2/1.png"], None, 1),
        (["p1/1.png", "p2/1.png", "3.png"], None, None),
        (["p1/a.png", "p2/a.png", "p1/a.png"], None, 1),
        # One folder for all names no persons, and one for each class names the classes.
        (["images/1.png", "images/2.png"], None, None),
        (["images/p1/1.png", "images/p1/2.png", "images/p2/1.png"], None, 2),
        (["cat/1.png", "cat/2.png", "dog/1.png"], [0, 0, 1], None),
        (["cat/p1/1.png", "cat/p1/2.png", "dog/p2/1.png", "dog/p3/1.png"], [0, 0, 1, 1], 2),
        (["p1/1.png", "p1/2.png", "p2/1.png"], [0, 1, 1], 1),
    ]
    for names, labels, level in cases:
        assert level_of(names, labels) == level, names


def noticed(source: str, classes: tuple[str, ...] = CLASSES) -> str | None:
    return open_images(source, geometry=SQUARE, classes=classes).noticed()


def test_the_rule_that_would_protect_persons_is_found(tmp_path: Path) -> None:
    for made, rule in (
        (persons.folders, "folder:1"),
        (persons.beside, "column:patient"),
        (persons.parquet, "column:patient"),
        (persons.parquet_of_integers, "column:patient"),
    ):
        (tmp_path / made.__name__).mkdir()
        assert noticed(made(tmp_path / made.__name__)[0]) == rule


def test_folders_of_persons_are_noticed_over_splits_and_where_a_table_has_the_labels(tmp_path: Path) -> None:
    names: tuple[str, ...] = ("train/a/p1/1.png", "train/b/p2/1.png", "test/a/p1/1.png")
    assert noticed(files(tmp_path / "splits", *names)) == "folder:1"
    names = ("p1/1.png", "p1/2.png", "p2/1.png")
    source = files(tmp_path / "table", *names)
    for labels, rule in (("aab", None), ("abb", "folder:1")):
        lines = [f"{name},{label}" for name, label in zip(names, labels, strict=True)]
        (tmp_path / "table" / "metadata.csv").write_text("\n".join(["file_name,label", *lines]))
        assert open_images(source, geometry=SQUARE, classes=CLASSES, label_column="label").noticed() == rule


def test_persons_in_a_table_are_noticed_and_one_that_is_none_raises_no_alarm(tmp_path: Path) -> None:
    source = files(tmp_path, "a/1.png", "b/1.png", "b/2.png")
    for text in ("file_name,age,id\na/1.png,7,1\nb/1.png,7,2\nb/2.png,7,3", "patient,of\nx,a\nx,b\ny,b", '"'):
        (tmp_path / "metadata.csv").write_text(text)
        assert noticed(source) is None
    source = files(tmp_path / "labels", "1.png", "2.png", "3.png")
    rows = [{"file_name": f"{i}.png", "label": "ab"[i % 2], "Patient ID": "xy"[i > 1]} for i in (1, 2, 3)]
    (tmp_path / "labels" / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert noticed(source) == "column:Patient ID"


def test_an_extraction_that_would_protect_less_than_persons_is_refused(tmp_path: Path) -> None:
    source, rule = persons.folders(tmp_path / "secret clinic")
    made: dict[str, Any] = {"pool": "mean", "image_size": 8, "classes": CLASSES, "out": tmp_path / "set"}
    with pytest.raises(PersonsNoticedError) as refused:
        extract(source, **made)
    assert (refused.value.code, refused.value.fields["found"]) == ("conflict", rule)
    assert refused.value.fields["parameter"] == "each_record_is_a_person"
    said = str(refused.value)
    assert GUARDED in said
    assert f"group_by='{rule}'" in said
    # Nothing that is a value of a record: neither a folder below the class nor a file.
    assert not any(name in said.replace(source, "") for name in (*set(persons.WHO), ".png"))
    assert not (tmp_path / "set").exists()
    single = extract(source, **made, each_record_is_a_person=True).features
    assert single is not None
    assert single.manifest.grouped_by is None
    with pytest.raises(UserError) as both:
        extract(source, **made, group_by=rule, each_record_is_a_person=True)
    assert both.value.fields["parameter"] == "each_record_is_a_person"
