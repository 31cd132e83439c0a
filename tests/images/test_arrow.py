"""Folders that `save_to_disk` of Hugging Face datasets writes: Arrow streams, read in place, and nothing elsewhere.

The layout was tried on folders that datasets 5.2 wrote: one set, splits in several files, a selection, names as labels,
and pictures that were files.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.images import by_person, open_images
from dpfc_cli.images.unlabelled import in_arrow
from dpfc_cli.sources.groups import rule_of
from tests.images.pictures import SQUARE, png, values

KIND = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
CLASSES = ("flu", "cold", "rare")


def table(pictures: Sequence[Any], labels: Any, named: bool = True, **more: Any) -> pa.Table:
    image = pa.array(
        [each if isinstance(each, dict | None) else {"bytes": each, "path": None} for each in pictures], KIND
    )
    made = pa.table({"image": image, "label": labels, **more})
    feature: dict[str, Any] = {"names": list(CLASSES), "_type": "ClassLabel"} if named else {"dtype": "string"}
    said = {"info": {"features": {"image": {"_type": "Image"}, "label": feature}}}
    return made.replace_schema_metadata({"huggingface": json.dumps(said)})


def save(folder: Path, *tables: pa.Table, rows: int = 2, **options: Any) -> Path:
    """A Dataset: each table is a file, with batches of so many rows."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05d}-of-{len(tables):05d}.arrow" for i in range(len(tables))]
    for name, each in zip(names, tables, strict=True):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, each.schema, **options) as stream:
            stream.write_table(each, max_chunksize=rows)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A DatasetDict: 7 training pictures in two files, and 2 to validate."""
    top = tmp_path / "saved"
    first = table([png(i) for i in range(5)], [0, 1, 2, 0, 1], who=["p0", "p1", "p0", "p2", "p1"])
    save(top / "train", first, table([png(5), png(6)], [2, 2], who=["p2", "p3"]))
    save(top / "validation", table([png(50), png(51)], [1, 0], who=["q", "r"]))
    (top / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "validation"]}))
    return top


def test_splits_pictures_labels_and_names_are_those_of_the_folder(saved: Path) -> None:
    data = open_images(f"arrow:{saved}", geometry=SQUARE)
    train, test = data.splits["train"], data.splits["test"]
    assert (data.classes, data.origin) == (CLASSES, "data set")
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 1, 2, 0, 1, 2, 2], [1, 0])
    np.testing.assert_array_equal(values(train), np.arange(7))
    np.testing.assert_array_equal(values(test), [50, 51])
    assert [train.name(i) for i in (0, 4, 5)] == [
        *("data-00000-of-00002.arrow/0", "data-00000-of-00002.arrow/4", "data-00001-of-00002.arrow/0")
    ]
    np.testing.assert_array_equal(values(train.spread(3)), train.spread(3).pixels(0, 3)[:, 0, 0, 0])


def test_a_set_without_splits_is_for_training_and_may_have_names_as_labels(tmp_path: Path) -> None:
    folder = save(tmp_path / "one", table([png(i) for i in range(4)], ["b", "a", "b", "b"], named=False))
    found = open_images(f"arrow:{folder}", geometry=SQUARE)
    assert (found.classes, found.origin, list(found.splits)) == (("a", "b"), "inferred", ["train"])
    assert found.splits["train"].labels.tolist() == [1, 0, 1, 1]
    stated = open_images(f"arrow:{folder}", geometry=SQUARE, classes=("b", "a", "c"))
    assert stated.splits["train"].labels.tolist() == [0, 1, 0, 0]


def test_persons_are_found_by_a_column(saved: Path) -> None:
    data = open_images(f"arrow:{saved}", geometry=SQUARE, group_by=rule_of("column:who"))
    ordered, groupings = by_person(data)
    assert (len(np.unique(groupings["train"].ids)), len(np.unique(groupings["test"].ids))) == (4, 2)
    assert sorted(values(ordered.splits["train"]).tolist()) == list(range(7))


def test_the_listing_knows_the_labels_and_the_pictures(saved: Path, tmp_path: Path) -> None:
    listing = open_images(f"arrow:{saved}", geometry=SQUARE).splits["train"].listing
    moved = saved.rename(tmp_path / "moved")
    assert open_images(f"arrow:{moved}", geometry=SQUARE).splits["train"].listing == listing
    listings = {listing}
    for i, (pictures, labels) in enumerate(
        [([png(0), png(1)], [0, 1]), ([png(0), png(1)], [1, 0]), ([png(0), png(1) + b"x"], [0, 1])]
    ):
        other = save(tmp_path / f"other{i}", table(pictures, labels))
        listings.add(open_images(f"arrow:{other}", geometry=SQUARE).splits["train"].listing)
    assert len(listings) == 4


def test_a_broken_picture_is_named_by_its_place(tmp_path: Path) -> None:
    folder = save(tmp_path / "one", table([png(0), None, b"none", png(3)], [0, 1, 2, 0]))
    train = open_images(f"arrow:{folder}", geometry=SQUARE).splits["train"]
    for row in (1, 2):
        with pytest.raises(UserError, match=f"data-00000-of-00001.arrow: row {row}' cannot be decoded"):
            train.pixels(row, row + 1)


def test_pictures_without_labels_are_called_by_their_place(saved: Path) -> None:
    found = in_arrow(saved)
    assert (found.n, found.name(6), found.name(7)) == (
        *(9, "train/data-00001-of-00002.arrow/1", "validation/data-00000-of-00001.arrow/0"),
    )
    assert found.pictures.read(7) == png(50)


def test_a_label_that_no_class_can_have_is_refused(tmp_path: Path) -> None:
    labels = pa.array([0, 2**64 - 1], pa.uint64())
    folder = save(tmp_path / "one", table([png(0), png(1)], labels, named=False))
    with pytest.raises(UserError, match=GUARDED) as caught:
        open_images(f"arrow:{folder}", geometry=SQUARE)
    assert caught.value.code == "bad-record"


def cut(path: Path) -> None:
    """The file ends behind its first batch, as if it had no other one."""
    with pa.OSFile(str(path)) as source:
        reader = pa.ipc.open_stream(source)
        reader.read_next_batch()
        stop = source.tell()
    path.write_bytes(path.read_bytes()[:stop])


def halve(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def misplace(path: Path) -> None:
    """The second picture begins far beyond the file."""
    data = bytearray(path.read_bytes())
    first = len(png(0)).to_bytes(4, "little")
    at = data.index(bytes(4) + first)
    data[at + 4 : at + 8] = (2**31 - 9).to_bytes(4, "little")
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("harm", [cut, halve, misplace, lambda path: path.write_bytes(b""), Path.unlink])
def test_a_damaged_file_is_refused_and_read_nowhere_else(tmp_path: Path, harm: Any) -> None:
    folder = save(tmp_path / "one", table([png(i) for i in range(4)], [0, 1, 2, 0]))
    harm(folder / "data-00000-of-00001.arrow")
    with pytest.raises(UserError, match="cannot be read as a stream of Arrow"):
        open_images(f"arrow:{folder}", geometry=SQUARE)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_batches_are_refused_before_they_are_expanded(tmp_path: Path, codec: str) -> None:
    """A batch of a kilobyte may expand to gigabytes."""
    bomb = table([bytes(10**6)] * 4, [0, 1, 2, 0])
    options = pa.ipc.IpcWriteOptions(compression=codec)
    folder = save(tmp_path / "one", bomb, options=options)
    before = pa.total_allocated_bytes()
    with pytest.raises(UserError, match="is compressed") as refused:
        open_images(f"arrow:{folder}", geometry=SQUARE)
    assert refused.value.code == "unsupported"
    assert pa.total_allocated_bytes() - before < 10**6


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("state.json", "none"),
        ("state.json", "{}"),
        ("state.json", '{"_data_files": [{"filename": "../one/data-00000-of-00001.arrow"}]}'),
        ("state.json", '{"_data_files": [{"filename": "/etc/passwd"}]}'),
        ("state.json", '{"_data_files": [{"filename": "data-00000-of-00001.arrow"}, {"filename": "link.arrow"}]}'),
        ("dataset_dict.json", '{"splits": ["."]}'),
        ("dataset_dict.json", '{"splits": [".."]}'),
        ("dataset_dict.json", '{"splits": []}'),
    ],
)
def test_what_says_where_the_files_are_is_checked(tmp_path: Path, file: str, text: str) -> None:
    folder = save(tmp_path / "one", table([png(0), png(1)], [0, 1]))
    (folder / "link.arrow").symlink_to(folder / "data-00000-of-00001.arrow")
    (folder / file).write_text(text)
    with pytest.raises(UserError, match="cannot be used"):
        open_images(f"arrow:{folder}", geometry=SQUARE)


@pytest.mark.parametrize(
    ("made", "says", "guarded"),
    [
        (table([png(0), {"bytes": None, "path": "a.png"}], [0, 1]), "names files such as 'a.png'", True),
        (table([png(0), png(1)], pa.array([0, None], pa.int64())), "are not integers", True),
        (table([png(0), png(1)], [0, 3]), "labels outside 0..2", True),
        (pa.table({"label": [0, 1]}), "no column of pictures", False),
    ],
)
def test_what_is_no_set_of_labelled_pictures_is_refused(
    tmp_path: Path, made: pa.Table, says: str, guarded: bool
) -> None:
    folder = save(tmp_path / "one", made)
    with pytest.raises(UserError, match=says) as refused:
        open_images(f"arrow:{folder}", geometry=SQUARE)
    assert (GUARDED in str(refused.value)) == guarded


def test_a_folder_that_was_not_saved_says_what_to_write(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has neither a dataset_dict\.json nor a state\.json"):
        open_images(f"arrow:{tmp_path}", geometry=SQUARE)
    with pytest.raises(UserError) as refused:
        open_images(str(saved))
    assert f"arrow:{saved}" in refused.value.fields["suggested"]  # type: ignore[operator]
    with pytest.raises(UserError, match="name their classes themselves"):
        open_images(f"arrow:{saved}", geometry=SQUARE, classes=CLASSES)
