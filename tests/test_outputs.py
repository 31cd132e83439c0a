"""Files that a user names: whole or not at all, and never over another file."""

import errno
import os
from pathlib import Path

import pytest

from dpfc_cli import files, outputs
from tests.support import refuses


def test_a_file_is_made_once_and_another_one_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    assert outputs.write(path, [b"a", b"b"])
    assert not outputs.write(path, b"ab")
    with refuses("exists", parameter="out"):
        outputs.write(path, b"c")
    assert path.read_bytes() == b"ab"
    assert [each.name for each in path.parent.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("fails", ["write_synced", "publish"])
def test_a_disk_that_fails_leaves_nothing(tmp_path: Path, fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: object, **__: object) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, fails, full)
    with refuses("unwritable", parameter="out"):
        outputs.write(tmp_path / "a.npz", b"whole")
    assert not list(tmp_path.iterdir())


def test_a_name_must_be_seen_and_end_as_its_format_does() -> None:
    outputs.check(Path("a.NPZ"), (".npz",))
    for name in ("a.pt", "a\x1b.npz", "-.npz", "none/a.npz"):
        with refuses("missing" if "/" in name else "bad-value", parameter="out"):
            outputs.check(Path(name), (".npz", ".html"))
