"""Class Grams in pieces: the sums, the answer and the noise are those of the whole, to the last bit, in the memory of a
piece. It is one release.
"""

import itertools
import math
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.methods import METHODS
from dpfc_cli.methods.linear import SQUARES, threads_for
from dpfc_cli.methods.method import state_bytes
from dpfc_cli.privacy import sums
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.curator import Curator, NonPrivate, Unprotected, eta_of
from dpfc_cli.privacy.directions import Directions, InMemory, Shelf
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.forms import PIECE_BYTES, pieces
from dpfc_cli.privacy.lattice import Lattice, Reals
from dpfc_cli.privacy.noise import SeededBits
from dpfc_cli.privacy.oracle import MAKING, TAKING, Mechanism, PlanError
from dpfc_cli.privacy.passes import BlockStream, IncompletePassError, block_rows, chained, part_of
from dpfc_cli.privacy.queries import ClassGrams, ClassSums, Gram, Query, contribution
from dpfc_cli.privacy.sums import Summed, exact_sum, partial_sum
from dpfc_cli.training.machine import PIECES_BYTES, WORKING_BYTES, InFile, training_bytes
from tests import instead
from tests.support import plan_of

pytestmark = pytest.mark.usefixtures("two_classes_each")
N, M, D, K = 150, 7, 4, 2
LATTICE = Lattice(15)
RNG = np.random.default_rng(5)
X = RNG.normal(size=(N, D)).astype(np.float32)
Y = np.stack([RNG.integers(0, M, N), np.where(RNG.random(N) < 0.4, RNG.integers(0, M, N), -1)], 1).astype(np.int32)
Y[3], X[4, 0] = -1, np.nan
Y[:, 1] = np.where(np.arange(N) % 9, Y[:, 1], Y[:, 0])
PERSONS = np.repeat(np.arange(50), 3)
CHAIN = (Clip(0.5),)
WHOLE = ClassGrams(CHAIN)
RECORDS = Facts(n=N, m=M, d=D, k=K)
FACTS = {
    "records": RECORDS,
    "persons": replace(RECORDS, n=50, rows=N, unit="person", adjacency="replace-one"),
}


def stream_of(facts: Facts, read: list[int] | None = None) -> BlockStream:
    """The records. read: grows with every pass over them."""

    def stream(rows: int) -> Iterator[tuple[Any, ...]]:
        if read is not None:
            read.append(rows)
        for at in range(0, N, rows):
            found = () if facts.rows is None else (PERSONS[at : at + rows],)
            yield at, X[at : at + rows], Y[at : at + rows], *found

    return stream


def split(facts: Facts) -> list[Query]:
    return pieces(WHOLE, WHOLE.shape(facts))


class Full(InMemory):
    """A shelf that has no room for each fourth block that it is asked to take."""

    asked = 0

    def put(self, block: tuple[np.ndarray, ...]) -> bool:
        self.asked += 1
        return self.asked % 4 != 3 and super().put(block)


@pytest.fixture
def two_classes_each(monkeypatch: pytest.MonkeyPatch) -> None:
    instead.piece_bytes(monkeypatch, 2 * 8 * D**2)


@pytest.fixture
def in_file(tmp_path: Path) -> Iterator[Callable[[], Shelf]]:
    """Makes shelves in files."""
    made: list[InFile] = []

    def make() -> InFile:
        made.append(InFile(tmp_path))
        return made[-1]

    yield make
    for shelf in made:
        shelf.clear()


# Sums


PASSES = {"nothing is kept": 4, "in memory": 1, "in a file": 1, "without room": 4}


@pytest.mark.parametrize("facts", FACTS.values(), ids=FACTS)
@pytest.mark.parametrize("place", PASSES)
def test_the_sums_of_the_pieces_are_those_of_the_whole(
    facts: Facts, place: str, in_file: Callable[[], Shelf], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several groups of vectors in each piece, and several blocks.
    monkeypatch.setattr(sums, "GATHERED", 11 * D)
    instead.block_rows(monkeypatch, 32)
    make = {"in memory": InMemory, "in a file": in_file, "without room": Full}.get(place)
    read: list[int] = []
    shelf = None if make is None else make()
    directions = None if shelf is None else Directions(shelf)
    over = Summed(stream_of(facts, read), facts, LATTICE, directions=directions)
    found = [exact_sum(piece, over) for piece in split(facts)]
    whole = exact_sum(WHOLE, Summed(stream_of(facts), facts, LATTICE))
    assert np.array_equal(np.concatenate(found), whole)
    assert len(read) == PASSES[place]
    # What there was no room for is gone as a whole.
    assert not isinstance(shelf, Full) or not list(shelf.blocks())
    # In any order, again, and for classes that are cut in other places.
    for start, stop in ((3, 6), (0, 7), (0, 2)):
        assert np.array_equal(exact_sum(replace(WHOLE, start=start, stop=stop), over), whole[start:stop])


def test_a_sample_of_a_piece_is_refused() -> None:
    with pytest.raises(TypeError, match="no sample"):
        exact_sum(split(RECORDS)[0], Summed(stream_of(RECORDS), RECORDS, LATTICE), np.ones(N, bool))


def test_without_noise_only_vectors_on_a_shelf_are_rounded_to_float32() -> None:
    shelf = InMemory()
    over = Summed(stream_of(RECORDS), RECORDS, Reals(), directions=Directions(shelf))
    exact = np.sum([contribution(WHOLE, x, y, RECORDS, Reals()) for x, y in zip(X, Y, strict=True)], axis=0)
    assert np.allclose(exact_sum(WHOLE, over), exact, rtol=1e-12, atol=1e-12)
    assert np.allclose(exact_sum(split(RECORDS)[0], over), exact[:2], rtol=1e-5, atol=1e-5)
    assert {q.dtype.name for _, q in shelf.blocks()} == {"float32"}


def test_vectors_of_another_chain_are_not_used() -> None:
    read: list[int] = []
    over = Summed(stream_of(RECORDS, read), RECORDS, LATTICE, directions=Directions(InMemory()))
    for norm in (0.5, 0.25, 0.5):
        query = ClassGrams((Clip(norm),), 0, 2)
        assert np.array_equal(exact_sum(query, over), exact_sum(query, Summed(stream_of(RECORDS), RECORDS, LATTICE)))
    assert len(read) == 3


LOST: dict[str, Callable[[Directions, list[Any]], object]] = {
    "a vector": lambda _, held: held.__setitem__(1, tuple(array[:-1] for array in held[1])),
    "integers of a vector": lambda _, held: held.__setitem__(1, (held[1][0], held[1][1][:-1])),
    "a run": lambda directions, _: directions._runs.pop(1),
    "a run comes twice": lambda directions, _: directions._runs.append(directions._runs[1]),
    "a class, and another has as many more": lambda _, held: held.__setitem__(
        1, (np.where(held[1][0] == 2, np.int32(3), held[1][0]), held[1][1])
    ),
    "the order of two runs": lambda _, held: held.insert(1, held.pop(2)),
}


@pytest.mark.parametrize("fault", LOST.values(), ids=LOST)
def test_each_piece_finds_as_many_vectors_of_each_class_as_the_pass_that_was_checked(fault: Any) -> None:
    shelf = InMemory()
    over = Summed(stream_of(RECORDS), RECORDS, LATTICE, directions=Directions(shelf))
    exact_sum(split(RECORDS)[0], over)
    assert over.directions is not None
    assert set(shelf._held[1][0]) == {2, 3}
    fault(over.directions, shelf._held)
    with pytest.raises(IncompletePassError, match="lost"):
        exact_sum(split(RECORDS)[1], over)


def test_a_pass_that_was_not_complete_leaves_nothing_for_other_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was removed leaves nothing, either."""
    instead.block_rows(monkeypatch, 32)
    directions, stream = Directions(InMemory()), stream_of(RECORDS)
    short = Summed(lambda rows: itertools.islice(stream(rows), 3), RECORDS, LATTICE, directions=directions)
    with pytest.raises(IncompletePassError):
        exact_sum(split(RECORDS)[0], short)
    assert not directions.holds(WHOLE)
    whole, over = Summed(stream, RECORDS, LATTICE), replace(short, stream=stream)
    for piece in (*split(RECORDS), split(RECORDS)[1]):
        assert np.array_equal(exact_sum(piece, over), exact_sum(piece, whole))
        if piece == split(RECORDS)[-1]:
            directions.end_pieces()


# Memory


def test_class_matrices_take_the_memory_of_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB for a piece, and 192 MiB for the decompositions, whatever the number of classes."""
    instead.piece_bytes(monkeypatch, PIECE_BYTES)
    method = METHODS["dp-ls"]
    for m in (1000, 10_000):
        facts = Facts(n=1_280_000, m=m, d=768)
        plan = method.plan(facts, method.planned(facts, {}, True))
        piece = 8 * 768**2 * math.ceil(m / len(plan.releases[1].pieces))
        assert 32 * 2**20 < piece <= 64 * 2**20
        decomposed = 8 * SQUARES * threads_for(768) * 768**2
        assert 2 * piece <= decomposed <= 192 * 2**20
        assert state_bytes(method, plan) == piece + decomposed + 8 * (768**2 + m * 768)
    assert training_bytes(method, plan, facts) == state_bytes(method, plan) + WORKING_BYTES + PIECES_BYTES < 1.5 * 10**9


def test_no_more_is_held_than_is_said(in_file: Callable[[], Shelf], monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy tells `tracemalloc` of its arrays. The whole answer would take 8 MB."""
    m, d = 64, 128
    instead.piece_bytes(monkeypatch, 4 * 8 * d**2)
    monkeypatch.setattr(sums, "GATHERED", 100 * d)
    facts = Facts(n=600, m=m, d=d)
    x, y = RNG.normal(size=(600, d)).astype(np.float32), (np.arange(600) % m).astype(np.int32)[:, None]

    def stream(rows: int) -> Iterator[tuple[Any, ...]]:
        for at in range(0, 600, rows):
            yield at, x[at : at + rows], y[at : at + rows]

    mechanism = Mechanism(facts=facts, plan=plan_of(facts, (WHOLE, 1.0)), mu=1.0)
    curator = Curator(mechanism, Unprotected(stream), SeededBits(3), shelf=in_file(), stack=in_file())
    tracemalloc.start()
    try:
        for piece in curator.pieces(WHOLE):
            assert piece.shape == (4, d, d)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    factors = 8 * block_rows(facts) * (m + d)
    assert peak < 8 * m * d**2 * 2
    assert peak < 8 * 8 * 4 * d**2 + 6 * factors


# The release


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
    """So the noise is the same, that of the release behind it included, and its distance from ideal noise is."""
    eta = eta_of(mechanism_of(facts).plan)
    shelves = (None, InMemory(), Full())
    several = [answers_of(facts, shelf, in_file()) for shelf in shelves]
    # The vectors of the records are not kept for longer than they are needed.
    assert [shelf and list(shelf.blocks()) for shelf in shelves] == [None, [], []]
    instead.piece_bytes(monkeypatch, 2**20)
    whole = answers_of(facts, None)
    assert eta_of(mechanism_of(facts).plan) == eta
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
            instead.exact_sum(patch, lambda query, *given: (asked.append(query), real(query, *given))[1])
            again = answers_of(RECORDS, InMemory(), answers=kept)
        for one, other in zip(every[:count], kept.answers, strict=False):
            assert np.array_equal(one, other)
        taken = sum(min(2, M - 2 * piece) for piece in range(min(4, max(0, count - 2))))
        assert np.array_equal(first[2][:taken], again[2][:taken])
        assert len(asked) == len(every) - count - (count < 2)


@pytest.mark.parametrize("classes", [2, 4])
def test_pieces_of_another_query_are_not_gone_on_with(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For persons, pieces of two queries may have a larger norm together than the sensitivity."""
    instead.piece_bytes(monkeypatch, classes * 8 * D**2)
    kept = Kept()
    found = np.concatenate(list(begun_curator(answers=kept).pieces(WHOLE)))
    # Who does not take them in pieces gets all.
    assert np.array_equal(found, begun_curator().release(WHOLE))
    del kept.answers[3:]
    with pytest.raises(PlanError, match="another query"):
        begun_curator(answers=kept).pieces(ClassGrams((Clip(0.6),)))


def test_pieces_that_were_left_are_not_taken_from_a_later_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither are those of the later answer taken from the one before."""
    mechanism = Mechanism(facts=RECORDS, plan=plan_of(RECORDS, (WHOLE, 0.5), (WHOLE, 0.5)), mu=1.0)
    curator, at_once = (Curator(mechanism, Unprotected(stream_of(RECORDS)), SeededBits(3)) for _ in range(2))
    first = curator.pieces(WHOLE)
    next(first)
    second = curator.pieces(WHOLE)
    with pytest.raises(PlanError, match="not taken before"):
        next(first)
    instead.piece_bytes(monkeypatch, 2**20)
    _, expected = (at_once.release(WHOLE) for _ in range(2))
    assert np.array_equal(np.concatenate(list(second)), expected)


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


def test_several_processes_give_the_pieces_of_persons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are cut inside persons: a block has 32 records, and a person three."""
    instead.block_rows(monkeypatch, 32)
    facts, shelves = FACTS["persons"], list[InMemory]()
    starts = [part_of(facts, number, 3).start for number in (1, 2)]
    assert any(PERSONS[start] == PERSONS[start - 1] for start in starts)

    parts, spans = [part_of(facts, number, 3) for number in range(3)], list[range]()
    totals, held = [np.zeros(piece.shape(facts)) for piece in split(facts)], list[int]()
    for part in parts:
        shelves.append(InMemory())

        def begun(rows: int, begin: int = part.begin) -> Iterator[tuple[Any, ...]]:
            return (block for block in stream_of(facts)(rows) if block[0] >= begin)

        over = Summed(begun, facts, LATTICE, directions=Directions(shelves[-1]))
        for total, piece in zip(totals, split(facts), strict=True):
            found, span = partial_sum(piece, over, part)
            total += found
        held.append(len(list(shelves[-1].blocks())))
        spans.append(span)
        partial_sum(ClassSums(CHAIN), over, part)
    chained(spans, facts)
    whole = exact_sum(WHOLE, Summed(stream_of(facts), facts, LATTICE))
    assert np.array_equal(np.concatenate(totals), whole)
    # Each process keeps its vectors for the pieces, and no longer.
    assert len(held) == 3
    assert all(held)
    assert not any(list(each.blocks()) for each in shelves)
