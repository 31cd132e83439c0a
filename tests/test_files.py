"""Files are whole or not there, and JSON from a file is values or a ValueError."""

import errno
import hashlib
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpfc_cli import files
from dpfc_cli.files import DEEPEST, NoPlainFileError, json_in, json_of, sha256_of
from tests import instead


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
    with pytest.raises(ValueError, match="nested"):
        json_of(f"[{deep}]")


def test_a_json_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}')
    assert json_in(tmp_path / "a.json") == {"a": 1}
    os.truncate(tmp_path / "a.json", files.LARGEST_JSON + 1)
    with pytest.raises(ValueError, match="larger"):
        json_in(tmp_path / "a.json")


def test_what_is_no_plain_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        for read in (json_in, sha256_of):
            with pytest.raises(NoPlainFileError):
                read(path)


def test_a_file_that_ends_before_its_size_has_no_digest(tmp_path: Path) -> None:
    """Planted: a file that says it is longer than what can be read of it."""
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fstat", lambda descriptor: SimpleNamespace(st_size=4))
        with pytest.raises(OSError, match=re.escape(str(path))):
            sha256_of(path)
    assert sha256_of(path) == hashlib.sha256(b"abc").hexdigest()


def test_a_new_file_is_made_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    assert files.make(path, (each for each in (b"on", b"e"))) == "made"
    synced = set[int]()
    with monkeypatch.context() as patch:
        instead.synced(patch, lambda file: synced.add(os.fstat(file).st_ino))
        assert files.make(path, b"one") == "same"
    assert tmp_path.stat().st_ino in synced, "whoever made it may have been killed before its name was on disk"
    assert files.make(path, b"two") == "other"
    assert path.read_bytes() == b"one"
    os.mkfifo(tmp_path / "pipe")
    assert files.make(tmp_path / "pipe", b"one") == "other", "nobody writes to it, so to read it would take for ever"

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    instead.synced(monkeypatch, full)
    with pytest.raises(OSError, match="No space left"):
        files.make(tmp_path / "b", b"one")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "pipe"]


def test_a_file_gets_one_name_even_if_the_other_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary, path = tmp_path / "temporary", tmp_path / "file"
    temporary.write_bytes(b"abc")

    def refused(self: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EIO, "planted")

    monkeypatch.setattr(Path, "unlink", refused)
    assert files.publish(temporary, path)
    assert path.read_bytes() == b"abc"
