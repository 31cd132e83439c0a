"""The constants of the scattering transform in NumPy float64: wavelets, low-pass filters, real Fourier matrices.

All of this depends on the size of the pictures alone. The filters are those of kymatio (Andreux et al., "Kymatio:
Scattering Transforms in Python", JMLR 2020), so that features are comparable with those of the literature. Scale j has
Morlet wavelets of width 0.8·2^j, frequency ¾π/2^j and slant 4/L at L angles. The low-pass filter is a Gaussian of width
0.8·2^(J-1).

**Real arithmetic.** Pixels and moduli are real, so the transform works on Hartley coefficients. With
cas t = cos t + sin t, X(k, l) = Σ x(u, v) cas(2πku/M) cas(2πlv/N) is real. This transform is its own inverse up to the
factor 1/MN, and it costs half the multiplications of a complex transform. A filter with a real spectrum ψ acts on these
coefficients as follows. On one axis, cas(ku) = ½[(1-i)e^{iku} + (1+i)e^{-iku}]. So an even multiplier scales cas(ku),
and an odd multiplier m turns it into -i·m(k)·cas(-ku). Split ψ into its even and odd parts along both axes
(ψ = ee + eo + oe + oo, rows first). Then

    Re: ee(k, l)·X(k, l) - oo(k, l)·X(-k, -l)        Im: eo(k, l)·X(k, -l) + oe(k, l)·X(-k, l)

are the coefficients of the real part and of the imaginary part of x ⋆ ψ, which are two real images. Subsampling by two
adds the coefficients (k, l), (k + M/2, l), … as it does for those of Fourier.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

SCALES = 2  # J
ANGLES = 8  # L
STRIDE = 1 << SCALES
# Kymatio normalises its filters with this value of π (relative error 3e-5). Our features must be the same.
_PI = 3.1415


@dataclass(frozen=True, kw_only=True)
class Axis:
    """The matrices for one axis of a picture with `size` pixels, padded to m.

    The three low-pass matrices filter, subsample to stride 4 and remove the padding.

    Attributes:
        pixels: (m, size), pad by reflection and transform.
        forward: (m, m), transform.
        inverse: (m, m), transform back.
        inverse_half: (m/2, m/2), transform back at half resolution.
        low_pixels: (size//4, size), low-pass from pixels.
        low: (size//4, m), low-pass from the padded image.
        low_half: (size//4, m/2), low-pass from the padded image at half resolution.

    """

    pixels: np.ndarray
    forward: np.ndarray
    inverse: np.ndarray
    inverse_half: np.ndarray
    low_pixels: np.ndarray
    low: np.ndarray
    low_half: np.ndarray


def padded(size: int) -> int:
    """The padded length: a multiple of the stride, with room for one output on each side, which is removed later."""
    return ((size + STRIDE) // STRIDE + 1) * STRIDE


@cache
def axis(size: int) -> Axis:
    m = padded(size)
    reflect, forward = _reflection(size), _hartley(m)
    low = _low_pass(m, halvings=0)
    return Axis(
        pixels=forward @ reflect,
        forward=forward,
        inverse=forward / m,
        # 1/(m/2) for the inverse, times 1/2, because subsampling takes the mean over aliases and `_halve` adds them.
        inverse_half=_hartley(m // 2) / m,
        low_pixels=low @ reflect,
        low=low,
        low_half=_low_pass(m, halvings=1),
    )


@cache
def wavelets(rows: int, columns: int, scale: int) -> np.ndarray:
    """Spectra (4, rows, columns, L) of the wavelets of one scale: the parts ee, oo, eo, oe of the formula above."""
    parts = []
    for angle in range(ANGLES):
        spectrum = np.fft.fft2(_morlet(rows, columns, scale, angle)).real
        even, odd = _split(spectrum, 0)
        (ee, eo), (oe, oo) = _split(even, 1), _split(odd, 1)
        parts.append((ee, oo, eo, oe))
    return np.moveaxis(np.array(parts), 0, -1)


def _split(x: np.ndarray, along: int) -> tuple[np.ndarray, np.ndarray]:
    mirrored = np.roll(np.flip(x, along), 1, along)
    return (x + mirrored) / 2, (x - mirrored) / 2


def _hartley(m: int) -> np.ndarray:
    angle = 2 * np.pi * np.outer(np.arange(m), np.arange(m)) / m
    return np.asarray(np.cos(angle) + np.sin(angle))


def _reflection(size: int) -> np.ndarray:
    """Padding by reflection, as a matrix (m, size). If the padding is odd, the far side gets one pixel more."""
    extra = padded(size) - size
    return np.eye(size)[np.pad(np.arange(size), (extra // 2, extra - extra // 2), mode="reflect")]


def _low_pass(m: int, halvings: int) -> np.ndarray:
    """The Gaussian on one axis (it is separable), at a resolution halved `halvings` times, subsampled to the stride."""
    sigma = 0.8 * 2 ** (SCALES - 1)
    reach = int(np.ceil(8 * sigma))
    u = np.arange(-reach, reach + 1)
    kernel = np.zeros(m)
    np.add.at(kernel, u % m, np.exp(-(u**2) / (2 * sigma**2)) / np.sqrt(2 * _PI * sigma**2))
    if halvings:
        spectrum = np.fft.fft(kernel)
        # Only the frequencies of the lower resolution are kept. Aliases are dropped and not added.
        kernel = np.fft.ifft(np.concatenate([spectrum[: m // 4], spectrum[-(m // 4) :]])).real
    n = len(kernel)
    outputs = np.arange(0, n, STRIDE >> halvings)[1:-1]
    return np.asarray(kernel[(outputs[:, None] - np.arange(n)) % n])


def _morlet(rows: int, columns: int, scale: int, angle: int) -> np.ndarray:
    """A Gabor function, minus the multiple of its envelope that makes its sum zero, periodic on (rows, columns)."""
    sigma, slant, frequency = 0.8 * 2**scale, 4 / ANGLES, 0.75 * np.pi / 2**scale
    theta = (ANGLES // 2 - 1 - angle) * np.pi / ANGLES
    # Eight standard deviations of the long side. Beyond that the envelope is below the resolution of float64.
    reach = int(np.ceil(8 * sigma / slant))
    u, v = np.ogrid[-reach : reach + 1, -reach : reach + 1]
    along, across = u * np.cos(theta) + v * np.sin(theta), v * np.cos(theta) - u * np.sin(theta)
    envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2)) * slant / (2 * _PI * sigma**2)
    wave = envelope * np.exp(1j * frequency * along)
    wave -= envelope * (wave.sum() / envelope.sum())
    out = np.zeros((rows, columns), complex)
    np.add.at(out, (u % rows, v % columns), wave)
    return out
