"""What the sums of one training share: the directions of records, or their vectors sorted by class.

Most work on a record does not depend on θ: reading it, its preprocessing, and the integers of its direction
(`Gradient.direction`). The first gradient of a training puts the directions on a *shelf*, and the later ones take them
from there. A direction is kept in a small type that holds its integers exactly, and everything that follows is computed
from the small type, with and without a shelf. So the sum is the same to the last bit. Blocks that come from the shelf
are checked like those of the stream: each unit once. What is in them is trusted, as memory is.

The pieces of class Grams share the integer vectors of the records. The pass of the first piece puts them on the shelf,
clipped by person, sorted by class, and cut into *runs* of a few classes. Each piece reads its own runs only. A vector
lies there once for each class of its record. The integers are the same, so the sums are, too. The runs count as there
when the pass has ended, and so after it was checked. That pass also counts the vectors of each class. A piece must find
as many of each of its classes, or it is refused. So a run that is lost, that comes twice or that has other classes is
seen. That these are the same vectors is trusted, as memory is.

How many blocks of which sizes lie on the shelf depends on public facts alone, for gradients of a process that works
alone. (With several processes, the records of the last person of a part may go on behind it.) The size of a run depends
on the labels. All runs together have one vector at most for each label that a record can have: `direction_bytes` is a
bound, of public facts. A shelf that others can see the size of has to take that room in any case.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from dpfc_cli.privacy import chain as chains
from dpfc_cli.privacy import passes
from dpfc_cli.privacy.chain import Chain
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.passes import Block, Counted, IncompletePassError, Pass
from dpfc_cli.privacy.queries import ClassGrams, Gradient, Grid


class Shelf(Protocol):
    """A place for blocks of arrays. What lies on it depends on records."""

    def put(self, block: tuple[np.ndarray, ...]) -> bool:
        """Add a block after those that are there. False if there is no room for it."""
        ...

    def blocks(self, numbers: Sequence[int] | None = None) -> Iterator[tuple[np.ndarray, ...]]:
        """All blocks, in the order in which they were put there, or those with these numbers."""
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

    def blocks(self, numbers: Sequence[int] | None = None) -> Iterator[tuple[np.ndarray, ...]]:
        return iter(self._held if numbers is None else [self._held[number] for number in numbers])

    def clear(self) -> None:
        self._held.clear()


class Sorted(NamedTuple):
    """Vectors, one for each class of a record, sorted by class. labels: the classes. q: a row for each."""

    labels: np.ndarray
    q: np.ndarray

    def between(self, start: int, stop: int) -> "Sorted":
        """Those of the classes start..stop−1."""
        rows = slice(*np.searchsorted(self.labels, (start, stop)))
        return Sorted(self.labels[rows], self.q[rows])


class Directions:
    """The directions of all records, which the gradients of one training share, or what the pieces of class Grams do.

    Only gradients of the same chain, constant and radius share them, and only pieces of the same chain. For others they
    are made anew.
    """

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._of: Gradient | ClassGrams | None = None
        # Number on the shelf, first class, last class.
        self._runs: list[tuple[int, int, int]] = []
        self._counts = np.zeros(0, np.int64)
        self.span = range(0)

    def holds(self, query: Gradient | ClassGrams) -> bool:
        """Whether what this query needs is there."""
        there = self._of
        if there is None or type(there) is not type(query):
            return False
        same = (getattr(there, name, None) == getattr(query, name, None) for name in ("constant", "radius"))
        return all(same) and _same_chain(there.chain, query.chain)

    def kept(self) -> Iterator[Block]:
        """What was kept, in the order of the records."""
        for start, q, length, labels, *found in self._shelf.blocks():
            yield Block(int(start[0]), labels, found, (q, length))

    def keeping(self, query: Gradient, made: Pass) -> Pass:
        """The same pass. Its blocks are kept if there is room, and count as there once all of them came."""
        self.clear()
        room = True
        for block, taken in made:
            if room and not self._shelf.put((np.array([block.start]), *block.data, block.labels, *block.found)):
                room = False
                self.clear()
            yield block, taken
        if room:
            self._of = query

    def sorted_of(self, query: ClassGrams) -> Iterator[Sorted]:
        """The vectors of a piece that were kept.

        Raises:
            IncompletePassError: there are not as many of each class as in the pass that was checked. This is known at
                the end.

        """
        assert query.stop is not None
        counts = np.zeros(0, np.int64)
        mine = [number for number, first, last in self._runs if first < query.stop and last >= query.start]
        for labels, q in self._shelf.blocks(mine):
            if len(labels) != len(q):
                raise IncompletePassError("some vectors of the records are lost")
            found = Sorted(labels, q).between(query.start, query.stop)
            counts = _counted(counts, found.labels)
            yield found
        classes = range(query.start, query.stop)
        there, put = (np.pad(each, (0, query.stop))[classes] for each in (counts, self._counts))
        if not np.array_equal(there, put):
            raise IncompletePassError("some vectors of the records are lost, or came twice")

    def sorting(self, query: ClassGrams, made: Iterator[Sorted], checked: Counted, m: int) -> Iterator[Sorted]:
        """The same vectors, of all m classes. They are kept if there is room, in runs of as many classes as the
        piece.
        """
        assert query.stop is not None
        self.clear()
        room, width = True, query.stop - query.start
        for block in made:
            self._counts = _counted(self._counts, block.labels)
            for start in range(0, m, width) if room else ():
                run = block.between(start, start + width)
                # The first is kept in any case: a shelf that others can see is there whatever the labels are.
                if self._runs and not len(run.labels):
                    continue
                room = self._shelf.put(tuple(run))
                self._runs.append((len(self._runs), start, start + width - 1))
                if not room:
                    self.clear()
                    break
            yield block
        if room:
            self._of, self.span = query, checked.span

    def end_pieces(self) -> None:
        """Remove vectors that pieces share: nothing else needs them."""
        if isinstance(self._of, ClassGrams):
            self.clear()

    def clear(self) -> None:
        """Remove what is there."""
        self._of = None
        self._runs.clear()
        self._counts = np.zeros(0, np.int64)
        self._shelf.clear()


def _counted(counts: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How many there are of each class, with those that were counted before."""
    found = np.bincount(labels, minlength=len(counts))
    found[: len(counts)] += counts
    return found


def _same_chain(a: Chain, b: Chain) -> bool:
    values = zip(chains.values(a), chains.values(b), strict=False)
    return list(map(type, a)) == list(map(type, b)) and all(np.array_equal(one, other) for one, other in values)


def direction_bytes(facts: Facts, records: int, side: int, grid: Grid) -> int:
    """How many bytes the directions of so many records take on a shelf; of vectors sorted by class, how many at most.

    side: the length of a direction, or of the vectors of one record.
    """
    persons_of, blocks = 0 if facts.rows is None else 8, -(-records // passes.block_rows(facts))
    return records * (side * np.dtype(grid.small).itemsize + 8 + 4 * facts.k + persons_of) + 8 * blocks
