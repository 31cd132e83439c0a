"""A pass reads each unit once. Its parts add up to the sum over all records, and each unit is in one of them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpfc_cli.privacy.directions import Directions, InMemory
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Lattice
from dpfc_cli.privacy.passes import Block, BlockStream, Counted, IncompletePassError, Part, block_rows, chained, part_of
from dpfc_cli.privacy.queries import Gradient, Query
from dpfc_cli.privacy.sums import Summed, partial_sum
from tests import instead
from tests.support import every_query, exact_sum, of_each_way

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
    instead.block_rows(monkeypatch, 10)


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
    """The sum of each part, and its units. kept: they are asked for twice, and the same."""
    facts = facts_of(sizes)
    sums, spans = [], []
    for number in range(count):
        part, directions = part_of(facts, number, count), Directions(InMemory()) if kept else None
        over = Summed(stream_of(sizes, part.begin), facts, LATTICE, directions=directions)
        (total, span), *again = [partial_sum(query, over, part, sample) for _ in range(1 + kept)]
        assert all(np.array_equal(other, total) for other, _ in again)
        sums.append(total)
        spans.append(span)
    return sums, spans


@pytest.mark.parametrize("count", [3, 14])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_the_parts_add_up_to_the_whole_and_have_each_unit_once(sizes: list[int] | None, count: int) -> None:
    facts = facts_of(sizes)
    for query in of_each_way(facts):
        sums, spans = sums_of(query, sizes, count)
        assert np.array_equal(sum(sums), exact_sum(query, stream_of(sizes), facts, LATTICE))
        chained(spans, facts)
        assert sorted(unit for span in spans for unit in span) == list(range(facts.n))


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_the_parts_of_a_sample_add_up_and_have_each_unit_once(sizes: list[int] | None) -> None:
    facts = facts_of(sizes)
    sample = np.random.default_rng(6).random(facts.n) < 0.5
    for query in of_each_way(facts):
        # What gradients share is made in the first pass, and kept for the second.
        sums, spans = sums_of(query, sizes, 3, sample, kept=isinstance(query, Gradient))
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


def test_parts_that_do_not_have_each_unit_once_are_refused() -> None:
    for spans in CHAINS.values():
        with pytest.raises(IncompletePassError):
            chained(spans, RECORDS)


def test_a_pass_that_ends_before_its_part_is_refused() -> None:
    def stream(rows: int) -> Iterator[tuple[Any, ...]]:
        yield from (block for block in stream_of(None, 30)(rows) if block[0] < 50)

    with pytest.raises(IncompletePassError, match="covered the records to 50, not to 60"):
        partial_sum(every_query(RECORDS)[0], Summed(stream, RECORDS, LATTICE), Part(30, 60, 30))
    # All records are there, and a person is missing.
    sizes = SIZES["one person over several parts"]
    with pytest.raises(IncompletePassError):
        exact_sum(every_query(RECORDS)[0], stream_of(sizes), replace(facts_of(sizes), n=4), LATTICE)


@pytest.mark.parametrize("sample", [np.ones(N - 1, bool), np.ones(N)], ids=["too short", "no booleans"])
def test_a_sample_must_say_of_each_unit_whether_it_takes_part(sample: np.ndarray) -> None:
    with pytest.raises(IncompletePassError, match="each unit"):
        exact_sum(every_query(RECORDS)[0], stream_of(None), RECORDS, LATTICE, sample)


def test_a_sample_of_a_part_without_records_adds_nothing() -> None:
    part, sample = part_of(RECORDS, 0, 14), np.ones(N, bool)
    assert part.start == part.stop
    for query in of_each_way(RECORDS):
        total, span = partial_sum(query, Summed(stream_of(None), RECORDS, LATTICE), part, sample)
        assert not total.any()
        assert span == range(0)


# Blocks without features: each of these tests takes no time

SIXTY = Facts(n=60, m=3, d=4)


def blocks(begin: int, persons: Sequence[int] | None = None) -> Iterator[Block]:
    count = 60 if persons is None else len(persons)
    for at in range(begin, count, 10):
        found = [] if persons is None else [np.array(persons[at : at + 10], np.int64)]
        rows = min(10, count - at)
        yield Block(at, np.zeros((rows, 1), np.int32), found, (np.zeros((rows, 4)),))


def read(part: Part, persons: Sequence[int] | None = None) -> tuple[range, dict[int, list[bool] | None]]:
    """The units of a part, and which records of each block take part."""
    facts = SIXTY if persons is None else replace(SIXTY, n=max(persons) + 1, rows=len(persons))
    counted = Counted(facts, part, None)
    taken = {b.start: t for b, t in counted.over(blocks(part.begin, persons), (4,))}
    return counted.span, {start: None if t is None else t.tolist() for start, t in taken.items()}


def persons_of(*sizes: int) -> list[int]:
    return np.repeat(np.arange(len(sizes)), sizes).tolist()


def test_blocks_are_powers_of_two_and_their_factors_take_64_mebibytes() -> None:
    for n, d, m, rows in (
        (10**6, 192, 10, 8192), (10, 5, 3, 64), (64, 5, 3, 64), (65, 5, 3, 128),
        # 64 MiB exactly, and more.
        (10**6, 2046, 1, 4096), (10**6, 2046, 2, 2048), (10**6, 1, 2046, 4096), (10**6, 2**17, 2**17, 64),
    ):  # fmt: skip
        assert block_rows(Facts(n=n, d=d, m=m)) == rows


def test_a_pass_has_all_records_in_the_blocks_that_were_asked_for_or_is_refused() -> None:
    whole = list(blocks(0))
    first, second, *_ = whole
    longer = Block(0, np.zeros((20, 1), np.int32), [], (np.zeros((20, 4)),))
    hostile: list[list[Block]] = [
        [],
        *([*whole[:i], *whole[i + 1 :]] for i in range(6)),
        *([*whole[:i], whole[i], *whole[i:]] for i in range(6)),
        *([*whole[:i], whole[i - 1], *whole[i + 1 :]] for i in range(6)),
        [second, first, *whole[2:]],
        [longer, *whole[2:]],
        [*whole, *whole],
        [first._replace(data=(np.zeros((10, 3)),)), *whole[1:]],
        [first._replace(labels=np.zeros((10, 2), np.int32)), *whole[1:]],
        [first._replace(found=[np.zeros(10, np.int64)]), *whole[1:]],
    ]
    for each in hostile:
        with pytest.raises(IncompletePassError):
            list(Counted(SIXTY, Part(0, 60, 0), None).over(iter(each), (4,)))
    assert len(list(Counted(SIXTY, Part(0, 60, 0), None).over(iter(whole), (4,)))) == 6


def test_persons_follow_one_another_from_0_to_the_last_as_plain_64_bit_integers() -> None:
    good = persons_of(9, 1, 10, 20, 20)
    later: list[list[int]] = [
        [*good[:25], *[0] * 15, *good[40:]],
        [*good[:25], *[-1] * 15, *good[40:]],
        [*good[:25], *(each + 2 for each in good[25:])],
    ]
    begins: list[list[int]] = [[1] * 60, [*good[:5], *[1] * 5, *good[:5], *good[15:]], [-1, *good[1:]]]
    for numbers in (*begins, *later):
        with pytest.raises(IncompletePassError):
            read(Part(0, 60, 0), numbers)
    # In the middle of the records, too.
    for numbers in later:
        with pytest.raises(IncompletePassError):
            read(Part(20, 60, 10), numbers)
    facts = replace(SIXTY, n=5, rows=60)
    for made in (np.int32, np.float64, list, lambda each: np.array([each])):
        odd = (block._replace(found=[made(block.found[0])]) for block in blocks(0, good))
        with pytest.raises(IncompletePassError, match="which records belong"):
            list(Counted(facts, Part(0, 60, 0), None).over(odd, (4,)))
    # Not said of persons.
    with pytest.raises(IncompletePassError, match="which records belong"):
        list(Counted(facts, Part(0, 60, 0), None).over(blocks(0), (4,)))
    assert read(Part(0, 60, 0), good)[0] == range(5)


def test_a_person_beyond_the_last_is_seen_before_its_records_are_added() -> None:
    persons = persons_of(10, 10, 10, 10)
    for n in (2, 3):
        pass_ = Counted(replace(SIXTY, n=n, rows=40), Part(0, 40, 0), None).over(blocks(0, persons), (4,))
        for _ in range(n):
            next(pass_)
        with pytest.raises(IncompletePassError, match=f"more than {n} units"):
            next(pass_)


def test_a_part_without_records_has_no_unit_wherever_it_lies() -> None:
    """It would add a block that another process adds, too."""
    for at in (0, 30, 60):
        assert read(Part(at, at, at)) == (range(at, at), {})
    assert read(Part(0, 0, 0), persons_of(20, 40)) == (range(0), {})
    # Its units are counted in persons, as those of the parts beside it are.
    span, taken = read(Part(30, 30, 20), persons_of(25, 35))
    assert span == range(2, 2)
    assert not any(any(mask or ()) for mask in taken.values())
    chained([range(0), range(0, 30), range(30, 30), range(30, 60)], SIXTY)


def test_progress_is_that_of_the_part() -> None:
    told: list[tuple[int, int]] = []
    list(Counted(SIXTY, Part(30, 60, 30), None, lambda *done: told.append(done)).over(blocks(30), (4,)))
    assert told == [(10, 30), (20, 30), (30, 30)]


def test_records_before_the_first_person_of_a_part_take_no_part_wherever_the_pass_begins() -> None:
    span, taken = read(Part(30, 60, 10), persons_of(12, 12, 12, 24))
    assert span == range(3, 4)
    assert taken == {10: [False] * 10, 20: [False] * 10, 30: [False] * 6 + [True] * 4, 40: None, 50: None}


def test_a_part_that_does_not_show_where_its_persons_begin_and_end_is_refused() -> None:
    for part in (Part(20, 20, 20), Part(30, 20, 10), Part(10, 0, 0)):
        with pytest.raises(IncompletePassError, match="begin and end"):
            read(part, persons_of(10) if part.begin == 0 else persons_of(1, 1, 18))


def test_a_pass_reads_on_only_as_long_as_a_person_of_its_own_goes_on() -> None:
    """The block behind the part shows whether the person goes on."""
    for sizes, starts in (((5, 55), [10, 20]), ((22, 38), [10, 20, 30, 40, 50]), ((22, 8, 30), [10, 20, 30])):
        assert list(read(Part(20, 30, 10), persons_of(*sizes))[1]) == starts
