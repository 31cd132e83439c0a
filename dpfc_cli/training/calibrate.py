"""From a request to a plan with its noise: options, plan and guarantee, from public facts alone.

Nothing here reads a record. Each value is computed once: the options that shape the plan, then the plan, then μ, then
the options whose defaults depend on the noise. `warnings_of` says what will go badly.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dpfc_cli.errors import UserError, conflict, parameter, sentence
from dpfc_cli.memory import WIDE
from dpfc_cli.methods import AnyMethod
from dpfc_cli.methods.method import length
from dpfc_cli.privacy import accounting, poisson
from dpfc_cli.privacy.accounting import Claim, Guarantee, Privacy
from dpfc_cli.privacy.curator import eta_of
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.oracle import Mechanism, Plan
from dpfc_cli.privacy.queries import ClassSums, sensitivity
from dpfc_cli.records.card import Part
from dpfc_cli.records.claims import Claimed, described, large_delta
from dpfc_cli.records.statement import SEEDED
from dpfc_cli.structs import Values

SECONDS = 2.6e-10
"""Of a decomposition, for each d³: as measured on one core of a busy machine with d = 3,000. An idle one takes half."""
SQUARES = 7
"""Square matrices that are held meanwhile by the default method: four of ours, and three of LAPACK, as measured."""
STEEP = 1.3
"""How fast noise takes away what can be learned. It was fitted to made-up sets and judged on others
(docs/extensions/planning.md)."""
FITTED = ("dp-whitened", "dp-fc")
"""Methods that keep what is expected. Others keep less, some much less."""
POOR = 0.5
"""A training that will keep less than this part of what can be learned gets a warning."""

HIDES = "the noise hides the classes"
"""How the warning begins."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What will be released of which records, with how much noise, and what it will claim.

    mechanism and guarantee: None without noise.
    """

    facts: Facts
    privacy: Privacy
    plan: Plan
    mechanism: Mechanism | None
    guarantee: Guarantee | None

    @property
    def claim(self) -> Claim:
        return self.privacy.claim

    @property
    def claimed(self) -> Guarantee | None:
        """The guarantee that is claimed: None with seeded noise, too."""
        return self.guarantee if self.claim == "private" else None

    @property
    def worth(self) -> Guarantee:
        assert self.guarantee is not None
        return self.guarantee

    @property
    def noise(self) -> Mechanism:
        assert self.mechanism is not None
        return self.mechanism

    @property
    def stated(self) -> Claimed:
        """The claim and the releases, with their shares and noise multipliers, as card and ledger state them."""
        made = described(self.plan, None if self.mechanism is None else self.mechanism.sigmas)
        claimed = dict.fromkeys(("epsilon", "delta", "mu", "eta")) if self.claimed is None else vars(self.claimed)
        return Claimed(claim=self.claim, **claimed, adjacency=self.facts.adjacency, unit=self.facts.unit, plan=made)


@dataclass(frozen=True, kw_only=True)
class Calibrated(Planned):
    """What a training will release, with how much noise, and what it will claim.

    given: the options that the user set; options: all of them. parts: what extensions write into the card, by name.
    """

    method: AnyMethod
    given: Mapping[str, Any]
    options: Any
    parts: Mapping[str, Part | Values] = field(default_factory=dict)


def calibrate(
    method: AnyMethod,
    facts: Facts,
    given: Mapping[str, Any],
    privacy: Privacy,
    slow: Callable[[], None] = lambda: None,
) -> Calibrated:
    """Options, plan and guarantee.

    With a noise multiplier σ, μ² is that of as many equal releases at σ as the plan has; the plan's shares divide it.
    given: options that the user set. slow: see `noised`. UserError: an option, ε, δ or σ is out of range, or there is
    one class only.
    """
    asked, given = given, method.taken(given)
    if facts.m < 2:
        raise conflict(
            "These features have one class only. A head for one class always gives the same answer.",
            f"State all classes when you make the features: 'dpfc extract' and 'dpfc import' take "
            f"{parameter('classes')}.",
        )
    private = privacy.claim != "non-private"
    if not private:
        # What a preset says of noise has no effect, and is no mistake.
        given = {name: each for name, each in given.items() if name in asked or not method.declared[name].private}
    planned = method.planned(facts, given, private)
    plan = method.plan(facts, planned)
    guarantee, mechanism = noised(plan, facts, privacy, slow) if private else (None, None)
    options = method.complete(facts, planned, mechanism, given)
    _refuse_idle(method, asked, options, private)
    return Calibrated(
        method=method,
        facts=facts,
        privacy=privacy,
        given=given,
        options=options,
        plan=plan,
        mechanism=mechanism,
        guarantee=guarantee,
    )


def noised(
    plan: Plan, facts: Facts, privacy: Privacy, slow: Callable[[], None] = lambda: None
) -> tuple[Guarantee, Mechanism]:
    """The guarantee of a plan, and the plan with the noise that gives it. UserError: ε, δ or σ is out of range.

    slow: called where the answer will take seconds (Poisson sampling).
    """
    delta = accounting.default_delta(facts.n) if privacy.delta is None else privacy.delta
    asked, sigma, eta = privacy.epsilon, privacy.noise_multiplier, eta_of(plan)
    if plan.sampled and facts.adjacency != "zero-out":
        raise conflict(
            "There is no accounting for sampling under replace-one adjacency.",
            f"Leave out {parameter('sampling_rate')} or {parameter('adjacency')}.",
        )
    if plan.sampled and privacy.accounting == "zcdp":
        raise conflict(
            "There is no conversion of zCDP for sampling.",
            f"Leave out {parameter('sampling_rate')}, or choose {parameter('accounting')} exact.",
        )
    try:
        accounting.check_privacy(1.0 if asked is None else asked, delta)
        if sigma is not None and not 0 < sigma < math.inf:
            raise ValueError(f"the noise multiplier must be a positive number, not {sigma:g}")
        if not privacy.allow_large_delta:
            large = parameter("allow_large_delta")
            check_delta(delta, facts, f"Choose a smaller one, or add {large} if you can defend it.")
        if plan.sampled:
            poisson.check(plan, 1.0 if asked is None else asked, delta, eta)
            slow()
        if sigma is not None:
            mu = accounting.mu_of_sigma(sigma, plan.count)
            epsilon = spent(plan, mu, delta, eta)
            accounting.check_privacy(epsilon, delta)
        else:
            assert asked is not None
            epsilon = asked
            mu = poisson.mu_for(plan, epsilon, delta, eta) if plan.sampled else accounting.mu_for(epsilon, delta, eta)
            if privacy.accounting == "zcdp":
                mu = min(mu, accounting.zcdp_mu(epsilon, delta))
                epsilon = spent(plan, mu, delta, eta)
            if plan.sampled and min(plan.sigmas(mu)) < 1.0001 * poisson.LEAST_SAMPLED_SIGMA:
                # Less noise than this is not accounted for. What is spent may then be less than what was asked for.
                epsilon = max(min(epsilon, spent(plan, mu, delta, eta)), accounting.LEAST_EPSILON)
    except ValueError as error:
        asked_for = (
            f"{parameter('epsilon')} such as 1" if sigma is None else f"a larger {parameter('noise_multiplier')}"
        )
        raise UserError(sentence(error), f"Choose {asked_for}, or {parameter('delta')} such as 1e-5.") from error
    guarantee = Guarantee(epsilon=epsilon, delta=delta, mu=mu, eta=eta)
    return guarantee, Mechanism(facts=facts, plan=plan, mu=mu)


def check_delta(delta: float, facts: Facts, remedy: str) -> None:
    """Refuse a δ above 1/n. remedy: what to do, for the message."""
    large = large_delta(delta, facts.n, facts.unit)
    if large is not None:
        raise UserError(f"{large}.", remedy, parameter="delta")


def _refuse_idle(method: AnyMethod, asked: Mapping[str, Any], options: Any, private: bool) -> None:
    known = method.declared
    for name in sorted(set(asked) & set(known) - set(method.in_force(options, private))):
        if (unless := known[name].unless) and getattr(options, unless):
            raise conflict(
                f"With {parameter(unless)}, {parameter(name)} has no effect.", "Leave one out.", parameter=name
            )
        until = f" and {parameter('steps')}, {method.name} runs to the optimum, and"
        raise conflict(
            f"Without noise{until * method.at_optimum(options)} {parameter(name)} has no effect.",
            f"Leave it out, or give {parameter('epsilon')}.",
            parameter=name,
        )


def spent(plan: Plan, mu: float, delta: float, eta: float) -> float:
    """ε at δ of a plan whose noise is named by μ."""
    if plan.sampled:
        return poisson.epsilon_for(*poisson.sampled_of(plan, mu), delta, eta)
    return accounting.epsilon_for(mu, delta, eta)


def warnings_of_width(d: int) -> list[str]:
    if d <= WIDE:
        return []
    return [
        f"{d:,} dimensions make a Gram matrix of {8 * d**2 / 1e9:.1f} GB. Its decomposition takes about "
        f"{SECONDS * d**3 / 60:,.0f} minutes on one core, and {8 * SQUARES * d**2 / 1e9:,.0f} GB of memory. Fewer "
        "dimensions (extract with mean pooling) are faster and lose less to noise."
    ]


def signal_and_noise(calibrated: Calibrated) -> tuple[float, float]:
    """A class mean of vectors of length 1 stands for n/m records; the noise in one release of it has length √d/μ."""
    facts = calibrated.facts
    return facts.n / facts.m, sensitivity(ClassSums, facts) * math.sqrt(facts.d) / calibrated.noise.mu


def kept(calibrated: Calibrated) -> float:
    """The part of what can be learned without noise that is expected to be kept, by the methods `FITTED`: 1/(1 +
    (noise/signal)^1.3).

    What can be learned is the accuracy beyond that of always naming the commonest class. Half of it is kept where
    signal and noise are equal.
    """
    signal, noise = signal_and_noise(calibrated)
    return 1 / (1 + math.pow(min(noise / signal, 1e9), STEEP))


def warnings_of(calibrated: Calibrated) -> list[str]:
    facts, guarantee, said = calibrated.facts, calibrated.guarantee, warnings_of_width(calibrated.facts.d)
    if guarantee is None:
        return said
    if calibrated.privacy.seed is not None:
        said.append(SEEDED)
    large = large_delta(guarantee.delta, facts.n, facts.unit)
    if large is not None:
        said.append(f"{large}.")
    method, given = calibrated.method, calibrated.given
    if given.get("steps", method.least_steps) < method.least_steps and "learning_rate" not in given:
        said.append(
            f"{method.name} learns little with fewer than {method.least_steps} steps: its learning rate is a guess."
        )
    if getattr(calibrated.options, "raw_features", False) and "learning_rate" not in given:
        rate, long = calibrated.options.learning_rate, length(facts, given)
        unit = f"{float(f'{rate * long:.3g}'):g}"
        said.append(
            f"the learning rate, {rate:.3g}, assumes feature vectors of length √{facts.d} = {long:.3g}, because theirs "
            f"is not public. If you know that it is another, give {parameter('learning_rate')}: {unit} divided by it."
        )
    part = math.fsum(release.rate for release in calibrated.plan.releases)
    if part < 1:
        said.append(
            f"a {facts.unit} takes part {part:.2g} times on average, so most are never used: take more steps, or a "
            "larger sampling rate."
        )
    if kept(calibrated) < POOR:
        signal, noise = signal_and_noise(calibrated)
        far = f"{noise:,.0f}" if noise < 1e9 else f"{noise:.3g}"
        said.append(
            f"{HIDES}: a class has less signal than there is noise (about {signal:,.0f} "
            f"{facts.unit}s against noise of length {far}, with {facts.d} dimensions at epsilon = "
            f"{guarantee.epsilon:g}). {_expected(calibrated)}"
        )
    return said


def _expected(calibrated: Calibrated) -> str:
    if getattr(calibrated.options, "public_head", None) is not None:
        return "Expect a head that is little better than its start."
    part = f"{100 * kept(calibrated):.0f} %"
    side = "more" if calibrated.method.name in FITTED else "less"
    return (
        f"Expect about {part} or {side} of what can be learned without noise. More {calibrated.facts.unit}s, fewer "
        "dimensions, a larger epsilon or (for dp-whitened) a public start help."
    )
