"""Which names and which values make dpfc ask whether records are of one person."""

from collections.abc import Sequence

import pytest

from dpfc_cli.sources.groups import USUAL_NAMES, names_persons
from dpfc_cli.sources.noticed import column_of, level_of, repeat

PERSONS = ("PatientID", "patient id", "Patient-Number", "subject", "Subjects", "anon_subject_id", "case_submitter_id")
OTHERS = (
    "label",
    "age",
    "patient_age",
    "PatientSex",
    "file_name",
    "name",
    "key",
    "caption",
    "f17",
    "grid",
    "staircase",
)


@pytest.mark.parametrize("name", [*PERSONS, *USUAL_NAMES, "groups", "id", "ID", "MRN", "participant", "case"])
def test_names_of_persons_are_known_however_they_are_written(name: str) -> None:
    assert names_persons(name)


@pytest.mark.parametrize("name", OTHERS)
def test_other_names_raise_no_alarm(name: str) -> None:
    assert not names_persons(name)


@pytest.mark.parametrize(
    ("values", "several"),
    [
        (["a", "b", "a"], True),
        ([1, 2, 3, 4, 1], True),
        ([" a", "b", "a "], True),
        (range(100_000), False),
        ([*range(100_000), 5], True),
        ([*"abc", None, None, "", ""], False),
        ([1.0, float("nan"), float("nan"), 2.0], False),
        (["unknown"] * 50, False),
        ([], False),
    ],
)
def test_persons_are_values_that_come_twice_beside_another(values: Sequence[object], several: bool) -> None:
    assert repeat(values) == several


def test_an_id_that_counts_the_records_of_each_file_names_no_persons() -> None:
    counted = [*range(40), *range(25), *map(str, range(10))]
    assert column_of({"id": counted}) is None
    assert column_of({"id": [1, 1, 1, 2, 2, 3]}) == "id"
    # A column that is called after persons may count them.
    assert column_of({"patient_id": counted}) == "patient_id"


@pytest.mark.parametrize(
    ("names", "labels", "level"),
    [
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
    ],
)
def test_folders_name_persons_where_several_hold_pictures_and_one_several(
    names: list[str], labels: list[int] | None, level: int | None
) -> None:
    assert level_of(names, labels) == level
