"""What is written down of a training: its charge, the card of its head, and the name of the file."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.facts import EVALUATION, Charge, new_id
from dpfc_cli.ledger.public import facts_of
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.method import Solution
from dpfc_cli.methods.public_head import PublicHead
from dpfc_cli.privacy.accounting import Claim, Privacy, epsilon_for
from dpfc_cli.privacy.chain import Centre, Clip, Linear
from dpfc_cli.records.card import Card
from dpfc_cli.records.claims import Seeded, figures_fault, mu_of
from dpfc_cli.training.calibrate import Calibrated, Planned, calibrate
from dpfc_cli.training.card import card_of, charge_of, charge_of_training, digest_of, path_of, with_ending
from tests.hostile import DATE, calibrated, set_of, standing
from tests.support import calibrated_at, refuses, replace
from tests.training.requests import FACTS, PLAN

SOLUTION = Solution(chain=(), weight=np.zeros((2, 3)), bias=np.zeros(3))
ORIGIN = {"name": "v.npz", "sha256": "ab", "classes": 2, "without": ["c"]}
START = PublicHead(vectors=np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]), origin=ORIGIN)
TUNED = {
    **{"name": "known", "fingerprint": "f", "facts": {"n": 3, "m": 2}, "runs": 1},
    **{"tried": [], "finalists": [], "chosen": {}},
}


def card(made: Calibrated, solution: Solution = SOLUTION) -> Card:
    return card_of(made, set_of(made.facts), DATE, solution, standing())


def charged(made: Planned, by: str = "me", purpose: str | None = None) -> Charge:
    method = made.method.name if isinstance(made, Calibrated) else EVALUATION
    return charge_of(made, method, set_of(made.facts), "h.safetensors", "0" * 64, by, purpose)


def whitened(**public: Any) -> Calibrated:
    """A training for three classes that begins with something public."""
    made = calibrated("dp-whitened", Privacy(epsilon=1.0), steps=2)
    return replace(made, options=replace(made.options, **public))


def made_for(claim: Claim) -> Calibrated:
    return calibrated_at(FACTS, PLAN, None if claim == "non-private" else 0.3, claim, epsilon=2.0)


# The charge


def test_a_charge_says_who_and_what_for_and_what_is_no_training_is_an_evaluation() -> None:
    made = calibrated_at(FACTS, PLAN, 0.3)
    planned = Planned(**{name: getattr(made, name) for name in ("facts", "privacy", "plan", "mechanism", "guarantee")})
    rows = [charged(each, "Ada", "a first look") for each in (made, planned)]
    assert [(row.method, row.by, row.purpose) for row in rows] == [
        (method, "Ada", "a first look") for method in ("dp-fc", EVALUATION)
    ]
    assert (rows[0].epsilon, rows[0].delta, rows[0].mu, rows[0].eta) == (1.0, 1e-5, 0.3, 1e-60)


# The card


@pytest.mark.parametrize(
    ("told", "made", "solution"),
    [
        ({"public_head": ORIGIN}, whitened(public_head=START), SOLUTION),
        ({"tuning": TUNED}, replace(whitened(), parts={"tuning": TUNED}), SOLUTION),
        ({"converged": False}, whitened(), replace(SOLUTION, converged=False)),
        ({}, whitened(), SOLUTION),
    ],
)
def test_a_card_says_what_is_public_and_whether_the_optimum_was_reached(
    told: dict[str, Any], made: Calibrated, solution: Solution
) -> None:
    said = json.loads(card(made, solution).json)
    optional = ("public_head", "tuning", "converged")
    assert {name: said[name] for name in optional if name in said} == told


@pytest.mark.parametrize(
    ("trusted", "mean", "doubted"),
    [([0.2, 0.9, 0.1], 0.55, ["a"]), ([0.5, 0.49, 0.0], 0.495, ["b"]), ([0.5, 0.9, 0.9], 0.7, [])],
)
def test_trust_is_said_of_the_classes_that_have_a_vector(trusted: list[float], mean: float, doubted: list[str]) -> None:
    """The third class has none."""
    said = card(whitened(public_head=START), replace(SOLUTION, trusted=np.array(trusted))).public_head
    assert said is not None
    assert said.trusted == pytest.approx(mean)
    assert said.doubted == tuple(doubted)


@pytest.mark.parametrize("claim", ["private", "non-private", "research"])
def test_a_nominal_epsilon_is_that_of_the_noise_and_only_a_head_of_a_seed_has_one(claim: Claim) -> None:
    made = card(made_for(claim))
    epsilon = epsilon_for(mu_of(made.plan), 1e-5) if claim != "non-private" else 1.0
    for nominal, right in ((epsilon, claim == "research"), (1.1 * epsilon, False)):
        assert (figures_fault(made, Seeded(seed=7, epsilon=nominal, delta=1e-5)) is None) is right
    assert (made.seeded is not None) is (claim == "research")


def test_the_digest_of_a_training_tells_values_apart() -> None:
    x = np.arange(6.0).reshape(2, 3)
    other = [x.T, x[:1], x + 1, x.astype(np.float32), x.ravel(), list(x.ravel()), "x", "X", 1, 1.5, None, Path("x")]
    other += [
        {"a": 1},
        {"a": 2},
        Clip(1.0),
        Clip(2.0),
        Centre(x[0]),
        Centre(x[1]),
        Linear(x[0]),
        Clip,
        ["a", "b"],
        ["ab"],
    ]
    # Of so long a vector `repr` does not show all.
    other += [made(np.arange(3000) == i) for i in (1500, 1501) for made in (np.asarray, Centre)]
    assert len({digest_of(value) for value in [x, *other]}) == 1 + len(other)
    assert digest_of(np.asfortranarray(x)) == digest_of(x)
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})


def test_the_digest_of_a_training_is_of_its_command_and_of_its_set(features: FeatureSet) -> None:
    def made(
        on: FeatureSet = features, steps: int = 2, head: str = "h", purpose: str | None = None, **more: Any
    ) -> str:
        found = calibrate(METHODS["dp-fc"], facts_of(on), {"steps": steps}, Privacy(epsilon=more.pop("epsilon", 1.0)))
        by = more.pop("by", "me")
        return charge_of_training(replace(found, **more), on, head, by, purpose).digest

    manifest = features.manifest
    sets = [replace(manifest, id=new_id()), replace(manifest, backbone={"name": "vit"})]
    others: list[dict[str, Any]] = [
        *({"steps": 3}, {"epsilon": 2.0}, {"parts": {"tuning": {"chosen": 1}}}),
        *({"on": SimpleNamespace(manifest=each, split=features.split)} for each in sets),
    ]
    assert made(head="another", purpose="a", by="you") == made()
    assert len({made(), *(made(**each) for each in others)}) == 1 + len(others)


# The name of the file


@pytest.mark.parametrize(
    ("claim", "name"),
    [
        ("private", "set-dp-fc-eps2.safetensors"),
        ("research", "set-dp-fc-eps2-seed7.research.safetensors"),
        ("non-private", "set-dp-fc.nonprivate.safetensors"),
    ],
)
def test_a_head_is_named_after_what_was_asked_for(claim: Claim, name: str, tmp_path: Path) -> None:
    assert path_of(made_for(claim), set_of(FACTS), None, tmp_path) == tmp_path / name


NAMES: dict[Claim, str] = {
    "private": "a.safetensors",
    "research": "a.research.safetensors",
    "non-private": "a.nonprivate.safetensors",
}


@pytest.mark.parametrize("claim", NAMES)
def test_the_name_of_a_head_says_its_claim_and_no_other_one(claim: Claim, tmp_path: Path) -> None:
    """A name that promises more than there is would be believed."""
    for named, name in NAMES.items():
        out = tmp_path / name
        if named == claim:
            assert path_of(made_for(claim), set_of(FACTS), out, tmp_path) == out
            continue
        with refuses("bad-value", parameter="out") as refused:
            path_of(made_for(claim), set_of(FACTS), out, tmp_path)
        assert refused.value.fields["path"] == str(out)
    # Without an ending it gets the right one.
    assert with_ending(tmp_path / "a", claim) == tmp_path / NAMES[claim]


def test_a_head_is_never_overwritten_and_its_name_can_be_seen(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").touch()
    with refuses("exists", parameter="out"):
        path_of(made_for("private"), set_of(FACTS), tmp_path / "a.safetensors", tmp_path)
    with refuses("bad-value", parameter="out"):
        path_of(made_for("private"), set_of(FACTS), tmp_path / "a\u202e.safetensors", tmp_path)
