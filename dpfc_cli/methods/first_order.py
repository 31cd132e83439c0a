"""DP-SGD, DP-Momentum and DP-Adam: first-order methods on noisy clipped gradients (Mehta et al. 2022, Algorithm 1).

The gradient of the loss is released T times (`steps`). The gradient of each record is clipped to C_g (`gradient_clip`).
After each release an optimiser of optax takes a step on gradient/(q·n). For a linear model the gradient of a record has
rank one, so it is clipped without computing it (`privacy.queries.Gradient`).

With a sampling rate q < 1 (`sampling_rate`) each step sees a Poisson sample: every unit takes part with probability
q, independently of the others. The curator draws the sample. The gradient is divided by the expected size q·n, because
the real size is private. The accounting is then by privacy loss distributions, because no closed form exists for the
composition.

As published, the gradients are of raw features, and no bias is learned: it stays at −10 (docs/reproduction.md). Weights
decay as in AdamW (Loshchilov and Hutter 2019): a step also takes η·λ·θ away, but of no bias.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfc_cli.errors import conflict, parameter
from dpfc_cli.methods import optimum
from dpfc_cli.methods import options as declare
from dpfc_cli.methods.linear import affine, bias_feature, held_bias, start
from dpfc_cli.methods.method import RAW_CLIP, Given, Method, Solution, chosen, length
from dpfc_cli.privacy.chain import Chain, Clip
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.forms import OPEN
from dpfc_cli.privacy.inputs import Loss
from dpfc_cli.privacy.oracle import Mechanism, Oracle, Plan, planned
from dpfc_cli.privacy.queries import Gradient

STEPS = 100
MOMENTUM = 0.9
GRADIENT_CLIP = 0.5
ADAM_RATE = 0.4
"""The default learning rate η of Adam at T = 10. For ten times as many steps each step is half as long. The steps of
Adam have a length of their own, which does not depend on the length of the gradients. So more steps lead further, while
the distance that noise moves θ, η·√T, hardly grows. At T = 10 no other rate of a grid in factors of 3 is better on
average (bench/tables/reproduction.md). At T = 100 the default is 0.2. There, on the features of CIFAR and on three
synthetic sets at ε = 0.1, 1 and 8, a rate of 0.4 is up to 3 points worse and 1.4 better, and 0.13 is up to 4 points
worse and 0.9 better.
"""


def _as_far(travel: float) -> Callable[[int, float], float]:
    """The learning rate with 2·T·η·C_g = travel, for optimisers with steps as long as the clipped gradients.

    With momentum 0.9 a step leads ten times as far. Measured at ε = 0.1 to 8 and T = 100: a third or three times of
    this travel costs up to 3 points at one of the two ends of that range. At T = 10 it overshoots: on CIFAR-10 (10,000
    records, ε = 8) dp-sgd has 21 % then, and 76 at the rate of T = 100, which has 21 % on BANKING77, where this has 58.
    From T = 20 on it has 88 and 81.
    """
    return lambda steps, clip: travel / steps / (2 * clip)


def _optax(name: str, **fixed: float) -> Callable[[float], Any]:
    def make(rate: float) -> Any:
        import optax

        return getattr(optax, name)(rate, **fixed)

    return make


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The options that shape the plan. steps: None means no privacy, and steps until the optimum."""

    steps: int | None = declare.default(STEPS, optimum=True)
    loss: Loss = declare.default("sigmoid", optimum=True)
    sampling_rate: float = declare.default(1.0, private=True)
    raw_features: bool = False
    bias_feature: float = declare.computed(optimum=True)


@dataclass(frozen=True, kw_only=True)
class Options(Planned):
    """Lengths are in units of the feature clipping norm C, or those of raw features."""

    learning_rate: float = declare.computed(grid=(0.1, 0.3, 1.0, 3.0))
    feature_clip: float = declare.default(0.005, optimum=True, unless="raw_features")
    gradient_clip: float = declare.default(GRADIENT_CLIP, private=True)
    weight_decay: float = declare.default(0.0)
    average: bool = False


def options_of_plan(facts: Facts, given: Given, private: bool) -> Planned:
    """The options that shape the plan. T = 100 (`steps`) is the largest value in the paper."""
    bias = bias_feature(facts) * length(facts, given)
    return Planned(**chosen(Planned, given, {"steps": STEPS if private else None, "bias_feature": bias}))


def plan(facts: Facts, options: Planned) -> Plan:
    """T gradients with equal shares."""
    if options.steps is None:
        return optimum.plan(facts, options.loss, options.bias_feature)
    bias, held = OPEN if options.bias_feature else 0.0, held_bias(options.loss, options.bias_feature)
    chain = () if options.raw_features else (Clip(OPEN),)
    query = Gradient(chain, OPEN, clip=OPEN, constant=bias, loss=options.loss, offset=held)
    return Plan((planned(query, facts, 1 / options.steps, options.sampling_rate),) * options.steps)


def _method(
    name: str, title: str, rate: Callable[[int, float], float], make: Callable[[float], Any], least_steps: int = 1
) -> Method[Planned, Options]:
    """A method. rate: rate(T, C_g) is the default learning rate. make: make(η) is the optimiser of optax."""

    def complete(facts: Facts, plan_options: Planned, noise: Mechanism | None, given: Given) -> Options:
        """All options, from public facts."""
        long = length(facts, given)
        # Without noise nothing is clipped, so steps are as long as records make them.
        usual = RAW_CLIP if plan_options.raw_features and noise is not None else GRADIENT_CLIP * long
        clip = given.get("gradient_clip", usual)
        default = rate(given.get("steps", STEPS), clip) / long
        computed = {**vars(plan_options), "learning_rate": default, "gradient_clip": clip}
        options = Options(**chosen(Options, given, computed))
        if options.learning_rate * options.weight_decay > 1:
            raise conflict(
                f"{parameter('learning_rate')} times {parameter('weight_decay')} is more than 1: each step would turn "
                "the weights round.",
                f"Choose a {parameter('weight_decay')} of at most {1 / options.learning_rate:.3g}.",
            )
        return options

    def solve(oracle: Oracle, facts: Facts, options: Options) -> Solution:
        """Algorithm 1; the last iterate or the average."""
        chain: Chain = (Clip(options.feature_clip),)
        bias = options.bias_feature
        if options.steps is None:
            return optimum.solve(oracle, facts, chain, bias, options.loss)
        chain, held = () if options.raw_features else chain, held_bias(options.loss, bias)
        decay = options.learning_rate * options.weight_decay * (np.arange(facts.d + bool(bias)) < facts.d)[:, None]
        stepper = make(options.learning_rate)
        theta = start(facts, options.loss, bias)
        state = stepper.init(theta)
        mean, expected = np.zeros_like(theta), options.sampling_rate * facts.n
        for t in range(options.steps):
            query = Gradient(chain, theta, clip=options.gradient_clip, constant=bias, loss=options.loss, offset=held)
            updates, state = stepper.update(oracle.release(query) / expected, state, theta)
            theta = theta - decay * theta + np.asarray(updates, np.float64)
            late = t - options.steps // 2
            if late >= 0:
                mean += (theta - mean) / (late + 1)
        theta = mean if options.average else theta
        weight, offset = affine(theta, bias, held)
        return Solution(chain=chain, weight=weight, bias=offset)

    return Method(
        name=name,
        title=title,
        options=Options,
        planned=options_of_plan,
        plan=plan,
        complete=complete,
        solve=solve,
        copies=10,
        runs_to_optimum=True,
        least_steps=least_steps,
        published={
            "steps": 100,
            "loss": "sigmoid",
            "sampling_rate": 1.0,
            "raw_features": True,
            "bias_feature": 0.0,
            "gradient_clip": 0.005,
            "average": False,
        },
    )


def _adam_rate(steps: int, clip: float) -> float:
    return ADAM_RATE * 2 ** -math.log10(steps / 10)


METHODS = (
    _method("dp-sgd", "stochastic gradient descent", _as_far(6000.0), _optax("sgd"), least_steps=20),
    _method(
        "dp-momentum",
        "gradient descent with momentum",
        _as_far(600.0),
        _optax("sgd", momentum=MOMENTUM),
        least_steps=20,
    ),
    _method("dp-adam", "Adam", _adam_rate, _optax("adam")),
)
