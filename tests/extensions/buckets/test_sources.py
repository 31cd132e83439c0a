"""Pictures and tables at URLs are those of this machine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import Result

import dpfc_cli as library
from dpfc_cli.annotations.groups import rule_of
from dpfc_cli.images import catalogue
from dpfc_cli.images.sets import ImageSet
from dpfc_cli.places import place_of
from tests.extensions.buckets.conftest import Bucket
from tests.images.pictures import SQUARE, png, request, tar

CLASSES = ("c0", "c1", "c2")


def opened(source: str, **asked: Any) -> ImageSet:
    return catalogue.open_images(source, None, request(SQUARE, classes=CLASSES, **asked))


def is_same(first: ImageSet, second: ImageSet) -> bool:
    return all(
        one.listing == two.listing
        and np.array_equal(one.labels, two.labels)
        and np.array_equal(one.pixels(0, one.n), two.pixels(0, two.n))
        and [one.pixels.name(i) for i in range(one.n)] == [two.pixels.name(i) for i in range(two.n)]
        for one, two in ((first.splits[name], second.splits[name]) for name in first.splits | second.splits)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Class folders, and another folder that is not the user's."""
    for i in range(24):
        path = tmp_path / "photos" / ("test" if i % 4 == 3 else "train") / f"c{i % 3}" / f"p{i % 5}" / f"ä {i}#.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(i))
    (tmp_path / "photos" / "train" / "c0" / ".thumbs").mkdir()
    (tmp_path / "photos" / "train" / "c0" / ".thumbs" / "x.png").write_bytes(png(0))
    (tmp_path / "photos" / "train" / "c0" / "notes.txt").write_text("x")
    return tmp_path / "photos"


def test_a_folder_in_a_bucket_has_the_same_pictures_classes_and_listing(bucket: Bucket, folder: Path) -> None:
    bucket.put("photos/train/c1/", b"")  # as consoles make folders
    there, here = opened(f"imagefolder:{bucket.upload(folder)}"), opened(f"imagefolder:{folder}")
    assert is_same(here, there)
    assert [each.splits["train"].n for each in (here, there)] == [18, 18]
    assert there.remarks == here.remarks != ()


def test_a_picture_of_a_folder_is_one_request_and_the_listing_none_for_each(
    bucket: Bucket, folder: Path, asked: Callable[[], list[str]]
) -> None:
    url = bucket.upload(folder)
    asked()
    found = opened(f"imagefolder:{url}").splits["train"]
    assert len(asked()) < 80
    found.pixels(0, 18)
    requests = asked()
    assert (len(requests), {each.split()[0] for each in requests}) == (18, {"GET"})


@pytest.mark.parametrize("where", ["beside", "elsewhere", "here"])
def test_a_table_names_pictures_of_its_bucket(bucket: Bucket, folder: Path, tmp_path: Path, where: str) -> None:
    """Beside the pictures, or elsewhere, at a URL or not; names may be URLs, and lead nowhere else."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*#.png"))
    lines = [f"{name},{name.split('/')[1]},{name.split('/')[2]}" for name in names] + ["train/gone.png,c0,p1"]
    here = tmp_path / "here.csv"
    here.write_text("\n".join(["file,label,patient", *lines]))
    url, place = bucket.upload(folder), str(here)
    if where != "here":
        key = "photos/metadata.csv" if where == "beside" else "tables/of.csv"
        # One is a URL itself, and one is from a machine with other slashes.
        others = [f"{url}/{lines[0]}", lines[1].replace("/", "\\"), *lines[2:]]
        bucket.put(key, "\n".join(["file,label,patient", *others]).encode())
        place = bucket.url(key)
    more = {"label_column": "label", "file_column": "file", "group_by": rule_of("column:patient")}
    one = opened(f"imagefolder:{folder}", table=here, **more).splits["train"]
    two = opened(f"imagefolder:{url}", table=place_of(place), **more).splits["train"]
    assert one.listing == two.listing
    assert np.array_equal(one.labels, two.labels)
    assert one.pixels.unusable == two.pixels.unusable != {}
    assert one.keys is not None
    assert two.keys is not None
    assert [*one.keys.names] == [*two.keys.names] != []


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """The same pictures as parquet and as tar archives, two of each for training."""
    top = tmp_path / "packed"
    top.mkdir()
    for part in range(3):
        values = range(8 * part, 8 * part + 8)
        name = ("train-000", "train-001", "test-000")[part]
        parts = [((f"{i:04d}.png", png(i)), (f"{i:04d}.cls", b"c%d" % (i % 3))) for i in values]
        tar(top / f"{name}.tar", [each for both in parts for each in both])
        image = pa.array([{"bytes": png(i), "path": None} for i in values])
        labels = pa.array([f"c{i % 3}" for i in values])
        pq.write_table(pa.table({"image": image, "label": labels}), top / f"{name}.parquet", row_group_size=3)
    (top / "train-002.parquet.txt").write_text("x")
    return top


@pytest.mark.parametrize("names", ["", "/*-00?", "/{train,test}-{000..001}", "/train-[0-1]*"])
@pytest.mark.parametrize("kind", ["parquet", "webdataset"])
def test_files_in_a_bucket_are_found_by_folder_and_by_pattern_as_here(
    bucket: Bucket, packed: Path, kind: str, names: str
) -> None:
    if "test" in names:
        (packed / "test-001.tar").write_bytes(tar(packed / "x", [("z.png", png(9)), ("z.cls", b"c0")]).read_bytes())
        (packed / "x").unlink()
        (packed / "test-001.parquet").write_bytes((packed / "test-000.parquet").read_bytes())
    url = bucket.upload(packed)
    ending = names and f"{names}.{'tar' if kind == 'webdataset' else kind}"
    assert is_same(opened(f"{kind}:{packed}{ending}"), opened(f"{kind}:{url}{ending}"))
    for gone in ("gone", "packed/gone-{000..001}.tar", "packed/gone*"):
        with pytest.raises(library.UserError, match=r"no file|nothing"):
            opened(f"{kind}:{bucket.url(gone)}")


def test_what_is_read_of_an_archive_is_its_headers_with_a_large_read_ahead_and_then_each_picture(
    bucket: Bucket, packed: Path, asked: Callable[[], list[str]]
) -> None:
    url = bucket.upload(packed)
    asked()
    found = opened(f"webdataset:{url}").splits["train"]
    gets = [each for each in asked() if each.startswith("GET") and each.endswith(".tar")]
    assert len(gets) == 3
    found.pixels(0, 5)
    assert len(asked()) == 5


def test_a_source_in_a_bucket_makes_the_same_set_and_predictions_as_here(
    dpfc: Callable[..., Result], bucket: Bucket, folder: Path, packed: Path, tmp_path: Path
) -> None:
    made = ("--classes", ",".join(CLASSES), "--model", "scattering", "--pool", "mean", "--image-size", "8")
    urls = {"imagefolder": bucket.upload(folder), "webdataset": bucket.upload(packed)}
    (tmp_path / "classes.txt").write_text("\n".join(CLASSES))
    bucket.put("classes.txt", (tmp_path / "classes.txt").read_bytes())
    for kind, here in {"imagefolder": folder, "webdataset": packed}.items():
        more = ("--each-record-is-a-person", *made)
        dpfc("extract", f"{kind}:{here}", *more, "--out", f"{kind}-here", ends=0)
        by_file = ("--classes", bucket.url("classes.txt"), *more[3:])
        dpfc("extract", f"{kind}:{urls[kind]}", more[0], *by_file, "--out", f"{kind}-there", ends=0)
        sets = [library.open_features(f"{kind}-{where}") for where in ("here", "there")]
        assert sets[0].manifest.splits == sets[1].manifest.splits
        assert sets[0].manifest.source == sets[1].manifest.source
    dpfc("train", "--epsilon", "1", "--features", "imagefolder-here", "--method", "dp-ls", "--out", "./one", ends=0)
    for kind, here in {"imagefolder": folder, "webdataset": packed / "test-000.tar"}.items():
        there = urls[kind] if kind == "imagefolder" else f"{urls[kind]}/test-000.tar"
        said = [dpfc("predict", "./one.safetensors", str(place), ends=0).stdout for place in (here, there)]
        assert said[0].replace(str(here), "") == said[1].replace(there, "")
