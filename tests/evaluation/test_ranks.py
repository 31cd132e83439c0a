"""What trees with noise say of areas under ROC curves: without noise the truth, with noise how sure it is.

Noise is drawn from a seed, so that a test has one outcome.
"""

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from dpfc_cli.evaluation.ranks import WIDEST, expected, ranks_of, tree_of
from dpfc_cli.heads.metrics import Z, standing_of, wilson
from dpfc_cli.privacy.accounting import mu_for
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.standings import counted, level_weights, side_weights
from dpfc_cli.records.figures import Measured, ReleasedRanks
from tests.noise import FALSE_ALARM

DEPTH = 10
CELLS = 1 << DEPTH
RUNS = 200
ENOUGH = int(stats.binom.ppf(FALSE_ALARM, RUNS, 0.94))
"""An interval that covers 94 % falls below this with a probability of 1e-9."""


def answer_of(cells: np.ndarray, sets: np.ndarray, facts: Facts) -> np.ndarray:
    """The answer without noise. cells, sets: n × counted classes; where each record stands, and whether it has them."""
    levels = np.repeat(level_weights(DEPTH), [1, *(1 << i for i in range(DEPTH))])
    sides = [
        [tree_of(np.bincount(cells[of[:, j], j], minlength=CELLS)) * levels * weight for j in range(counted(facts))]
        for of, weight in zip((sets, ~sets), side_weights(facts), strict=True)
    ]
    return np.concatenate([np.concatenate(each) for each in sides])


def drawn(
    rng: np.random.Generator, n: int, part: float, shift: float, scale: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Cells of n records, of which about a part has the class. Both have log-odds of a normal distribution."""
    sets = rng.random((n, 1)) < part
    odds = scale * (rng.normal(size=(n, 1)) + shift * sets)
    return np.clip((CELLS / (1 + np.exp(-odds / 4))).astype(int), 0, CELLS - 1), sets


def true(shift: float) -> float:
    return float(stats.norm.cdf(shift / math.sqrt(2)))


def of_two(facts: Facts, cells: np.ndarray, sets: np.ndarray, noise: float, rng: np.random.Generator) -> ReleasedRanks:
    """The figures of the second of two classes."""
    answer = answer_of(cells, sets, facts)
    ranks, *_ = ranks_of(answer + rng.normal(0, noise, len(answer)), noise, DEPTH, facts, "ab", 0.5)
    return ranks[1]


@pytest.mark.parametrize(("m", "k"), [(2, 1), (3, 2)])
def test_without_noise_they_are_the_areas_and_the_rates_of_the_records(m: int, k: int) -> None:
    rng, facts = np.random.default_rng(m), Facts(n=500, m=m, d=1, k=k)
    cells = rng.integers(300, 700, (500, counted(facts)))
    sets = rng.random(cells.shape) < cells / CELLS
    names = "abc"[:m]
    ranks, auroc, balanced, labelled = ranks_of(answer_of(cells, sets, facts), 1e-9, DEPTH, facts, names, 0.9)
    assert labelled == pytest.approx(500)
    assert [each.name for each in ranks] == list(names)
    cut = standing_of(0.9) * CELLS
    for j in range(counted(facts)):
        each, of = ranks[m - counted(facts) + j], sets[:, j]
        assert each.auroc.value == pytest.approx(roc_auc_score(of, cells[:, j]))
        assert each.n == of.sum()
        assert each.auroc.noise == pytest.approx(0, abs=1e-6)
        hits, spared = int((cells[of, j] >= cut).sum()), int((cells[~of, j] < cut).sum())
        for found, count, n in ((each.sensitivity, hits, of.sum()), (each.specificity, spared, (~of).sum())):
            assert found is not None
            assert found.value == pytest.approx(count / n)
            assert found.interval == pytest.approx(wilson(count, int(n)), abs=1e-6)
    assert auroc.value == pytest.approx(np.mean([each.auroc.value or 0 for each in ranks]))
    parts = [part.value for each in ranks for part in (each.sensitivity, each.specificity) if part]
    assert balanced is not None
    assert balanced.value == pytest.approx(np.mean([each or 0 for each in parts]))
    if m == 2:
        first, second = ranks
        # The first is said where it has 0.9 itself.
        low = cells[:, 0] < CELLS - math.ceil(cut)
        assert first.sensitivity is not None
        assert first.sensitivity.value == pytest.approx(low[~sets[:, 0]].mean())
        ranks, _, balanced, _ = ranks_of(answer_of(cells, sets, facts), 1.0, DEPTH, facts, names, 0.5)
        first, second = ranks
        assert balanced is not None
        assert second.sensitivity is not None
        assert second.specificity is not None
        assert balanced.noise == pytest.approx(
            math.hypot(second.sensitivity.noise or 0, second.specificity.noise or 0) / 2
        )
        assert (first.auroc, first.sensitivity, first.specificity) == (
            second.auroc,
            second.specificity,
            second.sensitivity,
        )
        assert first.n + second.n == 500
    assert ranks_of(answer_of(cells, sets, facts), 1e-9, DEPTH, facts, names, None)[0][0].sensitivity is None


@pytest.mark.parametrize(
    ("n", "epsilon", "part", "shift", "scale"),
    [(300, 0.5, 0.5, 1.2, 1.0), (300, 8.0, 0.1, 2.0, 0.2), (3000, 0.5, 0.1, 1.2, 3.0), (50_000, 0.1, 0.02, 2.5, 1.0)],
)
def test_the_interval_covers_the_choice_of_the_records_and_the_noise(
    n: int, epsilon: float, part: float, shift: float, scale: float
) -> None:
    rng, facts, noise = np.random.default_rng(n), Facts(n=n, m=2, d=1), 1 / mu_for(epsilon, 1e-5)
    found = [of_two(facts, *drawn(rng, n, part, shift, scale), noise, rng) for _ in range(RUNS)]
    truth = {
        "auroc": true(shift),
        "sensitivity": stats.norm.sf(-shift),
        "specificity": 0.5,
    }
    for name, value in truth.items():
        measures: list[Measured] = [getattr(each, name) for each in found]
        assert sum(each.interval[0] <= value <= each.interval[1] for each in measures) >= ENOUGH, name
        assert all((each.value is None) == (each.interval[1] - each.interval[0] > WIDEST) for each in measures)


def test_the_noise_that_is_told_is_that_of_the_figure() -> None:
    """On the same records: 200 draws of noise, so their deviation is known to 5 %."""
    rng, facts, noise = np.random.default_rng(1), Facts(n=3000, m=2, d=1), 8.0
    cells, sets = drawn(rng, 3000, 0.3, 1.2)
    found = [of_two(facts, cells, sets, noise, rng) for _ in range(RUNS)]
    for name in ("auroc", "sensitivity", "specificity"):
        measures: list[Measured] = [getattr(each, name) for each in found]
        told = np.sqrt(np.mean([(each.noise or 0) ** 2 for each in measures]))
        # Of an area it is told a little too large.
        assert 0.75 * told < np.std([each.value or 0 for each in measures]) < 1.2 * told


def test_where_noise_is_all_there_is_there_is_no_figure() -> None:
    rng, facts = np.random.default_rng(0), Facts(n=300, m=3, d=1)
    cells, sets = rng.integers(0, CELLS, (300, 3)), np.eye(3, dtype=bool)[rng.integers(0, 3, 300)]
    answer = answer_of(cells, sets, facts)
    for noise, shift in ((200.0, 0.0), (1.0, -1e4)):
        ranks, auroc, *_ = ranks_of(answer + rng.normal(shift, noise, len(answer)), noise, DEPTH, facts, "abc", 0.5)
        assert {auroc.value, *(each.auroc.value for each in ranks)} == {None}
        assert auroc.interval == (0, 1)
    assert expected(200.0, DEPTH, facts, None)[0].value is None


@pytest.mark.parametrize("m", [2, 10])
def test_how_sure_figures_will_be_is_known_before(m: int) -> None:
    """As sure as those of such records are: half of the width more or less."""
    rng, facts, noise = np.random.default_rng(m), Facts(n=4000, m=m, d=1), 4.0
    mean_of, each = expected(noise, DEPTH, facts, 0.5)
    assert mean_of.value == pytest.approx(0.75, abs=0.01)
    sets = np.eye(m, dtype=bool)[rng.integers(0, m, 4000)][:, -counted(facts) :]
    cells = (CELLS * np.where(sets, rng.random(sets.shape) ** (1 / 3), rng.random(sets.shape))).astype(int)
    answer = answer_of(cells, sets, facts)
    ranks, auroc, *_ = ranks_of(answer + rng.normal(0, noise, len(answer)), noise, DEPTH, facts, "abcdefghij"[:m], 0.5)
    for due, found in ((mean_of, auroc), (each, ranks[0].auroc)):
        assert np.diff(found.interval) == pytest.approx(np.diff(due.interval), rel=0.5)
        assert abs((found.value or 0) - 0.75) < 3 * Z * (due.noise or 0) + 0.02
