"""`dpfc train`: a feature set and a budget in, a head and a statement out.

The order is what privacy needs: plan, calibrate, refuse or charge the ledger durably, and only then open the data.
"""

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfc_cli.cli import display, places
from dpfc_cli.cli.app import command
from dpfc_cli.errors import sentence

if TYPE_CHECKING:
    from dpfc_cli.privacy.accounting import Guarantee
    from dpfc_cli.privacy.oracle import Facts, Plan
    from dpfc_cli.solvers.method import Method

WORKING_BYTES = 600 * 2**20
"""Beside the state: the blocks under way, the compiled kernels and the interpreter."""
_PRIVACY, _METHOD = "Privacy", "Method (defaults are functions of public facts)"


@command("train", when_stopped="No head was written. If the ledger was charged, it stays charged: see 'dpfc budget'.")
def train(
    method: Annotated[
        str, typer.Option(help="dp-ls (least squares) or dp-fc (logistic regression).", rich_help_panel=_METHOD)
    ] = "dp-fc",
    epsilon: Annotated[float | None, typer.Option(help="ε to spend.", rich_help_panel=_PRIVACY)] = None,
    delta: Annotated[float | None, typer.Option(help="δ. Default: min(1e-5, 1/n).", rich_help_panel=_PRIVACY)] = None,
    sigma: Annotated[
        float | None,
        typer.Option(help="Instead of ε: noise multiplier of the releases, in equal shares.", rich_help_panel=_PRIVACY),
    ] = None,
    non_private: Annotated[
        bool,
        typer.Option("--non-private", help="No clipping of contributions, no noise: ε = ∞.", rich_help_panel=_PRIVACY),
    ] = False,
    adjacency: Annotated[str, typer.Option(help="zero-out or replace-one.", rich_help_panel=_PRIVACY)] = "zero-out",
    features: Annotated[
        str | None, typer.Option(help="Feature set, by path or name. Default: the newest in ./features.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The head's file. Default: a telling name in ./heads.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, max=1_000_000, help="T (dp-fc).", rich_help_panel=_METHOD)] = None,
    eta: Annotated[float | None, typer.Option(help="Learning rate η (dp-fc).", rich_help_panel=_METHOD)] = None,
    lam: Annotated[
        float | None,
        typer.Option("--lambda", help="Ridge (dp-ls) or damping (dp-fc), per record.", rich_help_panel=_METHOD),
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Weight of the negatives (dp-ls).", rich_help_panel=_METHOD)
    ] = None,
    clip: Annotated[
        float | None,
        typer.Option(help="Norm C that features are clipped to, in their own units.", rich_help_panel=_METHOD),
    ] = None,
    gradient_clip: Annotated[
        float | None, typer.Option(help="Norm C_g that gradients are clipped to (dp-fc).", rich_help_panel=_METHOD)
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Refuse beyond this, such as 8GB. Default: what the machine has.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Reproducible noise for research. The head then claims no guarantee.")
    ] = None,
) -> None:
    """Train a classifier on a feature set and charge its privacy to the ledger."""
    from dpfc_cli.errors import UserError
    from dpfc_cli.heads.head import NONPRIVATE, PRIVATE, check_writable
    from dpfc_cli.privacy.oracle import Facts
    from dpfc_cli.solvers import method_named
    from dpfc_cli.trust import ledger, statement

    chosen = method_named(method)
    given = {"steps": steps, "eta": eta, "lam": lam, "alpha": alpha, "clip": clip, "gradient_clip": gradient_clip}
    options_given = _options(chosen, {k: v for k, v in given.items() if v is not None})
    if adjacency not in ("zero-out", "replace-one"):
        raise UserError(f"Unknown adjacency '{adjacency}'.", "Known: zero-out, replace-one.")
    if sum((epsilon is not None, sigma is not None, non_private)) != 1:
        raise UserError(
            "Privacy must be given once, as --epsilon, as --sigma or as --non-private.", "For a start: --epsilon 1."
        )
    found, by_default = places.feature_set(features)
    manifest, n = found.manifest, found.split("train").n
    facts = Facts(n, len(manifest.classes), manifest.dim, manifest.labels_per_record, adjacency)  # type: ignore[arg-type]
    options, plan, guarantee = _calibrated(chosen, facts, options_given, epsilon, delta, sigma, non_private)
    claim: ledger.Claim = "non-private" if non_private else "research" if seed is not None else "private"
    _check_memory(plan, facts, memory)
    suffix = NONPRIVATE if non_private else PRIVATE
    # A head is named by what was asked for, never by what came out.
    asked = "" if non_private else f"-eps{guarantee.epsilon:.4g}" if guarantee else ""
    path = out or places.free_name(
        places.HEADS, f"{found.name}-{method}{asked}{'-research' if claim == 'research' else ''}", suffix
    )
    if not path.name.endswith(suffix) or (not non_private and path.name.endswith(NONPRIVATE)):
        raise UserError(
            f"--out '{path}' must end in {suffix}, and only non-private heads may end in {NONPRIVATE}.",
            "Change the name.",
        )
    if path.exists():
        raise UserError(
            f"'{path}' exists, and a head is not overwritten: it was paid for.",
            "Choose another --out, or move it away.",
        )
    check_writable(path)
    if by_default:
        display.say(f"Features: {found.folder} (the newest set; name another with --features)")
    _warn_when_swamped(facts, guarantee)
    found.verify("train")
    row = ledger.entry(
        "train", method, claim, guarantee.mu if guarantee else None, guarantee.delta if guarantee else None,
        (facts.adjacency, facts.unit, facts.n), plan, path,
    )  # fmt: skip
    ledger.charge(ledger.ledger_path(found.folder), row)
    # Until here no record has been looked at; from here on the budget is spent, whatever happens.
    solution = _solve(chosen, facts, options, plan, guarantee, found.stream("train"), seed)
    from dpfc_cli.heads.head import Head, save

    card = statement.card(method, options, facts, plan, claim, guarantee, manifest, found.name, "train")
    save(Head(solution.chain, solution.weight, solution.bias, card), path)
    settings = ", ".join(f"{name} = {value:.4g}" for name, value in card["options"].items())
    display.facts(
        f"Head {path}", [("method", f"{method} ({chosen.title})"), ("options", settings), *statement.rows(card)]
    )
    display.say("Next: dpfc evaluate")


def _options(method: "Method[Any]", given: dict[str, Any]) -> dict[str, Any]:
    """The options that the user gave, if the method has them and they make sense."""
    from dpfc_cli.errors import UserError

    flags = {"lam": "--lambda"}
    for name, value in given.items():
        flag = flags.get(name, "--" + name.replace("_", "-"))
        if name not in method.options.__dataclass_fields__:
            raise UserError(
                f"{flag} is no option of {method.name}.",
                "Leave it out, or choose the method that has it: see 'dpfc train --help'.",
            )
        if not (math.isfinite(value) and (value >= 0 if name in ("lam", "alpha") else value > 0)):
            raise UserError(
                f"{flag} must be a {'non-negative' if name in ('lam', 'alpha') else 'positive'} number, not {value:g}.",
                "Give another.",
            )
    return given


def _calibrated(
    method: "Method[Any]",
    facts: "Facts",
    given: dict[str, Any],
    epsilon: float | None,
    delta: float | None,
    sigma: float | None,
    non_private: bool,
) -> "tuple[Any, Plan, Guarantee | None]":
    """Options, plan and guarantee, from public facts alone."""
    from dpfc_cli.errors import UserError
    from dpfc_cli.privacy import accounting
    from dpfc_cli.privacy.noise import ETA_PER_SAMPLE

    if non_private:
        options = method.defaults(facts, None, given)
        return options, method.plan(facts, options), None
    delta = accounting.default_delta(facts.n) if delta is None else delta
    try:
        accounting.check_privacy(1.0 if epsilon is None else epsilon, delta)
        if sigma is not None:
            if not (sigma > 0 and math.isfinite(sigma)):
                raise ValueError(f"sigma must be a positive number, not {sigma:g}")
            mu = accounting.mu_of_sigma(sigma, len(method.plan(facts, method.defaults(facts, 1.0, given)).releases))
        else:
            assert epsilon is not None
            mu = accounting.mu_for(epsilon, delta)
        options = method.defaults(facts, mu, given)
        plan = method.plan(facts, options)
        eta = plan.coordinates * ETA_PER_SAMPLE
        if epsilon is not None:
            mu = accounting.mu_for(epsilon, delta, eta)
        else:
            epsilon = accounting.epsilon_for(mu, delta)
            accounting.check_privacy(epsilon, delta)
    except ValueError as error:
        raise UserError(
            sentence(error),
            "Choose ε in (0, 100] and δ in (0, 1); with --sigma, one that gives such an ε.",
        ) from error
    if delta > 1 / facts.n:
        display.warn(
            f"delta = {delta:g} exceeds 1/n = {1 / facts.n:.2g}: "
            "a mechanism that publishes a whole record would satisfy it."
        )
    return options, plan, accounting.Guarantee(epsilon, delta, mu, eta)


def _solve(
    method: "Method[Any]",
    facts: "Facts",
    options: Any,
    plan: "Plan",
    guarantee: "Guarantee | None",
    stream: Any,
    seed: int | None,
) -> Any:
    """The only part that touches records."""
    from dpfc_cli.privacy.curator import Curator, NonPrivate
    from dpfc_cli.privacy.noise import SeededBits, SystemBits

    passes = len(plan.releases)
    with display.meter("Training", "records") as advance:

        def progress(done: int, n: int) -> None:
            advance((oracle.released - 1) * n + done, passes * n)

        oracle: Curator | NonPrivate
        if guarantee is None:
            oracle = NonPrivate(facts, stream, progress)
        else:
            oracle = Curator(
                facts, plan, guarantee.mu, stream, SystemBits() if seed is None else SeededBits(seed), progress
            )
        return method.solve(oracle, facts, options)


def _check_memory(plan: "Plan", facts: "Facts", limit: str | None) -> None:
    from dpfc_cli.errors import UserError
    from dpfc_cli.solvers.method import state_bytes

    needed = state_bytes(plan) + WORKING_BYTES
    allowed = _bytes(limit) if limit else machine_memory()
    if needed > allowed:
        raise UserError(
            f"This training needs about {needed / 1e9:.1f} GB ({facts.m} classes, {facts.d} dimensions); "
            f"the limit is {allowed / 1e9:.1f} GB.",
            "Use --method dp-fc (its state does not grow with m·d²), features of fewer dimensions (--pool mean), "
            "or a larger --memory.",
        )


def _bytes(text: str) -> float:
    from dpfc_cli.errors import UserError

    units = {
        "B": 1,
        "KB": 1e3,
        "MB": 1e6,
        "GB": 1e9,
        "TB": 1e12,
        "KIB": 2**10,
        "MIB": 2**20,
        "GIB": 2**30,
        "TIB": 2**40,
    }
    number = text.strip().rstrip("BbKkMmGgTtIi")
    unit = text.strip()[len(number) :].upper() or "B"
    try:
        return float(number) * units[unit if unit.endswith("B") else unit + "B"]
    except (ValueError, KeyError):
        raise UserError(f"--memory '{text}' is not a size.", "Write it like 8GB or 512MiB.") from None


def machine_memory() -> float:
    """Bytes that this process may use: the machine's memory, or less where a control group says so."""
    total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) if hasattr(os, "sysconf") else math.inf
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, float(Path(path).read_text()))
        except (OSError, ValueError):
            continue
    return total if sys.platform != "win32" else math.inf


def _warn_when_swamped(facts: "Facts", guarantee: "Guarantee | None") -> None:
    """Say, before anything is spent, that noise will swamp the signal: a class mean of unit vectors stands for n/m
    records, and the noise in one release of it has length √d/μ.
    """
    if guarantee is None:
        return
    signal, noise = facts.n / facts.m, math.sqrt(facts.d) / guarantee.mu
    if signal < 2 * noise:
        display.warn(
            f"noise will swamp the signal: about {signal:,.0f} records per class against noise of length {noise:,.0f} "
            f"({facts.d} dimensions at epsilon = {guarantee.epsilon:g}). Expect a poor head; more records, fewer "
            "dimensions or a larger epsilon help."
        )
