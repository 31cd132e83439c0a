"""`dpfc extract --group-by`: from a folder for each patient to a set that knows persons, and what is done with it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpfc_cli.evaluation.evaluate import evaluate
from dpfc_cli.features.manifest import load
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head
from tests.cli.conftest import SCATTER, Dpfc, one_line
from tests.extraction.test_extraction import Means
from tests.support import stored

PATIENTS, CLASSES = 14, ("flu", "cold")
LINE = ("extract", "imagefolder:clinic", *SCATTER, "--classes", "flu,cold")
PERSONS = (*LINE, "--group-by", "folder:1")
RECORDS = (*LINE, "--each-record-is-a-person")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backbone is one that takes no time."""
    monkeypatch.setattr("dpfc_cli.extraction.extract.backbones.load", lambda *_, **__: Means())


@pytest.fixture
def clinic(tmp_path: Path) -> Path:
    """One to four pictures of each of 14 patients, in class/patient/picture. Both classes have some of each third."""
    rng = np.random.default_rng(0)
    for i in range(PATIENTS):
        for j in range(1 + i % 4):
            folder = tmp_path / "clinic" / CLASSES[(i + (i % 3 == 0) * j) % 2] / f"patient {i}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (9, 9, 3), np.uint8)).save(folder / f"{j}.png")
    return Path("clinic")


def test_persons_are_counted_and_named_nowhere(dpfc: Dpfc, clinic: Path) -> None:
    made = dpfc(*PERSONS, "--json", ends=0)
    said = json.loads(made.stdout)
    assert (said["records"], said["persons"]) == ({"train": 33}, {"train": PATIENTS})
    folder = Path(said["path"])
    assert folder.name == "clinic-persons-scattering-mean"
    assert load(folder).grouped_by == {"by": "folder", "level": 1}
    assert all(b"patient" not in data for data in stored(folder).values())
    assert "train 33 of 14 persons in 1 shard" in one_line(dpfc(*PERSONS).stdout)
    assert "33 of 14 persons" in one_line(dpfc("list").stdout)
    assert json.loads(dpfc("list", "--json").stdout)["sets"][0]["persons"] == {"train": PATIENTS}


def test_the_pictures_are_the_same_with_persons_and_without(dpfc: Dpfc, clinic: Path) -> None:
    for line in (RECORDS, PERSONS):
        assert dpfc(*line).exit_code == 0
    plain, persons = (FeatureSet(f"features/clinic-{name}scattering-mean") for name in ("", "persons-"))
    rows = []
    for found in (plain, persons):
        x, y = found.arrays("train")
        rows.append(sorted(zip(x.tolist(), y.ravel().tolist(), strict=True)))
    assert rows[0] == rows[1]
    # Both have the same listing, and heads fit both.
    assert plain.manifest.source["identity"]["listing"] == persons.manifest.source["identity"]["listing"]
    assert plain.manifest.fingerprint == persons.manifest.fingerprint
    assert plain.manifest.to_json().count(b"group") == 0


def test_patients_are_held_out_as_a_whole_and_any_head_is_evaluated_on_them(dpfc: Dpfc, clinic: Path) -> None:
    assert dpfc(*PERSONS, "--hold-out", "0.4", "--out", "held").exit_code == 0
    held = load(Path("features/held")).splits
    assert (held["train"].groups or 0) + (held["test"].groups or 0) == PATIENTS
    assert held["train"].n + held["test"].n == 33
    # The head was trained on a set of the same backbone that knows no persons.
    card = {
        "classes": list(CLASSES),
        "facts": {"n": 12},
        "features": {
            "name": "apart",
            "split": "train",
            "hold_out": None,
            "fingerprint": load(Path("features/held")).fingerprint,
        },
    }
    head = Head(chain=(), weight=np.eye(3)[:, :2], bias=np.zeros(2), card=card)
    found = evaluate(head, FeatureSet("features/held"))
    assert (found.split, found.n) == ("test", held["test"].n)
    assert "has seen some of these" in found.warnings[0]
    # Not if it was trained on this very set: one of that name, without persons, held out other pictures.
    for n, seen in ((held["train"].n, False), (held["train"].n + 1, True)):
        head.card["features"] |= {"name": "held", "hold_out": 0.4}  # type: ignore[index]
        head.card["facts"] = {"n": PATIENTS, "records": n}  # type: ignore[index]
        assert bool(evaluate(head, FeatureSet("features/held")).warnings) == seen


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--group-by", "folder:0"], "--group-by 'folder:0' does not say how persons are found."),
        (["--group-by", "folder:2"], "33 records of 'clinic' have no person. The first is '…'"),
        (["--group-by", "column:mrn"], "There is no metadata.csv or metadata.jsonl in 'clinic'"),
        (["--group-by", "folder:1", "--hold-out", "0.0001"], "leaves one of the two splits empty"),
    ],
)
def test_what_cannot_be_grouped_is_refused_and_leaves_nothing(
    dpfc: Dpfc, clinic: Path, more: list[str], says: str
) -> None:
    refused = dpfc(*LINE, *more, ends=2)
    assert says in one_line(refused.stderr)
    assert not list(Path().glob("features/*/"))


def test_a_person_in_two_splits_of_the_source_is_refused(dpfc: Dpfc, clinic: Path) -> None:
    """What is spent on one split is not in the account of the other one."""
    clinic.rename("all")
    for split in ("train", "test"):
        shutil.copytree("all", clinic / split)
    refused = dpfc(*PERSONS, ends=2)
    assert f"{PATIENTS} persons of 'imagefolder' have records in two splits" in one_line(refused.stderr)
    for folder in sorted(clinic.glob("test/*/patient *")):
        folder.rename(folder.with_name(folder.name.replace("patient", "other")))
    assert dpfc(*PERSONS).exit_code == 0
