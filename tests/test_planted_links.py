"""A link planted at the name of a temporary file is not followed; values of records are for their owner alone."""

import os
import stat
from pathlib import Path

import pytest

from dpfc_cli.downloads import Remote, fetch
from dpfc_cli.errors import UserError
from dpfc_cli.files import replace
from dpfc_cli.heads import head as heads


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file that somebody wants us to overwrite."""
    path = tmp_path / "precious"
    path.write_bytes(b"kept")
    return path


def test_heads_follow_the_umask(tmp_path: Path) -> None:
    for umask in (0o022, 0o002, 0o077):
        before = os.umask(umask)
        try:
            place = tmp_path / oct(umask) / "a.safetensors"
            saved = heads.save(b"head", place)
            assert (saved, place.read_bytes(), mode_of(place)) == (place, b"head", 0o666 & ~umask)
        finally:
            os.umask(before)


def test_no_temporary_file_is_written_through_a_link(
    tmp_path: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names are random. Here they are guessed."""
    guessed = tmp_path / ".a.guessed.tmp"
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    for aim in (precious, tmp_path / "nothing"):
        guessed.symlink_to(aim)
        with pytest.raises(OSError, match=r"File exists"):
            replace(tmp_path / "a", b"ours")
        guessed.unlink(missing_ok=True)
        guessed.symlink_to(aim)
        with pytest.raises(UserError, match=r"cannot be written"):
            heads.try_place(tmp_path / "a")
    assert not (tmp_path / "nothing").exists()
    assert precious.read_bytes() == b"kept"


def test_a_head_is_rescued_if_its_temporary_name_is_a_link(
    tmp_path: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    place = tmp_path / "a.safetensors"
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    (tmp_path / ".a.safetensors.guessed.tmp").symlink_to(precious)
    saved = heads.save(b"head", place)
    assert (saved.read_bytes(), mode_of(saved.parent)) == (b"head", 0o700)
    assert precious.read_bytes() == b"kept"
    assert not place.exists()


def test_a_link_at_the_name_of_a_partial_download_is_removed(
    tmp_path: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFC_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "source"
    source.write_bytes(b"data" * 100)
    digest = "0" * 64
    remote = Remote(name="set/a", size=400, sha256=digest, urls=(source.as_uri(),))
    part = tmp_path / "cache" / "set" / "a.part"
    part.parent.mkdir(parents=True)
    part.symlink_to(precious)
    with pytest.raises(UserError, match=r"wrong SHA-256"):
        fetch((remote,))
    assert precious.read_bytes() == b"kept"
