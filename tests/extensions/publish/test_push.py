"""Heads that are sent to the Hugging Face hub, here a server on this machine: what is sent, and what is not."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from model_signing import verifying

from dpfc_cli.extensions.publish.contents import document
from dpfc_cli.extensions.publish.push import push
from dpfc_cli.extensions.publish.request import Reporting
from dpfc_cli.extensions.publish.write import write_report
from dpfc_cli.heads.head import Head
from dpfc_cli.show.markdown import markdown
from dpfc_cli.verification import verify
from tests.extensions.publish.conftest import Ward
from tests.heads.test_hub import PLACE, Repositories, head, held
from tests.signing import key_pair, sign
from tests.support import refuses


def test_the_head_its_signature_and_a_model_card_are_sent_and_nothing_else(
    hub: type[Repositories], tmp_path: Path
) -> None:
    path = head(tmp_path)
    for beside in ("head-0.ledger.sqlite", "head-0.npz", "notes.txt"):
        (tmp_path / beside).write_text("stays here")
    private, public = key_pair(tmp_path, "a")
    sign(path, private)
    sent = push(path, f"hf:{PLACE}", public_key=public)
    assert set(held(hub)) == {"head.safetensors", "head.safetensors.sig", "README.md"}
    assert held(hub) == sent.files
    assert held(hub)["head.safetensors"] == path.read_bytes()
    assert hub.created == [{"name": "flu", "organization": "some", "visibility": "private"}]
    assert sent.name == f"hf:{PLACE}/head.safetensors@{hub.commits[PLACE][-1][0]}"
    assert verify(f"hf:{PLACE}", public_key=public).signature is not None


def test_what_belonged_to_an_earlier_head_goes(hub: type[Repositories], tmp_path: Path) -> None:
    path = head(tmp_path)
    private, public = key_pair(tmp_path, "a")
    sign(path, private)
    first = push(path, f"hf:{PLACE}", public_key=public)
    hub.commits[PLACE][-1][1]["theirs.txt"] = b"stays"
    again = push(head(tmp_path, 1, "non-private"), f"hf:{PLACE}")
    assert again.replaced == ("head.safetensors", "head.safetensors.sig")
    assert set(held(hub)) == {"head.nonprivate.safetensors", "README.md", "theirs.txt"}
    assert Head.load(f"hf:{PLACE}").card.claim == "non-private"
    assert len(hub.created) == 1
    # What others sent in between is not overwritten: the hub refuses a commit that does not follow the newest.
    assert hub.parents == [None, first.commit]


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_signature_that_is_not_of_this_head_is_not_sent(
    dry_run: bool, hub: type[Repositories], tmp_path: Path
) -> None:
    """A head that was trained again lies beside the signature of the one before."""
    path, again = head(tmp_path), head(tmp_path, 1)
    (private, public), (_, other) = key_pair(tmp_path, "a"), key_pair(tmp_path, "b")
    made = sign(path, private)
    for change, public_key, code in (
        (None, None, "missing"),
        (None, other, "damaged"),
        (lambda: again.replace(path), public, "damaged"),
        (made.unlink, public, "missing"),
    ):
        if change is not None:
            change()
        with refuses(code):
            push(path, f"hf:{PLACE}", public_key=public_key, dry_run=dry_run)
    assert not hub.commits


def test_the_signature_is_checked_on_the_bytes_that_are_sent(
    hub: type[Repositories], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, signed = head(tmp_path), head(tmp_path, 1)
    private, public = key_pair(tmp_path, "a")
    sign(signed, private).replace(path.with_name(f"{path.name}.sig"))
    real = verifying.Config.verify

    def slow(*given: Any) -> None:
        # Somebody replaces the head after it was read.
        path.write_bytes(signed.read_bytes())
        real(*given)

    monkeypatch.setattr(verifying.Config, "verify", slow)
    with refuses("damaged"):
        push(path, f"hf:{PLACE}", public_key=public)
    assert not hub.commits


def test_a_dry_run_says_what_would_be_sent_and_asks_nobody(hub: type[Repositories], tmp_path: Path) -> None:
    sent = push(head(tmp_path), f"hf:{PLACE}", dry_run=True)
    assert set(sent.files) == {"head.safetensors", "README.md"}
    assert (sent.commit, sent.name) == (None, f"hf:{PLACE}/head.safetensors")
    assert not hub.commits


def test_the_model_card_is_the_shared_report_under_the_name_of_the_repository(
    hub: type[Repositories], ward: Ward
) -> None:
    push(ward.second, f"hf:{PLACE}", license="apache-2.0", evaluation=ward.released)
    report = document(Head.load(ward.second), Reporting(ward.second, "card.md", evaluation=ward.released))
    card = held(hub)["README.md"].decode()
    assert card.replace('license: "apache-2.0"\n', "").replace(f"hf:{PLACE}", ward.second.name) == markdown(report)
    said = dict(vars(ModelCard(card).data))
    assert (said["license"], said["model_name"]) == ("apache-2.0", f"hf:{PLACE}")
    (result,) = said["eval_results"]
    assert result.metric_value == json.loads(ward.released.read_text())["figures"]["top1"]
    assert f"Head.load('hf:{PLACE}')" in card


def test_figures_that_may_not_be_handed_out_are_in_neither_a_model_card_nor_a_report(
    hub: type[Repositories], ward: Ward, tmp_path: Path
) -> None:
    changed, exact, other = (tmp_path / f"{name}.json" for name in ("changed", "exact", "other"))
    other.write_text("{}")
    exact.write_text(json.dumps({"top1": 0.9, "interval": [0.8, 0.95], "private_split": False}))
    released = json.loads(ward.released.read_text())
    changed.write_text(json.dumps({**released, "figures": {**released["figures"], "features": "elsewhere"}}))
    for path, figures, code in (
        (ward.second, exact, "private-records"),
        (ward.second, changed, "damaged"),
        (ward.second, other, "damaged"),
        (ward.first, ward.released, "conflict"),
        (ward.second, tmp_path / "none.json", "missing"),
    ):
        for refused in (
            partial(push, path, f"hf:{PLACE}", evaluation=figures),
            partial(write_report, path, tmp_path / "card.md", evaluation=figures),
        ):
            with refuses(code, parameter="evaluation"):
                refused()
    assert not hub.commits
    assert not (tmp_path / "card.md").exists()


@pytest.mark.parametrize("name", ["some/flu", "hf:flu", "hf:some/flu/head.safetensors", "hf:some/flu@main", "hf:../x"])
def test_what_names_no_repository_is_refused(name: str, hub: type[Repositories], tmp_path: Path) -> None:
    with refuses("bad-value", parameter="repository"):
        push(head(tmp_path), name)


def test_a_token_that_may_not_write_is_not_shown(
    hub: type[Repositories], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrongWRONGwrong")
    with refuses("unwritable", parameter="repository") as refused:
        push(head(tmp_path), f"hf:{PLACE}")
    assert "WRONG" not in str(refused.value)
    assert not hub.commits
