"""What `dpfc extract` says of a set: whose classes they are, which pictures are for evaluation, what it is called."""

import io
import json
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from dpfc_cli.features.manifest import load
from tests.cli.conftest import SCATTER, Dpfc, labels_of


def test_classes_of_web_datasets_are_asserted_or_inferred(dpfc: Dpfc, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "train-0.tar", "w") as archive:
        for i in range(8):
            picture = io.BytesIO()
            Image.new("RGB", (9, 9), (i, 0, 0)).save(picture, "PNG")
            for name, data in ((f"{i}.png", picture.getvalue()), (f"{i}.cls", str(i % 2).encode())):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    line = ("extract", "--dataset", "webdataset:train-{0..0}.tar", *SCATTER)
    inferred = dpfc(*line)
    assert inferred.exit_code == 0, inferred.output
    assert "inferred from the data: assert with --classes" in inferred.stdout.replace("\n", " ")
    asserted = dpfc(*line, "--classes", "cat,dog,fish")
    assert "complete already" in asserted.stderr
    named = f"{tmp_path.name}-scattering-mean"
    assert load(Path("features", named)).classes == ("cat", "dog", "fish")
    assert "3 (asserted by you)" in asserted.stdout


def test_classes_of_folders_are_asserted_or_inferred_and_the_card_says_which(dpfc: Dpfc, pictures: Path) -> None:
    line = ("extract", "--dataset", "imagefolder:pictures", *SCATTER)
    inferred = dpfc(*line)
    assert "3 (inferred from the data: assert with --classes)" in inferred.stdout.replace("\n", " ")
    assert dpfc("train", "--epsilon", "8", "--infer-classes", "--out", "head.safetensors").exit_code == 0
    assert "inferred from the private records" in dpfc("statement", "head.safetensors").stdout
    asserted = dpfc(*line, "--classes", "c0,c1,c2,rare")
    assert "complete already" in asserted.stderr
    assert "4 (asserted by you)" in asserted.stdout
    assert load(Path("features/pictures-scattering-mean")).classes == ("c0", "c1", "c2", "rare")
    # In another order the stored labels would be wrong.
    assert "with other settings" in dpfc(*line, "--classes", "c2,c1,c0").stderr.replace("\n", " ")
    assert dpfc(*line, "--classes", "c2,c1,c0", "--out", "turned").exit_code == 0
    assert labels_of("turned") == [2 - j for j in labels_of("pictures-scattering-mean")]
    (spent,) = json.loads(dpfc("budget", "--features", "turned", "--json").stdout)["spent"]["populations"]
    assert spent["epsilon"]["1e-05"] == pytest.approx(8, rel=1e-3)


def test_a_held_out_part_is_evaluated_on_and_both_sets_are_added_up(dpfc: Dpfc, pictures: Path) -> None:
    line = ("extract", "--dataset", "imagefolder:pictures/train", *SCATTER, "--classes", "c0,c1,c2")
    whole = dpfc(*line)
    assert "no test split" in whole.stderr
    assert "--hold-out 0.1" in whole.stderr.replace("\n", " ")
    parted = dpfc(*line, "--hold-out", "0.4")
    assert parted.exit_code == 0, parted.output
    assert "no test split" not in parted.stderr
    plain, held = "train-scattering-mean", "train-scattering-mean-holdout0.4"
    all_of, parts = (load(Path("features", name)).splits for name in (plain, held))
    assert parts["train"].n + parts["test"].n == all_of["train"].n == 30
    trained = dpfc("train", "--epsilon", "2", "--features", held)
    assert trained.exit_code == 0, trained.output
    assert f" records {parts['test'].n} " in " ".join(dpfc("evaluate").stdout.split())
    assert "has seen some" not in dpfc("evaluate").stderr
    assert dpfc("train", "--epsilon", "2", "--features", plain, "--out", "whole.safetensors").exit_code == 0
    seen = dpfc("evaluate", "whole.safetensors", "--features", held)
    assert "has seen some of these" in seen.stderr.replace("\n", " ")
    for name in (plain, held):
        (account,) = json.loads(dpfc("budget", "--features", name, "--json").stdout)["spent"]["populations"]
        assert len(account["charges"]) == 2
    refused = dpfc("train", "--epsilon", "2", "--features", held, "--public-features", plain)
    assert "the private records themselves" in refused.stderr.replace("\n", " ")
    other = dpfc(*line, "--hold-out", "0.3", "--out", held)
    assert "with other settings" in other.stderr.replace("\n", " ")


def test_a_trial_of_a_held_out_set_is_a_part_of_it(dpfc: Dpfc, pictures: Path) -> None:
    line = ("extract", "--dataset", "imagefolder:pictures/train", *SCATTER, "--hold-out", "0.4", "--limit", "3")
    assert dpfc(*line).exit_code == 0
    trial = load(Path("features/train-scattering-mean-holdout0.4-limit3"))
    assert {name: split.n for name, split in trial.splits.items()} == {"train": 3, "test": 3}


def test_sets_are_called_after_their_folders(dpfc: Dpfc, pictures: Path) -> None:
    for name, called in (("clinic", "clinic"), ("Röntgen & Co (2024)", "Röntgen-Co-2024")):
        Path(name).mkdir()
        Path(name, "train").symlink_to(pictures.resolve() / "train")
        made = dpfc("extract", "--dataset", f"imagefolder:{name}", *SCATTER, "--limit", "2")
        assert made.exit_code == 0, made.output
        assert Path("features", f"{called}-scattering-mean-limit2").is_dir()
