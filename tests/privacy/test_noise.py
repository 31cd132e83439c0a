"""The sampler draws round(σ·Z): its probabilities, its tails, its independence, and its exact decisions in close
cases.
"""

import math
from collections.abc import Iterator

import mpmath
import numpy as np
import pytest
from scipy import stats

from dpfc_cli.privacy import noise
from dpfc_cli.privacy.curator import draw_noise
from dpfc_cli.privacy.noise import SeededBits, bernoulli, rounded_normal
from dpfc_cli.privacy.queries import Gram, Mean, Query
from tests.support import CHAIN

LARGE = 2**40 + 12_345


@pytest.fixture(scope="module")
def large() -> np.ndarray:
    return rounded_normal(LARGE, 400_000, SeededBits(2))


def fits_rounded_normal(samples: np.ndarray, sigma: float) -> bool:
    """χ² test against the exact probabilities Φ((j + ½)/σ) − Φ((j − ½)/σ), at level 1e-6."""
    reach = int(4 * sigma)
    edges = np.concatenate([[-np.inf], np.arange(-reach, reach + 1) + 0.5, [np.inf]])
    expected = np.diff(stats.norm.cdf(edges / sigma)) * len(samples)
    observed = np.histogram(samples, edges)[0]
    return bool(stats.chisquare(observed, expected).pvalue > 1e-6)


@pytest.mark.parametrize("sigma", [1, 3, 40])
def test_small_sigmas_have_the_exact_probabilities(sigma: int) -> None:
    samples = rounded_normal(sigma, 400_000, SeededBits(1))
    assert fits_rounded_normal(samples, sigma)


def test_the_probability_test_can_fail() -> None:
    samples = rounded_normal(7, 400_000, SeededBits(1))
    assert not fits_rounded_normal(samples, 7.1)
    assert not fits_rounded_normal(np.abs(samples), 7)


def test_a_large_sigma_is_normal_to_the_tails(large: np.ndarray) -> None:
    z = large / LARGE
    assert stats.kstest(z, "norm").pvalue > 1e-6
    assert abs(z.mean()) * math.sqrt(len(z)) < 5
    assert abs(z.var() - 1) * math.sqrt(len(z) / 2) < 5
    for level in (3.0, 4.0):
        expected = 2 * stats.norm.sf(level) * len(z)
        assert stats.binomtest(int((np.abs(z) > level).sum()), len(z), expected / len(z)).pvalue > 1e-6


@pytest.mark.parametrize("sigma", [LARGE, 2**53 + 1, 2**57])
def test_a_large_sigma_skips_no_integer(sigma: int) -> None:
    """Beyond 2⁵³ not all integers have a float64. What is skipped shows the low bits of a sum."""
    large = rounded_normal(sigma, 400_000, SeededBits(2))
    tail = large[np.abs(large) > 2.0 * sigma]
    for modulus in (2, 64, 1000):
        for samples in (large, tail):
            assert stats.chisquare(np.bincount(samples % modulus, minlength=modulus)).pvalue > 1e-6


@pytest.mark.parametrize(("query", "shape"), [(Mean(CHAIN), (1, 2**19)), (Gram(CHAIN), (1000, 1000))])
def test_the_noise_of_a_large_answer_repeats_nowhere(query: Query, shape: tuple[int, ...]) -> None:
    """At this σ two of 500,000 values are equal with probability 1e-6, and these bits have a seed."""
    drawn = draw_noise(query, shape, 2**57, SeededBits(5))
    free = drawn[np.triu_indices(shape[-1])] if query.symmetric else drawn.ravel()
    assert np.diff(np.sort(np.abs(free))).min() > 0


def test_close_calls_are_decided_exactly_as_clear_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = noise._proposals(LARGE, 3_000, SeededBits(3))
    monkeypatch.setattr(noise, "MARGIN", 2.0)
    assert np.array_equal(noise._proposals(LARGE, 3_000, SeededBits(3)), fast)


class Scripted:
    """Bits from a list of rows. Each row has cell, offset, fraction and level of a proposal. After the list all bits
    are zero.
    """

    def __init__(self, *rows: list[int]) -> None:
        self._rows: Iterator[list[int]] = iter(rows)

    def words(self, count: int) -> np.ndarray:
        row = next(self._rows, [0] * count)
        assert len(row) == count
        return np.array(row, np.uint64)


def words_of(number: int) -> list[int]:
    """256 bits as four words, the lowest first."""
    return [number >> shift & (2**64 - 1) for shift in (0, 64, 128, 192)]


def scaled(p: mpmath.mpf) -> int:
    """⌊p·2³²⁰⌋: the 320-bit numbers up to this one lie below p, the next one lies above."""
    return int(mpmath.floor(p * mpmath.mpf(2) ** 320))


@pytest.mark.parametrize("cell", range(noise.CELLS - 1))
def test_between_two_cells_the_last_of_320_bits_decides(cell: int) -> None:
    with mpmath.workdps(150):
        weights = [mpmath.exp(mpmath.mpf(-k * k) / 2) for k in range(noise.CELLS)]
        bound = scaled(sum(weights[: cell + 1]) / sum(weights))
    for number, k in ((bound, cell), (bound + 1, cell + 1)):
        top, extra = divmod(number, 2**256)
        script = Scripted([top, 0, 0, 0], words_of(extra), [0] * 4, [0] * 4)
        # At i = f = 0 every proposal is accepted.
        assert noise._proposals(100, 1, script).tolist() == [100 * k]


@pytest.mark.parametrize("sign", [0, 2**63], ids=["plus", "minus"])
@pytest.mark.parametrize("k", [0, 1, 3])
def test_between_accepted_and_rejected_the_last_of_320_bits_decides(k: int, sign: int) -> None:
    sigma, i, fraction, more = 1000, 777, 2**62 - 12_345, 2**255 + 6_789
    cell = 0 if k == 0 else int(noise._cell_tops()[k - 1]) + 1
    with mpmath.workdps(150):
        t = (i + mpmath.mpf(fraction * 2**256 + more) / mpmath.mpf(2) ** 319) / sigma
        bound = scaled(mpmath.exp(-t * (2 * k + t) / 2))
    for number, accepted in ((bound, [(-1 if sign else 1) * (k * sigma + i)]), (bound + 1, [])):
        level, extra = divmod(number, 2**256)
        script = Scripted([cell, i, sign | fraction, level], [0] * 4, words_of(more), words_of(extra))
        assert noise._proposals(sigma, 1, script).tolist() == accepted


def test_a_word_beyond_all_bounds_belongs_to_the_last_cell() -> None:
    script = Scripted([2**64 - 1, 0, 0, 0], [2**64 - 1] * 4)
    assert noise._proposals(100, 1, script).tolist() == [100 * (noise.CELLS - 1)]


def test_a_seed_gives_the_same_noise_in_every_version() -> None:
    """So a head of `--seed` can be made again."""
    bits = SeededBits(7)
    assert [bits.words(2).tolist(), bits.words(1).tolist()] == [
        [2097641186326806216, 4306094222733379496],
        [7491507793203888568],
    ]
    assert rounded_normal(LARGE, 5, SeededBits(2)).tolist() == [
        -150694242685,
        -1884901566836,
        486551075369,
        122599252024,
        -606371712726,
    ]
    assert rounded_normal(3, 12, SeededBits(2)).tolist() == [0, -5, -1, -3, 0, -6, 1, -1, -2, -1, -1, 0]
    assert int(rounded_normal(5, 200_000, SeededBits(3)).sum()) == -4408


def test_a_record_takes_part_if_its_word_lies_below_the_rate() -> None:
    limit = int(0.3 * 2**64)
    assert bernoulli(0.3, 3, Scripted([limit - 1, limit, limit + 1])).tolist() == [True, False, False]
    assert bernoulli(0.3, 3, Scripted([0, 2**63, 2**64 - 1])).tolist() == [True, False, False]


def test_a_sample_of_many_units_holds_a_byte_for_each_and_few_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_WORDS", 4)
    drawn: list[np.ndarray] = []

    class Watched(SeededBits):
        def words(self, count: int) -> np.ndarray:
            drawn.append(super().words(count))
            return drawn[-1]

    sample = bernoulli(0.5, 10, Watched(1))
    assert sample.dtype == np.bool_
    assert [len(each) for each in drawn] == [4, 4, 2]
    assert np.array_equal(sample, np.concatenate(drawn) < 2**63)


def test_half_a_unit_rounds_away_and_the_top_bit_is_the_sign() -> None:
    half, sign = 1 << 62, 1 << 63
    values = [
        int(noise._proposals(100, 1, Scripted([0, 5, f, 0]))[0])
        for f in (0, half - 1, half, sign - 1, sign, sign | half)
    ]
    assert values == [5, 5, 6, 6, -5, -6]


def test_offsets_beyond_the_last_full_run_are_rejected() -> None:
    # 2⁶⁴ is 16 more than a multiple of 100.
    for offset in (2**64 - 1, 2**64 - 16):
        assert len(noise._proposals(100, 1, Scripted([0, offset, 0, 0]))) == 0
    assert len(noise._proposals(100, 1, Scripted([0, 2**64 - 17, 0, 0]))) == 1


def test_the_cells_left_out_weigh_less_than_eta() -> None:
    left_out = math.exp(-(noise.CELLS**2) / 2) / sum(math.exp(-k * k / 2) for k in range(noise.CELLS))
    assert math.log2(left_out) < -288
    assert noise.DIGITS * math.log2(10) > 64 + noise.EXTRA + 64
    assert noise.ETA_PER_SAMPLE >= 8 * 2.0**-250
    # Of 10⁹ samples at ε = 100 it takes less out of δ than any figure of δ shows.
    assert (1 + math.exp(100)) * 1e9 * noise.ETA_PER_SAMPLE < 1e-19


@pytest.mark.parametrize("sigma", [0, -1, 2**57 + 1])
def test_sigmas_that_do_not_fit_are_refused(sigma: int) -> None:
    with pytest.raises(ValueError, match="sigma"):
        rounded_normal(sigma, 1, SeededBits(0))
