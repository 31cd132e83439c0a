"""DP-LS: private least squares (Mehta et al. 2022, Algorithm 3).

Three releases, whatever the number of classes: the Gram matrix G, the class Grams A_j and the class sums b_j of the
clipped features. Then, as post-processing, θ_j = [A_j + α·G + λ·n·I]⁻¹ b_j. α weighs the negatives; λ is a ridge, per
record and in units of C², so that it means the same at every n and every scale of features.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.oracle import Facts, Oracle, Plan, Release
from dpfc_cli.privacy.queries import ClassGrams, ClassSums, Gram
from dpfc_cli.solvers.linear import symmetric_psd
from dpfc_cli.solvers.method import Method, Solution


@dataclass(frozen=True)
class Options:
    """alpha: weight of the negatives. lam: ridge per record, in units of C². clip: C, in the features' units."""

    alpha: float
    lam: float
    clip: float


def defaults(facts: Facts, mu: float | None, given: Mapping[str, Any]) -> Options:
    """PLACEHOLDER"""
    lam = 1e-4
    if mu is not None:
        edge = math.sqrt(2 * facts.d) * math.sqrt(3) / mu / facts.n
        lam = 1e-5 + edge
    return Options(**{"alpha": 1.0, "lam": lam, "clip": 0.005, **given})


def plan(facts: Facts, options: Options) -> Plan:
    """Three equal releases."""
    d, m = facts.d, facts.m
    return Plan(
        (Release("gram", (d, d), 1 / 3), Release("class_grams", (m, d, d), 1 / 3), Release("class_sums", (m, d), 1 / 3))
    )


def solve(oracle: Oracle, facts: Facts, options: Options) -> Solution:
    """Algorithm 3, with A_j + α·G projected to the positive semi-definite matrices, where the exact one lies."""
    chain = (Clip(options.clip),)
    gram = oracle.release(Gram(chain))
    class_grams = oracle.release(ClassGrams(chain))
    sums = oracle.release(ClassSums(chain))
    ridge = options.lam * facts.n * np.eye(facts.d)
    weight = np.empty((facts.d, facts.m))
    for j in range(facts.m):
        weight[:, j] = np.linalg.solve(symmetric_psd(class_grams[j] + options.alpha * gram) + ridge, sums[j])
    return Solution(chain, weight, np.zeros(facts.m))


METHOD = Method("dp-ls", "private least squares", Options, defaults, plan, solve)
