"""Measures seconds and peak memory of trainings on made-up features: `python -m bench.costs`.

Each training runs as a user would run it: `dpfc train --seed 0` in its own process, on a feature set on disk. The
operating system measures the process. Nothing is compiled before.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap

from bench.peers import measured
from dpfc_cli.extensions.importing.importing import import_features

EVERY = (
    "dp-whitened",
    "dp-ls",
    "dp-fc",
    "dp-sgd --steps 100",
    "dp-momentum --steps 100",
    "dp-adam --steps 100",
    "dp-newton --steps 1",
)


def features(folder: Path, n: int, d: int, m: int) -> Path:
    """Write a feature set of n × d float16 numbers: Gaussian around m centres."""
    rng = np.random.default_rng(0)
    raw, made = folder / "raw", folder / f"made-{n}-{d}-{m}"
    raw.mkdir()
    centres = rng.normal(size=(m, d)).astype(np.float32)
    for split, rows in (("train", n), ("test", 100)):
        labels = np.arange(rows, dtype=np.int32) % m
        x = open_memmap(raw / f"{split}_x.npy", "w+", np.float16, (rows, d))
        for start in range(0, rows, 4096):
            y = labels[start : start + 4096]
            x[start : start + 4096] = centres[y] + 3 * rng.standard_normal((len(y), d), np.float32)
        x.flush()
        np.save(raw / f"{split}_y.npy", labels)
    import_features(raw, made, classes=tuple(map(str, range(m))), labels_per_record=1)
    return made


def measure(made: Path, arguments: str, folder: Path) -> tuple[float, float, float]:
    """Wall time and time of the processors in seconds, and peak resident memory in MB, of one training."""
    name = f"{time.monotonic_ns()}.research.safetensors"
    command = [sys.executable, "-m", "dpfc_cli", "train", "--epsilon", "1", "--seed", "0", "--method"]
    found = measured([*command, *arguments.split(), "--features", str(made), "--out", str(folder / name)])
    assert found is not None
    return found["seconds"], found["busy"], found["peak"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="50000x768x100", help="n × d × m")
    parser.add_argument("--trainings", default=",".join(EVERY), help="METHOD [OPTIONS],…")
    args = parser.parse_args()
    n, d, m = (int(part) for part in args.shape.split("x"))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        made = features(folder, n, d, m)
        print(f"| {n:,} × {d} × {m} | seconds | of the processors | MB |\n| --- | --- | --- | --- |", flush=True)
        for training in args.trainings.split(","):
            seconds, processors, peak = measure(made, training, folder)
            print(f"| {training} | {seconds:.1f} | {processors:.1f} | {peak:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
