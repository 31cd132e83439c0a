"""`dpfc budget --cap`, and what the other commands say of a cap."""

import json
import os
import pwd
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dpfc_cli.cli import display
from dpfc_cli.privacy.accounting import epsilon_for, mu_for
from dpfc_cli.training.ledger import read_all
from tests.cli.conftest import Dpfc

LEDGER = Path("features/blobs.ledger.sqlite")
SET = ("budget", "--features", "blobs", "--cap")
LS = ("train", "--features", "blobs", "--method", "dp-ls", "--epsilon")


def words(text: str) -> str:
    return " ".join(text.split())


def told(dpfc: Dpfc) -> dict[str, Any]:
    said = dpfc("budget", "--features", "blobs", "--delta", "1e-5", "--json").stdout
    found: dict[str, Any] = json.loads(said)["spent"]
    return found


def test_a_cap_is_set_shown_raised_lowered_and_removed_and_every_change_stays(dpfc: Dpfc, features: Path) -> None:
    shown = dpfc(*SET, "3", "--delta", "1e-5", "--by", "N. Officer", "--note", "section 4 of the plan")
    assert shown.exit_code == 0
    for said in (
        "cap   epsilon = 3 at delta = 1e-05 for blobs",
        "left  epsilon = 3 at delta = 1e-05 for one more training",
    ):
        assert said in shown.stdout
    assert re.search(r"section 4 of the plan +N\. Officer +blobs +\S+ \S+ +0 trainings +1e-05 +3$", shown.stdout, re.M)
    assert dpfc(*LS, "1").exit_code == 0
    for change in (("4", "--delta", "1e-6"), ("2",), ("none", "--note", "the study has ended")):
        assert dpfc(*SET, *change).exit_code == 0
    changes = told(dpfc)["caps"]
    assert [(each["epsilon"], each["delta"], each["trainings"]) for each in changes] == [
        *((3.0, 1e-5, 0), (4.0, 1e-6, 1), (2.0, 1e-5, 1), (None, None, 1))
    ]
    assert [each["note"] for each in changes] == ["section 4 of the plan", None, None, "the study has ended"]
    account = pwd.getpwuid(os.getuid()).pw_name
    assert [each["by"] for each in changes] == ["N. Officer", account, account, account]
    assert [each["in_force"] for each in changes] == [False] * 4
    assert told(dpfc)["left"] is None
    assert "cap  none" in dpfc("budget").stdout
    assert dpfc(*LS, "8").exit_code == 0


def test_a_training_that_does_not_fit_ends_with_code_2_and_is_not_charged(dpfc: Dpfc, features: Path) -> None:
    assert dpfc(*SET, "3").exit_code == 0
    assert dpfc(*LS, "2.5").exit_code == 0
    before = LEDGER.read_bytes()
    fits = epsilon_for((mu_for(3.0, 1e-5) ** 2 - mu_for(2.5, 1e-5) ** 2) ** 0.5, 1e-5)
    assert told(dpfc)["left"] == {"1e-05": pytest.approx(fits, rel=1e-3)}
    for more in ((), ("--dry-run",)):
        refused = dpfc(*LS, "1.5", *more)
        assert refused.exit_code == 2
        said = words(refused.stderr)
        assert "does not fit under the cap of these records: epsilon = 3 at delta = 1e-05 for blobs" in said
        assert f"At delta = 1e-05 epsilon = {told(dpfc)['left']['1e-05']} still fits." in said
        assert "Spend less (--epsilon, or a larger --noise-multiplier)" in said
    for line, flag in (
        (("train", "--method", "dp-ls", "--non-private"), "--non-private"),
        ((*LS, "0.1", "--seed", "1"), "--seed"),
        (("train", "--method", "dp-sgd", "--sigma", "90", "--steps", "2", "--sampling-rate", "0.5"), "--sampling-rate"),
    ):
        refused = dpfc(*line)
        assert refused.exit_code == 2
        assert "These records have a cap" in words(refused.stderr)
        assert flag in refused.stderr.splitlines()[-1] + refused.stderr.splitlines()[-2]
    assert LEDGER.read_bytes() == before
    assert dpfc(*LS, str(told(dpfc)["left"]["1e-05"])).exit_code == 0


def test_before_and_after_a_charge_a_training_says_what_the_cap_leaves(dpfc: Dpfc, features: Path) -> None:
    assert dpfc(*SET, "3").exit_code == 0
    cap = "the cap (epsilon = 3 at delta = 1e-05 for blobs)"
    left = f"{cap} leaves epsilon = 1.458 at delta = 1e-05 for one more training"
    planned = dpfc(*LS, "2.5", "--dry-run")
    assert f"then {left}" in words(planned.stdout)
    assert json.loads(dpfc(*LS, "2.5", "--dry-run", "--json").stdout)["left_after"] == 1.458
    trained = dpfc(*LS, "2.5", "--purpose", "figure 3", "--by", "Ada")
    assert f"then {left}" in words(trained.stderr)
    assert left in words(trained.stdout)
    (row,) = told(dpfc)["trainings"]
    assert (row["by"], row["purpose"], row["state"]) == ("Ada", "figure 3", "written")
    shown = dpfc("budget", "--features", "blobs")
    assert re.search(r"^figure 3 +Ada +blobs-dp-ls-eps2\.5 ", shown.stdout, re.M)
    assert "a guarantee, however the trainings are chosen, if it was fixed before the first head" in words(shown.stderr)
    assert dpfc(*LS, "1.458").exit_code == 0
    assert re.search(r"^left +(nothing|epsilon = 0\.0\d+ )", dpfc("budget").stdout, re.M)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (("budget", "--cap", "3"), "--cap needs --features"),
        ((*SET, "three"), "--cap 'three' is no ε"),
        ((*SET, "0"), "must lie between 0.0001 and 100"),
        ((*SET, "nan"), "must lie between 0.0001 and 100"),
        ((*SET, "3", "--delta", "0.5"), "larger than 1/n"),
        ((*SET, "none", "--delta", "1e-5"), "--delta has no meaning"),
        ((*SET, "none"), "blobs has no cap"),
        ((*SET, "3", "--delta", "1e-5", "--delta", "1e-6"), "and not with several"),
        ((*SET, "3", "--sigma", "1"), "and not with --sigma"),
        ((*SET, "3", "--epsilon", "1"), "and not with --epsilon"),
        ((*SET, "3", "--steps", "1"), "and not with --steps"),
        ((*SET, "3", "--by", ""), "--by must be a text of 1 to 100 characters"),
        ((*SET, "3", "--note", "x" * 501), "--note must be a text of 1 to 500 characters"),
        (("budget", "--by", "me"), "--by has no meaning without --cap"),
        (("budget", "--note", "why"), "--note has no meaning without --cap"),
        ((*LS, "1", "--by", "x" * 101), "--by must be a text of 1 to 100 characters"),
        ((*LS, "1", "--purpose", ""), "--purpose must be a text of 1 to 500 characters"),
    ],
)
def test_what_makes_no_sense_is_refused_and_leaves_nothing(
    dpfc: Dpfc, features: Path, line: tuple[str, ...], says: str
) -> None:
    refused = dpfc(*line)
    assert refused.exit_code == 2
    assert says in words(refused.stderr)
    assert not LEDGER.exists()


def test_a_cap_for_a_set_that_is_not_there_is_no_cap(dpfc: Dpfc, features: Path) -> None:
    refused = dpfc("budget", "--features", "nowhere", "--cap", "3")
    assert refused.exit_code == 2
    assert "There is no feature set 'nowhere'" in words(refused.stderr)
    assert dpfc(*SET, "3").exit_code == 0
    assert [cap.epsilon for cap in read_all(LEDGER).caps] == [3.0]


def test_a_ledger_that_turns_up_later_may_pass_the_cap_and_that_is_said(
    dpfc: Dpfc, features: Path, arrays: Path, tmp_path: Path
) -> None:
    """What was not found when a training was charged could not be counted."""
    assert dpfc("import", str(arrays), "--out", "again", "--shards", "2", "--classes", "3").exit_code == 0
    line = ("train", "--features", "again", "--method", "dp-ls", "--epsilon", "2.5")
    assert dpfc(*line).exit_code == 0
    away = Path("features/again.ledger.sqlite").rename(tmp_path / "away")
    assert dpfc(*SET, "3").exit_code == 0
    assert dpfc(*LS, "2.5").exit_code == 0
    away.rename("features/again.ledger.sqlite")
    shown = dpfc("budget", "--features", "blobs")
    assert "More is spent than the cap allows" in words(shown.stderr)
    assert "left  nothing" in shown.stdout
    assert "Nothing more fits" in words(dpfc(*LS, "0.1").stderr)


@pytest.mark.parametrize("width", [80, 120])
def test_on_a_terminal_no_line_is_wider_than_it(
    dpfc: Dpfc, features: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for change in ("3", "4"):
        assert dpfc(*SET, change, "--note", "a long reason with many words " * 5, "--by", "N. Officer").exit_code == 0
    for purpose in ("a first look at the figures of chapter three", "the same once more, with another ε"):
        assert dpfc(*LS, "1", "--purpose", purpose).exit_code == 0
    monkeypatch.setattr(display, "out", Console(force_terminal=True, color_system=None, width=width))
    shown = dpfc("budget", "--features", "blobs").stdout
    assert max(map(len, shown.splitlines())) <= width
    for said in ("a long reason with many words", "N. Officer", "with another ε", "every change", "for one more"):
        assert said.lower() in words(shown).lower()
