"""The directions of records, which the gradients of one training share.

Most work on a record does not depend on θ: reading it, its preprocessing, and the integers of its direction
(`Gradient.direction`). The first gradient of a training puts the directions on a *shelf*, and the later ones take them
from there. A direction is kept in a small type that holds its integers exactly, and everything that follows is computed
from the small type, with and without a shelf. So the sum is the same to the last bit. Blocks that come from the shelf
are checked like those of the stream: each unit once. What is in them is trusted, as memory is.
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from dpfc_cli.privacy import chain as chains
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.passes import Block, Pass
from dpfc_cli.privacy.queries import Gradient, Grid


class Shelf(Protocol):
    """A place for blocks of arrays. What lies on it depends on records."""

    def put(self, block: tuple[np.ndarray, ...]) -> bool:
        """Add a block after those that are there. False if there is no room for it."""
        ...

    def blocks(self) -> Iterator[tuple[np.ndarray, ...]]:
        """All blocks, in the order in which they were put there."""
        ...

    def clear(self) -> None:
        """Remove all blocks, and what holds them."""
        ...


class InMemory:
    """A shelf in memory."""

    def __init__(self) -> None:
        self._held: list[tuple[np.ndarray, ...]] = []

    def put(self, block: tuple[np.ndarray, ...]) -> bool:
        self._held.append(block)
        return True

    def blocks(self) -> Iterator[tuple[np.ndarray, ...]]:
        return iter(self._held)

    def clear(self) -> None:
        self._held.clear()


class Directions:
    """The directions of all records, which the gradients of one training share.

    Only gradients of the same chain, constant and radius share them. For others they are made anew.
    """

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._of: Gradient | None = None

    def holds(self, query: Gradient) -> bool:
        """Whether the directions of this query are there."""
        return self._of is not None and _same_directions(self._of, query)

    def kept(self) -> Iterator[Block]:
        """What was kept, in the order of the records."""
        for start, q, length, labels, *found in self._shelf.blocks():
            yield Block(int(start[0]), labels, found, (q, length))

    def keeping(self, query: Gradient, made: Pass) -> Pass:
        """The same pass. Its blocks are kept if there is room, and count as there once all of them came."""
        self._of, room = None, True
        self._shelf.clear()
        for block, taken in made:
            if room and not self._shelf.put((np.array([block.start]), *block.data, block.labels, *block.found)):
                room = False
                self._shelf.clear()
            yield block, taken
        if room:
            self._of = query


def _same_directions(a: Gradient, b: Gradient) -> bool:
    values = zip(chains.values(a.chain), chains.values(b.chain), strict=False)
    return (
        list(map(type, a.chain)) == list(map(type, b.chain))
        and (a.constant, a.radius) == (b.constant, b.radius)
        and all(np.array_equal(one, other) for one, other in values)
    )


def direction_bytes(facts: Facts, records: int, side: int, grid: Grid) -> int:
    """How many bytes the directions of so many records take on a shelf. side: the length of a direction."""
    persons_of = 0 if facts.rows is None else 8
    return records * (side * np.dtype(grid.small).itemsize + 8 + 4 * facts.k + persons_of)
