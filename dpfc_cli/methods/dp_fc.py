"""DP-FC: logistic regression preconditioned by the feature covariance (Mehta et al. 2022, Algorithm 4).

One release of the Gram matrix of the features, T releases of the clipped gradient of the sigmoid loss, and
θ ← θ − η·(G/n + λI)⁻¹·g/n. The bias is the weight of a constant feature and starts at −10, as in the paper: every class
starts out improbable, so the first gradients are the class sums.

The constant feature has the value 0.2 where the paper's has 1 and features are measured in C_G. It is the same model;
but a constant of 1 is half of every record's squared length, so half of what the clipping leaves and the noise buys
would go into the bias.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpfc_cli.methods import optimum
from dpfc_cli.methods.linear import damped_inverse, noise_edge, start
from dpfc_cli.methods.method import Method, Solution
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.oracle import Facts, Oracle, Plan, Release
from dpfc_cli.privacy.queries import Gradient, Gram, Loss

STEPS = 20
GRADIENT_CLIP = 0.36


@dataclass(frozen=True)
class Options:
    """steps: T; None, without privacy: to the optimum. eta: learning rate η. lam: damping λ of the preconditioner, per
    record and in units of C_G². clip: C_G, in the features' units. gradient_clip: C_g, in units of C_G. constant: value
    of the bias's feature, in units of C_G. split: fractions of μ² for G and for all gradients together.
    """

    steps: int | None
    eta: float
    lam: float
    clip: float
    gradient_clip: float
    split: tuple[float, ...]
    constant: float = 0.2
    loss: Loss = "sigmoid"


def defaults(facts: Facts, mu: float | None, given: Mapping[str, Any]) -> Options:
    """Defaults from public facts.

    clip: as in DP-LS. lam: the edge of the noise that is left in G, which makes the noise in a step's logits
    independent of ε and n; hence one η serves every ε, growing as √d, with a floor that lets the bias climb from −10.
    What matters is the total step T·η·C_g, so η makes up for other T and C_g; of C_g itself 0.14 is better in 21 of 72
    cells of docs/accuracy.md and 0.9 in 10. T = 20: 10 is up to 3 points worse at ε = 0.01, 40 no better. Equal shares:
    a larger one for G costs at small ε. Without noise and clip η = 8 is stable; 64 oscillates.
    """
    steps = given.get("steps", STEPS)
    split = given.get("split", (1 / (steps + 1), steps / (steps + 1)))
    common = {"steps": given.get("steps") if mu is None else steps, "clip": 0.005, "split": split}
    if mu is None:
        return Options(**{**common, "eta": 8.0, "lam": 5e-4, "gradient_clip": 1.0, **given})
    clip, constant = given.get("gradient_clip", GRADIENT_CLIP), given.get("constant", Options.constant)
    sigma = 1 / (mu * math.sqrt(split[0]))
    lam = (1 + constant**2) * noise_edge(facts, facts.d + 1, sigma) + 5e-5
    eta = max(20.0, 2.2 * math.sqrt(facts.d)) * (STEPS / steps) * (GRADIENT_CLIP / clip)
    return Options(**{**common, "eta": eta, "lam": lam, "gradient_clip": clip, **given})


def plan(facts: Facts, options: Options) -> Plan:
    """One Gram matrix and T gradients."""
    if options.steps is None:
        return optimum.plan(facts, options.loss)
    side, (first, rest) = facts.d + 1, options.split
    gradients = [Release("gradient", (side, facts.m), rest / options.steps)] * options.steps
    return Plan((Release("gram", (side, side), first), *gradients))


def solve(oracle: Oracle, facts: Facts, options: Options) -> Solution:
    """Algorithm 4 with a constant step; the last iterate."""
    chain, constant = (Clip(options.clip),), options.constant
    if options.steps is None:
        return optimum.solve(oracle, facts, chain, constant, options.loss)
    precondition = damped_inverse(oracle.release(Gram(chain, constant)) / facts.n, options.lam)
    theta = start(facts, options.loss, constant)
    for _ in range(options.steps):
        gradient = oracle.release(Gradient(chain, theta, options.gradient_clip, constant, options.loss))
        theta = theta - options.eta * precondition @ gradient / facts.n
    return Solution(chain, theta[:-1], constant * theta[-1])


METHOD = Method(
    "dp-fc",
    "logistic regression preconditioned by the feature covariance",
    Options,
    defaults,
    plan,
    solve,
    {"eta": (0.3, 1.0, 3.0), "lam": (0.25, 1.0, 4.0)},
)
