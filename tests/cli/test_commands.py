"""The lines a user types, from import to budget, and what each writes where."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.heads.head import Head
from dpfc_cli.methods import optimum
from dpfc_cli.privacy import poisson
from dpfc_cli.privacy.accounting import mu_for
from tests.cli.conftest import Dpfc, charges, heads
from tests.support import blobs


@pytest.mark.parametrize("method", ["dp-whitened", "dp-sgd"])
def test_the_whole_path_from_features_to_accuracy(dpfc: Dpfc, features: Path, method: str) -> None:
    trained = dpfc("train", "--method", method, "--epsilon", "8")
    assert trained.exit_code == 0, trained.output
    assert heads() == [f"blobs-{method}-eps8.safetensors"]
    for words in ("zero-out", "one record of 600", "epsilon = 8 at delta = 1e-05"):
        assert words in trained.stdout
    found = dpfc("evaluate", "--json")
    result = json.loads(found.stdout)
    assert result["top1"] > 0.9
    assert {"top1", "top5", "epsilon", "delta", "method", "n"} <= set(result)
    assert (result["epsilon"], result["method"], result["n"]) == (8, method, 150)
    table = dpfc("evaluate")
    assert "epsilon = 8 at delta = 1e-05" in table.stdout
    assert re.search(r"^this head +differentially private", table.stdout, re.M)
    assert re.search(r"^class +mostly taken for +records +top-1 +95 % interval$", table.stdout, re.M)


def test_sigma_is_the_noise_multiplier_and_its_epsilon_is_stated(dpfc: Dpfc, features: Path) -> None:
    assert dpfc("train", "--method", "dp-ls", "--sigma", "10", "--delta", "1e-5").exit_code == 0
    card = Head.load(Path("heads") / heads()[0]).card
    assert card["epsilon"] == pytest.approx(0.620, abs=1e-3)
    assert all(r["sigma"] == pytest.approx(10 / (3 * r["share"]) ** 0.5) for r in card["plan"])


def test_label_sets_are_learned_and_scored_by_mean_average_precision(dpfc: Dpfc, tmp_path: Path) -> None:
    """Two classes of six show in each record; which, its features say."""
    rng = np.random.default_rng(0)
    for split, n in (("train", 3000), ("test", 300)):
        y = np.argsort(rng.random((n, 6)), axis=1)[:, :2]
        x = (y[:, :, None] == np.arange(6)).any(axis=1) + 0.1 * rng.normal(size=(n, 6))
        np.save(tmp_path / f"{split}_x.npy", x.astype(np.float32))
        np.save(tmp_path / f"{split}_y.npy", y)
    assert dpfc("import", str(tmp_path), "--out", "sets", "--classes", "6", "--labels-per-record", "2").exit_code == 0
    assert dpfc("train", "--epsilon", "8").exit_code == 0
    result = json.loads(dpfc("evaluate", "--json").stdout)
    assert result["mean_average_precision"] > 0.95
    assert all(each["average_precision"] > 0.9 for each in result["per_class"])
    shown = dpfc("evaluate").stdout
    assert "mean average precision" in shown
    assert "Average precision per class" in shown


def test_public_features_are_named_in_card_and_statement_and_cost_nothing(
    dpfc: Dpfc, features: Path, tmp_path: Path
) -> None:
    x, y = blobs(900, 8, 5, seed=9)
    np.savez(tmp_path / "others.npz", train_x=x, train_y=y)
    assert dpfc("import", str(tmp_path / "others.npz"), "--out", "others", "--classes", "5").exit_code == 0
    spent = []
    for more in ([], ["--public-features", "others"]):
        trained = dpfc("train", "--features", "blobs", "--epsilon", "2", "--full", *more)
        assert trained.exit_code == 0, trained.output
        spent.append(charges()[-1])
    assert "others: the mean of 900 records" in " ".join(trained.stdout.split())
    assert (spent[0].mu, spent[0].releases) == (spent[1].mu, spent[1].releases)
    assert len(charges()) == 2
    card = Head.load(Path("heads/blobs-dp-whitened-eps2-2.safetensors")).card
    assert (card["public_features"]["name"], card["public_features"]["rows"]) == ("others", 900)
    assert "public" not in card["options"]
    assert json.loads(dpfc("evaluate", "--features", "blobs", "--json").stdout)["top1"] > 0.9


def test_options_are_chosen_on_public_records_at_no_cost(dpfc: Dpfc, features: Path, tmp_path: Path) -> None:
    x, y = blobs(900, 8, 5, seed=9)
    np.savez(tmp_path / "others.npz", train_x=x, train_y=y)
    assert dpfc("import", str(tmp_path / "others.npz"), "--out", "others", "--classes", "5").exit_code == 0
    line = ("train", "--features", "blobs", "--epsilon", "2", "--steps", "3")
    plain = dpfc(*line)
    tuned = dpfc(*line, "--full", "--tune-on", "others", "--public-features", "others", "--learning-rate", "1.5")
    assert tuned.exit_code == 0, tuned.output
    # Only the constant is left open.
    assert "others: 3 settings on 432 of its records of 3 classes" in " ".join(tuned.stdout.split())
    first, second = charges()
    assert (first.mu, first.releases) == (second.mu, second.releases)
    card = Head.load(Path("heads/blobs-dp-whitened-eps2-2.safetensors")).card
    assert set(card["tuning"]) > {"name", "fingerprint", "tried", "chosen"}
    assert card["public_features"]["name"] == "others"
    assert card["options"]["learning_rate"] == 1.5
    assert "tuned on" not in plain.stdout


def test_a_head_is_scored_on_the_set_that_it_was_trained_on(dpfc: Dpfc, features: Path, arrays: Path) -> None:
    """Not on a newer one of the same shape."""
    np.save(arrays / "test_y.npy", (np.load(arrays / "test_y.npy") + 1) % 3)
    assert dpfc("import", str(arrays), "--out", "newer", "--classes", "3").exit_code == 0
    trained = dpfc("train", "--method", "dp-ls", "--epsilon", "8", "--features", "blobs")
    assert trained.stderr.endswith("Next: dpfc evaluate --features blobs\n")
    found = dpfc("evaluate", "--json")
    result = json.loads(found.stdout)
    assert result["features"] == "features/blobs"
    assert result["top1"] > 0.9
    assert "the set of the training, by its name" in found.stderr
    assert json.loads(dpfc("evaluate", "--json", "--features", "newer").stdout)["features"] == "features/newer"
    features.rename("elsewhere")
    moved = dpfc("evaluate", "--json")
    assert json.loads(moved.stdout)["features"] == "features/newer"
    assert "The head was trained on 'blobs', which is not in 'features'" in moved.stderr
    # Cards have the names of real folders.
    Path("features/linked").symlink_to(Path("elsewhere").rename("blobs").resolve())
    assert json.loads(dpfc("evaluate", "--json").stdout)["features"] == "features/linked"


def test_a_methods_name_may_be_typed_in_capitals(dpfc: Dpfc, features: Path) -> None:
    assert dpfc("train", "--method", "DP-LS", "--epsilon", "8").exit_code == 0
    assert heads() == ["blobs-dp-ls-eps8.safetensors"]


def test_a_statement_sums_up_releases_that_alternate(dpfc: Dpfc, features: Path) -> None:
    said = dpfc("train", "--epsilon", "8", "--method", "dp-newton", "--steps", "4", "--full").stdout
    assert re.search(r"^gradient +9 × 3 +4 +50.0% ", said, re.M)
    assert len(re.findall("^hessians ", said, re.M)) == 1


def test_a_twin_that_does_not_reach_its_optimum_says_so(
    dpfc: Dpfc, features: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimum, "NEWTON_STEPS", 1)
    assert "the optimum was not reached" in dpfc("train", "--non-private", "--method", "dp-newton").stderr
    assert Head.load(sorted(Path("heads").iterdir())[0]).card["converged"] is False
    assert "the optimum" not in dpfc("train", "--non-private", "--method", "dp-newton", "--steps", "2").stderr


def test_a_sampled_training_is_accounted_as_such(dpfc: Dpfc, features: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poisson, "FINE", poisson.COARSE)
    line = ("train", "--method", "dp-sgd", "--steps", "20", "--sampling-rate", "0.1", "--epsilon", "2")
    trained = dpfc(*line, "--loss", "softmax", "--average", "--full")
    assert trained.exit_code == 0, trained.output
    assert re.search("^release .* sampling rate$", trained.stdout, re.M)
    assert "privacy loss distributions" in trained.stdout
    card = Head.load(Path("heads") / heads()[0]).card
    full = 20**0.5 / mu_for(2.0, 1e-5)
    assert card["plan"][0]["sigma"] < full / 2
    (spent,) = json.loads(dpfc("budget", "--json", "--delta", "1e-5").stdout)["spent"]["populations"]
    assert spent["epsilon"]["1e-05"] == pytest.approx(2.0, rel=1e-4)
    assert dpfc(*line, "--adjacency", "replace-one").exit_code == 2


def test_a_later_assertion_replaces_what_was_inferred(dpfc: Dpfc, arrays: Path) -> None:
    dpfc("import", str(arrays))
    assert json.loads(Path("features/arrays/manifest.json").read_text())["origin"] == "inferred"
    assert dpfc("import", str(arrays), "--classes", "a,b,c,d").exit_code == 0
    manifest = json.loads(Path("features/arrays/manifest.json").read_text())
    assert (manifest["origin"], manifest["classes"]) == ("asserted", ["a", "b", "c", "d"])


def test_a_head_that_cannot_be_saved_in_its_place_is_saved_elsewhere(
    dpfc: Dpfc, features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpfc_cli.heads import head

    def full(*args: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(head, "_publish", full)
    monkeypatch.setattr(tempfile, "mkdtemp", lambda prefix: str(tmp_path))
    trained = dpfc("train", "--epsilon", "1")
    assert trained.exit_code == 0
    assert str(tmp_path / "blobs-dp-whitened-eps1.safetensors") in trained.stdout
    assert Head.load(tmp_path / "blobs-dp-whitened-eps1.safetensors").card["epsilon"] == 1


def test_json_has_null_for_infinity(dpfc: Dpfc) -> None:
    rows = json.loads(dpfc("budget", "--sigma", "0.01", "--json").stdout)["conversion"]
    assert rows[0]["epsilon"] is None


def test_a_name_taken_meanwhile_gets_a_number(dpfc: Dpfc, features: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpfc_cli.heads import head

    real = head._publish

    def late(temporary: Path, path: Path) -> Path:
        path.write_bytes(b"somebody else's head")
        return real(temporary, path)

    monkeypatch.setattr(head, "_publish", late)
    trained = dpfc("train", "--epsilon", "1")
    assert heads() == ["blobs-dp-whitened-eps1-2.safetensors", "blobs-dp-whitened-eps1.safetensors"]
    assert "blobs-dp-whitened-eps1-2.safetensors" in trained.stdout


def test_non_private_heads_say_so_and_are_never_chosen_unasked(dpfc: Dpfc, features: Path) -> None:
    trained = dpfc("train", "--method", "dp-ls", "--non-private")
    assert "∞" in trained.stdout
    assert heads() == ["blobs-dp-ls.nonprivate.safetensors"]
    assert dpfc("evaluate").exit_code == 2
    asked = dpfc("evaluate", "heads/blobs-dp-ls.nonprivate.safetensors")
    assert "epsilon = ∞" in asked.stdout
    as_json = dpfc("evaluate", "heads/blobs-dp-ls.nonprivate.safetensors", "--json")
    assert json.loads(as_json.stdout)["epsilon"] is None
    assert "without a guarantee" in dpfc("budget").stderr


def test_a_seed_repeats_the_head_claims_nothing_and_is_written_nowhere(dpfc: Dpfc, features: Path) -> None:
    seed = "86420975318642"
    for name in ("a", "b"):
        assert (
            dpfc("train", "--epsilon", "1", "--seed", seed, "--out", f"heads/{name}.research.safetensors").exit_code
            == 0
        )
    a, b = Head.load(Path("heads/a.research.safetensors")), Head.load(Path("heads/b.research.safetensors"))
    assert np.array_equal(a.weight, b.weight)
    assert a.card["epsilon"] is None
    assert "No private head found" in dpfc("evaluate").stderr
    for path in [*Path().rglob("*.safetensors"), *Path().rglob("*.sqlite"), *Path().rglob("*.json")]:
        assert seed.encode() not in path.read_bytes()


def test_system_noise_never_repeats(dpfc: Dpfc, features: Path) -> None:
    for name in ("a", "b"):
        assert dpfc("train", "--epsilon", "1", "--out", f"heads/{name}.safetensors").exit_code == 0
    a, b = Head.load(Path("heads/a.safetensors")), Head.load(Path("heads/b.safetensors"))
    assert not np.isclose(a.weight, b.weight).any()


@pytest.mark.parametrize("shards", ["3", "16"])
def test_a_seeded_head_is_bit_equal_from_any_sharding(dpfc: Dpfc, features: Path, arrays: Path, shards: str) -> None:
    assert dpfc("import", str(arrays), "--out", "many", "--classes", "3", "--shards", shards).exit_code == 0
    weights = []
    for name in ("blobs", "many"):
        out = f"heads/{name}.research.safetensors"
        assert dpfc("train", "--epsilon", "2", "--seed", "5", "--features", name, "--out", out).exit_code == 0
        weights.append(Head.load(Path(out)))
    assert np.array_equal(weights[0].weight, weights[1].weight)
    assert np.array_equal(weights[0].bias, weights[1].bias)


def test_the_private_split_is_not_scored_without_a_warning(dpfc: Dpfc, features: Path) -> None:
    dpfc("train", "--epsilon", "1")
    warned = dpfc("evaluate", "--split", "train", "--json")
    assert "not differentially private" in warned.stderr
    assert json.loads(warned.stdout)["private_split"]
    assert "not differentially private" not in dpfc("evaluate").stderr
    shutil.copytree(features, "features/renamed")
    assert "not differentially private" in dpfc("evaluate", "--split", "train", "--features", "renamed").stderr


def test_noise_that_is_larger_than_the_signal_is_announced_before_training(dpfc: Dpfc, features: Path) -> None:
    assert "the noise hides the classes" in dpfc("train", "--epsilon", "0.01").stderr
    assert "the noise hides" not in dpfc("train", "--epsilon", "8").stderr


def test_budget_converts_as_the_golden_figures_say(dpfc: Dpfc) -> None:
    rows = json.loads(dpfc("budget", "--sigma", "10", "--steps", "10", "--delta", "1e-5", "--json").stdout)[
        "conversion"
    ]
    fc = next(r for r in rows if r["method"] == "dp-fc")
    assert fc["releases"] == 11
    assert fc["epsilon"] == pytest.approx(1.264, abs=5e-4)
    assert fc["paper"] == pytest.approx(1.647, abs=6e-4)
    asked = ("budget", "--epsilon", str(fc["epsilon"]), "--steps", "10", "--delta", "1e-5", "--json")
    back = json.loads(dpfc(*asked).stdout)["conversion"]
    assert next(r for r in back if r["method"] == "dp-fc")["sigma"] == pytest.approx(10, rel=1e-6)
    assert "1.264" in dpfc("budget", "--sigma", "10", "--steps", "10").stdout


def test_help_budget_and_a_forecast_of_facts_never_load_jax() -> None:
    program = """
import sys
sys.argv = ["dpfc", *sys.argv[1:]]
from dpfc_cli.cli.app import main
try:
    main()
except SystemExit as end:
    assert end.code == 0, end.code
assert not {"jax", "jaxlib"} & set(sys.modules)
assert "h5py" not in sys.modules or "forecast" in sys.argv
"""
    facts = ["--records", "1000", "--classes", "5", "--dimensions", "64"]
    for arguments in (["--help"], ["train", "--help"], ["budget", "--sigma", "10"], ["forecast", *facts]):
        subprocess.run([sys.executable, "-c", program, *arguments], check=True, stdout=subprocess.DEVNULL)


def test_extract_train_and_evaluate_the_embedded_digits(dpfc: Dpfc) -> None:
    made = dpfc("extract", "--model", "scattering", "--dataset", "digits", "--pool", "mean", "--shards", "2")
    assert made.exit_code == 0, made.output
    assert "1,400 in 2 shards" in made.stdout
    assert dpfc("extract", "--dataset", "digits", "--pool", "mean").exit_code == 0
    assert dpfc("train", "--method", "dp-ls", "--non-private").exit_code == 0
    head = "heads/digits-scattering-mean-dp-ls.nonprivate.safetensors"
    assert json.loads(dpfc("evaluate", head, "--json").stdout)["top1"] > 0.85


def test_a_pipe_gets_plain_text_and_a_closed_one_ends_quietly(dpfc: Dpfc) -> None:
    program = "from dpfc_cli.cli.app import main; main()"
    command = [sys.executable, "-c", program, "budget", "--sigma", "10"]
    piped = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "\x1b" not in piped.stdout
    assert "│" not in piped.stdout
    read_end, write_end = os.pipe()
    os.close(read_end)
    closed = subprocess.run(command, check=False, stdout=write_end, stderr=subprocess.PIPE, text=True)
    os.close(write_end)
    assert "Traceback" not in closed.stderr
    assert closed.returncode == 0
