"""Classes are stated: their names, of which there must be two. A label means one of them, by itself."""

import json
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpfc_cli import reading
from dpfc_cli.annotations.classes import class_names, coded, labelled, numbers_of, stated
from tests.images.pictures import SQUARE, files, open_images, png, tar, there
from tests.support import refuses


def test_classes_are_stated_and_no_label_says_which_there_are() -> None:
    with refuses("conflict", parameter="classes"):
        stated(None)
    with refuses("bad-value"):
        stated(("a",))
    with refuses("bad-value", parameter="classes"):
        stated(("a", "\udcff"))
    assert stated(("a", "b")) == ("a", "b")
    for given in (1, ("a",), ("a", " "), ("a", "a "), ("é", "e\u0301")):
        with refuses("bad-value", parameter="classes"):
            class_names(given)
    assert class_names(("a", "A ")) == ("a", "A")


# What labels mean

TWO, FIVE, NAMED = ("cat", "dog"), ("1", "2", "3", "4", "5"), ("0", "1", "other")
Case = tuple[tuple[str, ...], Any, str | None]
"""Classes, a label, and the class that it means; None: it is refused."""
EVERYWHERE: list[Case] = [
    (("1", "0"), 1, "1"),
    (FIVE, 1.0, "1"),
    (FIVE, True, "1"),
    (FIVE, "001", None),
    (TWO, 1, "dog"),
    (TWO, 2, None),
    (TWO, 0.5, None),
    (TWO, "dog ", "dog"),
    # As a place, each of these would be another class than the one that the label names.
    (("001", "002"), 1, None),
    (("True", "False"), 1, None),
]
MORE: list[Case] = [
    (("1", "0"), "0", "0"),
    (FIVE, 1, "1"),
    (FIVE, 0, None),
    (TWO, -7, None),
    (TWO, 10**30, None),
    (TWO, 0.0, "cat"),
    (TWO, True, "dog"),
    (TWO, "Dog", None),
    (TWO, "+1", None),
    (TWO, "1e0", None),
    (NAMED, 1, "1"),
    (NAMED, 2, None),
    (("001", "002"), "002", "002"),
    (("1.0", "2.0"), 1, None),
    (("1.0", "2.0"), 2.0, "2.0"),
    (("true", "false"), False, "false"),
    (("True", "true"), "TRUE", None),
    (("-1", "1"), "-1", "-1"),
]
Source = tuple[str, Path | str]


def in_table(folder: Path, label: Any) -> Source:
    files(folder, "0.png", "1.png")
    (folder / "metadata.csv").write_text(f"file_name,label\n0.png,{label}\n1.png,{label}\n")
    return "imagefolder", folder


def in_lines(folder: Path, label: Any) -> Source:
    files(folder, "0.png", "1.png")
    lines = [json.dumps({"file_name": f"{i}.png", "label": label}) for i in range(2)]
    (folder / "metadata.jsonl").write_text("\n".join(lines))
    return "imagefolder", folder


def in_cls(folder: Path, label: Any) -> Source:
    tar(
        folder / "a.tar",
        [(f"{i}.{end}", data) for i in "01" for end, data in (("png", png(1)), ("cls", str(label).encode()))],
    )
    return "webdataset", folder


def in_json(folder: Path, label: Any) -> Source:
    facts = json.dumps({"label": label}).encode()
    tar(folder / "a.tar", [(f"{i}.{end}", data) for i in "01" for end, data in (("png", png(1)), ("json", facts))])
    return "webdataset", folder


def in_parquet(folder: Path, label: Any) -> Source:
    image = pa.array([{"bytes": png(1), "path": None}] * 2)
    pq.write_table(pa.table({"image": image, "label": [label] * 2}), folder / "a.parquet")
    return "parquet", folder


FORMATS = (in_table, in_lines, in_parquet, *((in_cls, in_json) if there("webdataset") else ()))


@pytest.mark.parametrize(("classes", "label", "meant"), EVERYWHERE + MORE)
def test_a_label_means_a_class_by_itself(classes: tuple[str, ...], label: Any, meant: str | None) -> None:
    with refuses("bad-record", match="do not publish", parameter="classes") if meant is None else nullcontext():
        [y] = numbers_of({"train": coded([label])}, classes)["train"]
        assert classes[y] == meant


def the_same(write: Callable[[Path, Any], Any], named: Callable[..., list[str]], folder: Path) -> None:
    """A label means the same, however it is written. named: the classes of what was written, as they are stored."""
    for i, (classes, label, meant) in enumerate(EVERYWHERE):
        (folder / f"{i}").mkdir()
        with suppress(pytest.skip.Exception):
            source = write(folder / f"{i}", label)
            with refuses("bad-record", match="do not publish", parameter="classes") if meant is None else nullcontext():
                assert named(source, classes, folder / f"set {i}") == [meant] * 2, (classes, label)


@pytest.mark.parametrize("write", FORMATS)
def test_a_label_means_the_same_in_each_format(write: Callable[[Path, Any], Source], tmp_path: Path) -> None:
    the_same(write, named, tmp_path)


def named(source: Source, classes: tuple[str, ...], _: Path) -> list[str]:
    kind, place = source
    column: dict[str, Any] = {"label_column": "label"} if kind == "imagefolder" else {}
    y = open_images(f"{kind}:{place}", geometry=SQUARE, classes=classes, **column).splits["train"].labels
    return [classes[label] for label in y]


def test_no_record_changes_what_the_label_of_another_one_means() -> None:
    for classes, given, code in (
        (TWO, ["dog", 1], "bad-record"),
        (TWO, ["0", "dog"], "bad-record"),
        (TWO, [0, 2**64 - 1], "bad-record"),
        (TWO, [0, 10**30], "bad-record"),
        (TWO, ["", None, -1, float("nan")], "missing"),
    ):
        with refuses(code, match="do not publish") as refused:
            labelled({"train": coded(given)}, classes)
        assert refused.value.full is None or code == "bad-record"
    for none in (None, float("nan"), -1, " "):
        assert labelled({"train": coded([0, none])}, TWO)["train"][1].tolist() == [0, -1]
    # Names and numbers in one list of classes: all labels are names.
    assert labelled({"train": coded(["other", 1, "0", 1.0])}, NAMED)["train"][1].tolist() == [2, 1, 0, 1]


def test_all_labels_that_mean_no_class_are_told_at_once_with_their_counts() -> None:
    labels = {"train": coded(["flu", "cold", "x", "x"]), "test": coded(["y", "flu"])}
    with refuses("bad-record", match="3 labels", parameter="classes") as refused:
        labelled(labels, ("flu", "cold"))
    assert all(text in str(refused.value.full) for text in ("x (2 times)", "y (1 times)"))


def test_a_split_without_labels_is_one_that_was_published_so() -> None:
    found = labelled(
        {"train": coded(["flu ", " cold"]), "val": coded(["cold"]), "test": coded([None])}, ("cold", "flu")
    )
    assert {role: (split, y.tolist()) for role, (split, y) in found.items()} == {
        "train": ("train", [1, 0]),
        "test": ("val", [0]),
    }


def test_numbers_of_a_classlabel_are_its_names() -> None:
    """Whatever the names are, and in whatever order the classes are stated."""
    for given in (np.array([0, 1, -1]), [0.0, 1.0, float("nan")], ["b", "1", None]):
        assert numbers_of({"train": coded(given, ("b", "a"))}, ("a", "b"))["train"].tolist() == [1, 0, -1]
    assert numbers_of({"train": coded(np.array([0, 1]), ("1", "0"))}, ("0", "1"))["train"].tolist() == [1, 0]
    for number in (2, -2):
        with refuses("bad-record"):
            numbers_of({"train": coded(np.array([number]), ("1", "0"))}, ("0", "1", "2", "-2"))


# The classes


def test_names_are_read_from_a_file_and_no_more_of_it_than_there_can_be_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Some editors put a mark first.
    (tmp_path / "names.txt").write_text("cat\ndog\n", "utf-8-sig")
    assert class_names(tmp_path / "names.txt") == ("cat", "dog")
    monkeypatch.setattr(reading, "LARGEST_JSON", 8)
    (tmp_path / "enough.txt").write_text("cat\ndog\n")
    assert class_names(tmp_path / "enough.txt") == ("cat", "dog")
    with refuses("damaged", parameter="classes"):
        class_names(Path("/dev/zero"))
