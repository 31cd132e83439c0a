"""`dpfc extract`: what a user types, and what stands in the folder afterwards."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpfc_cli.features.manifest import load
from tests.cli.conftest import SCATTER, Dpfc, labels_of
from tests.support import stored


def one_line(text: str) -> str:
    return " ".join(text.split())


def snapshot() -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(Path().rglob("*")) if p.is_file()}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--dataset", "imagefolder:pictures", "--task", "3/2"], "--task '3/2' is not i/N"),
        (["--dataset", "imagefolder:pictures", "--task", "0/2"], "is not i/N"),
        (["--dataset", "imagefolder:pictures", "--task", "1"], "is not i/N"),
        (["--dataset", "digits", "--task", "½/2"], "is not i/N"),
        (["--dataset", "digits", "--precision", "float8"], "Unknown precision 'float8'"),
        (["--dataset", "digits", "--preprocess", "papers"], "Did you mean 'paper'?"),
        (["--dataset", "digits", "--on-error", "skip"], "Known: refuse, null"),
        (["--dataset", "digits", "--image-size", "32"], "one size already"),
        (["--dataset", "imagefolder:pictures", "--window", "4095"], "--window '4095' is not LOW,HIGH"),
        (["--dataset", "imagefolder:pictures", "--window", "9,1"], "--window 9,1 is not LOW,HIGH with LOW below HIGH"),
        (["--dataset", "digits", "--window", "0,255"], "Leave out --window."),
        (["--dataset", "digits", "--exif"], "Leave out --exif."),
        (["--dataset", "imagefolder:pictures", "--label-column", "x"], "There is no metadata.csv or metadata.jsonl"),
        (["--dataset", "digits", "--most-null", "0.1"], "Leave it out, or add --on-error null."),
        (["--dataset", "digits", "--classes", "10"], "names its classes itself"),
        (["--dataset", "imagefolder:pictures", "--classes", "c0,c1"], "'c2' is not among the 2 classes"),
        (["--dataset", "imagenet"], "--data-dir"),
        (["--dataset", "imagenet", "--data-dir", "pictures/test"], "holds neither"),
        (["--dataset", "imagnet"], "Did you mean 'imagenet'?"),
        (["--dataset", "imagefolders:pictures"], "Did you mean 'imagefolder:PATH'?"),
        (["--dataset", "parquet:pictures"], "No .parquet files"),
        (["--dataset", "webdataset:nowhere-{0..3}.tar"], "There is no file 'nowhere-0.tar'"),
        (["--dataset", "imagefolder:pictures"], "--image-size"),
        (
            ["--dataset", "imagefolder:pictures", "--image-size", "8", "--hold-out", "0.1"],
            "has a test split already, of 6 images",
        ),
        (["--dataset", "imagefolder:pictures", "--hold-out", "0"], "--hold-out must be a number above 0 and"),
        (["--dataset", "imagefolder:pictures/train", "--hold-out", "0.9"], "--hold-out must be a number above 0 and"),
        (["--dataset", "imagefolder:pictures", "--classes", "nofile.txt"], "There is no file 'nofile.txt'"),
        (["--dataset", "digits", "--out", "a.partial"], "a name that dpfc uses itself"),
        ([], "No pictures are named."),
        (["digits", "--dataset", "digits"], "The pictures are named twice, as 'digits' and as --dataset 'digits'"),
        (
            ["--dataset", "imagefolder:one"],
            "one class only, 'alone': nothing to tell apart. This message says",
        ),
    ],
)
def test_mistakes_are_named_and_change_nothing(dpfc: Dpfc, pictures: Path, arguments: list[str], says: str) -> None:
    Path("one/alone").mkdir(parents=True)
    Image.new("RGB", (9, 9)).save("one/alone/1.png")
    before = snapshot()
    ended = dpfc("extract", "--pool", "mean", *arguments)
    assert ended.exit_code == 2, ended.output
    assert says in ended.stderr.replace("\n", " ")
    assert snapshot() == before
    assert not list(Path().glob("features/*"))


def test_a_trial_on_some_pictures_is_a_set_of_its_own(dpfc: Dpfc, pictures: Path) -> None:
    made = dpfc("extract", "--dataset", "imagefolder:pictures", *SCATTER, "--limit", "5")
    assert made.exit_code == 0, made.output
    trial = load(Path("features/pictures-scattering-mean-limit5"))
    assert {name: split.n for name, split in trial.splits.items()} == {"train": 5, "test": 5}
    assert dpfc("extract", "--dataset", "imagefolder:pictures", *SCATTER).exit_code == 0
    whole = load(Path("features/pictures-scattering-mean"))
    assert whole.splits["train"].n == 30
    assert trial.source["identity"]["spread"] == 5
    assert trial.source["identity"]["listing"] == whole.source["identity"]["listing"]
    assert trial.fingerprint == whole.fingerprint
    # The folders come class by class, and a trial on one of them would mean nothing.
    labels = {name: labels_of(f"pictures-scattering-mean{name}") for name in ("", "-limit5")}
    assert labels[""] == [0] * 10 + [1] * 10 + [2] * 10
    assert set(labels["-limit5"]) == {0, 1, 2}


def test_a_trial_begun_as_a_part_and_ended_by_itself_gives_the_same_files(dpfc: Dpfc, pictures: Path) -> None:
    line = ("extract", "--dataset", "imagefolder:pictures", *SCATTER, "--limit", "20", "--shards", "4")
    assert dpfc(*line, "--out", "alone").exit_code == 0
    assert dpfc(*line, "--out", "shared", "--task", "3/3").exit_code == 0
    assert "other settings" in dpfc(*line[:-3], "19", "--shards", "4", "--out", "shared").stderr.replace("\n", " ")
    assert dpfc(*line, "--out", "shared").exit_code == 0
    assert stored(Path("features/alone")) == stored(Path("features/shared"))


def test_the_same_command_on_the_same_pictures_gives_the_same_set(dpfc: Dpfc, pictures: Path) -> None:
    for out in ("a", "b"):
        made = dpfc("extract", "--dataset", "imagefolder:pictures", *SCATTER, "--out", out, "--shards", "2")
        assert made.exit_code == 0, made.output
    a, b = (stored(Path("features", out)) for out in "ab")
    assert a == b
    versions = json.loads(a["manifest.json"])["versions"]
    assert set(versions) == {"dpfc", "jax", "numpy", "pillow", "h5py"}


def test_parts_make_what_one_process_makes(dpfc: Dpfc, pictures: Path) -> None:
    line = ("extract", "--dataset", "imagefolder:pictures", *SCATTER, "--shards", "4")
    first = dpfc(*line, "--out", "shared", "--task", "1/2")
    assert first.exit_code == 0
    assert "The other parts are not" in first.stderr
    assert not Path("features/shared").exists()
    second = dpfc(*line, "--out", "shared", "--task", "2/2")
    assert "train 30 in 4 shards" in second.stdout
    assert "complete already" in dpfc(*line, "--out", "shared", "--task", "1/2").stderr
    assert dpfc(*line, "--out", "alone").exit_code == 0
    shared, alone = (stored(Path("features", out)) for out in ("shared", "alone"))
    assert shared == alone


def test_a_broken_picture_is_refused_or_a_null_record_and_neither_is_counted(dpfc: Dpfc, pictures: Path) -> None:
    Path("pictures/train/c1/004.png").write_bytes(b"no picture")
    line = ("extract", "--dataset", "imagefolder:pictures", *SCATTER, "--classes", "c0,c1,c2")
    refused = dpfc(*line)
    assert refused.exit_code == 2
    assert "004.png" in refused.stderr
    assert "do not publish" in refused.stderr.replace("\n", " ")
    assert "--on-error null" in refused.stderr.replace("\n", " ")
    kept = dpfc(*line, "--on-error", "null")
    assert kept.exit_code == 0, kept.output
    assert "train 30" in kept.stdout
    assert "null" not in kept.output
    assert dpfc("train", "--epsilon", "8").exit_code == 0
    assert dpfc("evaluate").exit_code == 0


def test_runs_that_refuse_and_that_keep_null_records_go_on_with_one_another(dpfc: Dpfc, pictures: Path) -> None:
    line = ("extract", "--dataset", "imagefolder:pictures", *SCATTER, "--shards", "5")
    tolerant = (*line, "--on-error", "null")
    Path("pictures/train/c2/029.png").write_bytes(b"no picture")
    assert dpfc(*line).exit_code == 2
    partial = Path("features/pictures-scattering-mean.partial")
    done = {path.name: path.stat().st_mtime_ns for path in partial.glob("*.h5")}
    assert done
    # The shard with the null record is made by a run that keeps it. One that refuses it does not complete the set.
    for task in range(1, 10):
        assert dpfc(*tolerant, "--task", f"{task}/10").exit_code == 0
    made = Path("features/pictures-scattering-mean")
    assert not made.exists()
    refused = dpfc(*line)
    assert refused.exit_code == 2
    assert "c2/029.png" in refused.stderr.replace("\n", " ")
    assert dpfc(*tolerant).exit_code == 0
    assert {name: (made / name).stat().st_mtime_ns for name in done} == done
    assert dpfc(*tolerant, "--out", "anew").exit_code == 0
    assert stored(made) == stored(Path("features/anew"))
    assert "complete already" in dpfc(*line, "--out", "anew").stderr


def test_large_pictures_are_pooled_unless_asked_otherwise_and_small_ones_not(dpfc: Dpfc, pictures: Path) -> None:
    line = ("extract", "--dataset", "imagefolder:pictures", "--limit", "2", "--image-size")
    dims = {}
    for asked in (["32"], ["36"], ["36", "--pool", "none"]):
        made = dpfc(*line, *asked)
        assert made.exit_code == 0, made.output
        assert ("dimensions make a Gram matrix of" in made.stderr) == (asked != ["36"])
        (folder,) = (p for p in Path("features").glob("pictures-*") if p.name not in dims)
        dims[folder.name] = load(folder).dim
        folder.rename(Path("features", "-".join([folder.name, *asked])))
        dims["-".join([folder.name, *asked])] = dims.pop(folder.name)
    assert dims == {
        "pictures-scattering-limit2-32": 81 * 3 * 8 * 8,
        "pictures-scattering-limit2-36": 81 * 3,
        "pictures-scattering-none-limit2-36---pool-none": 81 * 3 * 9 * 9,
    }


def test_advice_can_be_followed_when_nothing_was_made_yet(dpfc: Dpfc, pictures: Path) -> None:
    """A refusal leaves nothing behind, nor does what a kill leaves without a finished shard stand in the way."""
    first = Path("pictures/train/c0/000.png")
    first.write_bytes(first.read_bytes()[:60])
    line = ("extract", "--dataset", "imagefolder:pictures", "--pool", "mean", "--image-size")
    assert dpfc(*line, "8").exit_code == 2
    assert not list(Path("features").iterdir())
    made = dpfc(*line, "16", "--on-error", "null")
    assert made.exit_code == 0, made.output


def test_a_set_that_cannot_be_read_is_not_said_to_be_missing(dpfc: Dpfc) -> None:
    Path("features/looped").mkdir(parents=True)
    Path("features/looped/manifest.json").symlink_to("manifest.json")
    ended = dpfc("train", "--epsilon", "1", "--features", "looped")
    assert ended.exit_code == 2
    assert "manifest.json' cannot be read: Too many levels" in ended.stderr.replace("\n", " ")


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

    line = ("extract", "--dataset", "imagefolder:pictures", *SCATTER, "--shards", "5")
    before = threading.active_count()
    with monkeypatch.context() as patch:
        patch.setattr(shards.ShardSink, "append", stopped)
        ended = dpfc(*line)
    assert ended.exit_code == 130
    partial = Path("features/pictures-scattering-mean.partial")
    kept = len(list(partial.glob("*.h5")))
    assert kept == 2
    assert f"{kept} finished shards kept in '{partial}'. Run the same command to go on." in one_line(ended.stderr)
    assert threading.active_count() == before
    again = dpfc(*line)
    assert again.exit_code == 0
    assert "8 shards still to be made" in again.stderr


def test_ctrl_c_says_when_nothing_was_kept(dpfc: Dpfc, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpfc_cli import images
    from dpfc_cli.features import shards

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    line = ("extract", "imagefolder:pictures", *SCATTER)
    for owner, name, says in (
        (shards.ShardSink, "append", "No shard was finished, so nothing was kept."),
        (images, "open_images", "This run made nothing. What earlier runs finished is kept."),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, stopped)
            ended = dpfc(*line)
        assert ended.exit_code == 130
        assert says in one_line(ended.stderr)
        assert not list(Path().glob("features/*"))


def test_the_source_is_typed_as_an_argument_or_as_an_option(dpfc: Dpfc, pictures: Path) -> None:
    assert dpfc("extract", "imagefolder:pictures", *SCATTER).exit_code == 0
    again = dpfc("extract", "--dataset", "imagefolder:pictures", *SCATTER)
    assert "'features/pictures-scattering-mean' is complete already" in one_line(again.stderr)


def test_json_says_which_set_was_made_or_found(dpfc: Dpfc, pictures: Path) -> None:
    line = ("extract", "imagefolder:pictures", *SCATTER, "--classes", "c0,c1,c2", "--json")
    made, found = (json.loads(dpfc(*line).stdout) for _ in range(2))
    folder = Path("features/pictures-scattering-mean")
    manifest = load(folder)
    assert made == {
        "path": str(folder),
        "name": folder.name,
        "complete": True,
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
    }
    assert found == made | {"made": False}
    part = dpfc(*line, "--out", "shared", "--shards", "4", "--task", "1/2")
    assert json.loads(part.stdout) == {"path": "features/shared", "name": "shared", "complete": False, "made": True}


def test_help_loads_nothing_that_computes() -> None:
    program = """
import sys
sys.argv = ["dpfc", sys.argv[1], "--help"]
from dpfc_cli.cli.app import main
try:
    main()
except SystemExit as end:
    assert end.code == 0, end.code
loaded = {"jax", "pyarrow", "PIL", "h5py", "scipy", "safetensors", "pydantic"} & set(sys.modules)
assert not loaded, loaded
"""
    for name in ("extract", "import"):
        subprocess.run([sys.executable, "-c", program, name], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_is_what_typer_would_show(option: str) -> None:
    start = f"import sys; sys.argv = ['dpfc', 'extract', '{option}']; from dpfc_cli.cli import app, extract; "
    shown = [
        subprocess.run([sys.executable, "-c", start + call], check=True, capture_output=True, text=True).stdout
        for call in ("app.main()", "from dpfc_cli.cli import audit, budget, evaluate, train; app.app()")
    ]
    assert shown[0] == shown[1]
    assert "--dataset" in shown[0]


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
    from dpfc_cli.images import Geometry

    found: dict[str, object] = {}

    def load(name: str, image_shape: tuple[int, int, int], pool: str | None = None, **options: object) -> Squares:
        found.update(options, name=name, image_shape=image_shape, pool=pool)
        return Squares(image_shape)

    monkeypatch.setattr(backbones, "geometry_of", lambda name, preprocess: Geometry(resize=(24, 24), crop=16))
    monkeypatch.setattr(backbones, "load", load)
    return found


def test_pictures_of_many_sizes_arrive_as_the_model_wants_them(
    dpfc: Dpfc, pictures: Path, asked: dict[str, object]
) -> None:
    line = ("extract", "imagefolder:pictures", "--model", "vit-b16")
    made = dpfc(*line, "--batch", "5", "--precision", "bfloat16")
    assert made.exit_code == 0, made.output
    assert asked["prepared"] is True
    assert asked["image_shape"] == (16, 16, 3)
    assert (asked["batch"], asked["precision"], asked["preprocess"], asked["pool"]) == (5, "bfloat16", None, None)
    manifest = load(Path("features/pictures-vit-b16"))
    preparation = {"resize": [24, 24], "crop": 16, "filter": "bicubic"}
    assert manifest.source["identity"]["preparation"] == preparation
    refused = dpfc(*line, "--image-size", "32")
    assert refused.exit_code == 2
    assert "looks at squares of 16 pixels" in refused.stderr.replace("\n", " ")


def test_how_pictures_are_read_is_a_part_of_the_recipe(dpfc: Dpfc, pictures: Path, asked: dict[str, object]) -> None:
    line = ("extract", "imagefolder:pictures", "--model", "vit-b16", "--limit", "2", "--out")
    recipes = {}
    for out, more in (("plain", ()), ("window", ("--window", "-5,4095")), ("exif", ("--exif",))):
        made = dpfc(*line, out, *more)
        assert made.exit_code == 0, made.output
        recipes[out] = load(Path("features", out))
    told = {name: found.source["identity"]["preparation"] for name, found in recipes.items()}
    assert told["window"] == {**told["plain"], "window": [-5, 4095]}
    assert told["exif"] == {**told["plain"], "exif": True}
    assert len({found.fingerprint for found in recipes.values()}) == 3
    # The records are the same, so what is spent on them counts together.
    assert len({found.source["identity"]["listing"]["train"] for found in recipes.values()}) == 1
    assert "exists and was made" in one_line(dpfc(*line, "plain", "--exif").stderr)


def test_pictures_of_one_small_size_are_the_models_to_resize(dpfc: Dpfc, asked: dict[str, object]) -> None:
    made = dpfc("extract", "--dataset", "digits")
    assert made.exit_code == 0, made.output
    assert load(Path("features/digits-scattering")).source["identity"]["preparation"] is None
    assert asked["prepared"] is False
    assert asked["image_shape"] == (8, 8, 1)


def test_the_first_picture_does_not_decide_which_others_are_null_records(dpfc: Dpfc, tmp_path: Path) -> None:
    for i in range(6):
        folder = tmp_path / "pictures" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32) if i == 0 else (16, 16)).save(folder / f"{i}.png")
    line = ("extract", "--dataset", "imagefolder:pictures")
    refused = dpfc(*line, "--on-error", "null")
    assert refused.exit_code == 2
    assert "--image-size" in refused.stderr
    assert not Path("features").exists()
    assert dpfc(*line).exit_code == 2
