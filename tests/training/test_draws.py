"""The public records of one trial: which are drawn, how they are labelled, and how they are read."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.manifest import MANIFEST
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.passes import BlockStream
from dpfc_cli.training import tuning
from dpfc_cli.training.tuning import Draw, drawn, labels_of, quality
from tests.support import stream_of


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 records of three classes to train on and 40 to test on. Each fourth one has a second label."""
    folder = tmp_path_factory.mktemp("draws")
    x = np.arange(560, dtype=np.float32).reshape(140, 4)
    y = np.stack([np.arange(140) % 3, np.where(np.arange(140) % 4, -1, (np.arange(140) + 1) % 3)], axis=1)
    np.savez(folder / "set.npz", train_x=x[:100], train_y=y[:100], test_x=x[100:], test_y=y[100:])
    import_features(folder / "set.npz", folder / "set", classes=("a", "b", "c"), dtype="float32")
    return folder / "set"


@pytest.fixture
def known(made: Path) -> FeatureSet:
    return FeatureSet(made)


def read(blocks: BlockStream) -> tuple[np.ndarray, np.ndarray]:
    found = list(blocks(7))
    return np.concatenate([x for _, x, _ in found]), np.concatenate([y for _, _, y in found])


def draw_of(known: FeatureSet, train: np.ndarray, test: np.ndarray | None = None, seed: int = 0, m: int = 3) -> Draw:
    """The draw of a set whose records have these labels."""
    return drawn(known, [train] if test is None else [train, test], Facts(n=50, m=m, d=4, k=2), seed)


def column(*labels: int) -> np.ndarray:
    return np.array(labels)[:, None]


def test_only_classes_that_have_training_records_are_drawn(known: FeatureSet) -> None:
    labels = column(*[0, 2] * 20)
    for seed in range(8):
        draw = draw_of(known, labels, labels, seed, m=2)
        assert draw.table.tolist() == [0, -1, 1, -1]
        assert draw.facts.m == 2


def test_a_record_with_one_label_of_the_draw_is_drawn(known: FeatureSet) -> None:
    labels = np.array([[0, -1], [1, 2], [2, 0], [-1, -1]] * 5)
    draw = draw_of(known, labels, labels)
    assert draw.train.tolist() == draw.test.tolist() == [i for i in range(20) if i % 4 != 3]


def test_what_is_left_beside_the_held_out_records_is_cut_to_the_private_number(known: FeatureSet) -> None:
    draw = draw_of(known, column(*[0, 1, 2] * 50))
    assert (len(draw.train), len(draw.test), draw.facts.n, draw.split) == (50, 30, 50, "train")
    assert not set(draw.train) & set(draw.test)


def test_a_draw_needs_two_classes_two_records_and_one_to_test_on(known: FeatureSet) -> None:
    pair, none = column(0, 1), column(-1)
    assert draw_of(known, pair, column(1)).facts.n == 2
    for train, test, counts in (
        (column(0, 0), pair, "1 classes, 2 records to train on and 1 to test on"),
        (np.array([[0, 1]]), pair, "2 classes, 1 records to train on and 2 to test on"),
        (pair, none, "2 classes, 2 records to train on and 0 to test on"),
        (column(0, 1, 0, 1), None, "2 classes, 4 records to train on and 0 to test on"),
    ):
        with pytest.raises(UserError, match=counts) as refused:
            draw_of(known, train, test)
        assert (refused.value.code, refused.value.fields) == ("conflict", {"path": str(known.folder)})


def test_records_are_read_in_order_with_labels_of_the_draw(known: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the blocks, and with as many places for labels as the private records have."""
    rows, table = np.array([0, 3, 4, 31, 64, 65, 99]), np.array([1, -1, 0, -1], np.int32)
    for block in (16, 8192):
        monkeypatch.setattr(tuning, "ROWS", block)
        x, y = read(tuning._stream(known, "train", rows, table, 3))
        assert (x[:, 0] == 4.0 * rows).all()
        assert y.tolist() == [
            *([1, -1, -1], [1, -1, -1], [-1, 0, -1], [-1, -1, -1], [-1, 0, -1], [0, -1, -1], [1, -1, -1]),
        ]  # fmt: skip


def test_a_draw_is_held_in_memory_if_it_is_small_and_else_read_in_each_pass(
    known: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    real = FeatureSet.stream
    monkeypatch.setattr(FeatureSet, "stream", lambda self, split: (reads.append(split), real(self, split))[1])
    table, needed = np.array([0, 1, 2, -1], np.int32), 10 * 4 * 4
    for room, expected in ((needed, 1), (needed - 1, 2)):
        reads.clear()
        monkeypatch.setattr(tuning, "IN_MEMORY", room)
        stream = tuning._stream(known, "train", np.arange(10), table, 2)
        assert all((first == again).all() for first, again in zip(read(stream), read(stream), strict=True))
        assert reads == ["train"] * expected


def test_hits_are_counted_of_one_label_and_ranks_of_several() -> None:
    x = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1]]
    card = {"facts": {"m": 3, "k": 1}, "classes": ["a", "b", "c"]}
    head = Head(chain=(), weight=np.eye(3), bias=np.zeros(3), card=card)
    labels = np.array([0, 1, 2, 0, 2])
    assert quality(head, stream_of(x, labels), 1, 5) == 4
    both = np.stack([labels, np.full(5, -1)], axis=1)
    # The last record of class 2 has the same score for it as those of other classes.
    assert quality(head, stream_of(x[:4], both[:4]), 2, 4) == 1.0
    assert quality(head, stream_of(x, both), 2, 5) < 1.0


def test_a_damaged_set_and_one_without_training_records_are_refused(made: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(made, tmp_path / "copy"))
    assert [len(each) for each in labels_of(FeatureSet(copy))] == [100, 40]
    (shard,) = FeatureSet(copy).split("test").shards
    (copy / shard.file).write_bytes((copy / shard.file).read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match="are not those of the manifest"):
        labels_of(FeatureSet(copy))
    said = json.loads((copy / MANIFEST).read_text())
    del said["splits"]["train"], said["source"]["identity"]["listing"]["train"]
    (copy / MANIFEST).write_text(json.dumps(said))
    with pytest.raises(UserError, match="has no split 'train'"):
        labels_of(FeatureSet(copy))


@pytest.mark.parametrize(
    ("theirs", "ours", "fits"),
    [(1, 1, True), (2, 2, True), (2, 3, True), (3, 2, False), (1, 2, False), (2, 1, False)],
)
def test_a_stand_in_has_labels_of_the_same_kind_and_no_more_of_them(
    known: FeatureSet, tmp_path: Path, theirs: int, ours: int, fits: bool
) -> None:
    np.savez(tmp_path / "p.npz", train_x=np.ones((9, 4), np.float32), train_y=np.arange(9) % 3)
    private = import_features(tmp_path / "p.npz", tmp_path / "p", classes=("a", "b", "c")).features
    known.manifest = replace(known.manifest, labels_per_record=theirs)
    if fits:
        tuning.check_stand_in(private, known, ours, "on")
        return
    with pytest.raises(UserError, match=f"up to {theirs} labels per record, .* up to {ours}") as refused:
        tuning.check_stand_in(private, known, ours, "on")
    assert (refused.value.code, refused.value.fields) == ("conflict", {"path": str(known.folder)})
