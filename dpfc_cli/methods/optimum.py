"""The non-private optimum of logistic regression: what the private methods of that loss are measured against.

Without noise all of them have the same goal, so their twins share one way to it, and it is not theirs: first-order
steps would take hours to get as close. For the sigmoid loss the classes are apart, and each takes Newton steps on its
own Hessian, halved while they overshoot. The softmax loss couples the classes, and Newton's matrix would have side m·d;
there gradients are preconditioned by Böhning's bound on the Hessian, ½·G/n for every class, and accelerated with
restarts (Böhning 1992; O'Donoghue and Candès 2015, the gradient scheme).

A ridge of `RIDGE`/2·‖w‖² on the weights of each class, not on the bias, lets an optimum exist where classes can be
separated. It is scikit-learn's loss at C = 1/(n·RIDGE).
"""

import numpy as np

from dpfc_cli.methods.linear import blocks, damped_inverse, symmetric_psd
from dpfc_cli.methods.method import Solution
from dpfc_cli.privacy.chain import Chain, Clip
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.oracle import Oracle, Plan, planned
from dpfc_cli.privacy.queries import OPEN, Gradient, Gram, Hessians, Loss

NEWTON_STEPS, HALVINGS, GRADIENT_STEPS = 40, 20, 2000
TOLERANCE = 1e-6
"""Of a step, relative to θ. Newton's error is then about its square; logits are float32 and bear no more."""
RIDGE = 1e-5
"""Per record, in units of the clipping norm squared. A tenth and ten times as much make the twin of DP-FC 1.1 and 2.3
points worse on CIFAR-100's features, less than one on CIFAR-10's."""
FLOOR = 1e-12
"""Damping relative to a matrix's trace: dead dimensions stay where they are."""
UNCLIPPED = 1e6


def plan(facts: Facts, loss: Loss) -> Plan:
    """What one step asks for; how many it takes depends on the records, so this says nothing of the number."""
    chain = (Clip(OPEN),)
    gradient = planned(Gradient(chain, OPEN, OPEN, OPEN, loss), facts, 1.0)
    if loss == "softmax":
        return Plan((planned(Gram(chain, OPEN), facts, 1.0), gradient))
    hessians = [planned(Hessians(chain, OPEN, start, stop, OPEN), facts, 1.0) for start, stop in blocks(facts)]
    return Plan((gradient, *hessians))


def solve(oracle: Oracle, facts: Facts, chain: Chain, constant: float, loss: Loss) -> Solution:
    """The optimum of the loss over records without clip and noise, with a bias. `oracle` must be the non-private
    one.
    """
    theta, converged = (_newton if loss == "sigmoid" else _accelerated)(oracle, facts, chain, constant)
    return Solution(chain=chain, weight=theta[:-1], bias=constant * theta[-1], converged=converged)


def _newton(oracle: Oracle, facts: Facts, chain: Chain, constant: float) -> tuple[np.ndarray, bool]:
    theta, ridge = np.zeros((facts.d + 1, facts.m)), _ridge(facts)
    gradient = _gradient(oracle, facts, chain, constant, theta, "sigmoid")
    for _ in range(NEWTON_STEPS):
        step = np.empty_like(theta)
        for start, stop in blocks(facts):
            for j, h in enumerate(oracle.release(Hessians(chain, theta, start, stop, constant)), start):
                h = h / facts.n + ridge
                step[:, j] = -damped_inverse(h, FLOOR * (np.trace(h) + FLOOR)) @ gradient[:, j]
        slope = np.sum(gradient * step, axis=0)
        for _ in range(HALVINGS):
            gradient = _gradient(oracle, facts, chain, constant, theta + step, "sigmoid")
            # A convex function that rises at the end of a step as it fell at its beginning has been overshot.
            over = np.sum(gradient * step, axis=0) > -0.5 * slope
            if not over.any():
                break
            step, slope = np.where(over, step / 2, step), np.where(over, slope / 2, slope)
        theta = theta + step
        if np.linalg.norm(step) <= TOLERANCE * np.linalg.norm(theta):
            return theta, True
    return theta, False


def _accelerated(oracle: Oracle, facts: Facts, chain: Chain, constant: float) -> tuple[np.ndarray, bool]:
    gram = symmetric_psd(oracle.release(Gram(chain, constant)) / facts.n) / 2 + _ridge(facts)
    values, vectors = np.linalg.eigh(gram + FLOOR * np.trace(gram) * np.eye(len(gram)))
    root = vectors / np.sqrt(values)
    # In the coordinates u = root⁻¹·θ the Hessian is at most the identity: a step of 1 always descends.
    ahead = u = np.zeros((facts.d + 1, facts.m))
    momentum = 1.0
    for _ in range(GRADIENT_STEPS):
        gradient = root.T @ _gradient(oracle, facts, chain, constant, root @ ahead, "softmax")
        last, u = u, ahead - gradient
        if np.linalg.norm(gradient) <= TOLERANCE / 10 * np.linalg.norm(u):
            return np.asarray(root @ u), True
        if np.sum(gradient * (u - last)) > 0:
            momentum, ahead = 1.0, u
            continue
        grown = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = u + (momentum - 1) / grown * (u - last)
        momentum = grown
    return np.asarray(root @ u), False


def _gradient(oracle: Oracle, facts: Facts, chain: Chain, constant: float, theta: np.ndarray, loss: Loss) -> np.ndarray:
    sums = oracle.release(Gradient(chain, theta, UNCLIPPED, constant, loss))
    return np.asarray(sums / facts.n + _ridge(facts) @ theta)


def _ridge(facts: Facts) -> np.ndarray:
    return np.diag([RIDGE] * facts.d + [0.0])
