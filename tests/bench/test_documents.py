"""The generated documents are what their generators make of the stored results, to the letter."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bench import ablation, accuracy, cells, forecast, persons, public, reproduction, starts, synthetic
from bench.cells import Cell
from dpfc_cli.planning.forecast import MEASURED
from dpfc_cli.privacy.facts import Facts

ROOT = Path(__file__).parents[2]
CIFAR = {"cifar10-vit-ti16": Facts(n=50_000, m=10, d=192), "cifar100-vit-ti16": Facts(n=25_000, m=100, d=192)}
NOT_IN_THE_TABLE = ("most-classes", "wide")
PERSONS = (*((kind, k) for k in (3, 10) for kind in ("mixed", "class", "alike")), ("mixed", None), ("class", None))


@pytest.fixture(scope="module")
def results() -> dict[str, float]:
    return cells.read(ROOT / cells.RESULTS)


def test_the_reproduction(results: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> SimpleNamespace:
        facts = CIFAR[name]
        return SimpleNamespace(facts=facts, m=facts.m, x=np.zeros((facts.n, facts.d), bool))

    monkeypatch.setattr(reproduction, "load", load)
    monkeypatch.setattr(reproduction, "plot", lambda *_: None)
    made = tmp_path / "reproduction.md"
    reproduction.report(list(CIFAR), results, 5, made)
    assert made.read_text("utf-8") == (ROOT / "docs/reproduction.md").read_text("utf-8")


def test_the_accuracy(results: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = {name: f for name, f in synthetic.FAMILY.items() if name not in NOT_IN_THE_TABLE}
    facts = CIFAR | {name: Facts(n=family.n, m=family.m, d=family.d) for name, family in made_up.items()}
    norms = median_norms(results)

    def load(name: str) -> SimpleNamespace:
        return SimpleNamespace(facts=facts[name], x=np.array([[norms[name]]]))

    monkeypatch.setattr(reproduction, "load", load)
    monkeypatch.setattr(accuracy, "load", load)
    tuned = [row for row in accuracy.TUNED if row != "dp-newton:1"]
    wanted = accuracy.Wanted(list(facts), accuracy.UNTUNED, tuned, accuracy.EPSILONS, 5)
    made = "\n".join(accuracy.report(wanted, results)) + "\n"
    assert made == (ROOT / "docs/accuracy.md").read_text("utf-8")


def test_the_table_of_ingredients(results: dict[str, float]) -> None:
    sets = (*CIFAR, "many-classes", "tabular", "few-records")
    made = "\n".join(ablation.table(sets, ablation.EPSILONS, 5, results))
    assert f"\n\n{made}\n\n" in (ROOT / "docs/whitening.md").read_text("utf-8")


STARTS = {
    "cifar10-vit-ti16": "cifar100-vit-ti16",
    "cifar10-vit-ti16-5000": "cifar100-vit-ti16",
    "cifar10-vit-ti16-1000": "cifar100-vit-ti16",
    "cifar100-vit-ti16": "cifar10-vit-ti16",
    "cifar100-vit-ti16-5000": "cifar10-vit-ti16",
    "cifar100-vit-ti16-1000": "cifar10-vit-ti16",
    "banking77-minilm": "clinc150-minilm",
    "clinc150-minilm": "banking77-minilm",
}
"""Private sets with the public records beside them."""


@pytest.mark.parametrize("data", STARTS)
def test_the_tables_of_starts(results: dict[str, float], data: str) -> None:
    made = "\n".join(public.table(starts.rows_of(data, STARTS[data]), starts.EPSILONS, 5, results))
    document = (ROOT / "docs/whitening.md").read_text("utf-8")
    assert f"\n\n{made}\n\n" in document
    assert f"Without noise: {results[Cell(data, starts.METHOD, None).key]:.1f}.\n\n{made}" in document


@pytest.mark.parametrize("data", ["cifar10-vit-ti16-1000", "cifar100-vit-ti16-5000", "banking77-minilm"])
def test_the_tables_of_wrong_starts(results: dict[str, float], data: str) -> None:
    names = ("no start", "random", "permuted", "reversed", "half-permuted", "two-swapped")
    shown, all_rows = (0.05, 0.1, 0.5, 1.0, 8.0), starts.rows_of(data, None, Path("folder"))
    rows = {name: [cell for cell in all_rows[name] if cell.epsilon in shown] for name in names}
    made = "\n".join(public.table(rows, shown, 5, results))
    assert f"\n\n{made}\n\n" in (ROOT / "docs/whitening.md").read_text("utf-8")


@pytest.mark.parametrize("data", ["many-classes", "few-records", "most-classes", "wide", "unequal", "heavy-tails"])
def test_the_tables_of_starts_on_made_up_sets(results: dict[str, float], data: str) -> None:
    shown, all_rows = (0.1, 0.5, 1.0), starts.rows_of(data, None, Path("folder"), (0.1, 0.5, 1.0))
    rows = {name: all_rows[name] for name in ("no start", "right", "half-permuted", "two-swapped")}
    made = "\n".join(public.table(rows, shown, 5, results))
    assert f"\n\n{made}\n\n" in (ROOT / "docs/whitening.md").read_text("utf-8")


def median_norms(results: dict[str, float]) -> dict[str, float]:
    """The median norm of the features of each set, as the results have it among the clipping norms that were tried."""
    tried = [json.loads(key) for key in results]
    return {cell["data"]: cell["options"]["feature_clip"] for cell in tried if "feature_clip" in cell["options"]}


@pytest.mark.parametrize("data", CIFAR)
@pytest.mark.parametrize(("kind", "k"), PERSONS)
def test_the_tables_of_persons(results: dict[str, float], data: str, kind: str, k: int | None) -> None:
    rows = persons.rows_of(data, CIFAR[data].n, Path("folder"), kind, k, persons.EPSILONS)
    made = persons.table(rows, persons.EPSILONS, 5, results)
    assert f"\n\n{made}\n\n" in (ROOT / "docs/whitening.md").read_text("utf-8")


def test_the_table_of_forecasts_and_what_a_forecast_says_of_itself() -> None:
    results = forecast.compared(ROOT / forecast.RESULTS, ROOT / cells.RESULTS)
    assert len(results) == len(forecast.PAIRS) * len(forecast.EPSILONS)
    page = (ROOT / "docs/choosing.md").read_text("utf-8")
    made = "\n".join(forecast.table(results))
    assert f"\n\n{made}\n\n{forecast.verdict(results)}" in page
    assert forecast.said(results) == MEASURED
    # The worst comes first, and it is the worst that is said.
    assert f"{abs(results[0].error):.0f}" in MEASURED
