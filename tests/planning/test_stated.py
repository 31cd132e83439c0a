"""Public facts as the user states them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.planning.forecast import stated_facts
from dpfc_cli.privacy.facts import Facts

STATED = ("features", "records", "persons", "classes", "model", "dimensions", "on", "adjacency")


def facts(**stated: Any) -> Facts:
    return stated_facts(**(dict.fromkeys(STATED) | {"classes": 2, "dimensions": 6} | stated))


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"records": 100}, Facts(n=100, m=2, d=6)),
        ({"records": 2, "dimensions": 1}, Facts(n=2, m=2, d=1)),
        ({"records": 10**12}, Facts(n=10**12, m=2, d=6)),
        ({"persons": 50}, Facts(n=50, m=2, d=6, rows=50, unit="person")),
        ({"persons": 50, "records": 50}, Facts(n=50, m=2, d=6, rows=50, unit="person")),
        ({"persons": 50, "records": 51}, Facts(n=50, m=2, d=6, rows=51, unit="person")),
        ({"records": 9, "adjacency": "replace-one"}, Facts(n=9, m=2, d=6, adjacency="replace-one")),
        ({"records": 9, "classes": ("flu", "cold", "none")}, Facts(n=9, m=3, d=6)),
    ],
)
def test_facts_are_what_is_stated(stated: dict[str, Any], expected: Facts) -> None:
    assert facts(**stated) == expected


def test_classes_may_be_stated_as_a_file_of_names(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("flu\ncold\nnone\n")
    assert facts(records=9, classes=tmp_path / "classes.txt").m == 3


def test_numbers_of_numpy_become_plain_ones() -> None:
    """What is said of a forecast is written as JSON."""
    found = facts(records=np.int64(9), persons=np.int32(5), classes=np.int64(3), dimensions=np.uint8(4))
    assert found == Facts(n=5, m=3, d=4, rows=9, unit="person")
    assert {type(found.n), type(found.m), type(found.d), type(found.rows)} == {int}


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"records": 1}, "records is a whole number of at least 2, not 1"),
        ({"records": 2.5}, "not 2.5"),
        ({"records": True}, "at least 2, not True"),
        ({"records": 10**12 + 1}, "not 1000000000001"),
        ({"records": 9, "dimensions": True}, "dimensions is a whole number of at least 1, not True"),
        ({"records": 9, "dimensions": 0}, "at least 1, not 0"),
        ({"records": 9, "classes": 1}, "classes is a whole number of at least 2, not 1"),
        ({"records": 9, "classes": 3.0}, "must give two or more different names"),
        ({"records": 9, "persons": 10}, "There are 9 records of 10 persons"),
        ({"records": 9, "adjacency": "remove-one"}, "adjacency"),
    ],
)
def test_what_makes_no_sense_is_refused(stated: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        facts(**stated)
