"""What gradients share is computed once, and no sum changes by it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from dpfc_cli.kernels import rows
from dpfc_cli.privacy import sums
from dpfc_cli.privacy.chain import Centre, Clip, Linear
from dpfc_cli.privacy.directions import Directions, InMemory, direction_bytes
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.inputs import Loss
from dpfc_cli.privacy.lattice import LEAST_BITS, MOST_BITS, Lattice, Reals
from dpfc_cli.privacy.passes import BlockStream, IncompletePassError
from dpfc_cli.privacy.queries import Gradient, Gram, Grid, Mean
from dpfc_cli.privacy.sums import SAMPLED, _DirectionMap, _of_one, _ResidualMap, _taken_out
from tests import instead
from tests.support import every_query, exact_sum, stream_of

N, D, M, K = 100, 4, 3, 2
FACTS = Facts(n=N, m=M, d=D, k=K)
LATTICE = Lattice(18)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D)).astype(np.float32)
Y = np.stack([np.arange(N) % M, np.where(np.arange(N) % 4, -1, 1)], axis=1).astype(np.int32)
Y[7] = -1
X[8, 0] = np.nan
X[9] = 0
OTHER = RNG.normal(size=(D + 1, M))
GRADIENTS = [query for query in every_query(FACTS) if isinstance(query, Gradient)]
QUERY = GRADIENTS[-1]


def moved(query: Gradient) -> Gradient:
    """The same gradient at another θ."""
    return replace(query, theta=np.ascontiguousarray(OTHER[: len(query.theta)]))


def reading(stream: BlockStream) -> tuple[BlockStream, list[int]]:
    """The same stream, and a list that grows with every pass over it."""
    passes: list[int] = []

    def counted(size: int) -> Iterator[tuple[Any, ...]]:
        passes.append(size)
        return stream(size)

    return counted, passes


@pytest.mark.parametrize(
    ("query", "grid"),
    [*((QUERY, grid) for grid in (LATTICE, Lattice(15), Reals())), *((query, LATTICE) for query in GRADIENTS[1:3])],
)
def test_later_gradients_read_no_record_and_are_the_same_to_the_last_bit(query: Gradient, grid: Grid) -> None:
    stream, passes = reading(stream_of(X, Y))
    directions = Directions(InMemory())
    for asked in (query, moved(query), query, replace(moved(query), clip=0.01)):
        kept = exact_sum(asked, stream, FACTS, grid, directions=directions)
        assert np.array_equal(kept, exact_sum(asked, stream_of(X, Y), FACTS, grid))
    assert len(passes) == 1


OTHERS = {
    "another step": replace(QUERY, chain=QUERY.chain[:-1]),
    "another number": replace(QUERY, chain=(Clip(0.5), *QUERY.chain[1:])),
    "another mean": replace(QUERY, chain=(QUERY.chain[0], Centre(np.full(D, 0.2)), *QUERY.chain[2:])),
    "another matrix": replace(QUERY, chain=(*QUERY.chain[:-1], Linear(np.diag(np.arange(1.0, D + 1))))),
    "another kind of step": replace(QUERY, chain=(Clip(1.0),)),
    "another constant": replace(QUERY, constant=0.7),
    "another radius": replace(QUERY, radius=1.5),
    "no radius": replace(QUERY, radius=None),
}


def test_a_gradient_of_other_directions_makes_its_own() -> None:
    stream, passes = reading(stream_of(X, Y))
    directions = Directions(InMemory())
    exact_sum(QUERY, stream, FACTS, LATTICE, directions=directions)
    assert not any(directions.holds(other) for other in OTHERS.values())
    # These two are compiled already.
    for other in (OTHERS["another mean"], OTHERS["another matrix"]):
        for _ in range(2):
            found = exact_sum(other, stream, FACTS, LATTICE, directions=directions)
            assert np.array_equal(found, exact_sum(other, stream_of(X, Y), FACTS, LATTICE))
    assert len(passes) == 3


def test_other_sums_between_two_gradients_leave_the_directions_alone() -> None:
    stream, passes = reading(stream_of(X, Y))
    directions = Directions(InMemory())
    for query in (QUERY, Gram(QUERY.chain[:1]), Mean(QUERY.chain[:1]), moved(QUERY)):
        exact_sum(query, stream, FACTS, LATTICE, directions=directions)
    assert len(passes) == 3


def test_a_pass_that_was_not_complete_leaves_nothing_to_use() -> None:
    directions = Directions(InMemory())
    with pytest.raises(IncompletePassError):
        exact_sum(QUERY, stream_of(X[:80], Y[:80]), FACTS, LATTICE, directions=directions)
    assert not directions.holds(QUERY)
    stopped = exact_sum(QUERY, stream_of(X, Y), FACTS, LATTICE, directions=directions)
    assert np.array_equal(stopped, exact_sum(QUERY, stream_of(X, Y), FACTS, LATTICE))
    assert np.array_equal(stopped, exact_sum(QUERY, stream_of(X, Y), FACTS, LATTICE, directions=directions))


class Full(InMemory):
    """A shelf with room for two blocks."""

    def put(self, block: tuple[np.ndarray, ...]) -> bool:
        return len(self._held) < 2 and super().put(block)


def test_without_room_the_directions_are_made_in_every_pass() -> None:
    stream, passes = reading(stream_of(X, Y))
    shelf = Full()
    directions = Directions(shelf)
    for query in (QUERY, moved(QUERY)):
        found = exact_sum(query, stream, FACTS, LATTICE, directions=directions)
        assert np.array_equal(found, exact_sum(query, stream_of(X, Y), FACTS, LATTICE))
    assert len(passes) == 2
    assert not shelf._held


DAMAGE: dict[str, Callable[[list[Any]], Any]] = {
    "a block is lost": lambda held: held.pop(1),
    "the last block is lost": lambda held: held.pop(),
    "a block comes twice": lambda held: held.insert(1, held[1]),
    "a block is in the place of another": lambda held: held.__setitem__(1, held[0]),
    "the last block comes twice": lambda held: held.append(held[-1]),
    "the last block comes first": lambda held: held.insert(0, held.pop()),
    "a record is lost": lambda held: held.append((held[-1][0], *(array[:-1] for array in held.pop()[1:]))),
    "a label is lost": lambda held: held.append((*held[-1][:3], held.pop()[3][:, :1])),
    "a dimension is lost": lambda held: held.append((held[-1][0], held[-1][1][:, :-1], *held.pop()[2:])),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_what_comes_from_a_shelf_is_every_record_once_or_refused(damage: Callable[[list[Any]], Any]) -> None:
    shelf = InMemory()
    directions = Directions(shelf)
    exact_sum(QUERY, stream_of(X, Y), FACTS, LATTICE, directions=directions)
    damage(shelf._held)
    with pytest.raises(IncompletePassError):
        exact_sum(QUERY, stream_of(X, Y), FACTS, LATTICE, directions=directions)


def test_persons_share_directions_as_records_do_and_each_comes_once() -> None:
    numbers = np.repeat(np.arange(20), 5)
    facts = replace(FACTS, n=20, rows=N)
    shelf = InMemory()
    directions = Directions(shelf)
    for query in (QUERY, moved(QUERY)):
        found = exact_sum(query, stream_of(X, Y, numbers), facts, LATTICE, directions=directions)
        assert np.array_equal(found, exact_sum(query, stream_of(X, Y, numbers), facts, LATTICE))
    last = [array.copy() for array in shelf._held[-1]]
    last[4][-1] -= 1
    shelf._held[-1] = tuple(last)
    with pytest.raises(IncompletePassError):
        exact_sum(QUERY, stream_of(X, Y, numbers), facts, LATTICE, directions=directions)


@pytest.mark.parametrize("numbers", [None, np.repeat(np.arange(40), [1, 4] * 20)], ids=["records", "persons"])
@pytest.mark.parametrize("kept", [False, True], ids=["made", "kept"])
def test_units_outside_a_sample_count_as_null(numbers: np.ndarray | None, kept: bool) -> None:
    """They are dropped before residuals are computed, and those that are left fill blocks of their own."""
    units = N if numbers is None else 40
    facts = FACTS if numbers is None else replace(FACTS, n=units, rows=N)
    directions = Directions(InMemory()) if kept else None
    for rate in (0.5, 0.05, 0.0, 1.0):
        taken = np.random.default_rng(3).random(units) < rate
        of_records = taken if numbers is None else taken[numbers]
        nulled = np.where(of_records[:, None], Y, np.int32(-1))
        streams = [stream_of(X, y, numbers) for y in (Y, nulled)]
        found = exact_sum(QUERY, streams[0], facts, LATTICE, sample=taken, directions=directions)
        assert np.array_equal(found, exact_sum(QUERY, streams[1], facts, LATTICE))


def in_parts_of(rows: int, patch: pytest.MonkeyPatch) -> None:
    """A block is computed so many rows at a time."""
    patch.setattr(sums, "_chunk", lambda query, over: rows)


def test_blocks_that_are_computed_in_several_parts_add_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for size in (16, 6):
        in_parts_of(size, monkeypatch)
        found.append(exact_sum(Mean(QUERY.chain[:1]), stream_of(X, Y), FACTS, LATTICE))
    assert found[0].any()
    assert np.array_equal(found[0], found[1])


@pytest.mark.parametrize(("d", "m", "loss"), [(33, 7, "softmax"), (192, 100, "sigmoid"), (768, 10, "softmax")])
def test_what_a_record_adds_to_a_sampled_gradient_does_not_depend_on_its_place(d: int, m: int, loss: Loss) -> None:
    """To the bit, at each of the places of a block. The accounting of samples needs it."""
    rng, theta = np.random.default_rng(0), 3 * np.random.default_rng(1).normal(size=(d + 1, m))
    x, labels = rng.normal(size=(SAMPLED, d)).astype(np.float32), rng.integers(0, m, (SAMPLED, 1)).astype(np.int32)
    query = Gradient((Clip(2.0),), theta, clip=1.0, constant=0.2, loss=loss)
    facts, grid = Facts(n=SAMPLED, m=m, d=d), Lattice(15)

    bare, arrays = _taken_out(query)
    directions = _DirectionMap(bare, _of_one(facts), grid)
    made = [np.asarray(each) for each in rows.run(directions, (x, labels), arrays)]

    def added(order: np.ndarray) -> np.ndarray:
        """What each record adds if they lie in this order, in the first one."""
        (found,) = rows.run(_ResidualMap(bare, _of_one(facts), grid), tuple(each[order] for each in made), arrays)
        back = np.empty_like(np.asarray(found))
        back[order] = found
        return back

    first, places = added(np.arange(SAMPLED)), np.arange(SAMPLED)
    assert np.abs(first).max() > 0
    for shift in (1, 2, 3, 7, 64, 101):
        assert np.array_equal(added(np.roll(places, shift)), first), shift
    assert np.array_equal(added(rng.permutation(SAMPLED)), first)


@pytest.mark.parametrize("host", [True, False], ids=["on the host", "on a device"])
def test_what_is_compiled_does_not_tell_how_large_a_sample_is(host: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are kept on disk by their shapes. All samples have the same ones, even the empty one."""
    n, run = 600, rows.run
    x, y, persons = np.tile(X, (6, 1)), np.tile(Y, (6, 1)), np.repeat(np.arange(n // 2), 2)
    shapes, sizes, compiled = set[tuple[int, ...]](), list[int](), list[str]()

    def recorded(row_map: Any, block: Any, arrays: Any) -> Any:
        shapes.add(tuple(array.shape for array in block))
        sizes.extend([len(block[0])] * isinstance(row_map, sums._ResidualMap))
        return run(row_map, block, arrays)

    instead.on_host(monkeypatch, host)
    monkeypatch.setattr(rows, "run", recorded)
    in_parts_of(1024, monkeypatch)

    def heard(event: str, duration_secs: float, **_: str | int) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(heard)
    for units, numbers in ((n, None), (n // 2, persons)):
        facts = replace(FACTS, n=units, rows=None if numbers is None else n)
        for kept in (False, True):
            directions = Directions(InMemory()) if kept else None
            # The first sample, which is empty, compiles what all others need.
            for count in (0, 1, 128, 129, units):
                sample = np.arange(units) < count
                sizes.clear()
                exact_sum(QUERY, stream_of(x, y, numbers), facts, LATTICE, sample=sample, directions=directions)
                # A step costs as much as its sample is large.
                assert sizes == [256] * (count * n // units // 256 + 1)
                if not count:
                    first = set(shapes)
                    compiled.clear()
            assert first
            assert shapes - first == set() == set(compiled)
            shapes.clear()


@pytest.mark.parametrize("bits", range(LEAST_BITS, MOST_BITS + 1))
def test_the_small_type_holds_every_vector_of_its_lattice(bits: int) -> None:
    lattice = Lattice(bits)
    v = np.concatenate([np.eye(3), -np.eye(3), RNG.normal(size=(20, 3)), np.full((1, 3), 1e300)])
    q = lattice.vector(v, lattice.unit, np)
    assert np.abs(q).max() > 0.9 * lattice.one
    assert np.array_equal(q.astype(lattice.small).astype(np.float64), q)
    # And what the check in `vector` lets pass beside these.
    most = np.array([1 - lattice.one, lattice.one - 1])
    assert np.array_equal(most.astype(lattice.small), most)


def test_directions_take_as_many_bytes_as_is_said() -> None:
    for facts, grid in ((FACTS, LATTICE), (FACTS, Lattice(15)), (replace(FACTS, n=20, rows=N), LATTICE)):
        shelf = InMemory()
        numbers = np.repeat(np.arange(20), 5)
        stream = stream_of(X, Y, None if facts.rows is None else numbers)
        exact_sum(QUERY, stream, facts, grid, directions=Directions(shelf))
        assert sum(array.nbytes for block in shelf._held for array in block) == direction_bytes(facts, N, D + 1, grid)
