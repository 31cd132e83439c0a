"""What several trainings spend together, if each is chosen by looking at what the ones before have released.

The spending of a training is Σ 1/σ² over its releases (its μ²) and Σ η. A *filter* is a pair of bounds M and H on the
sums of all trainings (`most`, `RESERVE`).

**Theorem.** Let M and H be fixed in advance. Trainings are made one after another. Whether there is one more, of which
features, with which method and with how much noise may depend on everything that was released before. None is made that
would take a sum above M or H. Then everything that is released together is (ε, δ)-private under zero-out adjacency, for
all ε and δ with δ(ε; μ) + (1 + e^ε)·H ≤ δ, where δ(ε; μ) is that of `accounting.delta_of`.

Proof. Take two neighbouring data sets.

(1) Ideal noise. Given the answers so far, the next release is known up to its noise: by `curator` it is a Gaussian, and
    the data sets move its mean by at most a ≤ 1/σ standard deviations. Only the coordinate X in the direction of this
    move tells the data sets apart. X is N(0, 1) for the one and N(a, 1) for the other, and the logarithm of the
    likelihood ratio grows by a·X − a²/2. When the trainings have ended, let there be one more release with
    a² = M − Σ a². It only helps the attacker. Now Σ a² = M, always. Each a depends on earlier answers alone, so
    E exp(iu·Σ a·X + u²/2·Σ a²) = 1 for the first data set (take the expectation release by release, from the last
    one). As Σ a² = M is a constant, Σ a·X is exactly N(0, M), and the logarithm is N(−M/2, M). For the second data set
    it is N(M/2, M), in the same way. These are the distributions of the logarithm for N(0, 1) and N(μ, 1). So by
    Neyman and Pearson no test does better than there: everything together is μ-GDP.

(2) The noise that is drawn is within η of the ideal noise, in total variation, whatever the earlier answers were.
    Exchange the one for the other, training by training: what is released moves by at most Σ η ≤ H. For any set S of
    outcomes P(S) ≤ P*(S) + H ≤ e^ε·P*′(S) + δ(ε; μ) + H ≤ e^ε·P′(S) + δ(ε; μ) + (1 + e^ε)·H. ∎

The theorem is known: a privacy filter (Rogers, Roth, Ullman and Vadhan 2016) that for Gaussian differential privacy
costs nothing (Smith and Thakurta 2022, "Fully adaptive composition for Gaussian differential privacy"; Koskela, Tobaben
and Honkela 2023, "Individual privacy accounting with Gaussian differential privacy").

Trainings may run at the same time. The proof takes release by release, in the order in which they are made, and each
training was charged before. A record has its own sum of a². It lies in one split of each set, so its sum is at most the
population's, and the proof holds for it.

- **Sampled releases** count as full passes. Show the attacker who takes part. Then a is 1/σ or 0, and the proof holds.
  For what is gained by sampling we have no such theorem.
- **Units.** For another unit than its own a training has a ≤ weight/σ (`weight`), or no a.
"""

import math

from dpfc_cli.privacy.accounting import mu_for
from dpfc_cli.privacy.facts import Adjacency, Unit

RESERVE = 2.0**-190
"""H of every filter: the η of 2⁵⁰ samples of noise. No training draws so many, and no δ shows so little."""
_ROUNDING = 1e-12
"""For sums of 1/σ² in float64. `most` is by 2e-9 of it too small, so this much more does no harm."""


def most(epsilon: float, delta: float) -> float:
    """M, the μ² that may be spent. ValueError where ε or δ is out of range."""
    return mu_for(epsilon, delta, RESERVE) ** 2 * (1 + _ROUNDING)


def weight(unit: Unit, of: Unit, adjacency: Adjacency) -> float:
    """How many times its μ a training that protects a unit `of` spends for another `unit`.

    If one record of a person changes, the clipped sum of the person changes from one vector to another one. Both are at
    most as long as the bound, so the change is at most twice the bound: twice the μ. Under replace-one the noise is for
    such a change already. A training that protects records has no μ for persons, who may have any number of records.
    """
    if unit == "person" != of:
        return math.inf
    return 2.0 if unit != of and adjacency == "zero-out" else 1.0
