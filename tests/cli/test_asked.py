"""What `extract` and `import` ask of a newcomer, so that no name and no person's pictures go out without a decision."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.conftest import SCATTER, Dpfc, there

CANARY = "MUELLER_P0003"
PATIENTS = ("MUELLER, P0000", "OKAFOR, P0001", "SILVA, P0002")


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
    sets = (
        ("imagefolder-scattering-mean-holdout0.3", extract),
        ("imported", ("import", f"{CANARY}.arrays", "--classes", "3")),
    )
    for made, line in there(sets, lambda each: each[1][0]):
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
    for line in there((("import", "named.npz"), ("extract", "imagefolder:folders")), lambda line: line[0]):
        refused = json.loads(dpfc(*line, "--json", ends=2).stderr)["error"]
        assert not any(name in str(refused) for name in PATIENTS)
    assert not [path for path in Path().rglob("*") if path.is_file() and path.suffix != ".npz"]
