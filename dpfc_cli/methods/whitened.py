"""DP-Whitened: softmax regression privatised in the space where the features are white.

One release of the mean, one of the Gram matrix of the centred records, T of the clipped gradient of the softmax loss.
The gradient is that of z = R·(Wᵀx, c)/‖(Wᵀx, c)‖, W the damped whitening matrix of the released Gram, so what is
clipped and noised are contributions in the whitened space. `docs/whitening.md` derives why noise does least harm there,
and says what each default was measured against.

Everything but the three kinds of release is post-processing of them, of public facts and of public features: the
clipping norm after centring, the shrinkage of the spectrum, R, and the total step.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfc_cli.methods import options as declare
from dpfc_cli.methods.linear import noise_edge
from dpfc_cli.methods.method import Given, Method, Solution, chosen
from dpfc_cli.privacy.chain import Centre, Chain, Clip, Linear
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.oracle import Mechanism, Oracle, Plan, planned
from dpfc_cli.privacy.queries import OPEN, Gradient, Gram, Mean, Query, sensitivity

NORMALISE = Clip(1e-30)
"""Scales every record to norm 1, for a norm this small is shorter than any."""
FLOOR = 1e-5
"""Of the damping, in units of the records' mean square: what float32 features resolve."""
LONGEST = 300.0
"""Total step beyond which no feature set gained."""
STABLE = 0.8
"""Largest step in units of m. At θ = 0 the softmax's curvature in a white space is 1/m, so that 2 would diverge."""


@dataclass(frozen=True, eq=False)
class Public:
    """What is known of public features from the same backbone, scaled to norm 1.

    mean: d. covariance: d × d, Gram matrix per record of what centring at that mean and the clip of `centred` leave.
    origin: what the card says of them, JSON-able.
    """

    mean: np.ndarray
    covariance: np.ndarray
    origin: Mapping[str, Any]


SPLIT = (0.03, 0.10, 0.87)


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What shapes the plan."""

    steps: int = declare.steps(12)
    budget_split: tuple[float, ...] = declare.budget_split(
        "the mean", "the Gram matrix", "the gradients", default=",".join(map(str, SPLIT)), value=SPLIT
    )


@dataclass(frozen=True, kw_only=True)
class Options(Planned):
    """learning_rate: the total step as a multiple of the rule in `total_step`. damping: of the covariance, as a
    multiple of the edge of its noise. gradient_clip: C_g, in units of ‖z‖ = R. bias_feature: c, before normalisation,
    where a whitened coordinate has variance 1. mu: of the whole training, from which the size of the noise is known; 0
    without noise. public: moments that the released mean and Gram matrix are shrunk towards.
    """

    learning_rate: float = declare.learning_rate(
        "1. dp-whitened computes the length of its steps itself and multiplies it by this",
        1.0,
        grid=(0.5, 1.0, 2.0, 4.0),
    )
    damping: float = declare.damping("0.25, a multiple of the size of the noise in the matrix", 0.25, private=True)
    gradient_clip: float = declare.gradient_clip(0.5)
    bias_feature: float = declare.bias_feature(0.6, grid=(0.5, 1.0, 2.0))
    mu: float
    public: Public | None = None


def options_of_plan(facts: Facts, given: Given, private: bool) -> Planned:
    """The same for every data set. Without noise: 100 steps."""
    return Planned(**chosen(Planned, given, {} if private else {"steps": 100}))


def complete(facts: Facts, plan_options: Planned, noise: Mechanism | None, given: Given) -> Options:
    """The same for every data set: what must adapt does so in `solve`, to public facts and to what was released.

    Without noise no gradient is clipped, and C_g only measures the step.
    """
    computed = {"mu": 0.0, "gradient_clip": 2.0} if noise is None else {"mu": noise.mu}
    return Options(**chosen(Options, given, {**vars(plan_options), **computed}))


def plan(facts: Facts, options: Planned) -> Plan:
    """The mean, the Gram matrix and T gradients."""
    mean, gram, rest = options.budget_split
    centred = (NORMALISE, Centre(OPEN), Clip(OPEN))
    gradient = planned(
        Gradient((*centred, Linear(OPEN)), OPEN, OPEN, OPEN, "softmax", OPEN), facts, rest / options.steps
    )
    first = (planned(Mean((NORMALISE,)), facts, mean), planned(Gram(centred), facts, gram))
    return Plan((*first, *[gradient] * options.steps))


def solve(oracle: Oracle, facts: Facts, options: Options) -> Solution:
    """Mean, Gram, and T steps of gradient descent with equal weights; the last iterate, mapped back.

    Scores are linear in the centred record: the normalisation of z scales all scores of a record alike.
    """
    chain = centred(oracle, facts, options)
    whiten, dimension = whitening(oracle.release(Gram(chain)) / facts.n, facts, options)
    radius = math.sqrt(dimension + options.bias_feature**2)
    rate, momentum = schedule(dimension, facts, options)
    theta = np.zeros((facts.d + 1, facts.m))
    velocity = np.zeros_like(theta)
    for _ in range(options.steps):
        gradient = oracle.release(
            Gradient(
                (*chain, Linear(whiten)),
                theta,
                options.gradient_clip * radius,
                options.bias_feature,
                "softmax",
                radius,
            )
        )
        # A record's residuals sum to zero over the classes, hence so does what is not noise.
        step = -rate / facts.n * (gradient - gradient.mean(axis=1, keepdims=True))
        velocity = momentum * velocity + step
        theta = theta + momentum * velocity + step
    return Solution(chain=chain, weight=whiten @ theta[:-1], bias=options.bias_feature * theta[-1])


def centred(oracle: Oracle, facts: Facts, options: Options) -> Chain:
    """Records of norm 1, less their released mean, clipped at the norm that then remains in the mean square.

    The mean is shrunk towards the public one, or 0, by the part of their distance that is noise, which is known:
    E‖noise‖² = d·s² (James and Stein 1961, positive part).
    """
    mean = oracle.release(Mean((NORMALISE,)))[0] / facts.n
    deviation = _deviation(facts, options, options.budget_split[0], Mean)
    noise = facts.d * deviation**2
    public = None if options.public is None else options.public.mean
    target = np.zeros(facts.d) if public is None else public * explained(mean, public, deviation)
    squared = float(np.square(mean - target).sum())
    kept = max(1 - noise / squared, 0.0) if squared > 0 else 0.0
    centre = target + kept * (mean - target)
    # Of the true mean's square: the estimate's, and what is still unknown of it.
    signal = float(centre @ centre) + kept * noise
    return unit_chain(centre, signal)


def unit_chain(centre: np.ndarray, squared: float) -> Chain:
    """Scale to norm 1, centre, clip to √(1 − squared), with squared the square of the mean's norm."""
    return (NORMALISE, Centre(centre), Clip(math.sqrt(max(1 - squared, 0.01))))


def explained(released: np.ndarray, public: np.ndarray, deviation: float) -> float:
    """How much of the public moment the released one holds, in [0, 1]: the coefficient of its regression on it.

    The coefficient has variance deviation²/‖public‖², and is shrunk towards 1 by it: where the release is noise alone,
    the public moment is taken as it is. deviation: of the noise in one coordinate (of a symmetric matrix: on its
    diagonal).
    """
    size = float(np.square(public).sum())
    if size == 0:
        return 0.0
    away = float((released * public).sum()) / size - 1
    kept = max(1 - deviation**2 / size / away**2, 0.0) if away else 0.0
    return min(max(1 + kept * away, 0.0), 1.0)


def whitening(covariance: np.ndarray, facts: Facts, options: Options) -> tuple[np.ndarray, float]:
    """W = V·diag(ξ + λ)^(−½), d × d, and the effective dimension Σ ξ/(ξ + λ), at least 1.

    ξ and V are the eigenvalues and -vectors of the released covariance, shrunk; λ is a fraction of the edge of the
    noise.
    """
    edge = _edge(facts, options)
    values, vectors = spectrum((covariance + covariance.T) / 2, edge, options.public)
    damped = values + options.damping * edge + FLOOR
    return vectors * damped**-0.5, max(1.0, float((values / damped).sum()))


def spectrum(released: np.ndarray, edge: float, public: Public | None) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues, not negative, and eigenvectors of the best guess at what lies under a noise with that edge.

    With public features the guess is T + shrink(released − T), T being what of the public covariance is in the released
    one. Where they agree, the residual is noise and goes; where they do not, it is the signal, and stays.
    """
    target = np.zeros_like(released)
    if public is not None:
        deviation = edge / math.sqrt(2 * len(released))
        target = public.covariance * explained(released, public.covariance, deviation)
    values, vectors = np.linalg.eigh(released - target)
    values = shrink(values, edge / 2)
    if public is not None:
        values, vectors = np.linalg.eigh(target + (vectors * values) @ vectors.T)
    return np.maximum(values, 0.0), vectors


def shrink(values: np.ndarray, spread: float) -> np.ndarray:
    """E[vᵀCv] for each eigenvector v of C + noise with these eigenvalues, in the limit of many dimensions.

    The noise is a symmetric Gaussian matrix whose spectrum is a semicircle of radius 2·spread. The optimal estimator
    among those that keep the eigenvectors is λ − 2·spread²·h(λ), h the Hilbert transform of the spectral density (Bun,
    Allez, Bouchaud and Potters 2016, "Rotational invariant estimator for general noisy matrices"), here regularised at
    the width spread/√d.
    """
    width = spread / math.sqrt(len(values)) + np.finfo(float).tiny ** 0.25
    apart = values[:, None] - values
    return np.asarray(values - 2 * spread**2 * (apart / (apart**2 + width**2)).mean(axis=1))


def total_step(dimension: float, facts: Facts, options: Options) -> float:
    """τ = T·step·C_g/R: ρ^0.85·(m/30)^¼, at most `LONGEST`, with ρ = n·μ/d_eff.

    Noise in the logits has standard deviation near τ/ρ: the rule ends the descent when it has grown to about 1.
    """
    if options.mu == 0:
        return options.learning_rate * LONGEST
    rho = facts.n * options.mu / (sensitivity(Gradient, facts) * dimension)
    return options.learning_rate * min(math.pow(rho, 0.85) * math.pow(facts.m / 30, 0.25), LONGEST)


def schedule(dimension: float, facts: Facts, options: Options) -> tuple[float, float]:
    """Step and momentum (Nesterov's) that make the total step: momentum is what a stable step lacks."""
    rate = total_step(dimension, facts, options) / (options.steps * options.gradient_clip)
    stable = STABLE * facts.m
    return min(rate, stable), max(0.0, 1 - stable / rate)


def _deviation(facts: Facts, options: Options, share: float, query: type[Query]) -> float:
    """Of the noise in one coordinate of a release of that share, per record."""
    if options.mu == 0:
        return 0.0
    return sensitivity(query, facts) / (options.mu * math.sqrt(share / sum(options.budget_split)) * facts.n)


def _edge(facts: Facts, options: Options) -> float:
    """Of the noise in the released Gram matrix, per record."""
    if options.mu == 0:
        return 0.0
    return noise_edge(facts, facts.d, 1 / (options.mu * math.sqrt(options.budget_split[1] / sum(options.budget_split))))


METHOD = Method(
    name="dp-whitened",
    title="softmax regression privatised in the whitened space",
    planned_type=Planned,
    options=Options,
    planned=options_of_plan,
    plan=plan,
    complete=complete,
    solve=solve,
    copies=2,
    public=True,
)
