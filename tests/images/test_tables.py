"""Pictures in parquet, as the hub stores it."""

import json
import tracemalloc
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpfc_cli.annotations.groups import rule_of
from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.images import prefetch, tables
from dpfc_cli.images.pictures import UnreadableError
from dpfc_cli.images.sets import ImageSet, by_person
from tests.images.pictures import CLASSES, SQUARE, open_images, png, unlabelled, values
from tests.support import refuses

KIND = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def table(pictures: Sequence[Any], labels: Any, named: bool = True, kind: Any = KIND, **more: Any) -> pa.Table:
    image = pa.array(
        [each if isinstance(each, dict | None) else {"bytes": each, "path": None} for each in pictures], kind
    )
    made = pa.table({"image": image, "label": labels, **more})
    feature: dict[str, Any] = {"names": list(CLASSES), "_type": "ClassLabel"} if named else {"dtype": "string"}
    said = {"info": {"features": {"image": {"_type": "Image"}, "label": feature}}}
    return made.replace_schema_metadata({"huggingface": json.dumps(said)})


def made(place: Path, size: int = 2, **splits: pa.Table | list[pa.Table]) -> str:
    """A source of such tables, with row groups of so many rows."""
    place.mkdir(parents=True, exist_ok=True)
    for split, given in splits.items():
        own = given if isinstance(given, list) else [given]
        for i, each in enumerate(own):
            pq.write_table(each, place / f"{split}-{i:05d}-of-{len(own):05d}.parquet", row_group_size=size)
    return f"parquet:{place}"


def opened(source: str, **asked: Any) -> ImageSet:
    return open_images(source, geometry=SQUARE, **asked)


def whole(place: Path) -> str:
    """7 training pictures in two files, 2 to validate, and one without a label."""
    first = table([png(i) for i in range(5)], [0, 1, 2, 0, 1], who=["p0", "p1", "p0", "p2", "p1"])
    second = table([png(5), png(6)], [2, 2], who=["p2", "p3"])
    other = table([png(50), png(51)], [1, 0], who=["q", "r"])
    return made(place, train=[first, second], validation=other, test=table([png(60)], [-1], who=["s"]))


def test_splits_pictures_labels_and_names_of_classes_are_those_of_the_files(tmp_path: Path) -> None:
    source = whole(tmp_path)
    data = opened(source)
    train, test = data.splits["train"], data.splits["test"]
    assert (data.classes, data.origin) == (CLASSES, "asserted")
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 1, 2, 0, 1, 2, 2], [1, 0])
    assert (values(train).tolist(), values(test).tolist()) == ([*range(7)], [50, 51])
    assert [train.pixels(i, i + 1)[0, 0, 0, 0] for i in (6, 0, 3, 4, 5, 1)] == [6, 0, 3, 4, 5, 1]
    # What is held out depends on names that never change.
    assert [train.pixels.name(i) for i in (0, 4)] == [f"train-00000-of-00002.parquet/{i}" for i in (0, 4)]
    # Names in the files say what numbers mean, in whatever order the classes are stated. They state no classes.
    for classes in (None, ("0", "1", "2"), CLASSES[:2]):
        with refuses("conflict", parameter="classes"):
            opened(source, classes=classes)
    other = opened(source, classes=("more", *CLASSES[::-1]))
    assert other.splits["train"].labels.tolist() == [3, 2, 1, 3, 2, 1, 1]
    assert other.splits["train"].listing == train.listing
    # Columns and splits that are not used are named.
    assert [["(who)" in each, "'test'" in each] for each in data.remarks] == [[True, False], [False, True]]
    # Persons are found by a column.
    grouped = opened(source, group_by=rule_of("column:who"))
    ordered, groupings = by_person(grouped)
    assert len(grouped.remarks) == 1
    assert (groupings["train"].groups, groupings["test"].groups) == (4, 2)
    assert sorted(values(ordered.splits["train"]).tolist()) == list(range(7))


def test_rows_for_testing_are_never_trained_on(tmp_path: Path) -> None:
    for i, (split, code) in enumerate((("train", None), ("test", "conflict"), ("fold 1", "bad-record"))):
        held = table([png(0), png(1)], [0, 1], split=pa.array(["train", split]))
        with refuses(code) if code else nullcontext():
            opened(made(tmp_path / f"{i}", train=held))


def test_labels_are_read_however_parquet_stores_them_in_the_column_that_is_named(tmp_path: Path) -> None:
    names, path = table([png(i) for i in range(4)], list("babb"), named=False), tmp_path / "train.parquet"

    def labels(**options: Any) -> list[int]:
        found = opened(f"parquet:{path}", **{"classes": tuple("01234"), **options})
        return list(found.splits["train"].labels.tolist())

    for how in ("PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"):
        pq.write_table(names, path, use_dictionary=False, column_encoding={"label": how})
        assert labels(classes=("a", "b")) == [1, 0, 1, 1]
    pq.write_table(table([png(i) for i in range(4)], names["label"].dictionary_encode(), named=False), path)
    assert labels(classes=("b", "a", "c")) == [0, 1, 0, 0]
    for how in ("uint8", "int8", "uint16", "uint32", "uint64"):
        pq.write_table(table([png(0), png(1), png(2)], pa.array([2, 0, 1], how), named=False), path)
        assert labels() == [2, 0, 1]
    pq.write_table(table([png(0), png(1)], ["x", "y"], named=False, site=[4, 3], note=["b", "a"]), path)
    assert (labels(classes=("x", "y")), labels(label_column="site")) == ([0, 1], [4, 3])
    assert labels(label_column="note", classes=("a", "b")) == [1, 0]
    with refuses("missing", parameter="label_column"):
        labels(label_column="image")
    # The column of persons is not taken for that of the labels.
    bare = pa.struct([("bytes", pa.large_binary())])
    pictures = [{"bytes": png(7)}, {"bytes": png(8)}]
    pq.write_table(table(pictures, [0, 1], kind=bare, mrn=[7, 9]).rename_columns(["image", "diagnosis", "mrn"]), path)
    assert labels(group_by=rule_of("column:mrn")) == [0, 1]
    with refuses("conflict", parameter="label_column"):
        labels()
    # Metadata that name no classes, or no text, are ignored.
    odd = b'{"info": {"features": {"label": {"names": [0, 1]}}}}'
    for features in (b"[" * 100_000, b'{"info": 1e400}', b'{"info": NaN}', b"\xff", b"[]", odd):
        pq.write_table(table([png(0), png(1)], [0, 1]).replace_schema_metadata({b"huggingface": features}), path)
        assert labels() == [0, 1]


def test_the_listing_knows_the_labels_and_stays_where_files_are_moved(tmp_path: Path) -> None:
    listings = set()
    for i, labels in enumerate(([0, 1], [1, 0])):
        source = made(tmp_path / f"{i}", train=table([png(0), png(1)], labels))
        listings.add(opened(source).splits["train"].listing)
        (tmp_path / f"{i}").rename(tmp_path / f"moved{i}")
        listings.add(opened(f"parquet:{tmp_path / f'moved{i}'}").splits["train"].listing)
    # The sizes of pictures tell one source from another one with the same labels.
    source = made(tmp_path / "other", train=table([png(0), png(1) + b"x"], [0, 1]))
    assert len(listings | {opened(source).splits["train"].listing}) == 3


def test_a_broken_picture_is_named_by_its_place(tmp_path: Path) -> None:
    source = made(tmp_path / "x", train=table([png(0), None, b"none", b""], [0, 1, 2, 0]))
    train = opened(source).splits["train"]
    for row in (1, 2, 3):
        with refuses("bad-record", match="'…'") as refused:
            train.pixels(row, row + 1)
        assert GUARDED in str(refused.value)
        assert f"row {row}' cannot be decoded" in str(refused.value.full)


def test_pictures_without_labels_are_called_by_their_place(tmp_path: Path) -> None:
    whole(tmp_path)
    found = unlabelled("parquet", tmp_path).pictures
    read = {found.name(i): found.read(i) for i in range(len(found))}
    assert (len(read), read["train-00001-of-00002.parquet/1"]) == (10, png(6))


REFUSED: list[tuple[pa.Table, str, bool]] = [
    (table([png(0), png(1)], [0, 3]), "bad-record", True),
    (table([png(0), png(1)], pa.array([0, 2**64 - 1], pa.uint64()), named=False), "bad-record", True),
    (table([png(0), png(1)], [-1, -1]), "missing", True),
    (table([png(0)], [0], other=pa.array([{"bytes": b""}])), "conflict", False),
    (pa.table({"label": [0, 1]}), "missing", False),
    (pa.table({"x": [[1.0]], "label": [1]}), "missing", False),
    (table([png(0)], pa.array([[0]])), "missing", False),
    (table([], pa.array([], pa.int64())), "missing", True),
]


def test_what_is_no_set_of_labelled_pictures_is_refused(tmp_path: Path) -> None:
    for i, (bad, code, guarded) in enumerate(REFUSED):
        named = b"names" in (bad.schema.metadata or {}).get(b"huggingface", b"")
        with pytest.raises(UserError) as refused:
            opened(made(tmp_path / f"{i}", train=bad), classes=CLASSES if named else ("a", "b"))
        assert (refused.value.code, GUARDED in str(refused.value)) == (code, guarded), i


UNLABELLED = [
    table([png(0), png(1)], pa.array([0, None], pa.int64())),
    table([png(0), png(1)], [0, -1]),
    table([png(0), png(1)], ["flu", None], named=False),
]


def test_a_picture_without_a_label_cannot_be_used_and_the_others_can(tmp_path: Path) -> None:
    for i, found in enumerate(UNLABELLED):
        split = opened(made(tmp_path / f"{i}", train=found)).splits["train"]
        assert split.labels.tolist() == [0, -1]
        assert split.pixels(0, 1).max() == 0
        with pytest.raises(UnreadableError):
            split.pixels(1, 2)


def test_files_that_differ_in_their_columns_are_refused(tmp_path: Path) -> None:
    good = table([png(0)], [0], who=["p"])
    for i, lacking in enumerate(("image", "label", "who")):
        source = made(tmp_path / f"{i}", train=[good, good.drop_columns([lacking])])
        with refuses("conflict") as refused:
            opened(source, group_by=rule_of("column:who"))
        assert f"'{lacking}'" in refused.value.what


def test_rows_that_name_a_file_in_place_of_a_picture_are_refused_and_no_null_records(tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(png(1))
    pictures = [png(0), None, {"bytes": png(2), "path": "1.png"}, {"bytes": None, "path": "1.png"}]
    train = opened(made(tmp_path, train=table(pictures, [0, 1, 0, 1]))).splits["train"]
    with refuses("bad-record", parameter="on_error"):
        train.pixels(1, 2)
    for start in (2, 3):
        with pytest.raises(UserError) as refused:
            train.pixels(start, start + 1)
        assert (type(refused.value), refused.value.code) == (UserError, "missing")
        assert GUARDED in refused.value.what


# Pictures of parquet in another order


def of_persons(folder: Path) -> str:
    """40 pictures of 13 persons in 8 row groups."""
    image, who = [png(i) for i in range(40)], [f"p{i * 7 % 13}" for i in range(40)]
    first, second = table(image[:25], [0, 1] * 12 + [0], who=who[:25]), table(image[25:], [1] * 15, who=who[25:])
    return made(folder, 6, train=[first, second])


def windowed(monkeypatch: pytest.MonkeyPatch, held: int) -> list[int]:
    """The numbers of the row groups that are read, where so many bytes of pictures are held."""
    read: list[int] = []
    real = tables._read_group
    monkeypatch.setattr(tables, "_read_group", lambda *a: (read.append(a[1].number), real(*a))[1])
    monkeypatch.setattr(tables, "free_memory", lambda: 0.0)
    monkeypatch.setattr(tables, "HELD", held)
    return read


def test_parquet_is_read_a_few_times_whatever_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the 8 row groups is read once for each window of so many pictures, if a picture of it is there."""
    source = of_persons(tmp_path / "x")
    metadata = [pq.read_metadata(path) for path in (tmp_path / "x").glob("*.parquet")]
    size = sum(each.row_group(i).total_byte_size for each in metadata for i in range(each.num_row_groups)) / 40
    for window, most in ((41, 8), (10, 4 * 8), (0, 40)):
        read = windowed(monkeypatch, int(size * window))
        assert values(opened(source).splits["train"]).tolist() == list(range(40))
        assert len(read) == 8
        whole = opened(source, group_by=rule_of("column:who"))
        train = by_person(whole)[0].splits["train"]
        read.clear()
        assert sorted(values(train)) == list(range(40))
        assert 8 <= len(read) <= most
        # Several threads at once read more often, and the same.
        wanted = [(at, train.pixels, at, min(at + 16, 40)) for at in range(0, 40, 16)]
        found = [batch.pixels for _, batch in prefetch.batches(wanted, workers=4)]
        np.testing.assert_array_equal(np.concatenate(found), train.pixels(0, 40))


def test_pictures_that_are_larger_than_their_file_says_are_held_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture that is repeated is stored once, and then a small file holds many bytes."""
    large, n = 1_000_000, 40
    data = [bytes([i % 3]) * (large if i >= 20 else 10) for i in range(n)]
    pq.write_table(table(data, [0] * n), tmp_path / "x.parquet", row_group_size=6)
    windowed(monkeypatch, 5 * large)
    # All orders are asked for: a window that is halved on the way must leave no picture in the place of another one.
    for then in (0, 7, n - 1):
        back = unlabelled("parquet", tmp_path / "x.parquet").pictures.only(np.arange(n)[::-1])
        tracemalloc.start()
        for i in (*range(31), then, *range(31, n)):
            assert back.read(i) == data[n - 1 - i]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 22 * large


# Memory, and files that lie


def test_row_groups_that_would_fill_the_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = whole(tmp_path / "x")
    monkeypatch.setattr(tables, "LARGEST_GROUP", 100)
    with pytest.raises(UserError) as refused:
        opened(source)
    assert (refused.value.code, "row_group_size" in refused.value.remedy) == ("memory", True)
    # A picture that is repeated a thousand times is stored once.
    monkeypatch.setattr(tables, "LARGEST_GROUP", 1 << 20)
    source = made(tmp_path / "y", 1_000, train=table([png(1).ljust(10_000, b"\0")] * 1_000, [0, 1] * 500))
    split = opened(source).splits["train"]
    with refuses("memory"):
        split.pixels(0, 1)
    monkeypatch.undo()
    assert (split.pixels(999, 1_000) == 1).all()


def test_files_that_declare_other_rows_than_they_have_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million equal labels and missing pictures take 5 kB, and a billion hardly more."""
    n, path = 1_000_000, tmp_path / "a.parquet"
    pictures = pa.StructArray.from_arrays([pa.nulls(n, pa.binary())], ["bytes"])
    pq.write_table(pa.table({"image": pictures, "label": np.zeros(n, np.uint8)}), path)
    with refuses("damaged"):
        opened(f"parquet:{path}")
    # Also where as many are left as are wanted: they would be others.
    source = made(tmp_path / "x", 4, train=table([png(i) for i in range(8)], [0] * 8))
    real = pq.ParquetFile.iter_batches
    for count in (8, 2):
        train = opened(source).splits["train"].spread(count)
        with monkeypatch.context() as patch:
            patch.setattr(pq.ParquetFile, "iter_batches", lambda *a, **b: (each[:1] for each in real(*a, **b)))
            with refuses("damaged"):
                values(train)


def test_a_damaged_file_is_refused_and_read_nowhere_else(tmp_path: Path) -> None:
    source = made(tmp_path, train=table([png(i) for i in range(4)], [0, 1, 2, 0]))
    [path] = tmp_path.iterdir()
    data = path.read_bytes()
    for part in (slice(0), slice(40), slice(0, -9), slice(9, None), slice(0, 400)):
        path.write_bytes(data[part])
        with refuses("damaged"):
            opened(source)
