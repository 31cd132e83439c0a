"""DP-SGD, DP-Momentum and DP-Adam: first-order methods on clipped, noised gradients (Mehta et al. 2022, Algorithm 1).

T releases of the gradient, each record's clipped to C_g, and after each a step of the optimiser on gradient/(q·n), by
optax. For a linear model a record's gradient has rank one, so it is clipped without being formed
(`privacy.queries.Gradient`).

With a sampling rate q < 1 each step sees a Poisson sample: every record takes part with probability q, independently,
by the curator's own draw. The expected size q·n normalises the gradient; the actual size is private. Accounting is then
by privacy loss distributions, and not composed in closed form.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfc_cli.methods import optimum
from dpfc_cli.methods.linear import start
from dpfc_cli.methods.method import Method, Solution
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.oracle import Facts, Oracle, Plan, Release
from dpfc_cli.privacy.queries import Gradient, Loss

STEPS = 100
MOMENTUM = 0.9
GRADIENT_CLIP = 0.5
TRAVEL = {"dp-sgd": 6000.0, "dp-momentum": 600.0}
"""2·T·η·C_g: their steps are as long as the clipped gradients. With momentum 0.9 a step goes ten times as far. Measured
at ε = 0.1 to 8 and T = 100: a third or three times as much costs up to 3 points at the one end or the other."""
ADAM_ETA = 0.4
"""At T = 10; of ten times as many steps each is half as long. Adam's steps have a length of their own, whatever the
gradients': so they lead further, and the walk that the noise takes, of η·√T, hardly does. At T = 10 no other rate of a
grid in factors of 3 is better on average (docs/reproduction.md). At T = 100 this is 0.2: on CIFAR's features and three
synthetic sets at ε = 0.1, 1 and 8, 0.4 is up to 3 points worse and 1.4 better, 0.13 up to 4 worse and 0.9 better."""


@dataclass(frozen=True)
class Options:
    """steps: T; None, without privacy: to the optimum. eta: learning rate η. clip: norm of the features, in their own
    units. gradient_clip: C_g, in units of clip. sampling_rate: q. average: the mean of the second half of the iterates
    instead of the last. constant: value of the bias's feature, in units of clip.
    """

    steps: int | None
    eta: float
    clip: float
    gradient_clip: float
    loss: Loss = "sigmoid"
    sampling_rate: float = 1.0
    average: bool = False
    constant: float = 1.0


def _defaults(name: str) -> Callable[[Facts, float | None, Mapping[str, Any]], Options]:
    def defaults(facts: Facts, mu: float | None, given: Mapping[str, Any]) -> Options:
        """Defaults from public facts: T = 100, the paper's longest; clip as in the other methods; the bias's feature as
        long as the others together, as in the paper; and η from `TRAVEL`, so that it makes up for other T and C_g, or
        from `ADAM_ETA`. C_g = 0.5 and a momentum of 0.9 are customary.
        """
        steps, clip = given.get("steps", STEPS), given.get("gradient_clip", GRADIENT_CLIP)
        adam = ADAM_ETA * 2 ** -math.log10(steps / 10)
        eta = adam if name == "dp-adam" else TRAVEL[name] / steps / (2 * clip)
        default = STEPS if mu is not None else None
        return Options(**{"steps": default, "eta": eta, "clip": 0.005, "gradient_clip": clip, **given})

    return defaults


def plan(facts: Facts, options: Options) -> Plan:
    """T gradients in equal shares."""
    if options.steps is None:
        return optimum.plan(facts, options.loss)
    release = Release("gradient", (facts.d + 1, facts.m), 1 / options.steps, options.sampling_rate)
    return Plan((release,) * options.steps)


def _solve(name: str) -> Callable[[Oracle, Facts, Options], Solution]:
    def solve(oracle: Oracle, facts: Facts, options: Options) -> Solution:
        """Algorithm 1; the last iterate or the average."""
        chain, constant = (Clip(options.clip),), options.constant
        if options.steps is None:
            return optimum.solve(oracle, facts, chain, constant, options.loss)
        import optax

        optimiser = {
            "dp-sgd": lambda: optax.sgd(options.eta),
            "dp-momentum": lambda: optax.sgd(options.eta, momentum=MOMENTUM),
            "dp-adam": lambda: optax.adam(options.eta),
        }[name]()
        theta = start(facts, options.loss, constant)
        state = optimiser.init(theta)
        mean, expected = np.zeros_like(theta), options.sampling_rate * facts.n
        for t in range(options.steps):
            query = Gradient(chain, theta, options.gradient_clip, constant, options.loss)
            updates, state = optimiser.update(oracle.release(query) / expected, state, theta)
            theta = theta + np.asarray(updates, np.float64)
            late = t - options.steps // 2
            if late >= 0:
                mean += (theta - mean) / (late + 1)
        theta = mean if options.average else theta
        return Solution(chain, theta[:-1], constant * theta[-1])

    return solve


METHODS = tuple(
    Method(name, title, Options, _defaults(name), plan, _solve(name), {"eta": (0.1, 0.3, 1.0, 3.0)}, copies=10)
    for name, title in (
        ("dp-sgd", "stochastic gradient descent"),
        ("dp-momentum", "gradient descent with momentum"),
        ("dp-adam", "Adam"),
    )
)
