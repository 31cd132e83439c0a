"""Makes bench/tables/benchmarks.md: dpfc beside other tools, `make bench FEATURES="SET…"`.

There are three parts: kernels (`bench.kernels`), methods on the same features at the same ε and δ (`bench.peers`), and
extraction (`bench.throughput`). What is measured is appended to a file, and a run that was stopped goes on. Each row
names a state: code, processor and versions. What was measured in another state is measured again. The page is a
function of the rows of the last state.
"""

import argparse
import hashlib
import importlib.metadata
import itertools
import json
import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench import cells, kernels, peers, synthetic, throughput
from bench.sets import load

RESULTS = Path("bench/results/benchmarks.jsonl")
PAGE = Path("bench/tables/benchmarks.md")
WORK = Path("bench-results/benchmarks")
"""Where feature sets are made of arrays."""
PARTS = ("kernels", "extraction", "methods")
MEASURING = ("kernels", "peers", "throughput")
EPSILON = 1.0
QUIET = 10
"""The most that other programs may use of the processors, in percent, if seconds are to mean something."""
EXTRACTED, SIZE, BATCH = ("vit-ti16",), 224, 32


def code() -> str:
    """The SHA-256 of what is measured and of what measures it."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for file in (*sorted((root / "dpfc_cli").rglob("*.py")), *(root / "bench" / f"{name}.py" for name in MEASURING)):
        digest.update(f"{file.relative_to(root)}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def state() -> dict[str, Any]:
    """What the results hold for: the code, processors, their units for products, and versions."""
    place = Path("/proc/cpuinfo")
    said = place.read_text("utf-8") if place.exists() else ""
    model = next((line.partition(":")[2].strip() for line in said.splitlines() if line.startswith("model name")), "")
    flags = said.split()
    versions = {}
    for name in ("numpy", "jax", "torch", "timm", "scikit-learn", "opacus"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    units = [unit for unit in ("avx2", "avx512f", "amx_tile") if unit in flags]
    processor = " ".join(filter(None, (model, platform.machine())))
    return {"code": code(), "cores": os.cpu_count(), "processor": processor, "units": units, "versions": versions}


def others_since(started: float, before: tuple[float, float] | None) -> int | None:
    """How much of the processors other programs used since then, in percent; None where the system does not tell."""
    after = busy()
    if before is None or after is None:
        return None
    used = (after[0] - before[0]) - (after[1] - before[1])
    return max(0, round(100 * used / (os.cpu_count() or 1) / (time.perf_counter() - started)))


def busy() -> tuple[float, float] | None:
    """Seconds of all processors, and those of this process and of its children that have ended (Linux)."""
    place = Path("/proc/stat")
    if not place.exists():
        return None
    user, nice, system, _, _, interrupts, soft = map(int, place.read_text("ascii").split()[1:8])
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    total = (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")
    return total, sum(each.ru_utime + each.ru_stime for each in own)


class Store:
    """The results of a state in a file. Each case is measured once.

    A state has a row of its own. The other rows name it by its digest.
    """

    def __init__(self, place: Path, state: dict[str, Any]) -> None:
        self._place, self._digest = place, hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:16]
        before = cells.read(place)
        self.done = of_state(before, self._digest)
        if self.done != of_state(before):
            # The code was changed and changed back. The row is written again, so that this is the last state.
            self.done = {key: value for key, value in self.done.items() if json.loads(key)["part"] != "state"}
        self.measure({"part": "state"}, lambda: state)

    def measure(self, case: dict[str, Any], run: Callable[..., Any], *arguments: Any) -> Any:
        """What the file has of this case. If it has nothing: what `run` returns, which is then kept."""
        key = json.dumps({**case, "state": self._digest}, sort_keys=True)
        if key not in self.done:
            started, before = time.perf_counter(), busy()
            found = run(*arguments)
            self.done[key] = {"found": found, "others": others_since(started, before)}
            cells.keep(self._place, key, self.done[key])
            print(key, json.dumps(self.done[key]), flush=True)
        return self.done[key]["found"]


def of_state(done: dict[str, Any], digest: str | None = None) -> dict[str, Any]:
    """The rows of one state. None: of the last one."""
    states = {key: json.loads(key).get("state") for key in done}
    if digest is None:
        digest = next(reversed(states.values()), None)
    return {key: value for key, value in done.items() if states[key] == digest}


def feature_set(folder: Path) -> Path:
    """The feature set of a folder of arrays; the folder itself if it is one."""
    from dpfc_cli.extensions.importing.importing import import_features

    if not (folder / "train_x.npy").exists():
        return folder
    made = WORK / folder.name
    if not made.exists():
        import_features(folder, made, classes=int(np.load(folder / "train_y.npy").max()) + 1, labels_per_record=1)
    return made


def made_up(shape: kernels.Shape) -> Path:
    """Arrays of a made-up set of this shape."""
    n, d, m = shape
    place = WORK / "arrays" / f"made-up-{n}x{d}x{m}"
    if not (place / "test_y.npy").exists():
        place.mkdir(parents=True, exist_ok=True)
        for part, array in synthetic.draw(synthetic.Family(n, d, m, decay=1.0, apart=5.0)).items():
            np.save(place / f"{part}.npy", array)
    return place


def measure_kernels(shape: kernels.Shape, rounds: int, store: Store) -> None:
    for kernel in kernels.KERNELS:
        store.measure({"part": "kernels", "kernel": kernel, "shape": shape}, kernels.measure, kernel, shape, rounds)


def measure_extraction(rounds: int, store: Store) -> None:
    for model, (precision, names) in itertools.product(EXTRACTED, throughput.CONTENDERS.items()):
        case = {"model": model, "size": SIZE, "batch": BATCH, "precision": precision}
        store.measure({"part": "extraction", **case}, throughput.compare, *case.values(), names, rounds)


def measure_methods(data: str, names: Sequence[str], seeds: int, limit: float, store: Store) -> None:
    facts = load(data).facts
    runs: peers.Runs = {}
    for name, seed, rate in peers.wanted(names, seeds, runs):
        case = {"data": Path(data).name, "shape": (facts.n, facts.d, facts.m), "run": (name, seed, rate)}
        with tempfile.TemporaryDirectory() as scratch:
            given = (name, data, EPSILON, seed, rate, Path(scratch), limit)
            runs[name, seed, rate] = store.measure({"part": "methods", **case}, peers.contend, *given)


def report(done: dict[str, Any]) -> Iterator[str]:
    """The page, from the results of the last state that there are."""
    rows = [(json.loads(key), value) for key, value in of_state(done).items()]
    of: dict[str, list[tuple[dict[str, Any], Any]]] = {part: [] for part in ("state", *PARTS)}
    for case, value in rows:
        of[case["part"]].append((case, value["found"]))
    others = [value["others"] for case, value in rows if case["part"] != "state" and value["others"] is not None]
    yield "# Beside other tools\n"
    yield '`make bench FEATURES="SET…"` makes this page, in an environment of its own. It goes on where it stopped.\n'
    if not any(of[part] for part in PARTS):
        yield "Nothing was measured with this code yet."
        return
    where = of["state"][0][1]
    said = (
        f"Measured on {where['cores']} cores ({', '.join((where['processor'], *where['units']))}) with "
        f"{', '.join(f'{name} {version}' for name, version in where['versions'].items())}. "
        f"The SHA-256 of the code begins with {where['code'][:12]}."
    )
    if others:
        said += (
            f" Meanwhile other programs used {statistics.median(others):.0f} % of the processors in the median, and "
            f"up to {max(others)} %."
        )
        if max(others) > QUIET:
            said += " **That is too much: where they ran, seconds are too long by about as much.**"
    yield said + "\n"
    for part, section in (("kernels", _kernels), ("methods", _methods), ("extraction", _extraction)):
        if of[part]:
            yield from section(of[part])


def _kernels(rows: list[tuple[dict[str, Any], Any]]) -> Iterator[str]:
    yield f"""## Kernels

The same work on the same records in memory: features of float32, each scaled to length 1 first. (*Later passes* of the
gradient start from what the first one kept.) Each library has a process of its own, they take turns, and the median
counts.

- `dpfc` sums integers in float64, so its sums are exact and the guarantee holds for them. Its seconds include that each
  record is checked to come once.
- The others are plain code in float32 (decompositions: float64). Their sums are rounded. JAX is compiled. The best of
  NumPy, JAX and PyTorch counts.
- *Of float64* and *of float32*: the part of the fastest product of two square matrices in that type that any of the
  libraries reaches in the same run. A symmetric product counts half.
- *Ratio*: the seconds of the best other over those of `dpfc`. Above 1, `dpfc` is faster.
- The noise of `dpfc` is drawn exactly, from the bits of the system: {kernels.DRAWS // 10**6} million integers. That of
  the others is float32, from a fast generator that is not made for secrets.
"""
    for shape in dict.fromkeys(tuple(case["shape"]) for case, _ in rows):
        found = {case["kernel"]: value for case, value in rows if tuple(case["shape"]) == shape}
        n, d, m = shape
        float64, float32 = (
            statistics.median(each["product"][kind] for each in found.values()) for kind in ("float64", "float32")
        )
        yield f"{n:,} × {d}, {m} classes. Products of float64: {float64:.0f} GFLOP/s; of float32: {float32:.0f}.\n"
        yield from kernels.table(found, shape)
        yield ""


def _methods(rows: list[tuple[dict[str, Any], Any]]) -> Iterator[str]:
    yield f"""## Methods

Linear heads on the same features, at ε = {EPSILON:g} and δ = {peers.DELTA:g}. Each training is a process of its own.
It reads the set from disk. Nothing is compiled before. The contenders take turns. Seconds and memory are medians over
all trainings. Accuracy is the mean ± standard deviation over seeds.

- In favour of the others: the learning rates of Opacus and of the plain code are the best of three by accuracy on the
  test records, at no cost in privacy.
- In favour of `dpfc`: the defaults of `dp-whitened` and `dp-fc` were fitted on CIFAR-10 and CIFAR-100, among others.
  Nothing was fitted to what `make bench` makes up.
- The plain code adds noise of JAX's generator to float32 sums. The ε that it prints is not proved for what it computes.
- The plain code has 1.4 times the damping of `dp-fc`, and does not shrink the eigenvalues.
- diffprivlib is not here. Its `LogisticRegression` divides ε among the classes: with the 100 classes of CIFAR-100 it
  was at chance (0.8 %).
- The two trainings without privacy minimise the same loss.
"""
    for name, shape in dict.fromkeys((case["data"], tuple(case["shape"])) for case, _ in rows):
        runs: peers.Runs = {
            tuple(case["run"]): value for case, value in rows if (case["data"], tuple(case["shape"])) == (name, shape)
        }
        yield f"**{name}**, {shape[0]:,} × {shape[1]} × {shape[2]}\n"
        yield from peers.table(runs)
        yield ""
        yield from _best_at_the_end(name, runs)


def _best_at_the_end(data: str, runs: peers.Runs) -> Iterator[str]:
    """Whose best learning rate on a set is the smallest or the largest of those that were tried."""
    for name, tried in peers.RATES.items():
        best = peers.rates(name, runs)
        if len(best) == 1 and (rate := best[0]) in (min(tried), max(tried)):
            which, beyond = ("largest", "larger") if rate == max(tried) else ("smallest", "smaller")
            words = peers.WORDS[name].partition(":")[0]
            yield f"{data}: the best rate is the {which} that was tried: {words}. A {beyond} one may be better.\n"


def _extraction(rows: list[tuple[dict[str, Any], Any]]) -> Iterator[str]:
    yield """## Extraction

Images per second of networks with random weights: the same pixels in memory, the same features. The contenders
take turns in one process. *timm* is PyTorch with timm's model; *compiled* is `torch.compile`.

| model | pixels | batch | type | images per second |
| --- | --- | --- | --- | --- |"""
    for case, rates in rows:
        shown = ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items())
        yield f"| {case['model']} | {case['size']} | {case['batch']} | {case['precision']} | {shown} |"


def main(arguments: Sequence[str] | None = None) -> None:
    def shape(text: str) -> kernels.Shape:
        n, d, m = map(int, text.split("x"))
        return n, d, m

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sets", nargs="*", type=Path, help="folders of arrays, or feature sets of dpfc")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--kernel-shape", type=shape, default=(16_384, 768, 100), help="records × dimensions × classes")
    parser.add_argument("--made-up", type=shape, default=(50_000, 768, 100), help="of the made-up set; 0x0x0: none")
    parser.add_argument("--contenders", nargs="+", choices=peers.WORDS, default=list(peers.WORDS))
    parser.add_argument("--rounds", type=int, default=5, help="of a kernel and of extraction")
    parser.add_argument("--seeds", type=int, default=3, help="of a training")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which a training is stopped")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=PAGE)
    given = parser.parse_args(arguments)
    store = Store(given.results, state())
    if "kernels" in given.parts:
        measure_kernels(given.kernel_shape, given.rounds, store)
    if "extraction" in given.parts:
        measure_extraction(given.rounds, store)
    if "methods" in given.parts:
        for folder in (*given.sets, *([made_up(given.made_up)] if given.made_up[0] else [])):
            measure_methods(str(feature_set(folder)), given.contenders, given.seeds, given.limit, store)
    given.out.write_text("\n".join(report(store.done)) + "\n", "utf-8")


if __name__ == "__main__":
    main()
