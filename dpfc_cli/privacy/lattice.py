"""Integers instead of reals, so that a bound on one record's contribution is a bound on what is summed.

Floating-point sums round, and their rounding depends on the data and on the order of summation, so a sensitivity proved
for reals fails for them (Mironov 2012; Casacuberta, Shoemate, Vadhan and Wagaman 2022). Here every contribution is an
array of integers whose Euclidean norm is checked *as integers*; sums of integers below 2⁵³ are exact in float64, in any
order and with any kernel. Two data sets that differ in one record therefore have sums that differ by that record's
contribution exactly.

A vector of norm 1 becomes an integer vector of norm at most 2ᵇ. Every query's contribution is a product of two such
factors, so in every query the integer 4ᵇ stands for a sensitivity of 1.
"""

import math
from dataclasses import dataclass
from typing import Any

from dpfc_cli.privacy.chain import NORM_BITS, into_ball

MOST_BITS = 18
LEAST_BITS = 10


@dataclass(frozen=True)
class Lattice:
    """The grid on which one training sums.

    bits: b. A vector of norm 1 has integer norm at most 2ᵇ, and `unit` = 4ᵇ is the sensitivity of every query.
    """

    bits: int

    @property
    def one(self) -> float:
        """2ᵇ: a factor of one in a product of two."""
        return float(1 << self.bits)

    @property
    def unit(self) -> int:
        """4ᵇ, the integer norm that no contribution exceeds."""
        return 1 << (2 * self.bits)

    @property
    def weighted(self) -> tuple[int, int]:
        """(S², Q) with S·Q = 4ᵇ: bounds on the squared norms of w and q in a contribution w ⊗ q qᵀ."""
        return 1 << (2 * self.bits - 8), 1 << (self.bits + 4)

    def radius(self, squared: int, d: int) -> float:
        """The integer length that a vector of norm 1 is given where Σq² ≤ squared must hold.

        It leaves room for the error of `chain.norms` (√d·2⁻¹⁹ relative) and of rounding (√d/2), so that the check in
        `vector` does not fire on finite vectors.
        """
        slack = math.sqrt(d) / (1 << NORM_BITS)
        return math.sqrt(squared) * (1 - slack) - math.sqrt(d)

    def vector(self, v: Any, squared: int, xp: Any) -> Any:
        """Integer vectors q ≈ radius·v/max(1, ‖v‖) for the rows of v (B × d), float64 holding integers.

        Guarantee: Σ qᵢ² ≤ squared ≤ 4ᵇ in exact integer arithmetic, for every input, NaN and infinities included.
        Proof: the last line returns zeros unless every |qᵢ| ≤ 2ᵇ and the sum of squares is at most `squared`. Where the
        first holds, the squares are integers of at most 4ᵇ ≤ 2³⁶ and d ≤ 2¹⁷ of them sum below 2⁵³: the sum that is
        compared is exact. ∎
        """
        q = xp.rint(into_ball(v, xp) * self.radius(squared, v.shape[-1]))
        small = xp.all(xp.abs(q) <= self.one, axis=-1, keepdims=True)
        q = xp.where(small, q, 0.0)
        return xp.where(xp.sum(q * q, axis=-1, keepdims=True) <= squared, q, 0.0)


@dataclass(frozen=True)
class Reals:
    """The non-private twin of `Lattice`: no rounding, no bound."""

    one: float = 1.0
    unit: int = 1
    weighted: tuple[int, int] = (1, 1)

    def radius(self, squared: int, d: int) -> float:
        return 1.0

    def vector(self, v: Any, squared: int, xp: Any) -> Any:
        return v


def lattice_for(n: int, sigma: float, d: int) -> Lattice:
    """The finest lattice on which sums over n records are exact and noise of σ units fits.

    n·4ᵇ ≤ 2⁵² keeps every partial sum exact in float64; 2·20·σ·4ᵇ ≤ 2⁶¹ keeps the largest possible noise (20 standard
    deviations, replace-one's factor 2) an int64. ValueError where that leaves fewer than 10 bits or d exceeds 2¹⁷.
    """
    fits = min(math.log2(2**52 / n), math.log2(2**61 / (40 * sigma)))
    bits = min(MOST_BITS, math.floor(fits / 2))
    if bits < LEAST_BITS or d > 2**17:
        raise ValueError(f"no exact lattice for n = {n}, d = {d}, sigma = {sigma:.3g}")
    return Lattice(bits)
