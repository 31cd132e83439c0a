"""`dpfc budget`: what is shown of the ledger, how it is changed, and what other commands say of what was spent."""

import csv
import json
import re
import shlex
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from dpfc_cli import evaluate_privately, open_features, rounding
from dpfc_cli.errors import counted
from dpfc_cli.folders import LEDGER
from dpfc_cli.heads.head import Head
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy import curator, sums
from dpfc_cli.privacy.accounting import epsilon_for, mu_for
from dpfc_cli.training.observer import TrainingWarning
from tests import instead
from tests.cli.conftest import Dpfc, charges, error_of, one_line
from tests.support import blobs, feature_set, refuses

BOOK = Path("features", LEDGER)
LS = ("train", "--again", "--method", "dp-ls", "--epsilon")
OF = ("--features", "blobs")
SET = ("budget", *OF)


def told(dpfc: Dpfc, *more: str) -> list[dict[str, Any]]:
    """What `budget` says of each population."""
    said: dict[str, Any] = json.loads(dpfc("budget", "--delta", "1e-5", "--json", *more).stdout)["spent"]
    return list(said["populations"])


def made(dpfc: Dpfc, out: str, population: str | None = None, seed: int = 9, persons: bool = False) -> None:
    """A set of 60 other records, two of each person."""
    x, y = blobs(60, 8, 3, seed=seed)
    who = {"train_groups": np.arange(60) // 2} if persons else {}
    np.savez("raw.npz", train_x=x, train_y=y, **who)  # type: ignore[arg-type]
    feature_set("raw.npz", out, classes=3, population=population)


def test_figures_of_a_conversion_are_never_too_small_and_json_has_every_method(dpfc: Dpfc) -> None:
    for asked, name in (("--epsilon", "sigma"), ("--sigma", "epsilon")):
        exact = json.loads(dpfc("budget", asked, "3.7", "--delta", "1e-5", "--json").stdout)["conversion"]
        assert [row["method"] for row in exact] == list(METHODS)
        shown: dict[str, tuple[str, str]] = {}
        for line in dpfc("budget", asked, "3.7", "--delta", "1e-5").stdout.splitlines()[2 : 2 + len(METHODS)]:
            if line.startswith("train divides"):
                break
            methods, *_, figure, paper = re.split(r" {2,}", line.strip())
            shown |= dict.fromkeys(methods.split(", "), (figure, paper))
        for row in exact:
            for figure, true in zip(shown[row["method"]], (row[name], row["zcdp"]), strict=True):
                assert true * (1 - 2e-9) <= float(figure) < true * 1.001
    assert "≤ 0.0001" in dpfc("budget", "--sigma", "1e300").stdout
    large = dpfc("budget", "--sigma", "0.3", "--steps", "100", "--delta", "1e-5").stdout
    assert ("> 450" in large, "∞" in large) == (True, False)
    sampled = ("--sampling-rate", "0.02", "--steps", "500")
    assert re.search(r"500 +500 +2\.29\d\d +–", dpfc("budget", "--sigma", "1.1", *sampled).stdout)
    for wrong in (sampled, ("--epsilon", "1", "--sampling-rate", "1e-9")):
        assert error_of(dpfc("budget", "--json", *wrong))["fields"]["parameter"] in ("steps", "sampling_rate")


# What was spent


def test_with_nothing_charged_it_says_so_and_shows_no_figure(dpfc: Dpfc, features: Path) -> None:
    for line in (("budget",), SET):
        shown = dpfc(*line)
        assert (shown.exit_code, re.search(r"epsilon|\d\.\d", shown.stdout)) == (0, None)
        assert "nothing" in shown.stdout
    assert (told(dpfc)[0]["charges"], told(dpfc)[0]["epsilon"]) == ([], {"1e-05": 0.0})
    assert list(json.loads(dpfc("budget", "--sigma", "1", "--json").stdout)) == ["conversion", "warnings"]


def test_csv_has_a_row_for_each_charge_and_for_each_conversion(dpfc: Dpfc, features: Path) -> None:
    assert [dpfc(*LS, epsilon).exit_code for epsilon in ("1", "2")] == [0, 0]
    rows = list(csv.DictReader(dpfc("budget", "--csv", "--delta", "1e-5").stdout.splitlines()))
    account = told(dpfc)[0]
    assert [row["id"] for row in rows] == [charge["id"] for charge in account["charges"]]
    assert [float(row["epsilon"]) for row in rows] == [1, 2]
    assert {float(row["spent_epsilon"]) for row in rows} == {account["epsilon"]["1e-05"]}
    both = ("--delta", "1e-5", "--delta", "1e-6")
    converted = csv.DictReader(dpfc("budget", "--csv", "--sigma", "3", *both).stdout.splitlines())
    assert sorted(row["method"] for row in converted) == sorted(2 * list(METHODS))


def test_a_training_says_what_is_spent_and_a_dry_run_what_would_be(dpfc: Dpfc, features: Path) -> None:
    for count in (1, 2):
        trained = dpfc(*LS, "1")
        total = epsilon_for(mu_for(1.0, 1e-5) * count**0.5, 1e-5)
        assert told(dpfc)[0]["epsilon"]["1e-05"] == pytest.approx(total)
        said = f"spent so far {counted(count, 'private charge')}: epsilon = {rounding.epsilon(total)} at"
        assert said in one_line(trained.stdout)
    before = BOOK.read_bytes()
    planned = json.loads(dpfc(*LS, "1", "--dry-run", "--json").stdout)
    assert planned["spent_with_this"] == pytest.approx(epsilon_for(mu_for(1.0, 1e-5) * 3**0.5, 1e-5))
    assert BOOK.read_bytes() == before
    # What no figure covers is named beside the sum.
    assert dpfc("train", "--method", "dp-ls", "--non-private").exit_code == 0
    assert "1 training without a guarantee" in one_line(dpfc(*LS, "1", "--adjacency", "replace-one").stdout)
    (account,) = told(dpfc)
    assert (account["unprotected"], account["exact"], len(account["charges"])) == (1, False, 4)


def test_a_population_is_said_once_and_repeated_as_a_line_to_type(dpfc: Dpfc, arrays: Path) -> None:
    ward = partial(feature_set, arrays, "ward", classes=3)
    ward(population="ward 7")
    before = BOOK.read_bytes()
    assert ward(population="ward 7").manifest == ward().manifest
    with refuses("conflict", parameter="population") as refused:
        ward(population="ward 8")
    assert BOOK.read_bytes() == before
    (typed,) = re.findall("dpfc (population .*)", str(refused.value))
    assert dpfc(*shlex.split(typed)).exit_code == 0
    # Nobody is forgotten: it counts in both.
    assert [each["population"] for each in told(dpfc)] == ["ward 7", "ward 8"]
    assert dpfc(*LS, "1", "--features", "ward").exit_code == 0
    assert [len(each["charges"]) for each in told(dpfc)] == [1, 1]
    (row,) = csv.DictReader(dpfc("budget", "--csv").stdout.splitlines())
    assert row["population"] == "ward 7; ward 8"
    for out, name in (("x", "dataset:digits"), ("y", ""), ("z", "x" * 101)):
        with refuses("bad-value", parameter="population"):
            feature_set(arrays, out, classes=3, population=name)
    catalogue = ("extract", "digits", "--limit", "20", "--pool", "mean")
    assert dpfc(*catalogue, "--population", "ward 8").exit_code == 2
    assert dpfc(*catalogue).exit_code == 0
    assert "dataset:digits" in [each["population"] for each in told(dpfc)]


def test_a_set_and_a_ledger_that_do_not_belong_together_are_told(dpfc: Dpfc, features: Path, tmp_path: Path) -> None:
    made(dpfc, "beside")
    assert dpfc(*LS, "1", "--features", "blobs").exit_code == 0
    older = BOOK.read_bytes()
    assert dpfc(*LS, "1", "--features", "blobs").exit_code == 0
    newer = BOOK.read_bytes()
    made(dpfc, "elsewhere/strange")
    Path("elsewhere/strange").rename("features/strange")
    listed = dpfc("list")
    rows = {each["name"]: each for each in json.loads(dpfc("list", "--json").stdout)["sets"]}
    assert (listed.exit_code, rows["blobs"]["charges"], rows["strange"]["charges"]) == (0, 2, None)
    assert "--adopt" in one_line(dpfc("budget", "--features", "strange").stderr)
    assert dpfc(*LS, "1", "--features", "strange").exit_code == 2
    # A lost head warns, whatever else is wrong, and whichever set of the ledger is named.
    BOOK.write_bytes(older)
    evaluated = ("evaluate", "--again", "--split", "train", "--epsilon", "1", "--features")
    trained = (*LS, "1", "--dry-run", "--features")
    charging = [(*line, name) for line in (trained, evaluated) for name in ("beside", "blobs")]
    for line in (("list",), ("budget",), SET, ("budget", "--features", "beside"), *charging):
        assert "dpfc merge" in one_line(dpfc(*line, ends=0).stderr), line
    for broken in (b"", newer[:4096] + bytes(len(newer) - 4096), b"no ledger"):
        BOOK.write_bytes(broken)
        listed = dpfc("list", "--json", ends=5 if broken else 0)
        assert [each["charges"] for each in json.loads(listed.stdout)["sets"]] == [None, None, None]
        assert json.loads(listed.stdout)["unreadable"]
        if broken:
            # What can be shown is shown, and a script stops.
            assert error_of(listed)["code"] == "damaged"
            shown = dpfc("list", ends=5)
            assert ("blobs" in shown.stdout, shown.stderr.count(str(BOOK))) == (True, 1)
        assert {dpfc(*line).exit_code for line in (("budget",), SET, (*LS, "1"))} <= {2, 5}
        assert BOOK.read_bytes() == broken
    BOOK.unlink()
    shutil.rmtree("heads")
    assert "--epsilon" not in dpfc("list", ends=0).stdout
    assert dpfc("budget").exit_code == dpfc(*SET).exit_code == 2
    assert not BOOK.exists()
    adopted = dpfc("population", *OF, "--adopt")
    assert (adopted.exit_code, told(dpfc)[0]["at_least"]) == (0, True)


# Changes


def test_what_makes_no_sense_is_refused_and_changes_nothing(dpfc: Dpfc, features: Path) -> None:
    made(dpfc, "elsewhere/far", "ward7")
    made(dpfc, "public")
    assert dpfc(*LS, "2", "--features", "public").exit_code == 0
    before = BOOK.read_bytes()
    for line in (
        *("population ward7", "population --adopt", "cap", "merge", "merge nowhere", "merge elsewhere"),
        *(f"merge elsewhere --apart {more}" for more in ("no", "ward7 --same a=b", "ward7 --same =x")),
        *("merge elsewhere --same ward7", "budget --steps 3", "budget --sigma 1 --epsilon 1", "budget --sigma nan"),
        *("budget --epsilon 0", "budget --delta 2", "budget --sigma 1 --features blobs", "budget --csv --json"),
        *(f"budget --features blobs --ledger {BOOK}", "cap 3 --features nowhere", "cap abc", "cap 0", "cap nan"),
        *("cap none --features blobs", "cap 1 --features public", "cap 3 --delta 0.5", f"cap 3 --by {'x' * 101}"),
        *(f"cap 3 --note {'x' * 501}", "population --features blobs", "population x --adopt --features blobs"),
        *(f"population {name} --features blobs" for name in ("dataset:x", "a:b", "x" * 101)),
    ):
        refused = dpfc(*line.split())
        assert (refused.exit_code in (2, 3, 6), refused.stdout, BOOK.read_bytes()) == (True, "", before), (
            line,
            refused.output,
        )
    for option, text in (("--by", "x" * 101), ("--purpose", ""), ("--by", "")):
        assert dpfc(*LS, "1", option, text).exit_code == 2
    assert BOOK.read_bytes() == before


def test_a_cap_is_set_shown_and_changed_and_every_change_stays(dpfc: Dpfc, features: Path) -> None:
    by = ("--by", "N. Officer", "--note", "section 4 of the plan")
    assert dpfc("population", "ward", *OF).exit_code == 0
    assert dpfc("cap", "3", *OF, *by).exit_code == 0
    assert [(each["population"], each["left"]["1e-05"]) for each in told(dpfc)] == [("ward", 3.0)]
    assert dpfc(*LS, "1").exit_code == 0
    # Without a name it is the newest set.
    more, before = ("cap", "4", "--delta", "1e-6"), BOOK.read_bytes()
    assert [dpfc(*line).exit_code for line in (more, ("cap", "none", *OF))] == [2, 2]
    assert BOOK.read_bytes() == before
    assert dpfc(*more, "--note", "the board").exit_code == 0
    for change in (("2",), ("none", "--note", "the study has ended")):
        assert dpfc("cap", *change, *OF).exit_code == 0
    (account,) = told(dpfc)
    assert [(each["epsilon"], each["delta"]) for each in account["caps"]] == [
        *((3.0, 1e-5), (4.0, 1e-6), (2.0, 1e-5), (None, None))
    ]
    assert [each["charges_before"] for each in account["caps"][:2]] == [0, 1]
    assert [account["caps"][i]["note"] for i in (0, 3)] == ["section 4 of the plan", "the study has ended"]
    assert (account["caps"][0]["by"], account["left"]) == ("N. Officer", None)
    assert not any(each["in_force"] for each in account["caps"])
    BOOK.rename("theirs.sqlite")
    shown = dpfc("budget", "--full", "--ledger", "theirs.sqlite").stdout
    Path("theirs.sqlite").rename(BOOK)
    # How old a copy is can be seen.
    assert account["caps"][-1]["at"][:16].replace("T", " ") in shown.partition("\n")[0]
    assert re.search("cap +none", shown)
    assert re.search(r"earlier caps +3, the highest: epsilon = 4", shown)
    assert re.search(r"20\d\d-\d\d-\d\d \d\d:\d\d", shown)
    assert all(note in one_line(shown) for note in ("section 4 of the plan", "the study has ended"))
    assert dpfc(*LS, "8").exit_code == 0
    # That there was none for a while is the highest of all.
    assert re.search("earlier caps +4, the highest: none", dpfc("cap", "20", *OF, ends=0).stdout)


def test_a_cap_that_binds_a_set_is_shown_whatever_population_the_set_is_given_to(dpfc: Dpfc, features: Path) -> None:
    """A set counts in both populations then, and a training on it is refused by the cap of either."""
    dpfc("population", "ward7", *OF, ends=0)
    dpfc("cap", "4", *OF, "--note", "too high", ends=0)
    dpfc("cap", "3", *OF, ends=0)
    dpfc(*LS, "1", "--out", "a.safetensors", ends=0)
    renamed = dpfc("population", "other", *OF, "--full", ends=0)
    for shown in (renamed.stdout, dpfc(*SET).stdout, dpfc("verify", "a.safetensors", ends=0).stdout):
        assert all(name in shown for name in ("other", "'ward7'"))
    assert "too high" in renamed.stdout
    spent = json.loads(dpfc("verify", "a.safetensors", "--json").stdout)["spent"]
    assert spent["caps"] == told(dpfc, *SET[1:])[0]["caps"]
    said = [(each["population"], each["epsilon"], each["in_force"], each["charges_before"]) for each in spent["caps"]]
    assert said == [("ward7", 4.0, False, 0), ("ward7", 3.0, True, 0)]
    assert "'ward7'" in dpfc(*LS, "5", "--dry-run", ends=3).stderr


def test_what_a_cap_does_not_allow_ends_with_code_3_and_is_not_charged(dpfc: Dpfc, features: Path) -> None:
    assert dpfc("cap", "3", *OF).exit_code == 0
    planned = json.loads(dpfc(*LS, "2.5", "--dry-run", "--json").stdout)["left_after"]
    assert dpfc(*LS, "2.5", "--by", "Ada", "--purpose", "figure 3").exit_code == 0
    fits = told(dpfc)[0]["left"]["1e-05"]
    assert (
        fits
        == planned
        == pytest.approx(epsilon_for((mu_for(3, 1e-5) ** 2 - mu_for(2.5, 1e-5) ** 2) ** 0.5, 1e-5), rel=1e-3)
    )
    (charge,) = told(dpfc)[0]["charges"]
    assert (charge["by"], charge["purpose"], charge["state"]) == ("Ada", "figure 3", "written")
    before = BOOK.read_bytes()
    for line in (
        (*LS, "1.5"),
        (*LS, "1.5", "--dry-run"),
        (*LS, "0.1", "--seed", "1"),
        ("train", "--method", "dp-ls", "--non-private"),
        ("train", "--method", "dp-sgd", "--sigma", "90", "--steps", "2", "--sampling-rate", "0.5"),
    ):
        refused = dpfc(*line)
        assert (refused.exit_code, "cap" in refused.stderr, BOOK.read_bytes()) == (3, True, before), line
    assert dpfc(*LS, str(fits)).exit_code == 0


@contextmanager
def pressed_at(number: int, *places: str) -> Iterator[list[int]]:
    """Ctrl-C at the call of that number into one of these files. Yields how many calls there were."""
    calls = [0]

    def watch(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.endswith(places):
            calls[0] += 1
            if calls[0] == number:
                raise KeyboardInterrupt

    sys.setprofile(watch)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def says(text: str) -> bool | None:
    """Whether what is said after Ctrl-C is that something was written. None: it says how to find out."""
    return None if "whether" in text else "was written to" in text or "stays" in text


@pytest.mark.parametrize("what", ["cap", "population", "merge", "charge"])
def test_after_ctrl_c_it_is_said_what_is_on_disk(dpfc: Dpfc, features: Path, what: str) -> None:
    made(dpfc, "elsewhere/far")
    line = {
        "cap": ("cap", "9", *OF),
        "population": ("population", "ward", *OF),
        "merge": ("merge", "elsewhere"),
        "charge": (*LS, "1", "--features", "blobs"),
    }[what]
    places = ("ledger/file.py", "report/account.py", "cli/train.py", "training/charged.py", "ledger/answers.py")
    kept, count = BOOK.read_bytes(), 0
    answers: dict[bool | None, int] = {True: 0, False: 0, None: 0}
    while True:
        # Every seventh call, or every twentieth of a training, which takes longer.
        count += 20 if what == "charge" else 7
        with pressed_at(count, *places) as calls:
            ended = dpfc(*line)
        if calls[0] < count:
            break
        said = says(one_line(ended.stderr))
        assert ended.exit_code in (0, 130)
        assert ended.exit_code == 0 or said in (None, BOOK.read_bytes() != kept), (count, ended.stderr)
        answers[said] += ended.exit_code == 130
        BOOK.write_bytes(kept)
        for each in (*Path("features").glob("ledger.locks/*"), *Path("heads").glob("*")):
            each.unlink()
    assert answers[True]
    assert answers[False]
    assert answers[None] <= 2


def test_nothing_is_summed_before_the_charge(dpfc: Dpfc, features: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def noted(place: Any, name: str, what: Callable[[], str]) -> None:
        real = getattr(place, name)
        monkeypatch.setattr(place, name, lambda *given, **named: (order.append(what()), real(*given, **named))[1])

    noted(sums, "exact_sum", lambda: f"sum after {len(charges())} charges")
    noted(curator, "draw_noise", lambda: "noise")
    assert dpfc(*LS, "1").exit_code == 0
    assert order == ["sum after 1 charges", "noise"] * 3


# On a screen


def test_on_a_terminal_of_80_columns_everything_fits_and_names_are_whole(
    dpfc: Dpfc, features: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feature_set("arrays", "cifar10-vit-b16", classes=3, population="p")
    line = ("--features", "cifar10-vit-b16", "--delta", "1e-5")
    assert dpfc("cap", "90", *line, "--note", "a long reason with many words " * 5).exit_code == 0
    long = "a-hospital-persons-scattering-mean-holdout0.1"
    made(dpfc, long, "a ward of a hospital", persons=True)
    instead.terminal(monkeypatch, 80)
    for count in (1, 2):
        assert dpfc(*LS, "0.1", *line, "--by", "N. Officer").exit_code == 0
        assert dpfc("evaluate", *line, "--epsilon", "1", "--purpose", "a figure of chapter three").exit_code == 0
        for words_ in (("budget",), ("list",)):
            shown = dpfc(*words_).stdout
            assert max(map(len, shown.splitlines())) <= 80, shown
            # What was charged, and the heads, are tables.
            assert len(re.findall(r"\bepsilon$", shown, re.M)) == 1, (count, shown)
            assert ("list" in words_) == (long in shown.splitlines())


def test_it_is_said_before_a_charge_and_after_it_that_there_is_no_total_for_a_person_any_more(dpfc: Dpfc) -> None:
    made(dpfc, "persons", "ward", persons=True)
    # Nothing is said of the others, so they count in the ward.
    made(dpfc, "records", seed=4)
    makes_none = "will be for one record only"
    for line in ((*LS, "1", "--features", "persons"), (*LS, "1", "--features", "persons", "--dry-run")):
        assert makes_none not in one_line(dpfc(*line).stderr)
    assert told(dpfc)[0]["unit"] == "person"
    without, yes = (*LS, "1", "--features", "records"), "--yes"
    for line, code in (((*without, "--dry-run"), 0), (without, 2), ((*without, yes), 0)):
        assert told(dpfc)[0]["unit"] == "person"
        done = dpfc(*line, ends=code)
        said = one_line(done.stderr)
        assert said.count(makes_none) == 1
        assert all(word in said for word in ("ward", "--group-by", "dpfc population"))
        if code:
            # For a program it is one object, with the warning in it.
            refused = json.loads(dpfc(*line, "--json").stderr)
            assert refused["error"]["code"] == "conflict"
            assert len(refused["warnings"]) == 1
    assert told(dpfc)[0]["unit"] == "record"
    # It is lost, and this is not told again before each charge.
    assert makes_none not in one_line(dpfc(*LS, "1", "--features", "records").stderr)
    assert "records" in dpfc("list").stderr


def test_an_evaluation_of_records_says_what_it_takes_from_the_persons(dpfc: Dpfc) -> None:
    made(dpfc, "persons", "ward", persons=True)
    made(dpfc, "records", seed=4)
    assert dpfc(*LS, "1", "--features", "persons").exit_code == 0
    # In Python, too. Whoever makes errors of warnings is charged nothing.
    records, (path,) = open_features("records"), Path("heads").glob("*")
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingWarning)
        with pytest.raises(TrainingWarning, match="will be for one record only"):
            evaluate_privately(Head.load(path), records, split="train", epsilon=1.0)
    done = dpfc("evaluate", "--features", "records", "--split", "train", "--epsilon", "1", ends=0)
    assert one_line(done.stderr).count("will be for one record only") == 1


def test_a_cap_on_many_records_is_shown_with_what_is_spent_at_its_own_delta(dpfc: Dpfc) -> None:
    n = 200_000
    Path("many").mkdir()
    np.save("many/train_x.npy", np.zeros((n, 2), np.float16))
    np.save("many/train_y.npy", np.arange(n) % 2)
    of = ("--features", str(feature_set("many", classes=2).folder))
    dpfc("train", *of, "--epsilon", "1", "--yes", ends=0)
    shown = one_line(dpfc("cap", "3", *of, ends=0).stdout)
    assert re.search(r"spent .*epsilon = 1 at delta = 2.5e-06", shown)
