"""Setting a cap: a row of the ledger that all later trainings on the records are held against (`limit`)."""

import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpfc_cli.errors import UserError, parameter, sentence
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.privacy.accounting import default_delta
from dpfc_cli.training import limit
from dpfc_cli.training.account import Account, account_of
from dpfc_cli.training.kept_digests import keep
from dpfc_cli.training.ledger import Cap, keep_cap, ledger_path, persons_of, records_of
from dpfc_cli.training.request import facts_of, number
from dpfc_cli.training.signing import account_name, noted


def set_cap(
    features: FeatureSet,
    epsilon: float | None,
    *,
    delta: float | None = None,
    by: str | None = None,
    note: str | None = None,
) -> Account:
    """Set a cap: how much all trainings on these records may spend together from now on, whatever is seen meanwhile.

    It holds for the records of each split: for trainings, and for private evaluations. It is a row of the ledger, and
    so is every change. The newest one counts. A training that does not fit is refused before it is charged, on every
    set of the same records.

    Args:
        features: a set of the records; see `dpfc_cli.open_features`.
        epsilon: ε of the cap, 1e-4 to 100. None: there is no cap any more.
        delta: δ of the cap. Default: min(1e-5, 1/n).
        by: who sets it. Default: the name of the account that runs the program.
        note: why.

    Returns:
        What is spent on these records, and what the cap leaves.

    Raises:
        UserError: a value is out of range, more than that is spent already, there is no cap to remove, or the ledger
            cannot be written. The cap is as it was then, unless the message says that it may be changed.

    Examples:
        dpfc.set_cap(dpfc.open_features("digits-scattering"), 3.0, delta=1e-5, by="the privacy officer")

    """
    figures = _figures(features, epsilon, delta)
    path = ledger_path(features.folder)
    cap = Cap(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        records=records_of(features.manifest),
        **figures,
        who=noted("by", by) or account_name(),
        note=noted("note", note),
        unit=facts_of(features).unit,
        persons=persons_of(features.manifest),
    )

    def allow(locked: frozenset[Path] | None) -> frozenset[Path]:
        if locked is not None:
            keep(path, features.folder)
        accounts = [account_of(path, features.folder, split=split) for split in features.splits]
        ledgers = frozenset[Path]().union(*(account.ledgers for account in accounts))
        missing = frozenset[Path]() if locked is None else ledgers - locked
        if not missing:
            for account in accounts:
                _check(account, replace(cap, persons=persons_of(features.manifest, account.split)))
        return missing

    # Before a ledger is made, and once more when nobody else can write to it.
    allow(None)
    keep_cap(path, cap, allow)
    return account_of(path, features.folder)


def _figures(features: FeatureSet, epsilon: float | None, delta: float | None) -> dict[str, Any]:
    """ε, δ, μ and η of a cap. UserError where ε or δ makes no sense."""
    epsilon, delta = number("cap", epsilon), number("delta", delta)
    if epsilon is None:
        if delta is not None:
            raise UserError(
                f"{parameter('delta')} has no meaning where the cap is removed.",
                "Leave it out.",
                code="conflict",
                parameter="delta",
            )
        return dict.fromkeys(("epsilon", "delta", "mu", "eta"))
    n = facts_of(features).n
    delta = default_delta(n) if delta is None else delta
    try:
        mu = limit.mu_of_cap(epsilon, delta)
        if delta > 1 / n:
            raise ValueError(f"delta = {delta:g} is larger than 1/n = {1 / n:.2g}")
    except ValueError as error:
        raise UserError(
            sentence(error), f"Give {parameter('cap')} such as 3, and {parameter('delta')} such as 1e-5."
        ) from error
    return {"epsilon": epsilon, "delta": delta, "mu": mu, "eta": limit.RESERVE}


def _check(account: Account, cap: Cap) -> None:
    """Refuse a cap that would be false from the start, and the removal of one that is not there."""
    if cap.delta is None:
        if not any(name == account.name for name, _ in account.in_force):
            others = ", ".join(name for name, _ in account.in_force)
            raise UserError(
                f"{account.name} has no cap{f'; one is set for {others}' if others else ''}.",
                "Name the set that it was set for." if others else "There is nothing to remove.",
                code="missing",
                parameter="cap",
            )
        return
    cases = [case.entries for case in account.cases]
    if min(limit.room(cap, entries) for entries in cases) < 0:
        if any(math.isinf(limit.spent(entries, cap.protects)) for entries in cases):
            raise UserError(
                f"Earlier trainings on these records do not protect the persons of {account.name}. So no cap for these "
                "persons can hold.",
                "'dpfc budget' shows these trainings. A cap for single records can be set on a set without persons.",
                code="over-cap",
                parameter="cap",
            )
        each = [limit.least(entries, cap.delta, cap.protects) for entries in cases]
        least = None if None in each else max(found for found in each if found is not None)
        raise UserError(
            f"More than epsilon = {cap.epsilon:.6g} at delta = {cap.delta:g} is spent on these records already. Such a "
            "cap would promise what is not true.",
            "No cap holds any more at this delta."
            if least is None
            else f"The least that holds is {parameter('cap')} {least:.4g}. It leaves hardly anything to train with.",
            code="over-cap",
            parameter="cap",
            least=least,
        )
