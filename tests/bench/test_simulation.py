"""The simulation of dp-whitened and dp-fc computes what the product computes."""

import numpy as np
import pytest

from bench.cells import stream_of
from bench.sets import Data
from bench.simulation import Simulated
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.method import Solution
from dpfc_cli.privacy.curator import Curator, Unprotected
from dpfc_cli.privacy.noise import SeededBits
from dpfc_cli.privacy.oracle import Mechanism, Oracle
from tests.support import accuracy, blobs, curator

X, Y = blobs(600, 8, 3, apart=3.0)


@pytest.mark.parametrize("name", ["dp-whitened", "dp-fc"])
@pytest.mark.parametrize("persons", [None, np.arange(600) // 3])
def test_a_simulated_head_is_that_of_the_curator_where_there_is_hardly_any_noise(
    name: str, persons: np.ndarray | None
) -> None:
    data, method = Data(X, Y, X, Y, 3, persons), METHODS[name]
    options = method.defaults(data.facts, 1.0, {})
    plan = method.plan(data.facts, options)
    oracles: tuple[Oracle, Oracle] = (
        Simulated(data, plan, 1e6, 0),
        Curator(Mechanism(facts=data.facts, plan=plan, mu=1e6), Unprotected(stream_of(X, Y, persons)), SeededBits(0)),
    )
    simulated, real = (method.solve(oracle, data.facts, options) for oracle in oracles)
    assert simulated.weight == pytest.approx(real.weight, abs=1e-3 * np.abs(real.weight).max())


@pytest.mark.parametrize("name", ["dp-whitened", "dp-fc"])
def test_the_noise_of_a_simulation_is_the_planned_one(name: str) -> None:
    data, method = Data(X, Y, X, Y, 3), METHODS[name]
    options = method.defaults(data.facts, 0.1, {})
    plan = method.plan(data.facts, options)

    def trained(oracle: Oracle) -> Solution:
        return method.solve(oracle, data.facts, options)

    found = [
        np.mean([accuracy(trained(made(seed)), X, Y) for seed in range(15)])
        for made in (
            lambda seed: Simulated(data, plan, 0.1, seed),
            lambda seed: curator(data.facts, plan, 0.1, X, Y, seed),
        )
    ]
    # Means of 15 trainings, each with a standard deviation near 0.1, differ by less.
    assert found[0] == pytest.approx(found[1], abs=0.11)
