"""`dpfc budget`: what σ is worth, what ε costs, and what was spent."""

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfc_cli.cli import display, places
from dpfc_cli.cli.app import command
from dpfc_cli.errors import UserError, counted, parameter, sentence

if TYPE_CHECKING:
    from dpfc_cli.training.account import Account
    from dpfc_cli.training.ledger import Entry

DELTAS = (1e-5, 1e-6, 1e-7)


@command("budget")
def budget(
    sigma: Annotated[
        float | None,
        typer.Option("--sigma", "--noise-multiplier", help="Noise multiplier of equal releases: what is it as ε?"),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε: which noise multiplier does it take?")] = None,
    delta: Annotated[
        list[float] | None, typer.Option(help="δ; may be given several times. Default: 1e-5, 1e-6, 1e-7.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Steps T of the iterative methods. Default: theirs.")
    ] = None,
    features: Annotated[
        str | None, typer.Option(metavar="SET", help="Feature set whose ledger is shown, by path or name.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object to stdout.")] = False,
) -> None:
    """Convert between σ and ε for every method. Without either, show what was spent, as the ledgers say.

    σ is the noise multiplier of equal releases, as train's --noise-multiplier is. Conversions are exact (Gaussian
    differential privacy). The paper's looser conversion, ρ + 2√(ρ·ln(1/δ)), stands beside them for comparison.
    """
    from dpfc_cli.privacy.accounting import check_privacy

    if sigma is not None and epsilon is not None:
        raise UserError(
            f"{parameter('sigma')} and {parameter('epsilon')} were both given.",
            "Give σ to get ε, or ε to get σ.",
            code="conflict",
        )
    if sigma is not None and not (sigma > 0 and math.isfinite(sigma)):
        raise UserError(
            f"{parameter('sigma')} must be a positive number, not {sigma:g}.", "Give a noise multiplier such as 10."
        )
    deltas = tuple(dict.fromkeys(delta or DELTAS))
    try:
        for value in deltas:
            check_privacy(1.0 if epsilon is None else epsilon, value)
    except ValueError as error:
        raise UserError(sentence(error), "Give an ε such as 1 and a δ such as 1e-5.") from error
    if steps is not None and sigma is None and epsilon is None:
        raise UserError(
            f"{parameter('steps')} has no meaning without {parameter('sigma')} or {parameter('epsilon')}.",
            "Give one of them too, or leave it out.",
            code="conflict",
        )
    result: dict[str, Any] = {}
    account = None
    if sigma is not None or epsilon is not None:
        from dpfc_cli.training.convert import conversions

        rows = conversions(noise_multiplier=sigma, epsilon=epsilon, deltas=deltas, steps=steps)
        result["conversion"] = rows
    if features is not None or not result:
        from dpfc_cli.folders import heads_folder
        from dpfc_cli.heads.head import cards
        from dpfc_cli.training.account import account_of

        ledger, named = places.ledger(features)
        account = account_of(ledger, named, cards(heads_folder()))
        result["spent"] = account.to_json(deltas)
    if as_json:
        display.as_json(result)
        return
    if "conversion" in result:
        _show_conversion(result["conversion"], sigma, epsilon)
    if account is not None:
        _show_spent(account, deltas)


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


def _show_spent(account: "Account", deltas: tuple[float, ...]) -> None:
    private = [(name, row) for name, row in account.rows if row.claim == "private"]
    others = [(name, row) for name, row in account.rows if row.claim != "private"]
    sets = ", ".join(sorted({account.name, *(name for name, _ in account.linked)}))
    columns = ("when (UTC)", "feature set", "head", "method", "state")
    display.table(
        f"Charged to the records of {sets}, as far as the ledgers in {', '.join(map(str, account.folders))} know",
        (*columns, "adjacency", "delta", "epsilon"),
        [
            (*_named(name, row), row.adjacency, f"{row.delta:g}", display.epsilon(row.epsilon or math.inf))
            for name, row in private
        ],
        left=7,
    )
    bound = "exact" if account.exact else "an upper bound"
    total = [(f"{delta:g}", display.epsilon(account.epsilon(delta))) for delta in deltas]
    display.table(f"Spent by these together ({bound}, zero-out adjacency)", ("delta", "epsilon"), total)
    if account.private > 1:
        display.say(
            "This sum is a guarantee if the trainings were planned in advance. If later ones were chosen by looking at "
            "earlier heads, it says what they spent, and a cap that was fixed in advance is the guarantee."
        )
    if others:
        rows = [(*_named(name, row), row.claim) for name, row in others]
        display.table("Without a guarantee: epsilon = ∞", (*columns, "claim"), rows, left=6)
    if account.warning is not None:
        display.warn(account.warning)
    if account.not_counted:
        display.warn(
            f"Not counted: {', '.join(account.not_counted)}. Sets are linked if they were made of exactly the same "
            "pictures. A set that only shares some of them spends their privacy, too."
        )
    if account.unprotected:
        display.warn(
            f"Not in the sum: {counted(account.unprotected, 'training')} without a guarantee. "
            "What was released there has epsilon = ∞."
        )


def _named(feature_set: str, row: "Entry") -> tuple[str, str, str, str, str]:
    """When a training was, what it was of, and what became of it."""
    when, head = row.at[:16].replace("T", " "), row.head.removesuffix(".safetensors")
    return when, feature_set, head, row.method, row.state
