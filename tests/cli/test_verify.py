"""`dpfc verify`: somebody receives a head and must decide whether to believe it."""

import json
import shutil
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.numpy import save

import dpfc_cli as dpfc_face
from dpfc_cli.records.findings import BELONGS, NOISE
from dpfc_cli.rounding import cost
from dpfc_cli.verification import DIGEST
from tests.cli.conftest import Dpfc, one_line, refusal, there

LEDGER = "features/ledger.sqlite"
HEAD = "a.safetensors"


@pytest.fixture
def head(dpfc: Dpfc, features: Path) -> Path:
    assert dpfc("train", "--epsilon", "2", "--method", "dp-ls", "--out", HEAD).exit_code == 0
    return Path(HEAD)


def forge(change: Callable[[dict[str, Any], dict[str, Any]], object], path: Path = Path(HEAD)) -> str:
    """Write the head with another card or other arrays over itself."""
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    card = json.loads(metadata["card"])
    change(card, arrays)
    path.write_bytes(save(arrays, {**metadata, "card": json.dumps(card)}))
    return str(path)


def results(dpfc: Dpfc, *line: str) -> dict[str, str]:
    return {each["what"]: each["result"] for each in json.loads(dpfc("verify", *line, "--json").stdout)["checks"]}


def not_ok(dpfc: Dpfc, *line: str) -> set[str]:
    return {what for what, result in results(dpfc, *line).items() if result != "ok"}


def test_a_head_and_its_ledger_agree(dpfc: Dpfc, head: Path) -> None:
    shown = dpfc("verify", HEAD, ends=0)
    # A person reads no more.
    assert len(shown.stdout.split()) <= 90
    assert not_ok(dpfc, HEAD) == {"signature"}
    found = dpfc_face.verify(HEAD)
    assert (found.contradictions, {NOISE, BELONGS} & {*found.unproved}) == ([], {NOISE})
    assert NOISE in one_line(shown.stdout)
    assert found.sha256 in shown.stdout


def test_the_claim_comes_first_and_nothing_is_said_of_noise_where_none_is_claimed(dpfc: Dpfc, head: Path) -> None:
    claim = dpfc("verify", HEAD).stdout.split("claimed")[1].split("\nok ")[0]
    assert all(said in one_line(claim) for said in (cost(2, 1e-5), "600", "zero-out"))
    assert json.loads(dpfc("verify", HEAD, "--json").stdout)["epsilon"] == 2
    plain = ("train", "--non-private", "--method", "dp-ls", "--out", "p.nonprivate.safetensors")
    assert dpfc(*plain).exit_code == 0
    told = json.loads(dpfc("verify", plain[-1], "--json", ends=0).stdout)
    assert (told["epsilon"], NOISE in told["unproved"]) == (None, False)


def test_a_head_is_good_where_a_ledger_has_it_and_not_where_it_only_agrees_with_itself(
    dpfc: Dpfc, head: Path, tmp_path: Path
) -> None:
    shutil.copy(LEDGER, "theirs.sqlite")
    shutil.rmtree("features/blobs")
    # An auditor has the ledger, and must not have the records.
    assert dpfc("verify", HEAD).exit_code == 0
    assert not_ok(dpfc, HEAD) == {"signature", "feature set"}
    shutil.rmtree("features")
    alone = dpfc("verify", HEAD, "--json", ends=2)
    assert not_ok(dpfc, HEAD) >= {"signature", "feature set", "ledger"}
    assert BELONGS in json.loads(alone.stdout)["unproved"]
    assert results(dpfc, HEAD)["ledger"] == "unknown"
    dpfc("verify", HEAD, "--ledger", "theirs.sqlite", ends=0)
    named = results(dpfc, HEAD, "--ledger", "theirs.sqlite")
    assert (named["ledger"], named[DIGEST], named["other trainings in the ledger"]) == ("ok",) * 3
    missing = dpfc("verify", HEAD, "--ledger", "nowhere.sqlite", "--json", ends=2)
    assert refusal(missing) == "missing ledger nowhere.sqlite"


def test_what_the_ledger_says_now_is_what_budget_says(dpfc: Dpfc, head: Path) -> None:
    """A cap that came after the first charge, and one that two copies of the ledger have passed together."""
    assert dpfc("cap", "3", "--features", "blobs", ends=0)
    shutil.copytree("features", "other")
    for folder in ("features", "other"):
        line = ("--epsilon", "2", "--method", "dp-ls", "--again")
        assert dpfc("train", "--features", f"{folder}/blobs", *line, ends=0)
    assert dpfc("merge", "other/ledger.sqlite", ends=0)
    budget, verified = dpfc("budget", ends=0), dpfc("verify", HEAD, ends=0)
    for shown in (budget, verified):
        assert "Warning" in shown.stderr
    spent = json.loads(dpfc("verify", HEAD, "--json").stdout)["spent"]
    (told,) = json.loads(dpfc("budget", "--delta", "1e-5", "--json").stdout)["spent"]["populations"]
    assert spent == told | {"ledger": spent["ledger"]}
    assert [each["charges_before"] for each in spent["caps"]] == [1]
    assert len(spent["warnings"]) == 1
    # How old a copy is can be seen.
    until = spent["newest"][:16].replace("T", " ")
    assert until in verified.stdout.partition("\n")[0]
    assert until in one_line(budget.stdout)


def test_an_edited_epsilon_is_refused_everywhere(dpfc: Dpfc, head: Path) -> None:
    forge(lambda card, arrays: card.update(epsilon=0.1))
    shown = dpfc("verify", HEAD, ends=5)
    assert ("CONTRADICTS" in shown.stdout, "0.1" in shown.stderr) == (False, True), "it is said once"
    assert results(dpfc, HEAD)["epsilon"] == "contradicts"
    lines = ("statement {}", "evaluate {}", "predict {} blobs", "export {} --to npz --out a.npz")
    for line in there(lines, lambda line: line.split()[0]):
        assert "0.1" in dpfc(*line.format(HEAD).split(), ends=5).stderr


def weights(card: object, arrays: dict[str, Any]) -> None:
    arrays["weight"][0, 0] += 1


def test_changed_weights_are_given_away_by_the_digest_alone(dpfc: Dpfc, head: Path) -> None:
    forge(weights)
    dpfc("verify", HEAD, ends=5)
    assert results(dpfc, HEAD)[DIGEST] == "contradicts"
    # Nobody is told what the ledger here contradicts.
    lines = ("statement {}", "report {} --out a.md", "export {} --to npz --out a.npz")
    for line in there(lines, lambda line: line.split()[0]):
        dpfc(*line.format(HEAD).split(), ends=5)
    shutil.rmtree("features")
    assert dpfc("verify", HEAD).exit_code == 2


def larger(card: dict[str, Any], arrays: object) -> None:
    card["facts"]["n"] *= 10


def other(card: dict[str, Any], arrays: object) -> None:
    card["adjacency"] = "replace-one"


@pytest.mark.parametrize("change", [None, weights, larger, other])
def test_a_head_alone_is_never_said_to_be_good(
    dpfc: Dpfc, head: Path, change: Callable[[dict[str, Any], dict[str, Any]], object] | None
) -> None:
    """Only whoever has the ledger, or a signature, sees what was changed so that all figures still agree."""
    if change is not None:
        forge(change)
    shutil.move("features/ledger.sqlite", "theirs.sqlite")
    shutil.rmtree("features")
    alone = dpfc("verify", HEAD, ends=2).stdout.partition("\n")[0]
    assert alone.startswith("# Not confirmed")
    told = json.loads(dpfc("verify", HEAD, "--json", ends=2).stdout)
    assert (told["state"], told["as_of"], told["contradictions"]) == ("not confirmed", None, [])
    told = json.loads(dpfc("verify", HEAD, "--ledger", "theirs.sqlite", "--json").stdout)
    assert told["state"] == ("confirmed" if change is None else "contradicted")
    assert ("ledger" in told["verdict"], told["as_of"] is None) == (True, change in (larger, other))


def test_an_old_copy_of_the_ledger_says_until_when_it_knows_and_can_be_refused(dpfc: Dpfc, head: Path) -> None:
    shutil.copy(LEDGER, "old.sqlite")
    assert dpfc("train", "--epsilon", "2", "--method", "dp-ls", "--again", ends=0)
    told = [json.loads(dpfc("verify", HEAD, "--ledger", name, "--json").stdout) for name in ("old.sqlite", LEDGER)]
    assert [len(each["spent"]["charges"]) for each in told] == [1, 2]
    day = datetime.fromisoformat(told[0]["as_of"]).date()
    line = ("verify", HEAD, "--ledger", "old.sqlite", "--not-before")
    assert dpfc(*line, day.isoformat(), ends=0)
    later = (day + timedelta(days=1)).isoformat()
    assert refusal(dpfc(*line, later, "--json", ends=2)) == "conflict not_before old.sqlite"
    assert refusal(dpfc(*line, "yesterday", "--json", ends=2)) == "bad-value not_before"
    shutil.rmtree("features")
    assert refusal(dpfc("verify", HEAD, "--not-before", later, "--json", ends=2)) == "missing ledger"


def test_what_another_version_may_do_is_not_called_a_contradiction(dpfc: Dpfc, head: Path) -> None:
    forge(lambda card, arrays: card["options"].update(novel=1.0))
    shutil.rmtree("features")
    assert dpfc("verify", HEAD).exit_code == 5
    forge(lambda card, arrays: card["versions"].update(dpfc="99.0"))
    shown = dpfc("verify", HEAD, ends=2)
    assert "99.0" in shown.stdout
