"""Algorithms 1 to 4 of Mehta et al. 2022, written down from the paper line by line, in its own units.

x: n × d. y: n × m, zeros and ones. θ: m × d. clip: C. Each draw of noise is asked for as noise(line, standard
deviation, shape). The first θ, which the algorithms draw by chance, is the appendix's: weights of 0, and a bias of −10
that no line of Algorithms 1 and 4 changes.
"""

from collections.abc import Callable

import numpy as np

Noise = Callable[[str, float, tuple[int, ...]], np.ndarray]
Optimiser = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""opt(θ, gradient): the next θ."""
BIAS = -10.0


def sigmoid(z: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-z)))


def clipped(v: np.ndarray, norm: float) -> np.ndarray:
    """clip(v) = v·min(1, C/‖v‖) of each record's vector or matrix."""
    lengths = np.sqrt((v**2).sum(axis=tuple(range(1, v.ndim)), keepdims=True))
    return np.asarray(v * np.minimum(1, norm / lengths))


def _gradient(theta: np.ndarray, x: np.ndarray, y: np.ndarray, norm: float) -> np.ndarray:
    """Σ clip(∇ℓ(θ; (x, y))), of the raw features."""
    residual = sigmoid(x @ theta.T + BIAS) - y
    return np.asarray(clipped(residual[:, :, None] * x[:, None, :], norm).sum(axis=0))


def first_order(
    x: np.ndarray, y: np.ndarray, *, opt: Optimiser, clip: float, steps: int, sigma: float, noise: Noise
) -> np.ndarray:
    """Algorithm 1. Its line 4 lacks the 1/n that the equation of Section 2.1 has."""
    theta = np.zeros((y.shape[1], x.shape[1]))
    for _ in range(steps):
        g = _gradient(theta, x, y, clip)
        theta = opt(theta, (g + noise("gradient", sigma * clip, g.shape)) / len(x))
    return theta


def newton(
    x: np.ndarray, y: np.ndarray, *, lam: float, eta: float, clip: float, steps: int, sigma: float, noise: Noise
) -> np.ndarray:
    """Algorithm 2 for the sigmoid loss: β_H = ¼."""
    x, n, d, m = clipped(x, clip), len(x), x.shape[1], y.shape[1]
    theta = np.zeros((m, d))
    for _ in range(steps):
        for j in range(m):
            p = sigmoid(x @ theta[j])
            g = x.T @ (p - y[:, j])
            h = (x * (p * (1 - p))[:, None]).T @ x + lam * np.eye(d)
            g = g / n + noise("gradient", sigma * clip * np.sqrt(m) / n, (d,))
            h = h / n + noise("hessians", sigma * clip**2 * np.sqrt(m) / 4 / n, (d, d))
            theta[j] -= eta * np.linalg.solve(h, g)
    return theta


def least_squares(
    x: np.ndarray, y: np.ndarray, *, alpha: float, lam: float, k: int, clip: float, sigma: float, noise: Noise
) -> np.ndarray:
    """Algorithm 3."""
    x, d, m = clipped(x, clip), x.shape[1], y.shape[1]
    gram = x.T @ x + noise("gram", sigma * clip**2, (d, d))
    theta = np.empty((m, d))
    for j in range(m):
        own = x[y[:, j] == 1]
        a = own.T @ own + noise("class_grams", sigma * np.sqrt(k) * clip**2, (d, d))
        b = own.sum(axis=0) + noise("class_sums", sigma * np.sqrt(k) * clip, (d,))
        theta[j] = np.linalg.solve(a + alpha * gram + lam * np.eye(d), b)
    return theta


def feature_covariance(
    x: np.ndarray,
    y: np.ndarray,
    *,
    eta: float,
    lam: float,
    clip: float,
    gradient_clip: float,
    steps: int,
    sigma: float,
    noise: Noise,
) -> np.ndarray:
    """Algorithm 4. clip: C_G. gradient_clip: C_g."""
    n, d = x.shape
    short = clipped(x, clip)
    gram = short.T @ short / n + noise("gram", sigma * clip**2 / n, (d, d)) + lam * np.eye(d)
    theta = np.zeros((y.shape[1], d))
    for _ in range(steps):
        g = _gradient(theta, x, y, gradient_clip)
        g = g / n + noise("gradient", sigma * gradient_clip / n, g.shape)
        theta = theta - eta * g @ np.linalg.inv(gram)
    return theta
