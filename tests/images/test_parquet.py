"""Parquet as the hub stores it is read by row groups. The files name the classes."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.images import open_images
from tests.images.pictures import SQUARE, png, values


def parquet(
    path: Path, pictures: list[bytes | None], labels: Sequence[int | None], group: int = 3, **schema: object
) -> Path:
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


def test_parquet_is_read_by_row_groups_with_the_hubs_names(hub: Path) -> None:
    data = open_images(f"parquet:{hub}", geometry=SQUARE)
    train = data.splits["train"]
    assert (data.classes, data.origin, train.n) == (("a", "b", "c"), "data set", 10)
    np.testing.assert_array_equal(train.labels, np.arange(10) % 3)
    np.testing.assert_array_equal(values(train), np.arange(10))
    for i in (9, 0, 3, 4, 8, 1):
        assert train.pixels(i, i + 1)[0, 0, 0, 0] == i
    np.testing.assert_array_equal(values(data.splits["test"]), [50, 51])


def test_parquet_keeps_the_pictures_of_a_trial_only_and_reads_each_row_group_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, read, kept = 400, [], []
    parquet(tmp_path / "train.parquet", [png(i % 200) for i in range(n)], [i % 3 for i in range(n)], group=40)
    train = open_images(f"parquet:{tmp_path}", geometry=SQUARE).splits["train"].spread(50)
    from dpfc_cli.images import prefetch, row_groups
    from dpfc_cli.images.row_groups import RowGroups

    real_read, real = row_groups.read_group, RowGroups._pictures
    monkeypatch.setattr(row_groups, "read_group", lambda *a: (read.append(a[1]), real_read(*a))[1])

    def count(groups: RowGroups) -> None:
        kept.append(sum(map(len, groups._kept.values())))

    monkeypatch.setattr(RowGroups, "_pictures", lambda self, g: (real(self, g), count(self))[0])
    monkeypatch.setattr(RowGroups, "span", 4 * prefetch.PIECE * 8)
    found = [batch.pixels for _, batch in prefetch.batches([(0, train, 0, 50)], workers=8)]
    assert len(np.unique(found[0][:, 0, 0, 0])) > 40
    assert sorted(read) == list(range(10))
    assert max(kept) <= 50


def test_parquet_keeps_no_more_than_the_threads_need(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpfc_cli.images.row_groups import RowGroups

    kept = []
    real = RowGroups._pictures
    monkeypatch.setattr(RowGroups, "_pictures", lambda self, g: (real(self, g), kept.append(len(self._kept)))[0])
    for span, most in ((1, 2), (8, 3), (100, 4)):
        monkeypatch.setattr(RowGroups, "span", span)
        open_images(f"parquet:{hub}", geometry=SQUARE).splits["train"].pixels(0, 10)
        assert max(kept) == most
        kept.clear()


def test_parquet_without_names_has_inferred_or_asserted_classes(tmp_path: Path) -> None:
    kind = pa.struct([("bytes", pa.large_binary())])
    pictures = pa.array([{"bytes": png(7)}, {"bytes": png(8)}], kind)
    pq.write_table(pa.table({"img": pictures, "coarse": [1, 0], "fine_label": [0, 3]}), tmp_path / "all.parquet")
    data = open_images(f"parquet:{tmp_path / 'all.parquet'}", geometry=SQUARE)
    assert (data.origin, len(data.classes)) == ("inferred", 4)
    np.testing.assert_array_equal(values(data.splits["train"]), [7, 8])
    assert open_images(f"parquet:{tmp_path}", geometry=SQUARE, classes=tuple("abcde")).origin == "asserted"


@pytest.mark.parametrize("broken", [None, b"", b"no picture"])
def test_a_broken_picture_in_parquet_is_named_by_its_place(tmp_path: Path, broken: bytes | None) -> None:
    parquet(tmp_path / "train.parquet", [png(0), png(1), png(2), broken], [0, 1, 2, 0])
    train = open_images(f"parquet:{tmp_path}", geometry=SQUARE).splits["train"]
    with pytest.raises(UserError, match=r"row 0 of row group 1.*do not publish"):
        train.pixels(2, 4)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda f: (f / "train.parquet").write_bytes(b"PAR1 no"), "cannot be read as parquet"),
        (lambda f: (f / "train.parquet").write_bytes((f / "good").read_bytes()[:-9]), "cannot be read as parquet"),
        (lambda f: pq.write_table(pa.table({"label": [1]}), f / "train.parquet"), "no column of pictures"),
        (lambda f: pq.write_table(pa.table({"x": [[1.0]], "label": [1]}), f / "train.parquet"), "dpfc import|pictures"),
        (lambda f: parquet(f / "train.parquet", [png(1)], [None]), "not integers"),
        (lambda f: parquet(f / "train.parquet", [png(1)], [3]), r"outside 0\.\.2"),
        (lambda f: parquet(f / "train.parquet", [png(1), png(1)], [0, -1]), r"outside 0\.\.2"),
    ],
)
def test_parquet_that_cannot_be_taken_is_refused(tmp_path: Path, make: Callable[[Path], object], says: str) -> None:
    parquet(tmp_path / "good", [png(1)], [0])
    make(tmp_path)
    with pytest.raises(UserError, match=says):
        open_images(f"parquet:{tmp_path}", geometry=SQUARE)


def test_a_row_group_that_would_fill_the_memory_is_refused(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpfc_cli.images import row_groups

    monkeypatch.setattr(row_groups, "LARGEST_GROUP", 100)
    with pytest.raises(UserError, match="row group") as caught:
        open_images(f"parquet:{hub}", geometry=SQUARE)
    assert "row_group_size" in caught.value.remedy


def test_a_row_group_with_fewer_pictures_than_it_says_is_refused(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where as many are left as are wanted: they would be others."""
    from dpfc_cli.images import row_groups

    read = row_groups.read_group
    for train in (open_images(f"parquet:{hub}", geometry=SQUARE).splits["train"].spread(count) for count in (10, 5)):
        monkeypatch.setattr(row_groups, "read_group", lambda *which: read(*which)[:1])
        with pytest.raises(UserError, match="has 1 pictures, and says 3") as refused:
            values(train)
        assert refused.value.code == "damaged"


def test_another_parquet_has_another_listing(hub: Path) -> None:
    before = open_images(f"parquet:{hub}", geometry=SQUARE).splits["train"].listing
    parquet(hub / "data" / "train-00000-of-00002.parquet", [png(i) for i in range(4)], [0, 2, 1, 0])
    assert open_images(f"parquet:{hub}", geometry=SQUARE).splits["train"].listing != before


def test_files_that_name_their_classes_take_no_others(hub: Path) -> None:
    with pytest.raises(UserError, match="name their classes"):
        open_images(f"parquet:{hub}", geometry=SQUARE, classes=("x", "y", "z"))


def test_that_no_training_picture_has_a_label_is_not_for_publication(tmp_path: Path) -> None:
    parquet(tmp_path / "train.parquet", [png(1), png(2)], [-1, -1])
    with pytest.raises(UserError, match="no labelled training images") as refused:
        open_images(f"parquet:{tmp_path}", geometry=SQUARE)
    assert GUARDED in str(refused.value)
