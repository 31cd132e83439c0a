"""The table of accuracies and the family of made-up sets."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest

from bench import ablation, accuracy, cells, recipe, reproduction, synthetic
from bench.cells import Cell
from bench.sets import load
from bench.synthetic import Family
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.oracle import Oracle
from dpfc_cli.privacy.queries import Gradient, Query


@pytest.mark.parametrize("name", ["tabular", "few-records", "deficient"])
def test_a_made_up_set_has_the_properties_that_it_states(name: str) -> None:
    family = synthetic.FAMILY[name]
    made = synthetic.draw(family)
    x, y = made["train_x"].astype(np.float64), made["train_y"]
    assert x.shape == (family.n, family.d)
    assert set(np.unique(y)) == set(range(family.m))
    assert (x.mean(axis=0) ** 2).sum() / (x**2).sum(axis=1).mean() == pytest.approx(family.offset, abs=0.08)
    assert np.linalg.matrix_rank(x - x.mean(axis=0), tol=1e-2) == (family.rank or family.d)


def test_the_public_vectors_of_a_made_up_set_are_those_of_its_classes_and_of_none_of_its_records() -> None:
    family = Family(4000, 8, 4, decay=0.5, apart=6.0)
    made = synthetic.draw(family)
    means = np.stack([made["train_x"][made["train_y"] == label].mean(axis=0) for label in range(family.m)])
    distances = np.linalg.norm(made["class_vectors"][:, None] - means, axis=2)
    assert list(distances.argmin(axis=1)) == [0, 1, 2, 3]
    # Means of five records are not means of a thousand.
    assert 0.5 < np.diag(distances).mean() / np.sqrt((np.arange(1, 9) ** -0.5).sum() / synthetic.PUBLIC) < 2


def test_the_family_is_written_once_and_read_as_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "FAMILY", {"small": Family(200, 6, 3, decay=1.0, apart=3.0)})
    (place,) = synthetic.write(tmp_path)
    assert load(str(place)).x.shape == (200, 6)
    before = (place / "train_x.npy").stat().st_mtime_ns
    synthetic.write(tmp_path)
    assert (place / "train_x.npy").stat().st_mtime_ns == before


def test_tuning_walks_the_grid_then_other_norms_then_runs_the_best_with_other_seeds(data: str) -> None:
    done: dict[str, float] = {}
    stages = accuracy.tune([data], ["dp-fc:10"], [1.0], 3, done)
    grid = next(stages)
    assert len(grid) == 9
    done |= {cell.key: float(i) for i, cell in enumerate(grid)}
    *again, first, second, clipped = next(stages)
    assert again == grid
    best, norms = grid[-1], (first, second, clipped)
    added = [sorted(set(cell.given) - set(grid[0].given)) for cell in norms]
    assert added == [["gradient_clip"], ["gradient_clip"], ["feature_clip"]]
    # Another norm alone does not change the length of a step.
    lengths = {f"{c.given['learning_rate'] * c.given.get('gradient_clip', 0.36):.3g}" for c in (best, *norms)}
    assert len(lengths) == 1
    done |= {cell.key: 0.0 for cell in norms} | {second.key: 10.0}
    # The luckiest with one seed is not the best of two.
    finals = next(stages)
    assert finals == [
        dataclasses.replace(cell, seed=reproduction.GRID_SEED + i)
        for cell in (second, grid[8], grid[7])
        for i in range(2)
    ]
    done |= {cell.key: 0.0 for cell in finals if cell.key not in done} | {cell.key: 5.0 for cell in finals[3:4]}
    runs = next(stages)
    assert runs == [dataclasses.replace(grid[8], seed=seed) for seed in range(3)]


def test_every_ingredient_changes_the_recipe_and_all_of_them_are_the_product(data: str) -> None:
    product = Cell(data, "dp-whitened", 100.0)  # at which the descent is long enough for momentum
    variants = [ablation.variant(product, ingredients) for ingredients in ablation.steps()]
    assert variants[-1] == product
    scores = [cells.train(cell).weight for cell in variants]
    assert all((a != b).any() for a, b in itertools.pairwise(scores))
    # What was taken away is there again.
    assert (cells.train(product).weight == scores[-1]).all()


def test_the_recipes_first_release_is_of_whole_class_sums(data: str) -> None:
    asked: list[Gradient] = []

    class Spy(Oracle):
        def release(self, query: Query) -> np.ndarray:
            if isinstance(query, Gradient):
                asked.append(query)
            rows, columns = query.shape(facts)
            return np.eye(rows, columns)

    facts = Facts(n=400, m=3, d=6)
    recipe.solve((), Spy(), facts, METHODS["dp-whitened"].defaults(facts, 1.0, {}))
    assert asked[0].clip == asked[0].radius
    assert {query.clip / query.radius for query in asked[1:] if query.radius} == {0.5}
