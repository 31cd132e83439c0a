"""The parts of a pass: their sums add up to the sum over all records, and each unit is in one of them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpfc_cli.privacy import passes
from dpfc_cli.privacy.directions import Directions, InMemory
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Lattice
from dpfc_cli.privacy.passes import BlockStream, IncompletePassError, Part, chained, part_of
from dpfc_cli.privacy.queries import Query
from dpfc_cli.privacy.sums import Summed, partial_sum
from tests.support import every_query, exact_sum, one_of_each

LATTICE = Lattice(14)
N, M, D = 103, 3, 4
RECORDS = Facts(n=N, m=M, d=D)
RNG = np.random.default_rng(5)
X = RNG.normal(size=(N, D)).astype(np.float32)
Y = RNG.integers(-1, M, size=(N, 1)).astype(np.int32)
SIZES = {
    "records": None,
    "persons of one record": [1] * N,
    "persons over block edges": [1, 19, 2, 18, 25, 3, 3, 3, 1, 28],
    "one person over several parts": [9, 85, 9],
    "one person": [N],
}


@pytest.fixture(autouse=True)
def blocks_of_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "block_rows", lambda facts: 10)


def facts_of(sizes: list[int] | None) -> Facts:
    return RECORDS if sizes is None else replace(RECORDS, n=len(sizes), rows=N)


def stream_of(sizes: list[int] | None, begin: int = 0) -> BlockStream:
    persons = None if sizes is None else np.repeat(np.arange(len(sizes)), sizes)

    def stream(rows: int) -> Iterator[tuple[Any, ...]]:
        for at in range(begin, N, rows):
            found = () if persons is None else (persons[at : at + rows],)
            yield at, X[at : at + rows], Y[at : at + rows], *found

    return stream


def sums_of(
    query: Query, sizes: list[int] | None, count: int, sample: np.ndarray | None = None, kept: bool = False
) -> tuple[list[np.ndarray], list[range]]:
    """The sum of each part, and its units. kept: the second time that they are asked for."""
    facts = facts_of(sizes)
    sums, spans = [], []
    for number in range(count):
        part, directions = part_of(facts, number, count), Directions(InMemory()) if kept else None
        for _ in range(1 + kept):
            stream = stream_of(sizes, part.begin)
            total, span = partial_sum(query, Summed(stream, facts, LATTICE, directions=directions), part, sample)
        sums.append(total)
        spans.append(span)
    return sums, spans


@pytest.mark.parametrize("count", [1, 2, 3, 11, 14])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_the_parts_add_up_to_the_whole_and_have_each_unit_once(sizes: list[int] | None, count: int) -> None:
    facts = facts_of(sizes)
    for query in one_of_each(facts):
        sums, spans = sums_of(query, sizes, count)
        assert np.array_equal(sum(sums), exact_sum(query, stream_of(sizes), facts, LATTICE))
        chained(spans, facts)
        assert sorted(unit for span in spans for unit in span) == list(range(facts.n))


@pytest.mark.parametrize("kept", [False, True], ids=["made", "kept"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_so_do_the_parts_of_a_sample(sizes: list[int] | None, kept: bool) -> None:
    facts = facts_of(sizes)
    sample = np.random.default_rng(6).random(facts.n) < 0.5
    for query in one_of_each(facts):
        sums, spans = sums_of(query, sizes, 3, sample, kept)
        assert np.array_equal(sum(sums), exact_sum(query, stream_of(sizes), facts, LATTICE, sample))
        chained(spans, facts)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_a_part_reads_its_own_blocks_and_no_others(sizes: list[int] | None) -> None:
    """With persons: one block before them, and those in which its last person goes on."""
    facts, query = facts_of(sizes), every_query(RECORDS)[0]
    for number in range(3):
        part = part_of(facts, number, 3)
        reached: list[int] = []

        def watched(rows: int, part: Part = part, reached: list[int] = reached) -> Iterator[tuple[Any, ...]]:
            for block in stream_of(sizes, part.begin)(rows):
                reached.append(block[0])
                yield block

        partial_sum(query, Summed(watched, facts, LATTICE), part)
        assert reached[0] == part.begin == max(0, part.start - (0 if sizes is None else 10))
        if sizes is None or max(sizes) == 1:
            # It is seen in the first record behind the part that the last person does not go on.
            assert reached[-1] == part.stop - (10 if part.stop < N else 3) + (10 if sizes and part.stop < N else 0)
    assert [part_of(RECORDS, number, 3) for number in range(3)] == [Part(0, 30, 0), Part(30, 70, 30), Part(70, N, 70)]


def test_a_person_who_goes_on_in_the_next_part_counts_in_the_first_alone() -> None:
    sizes = SIZES["one person over several parts"]
    _, spans = sums_of(every_query(RECORDS)[0], sizes, 4)
    assert spans == [range(0, 2), range(2, 2), range(2, 2), range(2, 3)]


CHAINS = {
    "a unit twice": [range(0, 50), range(49, N)],
    "a unit in none": [range(0, 50), range(51, N)],
    "the first is missing": [range(1, N)],
    "the last is missing": [range(0, 50), range(50, N - 1)],
    "more than there are": [range(0, N + 1)],
    "the whole twice": [range(0, N), range(0, N)],
    "backwards": [range(0, 60), range(60, 40), range(40, N)],
    "none": [],
}


@pytest.mark.parametrize("spans", CHAINS.values(), ids=CHAINS)
def test_parts_that_do_not_have_each_unit_once_are_refused(spans: list[range]) -> None:
    with pytest.raises(IncompletePassError):
        chained(spans, RECORDS)


def shifted(facts: Facts) -> list[Part]:
    first, last = (part_of(facts, number, 2) for number in range(2))
    return [replace(first, stop=first.stop + 10), last]


@pytest.mark.parametrize("sizes", [None, SIZES["persons of one record"]], ids=["records", "persons"])
def test_a_planted_fault_of_the_parts_is_seen_in_their_units(sizes: list[int] | None) -> None:
    """A process that sums a block of another one, too: its records would count twice."""
    facts, query = facts_of(sizes), every_query(RECORDS)[0]
    parts = shifted(facts)
    found = [partial_sum(query, Summed(stream_of(sizes, part.begin), facts, LATTICE), part) for part in parts]
    whole = exact_sum(query, stream_of(sizes), facts, LATTICE)
    assert not np.array_equal(sum(total for total, _ in found), whole)
    with pytest.raises(IncompletePassError):
        chained([span for _, span in found], facts)


GROUPS = {
    "a person who comes again": [0, 1, 0],
    "a person is left out": [0, 2, 3],
    "a negative number": [-1, 0, 1],
}


@pytest.mark.parametrize("begins", GROUPS.values(), ids=GROUPS)
def test_persons_are_checked_in_the_middle_of_the_records_too(begins: list[int]) -> None:
    numbers = np.repeat([*np.arange(40), *(40 + np.array(begins)), *np.arange(43, 103)], 1)
    if -1 in begins:
        numbers[35] = -1
    facts = replace(RECORDS, n=N, rows=N)

    def stream(rows: int) -> Iterator[tuple[Any, ...]]:
        for at in range(20, N, rows):
            yield at, X[at : at + rows], Y[at : at + rows], numbers[at : at + rows]

    with pytest.raises(IncompletePassError):
        partial_sum(every_query(RECORDS)[0], Summed(stream, facts, LATTICE), Part(30, 60, 20))


def test_a_pass_that_ends_before_its_part_is_refused() -> None:
    def stream(rows: int) -> Iterator[tuple[Any, ...]]:
        yield from (block for block in stream_of(None, 30)(rows) if block[0] < 50)

    with pytest.raises(IncompletePassError, match="covered the records to 50, not to 60"):
        partial_sum(every_query(RECORDS)[0], Summed(stream, RECORDS, LATTICE), Part(30, 60, 30))


@pytest.mark.parametrize("sample", [np.ones(N - 1, bool), np.ones(N)], ids=["too short", "no booleans"])
def test_a_sample_must_say_of_each_unit_whether_it_takes_part(sample: np.ndarray) -> None:
    with pytest.raises(IncompletePassError, match="each unit"):
        exact_sum(every_query(RECORDS)[0], stream_of(None), RECORDS, LATTICE, sample)


def test_a_sample_of_a_part_without_records_adds_nothing() -> None:
    part, sample = part_of(RECORDS, 0, 14), np.ones(N, bool)
    assert part.start == part.stop
    for query in one_of_each(RECORDS):
        total, span = partial_sum(query, Summed(stream_of(None), RECORDS, LATTICE), part, sample)
        assert not total.any()
        assert span == range(0)
