"""Records without labels make a noisy head better: expectation-maximisation from it, as far as its gradients agree.

**Theorem.** An adapted head has the guarantee of the head that it is made of, and costs nothing. Proof: `adapt` is a
function of the head, of `Evidence`, of the records without labels, and of random numbers of its own. The first two are
functions of what `oracle.release` gave and of public facts, and the third are not among the private records (if they
are, they are not protected here). So it is post-processing. ∎

An adapted head says something of the records without labels: it contains the means of their classes.

**The model.** In the white space of the records, directions u of length 1 lie around the directions c of their classes
(von Mises and Fisher; Banerjee et al. 2005). The head's directions c⁰ are a prior that counts as much as A records. So
one round is rᵢₖ ∝ exp(κ·uᵢ·cₖ + offsetₖ), then cₖ ← unit(A·c⁰ₖ + Σᵢ rᵢₖ(uᵢ − ū)). The offsets are those of the head,
shrunk to their mean by what is known of their noise. No shares of classes are assumed.

**The judge.** No A is right for all sets: where classes are no clusters, or where there is little noise, only the head
itself is. So the result is a sum w₀·head + Σ w_A·(what A makes), w ≥ 0, and the private loss chooses w. Let θₜ be the
heads at which the gradients gₜ were released. The softmax loss of a head c is linear in c but for log-sum-exp, which
needs no label:

    loss(c) = mean over records of logsumexp(cᵀz) − ⟨c, S⟩,   S = mean over t of (mean over records of z·p(θₜ)ᵀ − gₜ).

So S, the mean of what is released anyway, is all that a head is ever told of labels, with normal noise of a known size.
(Gradients are clipped. So each record counts as far as its own is expected to be kept.) Such an S can be split into
parts with independent noise: S + ξₖ with Σₖ ξₖ = 0 (data thinning; Neufeld et al. 2024). Each part judges what was made
without it: the head that the others would have led to, by the same descent on records without labels, and the
candidates from that head and from other records. So the estimate of a candidate's loss has no bias from its noise, but
for what clipping and a public start change in the descent.

**Records of another kind.** In the white space the private records have the mean 0, but for noise of a known size. If
the records without labels have another mean there, by more than chance and noise explain, each gets a weight:
exp(−aᵀz), the weights nearest to equal ones that give the known mean (entropy balancing; Hainmueller 2012). Other
shares of classes are balanced so. Records of another task are not: most of them then have hardly any weight, and the
head stays what it is.

What is chosen has the least sum of the estimate and of the standard deviation of its error, compared to the head alone.
That is of the noise and of how few records there are without labels. The first takes what is judged to be independent
of the noise; where it is noise alone, the true one is √2 times as much. So the head stays what it is where the gain is
less than about one standard deviation.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from dpfc_cli.methods.linear import levelled
from dpfc_cli.methods.similarity import shrunk

STRENGTHS: tuple[float, ...] = (math.inf, 256, 32, 8, 2)
"""A: how many records the head counts as. Infinity: its lengths are equal, its offsets shrunk, and nothing else."""
CONCENTRATION = 0.8
"""κ in units of the effective dimension."""
ROUNDS, PARTS = 12, 4
LONGEST = 1.5
"""The largest sum of the weights w, in units of the standard deviation of the scores of the head: noise makes them too
large rather than too small.
"""
JUDGING = 10_000
"""Records that judge. All of them take part in what is made in the end."""
KIND = 0.2
"""If fewer of the records count, they are of another kind (`_balanced`)."""
ARRAYS = {"whiten": 2, "theta": 2, "points": 3, "gradient": 2, "paces": 1}
NUMBERS = ("deviation", "rate", "momentum", "bias_feature", "radius", "gradient_clip", "centre_deviation")
"""What `Evidence` has beside `steps` and `similarity`: arrays with their axes, and numbers."""
Loss = tuple[float, np.ndarray]


@dataclass(frozen=True, eq=False, kw_only=True)
class Unlabelled:
    """Public records without labels, N × d, as they are before the chain of a head."""

    records: np.ndarray


@dataclass(frozen=True, eq=False, kw_only=True)
class Evidence:
    """What a private training leaves beside the head, in its white space: post-processing of what was released.

    Attributes:
        whiten: W, d × d, with orthogonal columns: a white record is Wᵀx.
        theta: the head at the end, (d + 1) × m, with the row of the bias.
        points: means of the heads at which the gradients were taken, for `groups` of steps; g × (d + 1) × m.
        gradient: the mean of all gradients, per record, (d + 1) × m.
        paces: the factors of the steps in the white directions, d + 1.
        deviation: the standard deviation of the noise in a coordinate of `gradient`.
        rate, momentum, bias_feature, radius, gradient_clip: of the training, see `whitened`.
        centre_deviation: the standard deviation of the noise in a coordinate of the mean that the chain subtracts.
        steps: T.
        similarity: public vectors of the classes, m × e (`methods.similarity`), if there are any.

    """

    whiten: np.ndarray
    theta: np.ndarray
    points: np.ndarray
    gradient: np.ndarray
    paces: np.ndarray
    deviation: float
    rate: float
    momentum: float
    bias_feature: float
    radius: float
    gradient_clip: float
    centre_deviation: float
    steps: int
    similarity: np.ndarray | None = None

    @property
    def finite(self) -> bool:
        return all(np.isfinite(getattr(self, name)).all() for name in (*ARRAYS, *NUMBERS))

    def fits(self, d: int, m: int) -> bool:
        """Whether it may be of a head of d × m."""
        if not 1 <= self.steps <= 10_000 or min(self.bias_feature, self.radius, self.gradient_clip) <= 0:
            return False
        head = d + 1, m
        if self.similarity is not None and len(self.similarity) != m:
            return False
        shapes = (d, d), head, (len(groups(self.steps)), *head), head, (d + 1,)
        return all(getattr(self, name).shape == shape for name, shape in zip(ARRAYS, shapes, strict=True))


@dataclass(frozen=True, eq=False, kw_only=True)
class Adapted:
    """A head after `adapt`.

    Attributes:
        weight, bias: d × m, and m.
        share: of the scores that the records without labels have in it; 0 where the head is what it was.
        gain: by how much the private loss is estimated to fall.
        deviation: the standard deviation of the noise in that.

    """

    weight: np.ndarray
    bias: np.ndarray
    share: float
    gain: float
    deviation: float


def groups(steps: int) -> list[range]:
    """Steps whose gradients may be taken for one, at the mean of their heads: θ changes most in the first."""
    edges = sorted({0, min(1, steps), steps // 4, steps // 2})
    return [range(*each) for each in zip(edges, [*edges[1:], steps], strict=True) if each[0] < each[1]]


def gathered(steps: int, momentum: float) -> float:
    """The standard deviation of the noise in θ after so many steps, in units of what one step adds."""
    return float(np.linalg.norm(np.cumsum(momentum ** np.arange(steps + 1))[1:]))


def adapt(weight: np.ndarray, bias: np.ndarray, evidence: Evidence, x: np.ndarray) -> Adapted:
    """The head (weight d × m, bias m) that records without labels make better. x: N × d, after the head's chain.

    The same records in the same order give the same head.
    """
    same = Adapted(weight=weight, bias=bias, share=0.0, gain=0.0, deviation=0.0)
    if len(x) < _least(len(bias)):
        return same
    # A damaged head may have any numbers. Then nothing is found, and it stays what it was.
    with np.errstate(all="ignore"), suppress(ArithmeticError, np.linalg.LinAlgError):
        return _adapted(same, evidence, np.asarray(x, np.float32))
    return same


def _least(m: int) -> int:
    """How many records there have to be. A few for each class do not show where the classes lie."""
    return max(2 * PARTS, 3 * m)


def _adapted(same: Adapted, evidence: Evidence, x: np.ndarray) -> Adapted:
    random = np.random.default_rng(0)
    x = x[random.permutation(len(x))]
    weights = _balanced(evidence, x)
    counted = float(weights.sum() ** 2 / np.square(weights).sum())
    if not counted >= max(_least(len(same.bias)), KIND * len(x)):
        return same
    own = float((_white(evidence, x[:JUDGING]) @ np.float32(evidence.theta)).std())
    chosen, gain, deviation = _chosen(
        _judges(evidence, x[:JUDGING], weights[:JUDGING], random), evidence.deviation, own
    )
    if not chosen[1:].any():
        return same
    theta = np.tensordot(chosen, np.stack(_candidates(evidence, evidence.theta, x, weights, 1.0)), 1)
    if not np.isfinite(theta).all():
        return same
    share = float(chosen[1:].sum() / chosen.sum())
    weight, bias = evidence.whiten @ theta[:-1], evidence.bias_feature * theta[-1]
    return Adapted(weight=weight, bias=bias, share=share, gain=gain, deviation=deviation)


@dataclass(frozen=True, eq=False)
class _Judge:
    """A part of S, and the scores that candidates without it give to records apart from theirs.

    Attributes:
        scores: of J candidates, J × N × m.
        expected: the inner products of these and the probabilities at which gradients were taken, J × N.
        counts: how much of its gradient each record is expected to keep when it is clipped, N.
        told: ⟨c, gradient⟩ of each candidate with the noise of this part, J.
        products: of the candidates as vectors, J × J.

    """

    scores: np.ndarray
    expected: np.ndarray
    counts: np.ndarray
    told: np.ndarray
    products: np.ndarray

    def losses(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What each record adds to the private loss of the sum of the candidates with these weights, N, and the
        gradients of that, J × N.
        """
        scores = np.tensordot(weights.astype(np.float32), self.scores, 1)
        top = scores.max(axis=1, keepdims=True)
        shares = np.exp(scores - top)
        total = shares.sum(axis=1, keepdims=True)
        peaks = (np.log(total) + top)[:, 0]
        shares *= self.counts[:, None] / total
        slopes = np.einsum("jnm,nm->jn", self.scores, shares) - self.expected + self.told[:, None]
        return self.counts * peaks - weights @ self.expected + weights @ self.told, slopes


def _judges(evidence: Evidence, x: np.ndarray, weights: np.ndarray, random: np.random.Generator) -> list[_Judge]:
    z = _white(evidence, x)
    counts, expected = (each * weights.reshape(-1, *[1] * (each.ndim - 1)) for each in _expected(evidence, z))
    found = z.T @ expected / len(z) - np.float32(evidence.gradient)
    noise = random.normal(size=(PARTS, *found.shape)) * evidence.deviation * math.sqrt(PARTS)
    noise -= noise.mean(axis=0)
    noise = (noise - noise.mean(axis=2, keepdims=True)).astype(np.float32)
    led = _descent(evidence, z, counts, found)
    judges = []
    for part, xi in enumerate(noise):
        judging = np.arange(len(x)) % PARTS == part
        theta = evidence.theta + _descent(evidence, z, counts, found - xi / (PARTS - 1)) - led
        made = _candidates(evidence, theta, x[~judging], weights[~judging], math.sqrt(PARTS / (PARTS - 1)))
        vectors = np.stack(made).reshape(len(made), -1)
        scores = np.stack([z[judging] @ candidate for candidate in made])
        at = np.einsum("jnm,nm->jn", scores, expected[judging])
        told = vectors @ (evidence.gradient - xi).ravel()
        judges.append(_Judge(scores, at, counts[judging], told, vectors @ vectors.T))
    return judges


def _chosen(judges: Sequence[_Judge], deviation: float, own: float) -> tuple[np.ndarray, float, float]:
    """The weights of the candidates, of which the first is the head; the gain over the head alone, and the standard
    deviation of its error, of noise and of how many records there are. deviation: see `Evidence`. own: the standard
    deviation of the scores of the head.
    """
    from scipy.optimize import minimize

    products = np.mean([judge.products for judge in judges], axis=0)
    only, longest, tiny = np.eye(1, len(products))[0], LONGEST * own, np.finfo(float).eps

    def losses(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = [judge.losses(weights) for judge in judges]
        return np.concatenate([each[0] for each in found]), np.hstack([each[1] for each in found])

    def of_head(scale: np.ndarray) -> Loss:
        found, slopes = losses(scale[0] * only)
        return float(found.mean()), slopes[:1].mean(axis=1)

    bounds = [(0.0, longest)]
    alone = minimize(of_head, [own / 2], jac=True, bounds=bounds, method="L-BFGS-B").x[0] * only
    before = losses(alone)[0]

    def error(weights: np.ndarray, found: np.ndarray, slopes: np.ndarray) -> Loss:
        away, apart = products @ (weights - alone), found - before
        apart = apart - apart.mean()
        of_noise, of_records = (
            deviation**2 * float((weights - alone) @ away),
            float(np.square(apart).mean()) / len(apart),
        )
        size = math.sqrt(max(of_noise + of_records, tiny))
        return size, (deviation**2 * away + slopes @ apart / len(apart) ** 2) / size

    def bound(weights: np.ndarray) -> Loss:
        found, slopes = losses(weights)
        size, of_size = error(weights, found, slopes)
        return float(found.mean()) + size, slopes.mean(axis=1) + of_size

    inside = {"type": "ineq", "fun": lambda w: longest - w.sum(), "jac": lambda w: -np.ones_like(w)}
    begin = np.full(len(only), own / len(only))
    best = minimize(
        bound, begin, jac=True, bounds=bounds * len(only), method="SLSQP", constraints=[inside], options={"maxiter": 60}
    ).x
    best = np.clip(best, 0, longest)
    found, slopes = losses(best)
    gain, size = float(before.mean() - found.mean()), error(best, found, slopes)[0]
    return (best, gain, size) if gain > size else (alone, 0.0, 0.0)


def _candidates(
    evidence: Evidence, theta: np.ndarray, x: np.ndarray, weights: np.ndarray, noise: float
) -> list[np.ndarray]:
    """The head θ, and what records x make of it, one for each strength: (d + 1) × m, with scores of the standard
    deviation 1. weights: of the records, N. noise: the standard deviation of the noise in θ, in units of that in the
    head.
    """
    made = [_levelled(evidence, theta, noise), *_fitted(evidence, theta, x, weights, noise)]
    z = _white(evidence, x)
    deviations = [max(float((z @ np.float32(each)).std()), np.finfo(np.float32).tiny) for each in made]
    return [(each / deviation).astype(np.float32) for each, deviation in zip(made, deviations, strict=True)]


def _levelled(evidence: Evidence, theta: np.ndarray, noise: float) -> np.ndarray:
    theta, left = shrunk(theta, evidence.similarity, _variance(evidence, noise))
    return np.vstack([levelled(theta[:-1], (len(theta) - 1) * left), theta[-1:]])


def _variance(evidence: Evidence, noise: float) -> float:
    """Of the noise in a coordinate of θ."""
    step = noise * evidence.rate * evidence.deviation * gathered(evidence.steps, evidence.momentum)
    return step**2 * evidence.steps


def _fitted(
    evidence: Evidence, theta: np.ndarray, x: np.ndarray, weights: np.ndarray, noise: float
) -> list[np.ndarray]:
    """What expectation-maximisation makes of θ with each strength, (d + 1) × m. weights, noise: see
    `_candidates`.
    """
    tiny = float(np.finfo(np.float32).tiny)
    mean = np.average(x, axis=0, weights=weights.astype(float))
    theta, left = shrunk(theta, evidence.similarity, _variance(evidence, noise))
    weight = evidence.whiten @ (theta[:-1] - theta[:-1].mean(axis=1, keepdims=True))
    moved = x - np.float32(mean)
    (count, d), m = x.shape, weight.shape[1]
    # Few records, and the head, lie in fewer dimensions. The others have no part in what follows.
    basis = None if count + m >= d else np.linalg.qr(np.hstack([moved.T.astype(float), weight]))[0]
    if basis is not None:
        moved = moved @ basis.astype(np.float32)
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(moved.T, dtype=float, aweights=weights)))
    values = np.maximum(values, 0)
    damped = values + max(float(values.sum()) / d, tiny)
    to = (vectors * damped**-0.5).astype(np.float32)
    units = moved @ to
    norms = np.maximum(np.linalg.norm(units, axis=1, keepdims=True), tiny)
    units /= norms
    centre = np.average(units, axis=0, weights=weights)
    concentration = np.float32(CONCENTRATION * float((values / damped).sum()))
    prior = (vectors * damped**0.5).T @ (weight if basis is None else basis.T @ weight)
    length = max(math.sqrt(float(np.square(prior).sum(axis=0).mean())), tiny)
    prior = _unit(prior).astype(np.float32)
    # What a head says of the mean of the records is its offset here. It has noise, and shares differ less than that.
    white = float(np.square(evidence.whiten.T @ mean).sum())
    of_offsets = left * (evidence.bias_feature**2 + white)
    offsets = _shrunk(evidence.bias_feature * theta[-1] + mean @ weight, of_offsets)
    shift = np.float32(offsets / length) / norms
    # The columns of W are orthogonal, so W⁻¹ is Wᵀ with its rows divided by their squared lengths.
    back = evidence.whiten.T / np.maximum(np.square(evidence.whiten).sum(axis=0), tiny)[:, None]
    made = []
    for strength in STRENGTHS:
        found = prior
        for _ in range(ROUNDS if math.isfinite(strength) else 0):
            shares = _softmax(concentration * (units @ found + shift)) * weights[:, None]
            found = _unit(strength * prior + units.T @ shares - np.outer(centre, shares.sum(axis=0)))
        weight = length * to @ found
        weight = weight if basis is None else basis @ weight
        made.append(np.vstack([back @ weight, (offsets - mean @ weight) / evidence.bias_feature]))
    return made


def _balanced(evidence: Evidence, x: np.ndarray) -> np.ndarray:
    """Weights of the records, N, with the mean 1: their white mean is then that of the private records, as far as this
    is known. All are 1 where chance and noise explain the difference.
    """
    from scipy.optimize import minimize

    z = np.asarray(x[:JUDGING] @ np.float32(evidence.whiten), float)
    (n, d), mean = z.shape, z.mean(axis=0)
    covariance = np.atleast_2d(np.cov(z.T))
    of_noise = evidence.centre_deviation**2 * np.square(evidence.whiten.astype(float)).sum(axis=0)
    variances = of_noise + np.diag(covariance) / n + np.finfo(np.float32).tiny
    apart = float(mean @ np.linalg.solve(covariance / n + np.diag(of_noise), mean))
    # By chance this has the mean d and the variance 2d (χ²).
    by_chance = (d + 2 * math.sqrt(2 * d)) / max(apart, np.finfo(float).tiny)
    if not by_chance < 1:
        return np.ones(len(x), np.float32)
    moved = z - by_chance * mean

    def dual(a: np.ndarray) -> Loss:
        scores = -moved @ a
        top = scores.max()
        weights = np.exp(scores - top)
        total = weights.sum()
        return float(np.log(total / n) + top + a @ (variances * a) / 2), variances * a - weights @ moved / total

    found = minimize(dual, np.zeros(d), jac=True, method="L-BFGS-B", options={"maxiter": 200}).x
    scores = -(x @ np.float32(evidence.whiten @ found))
    weights = np.exp(scores - scores.max())
    return np.asarray(weights * (len(x) / weights.sum()), np.float32)


def _white(evidence: Evidence, x: np.ndarray) -> np.ndarray:
    """The records as the gradients see them: white, with the constant feature, and of one length; N × (d + 1)."""
    z = np.hstack([x @ np.float32(evidence.whiten), np.full((len(x), 1), evidence.bias_feature, np.float32)])
    z *= evidence.radius / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return np.asarray(z)


def _expected(evidence: Evidence, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How much of its gradient each record keeps, N, and that times the probabilities of its classes, N × m: means over
    the steps. A record is clipped as is expected if its label is drawn from these probabilities.
    """
    counts, expected = np.zeros(len(z), np.float32), np.zeros((len(z), evidence.theta.shape[1]), np.float32)
    for point, steps in zip(evidence.points, groups(evidence.steps), strict=True):
        p = _softmax(z @ np.float32(point))
        residuals = np.sqrt(np.maximum(np.square(p).sum(axis=1, keepdims=True) + 1 - 2 * p, np.finfo(np.float32).tiny))
        kept = (p * np.minimum(1, np.float32(evidence.gradient_clip) / residuals)).sum(axis=1)
        counts += kept * np.float32(len(steps) / evidence.steps)
        expected += kept[:, None] * p * np.float32(len(steps) / evidence.steps)
    return counts, expected


def _descent(evidence: Evidence, z: np.ndarray, counts: np.ndarray, told: np.ndarray) -> np.ndarray:
    """The head that the training's own descent finds on records z, if S is `told`: (d + 1) × m."""
    theta, velocity = np.zeros_like(told), np.zeros_like(told)
    counted = z * (counts / len(z))[:, None]
    rates = (evidence.rate * evidence.paces[:, None]).astype(np.float32)
    for _ in range(evidence.steps):
        gradient = counted.T @ _softmax(z @ theta) - told
        move = -rates * (gradient - gradient.mean(axis=1, keepdims=True))
        velocity = np.float32(evidence.momentum) * velocity + move
        theta = theta + np.float32(evidence.momentum) * velocity + move
    return np.asarray(theta)


def _shrunk(values: np.ndarray, noise: float) -> np.ndarray:
    """Numbers nearer to their mean, by the share that noise of that variance has in theirs."""
    variance = float(values.var(ddof=1)) if len(values) > 1 else 0.0
    kept = max(0.0, 1 - noise / variance) if variance > 0 else 0.0
    return np.asarray(values.mean() + kept * (values - values.mean()))


def _unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=0), np.finfo(np.float32).tiny))


def _softmax(scores: np.ndarray) -> np.ndarray:
    # Products with numbers that are too small for the precision are many times slower.
    shifted = np.exp(np.maximum(scores - scores.max(axis=1, keepdims=True), -60))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))
