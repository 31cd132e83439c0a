"""Pictures to a feature set: overlapped, restartable; the same bytes whatever happened on the way."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpfc_cli.annotations.broken import Broken
from dpfc_cli.backbones import Backbone
from dpfc_cli.extraction import extract as extraction
from dpfc_cli.extraction.request import ExtractionWarning
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.features.writer import FeatureWriter
from dpfc_cli.geometry import Geometry
from dpfc_cli.images.pictures import Preparation
from tests.images.pictures import drawn, open_images
from tests.support import refuses, shards_of, stored

pytestmark = pytest.mark.filterwarnings("ignore:nobody stated the classes")
SQUARE = Geometry(resize=8, crop=8)
AS_SQUARE = Preparation(geometry=SQUARE)


class Means(Backbone):
    """A backbone whose features are a picture's mean colours. stop_at: the batch at which it is interrupted."""

    name, dim, batch = "means", 3, 7

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at, self.batches = stop_at, 0

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "weights": None}

    def _compute(self, whole: np.ndarray) -> Any:
        return self(whole)

    def submit(self, pixels: np.ndarray) -> Any:
        if self.batches == self.stop_at:
            raise KeyboardInterrupt
        self.batches += 1
        return self(pixels)

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        means: np.ndarray = pixels.mean(axis=(1, 2), dtype=np.float32)
        return means


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """60 + 12 JPEGs of many sizes in 3 classes."""
    drawn(tmp_path / "pictures", 60, 12, ".jpg")
    return tmp_path / "pictures"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Scattering computes a whole batch, however few pictures there are. The sets have 5 + 1 shards."""
    monkeypatch.setattr("dpfc_cli.backbones.scattering.transform._ROWS", 16)
    with shards_of(12):
        yield


def extracted(pictures: Path, out: Path, backbone: Backbone | None = None, tolerant: bool = False) -> Manifest | None:
    source = open_images(f"imagefolder:{pictures}", geometry=SQUARE)
    backbone = backbone or Means()
    manifest = extraction.manifest_of(source, backbone, "float16", AS_SQUARE)
    rows = {name: split.n for name, split in source.splits.items()}
    broken = Broken("picture", rows, lambda split, i: str(i), 1.0 if tolerant else None)
    writer = FeatureWriter(out, manifest, broken)
    extraction.make_shards(writer.missing, writer.shard, source, backbone, broken)
    return writer.finish()


@pytest.fixture
def undisturbed(pictures: Path, tmp_path: Path) -> dict[str, bytes]:
    extracted(pictures, tmp_path / "undisturbed")
    return stored(tmp_path / "undisturbed")


def test_features_and_labels_are_those_of_the_pictures_in_order(pictures: Path, tmp_path: Path) -> None:
    extracted(pictures, tmp_path / "set")
    train = open_images(f"imagefolder:{pictures}", geometry=SQUARE).splits["train"]
    found = FeatureSet(tmp_path / "set")
    found.verify("train")
    _, x, y = next(iter(found.stream("train")(100)))
    np.testing.assert_array_equal(x, Means()(train.pixels(0, 60)).astype(np.float16))
    np.testing.assert_array_equal(y[:, 0], train.labels)


def test_interrupted_again_and_again_it_ends_with_the_same_bytes(
    pictures: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    out = tmp_path / "set"
    interruptions = 0
    for _ in range(12):
        # A shard has two batches, and the device is one ahead: each attempt makes a shard or two.
        try:
            extracted(pictures, out, Means(stop_at=4))
            break
        except KeyboardInterrupt:
            interruptions += 1
            assert not out.exists()
    assert interruptions >= 4
    assert stored(out) == undisturbed
    assert not out.with_name("set.partial").exists()


def test_a_broken_picture_is_named_or_kept_as_a_null_record(
    pictures: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    broken = pictures / "train" / "c1" / "004.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    with refuses("bad-record", match="1 picture .*do not publish"):
        extracted(pictures, tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    manifest = extracted(pictures, tmp_path / "kept", tolerant=True)
    assert manifest is not None
    assert manifest.splits["train"].n == 60
    x, y = {}, {}
    for name in ("undisturbed", "kept"):
        _, x[name], y[name] = next(iter(FeatureSet(tmp_path / name).stream("train")(100)))
    null = (y["kept"] < 0).ravel()
    assert np.flatnonzero(null).tolist() == [21]
    assert (x["kept"][21] == 0).all()
    np.testing.assert_array_equal(x["kept"][~null], x["undisturbed"][~null])


def test_the_fingerprint_names_the_preparation_and_not_the_records(pictures: Path) -> None:
    def fingerprint(geometry: Geometry = SQUARE, dtype: str = "float16") -> str:
        source = open_images(f"imagefolder:{pictures}", geometry=geometry)
        manifest = extraction.manifest_of(source, Means(), dtype, Preparation(geometry=geometry))
        assert set(manifest.versions) == {"dpfc", "jax", "numpy", "pillow", "simplejpeg", "h5py"}
        return manifest.fingerprint

    first = fingerprint()
    assert len({first, fingerprint(Geometry(resize=9, crop=8)), fingerprint(dtype="float32")}) == 3
    (pictures / "train" / "c0" / "000.jpg").rename(pictures / "train" / "c0" / "new.jpg")
    assert fingerprint() == first


def test_warnings_are_pythons_unless_somebody_takes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("c0", "c1"):
        Path("dark", name).mkdir(parents=True)
        Image.fromarray(np.full((8, 8), 300, np.uint16)).save(f"dark/{name}/1.png")
    taken: list[str] = []
    with pytest.warns(ExtractionWarning, match=r"window=\(0,4095\).*do not publish"):
        extraction.extract("imagefolder:dark", **SCATTER, out="one")
    extraction.extract("imagefolder:dark", **SCATTER, out="two", warn=taken.append)
    assert len(taken) == 1
    # With a window nothing is wrong with them.
    extraction.extract("imagefolder:dark", **SCATTER, out="three", window=(0, 4095), warn=taken.append)
    assert len(taken) == 1


SCATTER: dict[str, Any] = {"model": "scattering", "pool": "mean", "image_size": 8, "classes": ["c0", "c1", "c2"]}


def test_extract_makes_a_set_finds_it_again_and_goes_on(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stages: list[str] = []
    made = extraction.extract(
        "imagefolder:pictures",
        **SCATTER,
        progress=lambda stage, done, total: stages.append(stage.partition(":")[0]),
    )
    assert made.folder == made.features.folder == Path("features/imagefolder-scattering-mean")
    assert (made.was_complete, made.images, made.resumed) == (False, 72, None)
    assert list(dict.fromkeys(stages)) == [extraction.OPENING, extraction.LOADING, extraction.EXTRACTING]
    found = extraction.extract("imagefolder:pictures", **SCATTER)
    assert (found.was_complete, found.images, found.resumed) == (True, 0, None)

    def stop(stage: str, done: int, total: int | None) -> None:
        if stage == extraction.EXTRACTING and done == 24:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extraction.extract("imagefolder:pictures", **SCATTER, out="parts", progress=stop)
    second = extraction.extract("imagefolder:pictures", **SCATTER, out=tmp_path / "features" / "parts")
    assert (second.images, second.resumed) == (60, 5)
    assert stored(second.folder) == stored(made.folder)


NO_SENSE: list[tuple[str, dict[str, Any], str, str]] = [
    ("digits", {"dtype": "int8"}, "unknown-name", "dtype"),
    ("digits", {"on_error": "skip"}, "unknown-name", "on_error"),
    ("digits", {"limit": 0}, "bad-value", "limit"),
    ("digits", {"batch": -1}, "bad-value", "batch"),
    ("digits", {"hold_out": 0.9}, "bad-value", "hold_out"),
    ("imagefolder:pictures", {"image_size": 7}, "bad-value", "image_size"),
    ("imagefolder:pictures", {"model": "vit-b16", "image_size": 32, "classes": 3}, "conflict", "image_size"),
    ("imagefolder:pictures", {"on_error": "null", "classes": 3}, "conflict", "image_size"),
    ("imagefolder:pictures", {"classes": 1}, "bad-value", "classes"),
    ("imagefolder:pictures", {"classes": 99_999_999_999}, "bad-value", "classes"),
    ("imagefolder:pictures", {"classes": ["a", "a"]}, "bad-value", "classes"),
    ("imagefolder:pictures", {"classes": Path("nofile.txt")}, "missing", "classes"),
]


def test_what_makes_no_sense_is_refused_by_its_python_name_and_changes_nothing(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for source, options, code, parameter in NO_SENSE:
        with refuses(code, parameter=parameter) as caught:
            extraction.extract(source, **options)
        assert "--" not in str(caught.value)
        assert sorted(tmp_path.rglob("*")) == before


def test_whoever_refuses_names_all_broken_pictures(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = sorted(each for each in pictures.rglob("*") if each.is_file() and "train" in each.parts)
    for path in (paths[14], paths[-1]):
        path.write_bytes(path.read_bytes()[:-20])
    seen = list[tuple[str, int, int | None]]()
    with refuses("bad-record"):
        extraction.extract("imagefolder:pictures", **SCATTER, progress=lambda *told: seen.append(told))
    assert len(next(Path("features").glob("*.refused.txt")).read_text().splitlines()) == 2
    assert (extraction.LOOKING, 72, 72) in seen
