"""Faults of noise, planted on purpose: each of them must be found by the check that is named beside it (`noise`)."""

from collections.abc import Callable

import numpy as np

from dpfc_cli.privacy.curator import draw_noise
from dpfc_cli.privacy.noise import Bits, SeededBits
from dpfc_cli.privacy.queries import Query

Draw = Callable[[Query, tuple[int, ...], int, Bits], np.ndarray]
Fault = Callable[[Draw], Draw]
"""Makes faulty noise of honest noise."""
CLASS_AXIS = {"gradient": 1, "class_sums": 0, "class_grams": 0, "hessians": 0}
"""Where in an answer the classes are."""


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


def from_bits(replace: Callable[[tuple[int, ...], Bits], Bits]) -> Fault:
    """The fault that noise is drawn from bits that are no good."""

    def fault(honest: Draw) -> Draw:
        return lambda query, shape, sigma, bits: draw_noise(query, shape, sigma, replace(shape, bits))

    return fault


def last_class_copies_the_first(query: Query, noise: np.ndarray) -> np.ndarray:
    classes = np.moveaxis(noise, CLASS_AXIS[query.kind], 0)
    classes[-1] = classes[0]
    return noise


def without_last_row(query: Query, noise: np.ndarray) -> np.ndarray:
    if query.symmetric:
        noise[..., -1, :] = noise[..., :, -1] = 0
    return noise


def without_mirror(query: Query, noise: np.ndarray) -> np.ndarray:
    """The triangle below the diagonal has noise of its own: that of the triangle above, turned."""
    return np.triu(noise) + np.tril(np.flip(noise, (-2, -1)), -1) if query.symmetric else noise


def one_even(query: Query, noise: np.ndarray) -> np.ndarray:
    noise[0, 0] &= ~1
    return noise


def weaker_aside(query: Query, noise: np.ndarray) -> np.ndarray:
    if not query.symmetric:
        return noise
    return rounded(noise * np.where(np.eye(noise.shape[-1], dtype=bool), 1, np.sqrt(0.5)))


def first_is_zero(query: Query, noise: np.ndarray) -> np.ndarray:
    noise[0, 0] = 0
    return noise


def reused(order: Callable[[np.ndarray], np.ndarray]) -> Fault:
    """The fault that noise of a gradient is used again in the next one, brought to its size. order: a change of it."""

    def fault(honest: Draw) -> Draw:
        kept: list[np.ndarray] = []

        def draw(query: Query, shape: tuple[int, ...], sigma: int, bits: Bits) -> np.ndarray:
            noise = honest(query, shape, sigma, bits)
            if query.kind == "gradient" and kept:
                noise.flat[:] = rounded(sigma * order(kept.pop()).ravel())
            elif query.kind == "gradient":
                kept.append(noise / sigma)
            return noise

        return draw

    return fault


SHUFFLER = np.random.default_rng(0)

FAULTS: dict[str, tuple[Fault, str]] = {
    "first coordinate of the gradient without noise": (
        changed(first_is_zero, "gradient"),
        "coordinates_have_the_planned_size",
    ),
    "last row of symmetric answers without noise": (changed(without_last_row), "coordinates_have_the_planned_size"),
    "two thirds of the deviation": (
        changed(lambda query, noise: rounded(noise * (2 / 3))),
        "parts_have_the_planned_size",
    ),
    "triangle too small by the root of two": (changed(weaker_aside), "parts_have_the_planned_size"),
    "last class with the noise of the first": (
        changed(last_class_copies_the_first, *CLASS_AXIS),
        "coordinates_are_uncorrelated",
    ),
    "noise of the gradient in the next one": (reused(np.copy), "coordinates_are_uncorrelated"),
    "noise of the gradient in the next one, each time in a new order": (
        reused(lambda noise: SHUFFLER.permutation(noise.ravel())),
        "no_value_comes_twice",
    ),
    "a key for each shape": (
        from_bits(lambda shape, bits: SeededBits(hash(shape))),
        "neighbouring_runs_are_uncorrelated",
    ),
    "a key of eight bits": (
        from_bits(lambda shape, bits: SeededBits(int(bits.words(1)[0]) % 256)),
        "no_two_runs_are_alike",
    ),
    "noise of its own on each triangle": (changed(without_mirror), "symmetric_answers_are_symmetric"),
    "noise between the integers": (changed(lambda query, noise: noise + 0.25), "noise_is_whole"),
    "even noise": (changed(lambda query, noise: noise & ~1), "no_coordinate_skips_integers"),
    "one even coordinate": (changed(one_even, "gradient"), "no_coordinate_skips_integers"),
    "multiples of 1,000,003": (
        changed(lambda query, noise: rounded(noise / 1_000_003) * 1_000_003),
        "no_coordinate_skips_integers",
    ),
    "noise of float32": (changed(lambda query, noise: noise.astype(np.float32).astype(np.int64)), "low_bits_are_fair"),
}
"""The faults of the noise by name, each with the check that must find it."""
