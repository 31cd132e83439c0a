"""One training, in the order that privacy needs, for every door to it.

`calibrate` is pure: options, plan and guarantee from public facts. `prepare` refuses whatever can be refused: features
that are damaged, a place that cannot be written, devices that cannot compute, more memory than there is. `run` charges
the ledger, durably, and only then lets the records into a computation; from there on the budget is spent, whatever
happens.
"""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from dpfc_cli.errors import UserError, sentence, unknown
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads import head as heads
from dpfc_cli.methods.method import Method, state_bytes
from dpfc_cli.privacy import accounting, poisson
from dpfc_cli.privacy.accounting import Guarantee
from dpfc_cli.privacy.oracle import Adjacency, Facts, Plan
from dpfc_cli.privacy.queries import Loss
from dpfc_cli.training import ledger
from dpfc_cli.trust import statement

if TYPE_CHECKING:
    from dpfc_cli.privacy.curator import Curator, NonPrivate

SPLIT = "train"
WORKING_BYTES = 600 * 2**20
"""Beside the state: the blocks under way, the compiled kernels and the interpreter."""
SMALLEST, LARGEST = 1e-12, 1e12
"""Options outside these bounds would overflow on the way, when the budget is spent already."""
WIDE = 8_192
"""Dimensions from which decomposing a Gram matrix takes minutes to hours."""
SUFFIXES: dict[accounting.Claim, str] = {
    "private": heads.PRIVATE,
    "research": heads.RESEARCH,
    "non-private": heads.NONPRIVATE,
}


@dataclass(frozen=True)
class Privacy:
    """What the user asked for: `epsilon` or `sigma`, at `delta` (default min(1e-5, 1/n)); or neither, without noise.

    seed: reproducible noise, which protects nothing.
    """

    epsilon: float | None = None
    delta: float | None = None
    sigma: float | None = None
    seed: int | None = None

    @property
    def claim(self) -> accounting.Claim:
        if self.epsilon is None and self.sigma is None:
            return "non-private"
        return "private" if self.seed is None else "research"


@dataclass(frozen=True)
class Calibrated:
    """What a training will do and claim, from public facts alone. guarantee: None without noise. tuning: what the card
    says of public records that the options were chosen on.
    """

    method: Method[Any]
    facts: Facts
    options: Any
    plan: Plan
    privacy: Privacy
    guarantee: Guarantee | None
    tuning: Mapping[str, Any] | None = None


def facts_of(features: FeatureSet, adjacency: Adjacency) -> Facts:
    """The public facts of a feature set's training split."""
    manifest = features.manifest
    rows = features.split(SPLIT).n
    return Facts(rows, len(manifest.classes), manifest.dim, manifest.labels_per_record, adjacency)


def flag(name: str) -> str:
    """What an option is called on the command line."""
    return {"lam": "--lambda", "split": "--budget-split"}.get(name, "--" + name.replace("_", "-"))


def check_options(method: Method[Any], given: Mapping[str, Any]) -> None:
    """UserError for an option that the method does not have or whose value makes no sense."""
    for name, value in given.items():
        said = flag(name)
        if name not in method.options.__dataclass_fields__:
            raise UserError(
                f"{said} is no option of {method.name}.",
                "Leave it out, or choose the method that has it: see 'dpfc train --help'.",
            )
        if name == "loss":
            if value not in get_args(Loss):
                raise unknown("loss", value, get_args(Loss))
        elif name == "split":
            parts = len(method.defaults(Facts(n=1, m=2, d=1), 1.0, {}).split)
            if len(value) != parts or not all(v > 0 for v in value) or abs(sum(value) - 1) > 1e-9:
                raise UserError(
                    f"{said} {','.join(map(str, value))} is not {parts} positive fractions that add up to 1.",
                    f"Give one for each kind of release of {method.name}, in plan order.",
                )
        elif name == "sampling_rate":
            if not SMALLEST <= value <= 1:
                raise UserError(f"{said} must lie in (0, 1], not at {value:g}.", "Give a fraction of the records.")
        elif not (SMALLEST <= value <= LARGEST or (name == "alpha" and value == 0)):
            raise UserError(f"{said} must lie between {SMALLEST:g} and {LARGEST:g}, not at {value:g}.", "Give another.")


def calibrate(
    method: Method[Any],
    facts: Facts,
    given: Mapping[str, Any],
    privacy: Privacy,
    slow: Callable[[], None] = lambda: None,
) -> Calibrated:
    """Options, plan and guarantee. UserError where an option, ε, δ or σ is out of range, or where there is but one
    class. slow: called where an answer that is not refused will take seconds.

    With σ, μ² is that of as many equal releases at noise multiplier σ as the plan has; the plan's shares divide it.
    """
    from dpfc_cli.privacy.curator import eta_of

    check_options(method, given)
    if facts.m < 2:
        raise UserError(
            "These features know one class only, and a head for it could say nothing else.",
            "Give all classes when the features are made: 'dpfc extract' and 'dpfc import' take --classes.",
        )
    if privacy.claim == "non-private":
        options = method.defaults(facts, None, given)
        optimum = getattr(options, "steps", 1) is None
        idle = sorted(set(given) - {"clip", "loss"} if optimum else set(given) & set(method.idle))
        if idle:
            said = f"Without noise and --steps, {method.name} runs to the optimum, and" if optimum else "Without noise"
            raise UserError(f"{said} {flag(idle[0])} has no effect.", "Leave it out, or give a budget.")
        return Calibrated(method, facts, options, method.plan(facts, options), privacy, None)
    delta = accounting.default_delta(facts.n) if privacy.delta is None else privacy.delta
    # Steps, rates and shapes do not depend on the noise; options that do are filled in when it is known.
    plan = method.plan(facts, method.defaults(facts, 1.0, given))
    if plan.sampled and facts.adjacency != "zero-out":
        raise UserError(
            "Sampling cannot be accounted for under replace-one adjacency.", "Leave out --sampling-rate or --adjacency."
        )
    eta = eta_of(plan)
    try:
        accounting.check_privacy(1.0 if privacy.epsilon is None else privacy.epsilon, delta)
        if privacy.sigma is not None and not 0 < privacy.sigma < math.inf:
            raise ValueError(f"sigma must be a positive number, not {privacy.sigma:g}")
        if plan.sampled:
            poisson.check(plan, 1.0 if privacy.epsilon is None else privacy.epsilon, delta)
            slow()
        if privacy.sigma is not None:
            mu = accounting.mu_of_sigma(privacy.sigma, plan.count)
            epsilon = spent(plan, mu, delta, eta)
            accounting.check_privacy(epsilon, delta)
        else:
            assert privacy.epsilon is not None
            epsilon = privacy.epsilon
            mu = poisson.mu_for(plan, epsilon, delta, eta) if plan.sampled else accounting.mu_for(epsilon, delta, eta)
            if plan.sampled and min(plan.sigmas(mu)) < 1.0001 * poisson.LEAST_SAMPLED_SIGMA:
                # No less noise is accounted for, and what is bought may be less than was offered.
                epsilon = min(epsilon, spent(plan, mu, delta, eta))
    except ValueError as error:
        raise UserError(sentence(error), "Choose ε such as 1, δ such as 1e-5, or with --sigma a larger one.") from error
    options = method.defaults(facts, mu, given)
    return Calibrated(method, facts, options, plan, privacy, Guarantee(epsilon, delta, mu, eta))


def spent(plan: Plan, mu: float, delta: float, eta: float) -> float:
    """ε at δ of a plan whose noise is named by μ."""
    if plan.sampled:
        return poisson.epsilon_for(*poisson.sampled_of(plan, mu), delta, eta)
    return accounting.epsilon_for(mu, delta, eta)


def prepare(
    features: FeatureSet,
    calibrated: Calibrated,
    memory: float | None = None,
    checking: Callable[[int, int], None] | None = None,
) -> "Curator | NonPrivate":
    """The oracle, after everything that can go wrong before a record is looked at. UserError for what the user can
    mend.

    memory: bytes; None: what the machine has free. checking(done, total) is told about shards whose digests are
    checked.
    """
    from dpfc_cli.kernels import products
    from dpfc_cli.privacy.curator import Curator, NonPrivate
    from dpfc_cli.privacy.noise import SeededBits, SystemBits

    c = calibrated
    check_memory(c, memory)
    features.verify(SPLIT, checking)
    try:
        products.check_exact()
    except Exception as error:
        raise UserError(
            f"JAX cannot compute on this machine's devices: {sentence(error)}", "Try JAX_PLATFORMS=cpu."
        ) from error
    stream = features.stream(SPLIT)
    if c.guarantee is None:
        return NonPrivate(c.facts, stream)
    bits = SystemBits() if c.privacy.seed is None else SeededBits(c.privacy.seed)
    try:
        return Curator(c.facts, c.plan, c.guarantee.mu, stream, bits)
    except ValueError as error:
        raise UserError(sentence(error), "Choose a larger ε or fewer steps.") from error


def run(
    features: FeatureSet,
    calibrated: Calibrated,
    oracle: "Curator | NonPrivate",
    path: Path,
    progress: Callable[[int, int], None],
) -> tuple[heads.Head, Path]:
    """Charge, train, write: the head and where it was written. progress(done, total) counts records over all passes."""
    c, claim, passes = calibrated, calibrated.privacy.claim, len(calibrated.plan.releases)
    # The non-private twin takes as many passes as it needs.
    oracle.progress = lambda done, n: progress((oracle.released - 1) * n + done, max(passes, oracle.released) * n)
    temporary = heads.reserve(path)
    try:
        row = ledger.entry(features.manifest, SPLIT, c.method.name, claim, c.guarantee, c.facts, c.plan, path.name)
        ledger.charge(ledger.ledger_path(features.folder), row)
        # Until here no record has been looked at; from here on the budget is spent, whatever happens.
        solution = c.method.solve(oracle, c.facts, c.options)
        card = statement.card(
            c.method.name,
            c.options,
            c.facts,
            c.plan,
            claim,
            c.guarantee,
            features.manifest,
            features.name,
            SPLIT,
            row.at,
            c.tuning,
            c.method.idle if c.guarantee is None else (),
            solution.converged,
        )
        made = heads.Head(solution.chain, solution.weight, solution.bias, card)
        return made, heads.save(made, path, temporary)
    finally:
        temporary.unlink(missing_ok=True)


def check_memory(calibrated: Calibrated, memory: float | None) -> None:
    """UserError where a training needs more than that many bytes; None: than the machine has free."""
    allowed = free_memory() if memory is None else memory
    facts, needed = calibrated.facts, state_bytes(calibrated.method, calibrated.plan) + WORKING_BYTES
    if needed > allowed:
        grows = calibrated.method.name in ("dp-ls", "dp-newton")
        other = "--method dp-fc (its state does not grow with m·d²), " if grows else ""
        raise UserError(
            f"This training needs about {needed / 1e9:.1f} GB ({facts.m} classes, {facts.d} dimensions); "
            f"the limit is {allowed / 1e9:.1f} GB.",
            f"Use {other}features of fewer dimensions (--pool mean), or a larger --memory.",
        )


def free_memory() -> float:
    """Bytes that this process may still take: what the machine has available, or less where a control group says so."""
    free = math.inf
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        free = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            free = min(free, float(Path(path).read_text()))
        except (OSError, ValueError):
            continue
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = min(free, *(1024 * float(line.split()[1]) for line in lines if line.startswith("MemAvailable")))
    except (OSError, ValueError, TypeError):
        pass
    return free


def foreboding_of_width(d: int) -> list[str]:
    """What so many dimensions alone say."""
    if d <= WIDE:
        return []
    return [
        f"{d:,} dimensions make a Gram matrix of {8 * d**2 / 1e9:.1f} GB whose decomposition takes long after the last "
        "pass. Fewer dimensions (--pool mean) are faster and stand noise better."
    ]


def forebodings(calibrated: Calibrated) -> list[str]:
    """What public facts say will go badly, before anything is spent.

    A class mean of vectors of length 1 stands for n/m records; the noise in one release of it has length √d/μ.
    """
    facts, guarantee, said = calibrated.facts, calibrated.guarantee, foreboding_of_width(calibrated.facts.d)
    if guarantee is None:
        return said
    if guarantee.delta > 1 / facts.n:
        said.append(
            f"delta = {guarantee.delta:g} exceeds 1/n = {1 / facts.n:.2g}: "
            "a mechanism that publishes a whole record would satisfy it."
        )
    signal, noise = facts.n / facts.m, math.sqrt(facts.d) / guarantee.mu
    if signal < 2 * noise:
        said.append(
            f"noise will swamp the signal: about {signal:,.0f} records per class against noise of length {noise:,.0f} "
            f"({facts.d} dimensions at epsilon = {guarantee.epsilon:g}). Expect a poor head; more records, fewer "
            "dimensions or a larger epsilon help."
        )
    return said
