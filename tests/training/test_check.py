"""What is refused before the charge, and what a run leaves: a case for each line that no other test looked at."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads import head as heads
from dpfc_cli.kernels import products
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.method import state_bytes
from dpfc_cli.privacy import curator, forms
from dpfc_cli.privacy.directions import InMemory
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.noise import SeededBits, SystemBits
from dpfc_cli.training import check as checks
from dpfc_cli.training import run as runs
from dpfc_cli.training.answers import Unfinished
from dpfc_cli.training.calibrate import Calibrated, calibrate, with_options
from dpfc_cli.training.charge import charge
from dpfc_cli.training.check import Checked, answers_beside, check, rehearse
from dpfc_cli.training.machine import check_memory, stack_bytes, working_bytes
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Privacy, Request
from dpfc_cli.training.run import run
from tests.hostile import standing
from tests.training.requests import ledger, states

FACTS = Facts(n=1000, m=3, d=4)
PERSONS = Facts(n=40, m=2, d=3, rows=80)


def requested(features: FeatureSet, **changed: Any) -> Request:
    privacy = Privacy(epsilon=1.0)
    given: dict[str, Any] = {"features": features, "folder": Path("heads"), "privacy": privacy, "method": "dp-ls"}
    return Request(**(given | changed))


def checked(features: FeatureSet, **changed: Any) -> Checked:
    request = requested(features, **changed)
    return check(request, calibrate(request.chosen, request.facts, request.options, request.privacy), Observer())


# Calibration


def test_without_noise_an_option_that_only_noise_needs_is_refused() -> None:
    with pytest.raises(UserError, match="has no effect") as refused:
        calibrate(METHODS["dp-fc"], FACTS, {"steps": 2, "gradient_clip": 0.5}, Privacy())
    assert refused.value.fields["parameter"] == "gradient_clip"


def test_too_small_a_sample_is_refused_before_anything_slow() -> None:
    given, told = {"steps": 2, "sampling_rate": 1e-9}, list[str]()
    for privacy in (Privacy(noise_multiplier=3.0), Privacy(epsilon=1.0)):
        with pytest.raises(UserError, match="takes part with probability"):
            calibrate(METHODS["dp-sgd"], FACTS, given, privacy, lambda: told.append("slow"))
    assert not told


@pytest.mark.parametrize("privacy", [Privacy(epsilon=1.0), Privacy()], ids=["noise", "no noise"])
def test_options_that_are_chosen_afterwards_are_complete(privacy: Privacy) -> None:
    method = METHODS["dp-sgd"]
    made = calibrate(method, FACTS, {"steps": 2}, privacy)
    chosen = with_options(made, {"steps": 2, "learning_rate": 0.7}, {})
    assert chosen.given == {"steps": 2, "learning_rate": 0.7}
    assert chosen.options == calibrate(method, FACTS, chosen.given, privacy).options


def test_public_knowledge_stays_when_options_are_chosen() -> None:
    made = calibrate(METHODS["dp-whitened"], FACTS, {}, Privacy(epsilon=1.0))
    known = dict.fromkeys(made.method.public, "what is known")
    chosen = with_options(replace(made, options=replace(made.options, **known)), {}, {})
    assert known
    assert {name: getattr(chosen.options, name) for name in known} == known


# Before the charge


def test_a_training_needs_the_memory_of_its_state_and_of_what_works_on_it() -> None:
    made = calibrate(METHODS["dp-fc"], FACTS, {"steps": 2}, Privacy(epsilon=1.0))
    check_memory(made.method, made.plan, made.facts, 2**30)
    with pytest.raises(UserError, match=r"This training needs about 629 MB") as refused:
        check_memory(made.method, made.plan, made.facts, 2**29)
    assert "dp-fc" not in refused.value.remedy
    assert refused.value.fields["needed"] == state_bytes(made.method, made.plan) + working_bytes(FACTS)
    assert 2**28 < working_bytes(PERSONS) - working_bytes(FACTS) < 2**29
    large = calibrate(METHODS["dp-newton"], Facts(n=1000, m=200, d=1000), {}, Privacy(epsilon=1.0))
    assert large.method.class_matrices
    with pytest.raises(UserError) as other:
        check_memory(large.method, large.plan, large.facts, 2**29)
    assert "dp-fc" in other.value.remedy


def test_the_memory_is_checked_before_the_charge(features: FeatureSet) -> None:
    with pytest.raises(UserError, match="This training needs"):
        checked(features, memory=1e6)


def test_noise_that_is_too_strong_for_the_lattice_is_refused(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(mechanism: object) -> None:
        raise ValueError("beyond all integers")

    monkeypatch.setattr(checks, "lattice_of", refused)
    with pytest.raises(UserError, match="too strong to be added exactly: beyond all integers"):
        checked(features)
    assert checked(features, privacy=Privacy()).calibrated.mechanism is None


def test_a_folder_that_was_there_stays_and_one_that_was_made_to_try_goes(features: FeatureSet) -> None:
    checked(features)
    assert not Path("heads").exists()
    Path("heads").mkdir()
    checked(features)
    assert Path("heads").is_dir()


def test_a_folder_that_cannot_be_written_is_found_out_before_the_charge(features: FeatureSet) -> None:
    Path("heads").write_text("a file")
    with pytest.raises(UserError) as refused:
        checked(features)
    assert refused.value.code == "unwritable"


def rehearsed(monkeypatch: pytest.MonkeyPatch, made: Calibrated, features: FeatureSet) -> tuple[Facts, Any, list[Any]]:
    """The facts and options of a rehearsal, and its answers."""
    seen: list[Any] = []
    answers: list[Any] = []
    release = checks._Rehearsal.release

    def solve(oracle: Any, facts: Facts, options: Any) -> Any:
        seen.append((facts, options))
        return made.method.solve(oracle, facts, options)

    monkeypatch.setattr(
        checks._Rehearsal, "release", lambda self, query: (answers.append(release(self, query)), answers[-1])[1]
    )
    rehearse(replace(made, method=replace(made.method, solve=solve)), features, standing())
    ((facts, options),) = seen
    return facts, options, answers


@pytest.mark.parametrize(("classes", "steps"), [(2, 1), (9, 50)])
def test_a_rehearsal_is_small_whatever_the_training_is(
    classes: int, steps: int, features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = calibrate(METHODS["dp-fc"], Facts(n=10**6, m=classes, d=2000), {"steps": steps}, Privacy(epsilon=1.0))
    monkeypatch.setattr(heads, "check_card", lambda card: None)
    facts, options, answers = rehearsed(monkeypatch, made, features)
    most = checks.REHEARSED
    assert (facts.n, facts.d, facts.m, options.steps) == (most, most, min(classes, most), min(steps, most))
    assert not any(answer.any() for answer in answers)


def test_a_card_that_no_head_can_hold_is_found_out_before_the_charge(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(card: object) -> None:
        raise UserError("The card is too large.", "Fewer classes.")

    monkeypatch.setattr(heads, "check_card", refused)
    with pytest.raises(UserError, match="card is too large"):
        checked(features)


def test_devices_are_tried_before_the_charge(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    def inexact() -> None:
        raise RuntimeError("a sum of integers is wrong")

    monkeypatch.setattr(products, "check_exact", inexact)
    with pytest.raises(UserError, match="A sum of integers is wrong"):
        checked(features)


def test_answers_that_were_kept_need_no_more_room(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "PIECE_BYTES", 1)
    ready = charge(checked(features))
    assert ready.answers is not None
    ready.answers.path.write_bytes(bytes(100))
    found = Unfinished(path=ready.answers.path, charge=ready.receipt.charge, answered=0)
    made = ready.checked.calibrated
    whole = stack_bytes(made.plan)
    assert whole > 100
    assert (answers_beside(made, None), answers_beside(made, found)) == (whole, whole - 100)
    ready.answers.remove()


# The run


@pytest.mark.parametrize("privacy", [Privacy(epsilon=1.0, delta=1e-6), Privacy(epsilon=1.0, seed=1)], ids=repr)
def test_the_card_says_what_is_spent_at_the_delta_that_the_head_claims(privacy: Privacy, features: FeatureSet) -> None:
    ready = charge(checked(features, privacy=privacy))
    said = run(ready, Observer()).head.card["ledger"]
    private = privacy.claim == "private"
    assert said["charge"] == ready.receipt.charge.id
    assert (said["trainings"], said["private"], said["unprotected"]) == (1, int(private), int(not private))
    assert said["epsilon"] == (pytest.approx(1.0) if private else None)


@pytest.mark.parametrize("seed", [None, 0, 5])
def test_noise_is_the_systems_unless_a_seed_was_asked_for(
    seed: int | None, features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = checked(features, privacy=Privacy(epsilon=1.0, seed=seed))
    seen: list[Any] = []
    monkeypatch.setattr(curator, "Curator", lambda *given: seen.append(given))
    runs._oracle_of(charge(ready), lambda *done: None, None, InMemory())
    bits = seen[0][2]
    assert type(bits) is (SystemBits if seed is None else SeededBits)
    assert seed is None or np.array_equal(bits.words(3), SeededBits(seed).words(3))


def test_a_charge_that_could_not_be_settled_is_told_and_the_head_knows_its_place(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise UserError("The disk is full.", "Make room.", code="unwritable")

    told: list[str] = []
    monkeypatch.setattr(Observer, "warn", lambda self, text: told.append(text))
    ready = charge(checked(features))
    monkeypatch.setattr(runs, "settle", full)
    made = run(ready, Observer())
    assert any("the ledger does not say so. The disk is full." in text for text in told)
    assert made.head.path == made.path == ready.checked.path


def test_what_stops_a_training_before_its_first_sum_is_in_the_ledger(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*given: object) -> None:
        raise OSError("the disk fails")

    ready = charge(checked(features))
    monkeypatch.setattr(runs, "shelf_for", failing)
    with pytest.raises(OSError, match="the disk fails") as stop:
        run(ready, Observer())
    assert states(features) == ["stopped"]
    assert "stays charged" in str(stop.value.__notes__)
    # The place of the head is free, and the answers can be gone on with.
    assert list(Path("heads").iterdir()) == []
    assert ready.answers is not None
    assert not ready.answers.held


def test_a_second_run_of_a_charge_touches_nothing_of_the_first(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = charge(checked(features))
    run(ready, Observer())
    before = ledger(features)
    monkeypatch.setattr(runs, "shelf_for", lambda *given: pytest.fail("a shelf was made"))
    with pytest.raises(RuntimeError, match="used already"):
        run(ready, Observer())
    assert ledger(features) == before
    assert states(features) == ["written"]
