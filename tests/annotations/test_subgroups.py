"""Which subgroups there are is asserted, and a value is found by its text."""

import pytest

from dpfc_cli.annotations.subgroups import codes_of, subgroups_of
from tests.support import refuses


def test_columns_and_their_values_are_asserted() -> None:
    assert subgroups_of("sex=f,m; site = a , b;") == {"sex": ("f", "m"), "site": ("a", "b")}
    assert subgroups_of(None) == {}
    for wrong in ("sex", "sex=", "=f", "sex=f,,m", "sex=f,f", "sex=f;sex=m"):
        with refuses("bad-value", parameter="subgroups"):
            subgroups_of(wrong)


@pytest.mark.parametrize("order", [("sex", "age"), ("age", "sex")])
def test_a_record_with_another_value_or_none_is_in_no_subgroup(order: tuple[str, ...]) -> None:
    values: dict[str, list[object]] = {"sex": ["m", " f", None, "x", float("nan")], "age": [1, "2", 1.5, -1, "1"]}
    known = {"sex": ("f", "m"), "age": ("1", "2")}
    found = codes_of({name: values[name] for name in order}, known)
    expected = {"sex": [1, 0, -1, -1, -1], "age": [0, 1, -1, -1, 0]}
    assert found.T.tolist() == [expected[name] for name in order]
