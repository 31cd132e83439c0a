"""Scattering: kymatio's coefficients, a feature vector per record, and nothing of one record in another's."""

import json
import warnings
from typing import Any

import numpy as np
import pytest

from dpfc_cli import backbones
from dpfc_cli.backbones.scattering import FAMILY
from tests.support import refuses

SHAPES = [(4, 4, 1), (5, 11, 2), (8, 8, 1), (32, 32, 3), (33, 40, 3)]


def pictures(count: int, shape: tuple[int, int, int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


@pytest.fixture(scope="module")
def small() -> backbones.Backbone:
    return backbones.load(backbones.Wanted(name="scattering", image_shape=(8, 8, 3)))


# The transform


@pytest.mark.parametrize("shape", SHAPES)
def test_the_coefficients_are_kymatios(shape: tuple[int, int, int]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The usual import of kymatio 0.3.0 fails with SciPy 1.17; this one does not.
        frontend = pytest.importorskip(
            "kymatio.scattering2d.frontend.numpy_frontend", reason="the reference, kymatio, is not installed"
        )
    import jax

    from dpfc_cli.backbones.scattering.transform import coefficients

    images = np.random.default_rng(1).random((2, *shape), dtype=np.float32)
    ours = np.asarray(jax.jit(coefficients)(images)).transpose(3, 4, 2, 0, 1)
    theirs = frontend.ScatteringNumPy2D(J=2, shape=shape[:2])(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    for order in (slice(0, 1), slice(1, 17), slice(17, 81)):
        expected = theirs[:, :, order]
        np.testing.assert_allclose(ours[:, :, order], expected, rtol=0, atol=1e-5 * np.abs(expected).max())


# The features


# Pooling is the last step. What comes before it is the same.
def test_each_order_of_a_record_is_standardised(small: backbones.Backbone) -> None:
    import jax

    from dpfc_cli.backbones.scattering.transform import EPSILON, coefficients

    pixels = pictures(4, (8, 8, 3))
    features = small(pixels).reshape(4, 3, 81, 2, 2)
    raw = np.asarray(jax.jit(coefficients)(pixels.astype(np.float32) / 255)).transpose(3, 4, 2, 0, 1)
    for row in range(4):
        for order in (slice(0, 1), slice(1, 17), slice(17, 81)):
            values = raw[row, :, order].astype(np.float64)
            expected = (values - values.mean()) / np.sqrt(values.var() + EPSILON)
            np.testing.assert_allclose(features[row, :, order], expected, atol=1e-4)


def test_pooling_is_the_mean_of_each_map(small: backbones.Backbone) -> None:
    pixels = pictures(4, (8, 8, 3))
    maps = small(pixels).reshape(4, 243, 4)
    backbone = backbones.load(backbones.Wanted(name="scattering", image_shape=(8, 8, 3), pool="mean"))
    pooled = backbone(pixels)
    assert pooled.shape == (4, backbone.dim)
    np.testing.assert_allclose(pooled, maps.mean(2), atol=1e-6)
    # Large pictures are pooled unless asked otherwise, and small ones are not.
    for shape, own in (((20, 20, 3), "none"), ((28, 28, 1), "none"), ((32, 32, 3), "mean")):
        assert FAMILY.own_pool("scattering", shape) == own


# A record's features depend on its own pixels alone


@pytest.mark.parametrize("pool", ["none", "mean"])
def test_a_records_features_are_the_same_bits_whatever_the_others_hold(pool: str) -> None:
    shape = (8, 8, 3)
    backbone = backbones.load(backbones.Wanted(name="scattering", image_shape=shape, pool=pool))
    batch = pictures(backbone.batch, shape)
    features = backbone(batch)
    rows = (0, 7, backbone.batch - 1)
    for others in (np.zeros_like(batch), np.full_like(batch, 255), pictures(len(batch), shape, seed=2)):
        for row in rows:
            others[row] = batch[row]
        found = backbone(others)
        assert all(np.array_equal(found[row], features[row]) for row in rows)


def test_any_number_of_rows_gives_what_one_at_a_time_gives(small: backbones.Backbone) -> None:
    for count in (0, small.batch - 1, small.batch, small.batch + 1):
        pixels = pictures(count, (8, 8, 3))
        features = small(pixels)
        assert features.shape == (count, small.dim)
        for row in {0, count - 1} if count else ():
            np.testing.assert_allclose(features[row], small(pixels[row : row + 1])[0], atol=1e-5)


@pytest.mark.parametrize("pool", ["none", "mean"])
def test_a_picture_of_one_colour_has_finite_small_features(pool: str) -> None:
    backbone = backbones.load(backbones.Wanted(name="scattering", image_shape=(8, 8, 3), pool=pool))
    shades = np.array([0, 127, 255], np.uint8)
    assert np.abs(backbone(np.broadcast_to(shades[:, None, None, None], (3, 8, 8, 3)))).max() < 0.01


def test_doubles_enabled_elsewhere_change_nothing(small: backbones.Backbone) -> None:
    import jax

    pixels = pictures(3, (8, 8, 3))
    expected = small(pixels)
    config: Any = jax.config
    before = config.jax_enable_x64
    config.update("jax_enable_x64", True)
    try:
        features = backbones.load(backbones.Wanted(name="scattering", image_shape=(8, 8, 3)))(pixels)
    finally:
        config.update("jax_enable_x64", before)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, expected, atol=1e-5)


# Bounds and refusals


@pytest.mark.parametrize("shape", [(8, 8, 1), (32, 32, 3), (64, 64, 3), (224, 224, 3), (512, 512, 3)])
def test_the_batch_keeps_intermediates_and_output_bounded(shape: tuple[int, int, int]) -> None:
    from dpfc_cli.backbones.scattering.transform import _sizes
    from dpfc_cli.backbones.scattering.wavelets import padded

    dim = 81 * shape[2] * (shape[0] // 4) * (shape[1] // 4)
    step, steps = _sizes(shape, dim)
    assert step >= 1
    assert steps >= 1
    assert step * shape[2] * padded(shape[0]) * padded(shape[1]) * 4 * 66 <= 256 << 20
    assert step * steps * dim * 4 <= 128 << 20


def test_the_estimate_of_intermediates_holds() -> None:
    """What XLA says it allocates is what `_sizes` counts with."""
    import jax

    if jax.default_backend() != "cpu":
        pytest.skip("the libraries of an accelerator take room of their own")
    from dpfc_cli.backbones.scattering.transform import _BYTES_PER_PIXEL, coefficients
    from dpfc_cli.backbones.scattering.wavelets import padded

    program = jax.jit(coefficients).lower(np.zeros((8, 32, 32, 3), np.float32)).compile()
    used = program.memory_analysis()
    assert used is not None
    assert used.temp_size_in_bytes <= 1.5 * _BYTES_PER_PIXEL * 8 * 3 * padded(32) ** 2


def test_the_description_goes_into_a_manifest(small: backbones.Backbone) -> None:
    description = small.describe()
    assert json.loads(json.dumps(description)) == description
    assert description.items() >= {"name": "scattering", "weights": None, "J": 2, "L": 8, "pooling": "none"}.items()


def test_floats_and_other_shapes_are_refused(small: backbones.Backbone) -> None:
    with refuses("unsupported"):
        backbones.load(backbones.Wanted(name="scattering", image_shape=(3, 8, 1)))
    with pytest.raises(ValueError, match="uint8"):
        small(np.zeros((1, 8, 8, 3), np.float32))
    with pytest.raises(ValueError, match="uint8"):
        small(np.zeros((1, 9, 8, 3), np.uint8))
