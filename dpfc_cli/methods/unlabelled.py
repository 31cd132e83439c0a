"""Records without labels make a noisy head better: expectation-maximisation from it, as far as its gradients agree.

**Theorem.** An adapted head has the guarantee of the head that it is made of, and costs nothing. Proof: `adapt` is a
function of the head, of `Evidence` and of the records without labels. The first two are functions of what
`oracle.release` gave and of public facts, and the third are not among the private records (if they are, they are not
protected here). So it is post-processing. ∎

An adapted head says something of the records without labels: it contains the means of their classes.

**The model.** In the white space of the records, directions u of length 1 lie around the directions c of their classes
(von Mises and Fisher; Banerjee et al. 2005). The head's directions c⁰ are a prior that counts as much as A records. So
one round is rᵢₖ ∝ exp(κ·scoreᵢₖ), then cₖ ← unit(A·c⁰ₖ + Σᵢ rᵢₖ(uᵢ − ū)). The lengths of the head stay, and its
offsets, shrunk to their mean by what is known of their noise. No shares of classes are assumed.

**The judge.** No A is right for all sets: where classes are no clusters, or where there is little noise, only the head
itself is. So A is chosen by the private loss. The candidates are made from an early head, after half of the steps. Let
θ be the head's mean over the later steps, and g the mean of the noisy gradients that were taken there. Then

    loss(c) − loss(θ) = mean over records of B(c, θ) + ⟨c − θ, g⟩,

where B is the Bregman divergence of the log-sum-exp of the scores. B needs no label, so it is computed on records
without labels that did not make c (in four folds). The noise of g is independent of c, so the second term has no bias,
and its standard deviation is known. So records of another kind cannot pass: the private gradient decides.
"""

import math
from dataclasses import dataclass

import numpy as np

CONCENTRATION = 0.4
"""κ in units of the effective dimension."""
STRENGTHS = (math.inf, 256, 128, 64, 32, 16, 8, 4, 2, 1)
"""A: how many records the head counts as. Infinity: its offsets are shrunk, and nothing else."""
ROUNDS, FOLDS = 12, 4
SURE = 2.0
"""How many standard deviations of its noise the gain of a candidate must be for any candidate to be taken."""
SCALES = np.geomspace(0.1, 2.8, 10)
"""By which scores are multiplied before candidates are compared: noise makes scores too large, and changes no order."""
MOST = 50_000
"""Records that take part."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Evidence:
    """What a private training leaves beside the head, in its white space: post-processing of what was released.

    Attributes:
        whiten: W, d × d: a white record is Wᵀx.
        early: the head after the first part of the steps, (d + 1) × m, with the row of the bias.
        at: the mean of the heads at which the later gradients were taken, (d + 1) × m.
        gradient: the mean of these, per record, (d + 1) × m.
        early_noise, noise: the standard deviation of the noise in a coordinate of `early`, and of the head.
        deviation: the same of `gradient`.
        later: by how much the prior counts more in the head than in `early`.
        bias_feature, radius, gradient_clip: see `whitened`.

    """

    whiten: np.ndarray
    early: np.ndarray
    at: np.ndarray
    gradient: np.ndarray
    early_noise: float
    noise: float
    deviation: float
    later: float
    bias_feature: float
    radius: float
    gradient_clip: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Adapted:
    """A head after `adapt`. strength: A; None where the head is what it was. gain: by how much the private loss is
    estimated to fall, and deviation: the standard deviation of the noise in that.
    """

    weight: np.ndarray
    bias: np.ndarray
    strength: float | None
    gain: float
    deviation: float


def adapt(weight: np.ndarray, bias: np.ndarray, evidence: Evidence, x: np.ndarray) -> Adapted:
    """The head (weight d × m, bias m) that records without labels make better. x: N × d, after the head's chain."""
    order = np.random.default_rng(0).permutation(len(x))[:MOST]
    losses = np.zeros((len(STRENGTHS) + 1, len(SCALES)))
    candidates: list[np.ndarray] = []
    distances = np.zeros_like(losses)
    early = evidence.whiten @ evidence.early[:-1], evidence.bias_feature * evidence.early[-1]
    if len(order) < 2 * FOLDS:
        return Adapted(weight=weight, bias=bias, strength=None, gain=0.0, deviation=0.0)
    for fold in range(FOLDS):
        others = np.arange(len(order)) % FOLDS != fold
        space = Space(x[order[others]], evidence.whiten)
        prior = space.prior(*early, evidence.early_noise, evidence.bias_feature)
        candidates = [evidence.early]
        for strength in STRENGTHS:
            found, offset = space.fitted(prior, strength)
            candidates.append(np.vstack([space.unwhiten @ found, offset / evidence.bias_feature]))
        losses += _losses(candidates, evidence, x[order[~others]]) / FOLDS
        norms = [[np.linalg.norm(s * c - evidence.early) for s in SCALES] for c in candidates]
        distances += np.array(norms) / FOLDS
    scale = losses.argmin(axis=1)
    rows = np.arange(len(losses))
    gains = losses[0].min() - losses[rows, scale]
    deviations = evidence.deviation * distances[rows, scale]
    best = int(gains.argmax())
    if not (gains > SURE * deviations)[1:].any() or best == 0:
        return Adapted(weight=weight, bias=bias, strength=None, gain=0.0, deviation=float(deviations[best]))
    space = Space(x[order], evidence.whiten)
    strength = STRENGTHS[best - 1] * evidence.later
    found, offset = space.fitted(space.prior(weight, bias, evidence.noise, evidence.bias_feature), strength)
    gain, deviation = float(gains[best]), float(deviations[best])
    return Adapted(weight=found, bias=offset, strength=strength, gain=gain, deviation=deviation)


@dataclass(frozen=True, eq=False)
class Prior:
    """A head in the white space of records: directions (d × m) of length 1, their lengths (m), offsets (m)."""

    directions: np.ndarray
    lengths: np.ndarray
    offsets: np.ndarray


class Space:
    """The white space of records x, N × d, where their mean is 0. whiten: W of the training."""

    def __init__(self, x: np.ndarray, whiten: np.ndarray) -> None:
        self.mean = x.mean(axis=0)
        values, vectors = np.linalg.eigh(np.cov(x.T))
        values = np.maximum(values, 0)
        damped = values + max(float(values.mean()), np.finfo(float).tiny)
        self._to, self._back = vectors * damped**-0.5, (vectors * damped**0.5).T
        self.dimension = float((values / damped).sum())
        self.unwhiten, self._whiten = np.linalg.inv(whiten), whiten
        white = (x - self.mean) @ self._to
        self._norms = np.maximum(np.linalg.norm(white, axis=1, keepdims=True), np.finfo(float).tiny)
        self._units = white / self._norms

    def prior(self, weight: np.ndarray, bias: np.ndarray, noise: float, bias_feature: float) -> Prior:
        """What a head says, with its offsets shrunk to their mean. noise: see `Evidence`."""
        weight = weight - weight.mean(axis=1, keepdims=True)
        vectors = self._back @ weight
        lengths = np.maximum(np.linalg.norm(vectors, axis=0), np.finfo(float).tiny)
        # What a head says of the mean of the records is its offset here. It has noise, and shares differ less than that.
        offsets = bias - bias.mean() + self.mean @ weight
        of_offsets = noise**2 * (bias_feature**2 + float(np.square(self._whiten.T @ self.mean).sum()))
        return Prior(vectors / lengths, lengths, _shrunk(offsets, of_offsets))

    def fitted(self, prior: Prior, strength: float) -> tuple[np.ndarray, np.ndarray]:
        """Weight and bias of the head after the rounds. strength: A."""
        typical = math.sqrt(float(np.square(prior.lengths).mean()))
        found, mean = prior.directions, self._units.mean(axis=0)
        offsets = prior.offsets / (self._norms * typical)
        for _ in range(ROUNDS if math.isfinite(strength) else 0):
            scores = self._units @ (found * (prior.lengths / typical)) + offsets
            shares = _softmax(CONCENTRATION * self.dimension * scores)
            found = strength * prior.directions + self._units.T @ shares - np.outer(mean, shares.sum(axis=0))
            found = found / np.maximum(np.linalg.norm(found, axis=0), np.finfo(float).tiny)
        weight = self._to @ (found * prior.lengths)
        return weight, prior.offsets - self.mean @ weight


def _losses(candidates: list[np.ndarray], evidence: Evidence, x: np.ndarray) -> np.ndarray:
    """The private loss of candidates, (d + 1) × m, at each scale, less a constant. x: records apart from theirs."""
    z = np.hstack([x @ evidence.whiten, np.full((len(x), 1), evidence.bias_feature)])
    z *= evidence.radius / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), np.finfo(float).tiny)
    p = _softmax(z @ evidence.at)
    # Gradients are clipped: a record counts as far as its own is expected to be kept, if its label is drawn from p.
    residuals = np.sqrt(np.maximum(np.square(p).sum(axis=1, keepdims=True) + 1 - 2 * p, np.finfo(float).tiny))
    counted = (p * np.minimum(1, evidence.gradient_clip / residuals)).sum(axis=1)
    slope = z.T @ (counted[:, None] * p) / len(x) - evidence.gradient
    found = np.empty((len(candidates), len(SCALES)))
    for row, candidate in zip(found, candidates, strict=True):
        scores, line = z @ candidate, float((slope * candidate).sum())
        for i, scale in enumerate(SCALES):
            scaled = scale * scores
            top = scaled.max(axis=1, keepdims=True)
            peaks = top[:, 0] + np.log(np.exp(scaled - top).sum(axis=1))
            row[i] = float((counted * peaks).mean()) - scale * line
    return found


def _shrunk(values: np.ndarray, noise: float) -> np.ndarray:
    """Numbers nearer to their mean, by the share that noise of that variance has in theirs."""
    variance = float(values.var(ddof=1)) if len(values) > 1 else 0.0
    kept = max(0.0, 1 - noise / variance) if variance > 0 else 0.0
    return np.asarray(values.mean() + kept * (values - values.mean()))


def _softmax(scores: np.ndarray) -> np.ndarray:
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))
