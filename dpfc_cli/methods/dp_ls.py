"""DP-LS: private least squares (Mehta et al. 2022, Algorithm 3).

Three releases, whatever the number of classes: the Gram matrix G, the class Grams A_j and the class sums b_j of the
clipped features. Then, as post-processing, θ_j = [A_j + α·G + λ·n·I]⁻¹ b_j. α weighs the negatives; λ is a ridge, per
record and in units of C², so that it means the same at every n and every scale of features. There is no bias: with
noise a constant feature costs more than it gives.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfc_cli.methods.linear import noise_edge, symmetric_psd
from dpfc_cli.methods.method import Method, Solution
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.oracle import Facts, Oracle, Plan, Release
from dpfc_cli.privacy.queries import ClassGrams, ClassSums, Gram

SHARES = (0.2, 0.1, 0.7)
"""Of G, A_j and b_j. Every class depends on its b_j, while a noisy A_j adds little: against equal shares this gains 5
to 9 points where noise is strong and loses at most 0.7 at ε = 8."""


@dataclass(frozen=True)
class Options:
    """alpha: weight of the negatives. lam: ridge per record, in units of C². clip: C, in the features' units.
    split: fractions of μ² for G, the A_j and the b_j.
    """

    alpha: float
    lam: float
    clip: float
    split: tuple[float, ...] = SHARES


def defaults(facts: Facts, mu: float | None, given: Mapping[str, Any]) -> Options:
    """Defaults from public facts.

    clip: the paper's 0.005, smaller than practically every feature vector, so that all records get the same length.
    alpha: A_j is worth listening to while its noise is small beside a class's records, n/m: α = 0.1 without noise, and
    grows with √(m·edge), the noise of A_j relative to a class. lam: α·(¾·edge + 1e-4), the edge of the noise that is
    left in G; half and twice that are as good, a quarter is not.
    """
    split = given.get("split", SHARES)
    edges = [0.0, 0.0] if mu is None else [noise_edge(facts, facts.d, 1 / (mu * math.sqrt(s))) for s in split[:2]]
    alpha = given.get("alpha", 0.1 + 3 * math.sqrt(facts.m * edges[1]))
    return Options(**{"alpha": alpha, "lam": max(alpha, 0.1) * (0.75 * edges[0] + 1e-4), "clip": 0.005, **given})


def plan(facts: Facts, options: Options) -> Plan:
    """G, A_j and b_j."""
    d, m = facts.d, facts.m
    shapes = {"gram": (d, d), "class_grams": (m, d, d), "class_sums": (m, d)}
    return Plan(
        tuple(Release(kind, shape, share) for (kind, shape), share in zip(shapes.items(), options.split, strict=True))
    )


def solve(oracle: Oracle, facts: Facts, options: Options) -> Solution:
    """Algorithm 3, with G and each A_j projected to the positive semi-definite matrices, where the exact ones lie."""
    chain = (Clip(options.clip),)
    gram = symmetric_psd(oracle.release(Gram(chain)))
    class_grams = oracle.release(ClassGrams(chain))
    sums = oracle.release(ClassSums(chain))
    common = options.alpha * gram + options.lam * facts.n * np.eye(facts.d)
    weight = np.empty((facts.d, facts.m))
    for j in range(facts.m):
        weight[:, j] = np.linalg.solve(symmetric_psd(class_grams[j]) + common, sums[j])
    return Solution(chain, weight, np.zeros(facts.m))


METHOD = Method(
    "dp-ls",
    "private least squares",
    Options,
    defaults,
    plan,
    solve,
    {"alpha": (0.3, 1.0, 3.0), "lam": (0.25, 1.0, 4.0)},
)
