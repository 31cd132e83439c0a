"""The listing names the records. It must never change for the same files: what is spent on them would be forgotten."""

from pathlib import Path

import pytest

from dpfc_cli.images import open_images
from tests.images.pictures import SQUARE, tar

FOLDER = {
    "train": "18c0ed6de7bb2dcf376e3825d982ebd2fb364d6d97fc40c69974c0172522e9d5",
    "test": "d3d47c9d73631da55c2f124be7fe7d765302fd3707f3c641ebccbd519d048891",
}
ARCHIVE = {"train": "179aebb488c55ac2dc46e57bd182637159fb64243f8d8a57721c23907042b030"}


def content(value: int) -> bytes:
    """24 bytes. A listing is made without decoding anything."""
    return b"\x89PNG" + bytes([value]) * 20


@pytest.mark.parametrize("classes", [None, ("a", "b"), ("b", "a", "c")])
def test_an_image_folder_has_the_listing_that_it_always_had(tmp_path: Path, classes: tuple[str, ...] | None) -> None:
    for name in ("train/a/1.png", "train/b/2.PNG", "test/b/3.jpg", "train/a/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content(1))
    found = open_images(f"imagefolder:{tmp_path}", geometry=SQUARE, classes=classes)
    assert {name: split.listing for name, split in found.splits.items()} == FOLDER


def test_an_archive_has_the_listing_that_it_always_had(tmp_path: Path) -> None:
    members = [("0.png", content(0)), ("0.cls", b"1"), ("0.json", b"{}"), ("1.png", content(1)), ("1.cls", b"0")]
    tar(tmp_path / "train.tar", members)
    found = open_images(f"webdataset:{tmp_path}", geometry=SQUARE)
    assert {name: split.listing for name, split in found.splits.items()} == ARCHIVE
