"""Sets are made shard by shard: killed, stopped or on a full disk, they end with the same bytes."""

import errno
import json
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.features.manifest import SETTINGS, load
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.features.shards import PlannedShard
from dpfc_cli.features.writer import FeatureWriter, complete
from dpfc_cli.folders import LEDGER
from dpfc_cli.ledger.file import read
from tests.hostile import altered
from tests.support import bare_manifest, blobs, feature_set, nulls, refuses, replace, shards_of, stored

IDENTITY = {"listing": {"train": "", "test": ""}}
WANTED = bare_manifest({"identity": IDENTITY})
OTHER = bare_manifest({"identity": {**IDENTITY, "spread": 3}})


def writer(folder: Path, **changes: Any) -> FeatureWriter:
    """Of a set of 4 + 2 shards."""
    with shards_of(5):
        return FeatureWriter(folder, **{"manifest": WANTED, "broken": nulls({"train": 20, "test": 6}), **changes})


def make(w: FeatureWriter, some: list[PlannedShard] | None = None) -> list[str]:
    wanted = w.missing if some is None else some
    for planned in wanted:
        rows = np.arange(planned.start, planned.stop)
        with w.shard(planned) as sink:
            sink.append(np.stack([rows, -rows], axis=1).astype(np.float32), rows % 2)
    return [planned.file for planned in wanted]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "set"


@pytest.fixture
def partial(tmp_path: Path) -> Path:
    return tmp_path / "set.partial"


@pytest.fixture
def undisturbed(tmp_path: Path) -> dict[str, bytes]:
    w = writer(tmp_path / "undisturbed")
    make(w)
    w.finish()
    return stored(tmp_path / "undisturbed")


def bytes_in(partial: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in partial.iterdir()}


# One after another

KILLED = """
import os, signal, sys
from pathlib import Path
from tests.features.test_writer import make, writer
w = writer(Path(sys.argv[1]))
make(w, w.missing[:1])
with w.shard(w.missing[0]) as sink:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_has_begun_is_made_by_the_next_one(
    folder: Path, partial: Path, undisturbed: dict[str, bytes]
) -> None:
    """Killed in the middle of a shard, it leaves no lock and nothing that looks finished."""
    subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=False)
    (partial / f".{SETTINGS}.0123.tmp").write_bytes(b"left")
    second = writer(folder)
    assert (second.resumed, len(make(second))) == (5, 5)
    assert second.finish() == load(folder)
    assert stored(folder) == undisturbed
    FeatureSet(folder).verify("train")


def test_a_run_that_stops_loses_a_small_part_of_its_work_or_256_records(tmp_path: Path) -> None:
    for n in (20, 2_000, 50_000, 10**6):
        with closing(FeatureWriter(tmp_path / f"{n}", WANTED, nulls({"train": n}))) as w:
            assert max(planned.rows for planned in w.missing) <= max(256, n / 24)
            assert len(w.missing) <= max(32, n / 16_000)


def test_who_comes_while_another_process_makes_the_set_or_has_just_made_it_is_told_to_wait(folder: Path) -> None:
    first = writer(folder)
    with refuses("busy", path=str(folder)):
        writer(folder)
    make(first)
    first.finish()
    with refuses("busy", path=str(folder)):
        writer(folder)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_who_says_otherwise_of_what_is_made_continues_no_finished_shard(folder: Path, partial: Path) -> None:
    with closing(writer(folder)) as first:
        make(first, first.missing[:1])
    before = bytes_in(partial)
    with refuses("conflict", parameter="population"):
        writer(folder, manifest=OTHER)
    assert bytes_in(partial) == before
    # What is said of the population may be corrected.
    with closing(writer(folder, population="ward7")) as second:
        assert second.resumed == 5


def test_what_was_begun_without_a_finished_shard_gives_way_or_leaves_nothing(
    folder: Path, partial: Path, undisturbed: dict[str, bytes]
) -> None:
    with closing(writer(folder, manifest=OTHER)):
        pass
    assert not partial.exists()
    killed = writer(folder, manifest=OTHER)
    (partial / f".{SETTINGS}.0123.tmp").touch()
    del killed
    assert partial.is_dir()
    w = writer(folder)
    assert (w.resumed, [p.name for p in partial.iterdir()]) == (None, [SETTINGS])
    make(w)
    w.finish()
    assert stored(folder) == undisturbed


def test_whatever_stands_in_the_settings_of_a_set_that_was_begun_it_goes_on_or_is_refused(
    folder: Path, partial: Path
) -> None:
    with closing(writer(folder)) as first:
        make(first, first.missing[:1])
    good = json.loads((partial / SETTINGS).read_text())
    for place in ((), ("identity",), ("shards",), ("shards", "train"), ("population",)):
        for text in altered(good, place):
            (partial / SETTINGS).write_text(text)
            try:
                with closing(writer(folder)) as w:
                    assert len(w.missing) == 5
            except UserError as error:
                assert error.code == "conflict"  # noqa: PT017
    (partial / SETTINGS).unlink()
    with refuses("conflict", parameter="population"):
        writer(folder)


# What is stored


def test_what_float16_cannot_hold_is_refused_or_made_a_null_record(tmp_path: Path) -> None:
    features = np.array([[1, 2], [65_504, 0], [65_520, 0], [np.nan, 1], [3, 4]], np.float32)
    manifest = replace(WANTED, dtype="float16")
    strict = writer(tmp_path / "strict", manifest=manifest, broken=nulls({"train": 5}))
    with refuses("bad-record", match="row 2.*do not publish"), strict.shard(strict.missing[0]) as sink:
        sink.append(features, np.zeros(5, np.int32))
    tolerant = writer(tmp_path / "tolerant", manifest=manifest, broken=nulls({"train": 5}, share=0.5))
    with tolerant.shard(tolerant.missing[0]) as sink:
        sink.append(features, np.ones(5, np.int32))
    tolerant.finish()
    x, y = FeatureSet(tmp_path / "tolerant").arrays("train")
    assert x.tolist() == [[1, 2], [65_504, 0], [0, 0], [0, 0], [3, 4]]
    assert y[:, 0].tolist() == [1, 1, -1, -1, 1]


def test_rows_are_made_null_records_by_a_mask_and_keep_their_groups(tmp_path: Path) -> None:
    x = np.array([[1, 2], [np.nan, np.inf], [3, 4], [5, np.nan]], np.float32)
    grouped = {"identity": {**IDENTITY, "groups": {"train": "0" * 64, "test": "0" * 64}}}
    ids = np.array([0, 0, 1, 1])
    for k, labels in ((1, np.ones(4, np.int32)), (2, np.array([[1, -1], [0, 1], [0, 1], [1, 0]]))):
        manifest = replace(WANTED, labels_per_record=k, source=grouped, grouped_by={"by": "name"})
        broken = nulls({"train": 4}, share=1)
        w = writer(tmp_path / f"{k}", manifest=manifest, broken=broken, groups={"train": ids})
        with w.shard(w.missing[0]) as sink:
            sink.append(x, labels, np.array([False, True, True, False]))
        w.finish()
        [(_, found, y, groups)] = FeatureSet(tmp_path / f"{k}").stream("train", groups=True)(9)
        # The last row is not finite, and the mask does not name it. It is a null record all the same.
        assert found.tolist() == [[1, 2], [0, 0], [0, 0], [0, 0]]
        assert y.tolist() == [labels[0].tolist() if k > 1 else [1], *[[-1] * k] * 3]
        assert groups.tolist() == ids.tolist()
        assert broken.counts == {"train": 3}


def test_a_shard_that_the_disk_changed_before_the_set_was_whole_is_noticed(folder: Path, partial: Path) -> None:
    """The manifest has the digest of what was written, and not of what is read again."""
    w = writer(folder)
    file, *_ = make(w)
    data = bytearray((partial / file).read_bytes())
    data[-1] ^= 1
    (partial / file).write_bytes(data)
    w.finish()
    with refuses("damaged"):
        FeatureSet(folder).verify("train")


def test_a_place_that_holds_something_else_is_refused(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    with refuses("missing"):
        complete(folder, WANTED, lambda _: None)
    (tmp_path / "file").write_text("")
    (tmp_path / "link.partial").symlink_to(folder)
    for place in (tmp_path / "file" / "set", tmp_path / "link"):
        with refuses("unwritable", parameter="out"):
            writer(place)
    assert not list(folder.iterdir())


# Who may read


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_all_files_of_a_set_are_their_owners_from_the_first_byte_on(tmp_path: Path) -> None:
    for umask in (0o022, 0o002, 0o077):
        before = os.umask(umask)
        try:
            folder = tmp_path / oct(umask)
            make(w := writer(folder))
            assert mode_of(folder.with_name(f"{folder.name}.partial")) == 0o700
            w.finish()
            assert {mode_of(path) for path in folder.iterdir()} == {0o600}
        finally:
            os.umask(before)


def test_what_others_have_planted_gets_no_value_of_a_record(folder: Path, partial: Path, tmp_path: Path) -> None:
    """A link at the name of a shard is replaced."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"kept")
    w = writer(folder)
    planned, *_ = w.missing
    (partial / planned.file).symlink_to(precious)
    make(w, [planned])
    assert precious.read_bytes() == b"kept"
    assert not (partial / planned.file).is_symlink()


# Kills, stops and full disks

Import = Callable[[str], FeatureSet]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Import]:
    """Imports 3,000 records of 64 dimensions into a set of that name, in three shards."""
    x, y = blobs(3000, 64, 3)
    np.savez(tmp_path / "arrays.npz", train_x=x, train_y=y)
    with shards_of(1000):
        yield lambda name: feature_set(tmp_path / "arrays.npz", tmp_path / name, classes=3)


KILLED_ANYWHERE = """
import os, signal, sys
from pathlib import Path
from tests.support import feature_set, shards_of
calls = kill_at = 0
def counted(real):
    def call(*given):
        global calls
        calls += 1
        if calls == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*given)
    return call
os.replace, os.fsync = counted(os.replace), counted(os.fsync)
for kill_at in range(1, 100):
    child = os.fork()
    if not child:
        with shards_of(1000):
            feature_set(Path(sys.argv[1]), f"killed-{kill_at}", classes=3)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
"""


def test_killed_at_any_rename_or_sync_a_second_run_ends_with_the_same_bytes(
    run: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path))
    run("undisturbed")
    expected = stored(tmp_path / "undisturbed")
    subprocess.run([sys.executable, "-c", KILLED_ANYWHERE, str(tmp_path / "arrays.npz")], check=True)
    killed = sorted({path.name.partition(".")[0] for path in tmp_path.glob("killed-*")})
    assert len(killed) > 15
    whole = 0
    for name in killed:
        whole += (tmp_path / name).exists()
        run(name)
        assert stored(tmp_path / name) == expected
        assert not (tmp_path / f"{name}.partial").exists()
    assert 0 < whole < 5
    # Each is written down once, under one id.
    assert len(read(tmp_path / LEDGER).sets) == len(killed) + 1


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """What a full disk does to a file that grows. The error is another one (EFBIG)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_up_is_told_and_the_next_run_goes_on(run: Import, tmp_path: Path) -> None:
    run("whole")
    largest = max(path.stat().st_size for path in (tmp_path / "whole").glob("*.h5"))
    for size in (700, largest // 2, largest - 1):
        with no_file_larger_than(size), pytest.raises(UserError) as caught:
            run("set")
        assert caught.value.code == "unwritable"
        assert str(tmp_path / "set") in caught.value.what
        assert os.strerror(errno.EFBIG) in caught.value.what
        assert not (tmp_path / "set").exists()
    run("set").verify("train")


def test_notes_that_a_killed_run_left_in_a_finished_set_are_removed(run: Import, tmp_path: Path) -> None:
    run("set")
    whole = sorted(path.name for path in (tmp_path / "set").iterdir())
    for name in (SETTINGS, ".manifest.json.0123456789abcdef.tmp"):
        (tmp_path / "set" / name).write_text("{}")
    run("set")
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == whole
