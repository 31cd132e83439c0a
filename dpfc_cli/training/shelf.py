"""Where a training keeps what all its gradients share: in memory, or in a file without a name, or nowhere.

What is kept is as private as the records. In a file it lies in the folder of the feature set, on the same disk as the
records. The file has no name, and only this process can read it. The system frees it when the process ends, however it
ends.
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from dpfc_cli.features.manifest import unreadable
from dpfc_cli.files import read_at, write_at
from dpfc_cli.memory import free_memory
from dpfc_cli.privacy.directions import InMemory, Shelf, direction_bytes
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Lattice
from dpfc_cli.privacy.oracle import Plan
from dpfc_cli.privacy.queries import Gradient, Grid

DISK_LEFT = 0.5
"""The part of the free disk that is left to others."""
MEMORY_LEFT = 0.5
"""The part of the free memory that is left to others, if nobody said how much a training may take."""


class InFile:
    """A shelf in a file without a name, in a folder. The file is made for the first block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._size = 0
        self._blocks: list[list[tuple[tuple[int, ...], np.dtype[Any]]]] = []

    def put(self, block: tuple[np.ndarray, ...]) -> bool:
        end = self._size
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            for array in block:
                data = memoryview(np.ascontiguousarray(array)).cast("B")
                write_at(self._file.fileno(), data, end)
                end += len(data)
        except OSError:
            # The disk is full, or nothing may be written there. What is not kept is computed anew.
            return False
        self._blocks.append([(array.shape, array.dtype) for array in block])
        self._size = end
        return True

    def blocks(self) -> Iterator[tuple[np.ndarray, ...]]:
        """All blocks, in order. UserError where the disk fails."""
        at = 0
        for block in self._blocks:
            assert self._file is not None
            arrays = tuple(np.empty(shape, dtype) for shape, dtype in block)
            for array in arrays:
                self._read(self._file.fileno(), memoryview(array).cast("B"), at)
                at += array.nbytes
            yield arrays

    def _read(self, file: int, buffer: memoryview, at: int) -> None:
        try:
            if not read_at(file, buffer, at):
                raise OSError("a file of this training has ended early")
        except OSError as error:
            raise unreadable(self._folder, error) from error

    def clear(self) -> None:
        self._blocks.clear()
        self._size = 0
        if self._file is not None:
            self._file.close()
            self._file = None


def side_of(plan: Plan, grid: Grid) -> int | None:
    """The length of the directions that the gradients of a training share. None if there is nothing to share."""
    sides = [release.shape[0] for release in plan.releases if release.kind == Gradient.kind]
    # Without noise a method may take more steps than are planned.
    return sides[0] if len(sides) >= (2 if isinstance(grid, Lattice) else 1) else None


def shelf_for(
    side: int | None, records: int, facts: Facts, grid: Grid, others: int, memory: float | None, folder: Path
) -> Shelf | None:
    """An empty shelf for a training. None if it has nothing to share, or there is no room.

    Args:
        side: see `side_of`.
        records: how many records this process reads.
        facts: the public facts.
        grid: the lattice.
        others: bytes that the training needs for other things.
        memory: bytes that it may take in all. None: a part of what is free.
        folder: where a file may lie.

    """
    if side is None:
        return None
    needed = direction_bytes(facts, records, side, grid)
    allowed = MEMORY_LEFT * free_memory() if memory is None else memory
    if needed <= allowed - others:
        return InMemory()
    try:
        return InFile(folder) if needed <= DISK_LEFT * shutil.disk_usage(folder).free else None
    except OSError:
        return None
