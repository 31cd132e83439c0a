"""Measures dpfc beside other tools on the same features: `python -m bench.peers SET…`.

It needs its own environment, with the other tools and dpfc:

    python -m venv PEERS
    PEERS/bin/pip install . torch opacus diffprivlib 'scikit-learn<1.6'
    PYTHONPATH=. PEERS/bin/python -m bench.peers features/SET

Each contender is a process of its own, which reads the set from disk, trains, and writes its scores. The operating
system measures the whole process: seconds of wall time, seconds of the processors, and peak resident memory. The
contenders take turns, so that other work on the machine slows all of them down. Accuracy is the mean of the seeds.

What the other tools are given favours them: the learning rate of Opacus and of the plain code is the best of
`RATES` by accuracy on the test records with the first seed, at no cost in privacy, and features are scaled as dpfc
scales them.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
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
    """Algorithm 4 of the paper as its pseudo-code has it: float32 sums, noise of JAX's generator, 20 steps."""
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


def diffprivlib(data: Data, epsilon: float, seed: int, rate: float) -> np.ndarray:
    """Logistic regression by objective perturbation, one class against the rest; δ = 0."""
    from diffprivlib.models import LogisticRegression

    x, test = _unit(data)
    model = LogisticRegression(epsilon=epsilon, data_norm=1.02, max_iter=100, random_state=seed)
    return np.asarray(model.fit(x, data.y).decision_function(test))


def scikit_learn(data: Data, epsilon: float, seed: int, rate: float) -> np.ndarray:
    """Multinomial logistic regression without privacy."""
    from sklearn.linear_model import LogisticRegression

    x, test = _unit(data)
    return np.asarray(LogisticRegression(C=100.0, max_iter=1000).fit(x, data.y).decision_function(test))


PEERS: dict[str, Callable[[Data, float, int, float], np.ndarray]] = {
    each.__name__: each for each in (opacus, plain, diffprivlib, scikit_learn)
}
OURS = ("dp-whitened", "dp-fc", "dp-ls", "dp-adam --steps 100", "dp-fc --non-private")
WITHOUT = ("scikit_learn", "dp-fc --non-private")
"""Without privacy."""


@dataclass
class Result:
    """What was measured of a contender: of each seed, and of each learning rate."""

    seconds: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    peak: list[float] = field(default_factory=list)
    accuracy: dict[float, list[float]] = field(default_factory=dict)

    def rates(self, name: str) -> tuple[float, ...]:
        """The learning rates that are used next."""
        if not self.accuracy:
            return RATES.get(name, (1.0,))
        return (max(self.accuracy, key=lambda rate: self.accuracy[rate][0]),)

    def row(self, name: str) -> str:
        """A row of the table. Of the learning rates the best one counts."""
        best = self.accuracy[self.rates(name)[0]]
        spread = f" ± {statistics.stdev(best):.1f}" if len(best) > 1 else ""
        times = [statistics.median(each) for each in (self.seconds, self.busy, self.peak)]
        return f"| {name} | {times[0]:.1f} | {times[1]:.1f} | {times[2]:,.0f} | {statistics.fmean(best):.1f}{spread} |"


def measured(command: list[str]) -> tuple[float, float, float]:
    """Seconds, seconds of the processors and peak memory (MB) of a process."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(said.decode())
    return time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def contend(name: str, data: str, epsilon: float, seed: int, rate: float, folder: Path) -> tuple[list[float], float]:
    """The figures of one training: what `measured` says, and the accuracy on the test records in percent."""
    place = folder / f"{time.monotonic_ns()}"
    if name in PEERS:
        out = place.with_suffix(".npy")
        given = ["--data", data, "--epsilon", f"{epsilon}", "--seed", f"{seed}", "--rate", f"{rate}", "--out", str(out)]
        figures = measured([sys.executable, "-m", "bench.peers", "--run", name, *given])
        scores = np.load(out)
    else:
        from dpfc_cli.heads.head import Head

        private = [] if name in WITHOUT else ["--epsilon", f"{epsilon}", "--delta", f"{DELTA}", "--seed", f"{seed}"]
        kind = "nonprivate" if name in WITHOUT else "research"
        head = folder / f"{place.name}.{kind}.safetensors"
        command = ["-m", "dpfc_cli", "train", "--features", data, "--out", str(head), "--method", *name.split()]
        figures = measured([sys.executable, *command, *private])
        scores = Head.load(head).scores(load(data).test_x)
    return list(figures), 100 * float((scores.argmax(axis=1) == load(data).test_y).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", help="feature sets that dpfc has made")
    parser.add_argument("--contenders", default=",".join([*OURS, *PEERS]))
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=5)
    for name in ("--run", "--data", "--out"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        np.save(args.out, PEERS[args.run](load(args.data), args.epsilon, args.seed, args.rate))
        return
    for data in args.sets:
        results = {name: Result() for name in args.contenders.split(",")}
        with tempfile.TemporaryDirectory() as scratch:
            for seed in range(args.seeds):
                for name, result in results.items():
                    if seed and name in WITHOUT:
                        continue
                    for rate in result.rates(name):
                        figures, accuracy = contend(name, data, args.epsilon, seed, rate, Path(scratch))
                        result.accuracy.setdefault(rate, []).append(accuracy)
                        for kept, figure in zip((result.seconds, result.busy, result.peak), figures, strict=True):
                            kept.append(figure)
                        print(
                            f"{name}, rate {rate}, seed {seed}: {figures[0]:.1f} s, {accuracy:.1f} %", file=sys.stderr
                        )
        facts = load(data).facts
        print(f"\n{Path(data).name}: {facts.n:,} × {facts.d} × {facts.m}, ε = {args.epsilon:g}, δ = {DELTA:g}\n")
        print("| | seconds | seconds of processors | peak MB | top-1 % |\n| --- | --- | --- | --- | --- |")
        print("\n".join(result.row(name) for name, result in results.items()), flush=True)


if __name__ == "__main__":
    main()
