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


def test_the_official_files_dialect_and_what_python_3_writes_are_read() -> None:
    data = np.arange(2 * 300, dtype=np.int64).astype(np.uint8).reshape(2, 300)
    contents = read_pickle(python2(data, [7, 3]), "data_batch_1")
    assert contents["labels"] == [7, 3]
    np.testing.assert_array_equal(contents["data"], data)
    assert np.asarray(contents["data"]).dtype == np.uint8
    for protocol in (2, 3, 4):
        contents = read_pickle(pickle.dumps(BATCH, protocol), "b")
        np.testing.assert_array_equal(contents["data"], BATCH[b"data"])
        assert contents["labels"] == [0, 1]


def test_arrays_keep_their_values_in_every_byte_order_and_numbers_are_plain() -> None:
    arrays = [np.array([[1, 2, 3], [4, 5, 100]], dtype) for dtype in ("u1", "<i4", ">i4", "<i8", ">u2")]
    for values in (*arrays, np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3))):
        np.testing.assert_array_equal(read_pickle(pickle.dumps({"x": values}, 2), "b")["x"], values)
    labels = read_pickle(pickle.dumps({"labels": [np.int64(3), np.uint8(200)]}, 2), "b")["labels"]
    assert labels == [3, 200]
    assert all(type(label) is int for label in labels)


@pytest.mark.parametrize("function", [os.system, eval, exec], ids=["system", "eval", "exec"])
def test_a_call_of_anything_else_is_refused_by_name_and_not_made(
    tmp_path: Path, function: Callable[..., object]
) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        witness = tmp_path / f"ran {protocol}"
        argument = f"touch '{witness}'" if function is os.system else f"open({str(witness)!r}, 'w').close()"
        hostile = pickle.dumps({b"data": Call(function, argument)}, protocol)
        assert f".{function.__name__}, which dpfc does not allow" in refusal(hostile)
        in_array = {b"data": np.array([Call(function, argument)], object)}
        assert "values of type 'O8'" in refusal(pickle.dumps(in_array, 2))
        assert not witness.exists()
        pickle.loads(hostile)
        assert witness.exists(), "the pickle was not hostile, so its refusal shows nothing"


def test_only_integers_are_admitted() -> None:
    for dtype in ("O", "f4", "c8", "S3", "V4", [("a", "u1"), ("b", "O")], "M8[s]"):
        assert "values of type" in refusal(pickle.dumps({b"data": np.zeros(2, dtype)}, 2))


def test_a_type_a_shape_and_the_bytes_are_what_they_say_or_refused() -> None:
    """In NumPy '8' + 'u1' is the name of a sub-array, so a byte order is no way to other types."""
    good = python2(np.zeros((1, 8), np.uint8), [0])
    changes = [(b"M\x08\x00", b"M" + struct.pack("<H", length), "") for length in (7, 9, 0)]
    changes += [(b"U\x01|", b"U\x018", "byte order"), (b"U\x01|NNN", b"U\x01|N]N", "parts")]
    for old, new, says in (*changes, (b"M\x08\x00", b"J" + struct.pack("<i", -8), "shape")):
        assert says in refusal(good.replace(old, new))
    two = pickle.dumps({"x": np.array(np.int64(3))[()]}, 2)
    assert read_pickle(two, "b") == {"x": 3}
    refusal(two.replace(b"X\x08\x00\x00\x00\x03", b"X\x10\x00\x00\x00" + bytes(8) + b"\x03"))


def test_a_pickle_cannot_alter_the_reader_or_lead_out_of_the_file() -> None:
    """BUILD with a pair as state sets attributes on what the pickle named. It must not do so on our classes."""
    for name in (b"numpy\ndtype", b"_codecs\nencode", b"numpy.core.multiarray\n_reconstruct"):
        refusal(b"\x80\x02}U\x04data" + b"c" + name + b"\nN}X\x08\x00\x00\x00__init__Ns\x86bs.")
        assert "data" in read_pickle(pickle.dumps(BATCH, 2), "b")
    codec = b"\x80\x02}X\x01\x00\x00\x00ac_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86Rs."
    assert "codec" in refusal(codec)
    assert "outside the file" in refusal(b"\x80\x02}U\x04dataU\x01xQs.")


def test_what_is_cut_off_or_no_dictionary_with_names_is_a_user_error_and_no_other() -> None:
    whole = python2(np.zeros((2, 300), np.uint8), [0, 1])
    for length in range(len(whole)):
        refusal(whole[:length])
    for value in ([1, 2], None, 7, b"text", np.zeros(3, np.uint8), {7: 1}):
        refusal(pickle.dumps(value, 2))
    refusal(b"<html>404 Not Found</html>")
