"""What a training takes of the machine: memory, and files for what its sums share and for answers in pieces."""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpfc_cli as dpfc
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.method import state_bytes
from dpfc_cli.options import MethodName
from dpfc_cli.privacy import forms
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.directions import Directions, InMemory, Shelf, direction_bytes
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Lattice, Reals
from dpfc_cli.privacy.queries import ClassGrams, Gradient
from dpfc_cli.training import machine as shelf_module
from dpfc_cli.training import run as run_module
from dpfc_cli.training.calibrate import calibrate
from dpfc_cli.training.machine import (
    InFile,
    Stack,
    check_memory,
    shelf_for,
    side_of,
    stack_bytes,
    stack_for,
    training_bytes,
    working_bytes,
)
from tests import instead
from tests.closed import closed, failing
from tests.support import exact_sum, refuses, replace, stream_of
from tests.training.requests import states
from tests.training.stopped import Listener

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


def same(one: list[tuple[np.ndarray, ...]], other: list[tuple[np.ndarray, ...]]) -> bool:
    pairs = [pair for blocks in zip(one, other, strict=True) for pair in zip(*blocks, strict=True)]
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)


def test_a_shelf_gives_back_what_was_put_there_also_where_writes_and_reads_stop_half_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, read = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: whole(fd, data[:5], at))
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: read(fd, [into[0][:3]], at))
    shelves: tuple[Shelf, ...] = (InMemory(), InFile(tmp_path), InFile(tmp_path, 1000))
    for shelf in shelves * 2:
        assert same(on(shelf), BLOCKS)
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


RECORDS: dict[str, tuple[Callable[[np.ndarray], Any], list[int]]] = {
    "each has three labels": (lambda i: np.tile([0, 3, 5], (len(i), 1)), [3] * 100),
    "each has one": (lambda i: np.stack([i % 6, 0 * i - 1, 0 * i - 1], 1), [1] * 99 + [201]),
    "half of them are null": (lambda i: np.where(i[:, None] % 2, [1, 2, -1], -1), [1] * 50 + [5] * 50),
    "the first block is null": (lambda i: np.where(i[:, None] < 64, -1, [4, -1, -1]), [201] + [1] * 99),
    "all are null": (lambda i: np.full((len(i), 3), -1), [3] * 100),
}
"""Labels, and how many records each of a hundred persons has."""


@pytest.mark.parametrize("method", ["dp-ls", "dp-fc"])
@pytest.mark.parametrize("persons", [False, True], ids=["records", "persons"])
def test_the_size_of_a_file_says_nothing_of_the_records(
    method: str, persons: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither does the free disk, while the file is written: which records are null, how many labels they have, and how
    many records a person has is as private as the records.
    """
    instead.piece_bytes(monkeypatch, 2 * 8 * 4**2)
    instead.block_rows(monkeypatch, 64)
    n, grid, entry, sizes = 300, Lattice(14), METHODS[method], set[int]()
    facts = Facts(n=100 if persons else n, rows=n if persons else None, m=6, d=4, k=3)
    plan = entry.plan(facts, entry.planned(facts, {}, True))
    asked: list[Any] = [Gradient((Clip(0.5),), np.zeros((5, 6)), clip=1.0)]
    if method == "dp-ls":
        asked = forms.pieces(ClassGrams((Clip(0.5),)), (6, 4, 4))
    put = InFile.put

    def watched(shelf: InFile, block: tuple[np.ndarray, ...]) -> bool:
        found = put(shelf, block)
        assert shelf._file is not None
        sizes.add(os.fstat(shelf._file.fileno()).st_size)
        return found

    monkeypatch.setattr(InFile, "put", watched)
    for labels, of_each in RECORDS.values():
        x, y = np.ones((n, 4), np.float32), labels(np.arange(n)).astype(np.int32)
        stream = stream_of(x, y, np.repeat(np.arange(100), of_each) if persons else None)
        shelf = shelf_for(side_of(plan, grid, 3), n, facts, grid, GB, GB, tmp_path)
        assert isinstance(shelf, InFile)
        for query in asked:
            found = exact_sum(query, stream, facts, grid, directions=Directions(shelf))
            assert np.array_equal(found, exact_sum(query, stream, facts, grid))
        assert shelf._file is not None
        shelf.clear()
    assert sizes == {direction_bytes(facts, n, 12 if method == "dp-ls" else 5, grid)}


def test_the_room_of_a_file_is_taken_from_its_first_block_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the system, or where it cannot allocate by zeros: a file that is only long takes no room."""
    asked, filled, write = list[tuple[int, int]](), np.zeros(3 * 2**20 + 5, bool), os.pwrite

    def counted(file: int, data: Any, at: int) -> int:
        filled[at : at + len(data)] = True
        return write(file, data, at)

    monkeypatch.setattr(os, "pwrite", counted)
    monkeypatch.setattr(os, "posix_fallocate", lambda file, *given: asked.append(given), raising=False)
    for room in (0, 100):
        shelf = InFile(tmp_path, room)
        assert shelf.put((np.zeros(0),))
        shelf.clear()
    assert asked == [(0, 100)]
    assert not filled.any()
    monkeypatch.delattr(os, "posix_fallocate")
    shelf = InFile(tmp_path, len(filled))
    assert same(on(shelf), BLOCKS)
    assert filled.all()
    shelf.clear()


def test_without_room_for_all_of_a_file_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a disk fills up would tell how large what was written is."""
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.ENOSPC), raising=False)
    monkeypatch.setattr(os, "pwrite", lambda *given: pytest.fail("something was written"))
    shelf = InFile(tmp_path, 100)
    assert not shelf.put(BLOCKS[0])
    assert list(shelf.blocks()) == []
    shelf.clear()


def test_a_full_disk_is_no_error_and_a_failing_one_is_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = InFile(tmp_path)
    on(shelf)
    assert shelf._file is not None
    os.ftruncate(shelf._file.fileno(), 70)
    with refuses("damaged"):
        list(shelf.blocks())

    def full(*given: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    assert not shelf.put(BLOCKS[0])
    shelf.clear()
    for folder in (tmp_path / "missing", Path(__file__)):
        assert not InFile(folder).put(BLOCKS[0])


def chosen(method: str = "dp-fc", memory: float | None = 10 * GB, folder: Path = Path(), **given: Any) -> str:
    entry = METHODS[method]
    facts = replace(FACTS, n=10**6, d=1000)
    plan = entry.plan(facts, entry.planned(facts, given, True))
    shelf = shelf_for(side_of(plan, Lattice(14), 1), facts.n, facts, Lattice(14), GB, memory, folder)
    return "nothing" if shelf is None else type(shelf).__name__


def test_memory_is_taken_if_there_is_enough_and_else_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: Callable[[float], None]
) -> None:
    """A million directions of 1,000 numbers and a bias take 2.014 GB in 16 bits, and the training 1 GB for the rest."""
    needed = direction_bytes(replace(FACTS, n=10**6, d=1000), 10**6, 1001, Lattice(14))
    # And 8 bytes for each block of 256.
    assert needed == 2_014 * 10**6 + 8 * 3_907
    instead.free_disk(monkeypatch, 2 * needed)
    assert chosen(memory=GB + needed, folder=tmp_path) == "InMemory"
    assert chosen(memory=GB + needed - 1, folder=tmp_path) == "InFile"
    room(2 * (GB + needed))
    assert chosen(memory=None, folder=tmp_path) == "InMemory"
    room(2 * (GB + needed) - 2)
    assert chosen(memory=None, folder=tmp_path) == "InFile"
    instead.free_disk(monkeypatch, 2 * needed - 2)
    assert chosen(memory=None, folder=tmp_path) == "nothing"
    monkeypatch.undo()
    assert chosen(memory=GB, folder=tmp_path / "missing") == "nothing"


def test_a_training_without_two_gradients_keeps_nothing() -> None:
    assert chosen("dp-ls") == "nothing"
    assert chosen("dp-newton", steps=1) == "nothing"
    assert chosen("dp-newton", steps=2) == "InMemory"
    assert chosen("dp-fc", steps=1) == "nothing"
    # Without noise there may be more steps than are planned.
    entry = METHODS["dp-fc"]
    plan = entry.plan(FACTS, entry.planned(FACTS, {"steps": 1}, False))
    assert isinstance(shelf_for(side_of(plan, Reals(), 1), FACTS.n, FACTS, Reals(), GB, 10 * GB, Path()), InMemory)


def test_what_pieces_share_has_room_for_the_vector_of_each_label(monkeypatch: pytest.MonkeyPatch) -> None:
    instead.piece_bytes(monkeypatch, 2 * 8 * 4**2)
    entry = METHODS["dp-ls"]
    plan = entry.plan(FACTS, entry.planned(FACTS, {}, True))
    assert [len(release.pieces) for release in plan.releases if release.kind == ClassGrams.kind] == [2]
    assert [side_of(plan, grid, k) for grid in (Lattice(14), Reals()) for k in (1, 3)] == [4, 12, 4, 12]


def test_the_head_is_the_same_wherever_directions_are_kept(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, free = {"epsilon": 1.0, "seed": 3}, {"non_private": True}
    trainings: tuple[tuple[MethodName, dict[str, Any]], ...]
    trainings = ("dp-whitened", private), ("dp-whitened", free), ("dp-newton", private)
    for method, given in trainings:
        made, heads = list[InMemory | InFile](), []
        for shelf in (None, InMemory, lambda: InFile(features.folder)):
            monkeypatch.setattr(
                run_module,
                "shelf_for",
                lambda *a, shelf=shelf, made=made: shelf and (made.append(shelf()), made[-1])[1],
            )
            trained = dpfc.train(features, method=method, steps=2, again=True, observer=Listener(), **given)
            heads.append((trained.head.weight.tobytes(), trained.head.bias.tobytes()))
        assert heads[0] == heads[1] == heads[2], (method, given)
        # Nothing stays there.
        assert [list(shelf.blocks()) for shelf in made] == [[], []]
    assert sorted(path.suffix for path in features.folder.iterdir()) == [".h5", ".json"]


def test_a_file_does_not_grow_beyond_its_room(tmp_path: Path) -> None:
    """No more of the disk was promised. What does not fit is computed anew."""
    for room, fits in ((100, [True, False]), (159, [True, False]), (160, [True, True])):
        shelf = InFile(tmp_path, room)
        for _ in range(2):
            assert [shelf.put((np.zeros(10, np.int64),)) for _ in range(2)] == fits
            assert shelf._file is not None
            assert os.fstat(shelf._file.fileno()).st_size == room
            shelf.clear()


def needed_by(name: str, facts: Facts) -> int:
    """The bytes of a training beside the state of its method."""
    calibrated = calibrate(METHODS[name], facts, {}, Privacy(epsilon=1.0))
    needed = training_bytes(calibrated.method, calibrated.plan, facts)
    check_memory(calibrated.method, calibrated.plan, facts, needed)
    with refuses("memory") as refused:
        check_memory(calibrated.method, calibrated.plan, facts, needed - 1)
    assert (refused.value.fields["needed"], refused.value.fields["allowed"]) == (needed, needed - 1)
    # Only class matrices have a way out.
    assert ("dp-fc" in refused.value.remedy) is (name == "dp-ls")
    return needed - state_bytes(calibrated.method, calibrated.plan)


def test_a_training_takes_what_was_measured_beside_the_state_of_its_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """More for persons, for class Grams of several labels, and for answers in pieces."""
    mebibyte, matrix = 2**20, 8 * 4**2
    persons, several = replace(FACTS, rows=2000), replace(FACTS, k=2)
    for name, labels in (("dp-fc", 0), ("dp-ls", 350)):
        assert needed_by(name, FACTS) == 600 * mebibyte == working_bytes(FACTS)
        assert needed_by(name, persons) == 900 * mebibyte == working_bytes(persons)
        assert needed_by(name, several) == (600 + labels) * mebibyte
    # And four times what a matrix is larger than a piece.
    for piece, more in ((3 * matrix, 0), (2 * matrix, 500 * mebibyte), (matrix - 28, 500 * mebibyte + 4 * 28)):
        instead.piece_bytes(monkeypatch, piece)
        assert needed_by("dp-ls", FACTS) == 600 * mebibyte + more


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Class Grams come in pieces of one matrix, and there is no memory for the answers."""
    instead.piece_bytes(monkeypatch, 1)
    monkeypatch.setattr(shelf_module, "MEMORY_LEFT", 0.0)


@pytest.mark.usefixtures("no_memory")
def test_answers_that_have_no_room_are_refused_before_the_charge(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, a folder that is read-only, a quota."""
    full = shutil.disk_usage(features.folder)._replace(free=0)
    faults: tuple[tuple[Any, str, Any, str], ...] = (
        (shutil, "disk_usage", lambda folder: full, "memory"),
        (tempfile, "TemporaryFile", failing(errno.EROFS), "unwritable"),
        (os, "posix_fallocate", failing(errno.EDQUOT), "unwritable"),
    )
    for place, name, fault, code in faults:
        for given in ({"epsilon": 1.0}, {"non_private": True}):
            with monkeypatch.context() as patch:
                patch.setattr(place, name, fault, raising=False)
                with refuses(code):
                    dpfc.train(features, method="dp-ls", **given)
    assert states(features) == []
    dpfc.train(features, method="dp-ls", epsilon=1.0)
    assert states(features) == ["written"]


def test_what_is_promised_to_answers_is_not_given_to_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = direction_bytes(FACTS, FACTS.n, 4, Lattice(14))
    instead.free_disk(monkeypatch, 2 * needed + 1000)
    for promised, kept in ((1000, InFile), (1002, type(None))):
        assert isinstance(shelf_for(4, FACTS.n, FACTS, Lattice(14), GB, GB, tmp_path, promised), kept)


def pieces(folder: Path, *beside: int, memory: float | None = GB) -> str:
    """Where the answers of a plan lie that are made in pieces."""
    entry = METHODS["dp-ls"]
    plan = entry.plan(FACTS, entry.planned(FACTS, {}, True))
    return type(stack_for(plan, GB, memory, folder, *beside)).__name__


def test_answers_lie_in_memory_if_there_is_room_and_else_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: Callable[[float], None]
) -> None:
    """Each class has a half matrix with its diagonal. 32 numbers say of which query they are."""
    instead.piece_bytes(monkeypatch, 1)
    entry = METHODS["dp-ls"]
    size = stack_bytes(entry.plan(FACTS, entry.planned(FACTS, {}, True)))
    assert size == 8 * (32 + 3 * 4 * 5 // 2)
    assert pieces(tmp_path, memory=GB + size) == "InMemory"
    assert pieces(tmp_path, memory=GB + size - 1) == "Stack"
    room(2 * (GB + size))
    assert pieces(tmp_path, memory=None) == "InMemory"
    instead.free_disk(monkeypatch, size + 10)
    assert pieces(tmp_path, 10) == "Stack"
    with refuses("memory", parameter="memory", needed=507) as refused:
        pieces(tmp_path, 11)
    assert (refused.value.code, refused.value.fields) == (
        "memory",
        {"parameter": "memory", "needed": size + 11, "allowed": size + 10},
    )
    instead.free_disk(monkeypatch, size)
    assert pieces(tmp_path) == "Stack"
    gradients = METHODS["dp-fc"].plan(FACTS, METHODS["dp-fc"].planned(FACTS, {}, True))
    assert isinstance(stack_for(gradients, 1, None, tmp_path / "missing"), InMemory)


def test_answers_are_refused_where_the_disk_cannot_be_asked_or_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instead.piece_bytes(monkeypatch, 1)
    with refuses("missing"):
        pieces(tmp_path / "missing")
    with closed(tmp_path, mode=0o500), refuses("unwritable") as refused:
        pieces(tmp_path)
    assert (refused.value.code, refused.value.fields["path"]) == ("unwritable", str(tmp_path))
    full = Stack(tmp_path / "missing")
    with refuses("unwritable"):
        full.put((np.zeros(3),))
