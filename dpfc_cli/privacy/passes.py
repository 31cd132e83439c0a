"""A pass over the records: each unit is read once, and it takes part or not.

**Each unit once.** A record that is added twice would double the sensitivity. So the blocks of a pass must follow one
another without a gap, and the pass must end with the last record. The same is checked for the numbers of persons: they
rise by 0 or 1 from record to record.

**Parts.** Several processes can share a pass. Then each of them reads one `Part`: the units that *begin* in a range of
records. The ranges follow one another, so each unit begins in one of them. A person may go on behind the end of the
range. So the pass goes on until another person begins. The records that belong to the units of other processes are read
where they lie in the same blocks, and they do not take part. Blocks are cut in the same places for any number of
processes. So each record meets the same arithmetic.

Proof that the parts of a pass have each unit once: each part reports the numbers of its units, `first` to `end` − 1.
Within a part they are without a gap, by the check of the numbers. `chained` checks that the first part begins with 0,
that each part begins where the one before it ended, and that the last one ends with n. ∎

**Samples.** A unit that a sample leaves out does not take part. This is the same as if it was null: what a record adds
depends on this record and on θ alone.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpfc_cli.privacy.chain import Array
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.oracle import PlanError, Progress

BlockStream = Callable[[int], Iterator[tuple[Array, ...]]]
"""stream(rows) yields (start, features, labels) for the records [start, start + rows) of the global order. The last
block is shorter. If the unit is a person, a block has a fourth part: the number of each record's person, int64. The
records of a person follow one another, and the numbers rise from 0 to n − 1. The stream of a `Part` begins with the
record `part.begin`.
"""


class IncompletePassError(PlanError):
    """A pass over the records did not read each of them exactly once."""


class Block(NamedTuple):
    """Records of a pass. start: the number of the first one. found: their persons, if the stream names them. data: an
    array for each thing that is known of a record.
    """

    start: int
    labels: np.ndarray
    found: list[Array]
    data: tuple[np.ndarray, ...]


Pass = Iterator[tuple[Block, np.ndarray | None]]
"""Blocks, each with which of its records take part: bool, or None if all do."""


def block_rows(facts: Facts) -> int:
    """The number of records of a block, from public facts alone.

    It is a power of two that keeps the factors of a block near 64 MB.
    """
    fit = 1 << int(math.log2((1 << 23) / (facts.d + facts.m + 1)))
    return max(64, min(8192, fit, 1 << math.ceil(math.log2(max(facts.records, 64)))))


@dataclass(frozen=True)
class Part:
    """What one process reads: the units that begin in the records start to stop − 1. start: a multiple of the rows of a
    block. begin: the number of the record that the pass begins with. If units are persons, this is one block before
    `start`: only there it can be seen whether a person goes on.
    """

    start: int
    stop: int
    begin: int


def whole(facts: Facts) -> Part:
    """The part of a process that works alone."""
    return Part(0, facts.records, 0)


def part_of(facts: Facts, number: int, count: int) -> Part:
    """The part of one of `count` processes: whole blocks, and as many as the others have, or one more."""
    rows, records = block_rows(facts), facts.records
    blocks = -(-records // rows)
    start, stop = (min(records, rows * (blocks * each // count)) for each in (number, number + 1))
    return Part(start, stop, start if facts.rows is None else max(0, start - rows))


def chained(spans: Sequence[range], facts: Facts) -> None:
    """Check that the parts of a pass have each unit once. spans: the numbers of the units of each part, in the order of
    the parts. IncompletePassError: they do not.
    """
    reached = 0
    for number, span in enumerate(spans):
        if span.start != reached or span.stop < span.start:
            raise IncompletePassError(f"part {number} has the units {span.start}..{span.stop}, after {reached}")
        reached = span.stop
    if reached != facts.n:
        raise IncompletePassError(f"a pass covered {reached} of {facts.n} units")


def read(stream: BlockStream, size: int) -> Iterator[Block]:
    for start, x, labels, *found in stream(size):
        yield Block(start, labels, found, (x,))


class Counted:
    """A pass over a part. It is checked, and its units are counted, while it is read. span: the numbers of the units of
    the part. It is known when the pass has ended.
    """

    def __init__(self, facts: Facts, part: Part, sample: np.ndarray | None, progress: Progress | None = None) -> None:
        """Begin a pass. sample: which of all units take part: n, bool. None: all of them. progress: told of the number
        of records so far and in all, after each block.
        """
        if sample is not None and (sample.shape != (facts.n,) or sample.dtype != np.bool_):
            raise IncompletePassError("a sample does not say of each unit whether it takes part")
        self.span = range(part.start, part.stop)
        self._facts, self._part, self._sample, self._progress = facts, part, sample, progress
        self._rows = block_rows(facts)
        # The unit of the record before. It is not known in the middle of the records.
        self._before = -1 if part.begin == 0 else None
        self._first = 0 if part.start == 0 else None
        self._end: int | None = None

    def over(self, blocks: Iterator[Block], widths: tuple[int, ...]) -> Pass:
        """Check the blocks of the pass. widths: the number of columns of each array of `data`. IncompletePassError:
        they are not all records and all units of the part, each once, in order.
        """
        facts, part, expected = self._facts, self._part, self._part.begin
        if part.start == part.stop and (facts.rows is None or part.start == 0):
            return
        for block in blocks:
            count = len(block.data[0])
            if (
                block.start != expected
                or count != min(self._rows, facts.records - block.start)
                or [array.shape for array in block.data] != [(count, width) for width in widths]
                or block.labels.shape != (count, facts.k)
            ):
                raise IncompletePassError(f"expected records {expected}.., got a block of {count} from {block.start}")
            yield block, self._taken(block, count)
            expected += count
            if self._progress:
                self._progress(min(expected, part.stop) - part.start, part.stop - part.start)
            # Behind the last record nothing may follow, so the stream is asked once more.
            if part.stop <= expected < facts.records and not self._goes_on():
                break
        if expected < part.stop:
            raise IncompletePassError(f"a pass covered the records to {expected}, not to {part.stop}")
        if facts.rows is not None:
            if self._first is None or self._end is None:
                raise IncompletePassError("a pass did not see where its persons begin and end")
            self.span = range(self._first, self._end)

    def _taken(self, block: Block, count: int) -> np.ndarray | None:
        """Which records of a block take part."""
        facts, sample = self._facts, self._sample
        if facts.rows is None and not block.found:
            # Each record is a unit, and a part has whole blocks.
            return None if sample is None else sample[block.start : block.start + count]
        units = self._persons(block, count)
        mine = np.zeros(count, bool) if self._first is None else units >= self._first
        if self._end is not None:
            mine &= units < self._end
        if sample is not None:
            mine &= sample[units]
        return None if mine.all() and sample is None else mine

    def _persons(self, block: Block, count: int) -> np.ndarray:
        """The person of each record. What is known of where the part's persons begin and end is noted.

        Raises:
            IncompletePassError: there are numbers of persons and the unit is a record, or none and it is a person; they
                do not rise by 0 or 1; or there are more than n.

        """
        numbers = block.found[0] if len(block.found) == 1 else None
        if (
            self._facts.rows is None
            or not isinstance(numbers, np.ndarray)
            or numbers.shape != (count,)
            or numbers.dtype != np.int64
        ):
            raise IncompletePassError("a block does not say which records belong to which unit")
        before = numbers[0] if self._before is None else self._before
        rises = np.diff(numbers, prepend=before)
        if not np.isin(rises, (0, 1)).all() or (numbers < 0).any():
            raise IncompletePassError("the records of a person do not follow one another, or a person is missing")
        self._before = int(numbers[-1])
        if self._before >= self._facts.n:
            raise IncompletePassError(f"a pass has more than {self._facts.n} units")
        # A person who begins before the part belongs to another one.
        for name, at in (("_first", self._part.start), ("_end", self._part.stop)):
            if block.start < at <= block.start + count:
                setattr(self, name, int(numbers[at - 1 - block.start]) + 1)
        return numbers

    def _goes_on(self) -> bool:
        """Whether the last person of the part may have more records."""
        if self._facts.rows is None:
            return False
        assert self._before is not None
        assert self._end is not None
        return self._first != self._end and self._before < self._end
