"""Several processes make the sum of one. Here they are threads, which meet as processes do."""

import json
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpfc_cli.privacy import parts
from dpfc_cli.privacy.chain import Centre, Clip, Linear
from dpfc_cli.privacy.curator import Curator, Unprotected, lattice_of
from dpfc_cli.privacy.directions import Directions, InMemory, Shelf
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.forms import check
from dpfc_cli.privacy.lattice import Lattice
from dpfc_cli.privacy.noise import SeededBits
from dpfc_cli.privacy.oracle import Mechanism
from dpfc_cli.privacy.parts import Together, decoded, digest_of, encoded, follow, framed, unframed
from dpfc_cli.privacy.passes import BlockStream, IncompletePassError, part_of
from dpfc_cli.privacy.queries import ClassGrams, Gradient, Gram, Query
from dpfc_cli.privacy.sums import Summed
from tests.support import LOST, every_query, exact_sum, of_each_way, plan_of, stream_of

LATTICE = Lattice(18)
N, M, D = 43, 3, 4
FACTS = Facts(n=N, m=M, d=D, k=2)
RNG = np.random.default_rng(8)
X = RNG.normal(size=(N, D)).astype(np.float32)
Y = RNG.integers(-1, M, size=(N, 2)).astype(np.int32)
SAMPLE = RNG.random(N) < 0.5
CHAIN = (Clip(2.5), Centre(RNG.normal(size=D)), Clip(1.0), Linear(RNG.normal(size=(D, D))))
QUERIES = [replace(query, chain=CHAIN) for query in {type(each): each for each in every_query(FACTS)}.values()]  # type: ignore[type-var]


class Room:
    """Where the processes of a test meet."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.barrier = threading.Barrier(count, timeout=LOST)
        self.values: dict[int, Any] = {}

    def meet(self, number: int, value: Any) -> list[Any]:
        self.values[number] = value
        self.barrier.wait()
        found = [self.values[each] for each in range(self.count)]
        self.barrier.wait()
        return found


class Threads:
    """A channel between threads."""

    def __init__(self, room: Room, number: int) -> None:
        self.number, self.count, self._room = number, room.count, room
        self.added_once = 0

    def tell(self, message: bytes) -> None:
        self._room.meet(0, message)

    def told(self) -> bytes:
        return bytes(self._room.meet(self.number, None)[0])

    def gathered(self, value: str) -> list[str]:
        return self._room.meet(self.number, value)

    def added(self, array: np.ndarray) -> np.ndarray:
        self.added_once += 1
        return np.asarray(sum(self._room.meet(self.number, array)))


def begun(begin: int) -> Callable[[int], Iterator[tuple[Any, ...]]]:
    def stream(rows: int) -> Iterator[tuple[Any, ...]]:
        yield from (block for block in stream_of(X, Y)(rows) if block[0] >= begin)

    return stream


OVER = Summed(begun(0), FACTS, LATTICE)


def together(
    count: int,
    lead: Callable[[Threads], Any],
    grid: Any = LATTICE,
    facts: Facts = FACTS,
    begun: Callable[[int], BlockStream] = begun,
    shelf: Callable[[], Shelf] = InMemory,
) -> Any:
    """What process 0 returns, while the others follow.

    begun: the records from one on. shelf: where a follower keeps vectors.
    """
    room = Room(count)
    channels = [Threads(room, number) for number in range(count)]

    def other(channel: Threads) -> None:
        begin = part_of(facts, channel.number, count).begin
        follow(channel, Summed(begun(begin), facts, grid, directions=Directions(shelf())))

    def first() -> Any:
        try:
            found = lead(channels[0])
        except BaseException:
            room.barrier.abort()
            raise
        channels[0].tell(b"")
        return found

    with ThreadPoolExecutor(count) as threads:
        led = threads.submit(first)
        followed = [threads.submit(other, channel) for channel in channels[1:]]
        try:
            return led.result()
        finally:
            for each in followed:
                each.exception()


def test_the_processes_make_the_sum_of_one() -> None:
    given = [(query, sample) for query in of_each_way(FACTS) for sample in (None, SAMPLE)]

    def lead(channel: Threads) -> list[np.ndarray]:
        summed = Together(channel)
        return [summed(query, OVER, sample) for query, sample in given]

    found = together(3, lead)
    alone = [exact_sum(query, begun(0), FACTS, LATTICE, sample) for query, sample in given]
    assert all(np.array_equal(a, b) for a, b in zip(found, alone, strict=True))


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_a_curator_of_several_processes_gives_the_answers_of_one(rate: float) -> None:
    query = next(each for each in QUERIES if isinstance(each, Gradient))
    plan = plan_of(FACTS, (query, 1.0), (query, 1.0), rate=rate)
    mechanism = Mechanism(facts=FACTS, plan=plan, mu=1.0)

    def answers(channel: Threads | None) -> list[np.ndarray]:
        summed = None if channel is None else Together(channel)
        curator = Curator(mechanism, Unprotected(begun(0)), SeededBits(4), together=summed)
        return [curator.release(query), curator.release(query)]

    found = together(3, answers, grid=lattice_of(mechanism))
    assert all(np.array_equal(a, b) for a, b in zip(found, answers(None), strict=True))


def test_a_message_holds_the_query_and_a_sample_of_any_size_to_the_last_bit() -> None:
    many = np.random.default_rng(9).random(2**20 + 3) < 0.5
    for query in QUERIES:
        for sample in (None, SAMPLE, many) if query is QUERIES[0] else (None, SAMPLE):
            found, taken = decoded(encoded(query, sample), FACTS if sample is None else replace(FACTS, n=len(sample)))
            check(found, FACTS)
            assert encoded(found, taken) == encoded(query, sample)
            assert (taken is None) == (sample is None)
            assert sample is None or np.array_equal(taken, sample)  # type: ignore[arg-type]


def test_a_process_gives_no_sum_away_where_a_unit_came_twice_or_not_at_all() -> None:
    """Each of them checks it, not process 0 alone."""

    class Other:
        """Process 1 of two. Process 0 had these units."""

        number, count = 1, 2

        def __init__(self, units: list[int]) -> None:
            self._units, self._left = units, [encoded(QUERIES[0], None)]

        def told(self) -> bytes:
            return self._left.pop()

        def gathered(self, value: str) -> list[str]:
            return [json.dumps(self._units), value]

        def added(self, array: np.ndarray) -> np.ndarray:
            pytest.fail("a sum was given away")

    begin = part_of(FACTS, 1, 2).begin
    for units in ([0, begin - 1], [0, begin + 1], [0, N]):
        with pytest.raises(IncompletePassError):
            follow(Other(units), Summed(begun(begin), FACTS, LATTICE))  # type: ignore[arg-type]


def test_a_query_has_one_digest_and_another_one_has_another() -> None:
    whole = ClassGrams((Clip(0.5),))
    assert digest_of(whole) == digest_of(ClassGrams((Clip(0.5),)))
    chains = [(Clip(0.25),), *((Centre(np.full(D, value)), Clip(0.5)) for value in (0.0, 1.0))]
    others: list[Query] = [whole, Gram((Clip(0.5),)), replace(whole, stop=2), *map(ClassGrams, chains)]
    assert len({digest_of(query) for query in others}) == len(others)


def with_said(**changed: Any) -> bytes:
    said, rest = unframed(encoded(QUERIES[0], None))
    return framed(said | changed, bytes(rest))


WHOLE = encoded(QUERIES[0], None)
HOSTILE = {
    "nothing that was made here": b"not a message",
    "nothing": b"",
    "a pickle": pickle.dumps({"kind": "gram"}),
    "a length beyond its end": b"\xff" * 8,
    "values that are nested too deeply": (60_000).to_bytes(4, "big") + b"[" * 60_000,
    "values that are no object": framed([], b""),  # type: ignore[arg-type]
    "too many values": with_said(more="a" * 2**16),
    "another kind": with_said(kind="everything"),
    "another step": with_said(chain=[{"step": "eval"}]),
    "more steps than arrays": with_said(chain=[{"step": "linear"}] * 3000),
    "fields of another query": with_said(kind="gradient"),
    "a field too many": with_said(plain={"constant": 0.0, "scale": 1.0}),
    "a sample that is not there": with_said(sampled=True),
    "bytes too few": WHOLE[:-1],
    "bytes too many": WHOLE + b"\0",
}


def test_a_message_that_holds_no_query_of_the_core_is_refused() -> None:
    for message in HOSTILE.values():
        with pytest.raises(ValueError, match="holds no query"):
            decoded(message, FACTS)


class Asking:
    """A channel of one process to which somebody sends these messages. It meets nobody."""

    def __init__(self, messages: list[bytes]) -> None:
        self.count, self.number = 2, 1
        self.told = iter(messages).__next__


def unread(rows: int) -> Iterator[tuple[Any, ...]]:
    pytest.fail("a record was read")


def test_values_that_break_a_proof_are_refused_in_each_process() -> None:
    for wrong in (-1.0, 10**400, float("nan"), True):
        query, _ = decoded(with_said(plain={"constant": wrong}), FACTS)
        with pytest.raises(ValueError, match="not positive"):
            check(query, FACTS)
    # A process that follows reads no record for it.
    channel: Any = Asking([encoded(query, None)])
    with pytest.raises(ValueError, match="not positive"):
        follow(channel, Summed(unread, FACTS, LATTICE))


def test_one_of_each_of_the_core_has_a_name_of_its_own_in_messages() -> None:
    assert len(parts.KINDS) == len({type(query) for query in QUERIES}) == 8
