"""A charged training: its noise is what charge, card and claim say, and what is left when it stops."""

import math
from pathlib import Path
from typing import Any

import pytest

from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads import head as heads
from dpfc_cli.ledger.file import ledger_path
from dpfc_cli.ledger.public import facts_of
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.method import Method
from dpfc_cli.privacy import curator as curator_module
from dpfc_cli.privacy import poisson
from dpfc_cli.privacy.accounting import Privacy, epsilon_for
from dpfc_cli.privacy.curator import Curator
from dpfc_cli.privacy.facts import Adjacency
from dpfc_cli.privacy.lattice import MOST_BITS
from dpfc_cli.privacy.noise import bernoulli
from dpfc_cli.privacy.oracle import Mechanism
from dpfc_cli.privacy.queries import QUERIES
from dpfc_cli.records.claims import described
from dpfc_cli.training import calibrate as calibrate_module
from dpfc_cli.training import charged
from dpfc_cli.training import run as runs
from dpfc_cli.training.calibrate import Calibrated, calibrate
from dpfc_cli.training.observer import Observer, TrainingWarning
from dpfc_cli.training.run import run
from tests.support import drawn_sigmas, replace, trained
from tests.training.requests import charges, checked, states
from tests.training.stopped import failing, kept


def test_a_ledger_that_is_gone_gets_no_outcome_and_the_answers_stay(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head is there. The same command makes it again of the answers, and the ledger gets to know of it."""
    book, save = ledger_path(features.folder), heads.save

    def gone(data: bytes, path: Path) -> Path:
        book.rename(book.with_name("away"))
        return save(data, path)

    with monkeypatch.context() as patch:
        patch.setattr(heads, "save", gone)
        with pytest.warns(TrainingWarning, match="the ledger does not say so"):
            made = run(checked(features), Observer())
    assert (made.path.exists(), len(made.spent.charges)) == (True, 1)
    book.unlink(missing_ok=True)
    book.with_name("away").rename(book)
    assert (states(features), len(kept())) == (["charged"], 1)
    again = run(checked(features), Observer())
    assert (again.path, again.sha256, states(features), kept()) == (made.path, made.sha256, ["written"], [])


@pytest.mark.filterwarnings("ignore::dpfc_cli.TrainingWarning")
@pytest.mark.parametrize("noise", [{"delta": 1e-6}, {"seed": 1}])
def test_the_card_says_what_is_spent_at_the_delta_that_the_head_claims(
    noise: dict[str, Any], features: FeatureSet
) -> None:
    said = run(checked(features, epsilon=1.0, **noise), Observer()).head.card.ledger
    assert said is not None
    private = "seed" not in noise
    assert said.charge == charges(features)[0].id
    assert (said.private, said.unprotected) == (int(private), int(not private))
    assert said.epsilon == (pytest.approx(1.0) if private else None)


def test_what_stops_a_training_before_its_first_sum_is_in_the_ledger(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(runs, "shelf_for", failing)
        with pytest.raises(OSError, match="No space") as stop:
            run(checked(features), Observer())
    assert states(features) == ["stopped"]
    assert "stays charged" in str(stop.value.__notes__)
    # The answers can be gone on with.
    assert not Path("heads").exists()
    run(checked(features), Observer())
    assert states(features) == ["written"]


FACTOR = {query.kind: query.replace_one for query in QUERIES}
"""Of the noise under replace-one; `tests/privacy` holds these against the sums."""


def check_door(features: FeatureSet, calibrated: Calibrated, drawn: list[int], folder: Path) -> None:
    """Train, and hold the noise against the charge, the charge against the card, and both against the claim."""
    head = trained(features, calibrated, folder).head
    row, claim, facts = charges(features)[-1], calibrated.guarantee, calibrated.facts
    assert claim is not None
    releases = [r for group in row.releases for r in [group] * group.times]
    factors = [FACTOR[r.kind] if facts.adjacency == "replace-one" else 1.0 for r in releases]
    sigmas = [s / 4**MOST_BITS / factor for s, factor in zip(drawn, factors, strict=True)]
    assert sigmas == pytest.approx([r.sigma for r in releases], rel=1e-9)
    assert math.fsum(1 / s**2 for s in sigmas) == pytest.approx(claim.mu**2, rel=1e-9)
    assert (row.epsilon, row.mu, row.adjacency) == (claim.epsilon, claim.mu, facts.adjacency)
    card = head.card
    assert (card.epsilon, card.mu, card.adjacency) == (row.epsilon, row.mu, row.adjacency)
    assert card.plan == row.releases
    if calibrated.plan.sampled:
        mechanisms = [poisson.Sampled(sigma=r.sigma, rate=r.rate, times=r.times) for r in row.releases]
        worth = poisson.epsilon_for(mechanisms, 0, claim.delta)
    else:
        worth = epsilon_for(math.sqrt(math.fsum(1 / s**2 for s in sigmas)), claim.delta)
    assert 0.999 * claim.epsilon < worth < (1 + 1e-8) * claim.epsilon


AT_TWO, OF_SIGMA = Privacy(epsilon=2.0), Privacy(noise_multiplier=4.0)


def calibrated_for(
    features: FeatureSet, method: Method[Any, Any], adjacency: Adjacency, privacy: Privacy = AT_TWO, **given: object
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


def test_the_noise_of_a_sampled_training_is_what_is_charged_and_claimed(
    features: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    monkeypatch.setattr(charged, "Curator", Careless)
    if fault == "a release that is not charged":
        monkeypatch.setattr(calibrate_module, "described", lambda plan, sigmas: described(plan, sigmas)[1:])
    with pytest.raises((AssertionError, ValueError)):
        check_door(
            features, calibrated_for(features, METHODS["dp-fc"], "replace-one"), drawn_sigmas(monkeypatch), tmp_path
        )
