"""Workers and drivers of `--on ray` are killed at random, and drivers are started again, until all is made.

    python -m tests.torture.engine --kills 200

Each round makes a feature set of pictures, and a head of another set, on a cluster of two nodes. It says what broke: a
shard that is not the one of one process, one that was there and is written again, a ledger with two charges, an answer
that differs after a kill, a head that is not the one of one process.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from dpfc_cli.features.reader import FeatureSet
from tests.extensions.engine.conftest import CLUSTER, environment
from tests.extensions.engine.test_engine import worker_in
from tests.images.pictures import drawn
from tests.support import feature_set, stored
from tests.training.requests import states

N, D, M, PICTURES = 30_000, 16, 4, 1_600
LONGEST = 600.0
"""Seconds that one command may take after its last kill."""
MAKE = (*("extract", "imagefolder:pictures", "--classes", "c0,c1,c2", "--image-size", "16", "--population", "p"),)
TRAIN = """
import sys, warnings
import numpy as np
import dpfc_cli as dpfc
from dpfc_cli.ledger.answers import Answers
from dpfc_cli.training import charged

warnings.simplefilter("ignore")
recall, bits = Answers.recall, [np.random.default_rng(0)]

def watched(self, number, shape):
    bits[0] = np.random.default_rng(number)
    return recall(self, number, shape)

class Known:
    # The words of each answer are known, so the head of one process is, however often it was stopped.
    def words(self, count):
        return bits[0].integers(2**64, size=count, dtype=np.uint64)

Answers.recall, charged.SystemBits = watched, Known
given = {"method": "dp-fc", "steps": 40, "out": sys.argv[1], "on": sys.argv[2] or None, "again": len(sys.argv) > 3}
dpfc.train(dpfc.open_features("records"), epsilon=1.0, **given)
"""


@contextmanager
def cluster() -> Iterator[str]:
    """The address of a cluster of two nodes."""
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    command = [sys.executable, "-c", CLUSTER]
    with subprocess.Popen(command, env=environment(), stdin=pipe, stdout=pipe, stderr=null, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


class Campaign:
    """Where it works, and what it has counted."""

    def __init__(self, folder: Path, address: str, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.environment = environment(RAY_ADDRESS=address, DPFC_TRUSTED_NETWORK="1")
        self.killed, self.broke = {"workers": 0, "drivers": 0}, list[str]()

    def prepare(self) -> tuple[dict[str, np.ndarray], dict[str, bytes]]:
        """Make the records and the pictures. Returns the head and the set that one process makes of them."""
        rng = np.random.default_rng(0)
        y = rng.integers(0, M, N)
        np.savez(self.folder / "raw.npz", train_x=rng.normal(size=(N, D)).astype(np.float32), train_y=y)
        feature_set(self.folder / "raw.npz", self.folder / "features" / "records", classes=M)
        drawn(self.folder / "pictures", PICTURES, 64, ".png")
        for words in (("-c", TRAIN, "head", ""), ("-m", "dpfc_cli", "-q", *MAKE, "--out", "whole")):
            subprocess.run([sys.executable, *words], cwd=self.folder, env=self.environment, check=True)
        head = load_file(self.folder / "head.safetensors")
        return head, stored(self.folder / "features" / "whole")

    def run(self, *words: str, longest: float) -> None:
        """Run a command to its end. Its workers are killed on the way, and it is killed and started again."""
        left = self.random.randint(4, 12)
        while True:
            with (self.folder / "log").open("w") as log:
                command = [sys.executable, *words]
                process = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=log, stderr=log)
            end = time.monotonic() + LONGEST
            while process.poll() is None and time.monotonic() < end:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(self.random.uniform(0.1, longest) if left else LONGEST)
                    break
                if not left:
                    break
                if (worker := worker_in(self.folder)) is None:
                    continue
                of = "drivers" if self.random.random() < 0.25 else "workers"
                with suppress(ProcessLookupError):
                    os.kill(process.pid if of == "drivers" else worker, signal.SIGKILL)
                    self.killed[of] += 1
                    left -= 1
                if of == "drivers":
                    process.wait()
            if process.poll() is None:
                process.kill()
                self.broke.append(f"{words[-3:]} did not end")
            elif process.returncode == -signal.SIGKILL:
                continue
            elif process.returncode:
                said = (self.folder / "log").read_text()[-500:]
                self.broke.append(f"{words[-3:]} ended with {process.returncode}: {said}")
            return

    def round(self, number: int, head: dict[str, np.ndarray], whole: dict[str, bytes]) -> None:
        """Make a set and a head."""
        features, name = FeatureSet(self.folder / "features" / "records"), f"head-{number}"
        before = len(states(features))
        self.run("-c", TRAIN, name, "ray", "again", longest=2.0)
        found = states(features)[before:]
        path = self.folder / f"{name}.safetensors"
        if found != ["written"] or not path.exists():
            self.broke.append(f"{name}: {found}")
        elif any(not np.array_equal(each, load_file(path)[part]) for part, each in head.items()):
            self.broke.append(f"{name} differs")
        place = self.folder / "features" / "made"
        shutil.rmtree(place, ignore_errors=True)
        self.run("-m", "dpfc_cli", "-q", *MAKE, "--out", "made", "--on", "ray", longest=2.0)
        if not place.exists() or stored(place) != whole:
            self.broke.append("the set differs")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, cluster() as address:
        campaign = Campaign(Path(folder), address, asked.seed)
        (head, whole), number = campaign.prepare(), 0
        while sum(campaign.killed.values()) < asked.kills:
            campaign.round(number, head, whole)
            number += 1
            print(f"{number} rounds, killed {campaign.killed}, broke: {campaign.broke or 'nothing'}", flush=True)
    sys.exit(bool(campaign.broke))


if __name__ == "__main__":
    main()
