"""WebDataset: archives are read in place, and incomplete ones are refused."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.images import open_images
from tests.images.pictures import SQUARE, png, tar, values


def records(start: int, n: int) -> list[tuple[str, bytes]]:
    """Make n WebDataset records. Picture i is full of i, and its class is i % 3."""
    found: list[tuple[str, bytes]] = []
    for i in range(start, start + n):
        found += [(f"{i:04d}.json", b"{}"), (f"{i:04d}.png", png(i)), (f"{i:04d}.cls", f"{i % 3}\n".encode())]
    return found


@pytest.fixture
def web(tmp_path: Path) -> Path:
    tar(tmp_path / "web" / "train-000.tar", records(0, 5))
    tar(tmp_path / "web" / "train-001.tar", records(5, 4))
    tar(tmp_path / "web" / "val-000.tar", records(20, 3))
    return tmp_path / "web"


@pytest.mark.parametrize("how", ["folder", "braces", "wildcard"])
def test_archives_are_read_in_place_and_in_order(web: Path, how: str) -> None:
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


def test_classes_that_nobody_names_are_inferred_and_say_so_with_the_same_listing(web: Path) -> None:
    inferred = open_images(f"webdataset:{web}", geometry=SQUARE)
    asserted = open_images(f"webdataset:{web}", geometry=SQUARE, classes=("a", "b", "c", "d"))
    assert (inferred.origin, inferred.classes) == ("inferred", ("0", "1", "2"))
    assert inferred.splits["train"].listing == asserted.splits["train"].listing
    with pytest.raises(UserError, match=r"outside 0\.\.1.*do not publish"):
        open_images(f"webdataset:{web}", geometry=SQUARE, classes=("a", "b"))


def test_a_changed_label_or_picture_has_another_listing(web: Path) -> None:
    before = open_images(f"webdataset:{web}", geometry=SQUARE).splits["train"].listing
    changes: tuple[Callable[[tuple[str, bytes]], tuple[str, bytes]], ...] = (
        lambda r: (r[0], b"1" if r[0] == "0005.cls" else r[1]),
        lambda r: (r[0].replace("0005", "x"), r[1]),
    )
    for change in changes:
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
def test_incomplete_records_are_refused(tmp_path: Path, members: list[tuple[str, bytes]], says: str) -> None:
    tar(tmp_path / "train.tar", members)
    with pytest.raises(UserError, match=says):
        open_images(f"webdataset:{tmp_path}", geometry=SQUARE)


def test_a_record_that_an_archive_has_twice_is_refused(tmp_path: Path) -> None:
    """'tar --append' and 'tar --update' keep what an archive had of that name. It would count as two records."""
    tar(tmp_path / "t.tar", [*records(0, 3), *records(1, 1)])
    with pytest.raises(UserError, match=r"'0001'.*twice.*do not publish") as caught:
        open_images(f"webdataset:{tmp_path / 't.tar'}", geometry=SQUARE)
    assert caught.value.code == "bad-record"


def test_names_that_look_alike_are_names_of_different_records(tmp_path: Path) -> None:
    """An honest name may have a joiner, such as one of Persian. Names are made visible only where they are shown."""
    names = ("\u0645\u06cc\u200c\u0634", "\u0645\u06cc\u200d\u0634")
    tar(
        tmp_path / "t.tar",
        [(f"{name}.{end}", data) for name in names for end, data in (("png", png(1)), ("cls", b"1"))],
    )
    train = open_images(f"webdataset:{tmp_path / 't.tar'}", geometry=SQUARE).splits["train"]
    assert [train.name(i) for i in range(2)] == [f"t.tar/{name}.png" for name in names]


def test_names_in_archives_are_only_names(tmp_path: Path) -> None:
    """Links are ignored, and paths are not used as paths. Nothing is ever written."""
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
def test_member_names_of_any_encoding_are_read_and_shown_without_control_characters(tmp_path: Path, name: str) -> None:
    path = tmp_path / "train.tar"
    with tarfile.open(path, "w", encoding="latin-1" if name == "b\xe4r" else "utf-8", format=tarfile.GNU_FORMAT) as out:
        for extension, data in (("png", b"no picture"), ("cls", b"0")):
            info = tarfile.TarInfo(f"{name}.{extension}")
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    train = open_images(f"webdataset:{path}", geometry=SQUARE, classes=("a", "b")).splits["train"]
    with pytest.raises(UserError) as caught:
        train.pixels(0, 1)
    shown = str(caught.value)
    assert "\x1b" not in shown
    assert shown.encode("utf-8")


def test_every_truncation_of_an_archive_is_an_error_that_names_it(web: Path) -> None:
    path = web / "train-001.tar"
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0")) // 512 * 512 + 512
    for length in [*range(0, end, 512), *range(100, end, 1999)]:
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"train-001\.tar"):
            open_images(f"webdataset:{web}", geometry=SQUARE)


def test_a_damaged_header_in_the_middle_is_not_taken_for_the_end(web: Path) -> None:
    path = web / "train-001.tar"
    data = bytearray(path.read_bytes())
    at = data.index(b"0006.json")
    data[at : at + 512] = b"x" * 512
    path.write_bytes(data)
    with pytest.raises(UserError, match="damaged or cut off"):
        open_images(f"webdataset:{web}", geometry=SQUARE)


def test_a_packed_archive_says_what_to_do(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "train.tar", "w:gz") as archive:
        archive.add(__file__, "a.png")
    with pytest.raises(UserError, match="cannot be read as a tar") as caught:
        open_images(f"webdataset:{tmp_path}", geometry=SQUARE)
    assert "gunzip" in caught.value.remedy


def test_an_archive_that_shrank_since_it_was_listed_is_an_error(web: Path) -> None:
    train = open_images(f"webdataset:{web}", geometry=SQUARE).splits["train"]
    path = web / "train-001.tar"
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(UserError, match="shorter than it was"):
        train.pixels(0, train.n)


def test_an_archive_that_cannot_be_opened_is_an_error_that_names_it(web: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_arguments: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UserError, match=r"train-000\.tar' cannot be read.*Permission denied") as caught:
        open_images(f"webdataset:{web}", geometry=SQUARE)
    assert caught.value.code == "unreadable"
