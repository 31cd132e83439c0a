"""The only place where records and noise meet.

The curator holds the records as a stream of blocks, knows the plan, and answers the plan's queries in the plan's order:
exact integer sum over every record once, plus fresh integer noise for every coordinate. Anything else it refuses.

**Theorem.** The sequence of answers is μ-GDP with respect to the adjacency of `facts`, up to a distance η in total
variation. Proof: (1) By `queries`, the integer sums of neighbouring data sets differ by a vector of norm at most s·U, U
= 4ᵇ, s = 1 or `replace_one`; by `lattice_for` the sums are exact, and `exact_sum` makes sure that each record was added
once. (2) By `noise`, S + N is a post-processing of S + N(0, (σ_r·s·U)²·I) up to η; symmetric answers are noised in the
coordinates (diagonal, √2 × off-diagonal), in which the Frobenius norm is the Euclidean one. σ is rounded up to an
integer. So release r is (1/σ_r)-GDP, and this holds for every value of the earlier answers, which is all that a query
can depend on. (3) Adaptive composition: μ² = Σ 1/σ_r². ∎

**Sampled releases.** Where the plan has a rate q < 1, each record takes part in that release with probability at most
q, independently; one that does not is null and adds zero. Under zero-out adjacency the release is then the
Poisson-subsampled Gaussian mechanism of sensitivity 1 (add or remove one record). `poisson` accounts for it as that,
and μ only names the noise.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpfc_cli.privacy import chain as chains
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

BlockStream = Callable[[int], Iterator[tuple[int, np.ndarray, np.ndarray]]]
"""stream(rows) yields (start, features, labels) for rows [start, start + rows) of the global record order; the last
block is shorter.
"""


class Records(ABC):
    """Records that a curator may sum. Whoever makes a curator must say which kind they are.

    There are two kinds: `Unprotected` ones, and those of a training that was charged to its ledger
    (`training.charge.Charged`). So a curator of private records cannot be made before the charge.
    """

    @property
    @abstractmethod
    def stream(self) -> BlockStream:
        """The records, block by block."""


@dataclass(frozen=True)
class Unprotected(Records):
    """Records that nobody needs to protect: public, or made up."""

    blocks: BlockStream

    @property
    def stream(self) -> BlockStream:
        return self.blocks


def eta_of(plan: Plan) -> float:
    """η of a whole run: the distance in total variation of all its noise from the ideal, at most the sum over
    samples.
    """
    return plan.coordinates * ETA_PER_SAMPLE


class IncompletePassError(PlanError):
    """A pass over the records did not cover each of them exactly once."""


@dataclass(frozen=True)
class _RowMap:
    """A query's factors with its arrays and numbers taken out: hashable, so that equal maps share one compiled
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
        # The null record adds zero, whatever its factors are: where, since 0·NaN would be NaN.
        return xp.where(valid, left, 0.0), xp.where(valid, right, 0.0)


def block_rows(facts: Facts) -> int:
    """Records per block: a power of two, from public facts alone, that keeps a block's factors near 64 MB."""
    fit = 1 << int(math.log2((1 << 23) / (facts.d + facts.m + 1)))
    return max(64, min(8192, fit, 1 << math.ceil(math.log2(max(facts.n, 64)))))


def exact_sum(
    query: Query,
    stream: BlockStream,
    facts: Facts,
    grid: Grid,
    progress: Progress | None = None,
    sample: Callable[[int], np.ndarray] | None = None,
) -> np.ndarray:
    """The sum of the query's contributions over all records, float64; on a `Lattice`, exact integers.

    sample(count) says which of the next `count` records take part; the others are null. Raises IncompletePassError
    unless the stream covers 0..n−1 in order, each record once.
    """
    from dpfc_cli.kernels import products, rows

    size, expected = block_rows(facts), 0
    held = {name: getattr(query, name) for name in (*query.arrays, *query.numbers)}
    arrays: dict[str, Any] = {name: value for name, value in held.items() if value is not None}
    bare: Any = opened(query, *arrays)
    arrays["chain"] = chains.values(query.chain)
    if isinstance(bare, Hessians):
        # Blocks of equally many classes share one compiled function.
        arrays["theta"] = arrays["theta"][:, bare.start : bare.stop]
        bare = replace(bare, start=0, stop=bare.stop - bare.start)
    row_map = _RowMap(bare, facts, grid)
    total = np.zeros(query.shape(facts))
    for start, x, labels in stream(size):
        count = len(x)
        if (
            start != expected
            or count != min(size, facts.n - start)
            or x.shape != (count, facts.d)
            or labels.shape != (count, facts.k)
        ):
            raise IncompletePassError(f"expected records {expected}.., got a block of {count} from {start}")
        if sample is not None:
            labels = np.where(sample(count)[:, None], labels, labels.dtype.type(NO_LABEL))
        left, right = rows.run(row_map, _padded(x, size, 0), _padded(labels, size, NO_LABEL), arrays)
        if isinstance(query, ClassGrams | Hessians):
            products.add_weighted_grams(total, left, right)
        else:
            # One array passed twice lets BLAS do half the work.
            total += products.outer_sum(left, left if isinstance(query, Gram) else right)
        expected += count
        if progress:
            progress(expected, facts.n)
    if expected != facts.n:
        raise IncompletePassError(f"a pass covered {expected} of {facts.n} records")
    return total


def _padded(a: np.ndarray, rows: int, fill: int) -> np.ndarray:
    return a if len(a) == rows else np.concatenate([a, np.full((rows - len(a), *a.shape[1:]), fill, a.dtype)])


def draw_noise(query: Query, shape: tuple[int, ...], sigma: int, bits: Bits) -> np.ndarray:
    """Independent integer noise for every coordinate of an answer, int64: one draw for the full shape.

    A symmetric answer is drawn on its upper triangle: σ on the diagonal, σ/√2 beside it, mirrored below.
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
    """Counts releases, and tells `progress` how many records of how many were read over all passes."""

    def __init__(self, planned: int, progress: Progress | None) -> None:
        self.released = 0
        self._planned, self._progress = planned, progress

    def _advance(self, done: int, n: int) -> None:
        if self._progress:
            # Without noise a method takes as many passes as it needs.
            self._progress((self.released - 1) * n + done, max(self._planned, self.released) * n)


class Curator(_Passes):
    """The private oracle: it answers a mechanism's releases, in order, from these records.

    released: how many releases were begun. progress(done, total) counts records over all passes.
    """

    def __init__(self, mechanism: Mechanism, records: Records, bits: Bits, progress: Progress | None = None) -> None:
        """Raises ValueError where the mechanism's noise has no exact lattice, or where it samples under replace-one."""
        if not isinstance(records, Records):
            raise TypeError("a curator takes Records: those of a charged training, or Unprotected ones")
        super().__init__(len(mechanism.plan.releases), progress)
        self._facts, self._plan, self._sigmas = mechanism.facts, mechanism.plan, mechanism.sigmas
        self._records, self._bits = records, bits
        self._lattice = lattice_of(mechanism)

    def release(self, query: Query) -> np.ndarray:
        """The noised sum, float64, in the query's natural units. PlanError unless it is the plan's next release."""
        try:
            check(query, self._facts)
        except ValueError as error:
            raise PlanError(str(error)) from error
        due, shape = self._plan.due(self.released, query, self._facts), query.shape(self._facts)
        sample = None if due.rate == 1 else lambda count: bernoulli(due.rate, count, self._bits)
        sigma = math.ceil(self._sigmas[self.released] * sensitivity(query, self._facts) * self._lattice.unit)
        # Counted before the noise is drawn: a release that fails half-way is spent.
        self.released += 1
        total = exact_sum(query, self._records.stream, self._facts, self._lattice, self._advance, sample)
        noised = draw_noise(query, shape, sigma, self._bits)
        noised += total.astype(np.int64)
        del total
        answer = noised.astype(np.float64)
        answer *= query.scale(self._facts, self._lattice)
        return answer


def lattice_of(mechanism: Mechanism) -> Lattice:
    """The lattice on which a mechanism's sums are exact. ValueError where there is none, or where it samples under
    replace-one adjacency, for which there is no accounting.
    """
    facts = mechanism.facts
    if mechanism.plan.sampled and facts.adjacency != "zero-out":
        raise ValueError("sampling is accounted for under zero-out adjacency only")
    return lattice_for(facts.n, max(mechanism.sigmas), max(facts.d + 1, facts.m))


class NonPrivate(_Passes):
    """The non-private baseline: the same sums without lattice, clipping of contributions and noise. ε = ∞.

    plan: what progress is measured against; how many passes are taken may depend on the records.
    """

    def __init__(
        self, facts: Facts, records: Records, plan: Plan | None = None, progress: Progress | None = None
    ) -> None:
        super().__init__(len(plan.releases) if plan else 1, progress)
        self._facts, self._records = facts, records

    def release(self, query: Query) -> np.ndarray:
        """The plain sum."""
        self.released += 1
        grid = Reals()
        total = exact_sum(query, self._records.stream, self._facts, grid, self._advance)
        return total * query.scale(self._facts, grid)
