"""The statement says what the card says."""

import json
import re

import numpy as np
import pytest

import dpfc_cli
from dpfc_cli.features.manifest import Manifest, SplitFacts
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.method import Solution
from dpfc_cli.privacy.accounting import Claim, epsilon_for, mu_for
from dpfc_cli.privacy.facts import Adjacency, Facts
from dpfc_cli.privacy.queries import Gradient, Gram
from dpfc_cli.records import statement
from dpfc_cli.records.card import Card
from dpfc_cli.records.claims import described
from dpfc_cli.show.markdown import markdown
from dpfc_cli.training.card import card_of
from tests.hostile import standing
from tests.support import CHAIN, calibrated_at, plan_of, replace, set_with

SOURCE = {"identity": {"listing": {"train": "digest", "test": "one"}}}
FACTS = Facts(n=100, m=2, d=2)
GRADIENT = Gradient(CHAIN, np.zeros((3, 2)), clip=1.0)
PLAN = plan_of(FACTS, (Gram(CHAIN, 0.2), 0.2), (GRADIENT, 0.4), (GRADIENT, 0.4))


def manifest(origin: str = "asserted") -> Manifest:
    return Manifest(
        classes=("a", "b"),
        dim=2,
        dtype="float16",
        labels_per_record=1,
        origin=origin,  # type: ignore[arg-type]
        splits={"train": SplitFacts(n=100, shards=())},
        backbone={"name": "x"},
        source=SOURCE,
    )


SHA = "ab" * 32
DATE = "2026-01-02T03:04:05+00:00"


def make_card(claim: Claim, origin: str = "asserted", adjacency: Adjacency = "zero-out", rate: float = 1.0) -> Card:
    facts = replace(FACTS, adjacency=adjacency)
    plan = replace(PLAN, releases=tuple(replace(release, rate=rate) for release in PLAN.releases))
    calibrated = calibrated_at(facts, plan, None if claim == "non-private" else mu_for(1.0, 1e-5), claim)
    solution = Solution(chain=CHAIN, weight=np.zeros((2, 2)), bias=np.zeros(2))
    return card_of(calibrated, set_with(manifest(origin)), DATE, solution, standing(claim))


def said_of(card: Card) -> dict[str, str]:
    return statement.document(card, SHA).facts


def test_the_statement_names_everything_that_must_be_defended() -> None:
    said, text = said_of(make_card("private")), markdown(statement.document(make_card("private"), SHA))
    for words in ("epsilon = 1 at delta = 1e-05", "zero-out", "one record of 100"):
        assert words in text
    for row in (r"gradient \| 3 × 2 \| 2 \| 80.0% ", r"gram \| . × . \| 1 \| 20.0% "):
        assert re.search(row, text)
    for words in ("1.0e-60", DATE, f"dpfc {dpfc_cli.__version__}", SHA):
        assert words in text
    for words in ("test", "person", "backbone", "share"):
        assert words in " ".join(f"{what} {who}" for what, who in said.items() if who.startswith("Whoever"))
    for words in ("- gram: ", "- gradient: ", "sigma: "):
        assert words in text
    assert "hessians" not in text


def test_the_claim_says_what_a_delta_above_one_in_n_allows() -> None:
    for delta, told in ((0.01, False), (0.0101, True)):
        card = replace(make_card("private"), delta=delta)
        for said in (said_of(card), dict(statement.brief(card))):
            assert ("publishes" in " ".join(said.values())) == told


def test_the_statement_says_how_delta_stands_against_one_in_n() -> None:
    for delta, said in (
        (0.02, "larger"),
        (0.01, "close"),
        (0.0011, "close"),
        (0.001, "10 times"),
        (1e-5, "1,000 times"),
    ):
        assert said in said_of(replace(make_card("private"), delta=delta))["delta"]


def test_the_statement_says_in_plain_words_what_anyone_can_guess() -> None:
    """Φ(Φ⁻¹(0.05) + μ) and Φ(μ/2) at μ = 0.268, rounded up."""
    said = said_of(make_card("private"))
    assert "8.5 %" in said["this means"]
    assert "55.4 %" in said_of(make_card("private", adjacency="replace-one"))["this means"]
    assert "| 5 % | 8.5 % | 5 % |" in markdown(statement.document(make_card("private"), SHA))
    assert said_of(make_card("private", adjacency="replace-one"))["this means"] != said["this means"]


def test_the_statement_says_what_several_records_of_one_person_have_spent() -> None:
    card = make_card("private")
    several = said_of(card)["several of one person"]
    for k in (2, 5, 10):
        epsilon = float(re.search(rf"\b{k} records: epsilon = ([0-9.]+)", several)[1])  # type: ignore[index]
        exact = epsilon_for(k * card.guarantee.mu, 1e-5)
        assert exact <= epsilon <= exact * 1.01
    far = replace(card, epsilon=50.0, mu=mu_for(50.0, 1e-5))
    assert "more than 100" in said_of(far)["several of one person"]
    assert json.loads(json.dumps(statement.meaning(far), allow_nan=False))["groups"]["10"] is None


def test_for_sampled_trainings_the_statement_uses_epsilon_and_delta_alone() -> None:
    card = make_card("private", rate=0.1)
    said = said_of(card)
    # 0.05·e + 1e-5.
    assert "13.6 %" in said["this means"]
    assert "| 5 % | 13.6" in markdown(statement.document(card, SHA))
    assert not re.search(r"\d", said["several of one person"])
    assert statement.meaning(card)["groups"] is None  # type: ignore[index]


@pytest.mark.parametrize("claim", ["research", "non-private"])
def test_without_a_guarantee_none_is_claimed_anywhere(claim: Claim) -> None:
    made = make_card(claim)
    assert (made.epsilon, made.delta, made.mu) == (None, None, None)
    said = said_of(made)
    assert "no guarantee" in said["this head"]
    assert said["anything"].startswith("Whoever")
    assert not {"protects", "this means", "several of one person"} & set(said)
    assert statement.meaning(made) is None


def test_who_states_the_public_facts_is_said() -> None:
    for origin in ("asserted", "data set"):
        assert said_of(make_card("private", origin))["public facts"].endswith(origin)


def test_every_kind_of_release_has_words() -> None:
    for method in METHODS.values():
        facts = Facts(n=100, m=2, d=2)
        plan = method.plan(facts, method.defaults(facts, 1.0, {}))
        made = described(plan, plan.sigmas(1.0))
        text = markdown(statement.document(replace(make_card("private"), plan=made), SHA))
        assert all(f"- {release.kind}: " in text.replace("\\", "") for release in made)
