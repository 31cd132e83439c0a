"""DP-SGD, DP-Momentum and DP-Adam: first-order methods on clipped, noised gradients (Mehta et al. 2022, Algorithm 1).

T releases of the gradient, each record's clipped to C_g, and after each a step of the optimiser on gradient/(q·n), by
optax. For a linear model a record's gradient has rank one, so it is clipped without being formed
(`privacy.queries.Gradient`).

With a sampling rate q < 1 each step sees a Poisson sample: every record takes part with probability q, independently,
by the curator's own draw. The expected size q·n normalises the gradient; the actual size is private. Accounting is then
by privacy loss distributions, and not composed in closed form.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfc_cli.methods import optimum
from dpfc_cli.methods import options as declare
from dpfc_cli.methods.linear import start
from dpfc_cli.methods.method import Given, Method, Solution, chosen
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.oracle import Mechanism, Oracle, Plan, planned
from dpfc_cli.privacy.queries import OPEN, Gradient, Loss

STEPS = 100
MOMENTUM = 0.9
GRADIENT_CLIP = 0.5
ADAM_RATE = 0.4
"""At T = 10. For ten times as many steps each is half as long. Adam's steps have a length of their own, whatever the
gradients' length. So its steps lead further, while the distance that noise moves θ, η·√T, hardly grows. At T = 10 no
other rate of a grid in factors of 3 is better on average (docs/reproduction.md). At T = 100 this is 0.2: on CIFAR's
features and three synthetic sets at ε = 0.1, 1 and 8, 0.4 is up to 3 points worse and 1.4 better, 0.13 up to 4 worse
and 0.9 better."""


@dataclass(frozen=True)
class Optimiser:
    """What makes a first-order method. rate(T, C_g): its default learning rate. make(η): optax's optimiser."""

    name: str
    title: str
    rate: Callable[[int, float], float]
    make: Callable[[float], Any]


def _as_far(travel: float) -> Callable[[int, float], float]:
    """The learning rate with 2·T·η·C_g = travel, for optimisers whose steps are as long as the clipped gradients.

    With momentum 0.9 a step goes ten times as far. Measured at ε = 0.1 to 8 and T = 100: a third or three times as
    much costs up to 3 points at the one end or the other.
    """
    return lambda steps, clip: travel / steps / (2 * clip)


def _optax(name: str, **fixed: float) -> Callable[[float], Any]:
    def make(rate: float) -> Any:
        import optax

        return getattr(optax, name)(rate, **fixed)

    return make


OPTIMISERS = (
    Optimiser("dp-sgd", "stochastic gradient descent", _as_far(6000.0), _optax("sgd")),
    Optimiser("dp-momentum", "gradient descent with momentum", _as_far(600.0), _optax("sgd", momentum=MOMENTUM)),
    Optimiser("dp-adam", "Adam", lambda steps, clip: ADAM_RATE * 2 ** -math.log10(steps / 10), _optax("adam")),
)


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What shapes the plan. steps: None, without privacy: to the optimum."""

    steps: int | None = declare.steps(STEPS, optimum=True)
    loss: Loss = declare.loss(("sigmoid", "softmax"))
    sampling_rate: float = declare.number(
        "Each step sees each record with this probability, drawn anew (Poisson sampling). 1: all records.",
        default="1",
        value=1.0,
        high=1.0,
        private=True,
    )


@dataclass(frozen=True, kw_only=True)
class Options(Planned):
    """Lengths are in units of the feature clipping norm C."""

    learning_rate: float = declare.learning_rate("for the number of steps and C_g", grid=(0.1, 0.3, 1.0, 3.0))
    feature_clip: float = declare.feature_clip(0.005)
    gradient_clip: float = declare.gradient_clip(GRADIENT_CLIP)
    average: bool = declare.switch("Use the mean of the second half of the steps instead of the last one.")
    bias_feature: float = declare.bias_feature(1.0)


def options_of_plan(facts: Facts, given: Given, private: bool) -> Planned:
    """T = 100, the paper's longest."""
    return Planned(**chosen(Planned, given, {"steps": STEPS if private else None}))


def plan(facts: Facts, options: Planned) -> Plan:
    """T gradients in equal shares."""
    if options.steps is None:
        return optimum.plan(facts, options.loss)
    query = Gradient((Clip(OPEN),), OPEN, OPEN, OPEN, options.loss)
    return Plan((planned(query, facts, 1 / options.steps, options.sampling_rate),) * options.steps)


def _complete(optimiser: Optimiser) -> Callable[[Facts, Planned, Mechanism | None, Given], Options]:
    def complete(facts: Facts, plan_options: Planned, noise: Mechanism | None, given: Given) -> Options:
        """All options: the feature clipping norm as in the other methods, the bias's feature as long as the others
        together, as in the paper; and a learning rate that makes up for other T and C_g. C_g = 0.5 and a momentum of
        0.9 are customary.
        """
        rate = optimiser.rate(given.get("steps", STEPS), given.get("gradient_clip", GRADIENT_CLIP))
        return Options(**chosen(Options, given, {**vars(plan_options), "learning_rate": rate}))

    return complete


def _solve(optimiser: Optimiser) -> Callable[[Oracle, Facts, Options], Solution]:
    def solve(oracle: Oracle, facts: Facts, options: Options) -> Solution:
        """Algorithm 1; the last iterate or the average."""
        chain, bias = (Clip(options.feature_clip),), options.bias_feature
        if options.steps is None:
            return optimum.solve(oracle, facts, chain, bias, options.loss)
        stepper = optimiser.make(options.learning_rate)
        theta = start(facts, options.loss, bias)
        state = stepper.init(theta)
        mean, expected = np.zeros_like(theta), options.sampling_rate * facts.n
        for t in range(options.steps):
            query = Gradient(chain, theta, options.gradient_clip, bias, options.loss)
            updates, state = stepper.update(oracle.release(query) / expected, state, theta)
            theta = theta + np.asarray(updates, np.float64)
            late = t - options.steps // 2
            if late >= 0:
                mean += (theta - mean) / (late + 1)
        theta = mean if options.average else theta
        return Solution(chain=chain, weight=theta[:-1], bias=bias * theta[-1])

    return solve


METHODS = tuple(
    Method(
        name=each.name,
        title=each.title,
        planned_type=Planned,
        options=Options,
        planned=options_of_plan,
        plan=plan,
        complete=_complete(each),
        solve=_solve(each),
        copies=10,
        runs_to_optimum=True,
    )
    for each in OPTIMISERS
)
