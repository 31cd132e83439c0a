"""Faults of noise, planted on purpose: each of them must be found by the check that is named beside it (`noise`)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpfc_cli.privacy.curator import draw_noise
from dpfc_cli.privacy.noise import Bits, SeededBits
from dpfc_cli.privacy.queries import Query

Draw = Callable[[Query, tuple[int, ...], int, Bits], np.ndarray]
Fault = Callable[[Draw], Draw]
"""Makes faulty noise of honest noise."""
CLASS_AXIS = {"gradient": 1, "class_sums": 0, "class_grams": 0, "hessians": 0}
"""Where in an answer the classes are."""


@dataclass(frozen=True)
class Planted:
    """A fault of the noise.

    Attributes:
        fault: the fault.
        found_by: the name of the check that must find it.
        settings: the releases in which it is planted.
        runs: how many runs are enough to find it.

    """

    fault: Fault
    found_by: str
    settings: tuple[str, ...] = ("small",)
    runs: int = 200


LARGE = ("small", "wide")
ALL = ("small", "wide", "many classes")


def rounded(noise: np.ndarray) -> np.ndarray:
    integers: np.ndarray = np.rint(noise).astype(np.int64)
    return integers


def changed(change: Callable[[Query, np.ndarray], np.ndarray], *kinds: str) -> Fault:
    """The fault that noise is changed after it was drawn; for all kinds of queries if none is named."""

    def fault(honest: Draw) -> Draw:
        def draw(query: Query, shape: tuple[int, ...], sigma: int, bits: Bits) -> np.ndarray:
            noise = honest(query, shape, sigma, bits)
            return change(query, noise) if not kinds or query.kind in kinds else noise

        return draw

    return fault


def from_another(distribution: Callable[[tuple[int, ...], np.random.Generator], np.ndarray]) -> Fault:
    """The fault that the noise of answers that are not symmetric has another distribution of the same variance."""

    def fault(honest: Draw) -> Draw:
        def draw(query: Query, shape: tuple[int, ...], sigma: int, bits: Bits) -> np.ndarray:
            noise = honest(query, shape, sigma, bits)
            if query.symmetric:
                return noise
            rng = np.random.default_rng(bits.words(4))
            return rounded(sigma * distribution(shape, rng))

        return draw

    return fault


def from_bits(replace: Callable[[tuple[int, ...], Bits], Bits]) -> Fault:
    """The fault that noise is drawn from bits that are no good."""

    def fault(honest: Draw) -> Draw:
        return lambda query, shape, sigma, bits: draw_noise(query, shape, sigma, replace(shape, bits))

    return fault


class Restarting:
    """The same words whenever they are asked for."""

    secure = False

    def __init__(self, key: int) -> None:
        self._key = key

    def words(self, count: int) -> np.ndarray:
        return SeededBits(self._key).words(count)


def first_word(bits: Bits) -> int:
    return int(bits.words(1)[0])


def reused(source: str, into: str, order: Callable[[np.ndarray], np.ndarray] = np.copy) -> Fault:
    """The fault that noise of one kind of release is used again in the next release of another kind, or of the same.

    Args:
        source: the kind whose noise is used again.
        into: the kind that it is used for. The noise is brought to its size.
        order: a change of order or sign.

    """

    def fault(honest: Draw) -> Draw:
        kept: list[np.ndarray] = []

        def draw(query: Query, shape: tuple[int, ...], sigma: int, bits: Bits) -> np.ndarray:
            noise = honest(query, shape, sigma, bits)
            if query.kind == into and kept:
                again = rounded(sigma * order(kept.pop()).ravel())[: noise.size]
                noise.flat[: again.size] = again
            elif query.kind == source:
                kept.append(noise / sigma)
            return noise

        return draw

    return fault


def silent(row: int, column: int) -> Fault:
    def change(query: Query, noise: np.ndarray) -> np.ndarray:
        noise[row, column] = 0
        return noise

    return changed(change, "gradient")


def half_of_one(query: Query, noise: np.ndarray) -> np.ndarray:
    noise[..., -1, 1] //= 2
    return noise


def last_class_copies_the_first(query: Query, noise: np.ndarray) -> np.ndarray:
    classes = np.moveaxis(noise, CLASS_AXIS[query.kind], 0)
    classes[-1] = classes[0]
    return noise


def classes_cancel(query: Query, noise: np.ndarray) -> np.ndarray:
    """Each variance is right. The sum over the classes has no noise."""
    m = noise.shape[1]
    return rounded((noise - noise.mean(axis=1, keepdims=True)) * np.sqrt(m / (m - 1)))


def faint_and_common(query: Query, noise: np.ndarray) -> np.ndarray:
    """A tenth of the standard deviation of each coordinate is common to all of them."""
    return rounded(np.sqrt(0.99) * noise + 0.1 * noise[0, 0])


def without_last_row(query: Query, noise: np.ndarray) -> np.ndarray:
    if query.symmetric:
        noise[..., -1, :] = noise[..., :, -1] = 0
    return noise


def without_mirror(query: Query, noise: np.ndarray) -> np.ndarray:
    """The triangle below the diagonal has noise of its own: that of the triangle above, turned."""
    return np.triu(noise) + np.tril(np.flip(noise, (-2, -1)), -1) if query.symmetric else noise


def weaker(diagonal: float, aside: float) -> Fault:
    def change(query: Query, noise: np.ndarray) -> np.ndarray:
        if not query.symmetric:
            return noise
        return rounded(noise * np.where(np.eye(noise.shape[-1], dtype=bool), diagonal, aside))

    return changed(change)


def scaled(factor: float) -> Fault:
    return changed(lambda query, noise: rounded(noise * factor))


def nearly_two_values(query: Query, noise: np.ndarray) -> np.ndarray:
    """One coordinate is about ±σ."""
    deviation = np.sqrt((noise.astype(np.float64) ** 2).mean())
    noise[0, 0] = np.sign(noise[0, 0]) * deviation + noise[0, 0] // 1024
    return noise


def one_even(query: Query, noise: np.ndarray) -> np.ndarray:
    noise[0, 0] &= ~1
    return noise


def without_tails(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    z = rng.normal(size=shape)
    return np.where(np.abs(z) > 3, rng.uniform(-3, 3, shape), z)


SHUFFLER = np.random.default_rng(0)

FAULTS = {
    # Size
    "first coordinate of the gradient without noise": Planted(silent(0, 0), "coordinates_have_the_planned_size", ALL),
    "one coordinate with half the deviation": Planted(
        changed(half_of_one, "gradient", "class_sums"), "coordinates_have_the_planned_size", LARGE
    ),
    "last row of symmetric answers without noise": Planted(
        changed(without_last_row), "coordinates_have_the_planned_size", ALL
    ),
    "two thirds of the deviation": Planted(scaled(2 / 3), "parts_have_the_planned_size"),
    "95 % of the deviation": Planted(scaled(0.95), "parts_have_the_planned_size", runs=400),
    "diagonal too small by the root of two": Planted(weaker(np.sqrt(0.5), 1), "parts_have_the_planned_size"),
    "triangle too small by the root of two": Planted(weaker(1, np.sqrt(0.5)), "parts_have_the_planned_size"),
    # Shared noise
    "last class with the noise of the first": Planted(
        changed(last_class_copies_the_first, *CLASS_AXIS), "coordinates_are_uncorrelated", ALL
    ),
    "noise of the mean in the gradient": Planted(reused("mean", "gradient"), "coordinates_are_uncorrelated", LARGE),
    "noise of the gradient in the next one": Planted(reused("gradient", "gradient"), "coordinates_are_uncorrelated"),
    "noise of the gradient in the next one, each time in a new order": Planted(
        reused("gradient", "gradient", lambda noise: SHUFFLER.permutation(noise.ravel())), "no_value_comes_twice"
    ),
    "noise that cancels in the sum over classes": Planted(
        changed(classes_cancel, "gradient"), "no_direction_is_left_out", runs=400
    ),
    "a hundredth of the variance common to all coordinates": Planted(
        changed(faint_and_common, "gradient", "gram"), "no_direction_is_left_out", ("wide",)
    ),
    # Bits
    "a key for each shape": Planted(
        from_bits(lambda shape, bits: SeededBits(hash(shape))), "neighbouring_runs_are_uncorrelated", runs=100
    ),
    "a key of eight bits": Planted(
        from_bits(lambda shape, bits: SeededBits(first_word(bits) % 256)), "no_two_runs_are_alike", runs=100
    ),
    "bits that start again with each batch": Planted(
        from_bits(lambda shape, bits: Restarting(first_word(bits))), "no_value_comes_twice", LARGE, 60
    ),
    # Symmetry
    "noise of its own on each triangle": Planted(changed(without_mirror), "symmetric_answers_are_symmetric"),
    # Integers
    "noise between the integers": Planted(changed(lambda query, noise: noise + 0.25), "noise_is_whole"),
    "even noise": Planted(changed(lambda query, noise: noise & ~1), "no_coordinate_skips_integers"),
    "one even coordinate": Planted(changed(one_even, "gradient"), "no_coordinate_skips_integers"),
    "multiples of 1,000,003": Planted(
        changed(lambda query, noise: rounded(noise / 1_000_003) * 1_000_003), "no_coordinate_skips_integers"
    ),
    "noise of float32": Planted(
        changed(lambda query, noise: noise.astype(np.float32).astype(np.int64)), "low_bits_are_fair"
    ),
    # Shape
    "Laplace noise": Planted(from_another(lambda shape, rng: rng.laplace(0, np.sqrt(0.5), shape)), "parts_are_normal"),
    "one coordinate of nearly two values": Planted(changed(nearly_two_values, "gradient"), "coordinates_are_normal"),
    "noise without tails": Planted(from_another(without_tails), "tails_are_normal", ("wide",)),
}
"""The faults of the noise, by name."""
