"""`dpfc extract --group-by`: from a folder for each patient to a set that knows persons, and what is done with it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpfc_cli.features.manifest import load
from tests import instead
from tests.cli.conftest import SCATTER, Dpfc, one_line, refusal
from tests.extraction.test_extract import Means
from tests.support import stored

PATIENTS, CLASSES = 14, ("flu", "cold")
LINE = ("extract", "imagefolder:clinic", *SCATTER, "--classes", "flu,cold")
PERSONS = (*LINE, "--group-by", "folder:1")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backbone is one that takes no time."""
    instead.backbone(monkeypatch, lambda *_, **__: Means())


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
    assert folder.name == "imagefolder-persons-scattering-mean"
    assert load(folder).grouped_by == {"by": "folder", "level": 1}
    assert all(b"patient" not in data for data in stored(folder).values())
    assert json.loads(dpfc("list", "--json").stdout)["sets"][0]["persons"] == {"train": PATIENTS}


def test_patients_are_held_out_as_a_whole(dpfc: Dpfc, clinic: Path) -> None:
    made = dpfc(*PERSONS, "--hold-out", "0.4", "--out", "held", ends=0)
    held = load(Path("features/held")).splits
    assert f"person of {held['train'].groups}" in one_line(made.stderr)
    assert (held["train"].groups or 0) + (held["test"].groups or 0) == PATIENTS
    assert held["train"].n + held["test"].n == 33


def test_a_person_in_two_splits_of_the_source_is_refused(dpfc: Dpfc, clinic: Path) -> None:
    """What is spent on one split is not in the account of the other one."""
    clinic.rename("all")
    for split in ("train", "test"):
        shutil.copytree("all", clinic / split)
    refused = dpfc(*PERSONS, "--json", ends=2)
    (named,) = Path("features").glob("*.refused.txt")
    assert (refusal(refused), "patient " in refused.output) == (f"bad-record {named}", False)
    assert {f"patient {i}" for i in range(PATIENTS)} <= set(named.read_text().splitlines())
    for folder in sorted(clinic.glob("test/*/patient *")):
        folder.rename(folder.with_name(folder.name.replace("patient", "other")))
    assert dpfc(*PERSONS).exit_code == 0
