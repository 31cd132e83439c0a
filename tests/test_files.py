"""Files are whole or not there, and JSON from a file is values or a ValueError."""

import os
from pathlib import Path

import pytest

from dpfc_cli import files
from dpfc_cli.files import DEEPEST, NoPlainFileError, json_in, json_of, sha256_of


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


def test_json_of_any_depth_that_is_read_can_be_written_again() -> None:
    deep = "[" * DEEPEST + "]" * DEEPEST
    assert json_of(deep)
    with pytest.raises(ValueError, match="nested too deeply"):
        json_of(f"[{deep}]")


def test_a_json_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}')
    assert json_in(tmp_path / "a.json") == {"a": 1}
    monkeypatch.setattr(files, "LARGEST_JSON", 7)
    with pytest.raises(ValueError, match="larger than"):
        json_in(tmp_path / "a.json")


def test_what_is_no_plain_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        for read in (json_in, sha256_of):
            with pytest.raises(NoPlainFileError):
                read(path)
