"""A download ends with a complete, verified file or with an error."""

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
NAME = "file.bin"


class Site:
    """A server on this machine."""

    def __init__(self, url: str, cache: Path) -> None:
        self.url, self.cache = url, cache / "test"
        self.ways: dict[str, list[str]] = {}

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        way = self.ways[request.path].pop(0)
        if way == "404":
            request.send_error(404)
            return
        body = {"other": b"<html>not the file</html>", "zeros": bytes(len(CONTENT)), "long": CONTENT * 2}.get(
            way, CONTENT
        )
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[: len(body) // 2] if way == "half" else body)
        request.close_connection = True

    def fetch(self, **ways: list[str]) -> bytes:
        """Download a file that is offered at paths which answer in these ways, in turn."""
        self.ways = {f"/{place}": list(answers) for place, answers in ways.items()}
        urls = tuple(f"{self.url}/{place}" for place in ways)
        remote = Remote(f"test/{NAME}", len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), urls)
        self.told = list[tuple[str, int, int | None]]()
        downloads.fetch((remote,), lambda *what: self.told.append(what))
        assert self.files() == [NAME]
        return remote.place.read_bytes()

    def files(self) -> list[str]:
        return sorted(path.name for path in self.cache.iterdir())


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            own.answer(self)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    own = Site(f"http://127.0.0.1:{server.server_address[1]}", tmp_path / "cache")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("DPFC_CACHE", str(tmp_path / "cache"))
    yield own
    server.shutdown()
    thread.join(timeout=10)
    server.server_close()


def test_a_file_is_downloaded_once_with_progress_and_again_if_it_was_damaged(site: Site) -> None:
    assert site.fetch(a=["good"]) == CONTENT
    assert site.told[-1] == (NAME, len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in site.told] == sorted({done for _, done, _ in site.told})
    assert site.fetch(a=[]) == CONTENT
    (site.cache / NAME).write_bytes(b"damaged")
    assert site.fetch(a=["good"]) == CONTENT


@pytest.mark.parametrize("way", ["half", "404", "zeros", "other", "long"])
def test_whatever_one_address_answers_the_next_is_tried_and_a_wrong_file_leaves_nothing(site: Site, way: str) -> None:
    with refuses("unreachable", parameter="data_dir") as caught:
        site.fetch(a=[way], b=[way])
    assert all(f"{site.url}/{place}: " in caught.value.what for place in "ab")
    assert site.files() == []
    assert site.fetch(a=[way], b=["good"]) == CONTENT


def test_where_nobody_answers_it_is_said(site: Site) -> None:
    unused = Remote(f"test/{NAME}", 1, "", ("http://127.0.0.1:1/nobody",))
    with refuses("unreachable", parameter="data_dir"):
        downloads.fetch((unused,))


def test_of_two_downloads_at_once_the_first_to_end_gives_the_file_its_name(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "sync", lambda part: (site.cache / NAME).write_bytes(part.read_bytes()))
    assert site.fetch(a=["good"]) == CONTENT


def test_a_cache_that_cannot_be_written_is_an_error_with_a_remedy(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "taken").write_bytes(b"a file, not a folder")
    monkeypatch.setenv("DPFC_CACHE", str(tmp_path / "taken"))
    with refuses("unwritable", parameter="data_dir") as caught:
        site.fetch(a=["good"])
    assert "DPFC_CACHE" in caught.value.remedy


def test_a_data_set_without_a_folder_is_downloaded_and_opened(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(request: Request) -> ImageSet:
        assert (request.place / NAME).read_bytes() == CONTENT
        return DIGITS.open(request)

    site.ways = {"/a": ["good"]}
    remote = Remote(f"small/{NAME}", len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), (f"{site.url}/a",))
    added(monkeypatch, replace(DIGITS, name="small", open=opened, location="data_dir", remotes=(remote,)))
    assert open_images("small").splits["train"].n == 1400
