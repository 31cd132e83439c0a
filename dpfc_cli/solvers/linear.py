"""Linear algebra on released matrices: post-processing, shared by the methods."""

import numpy as np


def symmetric_psd(matrix: np.ndarray) -> np.ndarray:
    """The nearest positive semi-definite matrix in Frobenius norm: negative eigenvalues to zero.

    Noise makes the smallest eigenvalues of a released Gram matrix negative; what they estimate is not.
    """
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)
