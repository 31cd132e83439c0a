"""Integer noise: N = round(σ·Z) with Z a standard normal variable, drawn exactly.

A sum S of integers is released as S + N. Because S is an integer, S + round(σZ) = round(S + σZ). So the release is a
post-processing of the ideal Gaussian mechanism. Gaussian accounting applies to it without any change, at any σ ≥ 1, and
nothing must be added for the lattice. (A float64 normal variable that is rounded does not have the distribution of N:
at σ = 2⁴⁰ its tail skips integers.)

**Algorithm** (after Karney 2016, "Sampling exactly from the normal distribution", algorithm N, with the integer parts
of σ·Z). Draw

1. k ∈ {0, 1, …} with P(k) ∝ exp(−k²/2);
2. an integer i, uniform in 0..σ−1, and a fraction f, uniform in [0, 1); let t = (i + f)/σ, which is uniform in [0, 1);
3. accept with probability exp(−t(2k + t)/2), otherwise start again.

The accepted k + t has a density ∝ exp(−k²/2)·exp(−t(2k + t)/2) = exp(−(k + t)²/2) on [0, ∞). This is the density of
|Z|. Then σ|Z| = kσ + i + f. Rounded, this is the integer kσ + i + [f ≥ ½]. A fair random sign completes the sample.

**Exactness.** Step 2 and the sign use random bits directly (uniform integers by rejection). Steps 1 and 3 compare a
uniform number with a real number p. Of the uniform number 64 bits are drawn. In step 3 p is computed in float64, with
an error far below `MARGIN`. If the comparison is closer than `MARGIN`, or if there is a tie in step 1, `decimal`
arithmetic decides, with `EXTRA` more bits of each uniform number. So a sample has the distribution of N, except for an
event of probability at most `ETA_PER_SAMPLE`. The event is that k ≥ 20 (probability below 2⁻²⁸⁸) or that `EXTRA` bits
do not decide a comparison (below 2⁻²⁵⁰ for each of the few comparisons). No floating-point error changes the
distribution.
"""

import hashlib
from decimal import Decimal, localcontext
from functools import cache
from os import urandom
from typing import Protocol

import numpy as np

CELLS = 20
"""The number of values of k. The rest has probability P(|Z| ≥ 20) < 2⁻²⁸⁸."""
MARGIN = 2.0**-40
"""Far above the float64 error of exp and of its argument, which is below 2⁻⁴⁷ for arguments from −21 to 0."""
EXTRA = 256
"""Bits, of whole words, that are added to each 64-bit uniform number if a comparison is too close for float64."""
DIGITS = 120
"""The number of decimal digits of that comparison: more than 64 + EXTRA bits."""
ETA_PER_SAMPLE = 2.0**-240
"""An upper bound on the total variation distance between the distribution of one sample and that of N."""
_BATCH = 1 << 17
_WORDS = 1 << 24
"""Words of a sample that are in memory at a time."""


class Bits(Protocol):
    """A source of uniform 64-bit words."""

    def words(self, count: int) -> np.ndarray:
        """`count` independent uniform uint64 numbers."""
        ...


class SystemBits:
    """The cryptographic random generator of the operating system.

    A word is asked for when it is needed, and none is kept: what a process keeps, its copies have, too. So each word
    that a training uses comes from `urandom`, once. A test follows them (`tests/test_randomness.py`).
    """

    def words(self, count: int) -> np.ndarray:
        return np.frombuffer(urandom(8 * count), np.uint64)


class SeededBits:
    """Reproducible bits for research. Nothing that is drawn from them is private: whoever knows the seed can subtract
    the noise.
    """

    def __init__(self, seed: int) -> None:
        self._key = hashlib.sha256(str(seed).encode()).digest()
        self._calls = 0

    def words(self, count: int) -> np.ndarray:
        self._calls += 1
        stream = hashlib.shake_256(self._key + self._calls.to_bytes(8, "little"))
        return np.frombuffer(stream.digest(8 * count), "<u8")


def bernoulli(rate: float, count: int, bits: Bits) -> np.ndarray:
    """`count` independent booleans. Each is true with probability ⌊rate·2⁶⁴⌋/2⁶⁴ ≤ rate < 1."""
    limit, starts = np.uint64(int(rate * 2**64)), range(0, count, _WORDS)
    return np.concatenate([bits.words(min(_WORDS, count - start)) < limit for start in starts])


def rounded_normal(sigma: int, size: int, bits: Bits) -> np.ndarray:
    """Independent samples of round(σ·Z), int64. ValueError: σ is no integer in 1..2⁵⁷. (20σ must fit into an int64.)"""
    if not 1 <= sigma <= 2**57:
        raise ValueError("sigma must be an integer in 1..2^57")
    out = np.empty(size, np.int64)
    done = 0
    while done < size:
        # 0.71 of the proposals are accepted. A few more proposals than needed make a short last round rare.
        accepted = _proposals(sigma, min(_BATCH, int((size - done) / 0.71) + 64), bits)[: size - done]
        out[done : done + len(accepted)] = accepted
        done += len(accepted)
    return out


def _proposals(sigma: int, count: int, bits: Bits) -> np.ndarray:
    """Make `count` proposals of the algorithm and return the accepted ones, in order."""
    words = bits.words(4 * count).reshape(4, count)
    cell, offset, fraction, level = words
    limit = 2**64 - 2**64 % sigma
    uniform = np.ones(count, bool) if limit == 2**64 else offset < np.uint64(limit)
    i = (offset % np.uint64(sigma)).astype(np.int64)
    tops = _cell_tops()
    k = np.searchsorted(tops, cell, side="right")
    t = (i + (fraction & _FRACTION) / 2.0**63) / sigma
    p = np.exp(-t * (2 * k + t) / 2)
    u = level / 2.0**64
    accept = u < p
    unsure = (np.abs(u - p) < MARGIN) | (tops[np.minimum(k, CELLS - 1)] == cell) | (tops[k - 1] == cell)
    for lane in np.flatnonzero(unsure):
        k[lane], accept[lane] = _decide(
            int(cell[lane]), int(i[lane]), int(fraction[lane]), int(level[lane]), sigma, bits
        )
    keep = accept & uniform
    k, i, fraction = k[keep], i[keep], fraction[keep]
    half = ((fraction & _FRACTION) >> np.uint64(62)).astype(np.int64)
    magnitude = k * np.int64(sigma) + i + half
    return np.where(fraction > _FRACTION, -magnitude, magnitude)


_FRACTION = np.uint64(2**63 - 1)
"""The low 63 bits of a word are f. The top bit is the sign."""


@cache
def _cell_bounds() -> tuple[Decimal, ...]:
    """P(k ≤ 0), P(k ≤ 1), …, to `DIGITS` digits."""
    with localcontext() as context:
        context.prec = DIGITS
        weights = [(Decimal(-k * k) / 2).exp() for k in range(CELLS)]
        total, bounds, below = sum(weights), [], Decimal(0)
        for weight in weights:
            below += weight
            bounds.append(below / total)
        return tuple(bounds)


@cache
def _cell_tops() -> np.ndarray:
    """The first 64 bits of each bound. A word above those of bound k lies beyond cell k. A word equal to them is
    undecided.
    """
    with localcontext() as context:
        # More than are needed: 28 digits give the same 64 bits.
        context.prec = DIGITS
        return np.array([min(int(b * 2**64), 2**64 - 1) for b in _cell_bounds()], np.uint64)


def _decide(cell: int, i: int, fraction: int, level: int, sigma: int, bits: Bits) -> tuple[int, bool]:
    """Steps 1 and 3 for one proposal, with `EXTRA` more bits of each uniform number. Returns (k, accepted)."""
    extra = [int.from_bytes(bits.words(EXTRA // 64).tobytes(), "little") for _ in range(3)]
    with localcontext() as context:
        context.prec = DIGITS
        scale = Decimal(2) ** (64 + EXTRA)
        where = ((cell << EXTRA) + extra[0]) / scale
        k = sum(where >= bound for bound in _cell_bounds()[:-1])
        f = Decimal(((fraction & (2**63 - 1)) << EXTRA) + extra[1]) / (scale / 2)
        t = (i + f) / sigma
        return k, ((level << EXTRA) + extra[2]) / scale < (-t * (2 * k + t) / 2).exp()
