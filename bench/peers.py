"""Trains heads with dpfc and with other tools on the same features: a part of `bench.benchmarks`.

Each contender is a process of its own, which reads the set from disk, trains, and writes its scores. The operating
system measures the whole process: seconds of wall time, seconds of the processors, and peak resident memory. The
contenders take turns, so that other work on the machine slows all of them down.

What the other tools are given favours them: the learning rate of Opacus and of the plain code is the best of
`RATES` by accuracy on the test records with the first seed, at no cost in privacy, and features are scaled as dpfc
scales them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.sets import Data, load

DELTA = 1e-5
RATES = {"opacus": (0.03, 0.1, 0.3), "plain": (0.3, 1.0, 3.0)}
"""Learning rates that are tried with the first seed. The best one is kept."""


def _unit(data: Data) -> tuple[np.ndarray, np.ndarray]:
    """Training and test features of length 1, float32, with a constant feature."""
    found = []
    for x in (data.x, data.test_x):
        x = x.astype(np.float32)
        x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
        found.append(np.concatenate([x, np.full((len(x), 1), 0.2, np.float32)], axis=1))
    return found[0], found[1]


def opacus(data: Data, epsilon: float, seed: int, rate: float) -> np.ndarray:
    """DP-SGD on a linear layer: 10 epochs, Poisson samples of 1,024 records on average."""
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(seed)
    x, test = map(torch.from_numpy, _unit(data))
    layer = torch.nn.Linear(x.shape[1], data.m, bias=False)
    torch.nn.init.zeros_(layer.weight)
    optimizer = torch.optim.SGD(layer.parameters(), lr=20 * rate, momentum=0.9)
    loader = DataLoader(TensorDataset(x, torch.from_numpy(data.y).long()), batch_size=1024)
    layer, optimizer, loader = PrivacyEngine().make_private_with_epsilon(
        module=layer,
        optimizer=optimizer,
        data_loader=loader,
        epochs=10,
        target_epsilon=epsilon,
        target_delta=DELTA,
        max_grad_norm=1.0,
    )
    for _ in range(10):
        for batch, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(layer(batch), labels).backward()
            optimizer.step()
    with torch.no_grad():
        return np.asarray(layer(test).numpy())


def plain(data: Data, epsilon: float, seed: int, rate: float) -> np.ndarray:
    """Algorithm 4 of the paper, steps and bounds as in `dp-fc`: float32 sums, noise of JAX's generator, 20 steps."""
    import jax
    import jax.numpy as jnp

    from dpfc_cli.privacy.accounting import mu_for

    steps, clip = 20, 0.36
    x, test = map(jnp.asarray, _unit(data))
    y = jax.nn.one_hot(data.y, data.m)
    sigma = np.sqrt(steps + 1) / mu_for(epsilon, DELTA)
    keys = jax.random.split(jax.random.key(seed), steps + 1)

    @jax.jit
    def gradient(theta: Any, key: Any) -> Any:
        residual = jax.nn.sigmoid(x @ theta) - y
        norm = jnp.linalg.norm(x, axis=1) * jnp.linalg.norm(residual, axis=1)
        clipped = residual * jnp.minimum(1, clip / norm)[:, None]
        return x.T @ clipped + clip * sigma * jax.random.normal(key, theta.shape)

    noise = jax.random.normal(keys[0], (x.shape[1],) * 2)
    gram = (x.T @ x + 1.04 * sigma * (jnp.triu(noise) + jnp.triu(noise, 1).T)) / len(x)
    values, vectors = jnp.linalg.eigh(gram)
    edge = 2 * sigma * np.sqrt(x.shape[1]) / len(x)
    inverse = (vectors / (jnp.maximum(values, 0) + edge + 5e-5)) @ vectors.T
    theta = jnp.zeros((x.shape[1], data.m)).at[-1].set(-10 / 0.2)
    for key in keys[1:]:
        theta = theta - 30 * rate * inverse @ gradient(theta, key) / len(x)
    return np.asarray(test @ theta)


def scikit_learn(data: Data, epsilon: float, seed: int, rate: float) -> np.ndarray:
    """Multinomial logistic regression without privacy: the loss of `dp-fc --non-private --loss softmax`."""
    from sklearn.linear_model import LogisticRegression

    from dpfc_cli.methods.optimum import RIDGE

    x, test = (each[:, :-1] for each in _unit(data))
    model = LogisticRegression(C=1 / (len(x) * RIDGE), max_iter=1000)
    return np.asarray(model.fit(x, data.y).decision_function(test))


PEERS: dict[str, Callable[[Data, float, int, float], np.ndarray]] = {
    each.__name__: each for each in (opacus, plain, scikit_learn)
}
WITHOUT = ("scikit_learn", "dp-fc --non-private --loss softmax")
"""Without privacy, and so without a seed: trained once."""
WORDS = {
    "dp-whitened": "`dp-whitened`, the default",
    "dp-fc": "`dp-fc`",
    "dp-ls": "`dp-ls`",
    "dp-adam --steps 100": "`dp-adam --steps 100`",
    "opacus": "Opacus: DP-SGD on a linear layer, 10 epochs, samples of 1,024",
    "plain": "the paper's Algorithm 4 with steps and bounds of `dp-fc`, in JAX",
    "dp-fc --non-private --loss softmax": "without privacy: `dp-fc --non-private --loss softmax`",
    "scikit_learn": "without privacy: scikit-learn, `LogisticRegression`, the same loss",
}
"""The contenders, in the order of the table."""


STARTER = """
import json, os, subprocess, sys, threading, time
started, late = time.perf_counter(), []
child = subprocess.Popen(sys.argv[2:], stdout=subprocess.DEVNULL)
timer = threading.Timer(float(sys.argv[1]), lambda: (late.append(True), child.kill()))
timer.daemon = True
timer.start()
_, status, usage = os.wait4(child.pid, 0)
seconds, kilo = time.perf_counter() - started, 1024 if sys.platform == "linux" else 1
print(json.dumps([bool(late), status, seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * kilo / 2**20]))
"""
"""Starts a process and measures it. The system counts memory of the starting process as the child's until the child
runs its own program. So the starting process must be small.
"""


def measured(
    command: list[str], limit: float = 1e6, environment: Mapping[str, str] | None = None
) -> dict[str, float] | None:
    """Seconds, seconds of the processors and peak memory (MB) of a process; None if it takes longer than the limit.

    What JAX compiles is kept in a new folder, so nothing was compiled before. environment: more variables.
    """
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-S", "-c", STARTER, f"{limit}", *command],
            env={**os.environ, "JAX_COMPILATION_CACHE_DIR": folder, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(done.stderr)
    late, status, seconds, busy, peak = json.loads(done.stdout)
    if late:
        return None
    if status:
        raise RuntimeError(done.stderr)
    return {"seconds": round(seconds, 2), "busy": round(busy, 2), "peak": round(peak, 1)}


def contend(name: str, data: str, epsilon: float, seed: int, rate: float, folder: Path, limit: float) -> dict[str, Any]:
    """The figures of one training: what `measured` says, and the accuracy on the test records in percent. If it was
    stopped, the limit.

    Args:
        name: one of `WORDS`.
        data: path of a feature set.
        epsilon: ε. δ is `DELTA`.
        seed: of the noise.
        rate: factor of the learning rate, for a tool with `RATES`.
        folder: where what is trained may lie. It is new.
        limit: the seconds after which a training is stopped.

    """
    if name in PEERS:
        out = folder / "scores.npy"
        given = ["--data", data, "--epsilon", f"{epsilon}", "--seed", f"{seed}", "--rate", f"{rate}", "--out", str(out)]
        figures = measured([sys.executable, "-m", "bench.peers", name, *given], limit)
        scores = np.load(out) if figures else None
    else:
        from dpfc_cli.heads.head import Head

        private = [] if name in WITHOUT else ["--epsilon", f"{epsilon}", "--delta", f"{DELTA}", "--seed", f"{seed}"]
        head = folder / f"head.{'nonprivate' if name in WITHOUT else 'research'}.safetensors"
        asked = ["--features", data, "--out", str(head), "--method", *name.split(), *private]
        figures = measured([sys.executable, "-m", "dpfc_cli", "train", "--again", *asked], limit)
        scores = Head.load(head).scores(load(data).test_x) if figures else None
    if figures is None or scores is None:
        return {"stopped": limit}
    return {**figures, "accuracy": round(100 * float((scores.argmax(axis=1) == load(data).test_y).mean()), 3)}


Runs = dict[tuple[str, int, float], dict[str, Any]]
"""What `contend` found, by name, seed and rate."""


def rates(name: str, runs: Runs) -> tuple[float, ...]:
    """The learning rates that are wanted next: all for the first seed, then the best of them."""
    tried = RATES.get(name, (1.0,))
    if any((name, 0, rate) not in runs for rate in tried):
        return tried
    return (max(tried, key=lambda rate: runs[name, 0, rate].get("accuracy", 0.0)),)


def wanted(names: Sequence[str], seeds: int, runs: Runs) -> Iterator[tuple[str, int, float]]:
    """The trainings that are missing, in turns. What is found meanwhile is to be put into `runs`."""
    for seed in range(seeds):
        for name in names:
            for rate in rates(name, runs) if not (seed and name in WITHOUT) else ():
                if (name, seed, rate) not in runs:
                    yield name, seed, rate


def table(runs: Runs) -> Iterator[str]:
    """Markdown: medians of seconds and memory over all trainings, and the accuracy at the best rate."""
    yield "| | seconds | of the processors | peak MB | top-1 % | trainings |"
    yield "| --- " * 6 + "|"
    for name, words in WORDS.items():
        own = {key: run for key, run in runs.items() if key[0] == name}
        finished = [run for run in own.values() if "accuracy" in run]
        if not own:
            continue
        if not finished:
            yield f"| {words} | stopped at {min(run['stopped'] for run in own.values()):.0f} | – | – | – | {len(own)} |"
            continue
        best = rates(name, runs)[0]
        found = [run["accuracy"] for (_, _, rate), run in own.items() if rate == best and run in finished]
        spread = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
        seconds, busy, peak = (statistics.median(run[key] for run in finished) for key in ("seconds", "busy", "peak"))
        accuracy = f"{statistics.fmean(found):.1f}{spread}"
        yield f"| {words} | {seconds:.1f} | {busy:.1f} | {peak:,.0f} | {accuracy} | {len(own)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with another tool, and write its scores.")
    parser.add_argument("name", choices=PEERS)
    for option, kind in (("--data", str), ("--epsilon", float), ("--seed", int), ("--rate", float), ("--out", str)):
        parser.add_argument(option, type=kind, required=True)
    given = parser.parse_args()
    np.save(given.out, PEERS[given.name](load(given.data), given.epsilon, given.seed, given.rate))


if __name__ == "__main__":
    main()
