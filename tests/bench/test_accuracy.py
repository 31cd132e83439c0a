"""The search for the options of a rival begins at its defaults and ends where no change of one of them helps."""

import math
from typing import Any

import pytest

from bench import accuracy
from bench.accuracy import search, searched
from bench.cells import Cell
from bench.sets import load
from dpfc_cli.methods import METHODS


def test_a_search_ends_inside(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However far from the defaults the best point is, and on whichever side."""
    best = {"learning_rate": 700.0, "gradient_clip": 0.02, "steps": 30.0}
    tried: list[dict[str, Any]] = []

    def top1(cell: Cell) -> float:
        tried.append(options := dict(vars(METHODS[cell.method].defaults(load(data).facts, 1.0, cell.given))))
        return float(options["loss"] == "softmax") - sum(abs(math.log(options[name] / best[name])) for name in best)

    monkeypatch.setattr(accuracy, "top1", top1)
    found = search(searched(data, "dp-momentum", 1.0))
    given = found["options"]
    assert vars(METHODS["dp-momentum"].defaults(load(data).facts, 1.0, {"steps": 10})) in tried
    assert given["loss"] == "softmax"
    for name, value in best.items():
        assert given[name] == pytest.approx(value, rel=0.75)
        assert name == "steps" or min(each[name] for each in tried) < given[name] < max(each[name] for each in tried)
    assert found["tried"] < 100
