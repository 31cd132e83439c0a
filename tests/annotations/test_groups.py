"""Rules that say which pictures are of one person."""

import pytest

from dpfc_cli.annotations.groups import keys_of, rule_of
from dpfc_cli.errors import UserError
from tests.support import refuses


def test_rules_that_are_none_are_refused() -> None:
    levels = [f"folder:{level}" for level in ("0", "-1", "x", "1.5", "²", "9" * 5_000)]
    for text in ("", "folder", "table:a.csv", ":", "name:", "1", *levels, "name:p[0-9]+", "name:(?:p)", "name:(p"):
        with refuses("bad-value", parameter="group_by"):
            rule_of(text)


def test_what_a_manifest_says_of_a_rule_holds_no_name() -> None:
    said = [rule_of(text).describe() for text in ("folder:2", "name:(anna|otto)", "column:mrn")]
    assert said == [{"by": "folder", "level": 2}, {"by": "name"}, {"by": "column", "column": "mrn"}]


def test_spellings_of_one_name_are_one_person() -> None:
    for one, *others in (
        ("P1", "p1", " p1 "),
        ("JÜRGEN", "ju\u0308rgen\t"),
        ("Strauß", "STRAUSS"),
        ("Lee, Ann", "Lee,  Ann"),
        (7, "7", "7 ", "007", "7.0"),
        ("O'Neil", "O\u2019NEIL", "o'neil\u200b"),
    ):
        assert set(keys_of([one, *others], "t", str).codes.tolist()) == {0}
    assert keys_of(["p1", "p 1", "1 p", "p11", "-7", 7], "t", str).codes.tolist() == [0, 1, 2, 3, 4, 5]
    for nobody in ("#N/A", "#NV", "#BEZUG!", "#DIV/0!", "NaN", "?", ""):
        with pytest.raises(UserError) as caught:
            keys_of(["p1", nobody], "t", str)
        assert caught.value.code == "bad-record"
