"""Sites and their coordinator are killed at random, and started again, until all have the head.

    python -m tests.torture.sites --kills 40

It says what broke: a ledger with two charges, a release with two answers, a site without the head.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.federation import coordinator, plan
from dpfc_cli.federation.coordinator import Remote
from dpfc_cli.federation.site import serve, site_of
from dpfc_cli.heads.head import Head
from dpfc_cli.ledger.file import ledger_path, read
from dpfc_cli.privacy.queries import Query
from dpfc_cli.training.observer import Observer
from tests.support import blobs

NAMES = ("north", "south", "west")
START, LONGEST = 0.2, 60.0
"""Seconds before the first kill at least; seconds that one federation may take."""


def site(name: str) -> None:
    features = FeatureSet(Path(name, "set"))
    serve(site_of(plan.load(Path("plan.json")), name, features, Path(name, "heads")), Path(f"{name}.sock"), Observer())


def coordinate() -> None:
    """The coordinator. Each answer that it gets is written down."""
    real = Remote._part

    def watched(self: Remote, number: int, part: int, query: Query) -> np.ndarray:
        answer = real(self, number, part, query)
        digest = hashlib.sha256(answer.tobytes()).hexdigest()
        with Path("seen.jsonl").open("a") as file:
            file.write(json.dumps([self.name, number, part, digest]) + "\n")
        return answer

    Remote._part = watched  # type: ignore[method-assign]
    coordinator.run(plan.load(Path("plan.json")), Path(), Path("joint.safetensors"), Observer(), 15.0)


def prepared(method: str) -> None:
    """Sets of all sites, and their plan, in the working folder."""
    x, y = blobs(600, 8, 3)
    for i, name in enumerate(NAMES):
        np.savez(f"{name}.npz", train_x=x[i::3], train_y=y[i::3])
        features = import_features(f"{name}.npz", Path(name, "set"), classes=("a", "b", "c")).features
        Path(f"{name}.json").write_bytes(plan.invitation(features, name, 2.0))
    Path("plan.json").write_bytes(plan.agreed([Path(f"{n}.json") for n in NAMES], method).data)


def broken() -> list[str]:
    """What broke, after all have ended."""
    found, joint = [], Head.load("joint.safetensors")
    for name in NAMES:
        book = read(ledger_path(Path(name, "set")))
        ends = [book.outcome(each.id) for each in book.charges]
        if [end and end.state for end in ends] != ["written"]:
            found.append(f"{name} has the charges {ends}")
        written = [Head.load(path) for path in sorted(Path(name, "heads").glob("*.safetensors"))]
        if len(written) != 1 or not np.array_equal(written[0].weight, joint.weight):
            found.append(f"{name} does not have the head, or has two")
    seen: dict[tuple[Any, ...], str] = {}
    for line in Path("seen.jsonl").read_text().splitlines():
        *of, digest = json.loads(line)
        if seen.setdefault(tuple(of), digest) != digest:
            found.append(f"{of} has two answers")
    return found


def one(chance: random.Random, method: str) -> tuple[int, list[str]]:
    """One federation, with kills until all have ended: how many, and what broke."""
    context = multiprocessing.get_context("forkserver")
    tasks: dict[str, Any] = {name: (site, (name,)) for name in NAMES} | {"coordinator": (coordinate, ())}
    running: dict[str, Any] = {}
    kills, begun = 0, time.monotonic()
    pause = START
    try:
        while tasks or running:
            for name, (target, given) in tasks.items():
                if name not in running:
                    running[name] = context.Process(target=target, args=given)
                    running[name].start()
            time.sleep(pause)
            for name, process in list(running.items()):
                if process.exitcode is not None:
                    del running[name]
                    # A site that ends before it was told to give its head away is started again, as an operator does.
                    if process.exitcode == 0:
                        tasks.pop(name)
            late = time.monotonic() - begun > LONGEST
            if running and not late:
                name = chance.choice(sorted(running))
                running[name].kill()
                running.pop(name).join()
                kills += 1
            if time.monotonic() - begun > 3 * LONGEST:
                return kills, [f"it does not end: {sorted(running)} are left"]
            pause = 0.5 if late else chance.uniform(0.5, 6.0)
    finally:
        for process in running.values():
            process.kill()
    return kills, broken()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    multiprocessing.set_forkserver_preload(["dpfc_cli.federation.site", "dpfc_cli.federation.coordinator"])
    chance, kills, wrong, rounds = random.Random(given.seed), 0, list[str](), 0
    while kills < given.kills:
        with tempfile.TemporaryDirectory() as folder:
            before = Path.cwd()
            os.chdir(folder)
            method = chance.choice(["dp-whitened", "dp-fc", "dp-ls"])
            context = multiprocessing.get_context("forkserver")
            made = context.Process(target=prepared, args=(method,))
            made.start()
            made.join()
            more, found = one(chance, method)
            os.chdir(before)
        kills, rounds, wrong = kills + more, rounds + 1, wrong + found
        print(f"{method}: {more} kills, {found or 'nothing broke'}", flush=True)
    print(f"{kills} kills in {rounds} federations: {len(wrong)} things broke")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
