"""The digits in dpfc, which need no network."""

import importlib.util
import socket
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.images.catalogue import open_images
from dpfc_cli.images.digits import FILES

ROOT = Path(__file__).parents[2]


def test_the_digits_are_those_of_the_source_split_after_1400_without_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise AssertionError("the digits asked for the network")

    source = pytest.importorskip("sklearn.datasets").load_digits()
    monkeypatch.setattr(socket, "socket", refuse)
    data = open_images("digits")
    assert {name: split.n for name, split in data.splits.items()} == {"train": 1400, "test": 397}
    assert (data.classes, data.splits["train"].pixels.shape) == (tuple("0123456789"), (8, 8, 1))
    pixels = np.concatenate([split.pixels(0, split.n) for split in data.splits.values()])
    np.testing.assert_array_equal(np.concatenate([split.labels for split in data.splits.values()]), source.target)
    np.testing.assert_array_equal(pixels[..., 0], np.rint(source.images * 255 / 16))


def test_the_script_writes_the_files_that_are_checked_in(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    spec = importlib.util.spec_from_file_location("make_digits", ROOT / "scripts" / "make_digits.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main(tmp_path)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (ROOT / "sample_data" / name).read_bytes()
