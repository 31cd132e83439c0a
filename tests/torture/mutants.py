"""Mutation testing: faults are planted one by one, and the tests must see each of them.

    python -m tests.torture.mutants ledger training/charge.py --workers 2

A *mutant* is a module with one small fault: another comparison, another constant, a statement left out. A mutant is
*killed* if a test fails on it. One that survives shows what no test looks at, or a line that could be simpler. It may
also be equivalent to the module. Survivors are printed with their place. Only the core, the ledger and the charge are
tried: there a fault would make epsilon a lie.

This process imports the libraries, and nothing of `dpfc_cli`. For each mutant it forks. The child imports the mutated
module in place of the real one, and it runs the tests that reach the mutated line, fast ones first. Which tests these
are was recorded before, with one run of the tests. All results are kept in a folder, so a run that was stopped goes on.
"""

import argparse
import functools
import itertools
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from tests.torture.planted import ROOT, Mutant, import_name, planted, source_of
from tests.torture.reached import digest_of, reaching, record
from tests.torture.trials import FOLDER, LIBRARIES, load, verdict_of

PLACES = ("privacy", "ledger", "training/charge.py", "training/answers.py")
ROOMS = ("privacy", "kernels", "methods", "ledger", "training")
"""The tests that may kill a mutant."""


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
    parser.add_argument("places", nargs="*", default=PLACES, help="rooms or modules of dpfc_cli")
    parser.add_argument("--sample", type=int, help="try that many mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--tests", nargs="*", default=ROOMS, help="rooms or files of tests that may kill a mutant")
    parser.add_argument("--seconds", type=float, default=60.0, help="of tests for one mutant")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--report", action="store_true", help="say what is known and try nothing")
    given = parser.parse_args()
    modules = modules_of(given.places)
    made = {module: [mutant for mutant, _ in planted(module, source_of(module))] for module in modules}
    left = list(itertools.chain(*made.values()))
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
    return _report(made, left, _Results(FOLDER / "results.jsonl"))


def _report(made: Mapping[str, Sequence[Mutant]], left: Sequence[Mutant], results: _Results) -> int:
    """The survivors and the table. 1 if any mutant survived."""
    rows = {mutant: results.of(mutant) for mutant in left}
    survivors = [mutant for mutant, row in rows.items() if row and not row["killed"]]
    for mutant in survivors:
        row: Any = rows[mutant]
        tests = "{} of {} tests".format(*row["tests"])
        print(f"{mutant.module}:{mutant.line} {mutant.function} ({tests})\n- {mutant.before}\n+ {mutant.after}\n")
    columns = ("made", "killed", "survived", "untried")
    print(f"{'module':28}" + "".join(f"{column:>10}" for column in columns))
    total = Counter[str]()
    for module, mutants in made.items():
        count = Counter(made=len(mutants))
        for found in (rows[mutant] for mutant in mutants if mutant in rows):
            count["untried" if found is None else "killed" if found["killed"] else "survived"] += 1
        total += count
        print(f"{module:28}" + "".join(f"{count[column]:>10}" for column in columns))
    print(f"{'all':28}" + "".join(f"{total[column]:>10}" for column in columns))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
