"""Folders that `save_to_disk` wrote, beyond what `tests/images/test_tables` promises of all tables."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from dpfc_cli.errors import GUARDED
from tests.images.pictures import SQUARE, open_images, png
from tests.images.test_tables import made, save, table
from tests.support import refuses


def cut(path: Path) -> None:
    """The file ends behind its first batch, as if it had no other one."""
    with pa.OSFile(str(path)) as source:
        reader = pa.ipc.open_stream(source)
        reader.read_next_batch()
        stop = source.tell()
    path.write_bytes(path.read_bytes()[:stop])


def misplace(path: Path) -> None:
    """The second picture begins far beyond the file."""
    data = bytearray(path.read_bytes())
    at = data.index(bytes(4) + len(png(0)).to_bytes(4, "little"))
    data[at + 4 : at + 8] = (2**31 - 9).to_bytes(4, "little")
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("harm", [cut, misplace])
def test_a_damaged_stream_is_refused(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    source = made("arrow", tmp_path, train=table([png(i) for i in range(4)], [0, 1, 2, 0]))
    harm(next(tmp_path.rglob("*-of-00001.arrow")))
    with refuses("damaged"):
        open_images(source, geometry=SQUARE)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_batches_are_refused_when_the_first_is_read(tmp_path: Path, codec: str) -> None:
    """A batch of a kilobyte may expand to gigabytes."""
    folder = save(
        tmp_path / "x", table([bytes(10**6)] * 9, [0] * 9), size=1, options=pa.ipc.IpcWriteOptions(compression=codec)
    )
    before = pa.total_allocated_bytes()
    with refuses("unsupported"):
        open_images(f"arrow:{folder}", geometry=SQUARE)
    assert pa.total_allocated_bytes() - before < 2 * 10**6


def test_arrow_that_names_files_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "x", table([png(0), {"bytes": None, "path": "a.png"}], [0, 1]))
    with refuses("missing", match="'…'") as refused:
        open_images(f"arrow:{folder}", geometry=SQUARE)
    assert GUARDED in str(refused.value)


def test_what_says_where_the_files_of_a_folder_are_is_checked(tmp_path: Path) -> None:
    name = "data-00000-of-00001.arrow"
    for i, (file, text) in enumerate(
        [
            ("state.json", "none"),
            ("state.json", "{}"),
            ("state.json", f'{{"_data_files": [{{"filename": "../one/{name}"}}]}}'),
            ("state.json", '{"_data_files": [{"filename": "/etc/passwd"}]}'),
            ("state.json", f'{{"_data_files": [{{"filename": "{name}"}}, {{"filename": "link.arrow"}}]}}'),
            ("state.json", f'{{"_data_files": [{{"filename": "{name}"}}], "_indices_files": [{{"filename": "i"}}]}}'),
            ("state.json", f'{{"_data_files": [{{"filename": "{name}"}}], "_indices_data_files": [{{}}]}}'),
            ("state.json", f'{{"_data_files": [{{"filename": "{name}", "skip": 0, "take": 1}}]}}'),
            ("dataset_dict.json", '{"splits": ["."]}'),
            ("dataset_dict.json", '{"splits": [".."]}'),
            ("dataset_dict.json", '{"splits": []}'),
        ]
    ):
        folder = save(tmp_path / f"{i}", table([png(0), png(1)], [0, 1]))
        (folder / "link.arrow").symlink_to(folder / name)
        (folder / file).write_text(text)
        with refuses("conflict" if "link" in text else "damaged"):
            open_images(f"arrow:{folder}", geometry=SQUARE)


def test_old_versions_name_the_classes_beside_the_stream(tmp_path: Path) -> None:
    bare = table([png(0), png(1)], [0, 1]).replace_schema_metadata(None)
    folder = save(tmp_path / "x", bare)
    # Cards of the hub have the names as an object.
    for names in ('["flu", "cold"]', '{"1": "cold", "0": "flu"}'):
        (folder / "dataset_info.json").write_text(f'{{"features": {{"label": {{"names": {names}}}}}}}')
        found = open_images(f"arrow:{folder}", geometry=SQUARE, classes=("cold", "flu"))
        assert found.splits["train"].labels.tolist() == [1, 0]


def test_a_folder_that_was_not_saved_says_what_to_write(tmp_path: Path) -> None:
    with refuses("damaged"):
        open_images(f"arrow:{tmp_path}", geometry=SQUARE)


def test_persons_in_arrow_are_noticed(tmp_path: Path) -> None:
    pictures, labels = [png(i) for i in range(4)], [0, 1, 2, 0]
    once = save(tmp_path / "once", table(pictures, labels, subject_id=list("abcd"), id=[0, 1, 2, 3]))
    twice = save(tmp_path / "twice", table(pictures, labels, who=list("aabb"), subject_id=pa.array([7.0, 8, 7, None])))
    assert open_images(f"arrow:{once}", geometry=SQUARE).noticed() is None
    assert open_images(f"arrow:{twice}", geometry=SQUARE).noticed() == "column:subject_id"
