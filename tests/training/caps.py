"""Caps, and trainings under them, as the tests make them."""

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from dpfc_cli.training.account import Account, account_of
from dpfc_cli.training.ledger import Cap, Entry, ledger_path

from dpfc_cli.errors import UserError
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.privacy.accounting import mu_for
from dpfc_cli.training import limit
from dpfc_cli.training.calibrate import calibrate
from dpfc_cli.training.card import entry_of
from dpfc_cli.training.check import Checked, check
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Privacy, Request
from tests.hostile import set_of
from tests.support import calibrated_at, plan_of
from tests.training.rows import AT, FACTS, GRADIENT


def row(epsilon: float, delta: float = 1e-5, *, releases: int = 3, rate: float = 1.0, **changed: Any) -> Entry:
    """The row of a training that spends ε at δ in equal releases."""
    plan = plan_of(FACTS, *[(GRADIENT, 1.0)] * releases, rate=rate)
    made = entry_of(calibrated_at(FACTS, plan, mu_for(epsilon, delta)), set_of(FACTS), "h.safetensors", AT)
    return replace(made, **{"epsilon": epsilon, "delta": delta, **changed})


def cap_of(epsilon: float | None, delta: float = 1e-5, **changed: Any) -> Cap:
    figures: dict[str, Any] = {"epsilon": epsilon, "delta": None, "mu": None, "eta": None}
    if epsilon is not None:
        figures |= {"delta": delta, "mu": limit.mu_of_cap(epsilon, delta), "eta": limit.RESERVE}
    return Cap(**{"at": AT, "records": "r", "who": "an officer", **figures, **changed})


def allowed(cap: Cap, entries: list[Entry], entry: Entry) -> bool:
    try:
        limit.check([("set", cap)], entries, entry)
    except UserError as error:
        return error.code != "over-cap"
    return True


def ready(features: FeatureSet, epsilon: float = 2.5, **changed: Any) -> Checked:
    """A training that is checked and not charged yet."""
    privacy = changed.pop("privacy", Privacy(epsilon=epsilon))
    request = Request(features=features, folder=Path("heads"), privacy=privacy, **changed)
    given = {} if privacy.claim == "non-private" else {"steps": 2}
    made = calibrate(request.chosen, request.facts, given, request.privacy)
    return check(request, made, Observer())


def account(features: FeatureSet) -> Account:
    return account_of(ledger_path(features.folder), features.folder)


def meanwhile(patch: pytest.MonkeyPatch, place: Any, name: str, does: Callable[[], object], skip: int = 0) -> list[str]:
    """Let `does` happen once, as by another process, after a check was passed and before the row is written. Nobody
    waits for a lock. Returns a list in which the code of the refusal will be. skip: checks of before the locks.
    """
    seen, calls = list[str](), count()
    real, connect = getattr(place, name), sqlite3.connect
    patch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **{**k, "timeout": 0}))

    def checked(*given: Any) -> None:
        real(*given)
        if next(calls) == skip:
            seen.append("done")
            try:
                does()
            except UserError as error:
                seen[0] = error.code

    patch.setattr(place, name, checked)
    return seen
