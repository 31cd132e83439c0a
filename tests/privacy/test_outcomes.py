"""The cell of a record whose scores are no numbers. (The other cells: `tests/evaluation/test_private_figures.py`.)"""

import numpy as np
import pytest

from dpfc_cli.privacy.chain import Linear
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Reals
from dpfc_cli.privacy.outcomes import Outcomes

FACTS = Facts(n=1, m=2, d=2)


@pytest.mark.parametrize(
    ("weights", "cells"),
    [((0.0, 1.0), [0.0, 1.0]), ((-1.0, 0.0), [1.0, 0.0])],
    ids=["no number loses to infinity", "it is no better than minus infinity, and the lower class wins"],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_score_that_is_no_number_is_the_lowest(weights: tuple[float, float], cells: list[float]) -> None:
    """The chain overflows, and infinity times zero is no number. The label is class 0."""
    query = Outcomes((Linear(np.full((2, 2), 1e300)),), np.array([weights, weights]), np.zeros(2))
    x = np.full((1, 2), 3e38, np.float32)
    assert query.factors(x, np.array([[1.0, 0.0]]), FACTS, Reals(), np)[1].tolist() == [cells]
