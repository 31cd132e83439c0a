"""What a training takes of the machine: devices that compute exactly, memory, and files without a name.

A training keeps what its sums share, and its answers in pieces: in memory, or in a file without a name.
What the sums share is kept nowhere if there is no room: it is then computed anew. Answers in pieces need their room.

What is kept is as private as the records. In a file it lies in the folder of the feature set, on the same disk as the
records. The file has no name, and only this process can read it. The system frees it when the process ends, however it
ends. What the sums share has its room on the disk from the first block on, as far as the file system reserves it. That
is a number of public facts. How much of it is used depends on which records are null, and on how many labels they have.
"""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy as np

from dpfc_cli.errors import UserError, parameter, quoted, sentence, unsupported, unwritable
from dpfc_cli.files import fill, read_at, write_at
from dpfc_cli.kernels import products
from dpfc_cli.memory import free_memory
from dpfc_cli.methods import AnyMethod
from dpfc_cli.methods.method import state_bytes
from dpfc_cli.privacy import forms
from dpfc_cli.privacy.directions import InMemory, Shelf, direction_bytes
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Lattice
from dpfc_cli.privacy.oracle import Plan
from dpfc_cli.privacy.queries import ClassGrams, Gradient, Grid
from dpfc_cli.reading import unread

DISK_LEFT = 0.5
"""The part of the free disk that is left to others."""
MEMORY_LEFT = 0.5
"""The part of the free memory that is left to others, if nobody said how much a training may take."""
WORKING_BYTES = 600 * 2**20
"""Beside a method's state: the blocks that are worked on, the compiled kernels and the interpreter."""
PERSONS_BYTES = 300 * 2**20
"""More for persons: factors are copied where they are scaled, and those of the last person wait for the next block."""
LABELS_BYTES = 350 * 2**20
"""More for class Grams of records with several labels, as measured: a vector is copied for each of them."""
PIECES_BYTES = 500 * 2**20
"""More for answers in pieces, as measured with pieces of up to 64 MiB: arrays of many sizes come and go, and the system
keeps what lies between.
"""


def check_devices() -> None:
    """UserError where JAX cannot compute exactly on the devices of this machine."""
    try:
        products.check_exact()
    except Exception as error:
        raise unsupported(
            f"JAX cannot compute on this machine's devices: {sentence(error)}", "Try JAX_PLATFORMS=cpu."
        ) from error


def working_bytes(facts: Facts) -> int:
    return WORKING_BYTES + (PERSONS_BYTES if facts.rows is not None else 0)


def training_bytes(method: AnyMethod, plan: Plan, facts: Facts) -> int:
    large = max((8 * release.held for release in plan.releases if len(release.pieces) > 1), default=None)
    # One matrix may be larger than a piece of those that were measured. Four of them are in memory at most.
    pieces = 0 if large is None else PIECES_BYTES + 4 * max(0, large - forms.PIECE_BYTES)
    several = facts.k > 1 and any(release.kind == ClassGrams.kind for release in plan.releases)
    return state_bytes(method, plan) + working_bytes(facts) + pieces + (LABELS_BYTES if several else 0)


def check_memory(method: AnyMethod, plan: Plan, facts: Facts, memory: float | None) -> None:
    """UserError where a training needs more bytes than `memory`; None: than the machine has free."""
    allowed = free_memory() if memory is None else memory
    needed = training_bytes(method, plan, facts)
    if needed > allowed:
        matrices = any(len(release.shape) > 2 for release in plan.releases)
        other = f"{parameter('method')} dp-fc (its state does not grow with m·d²), " if matrices else ""
        raise UserError(
            f"This training needs about {needed / 1e6:,.0f} MB ({facts.m} classes, {facts.d} dimensions); "
            f"the limit is {allowed / 1e6:,.0f} MB.",
            f"Use {other}features of fewer dimensions ('dpfc extract' with {parameter('pool')} mean), or a larger "
            f"{parameter('memory')}.",
            code="memory",
            needed=needed,
            allowed=allowed,
        )


class InFile:
    """A shelf in a file without a name, in a folder. The file is made for the first block."""

    def __init__(self, folder: Path, room: int = 0) -> None:
        """An empty shelf. room: bytes that the file has from its first block on, however many of them are used."""
        self._folder, self._room = folder, room
        self._file: IO[bytes] | None = None
        self._size = 0
        self._blocks: list[tuple[int, list[tuple[tuple[int, ...], np.dtype[np.generic]]]]] = []

    def put(self, block: tuple[np.ndarray, ...]) -> bool:
        end = self._size
        # No more of the disk was promised. The records of the last person of a process's part may need more.
        if self._room and end + sum(array.nbytes for array in block) > self._room:
            return False
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
                fill(self._file.fileno(), self._room)
            for array in block:
                write_at(self._file.fileno(), _bytes_of(np.ascontiguousarray(array)), end)
                end += array.nbytes
        except OSError:
            # The disk is full, or nothing may be written there. What is not kept is computed anew.
            return False
        self._blocks.append((self._size, [(array.shape, array.dtype) for array in block]))
        self._size = end
        return True

    def blocks(self, numbers: Sequence[int] | None = None) -> Iterator[tuple[np.ndarray, ...]]:
        """All blocks, in order, or those with these numbers. UserError where the disk fails."""
        for number in range(len(self._blocks)) if numbers is None else numbers:
            assert self._file is not None
            at, block = self._blocks[number]
            arrays = tuple(np.empty(shape, dtype) for shape, dtype in block)
            try:
                for array in arrays:
                    if not read_at(self._file.fileno(), _bytes_of(array), at):
                        raise OSError("a file of this training has ended early")
                    at += array.nbytes
            except OSError as error:
                raise unread(self._folder, error) from error
            yield arrays

    def clear(self) -> None:
        self._blocks.clear()
        self._size = 0
        if self._file is not None:
            self._file.close()
            self._file = None


def _bytes_of(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


class Stack(InFile):
    """A shelf in a file for answers in pieces: a training cannot go on without room for them."""

    def put(self, block: tuple[np.ndarray, ...]) -> bool:
        """Add a block. UserError where there is no room for it."""
        if not super().put(block):
            raise unwritable(
                f"The answers of this training cannot be written to {quoted(self._folder)}.",
                "Make room there, or give it more memory, and type the same command again.",
            )
        return True


def stack_for(plan: Plan, others: int, memory: float | None, folder: Path, beside: int = 0) -> Shelf:
    """An empty shelf for the answers of a plan that are made in pieces: in memory if there is room, else in a file.

    others: bytes that the training needs for other things. memory: bytes that it may take in all; None: a part of what
    is free. folder: where a file may lie. beside: bytes that the training will write to the same disk besides.
    UserError: there is no room for them, or they cannot be written there.
    """
    needed = stack_bytes(plan)
    in_memory = not needed or needed <= _allowed(memory) - others
    needed, free = beside + (0 if in_memory else needed), _free(folder)
    if needed > free:
        raise UserError(
            f"The answers of this training take {needed / 1e9:.1f} GB, and '{folder}' has room for "
            f"{free / 1e9:.1f} GB.",
            f"Make room there, use features of fewer dimensions, or a larger {parameter('memory')}.",
            code="memory",
            needed=needed,
            allowed=free,
        )
    if in_memory:
        return InMemory()
    tried = Stack(folder, needed)
    try:
        # Perhaps nobody may write there, or a quota does not allow so much.
        tried.put((np.zeros(0),))
    finally:
        tried.clear()
    return Stack(folder)


def stack_bytes(plan: Plan) -> int:
    """How many bytes the answers of a plan that are made in pieces take on a shelf."""
    return 8 * plan.stacked


def _allowed(memory: float | None) -> float:
    return MEMORY_LEFT * free_memory() if memory is None else memory


def side_of(plan: Plan, grid: Grid, k: int) -> int | None:
    """How many numbers of each record the sums of a training share: those of its direction, for gradients; those of its
    vector for each of its k labels, for class Grams in pieces. None if there is nothing to share.
    """
    vectors = [release.shape[-1] * k for release in plan.releases if len(release.pieces) > 1]
    if vectors:
        return vectors[0]
    sides = [release.shape[0] for release in plan.releases if release.kind == Gradient.kind]
    # Without noise a method may take more steps than are planned.
    return sides[0] if len(sides) >= (2 if isinstance(grid, Lattice) else 1) else None


def shelf_for(
    side: int | None,
    records: int,
    facts: Facts,
    grid: Grid,
    others: int,
    memory: float | None,
    folder: Path,
    promised: int = 0,
) -> Shelf | None:
    """An empty shelf for a training. None if it has nothing to share, or there is no room.

    side: see `side_of`. records: how many records this process reads at most. others, memory, folder: see `stack_for`.
    promised: bytes of that disk that the training needs for other things.
    """
    if side is None:
        return None
    needed = direction_bytes(facts, records, side, grid)
    if needed <= _allowed(memory) - others:
        return InMemory()
    with suppress(UserError):
        if needed <= DISK_LEFT * (_free(folder) - promised):
            return InFile(folder, needed)
    return None


def _free(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError as error:
        raise unread(folder, error) from error
