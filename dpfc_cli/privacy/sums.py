"""The exact sum over all records: each unit is added once, as the integers that `queries` makes of it.

The records come as a stream of blocks, and `passes` checks that each unit comes once. A compiled function turns a block
into factors, which are integers on the lattice, and `kernels.products` multiplies them. All partial sums are exact
(`lattice_for`), so the order does not matter.

What does not depend on θ is not computed twice: the first gradient of a training makes the *directions* of all records
(`Gradient.direction`), and the later ones take what `directions` has kept of them. Only logits, residuals and the
product are left to be computed.

Units that a sample leaves out are dropped before residuals are computed, so a sampled step costs as much as its sample
is large. So the place of a record in its block depends on who else is in the sample. That a sampled unit adds the same
as nobody if it is null then needs one fact more than the proofs have: the float32 logits of a record do not depend on
its place. This is a property of the compiled product. It is tested for each device (`make check-gpu`), and not proved.
Where no release is sampled, all places are the same in neighbouring data sets, and nothing depends on it.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TypeVar

import numpy as np

from dpfc_cli.privacy import chain as chains
from dpfc_cli.privacy import passes, persons
from dpfc_cli.privacy.chain import Array
from dpfc_cli.privacy.directions import Directions, Sorted
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.forms import opened
from dpfc_cli.privacy.inputs import NO_LABEL, label_rows, prepare
from dpfc_cli.privacy.lattice import Lattice
from dpfc_cli.privacy.oracle import Progress
from dpfc_cli.privacy.passes import Block, BlockStream, Part, Pass
from dpfc_cli.privacy.queries import ClassGrams, Gradient, Gram, Grid, Hessians, Query
from dpfc_cli.privacy.standings import Standings

T = TypeVar("T")
Arrays = tuple[Array, ...]
Held = dict[str, Array]
"""The arrays and numbers that were taken out of a query, by name."""
AHEAD = 2
"""Blocks that are computed while another one is used."""
GATHERED = 2**23
"""Numbers of the vectors of a piece that are held at a time."""
_WIDE = 2**22
"""Numbers of the longest factors of records that are computed at a time."""
SAMPLED = 256
"""Records of a sample that are computed at a time. This is the same for all samples, and the last ones are padded: what
JAX compiles and keeps depends on shapes, and how many records a sample has is secret.
"""


@dataclass(frozen=True)
class _RowMap:
    """The factors of a query, with its arrays and numbers taken out. It is hashable, so equal maps share one compiled
    function.
    """

    query: Query
    facts: Facts
    grid: Grid

    def __call__(self, block: Arrays, arrays: Held, xp: ModuleType) -> Arrays:
        x, y, valid = prepare(block[0], block[1], self.facts.m, xp)
        left, right = _with(self.query, arrays).factors(x, y, self.facts, self.grid, xp)
        # The null record adds zero, whatever its factors are. `where` and not a product, because 0·NaN is NaN.
        return xp.where(valid, left, 0.0), xp.where(valid, right, 0.0)


class _DirectionMap(_RowMap):
    """The directions of a gradient: (q, length, labels). A null record has no label and the direction zero."""

    def __call__(self, block: Arrays, arrays: Held, xp: ModuleType) -> Arrays:
        x, _, valid = prepare(block[0], block[1], self.facts.m, xp)
        q, length = _gradient(self.query, arrays).direction(x, self.facts, self.grid, xp)
        labels = xp.where(valid, block[1], NO_LABEL)
        return xp.where(valid, q, 0.0).astype(self.grid.small), xp.where(valid, length, 0.0), labels


class _ResidualMap(_RowMap):
    """The residuals of a gradient, of what `_DirectionMap` makes."""

    def __call__(self, block: Arrays, arrays: Held, xp: ModuleType) -> Arrays:
        q, length, labels = block
        y = label_rows(labels, self.facts.m, xp)
        s = _gradient(self.query, arrays).residual(q, length, y, self.facts, self.grid, xp)
        return (xp.where(xp.any(labels >= 0, axis=-1, keepdims=True), s, 0.0),)


def _gradient(query: Query, arrays: Held) -> Gradient:
    made = _with(query, arrays)
    assert isinstance(made, Gradient)
    return made


def _with(query: Query, arrays: Held) -> Query:
    """The query with these values in its open fields."""
    chain = chains.with_values(query.chain, arrays["chain"])
    return replace(query, **{**arrays, "chain": chain})  # type: ignore[type-var]


def _taken_out(query: Query, *without: str) -> tuple[Query, Held]:
    """The query with its arrays and numbers taken out, and these. without: names of fields that are not needed."""
    held = {name: getattr(query, name) for name in (*query.arrays, *query.numbers)}
    arrays: Held = {name: value for name, value in held.items() if value is not None}
    bare = opened(query, *arrays)
    arrays = {name: value for name, value in arrays.items() if name not in without}
    arrays["chain"] = chains.values(query.chain)
    if isinstance(bare, ClassGrams):
        bare = replace(bare, start=0, stop=None)
    if isinstance(bare, Hessians):
        # Blocks with the same number of classes share one compiled function.
        arrays["theta"] = arrays["theta"][:, bare.start : bare.stop]
        bare = replace(bare, start=0, stop=bare.stop - bare.start)
    return bare, arrays


@dataclass(frozen=True)
class Summed:
    """What all sums of a training go over, and what they have in common. grid: `Reals` for the non-private baseline.
    progress: told of the number of records so far and in all. directions: what gradients share. None: nothing is kept.
    """

    stream: BlockStream
    facts: Facts
    grid: Grid
    progress: Progress | None = None
    directions: Directions | None = None


def exact_sum(query: Query, over: Summed, sample: np.ndarray | None = None) -> np.ndarray:
    """The sum of the query's contributions over all units: the query's shape, float64. On a `Lattice` the entries are
    exact integers. sample: which units take part: n, bool. The others count as null. None: all take part.

    IncompletePassError: the stream does not yield each record and each person once, in order.
    """
    total, span = partial_sum(query, over, passes.whole(over.facts), sample)
    passes.chained([span], over.facts)
    return total


def partial_sum(query: Query, over: Summed, part: Part, sample: np.ndarray | None = None) -> tuple[np.ndarray, range]:
    """The sum over the units of one part, and their numbers. Arguments, errors and the sum are those of `exact_sum`."""
    from dpfc_cli.kernels import products

    facts, grid, kept = over.facts, over.grid, over.directions
    piece = query if isinstance(query, ClassGrams) and query.stop is not None else None
    if piece is not None and sample is not None:
        raise TypeError("a sum in pieces has no sample")
    if piece is not None and kept is not None and kept.holds(piece):
        return _class_grams(piece, over, kept.sorted_of(piece)), kept.span
    if piece is None and kept is not None:
        kept.end_pieces()
    checked = passes.Counted(facts, part, sample, over.progress)
    if isinstance(query, Gradient):
        factors = _gradients(query, over, checked, sample is not None)
    else:
        factors = _factors(query, over, checked)
    factors = _ahead(factors)
    if facts.rows is not None:
        if not isinstance(grid, Lattice):
            raise TypeError("persons are bounded on a lattice only")
        factors = persons.clipped(query, factors, grid)
    if isinstance(query, ClassGrams):
        # Without noise, what lies on a shelf is as small as a vector on a lattice. The whole needs no shelf.
        small = grid.small if piece is not None or isinstance(grid, Lattice) else "float64"
        # All labels of a part of the whole take the memory of one label of a block.
        parts = facts.k if piece is None else 1
        made: Iterator[Sorted] = (
            _by_class(part[0], part[1], small)
            for block in factors
            for part in _cut((np.asarray(block[0]), np.asarray(block[1])), max(1, -(-len(block[0]) // parts)))
        )
        if piece is not None and kept is not None:
            made = kept.sorting(piece, made, checked, facts.m)
        return _class_grams(query, over, made), checked.span
    if isinstance(query, Hessians):
        total = np.zeros(query.shape(facts))
        for left, right in factors:
            products.add_weighted_grams(total, left, right)
    else:
        # If both factors are the same array, BLAS does half the work.
        integers = isinstance(grid, Lattice)
        total = products.summed(factors, query.shape(facts), alone=isinstance(query, Gram), integers=integers)
    return total, checked.span


def _by_class(left: Array, right: Array, small: str) -> Sorted:
    """The vectors of a block of class Grams, sorted by class. small: the type to keep them in."""
    records, labels = np.nonzero(np.asarray(left))
    order = np.argsort(labels, kind="stable")
    return Sorted(labels[order].astype(np.int32), np.asarray(right).astype(small, copy=False)[records[order]])


def _class_grams(query: ClassGrams, over: Summed, vectors: Iterator[Sorted]) -> np.ndarray:
    """The sum of class Grams, or of a piece of them. Of a block few vectors belong to a piece, so they are gathered."""
    from dpfc_cli.kernels import products

    total = np.zeros(query.shape(over.facts))
    held: list[Sorted] = []
    for each in vectors:
        if query.stop is None:
            products.add_class_grams(total, *each)
            continue
        mine = each.between(query.start, query.stop)
        # Copied: the rest of a block is not to be held.
        held.append(Sorted(mine.labels - query.start, mine.q.copy()))
        if sum(part.q.size for part in held) >= GATHERED:
            products.add_class_grams(total, *map(np.concatenate, zip(*held, strict=True)))
            held = []
    if held:
        products.add_class_grams(total, *map(np.concatenate, zip(*held, strict=True)))
    return total


def _factors(query: Query, over: Summed, checked: passes.Counted) -> Iterator[Arrays]:
    """The factors of all records, block by block: (left, right), and the persons of the records if they are units."""
    from dpfc_cli.kernels import rows

    facts, size = over.facts, _chunk(query, over)
    bare, arrays = _taken_out(query)
    row_map = _RowMap(bare, _of_one(facts), over.grid)
    for block, taken in checked.over(passes.read(over.stream, passes.block_rows(facts)), (facts.d,)):
        for x, labels, *found in _cut(_arrays(_nulled(block, taken)), size):
            left, right = rows.run(row_map, _records(x, labels, size), arrays)
            yield (left, right) if facts.rows is None else (left[: len(x)], right[: len(x)], *found)


def _gradients(query: Gradient, over: Summed, checked: passes.Counted, sampled: bool) -> Iterator[Arrays]:
    """The same for a gradient. sampled: whether to compute only what takes part."""
    from dpfc_cli.kernels import rows

    facts, directions, size = over.facts, over.directions, _chunk(query, over)
    if directions is not None and directions.holds(query):
        blocks = checked.over(directions.kept(), (query.shape(facts)[0], 1))
    else:
        blocks = _made(query, over, checked)
        blocks = blocks if directions is None else directions.keeping(query, blocks)
    bare, arrays = _taken_out(query)
    row_map = _ResidualMap(bare, _of_one(facts), over.grid)
    if sampled:
        size = min(size, SAMPLED)
        parts = _gathered((_arrays(block, taken) for block, taken in blocks), size)
    else:
        parts = (part for block, taken in blocks for part in _cut(_arrays(_nulled(block, taken)), size))
    for q, length, labels, *found in parts:
        left = _padded(q, size, 0)
        block = left, _padded(length, size, 0), _padded(labels, size, NO_LABEL)
        (right,) = rows.run(row_map, block, arrays)
        # Records also if none is left: that a device has compiled the product must not tell that one was.
        if len(q) or facts.rows is None:
            yield (left, right) if facts.rows is None else (q.astype(np.float64), np.asarray(right)[: len(q)], *found)


def _made(query: Gradient, over: Summed, checked: passes.Counted) -> Pass:
    """The directions of all records, made of the records."""
    from dpfc_cli.kernels import rows

    facts, size = over.facts, _chunk(query, over)
    bare, arrays = _taken_out(query, *query.arrays)
    row_map = _DirectionMap(bare, _of_one(facts), over.grid)

    def begun(block: Block) -> list[Arrays]:
        parts = _cut((*block.data, block.labels), size)
        return [rows.run(row_map, _records(x, labels, size), arrays) for x, labels in parts]

    blocks = checked.over(passes.read(over.stream, passes.block_rows(facts)), (facts.d,))
    for block, taken, made in _ahead((*each, begun(each[0])) for each in blocks):
        q, length, labels = rows.joined(made, len(block.labels))
        yield Block(block.start, labels, block.found, (q, length)), taken


def _chunk(query: Query, over: Summed) -> int:
    """How many records are computed at a time."""
    from dpfc_cli.kernels import rows

    size = passes.block_rows(over.facts)
    if isinstance(query, Standings):
        # Their factors are long.
        return min(size, max(64, 1 << int(math.log2(_WIDE / query.shape(over.facts)[1]))))
    # All class matrices are added to in each of the products, and sums of real numbers depend on the order.
    return size if isinstance(query, ClassGrams | Hessians) or not isinstance(over.grid, Lattice) else rows.chunk(size)


def _nulled(block: Block, taken: np.ndarray | None) -> Block:
    """The block. Records that do not take part have no label, so they are null."""
    if taken is None:
        return block
    return block._replace(labels=np.where(taken[:, None], block.labels, block.labels.dtype.type(NO_LABEL)))


def _records(x: np.ndarray, labels: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    return _padded(x, size, 0), _padded(labels, size, NO_LABEL)


def _cut(arrays: tuple[np.ndarray, ...], size: int) -> Iterator[tuple[np.ndarray, ...]]:
    """The rows of the arrays in parts of `size`; the last is shorter."""
    return (tuple(array[at : at + size] for array in arrays) for at in range(0, len(arrays[0]), size))


def _ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items. The next ones are asked for before one is used, so that devices compute meanwhile."""
    waiting: deque[T] = deque()
    for item in items:
        waiting.append(item)
        if len(waiting) > AHEAD:
            yield waiting.popleft()
    yield from waiting


def _of_one(facts: Facts) -> Facts:
    """What a record adds depends on its shape alone. So sets of all sizes and kinds share one compiled function."""
    return Facts(n=1, m=facts.m, d=facts.d, k=facts.k)


def _arrays(block: Block, taken: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
    """What is known of the records of a block. taken: of which; None: of all."""
    arrays = (*block.data, block.labels, *block.found)
    return arrays if taken is None else tuple(array[taken] for array in arrays)


def _gathered(parts: Iterator[tuple[np.ndarray, ...]], size: int) -> Iterator[tuple[np.ndarray, ...]]:
    """Parts of any lengths as blocks of `size`. The last is shorter and may be empty, so there always is one."""
    held: tuple[np.ndarray, ...] | None = None
    for part in parts:
        held = part if held is None else tuple(np.concatenate(pair) for pair in zip(held, part, strict=True))
        while len(held[0]) >= size:
            yield tuple(array[:size] for array in held)
            held = tuple(array[size:] for array in held)
    if held is not None:
        yield held


def _padded(a: np.ndarray, rows: int, fill: int) -> np.ndarray:
    return a if len(a) == rows else np.concatenate([a, np.full((rows - len(a), *a.shape[1:]), fill, a.dtype)])
