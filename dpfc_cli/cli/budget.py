"""`dpfc budget`: what σ is worth, what ε costs, and what has been spent."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfc_cli.cli import display, places
from dpfc_cli.cli.app import command
from dpfc_cli.errors import counted, sentence

if TYPE_CHECKING:
    from dpfc_cli.training.ledger import Entry

DELTAS = (1e-5, 1e-6, 1e-7)


@command("budget")
def budget(
    sigma: Annotated[
        float | None, typer.Option(help="Noise multiplier of each of the equal releases: which ε is that?")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε: which noise multiplier does that take?")] = None,
    delta: Annotated[
        list[float] | None, typer.Option(help="δ; may be given several times. Default: 1e-5, 1e-6, 1e-7.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Steps T of the iterative methods. Default: theirs.")
    ] = None,
    features: Annotated[str | None, typer.Option(help="Feature set whose ledger to show, by path or name.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Convert between σ and ε for every method; without either, show what the ledger says has been spent.

    σ is that of equal releases, as train's --sigma is. Conversions are exact (Gaussian differential privacy); beside
    them stands the paper's looser one, ρ + 2√(ρ·ln(1/δ)), for comparison.
    """
    from dpfc_cli.errors import UserError
    from dpfc_cli.privacy.accounting import check_privacy

    if sigma is not None and epsilon is not None:
        raise UserError("--sigma and --epsilon were both given.", "Give one: σ to get ε, or ε to get σ.")
    if sigma is not None and not (sigma > 0 and math.isfinite(sigma)):
        raise UserError(f"--sigma must be a positive number, not {sigma:g}.", "Give a noise multiplier such as 10.")
    deltas = tuple(delta or DELTAS)
    try:
        for value in deltas:
            check_privacy(1.0 if epsilon is None else epsilon, value)
    except ValueError as error:
        raise UserError(sentence(error), "Give an ε such as 1 and a δ such as 1e-5.") from error
    if steps is not None and sigma is None and epsilon is None:
        raise UserError("--steps says nothing without --sigma or --epsilon.", "Give one of them too, or leave it out.")
    result: dict[str, Any] = {}
    if sigma is not None or epsilon is not None:
        result["conversion"] = _conversion(sigma, epsilon, deltas, steps)
    if features is not None or not result:
        result["spent"] = spent_on(_ledger(features), deltas)
    if as_json:
        print(json.dumps(_finite(result), allow_nan=False))  # noqa: T201
        return
    if "conversion" in result:
        _show_conversion(result["conversion"], sigma, epsilon)
    if "spent" in result:
        _show_spent(result["spent"])


def _finite(value: Any) -> Any:
    """The same with null for infinity, which JSON does not know."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def _conversion(
    sigma: float | None, epsilon: float | None, deltas: tuple[float, ...], steps: int | None
) -> list[dict[str, Any]]:
    from dpfc_cli.methods import METHODS
    from dpfc_cli.privacy.oracle import Facts

    facts = Facts(n=1, m=2, d=1)
    rows = []
    for method in METHODS.values():
        iterates = "steps" in method.options.__dataclass_fields__
        options = method.defaults(facts, 1.0, {"steps": steps} if iterates and steps else {})
        releases = method.plan(facts, options).count
        for delta in deltas:
            row = {"method": method.name, "steps": options.steps if iterates else None, "releases": releases}
            rows.append({**row, "delta": delta, **_converted(sigma, epsilon, delta, releases)})
    return rows


def _converted(sigma: float | None, epsilon: float | None, delta: float, releases: int) -> dict[str, float]:
    """ε of σ or σ of ε, exactly, and the same by the paper's conversion."""
    from dpfc_cli.privacy import accounting

    if sigma is not None:
        mu = accounting.mu_of_sigma(sigma, releases)
        paper = max(accounting.zcdp_epsilon(mu, delta), accounting.LEAST_EPSILON)
        return {"sigma": sigma, "epsilon": accounting.epsilon_for(mu, delta), "paper": paper}
    assert epsilon is not None
    exact, paper = accounting.mu_for(epsilon, delta), accounting.zcdp_mu(epsilon, delta)
    return {"epsilon": epsilon, "sigma": math.sqrt(releases) / exact, "paper": math.sqrt(releases) / paper}


def _show_conversion(rows: list[dict[str, Any]], sigma: float | None, epsilon: float | None) -> None:
    wanted, shown = ("epsilon", display.epsilon) if sigma is not None else ("sigma", display.sigma)
    given = f"sigma = {sigma:.12g}" if sigma is not None else f"epsilon = {epsilon:.12g}"
    alike: dict[tuple[str, ...], list[str]] = {}
    for r in rows:
        figures = (f"{r['delta']:g}", str(r["steps"] or "–"), str(r["releases"]), shown(r[wanted]), shown(r["paper"]))
        alike.setdefault(figures, []).append(r["method"])
    display.table(
        f"What {given} means if all releases of a training are equal: exactly, and by the paper's conversion",
        ("method", "delta", "steps", "releases", wanted, "paper's"),
        [(", ".join(methods), *figures) for figures, methods in alike.items()],
        left=2,
    )
    if epsilon is not None:
        display.say(
            "train divides the budget unequally and states each release's sigma. Given as its --sigma, these figures "
            "come to the same epsilon."
        )


def _ledger(features: str | None) -> Path:
    """The ledger asked for, or the newest one."""
    from dpfc_cli.errors import UserError
    from dpfc_cli.training.ledger import SUFFIX, ledger_path

    if features is not None:
        return ledger_path(places.set_folder(features))
    folder = places.features_folder()
    # A set may be a link to a folder elsewhere: its ledger then lies there.
    found = {ledger_path(p.parent) for p in folder.glob("*/manifest.json")} | set(folder.glob(f"*{SUFFIX}"))
    found = {p.resolve() for p in found if p.exists()}
    if not found:
        raise UserError(
            f"Nothing to show: no ledger in '{folder}', and neither --sigma nor --epsilon was given.",
            "Try: dpfc budget --sigma 10 --steps 10, or train something first.",
        )
    return max(found, key=lambda p: p.stat().st_mtime_ns)


def spent_on(path: Path, deltas: tuple[float, ...], planned: Sequence["Entry"] = ()) -> dict[str, Any]:
    """What the ledger says, together with those beside it of feature sets made of the same records. planned: trainings
    that are not charged yet, which ε is to count too.
    """
    from dpfc_cli.features.manifest import MANIFEST, load
    from dpfc_cli.training.ledger import SUFFIX, composes_exactly, read, records_of, together

    own = read(path)
    records = {row.records for row in own}
    folder = path.with_name(path.name.removesuffix(SUFFIX))
    if (folder / MANIFEST).exists():
        records.add(records_of(load(folder)))
    others = sorted(set(path.parent.glob(f"*{SUFFIX}")) - {path})
    rows = [(p, row) for p in (path, *others) for row in read(p) if p == path or row.records in records]
    all_rows = [*(row for _, row in rows), *planned]
    known = {p for p, _ in rows} | {path}
    return {
        "ledger": str(path),
        "feature_sets": sorted({p.name.removesuffix(SUFFIX) for p, _ in rows} | {path.name.removesuffix(SUFFIX)}),
        "not_counted": sorted(p.name.removesuffix(SUFFIX) for p in others if p not in known),
        "adjacency": "zero-out",
        "exact": composes_exactly(all_rows),
        "epsilon": {f"{d:g}": together(all_rows, d) for d in deltas},
        "unprotected": sum(row.claim != "private" for _, row in rows),
        "trainings": [
            {
                **{
                    name: getattr(row, name)
                    for name in ("at", "method", "claim", "epsilon", "delta", "adjacency", "head")
                },
                "feature_set": p.name.removesuffix(SUFFIX),
            }
            for p, row in sorted(rows, key=lambda item: item[1].at)
        ],
    }


def _show_spent(spent: dict[str, Any]) -> None:
    private = [t for t in spent["trainings"] if t["claim"] == "private"]
    others = [t for t in spent["trainings"] if t["claim"] != "private"]
    sets, folder = ", ".join(spent["feature_sets"]), Path(spent["ledger"]).parent
    columns = ("when (UTC)", "feature set", "head", "method")
    display.table(
        f"Charged to the records of {sets}, as far as the ledgers in {folder} know",
        (*columns, "adjacency", "delta", "epsilon"),
        [(*_named(t), t["adjacency"], f"{t['delta']:g}", display.epsilon(t["epsilon"])) for t in private],
        left=6,
    )
    bound = "exact" if spent["exact"] else "an upper bound"
    total = [(d, display.epsilon(e)) for d, e in spent["epsilon"].items()]
    display.table(f"Spent by these together ({bound}, zero-out adjacency)", ("delta", "epsilon"), total)
    if others:
        rows = [(*_named(t), t["claim"]) for t in others]
        display.table("Without a guarantee: epsilon = ∞", (*columns, "claim"), rows, left=5)
    if spent["not_counted"]:
        display.warn(
            f"Not counted: {', '.join(spent['not_counted'])}. Sets are linked when made of exactly the same pictures; "
            "one that only shares some with these spends their privacy, too."
        )
    if spent["unprotected"]:
        display.warn(
            f"Not in the sum: {counted(spent['unprotected'], 'training')} without a guarantee. "
            "What was released there has epsilon = ∞."
        )


def _named(training: dict[str, Any]) -> tuple[str, str, str, str]:
    """When a training was, and what it was of."""
    when, head = training["at"][:16].replace("T", " "), training["head"].removesuffix(".safetensors")
    return when, training["feature_set"], head, training["method"]
