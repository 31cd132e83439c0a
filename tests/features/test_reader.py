"""What is written is read back, in order, from any number of shards; nothing hostile, damaged or changed is read."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from dpfc_cli.features import hdf5, reader
from dpfc_cli.features.manifest import MANIFEST
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.features.writer import FeatureWriter
from dpfc_cli.files import sha256_of
from tests.support import bare_manifest, nulls, refuses, shards_of

SHARD = "train-00000-of-00002.h5"
N = {"train": 100, "test": 20}


def made(folder: Path, shards: int = 2, groups: list[int] | None = None, claimed: int | None = None) -> FeatureSet:
    """A set of 100 and 20 records; the features of a record are made of its number.

    groups: a training split alone, with these groups in its shards, whether or not a reader should take them. claimed:
    how many the manifest says there are.
    """
    rows = N if groups is None else {"train": len(groups)}
    identity: dict[str, Any] = {"listing": dict.fromkeys(rows, "x")}
    honest = None
    if groups is not None:
        truth = np.unique(groups, return_inverse=True)[1]
        honest = {"train": np.minimum(np.sort(truth), np.arange(len(groups)))}
        identity["groups"] = {"train": "0" * 64}
    manifest = bare_manifest({"identity": identity}, **({} if groups is None else {"grouped_by": {"by": "name"}}))
    with shards_of(-(-rows["train"] // shards)):
        writer = FeatureWriter(folder, manifest, nulls(rows), honest)
    for planned in writer.missing:
        with writer.shard(planned) as sink:
            at = np.arange(planned.start, planned.stop)
            sink.append(np.stack((at, -at), axis=1).astype(np.float32), at % 2)
    writer.finish()
    for i, shard in enumerate(FeatureSet(folder).split("train").shards if groups else ()):
        altered(folder, shard.file, partial(with_groups, groups=np.array_split(groups or [], shards)[i]))
    if claimed is not None:
        said(folder, lambda manifest: manifest["splits"]["train"].update(groups=claimed))
    return FeatureSet(folder)


def with_groups(file: h5py.File, groups: np.ndarray) -> None:
    file["groups"][:] = groups


def said(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest."""
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


def altered(folder: Path, name: str, change: Callable[[h5py.File], object], mode: str = "r+") -> None:
    """Change a shard, and its digest in the manifest, so that only what is in it is wrong."""
    with h5py.File(folder / name, mode, libver="latest") as file:
        change(file)
    found = sha256_of(folder / name)
    said(folder, lambda m: [s.update(sha256=found) for s in m["splits"]["train"]["shards"] if s["file"] == name])


def refused(found: FeatureSet, says: str) -> None:
    """Whoever reads it, and in whatever way, it is refused."""
    uses: list[Callable[[], object]] = [lambda: found.verify("train"), lambda: list(found.stream("train")(3))]
    uses += [lambda: list(found.stream("train", groups=True)(3))] * found.manifest.grouped
    for use in uses:
        with refuses("damaged", match=says):
            use()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made(tmp_path / "set").folder


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    """What waits for another process is stopped, so that the test fails."""

    def stop(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(600)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_blocks_are_the_same_whatever_the_shards(tmp_path: Path) -> None:
    for shards in (1, 3, 20):
        found = made(tmp_path / f"{shards}", shards)
        assert len(found.split("train").shards) == shards
        found.verify("train")
        for rows, begin in ((7, 0), (32, 0), (1000, 0), (7, 50)):
            starts, x, y = map(list, zip(*found.stream("train", begin)(rows), strict=True))
            assert starts == list(range(begin, 100, rows))
            assert np.concatenate(x).tolist() == [[i, -i] for i in range(begin, 100)]
            assert np.concatenate(y).tolist() == [[i % 2] for i in range(begin, 100)]


def test_labels_become_numbers_in_another_list_of_classes(tmp_path: Path) -> None:
    found = made(tmp_path / "set", 3).with_classes(("c", "b", "a"))
    assert found.classes == ("c", "b", "a")
    assert found.arrays("train")[1].ravel().tolist() == [2 - i % 2 for i in range(100)]
    assert found.is_same()
    # What was no class is none in the longer list, and what was no label stays none.
    found._numbers = np.array([2, reader.NO_CLASS, -1], np.int32)
    assert found.arrays("train")[1].ravel()[:2].tolist() == [2, reader.NO_CLASS]
    with refuses("conflict"):
        found.with_classes(("a", "b"))


def test_a_set_says_what_it_holds_and_hands_out_a_split_as_arrays(folder: Path) -> None:
    found = FeatureSet(str(folder))
    assert (found.name, found.classes, found.dim, found.splits) == ("set", ("a", "b"), 2, N)
    x, y = found.arrays("test")
    assert (x.shape, x.dtype, y.shape, y.dtype) == ((20, 2), np.dtype(np.float32), (20, 1), np.dtype(np.int32))
    for use in (found.arrays, found.split):
        with refuses("missing", match="'val'"):
            use("val")
    with refuses("missing", parameter="group_by"):
        found.stream("train", groups=True)
    with h5py.File(folder / SHARD) as file:
        assert set(file) == {"features", "labels", "index"}


# Damaged and hostile shards


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((50, 2), np.float32)
    layout[:] = h5py.VirtualSource("other.h5", "features", (50, 2))
    file.create_virtual_dataset("features", layout)


def linked(link: h5py.SoftLink | h5py.ExternalLink) -> Callable[[h5py.File], object]:
    return lambda file: (file.update(elsewhere=np.ones((50, 2), np.float32)), file.__setitem__("features", link))


STORED: dict[str, Any] = {"shape": (50, 2), "dtype": np.float32}
NOT_PLAIN: list[tuple[Callable[[h5py.File], object], str]] = [
    (linked(h5py.ExternalLink("other.h5", "features")), "link"),
    (linked(h5py.SoftLink("/elsewhere")), "link"),
    (lambda file: file.create_dataset("features", **STORED, external=[("/etc/passwd", 0, 400)]), "other files"),
    (virtual, "other files"),
    (lambda file: file.create_dataset("features", **STORED, compression="gzip"), "filters"),
    (lambda file: file.create_dataset("features", (50, 3), np.float32), "shape"),
    (lambda file: file.create_dataset("features", (50, 2), np.float64), "dtype"),
    (lambda file: file.create_dataset("features", **STORED), " 400 bytes"),
    (lambda file: file.create_group("features"), "data set"),
    (lambda file: None, "'features'"),
]


def test_shards_that_are_not_plain_are_refused_before_a_value_is_read(folder: Path) -> None:
    for write, says in NOT_PLAIN:

        def anew(file: h5py.File, write: Callable[[h5py.File], object] = write) -> None:
            file["index"], file["labels"] = np.arange(50), np.zeros(50, np.int32)
            write(file)

        altered(folder, SHARD, anew, "w")
        refused(FeatureSet(folder), says)


def test_rows_that_were_never_written_are_not_made_up(folder: Path) -> None:
    """HDF5 gives a fill value for them: 10⁹ rows lie in a file of some kilobytes."""
    rows = 10**9
    said(folder, lambda m: m["splits"]["train"].update(n=rows, shards=[{"file": SHARD, "rows": rows, "sha256": ""}]))
    for chunks in (None, (4096,)):

        def empty(file: h5py.File, chunks: tuple[int] | None = chunks) -> None:
            file.create_dataset("index", (rows,), np.int64, chunks=chunks)

        altered(folder, SHARD, empty, "w")
        refused(FeatureSet(folder), "'index' .* 8,000,000,000 bytes")


def test_a_shard_in_anothers_place_is_refused(folder: Path) -> None:
    said(folder, lambda manifest: manifest["splits"]["train"]["shards"].reverse())
    refused(FeatureSet(folder), "place")


def test_a_damaged_truncated_foreign_or_missing_shard_is_named(folder: Path) -> None:
    path = folder / SHARD
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[-100] ^= 1
    for bad in (bytes(flipped), good[:-200], b"not HDF5 at all", b""):
        path.write_bytes(bad)
        with refuses("damaged", path=str(path)):
            FeatureSet(folder).verify("train")
    path.unlink()
    with refuses("missing"):
        FeatureSet(folder).verify("train")


def test_values_that_a_file_no_longer_holds_are_not_taken_for_zeros(tmp_path: Path) -> None:
    """HDF5 fills up with zeros what lies behind the end of a file, and says nothing."""
    found = made(tmp_path / "set", 1, [0] * 50_000)
    blocks = found.stream("train")(100)
    next(blocks)
    (shard,) = found.folder.glob("*.h5")
    os.truncate(shard, shard.stat().st_size // 2)
    with refuses("damaged"):
        list(blocks)


def test_records_are_read_all_the_same_if_their_file_cannot_be_closed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is gone would else be told of a second time, as a traceback without a reader."""
    close = hdf5._Whole.close

    def failing(self: hdf5._Whole) -> None:
        if not self.closed:
            close(self)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(hdf5._Whole, "close", failing)
    features = FeatureSet(folder)
    assert len(features.arrays("train")[0]) == N["train"]
    # Nobody reads on.
    next(features.stream("train")(1))


def test_a_shard_that_is_locked_is_not_called_damaged(folder: Path) -> None:
    program = "import h5py, sys; file = h5py.File(sys.argv[1], 'r+'); print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, str(folder / SHARD)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with refuses("busy") as caught:
            FeatureSet(folder).verify("train")
        assert "'dpfc extract'" not in caught.value.remedy
        assert other.stdin is not None
        other.stdin.close()
    FeatureSet(folder).verify("train")


def test_what_the_system_does_not_let_us_read_or_is_no_plain_file_is_not_called_damaged(folder: Path) -> None:
    """A loop of links, for permissions do not stop every user who runs tests; a pipe, a folder, and a device."""
    for name in (SHARD, MANIFEST):
        path, kept = folder / name, folder / "kept"
        path.rename(kept)
        for make, remove in (
            (lambda path: path.symlink_to(path.name), Path.unlink),
            (os.mkfifo, Path.unlink),
            (Path.mkdir, Path.rmdir),
            (lambda path: path.symlink_to("/dev/zero"), Path.unlink),
        ):
            make(path)
            with refuses("unreadable", path=str(path)) as found:
                FeatureSet(folder).verify("train")
            assert "'dpfc extract'" not in found.value.remedy
            remove(path)
        kept.rename(path)


# Groups


def test_groups_in_their_order_are_read_over_all_shards(tmp_path: Path) -> None:
    for shards in (1, 2, 3):
        found = made(tmp_path / f"{shards}", shards, [0, 0, 1, 1, 1, 2])
        found.verify("train")
        assert np.concatenate([g for *_, g in found.stream("train", groups=True)(4)]).tolist() == [0, 0, 1, 1, 1, 2]
        assert (found.split("train").groups, found.manifest.grouped_by) == (3, {"by": "name"})


GROUPS: dict[str, list[int]] = {
    "a group in two places, over two shards": [0, 0, 1, 0, 1, 2],
    "a group in two places of one shard": [0, 1, 0, 1, 2, 2],
    "a number is missing": [0, 0, 2, 2, 3, 3],
    "a number is missing between shards": [0, 0, 0, 2, 2, 3],
    "the first is not 0": [1, 1, 2, 2, 3, 3],
    "the first is below 0": [-1, 0, 0, 1, 1, 2],
    "the second shard begins anew": [0, 1, 1, 0, 1, 2],
    "differences overflow": [0, -(2**63), -(2**63) + 1, 0, 1, 2],
    "the largest number": [0, 0, 0, 2**63 - 1, 2**63 - 1, 2],
}


@pytest.mark.parametrize("case", GROUPS)
def test_groups_that_are_split_skipped_or_begin_wrong_are_refused(tmp_path: Path, case: str) -> None:
    refused(made(tmp_path / "set", 2, GROUPS[case], claimed=3), "numbered")


def test_a_set_that_ends_with_another_group_than_its_manifest_says_is_refused(tmp_path: Path) -> None:
    for claimed in (1, 2, 4, 6):
        refused(made(tmp_path / f"{claimed}", 2, [0, 0, 1, 1, 2, 2], claimed), "last group")


def test_groups_that_are_not_plainly_there_are_refused(tmp_path: Path) -> None:
    replaced: list[tuple[Callable[[h5py.File], object], str]] = [
        (lambda file: None, "'groups'"),
        (lambda file: file.update(groups=h5py.SoftLink("/index")), "link"),
        (lambda file: file.create_dataset("groups", data=np.zeros(2, np.int64)), r"shape \(2,\)"),
        (lambda file: file.create_dataset("groups", data=np.zeros(3, np.int32)), "dtype int32"),
    ]
    for i, (write, says) in enumerate(replaced):
        folder = made(tmp_path / f"{i}", 2, [0, 0, 1, 1, 2, 2]).folder
        altered(folder, SHARD, lambda file: file.__delitem__("groups"))
        altered(folder, SHARD, write)
        refused(FeatureSet(folder), says)


def test_a_manifest_that_hides_the_groups_of_its_shards_is_refused(tmp_path: Path) -> None:
    """It would be trained on as a set whose records are of as many persons."""
    folder = made(tmp_path / "set", 2, [0, 0, 1, 1, 2, 2]).folder

    def hide(manifest: dict[str, Any]) -> None:
        del manifest["grouped_by"], manifest["splits"]["train"]["groups"], manifest["source"]["identity"]["groups"]

    said(folder, hide)
    refused(FeatureSet(folder), "has groups")
