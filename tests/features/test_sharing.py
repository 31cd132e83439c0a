"""Several processes make one set in a shared folder: each shard once, and the last to end completes it."""

import re
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.errors import UserError, parameter
from dpfc_cli.features import unfinished
from dpfc_cli.features import writer as writer_module
from dpfc_cli.features.manifest import load
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.features.shards import PlannedShard
from dpfc_cli.features.unfinished import already_complete
from dpfc_cli.features.writer import FeatureWriter, Task
from dpfc_cli.files import temporary_beside
from tests.support import bare_manifest

ROWS = {"train": 20, "test": 6}
IDENTITY = {"listing": {"train": "", "test": ""}}
MANIFEST = bare_manifest({"identity": IDENTITY})


def writer(folder: Path, task: Task | None, **changes: Any) -> FeatureWriter:
    settings = {"rows": ROWS, "dim": 2, "dtype": "float32", "labels_per_record": 1, "identity": IDENTITY, "shards": 5}
    return FeatureWriter(folder, **{**settings, **changes}, task=task)


def make(w: FeatureWriter, some: list[PlannedShard] | None = None) -> list[str]:
    made = []
    for planned in w.missing if some is None else some:
        if w.claim(planned):
            rows = np.arange(planned.start, planned.stop)
            with w.shard(planned) as sink:
                sink.append(np.stack([rows, -rows], axis=1).astype(np.float32), rows % 2)
            made.append(planned.file)
    return made


@pytest.fixture
def undisturbed(tmp_path: Path) -> dict[str, bytes]:
    w = writer(tmp_path / "undisturbed", None)
    make(w)
    w.finish(MANIFEST)
    return files(tmp_path / "undisturbed")


def files(folder: Path) -> dict[str, bytes]:
    """The files of a set, without its random id."""
    found = {p.name: p.read_bytes() for p in sorted(folder.iterdir())}
    return {name: re.sub(rb'"id": "[0-9a-f]{32}"', b"", data) for name, data in found.items()}


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2)])
def test_the_last_to_end_completes_the_set(
    tmp_path: Path, undisturbed: dict[str, bytes], order: tuple[int, int, int]
) -> None:
    folder = tmp_path / "set"
    workers = {i: writer(folder, (i, 3)) for i in (1, 2, 3)}
    made = [file for i in (1, 2, 3) for file in make(workers[i])]
    assert sorted(made) == sorted(set(made))
    finished = [workers[i].finish(MANIFEST) for i in order]
    assert finished[:-1] == [None, None]
    assert finished[-1] == load(folder)
    assert files(folder) == undisturbed
    FeatureSet(folder).verify("train")


def test_one_that_ends_after_the_set_was_completed_finds_it(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    folder = tmp_path / "set"
    first, second = writer(folder, (1, 2)), writer(folder, (2, 2))
    make(first)
    make(second)
    # Both let go of the folder before either takes it alone.
    first._unlock()
    assert second.finish(MANIFEST) == first.finish(MANIFEST)
    assert files(folder) == undisturbed


def test_no_shard_is_made_twice_at_a_time_even_by_another_division(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    first, second = writer(folder, (1, 2)), writer(folder, (1, 3))
    planned = first.missing[0]
    assert planned in second.missing
    assert first.claim(planned)
    assert not second.claim(planned)
    with pytest.raises(RuntimeError), second.shard(planned):
        pass
    make(first, [planned])
    assert not second.claim(planned)
    assert not list((folder.with_name("set.partial")).glob("*.tmp"))


def test_a_part_that_died_is_made_by_whoever_comes_next(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    folder = tmp_path / "set"
    first, second = writer(folder, (1, 2)), writer(folder, (2, 2))
    make(first, first.missing[:1])
    del first
    make(second)
    assert second.finish(MANIFEST) is None
    last = writer(folder, None)
    assert last.resumed
    make(last)
    last.finish(MANIFEST)
    assert files(folder) == undisturbed


def test_there_is_a_shard_for_each_part_and_who_goes_on_alone_keeps_them(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    first = writer(folder, (1, 4), shards=None)
    assert [planned.file for planned in first.missing] == ["train-00000-of-00004.h5", "test-00000-of-00004.h5"]
    make(first)
    first.close()
    alone = writer(folder, None, shards=None)
    assert len(alone.missing) == 6
    make(alone)
    finished = alone.finish(MANIFEST)
    assert finished is not None
    assert len(finished.splits["train"].shards) == 4


def test_one_by_itself_and_one_that_shares_do_not_mix(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    alone = writer(folder, None)
    with pytest.raises(UserError, match="Another process") as caught:
        writer(folder, (1, 2))
    assert parameter("task") in caught.value.remedy
    assert caught.value.code == "busy"
    del alone
    sharing = writer(folder, (1, 2))
    with pytest.raises(UserError, match="Another process"):
        writer(folder, None)
    with pytest.raises(UserError, match="another source"):
        writer(folder, (2, 2), identity={**IDENTITY, "limit": 3})
    del sharing


def test_a_claim_ends_with_the_process(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    """Killed in the middle of a shard, it leaves a lock on nothing and a file that does not look finished."""
    program = """
import os, signal, sys
from pathlib import Path
from tests.features.test_sharing import writer
w = writer(Path(sys.argv[1]), (1, 2))
with w.shard(w.missing[0]) as sink:
    os.kill(os.getpid(), signal.SIGKILL)
"""
    folder = tmp_path / "set"
    subprocess.run([sys.executable, "-c", program, str(folder)], check=False)
    for i in (1, 2):
        w = writer(folder, (i, 2))
        make(w)
        finished = w.finish(MANIFEST)
        del w
    assert finished is not None
    assert files(folder) == undisturbed


KILLED_AT_A_LINK = """
import os, signal, sys
from pathlib import Path
from tests.features.test_sharing import writer
os.link = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
writer(Path(sys.argv[1]), (1, 2))
"""


@pytest.mark.parametrize("ends", ["finishes", "gives up"])
def test_temporary_files_that_a_killed_process_left_are_removed(
    tmp_path: Path, undisturbed: dict[str, bytes], ends: str
) -> None:
    """Their names begin with a dot: settings that were about to be written, and a digest."""
    folder, partial = tmp_path / "set", tmp_path / "set.partial"
    ended = subprocess.run([sys.executable, "-c", KILLED_AT_A_LINK, str(folder)], check=False)
    assert ended.returncode == -9
    [left] = partial.iterdir()
    assert left.name.startswith(".settings.json.")
    assert left.suffix == ".tmp"
    w = writer(folder, None)
    temporary_beside(partial / "train-00000-of-00005.h5.sha256").write_text("begun")
    assert len(list(partial.glob(".*.tmp"))) == 2
    if ends == "gives up":
        w.close()
        assert not partial.exists()
    else:
        make(w)
        w.finish(MANIFEST)
        assert files(folder) == undisturbed


RACE = """
import sys, time
from pathlib import Path
from dpfc_cli.features.unfinished import written_first
path, i, start = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
while time.time() < start:
    pass
first = [written_first(path.with_name(f"{n}.json"), f"{i} {n}" * 1000) for n in range(50)]
print("".join("1" if won else "0" for won in first))
"""


def test_of_several_that_begin_one_is_first_and_no_other_changes_what_it_wrote(tmp_path: Path) -> None:
    start = time.time() + 3
    arguments = [sys.executable, "-c", RACE, str(tmp_path / "x.json")]
    running = [subprocess.Popen([*arguments, str(i), str(start)], stdout=subprocess.PIPE, text=True) for i in range(3)]
    won = [process.communicate()[0].strip() for process in running]
    for n in range(50):
        [winner] = [i for i in range(3) if won[i][n] == "1"]
        assert (tmp_path / f"{n}.json").read_text() == f"{winner} {n}" * 1000
    assert len(list(tmp_path.iterdir())) == 50


def test_a_folder_without_hard_links_will_do(
    tmp_path: Path, undisturbed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr("os.link", link)
    first = writer(tmp_path / "set", (1, 2))
    second = writer(tmp_path / "set", (2, 2))
    assert [first.resumed, second.resumed] == [False, True]
    make(first)
    make(second)
    assert first.finish(MANIFEST) is None
    second.finish(MANIFEST)
    assert files(tmp_path / "set") == undisturbed


def test_what_float16_cannot_hold_is_refused_or_made_a_null_record(tmp_path: Path) -> None:
    features = np.array([[1, 2], [65_504, 0], [65_520, 0], [np.nan, 1], [3, 4]], np.float32)
    settings: dict[str, Any] = {"rows": {"train": 5}, "dtype": "float16", "shards": 1, "identity": IDENTITY}
    strict = writer(tmp_path / "strict", None, **settings)
    with pytest.raises(UserError, match=r"first in row 2.*do not publish"), strict.shard(strict.missing[0]) as sink:
        sink.append(features, np.zeros(5, np.int32))
    tolerant = writer(tmp_path / "tolerant", None, **settings, tolerant=True)
    with tolerant.shard(tolerant.missing[0]) as sink:
        sink.append(features, np.ones(5, np.int32))
    tolerant.finish(replace(MANIFEST, dtype="float16"))
    _, x, y = next(iter(FeatureSet(tmp_path / "tolerant").stream("train")(10)))
    assert x.tolist() == [[1, 2], [65_504, 0], [0, 0], [0, 0], [3, 4]]
    assert y[:, 0].tolist() == [1, 1, -1, -1, 1]


NAN_NULL = np.array([[1, 2], [np.nan, np.inf], [3, 4], [5, np.nan]], np.float32)


@pytest.mark.parametrize("k", [1, 2])
def test_rows_are_made_null_records_by_a_mask_whatever_their_features_are(tmp_path: Path, k: int) -> None:
    settings: dict[str, Any] = {"rows": {"train": 4}, "shards": 1, "labels_per_record": k, "tolerant": True}
    w = writer(tmp_path / "set", None, **settings)
    labels = np.ones(4, np.int32) if k == 1 else np.array([[1, -1], [0, 1], [0, 1], [1, 0]])
    with w.shard(w.missing[0]) as sink:
        sink.append(NAN_NULL, labels, np.array([False, True, True, False]))
    w.finish(replace(MANIFEST, labels_per_record=k))
    x, y = FeatureSet(tmp_path / "set").arrays("train")
    # The last row is not finite, and the mask does not name it. A tolerant writer makes it a null record all the same.
    assert x.tolist() == [[1, 2], [0, 0], [0, 0], [0, 0]]
    assert y.tolist() == [labels[0].tolist() if k > 1 else [1], *[[-1] * k] * 3]


def test_a_writer_that_is_not_tolerant_takes_no_null_record(tmp_path: Path) -> None:
    w = writer(tmp_path / "set", None, rows={"train": 2}, shards=1)
    features, labels = np.ones((2, 2), np.float32), np.ones(2, np.int32)
    with pytest.raises(ValueError, match="without null records"), w.shard(w.missing[0]) as sink:
        sink.append(features, labels, np.array([False, True]))
    with w.shard(w.missing[0]) as sink:
        sink.append(features, labels, np.array([False, False]))
    assert not w.missing


@pytest.mark.parametrize("null", [np.array([0, 1]), np.array([True]), np.array([[True], [False]])])
def test_what_is_no_mask_of_the_rows_is_refused(tmp_path: Path, null: np.ndarray) -> None:
    """Integers would be taken for the numbers of the rows."""
    w = writer(tmp_path / "set", None, rows={"train": 2}, shards=1, tolerant=True)
    with pytest.raises(ValueError, match="not bool"), w.shard(w.missing[0]) as sink:
        sink.append(np.ones((2, 2), np.float32), np.ones(2, np.int32), null)


TOLERANT = {**IDENTITY, "on_error": "null"}


def test_one_that_keeps_null_records_joins_those_that_refuse_and_the_set_says_so_whoever_ends(tmp_path: Path) -> None:
    for last_is_tolerant in (False, True):
        folder = tmp_path / f"set-{last_is_tolerant}"
        refusing = writer(folder, (1, 2))
        tolerant = writer(folder, (2, 2), identity=TOLERANT, tolerant=True)
        for w in (refusing, tolerant):
            make(w)
        order = [refusing, tolerant] if last_is_tolerant else [tolerant, refusing]
        kept = replace(MANIFEST, source={"identity": TOLERANT})
        manifests = {refusing: MANIFEST, tolerant: kept}
        finished = [w.finish(manifests[w]) for w in order]
        assert finished[0] is None
        assert finished[1] == load(folder)
        assert load(folder).source["identity"] == TOLERANT
        assert already_complete(folder, TOLERANT)
        with pytest.raises(UserError, match="with other settings"):
            already_complete(folder, IDENTITY)


def test_one_that_refuses_does_not_join_those_that_keep_null_records(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    refusing = writer(folder, (1, 3))
    tolerant = writer(folder, (2, 3), identity=TOLERANT, tolerant=True)
    with pytest.raises(UserError, match="another source"):
        writer(folder, (3, 3))
    also = writer(folder, (3, 3), identity=TOLERANT, tolerant=True)
    assert also.resumed
    del refusing, tolerant, also


@pytest.mark.parametrize("task", [None, (1, 2)])
def test_what_was_begun_without_a_finished_shard_gives_way(
    tmp_path: Path, undisturbed: dict[str, bytes], task: tuple[int, int] | None
) -> None:
    folder = tmp_path / "set"
    partial = folder.with_name("set.partial")
    killed = writer(folder, None, identity={**IDENTITY, "spread": 3}, shards=7)
    assert killed.claim(killed.missing[0])
    (partial / "train-00000-of-00007.h5").write_bytes(b"renamed, and not noted yet")
    del killed
    assert partial.is_dir()
    with closing(writer(folder, task, shards=None)) as first:
        # Nor are its numbers of shards taken over.
        assert len(first.missing) == 2
        assert not first.resumed
        assert [p.name for p in partial.iterdir()] == ["settings.json"]
        with pytest.raises(UserError, match="Another process"):
            writer(folder, None)
    last = writer(folder, None)
    make(last)
    last.finish(MANIFEST)
    assert files(folder) == undisturbed


def test_what_others_are_at_work_on_does_not_give_way(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    at_work = writer(folder, (1, 2))
    before = files(folder.with_name("set.partial"))
    with pytest.raises(UserError, match="another source"):
        writer(folder, (2, 2), identity={**IDENTITY, "spread": 3})
    assert files(folder.with_name("set.partial")) == before
    at_work.close()


def test_one_that_ends_without_a_shard_leaves_nothing_and_one_with_a_shard_leaves_it(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    partial = folder.with_name("set.partial")
    first, second = writer(folder, (1, 2)), writer(folder, (2, 2))
    assert first.claim(first.missing[0])
    first.close()
    # The other is still at work in it.
    assert partial.is_dir()
    second.close()
    assert not partial.exists()
    third = writer(folder, None)
    make(third, third.missing[:1])
    third.close()
    assert writer(folder, None).resumed


def test_one_that_begins_while_another_gives_up_is_not_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between making the folder and locking it, it may have gone."""
    folder = tmp_path / "set"
    real, gone = unfinished.locked_soon, 0

    def locked_soon(partial: Path, kind: int) -> int:
        nonlocal gone
        gone += 1
        if gone < 3:
            partial.rmdir()
        return real(partial, kind)

    monkeypatch.setattr(writer_module, "locked_soon", locked_soon)
    w = writer(folder, None)
    make(w)
    assert w.finish(MANIFEST) is not None


def test_null_records_are_no_leave_to_go_on_with_other_settings(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    make(writer(folder, None))
    before = files(folder.with_name("set.partial"))
    for changes in ({"identity": {**TOLERANT, "limit": 3}}, {"identity": TOLERANT, "shards": 4}):
        with pytest.raises(UserError, match="another source"):
            writer(folder, None, tolerant=True, **changes)
    assert files(folder.with_name("set.partial")) == before
