"""Weights from the Hugging Face hub, here a server on this machine: fetched once, found offline."""

import hashlib
import http.server
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from dpfc_cli.backbones import hub
from dpfc_cli.backbones.family import Wanted
from dpfc_cli.backbones.vision_transformer import transformer
from dpfc_cli.backbones.vision_transformer.models import MODELS
from dpfc_cli.geometry import Geometry
from tests.backbones.tiny import random_weights, references, write
from tests.support import refuses

CASE = references()["transformers-5-vit"]
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
def model(home: Hub, tmp_path: Path) -> bytes:
    content = write(random_weights(CASE["shapes"]), tmp_path).read_bytes()
    config = json.dumps(CASE["config"]).encode()
    home.files["some/vit"] = {"model.safetensors": content, "config.json": config, "pytorch_model.bin": b""}
    return content


def gets(home: Hub) -> int:
    return sum(method == "GET" for method, _, _ in home.asked)


def test_a_repository_is_fetched_once_and_found_offline_ever_after(
    home: Hub, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    heard = []
    found = hub.locate("hf:some/vit", lambda *progress: heard.append(progress))
    assert found.id == "hf:some/vit/model.safetensors"
    assert found.file.read_bytes() == model
    assert found.config == CASE["config"]
    assert ("model.safetensors", len(model), len(model)) in heard
    before = gets(home)
    assert hub.locate("hf:some/vit/model.safetensors").file == found.file
    assert gets(home) == before
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(home.asked)
    assert hub.locate("hf:some/vit") == found
    assert len(home.asked) == asked


def test_what_the_hub_does_not_have_is_said(home: Hub, model: bytes) -> None:
    home.files["some/pickled"] = {"pytorch_model.bin": b"\x80"}
    for weights, named in (
        ("hf:some/other", "some/other"),
        ("hf:some/vit/other.npz", "other.npz"),
        ("hf:some/pickled", r"model\.safetensors(.|\n)*Pickles"),
    ):
        with refuses("missing", match=named, parameter="weights"):
            hub.locate(weights)


@pytest.mark.parametrize(("status", "code"), [(401, "GatedRepo"), (403, "GatedRepo"), (403, "")])
def test_gated_weights_say_where_to_agree_and_how_to_log_in(home: Hub, status: int, code: str) -> None:
    """Without an account, with one that was not admitted, and by a mirror that says no reason."""
    home.gates["some/gated"] = (status, code)
    with refuses("unreadable", match=r"'model\.safetensors' of 'some/gated'", gated=True) as refused:
        hub.locate("hf:some/gated/model.safetensors")
    assert f"{home.address}/some/gated" in refused.value.remedy
    assert "hf auth login" in refused.value.remedy
    assert gets(home) == 0


def test_a_configuration_that_was_never_fetched_is_not_taken_for_absent(
    home: Hub, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline, half a repository in the cache: the number of heads must not be guessed."""
    from huggingface_hub import constants, hf_hub_download

    hf_hub_download("some/vit", "model.safetensors")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with refuses("unreachable", parameter="weights"):
        hub.locate("hf:some/vit")


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
    with refuses("unreachable", parameter="weights"):
        hub.locate("hf:some/vit")
    assert not waits
    assert capfd.readouterr() == ("", "")
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.fixture
def load(home: Hub, model: bytes, monkeypatch: pytest.MonkeyPatch) -> Callable[[hub.Pin | None], object]:
    """Loads a model of the table whose published weights the server has, with a pin."""

    def loaded(pin: hub.Pin | None) -> object:
        square = Geometry(resize=16, crop=16)
        entry = replace(MODELS["vit-ti16"], home="some/vit/model.safetensors", width=None, depth=None, patch=4, heads=2)
        monkeypatch.setitem(MODELS, "vit-ti16", replace(entry, native=square, pin=pin))
        return transformer.load(Wanted(name="vit-ti16", image_shape=(16, 16, 3), geometry=square))

    return loaded


def test_weights_that_changed_in_the_cache_are_refused_at_every_load(
    model: bytes, load: Callable[[hub.Pin | None], object]
) -> None:
    load(None)
    found = hub.locate("hf:some/vit")
    assert found.expected == hashlib.sha256(model).hexdigest()
    found.file.write_bytes(model[:-1] + bytes([model[-1] ^ 1]))
    with refuses("damaged"):
        load(None)


@pytest.mark.parametrize("honest", [True, False])
def test_a_pin_decides_what_is_fetched_and_which_bytes_are_taken(
    home: Hub, model: bytes, load: Callable[[hub.Pin | None], object], honest: bool
) -> None:
    """The server says of every commit that it has these bytes. Only what the table says counts."""
    digest = hashlib.sha256(model).hexdigest() if honest else "0" * 64
    with nullcontext() if honest else refuses("damaged"):
        load(hub.Pin(commit=COMMIT, sha256=digest))
    assert {path.split("/")[4] for _, path, _ in home.asked} == {COMMIT}


def test_the_pin_holds_also_where_the_published_weights_are_named() -> None:
    assert any(model.pin for model in MODELS.values())
    for model in MODELS.values():
        assert model.pin is None or re.fullmatch("[0-9a-f]{40} [0-9a-f]{64}", f"{model.pin.commit} {model.pin.sha256}")
        assert model.place(f"hf:{model.home}") == model.place(None) == (f"hf:{model.home}", model.pin)
        assert model.place("hf:some/other") == ("hf:some/other", None)


@pytest.mark.parametrize("pin", [None, hub.Pin(commit=COMMIT, sha256="0" * 64)])
def test_a_file_beside_the_weights_comes_from_their_folder_and_commit(home: Hub, pin: hub.Pin | None) -> None:
    home.files["some/two"] = {"a/b/model.safetensors": b"", "a/b/tokenizer.json": b"{}", "n": b""}
    weights = "hf:some/two/a/b/model.safetensors"
    found = hub.beside(weights, "tokenizer.json", pin=pin)
    assert found is not None
    assert found.id == "hf:some/two/a/b/tokenizer.json"
    assert found.file.read_bytes() == b"{}"
    assert {path.split("/")[4] for _, path, _ in home.asked} == {COMMIT if pin else "main"}
    assert hub.beside(weights, "n", pin=pin) is None


def test_what_says_how_weights_are_used_is_fetched_with_them_unless_the_table_says_it(home: Hub, model: bytes) -> None:
    home.files["some/vit"]["preprocessor_config.json"] = b'{"image_mean": 1}'
    published, name = replace(MODELS["vit-ti16"], home="some/vit/model.safetensors"), "preprocessor_config.json"
    assert published.find(None)[0].others == {}
    assert not any(path.endswith(name) for _, path, _ in home.asked)
    home.files["own/vit"] = home.files["some/vit"]
    assert published.find("hf:own/vit")[0].others == {name: {"image_mean": 1}}
    assert hub.here("hf:own/vit", None, hub.STATEMENTS)
    assert [each.name for each in hub.remotes("hf:own/vit", None, hub.STATEMENTS)] == [
        f"hub/own/vit/{each}" for each in ("model.safetensors", "config.json", name)
    ]
