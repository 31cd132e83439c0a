"""The only door from a claim to the curator: the noise of a training is what its charge, card and claim say."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.method import Method
from dpfc_cli.privacy import curator as curator_module
from dpfc_cli.privacy import poisson
from dpfc_cli.privacy.accounting import epsilon_for
from dpfc_cli.privacy.curator import Curator
from dpfc_cli.privacy.facts import Adjacency
from dpfc_cli.privacy.lattice import MOST_BITS
from dpfc_cli.privacy.noise import bernoulli
from dpfc_cli.privacy.oracle import Mechanism, Plan
from dpfc_cli.privacy.queries import QUERIES
from dpfc_cli.training.calibrate import Calibrated, calibrate
from dpfc_cli.training.request import Privacy, facts_of
from tests.support import blobs, drawn_sigmas, trained
from tests.training.requests import charges

FACTOR = {query.kind: query.replace_one for query in QUERIES}
"""Of the noise under replace-one; `tests/privacy` holds these against the sums."""


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> FeatureSet:
    folder = tmp_path_factory.mktemp("set")
    x, y = blobs(120, 5, 3)
    np.savez(folder / "raw.npz", train_x=x, train_y=y)
    import_features(folder / "raw.npz", folder / "set", classes=("a", "b", "c"))
    return FeatureSet(folder / "set")


def check_door(features: FeatureSet, calibrated: Calibrated, drawn: list[int], folder: Path) -> None:
    """Train, and hold the noise against the charge, the charge against the card, and both against the claim."""
    head = trained(features, calibrated, folder).head
    row, claim, facts = charges(features)[-1], calibrated.guarantee, calibrated.facts
    assert claim is not None
    releases = [r for group in row.releases for r in [group] * group["times"]]
    factors = [FACTOR[r["kind"]] if facts.adjacency == "replace-one" else 1.0 for r in releases]
    sigmas = [s / 4**MOST_BITS / factor for s, factor in zip(drawn, factors, strict=True)]
    assert sigmas == pytest.approx([r["sigma"] for r in releases], rel=1e-9)
    assert math.fsum(1 / s**2 for s in sigmas) == pytest.approx(claim.mu**2, rel=1e-9)
    assert (row.epsilon, row.mu, row.adjacency) == (claim.epsilon, claim.mu, facts.adjacency)
    card = head.card
    assert (card["epsilon"], card["mu"], card["adjacency"]) == (row.epsilon, row.mu, row.adjacency)
    assert json.loads(json.dumps(card["plan"])) == list(row.releases)
    if calibrated.plan.sampled:
        mechanisms = [poisson.Sampled(sigma=r["sigma"], rate=r["rate"], times=r["times"]) for r in row.releases]
        worth = poisson.epsilon_for(mechanisms, 0, claim.delta)
    else:
        worth = epsilon_for(math.sqrt(math.fsum(1 / s**2 for s in sigmas)), claim.delta)
    assert 0.999 * claim.epsilon < worth < (1 + 1e-8) * claim.epsilon


AT_TWO, OF_SIGMA = Privacy(epsilon=2.0), Privacy(noise_multiplier=4.0)


def calibrated_for(
    features: FeatureSet,
    method: Method[Any, Any],
    adjacency: Adjacency,
    privacy: Privacy = AT_TWO,
    **given: object,
) -> Calibrated:
    steps = {"steps": 3} if "steps" in method.declared else {}
    return calibrate(method, facts_of(features, adjacency), steps | given, privacy)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
def test_the_noise_of_a_training_is_what_is_charged_and_claimed(
    features: FeatureSet,
    method: Method[Any, Any],
    adjacency: Adjacency,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_door(features, calibrated_for(features, method, adjacency), drawn_sigmas(monkeypatch), tmp_path)


def test_so_is_that_of_a_sampled_one(features: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    monkeypatch.setattr(curator_module, "bernoulli", lambda rate, *a: (rates.append(rate), bernoulli(rate, *a))[1])
    calibrated = calibrated_for(features, METHODS["dp-sgd"], "zero-out", OF_SIGMA, sampling_rate=0.3)
    check_door(features, calibrated, drawn_sigmas(monkeypatch), tmp_path)
    assert set(rates) == {0.3}


@pytest.mark.parametrize("fault", ["half the noise", "the other adjacency", "a release that is not charged"])
def test_planted_faults_at_the_door_are_caught(
    fault: str, features: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Careless(Curator):
        def __init__(self, mechanism: Mechanism, *rest: Any) -> None:
            if fault == "the other adjacency":
                mechanism = replace(mechanism, facts=replace(mechanism.facts, adjacency="zero-out"))
            super().__init__(replace(mechanism, mu=2 * mechanism.mu) if fault == "half the noise" else mechanism, *rest)

    monkeypatch.setattr(curator_module, "Curator", Careless)
    if fault == "a release that is not charged":
        real = Plan.described
        monkeypatch.setattr(Plan, "described", lambda plan, sigmas: real(plan, sigmas)[1:])
    with pytest.raises((AssertionError, ValueError)):
        check_door(
            features, calibrated_for(features, METHODS["dp-fc"], "replace-one"), drawn_sigmas(monkeypatch), tmp_path
        )
