"""A ledger has rows that a training can have, and what they cost together is what they say."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from dpfc_cli.methods import METHODS
from dpfc_cli.privacy import poisson
from dpfc_cli.privacy.accounting import LEAST_EPSILON, epsilon_for, mu_for
from dpfc_cli.privacy.facts import Adjacency, Facts
from dpfc_cli.training import ledger
from dpfc_cli.training.calibrate import calibrate
from dpfc_cli.training.request import Privacy
from dpfc_cli.trust import claims
from tests.hostile import set_of
from tests.support import calibrated_at, plan_of
from tests.training.rows import (
    DIGEST,
    FACTS,
    GRADIENT,
    PLAN,
    cap,
    changed,
    entry,
    refused,
    row,
)

VALUES: list[tuple[str, Any]] = [
    *[("at", value) for value in ("", "yesterday", "2026-01-02", "2026-01-02T03:04:05", "2026-01-02T03:04:05+01:00")],
    *[("at", value) for value in ("0001-01-01T00:00:00+23:59", "0001-01-01T00:00:00", "9999-12-31T23:59:59")],
    ("at", "2026-01-02T03:04:05.678901+00:00"),
    *[("records", value) for value in ("", b"digest")],
    *[(name, value) for name in ("claim", "adjacency", "state") for value in ("other", "PRIVATE", b"private")],
    *[("n", value) for value in (0, -1, 1.5, "many", b"\1", 2.0**70)],
    *[("epsilon", value) for value in (None, 0.0, -1.0, 0.5, 1.5, 1e9, float("inf"), "low", b"1")],
    *[("delta", value) for value in (None, 0.0, 1.0, 1e-6, 1e-4, "1")],
    *[("mu", value) for value in (None, 0.0, -0.3, 0.3000001, 1e300, float("inf"), "x")],
    *[("eta", value) for value in (None, -1e-9, 1e-6, float("inf"))],
    *[("head", value) for value in ("", "../h.safetensors", "/h.safetensors", ".", "..", "h\0", b"h")],
    *[("sha256", value) for value in (DIGEST, "x", b"0" * 64)],
    ("state", "written"),
    *[("unit", "person"), ("persons", DIGEST)],
    *[("releases", value) for value in ("", "[", "{}", "[]", "[1]", "[{}]", "[" * 100_000, "null", b"[]")],
]


@pytest.mark.parametrize(("name", "value"), VALUES, ids=lambda each: str(each)[:20])
def test_a_row_with_a_value_that_no_training_has_is_refused(path: Path, name: str, value: object) -> None:
    changed(path, f"UPDATE trainings SET {name} = ? WHERE id = 2", value)
    refused(path, "has a row that no training wrote. In row 2|is damaged")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("rate", value) for value in ("0", "-0.5", "1.5", "1e400", "NaN", "true", "null", '"1"')],
        *[("times", value) for value in ("0", "-1", "1.5", "true", "1e3", "9" * 400)],
        *[("sigma", value) for value in ("0", "-3", "0.1", "1e-200", "1e-400", "1e400", "NaN", "Infinity", "null")],
        *[("share", value) for value in ("0", "-1", "2", "null")],
        *[("shape", value) for value in ("3", "[0]", "[1.5]", "null")],
        *[("kind", value) for value in ("3", "null")],
        ("more", "1"),
    ],
)
def test_so_is_one_with_a_release_that_no_training_made(path: Path, name: str, value: str) -> None:
    releases = json.loads(row(0.4).releases)
    releases[0][name] = "HERE"
    changed(path, "UPDATE trainings SET releases = ? WHERE id = 2", json.dumps(releases).replace('"HERE"', value))
    refused(path, "has a row that no training wrote. In row 2")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("delta", value) for value in (1.0, 1.5, 0.0)],
        *[("mu", value) for value in (0.0, 1.005e150)],
        *[("eta", value) for value in (-1e-9, 1.5)],
        *[("epsilon", value) for value in (0.99e-4, 100.1)],
    ],
)
def test_a_cap_has_figures_in_their_ranges_even_where_they_agree(name: str, value: float) -> None:
    """At this μ each ε below 100 holds at a δ near 1 alone, and at the least ε nothing is too little."""
    largest = cap(100.0, delta=1 - 2**-53, mu=1e3, eta=0.0)
    ledger.check_cap(largest)
    least = cap(1e-4, mu=1e-9, eta=0.0)
    ledger.check_cap(least)
    for sound in (largest, least):
        with pytest.raises(ValueError, match=f"'{name}' makes no sense"):
            ledger.check_cap(replace(sound, **{name: value}))  # type: ignore[arg-type]


def test_what_protects_persons_says_which() -> None:
    of_cap = cap(unit="person", persons=DIGEST)
    assert (PERSONS.protects, of_cap.protects) == (("person", "a" * 64), ("person", DIGEST))
    alone = set_of(FACTS).manifest
    grouped = replace(alone, source={"identity": {"groups": {"train": "b" * 64, "test": "c" * 64}}})
    assert [ledger.persons_of(alone), *(ledger.persons_of(grouped, split) for split in ("train", "test"))] == [
        *(None, "b" * 64, "c" * 64),
    ]
    sounds: list[tuple[Any, Callable[[Any], None]]] = [(PERSONS, ledger.check), (of_cap, ledger.check_cap)]
    for sound, check in sounds:
        check(sound)
        for fault in ({"persons": None}, {"unit": "record"}):
            with pytest.raises(ValueError, match="contradict"):
                check(replace(sound, **fault))


def test_one_record_is_enough_for_a_row() -> None:
    ledger.check(replace(row(), n=1))


@pytest.mark.parametrize("digest", ["x", DIGEST.upper(), DIGEST[1:], DIGEST + "0", DIGEST + "\n", b"0" * 64])
def test_the_digest_of_a_head_that_was_written_is_64_digits(digest: Any) -> None:
    ledger.check(replace(row(), state="written", sha256=DIGEST))
    with pytest.raises(ValueError, match="'sha256'"):
        ledger.check(replace(row(), state="written", sha256=digest))


@pytest.mark.parametrize(("sigma", "mu"), [(1e-200, 1e200), (1e200, 1e-200)])
def test_noise_whose_square_no_float64_has_is_refused_even_where_the_figures_agree(
    path: Path, sigma: float, mu: float
) -> None:
    release = {"kind": "gram", "shape": [3, 3], "share": 1.0, "sigma": sigma, "rate": 1, "times": 1}
    agreeing = (json.dumps([release]), mu, 1.0 if mu > 1 else LEAST_EPSILON, 1 - 2**-53 if mu > 1 else 1e-5)
    changed(path, "UPDATE trainings SET releases = ?, mu = ?, epsilon = ?, delta = ?, eta = 0 WHERE id = 2", *agreeing)
    refused(path, "has a row that no training wrote. In row 2")


def test_a_training_without_a_guarantee_claims_none(path: Path) -> None:
    for claim in ("research", "non-private"):
        with pytest.raises(ValueError, match="'epsilon' makes no sense"):
            ledger.check(replace(row(claim=claim), epsilon=1.0))
        ledger.check(row(claim=claim))
    with pytest.raises(ValueError, match="sigma"):
        ledger.check(replace(row(claim="non-private"), releases=row().releases))
    with pytest.raises(ValueError, match="sigma"):
        ledger.check(replace(row(claim="research"), releases=row(claim="non-private").releases))


def test_the_samplers_distance_is_part_of_the_claim() -> None:
    """Here it takes half of δ."""
    eta = 0.5e-5 / (1 + math.e)
    paid = replace(entry(calibrated_at(FACTS, PLAN, mu_for(1.0, 1e-5, eta), "private", 1.0)), eta=eta)
    ledger.check(paid)
    for other in (0.0, 0.9 * eta, 1.1 * eta):
        with pytest.raises(ValueError, match="the figures contradict one another"):
            ledger.check(replace(paid, eta=other))


def test_only_full_passes_under_zero_out_compose_exactly() -> None:
    sampled = entry(calibrated_at(FACTS, plan_of(FACTS, (GRADIENT, 1.0), rate=0.5), 0.3))
    replaced = replace(row(), adjacency="replace-one")
    without = row(claim="non-private")
    assert ledger.composes_exactly([row(), row(0.4), without])
    assert not ledger.composes_exactly([row(), sampled])
    assert not ledger.composes_exactly([row(), replaced])
    # What has no guarantee is in no sum. Rows of two splits may be about the same records, or about others.
    assert ledger.composes_exactly([row(), replace(without, adjacency="replace-one")])
    assert not ledger.composes_exactly([row(), replace(row(), split="test")])


def test_what_trainings_cost_together_is_the_root_of_the_sum_of_squares() -> None:
    assert ledger.together([row(0.3), row(0.4), row(claim="non-private")], 1e-5) == pytest.approx(
        epsilon_for(0.5, 1e-5), rel=1e-9
    )
    eta = 1e-7
    helped = [replace(row(0.3), eta=eta), replace(row(0.4), eta=eta)]
    assert ledger.together(helped, 1e-5) == pytest.approx(epsilon_for(0.5, 1e-5, 2 * eta), rel=1e-9)
    plan = plan_of(FACTS, *[(GRADIENT, 1.0)] * 3, rate=0.5)
    sampled = entry(calibrated_at(FACTS, plan, 0.6))
    sigma = math.sqrt(3) / 0.6
    with pytest.MonkeyPatch.context() as patch:
        asked: list[Any] = []
        patch.setattr(claims, "poisson_epsilon", lambda *given: (asked.append(given), 0.7)[1])
        assert ledger.together([row(0.3), sampled, row(0.4)], 1e-5) == 0.7
    (((made,), mu, delta, distance),) = asked
    assert (made.rate, made.times, delta) == (0.5, 3, 1e-5)
    assert (made.sigma, mu, distance) == pytest.approx((sigma, 0.5, 3e-60))


def test_a_card_says_how_many_trainings_there_are_and_what_they_cost() -> None:
    rows = [row(0.3), row(claim="research"), row(0.4), row(claim="non-private"), row(claim="research")]
    said = ledger.standing(rows, 3, 1e-5)
    assert said.pop("epsilon") == pytest.approx(epsilon_for(0.5, 1e-5), rel=1e-9)
    assert said == {"training": 3, "trainings": 5, "private": 2, "unprotected": 3, "exact": True, "unit": "record"}
    assert ledger.standing(rows, 2, None)["epsilon"] is None
    assert ledger.standing([row(0.3), row(1e9)], 1, 1e-5)["epsilon"] is None
    assert ledger.standing([row(claim="research")], 1, 1e-5)["epsilon"] == LEAST_EPSILON
    assert not ledger.standing([replace(row(), adjacency="replace-one")], 1, 1e-5)["exact"]


PERSONS = replace(row(0.4), unit="person", persons="a" * 64)


def test_a_training_for_persons_counts_for_what_is_asked() -> None:
    assert ledger.unit_of([PERSONS, row(claim="research")]) == PERSONS.protects
    assert ledger.together([PERSONS, row(claim="research")], 1e-5) == pytest.approx(epsilon_for(0.4, 1e-5), rel=1e-9)
    assert ledger.together([PERSONS], 1e-5, ledger.RECORD) == pytest.approx(epsilon_for(0.8, 1e-5), rel=1e-9)
    assert ledger.together([replace(row(0.4), eta=0.0)], 1e-5) == pytest.approx(epsilon_for(0.4, 1e-5), rel=1e-9)


def test_rows_of_another_split_count_if_their_listing_is_that_of_the_records() -> None:
    mine, held = row(0.3), replace(row(0.4), split="test")
    other, persons = replace(held, records="others"), replace(PERSONS, split="test")
    rows = [other, mine, held, persons]
    assert ledger.about(rows, "train", []) == [mine]
    assert ledger.about(rows, "train", ["others"]) == [other, mine]
    assert ledger.about(rows, "test", []) == [other, held, persons]


def test_a_card_counts_the_rows_of_its_split_and_compares_no_records() -> None:
    mine, held = row(0.3), replace(row(0.4), split="test")
    other, persons = replace(held, records="others"), replace(PERSONS, split="test")
    rows = [other, mine, replace(mine, records="others"), held, persons]
    said = ledger.standing(rows, 2, 1e-5)
    assert said == ledger.standing([replace(each, records="others") for each in rows], 2, 1e-5)
    assert said.pop("epsilon") == pytest.approx(epsilon_for(math.hypot(0.3, 0.3), 1e-5), rel=1e-9)
    assert said == {
        **{"training": 2, "trainings": 5, "private": 5, "unprotected": 0, "other_splits": 3},
        **{"exact": True, "unit": "record"},
    }
    both = ledger.standing([row(0.3), PERSONS], 2, 1e-5)
    assert both["epsilon"] == pytest.approx(epsilon_for(math.hypot(0.3, 0.8), 1e-5), rel=1e-9)
    # Whether the persons were the same is not looked at either.
    again = [PERSONS, replace(PERSONS, persons="b" * 64)]
    assert ledger.standing(again, 1, 1e-5) == ledger.standing([PERSONS, PERSONS], 1, 1e-5)
    assert ledger.standing(again, 1, 1e-5)["unit"] == "person"
    said = ledger.standing([PERSONS, persons], 1, 1e-5)
    assert said.pop("epsilon") == pytest.approx(epsilon_for(0.4, 1e-5), rel=1e-9)
    assert (said["other_splits"], said["exact"], said["unit"]) == (1, True, "person")


def test_a_row_that_no_reader_would_take_is_not_written(path: Path) -> None:
    with pytest.raises(ValueError, match="'head' makes no sense"):
        ledger.charge(path, replace(row(), head="a/b.safetensors"))
    assert len(ledger.read(path)) == 2


@pytest.mark.parametrize("method", METHODS)
def test_every_training_makes_a_row_that_is_taken(method: str) -> None:
    """Whatever the method, the claim, the adjacency, and the size of ε and δ."""
    made = METHODS[method]
    for adjacency in get_args(Adjacency):
        facts = Facts(n=1000, m=3, d=4, adjacency=adjacency)
        wanted = [Privacy(epsilon=1.0, seed=3), Privacy(noise_multiplier=3.0), Privacy(noise_multiplier=40.0)]
        wanted += [
            Privacy(epsilon=epsilon, delta=delta, allow_large_delta=True)
            for epsilon in (1e-4, 1.001e-4, 0.01, 1.0, 8.0, 30.0, 100.0)
            for delta in (1e-30, 1e-12, 1e-5, 0.1, 0.9)
            # Where the sampler's distance from a Gaussian leaves something of δ.
            if epsilon <= 30 or delta > 1e-20
        ]
        for privacy in [*wanted, *([Privacy()] if adjacency == "zero-out" else [])]:
            ledger.check(entry(calibrate(made, facts, {}, privacy)))


def test_so_does_a_sampled_one() -> None:
    given = {"sampling_rate": 0.1, "steps": 5}
    calibrated = calibrate(METHODS["dp-sgd"], Facts(n=1000, m=3, d=4), given, Privacy(noise_multiplier=2.0))
    assert calibrated.plan.sampled
    ledger.check(entry(calibrated))


def test_a_sampled_training_that_costs_nothing_claims_the_least_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a record hardly ever takes part, δ covers all of it. An ε of 0 has no digits to be stated with."""
    monkeypatch.setattr(poisson, "mu_for", lambda *given: 1 / poisson.LEAST_SAMPLED_SIGMA)
    monkeypatch.setattr(poisson, "epsilon_for", lambda *given: 0.0)
    facts, given = Facts(n=1000, m=3, d=4), {"sampling_rate": 0.0010002, "steps": 1}
    calibrated = calibrate(METHODS["dp-sgd"], facts, given, Privacy(epsilon=1.0, delta=1e-3))
    assert calibrated.claimed is not None
    assert calibrated.claimed.epsilon == LEAST_EPSILON
    ledger.check(entry(calibrated))
