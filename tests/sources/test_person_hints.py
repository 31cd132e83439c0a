"""Which names and which values make dpfc ask whether records are of one person."""

from dpfc_cli.sources.groups import USUAL_NAMES, names_persons
from dpfc_cli.sources.person_hints import column_of, level_of, repeat


def test_names_of_persons_are_known_however_they_are_written() -> None:
    persons = "PatientID,patient id,Patient-Number,subject,Subjects,anon_subject_id,case_submitter_id,groups,id,ID,MRN"
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
