"""`dpfc import` of one file, of a folder of parquet, and of what is none of these."""

import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpfc_cli.features.manifest import load
from tests.cli.conftest import Dpfc, each_is_refused, error_of, refusal
from tests.support import blobs


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Embeddings of 400 + 100 texts in the hub's layout, without names of classes."""
    for split, n in (("train", 400), ("test", 100)):
        x, y = blobs(n, 6, 3, seed=2, apart=8.0)
        table = pa.table({"text": ["…"] * n, "embedding": list(x), "label": y})
        (tmp_path / "texts").mkdir(exist_ok=True)
        pq.write_table(table, tmp_path / "texts" / f"{split}-00000-of-00001.parquet", row_group_size=64)
    return Path("texts")


def test_a_missing_file_is_said_to_be_missing_wherever_it_would_lie(dpfc: Dpfc) -> None:
    for path in ("/nope.npy", "nope.npy", "/nope/nope.npz"):
        refused = dpfc("import", path, "--classes", "10", "--json")
        assert error_of(refused)["code"] == "missing", path


def test_all_files_of_options_that_are_missing_are_said_at_once(dpfc: Dpfc) -> None:
    Path("photos").mkdir()
    for line, gone in (
        ("import slides:photos --table a.csv --classes b.txt", ["b.txt", "a.csv"]),
        ("extract imagefolder:d --table a.csv --classes b.txt", ["d", "b.txt", "a.csv"]),
        # What is named and not there comes before what is not named.
        ("extract imagefolder:d --table a.csv", ["d", "a.csv"]),
        ("extract cifar10 --data-dir d", ["d"]),
    ):
        refused = error_of(dpfc("--json", *line.split(), ends=2))
        assert (refused["code"], refused["message"].split("'")[1::2]) == ("missing", gone)


def test_mistakes_are_named(dpfc: Dpfc, texts: Path) -> None:
    mistakes = {
        "nowhere.parquet": "missing path nowhere.parquet", "texts --classes 3 --column vector": "missing column",
        "texts": "conflict classes", "texts --classes 2": "bad-record classes",
        "texts --classes ²": "missing classes", "texts --out ledger.sqlite": "bad-value out",
        "texts --out a/b.partial": "bad-value out",
        "texts --classes 3 --out texts/train-00000-of-00001.parquet/x": "unwritable out",
        "texts --population dataset:digits": "bad-value population",
    }  # fmt: skip
    each_is_refused(dpfc, mistakes, "import")


def test_lists_of_labels_are_imported_by_a_fresh_process(tmp_path: Path) -> None:
    """pyarrow loads parts of itself on demand, so that a process that used them before hides a missing import."""
    schema = pa.schema([("features", pa.list_(pa.float32())), ("labels", pa.list_(pa.int64()))])
    rows = {"features": [[1.0, 2.0]] * 4, "labels": [[0], [1], [0, 1], [1]]}
    pq.write_table(pa.table(rows, schema=schema), tmp_path / "x.parquet")
    command = [sys.executable, "-m", "dpfc_cli", "import", "x.parquet", "--classes", "2", "--labels-per-record", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_comes_next_names_the_set_just_made_or_found(dpfc: Dpfc, arrays: Path) -> None:
    for out, named in (("blobs", "blobs"), ("elsewhere/blobs", "elsewhere/blobs"), ("my blobs", "'my blobs'")):
        for _ in range(2):
            made = dpfc("import", str(arrays), "--classes", "3", "--out", out)
            assert made.stderr.replace("\n", " ").rstrip().endswith(f"Next: dpfc train --epsilon 1 --features {named}")
            assert "protects" in made.stderr


def test_classes_are_typed_as_a_number_as_names_or_as_a_file_of_names(dpfc: Dpfc, arrays: Path) -> None:
    for name in ("names.txt", "a,b"):
        Path(name).write_text("flu\ncold\nrare\n", encoding="utf-8")
    of_file = ["flu", "cold", "rare"]
    for typed, names in (("3", ["0", "1", "2"]), ("a, b,c", ["a", "b", "c"]), ("names.txt", of_file), ("a,b", of_file)):
        made = dpfc("import", str(arrays), "--classes", typed, "--out", typed.replace(",", ""), "--json")
        assert json.loads(made.stdout)["classes"] == names
    # Together they are longer than the name of a file may be.
    many = ",".join(f"{'hypertrophic-cardiomyopathy-' * 10}{i}" for i in range(70))
    shown = dpfc("import", str(arrays), "--classes", many, "--out", "many", "--json")
    assert len(json.loads(shown.stdout)["classes"]) == 70
    assert dpfc("import", str(arrays), "--classes", "a" * 5000).exit_code == 2


def test_without_a_test_split_it_says_what_to_do(dpfc: Dpfc, arrays: Path) -> None:
    assert "test_x" not in dpfc("import", str(arrays), "--classes", "3", "--out", "both").stderr
    for name in "xy":
        (arrays / f"test_{name}.npy").unlink()
    assert "test_x" in dpfc("import", str(arrays), "--out", "one", "--classes", "3", ends=0).stderr
    assert dpfc("train", "--epsilon", "8", "--features", "one").exit_code == 0
    assert "--hold-out" in dpfc("evaluate").stderr.replace("\n", " ")


def test_slides_without_a_test_split_are_told_how_their_table_makes_one(dpfc: Dpfc, tmp_path: Path) -> None:
    (tmp_path / "slides").mkdir()
    for i in range(4):
        with h5py.File(tmp_path / "slides" / f"s{i}.h5", "w") as file:
            file["features"] = np.full((2, 3), i, np.float32)
    rows = [f"s{i},{'ab'[i % 2]}" for i in range(4)]
    Path("slides.csv").write_text("\n".join(["slide,label", *rows]))
    line = ("import", "slides:slides", "--table", "slides.csv", "--classes", "a,b")
    assert "'split'" in dpfc(*line).stderr
    parts = [f"{row},{part}" for row, part in zip(rows, ("train", "train", "test", "test"), strict=True)]
    Path("slides.csv").write_text("\n".join(["slide,label,split", *parts]))
    assert "'split'" not in dpfc(*line, "--out", "both").stderr
    unknown = dpfc(*line, "--pool-by", "person", "--out", "other", "--json", ends=2)
    assert refusal(unknown) == "unknown-name pool_by person"


# What it asks of a newcomer

IMPORT = ("import", "scans.npz", "--classes", "2")


@pytest.fixture
def scans(dpfc: Dpfc) -> None:
    """60 records of 20 patients."""
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    np.savez("scans.npz", train_x=x, train_y=np.arange(60) % 2, train_patient_id=np.arange(60) % 20)


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
