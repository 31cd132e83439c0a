"""What a card says is computed again, and is not said to be less than it is."""

import json
import re
from typing import Any

import pytest

from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.records.card import Card, card_of
from dpfc_cli.records.findings import NOT_INSTALLED, contradictions, findings
from dpfc_cli.records.statement import document
from dpfc_cli.structs import Fault
from tests.hostile import calibrated, card_as_written

CARD = card_as_written(calibrated("dp-ls", Privacy(epsilon=0.12345649)))
PART = {"approved_by": {"name": "the board"}}


def said(card: Card, what: str) -> str:
    (found,) = (each.why for each in findings(card) if each.what == what)
    return found


def test_what_the_releases_cost_and_what_all_trainings_cost_is_rounded_up() -> None:
    why = said(card_of(CARD), "epsilon")
    assert 0.12345649 <= float(re.findall(r"epsilon = ([0-9.]+)", why)[0]) <= 0.12347
    why = said(card_of({**CARD, "ledger": {**CARD["ledger"], "epsilon": 0.06172251}}), "other trainings")
    assert 0.06172251 <= float(re.findall(r"epsilon = ([0-9.]+)", why)[0]) <= 0.061724


def test_what_an_extension_wrote_that_is_not_installed_is_kept_and_said_to_be_unchecked() -> None:
    """Even its head may be one that no ledger has. A plain value can be no part of an extension."""
    for changed in (PART, {**PART, "ledger": None}):
        values: dict[str, Any] = {name: value for name, value in {**CARD, **changed}.items() if value is not None}
        card = card_of(values)
        assert json.loads(card.json) == values
        assert not contradictions(findings(card))
        assert said(card, "approved_by") == NOT_INSTALLED
        assert document(card, "").facts["approved_by"] == NOT_INSTALLED
    for name, value in (("approved_by", "the board"), ("approved_by", ["x"]), ("Epsilon", {}), ("parts", 1)):
        with pytest.raises(Fault):
            card_of({**CARD, name: value})


def test_a_head_without_a_part_that_explains_it_names_its_charge() -> None:
    assert contradictions(findings(card_of({name: value for name, value in CARD.items() if name != "ledger"})))


def test_a_head_of_an_older_dpfc_lacks_what_is_off_and_has_older_names() -> None:
    options = {**CARD["options"], "ridge": CARD["options"]["damping"]}
    older = {name: value for name, value in options.items() if name not in ("damping", "raw_matrices")}
    assert not contradictions(findings(card_of({**CARD, "options": older})))
    del older["feature_clip"]
    assert contradictions(findings(card_of({**CARD, "options": older})))
