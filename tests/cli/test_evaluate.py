"""`dpfc evaluate`: figures with intervals, on a terminal with the digits that the test set carries, as JSON in full."""

import csv
import hashlib
import io
import json
import re
import shutil
import statistics
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dpfc_cli.cli.app import app
from dpfc_cli.files import sha256_of
from dpfc_cli.heads.metrics import wilson
from dpfc_cli.rounding import cost, with_interval
from tests.cli.conftest import Dpfc, charges, each_is_refused, heads, one_line
from tests.support import blobs, feature_set

PLAIN = ("--non-private", "--method", "dp-ls")


@pytest.fixture
def trained(dpfc: Dpfc, features: Path) -> Path:
    """The only head, trained on 600 records in three classes that have 150 test records."""
    assert dpfc("train", "--epsilon", "8").exit_code == 0
    return Path("heads") / heads()[0]


def test_json_has_the_figures_in_full_and_their_intervals(dpfc: Dpfc, trained: Path) -> None:
    found = json.loads(dpfc("evaluate", "--json").stdout)
    assert (found["head"], found["n"], found["split"], found["warnings"]) == (str(trained), 150, "test", [])
    assert found["interval"] == list(wilson(round(150 * found["top1"]), 150))
    assert (found["top5"], found["top5_interval"], found["mean_average_precision"]) == (None, None, None)
    assert [(each["class"], each["n"]) for each in found["per_class"]] == [("0", 50), ("1", 50), ("2", 50)]
    for each in found["per_class"]:
        assert each["interval"] == list(wilson(round(50 * each["top1"]), 50))
        assert each["sensitivity"] == {"value": each["top1"], "interval": each["interval"]}
    (row,) = rows_of(dpfc("evaluate", "--csv").stdout)
    for name in ("auroc", "balanced_accuracy"):
        assert [float(row[f"{name}{end}"]) for end in ("", "_low", "_high")] == [
            found[name]["value"],
            *found[name]["interval"],
        ]


def test_shown_are_whole_percents_of_150_records_and_no_top_5_of_three_classes(dpfc: Dpfc, trained: Path) -> None:
    shown = dpfc("evaluate").stdout
    assert re.search(r"^top-1 +\d+ % \(95 % interval \d+–\d+ %\)$", shown, re.M)
    assert "top-5" not in shown
    assert len(re.findall(r"^[012] .* 50 +\d+ % +\d+–\d+ %$", shown, re.M)) == 3
    assert shown.startswith("# Exact figures, not protected: ")
    assert re.search(r"^guesses reach +33 % by chance; 33 % as '0', the largest class$", shown, re.M)
    assert not re.search(r"\d\.\d+ ?%", shown)
    assert re.search(r"^AUROC, mean of classes +(0|1)\.\d\d \(95 % interval 0\.\d\d–[01]\.\d\d\)$", shown, re.M)
    assert not re.search("sensitivity", shown)
    apart = dpfc("evaluate", "--threshold", "0.9").stdout
    assert re.search(r"at a probability of 0\.9 .*\nclass +sensitivity +specificity +AUROC\n0 +\d+ % \(", apart)


def test_of_a_named_set_the_newest_head_is_one_that_takes_it(dpfc: Dpfc, trained: Path) -> None:
    x, y = blobs(300, 5, 3, seed=1, apart=8.0)
    np.savez("narrow.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    feature_set("narrow.npz", "narrow", classes=3)
    for line in (("evaluate", "--features", "narrow"), ("predict", "narrow")):
        dpfc(*line, ends=2)
    assert dpfc("train", "--epsilon", "8", "--features", "narrow").exit_code == 0
    assert json.loads(dpfc("evaluate", "--features", "blobs", "--json").stdout)["head"] == str(trained)
    assert str(trained) in dpfc("predict", "blobs", ends=0).stderr


# What goes wrong, and how often


def test_the_classes_that_hurt_most_come_first_and_what_is_taken_for_what_follows(dpfc: Dpfc) -> None:
    """Of the third class ten records lie where the first class is, and of the second four."""
    x, y = blobs(300, 8, 3, seed=1, apart=9.0)
    third, second, first = (np.flatnonzero(y == j) for j in (2, 1, 0))
    x[third[:10]], x[second[:4]] = x[first[:10]], x[first[10:14]]
    train_x, train_y = blobs(900, 8, 3, seed=1, apart=9.0)
    np.savez("set.npz", train_x=train_x, train_y=train_y, test_x=x, test_y=y)
    feature_set("set.npz", "set", classes=("flu", "cold", "rare"))
    assert dpfc("train", *PLAIN, "--out", "heads/h.nonprivate.safetensors").exit_code == 0
    shown = dpfc("evaluate", "h.nonprivate", "--full").stdout
    _, ranked, _, confused, reliable = re.split("^# .*$", shown, flags=re.M)[1:]
    assert re.findall(r"^(\w+) +(.*?) +100 +", ranked, re.M) == [
        ("rare", "flu (10)"),
        ("cold", "flu (4)"),
        ("flu", "–"),
    ]
    assert re.findall(r"^(flu|cold|rare) +(\S+) +(\S+) +(\S+)$", confused, re.M) == [
        ("flu", "100", "·", "·"),
        ("cold", "4", "96", "·"),
        ("rare", "10", "·", "90"),
    ]
    assert re.search(r"^50–60 % +300 +\d+ % +95 % +92–98 %$", reliable, re.M)
    short = dpfc("evaluate", "h.nonprivate").stdout
    assert ("Confusions" in short, "probabilit" in short) == (False, False)
    found = json.loads(dpfc("evaluate", "h.nonprivate", "--json").stdout)
    assert {"class": "rare", "predicted": "flu", "n": 10} in found["confusions"]
    assert sum(each["n"] for each in found["calibration"]["bins"]) == 300


def test_of_many_classes_the_largest_confusions_are_named_and_missing_classes_too(dpfc: Dpfc) -> None:
    x, y = blobs(400, 16, 20, seed=4, apart=12.0)
    lost = np.flatnonzero(y == 7)[:6]
    test = y != 19
    test_x = x.copy()
    test_x[lost] = x[np.flatnonzero(y == 3)[:6]]
    np.savez("set.npz", train_x=x, train_y=y, test_x=test_x[test], test_y=y[test])
    feature_set("set.npz", "set", classes=[f"a-name-{j:02d}" for j in range(20)])
    assert dpfc("train", *PLAIN, "--out", "heads/h.nonprivate.safetensors").exit_code == 0
    short, shown = (dpfc("evaluate", "h.nonprivate", *more).stdout for more in ((), ("--full",)))
    assert len(re.findall("^a-name", short, re.M)) == 5
    assert re.search(r"^a-name-07 +a-name-03 +6 +30 %$", shown, re.M)
    assert "a-name-19" in re.sub("^a-name.*$", "", shown, flags=re.M), "nothing is known of it"
    assert re.search(r"^top-5 +[\d.]+ % \(95 % interval [\d.]+–[\d.]+ %\)$", shown, re.M)


def test_of_the_split_of_the_training_there_is_only_an_accuracy_and_a_warning(dpfc: Dpfc, three: list[str]) -> None:
    line = ("evaluate", "--split", "train")
    shown, told = dpfc(*line, "--full").stdout, dpfc(*line, "--json")
    assert re.findall("^# .*$", shown, re.M)[1:] == ["# Top-1 per class, the worst first"]
    assert ("taken" in shown, "probabilities" in shown, told.stderr) == (False, False, "")
    found = json.loads(told.stdout)
    assert [found[name] for name in ("confusions", "calibration", "auroc", "balanced_accuracy")] == [None] * 4
    assert {each[name] for each in found["per_class"] for name in ("sensitivity", "specificity", "auroc")} == {None}
    (warning,) = found["warnings"]
    plain, as_csv, text = (dpfc(*line, *form) for form in ((), ("--csv",), ("--markdown",)))
    assert all(warning in one_line(each.stderr) for each in (plain, as_csv))
    assert rows_of(as_csv.stdout)[0]["calibration_error"] == ""
    assert f"\n**{warning}**\n" in text.stdout
    assert re.search(r"^\| top-1 \| \d+.* % \(95 % interval .*\) \|$", text.stdout, re.M)


# Several heads


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 600 + 150 records and three heads: a private one, one that is worse, and one without noise."""
    folder = tmp_path_factory.mktemp("made")
    x, y = blobs(750, 8, 3, seed=1, apart=8.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        np.savez("blobs.npz", train_x=x[:600], train_y=y[:600], test_x=x[600:], test_y=y[600:])
        feature_set("blobs.npz", "blobs", classes=3)
        for words in (
            ["train", "--epsilon", "8"],
            ["train", "--epsilon", "0.05", "--out", "heads/small.safetensors"],
            ["train", *PLAIN, "--out", "heads/plain.nonprivate.safetensors"],
        ):
            assert CliRunner().invoke(app, words).exit_code == 0
    return folder


@pytest.fixture
def three(dpfc: Dpfc, made: Path, tmp_path: Path) -> list[str]:
    """Its heads, in a copy of the folder."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return ["heads/blobs-dp-whitened-eps8.safetensors", "small", "plain.nonprivate"]


def test_several_heads_stand_side_by_side_with_paired_differences_to_the_first(dpfc: Dpfc, three: list[str]) -> None:
    asked = dpfc("evaluate", *three)
    sides, beside = re.split("^# .*$", asked.stdout, flags=re.M)[1:]
    assert re.search(r"^small +dp-whitened +1e-05 +0\.05 +\d+\.\d % +\d+–\d+ %$", sides, re.M)
    assert re.search(r"^plain\.nonprivate +dp-ls +– +∞ +\d+\.\d % +\d+–\d+ %$", sides, re.M)
    assert re.search(r"^small +[+−]?\d+\.\d +[+−]?\d+\.\d to [+−]?\d+\.\d +\d+ +\d+$", beside, re.M)
    assert not beside.count("blobs-dp-whitened-eps8")
    assert "better" in asked.stdout


def test_json_and_csv_say_the_same_of_several_heads(dpfc: Dpfc, three: list[str]) -> None:
    found = json.loads(dpfc("evaluate", *three, "--json").stdout)
    each = [json.loads(dpfc("evaluate", head, "--json").stdout) for head in three]
    rows = rows_of(dpfc("evaluate", *three, "--csv").stdout)
    assert [head["top1"] for head in found["heads"]] == [one["top1"] for one in each]
    assert found["heads"][0]["difference"] is None
    assert [head["epsilon"] for head in found["heads"]] == [8, 0.05, None]
    for head, row in zip(found["heads"], rows, strict=True):
        assert (row["head"], float(row["top1"]), int(row["n"])) == (head["head"], head["top1"], 150)
        assert [float(row["top1_low"]), float(row["top1_high"])] == head["interval"]
        assert float(row["calibration_error"]) == head["calibration"]["error"]
        if head["difference"] is not None:
            assert float(row["difference"]) == head["difference"]["gain"]
            assert [float(row["difference_low"]), float(row["difference_high"])] == head["difference"]["interval"]
    assert [row["epsilon"] for row in rows] == ["8.0", "0.05", "inf"]
    (alone,) = rows_of(dpfc("evaluate", three[1], "--csv").stdout)
    assert {name: "" if name.startswith("difference") else value for name, value in rows[1].items()} == alone


def test_heads_of_seeds_stand_at_their_nominal_epsilon_and_say_that_they_claim_nothing(
    dpfc: Dpfc, three: list[str], slides: None
) -> None:
    seeded = []
    for epsilon, seed in (("0.5", "3"), ("2", "3"), ("2", "4")):
        assert dpfc("train", "--method", "dp-ls", "--epsilon", epsilon, "--seed", seed).exit_code == 0
        seeded.append(f"blobs-dp-ls-eps{epsilon}-seed{seed}.research")
    shown = " ".join(dpfc("evaluate", three[0], *seeded, "--plot", "figure.txt").stdout.split())
    for epsilon, seed in (("0.5", "3"), ("2", "3"), ("2", "4")):
        assert f"dp-ls 1e-05 {epsilon} (seed {seed})" in shown
    assert "guarantee" in shown
    told = json.loads(dpfc("evaluate", three[0], *seeded, "--json").stdout)
    scores = [head["top1"] for head in told["heads"][2:]]
    (group,) = told["seeds"]
    assert (len(group["heads"]), group["top1"]) == (2, pytest.approx(statistics.mean(scores)))
    assert group["top1_deviation"] == pytest.approx(statistics.stdev(scores))
    # An equal head counts once, and of many heads nobody reads all pairs.
    shutil.copy(f"heads/{seeded[2]}.safetensors", "heads/same.research.safetensors")
    many = ("evaluate", three[0], *seeded, "same.research", "small")
    assert json.loads(dpfc(*many, "--json").stdout)["seeds"] == told["seeds"]
    assert ["paired" in dpfc(*many, *more).stdout for more in ((), ("--full",))] == [False, True]
    drawn = Path("figure.txt").read_text()
    # Heads that differ in their seed alone are one curve.
    assert drawn.count("no guarantee)") == 1
    rows = rows_of(dpfc("evaluate", three[0], *seeded, "--csv").stdout)
    names = ("claim", "epsilon", "delta", "seed", "seeded_epsilon", "seeded_delta")
    assert [[row[name] for name in names] for row in rows[::2]] == [
        ["private", "8.0", "1e-05", "", "", ""],
        ["research", "inf", "", "3", "2.0", "1e-05"],
    ]
    assert [row["seeds"] for row in rows] == ["", "", "2", "2"]
    assert float(rows[2]["seeds_top1"]) == group["top1"]


def test_what_does_not_go_together_is_refused_and_nothing_is_charged_or_drawn(
    dpfc: Dpfc, three: list[str], slides: None
) -> None:
    lines = {
        "--csv --markdown": "conflict as_json",
        "--by me": "conflict by",
        "--figures both": "conflict figures",
        "--threshold 1": "bad-value threshold",
        "--subgroups sex": "missing subgroups",
        f"{' '.join(three)} --subgroups sex": "conflict subgroups",
        "--plot a.jpg": "bad-value plot a.jpg",
        "--plot a.txt --split train": "conflict plot",
        "--plot a.txt --epsilon 1": "conflict epsilon",
        f"{' '.join(three)} --epsilon 1": "conflict epsilon",
    }
    each_is_refused(dpfc, lines, "evaluate")
    # Epsilon is spent on no set that nobody named.
    Path("features/blobs").rename("features/other")
    each_is_refused(dpfc, {"--epsilon 2": "missing features"}, "evaluate")


@pytest.mark.parametrize("count", [1, 3])
def test_a_figure_is_drawn_beside_what_is_printed(dpfc: Dpfc, three: list[str], count: int, slides: None) -> None:
    words = ("evaluate", *three[:count])
    drawn = dpfc(*words, "--plot", "figure.txt")
    assert drawn.stdout == dpfc(*words).stdout
    assert "figure.txt" in drawn.stderr
    assert Path("figure.txt").stat().st_mode & 0o777 == 0o600, "it is exact"
    text = Path("figure.txt").read_text()
    said = ("Evaluation: split test",) if count == 1 else ("Series(label='dp-whitened'", "plain.nonprivate: no")
    assert all(each in text for each in said), text


# With noise


def test_released_figures_have_an_interval_their_noise_and_what_they_cost(dpfc: Dpfc, trained: Path) -> None:
    shown = dpfc("evaluate", "--epsilon", "1", "--purpose", "paper", ends=0)
    assert re.search(r"^top-1 +\d+ % \(95 % interval \d+–\d+ %\)$", shown.stdout, re.M)
    assert re.search(r"^records, about +\d+$", shown.stdout, re.M)
    assert re.search(r"^this cost +epsilon = 1 at delta = 1e-05 for one record of that split$", shown.stdout, re.M)
    assert not re.search("^[012] ", shown.stdout, re.M), "figures per class are not released"
    assert cost(1, 1e-5) in shown.stdout.splitlines()[0]
    # A record lies in one split, so the more expensive one counts.
    charged = dpfc("budget", "--full").stdout
    assert re.search(r" train .* dp-whitened +written .* 8$", charged, re.M)
    assert re.search(r" test .* evaluation +written .* 1$", charged, re.M)
    assert re.search(r"^1e-05 .* 8$", charged, re.M)


def test_the_json_of_released_figures_has_what_the_ledger_has(dpfc: Dpfc, trained: Path) -> None:
    found = json.loads(dpfc("evaluate", str(trained), "--epsilon", "60", "--delta", "1e-6", "--json").stdout)
    figures = found["figures"]
    assert hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest() == found["sha256"]
    assert (found["head"], figures["head_sha256"]) == (str(trained), sha256_of(trained))
    assert (figures["epsilon"], figures["delta"], figures["unit"], figures["split"]) == (60, 1e-6, "record", "test")
    assert [each["class"] for each in figures["per_class"]] == ["0", "1", "2"]
    assert (found["spent"], found["left"]) == (pytest.approx(60, rel=1e-6), None)
    (account,) = json.loads(dpfc("budget", "--delta", "1e-6", "--json").stdout)["spent"]["populations"]
    assert account["epsilon"]["1e-06"] == pytest.approx(60, rel=1e-6)
    assert [(row["method"], row["split"]) for row in account["charges"]] == [
        ("dp-whitened", "train"),
        ("evaluation", "test"),
    ]
    assert account["charges"][1]["sha256"] == found["sha256"]


def test_released_figures_are_found_again_at_no_cost(dpfc: Dpfc, trained: Path) -> None:
    nothing = dpfc("evaluate", "--released", "--json", ends=0)
    assert json.loads(nothing.stdout)["released"] == []
    told = [json.loads(dpfc("evaluate", "--epsilon", each, "--json").stdout) for each in ("1", "2")]
    figures, before = [each["figures"] for each in told], charges()
    found = [json.loads(dpfc("evaluate", *more, "--json").stdout)["released"] for more in (("--released",), ())]
    assert found == [[{"figures": each["figures"], "sha256": each["sha256"]} for each in told]] * 2
    assert json.loads(dpfc("list", "--json").stdout)["heads"][0]["released"] == figures
    (account,) = json.loads(dpfc("budget", "--json").stdout)["spent"]["populations"]
    assert [row["figures"] for row in account["charges"]] == [None, *figures]
    shown = with_interval(figures[1]["top1"], figures[1]["interval"], figures[1]["n"])
    assert re.search(
        rf"epsilon = 2 at .*\n(.*\n)?top-1 +{re.escape(shown)}$", dpfc("evaluate", "--released").stdout, re.M
    )
    row = rf"^blobs-dp-whitened-eps8 +blobs +test +1e-05 +2 +{re.escape(shown.partition(' (')[0])} +\d+–\d+ %$"
    for line in (("evaluate",), ("budget", "--full")):
        assert re.search(row, dpfc(*line).stdout, re.M)
    assert shown.partition(" (")[0] in dpfc("list").stdout
    assert charges() == before
    each_is_refused(
        dpfc,
        {"--epsilon 1": "conflict released", f"{trained} {trained}": "conflict released"},
        "evaluate",
        "--released",
    )


def test_an_evaluation_is_charged_on_a_terminal_and_once_more_elsewhere_only_if_somebody_says_so(
    dpfc: Dpfc, trained: Path
) -> None:
    line = ("evaluate", "--epsilon", "1")
    assert re.search("[0-9]+–[0-9]+ %.* Charge ε = 1 to blobs", one_line(dpfc(*line, answer="\n", ends=2).stderr))
    assert len(charges()) == 1
    assert dpfc(*line).exit_code == 0
    refused = dpfc(*line, "--json")
    assert (refused.exit_code, refused.stdout, "--again" in refused.stderr) == (6, "", True)
    assert cost(8, 1e-5) in one_line(dpfc(*line, answer="\n", ends=6).stderr)
    assert len(charges()) == 2
    assert dpfc(*line, answer="y\n").exit_code == 0
    # Other figures are another evaluation.
    for more in (("--again",), ("--delta", "1e-6"), ("--split", "train")):
        assert dpfc(*line, *more).exit_code == 0
    assert len(charges()) == 6
