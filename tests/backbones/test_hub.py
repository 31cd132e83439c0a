"""Weights from the Hugging Face hub, here a server on this machine: fetched once, found offline."""

import hashlib
import http.server
import re
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from dpfc_cli.backbones import hub
from dpfc_cli.backbones.vision_transformer.models import MODELS
from tests.support import refuses

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.ThreadingHTTPServer):
    """The repositories and their files; what was asked for."""

    files: dict[str, dict[str, bytes]]
    asked: list[tuple[str, str, str | None]]
    gates: dict[str, tuple[int, str]]
    address: str


class Home(http.server.BaseHTTPRequestHandler):
    """`/owner/name/resolve/main/file` of the files given, with the headers that the hub sends."""

    server: Hub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        owner, name, _, revision, file = self.path.removeprefix("/").split("/", 4)
        commit, files = self._version(f"{owner}/{name}", revision)
        content = None if files is None else files.get(file)
        self.server.asked.append((self.command, self.path, self.headers.get("Range")))
        if f"{owner}/{name}" in self.server.gates:
            status, code = self.server.gates[f"{owner}/{name}"]
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if content is None:
            known = files is not None
            self.send_response(404 if known else 401)
            self.send_header("X-Error-Code", "EntryNotFound" if known else "RepoNotFound")
            self.send_header("X-Repo-Commit", commit)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if body:
            self.wfile.write(content[start:])

    def _version(self, repository: str, revision: str) -> tuple[str, dict[str, bytes] | None]:
        """The commit that a revision names, and its files; None if there is no such repository."""
        return COMMIT, self.server.files.get(repository)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    yield from serving(Home, tmp_path, monkeypatch)


def serving(handler: type[Home], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The server, as the hub of this process, and an empty cache."""
    from huggingface_hub import constants

    server = Hub(("127.0.0.1", 0), handler)
    server.files, server.asked, server.address = {}, [], f"http://127.0.0.1:{server.server_port}"
    server.gates = {}
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    template = f"{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def model(home: Hub) -> bytes:
    content = b"weights" * 1000
    home.files["some/vit"] = {"model.safetensors": content, "config.json": b"{}"}
    return content


FILE = hub.File(repository="some/vit")


def gets(home: Hub) -> int:
    return sum(method == "GET" for method, _, _ in home.asked)


def test_a_file_is_fetched_once_and_found_offline_ever_after(
    home: Hub, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    heard = []
    assert not FILE.here()
    found = FILE.local(lambda *progress: heard.append(progress))
    assert (found.id, found.sha256) == ("hf:some/vit/model.safetensors", hashlib.sha256(model).hexdigest())
    assert found.path.read_bytes() == model
    assert ("model.safetensors", len(model), len(model)) in heard
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(home.asked)
    assert FILE.here()
    assert FILE.local() == found
    assert len(home.asked) == asked


@pytest.mark.usefixtures("model", "home")
def test_what_the_hub_does_not_have_is_said() -> None:
    for file, named in (
        (hub.File(repository="some/other"), "some/other"),
        (FILE.beside("other.npz"), "other.npz"),
        (hub.File(repository="some/vit", name="a/b"), "a/b"),
    ):
        with refuses("missing", match=named):
            file.local()
        assert not file.here()


@pytest.mark.parametrize(("status", "code"), [(401, "GatedRepo"), (403, "GatedRepo"), (403, "")])
def test_gated_weights_say_where_to_agree_and_how_to_log_in(home: Hub, status: int, code: str) -> None:
    """Without an account, with one that was not admitted, and by a mirror that says no reason."""
    home.gates["some/gated"] = (status, code)
    with refuses("unreadable", match=r"'model\.safetensors' of 'some/gated'", gated=True) as refused:
        hub.File(repository="some/gated").local()
    assert f"{home.address}/some/gated" in refused.value.remedy
    assert "hf auth login" in refused.value.remedy
    assert gets(home) == 0


def test_a_hub_that_cannot_be_reached_is_asked_once_and_nothing_is_logged(
    home: Hub, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    from huggingface_hub import constants

    closed = "http://127.0.0.1:9"
    monkeypatch.setattr(constants, "ENDPOINT", closed)
    template = f"{closed}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    with refuses("unreachable"):
        FILE.local()
    assert not waits
    assert capfd.readouterr() == ("", "")
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.usefixtures("home")
def test_a_file_that_changed_in_the_cache_is_refused_at_every_load(model: bytes) -> None:
    path = FILE.local().path
    path.write_bytes(model[:-1] + bytes([model[-1] ^ 1]))
    with refuses("damaged"):
        FILE.local()


@pytest.mark.parametrize("honest", [True, False])
def test_the_stated_version_decides_what_is_fetched_and_which_bytes_are_taken(
    home: Hub, model: bytes, honest: bool
) -> None:
    """The server says of every commit that it has these bytes. Only what the table says counts."""
    digest = hashlib.sha256(model).hexdigest() if honest else "0" * 64
    pinned = hub.File(repository="some/vit", commit=COMMIT, sha256=digest)
    with nullcontext() if honest else refuses("damaged"):
        pinned.local()
    pinned.beside("config.json").local()
    assert {path.split("/")[4] for _, path, _ in home.asked} == {COMMIT}


def test_files_in_the_cache_of_dpfc_stand_for_the_whole_repository(
    home: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DPFC_CACHE", str(tmp_path))
    folder = tmp_path / "hub" / "some" / "vit"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"any")
    assert FILE.local().path == folder / "model.safetensors"
    with refuses("damaged"):
        hub.File(repository="some/vit", sha256="0" * 64).local()
    with refuses("missing"):
        FILE.beside("tokenizer.json").local()
    assert home.asked == []


def test_the_table_states_whole_commits_and_digests() -> None:
    stated = [f"{model.file.commit} {model.file.sha256}" for model in MODELS.values() if model.file.commit]
    assert stated
    assert all(re.fullmatch("[0-9a-f]{40} [0-9a-f]{64}", each) for each in stated)
