"""Heads on the Hugging Face hub, here a server on this machine: what is sent, what is fetched, and by which commit."""

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
from huggingface_hub import ModelCard

from dpfc_cli.errors import UserError
from dpfc_cli.files import sha256_of
from dpfc_cli.heads import signature
from dpfc_cli.heads.head import Head, encoded, located, shown
from dpfc_cli.heads.push import push
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.training.request import Privacy
from dpfc_cli.trust import model_card
from tests.backbones.test_hub import Home, serving
from tests.hostile import calibrated, card_as_written

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


def released(path: Path, features: str = "flu", **changed: Any) -> dict[str, Any]:
    """What `dpfc evaluate --epsilon 0.5 --json` prints, as far as it is looked at."""
    figures: dict[str, Any] = {"head": path.name, "head_sha256": sha256_of(path), "split": "test", "unit": "person"}
    figures |= {"n": 200, "epsilon": 0.5, "delta": 1e-5, "top1": 0.9125, "interval": [0.86, 0.95], "noise": 0.01}
    figures |= {"top5": None, "top5_interval": None, "per_class": None, **changed}
    digest = hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest()
    return {"features": features, "figures": figures, "sha256": digest}


def head(folder: Path, seed: int = 0, claim: str = "private") -> Path:
    privacy = Privacy(epsilon=1.0) if claim == "private" else Privacy()
    rng = np.random.default_rng(seed)
    card = card_as_written(calibrated("dp-whitened", privacy))
    made = Head(chain=(Clip(0.5),), weight=rng.normal(size=(2, 3)), bias=rng.normal(size=3), card=card)
    path = folder / f"head-{seed}{'' if claim == 'private' else '.nonprivate'}.safetensors"
    path.write_bytes(encoded(made))
    return path


def held(hub: type[Repositories]) -> dict[str, bytes]:
    return hub.commits[PLACE][-1][1]


# Sending


def test_the_head_its_signature_and_a_model_card_are_sent_and_nothing_else(
    hub: type[Repositories], tmp_path: Path
) -> None:
    path = head(tmp_path)
    for beside in ("head-0.ledger.sqlite", "head-0.npz", "notes.txt"):
        (tmp_path / beside).write_text("stays here")
    key = signature.new_key(tmp_path / "a.key")
    signature.sign(path, key=key.secret, comment="by me")
    sent = push(path, f"hf:{PLACE}")
    assert set(held(hub)) == {"head.safetensors", "head.safetensors.minisig", "README.md"}
    assert held(hub) == sent.files
    assert held(hub)["head.safetensors"] == path.read_bytes()
    assert hub.created == [{"name": "flu", "organization": "some", "visibility": "private"}]
    assert sent.name == f"hf:{PLACE}/head.safetensors@{hub.commits[PLACE][-1][0]}"
    assert signature.check(located(f"hf:{PLACE}"), key.public).comment == "by me"


def test_what_belonged_to_an_earlier_head_goes(hub: type[Repositories], tmp_path: Path) -> None:
    path = head(tmp_path)
    signature.sign(path, key=signature.new_key(tmp_path / "a.key").secret)
    first = push(path, f"hf:{PLACE}")
    hub.commits[PLACE][-1][1]["theirs.txt"] = b"stays"
    again = push(head(tmp_path, 1, "non-private"), f"hf:{PLACE}")
    assert again.replaced == ("head.safetensors", "head.safetensors.minisig")
    assert set(held(hub)) == {"head.nonprivate.safetensors", "README.md", "theirs.txt"}
    assert Head.load(f"hf:{PLACE}").card["claim"] == "non-private"
    assert len(hub.created) == 1
    # What others sent in between is not overwritten: the hub refuses a commit that does not follow the newest.
    assert hub.parents == [None, first.commit]


def test_a_dry_run_says_what_would_be_sent_and_asks_nobody(hub: type[Repositories], tmp_path: Path) -> None:
    sent = push(head(tmp_path), f"hf:{PLACE}", dry_run=True)
    assert set(sent.files) == {"head.safetensors", "README.md"}
    assert (sent.commit, sent.name) == (None, f"hf:{PLACE}/head.safetensors")
    assert not hub.commits


def test_the_model_card_has_a_header_and_the_statement(hub: type[Repositories], tmp_path: Path) -> None:
    path = head(tmp_path)
    found = released(path, features="/home/me/features/flu: a `set`")
    push(path, f"hf:{PLACE}", license="apache-2.0", evaluation=found)
    card = ModelCard(held(hub)["README.md"].decode())
    said = dict(vars(card.data))
    assert said["license"] == "apache-2.0"
    assert said["tags"] == ["dpfc", "linear-head", "differential-privacy"]
    (result,) = said["eval_results"]
    assert (result.metric_value, result.dataset_name, result.dataset_split) == (0.9125, "flu: a `set`", "test")
    assert "/home/me" not in card.content
    assert "Top-1 accuracy: 91.2 % (95 % interval 86.0 to 95.0 %) on 200 persons of" in card.text
    assert "counted with noise (epsilon = 0.5000 at delta = 1e-05 for one person of that split)" in card.text
    for label, text in Head.load(path).statement().items():
        assert f"- **{label}**: " in card.text
        assert text.split("; ")[0].split(" (")[0] in card.text
    other = ModelCard(push(head(tmp_path, 1, "non-private"), f"hf:{PLACE}", dry_run=True).files["README.md"].decode())
    assert "**This head has no guarantee of privacy.**" in other.text
    assert "differential-privacy" not in vars(other.data)["tags"]


@pytest.mark.parametrize(("name", "tagged"), [("vit-ti16", True), ("imported", False)])
def test_a_head_of_imported_features_is_not_said_to_take_pictures(name: str, tagged: bool) -> None:
    card = {"claim": "private", "method": "dp-ls", "features": {"backbone": {"name": name}}}
    assert ("pipeline_tag" in model_card.header(card)) == tagged


EXACT = {"method": "dp-whitened", "claim": "private", "epsilon": 1.0, "delta": 1e-5, "features": "flu"}
EXACT |= {"split": "test", "n": 200, "top1": 0.9, "interval": [0.85, 0.94]}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"private_split": True, **EXACT}, "are exact"),
        ({"private_split": False, **EXACT}, "are exact"),
        ({"epsilon": 7.0}, "not those that were released"),
        ({"head_sha256": "0"}, "of another head"),
        ({"top1": None}, "has no accuracy"),
        ({"top1": 7}, "'figures.top1' is missing or makes no sense"),
        ({"interval": 0.9}, "makes no sense"),
        ({"figures": []}, "is not the output"),
    ],
)
def test_figures_that_do_not_belong_in_a_model_card_are_refused(
    found: dict[str, Any], said: str, hub: type[Repositories], tmp_path: Path
) -> None:
    path = head(tmp_path)
    whole = found if "claim" in found or "figures" in found else released(path, **found)
    if "epsilon" in found and "figures" in whole:
        whole["figures"]["epsilon"] = 0.5
    with pytest.raises(UserError, match=said):
        push(path, f"hf:{PLACE}", evaluation=whole)
    assert not hub.commits


@pytest.mark.parametrize("name", ["some/flu", "hf:flu", "hf:some/flu/head.safetensors", "hf:some/flu@main", "hf:../x"])
def test_what_names_no_repository_is_refused(name: str, hub: type[Repositories], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not name a repository"):
        push(head(tmp_path), name)


def test_a_token_that_may_not_write_is_not_shown(
    hub: type[Repositories], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrongWRONGwrong")
    with pytest.raises(UserError, match="hf auth login") as refused:
        push(head(tmp_path), f"hf:{PLACE}")
    assert refused.value.code == "unwritable"
    assert "WRONG" not in str(refused.value)
    assert not hub.commits


def test_a_head_that_contradicts_itself_is_not_sent(hub: type[Repositories], tmp_path: Path) -> None:
    path = head(tmp_path)
    made = Head.load(path)
    plan = [{**made.card["plan"][0], "kind": "class_sums", "shape": [3, 2]}, *made.card["plan"][1:]]
    path.write_bytes(
        encoded(Head(chain=made.chain, weight=made.weight, bias=made.bias, card={**made.card, "plan": plan}))
    )
    with pytest.raises(UserError, match="is not what it says"):
        push(path, f"hf:{PLACE}")
    assert not hub.commits


# Fetching


def test_a_head_is_fetched_by_commit_and_says_which(hub: type[Repositories], tmp_path: Path) -> None:
    first = push(head(tmp_path, 0), f"hf:{PLACE}")
    assert np.array_equal(Head.load(f"hf:{PLACE}").weight, Head.load(head(tmp_path, 0)).weight)
    second = push(head(tmp_path, 1), f"hf:{PLACE}")
    for name, seed, commit in (
        (f"hf:{PLACE}", 1, second.commit),
        (f"hf:{PLACE}/head.safetensors", 1, second.commit),
        (f"hf:{PLACE}@{first.commit}", 0, first.commit),
        (first.name, 0, first.commit),
    ):
        found = Head.load(name)
        assert np.array_equal(found.weight, Head.load(head(tmp_path, seed)).weight)
        assert found.path is not None
        assert shown(found.path) == f"hf:{PLACE}/head.safetensors@{commit}"


def test_a_fetched_head_is_found_offline(
    hub: type[Repositories], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    sent = push(head(tmp_path), f"hf:{PLACE}")
    Head.load(f"hf:{PLACE}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert shown(located(f"hf:{PLACE}")) == sent.name
    with pytest.raises(UserError, match="not in the cache"):
        Head.load(f"hf:{PLACE}@{'0' * 40}")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hf:some", "does not name a head"),
        ("hf:some/flu/../x.safetensors", "does not name a head"),
        ("hf:some/other", "no such public repository"),
        ("hf:some/flu/x.safetensors", "no such file"),
        ("hf:some/empty", r"has no file head\.safetensors"),
        ("hf:some/flu/README.md", "cannot be read as a head"),
    ],
)
def test_what_is_not_there_is_said(name: str, said: str, hub: type[Repositories], tmp_path: Path) -> None:
    push(head(tmp_path), f"hf:{PLACE}")
    hub.commits["some/empty"] = [("1" * 40, {})]
    with pytest.raises(UserError, match=said):
        Head.load(name)


def test_a_file_that_was_changed_in_the_cache_is_refused(hub: type[Repositories], tmp_path: Path) -> None:
    push(head(tmp_path), f"hf:{PLACE}")
    path = located(f"hf:{PLACE}")
    with path.open("r+b") as file:
        file.seek(-8, 2)
        file.write(b"\0" * 8)
    with pytest.raises(UserError, match="damaged or exchanged"):
        Head.load(f"hf:{PLACE}")
