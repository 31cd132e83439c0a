"""Pictures and tables at URLs are those of this machine."""

import pickle
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from safetensors.numpy import save_file
from typer.testing import Result

import dpfc_cli as library
from dpfc_cli.annotations.groups import rule_of
from dpfc_cli.images import catalogue
from dpfc_cli.images.pictures import Files
from dpfc_cli.images.sets import Decoder, ImageSet
from dpfc_cli.places import place_of
from tests.extensions.buckets.conftest import KEY, SECRET, TOKEN, Bucket, Server
from tests.images.pictures import AS_SQUARE, SQUARE, png, request, tar
from tests.support import refuses

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
        path = tmp_path / "photos" / ("test" if i % 4 == 3 else "train") / f"c{i % 3}" / f"p{i % 5}" / f"ä {i}#?x=1.png"
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
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*#*.png"))
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
    (top / "train-003?x=1.parquet").write_bytes((top / "train-001.parquet").read_bytes())
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


def test_pictures_and_decoders_go_to_other_processes(bucket: Bucket, folder: Path, packed: Path) -> None:
    """What was read stays here, and no credential goes with them. The file system is found again by its URL."""
    urls = {"imagefolder": bucket.upload(folder), "parquet": bucket.upload(packed), "webdataset": bucket.url("packed")}
    for kind, url in urls.items():
        split = opened(f"{kind}:{url}").splits["train"]
        before = split.pixels(0, split.n)
        sent = pickle.dumps(split.pixels.only(np.arange(split.n)[::-1]))
        assert not [each for each in (KEY, SECRET, TOKEN) if each.encode() in sent]
        assert len(sent) < 6000
        assert np.array_equal(pickle.loads(sent)(0, split.n), before[::-1])


@pytest.mark.parametrize("ending", [".npz", ".safetensors", ".h5", ".csv", ".parquet"])
def test_features_of_others_are_imported_from_a_bucket_as_from_here(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32), np.arange(30) % 2
    here = tmp_path / f"features{ending}"
    if ending == ".npz":
        np.savez(here, train_x=x, train_y=y)
    elif ending == ".safetensors":
        save_file({"train_x": x, "train_y": y}, here)
    elif ending == ".h5":
        with h5py.File(here, "w") as file:
            file["train_x"], file["train_y"] = x, y
    else:
        table = pa.table({f"f{i}": x[:, i] for i in range(4)} | {"label": y})
        (pq.write_table if ending == ".parquet" else csv.write_csv)(table, here)
    bucket.put(here.name, here.read_bytes())
    one = library.import_features(str(here), "one", classes=2).features
    two = library.import_features(bucket.url(here.name), "two", classes=2).features
    assert (one.manifest.splits, one.manifest.source) == (two.manifest.splits, two.manifest.source)
    assert not list(tmp_path.glob("dpfc-*"))


def test_slides_in_a_bucket_are_those_of_here(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slides" / "deep").mkdir(parents=True)
    for i in range(6):
        with h5py.File(tmp_path / "slides" / ("deep" if i % 2 else ".") / f"s{i}.h5", "w") as file:
            file["features"] = np.full((5, 3), i, np.float32)
    (tmp_path / "slides.csv").write_text("slide,label\n" + "".join(f"s{i},{i % 2}\n" for i in range(6)))
    url = bucket.upload(tmp_path / "slides")
    bucket.put("slides.csv", (tmp_path / "slides.csv").read_bytes())
    more: dict[str, Any] = {"classes": 2, "each_record_is_a_person": True}
    one = library.import_features(f"slides:{tmp_path / 'slides'}", "one", table=tmp_path / "slides.csv", **more)
    two = library.import_features(f"slides:{url}", "two", table=bucket.url("slides.csv"), **more)
    assert one.features.manifest.splits == two.features.manifest.splits


def test_a_read_that_is_cut_off_is_no_damage_of_a_picture(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    class CutOff(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(206)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(png(1)[:40])

        def log_message(self, *about: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), CutOff) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.server_port}")
        decoder = Decoder(Files(place_of("s3://bucket/photos"), ["secret.png"]), AS_SQUARE, alone=True)
        with refuses("unreadable", "un the same command again") as caught:
            decoder(0, 1)
        assert "secret.png" not in str(caught.value)
        proxy.shutdown()
        thread.join()


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
