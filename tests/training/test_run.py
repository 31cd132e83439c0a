"""What a run gives to the curator, to the other processes and to the shelves, and what it says and leaves behind."""

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.file import ledger_path
from dpfc_cli.privacy import curator, forms
from dpfc_cli.privacy.curator import NonPrivate
from dpfc_cli.privacy.directions import InMemory
from dpfc_cli.privacy.lattice import Lattice, Reals
from dpfc_cli.training import machine as shelves
from dpfc_cli.training import run as runs
from dpfc_cli.training.calibrate import calibrate
from dpfc_cli.training.charge import charge, settle
from dpfc_cli.training.check import Checked
from dpfc_cli.training.distributed import Leader
from dpfc_cli.training.machine import Stack, stack_bytes, training_bytes
from dpfc_cli.training.observer import Observer, TrainingWarning
from dpfc_cli.training.request import Privacy
from dpfc_cli.training.run import run, stands
from tests.training.requests import ready, states
from tests.training.test_together import Alone


def with_method(features: FeatureSet, method: str, **given: Any) -> Checked:
    """A checked training with another method."""
    made = ready(features)
    request = replace(made.request, method=method)
    return replace(made, request=request, calibrated=calibrate(request.chosen, request.facts, given, request.privacy))


def stopped(*given: object) -> None:
    raise KeyboardInterrupt


# What is said


def test_whether_a_training_goes_on_is_said_by_who_has_its_answers(sets: dict[str, FeatureSet]) -> None:
    charged = charge(ready(sets["a"]))
    assert charged.answers is not None
    goes_on, new = "goes on where it stopped, and charges nothing more.", "makes a new training, which is charged, too."
    assert str(stands(charged, None)).endswith(goes_on)
    assert str(stands(charged, Path("a.safetensors"))).endswith("The head was written: 'a.safetensors'.")
    charged.answers.close()
    for each in (charged, replace(charged, answers=None)):
        assert str(stands(each, None)).endswith(new)


def test_a_charge_that_was_stopped_pays_for_the_training_that_goes_on(
    sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = charge(ready(sets["a"]))
    assert first.answers is not None
    first.answers.close()
    settle(first.receipt, "stopped")
    monkeypatch.setattr(runs, "_shelves_of", stopped)
    # It gets as far as this.
    with pytest.raises(KeyboardInterrupt):
        run(charge(ready(sets["a"])), Observer())


# What sums share, and answers in pieces


def test_the_curator_has_both_shelves(sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    shelf, stack = InMemory(), InMemory()
    monkeypatch.setattr(curator, "Curator", lambda *given: taken.extend(given))
    monkeypatch.setattr(runs, "_shelves_of", lambda checked: (shelf, stack))
    monkeypatch.setattr(runs, "_begin", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(charge(ready(sets["a"])), Observer())
    *_, of_sums, _, _, of_pieces = taken
    assert of_sums is shelf
    assert of_pieces is stack


def test_nothing_stays_on_the_shelves(sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch) -> None:
    kept = InMemory(), InMemory()

    def begun(checked: Checked) -> None:
        for each in kept:
            each.put(())
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "_shelves_of", lambda checked: kept)
    monkeypatch.setattr(runs, "_begin", begun)
    with pytest.raises(KeyboardInterrupt):
        run(charge(ready(sets["a"])), Observer())
    assert [list(each.blocks()) for each in kept] == [[], []]


def test_a_run_that_is_stopped_lets_go_of_answers_and_of_the_heads_place(
    sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curator, "draw_noise", stopped)
    charged = charge(ready(sets["a"]))
    assert charged.answers is not None
    with pytest.raises(KeyboardInterrupt):
        run(charged, Observer())
    assert not charged.answers.held
    assert not charged.temporary.exists()


@pytest.mark.parametrize("free", [10**12, 0], ids=["memory", "disk"])
def test_what_answers_in_pieces_take_is_not_given_to_what_sums_share(
    free: int, sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forms, "PIECE_BYTES", 1)
    monkeypatch.setattr(shelves, "MEMORY_LEFT", 0.5 if free else 0.0)
    given: list[Any] = []
    monkeypatch.setattr(runs, "shelf_for", lambda *each: given.extend(each))
    made = with_method(sets["a"], "dp-ls")
    _, stack = runs._shelves_of(made)
    side, records, facts, _, others, _, _, promised = given
    size = stack_bytes(made.calibrated.plan)
    assert isinstance(stack, InMemory if free else Stack)
    assert (side, records, facts) == (3, 30, made.calibrated.facts)
    # The answers are kept beside the ledger in any case.
    state = training_bytes(made.calibrated.method, made.calibrated.plan, made.calibrated.facts)
    assert (others - state, promised) == ((size, size) if free else (0, 2 * size))


# With noise and without


def test_without_noise_sums_are_of_real_numbers(sets: dict[str, FeatureSet]) -> None:
    private, plain = ready(sets["a"]), ready(sets["a"], privacy=Privacy())
    assert private.calibrated.mechanism is not None
    assert runs._grid_of(private) == curator.lattice_of(private.calibrated.mechanism)
    assert isinstance(runs._grid_of(plain), Reals)
    assert isinstance(runs._oracle_of(charge(plain), lambda *told: None, None, InMemory()), NonPrivate)


# Several processes


def led(made: Checked, count: int = 1) -> tuple[Checked, Alone]:
    """The same training of several processes."""
    alone = Alone(count=count)
    return replace(made, request=replace(made.request, leader=Leader(alone))), alone  # type: ignore[arg-type]


@pytest.mark.parametrize(("method", "side"), [("dp-fc", None), ("dp-ls", 3)])
def test_the_others_are_told_what_is_summed_and_what_their_sums_share(
    method: str, side: int | None, sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One gradient shares nothing. Class matrices in pieces share the vectors of the records."""
    monkeypatch.setattr(forms, "PIECE_BYTES", 1)
    made, alone = led(with_method(sets["a"], method, **({"steps": 1} if method == "dp-fc" else {})))
    made = replace(made, request=replace(made.request, memory=1e12))
    runs._begin(made)
    grid = runs._grid_of(made)
    assert isinstance(grid, Lattice)
    facts = dataclasses.asdict(made.calibrated.facts)
    assert alone.asked == [
        {"ask": "sum", "split": "train", "facts": facts, "bits": grid.bits, "side": side, "memory": 1e12}
    ]


def test_a_process_has_room_for_the_records_of_its_part(
    sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpfc_cli.privacy.passes.block_rows", lambda facts: 10)
    records: list[int] = []
    monkeypatch.setattr(runs, "shelf_for", lambda side, count, *rest: records.append(count))
    made = ready(sets["a"])
    for each in (made, *(led(made, count)[0] for count in (1, 3))):
        runs._shelves_of(each)
    assert records == [30, 30, 10]


def test_the_sums_are_those_of_all_processes_and_their_end_is_told(
    sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, alone = led(ready(sets["a"]))
    summed: list[Any] = []
    monkeypatch.setattr(alone, "added", lambda array: (summed.append(array), array)[1])
    run(charge(made), Observer())
    assert len(summed) == len(made.calibrated.plan.releases)
    assert [each["ask"] for each in alone.asked] == ["sum"]
    assert alone.told[-1] == b""


def test_a_ledger_that_is_gone_gets_no_outcome_and_the_answers_stay(features: FeatureSet) -> None:
    checked = ready(features)
    charged = charge(checked)
    book = ledger_path(features.folder)
    book.rename(book.with_name("away"))
    with pytest.warns(TrainingWarning, match="ledger"):
        run(charged, Observer())
    assert not book.exists() or book.stat().st_size == 0
    assert charged.answers is not None
    assert charged.answers.path.exists()
    book.unlink(missing_ok=True)
    book.with_name("away").rename(book)
    assert states(features) == ["charged"]
