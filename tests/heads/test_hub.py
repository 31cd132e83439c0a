"""Heads on the Hugging Face hub, here a server on this machine: what is fetched, and by which commit."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

from dpfc_cli.heads.head import Head, encoded, located, shown
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.records.card import card_of
from tests.backbones.test_hub import Home, serving
from tests.hostile import calibrated, card_as_written
from tests.support import refuses

TOKEN = "hf_secretSECRETsecret"
PLACE = "some/flu"


class Repositories(Home):
    """Repositories with commits. Only who has the token may write."""

    commits: dict[str, list[tuple[str, dict[str, bytes]]]]
    created: list[dict[str, Any]]
    parents: list[str | None]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(("POST", self.path, None))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._json({"error": "Invalid username or password."}, 401)
        elif self.path == "/api/repos/create":
            asked = json.loads(body)
            self.created.append(asked)
            self.commits[f"{asked['organization']}/{asked['name']}"] = []
            self._json({"url": f"{self.server.address}/{asked['organization']}/{asked['name']}"})
        elif self.path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            files = [each["path"] for each in json.loads(body)["files"]]
            self._json({"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in files]})
        else:
            self._commit(body)

    def do_GET(self) -> None:
        found = re.fullmatch(r"/api/models/([^/]+/[^/]+)", self.path)
        if self.path.startswith("/api/") and found is None:
            # The library tells the hub which programs use it.
            self._json({}, 404)
        elif found is None:
            super().do_GET()
        elif found[1] not in self.commits:
            self._json({"error": "Repository not found"}, 404, "RepoNotFound")
        else:
            commit, files = self._version(found[1], "main")
            self._json({"id": found[1], "sha": commit, "siblings": [{"rfilename": name} for name in files or ()]})

    def _commit(self, body: bytes) -> None:
        repository = self.path.removeprefix("/api/models/").partition("/commit/")[0]
        history = self.commits[repository]
        held = dict(history[-1][1]) if history else {}
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "header":
                self.parents.append(line["value"].get("parentCommit"))
            elif line["key"] == "file":
                held[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "deletedFile":
                del held[line["value"]["path"]]
        commit = hashlib.sha1(repr((len(history), sorted(held))).encode()).hexdigest()
        history.append((commit, held))
        url = f"{self.server.address}/{repository}/commit/{commit}"
        self._json({"success": True, "commitOid": commit, "commitUrl": url})

    def _version(self, repository: str, revision: str) -> tuple[str, dict[str, bytes] | None]:
        history = self.commits.get(repository, [])
        named = (each for each in reversed(history) if unquote(revision) in ("main", each[0]))
        return next(named, ("0" * 40, None))

    def _json(self, value: object, status: int = 200, code: str | None = None) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        if code is not None:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Repositories]]:
    """The server; the user is logged in."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    handler = type("Handler", (Repositories,), {"commits": {}, "created": [], "parents": []})
    for _ in serving(handler, tmp_path, monkeypatch):
        yield handler


def head(folder: Path, seed: int = 0, claim: str = "private") -> Path:
    privacy = Privacy(epsilon=1.0) if claim == "private" else Privacy()
    rng = np.random.default_rng(seed)
    card = card_of(card_as_written(calibrated("dp-whitened", privacy)))
    made = Head(chain=(Clip(0.5),), weight=rng.normal(size=(2, 3)), bias=rng.normal(size=3), card=card)
    path = folder / f"head-{seed}{'' if claim == 'private' else '.nonprivate'}.safetensors"
    path.write_bytes(encoded(made))
    return path


def held(hub: type[Repositories]) -> dict[str, bytes]:
    return hub.commits[PLACE][-1][1]


def published(hub: type[Repositories], path: Path) -> str:
    """Put a head into the repository. Returns the commit."""
    history = hub.commits.setdefault(PLACE, [])
    history.append((f"{len(history) + 1:040x}", {"head.safetensors": path.read_bytes(), "README.md": b"# A head"}))
    return history[-1][0]


def test_a_head_is_fetched_by_commit_and_says_which(hub: type[Repositories], tmp_path: Path) -> None:
    first = published(hub, head(tmp_path, 0))
    assert np.array_equal(Head.load(f"hf:{PLACE}").weight, Head.load(head(tmp_path, 0)).weight)
    second = published(hub, head(tmp_path, 1))
    for name, seed, commit in (
        (f"hf:{PLACE}", 1, second),
        (f"hf:{PLACE}/head.safetensors", 1, second),
        (f"hf:{PLACE}@{first}", 0, first),
        (f"hf:{PLACE}/head.safetensors@{first}", 0, first),
    ):
        found = Head.load(name)
        assert np.array_equal(found.weight, Head.load(head(tmp_path, seed)).weight)
        assert found.path is not None
        assert shown(found.path) == f"hf:{PLACE}/head.safetensors@{commit}"


def test_what_is_not_there_is_said(hub: type[Repositories], tmp_path: Path) -> None:
    published(hub, head(tmp_path))
    hub.commits["some/empty"] = [("1" * 40, {})]
    for name, code, named in (
        ("hf:some", "bad-value", "hf:some"),
        ("hf:some/flu/../x.safetensors", "bad-value", "x.safetensors"),
        ("hf:some/other", "missing", "some/other"),
        ("hf:some/flu/x.safetensors", "missing", "x.safetensors"),
        ("hf:some/empty", "missing", "head.safetensors"),
        ("hf:some/flu/README.md", "damaged", "README.md"),
    ):
        with refuses(code, match=named):
            Head.load(name)


def test_a_file_that_was_changed_in_the_cache_is_refused(hub: type[Repositories], tmp_path: Path) -> None:
    published(hub, head(tmp_path))
    path = located(f"hf:{PLACE}")
    with path.open("r+b") as file:
        file.seek(-8, 2)
        file.write(b"\0" * 8)
    with refuses("damaged"):
        Head.load(f"hf:{PLACE}")
