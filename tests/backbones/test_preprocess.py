"""Preprocessing: pixels are normalised, and patches lie in their order."""

import jax
import jax.numpy as jnp
import numpy as np

from dpfc_cli.backbones.preprocess import patches, seen


def test_each_colour_has_its_own_mean_and_standard_deviation() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 5, 3), dtype=np.uint8)
    mean, std = (0.1, 0.2, 0.3), (1.0, 2.0, 3.0)
    found = np.asarray(jax.jit(lambda batch: seen(batch, mean, std))(pixels))
    np.testing.assert_allclose(found, ((pixels / 255 - mean) / std).transpose(0, 3, 1, 2), atol=1e-6)


def test_patches_lie_row_by_row_and_what_they_do_not_cover_is_dropped() -> None:
    side, patch = 11, 4
    planes = np.arange(2 * 3 * side * side, dtype=np.float32).reshape(2, 3, side, side)
    rows = np.asarray(patches(jnp.asarray(planes), patch))
    assert rows.shape == (2, 4, 48)
    expected = planes[1, :, 4:8, 0:4].transpose(1, 2, 0)
    assert np.array_equal(rows[1, 2].reshape(4, 4, 3), expected)
