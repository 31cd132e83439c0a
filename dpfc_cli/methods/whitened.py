"""DP-Whitened: softmax regression with clipping and noise in the space where the features are white.

White means: the features have the same variance in every direction. The method releases the mean of the records once,
the Gram matrix of the centred records once, and the clipped gradient of the softmax loss T times (`steps`). The
gradient is that of z = R·(Wᵀx, c)/‖(Wᵀx, c)‖. W is the damped whitening matrix of the released Gram matrix (`damping`),
c is `bias_feature`, and R is a length. So the contributions that are clipped (`gradient_clip`, C_g) and get noise are
those in the whitened space. `docs/whitening.md` derives why noise does least harm there, and it says what each default
was compared with.

Everything else is post-processing of the three kinds of release, of public facts and of public features: the clipping
norm after centring, the shrinkage of the spectrum, R, and the total step.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from dpfc_cli.methods import options as declare
from dpfc_cli.methods.linear import levelled, noise_edge, shrink
from dpfc_cli.methods.method import Given, Method, Solution, chosen
from dpfc_cli.methods.public_head import JUDGED, PublicHead, start_of, verdict
from dpfc_cli.methods.similarity import Similarity, shrunk
from dpfc_cli.methods.unlabelled import Evidence, Unlabelled, adapt, groups
from dpfc_cli.options import SMALLEST
from dpfc_cli.privacy.chain import Centre, Chain, Clip, Linear, run
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.forms import OPEN
from dpfc_cli.privacy.oracle import Mechanism, Oracle, Plan, planned
from dpfc_cli.privacy.queries import Gradient, Gram, Mean, Query, sensitivity
from dpfc_cli.threads import in_threads

NORMALISE = Clip(1e-30)
"""Scales every record to norm 1, because every record is longer than this norm."""
FLOOR = 1e-5
"""The smallest damping, in units of the mean squared norm of the records. Float32 features do not resolve less."""
DROWNED = 0.04
"""The edge above which the damping grows only with the root of the edge, in units of the mean squared norm.

Noise with such an edge hides most of the spectrum. The eigenvalues are shrunk by what is known of this noise, so the
damping need not do it again. What it is for then is the noise of the gradients, which grows more slowly than the edge
does."""
LONGEST = 600.0
"""The largest total step with noise."""
NOISELESS = 300.0
"""The total step without noise. A longer one comes closer to the optimum of the loss, which is not always a better
head."""
LENGTHS = 100
"""How many lengths are compared where noise hides that of the mean."""
SMOOTHED = 0.05
"""On each side of a white direction, the part of all directions with which it shares what is known of classes."""
BETWEEN = 0.95
"""The largest part of a direction's variance that is taken to lie between classes."""
STABLE = 0.8
"""The largest step, in units of m. At θ = 0 the curvature of the softmax loss in a white space is 1/m, so 2 would
diverge.
"""


@dataclass(frozen=True, eq=False, kw_only=True)
class Public:
    """What is known from public features of the same backbone, scaled to norm 1. mean: d."""

    mean: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The options that shape the plan."""

    steps: int = 12
    budget_split: tuple[float, ...] = declare.split("the mean", "the Gram matrix", "the gradients")


@dataclass(frozen=True, kw_only=True)
class Options(Planned):
    """All options.

    Attributes:
        learning_rate: η. Here it is a factor of the total step that `total_step` computes.
        damping: of the covariance, λ as a multiple of the edge of its noise (see `DROWNED`).
        gradient_clip: C_g, in units of ‖z‖ = R.
        bias_feature: c, before normalisation, where a whitened coordinate has variance 1.
        mu: the μ of the whole training, which gives the size of the noise; 0 without noise.
        public: the mean that the released one is shrunk towards.
        public_head: the class vectors that the descent starts from.
        similarity: the vectors that say which classes are alike.
        unlabelled: public records that the head is adapted to at the end.

    """

    learning_rate: float = declare.default(1.0, grid=(0.5, 1.0, 2.0, 4.0))
    damping: float = declare.default(0.25, private=True)
    gradient_clip: float = 0.5
    bias_feature: float = declare.default(0.6, optimum=True, grid=(0.5, 1.0, 2.0), low=SMALLEST)
    mu: float
    public: Public | None = None
    public_head: PublicHead | None = None
    similarity: Similarity | None = None
    unlabelled: Unlabelled | None = None


def options_of_plan(facts: Facts, given: Given, private: bool) -> Planned:
    """The options that shape the plan: 12 steps with noise, 100 without, and a split of the budget that follows the
    sizes of the answers.

    If the noise of one number costs as much in every answer, shares that grow as the root of how many numbers an answer
    has make the sum of all noise smallest (Neyman 1934). So the shares are as √d, d and √(m·d). The noise of the mean
    and of the Gram matrix costs less, and the factors say how much: 0.3 and 0.03 are fitted (docs/whitening.md).
    """
    sizes = (0.3 * math.sqrt(facts.d), 0.03 * facts.d, math.sqrt(facts.m * facts.d))
    computed = {"budget_split": tuple(size / sum(sizes) for size in sizes)}
    return Planned(**chosen(Planned, given, computed if private else {**computed, "steps": 100}))


def complete(facts: Facts, plan_options: Planned, noise: Mechanism | None, given: Given) -> Options:
    """All options. They are the same for every data set.

    What must adapt to the data set adapts in `solve`, to public facts and to what was released. Without noise no
    gradient is clipped, and C_g is only a factor of the step.
    """
    computed = {"mu": 0.0, "gradient_clip": 2.0} if noise is None else {"mu": noise.mu}
    return Options(**chosen(Options, given, {**vars(plan_options), **computed}))


def plan(facts: Facts, options: Planned) -> Plan:
    """The mean, the Gram matrix and T gradients."""
    mean, gram, rest = options.budget_split
    centred = (NORMALISE, Centre(OPEN), Clip(OPEN))
    descent = Gradient((*centred, Linear(OPEN)), OPEN, clip=OPEN, constant=OPEN, loss="softmax", radius=OPEN)
    gradient = planned(descent, facts, rest / options.steps)
    first = (planned(Mean((NORMALISE,)), facts, mean), planned(Gram(centred), facts, gram))
    return Plan((*first, *[gradient] * options.steps))


def solve(oracle: Oracle, facts: Facts, options: Options) -> Solution:
    """Mean, Gram matrix, and T steps of gradient descent with equal shares. The head is the last iterate, mapped back.

    Scores are linear in the centred record: the normalisation of z scales all scores of a record by the same factor.

    A public start is judged by the first gradients, and then added as far as it is trusted (`public_head`). At the end
    the class vectors are shrunk by what is known of similar classes (`similarity`), their lengths are made more alike
    (`levelled`), and public records without labels are used (`unlabelled`).
    """
    chain = centred(oracle, facts, options)
    gram = oracle.release(Gram(chain))
    facts = weighted(facts, float(np.trace(gram)))
    whiten, variances = whitening(gram / facts.n, facts, options)
    dimension = max(1.0, float(variances.sum()))
    start = None if options.public_head is None else start_of(options.public_head.vectors, whiten, variances)
    radius = math.sqrt(dimension + options.bias_feature**2)
    rate, momentum = schedule(dimension, facts, options)
    theta = np.zeros((facts.d + 1, facts.m))
    velocity, told = np.zeros_like(theta), np.zeros_like(theta)
    parts = groups(options.steps)
    points = np.zeros((len(parts), *theta.shape))
    paces, agreed = np.ones(facts.m), list[np.ndarray]()
    within, trusted = np.ones(facts.d + 1), None
    for step in range(options.steps):
        for point, part in zip(points, parts, strict=True):
            if step in part:
                point += theta / len(part)
        gradient = oracle.release(
            Gradient(
                (*chain, Linear(whiten)),
                theta,
                clip=options.gradient_clip * radius,
                constant=options.bias_feature,
                loss="softmax",
                radius=radius,
            )
        )
        # The residuals of a record sum to zero over the classes. So their mean over the classes is noise alone.
        gradient = gradient - gradient.mean(axis=1, keepdims=True)
        told += gradient / (facts.n * options.steps)
        if step == 0:
            within = within_classes(gradient / facts.n, variances, radius, facts, options)
        move = -rate / facts.n * gradient * paces * within[:, None]
        velocity = momentum * velocity + move
        theta = theta + momentum * velocity + move
        if start is not None and trusted is None:
            agreed.append(start.agreements(gradient[:-1]))
            # The largest length that the gradient of one of m equal classes can have is the unit of agreements.
            unit = facts.n * options.gradient_clip * radius / facts.m
            noise = math.sqrt(facts.m) * doubt(facts, options, 1)
            deviation = noise / math.sqrt(len(agreed))
            found = verdict(start, np.mean(agreed, axis=0) / unit, deviation, noise * math.sqrt(dimension))
            if len(agreed) == options.steps or (found.sure and len(agreed) >= JUDGED):
                trusted, paces = found.trusted, found.paces
                theta, velocity = theta * paces, velocity * paces
                theta = theta + start.weights(found.size * trusted, options.bias_feature)
    noise = radius * total_step(dimension, facts, options)
    noise *= _deviation(facts, options, options.budget_split[2], Gradient)
    vectors = None if options.similarity is None else options.similarity.vectors
    alike, rest = shrunk(theta, vectors, noise**2)
    weight = whiten @ levelled(alike[:-1], facts.d * rest)
    bias = options.bias_feature * alike[-1]
    evidence = None
    if options.mu > 0:
        one = options.gradient_clip * radius
        evidence = Evidence(
            whiten=whiten.astype(np.float32),
            theta=theta.astype(np.float32),
            points=points.astype(np.float32),
            gradient=told.astype(np.float32),
            paces=within.astype(np.float32),
            deviation=one * _deviation(facts, options, options.budget_split[2], Gradient),
            rate=rate,
            momentum=momentum,
            steps=options.steps,
            bias_feature=options.bias_feature,
            radius=radius,
            gradient_clip=options.gradient_clip,
            centre_deviation=_deviation(facts, options, options.budget_split[0], Mean),
            similarity=vectors,
        )
        evidence = evidence if evidence.finite else None
    if evidence is not None and options.unlabelled is not None:
        known = adapt(weight, bias, evidence, np.asarray(run(chain, options.unlabelled.records, np), float))
        if known.share:
            # An adapted head has no noise of a known size.
            weight, bias, evidence = known.weight, known.bias, None
    return Solution(chain=chain, weight=weight, bias=bias, trusted=trusted, evidence=evidence)


def weighted(facts: Facts, trace: float) -> Facts:
    """The facts with the number of records of full weight in place of n, if the unit is a person.

    The records of a person are multiplied by a number s ≤ 1, which differs from person to person. What a sum says then
    depends on the sum of these numbers. Most records in a Gram matrix have a norm near 1, so its trace is near that
    sum. It is kept between the numbers of persons and of records, where it lies if no record is null. The same number
    serves for the gradients: they add up in a similar way. trace: of the released Gram matrix.
    """
    if facts.rows is None:
        return facts
    return replace(facts, n=round(min(max(trace, facts.n), facts.rows)))


def doubt(facts: Facts, options: Options, judging: int = JUDGED) -> float:
    """The standard deviation of the noise in the mean agreement of the classes of a start over so many gradients.

    That of one class is √m times as much.
    """
    judging = min(judging, options.steps)
    return math.sqrt(facts.m) * _deviation(facts, options, judging * options.budget_split[2] / options.steps, Gradient)


def centred(oracle: Oracle, facts: Facts, options: Options) -> Chain:
    """The chain: scale records to norm 1, subtract their mean, and clip at the root of the mean squared norm that
    remains.

    What the released mean differs by from the public mean, or from 0, is multiplied by S/(S + d·s²): s is the known
    standard deviation of the noise in one coordinate, S the expected squared length of that difference (`left`). Then
    the expected error is smallest.
    """
    mean = oracle.release(Mean((NORMALISE,)))[0] / facts.n
    deviation = _deviation(facts, options, options.budget_split[0], Mean)
    noise = facts.d * deviation**2
    public = None if options.public is None else options.public.mean
    target = np.zeros(facts.d) if public is None else public * explained(mean, public, deviation)
    length = left(float(np.square(mean - target).sum()), noise, facts.d)
    kept = length / (length + noise)
    centre = target + kept * (mean - target)
    # An estimate of the squared norm of the true mean: that of its estimate, plus what is still unknown.
    return unit_chain(centre, float(centre @ centre) + kept * noise)


def left(squared: float, noise: float, d: int) -> float:
    """The expected squared length of a vector in d dimensions, of which the squared length with noise is known.

    Records have norm 1, and so is their mean at most. Before the release S has the density 2(1 − S): on four real sets
    it is 0.1 to 0.34. Then squared is nearly normal, with the mean S + noise and the variance (2·noise + 4S)·noise/d,
    and this is Bayes' rule. noise: the expected squared length of the noise.
    """
    lengths = (np.arange(LENGTHS) + 0.5) / LENGTHS
    variances = (2 * noise + 4 * lengths) * noise / d + LENGTHS**-2.0
    likely = -((squared - lengths - noise) ** 2) / (2 * variances) - np.log(variances) / 2
    weights = (1 - lengths) * np.exp(likely - likely.max())
    return float(weights @ lengths / weights.sum())


def unit_chain(centre: np.ndarray, squared: float) -> Chain:
    """The chain: scale to norm 1, subtract the mean `centre` (d), clip to √(1 − squared). squared: the mean's norm²."""
    return (NORMALISE, Centre(centre), Clip(math.sqrt(max(1 - squared, 0.01))))


def explained(released: np.ndarray, public: np.ndarray, deviation: float) -> float:
    """How much of the public mean is in the released one: the coefficient, in [0, 1], of the regression on it.

    The coefficient has the variance deviation²/‖public‖². It is shrunk towards 1 accordingly. If the release is noise
    alone, the public mean is taken as it is. deviation: that of the noise in one coordinate of the released mean.
    """
    size = float(np.square(public).sum())
    if size == 0:
        return 0.0
    away = float((released * public).sum()) / size - 1
    kept = max(1 - deviation**2 / size / away**2, 0.0) if away else 0.0
    return min(max(1 + kept * away, 0.0), 1.0)


def whitening(covariance: np.ndarray, facts: Facts, options: Options) -> tuple[np.ndarray, np.ndarray]:
    """The whitening matrix W = V·diag(ξ + λ)^(−½), and the variances ξ/(ξ + λ) of the white coordinates.

    The sum of the variances is the effective dimension.

    ξ and V are the eigenvalues and eigenvectors of the released covariance after shrinkage. λ is a multiple of the edge
    of the noise, or of √(0.04·edge) where that is smaller.

    covariance: the released Gram matrix, per record, d × d. Returns W (d × d) and the variances (d).
    """
    edge = _edge(facts, options)
    # In a thread of its own: the main one hears Ctrl-C meanwhile.
    ((values, vectors),) = in_threads(np.linalg.eigh, [(covariance + covariance.T) / 2], 1, blas=None)
    values = np.maximum(shrink(values, edge / 2), 0.0)
    damped = values + options.damping * min(edge, math.sqrt(DROWNED * edge)) + FLOOR
    return vectors * damped**-0.5, values / damped


def within_classes(
    gradient: np.ndarray, variances: np.ndarray, radius: float, facts: Facts, options: Options
) -> np.ndarray:
    """The factor of the steps in each white direction, d + 1: ∝ 1/(1 − h), with a mean square of 1; 1 for the bias.

    Whitening makes the variance of all records 1, but what confuses classes is the variance *within* them. If a part h
    lies between the classes, 1 − h is left, and the weights of linear discriminant analysis are 1/(1 − h) times as
    long (Fisher 1936). With the damping the same holds: (ξ + λ)/(ξ − b + λ) = 1/(1 − h), with b = h·(ξ + λ). Steps
    that are longer where classes differ need less length elsewhere, so they bring less noise and fit less of what is
    chance.

    At θ = 0 the gradient is minus the sums of the classes, each pⱼ times its mean. If these means do not depend on how
    large classes are, their mean square is Σⱼ gⱼ²/Σⱼ pⱼ². What noise adds is known and is subtracted; then h is
    averaged over neighbours in the spectrum, and taken two standard deviations of its noise too small. Σ pⱼ², from the
    row of the bias, is taken as much too large. So where noise hides classes, all factors are 1.

    gradient: the first one, per record, (d + 1) × m, centred over the classes. variances: as `whitening` gives them, d.
    """
    m, residual = facts.m, math.sqrt(1 - 1 / facts.m)
    # Where the gradients of all records are clipped, they are so equally.
    kept = min(options.gradient_clip / residual, 1.0)
    deviation = options.gradient_clip * radius / kept
    deviation *= _deviation(facts, options, options.budget_split[2] / options.steps, Gradient)
    squares = np.square(gradient / kept).sum(axis=1)
    noise = m * deviation**2
    found = max(float(squares[-1]) - noise, 0.0)
    unequal = found + 2 * math.sqrt((2 * noise + 4 * found) * noise / m)
    shares = 1 / m + unequal / max(options.bias_feature**2, np.finfo(float).tiny)
    side = max(1, int(SMOOTHED * facts.d))
    noise /= shares
    between = _smoothed(squares[:-1] / shares, side) - noise * (m - 1) / m
    doubted = np.sqrt((2 * noise + 4 * np.maximum(between, 0)) * noise / m / (2 * side + 1))
    factors = 1 / (1 - np.clip(between - 2 * doubted, 0, BETWEEN))
    size = math.sqrt(float(variances @ factors**2) / max(float(variances.sum()), np.finfo(float).tiny))
    return np.append(factors / size if size > 0 else factors, 1.0)


def _smoothed(values: np.ndarray, side: int) -> np.ndarray:
    """The mean of each value and of so many on each side of it."""
    totals, places = np.append(0.0, np.cumsum(values)), np.arange(len(values))
    first, last = np.maximum(places - side, 0), np.minimum(places + side + 1, len(values))
    return np.asarray((totals[last] - totals[first]) / (last - first))


def total_step(dimension: float, facts: Facts, options: Options) -> float:
    """The total step τ = T·step·C_g/R: 1.5·ρ^0.85·(m/d_eff)^⅓ with ρ = n·μ/d_eff, but at most `LONGEST`.

    The noise in the logits has a standard deviation near τ/ρ. The rule ends the descent when this noise has grown to
    about 1, and earlier if there are many white directions for each class. Then the classes are found with short steps,
    and what longer ones add is noise. The constants are fitted (docs/whitening.md). `learning_rate` multiplies it all.
    dimension: d_eff, the effective dimension.
    """
    if options.mu == 0:
        return options.learning_rate * NOISELESS
    rho = facts.n * options.mu / (sensitivity(Gradient, facts) * dimension)
    return options.learning_rate * min(1.5 * math.pow(rho, 0.85) * math.cbrt(facts.m / dimension), LONGEST)


def schedule(dimension: float, facts: Facts, options: Options) -> tuple[float, float]:
    """The step and the momentum (Nesterov's) that give the total step. If a stable step is too short, momentum adds the
    rest.
    """
    rate = total_step(dimension, facts, options) / (options.steps * options.gradient_clip)
    stable = STABLE * facts.m
    return min(rate, stable), max(0.0, 1 - stable / rate)


def _deviation(facts: Facts, options: Options, share: float, query: type[Query]) -> float:
    """The standard deviation of the noise, per record, in one coordinate of a release with that share."""
    if options.mu == 0:
        return 0.0
    return sensitivity(query, facts) / (options.mu * math.sqrt(share / sum(options.budget_split)) * facts.n)


def _edge(facts: Facts, options: Options) -> float:
    """The edge of the noise, per record, in the released Gram matrix."""
    if options.mu == 0:
        return 0.0
    return noise_edge(facts, facts.d, 1 / (options.mu * math.sqrt(options.budget_split[1] / sum(options.budget_split))))


METHOD = Method(
    name="dp-whitened",
    title="softmax regression with noise in the whitened space",
    options=Options,
    planned=options_of_plan,
    plan=plan,
    complete=complete,
    solve=solve,
    copies=6,
    public=("public", "public_head", "similarity", "unlabelled"),
    federated=True,
)
