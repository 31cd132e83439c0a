"""What campaigns share: cases, each tried once; results in a file; several workers; a table at the end."""

import argparse
import collections
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.torture import machine

RESULTS = Path("torture-results")
Case = dict[str, Any]
Try = Callable[[Case, Path], list[str]]


def arguments(about: str, count: int | None) -> argparse.ArgumentParser:
    """The options that all campaigns have."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--count", type=int, default=count, help="cases to try in all (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no case after so many minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--results", type=Path, help="file of results (JSON lines); cases in it are not tried again")
    return parser


def begun() -> None:
    """What a campaign does first: see `machine`. What JAX compiles is kept."""
    machine.restart_with_shim(RESULTS)
    machine.prepared()
    import jax

    settings: Any = jax.config
    settings.update("jax_compilation_cache_dir", os.environ.get("JAX_COMPILATION_CACHE_DIR", f"{RESULTS}/compiled"))
    settings.update("jax_persistent_cache_min_compile_time_secs", 0)


def tried(path: Path) -> list[dict[str, Any]]:
    """The results in a file. A line that a kill cut short is none."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def carry_out(cases: Iterable[Case], attempt: Try, options: argparse.Namespace, path: Path, root: Path) -> int:
    """Try all cases that have no result yet.

    Args:
        cases: what to try. Equal cases are tried once.
        attempt: tries one case in a folder of its own, and returns what broke.
        options: those of `arguments`.
        path: the file of results.
        root: a folder for the workers' folders.

    Returns:
        How many cases broke something, with those of earlier calls.

    """
    path.parent.mkdir(parents=True, exist_ok=True)
    wanted = {json.dumps(case, sort_keys=True): case for case in cases}
    done = {json.dumps(result["case"], sort_keys=True) for result in tried(path)}
    left = [case for key, case in wanted.items() if key not in done]
    print(f"{len(wanted):,} cases, {len(left):,} of them are left. Results: {path}", flush=True)
    until = time.monotonic() + 60 * options.minutes
    children = []
    for worker in range(1, options.workers):
        child = os.fork()
        if child == 0:
            try:
                _work(left[worker :: options.workers], attempt, path, root / f"worker-{worker}", until)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    _work(left[:: options.workers], attempt, path, root / "worker-0", until)
    if sum(os.waitpid(child, 0)[1] for child in children):
        raise SystemExit("A worker failed.")
    return _report([result for result in tried(path) if json.dumps(result["case"], sort_keys=True) in wanted])


def _work(cases: Sequence[Case], attempt: Try, path: Path, place: Path, until: float) -> None:
    with path.open("ab", buffering=0) as results:
        # The last line may have been cut short by a kill.
        results.write(b"\n")
        for case in cases:
            if time.monotonic() > until:
                return
            broke = attempt(case, place)
            results.write(json.dumps({"case": case, "broke": broke}).encode() + b"\n")
            for each in broke:
                print(f"BROKE {json.dumps(case)}: {each}", flush=True)


def _report(results: Sequence[dict[str, Any]]) -> int:
    """Print what was tried and what broke, by the first two parts of the cases."""
    count: collections.Counter[tuple[str, str]] = collections.Counter()
    broken: collections.Counter[tuple[str, str]] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    for result in results:
        key = result["case"]["job"], result["case"]["what"]
        count[key] += 1
        broken[key] += bool(result["broke"])
        reasons.update(set(result["broke"]))
    print(f"\n{'':12}{'':16}{'tried':>10}{'broke':>8}")
    for key, number in sorted(count.items()):
        print(f"{key[0]:12}{key[1]:16}{number:>10,}{broken[key]:>8,}")
    print(f"{'in all':28}{count.total():>10,}{broken.total():>8,}")
    for reason, number in reasons.most_common():
        print(f"{number:>6,} × {reason}")
    return broken.total()
