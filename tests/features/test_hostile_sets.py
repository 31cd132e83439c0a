"""A feature set from a stranger is read as what it says, or refused; nothing waits, expands or leaves its folder."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.lookup import open_features
from dpfc_cli.features.manifest import MANIFEST, load
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.features.unfinished import SETTINGS
from dpfc_cli.features.writer import FeatureWriter
from dpfc_cli.files import sha256_of
from dpfc_cli.inventory import inventory
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.method import Solution
from dpfc_cli.training.calibrate import calibrate
from dpfc_cli.training.card import card_of
from dpfc_cli.training.request import Privacy, facts_of
from dpfc_cli.trust.card import check
from tests.hostile import altered, places, standing
from tests.support import bare_manifest

SHARD = "train-00000-of-00001.h5"
ROWS = 10


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    """10 + 10 records of 2 dimensions in 2 classes."""
    values = {f"{split}_x": np.ones((ROWS, 2), np.float32) for split in ("train", "test")}
    labels = {f"{split}_y": np.arange(ROWS) % 2 for split in ("train", "test")}
    np.savez(tmp_path / "a.npz", allow_pickle=True, **values, **labels)
    return tmp_path / "a.npz"


@pytest.fixture
def folder(arrays: Path, tmp_path: Path) -> Path:
    import_features(arrays, tmp_path / "sets" / "a", classes=("x", "y"))
    return tmp_path / "sets" / "a"


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What waits for another process is stopped, so that the test fails."""
    import signal

    def stop(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def manifest() -> dict[str, Any]:
    """A manifest as dpfc writes it. Its shards are not those of the set, so none of them is read."""
    shard = {"file": SHARD, "rows": ROWS, "sha256": "0" * 64}
    split = {"n": ROWS, "shards": [shard]}
    return {
        "backbone": {"name": "imported", "from": "a.npz", "weights": {"sha256": "0" * 64}},
        "classes": ["x", "y"],
        "dim": 2,
        "dtype": "float32",
        "labels_per_record": 1,
        "origin": "asserted",
        "source": {
            "dataset": "a",
            "identity": {"imported": "a.npz", "listing": {"train": "0" * 64}, "hold_out": 0.1, "k": 1},
        },
        "splits": {"train": split},
        "version": 1,
        "versions": {"numpy": "2"},
    }


@pytest.mark.parametrize("place", list(places(manifest())), ids=lambda place: ".".join(map(str, place)) or "all")
def test_whatever_stands_at_a_place_of_a_manifest_is_used_or_refused(
    folder: Path, tmp_path: Path, place: tuple[str | int, ...]
) -> None:
    refused = []
    for text in altered(manifest(), place):
        (folder / MANIFEST).write_text(text)
        refused.append(_refused(folder))
    assert any(refused)


def _refused(folder: Path) -> bool:
    """Whether the set is refused as damaged. If it is not, all that reads its manifest must work."""
    try:
        found = FeatureSet(folder)
    except UserError as error:
        return error.code == "damaged" or pytest.fail(str(error))
    assert len(found.manifest.fingerprint) == 64
    assert load(folder) == found.manifest
    (folder / MANIFEST).write_bytes(found.manifest.to_json())
    assert load(folder) == found.manifest
    # Such a set can be evaluated on, if it has the other split.
    assert len(inventory(folder.parent, folder / "no-heads").sets) == ("train" in found.splits)
    for split in found.splits:
        with pytest.raises(UserError, match="cannot be"):
            found.verify(split)
    if "train" in found.splits and len(found.classes) > 1:
        facts = facts_of(found)
        made = calibrate(METHODS["dp-ls"], facts, {}, Privacy(noise_multiplier=30, delta=1e-30))
        solution = Solution(chain=(), weight=np.zeros((1, 1)), bias=np.zeros(1))
        check(json.loads(json.dumps(card_of(made, found, "", solution, standing()))))
    return False


@pytest.mark.parametrize("name", [SHARD, MANIFEST])
@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_what_is_no_plain_file_is_not_opened(folder: Path, name: str, kind: str) -> None:
    (folder / name).unlink()
    if kind == "pipe":
        os.mkfifo(folder / name)
    elif kind == "folder":
        (folder / name).mkdir()
    else:
        (folder / name).symlink_to("/dev/zero")
    with pytest.raises(UserError, match="no regular file") as caught:
        FeatureSet(folder).verify("train")
    assert caught.value.code == "unreadable"


def replaced(folder: Path, rows: int, **sets: dict[str, Any]) -> None:
    """The training shard with data sets of that description, and a manifest that agrees with it."""
    path = folder / SHARD
    path.unlink()
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("features", **{"shape": (rows, 2), "dtype": "float32", **sets.get("features", {})})
        file.create_dataset("labels", **{"shape": (rows,), "dtype": "int32", **sets.get("labels", {})})
        file.create_dataset("index", **{"shape": (rows,), "dtype": "int64", **sets.get("index", {})})
    said = json.loads((folder / MANIFEST).read_text())
    said["splits"]["train"] = {"n": rows, "shards": [{"file": SHARD, "rows": rows, "sha256": sha256_of(path)}]}
    (folder / MANIFEST).write_text(json.dumps(said))


@pytest.mark.parametrize("chunks", [None, (4096,)])
def test_rows_that_were_never_written_are_not_made_up(folder: Path, chunks: tuple[int] | None) -> None:
    """HDF5 gives a fill value for them: 10⁹ rows lie in a file of some kilobytes."""
    replaced(folder, 10**9, index={"chunks": chunks})
    with pytest.raises(UserError, match=r"'index' declares 8,000,000,000 bytes, which the file does not hold"):
        FeatureSet(folder).verify("train")


def test_values_that_are_cut_off_are_damaged_also_without_the_digest(folder: Path) -> None:
    """Reading does not check the digest: a shard may be damaged after it was verified."""
    replaced(
        folder,
        ROWS,
        index={"data": np.arange(ROWS)},
        labels={"data": np.zeros(ROWS, np.int32)},
        features={"data": np.ones((ROWS, 2), np.float32), "chunks": (ROWS, 2)},
    )
    with h5py.File(folder / SHARD) as file:
        at = file["features"].id.get_chunk_info(0).byte_offset
    with (folder / SHARD).open("r+b") as shard:
        shard.truncate(at + 8)
    with pytest.raises(UserError, match=SHARD):
        next(FeatureSet(folder).stream("train")(4))


def test_names_that_are_not_utf_8_are_kept(arrays: Path, tmp_path: Path) -> None:
    """Such names are legal on POSIX systems. The import used to fail after its last shard."""
    named = arrays.rename(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.npz"))
    made, _ = import_features(named, tmp_path / "set", classes=("x", "y"))
    assert made.manifest.backbone["from"] == named.name
    again, made_now = import_features(named, tmp_path / "set", classes=("u", "v"))
    assert (again.classes, made_now) == (("u", "v"), False)


WRITER: dict[str, Any] = {"rows": {"train": 9}, "dim": 2, "dtype": "float32", "labels_per_record": 1}


def begun(folder: Path) -> Path:
    """A set of which one shard of three is made."""
    writer = FeatureWriter(folder, **WRITER, identity={"a": 1}, shards=3)
    with writer.shard(writer.missing[0]) as sink:
        sink.append(np.zeros((3, 2)), np.zeros(3, np.int32))
    writer.close()
    return folder.with_name(folder.name + ".partial") / SETTINGS


@pytest.mark.parametrize(
    "place", [(), ("identity",), ("shards",), ("shards", "train")], ids=lambda place: ".".join(place) or "all"
)
def test_whatever_stands_in_the_settings_of_a_set_that_was_begun_it_goes_on_or_is_refused(
    tmp_path: Path, place: tuple[str, ...]
) -> None:
    settings = begun(tmp_path / "set")
    good = json.loads(settings.read_text())
    for text in altered(good, place):
        settings.write_text(text)
        try:
            writer = FeatureWriter(tmp_path / "set", **WRITER, identity={"a": 1})
        except UserError as error:
            assert error.code == "conflict"  # noqa: PT017
            continue
        assert 1 <= len(writer.missing) <= 9
        writer.close()


def test_a_set_whose_notes_were_damaged_is_not_finished(tmp_path: Path) -> None:
    settings = begun(tmp_path / "set")
    writer = FeatureWriter(tmp_path / "set", **WRITER, identity={"a": 1}, shards=3)
    for planned in writer.missing:
        with writer.shard(planned) as sink:
            sink.append(np.zeros((3, 2)), np.zeros(3, np.int32))
    settings.write_text("[" * 100_000)
    with pytest.raises(UserError, match="Delete that folder"):
        writer.finish(bare_manifest())
    writer.close()


def test_the_newest_set_is_found_beside_one_whose_manifest_is_a_pipe(folder: Path, tmp_path: Path) -> None:
    (folder.parent / "b").mkdir()
    os.mkfifo(folder.parent / "b" / MANIFEST)
    os.utime(folder.parent / "b" / MANIFEST, ns=(0, 0))
    assert [path for path, _ in inventory(folder.parent, tmp_path).unreadable] == [str(folder.parent / "b")]
    assert open_features(folder).splits == {"train": ROWS, "test": ROWS}
