"""Uniting two ledgers: all facts of both.

It can be done again, and in both directions. **No total becomes smaller, and no cap looser.** For facts are only added,
and a fact of the other ledger replaces nothing that this one had before (`Merge.ignored`). So a set that is undeclared
in one of them stays so, and caps of both hold. A charge that was resumed in two copies counts twice (`Ledger.charges`).

Whether a population that only one of the two has heard of has people in common with others, neither can know. So it is
asked for: a population is disjoint from the others, or it is the same as one that has another name.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from dpfc_cli.errors import parameter, quoted
from dpfc_cli.folders import LEDGER
from dpfc_cli.ledger.facts import RESERVED, Cap, Fact, Merge, Set, account_name, noted
from dpfc_cli.ledger.file import append, read
from dpfc_cli.ledger.populations import check_name, check_source, refused
from dpfc_cli.ledger.totals import Ledger
from dpfc_cli.places import local


def merge_ledgers(
    path: str | Path,
    other: str | Path,
    *,
    apart: Sequence[str] = (),
    same: Mapping[str, str] | None = None,
    by: str | None = None,
) -> Ledger:
    """Unite a ledger with another one: it gets all facts that the other has. The other one stays as it is.

    Args:
        path: the folder of the feature sets, or their ledger.
        other: the other folder, or its ledger.
        apart: names of populations that only one of the two has, and that have nobody in common with the others.
        same: names of populations here, by their names in the other ledger.
        by: who says so. Default: the name of the account that runs the program.

    Raises:
        UserError: a ledger is damaged or not there, they contradict each other, nothing is said of a population that
            only one of them has, or sets of two are of the same source. Nothing is written then.

    Examples:
        dpfc.merge_ledgers("features", "/media/old/features", apart=["ward7"])

    """
    places = (local(each, "A ledger", "It needs locks.").expanduser() for each in (path, other))
    here, there = (place / LEDGER if place.is_dir() else place for place in places)
    who, same = noted("by", by) or account_name(), dict(same or {})
    for name in (*apart, *same, *same.values()):
        check_name(name)

    def united(ledger: Ledger) -> list[Fact]:
        offered = read(there)
        if not offered.facts:
            raise refused("merge", f"There is no ledger {quoted(there)}.", "Name another one.", "missing")
        new = [fact for fact in offered.facts if fact != ledger.known.get(fact.id)]
        strange = next((fact.id for fact in new if fact.id in ledger.known), None)
        if strange is not None:
            what = f"'{there}' and '{here}' contradict each other: one fact has two texts ({strange})."
            raise refused("merge", what, "Somebody has changed one of them. Compare them with backups.", "damaged")
        if all(isinstance(fact, Merge) for fact in new) and not same:
            return new
        ignored = tuple(each.id for each in new if ledger.known.keys() & {*each.replaces})
        merge = Merge(by=who, apart=tuple(apart), same=_said(ledger, offered, apart, same), ignored=ignored)
        after = ledger.with_facts(*new, merge)
        for of in offered.sets:
            check_source(after, after.sets[of][0])
        return [*new, merge]

    return append(here, united, "The other ledger")


def _said(ledger: Ledger, offered: Ledger, apart: Sequence[str], same: Mapping[str, str]) -> dict[str, str]:
    """Which populations are the same. UserError where nothing is said of one that only one ledger has heard of."""
    heard = (each.names([*each.all(Set), *each.all(Cap)]) for each in (ledger, offered))
    here, there = ({name for name in names if not name.startswith(RESERVED)} for names in heard)
    strange = next((name for other, name in same.items() if other not in there or name not in here), None)
    if strange is not None:
        known = f"Here: {', '.join(sorted(here)) or 'none'}. There: {', '.join(sorted(there)) or 'none'}."
        raise refused("same", f"There is no population '{strange}'.", known, "unknown-name")
    unsaid = sorted((here ^ there) - {*apart, *same, *same.values()})
    if unsaid:
        what = f"Only one of the two ledgers has the population '{unsaid[0]}'. Are its people in others, too?"
        remedy = (
            f"Say {parameter('apart')} {unsaid[0]} if they are not. If it has another name in the other ledger, say "
            f"{parameter('same')} NAME=OTHER: the name here, and the name there. If its sets have no name there, give "
            f"them this one first ('dpfc population')."
        )
        raise refused("apart", what, remedy, "missing", populations=unsaid)
    return {other: name for other, name in same.items() if other != name}
