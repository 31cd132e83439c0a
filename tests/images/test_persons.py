"""The pictures of one person are brought together, in every format that says which they are."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpfc_cli.annotations.groups import rule_of
from dpfc_cli.errors import GUARDED
from dpfc_cli.images import catalogue
from dpfc_cli.images.sets import ImageSet, Request, Split, by_person, held_out
from tests.images.pictures import SQUARE, files, open_images, png, tar, there, values
from tests.support import refuses

N, PERSONS = 40, 13
CLASSES = ("a", "b", "healthy")
WHO = [f"p{i * 7 % PERSONS}" for i in range(N)]
"""The person of picture i, which is full of i and of class i % 2. A person has pictures of both classes."""
Made = tuple[str, str]


def folders(path: Path) -> Made:
    return files(path, *(f"{'ab'[i % 2]}/{who}/visit/{i:02d}.png" for i, who in enumerate(WHO))), "folder:1"


def names(path: Path) -> Made:
    return files(path, *(f"train/{'ab'[i % 2]}/x_{who}_{i:02d}.png" for i, who in enumerate(WHO))), r"name:_(p\d+)_"


def beside(path: Path) -> Made:
    source, _ = names(path)
    lines = [f"{'ab'[i % 2]}/x_{who}_{i:02d}.png, {who} ,{i}" for i, who in enumerate(WHO)]
    (path / "train" / "metadata.csv").write_text("\n".join(["file_name,patient,age", *lines]))
    return source, "column:patient"


def labels_beside(path: Path) -> Made:
    """The table has the labels, too, and there are no folders of classes."""
    rows = [{"file_name": f"{i:02d}.png", "label": "ab"[i % 2], "who": int(who[1:])} for i, who in enumerate(WHO)]
    (path / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return files(path, *(f"{i:02d}.png" for i in range(N))), "column:who"


def archives(path: Path) -> Made:
    for part in range(2):
        members: list[tuple[str, bytes]] = []
        for i in range(part, N, 2):
            facts = json.dumps({"patient": int(WHO[i][1:]), "other": [1]}).encode()
            members += [(f"{WHO[i]}/{i:02d}.{end}", data) for end, data in (("png", png(i)), ("json", facts))]
            members.append((f"{WHO[i]}/{i:02d}.cls", b"%d" % (i % 2)))
        tar(path / f"train-{part}.tar", members)
    return f"webdataset:{path}", "column:patient"


def archives_by_folder(path: Path) -> Made:
    return archives(path)[0], "folder:1"


def archives_by_name(path: Path) -> Made:
    return archives(path)[0], "name:^(.+)/"


def parquet(path: Path, persons: Any = WHO, rows: int = 6) -> Made:
    pictures = pa.array([{"bytes": png(i)} for i in range(N)], pa.struct([("bytes", pa.binary())]))
    table = pa.table({"image": pictures, "patient": persons, "label": np.arange(N) % 2})
    for name, part in (("train-0", table[:25]), ("train-1", table[25:])):
        pq.write_table(part, path / f"{name}.parquet", row_group_size=rows)
    return f"parquet:{path}", "column:patient"


def parquet_of_integers(path: Path) -> Made:
    """The only other column of integers is the label."""
    return parquet(path, [int(who[1:]) for who in WHO])


FORMATS = (
    *(folders, names, beside, labels_beside, parquet, parquet_of_integers),
    *((archives, archives_by_folder, archives_by_name) if there("webdataset") else ()),
)


def opened(made: Made, grouped: bool = True) -> ImageSet:
    """The data set, with its persons or without."""
    source, rule = made
    return open_images(source, None, SQUARE, classes=CLASSES, group_by=rule_of(rule) if grouped else None)


def who(split: Split) -> list[str]:
    """The persons of a split's pictures, in its order."""
    return [WHO[i] for i in values(split)]


@pytest.mark.parametrize("make", FORMATS, ids=lambda make: make.__name__)
def test_the_pictures_of_a_person_lie_together_with_their_labels(make: Callable[[Path], Made], tmp_path: Path) -> None:
    plain = opened(make(tmp_path), grouped=False).splits["train"]
    found, groupings = by_person(opened(make(tmp_path)))
    train, grouping = found.splits["train"], groupings["train"]
    assert sorted(values(train)) == sorted(values(plain)) == list(range(N))
    assert train.labels.tolist() == [i % 2 for i in values(train)]
    assert (plain.keys, grouping.groups) == (None, PERSONS)
    assert set(np.diff(grouping.ids)) == {0, 1}
    assert len(set(zip(grouping.ids.tolist(), who(train), strict=True))) == PERSONS
    # The account of the ledger is the same, and so is what each picture is called.
    assert train.listing == plain.listing
    listed = {int(i): plain.pixels.name(at) for at, i in enumerate(values(plain))}
    assert [train.pixels.name(at) for at in range(N)] == [listed[int(i)] for i in values(train)]
    assert all(train.pixels.title(at).endswith(plain.pixels.title(int(grouping.order[at]))) for at in range(N))
    # Inside a group the order is that of the listing.
    assert all((np.diff(grouping.order[grouping.ids == g]) > 0).all() for g in range(PERSONS))


@pytest.mark.parametrize("make", [folders, FORMATS[-1], parquet], ids=lambda make: make.__name__)
def test_a_person_is_held_out_as_a_whole_and_others_do_not_move(make: Callable[[Path], Made], tmp_path: Path) -> None:
    whole = opened(make(tmp_path))
    parts = held_out(whole, 0.3).splits
    assert not set(who(parts["train"])) & set(who(parts["test"]))
    assert sorted([*values(parts["train"]), *values(parts["test"])]) == list(range(N))
    assert 1 <= len(set(who(parts["test"]))) <= 8
    more = held_out(whole, 0.6).splits["test"]
    assert set(who(parts["test"])) < set(who(more))
    both, groupings = by_person(held_out(whole, 0.3))
    for name, split in both.splits.items():
        persons = who(split)
        assert groupings[name].groups == len(set(persons))
        assert [persons[i] != persons[i - 1] for i in range(1, split.n)] == (np.diff(groupings[name].ids) == 1).tolist()
        assert split.listing == whole.splits["train"].listing
    # Without persons the pictures of most would lie on both sides.
    apart = held_out(opened(make(tmp_path), grouped=False), 0.3).splits
    assert len(set(who(apart["train"])) & set(who(apart["test"]))) > 3


def test_the_person_alone_decides_where_it_lands_whatever_the_format(tmp_path: Path) -> None:
    tests = []
    makers = (folders, names, beside, parquet, *([archives_by_folder] if there("webdataset") else []))
    for i, make in enumerate(makers):
        (tmp_path / str(i)).mkdir()
        tests.append(set(who(held_out(opened(make(tmp_path / str(i))), 0.4).splits["test"])))
    assert all(found == tests[0] for found in tests)


def test_a_deeper_level_is_the_whole_way_to_it(tmp_path: Path) -> None:
    """Two patients may both have a first visit."""
    source, _ = folders(tmp_path)
    assert by_person(opened((source, "folder:2")))[1]["train"].groups == PERSONS
    with refuses("bad-record", match="40 records"):
        opened((source, "folder:3"))


# What is refused


def without(path: Path, make: Callable[[Path], Made], change: Callable[[Path], object]) -> Made:
    made = make(path)
    change(path)
    return made


def drop_line(path: Path) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:1] + lines[2:]))


def change_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


LACKING: tuple[tuple[Callable[[Path], Made], str, str], ...] = (
    (
        lambda p: without(p, folders, lambda p: (p / "a" / "x.png").write_bytes(png(1))),
        *("bad-record", "1 record .*'…'"),
    ),
    (
        lambda p: without(p, names, lambda p: files(p / "train/a", "0.png", "1.png")),
        *("bad-record", "2 records .*'…'.*'…'"),
    ),
    *(
        (lambda p, rule=rule: (names(p)[0], rule), "bad-record", "40 records")
        for rule in (r"name:(z*)", r"name:x_(z)?")
    ),
    (
        lambda p: without(p, beside, lambda p: drop_line(p / "train" / "metadata.csv")),
        *("bad-record", "1 picture: '…'"),
    ),
    (
        lambda p: without(p, beside, lambda p: change_text(p / "train" / "metadata.csv", " p0 ", " ")),
        *("bad-record", "records"),
    ),
    (lambda p: (beside(p)[0], "column:who"), "missing", "'who'.* 3 .*'…'"),
    # That of the pictures is no other one.
    (lambda p: (beside(p)[0], "column:file_name"), "missing", "'file_name'.* 2 "),
    (lambda p: (names(p)[0], "column:who"), "missing", "metadata.csv"),
    (lambda p: parquet(p, [None, *WHO[1:]]), "bad-record", "1 record .*'…'"),
    (lambda p: parquet(p, np.arange(N) / 2), "missing", "'patient'"),
)


def test_a_picture_without_a_person_is_refused(tmp_path: Path) -> None:
    """It gets no group of its own: two such pictures may be of one person."""
    for i, (make, code, says) in enumerate(LACKING):
        (tmp_path / f"{i}").mkdir()
        with refuses(code, match=says) as caught:
            opened(make(tmp_path / f"{i}"))
        assert (code == "bad-record" or caught.value.full is not None) == (GUARDED in str(caught.value))


@pytest.mark.parametrize("make", [beside, labels_beside, parquet], ids=lambda make: make.__name__)
def test_columns_of_subgroups_go_with_the_pictures(make: Callable[[Path], Made], tmp_path: Path) -> None:
    source, rule = make(tmp_path)
    column = rule.partition(":")[2]
    # In the table in JSON persons are numbers.
    called = {person: str(int(person[1:])) if make is labels_beside else person for person in WHO}
    known = tuple(sorted(set(called.values())))[:3]
    more: dict[str, Any] = {"classes": CLASSES, "group_by": rule_of(rule), "subgroups": {column: known}}
    found = open_images(source, None, SQUARE, **more)
    for one in (found, by_person(found)[0], held_out(found, 0.3)):
        for split in one.splits.values():
            assert split.subgroups is not None
            expected = [known.index(name) if (name := called[each]) in known else -1 for each in who(split)]
            assert split.subgroups[:, 0].tolist() == expected
    with refuses("missing"):
        open_images(source, None, SQUARE, **(more | {"subgroups": {"nothing": known}}))


def test_what_has_no_columns_takes_no_subgroups() -> None:
    with refuses("conflict", parameter="subgroups"):
        catalogue.check("digits", None, Request(subgroups={"sex": ("f", "m")}))
