"""What a cap is, and what fits under it.

A cap is a pair (ε, δ) that all trainings on the same records together never pass, however each of them is chosen. It is
kept as two numbers that only add up: M = μ² for the noise, and H for the distance of the sampler from it. A training
is refused if it would take Σ 1/σ² over all releases above M, or Σ η over all trainings above H.

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
training was charged before.

What counts how:

- **Every row counts**, whatever became of its training.
- **Replace-one.** Neighbours under zero-out are neighbours under replace-one, because the null record is one of those
  that a record may be exchanged for. So a ≤ 1/σ holds for its σ, too.
- **Sampled releases** of earlier trainings count as full passes. Show the attacker who takes part. Then a is 1/σ or 0,
  and the proof holds. To sample gains nothing here. What is gained elsewhere rests on an accounting for which we have
  no such theorem. So no sampled training is made under a cap.
- **Units.** A cap protects records, or the persons of one set. A training that protects persons counts for records with
  twice its μ (`ledger.weight`): then a ≤ 2/σ. A training that protects records, or other persons, has no a for persons.
  None is made under a cap for persons, and such a cap is not set after one.
- **Trainings without a guarantee** have no a. None is made under a cap, and no cap covers those before it.

**A cap that is changed** is no longer fixed in advance. The theorem then holds for the largest cap that could have been
set, whatever had been released. The ledger keeps all of them, with who and why.

H is 2⁵⁰ samples of noise. That is more than all trainings draw, and less than any δ can show.
"""

import math
from collections.abc import Iterable, Sequence

from dpfc_cli.errors import UserError, parameter
from dpfc_cli.privacy.accounting import LARGEST_EPSILON, LEAST_EPSILON, epsilon_for, mu_for
from dpfc_cli.rounding import rounded_down
from dpfc_cli.training.ledger import EVALUATION, RECORD, Cap, Entry, Unit, weight

RESERVE = 2.0**-190
"""H: 2⁵⁰ times the η of one sample."""
ROUNDING = 1e-12
"""Sums of 1/σ² are taken in float64. M is by 2e-9 of it smaller than it might be, so this much more does no harm."""
Named = tuple[str, Cap]
"""A cap, and the feature set that it was set for."""


def mu_of_cap(epsilon: float, delta: float) -> float:
    """The μ that a cap stands for. ValueError where ε or δ is out of range."""
    return mu_for(epsilon, delta, RESERVE)


def in_force(caps: Iterable[Named]) -> list[Named]:
    """The newest cap of each ledger, unless it was removed. The strictest one comes first.

    All of them hold. Nobody has to decide which of two ledgers has the right clock. A cap of the set's own ledger holds
    also where the set was made again since, perhaps of some more pictures.
    """
    newest = {name: (name, cap) for name, cap in caps}
    return strictest_first(each for each in newest.values() if each[1].mu is not None)


def strictest_first(caps: Iterable[Named]) -> list[Named]:
    """Caps in the order of what they allow."""
    return sorted(caps, key=lambda each: each[1].mu or 0.0)


def spent(entries: Iterable[Entry], unit: Unit = RECORD) -> float:
    """Σ 1/σ² over all releases of all trainings with a guarantee, as far as they concern a unit. It may be infinite."""
    releases = [
        (weight(entry.protects, unit), each) for entry in entries if entry.mu is not None for each in entry.plan
    ]
    if any(math.isinf(times) for times, _ in releases):
        return math.inf
    # Not divided by the square of σ, which may be 0 in float64.
    return math.fsum(times**2 * each["times"] / each["sigma"] / each["sigma"] for times, each in releases)


def room(cap: Cap, entries: Sequence[Entry], of: Unit | None = None) -> float:
    """What the trainings leave of the μ² of a cap that is in force; below 0 if they have passed it.

    of: what the next training protects; None: what the cap protects. What is left is that training's μ².
    """
    assert cap.mu is not None
    assert cap.eta is not None
    if math.fsum(entry.eta or 0.0 for entry in entries) > cap.eta:
        return -math.inf
    left = cap.mu**2 * (1 + ROUNDING) - spent(entries, cap.protects)
    return left / weight(of or cap.protects, cap.protects) ** 2 if math.isfinite(left) else left


def fitting(left: float, delta: float) -> float | None:
    """The largest ε of four digits that one more training may spend at δ. None if not even the least one fits.

    left: what is left of μ².
    """
    if left < mu_for(LEAST_EPSILON, delta) ** 2:
        return None
    # A little more, so that an ε which fits exactly is not lost. What does not fit is taken back below.
    epsilon = min(epsilon_for(math.sqrt(left), delta) * (1 + 1e-8), LARGEST_EPSILON)
    digits = 3 - math.floor(math.log10(epsilon))
    units = math.floor(epsilon * 10.0**digits)
    while mu_for(units / 10.0**digits, delta) ** 2 > left:
        # Below 1.000 comes 0.9999.
        units, digits = (units - 1, digits) if units > 1000 else (9999, digits + 1)
    return units / 10.0**digits


def least(entries: Sequence[Entry], delta: float, unit: Unit = RECORD) -> float | None:
    """The smallest cap ε of four digits, at δ, that these trainings have not passed. None if there is none."""
    used = spent(entries, unit)
    if math.isinf(used):
        return None
    epsilon = max(epsilon_for(math.sqrt(used), delta, RESERVE), LEAST_EPSILON)
    if math.isinf(epsilon):
        return None
    digits = 3 - math.floor(math.log10(epsilon))
    units = math.floor(epsilon * 10.0**digits)
    while (found := units / 10.0**digits) <= LARGEST_EPSILON:
        if mu_of_cap(found, delta) ** 2 * (1 + ROUNDING) >= used:
            return found
        units += 1
    return None


def said(name: str, cap: Cap) -> str:
    """A cap, as messages name it."""
    of = " for each person" if cap.unit == "person" else ""
    return f"epsilon = {cap.epsilon:.6g} at delta = {cap.delta:g}{of} for {name}"


def check(caps: Iterable[Named], entries: Sequence[Entry], entry: Entry) -> None:
    """Refuse a training that a cap does not allow.

    Args:
        caps: all caps on these records.
        entries: all trainings on them so far.
        entry: the row of the training.

    Raises:
        UserError: it does not fit, or nothing is known about it that a cap could be kept with.

    """
    for name, cap in in_force(caps):
        if entry.delta is None:
            raise UserError(
                f"These records have a cap: {said(name, cap)}. A training without a guarantee has epsilon = ∞, so "
                "no cap is kept with it.",
                f"Give {parameter('epsilon')}, and leave out {parameter('seed')} and {parameter('non_private')}. To "
                "compare, train on public records.",
                code="conflict",
                feature_set=name,
                cap=cap.epsilon,
                cap_delta=cap.delta,
            )
        if any(release["rate"] < 1 for release in entry.plan):
            raise UserError(
                f"These records have a cap: {said(name, cap)}. It holds for trainings that are chosen as one goes, and "
                "for sampled ones there is no proof of that.",
                f"Leave out {parameter('sampling_rate')}: then all take part in each release.",
                code="conflict",
                parameter="sampling_rate",
                feature_set=name,
                cap=cap.epsilon,
                cap_delta=cap.delta,
            )
        if math.isinf(weight(entry.protects, cap.protects)):
            raise UserError(
                f"These records have a cap: {said(name, cap)}. This training would not protect these persons, so no "
                "cap is kept with it.",
                f"Train on {name}, or on another set whose records belong to the same persons.",
                code="conflict",
                feature_set=name,
                cap=cap.epsilon,
                cap_delta=cap.delta,
            )
        if room(cap, [*entries, entry]) >= 0:
            continue
        left = room(cap, entries, entry.protects)
        largest = fitting(left, entry.delta) if left > 0 else None
        what, more_noise = "training", f", or a larger {parameter('noise_multiplier')}"
        if entry.method == EVALUATION:
            what, more_noise = "evaluation", ""
        more = (
            f"At delta = {entry.delta:g} epsilon = {rounded_down(largest)} still fits."
            if largest
            else "Nothing more fits."
        )
        raise UserError(
            f"This {what} does not fit under the cap of these records: {said(name, cap)}. {more}",
            f"Spend less ({parameter('epsilon')}{more_noise}), or ask for a higher "
            "cap: 'dpfc budget' says who set it. A change is a new row, and the old one stays to be seen.",
            code="over-cap",
            parameter="epsilon",
            feature_set=name,
            cap=cap.epsilon,
            cap_delta=cap.delta,
            asked=entry.epsilon,
            delta=entry.delta,
            left=largest,
        )
