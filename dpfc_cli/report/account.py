"""What a ledger says of a population, for people and for programs: `dpfc budget`, a training, an internal report."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dpfc_cli import rounding
from dpfc_cli.errors import counted
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import sha256_of
from dpfc_cli.heads.head import Head
from dpfc_cli.ledger import caps
from dpfc_cli.ledger.facts import Cap, Charge, Fact
from dpfc_cli.ledger.file import ledger_path, read
from dpfc_cli.ledger.populations import known_set
from dpfc_cli.ledger.totals import Account, Ledger
from dpfc_cli.options import Option
from dpfc_cli.records.figures import Figures
from dpfc_cli.show.document import Block, Rows, Table, Words
from dpfc_cli.structs import Json, encoded

PLANNED = (
    "This sum is a guarantee if the trainings were planned in advance. If later ones were chosen by looking at earlier "
    "heads, it says what they spent, and a cap that was fixed in advance is the guarantee."
)
CAPPED = (
    "A cap is a guarantee, however the trainings are chosen, if it was fixed before the first head was seen. If it was "
    "raised later, what counts is the highest one that might have been set."
)
SQUARES = "Several epsilon add up in squares, roughly: 1 and 1 make 1.5."
NEWEST = 3
"""Charges in a short rendering."""


def spent(features: FeatureSet) -> Account:
    """What was spent on the people whose records a set has, as its ledger says.

    Args:
        features: the set, see `dpfc_cli.open_features`.

    Returns:
        All charges and caps of its population. `epsilon(delta)` is what the private ones cost together.

    Raises:
        UserError: the ledger cannot be read, or lacks the set.

    Examples:
        dpfc.spent(dpfc.open_features("digits-scattering")).epsilon(delta=1e-5)

    """
    Option("", kind="set").taken("features", features)
    book = read(ledger_path(features.folder))
    known_set(book, features)
    return book.account_of(features.manifest.id)


def released(head: Head, features: FeatureSet) -> list[Figures]:
    """What private evaluations have released of a head, as the ledger of a feature set has kept it. It costs nothing.

    Args:
        head: the head, read from its file.
        features: a feature set in the folder of the ledger.

    Returns:
        The figures, the oldest first.

    Raises:
        UserError: the head's file or the ledger cannot be read.

    Examples:
        >>> [(each.split, each.epsilon, each.top1) for each in released(head, features)]

    """
    return read(ledger_path(features.folder)).released_of(sha256_of(head.file))


def whose(account: Account) -> str:
    names = [each.population for each in account.meant]
    return " or ".join("sets without --population" if name is None else f"population {name}" for name in names)


def left(account: Account, delta: float, of: Charge | None = None) -> str | None:
    """What the caps leave, in a sentence; None if there is none. of: see `caps.left`."""
    found = caps.left(account, delta, of)
    if found is None:
        return None
    return f"the cap ({caps.said(found[1])}) leaves {rounding.left(found[0], delta)} for one more training"


def not_in(account: Account) -> list[str]:
    """What must be known beside a total."""
    said = []
    if any(each.passed and not each.adopted for each in account.meant):
        said.append("more is spent than the cap allows: something was charged where it was not known")
    if account.at_least:
        said.append("not in the total: what was spent before on a set that was imported without its history")
    return said


def brief(account: Account, ledger: Ledger, delta: float) -> list[Block]:
    """What is spent and left of a population, and what must be known beside it."""
    rows, binding = [("spent", account.summed(delta))], _binding(account)
    for cap in binding:
        alone = [replace(each, caps=(cap,), also=()) for each in account.meant if cap in each.caps]
        largest = min(found[0] for each in alone if (found := caps.left(each, cap.delta or 1.0)))
        count = _charges_before(cap, account, ledger)
        less = any(each.id in cap.replaces and (each.most or 0.0) < (cap.most or 0.0) for each in ledger.all(Cap))
        when = f"after {counted(count, 'charge')}" if count else "before the first charge"
        rows += [
            ("cap", f"{caps.said(cap)}, {'raised' if less else 'set'} {when}, as this ledger says"),
            ("left", rounding.left(largest, cap.delta or 1.0)),
        ]
    sets, changes = _sets(account, ledger), _changes(account, ledger)
    if changes and not binding:
        rows.append(("cap", "none"))
    # While there is no cap, that is no earlier one.
    earlier = [cap for cap in changes if cap not in binding and (binding or cap.most is not None)]
    if earlier:
        highest = max(earlier, key=lambda cap: math.inf if cap.most is None else cap.most)
        most = "none" if highest.most is None else caps.said(highest)
        rows.append(("earlier caps", f"{len(earlier)}, the highest: {most}"))
    rows.append(("sets", ", ".join(dict.fromkeys(row[0] for row in sets.rows))))
    said = whose(account)
    return [
        Rows(rows, title=f"Spent on {said}, as of {ledger.as_of}"),
        *([Words(SQUARES)] if len(account.private) > 1 or (account.private and binding) else []),
        *([Words(_splits(account, delta))] if len(account.counted(account.unit)) < len(account.private) else []),
        *(Words(f"{said}: {each}.", strong=True) for each in not_in(account)),
    ]


def _splits(account: Account, delta: float) -> str:
    """What is borne where charges on one split of a set do not add to those on another."""
    bears, unit = "what was spent on one split", account.unit
    if len({each.set for each in account.private}) == 1:
        of = {each.split: [of for of in account.private if of.split == each.split] for each in account.private}
        spent = {split: replace(account, charges=tuple(found)).epsilon(delta) for split, found in of.items()}
        bears = " or ".join(f"epsilon = {rounding.epsilon(each)} ({split})" for split, each in spent.items())
    return f"The {unit}s of the splits are different. So each bears {bears}, never both. The total has the larger."


def _charges_before(cap: Cap, account: Account, ledger: Ledger) -> int:
    """How many charges a cap did not know of beforehand: by the clock, or by the rows, whose order a merge changes."""
    rows = {each.id for each in ledger.until(cap.id).charges}
    those = [each for each in account.meant if ledger.named(cap.population) in (None, each.population)]
    return max(sum(of.id in rows or of.at < cap.at for of in each.charges) for each in those)


def _binding(account: Account) -> list[Cap]:
    """The caps that hold for all populations that may be meant: a training is refused by any of them."""
    found = dict.fromkeys(cap for each in account.meant for cap in each.caps)
    return sorted(found, key=lambda cap: cap.most or 0.0)


def blocks(account: Account, ledger: Ledger, deltas: Sequence[float]) -> list[Block]:
    """What counts for a population: what is spent and left, and the charges; in full also what these figures mean."""
    found, changes = brief(account, ledger, deltas[0]), _changes(account, ledger)
    found += _charged(account, ledger) if account.charges else []
    found += [*_totals(account, deltas), replace(_sets(account, ledger), full=True)]
    if changes:
        found.append(_changed(changes))
    if account.private and ((capped := _binding(account)) or len(account.private) > 1):
        found.append(Words(CAPPED if capped else PLANNED, full=True))
    return found


def _charged(account: Account, ledger: Ledger) -> list[Block]:
    """What each charge is, the newest first, and what it is for. Columns that have the usual value in all rows are left
    out.
    """
    named, rows, why = {of: facts[-1].name for of, facts in ledger.sets.items()}, [], []
    for number, charge in reversed(list(enumerate(account.charges, start=1))):
        last = ledger.outcome(charge.id)
        state, delta, epsilon = "charged" if last is None else last.state, "–", "∞"
        if charge.delta is not None and charge.epsilon is not None:
            delta, epsilon = rounding.delta(charge.delta), rounding.epsilon(charge.epsilon)
        where = (str(number), charge.at[:10], named.get(charge.set, "?"), charge.split)
        rows.append((*where, charge.method, state, charge.unit, delta, epsilon))
        why.append(
            (charge.purpose or "–", str(number), _minute(charge), charge.by, charge.head.removesuffix(".safetensors"))
        )
    columns = ("no.", "made", "set", "split", "method", "state", "for one", "delta", "epsilon")
    usual = {"split": "train", "for one": "record"}
    kept = [i for i, name in enumerate(columns) if any(row[i] != usual.get(name) for row in rows)]
    shown = [tuple(row[i] for i in kept) for row in (columns, *rows)]
    return [
        Table(shown[0], shown[1:], left=len(kept) - 2, title="Charges, the newest first", few=NEWEST),
        Table(
            ("purpose", "no.", "UTC", "charged by", "head"),
            why,
            left=5,
            title="What they are for, as was said",
            full=True,
        ),
        *released_before([found for each in account.charges if (found := ledger.released.get(each.id))]),
    ]


def released_before(figures: Sequence[Figures], full: bool = True) -> list[Block]:
    """What private evaluations have released, the newest first. full: not in a short rendering."""
    rows: list[tuple[str, ...]] = []
    for each in reversed(figures):
        top1 = rounding.accuracy(each.top1, each.interval if each.tells_accuracy else None, each.n)
        auroc = ("–", "–") if each.auroc is None else rounding.area(each.auroc.value, each.auroc.interval, each.n)
        cost = rounding.delta(each.delta), rounding.epsilon(each.epsilon)
        rows.append((each.head.removesuffix(".safetensors"), each.features, each.split, *cost, *top1, *auroc))
    columns = ("head", "set", "split", "delta", "epsilon", "top-1", "95 % interval", "AUROC", "95 % interval")
    kept = [i for i in range(9) if i < 5 or any(row[i] != "–" for row in rows)]
    shown = [tuple(row[i] for i in kept) for row in (columns, *rows)]
    return (
        [Table(shown[0], shown[1:], left=3, title="What evaluations released, with noise", full=full)] if rows else []
    )


def _minute(fact: Fact) -> str:
    """When it was written down, in UTC: the order of caps and charges decides what the caps are worth."""
    return fact.at[:16].replace("T", " ")


def _sets(account: Account, ledger: Ledger) -> Table:
    rows = [
        (each.name, each.population or "undeclared", each.by, _minute(each))
        for of, facts in ledger.sets.items()
        for each in facts
        if (where := ledger.populations_of(of)) is None or account.population in where
    ]
    return Table(("set", "population", "said by", "UTC"), rows, left=4, title="The sets that count")


def _totals(account: Account, deltas: Sequence[float]) -> list[Block]:
    if not account.private:
        return []
    whom = "person, with all records" if account.unit == "person" else "record"
    said = f"{whom} ({'exact' if account.exact else 'an upper bound'})"
    rows = [(rounding.delta(delta), said, rounding.epsilon(account.epsilon(delta))) for delta in deltas]
    mixed = any(charge.weight(account.unit) > 1 for charge in account.private)
    words = "A training that protects persons counts twice for a record: its noise is for a change of a person's sum."
    title = f"Spent by these together: {'at least, ' if account.at_least else ''}under zero-out adjacency"
    return [
        Table(("delta", "for one", "epsilon"), rows, left=2, title=title, full=True),
        *([Words(words)] if mixed else []),
    ]


def _changed(changes: Sequence[Cap]) -> Table:
    rows = [
        (
            *(cap.note or "–", _minute(cap), cap.population or "each", cap.unit, cap.by),
            *(("–", "none") if cap.delta is None else (rounding.delta(cap.delta), f"{cap.epsilon:.6g}")),
        )
        for cap in changes
    ]
    columns = ("note", "UTC", "population", "for one", "set by", "delta", "epsilon")
    return Table(columns, rows, left=5, title="Every change of a cap", full=True)


def _changes(account: Account, ledger: Ledger) -> list[Cap]:
    """All caps that the populations that may be meant have had."""
    names = {None, *(each.population for each in account.meant)}
    return [cap for cap in ledger.all(Cap) if ledger.named(cap.population) in names]


def values(account: Account, ledger: Ledger, deltas: Sequence[float]) -> dict[str, Json]:
    named = {of: facts[-1].name for of, facts in ledger.sets.items()}
    shown = ("id", "at", "by", "purpose", "split", "method", "claim", "epsilon", "delta", "adjacency", "unit", "head")
    said = ("id", "at", "by", "note", "population", "unit", "epsilon", "delta")
    in_force, total = {cap.id for cap in _binding(account)}, {delta: account.epsilon(delta) for delta in deltas}

    def charged(charge: Charge) -> dict[str, Json]:
        last = ledger.outcome(charge.id)
        ended = {"state": "charged" if last is None else last.state, "sha256": None if last is None else last.sha256}
        figures = encoded(ledger.released.get(charge.id))
        return {
            **{name: getattr(charge, name) for name in shown},
            "set": named.get(charge.set),
            **ended,
            "figures": figures,
        }

    return {
        "ledger": str(account.ledger),
        "newest": ledger.newest,
        "population": account.told()["population"] if account.also else account.population,
        "adjacency": "zero-out",
        "unit": account.unit,
        "exact": account.exact,
        "at_least": account.at_least,
        "epsilon": {f"{delta:g}": spent if math.isfinite(spent) else None for delta, spent in total.items()},
        "unprotected": account.unprotected,
        "charges": [charged(charge) for charge in account.charges],
        "caps": [
            {
                **{name: getattr(cap, name) for name in said},
                **{"in_force": cap.id in in_force, "charges_before": _charges_before(cap, account, ledger)},
            }
            for cap in _changes(account, ledger)
        ],
        "warnings": not_in(account),
        "left": {f"{delta:g}": found[0] for delta in deltas if (found := caps.left(account, delta))} or None,
    }


COLUMNS = (
    *("population", "set", "split", "at", "by", "purpose", "method", "state", "claim", "unit", "epsilon", "delta"),
    *("adjacency", "head", "sha256", "id", "spent_epsilon", "spent_delta"),
)
"""Of `rows`."""


def rows(populations: Sequence[Mapping[str, Json]]) -> Iterator[dict[str, Json]]:
    """A row for each charge, of what `values` says. spent: by all of its population together, at the first δ; the most,
    if it counts in several.
    """
    found: dict[str, dict[str, Json]] = {}
    for each in populations:
        delta, spent = next(iter(each["epsilon"].items()))
        for charge in each["charges"]:
            row = found.setdefault(charge["id"], {**charge, "population": [], "spent_epsilon": 0.0})
            row["population"].append(each["population"] or "")
            row["epsilon"] = math.inf if charge["epsilon"] is None else charge["epsilon"]
            row["spent_epsilon"] = max(row["spent_epsilon"], math.inf if spent is None else spent)
            row["spent_delta"] = delta
    for row in found.values():
        yield row | {"population": "; ".join(row["population"])}
