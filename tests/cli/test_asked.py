"""What `extract` and `import` ask of a newcomer, so that no name and no person's pictures go out without a decision."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpfc_cli.features.manifest import load
from tests.cli.conftest import SCATTER, Dpfc, there

CANARY = "MUELLER_P0003"
PATIENTS = ("MUELLER, P0000", "OKAFOR, P0001", "SILVA, P0002")
IMPORT = ("import", "scans.npz", "--classes", "2")


@pytest.fixture
def scans(dpfc: Dpfc) -> None:
    """60 records of 20 patients."""
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    np.savez("scans.npz", train_x=x, train_y=np.arange(60) % 2, train_patient_id=np.arange(60) % 20)


@pytest.fixture
def named(dpfc: Dpfc) -> None:
    """30 records, with patients' names in the place of classes."""
    x = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    np.savez("named.npz", train_x=x, train_y=np.array(PATIENTS)[np.arange(30) % 3])


def test_a_path_that_is_called_after_a_patient_is_in_nothing_that_is_handed_over(dpfc: Dpfc, arrays: Path) -> None:
    rng = np.random.default_rng(0)
    for i in range(12):
        path = Path(CANARY, "ab"[i % 2], f"{CANARY} {i}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(path)
    arrays.rename(f"{CANARY}.arrays")
    extract = ("extract", f"imagefolder:{CANARY}", *SCATTER, "--classes", "a,b", "--hold-out", "0.3")
    for made, line in (
        ("imagefolder-scattering-mean-holdout0.3", extract),
        ("imported", ("import", f"{CANARY}.arrays", "--classes", "3")),
    ):
        assert CANARY not in dpfc(*line, ends=0).stdout
        lines = (
            ("train", "--epsilon", "1", "--method", "dp-ls", "--features", made),
            *(("statement", *more) for more in ((), ("--json",))),
            *(("report", "--out", f"{made}{ending}") for ending in (".html", ".md")),
            ("evaluate", "--json"),
            ("export", "--to", "onnx", "--out", f"{made}.onnx"),
            ("site-invite", "--features", made, "--name", "a", "--epsilon", "1", "--out", f"{made}.json"),
        )
        for handed in there(lines, lambda line: line[0]):
            assert CANARY not in dpfc(*handed, ends=0).output, handed
        for path in (*Path("heads").iterdir(), *Path().glob(f"{made}*")):
            assert CANARY not in str(path) + path.read_bytes().decode("latin-1"), path


def test_classes_that_nobody_states_are_refused_and_no_file_and_no_message_names_them(dpfc: Dpfc, named: None) -> None:
    """A class may be a folder of one patient, or a label that one has."""
    Path("folders", PATIENTS[0]).mkdir(parents=True)
    Path("folders", PATIENTS[1]).mkdir()
    for line in (("import", "named.npz"), ("extract", "imagefolder:folders")):
        refused = json.loads(dpfc(*line, "--json", ends=2).stderr)["error"]
        assert not any(name in str(refused) for name in PATIENTS)
    assert not [path for path in Path().rglob("*") if path.is_file() and path.suffix != ".npz"]
    Path("classes.txt").write_text("\n".join(PATIENTS))
    dpfc("import", "named.npz", "--classes", "classes.txt", ends=0)


def test_without_a_terminal_both_lines_to_type_are_named_and_work(dpfc: Dpfc, scans: None) -> None:
    refused = dpfc(*IMPORT, ends=2).stderr
    assert all(word in refused for word in ("--group-column", "patient_id", "--each-record-is-a-person"))
    assert not Path("features").exists() or not list(Path("features").iterdir())
    assert dpfc(*IMPORT, "--group-column", "patient_id", "--out", "persons").exit_code == 0
    assert load(Path("features/persons")).splits["train"].groups == 20
    assert dpfc(*IMPORT, "--each-record-is-a-person", "--out", "records").exit_code == 0
    assert not load(Path("features/records")).grouped


def test_on_a_terminal_it_asks_and_stops_unless_the_answer_is_yes(dpfc: Dpfc, scans: None) -> None:
    for answer, code in (("\n", 2), ("", 130), ("y\n", 0)):
        assert "[y/N]" in dpfc(*IMPORT, answer=answer, ends=code).stderr
        assert Path("features/imported").exists() == (code == 0)
