"""What a training takes of the machine: memory, and files for what its sums share and for answers in pieces."""

import errno
import os
import shutil
import stat
import tempfile
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
from dpfc_cli.methods.method import state_bytes
from dpfc_cli.options import MethodName
from dpfc_cli.privacy import forms
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
from dpfc_cli.training.request import Privacy
from tests.closed import closed, failing
from tests.support import exact_sum, stream_of
from tests.training.requests import checked, states

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
    monkeypatch.setattr(forms, "PIECE_BYTES", 2 * 8 * 4**2)
    monkeypatch.setattr("dpfc_cli.privacy.passes.block_rows", lambda facts: 64)
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


@pytest.mark.parametrize("fault", [None, errno.EOPNOTSUPP], ids=["not there", "not supported"])
def test_where_the_system_does_not_allocate_a_file_is_filled(
    fault: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is only long takes no room until it is written."""
    if fault is None:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    else:
        monkeypatch.setattr(os, "posix_fallocate", failing(fault), raising=False)
    filled, write = np.zeros(3 * 2**20 + 5, bool), os.pwrite

    def counted(file: int, data: Any, at: int) -> int:
        filled[at : at + len(data)] = True
        return write(file, data, at)

    monkeypatch.setattr(os, "pwrite", counted)
    shelf = InFile(tmp_path, len(filled))
    for found, block in zip(on(shelf), BLOCKS, strict=True):
        assert all(np.array_equal(one, other) for one, other in zip(found, block, strict=True))
    assert filled.all()
    shelf.clear()


def test_where_the_system_allocates_nothing_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[int, int]]()
    monkeypatch.setattr(os, "posix_fallocate", lambda file, *given: asked.append(given), raising=False)
    monkeypatch.setattr(os, "pwrite", lambda *given: pytest.fail("something was written"))
    for room in (0, 100):
        shelf = InFile(tmp_path, room)
        assert shelf.put((np.zeros(0),))
        shelf.clear()
    assert asked == [(0, 100)]


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
    shelf = shelf_for(side_of(plan, Lattice(14), 1), facts.n, facts, Lattice(14), GB, memory, folder)
    return "nothing" if shelf is None else type(shelf).__name__


def test_memory_is_taken_if_there_is_enough_and_else_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million directions of 1,000 numbers and a bias take 2.014 GB in 16 bits, and the training 1 GB for the rest."""
    needed = direction_bytes(replace(FACTS, n=10**6, d=1000), 10**6, 1001, Lattice(14))
    assert needed == 2_014 * 10**6 + 8 * 123
    free = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free._replace(free=2 * needed))
    assert chosen(memory=GB + needed, folder=tmp_path) == "InMemory"
    assert chosen(memory=GB + needed - 1, folder=tmp_path) == "InFile"
    monkeypatch.setattr(shelf_module, "free_memory", lambda: 2 * (GB + needed))
    assert chosen(memory=None, folder=tmp_path) == "InMemory"
    monkeypatch.setattr(shelf_module, "free_memory", lambda: 2 * (GB + needed) - 2)
    assert chosen(memory=None, folder=tmp_path) == "InFile"
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free._replace(free=2 * needed - 2))
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
    assert isinstance(shelf_for(side_of(plan, Reals(), 1), FACTS.n, FACTS, Reals(), GB, 10 * GB, Path()), InMemory)


def test_what_pieces_share_has_room_for_the_vector_of_each_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "PIECE_BYTES", 2 * 8 * 4**2)
    entry = METHODS["dp-ls"]
    plan = entry.plan(FACTS, entry.planned(FACTS, {}, True))
    assert [len(release.pieces) for release in plan.releases if release.kind == ClassGrams.kind] == [2]
    assert [side_of(plan, grid, k) for grid in (Lattice(14), Reals()) for k in (1, 3)] == [4, 12, 4, 12]


@pytest.mark.parametrize("given", [{"epsilon": 1.0, "seed": 3}, {"non_private": True}], ids=["noise", "none"])
@pytest.mark.parametrize("method", ["dp-whitened", "dp-fc", "dp-newton", "dp-adam"])
def test_the_head_is_the_same_wherever_directions_are_kept(
    features: FeatureSet, method: MethodName, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
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


@pytest.mark.parametrize(("room", "fits"), [(100, [True, False]), (159, [True, False]), (160, [True, True])])
def test_a_file_does_not_grow_beyond_its_room(room: int, fits: list[bool], tmp_path: Path) -> None:
    """No more of the disk was promised. What does not fit is computed anew."""
    shelf = InFile(tmp_path, room)
    for _ in range(2):
        assert [shelf.put((np.zeros(10, np.int64),)) for _ in range(2)] == fits
        assert shelf._file is not None
        assert os.fstat(shelf._file.fileno()).st_size == room
        shelf.clear()


def test_a_training_takes_600_mebibytes_beside_the_state_of_its_method(features: FeatureSet) -> None:
    calibrated = checked(features).calibrated
    needed = state_bytes(calibrated.method, calibrated.plan) + 600 * 2**20
    check_memory(calibrated.method, calibrated.plan, calibrated.facts, needed)
    with pytest.raises(UserError, match=r"needs about 629 MB \(3 classes, 5 dimensions\)") as refused:
        check_memory(calibrated.method, calibrated.plan, calibrated.facts, needed - 1)
    assert refused.value.code == "memory"
    assert (refused.value.fields["needed"], refused.value.fields["allowed"]) == (needed, needed - 1)


def test_persons_take_300_mebibytes_more_and_only_class_matrices_have_a_way_out() -> None:
    facts, privacy = Facts(n=20, m=3, d=5, rows=60), Privacy(epsilon=1.0)
    for name, way_out in (("dp-fc", False), ("dp-ls", True)):
        alone, persons = (calibrate(METHODS[name], each, {}, privacy) for each in (replace(facts, rows=None), facts))
        needed = state_bytes(persons.method, persons.plan) + 900 * 2**20
        check_memory(alone.method, alone.plan, alone.facts, needed - 300 * 2**20)
        check_memory(persons.method, persons.plan, persons.facts, needed)
        with pytest.raises(UserError, match="This training needs") as refused:
            check_memory(persons.method, persons.plan, persons.facts, needed - 1)
        assert ("dp-fc" in refused.value.remedy) is way_out


# Room


def test_several_labels_take_350_mebibytes_more_where_there_are_class_grams() -> None:
    one, two = Facts(n=1000, m=3, d=4), Facts(n=1000, m=3, d=4, k=2)
    for name, more in (("dp-ls", 350 * 2**20), ("dp-fc", 0)):
        method = METHODS[name]
        plan = method.plan(one, method.planned(one, {}, True))
        assert training_bytes(method, plan, one) == state_bytes(method, plan) + working_bytes(one)
        assert training_bytes(method, plan, two) == training_bytes(method, plan, one) + more


def test_answers_in_pieces_take_500_mebibytes_and_four_times_what_a_matrix_is_larger_than_a_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method, facts, matrix = METHODS["dp-ls"], Facts(n=1000, m=3, d=4), 8 * 4**2
    for piece, more in ((3 * matrix, 0), (2 * matrix, 500 * 2**20), (matrix - 28, 500 * 2**20 + 4 * 28)):
        monkeypatch.setattr(forms, "PIECE_BYTES", piece)
        plan = method.plan(facts, method.planned(facts, {}, True))
        assert training_bytes(method, plan, facts) == state_bytes(method, plan) + working_bytes(facts) + more


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Class Grams come in pieces of one matrix, and there is no memory for the answers."""
    monkeypatch.setattr(forms, "PIECE_BYTES", 1)
    monkeypatch.setattr(shelf_module, "MEMORY_LEFT", 0.0)


@pytest.mark.usefixtures("no_memory")
@pytest.mark.parametrize("given", [{"epsilon": 1.0}, {"non_private": True}], ids=["noise", "none"])
def test_answers_that_have_no_room_are_refused_before_the_charge(
    given: dict[str, Any], features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(features.folder)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: full)
    with pytest.raises(UserError, match=r"has room for 0\.0 GB"):
        dpfc.train(features, method="dp-ls", **given)
    assert states(features) == []


@pytest.mark.usefixtures("no_memory")
@pytest.mark.parametrize(
    ("where", "name", "number"),
    [(tempfile, "TemporaryFile", errno.EROFS), (os, "posix_fallocate", errno.EDQUOT)],
    ids=["read-only", "quota"],
)
def test_a_folder_without_room_for_the_answers_is_found_out_before_the_charge(
    where: Any, name: str, number: int, features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, failing(number), raising=False)
    with pytest.raises(UserError, match="answers of this training cannot be written") as refused:
        dpfc.train(features, method="dp-ls", epsilon=1.0)
    assert refused.value.code == "unwritable"
    assert states(features) == []


@pytest.mark.usefixtures("no_memory")
def test_the_same_disk_is_promised_once(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers in pieces lie there twice, and the vectors of the records get what is left."""
    tried, promised = list[int](), list[int]()
    monkeypatch.setattr(shelf_module, "_try_file", lambda folder, size: tried.append(size))
    monkeypatch.setattr(run_module, "shelf_for", lambda *given: (promised.append(given[-1]), shelf_for(*given))[1])
    entry = METHODS["dp-ls"]
    made = dpfc.train(features, method="dp-ls", epsilon=1.0)
    facts = made.charged.checked.calibrated.facts
    size = stack_bytes(entry.plan(facts, entry.planned(facts, {}, True)))
    assert (tried, promised) == ([2 * size, 2 * size], [2 * size])
    # Nobody goes on with a training whose seed is known, so its answers are not kept.
    dpfc.train(features, method="dp-ls", epsilon=1.0, seed=1)
    assert (tried[2:], promised[1:]) == ([size, size], [size])


def test_what_is_promised_to_answers_is_not_given_to_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = direction_bytes(FACTS, FACTS.n, 4, Lattice(14))
    free = shutil.disk_usage(tmp_path)._replace(free=2 * needed + 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free)
    for promised, kept in ((1000, InFile), (1002, type(None))):
        assert isinstance(shelf_for(4, FACTS.n, FACTS, Lattice(14), GB, GB, tmp_path, promised), kept)


@pytest.mark.usefixtures("no_memory")
def test_a_file_system_that_cannot_tell_is_tried_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = METHODS["dp-ls"]
    plan = entry.plan(FACTS, entry.planned(FACTS, {}, True))
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.EOPNOTSUPP), raising=False)
    assert isinstance(stack_for(plan, 0, None, tmp_path), Stack)
    gradients = METHODS["dp-fc"].plan(FACTS, METHODS["dp-fc"].planned(FACTS, {}, True))
    assert isinstance(stack_for(gradients, 1, None, tmp_path / "missing"), InMemory)


def pieces(folder: Path, *beside: int, memory: float | None = GB) -> str:
    """Where the answers of a plan lie that are made in pieces."""
    entry = METHODS["dp-ls"]
    plan = entry.plan(FACTS, entry.planned(FACTS, {}, True))
    return type(stack_for(plan, GB, memory, folder, *beside)).__name__


def test_answers_lie_in_memory_if_there_is_room_and_else_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each class has a half matrix with its diagonal. 32 numbers say of which query they are."""
    monkeypatch.setattr(forms, "PIECE_BYTES", 1)
    entry = METHODS["dp-ls"]
    size = stack_bytes(entry.plan(FACTS, entry.planned(FACTS, {}, True)))
    assert size == 8 * (32 + 3 * 4 * 5 // 2)
    assert pieces(tmp_path, memory=GB + size) == "InMemory"
    assert pieces(tmp_path, memory=GB + size - 1) == "Stack"
    monkeypatch.setattr(shelf_module, "free_memory", lambda: 2 * (GB + size))
    assert pieces(tmp_path, memory=None) == "InMemory"
    free = shutil.disk_usage(tmp_path)._replace(free=size + 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free)
    assert pieces(tmp_path, 10) == "Stack"
    with pytest.raises(UserError, match=r"has room for 0\.0 GB") as refused:
        pieces(tmp_path, 11)
    assert (refused.value.code, refused.value.fields) == ("memory", {"needed": size + 11, "allowed": size + 10})
    free = free._replace(free=size)
    assert pieces(tmp_path) == "Stack"


def test_answers_are_refused_where_the_disk_cannot_be_asked_or_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forms, "PIECE_BYTES", 1)
    with pytest.raises(UserError, match=r"missing' cannot be read: No such file") as refused:
        pieces(tmp_path / "missing")
    assert refused.value.code == "unreadable"
    with closed(tmp_path, mode=0o500), pytest.raises(UserError, match="cannot be written to") as refused:
        pieces(tmp_path)
    assert (refused.value.code, refused.value.fields["path"]) == ("unwritable", str(tmp_path))
    full = Stack(tmp_path / "missing")
    with pytest.raises(UserError, match="cannot be written to"):
        full.put((np.zeros(3),))
