"""`dpfc extract`: what a user types, and what stands in the folder afterwards."""

import hashlib
import json
import os
import shutil
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpfc_cli import backbones
from dpfc_cli.features.manifest import load
from dpfc_cli.folders import LEDGER
from dpfc_cli.ledger.facts import Set
from dpfc_cli.ledger.file import read
from tests import instead
from tests.cli.conftest import SCATTER, Dpfc, each_is_refused, error_of, labels_of, one_line, refusal
from tests.support import feature_set, shards_of

STATED = ("--classes", "c0,c1,c2")
SMALL = (*SCATTER, *STATED)


def test_mistakes_are_named_and_change_nothing(dpfc: Dpfc, pictures: Path) -> None:
    Path("one/alone").mkdir(parents=True)
    Image.new("RGB", (9, 9)).save("one/alone/1.png")
    mistakes = {
        "digits --precision float8": "unknown-name float8", "digits --on-error skip": "unknown-name on_error",
        "imagefolder:pictures --classes c0,c1,c2": "conflict image_size",
        "imagefolder:pictures --window 4095": "bad-value window", "digits --window 0,255": "conflict window",
        "digits --most-null 0.1": "conflict most_null",
        "imagefolder:pictures --classes c0,c1": "conflict classes", "digit": "unknown-name digit",
        "imagefolder:pictures --classes c0;c1;c2": "missing classes", "digits --out a.partial": "bad-value out",
        "imagefolder:pictures --classes c0,c1,c2 --image-size 8 --hold-out 0.1": "conflict hold_out",
        "imagefolder:pictures --hold-out 0": "bad-value hold_out", "digits --dataset digits": "conflict source",
        "imagefolder:one": "conflict classes", "": "missing source",
    }  # fmt: skip
    each_is_refused(dpfc, mistakes, "extract", "--pool", "mean")


def test_a_trial_on_some_pictures_is_a_set_of_its_own(dpfc: Dpfc, pictures: Path) -> None:
    dpfc("extract", "--dataset", "imagefolder:pictures", *SMALL, "--limit", "5", ends=0)
    trial = load(Path("features/imagefolder-scattering-mean-limit5"))
    assert {name: split.n for name, split in trial.splits.items()} == {"train": 5, "test": 5}
    assert dpfc("extract", "--dataset", "imagefolder:pictures", *SMALL).exit_code == 0
    whole = load(Path("features/imagefolder-scattering-mean"))
    assert whole.splits["train"].n == 30
    assert trial.source["identity"]["spread"] == 5
    assert trial.source["identity"]["listing"] == whole.source["identity"]["listing"]
    assert trial.fingerprint == whole.fingerprint
    # The folders come class by class, and a trial on one of them would mean nothing.
    labels = {name: labels_of(f"imagefolder-scattering-mean{name}") for name in ("", "-limit5")}
    assert labels[""] == [0] * 10 + [1] * 10 + [2] * 10
    assert set(labels["-limit5"]) == {0, 1, 2}


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_keeps_finished_shards_and_leaves_nobody_behind(
    dpfc: Dpfc, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpfc_cli.features import shards

    real, calls = shards.ShardSink.append, 0

    def stopped(self: shards.ShardSink, *rows: np.ndarray) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            os.kill(os.getpid(), signal.SIGINT)
        real(self, *rows)

    line = ("extract", "--dataset", "imagefolder:pictures", *SMALL)
    before = threading.active_count()
    with monkeypatch.context() as patch, shards_of(6):
        patch.setattr(shards.ShardSink, "append", stopped)
        ended = dpfc(*line)
    assert ended.exit_code == 130
    partial = Path("features/imagefolder-scattering-mean.partial")
    kept = len(list(partial.glob("*.h5")))
    assert kept == 2
    assert str(partial) in one_line(ended.stderr)
    assert threading.active_count() == before
    with shards_of(6):
        again = dpfc(*line, ends=0)
    assert "4" in again.stderr.split()


def test_json_says_which_set_was_made_or_found(dpfc: Dpfc, pictures: Path) -> None:
    line = ("extract", "imagefolder:pictures", *SMALL, "--json")
    made, found = (json.loads(dpfc(*line).stdout) for _ in range(2))
    folder = Path("features/imagefolder-scattering-mean")
    manifest = load(folder)
    (rough,) = made["warnings"]
    assert "6" in rough.split(), "records to test on"
    assert made == {
        "path": str(folder),
        "name": folder.name,
        "made": True,
        "sha256": hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest(),
        "fingerprint": manifest.fingerprint,
        "records": {"train": 30, "test": 6},
        "persons": None,
        "classes": ["c0", "c1", "c2"],
        "classes_from": "asserted",
        "labels_per_record": 1,
        "dim": manifest.dim,
        "dtype": "float16",
        "warnings": [rough],
    }
    assert found == made | {"made": False}


def test_pictures_of_another_population_are_refused(dpfc: Dpfc, pictures: Path) -> None:
    """What --population says is whose the set is, and nobody is in two."""
    shutil.copytree(pictures, "others")
    assert dpfc("extract", "imagefolder:pictures", *SMALL, "--population", "a").exit_code == 0
    line = ("extract", "imagefolder:others", *SMALL, "--out", "others", "--population")
    assert error_of(dpfc(*line, "b", "--json", ends=2))["fields"] == {"parameter": "population"}
    assert not list(Path("features").glob("others*"))
    assert dpfc(*line, "a").exit_code == 0
    assert [each.population for each in read(Path("features", LEDGER)).all(Set)] == ["a", "a"]


def test_whoever_makes_or_uses_a_set_beside_another_ledger_is_told_before_the_charge(dpfc: Dpfc, arrays: Path) -> None:
    """What is spent in two ledgers is added by nobody."""

    def told(*line: str) -> bool:
        said = json.loads(dpfc(*line, "--json", ends=0).stdout)["warnings"]
        return any(f"{name}/{LEDGER}" in each for each in said for name in ("other", "features"))

    digits = ("extract", "digits", "--limit", "20", "--pool", "mean")
    train = ("train", "--epsilon", "8", "--dry-run", "--features")
    begun = [line for line in dpfc(*digits, "--out", "other/digits", ends=0).stderr.splitlines() if LEDGER in line]
    assert [line.startswith("Warning") for line in begun] == [False]
    feature_set(arrays, "blobs", classes=3)
    assert told(*digits, "--out", "other/again")
    feature_set(arrays, "other/blobs", classes=3)
    assert told(*train, "other/blobs")
    assert not told(*train, "blobs")
    Path("features/linked").symlink_to(Path("other/blobs").resolve())
    assert told(*train, "linked")


class Squares:
    """A backbone whose features are mean colours."""

    name, batch = "squares", 8

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.shape, self.dim = shape, shape[2]

    def describe(self) -> dict[str, object]:
        return {"name": self.name, "pooling": "mean"}

    def submit(self, pixels: np.ndarray) -> np.ndarray:
        assert pixels.shape[1:] == self.shape
        means: np.ndarray = pixels.mean(axis=(1, 2), dtype=np.float32)
        return means

    __call__ = submit


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What `load` was asked for, with `Squares` in the place of every model; it wants 16 pixels of 24."""
    from dpfc_cli import backbones
    from dpfc_cli.geometry import Geometry

    found: dict[str, object] = {}

    def load(wanted: backbones.Wanted) -> Squares:
        found.update(vars(wanted))
        return Squares(wanted.image_shape)

    monkeypatch.setattr(backbones, "geometry_of", lambda name, preprocess: Geometry(resize=(24, 24), crop=16))
    instead.backbone(monkeypatch, load)
    return found


def test_pictures_of_many_sizes_arrive_as_the_model_wants_them(
    dpfc: Dpfc, pictures: Path, asked: dict[str, object]
) -> None:
    line = ("extract", "imagefolder:pictures", *STATED, "--model", "vit-b16")
    dpfc(*line, "--batch", "5", "--precision", "bfloat16", ends=0)
    assert asked["image_shape"] == (16, 16, 3)
    assert (asked["batch"], asked["precision"], asked["preprocess"], asked["pool"]) == (5, "bfloat16", None, None)
    manifest = load(Path("features/imagefolder-vit-b16"))
    preparation = {"resize": [24, 24], "crop": 16, "filter": "bicubic"}
    assert manifest.source["identity"]["preparation"] == preparation
    assert refusal(dpfc(*line, "--image-size", "32", "--json", ends=2)) == "conflict image_size"


def test_the_precision_of_the_machine_is_one_that_the_model_has(
    dpfc: Dpfc, pictures: Path, asked: dict[str, object]
) -> None:
    dpfc("extract", "imagefolder:pictures", *STATED, "--model", "vit-b16", "--precision", "auto", ends=0)
    chosen = asked["precision"]
    assert chosen in ("float32", "bfloat16")
    assert chosen == backbones.fast_precision("dinov2-b14")
    assert backbones.fast_precision("scattering") == "float32"


def test_the_first_picture_does_not_decide_which_others_are_null_records(dpfc: Dpfc, tmp_path: Path) -> None:
    for i in range(6):
        folder = tmp_path / "pictures" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32) if i == 0 else (16, 16)).save(folder / f"{i}.png")
    line = ("extract", "--dataset", "imagefolder:pictures", "--classes", "a,b")
    refused = dpfc(*line, "--on-error", "null", ends=2)
    assert "--image-size" in refused.stderr
    assert not Path("features").exists()
    assert dpfc(*line).exit_code == 2


def test_the_same_classes_in_another_order_are_another_set_of_the_same_records(dpfc: Dpfc, pictures: Path) -> None:
    line = ("extract", "--dataset", "imagefolder:pictures", *SCATTER)
    dpfc(*line, "--classes", "c0,c1,c2", ends=0)
    dpfc("train", "--epsilon", "8", ends=0)
    for others in ("c0,c1,c2,rare", "c2,c1,c0"):
        dpfc(*line, "--classes", others, ends=6)
    assert dpfc(*line, "--classes", "c2,c1,c0", "--out", "turned").exit_code == 0
    assert labels_of("turned") == [2 - j for j in labels_of("imagefolder-scattering-mean")]
    (spent,) = json.loads(dpfc("budget", "--features", "turned", "--json").stdout)["spent"]["populations"]
    assert spent["epsilon"]["1e-05"] == pytest.approx(8, rel=1e-3)


def test_a_damaged_set_says_what_makes_it_anew(dpfc: Dpfc) -> None:
    line = ("extract", "digits", "--limit", "20", "--pool", "mean")
    folder = Path(json.loads(dpfc(*line, "--json", ends=0).stdout)["path"])
    for name in (load(folder).splits["train"].shards[0].file, "manifest.json"):
        damaged = folder / name
        damaged.write_bytes(damaged.read_bytes()[:-2] + b"xx")
        refused = error_of(dpfc("train", "--epsilon", "8", "--json", ends=5))
        assert refused["code"] == "damaged"
        assert "extract" in refused["remedy"]
        shutil.rmtree(folder)
        dpfc(*line, ends=0)
        assert dpfc("train", "--epsilon", "8", "--dry-run").exit_code == 0


def test_a_held_out_part_is_evaluated_on_and_both_sets_are_added_up(dpfc: Dpfc, pictures: Path) -> None:
    line = ("extract", "--dataset", "imagefolder:pictures/train", *SMALL)
    whole, parted = (dpfc(*line, *more, ends=0).stderr for more in ((), ("--hold-out", "0.4")))
    assert ("--hold-out" in whole, "--hold-out" in parted) == (True, False)
    plain, held = "imagefolder-scattering-mean", "imagefolder-scattering-mean-holdout0.4"
    all_of, parts = (load(Path("features", name)).splits for name in (plain, held))
    assert parts["train"].n + parts["test"].n == all_of["train"].n == 30
    dpfc("train", "--epsilon", "2", "--features", held, ends=0)
    unseen = json.loads(dpfc("evaluate", "--json").stdout)
    assert (unseen["n"], unseen["warnings"]) == (parts["test"].n, [])
    assert dpfc("train", "--epsilon", "2", "--features", plain, "--out", "whole.safetensors").exit_code == 0
    assert json.loads(dpfc("evaluate", "whole.safetensors", "--features", held, "--json").stdout)["warnings"]
    for name in (plain, held):
        (account,) = json.loads(dpfc("budget", "--features", name, "--json").stdout)["spent"]["populations"]
        assert len(account["charges"]) == 2
    dpfc(*line, "--hold-out", "0.3", "--out", held, ends=6)
