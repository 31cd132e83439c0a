"""Tests that can fail: a fault in one line of the core, of the ledger or of the charge makes the nearest tests fail.

`make torture` changes every line there. These are the faults that would cost most.
"""

import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from hypothesis import Phase, settings

ROOT = Path(__file__).parents[2]
MUTANTS = {
    "test_small_sigmas_have_the_exact_probabilities": "privacy.noise: accept = u < p → accept = u < 2 * p",
    "test_each_answer_is_its_exact_sum_and_noise_of_the_next_words":
        "privacy.curator: total.shape, sigma, self._bits → total.shape, 1, self._bits",
    "test_shares_sum_to_one_and_sigmas_compose_to_mu":
        "privacy.oracle: (mu * math.sqrt(w)) → (mu * math.sqrt(math.sqrt(w)))",
    "test_the_check_alone_keeps_the_bound_if_nothing_is_scaled":
        "privacy.lattice: keepdims=True) <= squared → keepdims=True) <= 4 * squared",
    "test_the_samplers_distance_is_paid_for_out_of_delta":
        "privacy.accounting: delta - (1 + math.exp(epsilon)) * eta → delta",
    "test_a_total_is_that_of_the_splits_that_cost_most":
        "ledger.totals: for charge in max(each → for charge in min(each",
    "test_a_row_that_was_changed_taken_out_put_in_or_exchanged_is_refused":
        "ledger.file: if end != hashed: → if False:",
    "test_a_cap_that_was_set_after_the_check_refuses_the_charge":
        "training.charge: check_charge(ledger, features, charge) → pass",
    "test_one_charge_pays_for_one_curator": "training.charge: not self.unused.acquire(blocking=False) → False",
    "test_a_stopped_training_goes_on_and_is_never_charged_twice":
        "training.answers: if number >= len(self._starts) → if number >= 0",
}  # fmt: skip
"""Of each test that must see it, the fault: a module, its text, and what stands in its place."""


def functions(code: CodeType) -> Iterator[CodeType]:
    """The functions and methods of a module."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from functions(each) if not each.co_flags & inspect.CO_OPTIMIZED else ()


def plant(name: str, text: str, fault: str) -> None:
    """Put a fault in a module that was imported: functions that change get their new code."""
    module = importlib.import_module(f"dpfc_cli.{name}")
    source = inspect.getsource(module)
    assert source.count(text) == 1, f"{name} has {text} {source.count(text)} times"
    texts = (source, source.replace(text, fault))
    old, new = (list(functions(compile(each, str(module.__file__), "exec"))) for each in texts)
    changed = [after for before, after in zip(old, new, strict=True) if before != after]
    assert changed
    for code in changed:
        found: Any = module
        for part in code.co_qualname.split("."):
            found = inspect.getattr_static(found, part)
        found = getattr(found, "fget", None) or getattr(found, "func", None) or found
        inspect.unwrap(getattr(found, "__func__", found)).__code__ = code


def survivors() -> Iterator[str]:
    """The mutants that their test does not see. Each is a fork of this process, which has run nothing yet."""
    # What tests import takes most of their time.
    faults = {test: said.replace(": ", " → ", 1).split(" → ") for test, said in MUTANTS.items()}
    for module in (
        *(f"dpfc_cli.{name}" for name, *_ in faults.values()),
        "tests.training.stopped",
        "tests.ledger.facts",
    ):
        importlib.import_module(module)
    # Hypothesis need not look for a smaller example.
    settings.register_profile("first", phases=[Phase.generate])
    settings.load_profile("first")
    for test, (name, text, fault) in faults.items():
        room, module = name.split(".")
        child = os.fork()
        if child == 0:
            code = 99
            try:
                plant(name, text, fault)
                quick = ("-x", "-q", "--tb=no", "--assert=plain", "-p", "no:cacheprovider")
                code = int(pytest.main([*quick, f"tests/{room}/test_{module}.py::{test}"]))
            finally:
                os._exit(code)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if ended != pytest.ExitCode.TESTS_FAILED:
            yield f"{name}: {fault} (exit code {ended})"


def main() -> None:
    print("survivors:", *survivors(), sep="\n", file=sys.stderr)


def test_each_of_these_faults_is_seen() -> None:
    line = [sys.executable, "-c", "from tests.torture import test_mutants; test_mutants.main()"]
    # Hypothesis is imported already, so pytest could not load its plugin.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run(line, check=True, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert ended.stderr.endswith("survivors:\n"), ended.stdout + ended.stderr
