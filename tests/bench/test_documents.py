"""The generated documents are what their generators make of the stored results, to the letter."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bench import accuracy, cells, federation, forecast, kept, picture, public, reproduction, starts, synthetic
from dpfc_cli.extensions.planning.forecast import MEASURED
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.training.calibrate import POOR

ROOT = Path(__file__).parents[2]
CIFAR = {"cifar10-vit-ti16": Facts(n=50_000, m=10, d=192), "cifar100-vit-ti16": Facts(n=25_000, m=100, d=192)}
NOT_IN_THE_TABLE = ("most-classes", "wide")


@pytest.fixture(scope="module")
def results() -> dict[str, float]:
    return cells.read(ROOT / cells.RESULTS)


def test_the_reproduction(results: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> SimpleNamespace:
        facts = CIFAR[name]
        return SimpleNamespace(facts=facts, m=facts.m, x=np.zeros((facts.n, facts.d), bool))

    monkeypatch.setattr(reproduction, "load", load)
    monkeypatch.setattr(reproduction, "plot", lambda *_: None)
    monkeypatch.setattr(reproduction, "DOCS", tmp_path.parents[1] / "docs")
    made = tmp_path / "reproduction.md"
    reproduction.report(list(CIFAR), results, 5, made)
    assert made.read_text("utf-8") == (ROOT / "bench/tables/reproduction.md").read_text("utf-8")


def test_a_reproduction_on_other_sets_leaves_the_projects_own_alone(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    (work / "docs").mkdir(parents=True)
    monkeypatch.chdir(work)
    few = ["--rows", "dp-ls:1", "--phases", "default", "--runs", "1"]
    wrong = (["--rows", "dp-ls:2"], ["--phases", "tunned"], ["--runs", "0"])
    for given in ([str(tmp_path / "missing"), *few], *([data, *few, *each] for each in wrong)):
        with pytest.raises(SystemExit):
            reproduction.main(given)
    assert not list(work.rglob("*.*"))
    reproduction.main([data, *few])
    # What was not asked for is not there.
    page = Path("bench-results/reproduction.md").read_text("utf-8")
    assert [page.count(each) for each in ("### ", "\n| dp-", "±", "negative_weight")] == [1, 1, 0, 0]
    links = re.findall(r"\]\(([^)#]+)", page)
    assert links
    assert all((work / "bench-results" / each).exists() for each in links)
    with pytest.raises(SystemExit):
        starts.main([data, "--rows", "sart"])
    assert len(list((work / "bench-results").glob("*"))) == len(list(work.rglob("*.*"))) == 3


def test_the_accuracy(results: dict[str, float]) -> None:
    made_up = [name for name in synthetic.FAMILY if name not in NOT_IN_THE_TABLE]
    sets = [*CIFAR, "banking77-minilm", "clinc150-minilm", *made_up]
    wanted = accuracy.Wanted(sets, accuracy.UNTUNED, accuracy.TUNED, accuracy.EPSILONS, 5)
    made = "\n".join(accuracy.report(wanted, results)) + "\n"
    assert made == (ROOT / "bench/tables/accuracy.md").read_text("utf-8")
    page = (ROOT / "docs/accuracy.md").read_text("utf-8")
    made = "\n".join(accuracy.summary(wanted, results))
    assert f"\n\n{made}\n\n" in page
    assert accuracy.verdict(wanted, results) in " ".join(page.split())


STARTS = ("cifar100-vit-ti16", "cifar10-vit-ti16-first-1000", "banking77-minilm")


@pytest.fixture(scope="module")
def started() -> dict[str, float]:
    return cells.read(ROOT / starts.RESULTS)


@pytest.mark.parametrize("data", STARTS)
def test_the_tables_of_starts(started: dict[str, float], data: str) -> None:
    rows = starts.rows_of(data, None)
    made = "\n".join(public.table(rows, starts.EPSILONS, 5, started))
    assert f"\n\n{made}\n\n" in (ROOT / "bench/tables/starts.md").read_text("utf-8")
    page = (ROOT / "docs/extensions/starts.md").read_text("utf-8")
    assert all(row.removeprefix("|") in page for row in starts.summary(rows, 5, started))


def test_the_row_of_a_public_start_among_the_first_figures(started: dict[str, float]) -> None:
    row = starts.rows_of("cifar100-vit-ti16", None, epsilons=picture.EPSILONS)["start"]
    found = [[started[replace(cell, seed=seed).key] for seed in range(5)] for cell in row]
    said = " | ".join(cells.said(each).replace(" 0.", " .") for each in found)
    assert f"| CIFAR-100, the same with a public start | {said} | " in (ROOT / "docs/heads.md").read_text("utf-8")


@pytest.mark.parametrize("data", STARTS[1:])
def test_the_tables_of_wrong_starts(started: dict[str, float], data: str) -> None:
    rows = starts.rows_of(data, None, Path("folder"), (0.1, 0.5))
    del rows["right"]
    made = "\n".join(public.table(rows, (0.1, 0.5), 5, started))
    assert f"\n\n{made}\n" in (ROOT / "bench/tables/starts.md").read_text("utf-8")


def test_the_table_of_forecasts_and_what_a_forecast_says_of_itself() -> None:
    results = forecast.compared(ROOT / forecast.RESULTS, ROOT / cells.RESULTS)
    assert len(results) == len(forecast.PAIRS) * len(forecast.EPSILONS)
    page = (ROOT / "docs/extensions/planning.md").read_text("utf-8")
    made = "\n".join(forecast.table(results))
    assert (ROOT / "bench/tables/forecast.md").read_text("utf-8").endswith(f"\n\n{made}\n")
    assert forecast.verdict(results) in " ".join(page.split())
    assert forecast.said(results) == MEASURED
    # The worst comes first, and it is the worst that is said.
    assert f"{abs(results[0].error):.0f}" in MEASURED


def test_the_table_of_warnings_against_what_came() -> None:
    found = kept.rows(ROOT / kept.RESULTS)
    made = "\n".join(kept.table(found))
    assert f"\n\n{made}\n\n" in (ROOT / "docs/extensions/planning.md").read_text("utf-8")
    # It is judged on sets that it was not fitted to.
    for group in (kept.REAL, kept.ASIDE):
        right = [(row.expected < POOR) == (row.kept < POOR) for row in found[group]]
        assert sum(right) >= 0.9 * len(right) > 90


def test_the_first_figures_that_a_reader_sees_are_trainings_of_the_product() -> None:
    done, page = cells.read(ROOT / picture.RESULTS), (ROOT / "docs/heads.md").read_text("utf-8")
    for data, name in picture.SETS.items():
        found = [[done[each.key] for each in picture.cells(data, epsilon)] for epsilon in picture.EPSILONS]
        said = " | ".join(cells.said(each).replace(" 0.", " .") for each in found)
        assert f"| {name}, `dp-whitened` | {said} | " in page


def test_the_tables_of_federations() -> None:
    page = (ROOT / "docs/extensions/federation.md").read_text("utf-8")
    kept = federation.Kept(ROOT / federation.RESULTS, None)
    tables = (ROOT / "bench/tables/federation.md").read_text("utf-8")
    for table, where in zip(federation.TABLES, (page, tables, tables), strict=True):
        made = "\n".join(table(kept, 5))
        assert f"\n\n{made}\n" in where
