"""Cells of a table: computed once, found again, and noise that is shared only where it is asked for."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from bench import cells, sets
from bench.cells import Cell
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.linear import start, symmetric_psd
from dpfc_cli.privacy import curator as curator_module
from dpfc_cli.privacy import sums
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.privacy.curator import Records
from dpfc_cli.privacy.noise import Bits, SeededBits
from dpfc_cli.privacy.oracle import Mechanism
from dpfc_cli.privacy.queries import ClassGrams, ClassSums, Gradient, Query
from dpfc_cli.training.calibrate import calibrate
from tests import instead
from tests.support import CHAIN, feature_set


def test_a_cell_trains_with_the_products_own_curator(data: str) -> None:
    assert cells.top1(Cell(data, "dp-fc", 100.0)) > 90
    assert cells.top1(Cell(data, "dp-ls", None)) > 90


def test_dp_fc_is_that_of_the_paper(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Algorithm 4: the inverse of the Gram matrix as it was released, and a constant step for each gradient."""
    seen: list[np.ndarray] = []

    release = curator_module.Curator.release

    def watched(self: curator_module.Curator, query: Query) -> np.ndarray:
        seen.append(release(self, query))
        return seen[-1]

    instead.release(monkeypatch, watched)
    head, facts = cells.train(Cell(data, "dp-fc", 1.0)), sets.load(data).facts
    options = calibrate(METHODS["dp-fc"], facts, {}, Privacy(epsilon=1.0)).options
    gram, *gradients = (answer / facts.n for answer in seen)
    inverse = np.linalg.inv(symmetric_psd(gram) + options.damping * np.eye(len(gram)))
    theta = start(facts, options.loss, options.bias_feature) - options.learning_rate * inverse @ sum(gradients)
    assert np.allclose(head.weight, theta[:-1], rtol=1e-6)
    assert np.allclose(head.bias, options.bias_feature * theta[-1], rtol=1e-6)


def test_the_papers_conversion_has_more_noise_at_the_same_epsilon(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    class Spy(curator_module.Curator):
        def __init__(self, mechanism: Mechanism, records: Records, bits: Bits) -> None:
            given.append(mechanism.mu)
            super().__init__(mechanism, records, bits)

    monkeypatch.setattr(cells, "Curator", Spy)
    for conversion in ("exact", "zcdp"):
        cells.train(Cell(data, "dp-ls", 1.0, conversion=conversion))
    assert 0.5 * given[0] < given[1] < given[0]


def test_shared_noise_is_the_same_for_every_class_and_step_and_ends_with_its_block() -> None:
    theta = np.zeros((4, 3))
    with cells.shared_noise(1):
        gradients = [
            curator_module.draw_noise(Gradient(CHAIN, theta, clip=1.0), (4, 3), 1000, SeededBits(step))
            for step in (1, 2)
        ]
        sums = curator_module.draw_noise(ClassSums(CHAIN), (3, 4), 1000, SeededBits(1))
        grams = curator_module.draw_noise(ClassGrams(CHAIN), (3, 4, 4), 1000, SeededBits(1))
    assert (gradients[0] == gradients[1]).all()
    assert (gradients[0] == gradients[0][:, :1]).all()
    assert (sums == sums[0]).all()
    assert (grams == grams[0]).all()
    apart = curator_module.draw_noise(ClassSums(CHAIN), (3, 4), 1000, SeededBits(1))
    assert (apart[0] != apart[1]).any()


@pytest.mark.parametrize(("method", "passes"), {"dp-ls": 0, "dp-newton": 2 * 9, "dp-fc": 20}.items())
def test_remembered_sums_change_nothing(data: str, method: str, passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Other noise and options need the same sums. Another clipping norm needs other sums.
    other = Cell(data, method, 1.0, seed=1, options=(("damping", 0.1),))
    wider = Cell(data, method, 1.0, options=(("feature_clip", 5.0),))
    for cell in (other, wider):
        cells.train(cell)
    computed: list[type] = []
    exact = sums.exact_sum
    instead.exact_sum(monkeypatch, lambda query, *rest: (computed.append(type(query)), exact(query, *rest))[1])
    remembered = cells.train(Cell(data, method, 1.0)).weight
    assert len(computed) == passes
    cells._sums.clear()
    assert (cells.train(Cell(data, method, 1.0)).weight == remembered).all()


def _never(_cell: Cell) -> float:
    raise AssertionError("computed again")


def test_a_result_is_computed_once_even_if_the_file_was_cut_short(data: str, tmp_path: Path) -> None:
    results, cell = tmp_path / "results.jsonl", Cell(data, "dp-ls", 8.0, options=(("negative_weight", 0.5),))
    first = cells.run([cell], results, 1)
    results.write_text(results.read_text() + '{"cell": {"da')
    assert cells.run([cell], results, 1, _never) == first
    other = dataclasses.replace(cell, seed=1)
    assert cells.run([cell, other], results, 1) == cells.read(results)
    assert {cell.key, other.key} < set(cells.read(results))


@pytest.mark.parametrize("part", ["train_x", "train_y", "test_x", "test_y"])
def test_results_of_another_set_of_the_same_name_are_not_taken(
    data: str, part: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("other")
    results, other = folder / "results.jsonl", folder / Path(data).name
    shutil.copytree(data, other)
    np.save(other / f"{part}.npy", np.roll(np.load(other / f"{part}.npy"), 1, axis=0))
    cells.run([Cell(data, "dp-ls", None)], results, 1)
    # Also where the file does not say which set it is of.
    for kept in (
        results.read_text(),
        "".join(line for line in results.read_text().splitlines(True) if '"cell": {"set"' not in line),
    ):
        results.write_text(kept)
        with pytest.raises(SystemExit):
            cells.run([Cell(str(other), "dp-ls", epsilon) for epsilon in (None, 1.0)], results, 1)
        assert results.read_text() == kept


def test_a_feature_set_of_dpfc_is_read_like_arrays(data: str, tmp_path: Path) -> None:
    stored = tmp_path / "stored" / Path(data).name
    feature_set(Path(data), stored, classes=3)
    assert (sets.load(data).x == sets.load(str(stored)).x).all()
    done = cells.run([Cell(data, "dp-ls", None)], tmp_path / "results.jsonl", 1)
    assert cells.run([Cell(str(stored), "dp-ls", None)], tmp_path / "results.jsonl", 1, _never) == done


def test_an_experiment_that_is_stopped_says_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def stopped() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as end:
        cells.start(stopped)
    assert end.value.code == 130
    assert capsys.readouterr().err.count("\n") == 1
