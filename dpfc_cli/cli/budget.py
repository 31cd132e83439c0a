"""`dpfc budget`: what σ is worth, what ε costs, what was spent, and how much may be."""

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfc_cli import rounding
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
    cap: Annotated[
        str | None,
        typer.Option(
            metavar="EPSILON",
            help="Set a cap: all trainings on the records of --features together never spend more than this ε, at the "
            "δ of --delta (default: min(1e-5, 1/n)). 'none' removes it.",
        ),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SET",
            help="Say that another feature set shares records with that of --features, where dpfc cannot see it by "
            "itself. What is spent on either counts for both. It is kept. May be given several times.",
        ),
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="Who sets the cap, or says so of --also. Default: your account.")
    ] = None,
    note: Annotated[str | None, typer.Option(help="Why the cap is set.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Convert between σ and ε for every method. Without either, show what was spent, as the ledgers say.

    With --cap, limit what may be spent. With --also, say that sets share records. Both stay in the ledger.

    σ is the noise multiplier of equal releases, as train's --noise-multiplier is. Conversions are exact (Gaussian
    differential privacy). The paper's looser conversion, ρ + 2√(ρ·ln(1/δ)), stands beside them for comparison.
    """
    from dpfc_cli.privacy.accounting import check_privacy

    if also and features is None:
        raise UserError(
            f"{parameter('also')} needs {parameter('features')}: it is about the records of one set.",
            "Name the set.",
            code="conflict",
            parameter="also",
        )
    if cap is not None:
        _refuse_beside_cap(features, delta, sigma=sigma, epsilon=epsilon, steps=steps)
    elif note is not None or (by is not None and not also):
        idle = "by" if note is None else "note"
        raise UserError(
            f"{parameter(idle)} has no meaning without {parameter('cap')}.",
            f"A training has its own {parameter('by')}, and a {parameter('purpose')}: 'dpfc train --help'.",
            code="conflict",
            parameter=idle,
        )
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
    if also:
        from dpfc_cli.training.told import share_records

        found, _ = places.feature_set(features)
        share_records(found, [places.feature_set(each)[0] for each in also], by=by)
    if cap is not None:
        from dpfc_cli.training.cap import set_cap

        found, _ = places.feature_set(features)
        set_cap(found, _cap(cap), delta=delta[0] if delta else None, by=by, note=note)
    result: dict[str, Any] = {}
    account = None
    if sigma is not None or epsilon is not None:
        from dpfc_cli.training.convert import conversions

        rows = conversions(noise_multiplier=sigma, epsilon=epsilon, deltas=deltas, steps=steps)
        result["conversion"] = rows
    if features is not None or not result:
        from dpfc_cli.folders import heads_folder
        from dpfc_cli.heads.head import cards
        from dpfc_cli.training.account import account_of, other_accounts

        ledger, named = places.ledger(features)
        account = account_of(ledger, named, cards(heads_folder()))
        others = other_accounts(ledger, named)
        shared = [{"feature_set": each.name, "records": each.records} for each in account.shared.shares]
        said = [{"feature_set": each.name, "by": each.who, "at": each.at} for each in account.overlaps]
        result["spent"] = {**account.to_json(deltas), "shared": shared, "said_to_share": said}
        result["spent_on_other_splits"] = [other.to_json(deltas) for other in others]
    if as_json:
        display.as_json(result)
        return
    if "conversion" in result:
        _show_conversion(result["conversion"], sigma, epsilon)
    if account is not None:
        _show_spent(account, deltas)
        for other in others:
            _show_split(other, deltas)


def _refuse_beside_cap(features: str | None, delta: list[float] | None, **others: float | None) -> None:
    """UserError for what does not go with a cap."""
    if features is None:
        raise UserError(
            f"{parameter('cap')} needs {parameter('features')}: a cap is on the records of one set.",
            "Name the set.",
            code="conflict",
            parameter="features",
        )
    idle = next((name for name, value in others.items() if value is not None), None)
    if idle is not None or len(delta or []) > 1:
        raise UserError(
            f"{parameter('cap')} goes with {parameter('features')} and one {parameter('delta')}, and not with "
            f"{'several' if idle is None else parameter(idle)}.",
            "Leave it out.",
            code="conflict",
            parameter=idle or "delta",
        )


def _cap(text: str) -> float | None:
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise UserError(
            f"{parameter('cap')} '{text}' is no ε.", "Give a number such as 3, or 'none'.", parameter="cap"
        ) from None


def _show_conversion(rows: list[dict[str, Any]], sigma: float | None, epsilon: float | None) -> None:
    wanted, shown = ("epsilon", rounding.epsilon) if sigma is not None else ("sigma", rounding.sigma)
    given = f"sigma = {sigma:.12g}" if sigma is not None else f"epsilon = {epsilon:.12g}"
    alike: dict[tuple[str, ...], list[str]] = {}
    for r in rows:
        figures = (
            rounding.delta(r["delta"]),
            str(r["steps"] or "–"),
            str(r["releases"]),
            shown(r[wanted]),
            shown(r["paper"]),
        )
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
    sets, folders = ", ".join(account.names), ", ".join(map(str, account.folders))
    _show_charged(f"Charged to the records of {sets}, as far as the ledgers in {folders} know", private)
    _show_total("Spent by these together", account, deltas)
    if account.shared.shares or account.overlaps:
        _show_shared(account)
    if account.all_caps:
        _show_caps(account)
    if account.private > 1 and not account.in_force:
        display.say(
            "This sum is a guarantee if the trainings were planned in advance. If later ones were chosen by looking at "
            "earlier heads, it says what they spent, and a cap that was fixed in advance is the guarantee."
        )
    if others:
        rows = [(*_named(name, row), row.claim) for name, row in others]
        display.table("Without a guarantee: epsilon = ∞", (*_COLUMNS, "claim"), rows, left=6)
    _show_who(account)
    if account.warning is not None:
        display.warn(account.warning)
    if account.not_counted:
        display.warn(
            f"Not counted: {', '.join(account.not_counted)}. It is not known whether they share records with this set. "
            "If they do, they spend their privacy, too: say so (--also)."
        )
    if account.unprotected:
        display.warn(
            f"Not in the sum: {counted(account.unprotected, 'training')} without a guarantee. "
            "What was released there has epsilon = ∞."
        )


def _show_split(account: "Account", deltas: tuple[float, ...]) -> None:
    """What was spent on the records of another split: by private evaluations of heads, and by trainings that may have
    seen some of them.
    """
    from dpfc_cli.training.ledger import EVALUATION

    _show_charged(f"Charged to the records of the {account.split} split", account.rows)
    _show_total(f"Spent on the {account.split} split", account, deltas)
    if any(row.method != EVALUATION for _, row in account.rows):
        display.say(
            f"A training counts for the {account.split} split if some of its records are in this split, too, such as "
            "copies of a picture, or if it is not known in which split they are."
        )
    _show_who(account)
    _warn_of_passed_caps(account, f" on the {account.split} split")


def _show_charged(title: str, rows: list[tuple[str, "Entry"]]) -> None:
    """Rows with a guarantee, each with what it claims."""
    display.table(
        title,
        (*_COLUMNS, "adjacency", "delta", "epsilon"),
        [
            (
                *_named(name, row),
                row.adjacency,
                rounding.delta(row.delta or 1.0),
                rounding.epsilon(row.epsilon or math.inf),
            )
            for name, row in rows
        ],
        left=7,
    )


def _show_total(what: str, account: "Account", deltas: tuple[float, ...]) -> None:
    """What was spent together, at each δ."""
    bound = "exact" if account.exact else "an upper bound"
    total = [(rounding.delta(delta), rounding.epsilon(account.epsilon(delta))) for delta in deltas]
    display.table(f"{what}, for one {account.unit} ({bound}, zero-out adjacency)", ("delta", "epsilon"), total)


def _show_who(account: "Account") -> None:
    """Who did what with the records, and what for."""
    signed = [(name, row) for name, row in account.rows if row.who is not None]
    if signed:
        why = any(row.purpose is not None for _, row in signed)
        rows_of = [
            (*((row.purpose or "–",) if why else ()), row.who or "", _named(name, row)[2], _named(name, row)[0])
            for name, row in signed
        ]
        names = (*(("purpose",) if why else ()), "by", "head", "when (UTC)")
        display.table("Whose trainings these are, as they said", names, rows_of, left=len(names))


def _warn_of_passed_caps(account: "Account", where: str = "") -> None:
    """A cap is passed if something was charged where it was not known."""
    from dpfc_cli.training import limit

    for name, cap in account.in_force:
        if account.room(cap, account.protects) < 0:
            display.warn(
                f"More is spent{where} than the cap allows ({limit.said(name, cap)}): some of these trainings were "
                "charged where this cap was not known."
            )


def _show_shared(account: "Account") -> None:
    """Which sets share records with this one. It is a fact about records, and for whoever holds them."""
    display.table(
        "Sets that share records with this one",
        ("feature set", "trainings", "records in both"),
        [
            (share.name, str(len(share.entries)), "it is said" if share.records is None else f"{share.records:,}")
            for share in account.shared.shares
        ],
        left=1,
    )
    if account.overlaps:
        display.table(
            "What was said of that",
            ("other set", "by", "when (UTC)"),
            [(each.name, each.who, each.at[:16].replace("T", " ")) for each in account.overlaps],
            left=3,
        )
    if account.shared.summed:
        display.say("It is not known which records are in which set. So all trainings are added up for each record.")
    elif account.shared.shares:
        display.say(
            "The total is for the record that the trainings cost most. Records that are in fewer of these sets have "
            "spent less."
        )


def _show_caps(account: "Account") -> None:
    """The caps: what holds, what is left, and every change."""
    from dpfc_cli.training import limit

    rows = []
    for name, cap in account.in_force:
        left = account.room(cap, account.protects)
        largest = limit.fitting(left, cap.delta or 1.0) if left > 0 else None
        more = f"{rounding.left(largest, cap.delta or 1.0)} for one more training"
        rows += [("cap", limit.said(name, cap)), ("left", more)]
    _warn_of_passed_caps(account)
    display.facts(
        "What all trainings on these records may spend together (zero-out adjacency)", rows or [("cap", "none")]
    )
    display.table(
        "Every change of the cap",
        ("note", "by", "feature set", "when (UTC)", "after", "delta", "epsilon"),
        [
            (
                *(cap.note or "–", cap.who, name, cap.at[:16].replace("T", " "), counted(cap.trainings, "training")),
                *(("–", "none") if cap.delta is None else (rounding.delta(cap.delta), f"{cap.epsilon:.6g}")),
            )
            for name, cap in account.all_caps
        ],
        left=5,
    )
    if account.in_force and account.private:
        display.say(
            "A cap is a guarantee, however the trainings are chosen, if it was fixed before the first head was seen. "
            "If it was raised later, what counts is the highest one that might have been set."
        )


_COLUMNS = ("when (UTC)", "feature set", "head", "method", "state")


def _named(feature_set: str, row: "Entry") -> tuple[str, str, str, str, str]:
    """When a training was, what it was of, and what became of it: the cells of `_COLUMNS`."""
    when, head = row.at[:16].replace("T", " "), row.head.removesuffix(".safetensors")
    return when, feature_set, head, row.method, row.state
