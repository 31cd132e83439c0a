"""The ingredients of the default method, between the plain recipe and the product."""

import itertools

import numpy as np

from bench import ablation, cells, recipe
from bench.cells import Cell
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.oracle import Oracle
from dpfc_cli.privacy.queries import Gradient, Query


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
