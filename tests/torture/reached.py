"""Which tests reach which lines, as one run of the tests shows."""

import hashlib
import inspect
import itertools
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.torture.planted import ROOT, Mutant
from tests.torture.trials import FOLDER, run_tests


class _Recorder:
    """Which lines of dpfc_cli each test runs, and how many seconds it takes.

    known: of tests that need not be run again. package: the digests of all modules.
    """

    def __init__(self, known: Mapping[str, Any], package: Mapping[str, str]) -> None:
        self.tests: dict[str, Any] = {}
        self._known, self._package = known, package
        self._fixtures: dict[object, tuple[set[tuple[str, int]], float]] = {}
        self._lines: set[tuple[str, int]] = set()

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if "/dpfc_cli/" not in frame.f_code.co_filename:
            return None
        self._lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._trace

    @contextmanager
    def _recorded(self) -> Iterator[tuple[set[tuple[str, int]], Callable[[], float]]]:
        outer, self._lines, begin = self._lines, set(), time.process_time()
        before = sys.gettrace()
        sys.settrace(self._trace)
        # Threads that a test starts, too.
        threading.settrace(self._trace)
        try:
            yield self._lines, lambda: time.process_time() - begin
        finally:
            sys.settrace(before)
            threading.settrace(before)
            self._lines = outer

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for item in items[:]:
            known = self._known.get(item.nodeid)
            if known and known["source"] == self._source(item):
                self.tests[item.nodeid] = known
                items.remove(item)

    @staticmethod
    def _source(item: Any) -> str:
        return hashlib.sha256(inspect.getsource(item.function).encode()).hexdigest()[:16]

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Any:
        # What several tests share is set up once. Each of them depends on it.
        if fixturedef.scope == "function":
            return (yield)
        with self._recorded() as (lines, seconds):
            result = yield
        self._fixtures[fixturedef] = lines, seconds()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        for module in [m for name, m in sys.modules.items() if name.startswith("dpfc_cli")]:
            for held in list(vars(module).values()):
                if hasattr(held, "cache_clear"):
                    held.cache_clear()
        with self._recorded() as (lines, seconds):
            result = yield
        used = [f for f in itertools.chain(*item._fixtureinfo.name2fixturedefs.values()) if f in self._fixtures]
        lines = lines.union(*(self._fixtures[f][0] for f in used))
        reached: dict[str, list[int]] = {}
        for path, line in sorted(lines):
            reached.setdefault(path.split("/dpfc_cli/")[1], []).append(line)
        took = seconds() + sum(self._fixtures[f][1] for f in used)
        modules = {module: self._package[module] for module in reached}
        said = {"seconds": round(took, 3), "lines": reached, "modules": modules, "source": self._source(item)}
        self.tests[item.nodeid] = said
        return result


def digest_of(*paths: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(paths))).hexdigest()[:16]


def record(rooms: Sequence[str], workers: int = 1) -> dict[str, Any]:
    """Run each test once, unless neither it nor a module that it reaches has changed since the last time."""
    kept = FOLDER / "lines.json"
    known: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    package = {p.relative_to(ROOT / "dpfc_cli").as_posix(): digest_of(p) for p in (ROOT / "dpfc_cli").rglob("*.py")}
    fresh = {
        name: test
        for name, test in known.items()
        if all(package.get(module) == digest for module, digest in test["modules"].items())
    }
    places = (ROOT / "tests" / room for room in rooms)
    paths = [path for place in places for path in (sorted(place.rglob("test_*.py")) if place.is_dir() else [place])]
    running: dict[int, Path] = {}
    tests: dict[str, Any] = {}
    while paths or running:
        while paths and len(running) < workers:
            path = paths.pop(0)
            running[_recording(path, fresh, package)] = path
        child, status = os.wait()
        path, said = running.pop(child), FOLDER / "tmp" / f"{child}.json"
        shutil.rmtree(FOLDER / "tmp" / str(child), ignore_errors=True)
        if os.waitstatus_to_exitcode(status) not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
            raise SystemExit(f"{path} fails without any fault")
        tests |= json.loads(said.read_text())
        said.unlink()
        kept.write_text(json.dumps(known | tests))
    return tests


def _recording(path: Path, fresh: Mapping[str, Any], package: Mapping[str, str]) -> int:
    """A process that runs a file of tests and writes what they reach to a file named after itself."""
    child = os.fork()
    if child:
        return child
    recorder, result = _Recorder(fresh, package), 99
    try:
        os.chdir(ROOT)
        result = run_tests([str(path.relative_to(ROOT))], recorder)
        (FOLDER / "tmp" / f"{os.getpid()}.json").write_text(json.dumps(recorder.tests))
    finally:
        sys.stdout.flush()
        os._exit(result)


def reaching(mutant: Mutant, tests: Mapping[str, Any]) -> list[str]:
    """The tests that reach a mutant: those of its own room first, and fast ones before slow ones.

    What runs at import reaches all tests of its room.
    """
    room, (first, last) = f"tests/{mutant.module.split('/')[0]}/", mutant.reach
    found = [
        (not name.startswith(room), test["seconds"], name)
        for name, test in tests.items()
        if any(first <= line <= last for line in test["lines"].get(mutant.module, ()))
        or (not first and name.startswith(room))
    ]
    return [name for *_, name in sorted(found)]
