"""A cluster of two nodes on this machine, each with one processor, and processes that are drivers of it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.images.pictures import drawn
from tests.support import LOST, feature_set, shards_of
from tests.training.conftest import features

__all__ = ["features"]

CLUSTER = """
import os, sys
from ray.cluster_utils import Cluster
each = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
found = Cluster(initialize_head=True, head_node_args=each)
found.add_node(**each)
print(found.address, flush=True)
sys.stdin.read()
found.shutdown()
"""
"""It starts the nodes, says where they are, and ends them when its input ends."""
Driver = Callable[..., "subprocess.CompletedProcess[str]"]
N, D, M = 20_000, 6, 3
"""Three blocks, so that there are parts."""


def environment(**more: str) -> dict[str, str]:
    """That of the drivers and of the nodes. Compiled as in other tests of this room."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "DPFC_"))}
    # Other tests would take the processors of workers that are nice.
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    return known | quiet | {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": os.getcwd()} | more


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """The address of a cluster."""
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield process.stdout.readline().strip()
        process.stdin.close()
        process.wait(LOST)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with records, persons and pictures. Some pictures of `broken` cannot be read."""
    folder, rng = tmp_path_factory.mktemp("engine"), np.random.default_rng(0)
    y = rng.integers(0, M, N)
    arrays: dict[str, np.ndarray] = {"x": (np.eye(M, D)[y] + rng.normal(size=(N, D))).astype(np.float32), "y": y}
    test = {f"test_{name}": each[: N // 2] for name, each in arrays.items()}
    train = {f"train_{name}": each for name, each in arrays.items()}
    persons = {"train_groups": np.repeat(np.arange(N // 4), 4)}
    more: dict[str, np.ndarray]
    for name, more in (("records", test), ("persons", persons)):
        np.savez(folder / f"{name}.npz", **train, **more)  # type: ignore[arg-type]
        with shards_of(N // 8):
            feature_set(folder / f"{name}.npz", folder / "features" / name, classes=("a", "b", "c"))
    drawn(folder / "pictures", 1200, 30, ".png")
    drawn(folder / "broken", 600, 30, ".png")
    for name in ("017", "301", "302"):
        next((folder / "broken" / "train").rglob(f"*{name}.png")).write_bytes(b"no picture")
    return folder


@pytest.fixture(scope="session")
def start(made: Path, cluster: str) -> Callable[..., "subprocess.Popen[str]"]:
    """Starts a driver in that folder: a command line, or a script if it has several lines."""

    def started(*words: str, **more: str) -> "subprocess.Popen[str]":
        given = ["-c", *words] if "\n" in words[0] else ["-m", "dpfc_cli", *words]
        found = environment(**{"RAY_ADDRESS": cluster, "DPFC_TRUSTED_NETWORK": "1"} | more)
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, *given], cwd=made, env=found, stdout=pipe, stderr=pipe, text=True)

    return started


@pytest.fixture(scope="session")
def drive(start: Callable[..., "subprocess.Popen[str]"]) -> Driver:
    """Runs one to its end. ends: its exit code."""

    def run(*words: str, ends: int = 0, **more: str) -> "subprocess.CompletedProcess[str]":
        with start(*words, **more) as process:
            said = process.communicate(timeout=LOST)
        assert process.returncode == ends, said
        return subprocess.CompletedProcess(words, ends, *said)

    return run
