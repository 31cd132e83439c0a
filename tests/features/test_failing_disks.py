"""Feature sets on a disk that is full, that fails, or whose files end early."""

import errno
import itertools
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli import files
from dpfc_cli.errors import UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.features.shards import Storage
from tests.support import blobs

Import = Callable[[], FeatureSet]


@pytest.fixture
def run(tmp_path: Path) -> Import:
    """Imports 3,000 records of 64 dimensions into tmp_path/set."""
    x, y = blobs(3000, 64, 3)
    np.savez(tmp_path / "arrays.npz", train_x=x, train_y=y)
    return lambda: import_features(tmp_path / "arrays.npz", tmp_path / "set", classes=3).features


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """What a full disk does to a file that grows. The error is another one (EFBIG)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [700, 1_500, 400_000, 769_000, 781_000, 803_000])
def test_a_disk_that_fills_up_is_told_and_the_next_run_goes_on(run: Import, tmp_path: Path, size: int) -> None:
    """HDF5 ends the process if a write fails while it closes a file. Room runs out in header, values and at the end."""
    with no_file_larger_than(size), pytest.raises(UserError) as caught:
        run()
    assert caught.value.code == "unwritable"
    assert str(tmp_path / "set") in caught.value.what
    assert os.strerror(errno.EFBIG) in caught.value.what
    assert not (tmp_path / "set").exists()
    run().verify("train")


def test_ctrl_c_while_hdf5_writes_is_raised_after_it_and_the_next_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ctrl_c: None
) -> None:
    """HDF5 goes on after an exception in a file's method, and Python finds no inherited method while one is pending."""
    x, y = blobs(40, 8, 3)
    np.savez(tmp_path / "arrays.npz", train_x=x, train_y=y)
    moment, calls = 0, itertools.count(1)

    def stopped(name: str) -> Callable[..., Any]:
        real = getattr(Storage, name)

        def method(self: Storage, *arguments: Any) -> Any:
            now = next(calls) == moment
            if now and moment % 2:
                signal.raise_signal(signal.SIGINT)
            result = real(self, *arguments)
            if now and not moment % 2:
                signal.raise_signal(signal.SIGINT)
            return result

        return method

    def run() -> FeatureSet:
        return import_features(tmp_path / "arrays.npz", tmp_path / f"set{moment}", classes=3).features

    handler = signal.getsignal(signal.SIGINT)
    for name in ("write", "readinto", "truncate"):
        monkeypatch.setattr(Storage, name, stopped(name))
    run()
    last = next(calls) - 1
    assert last > 5
    for number in range(1, last + 1):
        moment, calls = number, itertools.count(1)
        with pytest.raises(KeyboardInterrupt):
            run()
        run().verify("train")
    assert signal.getsignal(signal.SIGINT) is handler


def test_values_that_a_file_no_longer_holds_are_not_taken_for_zeros(run: Import, tmp_path: Path) -> None:
    """HDF5 fills up with zeros what lies behind the end of a file, and says nothing."""
    features = run()
    blocks = features.stream("train")(100)
    next(blocks)
    (shard,) = (tmp_path / "set").glob("*.h5")
    os.truncate(shard, shard.stat().st_size // 2)
    with pytest.raises(UserError, match="its values are damaged") as caught:
        list(blocks)
    assert caught.value.code == "damaged"


def test_notes_that_a_killed_run_left_in_a_finished_set_are_removed(run: Import, tmp_path: Path) -> None:
    run()
    whole = sorted(path.name for path in (tmp_path / "set").iterdir())
    for name in ("settings.json", "train-00000-of-00001.h5.sha256", ".manifest.json.0123456789abcdef.tmp"):
        (tmp_path / "set" / name).write_text("{}")
    run()
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == whole


def test_a_note_that_is_cut_short_does_not_reach_the_manifest(
    run: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = files.replace

    def cut(path: Path, data: Any, mode: int = 0o666) -> None:
        real(path, data[:10] if path.suffix == ".sha256" else data, mode)

    monkeypatch.setattr(files, "replace", cut)
    with pytest.raises(UserError, match="damaged"):
        run()
    assert not (tmp_path / "set").exists()
