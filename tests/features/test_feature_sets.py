"""Feature sets: what is written is read back, in order, from any number of shards; nothing hostile or damaged is
read.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.manifest import MANIFEST, Manifest, load
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.features.unfinished import already_complete
from dpfc_cli.features.writer import FeatureWriter
from dpfc_cli.files import sha256_of
from tests.support import stored


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of arrays: 100 train and 20 test records of 6 dimensions, 3 classes."""
    folder = tmp_path / "mine"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for split, n in (("train", 100), ("test", 20)):
        np.save(folder / f"{split}_x.npy", rng.normal(size=(n, 6)).astype(np.float16))
        np.save(folder / f"{split}_y.npy", np.arange(n) % 3)
    return folder


def spoil(folder: Path, **arrays: np.ndarray) -> Path:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def all_rows(found: FeatureSet, split: str, rows: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    blocks = list(found.stream(split)(rows))
    return np.concatenate([b[1] for b in blocks]), np.concatenate([b[2] for b in blocks]), [b[0] for b in blocks]


@pytest.mark.parametrize("shards", [1, 3, 16])
@pytest.mark.parametrize("rows", [7, 32, 1000])
def test_blocks_are_the_same_whatever_the_shards(source: Path, tmp_path: Path, shards: int, rows: int) -> None:
    import_features(source, tmp_path / "set", shards=shards)
    found = FeatureSet(tmp_path / "set")
    found.verify("train")
    x, y, starts = all_rows(found, "train", rows)
    assert np.array_equal(x, np.load(source / "train_x.npy"))
    assert np.array_equal(y[:, 0], np.load(source / "train_y.npy"))
    assert starts == list(range(0, 100, rows))
    assert len(found.split("train").shards) == shards


def test_the_manifest_holds_public_facts_and_says_who_asserts_them(source: Path, tmp_path: Path) -> None:
    inferred = import_features(source, tmp_path / "a")[0].manifest
    asserted = import_features(source, tmp_path / "b", classes=("x", "y", "z", "never seen"))[0].manifest
    assert (inferred.origin, inferred.classes) == ("inferred", ("0", "1", "2"))
    assert (asserted.origin, len(asserted.classes)) == ("asserted", 4)
    text = (tmp_path / "b" / MANIFEST).read_text()
    assert set(json.loads(text)) == set(Manifest.__dataclass_fields__) - {"grouped_by"}
    assert load(tmp_path / "b") == asserted


def test_label_sets_are_stored_padded(source: Path, tmp_path: Path) -> None:
    y = np.stack([np.arange(100) % 3, np.full(100, -1)], axis=1)
    spoil(source, train_y=y)
    found, _ = import_features(source, tmp_path / "set", classes=("a", "b", "c"), labels_per_record=3)
    assert found.manifest.labels_per_record == 3
    _, labels, _ = all_rows(found, "train", 64)
    assert np.array_equal(labels, np.pad(y, ((0, 0), (0, 1)), constant_values=-1))


BAD: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "an infinity": ({"test_x": np.full((20, 6), np.inf, np.float32)}, "NaN, infinite"),
    "a negative label": ({"train_y": np.full(100, -7)}, "out of range"),
    "a missing label": ({"train_y": np.full(100, -1)}, "without a label"),
    "splits of different width": ({"test_x": np.zeros((20, 5), np.float32)}, "width"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arrays_are_refused_and_leave_no_set(source: Path, tmp_path: Path, case: str) -> None:
    arrays, says = BAD[case]
    with pytest.raises(UserError, match=says):
        import_features(spoil(source, **arrays), tmp_path / "out" / "set")
    assert not (tmp_path / "out" / "set").exists()


def test_labels_beyond_the_asserted_classes_are_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"out of range.*do not publish"):
        import_features(source, tmp_path / "set", classes=("a", "b"))


def test_a_label_that_would_infer_millions_of_classes_asks_for_the_fact(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="30,000,001 classes"):
        import_features(spoil(source, train_y=np.full(100, 30_000_000)), tmp_path / "set")


# Damaged and hostile shards


@pytest.fixture
def whole(source: Path, tmp_path: Path) -> Path:
    import_features(source, tmp_path / "set", shards=2)
    return tmp_path / "set"


SHARD = "train-00000-of-00002.h5"


def linked(file: h5py.File, link: h5py.SoftLink | h5py.ExternalLink) -> None:
    file["elsewhere"] = np.ones((50, 6), np.float16)
    file["features"] = link


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((50, 6), np.float16)
    layout[:] = h5py.VirtualSource("other.h5", "features", (50, 6))
    file.create_virtual_dataset("features", layout)


STORED: dict[str, Any] = {"shape": (50, 6), "dtype": np.float16}
NOT_PLAIN: list[tuple[Callable[[h5py.File], object], str]] = [
    (lambda file: linked(file, h5py.ExternalLink("other.h5", "features")), "link to another place"),
    (lambda file: linked(file, h5py.SoftLink("/elsewhere")), "link to another place"),
    (lambda file: file.create_dataset("features", **STORED, external=[("/etc/passwd", 0, 600)]), "other files"),
    (virtual, "other files"),
    (lambda file: file.create_dataset("features", **STORED, compression="gzip"), "filters"),
    (lambda file: file.create_dataset("features", (50, 7), np.float16), "shape"),
    (lambda file: file.create_dataset("features", (50, 6), np.float64), "dtype"),
    (lambda file: file.create_dataset("features", **STORED), "declares 600 bytes, which the file does not hold"),
    (lambda file: file.create_group("features"), "not a data set"),
    (lambda file: None, "no data set 'features'"),
]


def test_shards_that_are_not_plain_are_refused_before_a_value_is_read(whole: Path) -> None:
    """The digest of the manifest is made to fit, so that only the layout is wrong."""
    said = json.loads((whole / MANIFEST).read_text())
    for write, says in NOT_PLAIN:
        with h5py.File(whole / SHARD, "w") as file:
            file["index"], file["labels"] = np.arange(50), np.zeros(50, np.int32)
            write(file)
        said["splits"]["train"]["shards"][0]["sha256"] = sha256_of(whole / SHARD)
        (whole / MANIFEST).write_text(json.dumps(said))
        found = FeatureSet(whole)
        with pytest.raises(UserError, match=says):
            found.verify("train")
        with pytest.raises(UserError, match=says):
            next(found.stream("train")(10))


def test_a_shard_in_anothers_place_is_refused(whole: Path) -> None:
    manifest = json.loads((whole / MANIFEST).read_text())
    manifest["splits"]["train"]["shards"].reverse()
    (whole / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="belong in its place"):
        FeatureSet(whole).verify("train")


def test_a_damaged_truncated_foreign_or_missing_shard_is_named(whole: Path) -> None:
    path = whole / SHARD
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[-100] ^= 1
    for bad in (bytes(flipped), good[:-200], b"not HDF5 at all", b""):
        path.write_bytes(bad)
        with pytest.raises(UserError, match=SHARD):
            FeatureSet(whole).verify("train")
    path.unlink()
    with pytest.raises(UserError, match="missing"):
        FeatureSet(whole).verify("train")


def test_a_shard_that_is_locked_is_not_called_damaged(whole: Path) -> None:
    program = "import h5py, sys; file = h5py.File(sys.argv[1], 'r+'); print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, str(whole / SHARD)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(UserError, match="is locked: another program") as caught:
            FeatureSet(whole).verify("train")
        assert "'dpfc extract'" not in caught.value.remedy
        assert caught.value.code == "busy"
        assert other.stdin is not None
        other.stdin.close()
    FeatureSet(whole).verify("train")


@pytest.mark.parametrize("name", [SHARD, MANIFEST])
def test_what_the_system_does_not_let_us_read_is_not_called_damaged(whole: Path, name: str) -> None:
    """A loop of links, for permissions do not stop every user who runs tests."""
    (whole / name).unlink()
    (whole / name).symlink_to(name)
    with pytest.raises(UserError, match=rf"{name}' cannot be read: Too many levels") as caught:
        FeatureSet(whole).verify("train")
    assert "'dpfc extract'" not in caught.value.remedy
    assert caught.value.code == "unreadable"


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(version=99), lambda m: m.pop("classes"), lambda m: m["splits"]["train"].update(n=5),
        lambda m: m["splits"]["train"]["shards"][0].update(file="../../etc/passwd"),
        lambda m: m["splits"]["train"].update(n=200, shards=m["splits"]["train"]["shards"] * 2),
        lambda m: m.update(dim=6.0),
        lambda m: m.update(dim="6"),
        lambda m: m.update(source=[]),
        lambda m: m.update(backbone="x"), lambda m: m.update(dtype="object"),
        lambda m: m.update(surprise=1),
    ],
)  # fmt: skip
def test_a_manifest_that_makes_no_sense_is_refused(whole: Path, change: object) -> None:
    manifest = json.loads((whole / MANIFEST).read_text())
    change(manifest)  # type: ignore[operator]
    (whole / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(UserError):
        FeatureSet(whole)


def test_a_set_says_what_it_holds_and_hands_out_a_split_as_arrays(source: Path, tmp_path: Path) -> None:
    import_features(source, tmp_path / "set", shards=3)
    found = FeatureSet(str(tmp_path / "set"))
    assert (found.name, found.classes, found.dim) == ("set", ("0", "1", "2"), 6)
    assert found.splits == {"train": 100, "test": 20}
    x, y = found.arrays("test")
    assert (x.dtype, y.dtype) == (np.dtype(np.float16), np.dtype(np.int32))
    assert np.array_equal(x, np.load(source / "test_x.npy"))
    assert np.array_equal(y, np.load(source / "test_y.npy")[:, None])
    for use in (found.arrays, found.split):
        with pytest.raises(UserError, match="no split 'val'") as caught:
            use("val")
        assert (caught.value.code, caught.value.fields["known"]) == ("missing", ["test", "train"])


# Making a set, and being killed on the way

MAKE = """
import os, signal, sys
from pathlib import Path
from dpfc_cli.extraction.importing import import_features
real, calls, kill_at = os.replace, 0, int(sys.argv[3])
def replace(*args):
    global calls
    calls += 1
    if calls == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    real(*args)
os.replace = replace
import_features(Path(sys.argv[1]), Path(sys.argv[2]), shards=3)
"""


def test_killed_at_any_rename_a_second_run_ends_with_the_same_bytes(source: Path, tmp_path: Path) -> None:
    import_features(source, tmp_path / "undisturbed", shards=3)
    expected = stored(tmp_path / "undisturbed")
    finished = False
    # Every rename but one of three is passed over: a shard takes two.
    for kill_at in (*range(1, 9), *range(9, 41, 3)):
        out = tmp_path / f"killed-{kill_at}"
        ended = subprocess.run([sys.executable, "-c", MAKE, str(source), str(out), str(kill_at)], check=False)
        finished = ended.returncode == 0
        assert finished or not out.exists()
        if not finished:
            import_features(source, out, shards=3)
        assert stored(out) == expected
        assert not out.with_name(out.name + ".partial").exists()
        if finished:
            break
    assert finished


def test_finished_shards_are_not_made_again(source: Path, tmp_path: Path) -> None:
    settings = {
        "rows": {"train": 9},
        "dim": 2,
        "dtype": "float32",
        "labels_per_record": 1,
        "identity": {"a": 1},
        "shards": 3,
    }
    writer = FeatureWriter(tmp_path / "set", **settings)  # type: ignore[arg-type]
    first, before = writer.missing[0], writer.missing
    with writer.shard(first) as sink:
        sink.append(np.zeros((3, 2)), np.zeros(3, np.int32))
    with pytest.raises(UserError, match="Another process"):
        FeatureWriter(tmp_path / "set", **settings)  # type: ignore[arg-type]
    del writer
    again = FeatureWriter(tmp_path / "set", **settings)  # type: ignore[arg-type]
    assert again.resumed
    assert again.missing == [planned for planned in before if planned != first]
    del again
    with pytest.raises(UserError, match="another source"):
        FeatureWriter(tmp_path / "set", **{**settings, "identity": {"a": 2}})  # type: ignore[arg-type]


def test_an_import_takes_plain_values_and_says_whether_it_made_the_set(source: Path, tmp_path: Path) -> None:
    first, made = import_features(str(source), str(tmp_path / "set"), classes=["x", "y", "z"])
    assert made
    again, made = import_features(source, tmp_path / "set", classes=("u", "v", "w"))
    assert not made
    assert (first.classes, again.classes) == (("x", "y", "z"), ("u", "v", "w"))
    assert again.folder == tmp_path / "set"


@pytest.mark.parametrize(
    ("given", "code"),
    [({"dtype": "float64"}, "unknown-name"), ({"shards": 0}, "bad-value"), ({"labels_per_record": 0}, "bad-value")],
)
def test_values_that_make_no_sense_are_refused_before_the_source_is_read(
    tmp_path: Path, given: dict[str, object], code: str
) -> None:
    with pytest.raises(UserError) as caught:
        import_features(tmp_path / "nothing", tmp_path / "set", **given)  # type: ignore[arg-type]
    assert caught.value.code == code


def test_fewer_labels_per_record_than_there_are_is_refused(source: Path, tmp_path: Path) -> None:
    spoil(source, train_y=np.zeros((100, 2), int))
    with pytest.raises(UserError, match="has 2 label columns") as caught:
        import_features(source, tmp_path / "set", labels_per_record=1)
    assert (caught.value.code, caught.value.fields["parameter"]) == ("conflict", "labels_per_record")


def test_a_changed_source_is_refused_rather_than_mixed(source: Path, tmp_path: Path) -> None:
    import_features(source, tmp_path / "set")
    _, made = import_features(source, tmp_path / "set")
    assert not made
    x = np.load(source / "train_x.npy")
    x[0, 0] += 1
    with pytest.raises(UserError, match="another source"):
        import_features(spoil(source, train_x=x), tmp_path / "set")


def test_a_place_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    with pytest.raises(UserError, match="no feature set"):
        already_complete(tmp_path / "set", {})
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        FeatureWriter(
            tmp_path / "file" / "set", rows={"train": 1}, dim=1, dtype="float16", labels_per_record=1, identity={}
        )
