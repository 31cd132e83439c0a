"""Several processes make one set in a shared folder: each shard once, and the last to end completes it."""

import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.features import writer as writer_module
from dpfc_cli.features.manifest import Manifest, load
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.features.writer import FeatureWriter, Task, already_complete

ROWS = {"train": 20, "test": 6}
IDENTITY = {"listing": {"train": "", "test": ""}}
MANIFEST = Manifest(("a", "b"), 2, "float32", 1, "asserted", {}, {}, {"identity": IDENTITY})


def writer(folder: Path, share: tuple[int, int] | None, **changes: Any) -> FeatureWriter:
    settings = {"rows": ROWS, "dim": 2, "dtype": "float32", "labels_per_record": 1, "identity": IDENTITY, "shards": 5}
    return FeatureWriter(folder, **{**settings, **changes}, share=share)


def make(w: FeatureWriter, tasks: list[Task] | None = None) -> list[str]:
    made = []
    for task in w.tasks if tasks is None else tasks:
        if w.claim(task):
            rows = np.arange(task.start, task.stop)
            with w.shard(task) as sink:
                sink.append(np.stack([rows, -rows], axis=1).astype(np.float32), rows % 2)
            made.append(task.file)
    return made


@pytest.fixture
def undisturbed(tmp_path: Path) -> dict[str, bytes]:
    w = writer(tmp_path / "undisturbed", None)
    make(w)
    w.finish(MANIFEST)
    return files(tmp_path / "undisturbed")


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2)])
def test_the_last_to_end_completes_the_set(tmp_path, undisturbed, order):
    folder = tmp_path / "set"
    workers = {i: writer(folder, (i, 3)) for i in (1, 2, 3)}
    made = [file for i in (1, 2, 3) for file in make(workers[i])]
    assert sorted(made) == sorted(set(made))
    finished = [workers[i].finish(MANIFEST) for i in order]
    assert finished[:-1] == [None, None]
    assert finished[-1] == load(folder)
    assert files(folder) == undisturbed
    FeatureSet(folder).verify("train")


def test_one_that_ends_after_the_set_was_completed_finds_it(tmp_path, undisturbed):
    folder = tmp_path / "set"
    first, second = writer(folder, (1, 2)), writer(folder, (2, 2))
    make(first)
    make(second)
    # Both let go of the folder before either takes it alone.
    first._unlock()
    assert second.finish(MANIFEST) == first.finish(MANIFEST)
    assert files(folder) == undisturbed


def test_no_shard_is_made_twice_at_a_time_even_by_another_division(tmp_path):
    folder = tmp_path / "set"
    first, second = writer(folder, (1, 2)), writer(folder, (1, 3))
    task = first.tasks[0]
    assert task in second.tasks
    assert first.claim(task)
    assert not second.claim(task)
    with pytest.raises(RuntimeError), second.shard(task):
        pass
    make(first, [task])
    assert not second.claim(task)
    assert not list((folder.with_name("set.partial")).glob("*.tmp"))


def test_a_part_that_died_is_made_by_whoever_comes_next(tmp_path, undisturbed):
    folder = tmp_path / "set"
    first, second = writer(folder, (1, 2)), writer(folder, (2, 2))
    make(first, first.tasks[:1])
    del first
    make(second)
    assert second.finish(MANIFEST) is None
    last = writer(folder, None)
    assert last.resumed
    make(last)
    last.finish(MANIFEST)
    assert files(folder) == undisturbed


def test_there_is_a_shard_for_each_part_and_who_goes_on_alone_keeps_them(tmp_path):
    folder = tmp_path / "set"
    first = writer(folder, (1, 4), shards=None)
    assert [task.file for task in first.tasks] == ["train-00000-of-00004.h5", "test-00000-of-00004.h5"]
    make(first)
    first.close()
    alone = writer(folder, None, shards=None)
    assert len(alone.tasks) == 6
    make(alone)
    finished = alone.finish(MANIFEST)
    assert finished is not None
    assert len(finished.splits["train"].shards) == 4


def test_one_by_itself_and_one_that_shares_do_not_mix(tmp_path):
    folder = tmp_path / "set"
    alone = writer(folder, None)
    with pytest.raises(UserError, match="Another process") as caught:
        writer(folder, (1, 2))
    assert "--task" in caught.value.remedy
    del alone
    sharing = writer(folder, (1, 2))
    with pytest.raises(UserError, match="Another process"):
        writer(folder, None)
    with pytest.raises(UserError, match="another source"):
        writer(folder, (2, 2), identity={**IDENTITY, "limit": 3})
    del sharing


def test_a_claim_ends_with_the_process(tmp_path, undisturbed):
    """Killed in the middle of a shard, it leaves a lock on nothing and a file that does not look finished."""
    program = """
import os, signal, sys
from pathlib import Path
from tests.features.test_sharing import writer
w = writer(Path(sys.argv[1]), (1, 2))
with w.shard(w.tasks[0]) as sink:
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


def test_what_float16_cannot_hold_is_refused_or_made_a_null_record(tmp_path):
    features = np.array([[1, 2], [65_504, 0], [65_520, 0], [np.nan, 1], [3, 4]], np.float32)
    settings: dict[str, Any] = {"rows": {"train": 5}, "dtype": "float16", "shards": 1, "identity": IDENTITY}
    strict = writer(tmp_path / "strict", None, **settings)
    with pytest.raises(UserError, match=r"first in row 2.*do not publish"), strict.shard(strict.tasks[0]) as sink:
        sink.append(features, np.zeros(5, np.int32))
    tolerant = writer(tmp_path / "tolerant", None, **settings, tolerant=True)
    with tolerant.shard(tolerant.tasks[0]) as sink:
        sink.append(features, np.ones(5, np.int32))
    tolerant.finish(replace(MANIFEST, dtype="float16"))
    _, x, y = next(iter(FeatureSet(tmp_path / "tolerant").stream("train")(10)))
    assert x.tolist() == [[1, 2], [65_504, 0], [0, 0], [0, 0], [3, 4]]
    assert y[:, 0].tolist() == [1, 1, -1, -1, 1]


TOLERANT = {**IDENTITY, "on_error": "null"}


def test_one_that_keeps_null_records_joins_those_that_refuse_and_the_set_says_so_whoever_ends(tmp_path):
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


def test_one_that_refuses_does_not_join_those_that_keep_null_records(tmp_path):
    folder = tmp_path / "set"
    refusing = writer(folder, (1, 3))
    tolerant = writer(folder, (2, 3), identity=TOLERANT, tolerant=True)
    with pytest.raises(UserError, match="another source"):
        writer(folder, (3, 3))
    also = writer(folder, (3, 3), identity=TOLERANT, tolerant=True)
    assert also.resumed
    del refusing, tolerant, also


@pytest.mark.parametrize("share", [None, (1, 2)])
def test_what_was_begun_without_a_finished_shard_gives_way(tmp_path, undisturbed, share):
    folder = tmp_path / "set"
    partial = folder.with_name("set.partial")
    killed = writer(folder, None, identity={**IDENTITY, "spread": 3}, shards=7)
    assert killed.claim(killed.tasks[0])
    (partial / "train-00000-of-00007.h5").write_bytes(b"renamed, and not noted yet")
    del killed
    assert partial.is_dir()
    with closing(writer(folder, share, shards=None)) as first:
        # Nor are its numbers of shards taken over.
        assert len(first.tasks) == 2
        assert not first.resumed
        assert [p.name for p in partial.iterdir()] == ["settings.json"]
        with pytest.raises(UserError, match="Another process"):
            writer(folder, None)
    last = writer(folder, None)
    make(last)
    last.finish(MANIFEST)
    assert files(folder) == undisturbed


def test_what_others_are_at_work_on_does_not_give_way(tmp_path):
    folder = tmp_path / "set"
    at_work = writer(folder, (1, 2))
    before = files(folder.with_name("set.partial"))
    with pytest.raises(UserError, match="another source"):
        writer(folder, (2, 2), identity={**IDENTITY, "spread": 3})
    assert files(folder.with_name("set.partial")) == before
    at_work.close()


def test_one_that_ends_without_a_shard_leaves_nothing_and_one_with_a_shard_leaves_it(tmp_path):
    folder = tmp_path / "set"
    partial = folder.with_name("set.partial")
    first, second = writer(folder, (1, 2)), writer(folder, (2, 2))
    assert first.claim(first.tasks[0])
    first.close()
    # The other is still at work in it.
    assert partial.is_dir()
    second.close()
    assert not partial.exists()
    third = writer(folder, None)
    make(third, third.tasks[:1])
    third.close()
    assert writer(folder, None).resumed


def test_one_that_begins_while_another_gives_up_is_not_told_of_it(tmp_path, monkeypatch):
    """Between making the folder and locking it, it may have gone."""
    folder = tmp_path / "set"
    real, gone = writer_module.locked_soon, 0

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


def test_null_records_are_no_leave_to_go_on_with_other_settings(tmp_path):
    folder = tmp_path / "set"
    make(writer(folder, None))
    before = files(folder.with_name("set.partial"))
    for changes in ({"identity": {**TOLERANT, "limit": 3}}, {"identity": TOLERANT, "shards": 4}):
        with pytest.raises(UserError, match="another source"):
            writer(folder, None, tolerant=True, **changes)
    assert files(folder.with_name("set.partial")) == before
