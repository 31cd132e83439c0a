"""Feature sets in a bucket: the same heads, and nothing wrong is stored, whatever stops."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from s3fs import S3FileSystem
from typer.testing import Result

import dpfc_cli as library
from dpfc_cli.errors import UserError
from dpfc_cli.features.manifest import MANIFEST, SETTINGS
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.features.writer import FeatureWriter
from dpfc_cli.folders import LEDGER
from dpfc_cli.places import place_of, remote
from dpfc_cli.training.observer import TRAINING, Observer
from tests.cli.conftest import charges
from tests.extensions.buckets.conftest import KEY, SECRET, TOKEN, Bucket
from tests.images.pictures import png
from tests.support import bare_manifest, nulls, refuses, shards_of

WANTED, OTHER = (bare_manifest({"identity": {"listing": {"train": "", "test": ""}, "n": n}}) for n in (1, 2))
Dpfc = Callable[..., Result]


def writer(url: str, **changes: Any) -> FeatureWriter:
    """Of a set of 4 + 2 shards."""
    with shards_of(5):
        return FeatureWriter(
            place_of(url), **{"manifest": WANTED, "broken": nulls({"train": 20, "test": 6}), **changes}
        )


def make(w: FeatureWriter, most: int | None = None, scale: float = 1.0) -> None:
    for planned in w.missing[:most]:
        rows = np.arange(planned.start, planned.stop)
        with w.shard(planned) as sink:
            sink.append(scale * np.stack([rows, -rows], axis=1).astype(np.float32), rows % 2)


def stored(bucket: Bucket, folder: str) -> dict[str, bytes]:
    return {name.removeprefix(f"{folder}/"): bucket.get(name) for name in bucket.names(f"{folder}/")}


def test_a_head_of_a_set_in_a_bucket_is_that_of_a_local_one_to_the_bit(
    dpfc: Dpfc, bucket: Bucket, arrays: Path
) -> None:
    """The set, the import and the source may lie at URLs. The ledger is that of the features folder."""
    source = bucket.upload(arrays, "arrays")
    dpfc("import", "arrays", "--out", "here", "--classes", "3", "--dtype", "float32", ends=0)
    there = bucket.url("sets/here")
    line = ("import", source, "--out", there, "--classes", "3", "--dtype", "float32", "--population", "ward", "--json")
    made = json.loads(dpfc(*line, ends=0).stdout)
    assert made["sha256"] == hashlib.sha256(bucket.get(f"sets/here/{MANIFEST}")).hexdigest()
    one, two = library.open_features("here"), library.open_features(there)
    assert [each.sha256 for each in one.split("train").shards] == [each.sha256 for each in two.split("train").shards]
    assert sorted(stored(bucket, "sets/here")) == sorted(
        [MANIFEST, *(s.file for k in two.splits for s in two.split(k).shards)]
    )
    for each in (one, two):
        each.verify("train")
        assert each.is_same()
    assert np.array_equal(one.arrays("test")[0], two.arrays("test")[0])
    for place, name in (("here", "./one"), (there, "./two")):
        dpfc("train", "--features", place, "--epsilon", "1", "--seed", "7", "--out", name, "--again", ends=0)
    heads = [library.Head.load(f"{name}.research.safetensors") for name in ("one", "two")]
    assert all(np.array_equal(getattr(heads[0], part), getattr(heads[1], part)) for part in ("weight", "bias"))
    dpfc("train", "--features", there, "--epsilon", "1", ends=0)
    assert len(charges()) == 3
    dpfc("evaluate", "--features", there, ends=0)
    assert "ward" in dpfc("budget", "--features", there, ends=0).stdout


def test_a_pass_takes_one_request_for_each_shard_and_verifying_it_no_more(
    bucket: Bucket, asked: Callable[[], list[str]]
) -> None:
    w = writer(bucket.url("set"))
    make(w)
    w.finish()
    found = FeatureSet(bucket.url("set"))
    asked()
    for split, shards in (("train", 4), ("test", 2)):
        for use in (lambda name: [*found.stream(name)(3)], found.verify):
            use(split)
            assert len(asked()) == shards
    found.is_same()
    assert len(asked()) == 1


def test_a_set_that_was_begun_goes_on_with_the_shards_that_are_there(bucket: Bucket, tmp_path: Path) -> None:
    url = bucket.url("set")
    with closing(writer(url)) as first:
        make(first, 2)
    before = stored(bucket, "set")
    with refuses("missing", "not complete"):
        library.open_features(url)
    with refuses("conflict"):
        writer(url, manifest=OTHER)
    assert stored(bucket, "set") == before
    second = writer(url, population="ward")
    assert second.resumed == 4
    make(second)
    whole = second.finish()
    after = stored(bucket, "set")
    assert {name: after.get(name) for name in before} == {**before, SETTINGS: None}
    found = FeatureSet(url)
    assert found.manifest == whole
    assert np.array_equal(found.arrays("train")[0][:, 0], np.arange(20))
    with refuses("busy"):
        writer(url)
    assert stored(bucket, "set") == after


def test_a_run_without_a_finished_shard_leaves_nothing_and_hinders_nobody(bucket: Bucket) -> None:
    with closing(writer(bucket.url("set"))):
        pass
    assert stored(bucket, "set") == {}
    abandoned = writer(bucket.url("set"))
    second = writer(bucket.url("set"), manifest=OTHER)
    make(second)
    make(abandoned, 2)
    second.finish()
    make(abandoned)
    with refuses("busy"):
        abandoned.finish()
    found = FeatureSet(bucket.url("set"))
    assert found.manifest.source == OTHER.source
    for split in found.splits:
        found.verify(split)


def test_two_that_make_a_set_at_once_describe_what_is_stored(bucket: Bucket) -> None:
    """Their devices may differ in the last bits. Of each shard the first one stays, and both describe that one."""
    url, registered = bucket.url("set"), list[str]()
    one, two = writer(url), writer(url)
    planned = one.missing
    make(one, 1)
    for each in planned:
        rows = np.arange(each.start, each.stop)
        with two.shard(each) as sink:
            sink.append(2 * np.stack([rows, -rows], axis=1).astype(np.float32), rows % 2)
    for each in planned[1:]:
        rows = np.arange(each.start, each.stop)
        with one.shard(each) as sink:
            sink.append(np.stack([rows, -rows], axis=1).astype(np.float32), rows % 2)
    whole = two.finish(lambda folder, manifest: registered.append(manifest.id))
    assert one.finish(lambda folder, manifest: registered.append(manifest.id)) == whole
    for w in (one, two):
        w.close()
    found = FeatureSet(url)
    assert ({found.manifest.id}, {*registered}) == ({whole.id}, {whole.id})
    for split in found.splits:
        found.verify(split)
    assert found.arrays("train")[0][:, 0].tolist() == [*range(5), *range(10, 40, 2)]


def test_a_server_that_writes_over_what_is_there_gets_no_set(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = S3FileSystem._pipe_file

    async def careless(self: S3FileSystem, path: str, data: bytes, mode: str = "", **more: Any) -> Any:
        return await whole(self, path, data, **more)

    monkeypatch.setattr(S3FileSystem, "_pipe_file", careless)
    with refuses("unsupported", "writes over"):
        writer(bucket.url("set"))


@pytest.mark.parametrize("damage", ["changed", "short", "gone", "other"])
def test_a_damaged_shard_is_refused_before_a_value_is_used(bucket: Bucket, damage: str) -> None:
    w = writer(bucket.url("set"))
    make(w)
    w.finish()
    found = FeatureSet(bucket.url("set"))
    names = [f"set/{shard.file}" for shard in found.split("train").shards]
    data = bucket.get(names[1])
    if damage == "gone":
        bucket.client.delete_object(Bucket=bucket.name, Key=names[1])
    else:
        at = len(data) // 2
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        bucket.put(names[1], {"changed": changed, "short": data[:-9], "other": bucket.get(names[2])}[damage])
    for use in (lambda: found.verify("train"), lambda: found.arrays("train")):
        with refuses("missing" if damage == "gone" else "damaged", path=bucket.url(names[1])):
            use()
    with refuses("damaged" if damage != "gone" else "missing"):
        list(found.stream("train")(3))


def test_a_set_that_another_one_replaced_meanwhile_is_not_read_on(bucket: Bucket) -> None:
    w = writer(bucket.url("set"))
    make(w)
    w.finish()
    found = FeatureSet(bucket.url("set"))
    blocks = found.watched(found.stream("train"))(3)
    next(blocks)
    manifest = json.loads(bucket.get(f"set/{MANIFEST}"))
    bucket.put(f"set/{MANIFEST}", json.dumps(manifest | {"id": "0" * 32}).encode())
    with refuses("conflict"):
        next(blocks)


# A server that stops


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for i in range(48):
        path = tmp_path / "photos" / f"c{i % 3}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(i))
    return tmp_path / "photos"


EXTRACT = ("--classes", "c0,c1,c2", "--model", "scattering", "--pool", "mean", "--image-size", "8")


@pytest.fixture
def again(bucket: Bucket) -> Iterator[Bucket]:
    """The server runs afterwards, whatever becomes of the test."""
    yield bucket
    bucket.server.stop()
    bucket.server.start()


def test_a_server_that_stops_ends_an_extraction_with_one_message_and_it_goes_on_after(
    again: Bucket, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked: dict[str, Any] = {"classes": ["c0", "c1", "c2"], "pool": "mean", "image_size": 8}
    asked["each_record_is_a_person"] = True
    source, out = f"imagefolder:{again.upload(photos)}", again.url("sets/photos")

    def stop(stage: str, done: int, total: int | None) -> None:
        if stage == "Extracting" and done >= 32 and again.server.running:
            again.server.stop()

    with pytest.raises(UserError) as caught, shards_of(8):
        library.extract(source, out=out, progress=stop, **asked)
    assert caught.value.code in ("unreadable", "unwritable")
    assert "un the same command again" in str(caught.value)
    again.server.start()
    begun = again.names("sets/photos")
    assert SETTINGS in {name.rpartition("/")[2] for name in begun}
    assert len(begun) > 1
    assert not Path("features", LEDGER).exists()
    with shards_of(8):
        made = library.extract(source, out=out, **asked)
        here = library.extract(f"imagefolder:{photos}", out="here", **asked).features
    assert made.resumed is not None
    assert [s.sha256 for s in made.features.split("train").shards] == [s.sha256 for s in here.split("train").shards]


def test_a_server_that_stops_ends_a_training_and_the_same_command_goes_on_with_one_charge(
    again: Bucket, arrays: Path, dpfc: Dpfc
) -> None:
    there = again.url("sets/blobs")
    dpfc("import", "arrays", "--out", there, "--classes", "3", ends=0)
    features = library.open_features(there)

    class Stopping(Observer):
        def progress(self, stage: str, done: int, total: int | None) -> None:
            if stage.startswith(TRAINING):
                again.server.stop()

    with pytest.raises(UserError) as caught:
        library.train(features, epsilon=1.0, observer=Stopping())
    assert caught.value.code == "unreadable"
    assert len(charges()) == 1
    assert not list(Path("heads").glob("*"))
    again.server.start()
    trained = library.train(features, epsilon=1.0)
    assert len(charges()) == 1
    assert trained.path.exists()


# Who may read


def everything(tmp_path: Path, bucket: Bucket) -> bytes:
    """All that is stored: in the working folder, and in the bucket."""
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    return b"\n".join([*files, *stored(bucket, "").values()])


def test_no_credential_is_in_a_message_a_file_or_an_object(
    dpfc: Dpfc, bucket: Bucket, photos: Path, tmp_path: Path
) -> None:
    source, out = f"imagefolder:{bucket.upload(photos)}", bucket.url("sets/photos")
    said = [
        dpfc("-v", "extract", source, "--each-record-is-a-person", *EXTRACT, "--out", out, ends=0),
        dpfc("-v", "train", "--features", out, "--epsilon", "1", ends=0),
        dpfc("list", ends=0),
        dpfc("budget", "--features", out, "--json", ends=0),
        dpfc("predict", str(next(Path("heads").glob("*.safetensors")).stem), source, ends=0),
    ]
    texts = "\n".join(each.output for each in said).encode() + everything(tmp_path, bucket)
    assert not [each for each in (KEY, SECRET, TOKEN) if each.encode() in texts]


def test_a_url_with_a_secret_is_refused_and_not_repeated(dpfc: Dpfc, bucket: Bucket, tmp_path: Path) -> None:
    urls = (f"s3://{KEY}:{SECRET}@bucket/x", f"s3://bucket/x.parquet?X-Amz-Signature={SECRET}", f"s3://{KEY}@b/x")
    for url in urls:
        for line in (
            ("extract", f"imagefolder:{url}", "--classes", "a,b"),
            ("extract", url, "--classes", "a,b"),
            ("extract", "digits", "--out", url),
            ("extract", "imagefolder:x", "--classes", url),
            ("extract", "imagefolder:x", "--classes", "a,b", "--table", url),
            ("import", url, "--classes", "2"),
            ("train", "--features", url, "--epsilon", "1"),
            ("train", "--out", url, "--epsilon", "1"),
            ("predict", "head", url),
            ("extract", url, "--dataset", "digits"),
            ("train", url),
            ("list", url),
            ("budget", "--ledger", url),
        ):
            ended = dpfc("-v", *line)
            assert ended.exit_code == 2, line
            assert SECRET not in ended.output
            assert KEY not in ended.output, line
    assert SECRET.encode() not in everything(tmp_path, bucket)


def test_wrong_credentials_a_bucket_that_is_not_there_and_no_server_are_said(
    dpfc: Dpfc, bucket: Bucket, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import requests

    url = bucket.upload(photos)
    more = ("--each-record-is-a-person", *EXTRACT)
    gone = dpfc("extract", "imagefolder:s3://no-such-bucket/x", *more, ends=2)
    assert "There is nothing at" in gone.output
    requests.post(f"{bucket.server.url}/moto-api/reset-auth", data="0", timeout=5)
    try:
        for line in (
            ("extract", f"imagefolder:{url}", *more),
            ("extract", f"webdataset:{url}/{{0..3}}.tar", *more),
            ("extract", "digits", "--out", bucket.url("new"), "--limit", "20"),
            ("train", "--features", bucket.url("set"), "--epsilon", "1"),
        ):
            ended = dpfc("-v", *line, ends=7)
            assert "credentials" in ended.output, ended.output
            assert SECRET not in ended.output
            assert KEY not in ended.output
    finally:
        requests.post(f"{bucket.server.url}/moto-api/reset-auth", data="inf", timeout=5)
    S3FileSystem.clear_instance_cache()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    ended = dpfc("extract", f"imagefolder:{url}", *more, ends=7)
    assert "the server, or the way to it, failed" in ended.output


def test_a_ledger_heads_and_files_that_need_a_file_system_have_no_url(
    dpfc: Dpfc, features: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = bucket.url("x")
    for line in (
        ("train", "--epsilon", "1", "--out", url),
        ("merge", url),
        ("train", "--epsilon", "1", "--public-head", url),
        ("predict", url, "pictures"),
    ):
        ended = dpfc(*line, ends=2)
        assert "is a URL" in ended.output, (line, ended.output)
    for name in ("DPFC_FEATURES", "DPFC_HEADS"):
        monkeypatch.setenv(name, url)
        ended = dpfc("train", "--epsilon", "1", ends=2)
        assert "locks" in ended.output
        monkeypatch.delenv(name)
    assert not bucket.names()


@pytest.mark.parametrize("url", ["s3://", "s3:///x", "simplecache::s3://bucket/x", "simplecache::s3://K:marked@b/x"])
def test_a_url_that_names_no_bucket_and_a_chained_one_are_refused(url: str) -> None:
    with pytest.raises(UserError, match=r"names no bucket|does not know|has a user") as refused:
        place_of(url)
    assert "marked" not in str(refused.value)


def test_no_set_is_made_where_writes_have_no_conditions() -> None:
    far = remote(place_of("hf://datasets/owner/name/set"))
    assert far is not None
    with refuses("unsupported", "conditional writes"):
        far.make(b"")


def test_without_the_packages_it_is_said_what_to_install(dpfc: Dpfc, monkeypatch: pytest.MonkeyPatch) -> None:
    for scheme, package in {"gs": "gcsfs", "az": "adlfs"}.items():
        ended = dpfc("train", "--epsilon", "1", "--features", f"{scheme}://bucket/x", ends=2)
        assert package in ended.output
    monkeypatch.setattr("dpfc_cli.errors.find_spec", lambda name: None)
    ended = dpfc("train", "--epsilon", "1", "--features", "s3://bucket/x", ends=2)
    assert "[buckets]" in ended.output
