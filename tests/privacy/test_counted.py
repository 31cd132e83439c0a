"""A pass is checked block by block, while it is read. Here the blocks have no features, so each test takes no time."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from dpfc_cli.privacy import passes
from dpfc_cli.privacy.directions import Directions, InMemory
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.passes import Block, Counted, IncompletePassError, Part, chained, part_of
from tests.support import every_query

N, ROWS = 60, 10
RECORDS = Facts(n=N, m=3, d=4)


@pytest.fixture(autouse=True)
def blocks_of_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "block_rows", lambda facts: ROWS)


def facts_of(persons: Sequence[int]) -> Facts:
    return Facts(n=max(persons) + 1, m=3, d=4, rows=len(persons))


def blocks(begin: int, persons: Sequence[int] | None = None, records: int = N) -> Iterator[Block]:
    for at in range(begin, records if persons is None else len(persons), ROWS):
        found = [] if persons is None else [np.array(persons[at : at + ROWS], np.int64)]
        count = min(ROWS, records - at) if persons is None else len(found[0])
        yield Block(at, np.zeros((count, 1), np.int32), found, (np.zeros((count, 4)),))


def read(part: Part, persons: Sequence[int] | None = None) -> tuple[range, dict[int, list[bool] | None]]:
    """The units of a part, and which records of each block take part."""
    counted = Counted(RECORDS if persons is None else facts_of(persons), part, None)
    taken = {b.start: t for b, t in counted.over(blocks(part.begin, persons), (4,))}
    return counted.span, {start: None if t is None else t.tolist() for start, t in taken.items()}


def persons_of(*sizes: int) -> list[int]:
    return np.repeat(np.arange(len(sizes)), sizes).tolist()


@pytest.mark.parametrize("at", [0, 30, N])
def test_a_part_without_records_reads_none(at: int) -> None:
    """It would add a block that another process adds, too."""
    assert read(Part(at, at, at)) == (range(at, at), {})


def test_neither_does_an_empty_part_at_the_beginning_if_units_are_persons() -> None:
    assert read(Part(0, 0, 0), persons_of(20, 40)) == (range(0), {})


def test_a_part_without_records_has_no_person_wherever_it_lies() -> None:
    """Its units are counted in persons, as those of the parts beside it are."""
    span, taken = read(Part(30, 30, 20), persons_of(25, 35))
    assert span == range(2, 2)
    assert not any(any(mask or ()) for mask in taken.values())


def test_an_empty_part_between_two_others_is_no_fault() -> None:
    chained([range(0), range(0, 30), range(30, 30), range(30, N)], RECORDS)


def test_progress_is_that_of_the_part() -> None:
    told: list[tuple[int, int]] = []
    list(Counted(RECORDS, Part(30, 60, 30), None, lambda *done: told.append(done)).over(blocks(30), (4,)))
    assert told == [(10, 30), (20, 30), (30, 30)]


@pytest.mark.parametrize(
    "persons",
    [
        [1] * 20,
        [0] * 10 + [2] * 10,
        [0] * 10 + [1] * 10 + [0] * 10,
        [0] * 5 + [1] * 5 + [0] * 10,
        [0] * 10 + [-1] * 10,
    ],
    ids=["not from 0", "one is missing", "one comes again", "the one before comes again", "a negative one"],
)
def test_persons_follow_one_another_also_from_block_to_block(persons: list[int]) -> None:
    with pytest.raises(IncompletePassError, match="follow one another"):
        read(Part(0, len(persons), 0), persons)


@pytest.mark.parametrize("n", [2, 3])
def test_a_person_beyond_the_last_is_seen_before_its_records_are_added(n: int) -> None:
    persons = persons_of(10, 10, 10, 10)
    facts = Facts(n=n, m=3, d=4, rows=len(persons))
    pass_ = Counted(facts, Part(0, 40, 0), None).over(blocks(0, persons), (4,))
    for _ in range(n):
        next(pass_)
    with pytest.raises(IncompletePassError, match=f"more than {n} units"):
        next(pass_)


def test_records_before_the_first_person_of_a_part_take_no_part_wherever_the_pass_begins() -> None:
    span, taken = read(Part(30, 60, 10), persons_of(12, 12, 12, 24))
    assert span == range(3, 4)
    assert taken == {10: [False] * 10, 20: [False] * 10, 30: [False] * 6 + [True] * 4, 40: None, 50: None}


@pytest.mark.parametrize("part", [Part(20, 20, 20), Part(30, 20, 10), Part(10, 0, 0)], ids=repr)
def test_a_part_that_does_not_show_where_its_persons_begin_and_end_is_refused(part: Part) -> None:
    persons = persons_of(10) if part.begin == 0 else persons_of(1, 1, 18)
    with pytest.raises(IncompletePassError, match="begin and end"):
        read(part, persons)


@pytest.mark.parametrize(
    ("sizes", "starts"),
    [((5, 55), [10, 20]), ((22, 38), [10, 20, 30, 40, 50]), ((22, 8, 30), [10, 20, 30])],
    ids=["no person of its own", "the last one goes on", "the last one does not"],
)
def test_a_pass_reads_on_only_as_long_as_a_person_of_its_own_goes_on(sizes: tuple[int, ...], starts: list[int]) -> None:
    """The block behind the part shows whether the person goes on."""
    _, taken = read(Part(20, 30, 10), persons_of(*sizes))
    assert list(taken) == starts


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7, 13])
def test_parts_of_any_number_have_all_records_between_them(count: int) -> None:
    parts = [part_of(RECORDS, number, count) for number in range(count)]
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == N
    chained([read(part)[0] for part in parts], RECORDS)


class OfTwo(InMemory):
    """A shelf with room for two blocks."""

    def put(self, block: tuple[np.ndarray, ...]) -> bool:
        return len(self._held) < 2 and super().put(block)


def test_a_shelf_that_was_full_once_is_not_filled_again() -> None:
    shelf = OfTwo()
    directions = Directions(shelf)
    query = next(query for query in every_query(RECORDS) if query.kind == "gradient")
    list(directions.keeping(query, ((block, None) for block in blocks(ROWS))))  # type: ignore[arg-type]
    assert not list(shelf.blocks())
    assert not directions.holds(query)  # type: ignore[arg-type]
