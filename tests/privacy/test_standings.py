"""What a record adds to the trees of a private evaluation: where it stands for each class, within the bound."""

import math
from typing import Any

import numpy as np
import pytest

from dpfc_cli.evaluation.ranks import tree_of
from dpfc_cli.heads.head import Scorer, as_probabilities
from dpfc_cli.heads.metrics import standing_of
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.forms import check
from dpfc_cli.privacy.inputs import prepare
from dpfc_cli.privacy.lattice import LONGEST, Lattice
from dpfc_cli.privacy.outcomes import Outcomes
from dpfc_cli.privacy.queries import contribution
from dpfc_cli.privacy.standings import Standings, counted, depth_of, level_weights, side_weights
from tests.support import exact_sum, stream_of

LATTICE = Lattice(18)
DEPTH = 4


@pytest.mark.parametrize(("m", "k"), [(2, 1), (3, 1), (3, 2), (4, 4)])
def test_trees_have_the_records_of_each_class_and_the_others_by_their_probabilities(m: int, k: int) -> None:
    """The cells are counted of probabilities, in another way. The weights are those that are stated."""
    rng = np.random.default_rng(m)
    head = Scorer(chain=(Clip(1.0),), weight=3 * rng.normal(size=(4, m)), bias=rng.normal(size=m))
    x, y = rng.normal(size=(400, 4)).astype(np.float32), rng.integers(-1, m, (400, k)).astype(np.int32)
    x[:9] = np.nan
    facts = Facts(n=400, m=m, d=4, k=k)
    query = Standings(head.chain, head.weight, head.bias, DEPTH)
    found = exact_sum(query, stream_of(x, y), facts, LATTICE) * query.scale(facts, LATTICE)
    trees = found.reshape(2, counted(facts), 1 << DEPTH)
    x, sets, valid = prepare(x, y, m, np)
    p = as_probabilities(head.scores(x), several=k > 1)[valid[:, 0]]
    sets = sets[valid[:, 0]]
    edges = np.arange(1, 1 << DEPTH) / (1 << DEPTH)
    levels = np.repeat(level_weights(DEPTH), [1, 1, 2, 4, 8])
    for i, j in enumerate(range(m - counted(facts), m)):
        cells = np.searchsorted([edge**4 / (edge**4 + (1 - edge) ** 4) for edge in edges], p[:, j], side="right")
        for side, of in enumerate((sets[:, j] > 0, sets[:, j] == 0)):
            counts = np.bincount(cells[of], minlength=1 << DEPTH)
            expected = tree_of(counts) * levels * side_weights(facts)[side]
            np.testing.assert_allclose(trees[side, i], expected, rtol=1e-3, atol=0.02)
    assert standing_of(edges[3] ** 4 / (edges[3] ** 4 + (1 - edges[3]) ** 4)) == pytest.approx(edges[3])


def test_a_record_of_all_its_labels_is_as_long_as_the_bound_and_none_is_longer() -> None:
    assert math.fsum(each**2 for each in level_weights(7)) == pytest.approx(1)
    for m, k in ((2, 1), (2, 2), (3, 1), (9, 1), (9, 4), (9, 8), (100, 2)):
        facts = Facts(n=1, m=m, d=1, k=k)
        own, other = side_weights(facts)
        assert own >= other > 0
        if counted(facts) == m:
            assert k * own**2 + (m - k) * other**2 == pytest.approx(1)
    depths = [depth_of(Facts(n=1, m=m, d=1)) for m in (2, 10, 64, 65, 256, 257, 10**6)]
    assert depths == [10, 10, 10, 9, 8, None, None]
    assert LONGEST == 2 * 256 << 8


@pytest.mark.parametrize(("m", "k"), [(2, 1), (3, 2)])
def test_no_head_makes_a_record_worth_more_than_the_sensitivity(m: int, k: int) -> None:
    """Scores may overflow, be equal, or be NaN. The record is in one cell all the same."""
    facts, huge = Facts(n=1, m=m, d=2, k=k), 1.7e308
    heads = [np.zeros((2, m)), np.full((2, m), huge), np.array([[huge, -huge, 1], [-huge, huge, 1]])[:, :m]]
    x = np.array([[1e30, -1e30], [0, 0], [3e38, 3e38], [1, 2]], np.float32)
    labels = np.array([[0, -1], [1, 0], [1, 1], [0, 1]], np.int32)[:, :k]
    with np.errstate(all="ignore"):
        for weight in heads:
            for chain in ((), (Clip(1.0),)):
                query = Standings(chain, weight, np.array([huge, 0, -huge])[:m], DEPTH)
                check(query, facts)
                added = [contribution(query, a, b, facts, LATTICE) for a in x for b in labels]
                lengths = [sum(int(v) ** 2 for v in each.ravel()) for each in added]
                assert min(lengths) > 0
                assert max(lengths) <= LATTICE.unit**2


@pytest.mark.parametrize("kind", [Outcomes, Standings])
def test_a_record_is_counted_in_the_row_of_its_subgroup_alone(kind: Any) -> None:
    """What a row has is what the records of that subgroup would have alone. Labels in a second one count nowhere."""
    rng, m, groups = np.random.default_rng(0), 3, 2
    weight, bias = rng.normal(size=(4, m)), rng.normal(size=m)
    x, y, own = rng.normal(size=(200, 4)).astype(np.float32), rng.integers(0, m, 200), rng.integers(-1, groups, 200)
    more: dict[str, Any] = {"depth": DEPTH} if kind is Standings else {"best": 2}
    labels = np.stack([np.where(own < 0, -1, own * m + y), np.full(200, -1)], axis=1)
    labels[own == 0, 1] = m + (y[own == 0] + 1) % m
    facts = Facts(n=200, m=groups * m, d=4, k=2)
    found = exact_sum(kind((), weight, bias, groups=groups, **more), stream_of(x, labels), facts, LATTICE)
    for group in range(groups):
        alone = np.stack([np.where(own == group, y, -1), np.full(200, -1)], axis=1)
        one = exact_sum(kind((), weight, bias, **more), stream_of(x, alone), Facts(n=200, m=m, d=4, k=2), LATTICE)
        assert np.array_equal(found[group], one[0])
