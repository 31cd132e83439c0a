"""A public start: what is known of the classes before a private record is read.

A public head has a vector for each class, over the same features: the class's name as a text encoder sees it, a row of
the backbone's own classifier, or the weights of a head that was trained on public records. The score of a class is the
inner product of its vector and the record. `dp-whitened` starts from these scores instead of zeros.

**A start needs no new sensitivity.** Weights, biases and the steps of the classes are functions of public vectors, of
public facts and of answers that were released anyway. The queries, their order, their noise and the bound on one record
are the same with every start, for each bound holds for every θ, biases included. The steps are no part of a query. So
the plan, the proofs and the accounting do not know of a start. (If the vectors are those of a private head, they are
answers of its training, and the new head claims these, too: `training.calibrate.Calibrated.head_claim`.)

**How far it is trusted is read off the gradients,** which are released in any case. At θ = 0 the negative gradient of
the softmax loss is (nearly) the sum over the classes of their mean records. Its inner product with the start says
whether the start points at the right classes. This inner product has the signal of all records and the noise of one
coordinate only. In units of n·C_g/√m, the largest length that the gradient of m equal classes can have, it is the
*agreement* a, and the standard deviation v of its noise is known from public facts (and from the released Gram matrix,
if the unit is a person). Starts of class names and classifiers had a between 0.16 and 0.5 on four sets; random and
permuted vectors have a near 0. So two normal distributions are compared, and their odds say how far the start is
believed (`trust`). The same is asked for each class, with the noise √m·v. There the fraction of good classes is
unknown, and all classes together tell it (`trust_in_classes`). Each later gradient adds evidence, once what the start
itself adds to it is taken into account (`Belief`). A start that turns out to be wrong is taken back: as a whole, or for
some classes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

GOOD = 0.35
"""The mean agreement of good starts, and of a class that begins with a good vector."""
TAKEN, CLASS_TAKEN = 2 / 3, 1 / 3
"""How much less a good start agrees with later gradients, and a good class of it: by this times its scale, as far as it
was believed. The records ask for less of what the weights already have."""
PUSH, CLASS_PUSH = 0.3, 0.2
"""How much the agreement of any start falls once it is believed, and that of any class (this times its scale). Its own
scores raise the probabilities of classes, and the records pull them down again."""
EVEN = 0.1
"""The v at which the scores of a start get the standard deviation 1."""
SMALLEST, LARGEST = 0.5, 1.5
"""Between these the standard deviation of the scores lies."""
CLEAR = 0.25
"""The agreement at which classes take full steps, as a part of the noise in the whole gradient."""
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
        variances: those of the scores of each class, m. 0 for a class of which nothing is known.

    """

    theta: np.ndarray
    variances: np.ndarray

    @property
    def known(self) -> np.ndarray:
        """Which classes have a vector, m."""
        return np.asarray(self.variances > 0)

    def bias(self, size: np.ndarray) -> np.ndarray:
        """The bias of each class, m, when its weights are multiplied by its `size`, m.

        Without it, a class with large scores would be probable for most records, only because exp is convex. If scores
        are normal with the variance s², the mean of exp(score) is exp(s²/2). So s²/2 is subtracted, and every class
        begins with the same mass. The classes of which nothing is known gain most.
        """
        return np.asarray(-(size**2) / 2 * self.variances)


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
    return Start(theta=theta, variances=scores / spread)


@dataclass(frozen=True, kw_only=True)
class Odds:
    """What is expected of agreements, as two normal distributions.

    Attributes:
        prior: the probability of a good one, before anything is released.
        spread: the standard deviation of the agreement of good ones. The mean is `GOOD`.
        useless: the standard deviation of the agreement of useless ones. The mean is 0.

    """

    prior: float
    spread: float
    useless: float


STARTS = Odds(prior=0.75, spread=0.12, useless=0.02)
"""Whole starts."""
CLASSES = Odds(prior=0.8, spread=0.15, useless=0.07)
"""The classes of a good start. Here `prior` is the mean of what is expected of the fraction of good ones."""
FRACTIONS = (np.arange(40) + 0.5) / 40
"""The fractions of good classes that are compared."""


def evidence(agreed: np.ndarray, deviation: np.ndarray | float, odds: Odds) -> np.ndarray:
    """The logarithm of how many times as likely an agreement is for a good start (or class) as for a useless one.

    Args:
        agreed: the agreement.
        deviation: the standard deviation of the noise in it.
        odds: what is expected.

    """
    good, useless = np.hypot(odds.spread, deviation), np.hypot(odds.useless, deviation)
    # A start that agrees more than usual is not a worse one, and one that disagrees is not a better one.
    at = np.clip(agreed, 0.0, GOOD)
    return np.asarray(np.log(useless / good) + (at / useless) ** 2 / 2 - ((at - GOOD) / good) ** 2 / 2)


def trust(agreed: np.ndarray, deviation: np.ndarray | float, odds: Odds) -> np.ndarray:
    """The probability of a good start, given its agreement, by Bayes' rule.

    Args:
        agreed: the agreement.
        deviation: the standard deviation of the noise in it.
        odds: what is expected.

    Returns:
        Numbers in [0, 1], as many as agreements. `odds.prior` where the noise hides everything.

    """
    against = math.log(1 / odds.prior - 1) - evidence(agreed, deviation, odds)
    return np.asarray(1 / (1 + np.exp(np.minimum(against, 700.0))))


def trust_in_classes(agreed: np.ndarray, deviation: np.ndarray | float) -> np.ndarray:
    """The probability that each class of a good start is good, given the agreements of all.

    What the noise hides of one class, the others tell. If most classes agree, one that does not is more likely hidden
    by noise than wrong. So the fraction p of good classes is taken as unknown, with a density ∝ p^(α − 1), where the
    mean α/(α + 1) is the prior. The agreements of all classes change this density by Bayes' rule. The probability of a
    class is its mean over the fractions.

    Args:
        agreed: the agreements of the classes with a vector.
        deviation: the standard deviation of the noise in them.

    Returns:
        Numbers in [0, 1], as many as agreements. `CLASSES.prior` where the noise hides everything.

    """
    fractions = FRACTIONS[:, None]
    good = fractions * np.exp(evidence(agreed, deviation, CLASSES))
    either = good + 1 - fractions
    alpha = CLASSES.prior / (1 - CLASSES.prior)
    likely = (alpha - 1) * np.log(FRACTIONS) + np.log(either).sum(axis=1)
    weights = np.exp(likely - likely.max())
    return np.asarray(weights @ (good / either) / weights.sum())


@dataclass(eq=False, kw_only=True)
class Belief:
    """How far a start is believed, class by class. Each gradient that is released changes it.

    A gradient at weights that hold the start already has less of it to agree with. For a good start one expects
    (1 − TAKEN·κ·t)·GOOD − PUSH·t, and for a useless one −PUSH·t. κ is the scale. t is the trust so far: that in the
    whole start beside TAKEN, and the root mean square of that in the classes beside PUSH. So PUSH·t is added to what is
    found. Then gradients are averaged, with the weights that make the noise of the average smallest.

    A class is judged in the same way, with CLASS_TAKEN and CLASS_PUSH·κ·t, and together with the other classes
    (`trust_in_classes`). The trust in the start as a whole is never raised after the first gradient: that was worse
    where half of the classes are wrong.

    Attributes:
        start: the start.
        longest: n·C_g/√m, the unit of agreements, in the units of the gradients.
        deviation: v, the standard deviation of the noise in the agreement of one gradient.
        dimension: d_eff, the effective dimension.
        trusted: of each class, m: the trust in the start times that in the class. A class without a vector has the
            trust in the start.

    """

    start: Start
    longest: float
    deviation: float
    dimension: float
    trusted: np.ndarray = field(init=False)
    _first: np.ndarray = field(init=False)
    _whole: float = 1.0
    _weights: float = 0.0
    _sum: float = 0.0
    _class_weights: np.ndarray = field(init=False)
    _class_sums: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        """Nothing is believed before the first gradient."""
        self.trusted = np.zeros_like(self.start.variances)
        self._first = np.zeros_like(self.start.variances)
        self._class_weights = np.zeros(self.start.known.sum())
        self._class_sums = np.zeros(self.start.known.sum())

    def see(self, gradient: np.ndarray) -> None:
        """Learn from a gradient that was released, d × m, without the row of the bias."""
        theta, known, m = self.start.theta, self.start.known, len(self.trusted)
        inner = -(gradient * theta).sum(axis=0) / self.longest
        first = self._weights == 0
        if first:
            self._first = inner
        held = math.sqrt(np.square(self.trusted[known]).mean())
        left = max(1 - TAKEN * self.size * (0.0 if first else self._whole), 0.0)
        self._weights += left**2
        self._sum += left * (self._agreement(inner, np.ones(m)) + PUSH * held)
        # The unit of one class is n·C_g/m.
        agreements = math.sqrt(m) * inner[known] / np.linalg.norm(theta[:, known], axis=0)
        held_of = self.size * self.trusted[known]
        left_of = np.maximum(1 - CLASS_TAKEN * held_of, 0.0)
        self._class_weights += left_of**2
        self._class_sums += left_of * (agreements + CLASS_PUSH * held_of)
        found = trust(np.asarray(self._sum / self._weights), self.deviation / math.sqrt(self._weights), STARTS)
        self._whole = min(self._whole, float(found))
        classes = trust_in_classes(
            self._class_sums / self._class_weights, self.deviation * np.sqrt(m / self._class_weights)
        )
        self.trusted = np.full(m, self._whole)
        # Where the noise hides the classes, all of them are believed as the start is.
        self.trusted[known] *= np.minimum(classes / CLASSES.prior, 1.0)

    @property
    def size(self) -> float:
        """κ: the scale of the scores of a start that is fully believed."""
        return scale(self.deviation)

    def weights(self, bias_feature: float) -> np.ndarray:
        """The start as far as it is believed, (d + 1) × m, with the row of the bias."""
        sizes = self.trusted * self.size
        return np.vstack([sizes * self.start.theta, self.start.bias(sizes) / bias_feature])

    def _agreement(self, inner: np.ndarray, trusted: np.ndarray) -> float:
        """That of a start which has its classes as far as they are trusted. 0 if none is."""
        squares = np.square(self.start.theta).sum(axis=0)
        believed = float(trusted @ squares)
        return float(trusted @ inner) * math.sqrt(squares.sum()) / believed if believed else 0.0

    @property
    def agreed(self) -> float:
        """The agreement with the first gradient, of the classes as far as they are believed now.

        Wrong classes agree with nothing. They must not make the steps of the good ones shorter.
        """
        return self._agreement(self._first, self.trusted)

    def paces(self) -> np.ndarray:
        """The factors of the steps of the classes, m. They are 1 where nothing is believed.

        Classes with longer steps get longer scores than the others, and take their records. So what is found wrong of
        some classes makes the steps of the good ones longer, too.
        """
        known = self.start.known
        step = pace(self.agreed, self.deviation, math.sqrt(len(known) * self.dimension))
        shorter = np.full(len(known), 1 - min(OTHERS * step, 1.0))
        shorter[known] = (1 - step) * self._good
        return np.asarray(1 - self.trusted * shorter)

    @property
    def _good(self) -> float:
        """The mean trust in the classes of a good start."""
        return float(self.trusted[self.start.known].mean()) / self._whole if self._whole else 0.0


def scale(deviation: float) -> float:
    """The standard deviation that the scores of a start get: √(v/0.1), between ½ and 1.5.

    Where noise hides the classes, a start of small scale is lost in the noise that is learned. Where the records speak,
    a start of large scale has to be unlearned.

    Args:
        deviation: v, the standard deviation of the noise in the agreement.

    """
    return min(max(math.sqrt(deviation / EVEN), SMALLEST), LARGEST)


def pace(agreed: float, deviation: float, noises: float) -> float:
    """The step of a class that begins with good scores, as a part of the full step: â/(¼·v·√(m·d_eff)), at most 1.

    What a step adds to a class is signal and noise. A class that begins with good scores has less to gain from the
    signal, and as much to lose by the noise. The signal is at least the agreement, and v·√(m·d_eff) is the length of
    the noise in the whole gradient, within the effective dimensions, in the same unit. â is the mean of the agreement
    of a good start, given a.

    Args:
        agreed: a.
        deviation: v, the standard deviation of the noise in the agreement.
        noises: √(m·d_eff), the length of the noise in units of v.

    """
    kept = STARTS.spread**2 / (STARTS.spread**2 + deviation**2)
    expected = max(GOOD + kept * (agreed - GOOD), 0.0)
    full = CLEAR * deviation * noises
    return expected / full if expected < full else 1.0
