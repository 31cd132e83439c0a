"""A download ends with a complete, verified file or with an error. A stopped download continues later."""

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
HALF = f"bytes={len(CONTENT) // 2}-"


class Site:
    """A server on this machine. seen: the requests."""

    def __init__(self, url: str, cache: Path) -> None:
        self.url, self.cache = url, cache / "test"
        self.ways: dict[str, list[str]] = {}
        self.seen: list[tuple[str, str | None]] = []
        self.content = CONTENT

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        asked = request.headers.get("Range")
        self.seen.append((request.path, asked))
        way = self.ways[request.path].pop(0)
        if way == "404":
            request.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and way != "whole" else 0
        body = b"<html>not the file</html>" if way == "other" else self.content[start:]
        body = bytes(len(body)) if way == "zeros" else body
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[: len(body) // 2] if way == "half" else body)
        request.close_connection = True

    def fetch(self, size: int = len(CONTENT), part: bytes | None = None, **ways: list[str]) -> bytes:
        """Download a file that is offered at paths which answer in these ways, in turn. part: what was begun of it."""
        self.seen.clear()
        self.ways = {f"/{place}": list(answers) for place, answers in ways.items()}
        if part is not None:
            self.cache.mkdir(parents=True, exist_ok=True)
            (self.cache / f"{NAME}.part").write_bytes(part)
        urls = tuple(f"{self.url}/{place}" for place in ways)
        remote = Remote(f"test/{NAME}", size, hashlib.sha256(CONTENT[:size]).hexdigest(), urls)
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


def test_an_interrupted_download_continues_where_it_stopped(site: Site) -> None:
    with refuses("unreachable", parameter="data_dir"):
        site.fetch(a=["half"])
    assert site.files() == [f"{NAME}.part"]
    assert site.fetch(a=["good"]) == CONTENT
    assert site.seen == [("/a", HALF)]


def test_whatever_was_begun_and_whatever_a_mirror_answers_the_file_is_right_in_the_end(site: Site) -> None:
    cases: list[tuple[str, str | None, bytes | None, list[tuple[str, str | None]]]] = [
        ("half", "good", None, [("/a", None), ("/b", HALF)]),
        ("half", "whole", None, [("/a", None), ("/b", HALF)]),
        ("404", "good", None, [("/a", None), ("/b", None)]),
        ("zeros", "good", None, [("/a", None), ("/b", None)]),
        ("other", "good", None, [("/a", None), ("/b", None)]),
        ("good", "good", b"of another file", [("/a", "bytes=15-"), ("/b", None)]),
        ("good", "good", bytes(len(CONTENT) + 5), [("/b", None)]),
        ("good", None, CONTENT, []),
    ]
    for first, second, part, seen in cases:
        assert site.fetch(part=part, a=[first], b=[second] if second else []) == CONTENT
        assert site.seen == seen
        (site.cache / NAME).unlink()


def test_a_wrong_file_and_one_that_nobody_serves_are_errors_that_name_each_mirror_and_leave_nothing(site: Site) -> None:
    for way, size, says in (
        ("zeros", len(CONTENT), "SHA-256"),
        ("good", 100, "served"),
        ("404", len(CONTENT), "404"),
    ):
        with refuses("unreachable", match=says, parameter="data_dir") as caught:
            site.fetch(size=size, a=[way], b=[way])
        assert all(f"{site.url}/{place}: " in caught.value.what for place in "ab")
        assert site.files() == []
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


def test_a_link_at_the_name_of_a_partial_download_is_removed(site: Site, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"kept")
    site.cache.mkdir(parents=True)
    (site.cache / f"{NAME}.part").symlink_to(precious)
    assert site.fetch(a=["good"]) == CONTENT
    assert precious.read_bytes() == b"kept"


def test_a_data_set_without_a_folder_is_downloaded_and_opened(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(request: Request) -> ImageSet:
        assert (request.place / NAME).read_bytes() == CONTENT
        return DIGITS.open(request)

    site.ways = {"/a": ["good"]}
    remote = Remote(f"small/{NAME}", len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), (f"{site.url}/a",))
    added(monkeypatch, replace(DIGITS, name="small", open=opened, location="data_dir", remotes=(remote,)))
    assert open_images("small").splits["train"].n == 1400
