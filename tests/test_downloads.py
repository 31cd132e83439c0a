"""A download ends with a complete, verified file or with an error."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli import downloads
from dpfc_cli.downloads import Remote
from dpfc_cli.images.catalogue import open_images
from dpfc_cli.images.digits import DIGITS
from dpfc_cli.images.sets import ImageSet, Request
from tests.images.pictures import added
from tests.support import refuses

CONTENT = np.random.default_rng(3).bytes(3 * downloads.CHUNK + 17)
SERVED = {
    "good": CONTENT,
    "half": CONTENT[: len(CONTENT) // 2],
    "zeros": bytes(len(CONTENT)),
    "long": CONTENT * 2,
    "other": b"<html>not the file</html>",
}
"""What addresses may serve. At "none" there is nothing."""


class Site:
    """Addresses, and the cache."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder, folder / "cache" / "test"
        for name, content in SERVED.items():
            (folder / name).write_bytes(content)

    def remote(self, *served: str) -> Remote:
        urls = tuple((self.folder / each).as_uri() for each in served)
        return Remote("test/file.bin", len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), urls)

    def fetch(self, *served: str) -> list[tuple[str, int, int | None]]:
        """What is told while a file is downloaded that is offered at these addresses. It must be right in the end."""
        told = list[tuple[str, int, int | None]]()
        downloads.fetch((self.remote(*served),), lambda *what: told.append(what))
        assert self.files() == ["file.bin"]
        assert (self.cache / "file.bin").read_bytes() == CONTENT
        return told

    def files(self) -> list[str]:
        return sorted(path.name for path in self.cache.iterdir())


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Site:
    monkeypatch.setenv("DPFC_CACHE", str(tmp_path / "cache"))
    return Site(tmp_path)


def test_a_file_is_downloaded_once_with_progress_and_again_if_it_was_damaged(site: Site) -> None:
    told = site.fetch("good")
    assert told[-1] == ("file.bin", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in told] == sorted({done for _, done, _ in told})
    assert site.fetch() == []
    (site.cache / "file.bin").write_bytes(b"damaged")
    assert site.fetch("good") == told


@pytest.mark.parametrize("served", ["half", "none", "zeros", "other", "long"])
def test_whatever_one_address_serves_the_next_is_tried_and_a_wrong_file_leaves_nothing(site: Site, served: str) -> None:
    with refuses("unreachable", parameter="data_dir") as caught:
        site.fetch(served, served)
    assert caught.value.what.count(f"{(site.folder / served).as_uri()}: ") == 2
    assert site.files() == []
    site.fetch(served, "good")


def test_of_two_downloads_at_once_the_first_to_end_gives_the_file_its_name(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "sync", lambda part: (site.cache / "file.bin").write_bytes(part.read_bytes()))
    site.fetch("good")


def test_a_cache_that_cannot_be_written_is_an_error_with_a_remedy(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFC_CACHE", str(site.folder / "good"))
    with refuses("unwritable", parameter="data_dir") as caught:
        site.fetch("good")
    assert "DPFC_CACHE" in caught.value.remedy


def test_a_data_set_without_a_folder_is_downloaded_and_opened(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(request: Request) -> ImageSet:
        assert (request.place / "file.bin").read_bytes() == CONTENT
        return DIGITS.open(request)

    remote = site.remote("good")._replace(name="small/file.bin")
    added(monkeypatch, replace(DIGITS, name="small", open=opened, location="data_dir", remotes=(remote,)))
    assert open_images("small").splits["train"].n == 1400
