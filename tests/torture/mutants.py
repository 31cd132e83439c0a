"""Mutation testing: faults are planted one by one, and the tests must see each of them.

    python -m tests.torture.mutants privacy training/charge.py --workers 2

A *mutant* is a module with one small fault: another comparison, another constant, a statement left out. A mutant is
*killed* if a test fails on it. One that survives shows what no test looks at. It may also be equivalent to the module,
or differ in nothing that matters. `argued.toml` names each mutant of that kind and says why.

This process imports the libraries, and nothing of `dpfc_cli`. For each mutant it forks. The child imports the mutated
module in place of the real one, and it runs the tests that reach the mutated line, fast ones first. Which tests these
are was recorded before, with one run of the tests. All results are kept in a folder, so a run that was stopped goes on.
"""

import argparse
import ast
import functools
import gc
import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import itertools
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
ARGUED = Path(__file__).with_name("argued.toml")
FOLDER = ROOT / "torture-results/mutants"
"""Results, and what is kept between runs."""
ROOMS = (
    "privacy", "kernels", "methods", "training", "trust/test_trust.py", "heads", "cli/test_account.py",
    "cli/test_budget.py", "cli/test_spending.py", "cli/test_verify.py",
)  # fmt: skip
"""The tests that may kill a mutant."""
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

# Faults

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_OTHER_NAMES = {"min": "max", "max": "min", "floor": "ceil", "ceil": "floor", "any": "all", "all": "any",
                "maximum": "minimum", "minimum": "maximum", "zeros": "ones", "ones": "zeros"}  # fmt: skip
_UNWRAPPED = {
    "rint", "sqrt", "isqrt", "abs", "exp", "log", "ceil", "floor", "into_ball", "clip", "nan_to_num", "sorted",
}  # fmt: skip
_DELETED = (ast.Raise, ast.Assert, ast.AugAssign, ast.Break, ast.Continue, ast.Delete)
_SKIPPED = {"annotation", "returns", "bases", "type_comment", "ctx", "type", "exc", "cause", "msg"}


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _with(node: Any, **changed: Any) -> Any:
    return ast.copy_location(type(node)(**{**dict(ast.iter_fields(node)), **changed}), node)


def _but(items: list[Any], index: int, *new: Any) -> list[Any]:
    return [*items[:index], *new, *items[index + 1 :]]


def _faulty(node: Any, parent: ast.AST, place: str) -> Iterator[Any]:
    """What may stand in place of a node."""
    if place in ("test", "ifs") and not isinstance(node, ast.Constant):
        yield from (ast.Constant(True), ast.Constant(False))
    match node:
        case ast.Compare(ops=ops, comparators=compared):
            for i, op in enumerate(ops):
                yield from (_with(node, ops=_but(ops, i, new())) for new in _COMPARISONS[type(op)])
            for i, value in enumerate(compared):
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield _with(node, comparators=_but(compared, i, ast.Constant(value.value + "X")))
        case ast.BinOp(op=op) if type(op) in _OPERATORS:
            yield _with(node, op=_OPERATORS[type(op)]())
        case ast.BoolOp(op=op, values=values):
            yield _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
            for i in range(len(values)):
                rest = _but(values, i)
                yield _with(node, values=rest) if len(rest) > 1 else rest[0]
        case ast.UnaryOp(operand=operand) if not (isinstance(parent, ast.keyword) and parent.arg == "axis"):
            # Blocks have two axes: the last one is the second.
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield from (ast.Constant(1.01 * value), ast.Constant(2 * value)) if value else (ast.Constant(1.0),)
        case ast.Call(func=func, args=args, keywords=keywords):
            if (name := _name(func)) in _OTHER_NAMES:
                other = {"id": _OTHER_NAMES[name]} if isinstance(func, ast.Name) else {"attr": _OTHER_NAMES[name]}
                yield _with(node, func=_with(func, **other))
            if name in _UNWRAPPED and args:
                yield args[0]
            for i in range(len(keywords)):
                yield _with(node, keywords=_but(keywords, i))
            if name not in ("min", "max"):
                for i in range(len(args) - 1):
                    yield _with(node, args=[*args[:i], args[i + 1], args[i], *args[i + 2 :]])
        case ast.Slice(lower=lower, upper=upper):
            yield from [_with(node, lower=None)] * (lower is not None) + [_with(node, upper=None)] * (upper is not None)
        case ast.Return(value=value) if value is not None and not isinstance(parent, ast.Lambda):
            yield _with(node, value=ast.Constant(None))
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.stmt() if isinstance(node, _DELETED):
            yield ast.Pass()
        case ast.FunctionDef() | ast.ClassDef():
            for i in range(len(node.decorator_list)):
                yield _with(node, decorator_list=_but(node.decorator_list, i))


def _left_alone(node: ast.AST) -> bool:
    """Texts, messages of errors, and what only types need."""
    match node:
        case ast.JoinedStr():
            return True
        case ast.Call(func=func):
            return _name(func).endswith("Error") or _name(func) == "TypeVar"
        case ast.FunctionDef(name="__repr__"):
            return True
        case ast.ClassDef(bases=bases):
            return any(_name(base) == "Protocol" for base in bases)
    return False


def _shown(statement: ast.AST) -> str:
    """A statement in one line; of one with a body only its head."""
    if isinstance(statement, ast.Try):
        return "try:"
    if isinstance(statement, ast.ExceptHandler):
        return f"except {ast.unparse(statement.type)}:" if statement.type else "except:"
    if hasattr(statement, "body"):
        statement = _with(statement, body=[ast.Pass()], **({"orelse": []} if hasattr(statement, "orelse") else {}))
    return " ".join(line.strip() for line in ast.unparse(statement).removesuffix("pass").splitlines()).strip() or "pass"


@dataclass(frozen=True)
class Mutant:
    """One fault.

    function: where it is; "" outside functions. line: of its statement. reach: the first and the last line of what it
    may change. before, after: the statement without the fault and with it.
    """

    module: str
    function: str
    line: int
    reach: tuple[int, int]
    before: str
    after: str

    @property
    def name(self) -> tuple[str, str, str, str]:
        return self.module, self.function, self.before, self.after


def planted(module: str, source: str) -> Iterator[tuple[Mutant, ast.Module]]:
    """Each mutant of a module, with its tree. The tree is one object: the fault is taken out before the next one."""
    tree, seen = ast.parse(source), set()

    def visit(node: ast.AST, about: Any, scope: Any, function: str) -> Iterator[Mutant]:
        """about: the innermost statement. scope: the innermost function, class or module."""
        for place, value in ast.iter_fields(node):
            for i, child in enumerate(value if isinstance(value, list) else [value]):
                if place in _SKIPPED or not isinstance(child, ast.AST) or _left_alone(child):
                    continue
                whole = isinstance(child, ast.stmt | ast.ExceptHandler)
                about, within, inside = child if whole else about, scope, function
                if isinstance(child, ast.FunctionDef | ast.ClassDef):
                    within, inside = child, f"{function}.{child.name}".removeprefix(".")
                # What runs at import may change anything.
                reach = (0, 10**6)
                if isinstance(within, ast.FunctionDef):
                    body = getattr(about, "body", None) if about is not within else None
                    reach = about.lineno, max(about.lineno, body[0].lineno - 1) if body else about.end_lineno
                before = _shown(about) if about else ""
                for new in _faulty(child, node, place):
                    ast.fix_missing_locations(ast.copy_location(new, child))
                    setattr(node, place, _but(value, i, new) if isinstance(value, list) else new)
                    made = Mutant(module, inside, about.lineno, reach, before, _shown(new if whole else about))
                    if made.after != before and made not in seen:
                        seen.add(made)
                        yield made
                    setattr(node, place, value)
                yield from visit(child, about, within, inside)

    for made in visit(tree, None, tree, ""):
        yield made, tree


def source_of(module: str) -> str:
    return (ROOT / "dpfc_cli" / module).read_text()


def import_name(module: str) -> str:
    return f"dpfc_cli.{module.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}"


# One mutant, one process


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


# Which tests reach a line


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


# All mutants


def reasons() -> dict[tuple[str, str, str, str], str]:
    """The mutants that are argued away, by name."""
    entries = tomllib.loads(ARGUED.read_text())["argued"] if ARGUED.exists() else []
    return {
        (each["module"], each["function"], each["line"], after): each["reason"]
        for each in entries
        for after in each["becomes"]
    }


def modules_of(places: Sequence[str]) -> list[str]:
    """`privacy` and `training/charge.py` as the names of modules."""
    package, found = ROOT / "dpfc_cli", []
    for place in places:
        path = package / place
        found += [p.relative_to(package).as_posix() for p in (sorted(path.glob("*.py")) if path.is_dir() else [path])]
    return found


class _Results:
    """What is known of each mutant. It is kept in a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        files = [path for path in (ROOT / "tests").rglob("*.py") if path.parent.name != "torture"]
        self._suite = digest_of(*files)
        self._texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in files}
        lines = path.read_text().splitlines() if path.exists() else []
        self._known = {(row["source"], *row["mutant"]): row for row in map(json.loads, lines)}

    def of(self, mutant: Mutant) -> Mapping[str, Any] | None:
        """None if it is to be tried: for the first time, because tests have changed since it survived, or because the
        one that killed it is gone.
        """
        row = self._known.get((self._source(mutant), *mutant.name, mutant.line))
        holds = row and (self._exists(row["by"]) if row["killed"] else row["suite"] == self._suite)
        return row if holds else None

    def _exists(self, test: str) -> bool:
        file, _, name = test.partition("::")
        return not name or f"def {name.split('[')[0]}(" in self._texts.get(file, "")

    def add(self, mutant: Mutant, **said: Any) -> None:
        row = {"source": self._source(mutant), "mutant": (*mutant.name, mutant.line), "suite": self._suite, **said}
        with self._path.open("a") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    @staticmethod
    @functools.cache
    def _digest(module: str) -> str:
        return digest_of(ROOT / "dpfc_cli" / module)

    def _source(self, mutant: Mutant) -> str:
        return self._digest(mutant.module)


def work(module: str, wanted: Set[Mutant], tests: Mapping[str, Any], results: _Results, seconds: float) -> None:
    """Try the wanted mutants of a module, one after the other."""
    path = ROOT / "dpfc_cli" / module
    killers: dict[str, list[str]] = {}
    for mutant, tree in planted(module, source_of(module)):
        if mutant not in wanted:
            continue
        code, begin = compile(tree, str(path), "exec"), time.monotonic()
        names, chosen = reaching(mutant, tests), dict[str, float]()
        # What killed the last mutants of this function likely kills this one, too.
        first = [name for name in killers.get(mutant.function, ()) if name in names]
        for name in dict.fromkeys([*first, *names]):
            if not chosen or sum(chosen.values()) + tests[name]["seconds"] <= seconds:
                chosen[name] = tests[name]["seconds"]
        room = f"tests/{module.split('/')[0]}/"
        killed, by = False, ""
        # Most die in the tests of their own room. The files of others need not be imported then.
        for own in (True, False):
            part = {name: took for name, took in chosen.items() if name.startswith(room) is own}
            if part and not killed:
                killed, by = verdict_of(import_name(module), path, code, part)
        if by in tests:
            killers[mutant.function] = list(dict.fromkeys([by, *killers.get(mutant.function, ())]))[:5]
        took = round(time.monotonic() - begin, 1)
        results.add(mutant, killed=killed, by=by, seconds=took, tests=(len(chosen), len(names)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("places", nargs="*", default=["privacy", "training"], help="rooms or modules of dpfc_cli")
    parser.add_argument("--sample", type=int, help="try that many mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--tests", nargs="*", default=ROOMS, help="rooms or files of tests that may kill a mutant")
    parser.add_argument("--seconds", type=float, default=60.0, help="of tests for one mutant")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--report", action="store_true", help="say what is known and try nothing")
    given = parser.parse_args()
    argued, modules = reasons(), modules_of(given.places)
    made = {module: [mutant for mutant, _ in planted(module, source_of(module))] for module in modules}
    left = [mutant for mutant in itertools.chain(*made.values()) if mutant.name not in argued]
    if given.sample:
        left = random.Random(given.seed).sample(left, min(given.sample, len(left)))
    if not given.report:
        load(LIBRARIES)
        tests, results = record(given.tests, given.workers), _Results(FOLDER / "results.jsonl")
        untried = [mutant for mutant in left if results.of(mutant) is None]
        random.Random(0).shuffle(untried)
        print(f"{len(untried)} of {len(left)} mutants are to be tried", file=sys.stderr, flush=True)
        workers = []
        for i in range(given.workers):
            share = set(untried[i :: given.workers])
            workers.append(os.fork())
            if workers[-1] == 0:
                for module in modules:
                    work(module, share, tests, results, given.seconds)
                os._exit(0)
        if sum(os.waitpid(worker, 0)[1] for worker in workers):
            raise SystemExit("a worker failed")
    return _report(made, left, argued, _Results(FOLDER / "results.jsonl"))


def _report(
    made: Mapping[str, Sequence[Mutant]], left: Sequence[Mutant], argued: Mapping[Any, str], results: _Results
) -> int:
    """The survivors and the table. 1 if any mutant survived, or if an argument is about none."""
    rows = {mutant: results.of(mutant) for mutant in left}
    survivors = [mutant for mutant, row in rows.items() if row and not row["killed"]]
    for mutant in survivors:
        row: Any = rows[mutant]
        tests = "{} of {} tests".format(*row["tests"])
        print(f"{mutant.module}:{mutant.line} {mutant.function} ({tests})\n- {mutant.before}\n+ {mutant.after}\n")
    print(f"{'module':28}{'made':>8}{'killed':>8}{'argued':>8}{'survived':>10}{'untried':>9}")
    total = Counter[str]()
    for module, mutants in made.items():
        count = Counter(made=len(mutants), argued=sum(mutant.name in argued for mutant in mutants))
        for mutant in left:
            if mutant.module == module:
                found = rows[mutant]
                count["untried" if found is None else "killed" if found["killed"] else "survived"] += 1
        total += count
        print(f"{module:28}" + _counts(count))
    print(f"{'all':28}" + _counts(total))
    names = {mutant.name for mutant in itertools.chain(*made.values())}
    stale = [name for name in argued if name[0] in made and name not in names]
    for name in stale:
        print(f"argued.toml argues about a mutant that does not exist: {name}")
    return 1 if survivors or stale else 0


def _counts(count: Counter[str]) -> str:
    return f"{count['made']:8}{count['killed']:8}{count['argued']:8}{count['survived']:10}{count['untried']:9}"


if __name__ == "__main__":
    sys.exit(main())
