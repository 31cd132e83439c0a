"""DP-FC: logistic regression preconditioned by the feature covariance (Mehta et al. 2022, Algorithm 4).

One release of the Gram matrix of the features, T releases of the clipped gradient of the logistic loss, and θ ← θ −
η·(G/n + λI)⁻¹·g/n. The bias is the weight of a constant feature and starts at −10, as in the paper: every class starts
out improbable, so the first gradients are the class means.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.oracle import Facts, Oracle, Plan, Release
from dpfc_cli.privacy.queries import Gradient, Gram
from dpfc_cli.solvers.linear import symmetric_psd
from dpfc_cli.solvers.method import Method, Solution

START_BIAS = -10.0


@dataclass(frozen=True)
class Options:
    """steps: T. eta: learning rate η. lam: damping λ of the preconditioner, per record and in units of C_G². clip: C_G,
    in the features' units. gradient_clip: C_g, in units of a gradient with respect to features measured in C_G.
    """

    steps: int
    eta: float
    lam: float
    clip: float
    gradient_clip: float


def defaults(facts: Facts, mu: float | None, given: Mapping[str, Any]) -> Options:
    """PLACEHOLDER"""
    steps = int(given.get("steps") or (10 if mu is not None else 300))
    lam = 1e-5
    if mu is not None:
        edge = math.sqrt(2 * facts.d) * 2 * math.sqrt(steps + 1) / mu / facts.n
        lam = 1e-5 + edge
    return Options(**{"steps": steps, "eta": 50.0, "lam": lam, "clip": 0.005, "gradient_clip": 0.5, **given})


def plan(facts: Facts, options: Options) -> Plan:
    """One Gram matrix and T gradients, in equal shares."""
    side, share = facts.d + 1, 1 / (options.steps + 1)
    return Plan(
        (
            Release("gram", (side, side), share),
            *(Release("gradient", (side, facts.m), share) for _ in range(options.steps)),
        )
    )


def solve(oracle: Oracle, facts: Facts, options: Options) -> Solution:
    """Algorithm 4 with a constant step; the last iterate."""
    chain = (Clip(options.clip),)
    gram = symmetric_psd(oracle.release(Gram(chain, bias=True))) / facts.n
    precondition = np.linalg.inv(gram + options.lam * np.eye(facts.d + 1))
    theta = np.zeros((facts.d + 1, facts.m))
    theta[-1] = START_BIAS
    for _ in range(options.steps):
        gradient = oracle.release(Gradient(chain, theta, options.gradient_clip, bias=True))
        theta = theta - options.eta * precondition @ gradient / facts.n
    return Solution(chain, theta[:-1], theta[-1])


METHOD = Method("dp-fc", "logistic regression preconditioned by the feature covariance", Options, defaults, plan, solve)
