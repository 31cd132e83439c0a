"""A download ends with a complete, verified file or with an error. A stopped download continues later."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.folders import cache_folder
from dpfc_cli.images import catalogue, download, open_images
from dpfc_cli.images.sets import Remote

CONTENT = np.random.default_rng(3).bytes(3 * download.CHUNK + 17)
NAME = "file.bin"


class Site:
    """A server on this machine. ways: how it answers each path's requests, in turn. seen: the requests."""

    def __init__(self) -> None:
        self.ways: dict[str, list[str]] = {}
        self.seen: list[tuple[str, str | None]] = []
        self.content = CONTENT
        self.url = ""
        self.remotes: tuple[Remote, ...] = ()

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


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.answer(self)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("DPFC_CACHE", str(tmp_path / "cache"))
    yield site
    server.shutdown()
    thread.join(timeout=10)
    server.server_close()


@pytest.fixture
def serve(site: Site) -> Callable[..., Site]:
    """A function that offers one file, `site.remotes`, at paths that answer in the given ways."""

    def offer(content: bytes = CONTENT, **ways: list[str]) -> Site:
        site.ways = {f"/{place}": list(answers) for place, answers in ways.items()}
        urls = tuple(f"{site.url}/{place}" for place in ways)
        sha256 = hashlib.sha256(content).hexdigest()
        site.remotes = (Remote(name=NAME, size=len(content), sha256=sha256, urls=urls),)
        return site

    return offer


def cached(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache" / "test").iterdir())


def begun(tmp_path: Path, content: bytes) -> None:
    part = tmp_path / "cache" / "test" / f"{NAME}.part"
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(content)


def test_a_file_is_downloaded_once_with_progress_and_again_if_it_was_damaged(
    serve: Callable[..., Site], tmp_path: Path
) -> None:
    site = serve(a=["good", "good"])
    told = []
    folder = download.fetch("test", site.remotes, lambda *what: told.append(what))
    assert (folder / NAME).read_bytes() == CONTENT
    assert cached(tmp_path) == [NAME]
    assert told[-1] == (NAME, len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in told] == sorted({done for _, done, _ in told})
    assert download.fetch("test", site.remotes) == folder
    assert site.seen == [("/a", None)]
    (folder / NAME).write_bytes(b"damaged")
    assert (download.fetch("test", site.remotes) / NAME).read_bytes() == CONTENT


def test_an_interrupted_download_continues_where_it_stopped(serve: Callable[..., Site], tmp_path: Path) -> None:
    site = serve(a=["half", "good"])
    with pytest.raises(UserError, match=f"closed after {len(CONTENT) // 2} of {len(CONTENT)} bytes"):
        download.fetch("test", site.remotes)
    assert cached(tmp_path) == [f"{NAME}.part"]
    folder = download.fetch("test", site.remotes)
    assert site.seen[1] == ("/a", f"bytes={len(CONTENT) // 2}-")
    assert (folder / NAME).read_bytes() == CONTENT
    assert cached(tmp_path) == [NAME]


def test_whatever_was_begun_and_whatever_a_mirror_answers_the_file_is_right_in_the_end(
    serve: Callable[..., Site], tmp_path: Path
) -> None:
    half = f"bytes={len(CONTENT) // 2}-"
    cases: list[tuple[dict[str, list[str]], bytes | None, list[tuple[str, str | None]]]] = [
        ({"a": ["half"], "b": ["good"]}, None, [("/a", None), ("/b", half)]),
        ({"a": ["half"], "b": ["whole"]}, None, [("/a", None), ("/b", half)]),
        ({"a": ["404"], "b": ["good"]}, None, [("/a", None), ("/b", None)]),
        ({"a": ["zeros"], "b": ["good"]}, None, [("/a", None), ("/b", None)]),
        ({"a": ["other"], "b": ["good"]}, None, [("/a", None), ("/b", None)]),
        ({"a": ["good"], "b": ["good"]}, b"of another file", [("/a", "bytes=15-"), ("/b", None)]),
        ({"a": ["good"], "b": ["good"]}, bytes(len(CONTENT) + 5), [("/b", None)]),
        ({"a": []}, CONTENT, []),
    ]
    for ways, part, seen in cases:
        site = serve(**ways)
        site.seen.clear()
        if part is not None:
            begun(tmp_path, part)
        file = download.fetch("test", site.remotes) / NAME
        assert (file.read_bytes(), site.seen) == (CONTENT, seen)
        file.unlink()


def test_a_wrong_file_and_one_without_end_are_errors_and_leave_nothing(
    serve: Callable[..., Site], tmp_path: Path
) -> None:
    site = serve(a=["zeros"])
    with pytest.raises(UserError, match="wrong SHA-256 and was removed") as caught:
        download.fetch("test", site.remotes)
    assert (caught.value.code, caught.value.fields["parameter"]) == ("unreadable", "data_dir")
    assert cached(tmp_path) == []
    site = serve(content=CONTENT[:100], a=["good"])
    with pytest.raises(UserError, match="another file is served there"):
        download.fetch("test", site.remotes)
    assert cached(tmp_path) == []


def test_when_every_mirror_fails_the_error_names_each(serve: Callable[..., Site]) -> None:
    site = serve(a=["404"], b=["404"])
    unused = Remote(name=NAME, size=1, sha256="", urls=("http://127.0.0.1:1/nobody",))
    with pytest.raises(UserError) as caught:
        download.fetch("test", site.remotes)
    assert all(f"{site.url}/{place}: HTTP Error 404" in caught.value.what for place in "ab")
    with pytest.raises(UserError, match=r"127\.0\.0\.1:1/nobody"):
        download.fetch("test", (unused,))


def test_of_two_downloads_at_once_the_first_to_end_gives_the_file_its_name(
    serve: Callable[..., Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = serve(a=["good"])
    target = tmp_path / "cache" / "test" / NAME
    monkeypatch.setattr(download, "sync", lambda part: target.write_bytes(part.read_bytes()))
    assert (download.fetch("test", site.remotes) / NAME).read_bytes() == CONTENT
    assert cached(tmp_path) == [NAME]


def test_a_cache_that_cannot_be_written_is_an_error_with_a_remedy(
    serve: Callable[..., Site], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site = serve(a=["good"])
    (tmp_path / "taken").write_bytes(b"a file, not a folder")
    monkeypatch.setenv("DPFC_CACHE", str(tmp_path / "taken"))
    with pytest.raises(UserError, match="cannot be used") as caught:
        download.fetch("test", site.remotes)
    assert "DPFC_CACHE" in caught.value.remedy
    assert caught.value.code == "unwritable"


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFC_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder() == Path("/own")
    monkeypatch.delenv("DPFC_CACHE")
    assert cache_folder() == Path("/shared/dpfc")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/home/me/.cache/dpfc")


def test_a_data_set_without_a_folder_is_downloaded_and_opened(
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    cifar10_folder: Callable[..., Path],
    pack: Callable[[Path, str], Path],
    tmp_path: Path,
) -> None:
    archive = pack(cifar10_folder(folder=tmp_path / "there"), "cifar-10-python.tar.gz")
    site.content = archive.read_bytes()
    site.ways = {"/a": ["good"]}
    digest = hashlib.sha256(site.content).hexdigest()
    remote = Remote(name=archive.name, size=len(site.content), sha256=digest, urls=(f"{site.url}/a",))
    offered = replace(catalogue.CATALOGUE["cifar10"], remotes=(remote,))
    monkeypatch.setitem(catalogue.CATALOGUE, "cifar10", offered)
    told = []
    data = open_images("cifar10", progress=lambda *what: told.append(what))
    assert data.splits["train"].n == 6
    assert told


def test_the_table_holds_complete_checksums_and_https_addresses() -> None:
    remotes = [remote for entry in catalogue.CATALOGUE.values() for remote in entry.remotes]
    for remote in remotes:
        assert len(bytes.fromhex(remote.sha256)) == hashlib.sha256().digest_size
        assert remote.size > 0
        assert len(remote.urls) > 1
        for url in remote.urls:
            assert urlsplit(url).scheme == "https"
            assert url.endswith(f"/{remote.name}")
    assert len({remote.sha256 for remote in remotes}) == len(remotes) == 10
