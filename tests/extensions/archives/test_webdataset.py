"""WebDataset: archives are read in place. Incomplete, damaged and hostile ones are refused."""

import io
import json
import os
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.annotations.groups import rule_of
from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.extensions.archives.tars import LONGEST_NAME
from dpfc_cli.images.pictures import MOST_BYTES
from dpfc_cli.images.sets import ImageSet
from tests.images import test_persons as persons
from tests.images.pictures import SQUARE, open_images, png, tar, values
from tests.support import refuses

BLOCK = tarfile.BLOCKSIZE


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


def opened(place: object, **options: Any) -> ImageSet:
    return open_images(f"webdataset:{place}", geometry=SQUARE, **{"classes": ("a", "b", "c", "d"), **options})


def refused(place: object, code: str, match: str | None = None, **options: Any) -> UserError:
    with refuses(code, match) as caught:
        opened(place, **options)
    return caught.value


@pytest.mark.parametrize("how", ["folder", "braces", "wildcard"])
def test_archives_are_read_in_place_and_in_order(web: Path, how: str) -> None:
    name = {"folder": f"{web}", "braces": f"{web}/train-{{000..001}}.tar", "wildcard": f"{web}/train-*.tar"}[how]
    data = opened(name, classes=("a", "b", "c"))
    train = data.splits["train"]
    assert (data.classes, data.origin) == (("a", "b", "c"), "asserted")
    assert train.pixels.shape == (8, 8, 3)
    np.testing.assert_array_equal(values(train), np.arange(9))
    np.testing.assert_array_equal(train.labels, np.arange(9) % 3)
    if how == "folder":
        np.testing.assert_array_equal(values(data.splits["test"]), [20, 21, 22])
    assert sorted(p.name for p in web.iterdir()) == ["train-000.tar", "train-001.tar", "val-000.tar"]


def test_the_listing_knows_labels_and_names_and_no_classes(web: Path) -> None:
    before = opened(web).splits["train"].listing
    assert before == opened(web, classes=("c", "b", "a")).splits["train"].listing
    assert GUARDED in refused(web, "bad-record", classes=("a", "b")).what
    relabelled = [(name, b"1" if name == "0005.cls" else data) for name, data in records(5, 4)]
    renamed = [(name.replace("0005", "x"), data) for name, data in records(5, 4)]
    for changed in (relabelled, renamed):
        tar(web / "train-001.tar", changed)
        assert opened(web).splits["train"].listing != before


def test_incomplete_records_are_refused(tmp_path: Path) -> None:
    a = ("a.png", png(1))
    for members in (
        [a],
        [("a.cls", b"1")],
        [a, ("b.cls", b"1")],
        [a, ("a.jpg", png(1)), ("a.cls", b"1")],
        *([a, ("a.cls", text)] for text in (b"cat", b"\xff", b"a" * 2000, b"9" * 10, b"")),
        [],
        # 'tar --append' and 'tar --update' keep what an archive had of that name. It would count as two records.
        [*records(0, 3), *records(1, 1)],
    ):
        tar(tmp_path / "train.tar", members)
        assert GUARDED in refused(tmp_path, "bad-record" if members else "missing").what


def packed(folder: Path, facts: object, *extra: tuple[str, bytes]) -> Path:
    text = facts if isinstance(facts, bytes) else json.dumps(facts).encode()
    tar(folder / "train.tar", [("0.jpg", png(0)), ("0.json", text), ("0.txt", b"a cat"), *extra])
    return folder


def test_the_label_of_img2datasets_json_is_under_the_key_that_is_named(tmp_path: Path) -> None:
    facts = {"caption": "a cat", "key": "000", "status": "success", "width": 6, "breed": 2, "kind": "cat"}
    error = refused(packed(tmp_path, facts), "bad-record", "'caption', 'key', 'status'")
    assert error.fields["parameter"] == "label_column"
    assert opened(packed(tmp_path, facts), label_column="breed").splits["train"].labels.tolist() == [2]
    assert opened(packed(tmp_path, facts), label_column="kind", classes=("dog", "cat")).splits["train"].labels == [1]
    # Nobody can know which of two labels is the right one.
    assert opened(packed(tmp_path, {"label": 1.0 * 3, "key": 1}, ("0.cls", b"3.0"))).splits["train"].labels == [3]
    both = packed(tmp_path, {"label": 3}, ("0.cls", b"1"))
    assert refused(both, "bad-record").fields["parameter"] == "label_column"
    for column, label in (("cls", 1), ("label", 3)):
        assert opened(both, label_column=column).splits["train"].labels.tolist() == [label]


def test_a_json_without_a_label_is_refused(tmp_path: Path) -> None:
    labels = ({"label": label} for label in (None, [1], 1.5, "", 10**30))
    for facts in (b"{", b"[1]", b" " * (1 << 21), *labels, {}):
        assert GUARDED in refused(packed(tmp_path, facts), "bad-record").what


def test_what_systems_leave_in_archives_is_no_record(tmp_path: Path) -> None:
    clutter = [("._0.png", b"x"), (".DS_Store", b"x"), ("__MACOSX/._0.png", b"x"), ("Thumbs.db", b"x")]
    tar(tmp_path / "train.tar", [*clutter, ("./0.png", png(0)), ("./0.cls", b"1"), ("./._0.cls", b"x")])
    assert opened(tmp_path).splits["train"].n == 1


# Names of members


def test_names_in_archives_are_only_names(tmp_path: Path) -> None:
    """Paths are not used as paths. Nothing is ever written."""
    path = tmp_path / "in" / "train.tar"
    members = [("../../up.png", png(1)), ("../../up.cls", b"0"), ("/etc/abs.png", b"none"), ("/etc/abs.cls", b"1")]
    tar(path, members)
    train = opened(path).splits["train"]
    assert train.n == 2
    assert train.pixels(0, 1)[0, 0, 0, 0] == 1
    with refuses("bad-record", parameter="on_error"):
        train.pixels(1, 2)
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_a_link_is_not_followed_and_does_not_vanish(tmp_path: Path, kind: bytes) -> None:
    """tar makes one of a file that has two names."""
    (tmp_path / "secret.png").write_bytes(png(99))
    with tarfile.open(tar(tmp_path / "train.tar", records(0, 2)), "a") as archive:
        info = tarfile.TarInfo("9.png")
        info.type, info.linkname = kind, "0000.png" if kind == tarfile.LNKTYPE else str(tmp_path / "secret.png")
        archive.addfile(info)
    refused(tmp_path, "damaged", r"train\.tar")


def test_parts_of_records_that_are_not_used_are_named_by_their_endings(tmp_path: Path) -> None:
    parts = [part for i in "abc" for part in ((f"{i}.JPG", png(1)), (f"{i}.cls", b"1"), (f"{i}.seg.png", png(2)))]
    tar(tmp_path / "train.tar", [*parts, ("c.txt", b"a cat"), ("._c.png", b"x")])
    (said,) = opened(tmp_path).remarks
    assert ": 4 files (3 .png, 1 .txt)." in said
    # A second picture of one record is none of those that are left out.
    for other in ("left", "right"):
        parts = [(name.replace(".JPG", f".{other}.png"), data) for name, data in parts]
    tar(tmp_path / "train.tar", parts)
    refused(tmp_path, "bad-record")


def test_member_names_of_any_encoding_are_read_and_shown_without_control_characters(tmp_path: Path) -> None:
    # Two honest names may differ in a joiner, such as one of Persian.
    for names in (["b\xe4r"], ["\u732b"], ["\x1b[31mred"], ["a b"], ["\u0645\u200c\u0634", "\u0645\u200d\u0634"]):
        path, encoding = tmp_path / "train.tar", "latin-1" if names == ["b\xe4r"] else "utf-8"
        with tarfile.open(path, "w", encoding=encoding, format=tarfile.GNU_FORMAT) as out:
            for name in names:
                for extension, data in (("png", b"no picture"), ("cls", b"0")):
                    info = tarfile.TarInfo(f"{name}.{extension}")
                    info.size = len(data)
                    out.addfile(info, io.BytesIO(data))
        train = opened(path, classes=("a", "b")).splits["train"]
        assert len({train.pixels.name(i) for i in range(train.n)}) == len(names)
        with pytest.raises(UserError) as caught:
            train.pixels(0, 1)
        shown = str(caught.value)
        assert "\x1b" not in shown
        assert shown.encode("utf-8")


# Damaged and hostile archives


def test_every_damage_of_an_archive_is_an_error_that_names_it(web: Path) -> None:
    path = web / "train-001.tar"
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0")) // BLOCK * BLOCK + BLOCK
    at = whole.index(b"0006.json")
    damaged = [whole[:length] for length in (*range(0, end, BLOCK), *range(100, end, 1999))]
    # A damaged header in the middle is not taken for the end.
    for data in (*damaged, whole[:at] + b"x" * BLOCK + whole[at + BLOCK :]):
        path.write_bytes(data)
        refused(web, "damaged", r"train-001\.tar")
    with tarfile.open(path, "w:gz") as archive:
        archive.add(__file__, "a.png")
    assert "gunzip" in refused(web, "damaged").remedy


def test_an_archive_that_shrank_or_cannot_be_opened_is_no_null_record(
    web: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_arguments: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    train = opened(web).splits["train"]
    (web / "train-001.tar").write_bytes((web / "train-001.tar").read_bytes()[:600])
    monkeypatch.setattr(Path, "open", refuse)
    for start, code in ((0, "unreadable"), (8, "damaged")):
        with refuses(code, match="train-00|'…'") as caught:
            train.pixels(start, start + 1)
        assert type(caught.value) is UserError
        monkeypatch.undo()
    monkeypatch.setattr(Path, "open", refuse)
    refused(web, "unreadable", r"train-000\.tar.*Permission denied")


def header(kind: bytes, size: int, name: str = "x") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def test_headers_that_would_take_all_memory_or_recurse_without_end_are_damage(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar", [("1.png", png(1)), ("1.cls", b"1")])
    whole = path.read_bytes()
    kinds = (
        (tarfile.GNUTYPE_LONGNAME, b"abc\0"),
        (tarfile.XHDTYPE, b"12 path=abc\n"),
        (tarfile.XGLTYPE, b"12 path=abc\n"),
    )
    # tarfile calls itself for each name of a member.
    first = [(header(kind, len(name)) + name.ljust(BLOCK, b"\0")) * 3_000 for kind, name in kinds]
    first += [header(tarfile.REGTYPE, size) for size in (2**63 - 1, 2**62, -1, -(2**60))]
    for data in first:
        path.write_bytes(data + whole)
        refused(path, "damaged")
    for kind in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE):
        path.write_bytes(header(kind, 8 << 30))
        os.truncate(path, 9 << 30)
        tracemalloc.start()
        refused(path, "damaged", "8589934592")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16 << 20
    # A long name is only a name.
    name = "x" * 100_000
    assert len(name) < LONGEST_NAME
    tar(path, [(f"{name}.png", png(1)), (f"{name}.cls", b"1")])
    assert opened(path).splits["train"].n == 1


def test_a_picture_of_gigabytes_is_refused_unread(tmp_path: Path) -> None:
    path, size = tmp_path / "a.tar", MOST_BYTES + 1
    path.write_bytes(
        header(tarfile.REGTYPE, 1, "1.cls") + b"1".ljust(BLOCK, b"\0") + header(tarfile.REGTYPE, size, "1.png")
    )
    os.truncate(path, path.stat().st_size + -(-size // BLOCK) * BLOCK + 2 * BLOCK)
    split = opened(path).splits["train"]
    tracemalloc.start()
    with refuses("bad-record", parameter="on_error"):
        split.pixels(0, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


# Persons


def test_a_person_is_one_person_however_archives_write_the_folder(tmp_path: Path) -> None:
    """'tar -cf 0.tar ./p1' and 'tar -cf 1.tar p1' write names that differ. A person must not become two."""
    for i, folder in enumerate(("./p1", "p1", "p1/", "./p2")):
        tar(tmp_path / f"{i}.tar", [(f"{folder}/{i}.png", png(i)), (f"{folder}/{i}.cls", b"%d" % (i % 2))])
    for rule in ("folder:1", "name:^([^/]+)/", "name:^(.*)/"):
        keys = opened(tmp_path, classes=persons.CLASSES, group_by=rule_of(rule)).splits["train"].keys
        assert keys is not None
        assert [keys.names[code] for code in keys.codes] == ["p1", "p1", "p1", "p2"]


@pytest.mark.parametrize("facts", [[], [("x.json", b'{"patient": 1.5}')]])
def test_a_picture_without_a_person_is_refused(tmp_path: Path, facts: list[tuple[str, bytes]]) -> None:
    persons.archives(tmp_path)
    tar(tmp_path / "train-9.tar", [("x.png", png(1)), ("x.cls", b"1"), *facts])
    assert GUARDED in refused(tmp_path, "bad-record", "1 record .*'…'", group_by=rule_of("column:patient")).what


def noticed(place: object) -> str | None:
    return opened(place, classes=("a", "b")).noticed()


def test_folders_and_keys_in_archives_are_noticed(tmp_path: Path) -> None:
    def archive(name: str, *folders: str, **facts: list[str]) -> str:
        members: list[tuple[str, bytes]] = []
        for i, each in enumerate(folders):
            own = json.dumps({key: values[i] for key, values in facts.items()}).encode()
            members += [(f"{each}{i}.png", png(i)), (f"{each}{i}.cls", b"%d" % (i % 2)), (f"{each}{i}.json", own)]
        return str(tar(tmp_path / f"{name}.tar", members))

    assert noticed(archive("plain", "", "", "", key=["1", "1", "2"], caption=["x", "x", "y"])) is None
    assert noticed(archive("classes", "cat/", "dog/", "cat/")) is None
    assert noticed(archive("folders", "p1/", "p1/", "p2/")) == "folder:1"
    assert noticed(archive("keys", "", "", "", subject=["s", "s", "t"])) == "column:subject"
    # What is no JSON is not needed here.
    odd = tar(
        tmp_path / "odd.tar", [("0.png", png(0)), ("0.cls", b"0"), ("0.json", b"{"), ("1.png", png(1)), ("1.cls", b"1")]
    )
    assert noticed(odd) is None
