"""An answer that is made in pieces is the answer that is made at once, to the last bit, and one release."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpfc_cli.privacy import forms, sums
from dpfc_cli.privacy.chain import Centre, Clip
from dpfc_cli.privacy.curator import Curator, NonPrivate, Unprotected, lattice_of
from dpfc_cli.privacy.directions import Directions, InMemory, Shelf
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.noise import SeededBits
from dpfc_cli.privacy.oracle import MAKING, TAKING, Mechanism, Plan, PlanError, planned
from dpfc_cli.privacy.parts import Together, digest_of
from dpfc_cli.privacy.passes import BlockStream, part_of
from dpfc_cli.privacy.queries import ClassGrams, ClassSums, Gram, Query
from dpfc_cli.privacy.sums import Summed, exact_sum
from tests.privacy.pieces import CHAIN, FACTS, LATTICE, PERSONS, RECORDS, WHOLE, D, Full, M, N, split, stream_of
from tests.privacy.test_parts import FACTS as SHARED
from tests.privacy.test_parts import begun, together
from tests.support import plan_of

pytestmark = pytest.mark.usefixtures("two_classes_each")


def mechanism_of(facts: Facts) -> Mechanism:
    return Mechanism(
        facts=facts, plan=plan_of(facts, (Gram(CHAIN), 0.2), (WHOLE, 0.3), (ClassSums(CHAIN), 0.5)), mu=1.0
    )


def answers_of(facts: Facts, shelf: Shelf | None, stack: Shelf | None = None, **given: Any) -> list[np.ndarray]:
    """What a method sees that takes the pieces last."""
    curator = Curator(
        mechanism_of(facts), Unprotected(stream_of(facts)), SeededBits(3), shelf=shelf, stack=stack, **given
    )
    gram = curator.release(Gram(CHAIN))
    stacked = curator.pieces(WHOLE)
    return [gram, curator.release(ClassSums(CHAIN)), np.concatenate(list(stacked))]


@pytest.mark.parametrize("facts", FACTS.values(), ids=FACTS)
def test_the_answers_are_the_same_in_one_piece_and_in_several(
    facts: Facts, in_file: Callable[[], Shelf], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the noise is the same, that of the release behind it included."""
    shelves = (None, InMemory(), Full())
    several = [answers_of(facts, shelf, in_file()) for shelf in shelves]
    # The vectors of the records are not kept for longer than they are needed.
    assert [shelf and list(shelf.blocks()) for shelf in shelves] == [None, [], []]
    monkeypatch.setattr(forms, "PIECE_BYTES", 2**20)
    whole = answers_of(facts, None)
    for found in several:
        assert all(np.array_equal(one, other) for one, other in zip(found, whole, strict=True))


def test_without_noise_the_pieces_are_the_sums_and_all_are_made_before_the_first_is_taken() -> None:
    read: list[int] = []
    curator = NonPrivate(RECORDS, Unprotected(stream_of(RECORDS, read)))
    stacked = curator.pieces(WHOLE)
    assert len(read) == 4
    curator.release(Gram(CHAIN))
    exact = exact_sum(WHOLE, Summed(stream_of(RECORDS), RECORDS, curator._over.grid))
    assert np.allclose(np.concatenate(list(stacked)), exact, rtol=1e-6, atol=1e-6)
    assert len(read) == 5


@pytest.mark.parametrize("private", [True, False], ids=["with noise", "without noise"])
def test_an_answer_in_pieces_takes_the_shelf_the_stack_and_the_processes_that_are_given(private: bool) -> None:
    """With a shelf, the records are read once. It is empty when the last piece is made."""
    read, asked, shelf, stack = list[int](), list[Query](), InMemory(), InMemory()

    def summed(query: Query, over: Summed, sample: np.ndarray | None) -> np.ndarray:
        asked.append(query)
        return exact_sum(query, over, sample)

    records = Unprotected(stream_of(RECORDS, read))
    given: dict[str, Any] = {"shelf": shelf, "stack": stack, "together": summed}
    alone = Mechanism(facts=RECORDS, plan=plan_of(RECORDS, (WHOLE, 1.0)), mu=1.0)
    curator = Curator(alone, records, SeededBits(3), **given) if private else NonPrivate(RECORDS, records, **given)
    stacked = curator.pieces(WHOLE)
    assert (len(read), asked) == (1, split(RECORDS))
    assert (len(list(shelf.blocks())), len(list(stack.blocks()))) == (0, 4)
    assert [len(piece) for piece in stacked] == [2, 2, 2, 1]


def test_the_pieces_can_be_released_as_one_answer(classes_each: int) -> None:
    found = list(begun_curator().pieces(WHOLE))
    assert len(found) == math.ceil(M / classes_each)
    assert np.array_equal(begun_curator().release(WHOLE), np.concatenate(found))


def test_without_room_for_the_pieces_there_is_no_answer_and_the_release_is_spent() -> None:
    curator = begun_curator(stack=Full())
    with pytest.raises(OSError, match="no room"):
        curator.pieces(WHOLE)
    assert curator.released == 2
    with pytest.raises(PlanError):
        curator.pieces(WHOLE)


def begun_curator(**given: Any) -> Curator:
    curator = Curator(mechanism_of(RECORDS), Unprotected(stream_of(RECORDS)), SeededBits(3), **given)
    curator.release(Gram(CHAIN))
    return curator


def test_pieces_that_are_asked_for_twice_or_one_by_one_are_refused() -> None:
    curator = begun_curator()
    for piece in split(RECORDS):
        with pytest.raises(PlanError):
            curator.release(piece)
    curator.pieces(WHOLE)
    with pytest.raises(PlanError, match="release 2 is planned as class_sums"):
        curator.pieces(WHOLE)
    with pytest.raises(PlanError):
        curator.release(WHOLE)


def test_a_release_that_fails_between_two_pieces_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    curator, real, asked = begun_curator(), sums.exact_sum, []

    def failing(query: Query, *others: Any) -> np.ndarray:
        asked.append(query)
        if len(asked) == 3:
            raise OSError("the disk fails")
        return real(query, *others)

    monkeypatch.setattr(sums, "exact_sum", failing)
    with pytest.raises(OSError, match="fails"):
        curator.pieces(WHOLE)
    with pytest.raises(PlanError):
        curator.pieces(WHOLE)


class Kept:
    """Answers that outlive a curator."""

    def __init__(self) -> None:
        self.answers: list[np.ndarray] = []

    def recall(self, number: int, shape: tuple[int, ...]) -> np.ndarray | None:
        return self.answers[number].reshape(shape) if number < len(self.answers) else None

    def keep(self, number: int, answer: np.ndarray) -> None:
        assert number == len(self.answers)
        self.answers.append(answer.copy())


def test_a_curator_that_goes_on_draws_noise_for_the_pieces_that_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, real, asked = Kept(), sums.exact_sum, list[Query]()
    first = answers_of(RECORDS, InMemory(), answers=kept)
    every = kept.answers
    # The Gram matrix, which query the pieces are of, four pieces, the class sums.
    assert [len(answer) for answer in every] == [D, 32, 2, 2, 2, 1, M]
    for count in range(len(every) + 1):
        kept = Kept()
        kept.answers = [answer.copy() for answer in every[:count]]
        asked.clear()
        with monkeypatch.context() as patch:
            patch.setattr(sums, "exact_sum", lambda query, *given: (asked.append(query), real(query, *given))[1])
            again = answers_of(RECORDS, InMemory(), answers=kept)
        for one, other in zip(every[:count], kept.answers, strict=False):
            assert np.array_equal(one, other)
        taken = sum(min(2, M - 2 * piece) for piece in range(min(4, max(0, count - 2))))
        assert np.array_equal(first[2][:taken], again[2][:taken])
        assert len(asked) == len(every) - count - (count < 2)


def test_pieces_of_another_query_are_not_gone_on_with(classes_each: int) -> None:
    """For persons, pieces of two queries may have a larger norm together than the sensitivity."""
    kept = Kept()
    curator = begun_curator(answers=kept)
    curator.pieces(WHOLE)
    del kept.answers[3:]
    with pytest.raises(PlanError, match="another query"):
        begun_curator(answers=kept).pieces(ClassGrams((Clip(0.6),)))


def test_a_query_has_one_digest_and_another_one_has_another() -> None:
    assert digest_of(WHOLE) == digest_of(ClassGrams((Clip(0.5),)))
    centred = [(Centre(np.full(D, value)), *CHAIN) for value in (0.0, 1.0)]
    others: list[Query] = [WHOLE, Gram(CHAIN), replace(WHOLE, stop=2), *map(ClassGrams, [(Clip(0.25),), *centred])]
    assert len({digest_of(query) for query in others}) == len(others)


def test_pieces_that_were_left_are_not_taken_from_a_later_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither are those of the later answer taken from the one before."""
    mechanism = Mechanism(facts=RECORDS, plan=plan_of(RECORDS, (WHOLE, 0.5), (WHOLE, 0.5)), mu=1.0)
    curator, at_once = (Curator(mechanism, Unprotected(stream_of(RECORDS)), SeededBits(3)) for _ in range(2))
    first = curator.pieces(WHOLE)
    next(first)
    second = curator.pieces(WHOLE)
    with pytest.raises(PlanError, match="not taken before"):
        next(first)
    monkeypatch.setattr(forms, "PIECE_BYTES", 2**20)
    _, expected = (at_once.release(WHOLE) for _ in range(2))
    assert np.array_equal(np.concatenate(list(second)), expected)


def test_a_sample_of_pieces_is_refused(classes_each: int) -> None:
    for query in (WHOLE, split(RECORDS)[0]):
        with pytest.raises(ValueError, match="no sample"):
            Plan((planned(Gram(CHAIN), RECORDS, 1.0), planned(query, RECORDS, 1.0, 0.5)))
    with pytest.raises(TypeError, match="no sample"):
        exact_sum(split(RECORDS)[0], Summed(stream_of(RECORDS), RECORDS, LATTICE), np.ones(N, bool))


@pytest.mark.parametrize("shelf", [None, InMemory()], ids=["nothing is kept", "in memory"])
def test_records_pieces_that_are_made_and_pieces_that_are_taken_have_each_a_progress(shelf: Shelf | None) -> None:
    told: list[tuple[str, int, int]] = []
    answers_of(RECORDS, shelf, progress=lambda *each: told.append(each))
    kinds = ("gram", "class_grams", "class_sums")
    stages = {stage: [each[1:] for each in told if each[0] == stage] for stage in (*kinds, MAKING, TAKING)}
    assert sum(map(len, stages.values())) == len(told)
    # Records that pieces read again are not counted.
    for kind in kinds:
        assert {total for _, total in stages[kind]} == {N}
        assert stages[kind] == sorted(set(stages[kind]))
        assert stages[kind][-1] == (N, N)
    for stage in (MAKING, TAKING):
        assert stages[stage] == [(done, M) for done in (2, 4, 6, 7)]
    assert told[-1] == (TAKING, M, M)


@pytest.mark.parametrize("count", [2, 3])
def test_several_processes_give_the_pieces_of_one(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "PIECE_BYTES", 8 * SHARED.d**2)
    mechanism = Mechanism(facts=SHARED, plan=plan_of(SHARED, (WHOLE, 0.5), (ClassSums(CHAIN), 0.5)), mu=1.0)

    def answers(channel: Any) -> list[np.ndarray]:
        summed = None if channel is None else Together(channel)
        curator = Curator(mechanism, Unprotected(begun(0)), SeededBits(4), shelf=InMemory(), together=summed)
        stacked = curator.pieces(WHOLE)
        return [curator.release(ClassSums(CHAIN)), np.concatenate(list(stacked))]

    found, _ = together(count, answers, grid=lattice_of(mechanism))
    assert all(np.array_equal(one, other) for one, other in zip(found, answers(None), strict=True))


@pytest.mark.parametrize("count", [2, 3])
def test_several_processes_give_the_pieces_of_persons(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are cut inside persons: a block has 32 records, and a person three."""
    monkeypatch.setattr("dpfc_cli.privacy.passes.block_rows", lambda facts: 32)
    facts, shelves = FACTS["persons"], list[InMemory]()
    starts = [part_of(facts, number, count).start for number in range(1, count)]
    assert any(PERSONS[start] == PERSONS[start - 1] for start in starts)

    def begun(begin: int) -> BlockStream:
        return lambda rows: (block for block in stream_of(facts)(rows) if block[0] >= begin)

    def shelf() -> InMemory:
        shelves.append(InMemory())
        return shelves[-1]

    def lead(channel: Any) -> tuple[list[np.ndarray], list[int]]:
        over = Summed(begun(0), facts, LATTICE, directions=Directions(shelf()))
        found = [Together(channel)(piece, over) for piece in split(facts)]
        held = [len(list(each.blocks())) for each in shelves]
        Together(channel)(ClassSums(CHAIN), over)
        return found, held

    (found, held), _ = together(count, lead, grid=LATTICE, facts=facts, begun=begun, shelf=shelf)
    whole = exact_sum(WHOLE, Summed(stream_of(facts), facts, LATTICE))
    assert np.array_equal(np.concatenate(found), whole)
    # Each process keeps its vectors for the pieces, and no longer.
    assert len(held) == count
    assert all(held)
    assert not any(list(each.blocks()) for each in shelves)
