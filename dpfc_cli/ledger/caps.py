"""What a cap is, and what fits under it.

A cap is a pair (ε, δ) that all charges of a population together never pass, however each of them is chosen. It stands
for the most that Σ 1/σ² over all releases may be (`Cap.most`), and that Σ η over all charges may be (`RESERVE`). The
sums are those of `totals`.

That this is a guarantee is the theorem of `privacy.filters`. Trainings may run at the same time, and a record lies in
one split of each set, so its own sum is at most the population's.

What counts how:

- **Every charge counts**, whatever became of it. Under replace-one its σ is good for zero-out, too (`totals`).
- **Sampled releases** of earlier charges count as full passes. No sampled training is made under a cap.
- **Units.** A charge that protects records has no spending for persons. None is made under a cap for persons, and no
  such cap is set after one.
- **Charges without a guarantee** have none, and **a set without its history** has a past that nobody knows.
  No cap holds where one of them counts, and none is set there.

**A cap that is changed** is no longer fixed in advance. The theorem then holds for the largest cap that could have been
set, whatever had been released. The ledger keeps all of them, with who and why.
"""

import math
import shlex

from msgspec.structs import replace

from dpfc_cli.errors import parameter, sentence
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.facts import Cap, Charge, account_name, new_id, noted
from dpfc_cli.ledger.file import append, ledger_path
from dpfc_cli.ledger.populations import known_set, refused
from dpfc_cli.ledger.totals import Account, Ledger
from dpfc_cli.options import Option
from dpfc_cli.privacy.accounting import LARGEST_EPSILON, LEAST_EPSILON, default_delta, epsilon_for, mu_for
from dpfc_cli.privacy.facts import Unit
from dpfc_cli.privacy.filters import RESERVE
from dpfc_cli.rounding import rounded_down, rounded_up


def set_cap(
    features: FeatureSet,
    epsilon: float | None,
    *,
    delta: float | None = None,
    by: str | None = None,
    note: str | None = None,
) -> Account:
    """Set a cap: how much all charges on a population may spend together from now on, whatever is seen meanwhile.

    It is for the population of a set. If nothing is said of the set, it is for each population. It protects persons if
    the set knows them, or else records. It replaces the cap before it. A charge that does not fit is refused.

    Args:
        features: a set of the population; see `dpfc_cli.open_features`.
        epsilon: ε of the cap, 1e-4 to 100. None: there is no cap any more.
        delta: δ of the cap. Default: that of a training.
        by: who sets it. Default: the name of the account that runs the program.
        note: why. One that is raised or removed needs it.

    Returns:
        What is spent by the population, and its caps.

    Raises:
        UserError: a value is out of range, more than that is spent already, there is no cap to remove, a cap would be
            raised or removed without a note, a set was adopted, or the ledger cannot be written.

    Examples:
        dpfc.set_cap(dpfc.open_features("digits-scattering"), 3.0, delta=1e-5, by="the privacy officer")

    """
    Option("", kind="set").taken("features", features)
    split, who = features.split("train"), noted("by", by) or account_name()
    unit: Unit = "record" if split.groups is None else "person"
    n, number = split.groups or split.n, Option("", kind="number").taken
    cap = Cap(by=who, population=None, unit=unit, note=noted("note", note))
    if epsilon is not None:
        delta = default_delta(n) if delta is None else number("delta", delta)
        cap = replace(cap, epsilon=number("cap", epsilon), delta=delta)
    allowed(cap, n)

    def for_each(ledger: Ledger) -> list[Cap]:
        known_set(ledger, features)
        found = []
        for name in ledger.populations_of(features.manifest.id) or (None,):
            before = [each for each in ledger.caps if (each.unit, ledger.named(each.population)) == (unit, name)]
            if cap.note is None and any(cap.most is None or cap.most > (each.most or 0.0) for each in before):
                now = "no cap" if cap.epsilon is None else f"epsilon = {cap.epsilon:.6g} at delta = {cap.delta:g}"
                what = f"That would be more than the cap allows: {now} in place of {said(before[0])}."
                raise refused("note", what, f"Say why: {parameter('note')}. It stays in the ledger.")
            if cap.epsilon is not None:
                _check_new(ledger.accounts(None if name is None else [name]), cap)
            if cap.epsilon is not None or before:
                replaces = tuple(each.id for each in before)
                found.append(replace(cap, id=new_id(), population=name, replaces=replaces))
        if not found:
            remedy = "Name a set of the population that it was set for."
            raise refused("cap", "There is no such cap.", remedy, "missing")
        return found

    return append(ledger_path(features.folder), for_each, "The cap").account_of(features.manifest.id)


def allowed(cap: Cap, n: int = 1) -> float:
    """The μ² of a cap for n records or persons. UserError where its figures make no sense."""
    try:
        if cap.delta is not None and cap.delta > 1 / n:
            raise ValueError(f"delta = {cap.delta:g} is larger than 1/n = {1 / n:.2g}")
        return cap.most or 0.0
    except ValueError as error:
        remedy = f"Give {parameter('cap')} such as 3, and {parameter('delta')} such as 1e-5."
        raise refused("cap", sentence(error), remedy, "bad-value") from error


def _check_new(accounts: list[Account], cap: Cap) -> None:
    """Refuse a cap that would be false from the start."""
    if min(account.room(cap) for account in accounts) >= 0:
        return
    assert cap.delta is not None
    spent, least = max(account.used(cap.unit) for account in accounts), None
    if any(account.adopted for account in accounts):
        what = "A set was imported without its history, so what was spent on it before is not known. No cap can hold."
        remedy = "Merge the ledger of that set, before you import the set without it."
    elif math.isinf(spent) or any(account.unprotected for account in accounts):
        what = f"Something charged here has epsilon = ∞ for one {cap.unit}. So no cap for {cap.unit}s can hold."
        remedy = "'dpfc budget' shows it. If its set has records of others, say whose: 'dpfc population'."
    else:
        what = f"More than epsilon = {cap.epsilon:.6g} at delta = {cap.delta:g} is spent already."
        least = epsilon_for(math.sqrt(spent), cap.delta, RESERVE)
        remedy = f"The least that holds is {parameter('cap')} {rounded_up(least, 4)}."
    raise refused("cap", what, remedy, "over-cap", least=least)


def check(ledger: Ledger, charge: Charge) -> None:
    """Refuse a charge that a cap does not allow. UserError says which cap, and what still fits under all of them."""
    accounts = ledger.with_facts(charge).accounts(ledger.populations_of(charge.set))
    for cap in (cap for account in accounts for cap in account.caps):
        _check_kind(cap, charge)
    if not any(account.passed for account in accounts):
        return
    delta, where = charge.delta or 1.0, ledger.account_of(charge.set)
    found = left(where, delta, charge)
    assert found is not None
    largest, cap = found
    more = f"at delta = {delta:g} epsilon = {rounded_down(largest)} still fits" if largest else "nothing more fits"
    what = f"This does not fit under the cap ({said(cap)}): {more}."
    line = shlex.join(["dpfc", "budget", "--full", "--ledger", str(ledger.path)])
    remedy = f"{'Spend less, or ask' if largest else 'Ask'} for a higher cap, or none. Who set it says: {line}"
    fields = {"cap": cap.epsilon, "cap_delta": cap.delta, "asked": charge.epsilon, "delta": charge.delta}
    raise refused("epsilon", what, remedy, "over-cap", **fields, left=largest or None)


def _check_kind(cap: Cap, charge: Charge) -> None:
    """Refuse what no cap can be kept with."""
    if not charge.private:
        named = "seed" if charge.claim == "research" else "non_private"
        what = "What has no guarantee has epsilon = ∞, so no cap is kept with it."
        remedy = f"Leave out {parameter(named)}. To compare, train on public records."
    elif charge.sampled:
        named, what = "sampling_rate", "For sampled trainings that are chosen as one goes there is no proof."
        remedy = f"Leave out {parameter('sampling_rate')}: then all take part."
    elif math.isinf(charge.weight(cap.unit)):
        named, what = "features", "This training would protect records, and not persons."
        remedy = "Train on a set that knows which records are of one person."
    else:
        return
    what = f"There is a cap: {said(cap)}. {what}"
    raise refused(named, what, remedy, "over-cap")


def left(account: Account, delta: float, of: Charge | None = None) -> tuple[float, Cap] | None:
    """The largest ε of four digits at δ that one more charge of a population may spend under all caps that hold for it
    (0 if nothing fits), and the cap that leaves least. None if there is no cap.

    of: a charge like it, which says unit, set and split; None: one of the cap's unit, on the most used split.
    """
    at = None if of is None else (of.set, of.split)
    found = [
        (max(each.room(cap, at), 0.0) / (1.0 if of is None else of.weight(cap.unit)) ** 2, cap)
        for each in account.meant
        for cap in each.caps
    ]
    if not found:
        return None
    room, cap = min(found, key=lambda each: each[0])
    if room < mu_for(LEAST_EPSILON, delta) ** 2:
        return 0.0, cap
    epsilon = min(epsilon_for(math.sqrt(room), delta), LARGEST_EPSILON)
    # A little more, so that an ε which fits exactly is not lost; a little less, if that is too much.
    more, less = (float(rounded_down(epsilon * near)) for near in (1 + 1e-8, 1 - 1e-8))
    return (more if mu_for(more, delta) ** 2 <= room else less), cap


def said(cap: Cap) -> str:
    """A cap, as messages name it."""
    whose = "each population" if cap.population is None else f"'{cap.population}'"
    return f"epsilon = {cap.epsilon:.6g} at delta = {cap.delta:g} for one {cap.unit} of {whose}"
