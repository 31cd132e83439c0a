"""The sum of class Grams is the same in pieces, to the last bit, and takes the memory of a piece."""

import itertools
import math
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpfc_cli.kernels import products
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.linear import SQUARES, threads_for
from dpfc_cli.methods.method import state_bytes
from dpfc_cli.privacy import forms, passes, sums
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.curator import Curator, Unprotected
from dpfc_cli.privacy.directions import Directions, InMemory, Shelf
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.forms import PIECE_BYTES, check, pieces
from dpfc_cli.privacy.lattice import Reals
from dpfc_cli.privacy.noise import SeededBits
from dpfc_cli.privacy.oracle import Mechanism
from dpfc_cli.privacy.passes import IncompletePassError, block_rows
from dpfc_cli.privacy.queries import ClassGrams, Gram, contribution
from dpfc_cli.privacy.sums import Summed, exact_sum
from dpfc_cli.training.machine import PIECES_BYTES, WORKING_BYTES, training_bytes
from tests.privacy.pieces import (
    CHAIN,
    FACTS,
    LATTICE,
    RECORDS,
    RNG,
    WHOLE,
    D,
    Full,
    M,
    X,
    Y,
    split,
    stream_of,
)
from tests.support import plan_of
from tests.support import stream_of as blocks_of

pytestmark = pytest.mark.usefixtures("two_classes_each")
PASSES = {"nothing is kept": 4, "in memory": 1, "in a file": 1, "without room": 4}


def test_the_pieces_have_each_class_once_and_are_as_large_as_is_said() -> None:
    spans = [(piece.start, piece.stop) for piece in split(RECORDS) if isinstance(piece, ClassGrams)]
    assert spans == [(0, 2), (2, 4), (4, 6), (6, 7)]
    assert pieces(WHOLE, (2, D, D)) == [WHOLE]
    assert pieces(WHOLE, (3, 100, 100)) == [replace(WHOLE, start=j, stop=j + 1) for j in range(3)]
    assert pieces(Gram(CHAIN), (D, D)) == [Gram(CHAIN)]
    piece = replace(WHOLE, start=2, stop=5)
    assert pieces(piece, piece.shape(RECORDS)) == [piece]


@pytest.mark.parametrize("facts", FACTS.values(), ids=FACTS)
@pytest.mark.parametrize("place", PASSES)
def test_the_sums_of_the_pieces_are_those_of_the_whole(
    facts: Facts, place: str, in_file: Callable[[], Shelf], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several groups of vectors in each piece, and several blocks.
    monkeypatch.setattr(sums, "GATHERED", 11 * D)
    monkeypatch.setattr("dpfc_cli.privacy.passes.block_rows", lambda facts: 32)
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


def test_a_piece_is_what_the_definition_says() -> None:
    for piece in split(RECORDS):
        added = sum(contribution(piece, x, y, RECORDS, LATTICE) for x, y in zip(X, Y, strict=True))
        assert np.array_equal(exact_sum(piece, Summed(stream_of(RECORDS), RECORDS, LATTICE)), added)


def test_sums_do_not_depend_on_how_many_vectors_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one at a time, none is left at the end."""
    piece = split(RECORDS)[0]
    found = exact_sum(piece, Summed(stream_of(RECORDS), RECORDS, LATTICE))
    assert found.any()
    monkeypatch.setattr(sums, "GATHERED", 1)
    assert np.array_equal(exact_sum(piece, Summed(stream_of(RECORDS), RECORDS, LATTICE)), found)


@pytest.mark.parametrize("k", [1, 3])
def test_of_class_grams_no_more_vectors_are_held_than_are_gathered_or_than_a_block_has(
    k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All records have the same classes, so a piece takes all of their vectors. Memory must not grow with them."""
    n, rows, add, held = 40 * 64, 64, products.add_class_grams, list[int]()
    facts = replace(RECORDS, n=n, k=k)
    x, y = np.ones((n, D), np.float32), np.tile(np.arange(k, dtype=np.int32), (n, 1))

    def recorded(total: np.ndarray, labels: np.ndarray, q: np.ndarray) -> None:
        held.append(len(q))
        add(total, labels, q)

    monkeypatch.setattr(passes, "block_rows", lambda facts: rows)
    monkeypatch.setattr(sums, "GATHERED", 3 * rows * D)
    monkeypatch.setattr(products, "add_class_grams", recorded)
    for query, most in ((WHOLE, rows), (split(facts)[0], (3 + k) * rows)):
        held.clear()
        found = exact_sum(query, Summed(blocks_of(x, y), facts, LATTICE))
        assert found[0].any()
        assert len(held) > 1
        # A part of a block is rounded up to whole records.
        assert max(held) <= most + k


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


def lost_vector(directions: Directions, held: list[Any]) -> None:
    held[1] = tuple(array[:-1] for array in held[1])


def lost_integers(directions: Directions, held: list[Any]) -> None:
    held[1] = held[1][0], held[1][1][:-1]


def lost_run(directions: Directions, held: list[Any]) -> None:
    del directions._runs[1]


def run_twice(directions: Directions, held: list[Any]) -> None:
    directions._runs.append(directions._runs[1])


def other_class(directions: Directions, held: list[Any]) -> None:
    """As many vectors in the run as before."""
    labels = held[1][0].copy()
    labels[labels == 2] = 3
    held[1] = labels, held[1][1]


def exchanged_runs(directions: Directions, held: list[Any]) -> None:
    held[1], held[2] = held[2], held[1]


@pytest.mark.parametrize(
    "fault", [lost_vector, lost_integers, lost_run, run_twice, other_class, exchanged_runs], ids=lambda f: f.__name__
)
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
    monkeypatch.setattr("dpfc_cli.privacy.passes.block_rows", lambda facts: 32)
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


@pytest.mark.parametrize(
    ("start", "stop"),
    [*((0, stop) for stop in (0, 8, 1.0, True, "2")), *((start, M) for start in (-1, M, 0.0, False)), (1, None)],
)
def test_a_piece_of_other_classes_is_no_query(start: Any, stop: Any) -> None:
    with pytest.raises(ValueError, match="no piece"):
        check(ClassGrams(CHAIN, start, stop), RECORDS)


# Memory


def test_class_matrices_take_the_memory_of_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB for a piece, and 192 MiB for the decompositions, whatever the number of classes."""
    monkeypatch.setattr(forms, "PIECE_BYTES", PIECE_BYTES)
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


def test_pieces_that_are_larger_than_those_that_were_measured_count_four_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "PIECE_BYTES", 64 * 2**20)
    method, facts = METHODS["dp-ls"], Facts(n=1_280_000, m=10, d=4096)
    plan = method.plan(facts, method.planned(facts, {}, True))
    more = 4 * (8 * 4096**2 - 64 * 2**20)
    assert training_bytes(method, plan, facts) == state_bytes(method, plan) + WORKING_BYTES + PIECES_BYTES + more


def test_no_more_is_held_than_is_said(in_file: Callable[[], Shelf], monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy tells `tracemalloc` of its arrays. The whole answer would take 8 MB."""
    m, d = 64, 128
    monkeypatch.setattr(forms, "PIECE_BYTES", 4 * 8 * d**2)
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
