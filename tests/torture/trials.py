"""Running tests on one mutant, in a process of its own.

The parent imports the libraries, and nothing of `dpfc_cli`. The child imports the mutated module in place of the real
one, and it runs the tests in the given order until one fails.
"""

import gc
import importlib
import importlib.machinery
import importlib.util
import math
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import pytest

from tests.torture.planted import ROOT

FOLDER = ROOT / "torture-results/mutants"
"""Results, and what is kept between runs."""
LIBRARIES = (
    "dp_accounting.pld", "h5py", "hypothesis.extra.numpy", "jax.numpy", "mpmath", "opendp.prelude", "optax",
    "PIL.Image", "pyarrow.parquet", "rich.progress", "safetensors.numpy", "scipy.optimize", "scipy.stats",
    "sklearn.metrics", "typer.testing",
)  # fmt: skip
MEMORY = 12 * 2**30
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_COMPILATION_CACHE_DIR": str(FOLDER / "compiled"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "OPENBLAS_NUM_THREADS": "1",
    # Hypothesis is imported already, so pytest could not load its plugin.
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTHONPATH": str(ROOT),
}


class _Mutated(importlib.machinery.SourceFileLoader):
    """Imports a module from a code object."""

    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self._mutant = code

    def get_code(self, fullname: str) -> CodeType:
        return self._mutant

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        if fullname == self.name:
            return importlib.util.spec_from_file_location(fullname, self.path, loader=self)
        return None


class _Only:
    """Runs tests in the given order, each within a few times its seconds. Says through a pipe which one failed."""

    def __init__(self, tests: Mapping[str, float], said: int) -> None:
        self._tests, self._said = tests, said

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        by_name = {item.nodeid: item for item in items}
        items[:] = [by_name[name] for name in self._tests if name in by_name]

    def pytest_runtest_logstart(self, nodeid: str, location: object) -> None:
        limit = math.ceil(time.process_time() + 4 + 5 * self._tests[nodeid])
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        # One that waits for ever uses no processor time. On a busy machine others wait, too.
        signal.alarm(math.ceil(60 + 40 * self._tests[nodeid]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self._said, report.nodeid.encode())


def load(libraries: Sequence[str]) -> None:
    """Import what is the same for all mutants."""
    (FOLDER / "tmp").mkdir(parents=True, exist_ok=True)
    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    for library in libraries:
        importlib.import_module(library)
    # Modules that are not mutated are compiled once. Their objects stay where they are: a child copies what moves.
    sys.dont_write_bytecode = False
    gc.collect()
    gc.freeze()


def run_tests(tests: Sequence[str], *plugins: object) -> int:
    """Run the files of these tests in this process; the exit code of pytest."""
    from hypothesis import settings

    # The same examples for each mutant, and none that another one left.
    settings.register_profile("mutants", database=None, derandomize=True)
    settings.load_profile("mutants")
    scratch = f"--basetemp={FOLDER / 'tmp' / str(os.getpid())}"
    quiet = ("-x", "-q", "--no-header", "-p", "no:cacheprovider", f"--rootdir={ROOT}", scratch)
    return int(pytest.main([*quiet, *dict.fromkeys(str(ROOT / test.split("::")[0]) for test in tests)], [*plugins]))


class Verdict(NamedTuple):
    """What the tests say of a mutant. by: the test that failed, or what ended the process."""

    killed: bool
    by: str


def verdict_of(name: str, path: Path, code: CodeType, tests: Mapping[str, float]) -> Verdict:
    """What tests say of a mutant. One that makes them take far longer than without a fault is killed, too.

    Args:
        name: of the module, as it is imported.
        path: of its file.
        code: the mutant.
        tests: the tests in the order in which they run, with their seconds.

    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        # Away from here, because a mutant may write anywhere.
        os.chdir(FOLDER / "tmp")
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.meta_path.insert(0, _Mutated(name, str(path), code))
        result = 99
        try:
            result = run_tests([*tests], _Only(tests, writing))
        finally:
            os._exit(result)
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        by = said.read().decode()
    _, status = os.waitpid(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    shutil.rmtree(FOLDER / "tmp" / str(child), ignore_errors=True)
    if os.WIFSIGNALED(status):
        return Verdict(True, signal.Signals(os.WTERMSIG(status)).name)
    result = os.waitstatus_to_exitcode(status)
    if result == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise RuntimeError(f"there are no such tests: {', '.join(tests)}")
    return Verdict(result != 0, by or ("" if result == 0 else "import"))
