"""Classes are stated: their names, of which there must be two, and the numbers that labels have for them."""

from pathlib import Path

import pytest

from dpfc_cli import reading
from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.sources.classes import class_names, labelled, stated
from tests.support import refuses


def test_classes_are_stated_and_no_label_says_which_there_are() -> None:
    with refuses("conflict", parameter="classes"):
        stated(None)
    with refuses("bad-value"):
        stated(("a",))
    with refuses("bad-value", parameter="classes"):
        stated(("a", "\udcff"))
    assert stated(("a", "b")) == ("a", "b")


def test_a_label_beyond_all_integers_is_refused() -> None:
    for label in (2**64 - 1, 10**30, -(10**30)):
        with refuses("bad-record", match="do not publish"):
            labelled({"train": [0, label, None]}, ("a", "b"))


def test_names_of_classes_are_labels() -> None:
    """In every format: all give their labels to this function."""
    named: dict[str, list[int | str | None]]
    named = {"train": ["flu ", "rare", " flu", "cold"], "val": ["cold"], "test": [None]}
    found = labelled(named, ("flu", "cold", "never seen", "rare"))
    # A published test split without labels is ignored.
    assert found.used == {"train": "train", "test": "val"}
    assert {split: own.tolist() for split, own in found.labels.items()} == {"train": [0, 3, 0, 1], "val": [1]}
    two = ("flu", "cold")
    cases: list[tuple[list[int | str | None], tuple[str, ...], str]] = [
        (named["train"], two, "conflict"),
        (named["train"], ("0", "1"), "conflict"),
        (["flu", " ", "cold"], two, "bad-record"),
        (["flu", 1], two, "bad-record"),
        ([0, None, 1], two, "bad-record"),
        (["", " ", None], two, "missing"),
    ]
    for labels, asked, code in cases:
        with refuses(code, match="'…'" if code != "missing" else None) as refused:
            labelled({"train": labels}, asked)
        assert GUARDED in refused.value.what
    # Which it is, is for whoever holds the pictures.
    assert refused.value.full is None
    with pytest.raises(UserError) as refused:
        labelled({"train": ["flu", ""]}, two, called=lambda split, i: f"{i}.png")
    assert "'1.png'" in str(refused.value.full)


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
