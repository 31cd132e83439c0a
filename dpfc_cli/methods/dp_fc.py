"""DP-FC: logistic regression preconditioned by the feature covariance (Mehta et al. 2022, Algorithm 4).

It releases the Gram matrix G of the features once and the clipped gradient g of the loss T times (`steps`). A step is
θ ← θ − η·(G/n + λI)⁻¹·g/n. η is `learning_rate`, λ is `damping`, C is `feature_clip`, C_g is `gradient_clip`. The bias
is the weight of a constant feature (`bias_feature`). With the sigmoid loss it starts at −10, as in the paper: every
class is improbable at first, so the first gradients are the class sums. The eigenvalues of G are shrunk by their noise.

As published, they are not, the gradients are of raw features, and the bias stays at −10 (docs/reproduction.md).
"""

import math
from dataclasses import dataclass

from dpfc_cli.methods import optimum
from dpfc_cli.methods import options as declare
from dpfc_cli.methods.linear import affine, bias_feature, damped_inverse, held_bias, noise_edge, start
from dpfc_cli.methods.method import RAW_CLIP, Given, Method, Solution, chosen, length
from dpfc_cli.privacy.chain import Chain, Clip
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.forms import OPEN
from dpfc_cli.privacy.inputs import Loss
from dpfc_cli.privacy.oracle import Mechanism, Oracle, Plan, planned
from dpfc_cli.privacy.queries import Gradient, Gram

STEPS = 20
GRADIENT_CLIP = 0.36


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The options that shape the plan. steps: None means no privacy, and steps until the optimum."""

    steps: int | None = declare.default(STEPS, optimum=True)
    budget_split: tuple[float, ...] = declare.split("the Gram matrix", "the gradients")
    loss: Loss = declare.default("sigmoid", optimum=True)
    raw_features: bool = False
    bias_feature: float = declare.computed(optimum=True)


@dataclass(frozen=True, kw_only=True)
class Options(Planned):
    """Lengths are in units of the feature clipping norm C; those of gradients of raw features are not. edge: of the
    noise in the Gram matrix; 0 if its eigenvalues are not shrunk.
    """

    learning_rate: float = declare.computed(grid=(0.3, 1.0, 3.0))
    damping: float = declare.computed(grid=(0.25, 1.0, 4.0))
    feature_clip: float = declare.default(0.005, optimum=True)
    gradient_clip: float = declare.computed(private=True)
    raw_matrices: bool = declare.default(False, private=True)
    edge: float = 0.0


def options_of_plan(facts: Facts, given: Given, private: bool) -> Planned:
    """The options that shape the plan.

    T = 20 (`steps`): 10 is up to 3 points worse at ε = 0.01, and 40 is no better. The releases have equal shares
    (`budget_split`): a larger share for the Gram matrix costs accuracy at small ε.
    """
    steps = given.get("steps", STEPS)
    split, bias = (1 / (steps + 1), steps / (steps + 1)), bias_feature(facts) * length(facts, given)
    computed = {"steps": STEPS if private else None, "budget_split": split, "bias_feature": bias}
    return Planned(**chosen(Planned, given, computed))


def _constant(facts: Facts, options: Planned) -> float:
    """The constant feature beside clipped features of length 1, as the Gram matrix has them."""
    return options.bias_feature / length(facts, vars(options))


def complete(facts: Facts, plan_options: Planned, noise: Mechanism | None, given: Given) -> Options:
    """All options, from public facts and the noise.

    edge: eigenvalues of the Gram matrix are shrunk by the noise that they contain (`linear.shrink`). This gains 0.5 on
    average at ε = 0.1, 1 and 8: 0.0 to 1.2 on four sets that defaults were fitted to, and -0.5 to 1.6 on seven others.

    damping: the edge of that noise, its largest eigenvalue. With it the noise in the logits of one step does not depend
    on ε and n, so one learning rate is right for every ε. No other factor is better everywhere: 1.4 times as much gains
    0.6 on CIFAR-100 at ε = 1 and loses 2.1 on a part of `heavy-tails`, 0.7 times as much loses 1.4 and gains 1.0 there.
    Twice the edge if negative eigenvalues stay (`raw_matrices`): the sum is then positive.

    learning_rate: it grows as √d. It has a lower bound that lets the bias climb from −10. The total step T·η·C_g
    decides, so the learning rate compensates for other values of T and C_g. Without noise and clipping η = 8 is stable,
    and 64 oscillates.

    gradient_clip: 0.14 is better than 0.36 in 21 of 72 cells of bench/tables/accuracy.md, and 0.9 is better in 10.
    """
    long = length(facts, given)
    computed = {"learning_rate": 8.0 / long**2, "damping": 5e-4, "gradient_clip": 1.0}
    if noise is not None:
        assert plan_options.steps is not None
        clip = given.get("gradient_clip", RAW_CLIP if plan_options.raw_features else GRADIENT_CLIP)
        bias, raw = _constant(facts, plan_options), given.get("raw_matrices", False)
        edge = (1 + bias**2) * noise_edge(facts, facts.d + bool(bias), noise.sigmas[0])
        rate = max(20.0, 2.2 * math.sqrt(facts.d)) * (STEPS / plan_options.steps) * (GRADIENT_CLIP / clip) / long
        damping = (1 + raw) * edge + 5e-5
        computed = {"learning_rate": rate, "damping": damping, "gradient_clip": clip, "edge": 0.0 if raw else edge}
    return Options(**chosen(Options, given, {**vars(plan_options), **computed}))


def plan(facts: Facts, options: Planned) -> Plan:
    """One Gram matrix and T gradients."""
    if options.steps is None:
        return optimum.plan(facts, options.loss, options.bias_feature)
    first, rest = options.budget_split
    bias, held = OPEN if options.bias_feature else 0.0, held_bias(options.loss, options.bias_feature)
    chain = () if options.raw_features else (Clip(OPEN),)
    descent = Gradient(chain, OPEN, clip=OPEN, constant=bias, loss=options.loss, offset=held)
    gradients = [planned(descent, facts, rest / options.steps)] * options.steps
    return Plan((planned(Gram((Clip(OPEN),), bias), facts, first), *gradients))


def solve(oracle: Oracle, facts: Facts, options: Options) -> Solution:
    """Algorithm 4 with a constant step. The head is the last iterate."""
    chain: Chain = (Clip(options.feature_clip),)
    bias = options.bias_feature
    if options.steps is None:
        return optimum.solve(oracle, facts, chain, bias, options.loss)
    gram = oracle.release(Gram(chain, _constant(facts, options))) / facts.n
    precondition = damped_inverse(gram, options.damping, options.edge, options.raw_matrices)
    chain, held = () if options.raw_features else chain, held_bias(options.loss, bias)
    theta = start(facts, options.loss, bias)
    for _ in range(options.steps):
        query = Gradient(chain, theta, clip=options.gradient_clip, constant=bias, loss=options.loss, offset=held)
        theta = theta - options.learning_rate * precondition @ oracle.release(query) / facts.n
    weight, offset = affine(theta, bias, held)
    return Solution(chain=chain, weight=weight, bias=offset)


METHOD = Method(
    name="dp-fc",
    title="logistic regression preconditioned by the feature covariance",
    options=Options,
    planned=options_of_plan,
    plan=plan,
    complete=complete,
    solve=solve,
    runs_to_optimum=True,
    federated=True,
    published={
        "steps": 10,
        "loss": "sigmoid",
        "feature_clip": 0.005,
        "raw_features": True,
        "bias_feature": 0.0,
        "gradient_clip": 0.005,
        "raw_matrices": True,
    },
)
