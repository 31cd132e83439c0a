"""`dpfc import` of one file, of a folder of parquet, and of what is none of these."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from dpfc_cli.features.manifest import load
from tests.cli.conftest import Dpfc
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


def test_text_embeddings_are_imported_trained_on_and_evaluated(dpfc: Dpfc, texts: Path) -> None:
    made = dpfc("import", "texts", "--classes", "3")
    assert made.exit_code == 0, made.output
    assert "train 400" in made.stdout
    assert "asserted by you" in made.stdout
    assert dpfc("train", "--epsilon", "8").exit_code == 0
    assert "texts" in dpfc("evaluate").output


def test_a_pattern_takes_its_name_from_the_folder(dpfc: Dpfc, texts: Path) -> None:
    made = dpfc("import", "texts/{train,test}-*.parquet", "--classes", "3")
    assert made.exit_code == 0, made.output
    assert load(Path("features/texts")).splits["test"].n == 100


def test_one_file_of_tensors(dpfc: Dpfc, tmp_path: Path) -> None:
    x, y = blobs(50, 6, 3)
    save_file({"embeddings": x, "labels": y}, tmp_path / "mine.safetensors")
    assert "It holds embeddings, labels" in dpfc("import", "mine.safetensors").stderr.replace("\n", " ")
    made = dpfc("import", "mine.safetensors", "--column", "embeddings", "--classes", "3")
    assert made.exit_code == 0, made.output
    assert load(Path("features/mine")).dim == 6


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.parquet"], "There is no file 'nowhere.parquet'"),
        (["nowhere.h5"], "There is no 'nowhere.h5'"),
        (["texts", "--column", "vector"], "no column 'vector'"),
        (["texts", "--label-column", "text"], "one class only"),
        (["texts", "--classes", "2"], "out of range"),
        (["texts", "--classes", "nofile.txt"], "There is no file 'nofile.txt'"),
        *((["texts", "--out", name], "uses itself") for name in ("ledger.sqlite", "ledger.digests", "a/b.partial")),
        (["texts", "--population", "dataset:digits"], "--population must be a name"),
    ],
)
def test_mistakes_are_named(dpfc: Dpfc, texts: Path, arrays: Path, arguments: list[str], says: str) -> None:
    ended = dpfc("import", *arguments)
    assert ended.exit_code == 2, ended.output
    assert says in ended.stderr.replace("\n", " ")
    assert not list(Path().glob("features/*"))


def test_integer_features_are_no_embeddings(dpfc: Dpfc, tmp_path: Path) -> None:
    save_file({"features": np.zeros((3, 2), int), "labels": np.zeros(3, int)}, tmp_path / "a.safetensors")
    assert "dtype int64" in dpfc("import", "a.safetensors").stderr


def test_lists_of_labels_are_imported_by_a_fresh_process(tmp_path: Path) -> None:
    """pyarrow loads parts of itself on demand, so that a process that used them before hides a missing import."""
    schema = pa.schema([("features", pa.list_(pa.float32())), ("labels", pa.list_(pa.int64()))])
    rows = {"features": [[1.0, 2.0]] * 4, "labels": [[0], [1], [0, 1], [1]]}
    pq.write_table(pa.table(rows, schema=schema), tmp_path / "x.parquet")
    command = [sys.executable, "-m", "dpfc_cli", "import", "x.parquet", "--classes", "2", "--labels-per-record", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("out", "named"), [("blobs", "blobs"), ("elsewhere/blobs", "elsewhere/blobs"), ("my blobs", "'my blobs'")]
)
def test_what_comes_next_names_the_set_just_made_or_found(dpfc: Dpfc, arrays: Path, out: str, named: str) -> None:
    for _ in range(2):
        made = dpfc("import", str(arrays), "--classes", "3", "--out", out)
        assert made.stderr.replace("\n", " ").rstrip().endswith(f"Next: dpfc train --epsilon 1 --features {named}")
        # A newer one, which train would take by itself.
        assert dpfc("import", str(arrays), "--classes", "3", "--out", "newer").exit_code == 0


def test_classes_are_typed_as_a_number_as_names_or_as_a_file_of_names(dpfc: Dpfc, arrays: Path) -> None:
    Path("names.txt").write_text("flu\ncold\nrare\n", encoding="utf-8")
    for typed, names in (("3", ["0", "1", "2"]), ("a, b,c", ["a", "b", "c"]), ("names.txt", ["flu", "cold", "rare"])):
        made = dpfc("import", str(arrays), "--classes", typed, "--json")
        assert json.loads(made.stdout)["classes"] == names


def test_json_says_which_set_was_made_or_found(dpfc: Dpfc, arrays: Path) -> None:
    line = ("import", str(arrays), "--classes", "a,b,c", "--json")
    made, found = (json.loads(dpfc(*line).stdout) for _ in range(2))
    folder = Path("features/arrays")
    assert made["sha256"] == hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    assert (made["path"], made["name"], made["made"], made["complete"]) == (str(folder), "arrays", True, True)
    assert (made["records"], made["classes"], made["dim"]) == ({"train": 600, "test": 150}, ["a", "b", "c"], 8)
    assert found == made | {"made": False}


@pytest.mark.parametrize(
    ("at", "says"),
    [
        (1, "No shard was finished, so nothing was kept. Run the same command to begin again."),
        (2, "1 finished shard kept in 'features/arrays.partial'. Run the same command to go on."),
    ],
)
def test_ctrl_c_says_what_was_kept(
    dpfc: Dpfc, arrays: Path, monkeypatch: pytest.MonkeyPatch, at: int, says: str
) -> None:
    from dpfc_cli.features import shards

    real, calls = shards.ShardSink.append, 0

    def stopped(self: shards.ShardSink, *rows: np.ndarray, **named: np.ndarray) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise KeyboardInterrupt
        real(self, *rows, **named)

    with monkeypatch.context() as patch:
        patch.setattr(shards.ShardSink, "append", stopped)
        ended = dpfc("import", str(arrays), "--classes", "3")
    assert ended.exit_code == 130
    assert says in " ".join(ended.stderr.split())
    assert dpfc("import", str(arrays), "--classes", "3").exit_code == 0


def test_without_a_test_split_it_says_what_to_do(dpfc: Dpfc, arrays: Path) -> None:
    assert "no test split" not in dpfc("import", str(arrays), "--out", "both").stderr
    for name in "xy":
        (arrays / f"test_{name}.npy").unlink()
    made = dpfc("import", str(arrays), "--out", "one", "--classes", "3")
    assert made.exit_code == 0
    assert "Import test_x and test_y" in made.stderr.replace("\n", " ")
    assert dpfc("train", "--epsilon", "8").exit_code == 0
    assert "--hold-out" in dpfc("evaluate").stderr.replace("\n", " ")


def test_the_same_features_from_another_file_raise_no_alarm(dpfc: Dpfc, arrays: Path) -> None:
    for name in ("pub", "own"):
        np.savez(f"{name}.npz", **{p.stem: np.load(p) for p in arrays.iterdir()})
        assert dpfc("import", f"{name}.npz", "--classes", "3").exit_code == 0
    assert dpfc("train", "--epsilon", "8", "--features", "pub").exit_code == 0
    assert "in another way" not in dpfc("evaluate", "--features", "own").stderr
    assert dpfc("import", "own.npz", "--classes", "3", "--dtype", "float16", "--out", "half").exit_code == 0
    assert "in another way" in dpfc("evaluate", "--features", "half").stderr


def test_slides_without_a_test_split_are_told_how_their_table_makes_one(dpfc: Dpfc, tmp_path: Path) -> None:
    (tmp_path / "slides").mkdir()
    for i in range(4):
        with h5py.File(tmp_path / "slides" / f"s{i}.h5", "w") as file:
            file["features"] = np.full((2, 3), i, np.float32)
    rows = [f"s{i},{'ab'[i % 2]}" for i in range(4)]
    Path("slides.csv").write_text("\n".join(["slide,label", *rows]))
    line = ("import", "slides:slides", "--table", "slides.csv", "--classes", "a,b")
    said = dpfc(*line).stderr
    assert "no test split for dpfc evaluate. Say in a column 'split' of the table" in said
    parts = [f"{row},{part}" for row, part in zip(rows, ("train", "train", "test", "test"), strict=True)]
    Path("slides.csv").write_text("\n".join(["slide,label,split", *parts]))
    assert "no test split" not in dpfc(*line, "--out", "both").stderr
    unknown = dpfc(*line, "--pool-by", "person", "--out", "other")
    assert (unknown.exit_code, "Unknown --pool-by 'person'." in unknown.stderr) == (2, True)
