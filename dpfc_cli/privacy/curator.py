"""The curator: the only place where records and noise meet.

The curator reads the records as a stream of blocks. It knows the plan, and it answers the queries of the plan in the
order of the plan. An answer is the exact integer sum over all records, each counted once, plus fresh integer noise for
every coordinate. The curator refuses everything else.

**Theorem.** The sequence of answers is μ-GDP with respect to the adjacency of `facts`, up to a distance η in total
variation.

Proof:

(1) By `queries` (and by `persons`, if the unit is a person), the integer sums of neighbouring data sets differ by a
    vector of norm at most s·U, where U = 4ᵇ, and s = 1 under zero-out adjacency or s = `replace_one` under replace-one
    adjacency. By `lattice_for` the sums are exact. `exact_sum` makes sure that each unit was added once.

(2) By `noise`, S + N is, up to η, a post-processing of S + N(0, (σ_r·s·U)²·I). Symmetric answers get noise in the
    coordinates (diagonal, √2 × off-diagonal). In these coordinates the Frobenius norm is the Euclidean norm. σ is
    rounded up to an integer. So release r is (1/σ_r)-GDP. This holds for every value of the earlier answers, and a
    query can depend on nothing else.

(3) By adaptive composition, μ² = Σ 1/σ_r². ∎

**Sampled releases.** If the plan has a rate q < 1, each unit takes part in that release with probability at most q,
independently of the others. A unit that does not take part is null and adds zero. Under zero-out adjacency the
release is then the Poisson-subsampled Gaussian mechanism of sensitivity 1 (add or remove one unit). `poisson`
accounts for it as such. μ is then only the name of the noise.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpfc_cli.privacy import chain as chains
from dpfc_cli.privacy import persons
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Lattice, Reals, lattice_for
from dpfc_cli.privacy.noise import ETA_PER_SAMPLE, Bits, bernoulli, rounded_normal
from dpfc_cli.privacy.oracle import Mechanism, Plan, PlanError, Progress
from dpfc_cli.privacy.queries import (
    NO_LABEL,
    ClassGrams,
    Gram,
    Grid,
    Hessians,
    Query,
    check,
    opened,
    prepare,
    sensitivity,
)

BlockStream = Callable[[int], Iterator[tuple[Any, ...]]]
"""stream(rows) yields (start, features, labels) for the records [start, start + rows) of the global order. The last
block is shorter. If the unit is a person, a block has a fourth part: the number of each record's person, int64. The
records of a person follow one another, and the numbers rise from 0 to n − 1.
"""


class Records(ABC):
    """Records that a curator may sum. Whoever makes a curator must say which kind they are.

    There are two kinds: `Unprotected` records, and records that were charged for in their ledger
    (`training.charge.Paid`). So nobody can make a curator of private records before the charge.
    """

    @abstractmethod
    def opened(self) -> BlockStream:
        """The records, block by block, for one curator. Records that were charged for can be opened once."""


@dataclass(frozen=True)
class Unprotected(Records):
    """Records that nobody needs to protect, because they are public or made up."""

    blocks: BlockStream

    def opened(self) -> BlockStream:
        return self.blocks


def eta_of(plan: Plan) -> float:
    """η of a whole run: an upper bound on the total variation distance of all its noise from the ideal noise.

    It is the sum of the bounds of the single samples.
    """
    return plan.coordinates * ETA_PER_SAMPLE


class IncompletePassError(PlanError):
    """A pass over the records did not read each of them exactly once."""


@dataclass(frozen=True)
class _RowMap:
    """The factors of a query, with its arrays and numbers taken out. It is hashable, so equal maps share one compiled
    function.
    """

    query: Query
    facts: Facts
    grid: Grid

    def __call__(self, x: Any, labels: Any, arrays: dict[str, Any], xp: Any) -> tuple[Any, Any]:
        x, y, valid = prepare(x, labels, self.facts.m, xp)
        chain = chains.with_values(self.query.chain, arrays["chain"])
        query = replace(self.query, **{**arrays, "chain": chain})  # type: ignore[type-var]
        left, right = query.factors(x, y, self.facts, self.grid, xp)
        # The null record adds zero, whatever its factors are. `where` and not a product, because 0·NaN is NaN.
        return xp.where(valid, left, 0.0), xp.where(valid, right, 0.0)


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
    sample: Callable[[int], np.ndarray] | None = None,
) -> np.ndarray:
    """The sum of the query's contributions over all units.

    Args:
        query: the query.
        stream: the records.
        facts: the public facts.
        grid: the lattice; `Reals` for the non-private baseline.
        progress: told of the number of records so far and in all.
        sample: sample(count) says which of the next `count` units take part. The others count as null. None: all take
            part.

    Returns:
        The query's shape, float64. On a `Lattice` the entries are exact integers.

    Raises:
        IncompletePassError: the stream does not yield each record and each person once, in order.

    """
    from dpfc_cli.kernels import products

    factors: Iterator[tuple[Any, ...]] = _factors(query, stream, facts, grid, progress, sample)
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


def _factors(
    query: Query,
    stream: BlockStream,
    facts: Facts,
    grid: Grid,
    progress: Progress | None,
    sample: Callable[[int], np.ndarray] | None,
) -> Iterator[tuple[Any, ...]]:
    """The factors of all records, block by block: (left, right), and the persons of the records if they are units."""
    from dpfc_cli.kernels import rows

    size, expected, records = block_rows(facts), 0, facts.records
    order = _Order(facts)
    held = {name: getattr(query, name) for name in (*query.arrays, *query.numbers)}
    arrays: dict[str, Any] = {name: value for name, value in held.items() if value is not None}
    bare: Any = opened(query, *arrays)
    arrays["chain"] = chains.values(query.chain)
    if isinstance(bare, Hessians):
        # Blocks with the same number of classes share one compiled function.
        arrays["theta"] = arrays["theta"][:, bare.start : bare.stop]
        bare = replace(bare, start=0, stop=bare.stop - bare.start)
    # What a record adds does not depend on how many there are. So sets of all sizes share one compiled function.
    row_map = _RowMap(bare, replace(facts, n=1, rows=None), grid)
    for start, x, labels, *found in stream(size):
        count = len(x)
        if (
            start != expected
            or count != min(size, records - start)
            or x.shape != (count, facts.d)
            or labels.shape != (count, facts.k)
        ):
            raise IncompletePassError(f"expected records {expected}.., got a block of {count} from {start}")
        begins = order.begins(count, found)
        if sample is not None:
            taken = order.spread(begins, sample)
            labels = np.where(taken[:, None], labels, labels.dtype.type(NO_LABEL))
        left, right = rows.run(row_map, _padded(x, size, 0), _padded(labels, size, NO_LABEL), arrays)
        yield (left, right) if facts.rows is None else (left[:count], right[:count], *found)
        expected += count
        if progress:
            progress(expected, records)
    if expected != records:
        raise IncompletePassError(f"a pass covered {expected} of {records} records")
    if order.units != facts.n:
        raise IncompletePassError(f"a pass covered {order.units} of {facts.n} units")


class _Order:
    """Follows the units through a pass, and checks that each of them comes once.

    A unit is a record, or a person whose records follow one another.

    Attributes:
        units: how many have begun.

    """

    def __init__(self, facts: Facts) -> None:
        self.units = 0
        self._facts = facts
        self._taken = False

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

    def spread(self, begins: np.ndarray, sample: Callable[[int], np.ndarray]) -> np.ndarray:
        """Which records take part: those of the units that `sample` draws, one draw for each unit."""
        drawn = np.concatenate([[self._taken], sample(int(begins.sum()))])
        taken = drawn[np.cumsum(begins)]
        self._taken = bool(taken[-1])
        return np.asarray(taken, bool)


def _padded(a: np.ndarray, rows: int, fill: int) -> np.ndarray:
    return a if len(a) == rows else np.concatenate([a, np.full((rows - len(a), *a.shape[1:]), fill, a.dtype)])


def draw_noise(query: Query, shape: tuple[int, ...], sigma: int, bits: Bits) -> np.ndarray:
    """Independent integer noise for every coordinate of an answer.

    A symmetric answer gets noise on its upper triangle, which is then mirrored: σ on the diagonal, σ/√2 above it.

    Args:
        query: the query.
        shape: the shape of its answer. All its noise is drawn at once.
        sigma: the standard deviation of the noise, in integers of the lattice.
        bits: the source of random bits.

    Returns:
        The given shape, int64.

    """
    if not query.symmetric:
        return rounded_normal(sigma, math.prod(shape), bits).reshape(shape)
    side, stack = shape[-1], math.prod(shape[:-2])
    noise = np.zeros((stack, side, side), np.int64)
    above = np.triu_indices(side, 1)
    diagonal = np.arange(side)
    aside = math.ceil(sigma / math.sqrt(2))
    for matrix in noise:
        matrix[above] = rounded_normal(aside, len(above[0]), bits)
        matrix += matrix.T
        matrix[diagonal, diagonal] = rounded_normal(sigma, side, bits)
    return noise.reshape(shape)


class _Passes:
    """Opens the records, counts releases, and tells `progress` how many records were read over all passes, and how
    many there are to read.
    """

    def __init__(self, records: Records, planned: int, progress: Progress | None) -> None:
        if not isinstance(records, Records):
            raise TypeError("a curator takes Records: those of a charged training, or Unprotected ones")
        self.released = 0
        self._planned, self._progress = planned, progress
        self._stream = records.opened()

    def _advance(self, done: int, n: int) -> None:
        if self._progress:
            # Without noise a method may take more passes than planned.
            self._progress((self.released - 1) * n + done, max(self._planned, self.released) * n)


class Curator(_Passes):
    """The private oracle: it answers the releases of a mechanism, in order, from these records.

    Attributes:
        released: how many releases have begun.

    """

    def __init__(self, mechanism: Mechanism, records: Records, bits: Bits, progress: Progress | None = None) -> None:
        """Make a curator for one training.

        Args:
            mechanism: the plan with its noise.
            records: the private records of a charged training, or unprotected ones.
            bits: the source of random bits.
            progress: progress(done, total) is told of the number of records, over all passes.

        Raises:
            TypeError: the records are not `Records`.
            ValueError: the noise of the mechanism has no exact lattice, or the mechanism samples under replace-one
                adjacency.

        """
        self._lattice = lattice_of(mechanism)
        super().__init__(records, len(mechanism.plan.releases), progress)
        self._facts, self._plan, self._sigmas = mechanism.facts, mechanism.plan, mechanism.sigmas
        self._bits = bits

    def release(self, query: Query) -> np.ndarray:
        """The sum of the query's contributions with noise; float64, in the natural units of the query.

        Raises:
            PlanError: the query is not valid, or it is not the next release of the plan.

        """
        try:
            check(query, self._facts)
        except ValueError as error:
            raise PlanError(str(error)) from error
        due, shape = self._plan.due(self.released, query, self._facts), query.shape(self._facts)
        sample = None if due.rate == 1 else lambda count: bernoulli(due.rate, count, self._bits)
        sigma = math.ceil(self._sigmas[self.released] * sensitivity(query, self._facts) * self._lattice.unit)
        # Counted before the noise is drawn, so a release that fails in between counts as spent.
        self.released += 1
        total = exact_sum(query, self._stream, self._facts, self._lattice, self._advance, sample)
        noised = draw_noise(query, shape, sigma, self._bits)
        noised += total.astype(np.int64)
        del total
        answer = noised.astype(np.float64)
        answer *= query.scale(self._facts, self._lattice)
        return answer


def lattice_of(mechanism: Mechanism) -> Lattice:
    """The lattice on which the sums of a mechanism are exact.

    Raises:
        ValueError: there is no such lattice, or the mechanism samples under replace-one adjacency, for which there is
            no accounting.

    """
    facts = mechanism.facts
    if mechanism.plan.sampled and facts.adjacency != "zero-out":
        raise ValueError("sampling is accounted for under zero-out adjacency only")
    return lattice_for(facts.records, max(mechanism.sigmas), max(facts.d + 1, facts.m))


class NonPrivate(_Passes):
    """The non-private baseline: the same sums without lattice, without clipping of contributions and without noise.
    ε = ∞.
    """

    def __init__(
        self, facts: Facts, records: Records, plan: Plan | None = None, progress: Progress | None = None
    ) -> None:
        """Make an oracle without privacy.

        Args:
            facts: the public facts.
            records: the records.
            plan: progress is measured against it. The number of passes may depend on the records.
            progress: as of a `Curator`.

        """
        super().__init__(records, len(plan.releases) if plan else 1, progress)
        self._facts = facts

    def release(self, query: Query) -> np.ndarray:
        """The sum without noise."""
        self.released += 1
        grid = Reals()
        total = exact_sum(query, self._stream, self._facts, grid, self._advance)
        return total * query.scale(self._facts, grid)
