"""Integers in place of real numbers, so that a bound on one contribution is a bound on what is really summed.

Floating-point sums round. Their rounding depends on the data and on the order of the sum. So a sensitivity that is
proved for real numbers is false for floating-point sums (Mironov 2012; Casacuberta, Shoemate, Vadhan and Wagaman 2022).
Here every contribution is an array of integers, and its Euclidean norm is checked *in integers*. Sums of integers below
2⁵³ are exact in float64, in any order and with any kernel. If two data sets differ in one record, their sums differ by
exactly the contribution of that record.

A vector of norm 1 becomes an integer vector of norm at most 2ᵇ. The contribution in every query is a product of two
such factors (or of factors with the same product of bounds). So in every query the integer 4ᵇ stands for a sensitivity
of 1.
"""

import math
from dataclasses import dataclass
from types import ModuleType

from dpfc_cli.privacy.chain import NORM_BITS, Array, into_ball

MOST_BITS = 18
LEAST_BITS = 10
LONGEST = 2**17
"""The most coordinates of a factor."""


@dataclass(frozen=True)
class Lattice:
    """The grid on which one training sums. bits: b. A vector of norm 1 has an integer norm of at most 2ᵇ."""

    bits: int

    @property
    def one(self) -> float:
        """2ᵇ: the integer that stands for 1 in one factor of a product of two."""
        return float(1 << self.bits)

    @property
    def unit(self) -> int:
        """4ᵇ: the integer norm that no contribution exceeds. It stands for a sensitivity of 1."""
        return 1 << (2 * self.bits)

    @property
    def small(self) -> str:
        """The smallest type that holds the coordinates of `vector`. They are integers below 2ᵇ ≤ 2¹⁸ in size."""
        return "int16" if self.bits <= 15 else "float32"

    @property
    def weighted(self) -> tuple[int, int]:
        """(S², Q) with S·Q = 4ᵇ: bounds on the squared norms of w and q in a contribution w ⊗ q qᵀ."""
        return 1 << (2 * self.bits - 8), 1 << (self.bits + 4)

    def radius(self, squared: int, d: int) -> float:
        """The integer length that stands for a vector of norm 1 where Σ q² ≤ squared must hold.

        It is a little less than √squared. The difference leaves room for the error of `chain.norms` (√d·2⁻¹⁹ relative)
        and for rounding (√d/2). So the check in `vector` does not reject finite vectors.
        """
        slack = math.sqrt(d) / (1 << NORM_BITS)
        return math.sqrt(squared) * (1 - slack) - math.sqrt(d)

    def vector(self, v: Array, squared: int, xp: ModuleType) -> Array:
        """Integer vectors q ≈ radius·v/max(1, ‖v‖) for the rows of v: from B × d, float64, to B × d, float64 with
        integer values.

        Guarantee: Σ qᵢ² ≤ squared ≤ 4ᵇ in exact integer arithmetic, for every input, including NaN and infinities.

        Proof: the last line returns zeros unless every |qᵢ| < 2ᵇ and the sum of squares is at most `squared`. If every
        |qᵢ| < 2ᵇ, the squares are integers below 4ᵇ ≤ 2³⁶. Then d ≤ 2¹⁷ of them sum to at most 2⁵³. So the sum that is
        compared with `squared` is exact. ∎
        """
        q = xp.rint(into_ball(v, xp) * self.radius(squared, v.shape[-1]))
        # An equal one would do no harm: 2¹⁷ squares of 2³⁶ are 2⁵³.
        small = xp.all(xp.abs(q) < self.one, axis=-1, keepdims=True)
        q = xp.where(small, q, 0.0)
        return xp.where(xp.sum(q * q, axis=-1, keepdims=True) <= squared, q, 0.0)


@dataclass(frozen=True)
class Reals:
    """The grid of the non-private baseline, in place of `Lattice`: it does not round and it does not bound."""

    one: float = 1.0
    # Any number: `radius` and `vector` have no bound to keep.
    unit: int = 1
    weighted: tuple[int, int] = (1, 1)
    small: str = "float32"

    def radius(self, squared: int, d: int) -> float:
        return 1.0

    def vector(self, v: Array, squared: int, xp: ModuleType) -> Array:
        return v


def lattice_for(n: int, sigma: float, d: int) -> Lattice:
    """The finest lattice on which sums over n records are exact and the noise fits into 64 bits.

    Two conditions decide. n·4ᵇ ≤ 2⁵² keeps every partial sum exact in float64. 2·20·σ·4ᵇ ≤ 2⁶¹ keeps the largest
    possible noise an int64: 20 standard deviations, times the factor 2 of replace-one adjacency.

    sigma: the largest noise multiplier of the plan. d: the largest length of a factor. ValueError: the conditions leave
    fewer than 10 bits, or d exceeds 2¹⁷.
    """
    fits = min(math.log2(2**52 / n), math.log2(2**61 / (40 * sigma)))
    bits = min(MOST_BITS, math.floor(fits / 2))
    if bits < LEAST_BITS or d > LONGEST:
        raise ValueError(f"no exact lattice for n = {n}, d = {d}, sigma = {sigma:.3g}")
    return Lattice(bits)
