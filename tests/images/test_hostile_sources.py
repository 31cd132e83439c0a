"""Sources that would take all memory, recurse without end or fail at the end of an extraction are refused at once."""

import os
import pickle
import struct
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.extraction.extract import extract
from dpfc_cli.images import open_images, rows
from dpfc_cli.images.memory import MOST_BYTES
from dpfc_cli.images.sets import UnreadableError
from dpfc_cli.images.tars import LONGEST_NAME
from dpfc_cli.images.unpickle import read_pickle
from dpfc_cli.sources.classes import labelled
from tests.images.pictures import SQUARE, png, tar

BLOCK = tarfile.BLOCKSIZE
RECORD = [("1.png", png(1)), ("1.cls", b"1")]


def refused(source: str | Path, kind: str) -> UserError:
    with pytest.raises(UserError) as error:
        open_images(f"{kind}:{source}", geometry=SQUARE)
    return error.value


def header(kind: bytes, size: int, name: str = "x") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def archive(path: Path, first: bytes) -> Path:
    """An archive that begins with these bytes. One good record follows."""
    rest = tar(path, RECORD).read_bytes()
    path.write_bytes(first + rest)
    return path


@pytest.mark.parametrize(
    ("kind", "name"),
    [(tarfile.GNUTYPE_LONGNAME, b"abc\0"), (tarfile.XHDTYPE, b"12 path=abc\n"), (tarfile.XGLTYPE, b"12 path=abc\n")],
    ids=["GNU", "pax", "global pax"],
)
def test_a_member_with_thousands_of_names_is_damage(tmp_path: Path, kind: bytes, name: bytes) -> None:
    """tarfile calls itself for each of them."""
    names = (header(kind, len(name)) + name.ljust(BLOCK, b"\0")) * 3_000
    assert refused(archive(tmp_path / "a.tar", names), "webdataset").code == "damaged"


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_a_name_of_gigabytes_is_not_read(tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(header(kind, 8 << 30))
    os.truncate(path, 9 << 30)
    tracemalloc.start()
    error = refused(path, "webdataset")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (error.code, "a name of 8589934592 bytes" in str(error)) == ("damaged", True)
    assert peak < 16 << 20


def test_a_long_name_is_only_a_name(tmp_path: Path) -> None:
    name = "x" * 100_000
    assert len(name) < LONGEST_NAME
    path = tar(tmp_path / "a.tar", [(f"{name}.png", png(1)), (f"{name}.cls", b"1")])
    assert open_images(f"webdataset:{path}", geometry=SQUARE, classes=("a", "b")).splits["train"].n == 1


@pytest.mark.parametrize("size", [2**63 - 1, 2**62, -1, -(2**60)])
def test_a_member_of_an_impossible_size_is_damage(tmp_path: Path, size: int) -> None:
    assert refused(archive(tmp_path / "a.tar", header(tarfile.REGTYPE, size)), "webdataset").code == "damaged"


@pytest.mark.parametrize("chained", [True, False])
def test_the_archive_of_cifar_is_no_way_around_this(tmp_path: Path, pack: Callable[..., Path], chained: bool) -> None:
    import gzip

    name = header(tarfile.GNUTYPE_LONGNAME, 4) + b"abc\0".ljust(BLOCK, b"\0")
    first = name * 3_000 if chained else header(tarfile.GNUTYPE_LONGNAME, LONGEST_NAME + 1)
    path = archive(tmp_path / "a.tar", first)
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    with pytest.raises(UserError) as error:
        open_images("cifar10", tmp_path)
    assert error.value.code == "damaged"


def test_a_pickle_cannot_make_its_table_of_objects_longer_than_itself() -> None:
    """Python takes eight bytes for each place, up to 32 GB."""
    with pytest.raises(UserError, match=r"4000000000th"):
        read_pickle(b"\x80\x02}r" + struct.pack("<I", 4_000_000_000) + b".", "a")
    with pytest.raises(UserError, match=r"9999999999th"):
        read_pickle(b"}p9999999999\n.", "a")
    many = {b"labels": list(range(1_000)), b"names": [b"%d" % i for i in range(1_000)]}
    assert read_pickle(pickle.dumps(many, 2), "a") == {"labels": many[b"labels"], "names": many[b"names"]}


def parquet(path: Path, pictures: list[bytes | None], labels: pa.Array, features: bytes | None = None) -> Path:
    table = pa.table({"image": pa.array([{"bytes": data, "path": None} for data in pictures]), "label": labels})
    if features is not None:
        table = table.replace_schema_metadata({b"huggingface": features})
    pq.write_table(table, path)
    return path


@pytest.mark.parametrize("kind", ["uint8", "int8", "uint16", "uint32", "uint64"])
def test_labels_may_be_integers_of_any_kind(tmp_path: Path, kind: str) -> None:
    path = parquet(tmp_path / "a.parquet", [png(0), png(1), png(2)], pa.array([2, 0, 1], kind))
    assert open_images(f"parquet:{path}", geometry=SQUARE).splits["train"].labels.tolist() == [2, 0, 1]


@pytest.mark.parametrize("label", [2**64 - 1, 10**30, -(10**30)])
@pytest.mark.parametrize("classes", [None, ("a", "b")])
def test_a_label_beyond_all_integers_is_refused(label: int, classes: tuple[str, ...] | None) -> None:
    with pytest.raises(UserError, match="do not publish") as caught:
        labelled({"train": [0, label, None]}, classes)
    assert caught.value.code == "bad-record"


@pytest.mark.parametrize("features", [b"[" * 100_000, b'{"info": 1e400}', b'{"info": NaN}', b"\xff", b"[]"])
def test_metadata_that_name_no_classes_are_ignored(tmp_path: Path, features: bytes) -> None:
    path = parquet(tmp_path / "a.parquet", [png(0), png(1)], pa.array([0, 1]), features)
    assert open_images(f"parquet:{path}", geometry=SQUARE).classes == ("0", "1")


def test_a_file_that_declares_more_records_than_it_has_bytes_is_refused(tmp_path: Path) -> None:
    """A million equal labels and missing pictures take 5 kB, and a billion hardly more."""
    n = 1_000_000
    pictures = pa.StructArray.from_arrays([pa.nulls(n, pa.binary())], ["bytes"])
    pq.write_table(pa.table({"image": pictures, "label": np.zeros(n, np.uint8)}), tmp_path / "a.parquet")
    error = refused(tmp_path / "a.parquet", "parquet")
    assert (error.code, "declares 1,000,000 records" in str(error)) == ("damaged", True)


def test_a_row_group_that_expands_beyond_its_declared_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture that is repeated a thousand times is stored once."""
    monkeypatch.setattr(rows, "LARGEST_GROUP", 1 << 20)
    path = parquet(tmp_path / "a.parquet", [png(1).ljust(10_000, b"\0")] * 1_000, pa.array([0, 1] * 500))
    assert pq.ParquetFile(path).metadata.row_group(0).total_byte_size < 1 << 16
    split = open_images(f"parquet:{path}", geometry=SQUARE).splits["train"]
    with pytest.raises(UserError, match="row group") as error:
        split.pixels(0, 1)
    assert error.value.code == "memory"
    monkeypatch.undo()
    assert (split.pixels(999, 1_000) == 1).all()


def test_a_class_folder_whose_name_is_not_utf8_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    """No manifest could hold it. The extraction ended with a defect, after all pictures."""
    for name in (b"a", b"b\xff"):
        folder = tmp_path / "photos" / os.fsdecode(name)
        try:
            folder.mkdir(parents=True)
        except OSError:
            pytest.skip("this file system has no such names")
        (folder / "1.png").write_bytes(png(1))
    with pytest.raises(UserError, match=r"b\\udcff' is not UTF-8") as error:
        extract(f"imagefolder:{tmp_path / 'photos'}", image_size=8, out=tmp_path / "set")
    assert error.value.code == "bad-value"
    str(error.value).encode()
    assert not list(tmp_path.glob("set*"))


def test_a_class_that_is_no_text_is_refused_whoever_names_it(tmp_path: Path) -> None:
    features = b'{"info": {"features": {"label": {"names": ["a", "\\ud800"]}}}}'
    path = parquet(tmp_path / "a.parquet", [png(0), png(1)], pa.array([0, 1]), features)
    with pytest.raises(UserError, match="not UTF-8"):
        extract(f"parquet:{path}", image_size=8, out=tmp_path / "set")


def test_a_file_whose_name_is_not_utf8_is_a_picture_like_others(tmp_path: Path) -> None:
    for name in (b"a", b"b"):
        (tmp_path / os.fsdecode(name)).mkdir()
        try:
            (tmp_path / os.fsdecode(name) / os.fsdecode(b"1\xff.png")).write_bytes(png(1))
        except OSError:
            pytest.skip("this file system has no such names")
    assert (open_images(f"imagefolder:{tmp_path}", geometry=SQUARE).splits["train"].pixels(0, 2) == 1).all()


@pytest.mark.parametrize("where", ["folder", "archive"])
def test_a_picture_of_gigabytes_is_refused_unread(tmp_path: Path, where: str) -> None:
    size = MOST_BYTES + 1
    if where == "folder":
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "1.png").write_bytes(b"")
        os.truncate(tmp_path / "a" / "1.png", size)
        split = open_images(f"imagefolder:{tmp_path}", geometry=SQUARE).splits["train"]
    else:
        path = tmp_path / "a.tar"
        path.write_bytes(header(tarfile.REGTYPE, 1, "1.cls") + b"1".ljust(BLOCK, b"\0"))
        path.write_bytes(path.read_bytes() + header(tarfile.REGTYPE, size, "1.png"))
        os.truncate(path, path.stat().st_size + -(-size // BLOCK) * BLOCK + 2 * BLOCK)
        split = open_images(f"webdataset:{path}", geometry=SQUARE, classes=("a", "b")).splits["train"]
    tracemalloc.start()
    with pytest.raises(UnreadableError, match="bytes"):
        split.pixels(0, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"])
def test_only_regular_files_are_opened(tmp_path: Path, make: Callable[[Path], object]) -> None:
    (tmp_path / "a").mkdir()
    make(tmp_path / "a" / "1.png")
    assert "is not a file" in str(refused(tmp_path, "imagefolder"))


@pytest.mark.parametrize("place", ["a/1.png", "b"])
def test_a_link_that_leads_in_a_circle_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / place).symlink_to(Path(place).name)
    error = refused(tmp_path, "imagefolder")
    assert (error.code, Path(place).name in str(error)) == ("unreadable", True)
