"""The 2-D wavelet scattering transform (J = 2, L = 8, second order), a backbone that was never trained on anything.

Tramèr and Boneh, "Differentially Private Learning Needs Better Features (or Much More Data)" (2021), showed that a
linear head on these features is better than private deep networks. Each colour channel gives 81 maps of H/4 × W/4:

    S0 = x ⋆ φ,   S1 = |x ⋆ ψ1| ⋆ φ  (16 wavelets),   S2 = ||x ⋆ ψ1| ⋆ ψ2| ⋆ φ  (8·8 pairs, ψ2 of the coarser scale)

They are in the order of kymatio, and the tests compare them with kymatio's. The features of a record are ordered by
(channel, map, row, column).

**Speed.** A Fourier transform is a product with a dense real matrix (`wavelets`). On a CPU the whole transform is 1.5
times as fast as with XLA's FFT for 32 × 32 pixels, and equally fast for 64 × 64. The products cost O(size³), so larger
pictures should be shrunk first. The batch is the last axis. Then both products of a two-dimensional transform, the
filters and the modulus work on contiguous memory without a transposition. A batch is computed in steps, so that the
intermediates of a step have about the size of the processor's cache.

**Normalisation.** Each record is standardised per order: its values of S0, over all channels and places, get mean 0 and
variance 1, and so do its values of S1 and of S2. This uses the record itself and no other, so it costs no privacy. S0
is the brightness, and S2 is the texture that distinguishes classes. But on CIFAR-10, S0 varies 115 times as much as S2,
and S1 9 times. Training bounds the norm of the *whole* record, so without standardisation S0 takes nearly all of the
bound, and the noise is larger than the rest. EPSILON is added to the variance, so that what is nearly constant is not
amplified. The table shows ridge regression on 5,000 CIFAR-10 pictures with records of norm 1: accuracy in per cent on
1,000 others (standard error 1.5), for the best ridge of a grid and for given ridges. Noise requires a large ridge.

    ridge                             best     0.1       1      10     100
    none                              59.8    54.5    47.4    41.7    34.3
    27 groups (Tramèr and Boneh)      58.8    57.1    58.8    54.5    46.2
    per order                         62.1    60.7    62.1    59.1    46.4
    logarithm of 0.001 + value        63.5    56.0    47.4    39.9    38.1

Pooling averages the standardised maps. Without noise, pooled features are better without standardisation (47.3; per
order 43.4). At ridge 10 they are worse without it (26.2; per order 42.1; per order after pooling 39.9). Pooling after
standardisation loses the mean brightness: with one channel the pooled S0 is zero.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dpfc_cli.backbones.family import Backbone
from dpfc_cli.backbones.scattering.wavelets import ANGLES, SCALES, STRIDE, axis, padded, wavelets
from dpfc_cli.errors import unsupported
from dpfc_cli.structs import Values

# Number of maps of each order: 1, J·L, L²·J(J-1)/2.
ORDERS = (1, SCALES * ANGLES, ANGLES**2 * SCALES * (SCALES - 1) // 2)
MAPS = sum(ORDERS)
# A picture of one colour has no variance. All values from 1e-6 to 1e-4 give the accuracies above.
EPSILON = 1e-5

# Bytes of intermediates per step that we aim at; most bytes of float32 features per call; most rows per call.
_STEP, _CALL, _ROWS = 10 << 20, 64 << 20, 128
# Bytes of intermediates per padded pixel. XLA's memory analysis reports 64 to 68 floats.
_BYTES_PER_PIXEL = 4 * 66


def load(name: str, image_shape: tuple[int, int, int], pool: str) -> "Scattering":
    """Build the transform for pictures of shape (H, W, C). Raises UserError for pictures that are too small."""
    height, width, _ = image_shape
    if min(height, width) < STRIDE:
        raise unsupported(
            f"The pictures have {height} × {width} pixels, but scattering averages over {STRIDE} × {STRIDE} pixels.",
            f"Use pictures of at least {STRIDE} × {STRIDE} pixels.",
        )
    return Scattering(name, image_shape, pool)


class Scattering(Backbone):
    """The transform for one shape of pictures and one pooling."""

    def __init__(self, name: str, image_shape: tuple[int, int, int], pool: str) -> None:
        height, width, channels = image_shape
        places = 1 if pool == "mean" else (height // STRIDE) * (width // STRIDE)
        self.name = name
        self.dim = MAPS * channels * places
        self._shape = tuple(image_shape)
        self._pool = pool
        step, steps = _sizes(image_shape, self.dim)
        self.batch = step * steps
        self._program = _program(image_shape, pool, step, steps)

    def describe(self) -> Values:
        """The fingerprint of feature sets covers it: other words change it."""
        return {
            "name": self.name,
            "weights": None,
            "image_shape": list(self._shape),
            "preprocessing": "pixels / 255",
            "J": SCALES,
            "L": ANGLES,
            "order": 2,
            "padding": "reflect",
            "normalisation": f"per record and order, (x - mean) / sqrt(variance + {EPSILON})",
            "pooling": self._pool,
            "dim": self.dim,
        }

    def traced(self, pixels: jax.Array) -> jax.Array:
        return _features(pixels, self._pool)

    def _compute(self, whole: np.ndarray) -> jax.Array:
        return self._program(whole)


def _sizes(image_shape: tuple[int, int, int], dim: int) -> tuple[int, int]:
    """(rows per step, steps per call): the largest within _STEP, _CALL and _ROWS, and at least one row."""
    height, width, channels = image_shape
    row = _BYTES_PER_PIXEL * channels * padded(height) * padded(width)
    step = min(max(_STEP // row, 1), _ROWS)
    return step, min(max(_CALL // (4 * dim * step), 1), _ROWS // step)


def _program(image_shape: tuple[int, int, int], pool: str, step: int, steps: int) -> Callable[[np.ndarray], jax.Array]:
    """The compiled program, from uint8 (step·steps, H, W, C) to float32 (step·steps, dim)."""

    def program(pixels: jax.Array) -> jax.Array:
        rows: jax.Array = jax.lax.map(partial(_features, pool=pool), pixels.reshape(steps, step, *image_shape))
        return rows.reshape(steps * step, -1)

    return jax.jit(program)


def _features(pixels: jax.Array, pool: str) -> jax.Array:
    maps = _standardise(coefficients(pixels.astype(jnp.float32) / 255))
    if pool == "mean":
        maps = maps.mean((0, 1), keepdims=True)
    return maps.transpose(3, 4, 2, 0, 1).reshape(len(pixels), -1)


def coefficients(images: jax.Array) -> jax.Array:
    """S0, S1 and S2 of pictures, stacked: from float32 (B, H, W, C) to (H/4, W/4, 81, B, C)."""
    batch, height, width, channels = images.shape
    n = batch * channels
    r, c = axis(height), axis(width)
    fine, coarse = (wavelets(padded(height), padded(width), scale) for scale in range(SCALES))

    planes = images.transpose(1, 2, 0, 3).reshape(height, width, n)
    spectrum = _transform(r.pixels, c.pixels, planes)
    u1_fine = _modulus(_filter(spectrum, fine), r.inverse, c.inverse)
    u1_coarse = _modulus(_halve(_filter(spectrum, coarse)), r.inverse_half, c.inverse_half)
    u2 = _modulus(_halve(_filter(_transform(r.forward, c.forward, u1_fine), coarse)), r.inverse_half, c.inverse_half)

    s0 = _transform(r.low_pixels, c.low_pixels, planes)
    s1_fine = _transform(r.low, c.low, u1_fine)
    half = _transform(r.low_half, c.low_half, jnp.concatenate([u1_coarse, u2], -1))
    s1_coarse, s2 = half[..., : ANGLES * n], half[..., ANGLES * n :]
    # The last axis of s2 is (coarse angle, fine angle, plane). In kymatio's order the fine angle comes first.
    s2 = s2.reshape(*s2.shape[:2], ANGLES, ANGLES, n).swapaxes(2, 3).reshape(*s2.shape[:2], -1)
    return jnp.concatenate([s0, s1_fine, s1_coarse, s2], -1).reshape(*s0.shape[:2], MAPS, batch, channels)


def _transform(rows: np.ndarray, columns: np.ndarray, x: jax.Array) -> jax.Array:
    """Apply rows (r, i) to the first axis of x (i, j, n) and columns (c, j) to the second: (r, c, n)."""
    i, j, n = x.shape
    # Accelerators round the factors of float32 products to fewer bits unless they are told not to.
    y = jnp.matmul(rows.astype(np.float32), x.reshape(i, j * n), precision="highest").reshape(len(rows), j, n)
    stack = jnp.broadcast_to(columns.astype(np.float32), (len(rows), *columns.shape))
    return jnp.matmul(stack, y, precision="highest")


def _filter(x: jax.Array, wavelet: np.ndarray) -> tuple[jax.Array, jax.Array]:
    """Apply filters with spectra (4, M, N, L) to coefficients (M, N, n).

    Returns:
        The coefficients of the real and of the imaginary part, (M, N, L, n) each.

    """
    ee, oo, eo, oe = wavelet.astype(np.float32)[..., None]
    down, across = _mirror(x, 0), _mirror(x, 1)
    both = _mirror(down, 1)
    x, down, across, both = (part[:, :, None, :] for part in (x, down, across, both))
    return ee * x - oo * both, eo * across + oe * down


def _mirror(x: jax.Array, along: int) -> jax.Array:
    """Put the coefficient of -k in the place of k, along one axis."""
    return jnp.roll(jnp.flip(x, along), 1, along)


def _halve(parts: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Subsample both images by two. In the coefficients, aliases add up."""
    m, n = parts[0].shape[0] // 2, parts[0].shape[1] // 2
    real, imaginary = (x[:m, :n] + x[m:, :n] + x[:m, n:] + x[m:, n:] for x in parts)
    return real, imaginary


def _modulus(parts: tuple[jax.Array, jax.Array], rows: np.ndarray, columns: np.ndarray) -> jax.Array:
    """The image of absolute values (M, N, L·n), from coefficients of real and imaginary part, (M, N, L, n) each."""
    x = jnp.stack(parts, 2)
    y = _transform(rows, columns, x.reshape(*x.shape[:2], -1)).reshape(x.shape)
    return jnp.sqrt(y[:, :, 0] ** 2 + y[:, :, 1] ** 2).reshape(*x.shape[:2], -1)


def _standardise(maps: jax.Array) -> jax.Array:
    """Give each order of each record mean 0 and variance 1, or less if it is nearly constant: (h, w, 81, B, C)."""
    orders = jnp.split(maps, np.cumsum(ORDERS)[:-1].tolist(), axis=2)
    centred = [order - _record_mean(order) for order in orders]
    return jnp.concatenate([x * jax.lax.rsqrt(_record_mean(x * x) + EPSILON) for x in centred], 2)


def _record_mean(maps: jax.Array) -> jax.Array:
    # Two steps, because XLA is faster if it reduces the outer axes alone.
    return maps.mean((0, 1, 2), keepdims=True).mean(4, keepdims=True)
