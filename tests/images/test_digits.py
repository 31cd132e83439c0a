"""The digits in dpfc are those of their source, in its order, and need no network."""

import importlib.util
import socket
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.images import idx as digits
from dpfc_cli.images import open_images

ROOT = Path(__file__).parents[2]


def test_the_split_is_the_first_1400_and_the_last_397() -> None:
    data = open_images("digits")
    assert {name: split.n for name, split in data.splits.items()} == {"train": 1400, "test": 397}
    assert data.classes == tuple("0123456789")
    assert data.splits["train"].image_shape == (8, 8, 1)


def test_values_are_the_sources_scaled_to_a_byte() -> None:
    source = pytest.importorskip("sklearn.datasets").load_digits()
    data = open_images("digits")
    pixels = np.concatenate([split.pixels(0, split.n) for split in data.splits.values()])
    labels = np.concatenate([split.labels for split in data.splits.values()])
    np.testing.assert_array_equal(labels, source.target)
    np.testing.assert_array_equal(pixels[..., 0], np.rint(source.images * 255 / 16))
    assert pixels.max() == 255


def test_both_splits_hold_every_class_in_about_the_same_fraction() -> None:
    for split in open_images("digits").splits.values():
        fractions = np.bincount(split.labels, minlength=10) / split.n
        assert fractions.min() > 0.096
        assert fractions.max() < 0.104


def test_the_script_writes_the_files_that_are_checked_in(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    spec = importlib.util.spec_from_file_location("make_digits", ROOT / "scripts" / "make_digits.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main(tmp_path)
    for name in digits.FILES:
        assert (tmp_path / name).read_bytes() == (ROOT / "sample_data" / name).read_bytes()


def test_no_connection_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise AssertionError("the digits asked for the network")

    monkeypatch.setattr(socket, "socket", refuse)
    open_images("digits")


def test_an_installed_package_finds_them_inside_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A wheel has sample_data inside the package, and nothing beside the package."""
    package = tmp_path / "site" / "dpfc_cli"
    (package / "sample_data").mkdir(parents=True)
    for name in digits.FILES:
        (package / "sample_data" / name).write_bytes((ROOT / "sample_data" / name).read_bytes())
    monkeypatch.setattr(resources, "files", lambda name: tmp_path / "site" / name)
    monkeypatch.setattr(digits, "__file__", str(package / "images" / "idx.py"))
    assert open_images("digits").splits["train"].n == 1400


def test_an_incomplete_installation_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resources, "files", lambda name: tmp_path / name)
    monkeypatch.setattr(digits, "__file__", str(tmp_path / "a" / "b" / "idx.py"))
    with pytest.raises(UserError, match="Install dpfc again"):
        open_images("digits")
