"""A link planted at the name of a temporary file is not followed; values of records are for their owner alone."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.digests import note
from dpfc_cli.features.manifest import MANIFEST
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.features.shards import PlannedShard
from dpfc_cli.features.writer import FeatureWriter
from dpfc_cli.files import replace, write_synced
from dpfc_cli.heads import head as heads
from dpfc_cli.images.dataset import Remote
from dpfc_cli.images.download import fetch


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o022, 0o002, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield int(request.param)
    os.umask(before)


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file that somebody wants us to overwrite."""
    path = tmp_path / "precious"
    path.write_bytes(b"kept")
    return path


def writer(folder: Path) -> FeatureWriter:
    rows = {"train": 6}
    return FeatureWriter(
        folder, rows=rows, dim=2, dtype="float32", labels_per_record=1, identity={"made": "up"}, shards=2
    )


def fill(made: FeatureWriter, planned: PlannedShard) -> None:
    with made.shard(planned) as sink:
        sink.append(np.ones((planned.rows, 2), np.float32), np.zeros(planned.rows, np.int32))


def test_a_shard_is_its_owners_from_the_first_byte_on(tmp_path: Path, umask: int) -> None:
    made = writer(tmp_path / "set")
    first, second = made.missing
    with made.shard(first) as sink:
        assert mode_of(tmp_path / "set.partial" / f"{first.file}.tmp") == 0o600
        sink.append(np.ones((3, 2), np.float32), np.zeros(3, np.int32))
    # A process was killed, or an earlier version began it.
    made.close()
    left = tmp_path / "set.partial" / f"{second.file}.tmp"
    left.write_bytes(b"begun")
    left.chmod(0o644)
    again = writer(tmp_path / "set")
    assert [planned.file for planned in again.missing] == [second.file]
    fill(again, second)
    again.close()
    assert {mode_of(path) for path in (tmp_path / "set.partial").glob("*.h5")} == {0o600}


def test_digests_of_records_are_not_written_to_a_file_that_others_may_read(tmp_path: Path) -> None:
    planted = tmp_path / "train-00000-of-00001.h5.digests"
    planted.touch()
    planted.chmod(0o644)
    with planted.open() as theirs:
        note(planted, [np.ones(3, np.uint64)])
        assert theirs.read() == ""
    assert mode_of(planted) == 0o600


def test_sets_have_private_shards_and_a_manifest_that_can_be_shown(tmp_path: Path, umask: int) -> None:
    np.savez(tmp_path / "a.npz", train_x=np.ones((6, 2), np.float32), train_y=np.arange(6) % 2)
    made = import_features(tmp_path / "a.npz", str(tmp_path / "set"), classes=2).features
    assert {mode_of(path) for path in made.folder.glob("*.h5")} == {0o600}
    assert mode_of(made.folder / MANIFEST) == 0o666 & ~umask
    FeatureSet(made.folder).verify("train")


def test_heads_follow_the_umask(tmp_path: Path, umask: int) -> None:
    place = tmp_path / "heads" / "a.safetensors"
    saved = heads.save(b"head", place, heads.reserve(place))
    assert (saved, place.read_bytes(), mode_of(place)) == (place, b"head", 0o666 & ~umask)


def test_a_link_at_the_name_of_a_shard_is_replaced(tmp_path: Path, precious: Path) -> None:
    made = writer(tmp_path / "set")
    for planned in made.missing:
        (tmp_path / "set.partial" / f"{planned.file}.tmp").symlink_to(precious)
        fill(made, planned)
    assert precious.read_bytes() == b"kept"
    assert all(not path.is_symlink() for path in (tmp_path / "set.partial").iterdir())


def test_a_link_at_the_name_of_a_partial_set_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "set.partial").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"cannot be written"):
        writer(tmp_path / "set")
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("there", [True, False], ids=("to a file", "to nothing"))
def test_no_temporary_file_is_written_through_a_link(
    tmp_path: Path, precious: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """The names are random. Here they are guessed."""
    aim = precious if there else tmp_path / "nothing"
    guessed = tmp_path / ".a.guessed.tmp"
    guessed.symlink_to(aim)
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    with pytest.raises(OSError, match=r"File exists"):
        replace(tmp_path / "a", b"ours")
    guessed.unlink(missing_ok=True)
    guessed.symlink_to(aim)
    with pytest.raises(UserError, match=r"cannot be written"):
        heads.reserve(tmp_path / "a")
    for kept in (True, False):
        with pytest.raises(OSError, match=r"File exists|Too many levels of symbolic links"):
            write_synced(guessed, b"ours", kept)
    assert not (tmp_path / "nothing").exists()
    assert precious.read_bytes() == b"kept"


def test_a_head_is_rescued_if_its_reserved_place_became_a_link(
    tmp_path: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    place = tmp_path / "a.safetensors"
    temporary = heads.reserve(place)
    temporary.unlink()
    temporary.symlink_to(precious)
    saved = heads.save(b"head", place, temporary)
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
    remote = Remote(name="a", size=400, sha256=digest, urls=(source.as_uri(),))
    part = tmp_path / "cache" / "set" / "a.part"
    part.parent.mkdir(parents=True)
    part.symlink_to(precious)
    with pytest.raises(UserError, match=r"wrong SHA-256"):
        fetch("set", (remote,))
    assert precious.read_bytes() == b"kept"
