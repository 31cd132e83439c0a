"""Checks of the noise of releases. `leaks` has the faults that they must find.

Each check looks at a statistic whose tail under honest noise is known for every number of runs: its distribution is
exact, or there is a bound on it. (Noise is a multiple of 2⁻³⁰ standard deviations, so it is treated as normal where a
check is not about integers.) Where a check looks at many statistics, it divides `FALSE_ALARM` by their number
(Bonferroni). So an honest sample fails a check with a probability of at most `FALSE_ALARM`, whatever the number of
runs, coordinates and releases.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import special, stats

from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Lattice
from dpfc_cli.privacy.queries import Query

FALSE_ALARM = 1e-9
LOW_BITS = 16
BLOCK = 2048
"""Correlations are computed for so many coordinates at a time."""


# What is checked


@dataclass(frozen=True)
class Drawn:
    """The noise of many independent runs. Of a symmetric answer the diagonal and the triangle above it are kept.

    Attributes:
        noise: released minus exact, in integers of the lattice; runs × coordinates of all releases.
        sigma: the planned standard deviation of each coordinate.
        parts: the columns of each part. A release is one part. Of a symmetric release the diagonal is one part and the
            triangle another.
        symmetric: whether all the answers that should be symmetric matrices are.

    """

    noise: np.ndarray
    sigma: np.ndarray
    parts: tuple[slice, ...]
    symmetric: bool

    @property
    def runs(self) -> int:
        return len(self.noise)

    @property
    def coordinates(self) -> int:
        return int(self.noise.shape[1])

    @cached_property
    def z(self) -> np.ndarray:
        """The noise in planned standard deviations."""
        return np.asarray(self.noise / self.sigma)

    @cached_property
    def integers(self) -> np.ndarray:
        return np.asarray(np.rint(self.noise), np.int64)


def drawn_from(
    queries: Sequence[Query], noise: Sequence[np.ndarray], facts: Facts, sigmas: Sequence[float], lattice: Lattice
) -> Drawn:
    """What is checked of the noise of releases.

    Args:
        queries: one for each release.
        noise: for each release its noise in all runs, in integers of the lattice: runs × the shape of the answer.
        facts: the public facts.
        sigmas: the noise multiplier of each release.
        lattice: the lattice of the curator.

    """
    columns: list[np.ndarray] = []
    planned: list[float] = []
    symmetric = True
    for query, drawn, multiplier in zip(queries, noise, sigmas, strict=True):
        sensitivity = query.replace_one if facts.adjacency == "replace-one" else 1.0
        sigma = multiplier * sensitivity * lattice.unit
        runs = len(drawn)
        if query.symmetric:
            symmetric = symmetric and bool((drawn == drawn.swapaxes(-1, -2)).all())
            above = np.triu_indices(drawn.shape[-1], 1)
            columns += [np.diagonal(drawn, axis1=-2, axis2=-1).reshape(runs, -1), drawn[..., *above].reshape(runs, -1)]
            planned += [sigma, sigma / math.sqrt(2)]
        else:
            columns.append(drawn.reshape(runs, -1))
            planned.append(sigma)
    sizes = [column.shape[1] for column in columns]
    ends = list(itertools.accumulate(sizes, initial=0))
    return Drawn(
        noise=np.concatenate(columns, axis=1),
        sigma=np.repeat(planned, sizes),
        parts=tuple(itertools.starmap(slice, itertools.pairwise(ends))),
        symmetric=symmetric,
    )


# Checks of noise


def coordinates_have_the_planned_size(drawn: Drawn) -> bool:
    """Σz² of each coordinate over the runs is χ² with as many degrees of freedom as there are runs (exact)."""
    squares = (drawn.z**2).sum(axis=0)
    tail = FALSE_ALARM / (2 * drawn.coordinates)
    return bool(stats.chi2.ppf(tail, drawn.runs) <= squares.min() and squares.max() <= stats.chi2.isf(tail, drawn.runs))


def parts_have_the_planned_size(drawn: Drawn) -> bool:
    """Σz² of each part over the runs is χ² (exact). So smaller deviations are found than in single coordinates."""
    tail = FALSE_ALARM / (2 * len(drawn.parts))
    return all(
        stats.chi2.ppf(tail, z.size) <= (z**2).sum() <= stats.chi2.isf(tail, z.size)
        for z in (drawn.z[:, part] for part in drawn.parts)
    )


def largest_correlation(a: np.ndarray, b: np.ndarray | None = None) -> float:
    """The largest |cos| of the angle between a column of a and a column of b; without b between two columns of a."""

    def directions(c: np.ndarray) -> np.ndarray:
        length = np.linalg.norm(c, axis=0)
        # A column of zeros has no direction. The check of sizes finds it.
        return c / np.where(length > 0, length, 1)

    a = directions(a)
    other, largest = a if b is None else directions(b), 0.0
    for i in range(0, a.shape[1], BLOCK):
        for j in range(0 if b is not None else i, other.shape[1], BLOCK):
            cosines = np.abs(a[:, i : i + BLOCK].T @ other[:, j : j + BLOCK])
            if b is None and i == j:
                np.fill_diagonal(cosines, 0)
            largest = max(largest, float(cosines.max()))
    return largest


def cosine_bound(length: int, pairs: int) -> float:
    """What |cos| of no pair exceeds, if one vector of each pair is normal and independent of the other one.

    Then cos·√((N − 1)/(1 − cos²)) has Student's distribution with N − 1 degrees of freedom, N being the length (exact).
    """
    t = stats.t.isf(FALSE_ALARM / (2 * pairs), length - 1)
    return float(t / math.sqrt(t**2 + length - 1))


def coordinates_are_uncorrelated(drawn: Drawn) -> bool:
    """Every pair of coordinates of a run, in one release or in two."""
    pairs = math.comb(drawn.coordinates, 2)
    return largest_correlation(drawn.z.astype(np.float32)) <= cosine_bound(drawn.runs, pairs)


def neighbouring_runs_are_uncorrelated(drawn: Drawn) -> bool:
    """Every coordinate of each second run with every coordinate of the run after it."""
    z = drawn.z[: drawn.runs // 2 * 2].astype(np.float32)
    return largest_correlation(z[::2], z[1::2]) <= cosine_bound(len(z) // 2, drawn.coordinates**2)


def no_two_runs_are_alike(drawn: Drawn) -> bool:
    """The vectors that any two runs have in a part."""
    long_enough = [part for part in drawn.parts if part.stop - part.start > 1]
    pairs = math.comb(drawn.runs, 2) * len(long_enough)
    return all(
        largest_correlation(drawn.z[:, part].T) <= cosine_bound(part.stop - part.start, pairs) for part in long_enough
    )


def farthest_from_normal(z: np.ndarray) -> float:
    """The largest distance of the empirical distribution of a column from the normal distribution."""
    below = special.ndtr(np.sort(z, axis=0))
    ranks = np.arange(len(z) + 1)[:, None] / len(z)
    return float(max((ranks[1:] - below).max(), (below - ranks[:-1]).max()))


def distance_bound(size: int, many: int = 1) -> float:
    """What the Kolmogorov–Smirnov distance of none of `many` samples exceeds (Massart 1990: 2·exp(−2·size·t²))."""
    return math.sqrt(math.log(2 * many / FALSE_ALARM) / (2 * size))


def parts_are_normal(drawn: Drawn) -> bool:
    """Kolmogorov–Smirnov for each part."""
    parts = [drawn.z[:, part].reshape(-1, 1) for part in drawn.parts]
    return all(farthest_from_normal(z) <= distance_bound(len(z), len(parts)) for z in parts)


def is_binomial(count: Any, size: Any, probability: Any, many: int) -> bool:
    """Whether none of `many` counts lies in the tails of its binomial distribution (exact)."""
    tail = FALSE_ALARM / (2 * many)
    below = stats.binom.cdf(count, size, probability)
    above = stats.binom.sf(np.asarray(count) - 1, size, probability)
    return bool((below >= tail).all() and (above >= tail).all())


def tails_are_normal(drawn: Drawn) -> bool:
    """The numbers of values beyond 2, 3 and 4 standard deviations are binomial (exact)."""
    levels = np.array([2, 3, 4])
    beyond = [int((np.abs(drawn.z) > level).sum()) for level in levels]
    return is_binomial(beyond, drawn.z.size, 2 * stats.norm.sf(levels), len(levels))


def noise_is_whole(drawn: Drawn) -> bool:
    """All noise is integer. The scaling of answers leaves errors below 2⁻⁶ for noise of up to 2⁴⁵."""
    return bool(np.abs(drawn.noise).max() < 2**45 and np.abs(drawn.noise - drawn.integers).max() < 2**-6)


def no_coordinate_skips_integers(drawn: Drawn) -> bool:
    """The noise of no coordinate lies in one residue class, for any modulus.

    All R values of a coordinate are equal modulo some k ≥ 2 with a probability below Σ k^(1 − R) < 2^(2 − R).
    """
    assert drawn.coordinates * 2.0 ** (2 - drawn.runs) <= FALSE_ALARM, "too few runs"
    return bool((np.gcd.reduce(drawn.integers[1:] - drawn.integers[0], axis=0) == 1).all())


def low_bits_are_fair(drawn: Drawn) -> bool:
    """The number of ones among the lowest bits of each part is binomial (exact)."""
    parts = [drawn.integers[:, part] for part in drawn.parts]
    return all(
        is_binomial([int((part >> bit & 1).sum()) for bit in range(LOW_BITS)], part.size, 0.5, LOW_BITS * len(parts))
        for part in parts
    )


def no_value_comes_twice(drawn: Drawn) -> bool:
    """Absolute values in standard deviations do not repeat within two neighbouring runs, whatever their places.

    Two values count as the same if they differ by at most 4/σ. For given values that has a probability of at most
    2·0.8·5/σ, because the density of |Z| is at most 0.8, and rounding moves both together by at most 1/σ. So the number
    of pairs of runs in which a value repeats is at most binomial (by the union bound over the pairs of values).
    """
    runs, unit = drawn.runs // 2 * 2, 1 / float(drawn.sigma.min())
    values = np.sort(np.abs(drawn.z[:runs]).reshape(runs // 2, -1), axis=1)
    repeated = int((np.diff(values, axis=1) <= 4 * unit).any(axis=1).sum())
    chance = math.comb(values.shape[1], 2) * 8 * unit
    return bool(stats.binom.sf(repeated - 1, runs // 2, chance) >= FALSE_ALARM)


def symmetric_answers_are_symmetric(drawn: Drawn) -> bool:
    """Otherwise there are two values with noise for one sum."""
    return drawn.symmetric


CHECKS: dict[str, Callable[[Drawn], bool]] = {
    check.__name__: check
    for check in (
        coordinates_have_the_planned_size,
        parts_have_the_planned_size,
        coordinates_are_uncorrelated,
        neighbouring_runs_are_uncorrelated,
        no_two_runs_are_alike,
        parts_are_normal,
        tails_are_normal,
        noise_is_whole,
        no_coordinate_skips_integers,
        low_bits_are_fair,
        no_value_comes_twice,
        symmetric_answers_are_symmetric,
    )
}


def failed(drawn: Drawn) -> list[str]:
    """The checks that the noise does not pass."""
    return [name for name, check in CHECKS.items() if not check(drawn)]
