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

**Answers that outlive the process.** If a curator is given `Answers`, each answer is kept there before it is handed
out. A curator that goes on with a training hands out what is kept, in place of a new answer. An answer that was not
kept was not seen, or else nothing is kept and nobody goes on with this training. So for each release one answer is seen
at most, and what is seen is distributed as in a training that was never stopped.

**Answers in pieces.** The class Grams of many classes do not fit into memory. So their exact sum, their noise and their
answer are made piece by piece (`forms.pieces`, a function of public facts), and the pieces are put on a shelf. This
is one release, with one query: a method gets the first piece when the last one is made. The pieces are disjoint
coordinates of the exact sum, and each coordinate gets its noise as in an answer that is made at once. So (1) and (2)
are about the same vector and the same noise, and nothing more is to be paid for. No piece can depend on what a method
saw of another one. The release counts as begun before the first piece. If a curator goes on with a release of which
some pieces are kept, it takes these, and draws noise for the others alone. What is kept before the first piece says
which query they are of. If it is another one, the curator refuses: for persons, pieces of two queries may have a larger
norm together than 4ᵇ. An answer in pieces has no sample, because all pieces would have to be of one sample.

**Answers for a pool.** If a mechanism says so, an answer is the integers S + N themselves, which several sites add.
This is what (1) and (2) are about; to scale them is post-processing. The lattice is given, and is no finer than that of
`lattice_for`, whose conditions a coarser one meets, too.

**Sampled releases.** If the plan has a rate q < 1, each unit takes part in that release with probability at most q,
independently of the others. A unit that does not take part is null and adds zero. Under zero-out adjacency the
release is then the Poisson-subsampled Gaussian mechanism of sensitivity 1 (add or remove one unit). `poisson`
accounts for it as such. μ is then only the name of the noise.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from dpfc_cli.privacy import sums
from dpfc_cli.privacy.directions import Directions, InMemory, Shelf
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.forms import check, packed, pieces, unpacked
from dpfc_cli.privacy.lattice import LEAST_BITS, Lattice, Reals, lattice_for
from dpfc_cli.privacy.noise import ETA_PER_SAMPLE, Bits, bernoulli, rounded_normal
from dpfc_cli.privacy.oracle import MAKING, TAKING, Mechanism, Oracle, Plan, PlanError, Stages, planned
from dpfc_cli.privacy.parts import Sum, digest_of
from dpfc_cli.privacy.passes import BlockStream
from dpfc_cli.privacy.queries import Grid, Query, sensitivity


class Records(ABC):
    """Records that a curator may sum. Whoever makes a curator must say which kind they are.

    There are two kinds: `Unprotected` records, and records that were charged for in their ledger
    (`training.charged.Charged`). So nobody can make a curator of private records before the charge.
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


def draw_noise(query: Query, shape: tuple[int, ...], sigma: int, bits: Bits) -> np.ndarray:
    """Independent integer noise for every coordinate of an answer of that shape, int64. All of it is drawn at once.

    A symmetric answer gets noise on its upper triangle, which is then mirrored: σ on the diagonal, σ/√2 above it.
    sigma: the standard deviation of the noise, in integers of the lattice.
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


def _added(noise: np.ndarray, total: np.ndarray, pool: bool) -> np.ndarray:
    """The noise plus the exact sum, added as int64 and then rounded to float64. It takes the memory of the noise, and
    little more: answers of many classes are as large as all the rest of a training.

    noise: int64. It is overwritten. total: the same shape, float64 with integer values. pool: whether not to round:
    then the bytes of the answer are those of the integers.
    """
    answer = noise.view(np.float64)
    for integers, exact, made in zip(noise, total, answer, strict=True):
        integers += exact.astype(np.int64)
        if not pool:
            # NumPy copies what it overwrites: both are the same memory.
            made[...] = integers
    return answer


class Answers(Protocol):
    """The answers of a training, which outlive its process. They are numbered over `Release.parts` of all releases."""

    def recall(self, number: int, shape: tuple[int, ...]) -> np.ndarray | None:
        """An answer, or a part of one, if it was kept; float64."""
        ...

    def keep(self, number: int, answer: np.ndarray) -> None:
        """Keep an answer, or a part of one. When this returns it outlives the process, or none of the training does."""
        ...


class _NoAnswers:
    """Nothing outlives the process."""

    def recall(self, number: int, shape: tuple[int, ...]) -> np.ndarray | None:
        return None

    def keep(self, number: int, answer: np.ndarray) -> None:
        pass


Part = Callable[[Query, tuple[int, ...]], np.ndarray]
"""Answers a query, or a piece of one, of which only what is on and above the diagonals. The shape says which."""


class _Passes(Oracle):
    """Opens the records, counts releases, makes answers in pieces, and tells `progress` of these."""

    def __init__(
        self,
        records: Records,
        facts: Facts,
        grid: Grid,
        plan: Plan | None,
        progress: Stages | None,
        shelf: Shelf | None,
        together: Sum | None,
        stack: Shelf | None,
    ) -> None:
        if not isinstance(records, Records):
            raise TypeError("a curator takes Records: those of a charged training, or Unprotected ones")
        self.released = 0
        self._facts, self._grid = facts, grid
        self._progress, self._again = progress, False
        self._kinds = [release.kind for release in plan.releases] if plan else []
        self._kind, self._first = "", 0
        directions = None if shelf is None else Directions(shelf)
        self._over = sums.Summed(records.opened(), facts, grid, self._read, directions)
        self._together = together
        self._stack: Shelf = InMemory() if stack is None else stack
        self._on_stack = 0

    def release(self, query: Query) -> np.ndarray:
        """The answer to a query; float64, in its natural units. PlanError: a curator may not answer it: it is not
        valid, or it is not the next release of the plan.
        """
        answers = list(self.pieces(query))
        return answers[0] if len(answers) == 1 else np.concatenate(answers)

    def pieces(self, query: Query) -> Iterator[np.ndarray]:
        """The same answer in pieces, see `Oracle.pieces`."""
        part_of = self._begun(query)
        if query.kind != self._kind:
            self._kind, self._first = query.kind, self.released
        due = planned(query, self._facts, 1.0)
        parts = pieces(query, due.shape)
        if len(parts) == 1:
            return iter([part_of(query, due.shape)])
        self._stack.clear()
        self._on_stack = self.released
        made = (part_of(piece, shape) for piece, shape in zip(parts, due.parts[1:], strict=True))
        for part in self._counted(MAKING, made, due.shape[0]):
            if not self._stack.put((part,)):
                raise OSError("there is no room for the pieces of an answer")
            # Without a shelf the other pieces read the records, too, and this is no pass that was planned.
            self._again = True
        self._again = False
        if self._over.directions is not None:
            self._over.directions.end_pieces()
        return self._counted(TAKING, self._stacked(self.released, len(parts), due.shape[-1]), due.shape[0])

    @abstractmethod
    def _begun(self, query: Query) -> Part:
        """Count a release as begun, or refuse it. It returns how its parts are answered."""

    def _stacked(self, release: int, count: int, side: int) -> Iterator[np.ndarray]:
        """The pieces of a release that are on the stack. PlanError where a later release has taken their place."""
        for number in range(count):
            if release != self._on_stack:
                raise PlanError("the pieces of an answer were not taken before those of another one were made")
            ((part,),) = self._stack.blocks([number])
            yield unpacked(part, side)

    def _sum(self, query: Query, sample: np.ndarray | None = None) -> np.ndarray:
        return (self._together or sums.exact_sum)(query, self._over, sample)

    def _read(self, done: int, n: int) -> None:
        """Told by a pass over the records how far it is."""
        if self._progress and not self._again:
            alike = itertools.takewhile(lambda kind: kind == self._kind, self._kinds[self._first - 1 :])
            before = self.released - self._first
            # Without noise a method may take more passes than planned.
            self._progress(self._kind, before * n + done, max(before + 1, len(list(alike))) * n)

    def _counted(self, stage: str, parts: Iterator[np.ndarray], total: int) -> Iterator[np.ndarray]:
        """The same parts, which are told of when they were used. total: of classes."""
        done = 0
        for part in parts:
            yield part
            done += len(part)
            if self._progress:
                self._progress(stage, done, total)


class Curator(_Passes):
    """The private oracle: it answers the releases of a mechanism, in order, from these records. released: how many
    releases have begun.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        records: Records,
        bits: Bits,
        progress: Stages | None = None,
        shelf: Shelf | None = None,
        answers: Answers | None = None,
        together: Sum | None = None,
        stack: Shelf | None = None,
    ) -> None:
        """Make a curator for one training.

        Args:
            mechanism: the plan with its noise.
            records: the private records of a charged training, or unprotected ones.
            bits: the source of random bits.
            progress: told of the stages of the training, see `oracle.Stages`.
            shelf: an empty one, for what does not depend on θ. None: it is computed anew in every pass.
            answers: where the answers of this training are kept. None: nowhere.
            together: sums over all processes, see `parts`. None: this process works alone.
            stack: an empty shelf with room for an answer in pieces. None: it lies in memory.

        Raises:
            TypeError: the records are not `Records`.
            ValueError: the noise of the mechanism has no exact lattice, or the mechanism samples under replace-one
                adjacency.

        """
        self._lattice = lattice_of(mechanism)
        super().__init__(records, mechanism.facts, self._lattice, mechanism.plan, progress, shelf, together, stack)
        self._plan, self._sigmas, self._pool = mechanism.plan, mechanism.sigmas, mechanism.pool is not None
        self._bits, self._kept = bits, 0
        self._answers: Answers = _NoAnswers() if answers is None else answers

    def _begun(self, query: Query) -> Part:
        try:
            check(query, self._facts)
        except ValueError as error:
            raise PlanError(str(error)) from error
        due = self._plan.due(self.released, query, self._facts)
        sigma = math.ceil(self._sigmas[self.released] * sensitivity(query, self._facts) * self._lattice.unit)
        # Counted before the noise is drawn, so a release that fails in between counts as spent.
        self.released += 1
        if len(due.pieces) > 1:
            self._same(query)
        return partial(self._answer, sigma, due.rate)

    def _answer(self, sigma: int, rate: float, query: Query, shape: tuple[int, ...]) -> np.ndarray:
        """An answer, or a piece of one, with noise: what is kept of it, or a new one. shape: in which it is kept."""
        number = self._kept
        self._kept += 1
        if (kept := self._answers.recall(number, shape)) is not None:
            return kept
        sample = None if rate == 1 else bernoulli(rate, self._facts.n, self._bits)
        total = self._sum(query, sample)
        noised = draw_noise(query, total.shape, sigma, self._bits)
        answer = _added(noised, total, self._pool)
        del noised, total
        if not self._pool:
            answer *= query.scale(self._facts, self._lattice)
        answer = answer if answer.shape == shape else packed(answer)
        self._answers.keep(number, answer)
        return answer

    def _same(self, query: Query) -> None:
        """Keep which query the pieces that follow are of. PlanError if there are pieces of another one."""
        digest = np.frombuffer(digest_of(query), np.uint8).astype(np.float64)
        kept = self._answers.recall(self._kept, digest.shape)
        if kept is None:
            self._answers.keep(self._kept, digest)
        elif not np.array_equal(kept, digest):
            raise PlanError("the pieces that are kept are those of another query")
        self._kept += 1


def lattice_of(mechanism: Mechanism) -> Lattice:
    """The lattice on which the sums of a mechanism are exact.

    Raises:
        ValueError: there is no such lattice, or that of a pool is too fine, or the mechanism samples under replace-one
            adjacency, for which there is no accounting.

    """
    facts = mechanism.facts
    if mechanism.plan.sampled and facts.adjacency != "zero-out":
        raise ValueError("sampling is accounted for under zero-out adjacency only")
    finest = lattice_for(facts.records, max(mechanism.sigmas), max(facts.d + 1, facts.m))
    if mechanism.pool is None:
        return finest
    if not LEAST_BITS <= mechanism.pool <= finest.bits:
        raise ValueError(f"no exact lattice of {mechanism.pool} bits, where {finest.bits} are the finest")
    return Lattice(mechanism.pool)


class NonPrivate(_Passes):
    """The non-private baseline: the same sums without lattice, without clipping of contributions and without noise.
    ε = ∞.
    """

    def __init__(
        self,
        facts: Facts,
        records: Records,
        plan: Plan | None = None,
        progress: Stages | None = None,
        shelf: Shelf | None = None,
        together: Sum | None = None,
        stack: Shelf | None = None,
    ) -> None:
        """Make an oracle without privacy.

        plan: progress is measured against it. The number of passes may depend on the records. For the others see
        `Curator`.
        """
        super().__init__(records, facts, Reals(), plan, progress, shelf, together, stack)

    def _begun(self, query: Query) -> Part:
        self.released += 1
        return self._answer

    def _answer(self, query: Query, shape: tuple[int, ...]) -> np.ndarray:
        answer = self._sum(query) * query.scale(self._facts, self._grid)
        return answer if answer.shape == shape else packed(answer)
