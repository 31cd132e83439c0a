"""DP-LS: private least squares (Mehta et al. 2022, Algorithm 3).

It makes three releases for any number of classes: the Gram matrix G, the class Grams A_j and the class sums b_j of the
clipped features (`feature_clip`, C). Then, as post-processing, θ_j = [A_j + α·G + λ·n·I]⁻¹ b_j. α is `negative_weight`:
the weight of the records of all classes. λ is `damping`. It is per record and in units of C², so it means the same for
every n and every scale of the features. There is no bias: a constant feature of 1/√d gains 0.2 points on
average, −1.0 to 1.7, on four sets at ε = 0.1, 1 and 8.
"""

import math
from dataclasses import dataclass

import numpy as np

from dpfc_cli.methods import options as declare
from dpfc_cli.methods.linear import noise_edge, symmetric_psd, threads_for
from dpfc_cli.methods.method import Given, Method, Solution, chosen
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.forms import OPEN
from dpfc_cli.privacy.oracle import Mechanism, Oracle, Plan, planned
from dpfc_cli.privacy.queries import ClassGrams, ClassSums, Gram, Query
from dpfc_cli.threads import in_threads

SHARES = (0.2, 0.1, 0.7)
"""The shares of G, A_j and b_j. Every class depends on its b_j, while a noisy A_j adds little. Compared with equal
shares this gains 5 to 9 points where the noise is strong, and loses at most 0.7 points at ε = 8.
"""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The options that shape the plan."""

    budget_split: tuple[float, ...] = declare.split(
        "the Gram matrix", "the class Grams", "the class sums", value=SHARES
    )


@dataclass(frozen=True, kw_only=True)
class Options(Planned):
    """Lengths are in units of the feature clipping norm C."""

    negative_weight: float = declare.computed(grid=(0.3, 1.0, 3.0))
    damping: float = declare.computed(grid=(0.25, 1.0, 4.0))
    feature_clip: float = declare.default(0.005, optimum=True)
    raw_matrices: bool = declare.default(False, private=True)


def options_of_plan(facts: Facts, given: Given, private: bool) -> Planned:
    """The split of the budget."""
    return Planned(**chosen(Planned, given, {}))


def complete(facts: Facts, plan_options: Planned, noise: Mechanism | None, given: Given) -> Options:
    """All options, from public facts and the noise.

    feature_clip: the paper's 0.005. It is smaller than practically every feature vector, so all records get the same
    length.

    negative_weight: A_j is useful as long as its noise is small compared with the number of records of a class, n/m. So
    α = 0.1 without noise, and it grows with √(m·edge), the noise of A_j relative to a class.

    damping: α·(¾·edge + 1e-4), where edge is the edge of the noise in G (the largest eigenvalue of that noise). Half
    and twice that are as good; a quarter is not. If negative eigenvalues stay (`raw_matrices`), it is twice the edge of
    all noise in A_j + α·G, so that the sum is positive.
    """
    edges = [0.0, 0.0] if noise is None else [noise_edge(facts, facts.d, sigma) for sigma in noise.sigmas[:2]]
    weight = given.get("negative_weight", 0.1 + 3 * math.sqrt(facts.m * edges[1]))
    damping = max(weight, 0.1) * (0.75 * edges[0] + 1e-4)
    if given.get("raw_matrices", False):
        damping = 2 * (weight * edges[0] + edges[1]) + 1e-5
    return Options(**chosen(Options, given, {**vars(plan_options), "negative_weight": weight, "damping": damping}))


def plan(facts: Facts, options: Planned) -> Plan:
    """The releases G, A_j and b_j."""
    chain = (Clip(OPEN),)
    queries: tuple[Query, ...] = (Gram(chain), ClassGrams(chain), ClassSums(chain))
    return Plan(tuple(planned(query, facts, w) for query, w in zip(queries, options.budget_split, strict=True)))


def solve(oracle: Oracle, facts: Facts, options: Options) -> Solution:
    """Algorithm 3. G and each A_j are first projected to the positive semi-definite matrices, where the exact ones
    lie, unless they are to stay `raw_matrices`.
    """
    chain, psd = (Clip(options.feature_clip),), np.asarray if options.raw_matrices else symmetric_psd
    (gram,) = in_threads(psd, [oracle.release(Gram(chain))], min(1, threads_for(facts.d)))
    class_grams = oracle.pieces(ClassGrams(chain))
    sums = oracle.release(ClassSums(chain))
    common = options.negative_weight * gram + options.damping * facts.n * np.eye(facts.d)
    weight = np.empty((facts.d, facts.m))

    def column(given: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        return np.asarray(np.linalg.solve(psd(given[0]) + common, given[1]))

    matrices = (matrix for piece in class_grams for matrix in piece)
    for j, made in enumerate(in_threads(column, zip(matrices, sums, strict=True), threads_for(facts.d))):
        weight[:, j] = made
    return Solution(chain=chain, weight=weight, bias=np.zeros(facts.m))


METHOD = Method(
    name="dp-ls",
    title="private least squares",
    options=Options,
    planned=options_of_plan,
    plan=plan,
    complete=complete,
    solve=solve,
    federated=True,
    published={"budget_split": (1, 1, 1), "feature_clip": 0.005, "raw_matrices": True},
)
