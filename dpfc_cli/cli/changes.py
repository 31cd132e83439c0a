"""What changes the ledger: `dpfc cap`, `dpfc population`, `dpfc merge`. Changes are written down with who and when."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from dpfc_cli.cli import display, stop
from dpfc_cli.cli.app import command
from dpfc_cli.cli.budget import ledger_of, spent
from dpfc_cli.cli.help import Full
from dpfc_cli.cli.typed import feature_set
from dpfc_cli.errors import UserError, counted, parameter
from dpfc_cli.options import Option
from dpfc_cli.privacy.accounting import DEFAULT_DELTA

_BY = Option("Who says so. Default: your account.")


@contextmanager
def _changing(ledger: Path) -> Iterator[None]:
    stop.stands = "'dpfc budget' says whether the ledger was changed."
    yield
    stop.stands = f"The change was written to '{ledger}'."


@command("cap", panel="Train a classifier")
def cap(
    cap: Annotated[str, Option("The most ε that is ever spent, or 'none'.", argument=True, metavar="EPSILON")],
    features: Annotated[
        str | None,
        Option("A set of the population, by path or name. Default: the newest.", metavar="SET"),
    ] = None,
    delta: Annotated[float | None, Option(f"δ of the cap. {DEFAULT_DELTA}")] = None,
    by: Annotated[str | None, _BY] = None,
    note: Annotated[str | None, Option("Why. A cap that is raised or removed needs it.")] = None,
    full: Full = False,
) -> None:
    """Set a cap: all trainings on a population together never spend more, however they are chosen.

    Every cap, who set it, when and why, stays in the ledger.
    """
    from dpfc_cli.ledger.caps import set_cap

    try:
        most = None if cap == "none" else float(cap)
    except ValueError:
        raise UserError(f"{parameter('cap')} '{cap}' is no ε.", "Give a number such as 3, or 'none'.") from None
    found = feature_set(features)
    with _changing(ledger_of(found)):
        account = set_cap(found, most, delta=delta, by=by, note=note)
    # At the δ of the caps themselves, which may be 1/n.
    deltas = dict.fromkeys(each.delta for each in account.caps if each.delta is not None)
    display.show(spent(found, tuple(deltas) or (1e-5,)), full)


@command("population", panel="Train a classifier")
def population(
    features: Annotated[str, Option("The feature set, by path or name.", metavar="SET")],
    population: Annotated[str | None, Option("The name.", argument=True, metavar="NAME")] = None,
    adopt: Annotated[
        bool, Option("Import a set without its history: the ledger knows nothing of it. Totals then say 'at least'.")
    ] = False,
    by: Annotated[str | None, _BY] = None,
    full: Full = False,
) -> None:
    """Say whose records a feature set has. This stays.

    Nobody may be in two populations. A set without a name counts in all of them.
    """
    from dpfc_cli.ledger.populations import set_population
    from dpfc_cli.report.account import whose

    if population is None and not adopt:
        raise UserError(f"{parameter('population')} is missing.", "Name it, or import a set: ‹adopt›.", code="missing")
    found = feature_set(features)
    with _changing(ledger_of(found)):
        made = set_population(found, population, adopt=adopt, by=by)
        said = "" if population is None else f": {found.name} is of {whose(made)}. This stays"
        both = ": what is charged on it counts in each of them" if said and made.also else ""
        display.say(f"Written to the ledger{said}{both}.")
    display.show(spent(found), full)


@command("merge", panel="Train a classifier")
def merge(
    merge: Annotated[Path, Option("The other ledger, or the folder of its sets.", argument=True, metavar="OTHER")],
    apart: Annotated[
        list[str] | None,
        Option("A population that only one ledger has, with nobody in common with the others.", metavar="NAME"),
    ] = None,
    same: Annotated[
        list[str] | None, Option("The name here, and the name there, of one population.", metavar="NAME=OTHER")
    ] = None,
    by: Annotated[str | None, _BY] = None,
    full: Full = False,
) -> None:
    """Unite the ledger here with the one of another folder, which stays as it is."""
    from dpfc_cli.ledger.file import read
    from dpfc_cli.ledger.merge import merge_ledgers

    pairs, place = _pairs(same or ()), ledger_of(None)
    before = len(read(place).facts)
    with _changing(place):
        new = len(merge_ledgers(place, merge, apart=apart or (), same=pairs, by=by).facts) - before
        said = f"{counted(new, 'fact')} added to '{place}'" if new else f"Nothing new: '{place}' has all of it"
        display.say(f"{said}. '{merge}' stays as it is.")
    display.show(spent(None), full)


def _pairs(same: Sequence[str]) -> dict[str, str]:
    """Names here, by the names there."""
    pairs = [each.partition("=") for each in same]
    if not all(name and other for name, _, other in pairs):
        what = f"{parameter('same')} '{' '.join(same)}' is not NAME=OTHER."
        raise UserError(what, "Give the name here, and the name there.", parameter="same")
    return {other: name for name, _, other in pairs}
