"""The decoder takes what a record would be written as, and nothing else; it says where the first fault is."""

import json
import math
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfc_cli.files import json_of
from dpfc_cli.structs import Count, Digest, Fault, Fraction, Open, Record, Scalar, Values, decoded, encoded


class Inner(Record, omit_defaults=True):
    rate: Fraction
    times: Count | None = None


class Some(Open):
    name: str = ""


class Outer(Record, omit_defaults=True):
    n: Count
    word: Literal["a", "b"]
    digest: Digest
    inner: tuple[Inner, ...]
    options: Mapping[str, Scalar | tuple[Scalar, ...]]
    free: Values
    spent: float | None
    note: str | None = None


WHOLE: dict[str, Any] = {
    **{"n": 1, "word": "a", "digest": "0" * 64, "inner": [{"rate": 1}, {"rate": 0.5, "times": 2}]},
    **{"options": {"x": [1, 0.5, None], "y": True}, "free": {"a": [{}]}, "spent": None},
}
NO_WORDS: list[Any] = ["c", "", None, 1]
NO_OPTIONS: list[Any] = [{}, [[]], [{}], math.nan, math.inf, 2**60]
NO_OBJECTS: list[Any] = [[], None, "x"]
FAULTS: list[tuple[dict[str, Any], str]] = [
    *(({"n": value}, "n") for value in (0, -1, True, 1.0, 2**53 + 1, 2**70, "1", None, [1])),
    *(({"word": value}, "word") for value in NO_WORDS),
    *(({"digest": value}, "digest") for value in ("0" * 63, "0" * 64 + "\n", "G" * 64, "\ud800" * 64)),
    *(({"inner": [{"rate": value}]}, "inner[0].rate") for value in (-1e-9, 1.1, math.nan, math.inf, True, "1", None)),
    ({"inner": [{"rate": 1}, {"rate": 1, "times": None}]}, "inner[1].times"),
    ({"inner": [{"rate": 1, "more": 1}]}, "inner[0].more"),
    ({"inner": [{}]}, "inner[0].rate"),
    ({"inner": {}}, "inner"),
    *(({"options": {"x": value}}, "options") for value in NO_OPTIONS),
    *(({"free": value}, "free") for value in NO_OBJECTS),
    ({"spent": math.nan}, "spent"),
    ({"note": None}, "note"),
    ({"more": 1}, "more"),
    # The library cannot say where half a character stands.
    *(({name: 1 if name == "\ud800" else "\ud800"}, "it") for name in ("word", "\ud800")),
]


def test_a_record_is_written_as_it_was_read() -> None:
    found = decoded(json_of(json.dumps(WHOLE)), Outer)
    assert json.loads(json.dumps(encoded(found))) == WHOLE
    assert decoded({**WHOLE, "note": "x"}, Outer).note == "x"
    assert decoded({"name": "x", "more": 1, "\ud800": {}}, Some) == Some(name="x")


@pytest.mark.parametrize(("changed", "place"), FAULTS, ids=repr)
def test_what_no_record_is_written_as_is_refused_at_its_place(changed: dict[str, Any], place: str) -> None:
    with pytest.raises(Fault) as caught:
        decoded({**WHOLE, **changed}, Outer)
    assert caught.value.place.startswith(place)


@pytest.mark.parametrize("name", list(WHOLE))
def test_a_key_that_must_be_there_is_named(name: str) -> None:
    with pytest.raises(Fault) as caught:
        decoded({key: value for key, value in WHOLE.items() if key != name}, Outer)
    assert caught.value.place == name


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(WHOLE)), JSON)
def test_any_value_at_any_place_is_kept_or_refused(name: str, value: Any) -> None:
    """The decoder is of another language: whatever it meets, this process goes on."""
    try:
        found = decoded({**WHOLE, name: value}, Outer)
    except Fault:
        return
    assert json.loads(json.dumps(encoded(found)))[name] == json.loads(json.dumps(value))
