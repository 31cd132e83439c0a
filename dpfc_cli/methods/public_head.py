"""A public start: what is known of the classes before a private record is read.

A public head has a vector for each class, over the same features: the class's name as a text encoder sees it, a row of
the backbone's own classifier, or the weights of a head that was trained on public records. The score of a class is the
inner product of its vector and the record. `dp-whitened` starts from these scores instead of zeros.

**A start needs no new sensitivity.** Weights, biases and the steps of the classes are functions of public vectors, of
public facts and of answers that were released anyway. The queries, their order, their noise and the bound on one record
are the same with every start, for each bound holds for every θ, biases included. The steps are no part of a query. So
the plan, the proofs and the accounting do not know of a start. (If the vectors are those of a private head, they are
answers of its training, and the new head claims these, too: `training.whole`.)

**How far it is trusted is read off the first gradient,** which is released in any case. At θ = 0 the negative gradient
of the softmax loss is (nearly) the sum over the classes of their mean records. Its inner product with the start says
whether the start points at the right classes. This inner product has the signal of all records and the noise of one
coordinate only. In units of n·C_g/√m, the largest length that the gradient of m equal classes can have, it is the
*agreement* a, and the standard deviation v of its noise is known from public facts. Starts of class names and
classifiers had a between 0.16 and 0.5 on four sets; random and permuted vectors have a near 0. So two normal
distributions are compared, and their odds say how far the start is believed (`trust`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

PRIOR = 0.75
"""The belief in a start before anything is released."""
GOOD, SPREAD = 0.35, 0.12
"""Mean and standard deviation of the agreement of good starts."""
USELESS = 0.02
"""The standard deviation of the agreement of useless starts. Its mean is 0."""
EVEN = 0.1
"""The v at which the scores of a start get the standard deviation 1."""
SMALLEST, LARGEST = 0.5, 1.5
"""Between these the standard deviation of the scores lies."""
CLEAR = 0.08
"""The v at which a start with the agreement 1 takes full steps."""
OTHERS = 2.0
"""How much longer the steps of a class without a vector are, up to the full step."""
ALIKE = 1e-6
"""Unit vectors that differ by less are the same: float32 does not tell more."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PublicHead:
    """Public class vectors.

    Attributes:
        vectors: d × m. A column of zeros stands for a class of which nothing is known.
        origin: what the card says about them, JSON-able.

    """

    vectors: np.ndarray
    origin: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Start:
    """A start in the white space, and how far to believe it.

    Attributes:
        theta: d × m: its scores have the standard deviation 1 over records and classes.
        length: the Frobenius norm of theta.
        variances: those of the scores of each class, m. 0 for a class of which nothing is known.

    """

    theta: np.ndarray
    length: float
    variances: np.ndarray

    def bias(self, size: float) -> np.ndarray:
        """The bias of each class, m, when the start is multiplied by `size`.

        Without it, a class with large scores would be probable for most records, only because exp is convex. If scores
        are normal with the variance s², the mean of exp(score) is exp(s²/2). So s²/2 is subtracted, and every class
        begins with the same mass. The classes of which nothing is known gain most.
        """
        return -(size**2) / 2 * self.variances


def directions(vectors: np.ndarray) -> np.ndarray | None:
    """The vectors with length 1, less their mean over the known classes: it says nothing about the classes.

    Args:
        vectors: d × m.

    Returns:
        d × m, with the columns of zeros as they were. None if the vectors do not tell any two classes apart.

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
    """The start that public vectors make in the white space.

    Args:
        vectors: d × m.
        whiten: W, d × d, with orthogonal columns: a white record is Wᵀx.
        variances: the variances of the white coordinates, d.

    Returns:
        The start. None if the vectors do not tell any two classes apart.

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
    scores = (np.square(theta) * (variances / max(total, 1.0) + hidden * squares)[:, None]).sum(axis=0)
    spread = float(scores.mean())
    if not spread > np.finfo(float).tiny:
        return None
    theta /= math.sqrt(spread)
    return Start(theta=theta, length=float(np.linalg.norm(theta)), variances=scores / spread)


def agreement(gradient: np.ndarray, start: Start, longest: float) -> float:
    """a: how far the negative gradient at θ = 0 points along the start.

    Args:
        gradient: the released gradient, d × m.
        start: the start.
        longest: n·C_g/√m in the units of the gradient.

    """
    return -float((gradient * start.theta).sum()) / (start.length * longest)


def trust(agreed: float, deviation: float) -> float:
    """The probability that a start is good, given its agreement. By Bayes' rule for two normal distributions.

    Args:
        agreed: a.
        deviation: v, the standard deviation of the noise in a.

    Returns:
        A number in [0, 1]. `PRIOR` where the noise hides everything.

    """
    good, useless = math.hypot(SPREAD, deviation), math.hypot(USELESS, deviation)
    # A start that agrees more than usual is not a worse one, and one that disagrees is not a better one.
    at = min(max(agreed, 0.0), GOOD)
    log_odds = math.log(PRIOR / (1 - PRIOR) * useless / good) + (at / useless) ** 2 / 2 - ((at - GOOD) / good) ** 2 / 2
    return 1 / (1 + math.exp(-log_odds))


def scale(deviation: float) -> float:
    """The standard deviation that the scores of a start get: √(v/0.1), between ½ and 1.5.

    Where noise hides the classes, a start of small scale is lost in the noise that is learned. Where the records speak,
    a start of large scale has to be unlearned.

    Args:
        deviation: v, the standard deviation of the noise in the agreement.

    """
    return min(max(math.sqrt(deviation / EVEN), SMALLEST), LARGEST)


def pace(agreed: float, deviation: float) -> float:
    """The step of a class that begins with good scores, as a part of the full step: â·√(0.08/v), at most 1.

    What a step adds to a class is signal and noise. A class that begins with good scores has less to gain from the
    signal, and as much to lose by the noise. Where the agreement is high, the classes lie far apart, and records say
    more about them. â is the mean of the agreement of a good start, given a.

    Args:
        agreed: a.
        deviation: v, the standard deviation of the noise in the agreement.

    """
    if deviation == 0:
        return 1.0
    kept = SPREAD**2 / (SPREAD**2 + deviation**2)
    expected = max(GOOD + kept * (agreed - GOOD), 0.0)
    return min(expected * math.sqrt(CLEAR / deviation), 1.0)
