"""Several sites train one head, as their operators type it."""

import json
import re
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from dpfc_cli.extensions.federation.plan import load
from dpfc_cli.files import sha256_of
from dpfc_cli.ledger.caps import set_cap
from dpfc_cli.rounding import cost
from dpfc_cli.training.calibrate import HIDES
from tests.cli.conftest import Dpfc, error_of
from tests.extensions.federation.sites import JOINT, NAMES, Serving, made_set, trained
from tests.training.requests import charges


def test_sites_and_coordinator_from_the_first_command_to_the_head(dpfc: Dpfc, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = {name: made_set(name) for name in NAMES}

    def done(*line: str) -> dict[str, Any]:
        ended = dpfc(*line, "--json", ends=0)
        return dict(json.loads(ended.stdout))

    for wrong in (("--name", "North", "--out", "north.json"), ("--name", "north", "--out", "north.txt")):
        dpfc("site-invite", "--features", "north/set", *wrong, "--epsilon", "2", ends=2)
    assert not Path("north", "ledger.federation").exists(), "what is refused leaves no key"
    for name in NAMES:
        done("site-invite", "--features", f"{name}/set", "--name", name, "--epsilon", "2", "--out", f"{name}.json")
    renamed = json.loads(Path("north.json").read_text()) | {"name": "other"}
    Path("other.json").write_text(json.dumps(renamed))
    dpfc("federation-new", "north.json", "other.json", "--out", "plan.json", ends=2)
    made = done("federation-new", "north.json", "south.json", "--steps", "3", "--out", "plan.json")
    own = ("--features", "south/set", "--name", "south")
    Path("policy.json").write_text('{"sites": ["north"]}')
    allowed = dpfc("site-check", "plan.json", *own, "--policy", "policy.json")
    assert "policy.json" in allowed.stderr
    assert "model" in allowed.stdout
    agreed = done("site-check", "plan.json", *own)
    assert agreed["digest"] == made["digest"]
    assert "a record of" in agreed, "what one of both sites would spend"
    shown = dpfc("site-check", "plan.json", *own).stdout
    assert cost(2, 1e-5) in shown
    assert " ".join(textwrap.wrap(str(made["digest"]), 8)) in " ".join(shown.split())
    assert not charges(sets["south"])

    whole = str(made["digest"])
    Path("policy.json").write_text('{"sites": ["west"]}')
    for digest, *more in (("0" * 64,), (whole[:32],), (whole, "--policy", "policy.json")):
        # There is no such place: what forgets to compare fails, and does not wait.
        line = ("site-serve", "plan.json", *own, "--digest", digest, "--socket", "nowhere/south.sock", *more)
        ended = dpfc(*line, "--json", ends=2)
        assert json.loads(ended.stderr)["error"]["code"] == "conflict"
        assert whole not in ended.stderr

    line = ("federation-run", "plan.json", "--out", str(JOINT), "--sockets")
    assert dpfc(*line, "nowhere").exit_code == 2
    away = dpfc(*line, ".", "--patience", "0.01", ends=4)
    assert away.stderr.count("Waiting") == len(NAMES)
    away = dpfc(*line, ".", "--patience", "0.01", "--json", ends=4)
    assert error_of(away)["fields"]["ledgers"] == dict.fromkeys(NAMES, "not reached")

    serving = Serving(load(Path("plan.json")), sets, ("north",))
    other = threading.Thread(target=trained, args=(load(Path("plan.json")),), daemon=True)
    other.start()
    monkeypatch.setenv("DPFC_HEADS", "south/heads")
    typed = " ".join(textwrap.wrap(str(made["digest"]).upper(), 8))
    serve = ("site-serve", "plan.json", *own, "--digest", typed, "--socket", "south.sock")
    ended = dpfc(*serve, ends=0)
    assert [ended.stderr.count(f"release {number} of 5") for number in range(1, 6)] == [1] * 5
    assert all(said in ended.stderr for said in (str(made["digest"]), charges(sets["south"])[0].id)), "it is a log"
    other.join()
    serving.heads()
    (head,) = Path("south/heads").glob("*.safetensors")
    dpfc("verify", str(head), "--ledger", "south/ledger.sqlite", ends=0)
    shown = dpfc("statement", str(head), ends=0).stdout
    assert " ".join(textwrap.wrap(str(made["digest"]), 8)) in " ".join(shown.split())
    assert done(*serve) == {"site": "south", "head": head.name, "sha256": sha256_of(head), "warnings": []}
    # The coordinator's head is in no ledger, and says nothing of what the sites have spent.
    dpfc("verify", str(JOINT), "--ledger", "south/ledger.sqlite", ends=2)
    # Both have it. So there is nobody who answers, and nothing to do.
    assert done(*line, ".")["head"] == str(JOINT)


def test_a_new_plan_warns_of_noise_and_a_check_says_what_a_cap_does_not_allow(dpfc: Dpfc) -> None:
    sets = {name: made_set(name) for name in NAMES}
    for name in NAMES:
        line = f"site-invite --features {name}/set --name {name} --epsilon 0.01 --out {name}.json"
        dpfc(*line.split(), ends=0)
    made = dpfc("federation-new", "north.json", "south.json", "--out", "plan.json", ends=0)
    assert HIDES in made.stderr
    set_cap(sets["south"], 0.005, delta=1e-5)
    ended = dpfc("site-check", "plan.json", "--features", "south/set", "--name", "south", ends=3)
    assert "cap" in ended.stderr


def test_all_options_that_are_missing_are_named_at_once(dpfc: Dpfc) -> None:
    refused = dpfc("site-invite", "--name", "north", ends=2)
    assert re.findall("'(--.*?)'", refused.stderr.splitlines()[0]) == ["--features", "--epsilon", "--out"]
