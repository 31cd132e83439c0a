"""`dpfc train`: a feature set and a budget in, a head and a statement out."""

import itertools
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfc_cli.cli import display, places
from dpfc_cli.cli.app import command

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet
    from dpfc_cli.training import Calibrated

_PRIVACY, _METHOD = "Privacy", "Method (defaults are functions of public facts)"


@command("train", when_stopped="No head was written. If the ledger was charged, it stays charged: see 'dpfc budget'.")
def train(
    method: Annotated[
        str,
        typer.Option(
            help="auto, dp-whitened, dp-fc, dp-ls, dp-newton, dp-sgd, dp-momentum or dp-adam. auto: dp-whitened (3 % "
            "of the budget for the mean, 10 % for the covariance, 87 % for gradients); dp-fc for several labels.",
            rich_help_panel=_METHOD,
        ),
    ] = "auto",
    epsilon: Annotated[float | None, typer.Option(help="ε to spend.", rich_help_panel=_PRIVACY)] = None,
    delta: Annotated[float | None, typer.Option(help="δ. Default: min(1e-5, 1/n).", rich_help_panel=_PRIVACY)] = None,
    sigma: Annotated[
        float | None,
        typer.Option(
            help="Instead of ε: the noise multiplier, which is the noise's standard deviation over the most that one "
            "record can add, of each release if all had the same. 'dpfc budget --sigma' tells its ε.",
            rich_help_panel=_PRIVACY,
        ),
    ] = None,
    non_private: Annotated[
        bool,
        typer.Option("--non-private", help="No noise, contributions not clipped: ε = ∞.", rich_help_panel=_PRIVACY),
    ] = False,
    adjacency: Annotated[
        str | None,
        typer.Option(
            help="What no one may be able to tell. zero-out (default): whether one record was used or counts as null; "
            "replace-one: whether it was another, which takes more noise. Their number is public in both.",
            rich_help_panel=_PRIVACY,
        ),
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="Feature set, by path or name. Default: the newest in ./features.")
    ] = None,
    public_features: Annotated[
        str | None,
        typer.Option(
            help="Feature set of other, unprotected pictures from the same backbone: its mean and covariance steady "
            "the released ones and cost no privacy (dp-whitened)."
        ),
    ] = None,
    tune_on: Annotated[
        str | None,
        typer.Option(
            help="Feature set of other, unprotected, labelled pictures from the same backbone: η and λ (dp-ls: α and "
            "λ; dp-whitened: η and the bias's constant) are chosen by private trainings on it, at no cost in privacy."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The head's file. Default: a telling name in ./heads.")] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="T: how many steps (not dp-ls). Default: dp-whitened 12, dp-fc 20, dp-newton 10, others 100.",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    eta: Annotated[
        float | None,
        typer.Option(
            help="Learning rate η (not dp-ls). dp-whitened computes its own and multiplies it by this (1).",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    lam: Annotated[
        float | None,
        typer.Option(
            "--lambda",
            help="λ, added to the diagonal of a noisy matrix before it is inverted: the larger, the steadier and the "
            "blunter (not dp-sgd, -momentum, -adam). Default: about the size of the noise in that matrix. dp-whitened "
            "takes it as a multiple of that size (0.25).",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            help="dp-ls fits each class to its own records and, with this weight, to all. Default: 0.1, and more the "
            "stronger the noise.",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    clip: Annotated[
        float | None,
        typer.Option(
            help="Norm C that feature vectors are clipped to, in their own units (not dp-whitened, which scales them "
            "itself). Default: 0.005, which brings practically all to one length.",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    gradient_clip: Annotated[
        float | None,
        typer.Option(
            help="Norm C_g that each record's gradient is clipped to, as a multiple of the length that records are "
            "brought to first (not dp-ls, dp-newton). Default: 0.5, dp-fc 0.36.",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    budget_split: Annotated[
        str | None,
        typer.Option(
            help="How the budget, μ², is divided among the kinds of release, as fractions in this order: dp-whitened "
            "mean, Gram, gradients (0.03,0.1,0.87); dp-fc Gram, gradients; dp-ls Gram, class Grams, class sums "
            "(0.2,0.1,0.7); dp-newton gradients, Hessians (0.5,0.5).",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(help="sigmoid (default) or softmax (dp-fc, dp-sgd, -momentum, -adam).", rich_help_panel=_METHOD),
    ] = None,
    sampling_rate: Annotated[
        float | None,
        typer.Option(help="Poisson-sample each step's records (dp-sgd, -momentum, -adam).", rich_help_panel=_METHOD),
    ] = None,
    average: Annotated[
        bool,
        typer.Option(
            "--average",
            help="Take the mean of the second half of the steps, not the last one (dp-sgd, -momentum, -adam).",
            rich_help_panel=_METHOD,
        ),
    ] = False,
    memory: Annotated[str | None, typer.Option(help="Refuse beyond this, such as 8GB. Default: what is free.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Reproducible noise for research. The head then claims no guarantee.")
    ] = None,
) -> None:
    """Train a classifier on a feature set and charge its privacy to the ledger."""
    from dpfc_cli import training
    from dpfc_cli.cli import statement
    from dpfc_cli.errors import UserError
    from dpfc_cli.heads import head as heads
    from dpfc_cli.methods import method_named
    from dpfc_cli.training import public, tuning

    given: dict[str, Any] = {"steps": steps, "eta": eta, "lam": lam, "alpha": alpha, "clip": clip}
    given |= {"gradient_clip": gradient_clip, "loss": loss, "sampling_rate": sampling_rate, "average": average or None}
    given |= {"split": None if budget_split is None else _fractions(budget_split)}
    given = {name: value for name, value in given.items() if value is not None}
    if sum((epsilon is not None, sigma is not None, non_private)) != 1:
        raise UserError(
            "Privacy must be given once, as --epsilon, as --sigma or as --non-private.", "For a start: --epsilon 1."
        )
    if non_private and (delta, seed, adjacency, gradient_clip, sampling_rate) != (None,) * 5:
        raise UserError(
            "--delta, --seed, --adjacency, --gradient-clip and --sampling-rate have no effect with --non-private.",
            "Leave them out.",
        )
    if adjacency not in (None, "zero-out", "replace-one"):
        raise UserError(f"Unknown adjacency '{adjacency}'.", "Known: zero-out, replace-one.")
    privacy = training.Privacy(epsilon, delta, sigma, seed)
    found, by_default = places.feature_set(features)
    facts = training.facts_of(found, adjacency or "zero-out")  # type: ignore[arg-type]
    chosen = method_named(method, facts)
    limit = None if memory is None else _bytes(memory)
    calibrated = training.calibrate(
        chosen,
        facts,
        given,
        privacy,
        lambda: display.say("Calibrating the noise for sampled releases, which takes some seconds."),
    )
    path = _path(out, found.name, calibrated)
    if by_default:
        display.say(f"Features: {found.folder} (the newest set; name another with --features)")
    known = {name: places.feature_set(name)[0] for name in (tune_on, public_features) if name is not None}
    if public_features is not None:
        public.check(calibrated, found, known[public_features])
    trials = None if tune_on is None else tuning.prepare(calibrated, given, found, known[tune_on], limit)
    warnings = [*training.forebodings(calibrated), *itertools.chain(*map(public.forebodings, known.values()))]
    for warning in [*warnings, *([] if trials is None else tuning.forebodings(trials))]:
        display.warn(warning)
    if (remark := _so_far(found, calibrated)) is not None:
        display.say(remark)
    if public_features is not None:
        with display.meter("Reading the public features", "records") as reading:
            calibrated = public.inform(calibrated, found, known[public_features], limit, reading)
    with display.meter("Checking the features", "shards") as checking:
        oracle = training.prepare(found, calibrated, limit, checking)
    if trials is not None:
        heads.reserve(path).unlink()
        with display.meter(f"Tuning on {trials.known.name}", "trainings") as tuned:
            calibrated = tuning.tune(calibrated, trials, tuned)
    with display.meter("Training", "records") as progress:
        head, written = training.run(found, calibrated, oracle, path, progress)
    rows = statement.rows(written, head.card)
    if privacy.claim == "private":
        rows.append(("spent so far", _spent(found, calibrated)))
    display.facts(f"Head {written}", rows)
    if head.card.get("converged") is False:
        display.warn("the optimum was not reached: the head is where the iteration ended.")
    named = [] if privacy.claim == "private" and out is None else [str(written)]
    named += [] if features is None else ["--features", features]
    display.say(f"Next: {shlex.join(['dpfc', 'evaluate', *named])}")


def _so_far(found: "FeatureSet", calibrated: "Calibrated") -> str | None:
    """What the records have cost before a training, and what that will make it; None if they have not."""
    from dpfc_cli.cli.budget import spent_on
    from dpfc_cli.training import SPLIT
    from dpfc_cli.training.ledger import entry, ledger_path

    c = calibrated
    if c.guarantee is None or c.privacy.claim != "private":
        return None
    ledger, deltas = ledger_path(found.folder), (c.guarantee.delta,)
    before = spent_on(ledger, deltas)
    if not before["trainings"]:
        return None
    row = entry(found.manifest, SPLIT, c.method.name, "private", c.guarantee, c.facts, c.plan, "")
    made = spent_on(ledger, deltas, (row,))
    then = f"this training makes it {'' if made['exact'] else 'at most '}{_figure(made)}"
    return "; ".join([f"These records have {_summed(before)} spent", then, *_not_in(before)]) + "."


def _spent(found: "FeatureSet", calibrated: "Calibrated") -> str:
    """What all trainings on these records have cost together, and what that leaves out."""
    from dpfc_cli.cli.budget import spent_on
    from dpfc_cli.errors import counted
    from dpfc_cli.training.ledger import ledger_path

    assert calibrated.guarantee is not None
    ledger = ledger_path(found.folder)
    spent = spent_on(ledger, (calibrated.guarantee.delta,))
    count = sum(t["claim"] == "private" for t in spent["trainings"])
    by = f"{_summed(spent)} by {counted(count, 'private training')}"
    return "; ".join([by, *_not_in(spent), f"ledger {ledger}"])


def _summed(spent: dict[str, Any]) -> str:
    (delta,) = spent["epsilon"]
    bound = "" if spent["exact"] else " (an upper bound)"
    return f"epsilon = {_figure(spent)}{bound} at delta = {delta} under {spent['adjacency']} adjacency"


def _figure(spent: dict[str, Any]) -> str:
    (epsilon,) = spent["epsilon"].values()
    return display.epsilon(epsilon)


def _not_in(spent: dict[str, Any]) -> list[str]:
    """What the sum of a ledger leaves out."""
    said = []
    if spent["unprotected"]:
        said.append(f"not in it: {spent['unprotected']} without a guarantee (epsilon = ∞)")
    if spent["not_counted"]:
        said.append(f"not in it: {', '.join(spent['not_counted'])}, which may hold some of the same records")
    return said


def _fractions(text: str) -> tuple[float, ...]:
    from dpfc_cli.errors import UserError

    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--budget-split '{text}' is not a list of numbers.", "Write it like 0.15,0.85.") from None


def _path(out: Path | None, features: str, calibrated: "Calibrated") -> Path:
    """Where the head goes. It is named by what was asked for, never by what came out."""
    from dpfc_cli.errors import UserError
    from dpfc_cli.heads.head import PRIVATE
    from dpfc_cli.training import SUFFIXES

    claim, guarantee = calibrated.privacy.claim, calibrated.guarantee
    suffix = SUFFIXES[claim]
    if out is None:
        asked = f"-eps{guarantee.epsilon:.4g}" if guarantee else ""
        return places.free_name(places.HEADS, f"{features}-{calibrated.method.name}{asked}", suffix)
    others = [s for s in SUFFIXES.values() if s not in (suffix, PRIVATE)]
    if not out.name.endswith(suffix) or any(out.name.endswith(s) for s in others):
        raise UserError(f"--out '{out}' must end in {suffix}, for the head will be {claim}.", "Change the name.")
    if out.exists():
        raise UserError(
            f"'{out}' exists, and a head is not overwritten: it was paid for.",
            "Choose another --out, or move it away.",
        )
    return out


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
    match = re.fullmatch(r"([0-9.]+) *([A-Za-z]+)", text.strip())
    try:
        if match:
            return float(match[1]) * units[match[2].upper()]
    except (ValueError, KeyError):
        pass
    raise UserError(f"--memory '{text}' is not a size.", "Write it like 8GB or 512MiB.")
