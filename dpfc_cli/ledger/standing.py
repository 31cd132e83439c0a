"""What a ledger says of a head: what its charge and all others spent together. What is to be told before a charge, and
of a ledger that was put back.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from dpfc_cli.errors import printable
from dpfc_cli.ledger.facts import Charge
from dpfc_cli.ledger.totals import Account, Ledger
from dpfc_cli.records.card import Card, Standing


def standing_of(account: Account, charge: Charge) -> Standing:
    """What a card says of its charge, and of all others that may be of the same people. Evaluations count as trainings.

    It is a function of what the ledger's facts say, and of no record. account: with the charge.
    """
    epsilon = account.epsilon(charge.delta) if charge.delta is not None else math.inf
    return Standing(
        charge=charge.id,
        private=len(account.private),
        unprotected=account.unprotected,
        epsilon=epsilon if math.isfinite(epsilon) else None,
        exact=account.exact,
        unit=account.unit,
        adopted=account.at_least,
    )


def without_charge(cards: Iterable[tuple[Path, Card]], book: Ledger) -> str | None:
    """What to tell if a ledger has the sets of heads, and not their charges; None if there are no such heads.

    Which set is used does not matter: caps and totals are for all sets of a population. cards: see `heads.cards`.
    """
    names = {each.name for facts in book.sets.values() for each in facts}
    ours = [(path, card.ledger.charge) for path, card in cards if card.features.name in names and card.ledger]
    lost = [path for path, charge in ours if charge not in book.known]
    if not lost:
        return None
    others = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    return (
        f"The ledger '{book.path}' does not have the training of '{lost[0]}'{others}. It was put back from an older "
        "backup, or the training was done elsewhere. What was spent there is in no sum. Put the newer ledger back, or "
        "unite the two ('dpfc merge')."
    )


def loses(account: Account, charge: Charge) -> str | None:
    """What to tell before a charge after which there is no total for one person any more; None if one stays."""
    of_persons = [each for each in account.meant if replace(each, also=()).unit == "person"]
    lost = [printable(each.population or "undeclared") for each in of_persons]
    if not (lost and charge.private and charge.unit == "record"):
        return None
    return (
        f"this protects records and not persons, so the total of the population {', '.join(lost)} will be for one "
        "record only, where now it is for one person: make the set again with --group-by, or, if these are other "
        "people, say whose records they are ('dpfc population NAME --features SET')."
    )


def charged_standing(ledger: Ledger, charge: Charge) -> Standing:
    """The same, of what the ledger had when it was charged."""
    return standing_of(ledger.until(charge.id).account_of(charge.set), charge)
