"""A pickle gives containers and integer arrays, or it is refused. It never runs code."""

import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.images.unpickle import read_pickle

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


def refusal(data: bytes) -> str:
    with pytest.raises(UserError) as caught:
        read_pickle(data, "data_batch_1")
    assert "'data_batch_1'" in caught.value.what
    return caught.value.what


def test_the_official_files_dialect_is_read() -> None:
    data = np.arange(2 * 300, dtype=np.int64).astype(np.uint8).reshape(2, 300)
    contents = read_pickle(python2(data, [7, 3]), "data_batch_1")
    assert contents["labels"] == [7, 3]
    np.testing.assert_array_equal(contents["data"], data)
    assert np.asarray(contents["data"]).dtype == np.uint8


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_what_python_3_writes_is_read_too(protocol: int) -> None:
    contents = read_pickle(pickle.dumps(BATCH, protocol), "b")
    np.testing.assert_array_equal(contents["data"], BATCH[b"data"])
    assert contents["labels"] == [0, 1]


@pytest.mark.parametrize("dtype", ["u1", "<i4", ">i4", "<i8", ">u2"])
def test_arrays_keep_their_values_in_every_byte_order(dtype: str) -> None:
    values = np.array([[1, 2, 3], [4, 5, 100]], dtype)
    read = read_pickle(pickle.dumps({"x": values}, 2), "b")["x"]
    np.testing.assert_array_equal(read, values)


def test_fortran_order_is_kept() -> None:
    values = np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    np.testing.assert_array_equal(read_pickle(pickle.dumps({"x": values}, 2), "b")["x"], values)


def test_numpy_integers_come_back_as_plain_ones() -> None:
    labels = read_pickle(pickle.dumps({"labels": [np.int64(3), np.uint8(200)]}, 2), "b")["labels"]
    assert labels == [3, 200]
    assert all(type(label) is int for label in labels)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("function", [os.system, eval, exec], ids=["system", "eval", "exec"])
def test_a_call_of_anything_else_is_refused_by_name_and_not_made(
    tmp_path: Path, protocol: int, function: Callable[..., object]
) -> None:
    witness = tmp_path / "ran"
    argument = f"touch '{witness}'" if function is os.system else f"open({str(witness)!r}, 'w').close()"
    hostile = pickle.dumps({b"data": Call(function, argument)}, protocol)
    assert f".{function.__name__}, which dpfc does not allow" in refusal(hostile)
    assert not witness.exists()
    pickle.loads(hostile)
    assert witness.exists(), "the pickle was not hostile, so its refusal shows nothing"


def test_a_hostile_element_of_an_object_array_is_refused_and_not_called(tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    array = np.array([Call(os.system, f"touch '{witness}'")], object)
    assert "values of type 'O8'" in refusal(pickle.dumps({b"data": array}, 2))
    assert not witness.exists()


@pytest.mark.parametrize(
    "array",
    [
        np.array([None], object),
        np.zeros(2, "f4"),
        np.zeros(2, "c8"),
        np.zeros(2, "S3"),
        np.zeros(2, "V4"),
        np.zeros(2, [("a", "u1"), ("b", "O")]),
        np.zeros(2, "M8[s]"),
    ],
    ids=lambda array: str(array.dtype),
)
def test_only_integers_are_admitted(array: np.ndarray) -> None:
    assert "values of type" in refusal(pickle.dumps({b"data": array}, 2))


def test_a_byte_order_is_a_byte_order_and_no_way_to_other_types() -> None:
    """In NumPy '8' + 'u1' is the name of a sub-array."""
    good = python2(np.zeros((1, 8), np.uint8), [0])
    assert "byte order" in refusal(good.replace(b"U\x01|", b"U\x018"))


def test_a_type_with_parts_is_refused() -> None:
    good = python2(np.zeros((1, 8), np.uint8), [0])
    assert "parts" in refusal(good.replace(b"U\x01|NNN", b"U\x01|N]N"))


@pytest.mark.parametrize("length", [7, 9, 0])
def test_shape_and_bytes_must_agree(length: int) -> None:
    good = python2(np.zeros((1, 8), np.uint8), [0])
    refusal(good.replace(b"M\x08\x00", b"M" + struct.pack("<H", length)))


def test_a_negative_length_is_refused() -> None:
    good = python2(np.zeros((1, 8), np.uint8), [0])
    assert "shape" in refusal(good.replace(b"M\x08\x00", b"J" + struct.pack("<i", -8)))


@pytest.mark.parametrize("name", [b"numpy\ndtype", b"_codecs\nencode", b"numpy.core.multiarray\n_reconstruct"])
def test_a_pickle_cannot_alter_the_reader(name: bytes) -> None:
    """BUILD with a pair as state sets attributes on what the pickle named. It must not do so on our classes."""
    refusal(b"\x80\x02}U\x04data" + b"c" + name + b"\nN}X\x08\x00\x00\x00__init__Ns\x86bs.")
    assert "data" in read_pickle(pickle.dumps(BATCH, 2), "b")


def test_a_number_is_exactly_one_value() -> None:
    two = pickle.dumps({"x": np.array(np.int64(3))[()]}, 2)
    assert read_pickle(two, "b") == {"x": 3}
    refusal(two.replace(b"X\x08\x00\x00\x00\x03", b"X\x10\x00\x00\x00" + bytes(8) + b"\x03"))


def test_another_codec_is_refused() -> None:
    assert "codec" in refusal(
        b"\x80\x02}X\x01\x00\x00\x00ac_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86Rs."
    )


def test_references_out_of_the_file_are_refused() -> None:
    assert "outside the file" in refusal(b"\x80\x02}U\x04dataU\x01xQs.")


def test_every_truncation_is_a_user_error_and_no_other() -> None:
    whole = python2(np.zeros((2, 300), np.uint8), [0, 1])
    for length in range(len(whole)):
        refusal(whole[:length])


@pytest.mark.parametrize("value", [[1, 2], None, 7, b"text", np.zeros(3, np.uint8), {7: 1}], ids=repr)
def test_anything_but_a_dictionary_with_names_is_an_error(value: object) -> None:
    refusal(pickle.dumps(value, 2))


def test_what_is_no_pickle_is_an_error() -> None:
    refusal(b"<html>404 Not Found</html>")
