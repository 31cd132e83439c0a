"""Data sets in shards: archives read in place, WebDataset, ImageNet, parquet. The same pictures come out of each."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from scipy.io import savemat

from dpfc_cli.errors import UserError
from dpfc_cli.images import Geometry, open_images
from dpfc_cli.shards import expanded, shards

SQUARE = Geometry(8, 8)
WNIDS = ("n01440764", "n01443537", "n02084071")


def png(value: int, size: tuple[int, int] = (6, 4)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (value, value, value)).save(file, "PNG")
    return file.getvalue()


def tar(path: Path, members: list[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def records(start: int, n: int) -> list[tuple[str, bytes]]:
    """n WebDataset records; picture i is full of i and of class i % 3."""
    found: list[tuple[str, bytes]] = []
    for i in range(start, start + n):
        found += [(f"{i:04d}.json", b"{}"), (f"{i:04d}.png", png(i)), (f"{i:04d}.cls", f"{i % 3}\n".encode())]
    return found


def values(split, start: int = 0) -> np.ndarray:
    return split.pixels(start, split.n)[:, 0, 0, 0]


# WebDataset


@pytest.fixture
def web(tmp_path: Path) -> Path:
    tar(tmp_path / "web" / "train-000.tar", records(0, 5))
    tar(tmp_path / "web" / "train-001.tar", records(5, 4))
    tar(tmp_path / "web" / "val-000.tar", records(20, 3))
    return tmp_path / "web"


@pytest.mark.parametrize("how", ["folder", "braces", "wildcard"])
def test_webdataset_shards_are_read_in_place_and_in_order(web, how):
    name = {"folder": f"{web}", "braces": f"{web}/train-{{000..001}}.tar", "wildcard": f"{web}/train-*.tar"}[how]
    data = open_images(f"webdataset:{name}", geometry=SQUARE, classes=("a", "b", "c"))
    train = data.splits["train"]
    assert (data.classes, data.origin) == (("a", "b", "c"), "asserted")
    assert (train.image_shape, train.prepared) == ((8, 8, 3), True)
    np.testing.assert_array_equal(values(train), np.arange(9))
    np.testing.assert_array_equal(train.labels, np.arange(9) % 3)
    if how == "folder":
        np.testing.assert_array_equal(values(data.splits["test"]), [20, 21, 22])
    assert sorted(p.name for p in web.iterdir()) == ["train-000.tar", "train-001.tar", "val-000.tar"]


def test_classes_that_nobody_names_are_inferred_and_say_so_with_the_same_listing(web):
    inferred = open_images(f"webdataset:{web}", geometry=SQUARE)
    asserted = open_images(f"webdataset:{web}", geometry=SQUARE, classes=("a", "b", "c", "d"))
    assert (inferred.origin, inferred.classes) == ("inferred", ("0", "1", "2"))
    assert inferred.splits["train"].listing == asserted.splits["train"].listing
    with pytest.raises(UserError, match=r"outside 0\.\.1.*curator"):
        open_images(f"webdataset:{web}", geometry=SQUARE, classes=("a", "b"))


def test_a_changed_label_or_picture_has_another_listing(web):
    before = open_images(f"webdataset:{web}", geometry=SQUARE).splits["train"].listing
    for change in (lambda r: (r[0], b"1" if r[0] == "0005.cls" else r[1]), lambda r: (r[0].replace("0005", "x"), r[1])):
        tar(web / "train-001.tar", [change(r) for r in records(5, 4)])
        assert open_images(f"webdataset:{web}", geometry=SQUARE).splits["train"].listing != before


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ([("a.png", png(1))], "has no .cls"),
        ([("a.cls", b"1")], "has no picture"),
        ([("a.png", png(1)), ("b.cls", b"1")], "has no .cls"),
        ([("a.png", png(1)), ("a.jpg", png(1)), ("a.cls", b"1")], "more than one picture"),
        ([("a.png", png(1)), ("a.cls", b"cat")], "does not hold a class number"),
        ([("a.png", png(1)), ("a.cls", b"-1")], "does not hold a class number"),
        ([("a.png", png(1)), ("a.cls", b"9" * 10)], "does not hold a class number"),
        ([("a.png", png(1)), ("a.cls", b"")], "does not hold a class number"),
        ([("a.png", png(1)), ("a.cls", b"900000000")], "900,000,001 classes"),
        ([], "no labelled training images"),
    ],
)
def test_records_that_are_not_whole_are_refused(tmp_path, members, says):
    tar(tmp_path / "train.tar", members)
    with pytest.raises(UserError, match=says):
        open_images(f"webdataset:{tmp_path}", geometry=SQUARE)


def test_names_in_archives_are_only_names(tmp_path):
    """Links are passed over, and paths lead nowhere: nothing is ever written."""
    secret = tmp_path / "secret.png"
    secret.write_bytes(png(99))
    path = tmp_path / "in" / "train.tar"
    path.parent.mkdir()
    with tarfile.open(path, "w") as archive:
        for name, kind, target in (
            ("link.png", tarfile.SYMTYPE, str(secret)),
            ("hard.png", tarfile.LNKTYPE, "../secret.png"),
            ("device.png", tarfile.CHRTYPE, ""),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            archive.addfile(info)
        for name, data in (
            ("../../up.png", png(1)),
            ("../../up.cls", b"0"),
            ("/etc/abs.png", b"no picture"),
            ("/etc/abs.cls", b"1"),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    train = open_images(f"webdataset:{path}", geometry=SQUARE).splits["train"]
    assert train.n == 2
    assert train.pixels(0, 1)[0, 0, 0, 0] == 1
    with pytest.raises(UserError, match=r"/etc/abs\.png"):
        train.pixels(1, 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "secret.png"]


@pytest.mark.parametrize("name", ["b\xe4r", "\u732b", "\x1b[31mred", "a b"])
def test_member_names_of_any_encoding_are_read_and_shown_without_control_characters(tmp_path, name):
    path = tmp_path / "train.tar"
    with tarfile.open(path, "w", encoding="latin-1" if name == "b\xe4r" else "utf-8", format=tarfile.GNU_FORMAT) as out:
        for extension, data in (("png", b"no picture"), ("cls", b"0")):
            info = tarfile.TarInfo(f"{name}.{extension}")
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    train = open_images(f"webdataset:{path}", geometry=SQUARE, classes=("a", "b")).splits["train"]
    with pytest.raises(UserError) as caught:
        train.pixels(0, 1)
    assert "\x1b" not in caught.value.what
    assert caught.value.what.encode("utf-8")


def test_every_truncation_of_an_archive_is_an_error_that_names_it(web):
    path = web / "train-001.tar"
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0")) // 512 * 512 + 512
    for length in [*range(0, end, 512), *range(100, end, 1999)]:
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"train-001\.tar"):
            open_images(f"webdataset:{web}", geometry=SQUARE)


def test_a_damaged_header_in_the_middle_is_not_an_early_end(web):
    path = web / "train-001.tar"
    data = bytearray(path.read_bytes())
    at = data.index(b"0006.json")
    data[at : at + 512] = b"x" * 512
    path.write_bytes(data)
    with pytest.raises(UserError, match="damaged or cut off"):
        open_images(f"webdataset:{web}", geometry=SQUARE)


def test_a_packed_archive_says_what_to_do(tmp_path):
    with tarfile.open(tmp_path / "train.tar", "w:gz") as archive:
        archive.add(__file__, "a.png")
    with pytest.raises(UserError, match="cannot be read as a tar") as caught:
        open_images(f"webdataset:{tmp_path}", geometry=SQUARE)
    assert "gunzip" in caught.value.remedy


def test_an_archive_that_shrank_since_it_was_listed_is_an_error(web):
    train = open_images(f"webdataset:{web}", geometry=SQUARE).splits["train"]
    path = web / "train-001.tar"
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(UserError, match="shorter than it was"):
        train.pixels(0, train.n)


# Patterns


def test_braces_expand_as_a_shell_expands_them():
    assert expanded("a-{08..11}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]
    assert expanded("{x,y}/{1..2}") == ["x/1", "x/2", "y/1", "y/2"]
    assert expanded("plain") == ["plain"]
    for bad in ("{5..1}", "{0..999999999}", "{0..9999}{0..9999}"):
        with pytest.raises(UserError):
            expanded(bad)


def test_splits_go_by_file_or_folder_name(tmp_path):
    for name in ("train-0.tar", "deep/test/0.tar", "trainer.tar", "validation.0.tar", ".hidden.tar", "x.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = {split: [p.name for p in paths] for split, paths in shards(str(tmp_path), ".tar").items()}
    assert found == {"train": ["train-0.tar", "trainer.tar"], "test": ["0.tar"], "validation": ["validation.0.tar"]}
    for missing in ("nowhere", "{0..1}.tar", "*.parquet"):
        with pytest.raises(UserError):
            shards(str(tmp_path / missing), ".tar")


# ImageNet


@pytest.fixture
def imagenet(tmp_path: Path):
    """A function that writes ImageNet in one of its layouts: 3 classes of 4 training images, 6 validation images."""
    train = {w: [(f"{w}_{j}.JPEG", png(10 * i + j)) for j in (3, 1, 2, 0)] for i, w in enumerate(WNIDS)}
    truth = [2, 0, 1, 1, 0, 2]
    val = [(f"ILSVRC2012_val_{i + 1:08d}.JPEG", png(100 + i)) for i in range(6)]
    # The kit numbers the classes in an order of its own, from 1, inner nodes last.
    numbers = {0: 2, 1: 3, 2: 1}

    def write(layout: str) -> Path:
        folder = tmp_path / layout
        if layout == "folders":
            for w, images in train.items():
                for name, data in images:
                    file(folder / "train" / w / name, data)
            for label, (name, data) in zip(truth, val, strict=True):
                file(folder / "val" / WNIDS[label] / name, data)
            return folder
        inner = []
        for w in reversed(WNIDS):
            inner.append((f"{w}.tar", tar(tmp_path / f"{w}.tar", train[w]).read_bytes()))
        tar(folder / "ILSVRC2012_img_train.tar", inner)
        tar(folder / "ILSVRC2012_img_val.tar", val)
        synsets = np.zeros(4, [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("num_children", "O")])
        for row, label in enumerate((2, 0, 1)):
            synsets[row] = (numbers[label], WNIDS[label], 0)
        synsets[3] = (4, "n00001740", 3)
        mat = io.BytesIO()
        savemat(mat, {"synsets": synsets})
        kit = folder / "ILSVRC2012_devkit_t12"
        file(kit / "data" / "meta.mat", mat.getvalue())
        lines = "".join(f"{numbers[label]}\n" for label in truth)
        file(kit / "data" / "ILSVRC2012_validation_ground_truth.txt", lines.encode())
        if layout == "packed":
            with tarfile.open(folder / "ILSVRC2012_devkit_t12.tar.gz", "w:gz") as archive:
                archive.add(kit, kit.name)
            for path in (*(kit / "data").iterdir(), kit / "data", kit):
                path.rmdir() if path.is_dir() else path.unlink()
        return folder

    def file(path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    return write


@pytest.mark.parametrize("layout", ["folders", "packed", "unpacked"])
def test_imagenet_is_the_same_from_folders_and_from_its_archives(imagenet, layout):
    data = open_images("imagenet", imagenet(layout), SQUARE)
    train, test = data.splits["train"], data.splits["test"]
    assert (data.name, data.classes, data.origin) == ("imagenet", WNIDS, "data set")
    np.testing.assert_array_equal(train.labels, np.repeat([0, 1, 2], 4))
    np.testing.assert_array_equal(values(train), [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23])
    np.testing.assert_array_equal(test.labels, [0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(values(test), [101, 104, 102, 103, 100, 105])
    reference = open_images("imagenet", imagenet("folders"), SQUARE)
    assert train.listing == reference.splits["train"].listing
    assert test.listing == reference.splits["test"].listing


def test_imagenet_without_its_kit_has_no_validation_labels_and_says_so(imagenet):
    folder = imagenet("packed")
    kit = folder / "ILSVRC2012_devkit_t12.tar.gz"
    data = kit.read_bytes()
    kit.write_bytes(data[:100])
    with pytest.raises(UserError, match="kit"):
        open_images("imagenet", folder, SQUARE)
    kit.unlink()
    with pytest.raises(UserError, match=r"devkit_t12\.tar\.gz"):
        open_images("imagenet", folder, SQUARE)
    (folder / "ILSVRC2012_img_val.tar").unlink()
    assert set(open_images("imagenet", folder, SQUARE).splits) == {"train"}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("ILSVRC2012_validation_ground_truth.txt", b"1\n2\n"),
        ("ILSVRC2012_validation_ground_truth.txt", b"7\n" * 6),
        ("ILSVRC2012_validation_ground_truth.txt", b"one\n" * 6),
        ("meta.mat", b"MATLAB 5.0 MAT-file"),
    ],
)
def test_a_kit_that_does_not_fit_is_refused(imagenet, name, data):
    folder = imagenet("unpacked")
    (folder / "ILSVRC2012_devkit_t12" / "data" / name).write_bytes(data)
    with pytest.raises(UserError):
        open_images("imagenet", folder, SQUARE)


def test_imagenet_that_is_not_there_says_where_to_get_it(tmp_path):
    for folder in (None, tmp_path):
        with pytest.raises(UserError) as caught:
            open_images("imagenet", folder, SQUARE)
        assert "--data-dir" in caught.value.remedy


# Parquet


def parquet(path: Path, pictures: list[bytes | None], labels: list[int], group: int = 3, **schema: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    image = pa.array([None if p is None else {"bytes": p, "path": "x.png"} for p in pictures], kind)
    table = pa.table({"image": image, "label": pa.array(labels, pa.int64()), **schema})
    names = {"info": {"features": {"image": {"_type": "Image"}, "label": {"names": ["a", "b", "c"]}}}}
    if schema.pop("named", True):
        table = table.replace_schema_metadata({"huggingface": json.dumps(names)})
    pq.write_table(table, path, row_group_size=group)
    return path


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """The hub's layout: two training files of 4 and 6 pictures, a validation file, and a test file without labels."""
    folder = tmp_path / "hub"
    parquet(folder / "data" / "train-00000-of-00002.parquet", [png(i) for i in range(4)], [0, 1, 2, 0])
    parquet(folder / "data" / "train-00001-of-00002.parquet", [png(i) for i in range(4, 10)], [1, 2, 0, 1, 2, 0])
    parquet(folder / "data" / "validation-00000-of-00001.parquet", [png(50), png(51)], [2, 1])
    parquet(folder / "data" / "test-00000-of-00001.parquet", [png(60)], [-1])
    return folder


def test_parquet_is_read_by_row_groups_with_the_hubs_names(hub):
    data = open_images(f"parquet:{hub}", geometry=SQUARE)
    train = data.splits["train"]
    assert (data.classes, data.origin, train.n) == (("a", "b", "c"), "data set", 10)
    np.testing.assert_array_equal(train.labels, np.arange(10) % 3)
    np.testing.assert_array_equal(values(train), np.arange(10))
    for i in (9, 0, 3, 4, 8, 1):
        assert train.pixels(i, i + 1)[0, 0, 0, 0] == i
    np.testing.assert_array_equal(values(data.splits["test"]), [50, 51])


def test_parquet_keeps_the_pictures_of_a_trial_only_and_reads_each_row_group_once(tmp_path, monkeypatch):
    n, read, kept = 400, [], []
    parquet(tmp_path / "train.parquet", [png(i % 200) for i in range(n)], [i % 3 for i in range(n)], group=40)
    train = open_images(f"parquet:{tmp_path}", geometry=SQUARE).splits["train"].spread(50)
    from dpfc_cli.images import prefetch
    from dpfc_cli.images.parquet import RowGroups

    real_read, real = pq.ParquetFile.read_row_group, RowGroups._pictures
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", lambda *a, **k: (read.append(a[1]), real_read(*a, **k))[1])
    count = lambda self: kept.append(sum(map(len, self._kept.values())))  # noqa: E731
    monkeypatch.setattr(RowGroups, "_pictures", lambda self, g: (real(self, g), count(self))[0])
    monkeypatch.setattr(RowGroups, "span", 4 * prefetch.PIECE * 8)
    found = [batch.pixels for _, batch in prefetch.batches([(0, train, 0, 50)], workers=8)]
    assert len(np.unique(found[0][:, 0, 0, 0])) > 40
    assert sorted(read) == list(range(10))
    assert max(kept) <= 50


def test_parquet_keeps_no_more_than_the_threads_are_at(hub, monkeypatch):
    from dpfc_cli.images.parquet import RowGroups

    kept = []
    real = RowGroups._pictures
    monkeypatch.setattr(RowGroups, "_pictures", lambda self, g: (real(self, g), kept.append(len(self._kept)))[0])
    for span, most in ((1, 2), (8, 3), (100, 4)):
        monkeypatch.setattr(RowGroups, "span", span)
        open_images(f"parquet:{hub}", geometry=SQUARE).splits["train"].pixels(0, 10)
        assert max(kept) == most
        kept.clear()


def test_parquet_without_names_asks_who_asserts_the_classes(tmp_path):
    kind = pa.struct([("bytes", pa.large_binary())])
    pictures = pa.array([{"bytes": png(7)}, {"bytes": png(8)}], kind)
    pq.write_table(pa.table({"img": pictures, "coarse": [1, 0], "fine_label": [0, 3]}), tmp_path / "all.parquet")
    data = open_images(f"parquet:{tmp_path / 'all.parquet'}", geometry=SQUARE)
    assert (data.origin, len(data.classes)) == ("inferred", 4)
    np.testing.assert_array_equal(values(data.splits["train"]), [7, 8])
    assert open_images(f"parquet:{tmp_path}", geometry=SQUARE, classes=tuple("abcde")).origin == "asserted"


@pytest.mark.parametrize("broken", [None, b"", b"no picture"])
def test_a_broken_picture_in_parquet_is_named_by_its_place(tmp_path, broken):
    parquet(tmp_path / "train.parquet", [png(0), png(1), png(2), broken], [0, 1, 2, 0])
    train = open_images(f"parquet:{tmp_path}", geometry=SQUARE).splits["train"]
    with pytest.raises(UserError, match=r"row 0 of row group 1.*curator"):
        train.pixels(2, 4)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda f: (f / "train.parquet").write_bytes(b"PAR1 no"), "cannot be read as parquet"),
        (lambda f: (f / "train.parquet").write_bytes((f / "good").read_bytes()[:-9]), "cannot be read as parquet"),
        (lambda f: pq.write_table(pa.table({"label": [1]}), f / "train.parquet"), "no column of pictures"),
        (lambda f: pq.write_table(pa.table({"x": [[1.0]], "label": [1]}), f / "train.parquet"), "dpfc import|pictures"),
        (lambda f: parquet(f / "train.parquet", [png(1)], [None]), "no integers"),
        (lambda f: parquet(f / "train.parquet", [png(1)], [3]), r"outside 0\.\.2"),
        (lambda f: parquet(f / "train.parquet", [png(1), png(1)], [0, -1]), r"outside 0\.\.2"),
    ],
)
def test_parquet_that_cannot_be_taken_is_refused(tmp_path, make, says):
    parquet(tmp_path / "good", [png(1)], [0])
    make(tmp_path)
    with pytest.raises(UserError, match=says):
        open_images(f"parquet:{tmp_path}", geometry=SQUARE)


def test_a_row_group_that_would_fill_the_memory_is_refused(hub, monkeypatch):
    from dpfc_cli.images import parquet as module

    monkeypatch.setattr(module, "LARGEST_GROUP", 100)
    with pytest.raises(UserError, match="row group") as caught:
        open_images(f"parquet:{hub}", geometry=SQUARE)
    assert "row_group_size" in caught.value.remedy


def test_another_parquet_has_another_listing(hub):
    before = open_images(f"parquet:{hub}", geometry=SQUARE).splits["train"].listing
    parquet(hub / "data" / "train-00000-of-00002.parquet", [png(i) for i in range(4)], [0, 2, 1, 0])
    assert open_images(f"parquet:{hub}", geometry=SQUARE).splits["train"].listing != before


def test_files_that_name_their_classes_take_no_others(hub):
    with pytest.raises(UserError, match="name their classes"):
        open_images(f"parquet:{hub}", geometry=SQUARE, classes=("x", "y", "z"))
