"""What may be the same person is the same person."""

import os

import numpy as np
import pytest

from dpfc_cli.sources.groups import grouped, key_of, keys_in, keys_of


def test_what_may_be_the_same_person_is_the_same_person() -> None:
    assert [key_of(value) for value in (7, "7", " 7 ", np.int64(7))] == ["7"] * 4
    assert key_of("Mu\u0308ller") == key_of("Müller")
    assert key_of("a") != key_of("A")
    assert [key_of(value) for value in (None, "", " \t")] == [None] * 3
    for value in (1.0, True, b"x", ["x"]):
        with pytest.raises(TypeError):
            key_of(value)
    keys = keys_in(np.array(["b", " b", "a", "b "]), "source", "groups")
    assert [keys.names[code] for code in keys.codes] == ["b", "b", "a", "b"]
    assert grouped(keys).groups == 2


def test_names_of_files_that_are_no_utf_8_and_halves_of_characters_are_keys() -> None:
    names = [os.fsdecode(b"caf\xe9"), "\ud800", "é"]
    assert sorted(grouped(keys_of(names, "source", str, "")).order) == [0, 1, 2]
