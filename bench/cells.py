"""Runs trainings as cells of a table. Each cell is computed once and its result is appended to a file.

A cell has everything that its result depends on, except the code and the data; the file has the digest of each set. An
experiment that is stopped loses only the cells that were running. The next call computes the missing cells.
"""

import functools
import json
import math
import multiprocessing
import os
import signal
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench import paper
from bench.sets import load
from bench.simulation import Simulated
from dpfc_cli.extensions.starts.means import unit_rows
from dpfc_cli.heads.head import Scorer
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.public_head import PublicHead
from dpfc_cli.methods.whitened import Public
from dpfc_cli.privacy import accounting, sums
from dpfc_cli.privacy import curator as curator_module
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.curator import Curator, NonPrivate, Unprotected
from dpfc_cli.privacy.noise import Bits, SeededBits
from dpfc_cli.privacy.oracle import Mechanism, Oracle
from dpfc_cli.privacy.passes import BlockStream
from dpfc_cli.privacy.queries import ClassGrams, ClassSums, Gradient, Hessians, Query
from dpfc_cli.training.calibrate import calibrate

RESULTS = Path("bench/results/cells.jsonl")
"""The results of all experiments that make cells. The file is checked in: it is the evidence for the documents."""


@dataclass(frozen=True)
class Cell:
    """One training. A stored result does not know of later changes of the code: begin a new file then.

    Attributes:
        data: path of the feature set. In the results the name of the folder stands for it.
        method: name of the method.
        epsilon: None without privacy.
        seed: of the noise.
        options: the options that are given to the method.
        conversion: "exact", or "zcdp" for the conversion of zCDP. The product has "exact" only.
        noise: "independent", or "shared" (see `shared_noise`). The product has "independent" only.
        variant: "" for the product, but dp-fc does not shrink the eigenvalues of its Gram matrix: it is the paper's.
            "simulated": as it is in the product, but fast (see `bench.simulation`). "search": see `bench.accuracy`.
        public: path of a set of which the mean is used, as with `--public-features`; "" for none.
        start: path of class vectors, m × d, that the descent starts from, as with `--public-head`; "" for none.
    """

    data: str
    method: str
    epsilon: float | None
    seed: int = 0
    options: tuple[tuple[str, Any], ...] = ()
    conversion: str = "exact"
    noise: str = "independent"
    variant: str = ""
    public: str = ""
    start: str = ""

    @property
    def given(self) -> dict[str, Any]:
        return dict(self.options)

    @property
    def key(self) -> str:
        names = {name: Path(getattr(self, name)).name for name in ("data", "public", "start")}
        said = {**asdict(self), **names, "options": self.given}
        return json.dumps({name: value for name, value in said.items() if value != ""}, sort_keys=True)


def stream_of(x: np.ndarray, labels: np.ndarray, persons: np.ndarray | None = None) -> BlockStream:
    """A stream of blocks of arrays in memory."""
    parts = (x, labels[:, None]) if persons is None else (x, labels[:, None], persons)

    def blocks(rows: int) -> Iterator[tuple[Any, ...]]:
        for start in range(0, len(x), rows):
            yield start, *(part[start : start + rows] for part in parts)

    return blocks


@contextmanager
def shared_noise(seed: int) -> Iterator[None]:
    """In this context noise is drawn as in the paper's published code. This is NOT private.

    Every class gets the same noise. The key is a constant of the compiled program, so every step gets the same noise
    too. (Here releases of other kinds begin with the same normal numbers as well; their shapes differ.)
    """
    independent = curator_module.draw_noise

    def draw(query: Query, shape: tuple[int, ...], sigma: int, bits: Bits) -> np.ndarray:
        constant: Bits = SeededBits(seed)  # and not `bits`, which would be fresh
        if isinstance(query, Gradient):
            return np.repeat(independent(query, (shape[0], 1), sigma, constant), shape[1], axis=1)
        if isinstance(query, ClassSums | ClassGrams | Hessians):
            return np.repeat(independent(query, (1, *shape[1:]), sigma, constant), shape[0], axis=0)
        return independent(query, shape, sigma, constant)

    curator_module.draw_noise = draw
    try:
        yield
    finally:
        curator_module.draw_noise = independent


REMEMBERED = 2**30
"""Most bytes of sums that are kept."""
_sums: dict[Any, np.ndarray] = {}


@contextmanager
def remembered_sums(data: str) -> Iterator[None]:
    """In this context a process computes each exact sum once, if it depends on the records alone.

    Such a sum uses no earlier answer. It is the same in every run of a method on the same lattice, for all ε, all
    seeds and most options.
    """
    computed = sums.exact_sum

    def exact_sum(query: Query, over: sums.Summed, sample: Any = None) -> np.ndarray:
        moved = any(np.any(getattr(query, name)) for name in query.arrays)
        if moved or sample is not None or not all(isinstance(step, Clip) for step in query.chain):
            return computed(query, over, sample)
        held = {name: value for name, value in vars(query).items() if name not in query.arrays}
        key = (data, over.facts, over.grid, type(query), tuple(held.items()))
        if key in _sums:
            return _sums[key]
        total = _sums[key] = computed(query, over)
        while _sums and sum(each.nbytes for each in _sums.values()) > REMEMBERED:
            del _sums[next(iter(_sums))]
        return total

    sums.exact_sum = exact_sum
    try:
        yield
    finally:
        sums.exact_sum = computed


def train(cell: Cell) -> Scorer:
    """Train the head of a cell with the product's own curator and methods, and with noise from a seed."""
    data, method = load(cell.data), METHODS[cell.method]
    facts, stream = data.facts, stream_of(data.x, data.y, data.persons)
    if cell.epsilon is None:
        facts, stream = replace(facts, n=facts.records, rows=None, unit="record"), stream_of(data.x, data.y)
        options = method.defaults(facts, None, cell.given)
        solution = method.solve(NonPrivate(facts, Unprotected(stream)), facts, options)
    else:
        delta = paper.delta_of(facts.n)
        if cell.conversion == "zcdp":
            mu = accounting.zcdp_mu(cell.epsilon, delta)
        else:
            guarantee = calibrate(method, facts, cell.given, Privacy(epsilon=cell.epsilon, delta=delta)).guarantee
            assert guarantee is not None
            mu = guarantee.mu
        options = method.defaults(facts, mu, cell.given)
        if cell.method == "dp-fc" and cell.variant != "simulated":
            options = replace(options, edge=0.0)
        if cell.public:
            options = replace(options, public=Public(mean=_public_mean(cell.public)))
        if cell.start:
            options = replace(options, public_head=PublicHead(vectors=np.load(cell.start).T, origin={}))
        mechanism = Mechanism(facts=facts, plan=method.plan(facts, options), mu=mu)
        oracle: Oracle = Curator(mechanism, Unprotected(stream), SeededBits(cell.seed))
        if cell.variant == "simulated":
            oracle = Simulated(data, mechanism.plan, mu, cell.seed)
        with remembered_sums(cell.data), shared_noise(cell.seed) if cell.noise == "shared" else nullcontext():
            solution = method.solve(oracle, facts, options)
    return Scorer(chain=solution.chain, weight=solution.weight, bias=solution.bias)


@functools.cache
def _public_mean(path: str) -> np.ndarray:
    data = load(path)
    return np.asarray(unit_rows(data.x).mean(axis=0))


def top1(cell: Cell) -> float:
    """The test accuracy of a cell, in percent."""
    data = load(cell.data)
    return float(100 * (train(cell).scores(data.test_x).argmax(axis=1) == data.test_y).mean())


def run(cells: Iterable[Cell], results: Path, workers: int, work: Callable[[Cell], Any] = top1) -> dict[str, Any]:
    """Results by `Cell.key`. Those that are not in the file are computed now, by `workers` processes."""
    wanted, done = list(dict.fromkeys(cells)), read(results)
    for path in dict.fromkeys(path for cell in wanted for path in (cell.data, cell.public) if path):
        know(path, results, done)
    missing = [cell for cell in wanted if cell.key not in done]
    print(f"{len(wanted) - len(missing)} results are kept in {results}, {len(missing)} are computed.", flush=True)
    if workers > 1:
        os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    jobs = [(cell, work) for cell in missing]
    with ExitStack() as stack:
        spawn, ignored = multiprocessing.get_context("spawn"), (signal.SIGINT, signal.SIG_IGN)
        pool = stack.enter_context(spawn.Pool(workers, signal.signal, ignored)) if workers > 1 else None
        found = map(_job, jobs) if pool is None else pool.imap_unordered(_job, jobs)
        for i, (key, value) in enumerate(found):
            keep(results, key, value)
            done[key] = value
            print(f"[{i + 1}/{len(missing)}] {value} {key}", flush=True)
    return done


def start(main: Callable[[], None]) -> None:
    """Run the program of an experiment. It ends quietly on Ctrl-C, and where nobody reads its output any more."""
    try:
        main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("Stopped. What is computed is kept: the same command goes on.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)


def know(path: str, results: Path, done: dict[str, Any]) -> None:
    """Note in the file which set a name stands for. SystemExit if it has results of that name, of no or another set."""
    name, digest = Path(path).name, load(path).digest
    key = json.dumps({"set": name})
    if key not in done and not any(json.loads(other).get("data") == name for other in done):
        keep(results, key, digest)
        done[key] = digest
    if done.get(key) != digest:
        raise SystemExit(f"{results} has results of another set {name}. Rename the folder, or name another file.")


def gain(values: Sequence[float | None], others: Sequence[float | None]) -> str:
    """Mean gain of values over others, paired, ± standard error."""
    gains = [a - b for a, b in zip(values, others, strict=True) if a is not None and b is not None]
    if len(gains) < 2:
        return "–"
    return f"{statistics.mean(gains):+.1f} ± {statistics.stdev(gains) / math.sqrt(len(gains)):.1f}"


def said(values: Sequence[float]) -> str:
    """Mean ± standard deviation; – if there is no value."""
    if not values:
        return "–"
    return f"{statistics.mean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def keep(results: Path, key: str, value: Any) -> None:
    """Append a result to a file, on a line of its own."""
    results.parent.mkdir(parents=True, exist_ok=True)
    whole = not results.exists() or results.read_bytes()[-1:] in (b"", b"\n")
    with results.open("a") as file:
        file.write(("" if whole else "\n") + json.dumps({"cell": json.loads(key), "value": value}) + "\n")


def read(results: Path) -> dict[str, Any]:
    """The results in a file. A line that is incomplete, because the process was killed, is ignored."""
    done: dict[str, Any] = {}
    if results.exists():
        for line in results.read_text().splitlines():
            with suppress(json.JSONDecodeError):
                row = json.loads(line)
                key = json.dumps(row["cell"], sort_keys=True)
                done.pop(key, None)
                done[key] = row["value"]
    return done


def _job(job: tuple[Cell, Callable[[Cell], Any]]) -> tuple[str, Any]:
    cell, work = job
    return cell.key, work(cell)
