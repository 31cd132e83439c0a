"""The document of the reproduction: what is picked, what is averaged, and what is missing."""

from dataclasses import replace

import pytest

from bench import paper, reproduction
from bench.cells import Cell


def test_the_best_point_of_the_grid_is_run_with_other_seeds(data: str) -> None:
    cell = reproduction.base(data, ("dp-ls", 1), 1.0)
    points = reproduction.grid(cell)
    results = {p.key: float(i % 5) for i, p in enumerate(points)}
    best = reproduction.picked(cell, results)
    assert best is not None
    assert best.options == points[4].options
    assert all(run.seed != reproduction.GRID_SEED for run in reproduction.runs(best, 5))


def test_a_grid_that_is_not_complete_picks_nothing(data: str) -> None:
    cell = reproduction.base(data, ("dp-fc", 10), 1.0)
    assert reproduction.picked(cell, {p.key: 1.0 for p in reproduction.grid(cell)[1:]}) is None


def test_grid_points_are_factors_of_the_defaults_at_that_epsilon(data: str) -> None:
    grids = [reproduction.grid(reproduction.base(data, ("dp-fc", 10), e)) for e in (0.1, 8.0)]
    rates = [sorted({dict(p.options)["learning_rate"] for p in points}) for points in grids]
    assert rates[0] == rates[1]
    assert rates[0][2] == pytest.approx(10 * rates[0][0], rel=1e-2)
    assert {dict(p.options)["damping"] for p in grids[0]}.isdisjoint({dict(p.options)["damping"] for p in grids[1]})


def test_a_table_shows_means_and_spreads_and_leaves_open_what_is_missing(data: str) -> None:
    def at(epsilon: float) -> Cell:
        return reproduction.base(data, ("dp-ls", 1), epsilon)

    results = {c.key: 80.0 + c.seed for c in reproduction.runs(at(1.0), 5)}
    results |= {c.key: 70.0 for c in reproduction.runs(at(2.0), 5)[1:]}
    row = next(line for line in reproduction.table(data, "default", results, 5) if line.startswith("| dp-ls"))
    shown = dict(zip(paper.EPSILONS, [c.strip() for c in row.strip("| ").split("|")][2:], strict=True))
    assert shown[1.0] == "82.0 ± 1.6"
    assert shown[2.0] == "–"


def test_variants_are_other_cells_and_only_where_there_is_noise(data: str) -> None:
    cell = reproduction.base(data, ("dp-fc", 1), 1.0)
    keys = {reproduction.variant(cell, phase).key for phase in ("default", "conversion", "shared")}
    assert len(keys) == 3
    plain = replace(cell, epsilon=None)
    assert reproduction.variant(plain, "shared") == plain
