"""Fixtures of the tests of answers in pieces."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dpfc_cli.privacy import forms
from dpfc_cli.privacy.directions import Shelf
from dpfc_cli.training.machine import InFile
from tests.privacy.pieces import D


@pytest.fixture
def two_classes_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "PIECE_BYTES", 2 * 8 * D**2)


@pytest.fixture(params=[2, 4], ids=["four pieces", "two pieces"])
def classes_each(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(forms, "PIECE_BYTES", request.param * 8 * D**2)
    return int(request.param)


@pytest.fixture
def in_file(tmp_path: Path) -> Iterator[Callable[[], Shelf]]:
    """Makes shelves in files."""
    made: list[InFile] = []

    def make() -> InFile:
        made.append(InFile(tmp_path))
        return made[-1]

    yield make
    for shelf in made:
        shelf.clear()
