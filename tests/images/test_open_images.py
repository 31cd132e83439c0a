"""One door to all data sets: it knows their names, and it tells nothing of what is in them."""

import logging
import subprocess
import sys

import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.images import DATASETS, open_images


def test_an_unknown_data_set_is_an_error_with_the_nearest_name(tmp_path):
    with pytest.raises(UserError, match="Unknown data set 'cifar-10'") as caught:
        open_images("cifar-10", tmp_path)
    assert "'cifar10'" in caught.value.remedy
    for name in DATASETS:
        assert name in caught.value.remedy


@pytest.mark.parametrize("dataset", ["mnist", "fashion-mnist", "cifar10", "cifar100"])
def test_a_missing_folder_is_an_error_with_a_remedy(dataset, tmp_path):
    with pytest.raises(UserError, match="nowhere") as caught:
        open_images(dataset, tmp_path / "nowhere")
    assert "--data-dir" in caught.value.remedy


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        ("digits", {"data_dir": "somewhere"}),
        ("digits:here", {}),
        ("digits", {"classes": ("a", "b")}),
        ("imagenet", {}),
        ("imagenet", {"data_dir": "somewhere", "classes": ("a", "b")}),
        ("imagefolder", {}),
        ("imagefolder:", {}),
        ("imagefolder:somewhere", {"data_dir": "somewhere"}),
    ],
)
def test_an_option_that_would_have_no_effect_is_an_error(dataset, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError):
        open_images(dataset, **options)


def test_a_tilde_after_the_colon_is_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match=str(tmp_path / "pictures")):
        open_images("imagefolder:~/pictures")


def test_nothing_is_printed_or_logged(capfd, caplog, cifar10_folder):
    caplog.set_level(logging.DEBUG)
    for data in (open_images("digits"), open_images("cifar10", cifar10_folder())):
        for split in data.splits.values():
            split.pixels(0, split.n)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_the_door_opens_without_pillow_or_jax():
    """Both are large, and only a folder of images needs the one and nothing here the other."""
    code = "import sys, dpfc_cli.images as i; i.open_images('digits'); print({'PIL', 'jax'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
