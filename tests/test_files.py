"""Files are whole or not there, and JSON from a file is values or a ValueError."""

import pytest

from dpfc_cli.files import json_of


def test_json_is_read() -> None:
    assert json_of(b'{"a": [1, 2.5, null, "\xc3\xa9"]}') == {"a": [1, 2.5, None, "é"]}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 100_000, '{"a":' * 100_000, "NaN", "[-Infinity]", "1e400", "-1e999", "9" * 5_000, b"\xff"],
    ids=lambda text: str(text[:12]),
)
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        json_of(text)
