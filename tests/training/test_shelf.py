"""What the gradients of a training share is kept in memory, in a file, or not at all. The head is the same."""

import errno
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpfc_cli as dpfc
from dpfc_cli.errors import UserError
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy.directions import InMemory, Shelf, direction_bytes
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Lattice, Reals
from dpfc_cli.training import run as run_module
from dpfc_cli.training import shelf as shelf_module
from dpfc_cli.training.shelf import InFile, shelf_for, side_of

FACTS = Facts(n=1000, m=3, d=4)
GB = 10**9
BLOCKS: list[tuple[np.ndarray, ...]] = [
    (np.arange(12, dtype=np.int16).reshape(4, 3), np.arange(4.0)[:, None], np.full((4, 2), -1, np.int32)),
    (np.ones((2, 3), np.int16), np.zeros((2, 1)), np.array([[1, 0], [2, -1]], np.int32)),
]


def on(shelf: Shelf) -> list[tuple[np.ndarray, ...]]:
    for block in BLOCKS:
        assert shelf.put(block)
    return list(shelf.blocks())


@pytest.mark.parametrize("make", [lambda folder: InMemory(), InFile], ids=["memory", "file"])
def test_a_shelf_gives_back_what_was_put_there(make: Callable[[Path], Shelf], tmp_path: Path) -> None:
    shelf = make(tmp_path)
    for _ in range(2):
        for found, block in zip(on(shelf), BLOCKS, strict=True):
            assert [array.dtype for array in found] == [array.dtype for array in block]
            assert all(np.array_equal(one, other) for one, other in zip(found, block, strict=True))
        shelf.clear()
        assert list(shelf.blocks()) == []


def test_a_file_has_no_name_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    shelf = InFile(tmp_path)
    on(shelf)
    assert shelf._file is not None
    said = os.fstat(shelf._file.fileno())
    assert list(tmp_path.iterdir()) == []
    assert (said.st_nlink, stat.S_IMODE(said.st_mode)) == (0, 0o600)
    assert said.st_size == sum(array.nbytes for block in BLOCKS for array in block)
    file = shelf._file
    shelf.clear()
    assert file.closed


def test_a_full_disk_is_no_error_and_a_failing_one_is_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = InFile(tmp_path)
    on(shelf)
    assert shelf._file is not None
    os.ftruncate(shelf._file.fileno(), 70)
    with pytest.raises(UserError, match="cannot be read: a file of this training has ended early"):
        list(shelf.blocks())

    def full(*given: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    assert not shelf.put(BLOCKS[0])
    shelf.clear()
    for folder in (tmp_path / "missing", Path(__file__)):
        assert not InFile(folder).put(BLOCKS[0])


def test_a_write_that_stops_half_way_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, read = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: whole(fd, data[:5], at))
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: read(fd, [into[0][:3]], at))
    shelf = InFile(tmp_path)
    for found, block in zip(on(shelf), BLOCKS, strict=True):
        assert all(np.array_equal(one, other) for one, other in zip(found, block, strict=True))
    shelf.clear()


def chosen(method: str = "dp-fc", memory: float | None = 10 * GB, folder: Path = Path(), **given: Any) -> str:
    entry = METHODS[method]
    facts = replace(FACTS, n=10**6, d=1000)
    plan = entry.plan(facts, entry.planned(facts, given, True))
    shelf = shelf_for(side_of(plan, Lattice(14)), facts.n, facts, Lattice(14), GB, memory, folder)
    return "nothing" if shelf is None else type(shelf).__name__


def test_memory_is_taken_if_there_is_enough_and_else_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million directions of 1,000 numbers and a bias take 2.014 GB in 16 bits, and the training 1 GB for the rest."""
    assert direction_bytes(replace(FACTS, n=10**6, d=1000), 10**6, 1001, Lattice(14)) == 2_014 * 10**6
    free = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free._replace(free=4_028 * 10**6))
    assert chosen(memory=3_014 * 10**6, folder=tmp_path) == "InMemory"
    assert chosen(memory=3_014 * 10**6 - 1, folder=tmp_path) == "InFile"
    monkeypatch.setattr(shelf_module, "free_memory", lambda: 2 * 3_014 * 10**6)
    assert chosen(memory=None, folder=tmp_path) == "InMemory"
    monkeypatch.setattr(shelf_module, "free_memory", lambda: 2 * 3_014 * 10**6 - 2)
    assert chosen(memory=None, folder=tmp_path) == "InFile"
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free._replace(free=4_028 * 10**6 - 2))
    assert chosen(memory=None, folder=tmp_path) == "nothing"


def test_a_folder_that_is_not_there_keeps_nothing(tmp_path: Path) -> None:
    assert chosen(memory=GB, folder=tmp_path / "missing") == "nothing"


def test_a_training_without_two_gradients_keeps_nothing() -> None:
    assert chosen("dp-ls") == "nothing"
    assert chosen("dp-newton", steps=1) == "nothing"
    assert chosen("dp-newton", steps=2) == "InMemory"
    assert chosen("dp-fc", steps=1) == "nothing"
    # Without noise there may be more steps than are planned.
    entry = METHODS["dp-fc"]
    plan = entry.plan(FACTS, entry.planned(FACTS, {"steps": 1}, False))
    assert isinstance(shelf_for(side_of(plan, Reals()), FACTS.n, FACTS, Reals(), GB, 10 * GB, Path()), InMemory)


@pytest.mark.parametrize("given", [{"epsilon": 1.0, "seed": 3}, {"non_private": True}], ids=["noise", "none"])
@pytest.mark.parametrize("method", ["dp-whitened", "dp-fc", "dp-newton", "dp-adam"])
def test_the_head_is_the_same_wherever_directions_are_kept(
    features: FeatureSet, method: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[InMemory | InFile] = []
    heads = []
    for shelf in (None, InMemory, lambda: InFile(features.folder)):
        monkeypatch.setattr(
            run_module, "shelf_for", lambda *a, shelf=shelf: shelf and (made.append(shelf()), made[-1])[1]
        )
        trained = dpfc.train(features, method=method, steps=3, **given)
        heads.append((trained.head.weight.tobytes(), trained.head.bias.tobytes()))
    assert heads[0] == heads[1] == heads[2]
    # Nothing stays there.
    assert len(made) == 2
    assert [list(shelf.blocks()) for shelf in made] == [[], []]
    assert sorted(path.suffix for path in features.folder.iterdir()) == [".digests", ".h5", ".json"]
