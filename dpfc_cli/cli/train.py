"""`dpfc train`: a feature set and a budget in, a head and a statement out."""

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfc_cli.cli import display, places
from dpfc_cli.cli.app import command

if TYPE_CHECKING:
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
        typer.Option(help="Instead of ε: the noise multiplier of as many equal releases.", rich_help_panel=_PRIVACY),
    ] = None,
    non_private: Annotated[
        bool,
        typer.Option("--non-private", help="No noise, contributions not clipped: ε = ∞.", rich_help_panel=_PRIVACY),
    ] = False,
    adjacency: Annotated[
        str | None,
        typer.Option(
            help="What neighbouring data sets are. zero-out (default): one record counts as null; replace-one: it is "
            "any other, which takes more noise. Their number is public in both.",
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
            help="Learning rate η (not dp-ls; dp-whitened: as a multiple of its rule).", rich_help_panel=_METHOD
        ),
    ] = None,
    lam: Annotated[
        float | None,
        typer.Option(
            "--lambda",
            help="Ridge (dp-ls) or damping (others; dp-whitened: in units of the covariance's noise).",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Weight of the negatives (dp-ls).", rich_help_panel=_METHOD)
    ] = None,
    clip: Annotated[
        float | None,
        typer.Option(
            help="Norm C that features are clipped to, in their own units (not dp-whitened, which scales them itself).",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    gradient_clip: Annotated[
        float | None,
        typer.Option(
            help="Norm C_g of gradients (not dp-ls, dp-newton), in units of C; dp-whitened: of a record's length.",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    budget_split: Annotated[
        str | None,
        typer.Option(
            help="Fractions of μ² per kind of release, in plan order: dp-whitened mean, Gram, gradients "
            "(0.03,0.1,0.87); dp-fc Gram, gradients; dp-ls Gram, class Grams, class sums (0.2,0.1,0.7); dp-newton "
            "gradients, Hessians (0.5,0.5).",
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
            "--average", help="Average the late iterates (dp-sgd, -momentum, -adam).", rich_help_panel=_METHOD
        ),
    ] = False,
    memory: Annotated[str | None, typer.Option(help="Refuse beyond this, such as 8GB. Default: what is free.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Reproducible noise for research. The head then claims no guarantee.")
    ] = None,
) -> None:
    """Train a classifier on a feature set and charge its privacy to the ledger."""
    from dpfc_cli import public, training, tuning
    from dpfc_cli.errors import UserError
    from dpfc_cli.heads import head as heads
    from dpfc_cli.solvers import method_named
    from dpfc_cli.trust import statement
    from dpfc_cli.trust.ledger import ledger_path

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
    if sampling_rate is not None:
        display.say("Calibrating the noise for sampled releases, which takes some seconds.")
    calibrated = training.calibrate(chosen, facts, given, privacy)
    path = _path(out, found.name, calibrated)
    if by_default:
        display.say(f"Features: {found.folder} (the newest set; name another with --features)")
    for warning in training.forebodings(calibrated):
        display.warn(warning)
    limit = None if memory is None else _bytes(memory)
    trials = None
    known = {name: places.feature_set(name)[0] for name in (tune_on, public_features) if name is not None}
    for warning in itertools.chain.from_iterable(map(public.forebodings, known.values())):
        display.warn(warning)
    if tune_on is not None:
        trials = tuning.prepare(calibrated, given, found, known[tune_on], limit)
        for warning in tuning.forebodings(trials):
            display.warn(warning)
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
    settings = ", ".join(f"{_named(name)} = {_text(value)}" for name, value in head.card["options"].items())
    rows = [("method", f"{chosen.name} ({chosen.title})"), ("options", settings), *statement.rows(head.card)]
    if calibrated.guarantee is not None and privacy.claim == "private":
        rows.append(("spent so far", _spent(ledger_path(found.folder), calibrated.guarantee.delta)))
    display.facts(f"Head {written}", rows)
    if head.card.get("converged") is False:
        display.warn(
            "the optimum was not reached: where classes can be separated there is none, and the head is where the "
            "iteration ended. --steps ends it earlier."
        )
    display.say(f"Next: dpfc evaluate{'' if privacy.claim == 'private' and out is None else f' --head {written}'}")


def _spent(ledger: Path, delta: float) -> str:
    """What all trainings on these records have cost together."""
    from dpfc_cli.cli.budget import spent_on

    spent = spent_on(ledger, (delta,))
    count = sum(t["claim"] == "private" for t in spent["trainings"])
    (epsilon,) = spent["epsilon"].values()
    return f"epsilon = {epsilon:.6g} at delta = {delta:.3g} by {count} private training(s); ledger {ledger}"


def _named(option: str) -> str:
    return {"lam": "lambda", "split": "budget split"}.get(option, option.replace("_", " "))


def _fractions(text: str) -> tuple[float, ...]:
    from dpfc_cli.errors import UserError

    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--budget-split '{text}' is not a list of numbers.", "Write it like 0.15,0.85.") from None


def _text(value: object) -> str:
    if value is None:
        return "until converged"
    if isinstance(value, list | tuple):
        return ":".join(map(_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


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
