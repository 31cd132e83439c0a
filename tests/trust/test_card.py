"""What a card says is computed again, and is not said to be less than it is."""

import re

from dpfc_cli.training.request import Privacy
from dpfc_cli.trust.card import findings
from tests.hostile import calibrated, card_as_written


def test_what_the_releases_cost_and_what_all_trainings_cost_is_rounded_up() -> None:
    card = card_as_written(calibrated("dp-ls", Privacy(epsilon=0.12345649)))
    (said,) = (each.why for each in findings(card) if each.what == "epsilon")
    assert 0.12345649 <= float(re.findall(r"epsilon = ([0-9.]+)", said)[0]) <= 0.12347
    card["ledger"]["epsilon"] = 0.06172251
    (said,) = (each.why for each in findings(card) if each.what == "other trainings")
    assert 0.06172251 <= float(re.findall(r"epsilon = ([0-9.]+)", said)[0]) <= 0.061724
