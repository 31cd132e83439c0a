"""What may stand in a ledger, and what a reader refuses."""

import json
import math
import os
import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfc_cli.ledger.facts import Fact, Merge, Outcome, Released, account_name, fact_of, new_id, noted
from dpfc_cli.ledger.file import read
from dpfc_cli.privacy.accounting import epsilon_for
from tests.hostile import altered, places
from tests.ledger.facts import DIGEST, a_cap, a_charge, a_set, some_facts, some_figures, written
from tests.support import refuses

SET = a_set("ward7", adopted=True, replaces=(new_id(),))
CHARGE = a_charge(SET, times=3, purpose="a study")
FACTS: list[Fact] = [
    *(SET, CHARGE, a_charge(SET, claim="research"), a_charge(SET, claim="non-private", method="evaluation")),
    *(a_charge(SET, rate=0.1), a_charge(SET, unit="person", adjacency="replace-one"), a_charge(SET, eta=0.0, n=1)),
    Outcome(by="Ada", charge=CHARGE.id, state="written", head="h", sha256=DIGEST, answers=3, after=new_id()),
    Released(by="Ada", figures=some_figures(CHARGE.id)),
    *(a_cap(3.0, note="a plan"), a_cap(None, "ward7", unit="person")),
    Merge(by="Ada", apart=("ward7",), same={"ward 7": "ward7"}, ignored=(new_id(),)),
]


def back(fact: Fact) -> Fact:
    return fact_of(fact.id, fact.kind, json.loads(fact.body))


def refused(fact: str, kind: str, body: object) -> bool:
    try:
        fact_of(fact, kind, body)
    except ValueError:
        return True
    return False


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.randoms(use_true_random=False), st.integers(1, 12))
def test_what_is_written_is_read_back_equal(draw: object, count: int) -> None:
    for fact in [*FACTS, *some_facts(draw, count)]:  # type: ignore[arg-type]
        assert back(fact) == fact


def test_any_text_that_can_be_shown_or_escaped_is_kept(tmp_path: Path) -> None:
    """Control characters, too: they are escaped where they are shown."""
    odd = "é\u202e\x1b[2J\n"
    path, of = tmp_path / "ledger.sqlite", a_set(odd, name=odd.replace("/", ""))
    facts = [of, a_charge(of, by="x" * 100, purpose=odd * 50, head="bad\udcff.safetensors"), a_cap(1.0, odd, note=odd)]
    written(path, *facts)
    assert list(read(path).facts) == facts


def test_a_hostile_value_in_any_field_of_any_kind_is_refused_and_never_ends_otherwise() -> None:
    """What is taken all the same makes sense: it is written as it was read."""
    for fact in FACTS:
        body = json.loads(fact.body)
        for place in places(body):
            for text in altered(body, place):
                try:
                    found = json.loads(text)
                except (ValueError, RecursionError):
                    continue
                if not refused(fact.id, fact.kind, found):
                    assert json.loads(fact_of(fact.id, fact.kind, found).body) == found
        assert refused(fact.id, fact.kind, list(body.items()))
        for name, value in (("more", 1), ("id", fact.id), ("by", ""), ("by", "x" * 101), ("by", "\ud800"), ("by", 7)):
            assert refused(fact.id, fact.kind, {**body, name: value})
        for time in ("", "now", "2026-01-02", "2026-01-02T03:04:05", "2026-01-02T03:04:05+01:00", "9" * 30, 7):
            assert refused(fact.id, fact.kind, {**body, "at": time})
        for strange in ("x", fact.id.upper(), fact.id + "0", f"{fact.id}\n", ""):
            assert refused(strange, fact.kind, body)
            assert refused(fact.id, fact.kind, {**body, "replaces": [strange]})
        others = {"", "Set", "fact", "set", "charge", "outcome", "released", "cap", "merge"} - {fact.kind}
        assert all(refused(fact.id, other, body) for other in others)
        for name in body:
            assert refused(fact.id, fact.kind, {key: body[key] for key in body if key != name})


def test_a_charge_or_a_cap_whose_figures_make_no_sense_together_is_refused() -> None:
    """Also where each figure makes sense by itself. Noise near 0 or without end is in no charge."""
    for fact in (CHARGE, a_charge(SET, unit="person")):
        for name in ("epsilon", "delta", "mu"):
            for factor in (0.9, 0.999, 1.001, 1.1):
                assert refused(fact.id, fact.kind, {**json.loads(fact.body), name: getattr(fact, name) * factor})
            assert refused(fact.id, fact.kind, {**json.loads(fact.body), name: None})
        assert refused(fact.id, fact.kind, {**json.loads(fact.body), "eta": 1e-5})
    for epsilon, delta in ((None, 1e-5), (3.0, None), (0.0, 1e-5), (3.0, 0.0), (3.0, 1.0), (100.0, 1e-20)):
        figures = {"epsilon": epsilon, "delta": delta}
        assert refused(CHARGE.id, "cap", {**json.loads(a_cap(3.0).body), **figures})
    body = json.loads(CHARGE.body)
    (release,) = body["releases"]
    for name, values in {
        "sigma": (0.0, -1.0, 1e-200, 1e-101, 1e101, 1e308, release["sigma"] * 1.001),
        "times": (0, -1, 2, 4, 1.5, 2**60),
        "rate": (0.0, -0.1, 1.1),
        "share": (0.0, 0.5, 2.0),
        "kind": ("records",),
        "shape": ([0], [-1], [1.5], 3),
    }.items():
        for value in values:
            assert refused(CHARGE.id, "charge", {**body, "releases": [{**release, name: value}]}), (name, value)
    assert refused(CHARGE.id, "charge", {**body, "releases": []})
    assert refused(CHARGE.id, "charge", {**body, "claim": "research"})
    sampled = json.loads(a_charge(SET, rate=0.5).body)
    assert refused(CHARGE.id, "charge", {**sampled, "adjacency": "replace-one"})
    for mu in (1e-100, 1e100):
        loud = {**body, "mu": mu, "releases": [{**release, "sigma": math.sqrt(3) / mu}]}
        assert refused(CHARGE.id, "charge", loud)


def test_a_charge_for_persons_counts_twice_for_a_record_and_one_for_records_has_no_price_for_persons() -> None:
    for adjacency, weight in (("zero-out", 2.0), ("replace-one", 1.0)):
        for times in (1, 4):
            charge = a_charge(SET, unit="person", adjacency=adjacency, times=times)
            assert charge.mu is not None
            assert charge.spent("person") == pytest.approx(charge.mu**2)
            assert charge.spent("record") == pytest.approx((weight * charge.mu) ** 2)
            assert a_charge(SET, adjacency=adjacency, times=times).spent("person") == math.inf
    for claim in ("research", "non-private"):
        assert a_charge(SET, claim=claim).spent("record") == 0
    assert epsilon_for(math.sqrt(CHARGE.spent("record")), 1e-5) == pytest.approx(1.0, rel=1e-6)


def test_who_says_so_is_the_account_or_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert account_name() == pwd.getpwuid(os.getuid()).pw_name
    known: dict[int, SimpleNamespace] = {}
    monkeypatch.setattr(pwd, "getpwuid", known.__getitem__)
    for name in (None, "", "x" * 101, "\ud800"):
        known |= {} if name is None else {os.getuid(): SimpleNamespace(pw_name=name)}
        assert account_name() == f"account {os.getuid()}"


def test_a_word_for_the_ledger_is_refused_where_it_would_not_be_kept() -> None:
    assert noted("by", None) is None
    for name, most in (("by", 100), ("purpose", 500), ("note", 500)):
        assert noted(name, "x" * most) == "x" * most
        for wrong in ("", "x" * (most + 1), "a\0b", "\ud800"):
            with refuses("bad-value", parameter=name):
                noted(name, wrong)
