"""Tables of pictures, parquet as the hub stores it and Arrow as `save_to_disk` writes it, are the same set in both.

The layout of Arrow was tried on folders that datasets 5.2 wrote: one set, splits in several files, a selection, names
as labels, and pictures that were files.
"""

import json
import os
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
from dpfc_cli.images.sets import by_person
from tests.images.pictures import CLASSES, SQUARE, files, open_images, png, there, unlabelled, values
from tests.support import refuses

KIND = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
KINDS = there("parquet", "arrow")


def table(pictures: Sequence[Any], labels: Any, named: bool = True, kind: Any = KIND, **more: Any) -> pa.Table:
    image = pa.array(
        [each if isinstance(each, dict | None) else {"bytes": each, "path": None} for each in pictures], kind
    )
    made = pa.table({"image": image, "label": labels, **more})
    feature: dict[str, Any] = {"names": list(CLASSES), "_type": "ClassLabel"} if named else {"dtype": "string"}
    said = {"info": {"features": {"image": {"_type": "Image"}, "label": feature}}}
    return made.replace_schema_metadata({"huggingface": json.dumps(said)})


def save(folder: Path, *tables: pa.Table, size: int = 2, **options: Any) -> Path:
    """A Dataset of `datasets`: each table is a file, with batches of so many rows."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05d}-of-{len(tables):05d}.arrow" for i in range(len(tables))]
    for name, each in zip(names, tables, strict=True):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, each.schema, **options) as stream:
            stream.write_table(each, max_chunksize=size)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def made(kind: str, place: Path, size: int = 2, **splits: pa.Table | list[pa.Table]) -> str:
    """A source of such tables, with row groups or batches of so many rows."""
    for split, given in splits.items():
        own = given if isinstance(given, list) else [given]
        if kind == "arrow":
            save(place / split, *own, size=size)
            continue
        place.mkdir(parents=True, exist_ok=True)
        for i, each in enumerate(own):
            pq.write_table(each, place / f"{split}-{i:05d}-of-{len(own):05d}.parquet", row_group_size=size)
    if kind == "arrow":
        (place / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))
    return f"{kind}:{place}"


def whole(kind: str, place: Path) -> str:
    """7 training pictures in two files, 2 to validate, and one without a label."""
    first = table([png(i) for i in range(5)], [0, 1, 2, 0, 1], who=["p0", "p1", "p0", "p2", "p1"])
    second = table([png(5), png(6)], [2, 2], who=["p2", "p3"])
    other = table([png(50), png(51)], [1, 0], who=["q", "r"])
    return made(kind, place, train=[first, second], validation=other, test=table([png(60)], [-1], who=["s"]))


@pytest.mark.parametrize("kind", KINDS)
def test_splits_pictures_labels_and_names_of_classes_are_those_of_the_files(kind: str, tmp_path: Path) -> None:
    data = open_images(whole(kind, tmp_path / "x"), geometry=SQUARE)
    train, test = data.splits["train"], data.splits["test"]
    assert (data.classes, data.origin) == (CLASSES, "asserted")
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 1, 2, 0, 1, 2, 2], [1, 0])
    np.testing.assert_array_equal(values(train), np.arange(7))
    np.testing.assert_array_equal(values(test), [50, 51])
    assert [train.pixels(i, i + 1)[0, 0, 0, 0] for i in (6, 0, 3, 4, 5, 1)] == [6, 0, 3, 4, 5, 1]
    np.testing.assert_array_equal(values(train.spread(3)), train.spread(3).pixels(0, 3)[:, 0, 0, 0])
    # Names in the files say what numbers mean, in whatever order the classes are stated. They state no classes.
    for classes in (None, ("0", "1", "2"), CLASSES[:2]):
        with refuses("conflict", parameter="classes"):
            open_images(f"{kind}:{tmp_path / 'x'}", geometry=SQUARE, classes=classes)
    other = open_images(f"{kind}:{tmp_path / 'x'}", geometry=SQUARE, classes=("more", *CLASSES[::-1]))
    assert other.splits["train"].labels.tolist() == [3, 2, 1, 3, 2, 1, 1]
    assert other.splits["train"].listing == train.listing


@pytest.mark.parametrize("kind", KINDS)
def test_columns_splits_and_files_that_are_not_used_are_named(kind: str, tmp_path: Path) -> None:
    source = whole(kind, tmp_path / "x")
    (tmp_path / "x" / "cache.arrow").touch()
    said = open_images(source, geometry=SQUARE).remarks
    expected = ["1 column (who)", "another split: 'test'."] + ["1 file (1 .arrow)"] * (kind == "arrow")
    assert len(said) == len(expected)
    assert all(any(part in each for each in said) for part in expected)
    assert len(open_images(source, geometry=SQUARE, group_by=rule_of("column:who")).remarks) == len(said) - 1


@pytest.mark.parametrize("kind", KINDS)
def test_rows_for_testing_are_never_trained_on(kind: str, tmp_path: Path) -> None:
    for i, (split, code) in enumerate((("train", None), ("test", "conflict"), ("fold 1", "bad-record"))):
        held = table([png(0), png(1)], [0, 1], split=pa.array(["train", split]))
        with refuses(code) if code else nullcontext():
            open_images(made(kind, tmp_path / f"{i}", train=held), geometry=SQUARE)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_held_out_depends_on_names_that_never_change(kind: str, tmp_path: Path) -> None:
    """Another version that called a picture otherwise would put it into another split."""
    train = open_images(whole(kind, tmp_path / "x"), geometry=SQUARE).splits["train"]
    names = {
        "parquet": ["train-00000-of-00002.parquet/0", "train-00000-of-00002.parquet/4"],
        "arrow": ["data-00000-of-00002.arrow/0", "data-00000-of-00002.arrow/4"],
    }[kind]
    assert [train.pixels.name(i) for i in (0, 4)] == names


@pytest.mark.parametrize("kind", KINDS)
def test_classes_that_no_file_names_are_asserted(kind: str, tmp_path: Path) -> None:
    bare = pa.struct([("bytes", pa.large_binary())])
    numbers = table([{"bytes": png(7)}, {"bytes": png(8)}], [1, 0], named=False, kind=bare, fine=[0, 3])
    data = open_images(made(kind, tmp_path / "numbers", train=numbers), geometry=SQUARE, classes=("0", "1"))
    np.testing.assert_array_equal(values(data.splits["train"]), [7, 8])
    for i, names in enumerate((pa.array(list("babb")), pa.array(list("babb")).dictionary_encode())):
        source = made(kind, tmp_path / f"{i}", train=table([png(i) for i in range(4)], names, named=False))
        with refuses("conflict", parameter="classes"):
            open_images(source, geometry=SQUARE, classes=None)
        stated = open_images(source, geometry=SQUARE, classes=("b", "a", "c"))
        assert (stated.origin, stated.splits["train"].labels.tolist()) == ("asserted", [0, 1, 0, 0])


def test_labels_are_read_however_parquet_stores_them_in_the_column_that_is_named(tmp_path: Path) -> None:
    names, path = table([png(i) for i in range(4)], list("babb"), named=False), tmp_path / "train.parquet"

    def labels(**options: Any) -> list[int]:
        found = open_images(f"parquet:{path}", geometry=SQUARE, **{"classes": tuple("01234"), **options})
        return list(found.splits["train"].labels.tolist())

    for how in ("PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"):
        pq.write_table(names, path, use_dictionary=False, column_encoding={"label": how})
        assert labels(classes=("a", "b")) == [1, 0, 1, 1]
    for how in ("uint8", "int8", "uint16", "uint32", "uint64"):
        pq.write_table(table([png(0), png(1), png(2)], pa.array([2, 0, 1], how), named=False), path)
        assert labels() == [2, 0, 1]
    pq.write_table(table([png(0), png(1)], ["x", "y"], named=False, site=[4, 3], note=["b", "a"]), path)
    assert (labels(classes=("x", "y")), labels(label_column="site")) == ([0, 1], [4, 3])
    assert labels(label_column="note", classes=("a", "b")) == [1, 0]
    with refuses("missing", parameter="label_column"):
        labels(label_column="image")
    # The column of persons is not taken for that of the labels.
    pq.write_table(table([png(0), png(1)], [0, 1], mrn=[7, 9]).rename_columns(["image", "diagnosis", "mrn"]), path)
    assert labels(group_by=rule_of("column:mrn")) == [0, 1]
    with refuses("conflict", parameter="label_column"):
        labels()
    # Metadata that name no classes, or no text, are ignored.
    odd = b'{"info": {"features": {"label": {"names": [0, 1]}}}}'
    for features in (b"[" * 100_000, b'{"info": 1e400}', b'{"info": NaN}', b"\xff", b"[]", odd):
        pq.write_table(table([png(0), png(1)], [0, 1]).replace_schema_metadata({b"huggingface": features}), path)
        assert labels() == [0, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_persons_are_found_by_a_column(kind: str, tmp_path: Path) -> None:
    data = open_images(whole(kind, tmp_path / "x"), geometry=SQUARE, group_by=rule_of("column:who"))
    ordered, groupings = by_person(data)
    assert (groupings["train"].groups, groupings["test"].groups) == (4, 2)
    assert sorted(values(ordered.splits["train"]).tolist()) == list(range(7))


@pytest.mark.parametrize("kind", KINDS)
def test_the_listing_knows_the_labels_and_stays_where_files_are_moved(kind: str, tmp_path: Path) -> None:
    listings = set()
    for i, labels in enumerate(([0, 1], [1, 0])):
        source = made(kind, tmp_path / f"{i}", train=table([png(0), png(1)], labels))
        listings.add(open_images(source, geometry=SQUARE).splits["train"].listing)
        (tmp_path / f"{i}").rename(tmp_path / f"moved{i}")
        listings.add(open_images(f"{kind}:{tmp_path / f'moved{i}'}", geometry=SQUARE).splits["train"].listing)
    # The sizes of pictures tell one source from another one with the same labels.
    source = made(kind, tmp_path / "other", train=table([png(0), png(1) + b"x"], [0, 1]))
    assert len(listings | {open_images(source, geometry=SQUARE).splits["train"].listing}) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_picture_is_named_by_its_place(kind: str, tmp_path: Path) -> None:
    source = made(kind, tmp_path / "x", train=table([png(0), None, b"none", b""], [0, 1, 2, 0]))
    train = open_images(source, geometry=SQUARE).splits["train"]
    for row in (1, 2, 3):
        with refuses("bad-record", match="'…'") as refused:
            train.pixels(row, row + 1)
        assert GUARDED in str(refused.value)
        assert f"row {row}' cannot be decoded" in str(refused.value.full)


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_without_labels_are_called_by_their_place(kind: str, tmp_path: Path) -> None:
    whole(kind, tmp_path / "x")
    found = unlabelled(kind, tmp_path / "x").pictures
    read = {found.name(i): found.read(i) for i in range(len(found))}
    file = {"parquet": "train-00001-of-00002.parquet/1", "arrow": "train/data-00001-of-00002.arrow/1"}[kind]
    assert (len(read), read[file]) == (10, png(6))


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


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_set_of_labelled_pictures_is_refused(kind: str, tmp_path: Path) -> None:
    for i, (bad, code, guarded) in enumerate(REFUSED):
        with pytest.raises(UserError) as refused:
            open_images(
                made(kind, tmp_path / f"{i}", train=bad),
                geometry=SQUARE,
                classes=CLASSES if b"names" in (bad.schema.metadata or {}).get(b"huggingface", b"") else ("a", "b"),
            )
        assert (refused.value.code, GUARDED in str(refused.value)) == (code, guarded), i


UNLABELLED = [
    table([png(0), png(1)], pa.array([0, None], pa.int64())),
    table([png(0), png(1)], [0, -1]),
    table([png(0), png(1)], ["flu", None], named=False),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_without_a_label_cannot_be_used_and_the_others_can(kind: str, tmp_path: Path) -> None:
    for i, found in enumerate(UNLABELLED):
        split = open_images(made(kind, tmp_path / f"{i}", train=found), geometry=SQUARE).splits["train"]
        assert split.labels.tolist() == [0, -1]
        assert split.pixels(0, 1).max() == 0
        with pytest.raises(UnreadableError):
            split.pixels(1, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_differ_in_their_columns_are_refused(kind: str, tmp_path: Path) -> None:
    good = table([png(0)], [0], who=["p"])
    for i, lacking in enumerate(("image", "label", "who")):
        source = made(kind, tmp_path / f"{i}", train=[good, good.drop_columns([lacking])])
        with refuses("conflict") as refused:
            open_images(source, geometry=SQUARE, group_by=rule_of("column:who"))
        assert f"'{lacking}'" in refused.value.what


# Pictures in files that parquet names


def named(folder: Path, *names: str) -> str:
    """A table of rows without bytes, as `Dataset.to_parquet` writes them for local pictures."""
    pictures = [{"bytes": None, "path": name} for name in names]
    return made("parquet", folder, train=table(pictures, [i % 2 for i in range(len(names))]))


@pytest.mark.parametrize("absolute", [True, False])
def test_rows_with_a_path_and_no_bytes_are_files_beside_the_table(tmp_path: Path, absolute: bool) -> None:
    names = ["a/0.png", "b/1.png", "2.png", "a/3.png"]
    files(tmp_path, *names)
    source = named(tmp_path, *(str(tmp_path / name) if absolute else name for name in names))
    train = open_images(source, geometry=SQUARE).splits["train"]
    np.testing.assert_array_equal(values(train), range(4))
    np.testing.assert_array_equal(values(train.part(np.array([3, 1]))), [3, 1])
    assert train.pixels.title(1) == str(tmp_path / "b/1.png")
    # The files are part of what the source is.
    (tmp_path / "2.png").write_bytes(png(2, (9, 9)))
    assert open_images(source, geometry=SQUARE).splits["train"].listing != train.listing
    # A file that is gone is no null record.
    (tmp_path / "a/0.png").unlink()
    with pytest.raises(UserError) as refused:
        train.pixels(0, 1)
    assert (type(refused.value), refused.value.code) == (UserError, "unreadable")


def test_that_rows_name_files_after_one_with_bytes_or_the_other_way_round_makes_no_null_record(tmp_path: Path) -> None:
    """Otherwise the first row would decide whether the others are null records."""
    files(tmp_path, "0.png", "1.png")
    for second in ({"bytes": png(9), "path": None}, {"bytes": png(9), "path": "1.png"}, None):
        source = made("parquet", tmp_path, train=table([{"bytes": None, "path": "0.png"}, second], [0, 1]))
        with refuses("missing"):
            open_images(source, geometry=SQUARE)
    pictures = [png(0), None, {"bytes": png(2), "path": "1.png"}, {"bytes": None, "path": "1.png"}]
    source = made("parquet", tmp_path, train=table(pictures, [0, 1, 0, 1]))
    train = open_images(source, geometry=SQUARE).splits["train"]
    with refuses("bad-record", parameter="on_error"):
        train.pixels(1, 2)
    for start in (2, 3):
        with pytest.raises(UserError) as refused:
            train.pixels(start, start + 1)
        assert (type(refused.value), refused.value.code) == (UserError, "missing")


def test_rows_name_no_files_elsewhere_or_twice_or_what_is_no_file(tmp_path: Path) -> None:
    place = tmp_path / "data"
    files(tmp_path, "secret.png", "data/0.png")
    os.link(place / "0.png", place / "1.png")
    os.mkfifo(place / "pipe")
    for names, code in (
        *(([name], "missing") for name in ("../secret.png", "/etc/hostname", "nowhere.png", f"{tmp_path}/secret.png")),
        # It would count as two records.
        *((["0.png", second], "conflict") for second in ("./0.png", "1.png")),
        (["pipe"], "damaged"),
    ):
        with pytest.raises(UserError) as refused:
            open_images(named(place, *names), geometry=SQUARE)
        assert refused.value.code == code, names
        assert code == "damaged" or GUARDED in refused.value.what


# Pictures of parquet in another order


def of_persons(folder: Path) -> str:
    """40 pictures of 13 persons in 8 row groups."""
    image, who = [png(i) for i in range(40)], [f"p{i * 7 % 13}" for i in range(40)]
    first, second = table(image[:25], [0, 1] * 12 + [0], who=who[:25]), table(image[25:], [1] * 15, who=who[25:])
    return made("parquet", folder, 6, train=[first, second])


def windowed(monkeypatch: pytest.MonkeyPatch, held: int) -> list[int]:
    """The numbers of the row groups that are read, where so many bytes of pictures are held."""
    read: list[int] = []
    real = tables._read_group
    monkeypatch.setattr(tables, "_read_group", lambda *a: (read.append(a[2]), real(*a))[1])
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
        assert values(open_images(source, geometry=SQUARE).splits["train"]).tolist() == list(range(40))
        assert len(read) == 8
        whole = open_images(source, geometry=SQUARE, group_by=rule_of("column:who"))
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
    source = whole("parquet", tmp_path / "x")
    monkeypatch.setattr(tables, "LARGEST_GROUP", 100)
    with pytest.raises(UserError) as refused:
        open_images(source, geometry=SQUARE)
    assert (refused.value.code, "row_group_size" in refused.value.remedy) == ("memory", True)
    # A picture that is repeated a thousand times is stored once.
    monkeypatch.setattr(tables, "LARGEST_GROUP", 1 << 20)
    source = made("parquet", tmp_path / "y", 1_000, train=table([png(1).ljust(10_000, b"\0")] * 1_000, [0, 1] * 500))
    split = open_images(source, geometry=SQUARE).splits["train"]
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
        open_images(f"parquet:{path}", geometry=SQUARE)
    # Also where as many are left as are wanted: they would be others.
    source = made("parquet", tmp_path / "x", 4, train=table([png(i) for i in range(8)], [0] * 8))
    real = pq.ParquetFile.iter_batches
    for count in (8, 2):
        train = open_images(source, geometry=SQUARE).splits["train"].spread(count)
        with monkeypatch.context() as patch:
            patch.setattr(pq.ParquetFile, "iter_batches", lambda *a, **b: (each[:1] for each in real(*a, **b)))
            with refuses("damaged"):
                values(train)


def test_a_damaged_file_is_refused_and_read_nowhere_else(tmp_path: Path) -> None:
    harms: list[tuple[str, Any]] = []
    for kind in KINDS:
        harms += [(kind, lambda path, part=part: path.write_bytes(path.read_bytes()[part])) for part in HALVES]
        harms.append((kind, Path.unlink))
    for i, (kind, harm) in enumerate(harms):
        source = made(kind, tmp_path / f"{i}", train=table([png(i) for i in range(4)], [0, 1, 2, 0]))
        harm(next(path for path in (tmp_path / f"{i}").rglob("*-of-00001.*")))
        with pytest.raises(UserError) as refused:
            open_images(source, geometry=SQUARE)
        assert refused.value.code in ("damaged", "unreadable", "missing"), i


HALVES = (slice(0), slice(40), slice(0, -9), slice(9, None), slice(0, 400))
