"""Scattering as an ONNX graph: what `backbones.scattering.transform` computes, in float32.

Axes are (picture, channel, angles …, row, column) here, so a transform of rows and columns is two products of matrices.
"""

import numpy as np

from dpfc_cli.backbones.scattering.transform import EPSILON
from dpfc_cli.backbones.scattering.wavelets import ANGLES, SCALES, axis, padded, wavelets
from dpfc_cli.exports.graph import Graph

Parts = tuple[str, str]
"""The real and the imaginary part."""
_FLOAT = 1


def features(graph: Graph, pixels: str, image_shape: tuple[int, int, int], pooling: str) -> str:
    """The features of pictures, from uint8 (n, H, W, C) to float32 (n, d). The division by 255 is a part of it."""
    height, width, _ = image_shape
    network = _Network(graph)
    planes = graph("Transpose", graph("Cast", pixels, to=_FLOAT), perm=[0, 3, 1, 2])
    orders = network.coefficients(graph("Div", planes, np.float32(255)), height, width)
    maps = graph("Concat", *map(network.standardised, orders), axis=2)
    if pooling == "mean":
        maps = graph("ReduceMean", maps, axes=[3, 4], keepdims=1)
    return str(graph("Reshape", maps, np.array([0, -1])))


class _Network:
    """The parts of the transform, each adding its nodes to the graph."""

    def __init__(self, graph: Graph) -> None:
        self.g = graph

    def coefficients(self, planes: str, height: int, width: int) -> list[str]:
        """The maps of each order, (n, C, maps, H/4, W/4)."""
        r, c = axis(height), axis(width)
        sides = padded(height), padded(width)
        fine, coarse = (np.moveaxis(wavelets(*sides, scale), -1, 1).astype(np.float32) for scale in range(SCALES))
        spectrum = self.transformed(r.pixels, c.pixels, planes)
        u1_fine = self.modulus(self.filtered(spectrum, fine, sides), r.inverse, c.inverse)
        u1_coarse = self.modulus(
            self.halved(self.filtered(spectrum, coarse, sides), sides), r.inverse_half, c.inverse_half
        )
        again = self.filtered(self.transformed(r.forward, c.forward, u1_fine), coarse, sides)
        u2 = self.modulus(self.halved(again, sides), r.inverse_half, c.inverse_half)
        s0 = self.g("Unsqueeze", self.transformed(r.low_pixels, c.low_pixels, planes), np.array([2]))
        s1_fine = self.transformed(r.low, c.low, u1_fine)
        s1_coarse, s2 = (self.transformed(r.low_half, c.low_half, each) for each in (u1_coarse, u2))
        s2 = self.g("Reshape", s2, np.array([0, 0, ANGLES * ANGLES, len(r.low), len(c.low)]))
        return [s0, self.g("Concat", s1_fine, s1_coarse, axis=2), s2]

    def transformed(self, rows: np.ndarray, columns: np.ndarray, x: str) -> str:
        """Apply matrices to the last two axes."""
        y = self.g("MatMul", rows.astype(np.float32), x)
        return str(self.g("MatMul", y, np.ascontiguousarray(columns.T, np.float32)))

    def filtered(self, x: str, wavelet: np.ndarray, sides: tuple[int, int]) -> Parts:
        """Apply filters (4, L, M, N) to coefficients (…, M, N): (…, L, M, N) of each part."""
        ee, oo, eo, oe = wavelet
        down, across = self.mirrored(x, -2, sides[0]), self.mirrored(x, -1, sides[1])
        both = self.mirrored(down, -1, sides[1])
        x, down, across, both = (self.g("Unsqueeze", each, np.array([-3])) for each in (x, down, across, both))
        real = self.g("Sub", self.g("Mul", x, ee), self.g("Mul", both, oo))
        return str(real), str(self.g("Add", self.g("Mul", across, eo), self.g("Mul", down, oe)))

    def mirrored(self, x: str, along: int, size: int) -> str:
        """Put the coefficient of -k in the place of k, along one axis."""
        return str(self.g("Gather", x, -np.arange(size) % size, axis=along))

    def halved(self, parts: Parts, sides: tuple[int, int]) -> Parts:
        """Subsample both images by two: aliases add up."""
        m, n = sides[0] // 2, sides[1] // 2
        real, imaginary = (
            self.g("Sum", *(self.g("Slice", x, *_corner(i * m, j * n, m, n)) for i in (0, 1) for j in (0, 1)))
            for x in parts
        )
        return str(real), str(imaginary)

    def modulus(self, parts: Parts, rows: np.ndarray, columns: np.ndarray) -> str:
        """The image of absolute values."""
        squares = [self.g("Mul", y, y) for y in (self.transformed(rows, columns, x) for x in parts)]
        return str(self.g("Sqrt", self.g("Add", *squares)))

    def standardised(self, maps: str) -> str:
        """Each record of an order with mean 0 and variance 1, or less if it is nearly constant."""
        centred = self.g("Sub", maps, self.mean(maps))
        variance = self.g("Add", self.mean(self.g("Mul", centred, centred)), np.float32(EPSILON))
        return str(self.g("Div", centred, self.g("Sqrt", variance)))

    def mean(self, maps: str) -> str:
        return str(self.g("ReduceMean", maps, axes=[1, 2, 3, 4], keepdims=1))


def _corner(top: int, left: int, height: int, width: int) -> tuple[np.ndarray, ...]:
    """Starts, ends and axes of a slice."""
    return np.array([top, left]), np.array([top + height, left + width]), np.array([-2, -1])
