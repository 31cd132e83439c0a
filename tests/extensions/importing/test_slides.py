"""Slides as TRIDENT, CLAM and STAMP write them become one record each, or one for each patient."""

import errno
import fcntl
import itertools
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from dpfc_cli.errors import GUARDED
from dpfc_cli.extensions.importing import slides
from dpfc_cli.extensions.importing.importing import import_features
from dpfc_cli.features.hdf5 import _Whole
from dpfc_cli.features.reader import FeatureSet
from tests.closed import closed
from tests.support import refuses

D = 5
LABELS = ("tumour", "normal", "tumour", "normal", "normal", "tumour")
PATIENTS = ("p1", "p2", "p1", "p3", "p3", "p4")
Write = Callable[[Path, np.ndarray], None]


def trident(path: Path, x: np.ndarray) -> None:
    """Chunks of one patch, attributes of variable length, coordinates of patches."""
    with h5py.File(path, "w") as file:
        for name, values in (("features", x), ("coords", np.zeros((len(x), 2), np.int64))):
            data = file.create_dataset(
                name, values.shape, values.dtype, chunks=(1, values.shape[1]), maxshape=(None, values.shape[1])
            )
            data[:] = values
        file["features"].attrs["encoder"] = "uni_v1"
        file["coords"].attrs["patch_size"] = 256


def clam(path: Path, x: np.ndarray) -> None:
    """Batches that are appended, in chunks of 32 patches."""
    with h5py.File(path, "w") as file:
        data = file.create_dataset("features", (0, D), np.float32, chunks=(32, D), maxshape=(None, D))
        for at in range(0, len(x), 4):
            data.resize(min(at + 4, len(x)), axis=0)
            data[at:] = x[at : at + 4]
        file["coords"] = np.zeros((len(x), 2), np.int32)


def stamp(path: Path, x: np.ndarray) -> None:
    """Half precision, in one piece, under another name."""
    with h5py.File(path, "w") as file:
        file["coords"] = np.zeros((len(x), 2))
        file["feats"] = x.astype(np.float16)
        file.attrs["extractor"] = "mahmood-uni"


def batched(path: Path, x: np.ndarray) -> None:
    """One axis more, as bags of a loader have it."""
    with h5py.File(path, "w") as file:
        file["features"] = x[None].astype(np.float64)


def patches(slide: int) -> np.ndarray:
    """Of a slide: numbers that float16 holds exactly."""
    random = np.random.default_rng(slide)
    return (random.integers(-64, 64, (3 + 7 * slide, D)) / 8 + slide).astype(np.float32)


def written(folder: Path, write: Write = trident, name: str = "slide_{}.h5") -> Path:
    """A folder of slides and a table beside it."""
    place = folder / "slides"
    for slide in range(len(LABELS)):
        path = place / name.format(slide)
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, patches(slide))
    table(folder)
    return place


def table(folder: Path, head: str = "case_id,slide_id,label", **changed: str) -> Path:
    path = folder / "slides.csv"
    lines = [f"{PATIENTS[i]},slide_{i},{LABELS[i]}" for i in range(len(LABELS))]
    lines = [changed.get(f"line{i}", line) for i, line in enumerate(lines)]
    path.write_text("\n".join([head, *filter(None, lines)]) + "\n", "utf-8")
    return path


def imported(folder: Path, place: Path, **options: Any) -> FeatureSet:
    options = {"table": folder / "slides.csv", "classes": ("normal", "tumour"), **options}
    return import_features(f"slides:{place}", folder / "set", **options).features


def rows_of(features: FeatureSet) -> set[tuple[tuple[float, ...], str]]:
    x, y = features.arrays("train")
    labels = [features.classes[label] if label >= 0 else "" for label in y[:, 0]]
    return {(tuple(row), label) for row, label in zip(x.tolist(), labels, strict=True)}


def mean(*members: int) -> tuple[float, ...]:
    return tuple(np.concatenate([patches(i) for i in members]).astype(np.float64).mean(0).astype(np.float32).tolist())


WHOLE = {(mean(i), label) for i, label in enumerate(LABELS)}


def test_a_slide_is_the_mean_of_its_patches_whoever_wrote_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slides, "_BLOCK", 8 * D * 4)  # four patches at once
    for write in (trident, clam, stamp, batched):
        found = imported(tmp_path / write.__name__, written(tmp_path / write.__name__, write))
        assert rows_of(found) == WHOLE
        assert found.manifest.splits["train"].groups == 4
        assert found.manifest.grouped_by == {"by": "table", "column": "case_id"}
        assert found.manifest.backbone["feature"] == "mean of the patches of each slide"


def test_a_patient_is_the_mean_of_all_patches_of_all_slides(tmp_path: Path) -> None:
    place = written(tmp_path)
    found = imported(tmp_path, place, pool_by="patient", classes=["tumour", "normal"])
    expected = {(mean(0, 2), "tumour"), (mean(1), "normal"), (mean(3, 4), "normal"), (mean(5), "tumour")}
    assert rows_of(found) == expected
    assert found.manifest.splits["train"].n == found.manifest.splits["train"].groups == 4
    assert found.manifest.origin == "asserted"


def test_a_file_is_found_by_the_name_of_its_slide(tmp_path: Path) -> None:
    """Wherever it lies in the folder, whatever its ending, and in either form of Unicode."""
    files = ("slide_{}.h5", "h5_files/slide_{}.h5", "20x/features_uni/slide_{}.hdf5")
    names = ("slide_{}", "slide_{}.svs", "slide_{}.h5", "/elsewhere/slide_{}.svs")
    pairs = [(file, name) for file in files for name in names]
    for i, (file, name) in enumerate([*pairs, ("Mu\u0308ller é {}.h5", "Müller é {}")]):
        place = written(tmp_path / f"{i}", name=file)
        lines = {f"line{j}": f"{PATIENTS[j]},{name.format(j)},{LABELS[j]}" for j in range(len(LABELS))}
        table(place.parent, **lines)
        assert rows_of(imported(place.parent, place)) == WHOLE


def test_of_two_files_of_one_name_the_table_says_which(tmp_path: Path) -> None:
    place = written(tmp_path, name="a/slide_{}.h5")
    (place / "b").mkdir()
    trident(place / "b" / "slide_1.h5", patches(2))
    with refuses("conflict", match="2 files .*'…'"):
        imported(tmp_path, place)
    table(tmp_path, line1="p2,a/slide_1,normal")
    assert rows_of(imported(tmp_path, place)) == WHOLE


def test_a_column_of_splits_makes_a_test_split_and_numbers_are_classes(tmp_path: Path) -> None:
    place = written(tmp_path)
    rows = ["0,slide_0,train", "1,slide_1,train", "10,slide_2,test", "1,slide_3,val", "0,slide_4,test"]
    (tmp_path / "slides.csv").write_text("\n".join(["Target,Filename,Split", *rows]))
    told = list[str]()
    found = imported(tmp_path, place, classes=11, warn=told.append)
    assert [said.endswith(": 'val'.") for said in told] == [True]
    assert found.splits == {"train": 2, "test": 2}
    assert found.arrays("test")[1].tolist() == [[10], [0]]
    assert not found.manifest.grouped


# Slides that cannot be read


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:900])


def _empty(path: Path) -> None:
    """As TRIDENT writes a slide without tissue."""
    with h5py.File(path, "w") as file:
        file["features"] = np.empty((0,), np.float32)


def _infinite(path: Path) -> None:
    stamp(path, np.full((3, D), np.inf, np.float32))


def _two(path: Path) -> None:
    """Which of them is meant nobody says."""
    with h5py.File(path, "w") as file:
        file["features"], file["feats"] = np.ones((3, D)), np.zeros((3, D))


BROKEN = [Path.unlink, _cut, _empty, _infinite, _two]
"""More ways are those of HDF5 in `tests/features/test_hdf5`."""


@pytest.mark.parametrize("spoil", BROKEN)
def test_a_slide_that_cannot_be_read_is_named_or_becomes_a_null_record(
    spoil: Callable[[Path], None], tmp_path: Path
) -> None:
    place = written(tmp_path)
    spoil(place / "slide_3.h5")
    with refuses("bad-record", parameter="on_error") as refused:
        imported(tmp_path, place)
    assert GUARDED in refused.value.what
    listed = tmp_path / "set.refused.txt"
    assert str(listed) in refused.value.what
    assert "slide_3" not in refused.value.what
    assert listed.read_text().startswith("slide_3: ")
    assert stat.S_IMODE(listed.stat().st_mode) == 0o600
    assert not (tmp_path / "set").exists()
    with refuses("bad-record"):
        imported(tmp_path, place, on_error="null", warn=len)
    told: list[str] = []
    found = imported(tmp_path, place, on_error="null", most_null=0.2, warn=told.append)
    x, y = found.arrays("train")
    assert (y < 0).sum() == 1
    assert not x[y[:, 0] < 0].any()
    assert rows_of(found) >= {(mean(i), LABELS[i]) for i in (0, 1, 2, 4, 5)}
    assert "1 of 6" in told[1]
    assert "slide_3" not in "".join(told)
    found.verify("train")
    # It is broken still.
    assert listed.exists()


def test_a_patient_is_null_only_if_no_slide_is_left(tmp_path: Path) -> None:
    place = written(tmp_path)
    (place / "slide_2.h5").unlink()
    (place / "slide_1.h5").unlink()
    found = imported(
        tmp_path, place, pool_by="patient", on_error="null", most_null=0.3, classes=["tumour", "normal"], warn=len
    )
    assert {row for row, _ in rows_of(found)} == {mean(0), mean(3, 4), mean(5), (0.0,) * D}


def test_a_slide_of_another_encoder_stops_the_import(tmp_path: Path) -> None:
    """Which of two widths is the right one cannot be known, so no slide may turn the others into null records."""
    place = written(tmp_path)
    with h5py.File(place / "slide_0.h5", "w") as file:
        file["features"] = np.zeros((3, D + 1), np.float32)
    with refuses("conflict"):
        imported(tmp_path, place, on_error="null", most_null=1.0)


def test_a_slide_that_cannot_be_read_now_is_no_null_record(tmp_path: Path) -> None:
    """A pipeline still writes to it: that says nothing about the slide."""
    place = written(tmp_path)
    with (place / "slide_3.h5").open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with refuses("busy"):
            imported(tmp_path, place, on_error="null", most_null=1.0)


def test_features_that_the_stored_precision_cannot_hold_count_among_the_null_records(tmp_path: Path) -> None:
    place = written(tmp_path)
    trident(place / "slide_0.h5", np.full((3, D), 1e5, np.float32))
    with refuses("bad-record"):
        imported(tmp_path, place, on_error="null", dtype="float16")
    assert not (tmp_path / "set").exists()
    found = imported(tmp_path, place, on_error="null", dtype="float16", most_null=0.2, warn=len)
    assert (found.arrays("train")[1] < 0).sum() == 1


# Tables that cannot be used


BAD: list[tuple[dict[str, str], dict[str, object], str, str | None]] = [
    ({"line1": "p2,slide_0,normal"}, {}, "bad-record", None),
    ({"line1": "p2,../outside.h5,normal"}, {}, "bad-record", "on_error"),
    ({"line1": "p2,slide_9,normal", "line2": "p1,slide_9,tumour"}, {}, "bad-record", None),
    ({"line1": "p2,slide_1,"}, {}, "bad-record", None),
    ({"line1": ",slide_1,normal"}, {}, "bad-record", None),
    ({"head": "case_id,slide_id,diagnosis"}, {}, "missing", "label_column"),
    ({"head": "case_id,image,label"}, {}, "missing", "file_column"),
    ({}, {"label_column": "grade"}, "missing", "label_column"),
    ({}, {"group_column": "mrn"}, "missing", "group_column"),
    ({}, {"classes": ["a", "b"]}, "bad-record", "classes"),
    ({}, {"pool_by": "patch"}, "unknown-name", "pool_by"),
    ({}, {"most_null": 0.1}, "conflict", "most_null"),
    ({"line2": "p1,slide_2,normal"}, {"pool_by": "patient"}, "bad-record", "pool_by"),
    ({"head": "nobody,slide_id,label"}, {"pool_by": "patient"}, "missing", "group_column"),
    ({"head": "x,slide_id,split", "line0": "a,slide_0,all"}, {"label_column": "x"}, "bad-record", None),
    # Another cut of the block, and not the ending of a slide.
    ({"line0": "p1,slide_0.2,tumour"}, {}, "bad-record", "on_error"),
]


def test_a_table_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    place = written(tmp_path)
    trident(tmp_path / "outside.h5", patches(2))
    for changed, options, code, named in BAD:
        table(tmp_path, **changed)
        with refuses(code, match="do not publish" if code == "bad-record" else None, parameter=named):
            imported(tmp_path, place, **options)
        assert not (tmp_path / "set").exists()


def test_a_patient_in_both_splits_is_no_single_record(tmp_path: Path) -> None:
    place = written(tmp_path)
    (tmp_path / "slides.csv").write_text("patient,slide,label,split\np,slide_0,a,train\np,slide_1,a,test\n")
    with refuses("bad-record", match="1 person"):
        imported(tmp_path, place, pool_by="patient")


def test_what_is_for_slides_is_refused_elsewhere_and_slides_need_a_table(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", features=np.zeros((4, 2)), labels=np.arange(4) % 2)
    (tmp_path / "t.csv").touch()
    null = {"most_null": 0.1, "on_error": "null"}
    for option in ({"table": str(tmp_path / "t.csv")}, {"pool_by": "slide"}, {"on_error": "null"}, null):
        with refuses("conflict", parameter=next(iter(option))):
            import_features(tmp_path / "a.npz", tmp_path / "set", classes=2, **option)
    with refuses("missing", parameter="table"):
        import_features(f"slides:{tmp_path}", tmp_path / "set", classes=2)


# A machine that fails makes no null records: the import stops

LARGE = 2**20
"""Patches of one slide: 40 MiB in one chunk, which zeros compress to a hundredth."""


# The first import loads what is loaded when it is first used. The second one fits into the memory, the third does not.
TRIAL = """
import resource, sys
from pathlib import Path
sys.path.insert(0, ".")
from tests.extensions.importing.test_slides import imported, written

large, extra = Path(sys.argv[1]), int(sys.argv[2])
small = [large / "first", large / "second"]
places = [written(folder) for folder in small]
imported(small[0], places[0])
now = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (now + extra, resource.RLIM_INFINITY))
imported(small[1], places[1])
try:
    imported(large, large / "slides", on_error="null", most_null=0.2)
except MemoryError:
    print("too little")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS has no effect elsewhere")
def test_a_slide_that_memory_cannot_hold_is_not_damaged(tmp_path: Path) -> None:
    """HDF5 says of both that a filter failed."""
    place = written(tmp_path)
    with h5py.File(place / "slide_3.h5", "w") as file:
        x = np.zeros((LARGE, D))
        file.create_dataset("features", data=x, chunks=x.shape, compression="gzip", compression_opts=1)
    # Enough for a block of patches, and not for the chunk. This process may have memory that it used before, where the
    # chunk would fit.
    command = [sys.executable, "-c", TRIAL, str(tmp_path), str(LARGE * 30)]
    assert subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout == "too little\n"
    assert not (tmp_path / "set").exists()
    assert imported(
        tmp_path, place, on_error="null", most_null=0.2, classes=["normal", "tumour"], warn=pytest.fail
    ).splits == {"train": 6}


def test_a_disk_that_fails_stops_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each read of a slide, from its opening to its last value."""
    place, real = written(tmp_path), _Whole.readinto
    reads = itertools.count()
    failing = -1

    def readinto(self: Any, buffer: Any) -> int:
        if next(reads) == failing:
            number = errno.EIO if failing % 2 else errno.ENOMEM
            raise OSError(number, os.strerror(number))
        return real(self, buffer)

    monkeypatch.setattr(_Whole, "readinto", readinto)
    imported(tmp_path, place)
    # Of the whole folder; the slides are alike.
    for at in range(next(reads) // 6):
        failing, reads = at, itertools.count()
        (tmp_path / "set" / "manifest.json").unlink(missing_ok=True)
        with refuses("unreadable" if at % 2 else "memory"):
            imported(tmp_path, place, on_error="null", most_null=0.9, warn=pytest.fail)


def test_slides_in_a_folder_that_cannot_be_listed_are_not_missing(tmp_path: Path) -> None:
    place = written(tmp_path, name="deeper/slide_{}.h5")
    with closed(place / "deeper"), refuses("unreadable"):
        imported(tmp_path, place, on_error="null", most_null=0.9)
