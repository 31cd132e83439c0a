"""Persons as units: what all records of one person add to a sum together is bounded like what one record adds.

Without persons, neighbouring data sets differ in one record. With them they differ in all records of one person. So the
*contribution of a person* is the sum of the contributions of the person's records, and it is clipped as a whole. The
records of a person are multiplied by one number s ≤ 1, so that their sum has an integer norm of at most 4ᵇ. Whatever
the pictures of a person are and however many there are, together they move a sum by at most as much as one record may.
So sensitivity, noise and accounting are those of `queries`, with a person in place of a record.

For k records that add orthogonal vectors of the same length, s is 1/√k. For k equal records it is 1/k.

**Proof that the norm of a person's contribution is at most 4ᵇ, in integers.** Let the person's records have the factors
(lᵢ, rᵢ) after they were scaled and rounded. The squared norm of Σ lᵢ ⊗ rᵢ is Σᵢⱼ (lᵢ·lⱼ)(rᵢ·rⱼ), and that of
Σ lᵢ ⊗ rᵢ ⊗ rᵢ is Σᵢⱼ (lᵢ·lⱼ)(rᵢ·rⱼ)². The inner products are exact in float64: the factors are integers, and by
Cauchy-Schwarz and the bounds of `queries` every partial sum is at most 2⁵³. (lᵢ·lⱼ)(rᵢ·rⱼ) is, too, for the three-fold
products, because ‖l‖²‖r‖² stays below 2⁵³ there. Each term of the sum over i and j is at most 16ᵇ ≤ 2⁷². `_product`
computes it exactly from pieces of 18 bits, and `_norm` adds at most 2²⁰ terms exactly, piece by piece, in 64 bits. The
result is compared with 16ᵇ. A person for whom it is larger counts as null. ∎

Rounding to nearest after a multiplication by s ≤ 1 makes no integer larger. So the factors of single records keep the
bounds of `queries`, and sums over all records stay exact.

**The proof under replace-one.** For sums of Gram type the inner product of the contributions of two persons is a sum of
inner products of their records. These are not negative, because s and the rounded factors keep the signs. So √2 is
enough there, and 2 is enough elsewhere, as for records.

**What a person adds depends on this person's records alone, to the last bit.** s is a function of exact integers, by
operations that IEEE 754 rounds in one way. So it does not matter which persons are computed together. The curator
checks that the records of a person follow one another, and that no person comes twice: the numbers of persons rise by
0 or 1 from record to record.

`Mean`, `Outcomes` and `Standings` are the exceptions: a person adds the average of the person's records, not their
clipped sum. A sum of clipped sums, divided by the number of persons, would not be a mean, because s differs from person
to person. Clipped outcomes would give persons of whom some pictures are right and some wrong up to √2 times the weight
of others.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from dpfc_cli.privacy.chain import Array
from dpfc_cli.privacy.lattice import Lattice
from dpfc_cli.privacy.outcomes import Outcomes
from dpfc_cli.privacy.queries import ClassGrams, Gram, Hessians, Mean, Query
from dpfc_cli.privacy.standings import Standings

MOST = 1024
"""Records of one person that count: the first ones. The others are null. It bounds memory and work for one person."""
_PAIRS = MOST**2
"""Pairs of records that are compared at a time."""
_PIECE = 18
"""Bits of the pieces in which products of integers are computed."""

Factors = tuple[np.ndarray, np.ndarray]


def clipped(query: Query, factors: Iterable[tuple[Array, ...]], lattice: Lattice) -> Iterator[Factors]:
    """Scale the factors of records so that the contribution of each person is bounded.

    factors: blocks of (left, right, persons): B × p and B × q integers of the lattice, and the person of each record.
    The records of a person follow one another. Yields blocks of (left, right): whole persons, in the same order. For a
    `Gram` both are one array.
    """
    held: list[np.ndarray] | None = None
    for block in factors:
        left, right, persons = (np.asarray(each) for each in block)
        if held is not None:
            left, right, persons = (np.concatenate(pair) for pair in zip(held, (left, right, persons), strict=True))
        last = int(np.searchsorted(persons, persons[-1]))
        # The last person may go on in the next block.
        held = [each[last : last + MOST] for each in (left, right, persons)]
        if last:
            yield _clipped(query, left[:last], right[:last], persons[:last], lattice)
    if held is not None:
        yield _clipped(query, held[0], held[1], held[2], lattice)


def _clipped(query: Query, left: np.ndarray, right: np.ndarray, persons: np.ndarray, lattice: Lattice) -> Factors:
    starts = np.flatnonzero(np.diff(persons, prepend=persons[0] - 1))
    sizes = np.diff(starts, append=len(persons))
    # The factors of a Gram matrix are one array.
    alone = isinstance(query, Gram)
    left = left.copy()
    right = left if alone else right.copy()
    for start, size in zip(starts[sizes > MOST], sizes[sizes > MOST], strict=True):
        left[start + MOST : start + size] = right[start + MOST : start + size] = 0
    sizes = np.minimum(sizes, MOST)
    for size in np.unique(sizes[sizes > 1]):
        alike = starts[sizes == size]
        step = max(1, _PAIRS // int(size) ** 2)
        for at in range(0, len(alike), step):
            rows = alike[at : at + step, None] + np.arange(size)
            taken = left[rows]
            left[rows], right[rows] = _bounded(query, taken, taken if alone else right[rows], lattice.unit)
    return left, right


def _bounded(query: Query, left: np.ndarray, right: np.ndarray, unit: int) -> Factors:
    """The factors of P persons with k records each, P × k × p and P × k × q, scaled, rounded and checked."""
    (high, low), limit = _norm(query, left, right), unit**2 >> 2 * _PIECE
    if isinstance(query, Mean | Outcomes | Standings):
        counted = (left != 0).any(axis=-1).sum(axis=-1)
        long, length = counted > 1, counted * float(unit)
    else:
        long, length = _above(high, low, limit), np.sqrt(high * 4.0**_PIECE + low)
    # Not all of the bound is left to rounding. Where hundreds of equal records meet a coarse lattice, what a person
    # adds may round to zero.
    room = unit - np.minimum(_rounding(query, left, right), unit / 2)
    # What is computed here may be a little too large. The check decides.
    scale = np.where(long, room / np.maximum(length, 1.0), 1.0)[:, None, None]
    left, right = _scaled(query, left, right, scale)
    lost = _above(*_norm(query, left, right), limit)
    left[lost] = right[lost] = 0.0
    return left, right


def _above(high: np.ndarray, low: np.ndarray, limit: int) -> np.ndarray:
    """Whether high·2³⁶ + low > limit·2³⁶, where 0 ≤ low < 2³⁶."""
    return np.asarray((high > limit) | ((high == limit) & (low > 0)))


def _norm(query: Query, left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The squared norm of the contribution of each person, exactly: (high, low) for high·2³⁶ + low, 0 ≤ low < 2³⁶."""
    first = _inner(left)
    second = first if isinstance(query, Gram) else _inner(right)
    if isinstance(query, ClassGrams | Hessians):
        first = first * second
    high, middle, low = (piece.sum(axis=(1, 2)) for piece in _product(first, second))
    middle += low >> _PIECE
    high += middle >> _PIECE
    mask = (1 << _PIECE) - 1
    return high, ((middle & mask) << _PIECE) + (low & mask)


def _inner(factor: np.ndarray) -> np.ndarray:
    return np.asarray(factor @ factor.transpose(0, 2, 1)).astype(np.int64)


def _product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """a·b = high·2³⁶ + middle·2¹⁸ + low, exactly, with middle and low in [0, 2¹⁸). Integers, |a| ≤ 2⁵³, |b| ≤ 2³⁶ and
    |a·b| ≤ 2⁷².
    """
    mask = (1 << _PIECE) - 1
    (a1, a0), (b1, b0) = ((each >> _PIECE, each & mask) for each in (a, b))
    low = a0 * b0
    middle = a1 * b0 + a0 * b1 + (low >> _PIECE)
    return a1 * b1 + (middle >> _PIECE), middle & mask, low & mask


def _scaled(query: Query, left: np.ndarray, right: np.ndarray, scale: np.ndarray) -> Factors:
    """The contributions times `scale` ≤ 1. An integer that is multiplied by 1 stays as it is."""
    if isinstance(query, Hessians):
        return np.rint(left * scale), right
    if isinstance(query, ClassGrams):
        return left, np.rint(right * np.sqrt(scale))
    if isinstance(query, Gram):
        left = np.rint(left * np.sqrt(scale))
        return left, left
    return left, np.rint(right * scale)


def _rounding(query: Query, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """How much longer the rounding in `_scaled` can make the contribution of a person. It rounds by ½ at most."""
    p, q = left.shape[-1], right.shape[-1]
    if isinstance(query, Hessians):
        each = np.sqrt(p) / 2 * np.square(right).sum(axis=-1)
    elif isinstance(query, Gram | ClassGrams):
        weights = 1.0 if isinstance(query, Gram) else _lengths(left)
        each = weights * (np.sqrt(q) * _lengths(right) + q / 4)
    else:
        each = _lengths(left) * np.sqrt(q) / 2
    # Sums of integers do not depend on the order.
    return np.asarray(np.ceil(each).sum(axis=-1))


def _lengths(factor: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt(np.square(factor).sum(axis=-1)))
