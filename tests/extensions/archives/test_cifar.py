"""CIFAR-10 and CIFAR-100 in their official layouts, packed or unpacked. Their pickles never run code."""

import gzip
import io
import os
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.extensions.archives.cifar import HUNDRED, read_pickle
from dpfc_cli.extensions.archives.tars import LONGEST_NAME
from dpfc_cli.images.catalogue import open_images
from tests.extensions.archives.official import CIFAR10_NAMES, cifar10, pack, planes
from tests.support import refuses

ARCHIVE = "cifar-10-python.tar.gz"


def test_files_are_joined_in_the_order_of_their_numbers_and_pixels_are_colours_by_row(tmp_path: Path) -> None:
    data = open_images("cifar10", cifar10(tmp_path, (10, 2, 1)))
    train = data.splits["train"]
    np.testing.assert_array_equal(train.labels, [1, 0, 9, 2, 0, 9, 0, 0, 9])
    for position, number in enumerate((1, 2, 10)):
        expected = planes(3, number).reshape(3, 3, 32, 32).transpose(0, 2, 3, 1)
        np.testing.assert_array_equal(train.pixels(3 * position, 3 * position + 3), expected)
    first = train.pixels(0, 1)[0]
    assert (first[0, 1, 0], first[1, 0, 1], first[31, 31, 2]) == tuple(planes(3, 1)[0, [1, 1024 + 32, 3071]])
    np.testing.assert_array_equal(data.splits["test"].labels, [3, 4])
    assert (data.classes[:2], train.labels.dtype) == (("airplane", "automobile"), np.dtype(np.int32))


def test_folder_parent_archive_and_its_folder_are_one_data_set_and_another_file_makes_another(tmp_path: Path) -> None:
    folder = cifar10(tmp_path / "loose")
    apart = pack(folder, tmp_path / "apart" / ARCHIVE)
    sets = [open_images("cifar10", path) for path in (folder, folder.parent, apart, apart.parent)]
    for split in ("train", "test"):
        assert len({one.splits[split].listing for one in sets}) == 1
        for one in sets[1:]:
            n = one.splits[split].n
            np.testing.assert_array_equal(one.splits[split].pixels(0, n), sets[0].splits[split].pixels(0, n))
    other = open_images("cifar10", cifar10(tmp_path / "other", (1, 3)))
    assert other.splits["train"].listing != sets[0].splits["train"].listing
    (folder / "test_batch").unlink()
    assert list(open_images("cifar10", folder).splits) == ["train"]


def test_cifar100_has_its_fine_labels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    fine = [name.encode() for name in HUNDRED.classes]
    for name, contents in {
        "train": {b"data": planes(2, 1), b"fine_labels": [99, 5], b"coarse_labels": [1, 2]},
        "test": {b"data": planes(1, 2), b"fine_labels": [42], b"coarse_labels": [1]},
        "meta": {b"fine_label_names": fine, b"coarse_label_names": [b"x"] * 20},
    }.items():
        (folder / name).write_bytes(pickle.dumps(contents, 3))
    data = open_images("cifar100", tmp_path)
    np.testing.assert_array_equal(data.splits["train"].labels, [99, 5])
    assert (data.classes, len(data.classes)) == (HUNDRED.classes, 100)


def test_nothing_but_regular_members_of_the_official_folder_is_read(tmp_path: Path) -> None:
    folder = cifar10(tmp_path / "loose")
    archive = tmp_path / ARCHIVE
    with tarfile.open(archive, "w:gz") as tar:
        for file in sorted(folder.iterdir()):
            tar.add(file, f"./cifar-10-batches-py/{file.name}")
        for name in ("cifar-10-batches-py/data_batch_7", "../data_batch_8", "/etc/data_batch_9", "other/data_batch_9"):
            member = tarfile.TarInfo(name)
            member.type = tarfile.SYMTYPE if name.endswith("7") else tarfile.REGTYPE
            member.linkname = "/etc/passwd"
            tar.addfile(member, io.BytesIO(b""))
    assert open_images("cifar10", archive).splits["train"].n == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == [ARCHIVE, "loose"]


def test_a_file_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    """A record that is counted twice would double the sensitivity."""
    folder = cifar10(tmp_path / "loose")
    with tarfile.open(tmp_path / ARCHIVE, "w:gz") as tar:
        tar.add(folder, folder.name)
        tar.add(folder / "data_batch_1", f"{folder.name}/data_batch_1")
    with refuses("damaged", parameter="data_dir"):
        open_images("cifar10", tmp_path)


def test_a_damaged_member_or_archive_is_an_error_that_names_it(tmp_path: Path) -> None:
    folder = cifar10(tmp_path / "loose")
    for name in ("data_batch_1", "test_batch", "batches.meta"):
        whole = (folder / name).read_bytes()
        # One behind another is no larger one: pickle would read the first.
        for wrong in (whole[:-5], 2 * whole):
            (folder / name).write_bytes(wrong)
            with refuses("damaged", match=name):
                open_images("cifar10", folder)
        (folder / name).write_bytes(whole)
    archive = pack(folder, tmp_path / ARCHIVE)
    whole = archive.read_bytes()
    harmed = [whole[:length] for length in (*range(0, len(whole), 997), *range(len(whole) - 40, len(whole)))]
    # After the file name in gzip's header, which nobody reads.
    harmed += [whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in range(64, len(whole), 1009)]
    long = tarfile.TarInfo("x")
    long.type, long.size = tarfile.GNUTYPE_LONGNAME, 4
    # tarfile calls itself for each name of a member, and reads the whole of one.
    chain = (long.tobuf(tarfile.GNU_FORMAT) + b"abc\0".ljust(tarfile.BLOCKSIZE, b"\0")) * 3_000
    long.size = LONGEST_NAME + 1
    harmed += [gzip.compress(first + gzip.decompress(whole)) for first in (chain, long.tobuf(tarfile.GNU_FORMAT))]
    for data in harmed:
        archive.write_bytes(data)
        with refuses("damaged", path=str(archive)):
            open_images("cifar10", archive)


PICTURES = np.zeros((2, 3072), np.uint8)


def test_a_file_of_another_form_is_an_error(tmp_path: Path) -> None:
    forms: list[tuple[object, object, str]] = [
        *((data, [0, 1], "damaged") for data in (PICTURES[:, 1:], PICTURES.astype(np.int32), PICTURES[0], b"text")),
        (PICTURES, [0, 1, 2], "damaged"),
        *((PICTURES, labels, "damaged") for labels in ([0, None], [0, True], [0, 2**70], [0, -1], 7)),
        (PICTURES, [0, 10], "bad-record"),
    ]
    for data, labels, code in forms:
        with refuses(code):
            open_images("cifar10", cifar10(tmp_path, data_batch_1={b"data": data, b"labels": labels}))
    # What a data set's own classes pass for, public, those of private records are not.
    for names in ([*CIFAR10_NAMES[:9], b"Jane Doe"], CIFAR10_NAMES[::-1], [b"only", b"two"], None, [*range(1, 11)]):
        with refuses("damaged", parameter="data_dir"):
            open_images("cifar10", cifar10(tmp_path, (1, 2), **{"batches.meta": {b"label_names": names}}))
    with refuses("missing", parameter="data_dir"):
        open_images("cifar10", cifar10(tmp_path / "none", ()))
    (tmp_path / "empty").mkdir()
    with refuses("missing", match=r"cifar-10-batches-py.*cifar-10-python\.tar\.gz"):
        open_images("cifar10", tmp_path / "empty")


# Pickles

BATCH = {b"data": np.arange(24, dtype=np.uint8).reshape(2, 12), b"labels": [0, 1], b"batch_label": b"one"}


def python2(data: np.ndarray, labels: list[int]) -> bytes:
    """What Python 2's cPickle writes in protocol 2 for {'data': array, 'labels': list}: as in the official files."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value

    shape = b"(" + b"".join(b"M" + struct.pack("<H", length) for length in data.shape) + b"t"
    empty = b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + b"K\x00\x85" + text(b"b") + b"\x87R"
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R" + b"(K\x03" + text(b"|") + b"NNN"
    dtype += b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = empty + b"(K\x01" + shape + dtype + b"\x89" + text(data.tobytes()) + b"tb"
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + listed + b"u."


class Call:
    """Pickles as a call of `function`."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def refused(data: bytes) -> str:
    with pytest.raises(ValueError, match="'data_batch_1'") as caught:
        read_pickle(data, "data_batch_1")
    return str(caught.value)


def test_the_official_files_dialect_and_what_python_3_writes_are_read() -> None:
    data = np.arange(2 * 300, dtype=np.int64).astype(np.uint8).reshape(2, 300)
    contents = read_pickle(python2(data, [7, 3]), "data_batch_1")
    assert contents["labels"] == [7, 3]
    np.testing.assert_array_equal(contents["data"], data)
    assert np.asarray(contents["data"]).dtype == np.uint8
    for protocol in (3, 4):
        contents = read_pickle(pickle.dumps(BATCH, protocol), "b")
        np.testing.assert_array_equal(contents["data"], BATCH[b"data"])
        assert contents["labels"] == [0, 1]
    arrays = [np.array([[1, 2, 3], [4, 5, 100]], dtype) for dtype in ("u1", "<i4", ">i4", "<i8", ">u2")]
    for values in (*arrays, np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3))):
        np.testing.assert_array_equal(read_pickle(pickle.dumps({"x": values}, 3), "b")["x"], values)


@pytest.mark.parametrize("function", [os.system, eval, exec], ids=["system", "eval", "exec"])
def test_a_call_of_anything_else_is_refused_by_name_and_not_made(
    tmp_path: Path, function: Callable[..., object]
) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        witness = tmp_path / f"ran {protocol}"
        argument = f"touch '{witness}'" if function is os.system else f"open({str(witness)!r}, 'w').close()"
        hostile = pickle.dumps({"data": Call(function, argument)}, protocol)
        assert f".{function.__name__}" in refused(hostile)
        refused(pickle.dumps({"data": np.array([Call(function, argument)], object)}, 3))
        assert not witness.exists()
        pickle.loads(hostile)
        assert witness.exists(), "the pickle was not hostile, so its refusal shows nothing"


def test_what_is_no_plain_array_of_integers_is_refused() -> None:
    for dtype in ("O", "f4", "c8", "S3", "V4", [("a", "u1"), ("b", "O")], "M8[s]"):
        refused(pickle.dumps({b"data": np.zeros(2, dtype)}, 3))
    good = python2(np.zeros((1, 8), np.uint8), [0])
    changes = [(b"M\x08\x00", b"M" + struct.pack("<H", length)) for length in (7, 9, 0)]
    # In NumPy '8' + 'u1' is the name of a sub-array, so a byte order is no way to other types.
    for old, new in (*changes, (b"U\x01|", b"U\x018")):
        refused(good.replace(old, new))
    refused(pickle.dumps({"x": np.array(np.int64(3))[()]}, 3))


def test_a_pickle_cannot_alter_the_reader_or_lead_out_of_the_file_or_take_memory() -> None:
    for name in (b"numpy\ndtype", b"numpy.core.multiarray\n_reconstruct"):
        # BUILD with a pair as state sets attributes on what the pickle named.
        refused(b"\x80\x02}U\x04data" + b"c" + name + b"\nN}X\x08\x00\x00\x00__init__Ns\x86bs.")
        assert "data" in read_pickle(pickle.dumps(BATCH, 3), "b")
    assert "_codecs.encode" in refused(pickle.dumps(BATCH, 2))
    assert "outside the file" in refused(b"\x80\x02}U\x04dataU\x01xQs.")
    # Python takes eight bytes for each place of its table of objects, up to 32 GB.
    assert "4000000000th" in refused(b"\x80\x02}r" + struct.pack("<I", 4_000_000_000) + b".")
    assert "9999999999th" in refused(b"}p9999999999\n.")
    # An array of bytes that would have 4 EB.
    refused(b"\x80\x05}\x8c\x01x\x96" + struct.pack("<Q", 2**62) + b"s.")


def test_what_is_cut_off_or_no_dictionary_with_names_is_refused_and_no_other_error() -> None:
    whole = python2(np.zeros((2, 300), np.uint8), [0, 1])
    for length in range(len(whole)):
        refused(whole[:length])
    for value in ([1, 2], None, 7, b"text", np.zeros(3, np.uint8), {7: 1}):
        refused(pickle.dumps(value, 3))
    refused(b"<html>404 Not Found</html>")
