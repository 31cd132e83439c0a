"""The non-private optimum of logistic regression: the baseline for the private methods with that loss.

Without noise all these methods have the same optimum, so their non-private baselines share one way to compute it. It is
not the way of any of them: first-order steps would take hours to come as close, and the Hessians of all classes cost as
much as hundreds of gradients.

L-BFGS (Nocedal 1980) starts where every class has the probability 1/m, in coordinates in which the Hessian there is the
identity: (1/m)·G/n and the ridge, for each class. A step is halved if it is too long.

A ridge of `RIDGE`/2·‖w‖² on the weights of each class, but not on the bias, makes sure that an optimum exists if
classes can be separated. The loss is that of scikit-learn at C = 1/(n·RIDGE).
"""

import math
from collections import deque

import numpy as np

from dpfc_cli.methods.linear import affine
from dpfc_cli.methods.method import Solution
from dpfc_cli.privacy.chain import Chain, Clip
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.forms import OPEN
from dpfc_cli.privacy.inputs import Loss
from dpfc_cli.privacy.oracle import Oracle, Plan, planned
from dpfc_cli.privacy.queries import Gradient, Gram
from dpfc_cli.threads import in_threads

STEPS, HALVINGS, PAIRS = 1000, 20, 10
"""The most steps; how often one is halved; how many steps L-BFGS remembers."""
TOLERANCE = 1e-5
"""The length of the gradient, relative to θ, at which the search ends, in the coordinates of the search. Logits are
float32, so much more accuracy is not possible.
"""
RIDGE = 1e-5
"""Per record, in units of the squared clipping norm. A tenth of it and ten times as much make the non-private baseline
of DP-FC 1.1 and 2.3 points worse on the features of CIFAR-100, and less than one point worse on those of CIFAR-10.
"""
FLOOR = 1e-12
"""Damping relative to the trace of a matrix. Directions without variance stay where they are."""
UNCLIPPED = 1e6


def plan(facts: Facts, loss: Loss, constant: float) -> Plan:
    """The Gram matrix and one gradient. The number of gradients depends on the records, so the plan does not state
    it.
    """
    chain, constant = (Clip(OPEN),), OPEN if constant else 0.0
    gradient = planned(Gradient(chain, OPEN, clip=OPEN, constant=constant, loss=loss), facts, 1.0)
    return Plan((planned(Gram(chain, constant), facts, 1.0), gradient))


def solve(oracle: Oracle, facts: Facts, chain: Chain, constant: float, loss: Loss) -> Solution:
    """The optimum of the loss over records without clipping and noise. oracle: the non-private one. constant: the value
    of the bias feature; 0: there is no bias.
    """
    ridge = np.diag([RIDGE] * facts.d + [0.0] * bool(constant))
    gram = oracle.release(Gram(chain, constant)) / (facts.n * facts.m) + ridge
    ((values, vectors),) = in_threads(np.linalg.eigh, [gram], 1, blas=None)
    # In the coordinates u = root⁻¹·θ the Hessian at the start is about the identity.
    root = vectors / np.sqrt(np.maximum(values, 0.0) + FLOOR * values.sum())

    def gradient(u: np.ndarray) -> np.ndarray:
        theta = root @ u
        sums = oracle.release(Gradient(chain, theta, clip=UNCLIPPED, constant=constant, loss=loss))
        return np.asarray(root.T @ (sums / facts.n + ridge @ theta))

    bias = -math.log(facts.m) / constant if loss == "sigmoid" and constant else 0.0
    u = np.linalg.solve(root, np.outer(np.eye(len(root))[-1], np.full(facts.m, bias)))
    slope, pairs = gradient(u), deque[tuple[np.ndarray, np.ndarray]](maxlen=PAIRS)
    for _ in range(STEPS):
        if np.linalg.norm(slope) <= TOLERANCE * np.linalg.norm(u):
            break
        step = _step(slope, pairs)
        fall = np.sum(slope * step)
        for _ in range(HALVINGS):
            there = gradient(u + step)
            # The loss is convex. If at the end of the step it rises at least half as steeply as it fell at the
            # beginning, the step was too long.
            if np.sum(there * step) <= -0.5 * fall:
                break
            step, fall = step / 2, fall / 2
        # Between points that are almost one, rounding may hide that the loss is convex.
        if np.sum(step * (there - slope)) > 0:
            pairs.append((step, there - slope))
        u, slope = u + step, there
    theta = root @ u
    converged = bool(np.linalg.norm(slope) <= TOLERANCE * np.linalg.norm(u))
    weight, offset = affine(theta, constant)
    return Solution(chain=chain, weight=weight, bias=offset, converged=converged)


def _step(slope: np.ndarray, pairs: deque[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """The step of L-BFGS. pairs: the last steps, each with how much the gradient changed."""
    left, found = slope, []
    for step, change in reversed(pairs):
        found.append(np.sum(step * left) / np.sum(step * change))
        left = left - found[-1] * change
    if pairs:
        step, change = pairs[-1]
        left = left * (np.sum(step * change) / np.sum(change**2))
    for (step, change), part in zip(pairs, reversed(found), strict=True):
        left = left + (part - np.sum(change * left) / np.sum(step * change)) * step
    return -left
