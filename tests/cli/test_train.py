"""`dpfc train`: what is asked, shown and refused before a charge, and what programs get."""

import errno
import json
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpfc_cli
from dpfc_cli import files, points
from dpfc_cli.features.lookup import open_features
from dpfc_cli.heads.head import Head
from dpfc_cli.methods import optimum
from dpfc_cli.records.claims import Seeded
from dpfc_cli.structs import fields_of
from tests.cli.conftest import Dpfc, charges, error_of, heads, one_line
from tests.support import feature_set, replace, shards_of

LINE = ("train", "--epsilon", "1", "--method", "dp-ls")


def everything() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}


@pytest.mark.filterwarnings("ignore::dpfc_cli.TrainingWarning")
def test_python_and_the_command_line_make_the_same_head_and_the_same_row(dpfc: Dpfc, features: Path) -> None:
    out = "heads/cli.research.safetensors"
    line = ("train", "--epsilon", "2", "--seed", "5", "--method", "dp-fc", "--steps", "3", "--out", out)
    assert dpfc(*line).exit_code == 0
    given: dict[str, Any] = {"epsilon": 2.0, "seed": 5, "method": "dp-fc", "steps": 3, "again": True}
    made = dpfc_cli.train(open_features("blobs"), out="heads/python.research.safetensors", **given)
    mine, theirs = Head.load(out), Head.load(made.path)
    assert np.array_equal(mine.weight, theirs.weight)
    assert np.array_equal(mine.bias, theirs.bias)
    assert replace(mine.card, date="", ledger=None) == replace(theirs.card, date="", ledger=None)
    first, second = charges()
    differ = {name for name in fields_of(first) if getattr(first, name) != getattr(second, name)}
    assert differ <= {"id", "at", "head"}


def test_as_published_says_what_epsilon_is_exactly_and_which_option_to_type(dpfc: Dpfc, features: Path) -> None:
    told = dpfc("train", "--method", "dp-fc", "--as-published", "--epsilon", "1", "--seed", "1", "--dry-run", ends=0)
    assert re.search(r"ε = 1 by .* ε = 0\.7\d+\.", told.stderr)
    assert "--learning-rate" in told.stderr


def test_a_dry_run_shows_what_would_be_and_changes_nothing(dpfc: Dpfc, features: Path) -> None:
    for privacy in (("--epsilon", "1"), ("--sigma", "30"), ("--non-private",)):
        before = everything()
        planned = dpfc("train", "--method", "dp-ls", *privacy, "--dry-run", ends=0)
        assert "Nothing" in planned.stdout
        told = json.loads(dpfc("train", "--method", "dp-ls", *privacy, "--dry-run", "--json").stdout)
        assert everything() == before
        trained = dpfc("train", "--method", "dp-ls", *privacy, "--json")
        card = json.loads(trained.stdout)["card"]
        assert told["dry_run"] is True
        assert told["releases"] == card["plan"]
        assert json.loads(json.dumps(told["options"])) == card["options"]
        assert (told["epsilon"], told["delta"]) == (card["epsilon"], card["delta"])
        assert told["head"] == json.loads(trained.stdout)["head"]


def test_programs_get_path_digest_card_and_what_is_spent(dpfc: Dpfc, features: Path) -> None:
    told = json.loads(dpfc(*LINE, "--json").stdout)
    assert told["head"] == f"heads/{heads()[0]}"
    assert (told["epsilon"], told["delta"]) == (pytest.approx(1.0), 1e-5)
    assert told["card"] == json.loads(Head.load(told["head"]).card.json)
    (charge,) = told["spent"]["charges"]
    assert (charge["id"], charge["sha256"], charge["state"]) == (charges()[0].id, told["sha256"], "written")
    assert told["spent"]["epsilon"]["1e-05"] == pytest.approx(1.0)
    assert json.loads(dpfc("train", "--non-private", "--method", "dp-ls", "--json").stdout)["spent"] is None


def on_a_terminal(key: str, *words: str) -> tuple[int, str]:
    """Exit code and what a terminal shows of `dpfc` there, with that key pressed when it asks."""
    main, other = pty.openpty()
    # The terminal becomes the process's own, so that its keys reach it.
    own = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
    line = [sys.executable, "-c", f"{own}; from dpfc_cli.cli.app import main; main()", *words]
    with subprocess.Popen(line, stdin=other, stdout=subprocess.PIPE, stderr=other, start_new_session=True) as process:
        os.close(other)
        shown, typed = b"", False
        while True:
            if not select.select([main], [], [], 1.0)[0]:
                if typed:
                    # A key that comes while the terminal is being prepared for the question may be lost.
                    os.write(main, key.encode())
                continue
            try:
                part = os.read(main, 4096)
            except OSError:
                break
            if not part:
                break
            shown += part
            if not typed and b"[y/N]" in shown:
                os.write(main, key.encode())
                typed = True
        os.close(main)
    return process.returncode, " ".join(shown.decode().split())


@pytest.fixture
def second_set(dpfc: Dpfc, features: Path, arrays: Path) -> None:
    feature_set(arrays, "newer", classes=3, dtype="float16")


QUESTION = (
    "Charge ε = 1 to newer (then epsilon = 1 at delta = 1e-05 is spent together)? It is the newest of 2 sets. [y/N]"
)


def test_on_a_terminal_it_asks_before_it_charges_a_set_that_it_chose_of_several(dpfc: Dpfc, second_set: None) -> None:
    refused = dpfc(*LINE, answer="\n", ends=2)
    assert QUESTION in one_line(refused.stderr)
    assert not charges()
    assert QUESTION in one_line(dpfc(*LINE, answer="y\n", ends=0).stderr)
    assert len(charges()) == 1
    # It does not ask where the answer was given.
    for words in (("--yes",), ("--features", "newer", "--delta", "1e-6")):
        assert "Charge" not in dpfc(*LINE, "--again", *words, answer="", ends=0).stderr


def test_several_trainings_are_one_question_and_one_table(dpfc: Dpfc, features: Path) -> None:
    line = (*LINE, "--method", "dp-fc", "--epsilon", "2", "--out", "study")
    planned = json.loads(dpfc(*line, "--dry-run", "--json", ends=0).stdout)
    asked = one_line(dpfc(*line, answer="\n", ends=2).stderr)
    assert "4 trainings" in asked
    assert float(asked.split("ε = ")[1].split()[0]) == pytest.approx(planned["together"], rel=1e-5)
    assert (charges(), Path("study").exists()) == ((), False)
    plot = ("--plot", "a.svg") if "picture.svg" in points.added("dpfc.documents") else ("--score",)
    shown = dpfc(*line, *plot, answer="y\n", ends=0)
    told = json.loads(dpfc(*line, "--score", "--json", ends=0).stdout)
    assert len(charges()) == 4
    assert "these together" in one_line(shown.stdout)
    assert told["together"] is None
    assert planned["spent_epsilon"] == told["spent_epsilon"] == pytest.approx(planned["together"])
    study = sorted(map(str, Path("study").iterdir()))
    lines = (("list", "study"), ("evaluate", *study))
    listed, scored = (json.loads(dpfc(*words, "--json", ends=0).stdout)["heads"] for words in lines)
    accuracies = {each["head"]: each["accuracy"] for each in told["trainings"]}
    assert accuracies == {each["head"]: each["top1"] for each in scored}
    assert {each["path"] for each in listed} == {*accuracies} == {each["head"] for each in planned["trainings"]}
    assert all(each.removesuffix(".safetensors") in shown.stdout for each in accuracies)
    assert Path("a.svg").exists() == (plot[0] == "--plot")


@pytest.mark.usefixtures("ctrl_c", "second_set")
def test_ctrl_c_and_the_end_of_input_at_the_question_charge_nothing(dpfc: Dpfc) -> None:
    code, shown = on_a_terminal("\x03", *LINE)
    assert (code, QUESTION in shown) == (130, True)
    assert dpfc(*LINE, answer="").exit_code == 130
    assert not charges()


def test_the_same_training_is_charged_again_only_if_somebody_says_so(dpfc: Dpfc, features: Path) -> None:
    assert dpfc(*LINE).exit_code == 0
    refused = dpfc(*LINE, "--out", "other.safetensors")
    assert (refused.exit_code, "--again" in refused.stderr) == (6, True)
    asked = dpfc(*LINE, answer="\n", ends=6)
    assert "1.4652" in asked.stderr
    assert len(charges()) == 1
    assert dpfc(*LINE, answer="y\n").exit_code == 0
    # What is said of it in the ledger makes it no other one.
    dpfc(*LINE, "--purpose", "table 2", "--by", "Ada", ends=6)
    for more in (("--again",), ("--seed", "1"), ("--seed", "2"), ("--dry-run",)):
        assert dpfc(*LINE, *more).exit_code == 0
    assert len(charges()) == 5
    before = heads()
    for more in (("--seed", "1"), ("--seed", "2")):
        dpfc(*LINE, *more, ends=6)
    assert (len(charges()), heads()) == (5, before)


def test_a_warning_is_for_programs_too_and_does_not_stand_above_a_refusal(dpfc: Dpfc, features: Path) -> None:
    line = ("train", "--epsilon", "0.01", "--method", "dp-ls")
    told = dpfc(*line, "--dry-run", "--json", ends=0)
    (warning,) = json.loads(told.stdout)["warnings"]
    assert "Warning" not in told.stderr
    assert warning in one_line(dpfc(*line, ends=0).stderr)
    assert "Warning" not in dpfc(*line, ends=6).stderr


def test_without_a_terminal_it_charges_none_of_several_sets_that_nobody_named(dpfc: Dpfc, second_set: None) -> None:
    assert dpfc(*LINE).exit_code == error_of(dpfc(*LINE, "--json"))["exit_code"] == 2
    assert not charges()
    trained = dpfc(*LINE, "--yes", ends=0)
    assert "features/newer" in trained.stderr


def test_an_option_of_zero_is_given_and_not_left_out(dpfc: Dpfc, features: Path) -> None:
    assert dpfc(*LINE, "--negative-weight", "0").exit_code == 0
    assert Head.load(Path("heads") / heads()[0]).card.options["negative_weight"] == 0
    assert dpfc("train", "--epsilon", "1", "--method", "dp-fc", "--learning-rate", "0").exit_code == 2


def test_what_lies_elsewhere_or_is_not_complete_is_not_said_to_be_missing(dpfc: Dpfc, features: Path) -> None:
    mistyped = error_of(dpfc(*LINE, "--out", "elsewhere/a.safetensors", "--json", ends=2))
    assert (mistyped["code"], mistyped["fields"]["path"]) == ("missing", "elsewhere")
    Path("elsewhere").mkdir()
    assert dpfc(*LINE, "--out", "elsewhere/a.safetensors").exit_code == 0
    Path("features/begun.partial").mkdir()
    Path("features/begun.refused.txt").touch()
    listed = dpfc("list")
    assert all(f"features/begun{each}" in one_line(listed.stderr) for each in (".partial", ".refused.txt"))
    # What was trained is in the ledger.
    assert all("budget" in said for said in (listed.stdout, dpfc("evaluate", ends=2).stderr))


def test_list_shows_sets_heads_and_what_they_cost(dpfc: Dpfc, second_set: None) -> None:
    for words in (LINE, (*LINE, "--again"), ("train", "--non-private", "--method", "dp-ls")):
        assert dpfc(*words, "--features", "blobs").exit_code == 0
    shown = dpfc("list")
    told = json.loads(dpfc("list", "--json").stdout)
    # Nothing is said of both sets, so they count together.
    assert [(each["name"], each["charges"], each["unprotected"]) for each in told["sets"]] == [
        ("blobs", 3, 1),
        ("newer", 3, 1),
    ]
    (spent,) = json.loads(dpfc("budget", "--delta", "1e-5", "--json").stdout)["spent"]["populations"]
    assert told["sets"][0]["epsilon"] == pytest.approx(spent["epsilon"]["1e-05"])
    assert sorted(each["path"] for each in told["heads"]) == [f"heads/{name}" for name in heads()]
    assert {each["epsilon"] for each in told["heads"]} == {1.0, None}
    for word in ("blobs", "newer", "blobs-dp-ls-eps1-2", "1.4652", "∞"):
        assert word in shown.stdout
    assert "∞" in shown.stderr


def test_list_names_what_it_cannot_read_and_shows_the_rest(dpfc: Dpfc, features: Path) -> None:
    assert dpfc(*LINE).exit_code == 0
    Path("heads/broken.safetensors").write_text("no head")
    (Path("features/broken")).mkdir()
    Path("features/broken/manifest.json").write_text("{")
    shown = dpfc("list", ends=0)
    assert "blobs-dp-ls-eps1" in shown.stdout
    assert "heads/broken.safetensors" in shown.stderr
    assert "features/broken" in shown.stderr


def test_a_head_is_scored_on_the_set_that_it_was_trained_on(dpfc: Dpfc, features: Path, arrays: Path) -> None:
    """Not on a newer one of the same shape."""
    np.save(arrays / "test_y.npy", (np.load(arrays / "test_y.npy") + 1) % 3)
    feature_set(arrays, "newer", classes=3)
    trained = dpfc("train", "--method", "dp-ls", "--epsilon", "8", "--features", "blobs")
    assert trained.stderr.endswith("Next: dpfc evaluate --features blobs\n")
    found = dpfc("evaluate", "--json")
    result = json.loads(found.stdout)
    assert result["features"] == "features/blobs"
    assert result["top1"] > 0.9
    assert json.loads(dpfc("evaluate", "--json", "--features", "newer").stdout)["features"] == "features/newer"
    features.rename("elsewhere")
    assert json.loads(dpfc("evaluate", "--json").stdout)["features"] == "features/newer"
    # Cards have the names of real folders.
    Path("features/linked").symlink_to(Path("elsewhere").rename("blobs").resolve())
    assert json.loads(dpfc("evaluate", "--json").stdout)["features"] == "features/linked"


def test_a_twin_that_does_not_reach_its_optimum_says_so(
    dpfc: Dpfc, features: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimum, "STEPS", 1)
    assert "optimum" in dpfc("train", "--non-private", "--method", "dp-newton").stderr
    assert Head.load(sorted(Path("heads").iterdir())[0]).card.converged is False
    assert "optimum" not in dpfc("train", "--non-private", "--method", "dp-newton", "--steps", "2").stderr


def test_on_a_full_disk_nothing_is_charged_and_what_was_charged_before_it_filled_up_goes_on(
    dpfc: Dpfc, features: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of what is written to the folder of heads has room: of the trial, or later of the head."""
    from dpfc_cli.heads import head

    real, left = files.write_synced, [0]

    def filling(path: Path, data: bytes, mode: int | None = None) -> None:
        left[0] -= path.parent.name == "heads"
        real(path, data[: len(data) // 2] if left[0] < 0 else data, mode)
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for module in (files, head):
        monkeypatch.setattr(module, "write_synced", filling)
    Path("heads").mkdir()
    for trials, charged in ((0, 0), (1, 1)):
        left[0] = trials
        refused = dpfc("train", "--epsilon", "1")
        assert (refused.exit_code, len(charges())) == (7, charged)
        assert not list(Path("heads").iterdir())
    left[0] = 3
    assert dpfc("train", "--epsilon", "1").exit_code == 0
    assert (len(charges()), len(heads())) == (1, 1)


def test_a_name_taken_meanwhile_gets_a_number(dpfc: Dpfc, features: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = files.publish

    def late(temporary: Path, path: Path) -> bool:
        if path.name == "blobs-dp-whitened-eps1.safetensors":
            path.write_bytes(b"somebody else's head")
        return real(temporary, path)

    monkeypatch.setattr(files, "publish", late)
    trained = dpfc("train", "--epsilon", "1")
    assert heads() == ["blobs-dp-whitened-eps1-2.safetensors", "blobs-dp-whitened-eps1.safetensors"]
    assert "blobs-dp-whitened-eps1-2.safetensors" in trained.stdout


def test_non_private_heads_say_so_and_are_never_chosen_unasked(dpfc: Dpfc, features: Path) -> None:
    trained = dpfc("train", "--method", "dp-ls", "--non-private")
    assert "∞" in trained.stdout
    assert heads() == ["blobs-dp-ls.nonprivate.safetensors"]
    assert dpfc("evaluate").exit_code == 2
    asked = dpfc("evaluate", "heads/blobs-dp-ls.nonprivate.safetensors")
    assert "∞" in asked.stdout
    as_json = dpfc("evaluate", "heads/blobs-dp-ls.nonprivate.safetensors", "--json")
    assert json.loads(as_json.stdout)["epsilon"] is None
    (spent,) = json.loads(dpfc("budget", "--json").stdout)["spent"]["populations"]
    assert spent["unprotected"] == 1


def test_a_seed_repeats_the_head_claims_nothing_and_is_named_with_what_its_noise_would_be_worth(
    dpfc: Dpfc, features: Path
) -> None:
    for more in ((), ("--again",)):
        assert dpfc("train", "--epsilon", "1", "--seed", "86420", "--method", "dp-ls", *more).exit_code == 0
    paths = [Path("heads") / name for name in heads()]
    assert [path.name for path in paths] == [f"blobs-dp-ls-eps1-seed86420{i}.research.safetensors" for i in ("-2", "")]
    a, b = map(Head.load, paths)
    assert np.array_equal(a.weight, b.weight)
    assert (a.card.epsilon, a.card.seeded) == (None, Seeded(seed=86420, epsilon=1.0, delta=1e-5))
    dpfc("evaluate", ends=2)
    listed = dpfc("list").stdout
    assert "(seed 86420)" in listed
    assert "guarantee" in listed
    assert all(each.epsilon is None for each in charges())


def test_a_seeded_head_is_bit_equal_from_any_sharding(dpfc: Dpfc, features: Path, arrays: Path) -> None:
    with shards_of(40):
        feature_set(arrays, "many", classes=3)
    weights = []
    for name in ("blobs", "many"):
        out = f"heads/{name}.research.safetensors"
        assert dpfc("train", "--epsilon", "2", "--seed", "5", "--features", name, "--out", out).exit_code == 0
        weights.append(Head.load(Path(out)))
    assert np.array_equal(weights[0].weight, weights[1].weight)
    assert np.array_equal(weights[0].bias, weights[1].bias)
