"""The exact sum over all records: each unit is added once, as the integers that `queries` makes of it.

The records come as a stream of blocks. A compiled function turns a block into factors, which are integers on the
lattice, and `kernels.products` multiplies them. All partial sums are exact (`lattice_for`), so the order does not
matter.

**Each unit once.** A record that is added twice would double the sensitivity. So the blocks of a pass must follow one
another without a gap, and the pass must end with the last record. The same is checked for the numbers of persons.

**What is not computed twice.** Most work on a record does not depend on θ: reading it, its preprocessing, and the
integers of its direction (`Gradient.direction`). The first gradient of a training puts the directions on a *shelf*, and
the later ones take them from there. Only logits, residuals and the product are left to be computed. A direction is kept
in a small type that holds its integers exactly, and everything that follows is computed from the small type, with and
without a shelf. So the sum is the same to the last bit. Blocks that come from the shelf are checked like those of the
stream: each unit once. What is in them is trusted, as memory is.

**Samples.** Units that a sample leaves out are dropped before residuals are computed, so a sampled step costs as much
as its sample is large. This is the same as if they were null: what a record adds depends on this record and on θ alone.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from dpfc_cli.privacy import chain as chains
from dpfc_cli.privacy import persons
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Lattice
from dpfc_cli.privacy.oracle import PlanError, Progress
from dpfc_cli.privacy.queries import (
    NO_LABEL,
    ClassGrams,
    Gradient,
    Gram,
    Grid,
    Hessians,
    Query,
    label_rows,
    opened,
    prepare,
)

BlockStream = Callable[[int], Iterator[tuple[Any, ...]]]
"""stream(rows) yields (start, features, labels) for the records [start, start + rows) of the global order. The last
block is shorter. If the unit is a person, a block has a fourth part: the number of each record's person, int64. The
records of a person follow one another, and the numbers rise from 0 to n − 1.
"""
T = TypeVar("T")
AHEAD = 2
"""Blocks that are computed while another one is used."""
Sample = Callable[[int], np.ndarray]
"""sample(count) says which of the next `count` units take part: bool."""


class IncompletePassError(PlanError):
    """A pass over the records did not read each of them exactly once."""


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

    def kept(self) -> Iterator["_Block"]:
        """What was kept, in the order of the records."""
        for start, q, length, labels, *found in self._shelf.blocks():
            yield _Block(int(start[0]), labels, found, (q, length))

    def keeping(self, query: Gradient, made: "_Pass") -> "_Pass":
        """The same pass. Its blocks are kept if there is room, and count as there once all of them came."""
        self._of, room = None, True
        self._shelf.clear()
        for block, begins in made:
            if room and not self._shelf.put((np.array([block.start]), *block.data, block.labels, *block.found)):
                room = False
                self._shelf.clear()
            yield block, begins
        if room:
            self._of = query


def _same_directions(a: Gradient, b: Gradient) -> bool:
    values = zip(chains.values(a.chain), chains.values(b.chain), strict=False)
    return (
        list(map(type, a.chain)) == list(map(type, b.chain))
        and (a.constant, a.radius) == (b.constant, b.radius)
        and all(np.array_equal(one, other) for one, other in values)
    )


def direction_bytes(facts: Facts, side: int, grid: Grid) -> int:
    """How many bytes the directions of all records take on a shelf. side: the length of a direction."""
    persons_of = 0 if facts.rows is None else 8
    return facts.records * (side * np.dtype(grid.small).itemsize + 8 + 4 * facts.k + persons_of)


@dataclass(frozen=True)
class _RowMap:
    """The factors of a query, with its arrays and numbers taken out. It is hashable, so equal maps share one compiled
    function.
    """

    query: Query
    facts: Facts
    grid: Grid

    def __call__(self, block: tuple[Any, ...], arrays: dict[str, Any], xp: Any) -> tuple[Any, ...]:
        x, y, valid = prepare(block[0], block[1], self.facts.m, xp)
        left, right = _with(self.query, arrays).factors(x, y, self.facts, self.grid, xp)
        # The null record adds zero, whatever its factors are. `where` and not a product, because 0·NaN is NaN.
        return xp.where(valid, left, 0.0), xp.where(valid, right, 0.0)


class _DirectionMap(_RowMap):
    """The directions of a gradient: (q, length, labels). A null record has no label and the direction zero."""

    def __call__(self, block: tuple[Any, ...], arrays: dict[str, Any], xp: Any) -> tuple[Any, ...]:
        x, _, valid = prepare(block[0], block[1], self.facts.m, xp)
        query: Any = _with(self.query, arrays)
        q, length = query.direction(x, self.facts, self.grid, xp)
        labels = xp.where(valid, block[1], NO_LABEL)
        return xp.where(valid, q, 0.0).astype(self.grid.small), xp.where(valid, length, 0.0), labels


class _ResidualMap(_RowMap):
    """The residuals of a gradient, of what `_DirectionMap` makes."""

    def __call__(self, block: tuple[Any, ...], arrays: dict[str, Any], xp: Any) -> tuple[Any, ...]:
        q, length, labels = block
        query: Any = _with(self.query, arrays)
        s = query.residual(q, length, label_rows(labels, self.facts.m, xp), self.facts, self.grid, xp)
        return (xp.where(xp.any(labels >= 0, axis=-1, keepdims=True), s, 0.0),)


def _with(query: Query, arrays: dict[str, Any]) -> Query:
    """The query with these values in its open fields."""
    chain = chains.with_values(query.chain, arrays["chain"])
    return replace(query, **{**arrays, "chain": chain})  # type: ignore[type-var]


def _taken_out(query: Query, *without: str) -> tuple[Query, dict[str, Any]]:
    """The query with its arrays and numbers taken out, and these. without: names of fields that are not needed."""
    held = {name: getattr(query, name) for name in (*query.arrays, *query.numbers)}
    arrays: dict[str, Any] = {name: value for name, value in held.items() if value is not None}
    bare: Any = opened(query, *arrays)
    arrays = {name: value for name, value in arrays.items() if name not in without}
    arrays["chain"] = chains.values(query.chain)
    if isinstance(bare, Hessians):
        # Blocks with the same number of classes share one compiled function.
        arrays["theta"] = arrays["theta"][:, bare.start : bare.stop]
        bare = replace(bare, start=0, stop=bare.stop - bare.start)
    return bare, arrays


def block_rows(facts: Facts) -> int:
    """The number of records of a block, from public facts alone.

    It is a power of two that keeps the factors of a block near 64 MB.
    """
    fit = 1 << int(math.log2((1 << 23) / (facts.d + facts.m + 1)))
    return max(64, min(8192, fit, 1 << math.ceil(math.log2(max(facts.records, 64)))))


def exact_sum(
    query: Query,
    stream: BlockStream,
    facts: Facts,
    grid: Grid,
    progress: Progress | None = None,
    sample: Sample | None = None,
    directions: Directions | None = None,
) -> np.ndarray:
    """The sum of the query's contributions over all units.

    Args:
        query: the query.
        stream: the records.
        facts: the public facts.
        grid: the lattice; `Reals` for the non-private baseline.
        progress: told of the number of records so far and in all.
        sample: which units take part. The others count as null. None: all take part.
        directions: what gradients share. None: nothing is kept.

    Returns:
        The query's shape, float64. On a `Lattice` the entries are exact integers.

    Raises:
        IncompletePassError: the stream does not yield each record and each person once, in order.

    """
    from dpfc_cli.kernels import products

    if isinstance(query, Gradient):
        factors = _gradients(query, stream, facts, grid, progress, sample, directions)
    else:
        factors = _factors(query, stream, facts, grid, progress, sample)
    factors = _ahead(factors)
    if facts.rows is not None:
        if not isinstance(grid, Lattice):
            raise TypeError("persons are bounded on a lattice only")
        factors = persons.clipped(query, factors, grid)
    total = np.zeros(query.shape(facts))
    for left, right in factors:
        if isinstance(query, ClassGrams | Hessians):
            products.add_weighted_grams(total, left, right)
        else:
            # If both arguments are the same array, BLAS does half the work.
            total += products.outer_sum(left, left if isinstance(query, Gram) else right)
    return total


class _Block(NamedTuple):
    """Records of a pass. start: the number of the first one. found: their persons, if the stream names them. data: an
    array for each thing that is known of a record.
    """

    start: int
    labels: np.ndarray
    found: list[Any]
    data: tuple[np.ndarray, ...]


_Pass = Iterator[tuple[_Block, np.ndarray]]
"""Blocks, each with which of its records begin a unit."""


def _read(stream: BlockStream, size: int) -> Iterator[_Block]:
    for start, x, labels, *found in stream(size):
        yield _Block(start, labels, found, (x,))


def _checked(
    blocks: Iterator[_Block], widths: tuple[int, ...], facts: Facts, size: int, progress: Progress | None
) -> "_Pass":
    """Check the blocks of a pass.

    Args:
        blocks: the blocks.
        widths: the number of columns of each array of `data`.
        facts: the public facts.
        size: the number of records of each block; the last one is shorter.
        progress: told of the number of records so far and in all, after each block.

    Raises:
        IncompletePassError: they are not all records and all units, each once, in order.

    """
    expected, records, order = 0, facts.records, _Order(facts)
    for block in blocks:
        count = len(block.data[0])
        if (
            block.start != expected
            or count != min(size, records - block.start)
            or [array.shape for array in block.data] != [(count, width) for width in widths]
            or block.labels.shape != (count, facts.k)
        ):
            raise IncompletePassError(f"expected records {expected}.., got a block of {count} from {block.start}")
        yield block, order.begins(count, block.found)
        expected += count
        if progress:
            progress(expected, records)
    if expected != records:
        raise IncompletePassError(f"a pass covered {expected} of {records} records")
    if order.units != facts.n:
        raise IncompletePassError(f"a pass covered {order.units} of {facts.n} units")


def _factors(
    query: Query,
    stream: BlockStream,
    facts: Facts,
    grid: Grid,
    progress: Progress | None,
    sample: Sample | None,
) -> Iterator[tuple[Any, ...]]:
    """The factors of all records, block by block: (left, right), and the persons of the records if they are units."""
    from dpfc_cli.kernels import rows

    size, drawn = block_rows(facts), _Drawn(sample)
    bare, arrays = _taken_out(query)
    row_map = _RowMap(bare, _of_one(facts), grid)
    for block, begins in _checked(_read(stream, size), (facts.d,), facts, size, progress):
        labels, count = block.labels, len(begins)
        if sample is not None:
            labels = np.where(drawn.spread(begins)[:, None], labels, labels.dtype.type(NO_LABEL))
        left, right = rows.run(row_map, (_padded(block.data[0], size, 0), _padded(labels, size, NO_LABEL)), arrays)
        yield (left, right) if facts.rows is None else (left[:count], right[:count], *block.found)


def _gradients(
    query: Gradient,
    stream: BlockStream,
    facts: Facts,
    grid: Grid,
    progress: Progress | None,
    sample: Sample | None,
    directions: Directions | None,
) -> Iterator[tuple[Any, ...]]:
    """The same for a gradient."""
    from dpfc_cli.kernels import rows

    size, drawn, one = block_rows(facts), _Drawn(sample), _of_one(facts)
    if directions is not None and directions.holds(query):
        blocks = _checked(directions.kept(), (query.shape(facts)[0], 1), facts, size, progress)
    else:
        blocks = _made(query, stream, facts, grid, size, progress)
        blocks = blocks if directions is None else directions.keeping(query, blocks)
    taken = (_whole(block) if sample is None else _part(block, drawn.spread(begins)) for block, begins in blocks)
    bare, arrays = _taken_out(query)
    row_map = _ResidualMap(bare, one, grid)
    for q, length, labels, *found in taken if sample is None else _gathered(taken, size):
        left = _padded(q, size, 0)
        (right,) = rows.run(row_map, (left, _padded(length, size, 0), _padded(labels, size, NO_LABEL)), arrays)
        yield (left, right) if facts.rows is None else (q.astype(np.float64), np.asarray(right)[: len(q)], *found)


def _made(
    query: Gradient, stream: BlockStream, facts: Facts, grid: Grid, size: int, progress: Progress | None
) -> "_Pass":
    """The directions of all records, made of the records."""
    from dpfc_cli.kernels import rows

    bare, arrays = _taken_out(query, *query.arrays)
    row_map = _DirectionMap(bare, _of_one(facts), grid)
    blocks = _checked(_read(stream, size), (facts.d,), facts, size, progress)
    begun = ((*each, rows.run(row_map, _records(each[0], size), arrays)) for each in blocks)
    for block, begins, made in _ahead(begun):
        q, length, labels = (np.asarray(array)[: len(begins)] for array in made)
        yield _Block(block.start, labels, block.found, (q, length)), begins


def _records(block: _Block, size: int) -> tuple[np.ndarray, np.ndarray]:
    return _padded(block.data[0], size, 0), _padded(block.labels, size, NO_LABEL)


def _ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items. The next ones are asked for before one is used, so that devices compute meanwhile."""
    waiting: deque[T] = deque()
    for item in items:
        waiting.append(item)
        if len(waiting) > AHEAD:
            yield waiting.popleft()
    yield from waiting


def _of_one(facts: Facts) -> Facts:
    """What a record adds does not depend on how many there are. So sets of all sizes share one compiled function."""
    return replace(facts, n=1, rows=None)


def _whole(block: _Block) -> tuple[np.ndarray, ...]:
    return (*block.data, block.labels, *block.found)


def _part(block: _Block, taken: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(array[taken] for array in _whole(block))


def _gathered(parts: Iterator[tuple[np.ndarray, ...]], size: int) -> Iterator[tuple[np.ndarray, ...]]:
    """Parts of any lengths as blocks of `size`; the last is shorter."""
    held: tuple[np.ndarray, ...] | None = None
    for part in parts:
        held = part if held is None else tuple(np.concatenate(pair) for pair in zip(held, part, strict=True))
        while len(held[0]) >= size:
            yield tuple(array[:size] for array in held)
            held = tuple(array[size:] for array in held)
    if held is not None and len(held[0]):
        yield held


class _Order:
    """Follows the units through a pass, and checks that each of them comes once.

    A unit is a record, or a person whose records follow one another.

    Attributes:
        units: how many have begun.

    """

    def __init__(self, facts: Facts) -> None:
        self.units = 0
        self._facts = facts

    def begins(self, count: int, found: list[Any]) -> np.ndarray:
        """Which of the next `count` records begin a unit. found: what follows the labels in a block of the stream.

        Raises:
            IncompletePassError: there are numbers of persons and the unit is a record, or none and it is a person; they
                do not rise by 0 or 1; or there are more than n units.

        """
        if self._facts.rows is None and not found:
            begins = np.ones(count, bool)
        else:
            numbers = found[0] if len(found) == 1 else None
            if (
                self._facts.rows is None
                or not isinstance(numbers, np.ndarray)
                or numbers.shape != (count,)
                or numbers.dtype != np.int64
            ):
                raise IncompletePassError("a block does not say which records belong to which unit")
            rises = np.diff(numbers, prepend=self.units - 1)
            if not np.isin(rises, (0, 1)).all() or (self.units == 0 and rises[0] != 1):
                raise IncompletePassError("the records of a person do not follow one another, or a person is missing")
            begins = rises == 1
        self.units += int(begins.sum())
        if self.units > self._facts.n:
            raise IncompletePassError(f"a pass has more than {self._facts.n} units")
        return np.asarray(begins)


class _Drawn:
    """Who takes part in a pass: one draw for each unit."""

    def __init__(self, sample: Sample | None) -> None:
        self._sample = sample
        self._last = False

    def spread(self, begins: np.ndarray) -> np.ndarray:
        """Which of the next records take part: those of the units that are drawn. begins: which begin a unit."""
        assert self._sample is not None
        drawn = np.concatenate([[self._last], self._sample(int(begins.sum()))])
        taken = drawn[np.cumsum(begins)]
        self._last = bool(taken[-1])
        return np.asarray(taken, bool)


def _padded(a: np.ndarray, rows: int, fill: int) -> np.ndarray:
    return a if len(a) == rows else np.concatenate([a, np.full((rows - len(a), *a.shape[1:]), fill, a.dtype)])
