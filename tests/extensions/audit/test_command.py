"""`dpfc audit`: a table per method, exit code 1 where a claim is refuted, and no file touched."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpfc_cli.extensions.audit import audit as audits
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy import curator as curator_module
from tests import instead
from tests.cli.conftest import Dpfc, error_of
from tests.extensions.audit.once import sums_computed_once

FEW = ("--runs", "25", "--trainings", "1")


@pytest.fixture(autouse=True)
def fast(request: pytest.FixtureRequest) -> Iterator[None]:
    """The audits of one test compute all sums."""
    if "too_few" in request.node.name:
        yield
        return
    with sums_computed_once():
        yield


def test_every_method_is_attacked_and_stands(dpfc: Dpfc) -> None:
    result = dpfc("audit", "--json", *FEW, ends=0)
    found = json.loads(result.stdout)
    assert [a["method"] for a in found["audits"]] == list(METHODS)
    assert found["violated"] == []
    for one in found["audits"]:
        assert one["claim"]["epsilon"] == 1
        assert one["claim"]["delta"] == 1e-5
        assert (one["release_level"]["runs"], one["whole_training"]["runs"]) == (25, 1)
    assert list(Path().iterdir()) == []


def test_the_table_says_what_is_claimed_and_what_was_reached(dpfc: Dpfc) -> None:
    line = ("--method", "dp-ls", "--epsilon", "4", "--delta", "1e-6", "--confidence", "0.9")
    result = dpfc("audit", *line, "--runs", "60", "--trainings", "2", ends=0)
    for words in ("consistent", " 4 ", "delta = 1e-06", "0.9 confidence", "dp-ls"):
        assert words in result.stdout
    assert "dp-fc" not in result.stdout


def test_an_audit_that_is_stopped_shows_the_methods_that_it_has_attacked(
    dpfc: Dpfc, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = audits._audited

    def stopped(wanted: Any, facts: Any, method: Any) -> Any:
        if method.name == list(METHODS)[1]:
            raise KeyboardInterrupt
        return real(wanted, facts, method)

    monkeypatch.setattr(audits, "_audited", stopped)
    result = dpfc("audit", *FEW, ends=130)
    first, second, *_ = METHODS
    assert first in result.stdout
    assert second not in result.stdout
    assert "consistent" in result.stdout


def test_a_refuted_claim_ends_with_exit_code_one(dpfc: Dpfc, monkeypatch: pytest.MonkeyPatch) -> None:
    real = curator_module.draw_noise
    instead.draw_noise(monkeypatch, lambda query, shape, sigma, bits: real(query, shape, 1, bits))
    result = dpfc("audit", "--method", "dp-fc", *FEW, ends=1)
    assert "VIOLATED" in result.stdout
    as_json = dpfc("audit", "--method", "dp-fc", "--json", *FEW, ends=1)
    assert json.loads(as_json.stdout)["violated"] == ["dp-fc"]


def test_an_audit_that_could_refute_nothing_is_refused(dpfc: Dpfc) -> None:
    for epsilon, named in (("1", "--runs"), ("60", "--epsilon")):
        result = dpfc("audit", "--method", "dp-fc", "--epsilon", epsilon, "--runs", "18", "--trainings", "1", "--json")
        assert (result.exit_code, named in error_of(result)["remedy"], result.stdout) == (2, True, "")


def test_too_few_trainings_are_said_to_show_nothing(dpfc: Dpfc) -> None:
    for trainings, few in (("17", True), ("18", False)):
        line = ("--method", "dp-ls", "--epsilon", "1", "--runs", "25", "--trainings", trainings)
        assert bool(json.loads(dpfc("audit", *line, "--json", ends=0).stdout)["warnings"]) == few


def test_senseless_values_are_the_users_to_mend_with_flags_that_the_command_has(dpfc: Dpfc) -> None:
    known = set(re.findall("--[a-z-]+", dpfc("audit", "--help").stdout))
    for line in (
        *("--method dp-sl", "--epsilon -1", "--delta 2", "--confidence 1", "--confidence nan", "--runs 0"),
        *("--records-per-person 0", "--records-per-person 1025", "--adjacency add-one", "--labels-per-record 0"),
        *("--labels-per-record 33", "--sampling-rate 0", "--sampling-rate 2", "--sampling-rate nan"),
    ):
        refused = dpfc("audit", *line.split(), ends=2)
        assert set(re.findall("--[a-z-]+", refused.stderr)) <= known
    for more in (("--method", "dp-ls"), ("--adjacency", "replace-one")):
        assert dpfc("audit", "--sampling-rate", "0.5", *more).exit_code == 2


def test_other_claims_are_attacked(dpfc: Dpfc) -> None:
    line = ("--method", "dp-ls", "--adjacency", "replace-one", "--runs", "20", "--trainings", "1")
    result = dpfc("audit", *line, ends=0)
    assert all(f" {kind} " in result.stdout.replace("│", " ") for kind in ("gram", "class_grams", "class_sums"))
    more = ("--labels-per-record", "2", "--records-per-person", "2")
    found = json.loads(dpfc("audit", *line, *more, "--json").stdout)
    asked = ("adjacency", "labels_per_record", "records_per_person", "sampling_rate")
    assert [found[name] for name in asked] == ["replace-one", 2, 2, 1.0]
    assert found["violated"] == []
    (one,) = found["audits"]
    assert 0.7 < one["attainable"] < 1, "no record is the worst for sums and Grams at once"
    assert {part["kind"] for part in one["parts"]} == {"gram", "class_grams", "class_sums"}


def test_trainings_on_samples_are_attacked_in_methods_that_sample(dpfc: Dpfc, monkeypatch: pytest.MonkeyPatch) -> None:
    line = ("audit", "--sampling-rate", "0.5", "--epsilon", "2", "--json", *FEW)
    found = json.loads(dpfc(*line, "--method", "dp-sgd", ends=0).stdout)
    assert found["sampling_rate"] == 0.5
    assert found["audits"][0]["attainable"] == pytest.approx(2, rel=0.01)
    (one,) = audits.audit_methods(method="dp-sgd", runs=25, trainings=1)
    monkeypatch.setattr(audits, "_audited", lambda wanted, facts, method: replace(one, method=method.name))
    found = json.loads(dpfc(*line, ends=0).stdout)
    assert [a["method"] for a in found["audits"]] == ["dp-sgd", "dp-momentum", "dp-adam"]
