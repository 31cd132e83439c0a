"""Classes that nobody states are counted from the labels, within a bound, and there must be two."""

from pathlib import Path

import pytest

from dpfc_cli import reading
from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.sources.classes import MOST_INFERRED, check_classes, class_names, inferred_classes, labelled
from tests.support import refuses


def test_inferred_classes_are_the_numbers_up_to_the_largest_label() -> None:
    assert inferred_classes(0) == ("0",)
    assert inferred_classes(2) == ("0", "1", "2")
    assert len(inferred_classes(MOST_INFERRED - 1)) == MOST_INFERRED
    with pytest.raises(UserError, match="100,001 classes") as caught:
        inferred_classes(MOST_INFERRED)
    assert GUARDED in caught.value.what
    assert (caught.value.code, caught.value.fields) == ("bad-record", {"parameter": "classes"})


def test_a_label_beyond_all_integers_is_refused() -> None:
    for label in (2**64 - 1, 10**30, -(10**30)):
        for asserted in (None, ("a", "b")):
            with refuses("bad-record", match="do not publish"):
                labelled({"train": [0, label, None]}, asserted)


def test_names_of_classes_are_labels() -> None:
    """In every format: all give their labels to this function."""
    named: dict[str, list[int | str | None]]
    named = {"train": ["flu ", "rare", " flu", "cold"], "val": ["cold"], "test": [None]}
    found = labelled(named, None)
    assert (found.classes, found.origin, found.renumbered) == (("cold", "flu", "rare"), "inferred", False)
    # A published test split without labels is ignored.
    assert found.used == {"train": "train", "test": "val"}
    assert {split: own.tolist() for split, own in found.labels.items()} == {"train": [1, 2, 1, 0], "val": [0]}
    # The same classes, asserted in another order, are other numbers of the same records.
    asserted = labelled(named, ("flu", "cold", "never seen", "rare"))
    assert (asserted.origin, asserted.renumbered) == ("asserted", True)
    assert asserted.labels["train"].tolist() == [0, 3, 0, 1]
    cases: list[tuple[list[int | str | None], tuple[str, ...] | None, str]] = [
        (named["train"], ("flu", "cold"), "1 label is not among the 2 classes of classes: '…'"),
        (named["train"], ("0", "1"), "The labels are names. Give the names of all classes"),
        (["flu", " ", "cold"], None, "1 train image has no name of a class as label, and others have one: '…'"),
        (["flu", 1], None, "and others have one"),
        ([0, None, 1], None, "1 train image has no label in 0..1: '…'"),
        (["", " ", None], None, "no labelled training images"),
    ]
    for labels, asked, says in cases:
        with pytest.raises(UserError, match=says) as refused:
            labelled({"train": labels}, asked)
        assert GUARDED in refused.value.what
    # Which it is, is for whoever holds the pictures.
    assert refused.value.full is None
    with pytest.raises(UserError) as refused:
        labelled({"train": ["flu", ""]}, None, called=lambda split, i: f"{i}.png")
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
    with refuses("unreadable", parameter="classes"):
        class_names(Path("/dev/zero"))


def test_one_class_is_refused_and_only_inferred_ones_are_private() -> None:
    for inferred in (True, False):
        check_classes(("a", "b"), inferred)
        with pytest.raises(UserError, match="one class only") as caught:
            check_classes(("a",), inferred)
        assert (caught.value.code, GUARDED in caught.value.what) == ("bad-value", inferred)
