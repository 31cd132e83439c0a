"""Answers in pieces lie in memory, or in a file. There is room for them, or the training is refused."""

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpfc_cli as dpfc
from dpfc_cli.errors import UserError
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy import forms
from dpfc_cli.privacy.directions import InMemory, direction_bytes
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Lattice
from dpfc_cli.training import machine as shelf_module
from dpfc_cli.training import run as run_module
from dpfc_cli.training.machine import InFile, Stack, shelf_for, stack_bytes, stack_for
from tests.closed import closed, failing
from tests.training.requests import states

FACTS = Facts(n=1000, m=3, d=4)
GB = 10**9


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
