"""Blocks are computed in parts and multiplied by several threads. No sum of integers changes by it."""

from collections.abc import Iterator
from threading import Event, Lock
from typing import Any

import numpy as np
import pytest

from dpfc_cli import threads
from dpfc_cli.kernels import products, rows
from dpfc_cli.privacy.directions import Directions, InMemory
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Lattice
from dpfc_cli.privacy.passes import block_rows
from dpfc_cli.privacy.queries import Gradient, Gram, Query
from tests.support import every_query, exact_sum, stream_of

RNG = np.random.default_rng(0)
LOST = 20
"""Seconds after which a thread that waits for no reason fails."""
TYPES = ("int16", "float32", "float64")


@pytest.fixture(autouse=True)
def none_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are started for products of any size."""
    monkeypatch.setattr(products, "SMALL", 0)


def blocks(dtype: str, lengths: tuple[int, ...] = (1300, 512, 1, 700)) -> list[tuple[np.ndarray, np.ndarray]]:
    return [
        (RNG.integers(-(2**14), 2**14, (n, 6)).astype(dtype), RNG.integers(-(2**17), 2**17, (n, 4)).astype(np.float64))
        for n in lengths
    ]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("cores", [1, 2, 5, 100])
def test_any_number_of_threads_adds_each_block_once(cores: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cores", lambda: cores)
    made = blocks(dtype)
    left, right = (np.concatenate(parts).astype(np.int64) for parts in zip(*made, strict=True))
    assert np.array_equal(products.summed(iter(made), (6, 4)), left.T @ right)
    assert np.array_equal(products.summed(((a, a) for a, _ in made), (6, 6), alone=True), left.T @ left)


@pytest.mark.parametrize("alone", [False, True], ids=["two factors", "one factor"])
@pytest.mark.parametrize("room", [0.5, 2, 3, 4.5, 100], ids=lambda room: f"room for {room} blocks")
def test_few_blocks_are_made_before_they_are_added(room: float, alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks that are there, and all sums, fit into what is counted, and no fewer are made."""
    monkeypatch.setattr(threads, "cores", lambda: 8)
    block = np.ones((100, 6)), np.ones((100, 6))
    monkeypatch.setattr(products, "SUMS", int(room * (1 if alone else 2) * block[0].nbytes))
    real, lock, made, added, working, peak, most = products._added, Lock(), 0, 0, 0, 0, 0
    late = Event()

    def counted(*given: Any) -> np.ndarray:
        nonlocal added, working, most
        with lock:
            working += 1
            most = max(most, working)
        # Until as many blocks are there as there can be.
        assert late.wait(LOST)
        total = real(*given)
        with lock:
            added, working = added + 1, working - 1
        return total

    def blocks_of() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        nonlocal made, peak
        for _ in range(40):
            made += 1
            peak = max(peak, made - added)
            if made >= allowed:
                late.set()
            yield block

    allowed = 1 if room < 3 else min(8, int(room) - 1) + 1
    monkeypatch.setattr(products, "_added", counted)
    total = products.summed(blocks_of(), (6, 6), alone=alone)
    assert (total == 4000).all()
    assert (peak, made) == (allowed, 40)
    assert most <= max(1, allowed - 1)


def test_a_gram_matrix_is_counted_beside_its_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 8)
    monkeypatch.setattr(products, "SUMS", 4 * 8 * 6 * 6)
    block = np.ones((1, 6)), np.ones((1, 6))
    assert products._threads_for(block, (6, 6)) == 4
    assert products._threads_for((block[0], None), (6, 6)) == 2


def test_no_thread_is_started_for_products_that_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit makes thousands of them. Class matrices of real numbers are the same to the last bit, too."""
    monkeypatch.setattr(threads, "cores", lambda: 2)
    made, labels = blocks("float64"), RNG.integers(0, 3, 1300)
    q, weights = RNG.normal(size=(1300, 6)), RNG.random((1300, 3))

    def sums() -> list[np.ndarray]:
        by_class, weighted = np.zeros((3, 6, 6)), np.zeros((3, 6, 6))
        products.add_class_grams(by_class, labels, q)
        products.add_weighted_grams(weighted, weights, q)
        return [products.summed(iter(made), (6, 4)), by_class, weighted]

    expected = sums()
    monkeypatch.setattr(products, "SMALL", 1300 * 6 * 6 * 3)
    monkeypatch.setattr(threads, "ThreadPoolExecutor", None)
    for one, other in zip(expected, sums(), strict=True):
        assert np.array_equal(one, other)
    monkeypatch.setattr(products, "SMALL", 1300 * 6 * 6 * 3 - 1)
    with pytest.raises(TypeError):
        sums()


def test_real_numbers_are_added_in_the_order_of_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of these depend on the order, and the non-private baseline is to be the same in each run."""
    monkeypatch.setattr(threads, "cores", lambda: 2)
    made = [(RNG.normal(size=(40, 6)), RNG.normal(size=(40, 4)) * 10.0**i) for i in range(8)]
    total = np.zeros((6, 4))
    for a, b in made:
        total += a.T @ b
    assert np.array_equal(products.summed(iter(made), (6, 4), integers=False), total)


class BrokenError(Exception):
    """What a pass raises in these tests."""


@pytest.mark.parametrize("where", ["in the stream", "in the products", "in the last product"])
def test_an_error_ends_the_sum(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum that lacks a block is never returned, and no thread waits for one that has failed."""
    monkeypatch.setattr(threads, "cores", lambda: 2)

    def failing() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        yield from blocks("float32")
        if where == "in the stream":
            raise BrokenError
        for _ in range(1 if where == "in the last product" else 4):
            yield np.ones((3, 6)), np.ones((4, 4))

    with pytest.raises(BrokenError if where == "in the stream" else ValueError):
        products.summed(failing(), (6, 4))


N = 1025
"""Two parts of 512 records, and one record."""
FACTS = Facts(n=N, m=3, d=6)
X, Y = RNG.normal(size=(N, 6)).astype(np.float32), RNG.integers(0, 3, N).astype(np.int32)
QUERIES = [query for query in every_query(FACTS) if isinstance(query, Gram | Gradient) and len(query.chain) > 1]


@pytest.mark.parametrize("query", QUERIES, ids=[query.kind for query in QUERIES])
def test_a_block_in_parts_gives_the_same_integers(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts the last block is padded less. Logits are float32, and they are equal to the last bit all the same."""
    size = block_rows(FACTS)
    sample = RNG.random(FACTS.n) < 0.6 if isinstance(query, Gradient) else None

    def sums() -> list[np.ndarray]:
        kept = Directions(InMemory())
        passes = [(None, kept), (None, kept), (sample, kept)]
        return [exact_sum(query, stream_of(X, Y), FACTS, Lattice(18), *each) for each in passes]

    monkeypatch.setattr(rows, "CHUNK", size)
    whole = sums()
    monkeypatch.setattr(rows, "CHUNK", 512)
    assert rows.chunk(size) == 512
    for a, b in zip(whole, sums(), strict=True):
        assert np.array_equal(a, b)
        assert a.any()
