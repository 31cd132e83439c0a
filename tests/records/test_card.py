"""What a card says is computed again, and is not said to be less than it is."""

import re
from typing import Any

import pytest

from dpfc_cli.records.findings import findings
from dpfc_cli.training.request import Privacy
from tests.hostile import calibrated, card_as_written


def test_what_the_releases_cost_and_what_all_trainings_cost_is_rounded_up() -> None:
    card = card_as_written(calibrated("dp-ls", Privacy(epsilon=0.12345649)))
    (said,) = (each.why for each in findings(card) if each.what == "epsilon")
    assert 0.12345649 <= float(re.findall(r"epsilon = ([0-9.]+)", said)[0]) <= 0.12347
    card["ledger"]["epsilon"] = 0.06172251
    (said,) = (each.why for each in findings(card) if each.what == "other trainings")
    assert 0.06172251 <= float(re.findall(r"epsilon = ([0-9.]+)", said)[0]) <= 0.061724


@pytest.mark.parametrize(
    ("epsilons", "colluding", "changed", "result"),
    [
        ((1, 1, 1), 1, {}, "ok"),
        ((1, 1, 1), 2, {}, "ok"),
        ((1, 1, 1), 3, {}, "contradicts"),
        ((1, 2, 1), 2, {}, "ok"),
        # Masks are for sites with one epsilon.
        ((1, 2, 1), 1, {}, "contradicts"),
        ((2, 1, 1), 2, {}, "contradicts"),
        ((1, 1, 1), 1, {"site": "east"}, "contradicts"),
    ],
)
def test_what_a_card_says_of_sites_is_what_a_plan_can_have(
    epsilons: tuple[int, ...], colluding: int, changed: dict[str, Any], result: str
) -> None:
    card = card_as_written(calibrated("dp-whitened", Privacy(epsilon=1.0)))
    names = ("north", "south", "west")
    each = [{"name": name, "n": card["facts"]["n"], "epsilon": e} for name, e in zip(names, epsilons, strict=True)]
    card["federation"] = {"plan": "0" * 64, "colluding": colluding, "sites": each, "site": "north", **changed}
    assert [found.result for found in findings(card) if found.what == "counts"] == [result]
