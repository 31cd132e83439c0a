"""`dpfc budget`: what was spent, as the ledger says; what σ is worth, and what ε costs."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dpfc_cli import rounding
from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.cli.help import Full
from dpfc_cli.cli.typed import JSON, feature_set, one_of
from dpfc_cli.errors import UserError, conflict, missing, parameter, quoted
from dpfc_cli.folders import LEDGER, features_folder, heads_folder
from dpfc_cli.options import SMALLEST, Option
from dpfc_cli.privacy.accounting import LARGEST_EPSILON, LEAST_DELTA, LEAST_EPSILON
from dpfc_cli.show.document import Document, Table, Words, page

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet

_CONVERT, _CHARGED = "Instead of what was spent", "What was spent"
_DELTA = Option("", kind="number", low=LEAST_DELTA, high=math.nextafter(1, 0))


@command("budget", panel="Train a classifier")
def budget(
    features: Annotated[
        str | None, Option("Feature set whose population is shown, by path or name.", _CHARGED, metavar="SET")
    ] = None,
    ledger: Annotated[
        Path | None,
        Option("A ledger, where its sets need not be. Default: that of ./features.", _CHARGED, metavar="FILE"),
    ] = None,
    sigma: Annotated[
        float | None,
        Option(
            "Noise multiplier of equal releases: what is it as ε?",
            _CONVERT,
            flags=("--sigma", "--noise-multiplier"),
            low=0.0,
            open=True,
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        Option("ε: which noise multiplier does it take?", _CONVERT, low=LEAST_EPSILON, high=LARGEST_EPSILON),
    ] = None,
    steps: Annotated[
        int | None, Option("Steps T of the iterative methods. Default: theirs.", _CONVERT, low=1, high=10_000)
    ] = None,
    sampling_rate: Annotated[
        float | None,
        Option("Poisson sampling: of the methods that sample.", _CONVERT, low=SMALLEST, high=1.0),
    ] = None,
    delta: Annotated[list[float] | None, Option("δ; may be given several times. Default: 1e-5.")] = None,
    full: Full = False,
    as_json: Annotated[bool, JSON] = False,
    as_csv: Annotated[
        bool, Option("Print CSV: a row for each charge, or for each conversion.", flags=("--csv",))
    ] = False,
) -> None:
    """Show what was spent, as the ledger says. With --sigma or --epsilon, convert between σ and ε for every method.

    σ is the noise multiplier of equal releases, as train's --noise-multiplier is. Conversions are exact (Gaussian
    differential privacy), and with --sampling-rate an upper bound; an ε above 450 may have no figure. The looser
    conversion of zCDP, ρ + 2√(ρ·ln(1/δ)), stands beside them for comparison.
    """
    one_of(as_json=as_json, as_csv=as_csv)
    one_of(sigma=sigma, epsilon=epsilon, features=features, ledger=ledger)
    converts = sigma is not None or epsilon is not None
    lonely = next((name for name, value in (("steps", steps), ("sampling_rate", sampling_rate)) if value), None)
    if lonely is not None and not converts:
        what = f"{parameter(lonely)} needs {parameter('sigma')} or {parameter('epsilon')}."
        raise conflict(what, "Give it too, or leave this out.")
    deltas = tuple(dict.fromkeys(_DELTA.taken("delta", each) for each in delta or (1e-5,)))
    if converts:
        document = _converted(sigma, epsilon, deltas, steps, sampling_rate)
        columns, rows = tuple(document.values["conversion"][0]), document.values["conversion"]
    else:
        from dpfc_cli.report import account

        document = spent(None if features is None else feature_set(features), deltas, ledger)
        columns, rows = account.COLUMNS, account.rows(document.values["spent"]["populations"])
    if as_csv:
        if not converts and document.values["spent"]["warning"]:
            display.warn(document.values["spent"]["warning"])
        display.as_csv(columns, rows)
    else:
        display.show(document, full)


def spent(found: "FeatureSet | None", deltas: Sequence[float] = (1e-5,), ledger: Path | None = None) -> Document:
    """What the ledger says of a set, or of everybody."""
    from dpfc_cli.heads.head import cards
    from dpfc_cli.ledger.file import read
    from dpfc_cli.ledger.populations import check_begin, known_set
    from dpfc_cli.ledger.standing import without_charge
    from dpfc_cli.report import account

    book = read(ledger or ledger_of(found))
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
    populations = [account.values(each, book, deltas) for each in accounts]
    return page("", *blocks, values={"spent": {"ledger": str(book.path), "populations": populations, "warning": lost}})


def ledger_of(found: "FeatureSet | None") -> Path:
    from dpfc_cli.ledger.file import ledger_path

    return features_folder() / LEDGER if found is None else ledger_path(found.folder)


def _epsilon(value: float) -> str:
    # The accounting stops between 450 and 500.
    return "> 450" if value > 450 else rounding.epsilon(value)


def _converted(
    sigma: float | None, epsilon: float | None, deltas: tuple[float, ...], steps: int | None, rate: float | None
) -> Document:
    from dpfc_cli.conversion import conversions

    try:
        rows = conversions(noise_multiplier=sigma, epsilon=epsilon, deltas=deltas, steps=steps, sampling_rate=rate)
    except UserError as error:
        error.fields.setdefault("parameter", "sampling_rate")
        raise
    wanted, shown = ("epsilon", _epsilon) if sigma is not None else ("sigma", rounding.sigma)
    given = f"sigma = {sigma:.12g}" if sigma is not None else f"epsilon = {epsilon:.12g}"
    alike: dict[tuple[str, ...], list[str]] = {}
    for r in rows:
        figures = (
            rounding.delta(r["delta"]),
            str(r["steps"] or "–"),
            str(r["releases"]),
            shown(r[wanted]),
            "–" if r["zcdp"] is None else shown(r["zcdp"]),
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
    how = "exactly, and by the zCDP conversion" if rate in (None, 1.0) else "at most, with Poisson samples"
    title = f"What {given} means if all releases of a training are equal: {how}"
    return page(title, table, *([] if epsilon is None else [Words(remark)]), values={"conversion": rows})
