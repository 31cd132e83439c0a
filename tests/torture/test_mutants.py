"""The short form of mutation testing: faults that would make ε a lie are seen, each by a test that takes little time.

`python -m tests.torture.mutants` plants all faults. That takes hours.
"""

import json
import subprocess
import sys
from typing import NamedTuple

import pytest

from tests.torture import planted, trials


class Fault(NamedTuple):
    """A mutant, and a test that fails on it."""

    module: str
    function: str
    line: str
    becomes: str
    test: str


FAULTS = {
    "noise that does not grow with the sensitivity": Fault(
        "privacy/curator.py",
        "Curator._begun",
        "sigma = math.ceil(self._sigmas[self.released] * sensitivity(query, self._facts) * self._lattice.unit)",
        "sigma = math.ceil(self._sigmas[self.released] / sensitivity(query, self._facts) * self._lattice.unit)",
        "tests/privacy/test_curator.py::"
        "test_replace_one_takes_twice_the_noise_for_sums_and_root_two_for_grams[class_sums]",
    ),
    "no noise beside the diagonal": Fault(
        "privacy/curator.py",
        "draw_noise",
        "matrix[above] = rounded_normal(aside, len(above[0]), bits)",
        "pass",
        "tests/privacy/test_curator.py::test_every_coordinate_has_a_sample_of_its_own_of_its_sigma[gram-shape2-drawn2]",
    ),
    "records that are counted twice": Fault(
        "privacy/passes.py",
        "Counted.over",
        "if block.start != expected or count != min(self._rows, facts.records - block.start) or "
        "[array.shape for array in block.data] != [(count, width) for width in widths] or "
        "(block.labels.shape != (count, facts.k)):",
        "if count != min(self._rows, facts.records - block.start) or "
        "[array.shape for array in block.data] != [(count, width) for width in widths] or "
        "block.labels.shape != (count, facts.k):",
        "tests/privacy/test_curator.py::"
        "test_a_pass_that_does_not_cover_each_record_once_fails[a block in place of the next one]",
    ),
    "a vector that is longer than the bound": Fault(
        "privacy/lattice.py",
        "Lattice.vector",
        "return xp.where(xp.sum(q * q, axis=-1, keepdims=True) <= squared, q, 0.0)",
        "return xp.where(xp.sum(q * q, axis=-1, keepdims=True) >= squared, q, 0.0)",
        "tests/privacy/test_lattice.py::test_the_check_alone_keeps_the_bound_if_nothing_is_scaled",
    ),
    "a record that changes what the others add": Fault(
        "privacy/lattice.py",
        "Lattice.vector",
        "small = xp.all(xp.abs(q) < self.one, axis=-1, keepdims=True)",
        "small = xp.all(xp.abs(q) < self.one, keepdims=True)",
        "tests/privacy/test_lattice.py::test_a_record_is_rounded_without_looking_at_the_others",
    ),
    "the sensitivity of the other adjacency": Fault(
        "privacy/queries.py",
        "sensitivity",
        "return 1.0 if facts.adjacency == 'zero-out' else query.replace_one",
        "return 1.0 if facts.adjacency != 'zero-out' else query.replace_one",
        "tests/privacy/test_queries.py::test_no_extreme_record_is_worth_more_than_the_sensitivity[mean-9-zero-out]",
    ),
    "a null record that counts": Fault(
        "privacy/inputs.py",
        "prepare",
        "valid = (known & xp.all(xp.isfinite(x), axis=-1))[:, None]",
        "valid = (known | xp.all(xp.isfinite(x), axis=-1))[:, None]",
        "tests/privacy/test_queries.py::test_a_record_is_prepared_without_looking_at_the_others",
    ),
    "close calls that float64 decides": Fault(
        "privacy/noise.py",
        "",
        "MARGIN = 2.0 ** (-40)",
        "MARGIN = 2.0 * -40",
        "tests/privacy/test_noise.py::test_between_accepted_and_rejected_the_last_of_320_bits_decides[1-plus]",
    ),
    "a sample above its rate": Fault(
        "privacy/noise.py",
        "bernoulli",
        "return bits.words(count) < np.uint64(int(rate * 2 ** 64))",
        "return bits.words(count) <= np.uint64(int(rate * 2 ** 64))",
        "tests/privacy/test_noise.py::test_a_record_takes_part_if_its_word_lies_below_the_rate",
    ),
    "a calibration on the other side of the root": Fault(
        "privacy/accounting.py",
        "mu_for",
        "return low * (1 - _SLACK)",
        "return low * (1 + _SLACK)",
        "tests/privacy/test_accounting.py::test_calibration_never_overshoots_and_errs_by_less_than_2e_9[1.0-1e-05]",
    ),
    "a sampler's distance that nobody pays": Fault(
        "privacy/accounting.py",
        "mu_for",
        "target = delta - (1 + math.exp(epsilon)) * eta",
        "target = delta + (1 + math.exp(epsilon)) * eta",
        "tests/privacy/test_accounting.py::test_the_samplers_distance_is_paid_for_out_of_delta",
    ),
    "a release that was not planned": Fault(
        "privacy/oracle.py",
        "Plan.due",
        "if (form(query), shape) != (due.form, due.shape):",
        "if False:",
        "tests/privacy/test_oracle.py::test_the_next_release_is_due_and_nothing_else",
    ),
    "two processes that sum the same records": Fault(
        "privacy/passes.py",
        "chained",
        "if span.start != reached or span.stop < span.start:",
        "if False:",
        "tests/privacy/test_passes.py::test_parts_that_do_not_have_each_unit_once_are_refused[a unit twice]",
    ),
    "directions of other gradients": Fault(
        "privacy/directions.py",
        "Directions.holds",
        "return type(there) is type(query) and all(same) and _same_chain(there.chain, query.chain)",
        "return type(there) is type(query) and all(same)",
        "tests/privacy/test_sums.py::test_a_gradient_of_other_directions_makes_its_own[another step]",
    ),
    "a second answer": Fault(
        "privacy/curator.py",
        "Curator._answer",
        "if (kept := self._answers.recall(number, shape)) is not None:",
        "if False:",
        "tests/training/test_answers.py::"
        "test_a_killed_training_goes_on_where_it_stopped_and_ends_as_one_that_was_never_stopped",
    ),
    "two curators for one charge": Fault(
        "training/charge.py",
        "Paid.opened",
        "if not self.unused.acquire(blocking=False):",
        "if False:",
        "tests/training/test_charge.py::test_one_charge_pays_for_one_curator",
    ),
    "a row that was changed": Fault(
        "ledger/file.py",
        "_facts_in",
        "if end != hashed:",
        "if False:",
        "tests/ledger/test_file.py::test_a_row_that_was_changed_taken_out_put_in_or_exchanged_is_refused",
    ),
    "a set of which nothing is said counts for nobody": Fault(
        "ledger/totals.py",
        "Ledger.account.counts",
        "return where is None or population in where",
        "return population in where",
        "tests/ledger/test_totals.py::test_what_is_unsaid_counts_for_everybody",
    ),
    "a charge that pays for another training": Fault(
        "training/run.py",
        "run",
        "if receipt.charge != checked.charge or made.digest != checked.charge.digest:",
        "if False:",
        "tests/training/test_charge.py::test_a_charge_pays_for_no_other_training",
    ),
}
TOY, CHECKS = planted.ROOT / "tests/torture/toy.py", "tests/torture/toy_checks.py::"
LARGE, SMALL = f"{CHECKS}test_a_large_value_is_clipped", f"{CHECKS}test_a_small_value_stays"

PROGRAM = """
import json, sys
from tests.torture import test_mutants, trials
trials.load(("jax.numpy", "scipy.stats", "hypothesis.extra.numpy", "mpmath"))
json.dump(test_mutants.verdicts(), sys.stdout)
"""


def verdicts() -> dict[str, bool | list[str]]:
    """Which named faults are killed, and which mutants of the toy survive its tests."""
    said: dict[str, bool | list[str]] = dict.fromkeys(FAULTS, False)
    for module in dict.fromkeys(fault.module for fault in FAULTS.values()):
        for mutant, tree in planted.planted(module, planted.source_of(module)):
            for name, fault in FAULTS.items():
                if mutant.name == fault[:4]:
                    path = planted.ROOT / "dpfc_cli" / module
                    code = compile(tree, str(path), "exec")
                    said[name] = trials.verdict_of(planted.import_name(module), path, code, {fault.test: 1.0}).killed
    sound = compile(TOY.read_text(), str(TOY), "exec")
    every = dict.fromkeys((fault.test for fault in FAULTS.values()), 1.0)
    said["no fault"] = trials.verdict_of("tests.torture.toy", TOY, sound, every).killed
    for name, tests in (("both tests", (LARGE, SMALL)), ("one test", (LARGE,))):
        said[name] = [
            mutant.after
            for mutant, tree in planted.planted("toy.py", TOY.read_text())
            if not trials.verdict_of(
                "tests.torture.toy", TOY, compile(tree, str(TOY), "exec"), dict.fromkeys(tests, 1.0)
            ).killed
        ]
    return said


@pytest.fixture(scope="module")
def said() -> dict[str, bool | list[str]]:
    """In a process of its own, because each mutant is a fork of one that has imported nothing of dpfc_cli."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, cwd=planted.ROOT)
    found: dict[str, bool | list[str]] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_would_make_epsilon_a_lie_is_seen(fault: str, said: dict[str, bool | list[str]]) -> None:
    assert said[fault] is True


def test_without_a_fault_all_these_tests_pass(said: dict[str, bool | list[str]]) -> None:
    assert said["no fault"] is False


def test_a_mutant_survives_if_no_test_looks_or_if_it_does_the_same(said: dict[str, bool | list[str]]) -> None:
    same = "if value >= most:"
    assert said["both tests"] == [same]
    assert said["one test"] == ["if True:", same, "return None"]
