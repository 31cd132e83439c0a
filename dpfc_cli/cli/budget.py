"""`dpfc budget`: what σ is worth, what ε costs, what was spent, and how much may be."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dpfc_cli import rounding
from dpfc_cli.cli import display, stop
from dpfc_cli.cli.app import command
from dpfc_cli.cli.help import Full
from dpfc_cli.cli.typed import JSON, feature_set
from dpfc_cli.errors import UserError, conflict, counted, missing, parameter, quoted
from dpfc_cli.folders import LEDGER, features_folder, heads_folder
from dpfc_cli.options import Option
from dpfc_cli.show.document import Block, Document, Section, Table, Words

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet

_CHANGES = "Changes of the ledger"


@command("budget", panel="Train a classifier")
def budget(
    sigma: Annotated[
        float | None,
        Option(
            "Noise multiplier of equal releases: what is it as ε?",
            flags=("--sigma", "--noise-multiplier"),
            low=0.0,
            open=True,
        ),
    ] = None,
    epsilon: Annotated[float | None, Option("ε: which noise multiplier does it take?")] = None,
    delta: Annotated[list[float] | None, Option("δ; may be given several times. Default: 1e-5.")] = None,
    steps: Annotated[
        int | None, Option("Steps T of the iterative methods. Default: theirs.", low=1, high=10_000)
    ] = None,
    features: Annotated[
        str | None, Option("Feature set whose population is shown, by path or name.", metavar="SET")
    ] = None,
    ledger: Annotated[
        Path | None,
        Option("A ledger that is shown, where its sets need not be. Default: that of ./features.", metavar="FILE"),
    ] = None,
    cap: Annotated[
        str | None,
        Option(
            "Set a cap: all trainings on the population of --features (default: the newest set) together never spend "
            "more than this ε, at the δ of --delta (default: min(1e-5, 1/n)). 'none' removes it.",
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
    note: Annotated[str | None, Option("Why the cap is set. One that is raised or removed needs it.", _CHANGES)] = None,
    full: Full = False,
    as_json: Annotated[bool, JSON] = False,
    as_csv: Annotated[
        bool, Option("Print CSV: a row for each charge, or for each conversion.", flags=("--csv",))
    ] = False,
) -> None:
    """Convert between σ and ε for every method. Without either, show what was spent, as the ledger says.

    Changes of the ledger are written down with who and when, and stay to be seen.

    σ is the noise multiplier of equal releases, as train's --noise-multiplier is. Conversions are exact (Gaussian
    differential privacy); an ε above 450 may have no figure. The looser conversion of zCDP, ρ + 2√(ρ·ln(1/δ)), stands
    beside them for comparison.
    """
    # All that is known here are the options.
    _check({name for name, value in locals().items() if value not in (None, False)}, len(delta or ()))
    deltas, pairs, most = _deltas(delta, epsilon), _pairs(same or ()), None if cap in (None, "none") else _cap(str(cap))
    found = None if features is None else feature_set(features)
    if found is None and cap is not None:
        found = feature_set(None)
    if cap or population is not None or adopt or merge:
        from dpfc_cli.ledger.caps import set_cap
        from dpfc_cli.ledger.file import read
        from dpfc_cli.ledger.merge import merge_ledgers
        from dpfc_cli.ledger.populations import set_population
        from dpfc_cli.report import account

        place = _ledger(found)
        before = len(read(place).facts)
        stop.stands = "'dpfc budget' says whether the ledger was changed."
        if merge is not None:
            new = len(merge_ledgers(place, merge, apart=apart or (), same=pairs, by=by).facts) - before
            said = f"{counted(new, 'fact')} added to '{place}'" if new else f"Nothing new: '{place}' has all of it"
            display.say(f"{said}. '{merge}' stays as it is.")
        elif found is not None and cap is not None:
            set_cap(found, most, delta=delta[0] if delta else None, by=by, note=note)
        elif found is not None:
            made = set_population(found, population, adopt=adopt, by=by)
            whose = "" if population is None else f": {found.name} is of {account.whose(made)}. This stays"
            both = ": what is charged on it counts in each of them" if whose and made.also else ""
            display.say(f"Written to the ledger{whose}{both}.")
        stop.stands = f"The change was written to '{_ledger(found)}'."
    result: dict[str, Any] = {}
    sections: list[Section] = []
    if sigma is not None or epsilon is not None:
        from dpfc_cli.conversion import conversions

        result["conversion"] = conversions(noise_multiplier=sigma, epsilon=epsilon, deltas=deltas, steps=steps)
        sections.append(_converted(result["conversion"], sigma, epsilon))
    if found is not None or not result:
        result["spent"], shown = _spent(found, deltas, ledger)
        sections.append(Section("", shown))
    if as_json:
        display.as_json(result)
    elif as_csv and "conversion" in result:
        display.as_csv(list(result["conversion"][0]), result["conversion"])
    elif as_csv:
        from dpfc_cli.report import account

        if result["spent"]["warning"]:
            display.warn(result["spent"]["warning"])
        display.as_csv(account.COLUMNS, account.rows(result["spent"]["populations"]))
    else:
        display.show(Document(title="", sections=sections), full)


_NEEDS = {
    **dict.fromkeys(("population", "adopt"), ("features",)),
    "by": ("cap", "population", "adopt", "merge"),
    "note": ("cap",),
    **dict.fromkeys(("apart", "same"), ("merge",)),
    "steps": ("sigma", "epsilon"),
}
"""Options that mean nothing without one of these."""
_ALONE = ("sigma", "epsilon", "cap", "population", "merge", "ledger")
"""Of these one is given at a time: what is converted, changed or shown."""


def _check(given: set[str], deltas: int) -> None:
    """UserError for options that do not go together. Nothing is written before all of them were looked at."""
    for name, needed in _NEEDS.items():
        if name in given and not given & set(needed):
            what = f"{parameter(name)} needs {' or '.join(map(parameter, needed))}."
            raise conflict(what, "Give it too, or leave this out.")
    alone = [name for name in _ALONE if name in given or (name == "population" and "adopt" in given)]
    if len(alone) > 1:
        raise conflict(f"{parameter(alone[1])} does not go with {parameter(alone[0])}.", "Do one after the other.")
    if {"ledger", "features"} <= given:
        raise conflict(f"{parameter('features')} has a ledger of its own.", f"Leave out {parameter('ledger')}.")
    if "as_csv" in given and ("as_json" in given or ("features" in given and given & {"sigma", "epsilon"})):
        raise conflict(f"{parameter('as_csv')} prints one table.", "Ask for one thing, in one form.")
    if "cap" in given and deltas > 1:
        raise conflict(f"{parameter('delta')} may be given once with a cap.", "Leave out the others.")


def _deltas(delta: list[float] | None, epsilon: float | None) -> tuple[float, ...]:
    from dpfc_cli.privacy.accounting import check_privacy

    deltas = tuple(dict.fromkeys(delta or (1e-5,)))
    try:
        for value in deltas:
            check_privacy(1.0 if epsilon is None else epsilon, value)
    except ValueError as error:
        name, _, rest = str(error).partition(" ")
        raise UserError(f"{parameter(name)} {rest}.", "Give an ε such as 1 and a δ such as 1e-5.") from error
    return deltas


def _cap(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{parameter('cap')} '{text}' is no ε.", "Give a number such as 3, or 'none'.") from None


def _pairs(same: Sequence[str]) -> dict[str, str]:
    """Names here, by the names there."""
    pairs = [each.partition("=") for each in same]
    if not all(name and other for name, _, other in pairs):
        what = f"{parameter('same')} '{' '.join(same)}' is not NAME=OTHER."
        raise UserError(what, "Give the name here, and the name there.", parameter="same")
    return {other: name for name, _, other in pairs}


def _ledger(found: "FeatureSet | None") -> Path:
    from dpfc_cli.ledger.file import ledger_path

    return features_folder() / LEDGER if found is None else ledger_path(found.folder)


def _spent(
    found: "FeatureSet | None", deltas: tuple[float, ...], ledger: Path | None
) -> tuple[dict[str, Any], list[Block]]:
    """What the ledger says of a set, or of everybody: for programs, and for people."""
    from dpfc_cli.heads.head import cards
    from dpfc_cli.ledger.file import read
    from dpfc_cli.ledger.populations import check_begin, known_set
    from dpfc_cli.report import account
    from dpfc_cli.training.card import without_charge

    book = read(ledger or _ledger(found))
    if not book.facts and ledger is None:
        check_begin(book)
    if found is None and not book.facts:
        raise missing(
            f"Nothing to show: there is no ledger {quoted(book.path)}, and neither {parameter('sigma')} nor "
            f"{parameter('epsilon')} was given.",
            "Try 'dpfc budget --sigma 10 --steps 10', make a feature set first, or name a ledger: "
            f"{parameter('ledger')}.",
        )
    accounts = book.accounts(None)
    if found is not None:
        known_set(book, found)
        accounts = [book.account_of(found.manifest.id)]
    lost = without_charge(cards(heads_folder()), book)
    blocks = [block for each in accounts for block in account.blocks(each, book, deltas)]
    blocks += [] if lost is None else [Words(lost, strong=True)]
    if ledger is not None:
        words = f"The newest row is of {book.newest}. What was charged since, if it is a copy, is not here."
        blocks.insert(0, Words(words))
    populations = [account.values(each, book, deltas) for each in accounts]
    return {"ledger": str(book.path), "populations": populations, "warning": lost}, blocks


def _epsilon(value: float) -> str:
    # The accounting stops between 450 and 500.
    return "> 450" if value > 450 else rounding.epsilon(value)


def _converted(rows: list[dict[str, Any]], sigma: float | None, epsilon: float | None) -> Section:
    wanted, shown = ("epsilon", _epsilon) if sigma is not None else ("sigma", rounding.sigma)
    given = f"sigma = {sigma:.12g}" if sigma is not None else f"epsilon = {epsilon:.12g}"
    alike: dict[tuple[str, ...], list[str]] = {}
    for r in rows:
        figures = (
            rounding.delta(r["delta"]),
            str(r["steps"] or "–"),
            str(r["releases"]),
            shown(r[wanted]),
            shown(r["zcdp"]),
        )
        alike.setdefault(figures, []).append(r["method"])
    remark = (
        "train divides the budget unequally and states each release's sigma. Given as its --sigma, these figures come "
        "to the same epsilon."
    )
    table = Table(
        ("method", "delta", "steps", "releases", wanted, "by zCDP"),
        [(", ".join(methods), *figures) for figures, methods in alike.items()],
        left=2,
    )
    title = f"What {given} means if all releases of a training are equal: exactly, and by the zCDP conversion"
    return Section(title, [table, *([] if epsilon is None else [Words(remark)])])
