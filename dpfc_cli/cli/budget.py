"""`dpfc budget`: what σ is worth, what ε costs, what was spent, and how much may be."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dpfc_cli import rounding
from dpfc_cli.cli import display, stop
from dpfc_cli.cli.app import command
from dpfc_cli.cli.help import Full
from dpfc_cli.cli.typed import JSON, feature_set
from dpfc_cli.errors import UserError, parameter, sentence
from dpfc_cli.folders import LEDGER, features_folder, heads_folder
from dpfc_cli.options import Option
from dpfc_cli.show.document import Block, Document, Section, Table, Words

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet
    from dpfc_cli.ledger.totals import Ledger

DELTAS = (1e-5, 1e-6, 1e-7)
_CHANGES = "Changes of the ledger"


@command("budget")
def budget(
    sigma: Annotated[
        float | None,
        Option("Noise multiplier of equal releases: what is it as ε?", flags=("--sigma", "--noise-multiplier")),
    ] = None,
    epsilon: Annotated[float | None, Option("ε: which noise multiplier does it take?")] = None,
    delta: Annotated[list[float] | None, Option("δ; may be given several times. Default: 1e-5, 1e-6, 1e-7.")] = None,
    steps: Annotated[
        int | None, Option("Steps T of the iterative methods. Default: theirs.", low=1, high=10_000)
    ] = None,
    features: Annotated[
        str | None, Option("Feature set whose population is shown, by path or name.", metavar="SET")
    ] = None,
    cap: Annotated[
        str | None,
        Option(
            "Set a cap: all trainings on the population of --features together never spend more than this ε, at "
            "the δ of --delta (default: min(1e-5, 1/n)). 'none' removes it.",
            _CHANGES,
            metavar="EPSILON",
        ),
    ] = None,
    population: Annotated[
        str | None,
        Option(
            "Say whose records --features has. Nobody may be in two populations. A set of which nothing is said "
            "counts in all of them.",
            _CHANGES,
            metavar="NAME",
        ),
    ] = None,
    adopt: Annotated[
        bool,
        Option("Write down --features, of which the ledger knows nothing. Totals then say 'at least'.", _CHANGES),
    ] = False,
    merge: Annotated[
        Path | None,
        Option("Unite the ledger with the one of another folder of sets.", _CHANGES, metavar="OTHER"),
    ] = None,
    apart: Annotated[
        list[str] | None,
        Option(
            "With --merge: a population that only one ledger has, with nobody in common with the others.",
            _CHANGES,
            metavar="NAME",
        ),
    ] = None,
    same: Annotated[
        list[str] | None,
        Option("With --merge: the name here, and the name there, of one population.", _CHANGES, metavar="NAME=OTHER"),
    ] = None,
    by: Annotated[str | None, Option("Who says so. Default: your account.", _CHANGES)] = None,
    note: Annotated[str | None, Option("Why the cap is set.", _CHANGES)] = None,
    full: Full = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Convert between σ and ε for every method. Without either, show what was spent, as the ledger says.

    Changes of the ledger are written down with who and when, and stay to be seen.

    σ is the noise multiplier of equal releases, as train's --noise-multiplier is. Conversions are exact (Gaussian
    differential privacy). The paper's looser conversion, ρ + 2√(ρ·ln(1/δ)), stands beside them for comparison.
    """
    changes = {"cap": cap, "population": population, "adopt": adopt or None, "merge": merge}
    given = [name for name, value in changes.items() if value is not None]
    _check(given, features, delta, {"sigma": sigma, "epsilon": epsilon, "steps": steps}, by, note, apart, same)
    deltas = _deltas(delta, sigma, epsilon, steps)
    wanted = None if cap is None else _cap(cap)
    pairs = _pairs(same)
    found = None if features is None else feature_set(features)[0]
    if given:
        from dpfc_cli.ledger.caps import set_cap
        from dpfc_cli.ledger.merge import merge_ledgers
        from dpfc_cli.ledger.populations import set_population

        stop.stands = "'dpfc budget' says whether the ledger was changed."
        if merge is not None:
            merge_ledgers(_ledger(found), merge, apart=apart or (), same=pairs, by=by)
        elif found is not None and cap is not None:
            set_cap(found, wanted, delta=delta[0] if delta else None, by=by, note=note)
        elif found is not None:
            set_population(found, population, adopt=adopt, by=by)
        stop.stands = f"The change was written to '{_ledger(found)}'."
    result: dict[str, Any] = {}
    shown: list[Block] = []
    if sigma is not None or epsilon is not None:
        from dpfc_cli.planning.conversion import conversions

        result["conversion"] = conversions(noise_multiplier=sigma, epsilon=epsilon, deltas=deltas, steps=steps)
    if found is not None or not result:
        result["spent"], shown = _spent(found, deltas)
    if as_json:
        display.as_json(result)
        return
    converted = [_converted(result["conversion"], sigma, epsilon)] if "conversion" in result else []
    document = Document(title="", sections=[*converted, Section("", shown)])
    display.show(document if full else document.short)


def _check(
    changes: list[str],
    features: str | None,
    delta: list[float] | None,
    conversion: dict[str, float | None],
    by: str | None,
    note: str | None,
    apart: list[str] | None,
    same: list[str] | None,
) -> None:
    """UserError for options that do not go together. Nothing is written before all of them were looked at."""
    if len({"population" if name == "adopt" else name for name in changes}) > 1:
        raise _conflict(changes[1], f"does not go with {parameter(changes[0])}.", "Make one change at a time.")
    needs = next((name for name in changes if name != "merge" and features is None), None)
    if needs is not None:
        raise _conflict(needs, f"needs {parameter('features')}: it is about one set.", "Name the set.")
    idle = next((name for name, value in conversion.items() if value is not None), None)
    if changes and idle is not None:
        raise _conflict(idle, f"does not go with {parameter(changes[0])}.", "Leave out one of them.")
    if "cap" in changes and len(delta or []) > 1:
        raise _conflict("delta", "may be given once with a cap.", "Leave out the others.")
    for name, value, needed in (
        ("note", note, ("cap",)),
        ("by", by, tuple(changes)),
        ("apart", apart, ("merge",)),
        ("same", same, ("merge",)),
    ):
        if value and not set(changes) & set(needed):
            raise _conflict(name, "says something of a change, and there is none.", "Leave it out.")


def _conflict(name: str, what: str, remedy: str) -> UserError:
    return UserError(f"{parameter(name)} {what}", remedy, code="conflict", parameter=name)


def _deltas(
    delta: list[float] | None, sigma: float | None, epsilon: float | None, steps: int | None
) -> tuple[float, ...]:
    from dpfc_cli.privacy.accounting import check_privacy

    if sigma is not None and epsilon is not None:
        raise _conflict("sigma", f"and {parameter('epsilon')} were both given.", "Give σ to get ε, or ε to get σ.")
    if sigma is not None and not (sigma > 0 and math.isfinite(sigma)):
        raise UserError(
            f"{parameter('sigma')} must be a positive number, not {sigma:g}.", "Give a noise multiplier such as 10."
        )
    if steps is not None and sigma is None and epsilon is None:
        raise _conflict(
            "steps",
            f"has no meaning without {parameter('sigma')} or {parameter('epsilon')}.",
            "Give one of them too, or leave it out.",
        )
    deltas = tuple(dict.fromkeys(delta or DELTAS))
    try:
        for value in deltas:
            check_privacy(1.0 if epsilon is None else epsilon, value)
    except ValueError as error:
        raise UserError(sentence(error), "Give an ε such as 1 and a δ such as 1e-5.") from error
    return deltas


def _cap(text: str) -> float | None:
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise UserError(
            f"{parameter('cap')} '{text}' is no ε.", "Give a number such as 3, or 'none'.", parameter="cap"
        ) from None


def _pairs(same: list[str] | None) -> dict[str, str]:
    """Names here, by the names there."""
    found = {}
    for each in same or []:
        name, equals, other = each.partition("=")
        if not (name and equals and other):
            raise UserError(
                f"{parameter('same')} '{each}' is not NAME=OTHER.",
                "Give the name here, and the name there.",
                parameter="same",
            )
        found[other] = name
    return found


def _ledger(found: "FeatureSet | None") -> Path:
    from dpfc_cli.ledger.file import ledger_path

    return features_folder() / LEDGER if found is None else ledger_path(found.folder)


def _spent(found: "FeatureSet | None", deltas: tuple[float, ...]) -> tuple[dict[str, Any], list[Block]]:
    """What the ledger says of a set, or of everybody: for programs, and for people."""
    from dpfc_cli.ledger.file import read
    from dpfc_cli.ledger.populations import check_begin, known_set
    from dpfc_cli.report import account as shown

    book = read(_ledger(found))
    if not book.facts:
        check_begin(book.path.with_name("a set"))
    if found is None and not book.facts:
        raise UserError(
            f"Nothing to show: there is no ledger in '{book.path.parent}', and neither {parameter('sigma')} nor "
            f"{parameter('epsilon')} was given.",
            "Try 'dpfc budget --sigma 10 --steps 10', or make a feature set first.",
            code="missing",
            path=str(book.path),
        )
    accounts = book.accounts(None)
    if found is not None:
        known_set(book, found)
        accounts = [book.account_of(found.manifest.id)]
    lost = _lost(book, None if found is None else found.name)
    blocks = [block for account in accounts for block in shown.blocks(account, book, deltas)]
    blocks += [] if lost is None else [Words(lost, strong=True)]
    values = {"ledger": str(book.path), "populations": [shown.values(each, book, deltas) for each in accounts]}
    return {**values, "warning": lost}, blocks


def _lost(book: "Ledger", name: str | None) -> str | None:
    """What to tell if heads have no charge in the ledger."""
    if not any(heads_folder().glob("*.safetensors")):
        return None
    from dpfc_cli.heads.head import cards, without_charge

    names = {name} if name else {each.name for facts in book.sets.values() for each in facts}
    return without_charge(cards(heads_folder()), names, book.path, book.known)


def _converted(rows: list[dict[str, Any]], sigma: float | None, epsilon: float | None) -> Section:
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
    remark = (
        "train divides the budget unequally and states each release's sigma. Given as its --sigma, these figures come "
        "to the same epsilon."
    )
    table = Table(
        ("method", "delta", "steps", "releases", wanted, "paper's"),
        [(", ".join(methods), *figures) for figures, methods in alike.items()],
        left=2,
    )
    title = f"What {given} means if all releases of a training are equal: exactly, and by the paper's conversion"
    return Section(title, [table, *([] if epsilon is None else [Words(remark)])])
