"""Measures the exact sums and what follows them beside plain NumPy, JAX and PyTorch: a part of `bench.benchmarks`.

A kernel is some mathematical work on records that lie in memory. Each library does it in a process of its own, so that
the threads of one do not disturb another. They take turns, and the median counts. In the same turns each library
multiplies square matrices: the best of them is the machine's product speed.

`dpfc` sums exactly, with the curator's own function: integers in float64, which include reading the blocks and the
check that each record comes once. The others compute in float32, which is not exact, with the shortest code that a
user of the library would write. Decompositions are float64 everywhere.
"""

import functools
import math
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

OURS = "dpfc"
LIBRARIES = (OURS, "numpy", "jax", "torch")
SIDE = 1536
"""Of the square matrices that the machine's product speed is measured with."""
DRAWS = 2_000_000
CLASSES = 4
"""Hessians that are summed in one pass."""
SYSTEMS = 8
"""Systems of equations that are solved at once."""
CLIP, DAMPING = 0.36, 0.01
TOLERANCE = 5e-3
"""The most that results may differ, in parts of their length: the lattice and float32 round."""
Shape = tuple[int, int, int]
"""Records, dimensions and classes."""
Work = Callable[[], Any]


@dataclass(frozen=True)
class Kernel:
    """What is measured. work: floating-point operations for a shape, or draws; None where the count says nothing.
    unit: of that work, for a second and in billions or millions.
    """

    words: str
    work: Callable[[Shape], float] | None = None
    unit: str = "GFLOP/s"


KERNELS = {
    "gram": Kernel("Gram matrix", lambda s: s[0] * s[1] ** 2),
    "class_grams": Kernel("class Grams", lambda s: s[0] * s[1] ** 2),
    "class_sums": Kernel("class sums", lambda s: 2 * s[0] * s[1] * s[2]),
    "first_gradient": Kernel("gradient, first pass", lambda s: 4 * s[0] * s[1] * s[2]),
    "gradient": Kernel("gradient, later passes", lambda s: 4 * s[0] * s[1] * s[2]),
    "hessians": Kernel(f"Hessians of {CLASSES} classes", lambda s: CLASSES * s[0] * s[1] ** 2),
    "noise": Kernel("normal noise", lambda s: DRAWS, "million/s"),
    "eigh": Kernel("damped inverse, by eigenvalues"),
    "project": Kernel(f"{SYSTEMS} matrices to the nearest positive ones"),
    "solve": Kernel(f"{SYSTEMS} systems of equations"),
}


def given(shape: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels, weights, and symmetric positive matrices."""
    n, d, m = shape
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, d), np.float32)
    half = rng.standard_normal((SYSTEMS, d, d))
    return x, np.arange(n, dtype=np.int32) % m, rng.standard_normal((d, m)), half @ half.swapaxes(1, 2) / d + np.eye(d)


def ours(kernel: str, shape: Shape) -> Work:
    """The work in dpfc."""
    from bench.cells import stream_of
    from dpfc_cli.methods.linear import damped_inverse, symmetric_psd
    from dpfc_cli.privacy.chain import Clip
    from dpfc_cli.privacy.directions import Directions, InMemory
    from dpfc_cli.privacy.facts import Facts
    from dpfc_cli.privacy.lattice import lattice_for
    from dpfc_cli.privacy.noise import SystemBits, rounded_normal
    from dpfc_cli.privacy.queries import ClassGrams, ClassSums, Gradient, Gram, Hessians, Query
    from dpfc_cli.privacy.sums import Summed, exact_sum

    (n, d, m), chain = shape, (Clip(1e-6),)
    x, y, theta, matrices = given(shape)
    indefinite = matrices - 3 * np.eye(d)
    if kernel == "noise":
        return lambda: rounded_normal(2**40, DRAWS, SystemBits()) / 2.0**40
    if kernel == "eigh":
        return lambda: damped_inverse(indefinite[0], DAMPING)
    if kernel == "project":
        return lambda: np.stack([symmetric_psd(matrix) for matrix in indefinite])
    if kernel == "solve":
        return lambda: np.stack([np.linalg.solve(matrix, theta[:, 0]) for matrix in matrices])
    facts, stream = Facts(n=n, m=m, d=d), stream_of(x, y)
    grid = lattice_for(n, 10.0, max(d, m))
    gradient = Gradient(chain, theta, clip=CLIP, constant=0.0)
    queries: dict[str, Query] = {
        "gram": Gram(chain),
        "class_grams": ClassGrams(chain),
        "class_sums": ClassSums(chain),
        "hessians": Hessians(chain, theta, 0, min(CLASSES, m)),
    }
    query, kept = queries.get(kernel, gradient), Directions(InMemory())

    def run() -> np.ndarray:
        directions = Directions(InMemory()) if kernel == "first_gradient" else kept
        return exact_sum(query, Summed(stream, facts, grid, directions=directions)) * query.scale(facts, grid)

    return run


def theirs(kernel: str, shape: Shape, library: str) -> Work:
    """The work in another library, compiled if that is JAX."""
    (_, d, m), (x, y, theta, matrices) = shape, given(shape)
    indefinite = matrices - 3 * np.eye(d)
    xp, sigmoid, placed = _library(library)
    if kernel == "noise":
        return _draws(library)
    rows = [np.flatnonzero(y == j) for j in range(m)]
    label_rows = placed((y[:, None] == np.arange(m)).astype(np.float32))
    weights = placed(theta.astype(np.float32))

    def unit(x: Any) -> Any:
        return x / ((x * x).sum(1) ** 0.5)[:, None]

    def gradient(z: Any) -> Any:
        r = sigmoid(z @ weights) - label_rows
        return z.T @ (r * (CLIP / (r * r).sum(1) ** 0.5).clip(max=1.0)[:, None])

    def hessians(z: Any) -> Any:
        p = sigmoid(z @ weights[:, :CLASSES])
        s = p * (1 - p)
        return xp.stack([(z * s[:, j : j + 1]).T @ z for j in range(min(CLASSES, m))])

    def positive(a: Any, damping: float | None = None) -> Any:
        values, vectors = xp.linalg.eigh(a)
        kept = values.clip(min=0.0)
        return (vectors * (kept if damping is None else 1 / (kept + damping))[..., None, :]) @ vectors.mT

    functions: dict[str, tuple[Callable[..., Any], Any]] = {
        "gram": (lambda x: unit(x).T @ unit(x), x),
        "class_grams": (lambda x: xp.stack([z[each].T @ z[each] for z in [unit(x)] for each in rows]), x),
        "class_sums": (lambda x: label_rows.T @ unit(x), x),
        "first_gradient": (lambda x: gradient(unit(x)), x),
        "gradient": (gradient, x / np.linalg.norm(x, axis=1, keepdims=True)),
        "hessians": (lambda x: hessians(unit(x)), x),
        "eigh": (lambda a: positive(a, DAMPING), indefinite[0]),
        "project": (positive, indefinite),
        "solve": (functools.partial(_solved, library, placed(theta[:, :1])), matrices),
    }
    function, argument = functions[kernel]
    return _ready(function, placed(argument), library)


def product(library: str, dtype: str) -> Work:
    """A product of two square matrices."""
    placed = _library(library)[2]
    a = placed(np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(dtype))
    return _ready(lambda a: a @ a, a, library)


def _library(library: str) -> tuple[Any, Callable[[Any], Any], Callable[[np.ndarray], Any]]:
    """The namespace, its sigmoid, and what makes its arrays."""
    if library == "jax":
        import jax

        configuration: Any = jax.config
        configuration.update("jax_enable_x64", True)
        return jax.numpy, jax.nn.sigmoid, jax.numpy.asarray
    if library == "torch":
        import torch

        return torch, torch.sigmoid, torch.from_numpy
    from scipy.special import expit

    return np, expit, lambda array: array


def _ready(function: Callable[[Any], Any], argument: Any, library: str) -> Work:
    if library != "jax":
        return lambda: function(argument)
    import jax

    compiled = jax.jit(function)
    return lambda: compiled(argument).block_until_ready()


def _draws(library: str) -> Work:
    if library == "jax":
        import jax

        draw = jax.jit(lambda key: jax.random.normal(key, (DRAWS,), np.float32))
        return lambda: draw(jax.random.key(time.monotonic_ns() % 2**32)).block_until_ready()
    if library == "torch":
        import torch

        return lambda: torch.randn(DRAWS)
    rng = np.random.default_rng()
    return lambda: rng.standard_normal(DRAWS, np.float32)


def _solved(library: str, right: Any, matrices: Any) -> Any:
    """By Cholesky where the library has a solver for a stack."""
    if library == "numpy":
        return np.stack([np.linalg.solve(matrix, right[:, 0]) for matrix in matrices])
    if library == "torch":
        import torch

        return torch.cholesky_solve(right.expand(len(matrices), -1, -1), torch.linalg.cholesky(matrices))[..., 0]
    import jax

    factors = jax.numpy.linalg.cholesky(matrices)
    return jax.vmap(lambda factor: jax.scipy.linalg.cho_solve((factor, True), right[:, 0]))(factors)


@functools.cache
def prepared(library: str, kernel: str, shape: Shape) -> Work:
    """The work of a kernel with all its data. kernel: one of `KERNELS`, or a type for a product of square matrices."""
    if kernel not in KERNELS:
        return product(library, kernel)
    return ours(kernel, shape) if library == OURS else theirs(kernel, shape, library)


def sketch(made: Any) -> np.ndarray:
    """A few numbers that tell results apart: products with a vector. Draws give their mean and standard deviation."""
    array = np.asarray(made, np.float64)
    if array.shape == (DRAWS,):
        return np.array([1 + array.mean(), array.std()])
    return array.reshape(-1, array.shape[-1]) @ np.random.default_rng(1).standard_normal(array.shape[-1])


def first(library: str, kernel: str, shape: Shape) -> np.ndarray:
    """Do the work for the first time: what is compiled is compiled then."""
    return sketch(prepared(library, kernel, shape)())


def timed(library: str, kernel: str, shape: Shape) -> float:
    started = time.perf_counter()
    prepared(library, kernel, shape)()
    return time.perf_counter() - started


def end_with_parent() -> None:
    """A worker waits for work for ever if the process that gives it was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def measure(kernel: str, shape: Shape, rounds: int, libraries: Sequence[str] = LIBRARIES) -> dict[str, Any]:
    """Seconds of each library, how far its result is from ours, and the machine's product speeds in GFLOP/s.

    Raises:
        ArithmeticError: a library computes something else.

    """
    tasks = [(library, kernel) for library in libraries]
    tasks += [(library, dtype) for library in libraries if library != OURS for dtype in ("float32", "float64")]
    with ExitStack() as stack:
        spawn = multiprocessing.get_context("spawn")
        pools = {
            each: stack.enter_context(ProcessPoolExecutor(1, mp_context=spawn, initializer=end_with_parent))
            for each in libraries
        }
        found = {task: pools[task[0]].submit(first, *task, shape).result() for task in tasks}
        errors = {library: distance(found[library, kernel], found[libraries[0], kernel]) for library in libraries}
        # The mean of so many draws of the standard normal distribution is within 7 standard errors of 0.
        worst = 7 / math.sqrt(DRAWS) if kernel == "noise" else TOLERANCE
        if max(errors.values()) > worst:
            raise ArithmeticError(f"{kernel}: the results differ by {errors}")
        seconds: dict[tuple[str, str], list[float]] = {task: [] for task in tasks}
        for _ in range(rounds):
            for task in tasks:
                seconds[task].append(pools[task[0]].submit(timed, *task, shape).result())
    middle = {task: statistics.median(each) for task, each in seconds.items()}
    products = {
        dtype: max(2e-9 * SIDE**3 / middle[task] for task in tasks if task[1] == dtype)
        for dtype in ("float32", "float64")
    }
    return {
        "seconds": {library: round(middle[library, kernel], 5) for library in libraries},
        "error": {library: float(f"{errors[library]:.1e}") for library in libraries if library != OURS},
        "product": {dtype: round(speed, 1) for dtype, speed in products.items()},
    }


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def table(rows: dict[str, dict[str, Any]], shape: Shape) -> Iterator[str]:
    """Markdown: a row for each kernel that was measured."""
    yield "| | `dpfc`: seconds | a second | of float64 | best other | seconds | a second | of float32 | ratio |"
    yield "| --- " * 9 + "|"
    for name, kernel in KERNELS.items():
        if name not in rows:
            continue
        found = rows[name]
        seconds = dict(found["seconds"])
        own = seconds.pop(OURS)
        best = min(seconds, key=lambda library: seconds[library])
        shown = (
            *_speed(kernel, shape, own, found["product"]["float64"]),
            *_speed(kernel, shape, seconds[best], found["product"]["float32"]),
        )
        yield (
            f"| {kernel.words} | {_seconds(own)} | {shown[0]} | {shown[1]} | {NAMES[best]} | {_seconds(seconds[best])} "
            f"| {shown[2]} | {shown[3]} | {seconds[best] / own:.2f} |"
        )


NAMES = {OURS: "dpfc", "numpy": "NumPy", "jax": "JAX", "torch": "PyTorch"}


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g}"


def _speed(kernel: Kernel, shape: Shape, seconds: float, product: float) -> tuple[str, str]:
    if kernel.work is None:
        return "–", "–"
    if kernel.unit != "GFLOP/s":
        return f"{kernel.work(shape) / seconds / 1e6:.0f} million", "–"
    speed = kernel.work(shape) / seconds / 1e9
    return f"{speed:.{0 if speed >= 10 else 1}f} GFLOP", f"{100 * speed / product:.0f} %"
