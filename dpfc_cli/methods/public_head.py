"""A public start: what is known of the classes before a private record is read.

A public head has a vector for each class, over the same features: the class's name as a text encoder sees it, a row of
the backbone's own classifier, or the weights of a head that was trained on public records. The score of a class is the
inner product of its vector and the record. `dp-whitened` adds these scores to what it learns.

**A start needs no new sensitivity.** Weights, biases and the steps of the classes are functions of public vectors, of
public facts and of answers that were released anyway. The queries, their order, their noise and the bound on one record
are the same with every start, for each bound holds for every θ, biases included. The steps are no part of a query. So
the plan, the proofs and the accounting do not know of a start.

**How far it is trusted is read off the first gradients,** which are released in any case. They are taken at weights
without the start, so what the start itself changes plays no part. There the negative gradient of the softmax loss is
(nearly) the sum over the classes of their mean records. Its inner product with the vector of a class, in units of the
largest length that the gradient of one of m equal classes can have, is the *agreement* of the class. The standard
deviation of its noise is known from public facts (and from the released Gram matrix, if the unit is a person). A good
vector agrees, a wrong one has an agreement near 0.

Three things are not known: whether the start is good for anything, which part of its classes is right, and how well
these agree. `judged` weighs all combinations by Bayes' rule, and both errors by what they cost (docs/whitening.md).
As long as it is in doubt whether the start is good, the next gradient is taken without it, and judges it, too.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

LEVELS = np.array([0.2, 0.3, 0.4, 0.5])
"""How well good classes may agree on average. Starts of class names and classifiers agreed by 0.16 to 0.55."""
SPREAD = 1 / 3
"""The standard deviation of the agreement of good classes, in units of its mean."""
USELESS = 0.07
"""The standard deviation of the agreement of wrong classes. The mean is 0."""
GOOD = 0.75
"""The probability that a start is good for anything, where records speak clearly. If it is, the part q of right classes
has the density 4q³."""
PARTS = np.append((np.arange(20) + 0.5) / 20, 0.0)
"""The parts of right classes that are compared."""
CLEAR = 0.25
"""The agreement at which classes take full steps, as a part of the length of the noise in the gradient of a class."""
JUDGED = 4
"""How many gradients judge a start at least. Then it is added, unless it is still in doubt."""
SURE = 0.9
"""A start is in doubt while neither this nor less than 1 − this is the probability that it is good for anything."""
ALIKE = 1e-6
"""Unit vectors that differ by less are the same: float32 does not tell more."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PublicHead:
    """Public class vectors, d × m. A column of zeros stands for a class of which nothing is known. origin: what the
    card says about them, JSON-able.
    """

    vectors: np.ndarray
    origin: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Start:
    """A start in the white space. theta: d × m: its scores have the standard deviation 1 over records and classes.
    known: which classes have a vector, m.
    """

    theta: np.ndarray
    known: np.ndarray

    def agreements(self, gradient: np.ndarray) -> np.ndarray:
        """The inner products of the negative gradient, d × m, with the directions of the classes that have a vector."""
        theta = self.theta[:, self.known]
        return np.asarray(-(gradient[:, self.known] * theta).sum(axis=0) / np.linalg.norm(theta, axis=0))

    def weights(self, sizes: np.ndarray, bias_feature: float) -> np.ndarray:
        """The start with the scores of each class multiplied by its size, m: (d + 1) × m, with the row of the bias.

        sizes: 0 for a class without a vector.

        Without a bias, a class with large scores would be probable for most records, only because exp is convex. If
        scores are normal with the variance s², the mean of exp(score) is exp(s²/2). So s²/2 is subtracted, and every
        class begins with about the same mass. s² is that of a typical class: what a noisy covariance says of one class
        does more harm than good.
        """
        return np.vstack([sizes * self.theta, -(sizes**2) / (2 * self.known.mean() * bias_feature)])


def directions(vectors: np.ndarray) -> np.ndarray | None:
    """The vectors, d × m, with length 1, less their mean over the known classes: it says nothing about the classes.
    Columns of zeros stay as they were. None if the vectors do not tell any two classes apart.
    """
    lengths = np.linalg.norm(vectors, axis=0)
    known = lengths > 0
    if known.sum() < 2:
        return None
    units = vectors[:, known] / lengths[known]
    units -= units.mean(axis=1, keepdims=True)
    if np.abs(units).max() < ALIKE:
        return None
    found = np.zeros_like(vectors)
    found[:, known] = units
    return found


def start_of(vectors: np.ndarray, whiten: np.ndarray, variances: np.ndarray) -> Start | None:
    """The start that public vectors, d × m, make in the white space; None if they do not tell any two classes apart.
    whiten: W, d × d, with orthogonal columns: a white record is Wᵀx. variances: of the white coordinates, d.
    """
    units = directions(vectors)
    if units is None:
        return None
    # The columns of W are orthogonal, so W⁻¹ is Wᵀ with its rows divided by their squared lengths.
    squares = np.square(whiten).sum(axis=0)
    theta = (whiten.T @ units) / squares[:, None]
    # Records have the total variance 1. What is hidden by noise may lie in any direction. What is more is noise.
    total = float((variances / squares).sum())
    hidden = max(1 - total, 0.0) / len(squares)
    spread = float((variances / max(total, 1.0) + hidden * squares) @ np.square(theta).mean(axis=1))
    if not spread > np.finfo(float).tiny:
        return None
    return Start(theta=theta / math.sqrt(spread), known=theta.any(axis=0))


def judged(agreed: np.ndarray, deviation: float, good: float = GOOD) -> tuple[np.ndarray, float, float]:
    """How far each class of a start is trusted (its probability to be right, in units of what it was before, at most
    1), the expected level at which good classes agree, and the probability of a good start.

    agreed: the agreements of the classes with a vector. deviation: the standard deviation of the noise in each. good:
    the probability of a good start before.
    """
    # A start that disagrees as a whole is not a worse one than a start that agrees with nothing.
    agreed = agreed - min(float(agreed.mean()), 0.0)
    levels, parts = LEVELS[:, None, None], PARTS[:, None]
    right, wrong = np.hypot(SPREAD * levels, deviation), math.hypot(USELESS, deviation)
    odds = np.log(wrong / right) + (agreed / wrong) ** 2 / 2 - ((agreed - levels) / right) ** 2 / 2
    of_right = parts * np.exp(np.clip(odds, -500, 500))
    right_parts = PARTS**3 / (PARTS**3).sum()
    prior = good * right_parts + (1 - good) * (PARTS == 0)
    likely = np.log(prior) + np.log(of_right + 1 - parts).sum(axis=2)
    weights = np.exp(likely - likely.max())
    weights /= weights.sum()
    found = np.einsum("lp,lpc->c", weights, of_right / (of_right + 1 - parts))
    trusted = np.minimum(found / (prior @ PARTS), 1.0)
    return trusted, float(weights.sum(axis=1) @ LEVELS), float(weights[:, PARTS > 0].sum())


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What follows from the agreements.

    Attributes:
        trusted: how far each class is trusted, m; 0 for a class without a vector.
        sure: whether it is beyond doubt that the start is good, or useless.
        size: the standard deviation that the scores of a class get that is trusted fully.
        paces: the factors of the steps of the classes, those before the verdict and those after it, m.

    """

    trusted: np.ndarray
    sure: bool
    size: float
    paces: np.ndarray


def verdict(start: Start, agreed: np.ndarray, deviation: float, noise: float) -> Verdict:
    """How far to believe a start.

    What a step adds to a class is signal and noise. A class that has good scores already has less to gain from the
    signal, and as much to lose by the noise. But classes with longer steps get longer scores than the others, and take
    their records. So if some classes are found to be wrong, the steps of the good ones are longer, too.

    Where steps are short, scores of the standard deviation 1 are best. Where they are long, a large start would have to
    be unlearned, and half of it is enough.

    agreed, deviation: see `judged`. noise: the length of the noise in one gradient of one class, in the same unit.
    """
    clear = CLEAR * noise
    usual = float(LEVELS.mean())
    found, level, good = judged(agreed, deviation, 1 - (1 - GOOD) * (usual / max(usual, clear)))
    trusted = np.zeros(len(start.known))
    trusted[start.known] = found
    step = level / max(level, clear)
    sure = max(good, 1 - good) >= SURE
    return Verdict(trusted=trusted, sure=sure, size=1 / (1 + step), paces=step ** (trusted * found.mean()))
