"""Compares images per second and peak memory of a network in dpfc and in PyTorch with timm, eager and compiled.

It needs its own environment, with torch and the packages of dpfc's backbones:

    python -m venv REF && REF/bin/pip install torch torchvision timm jax safetensors numpy ml_dtypes
    PYTHONPATH=. REF/bin/python -m bench.throughput --sizes 224 256 --batches 8 32 128

All contenders get the same bytes, already resized, and return the same features. They take turns, one batch each, so
that other work on the machine slows all of them down. The table has the median of each (images per second) and its
ratio to the best of PyTorch's. Memory is the peak resident size of a process that runs one contender alone, minus its
size before it made the model. On a GPU it is the peak of the allocator.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

OURS = "dpfc"
CONTENDERS = {
    "float32": (OURS, "timm", "timm compiled"),
    "bfloat16": (OURS, "timm autocast", "timm autocast compiled", "timm bfloat16", "timm bfloat16 compiled"),
}
Contender = Callable[[], Any]
MODELS = {"vit-ti16": "vit_tiny_patch16_224", "vit-b16": "vit_base_patch16_224"}
"""Their names in timm."""


def made(model: str, size: int) -> Any:
    """timm's model, with the weights that it begins with."""
    import timm
    import torch

    torch.manual_seed(0)
    return timm.create_model(MODELS[model], pretrained=False, num_classes=0, img_size=size)


def kept(model: str, size: int, folder: str) -> Path:
    """A cache of dpfc with the weights of that model, from which a process without PyTorch makes it."""
    from safetensors.torch import save_file

    from dpfc_cli.backbones.vision_transformer.models import MODELS as TABLE

    file = Path(folder, "hub", TABLE[model].file.repository, TABLE[model].file.name)
    file.parent.mkdir(parents=True)
    save_file(made(model, size).state_dict(), file)
    return Path(folder)


def ours(model: str, size: int, batch: int, precision: str, weights: Path) -> Contender:
    from dpfc_cli import backbones

    os.environ["DPFC_CACHE"] = str(weights)
    backbone = backbones.load(
        backbones.Wanted(
            name=model,
            image_shape=(size, size, 3),
            preprocess="native" if size == 224 else "paper",
            batch=batch,
            precision=precision,
        )
    )
    pixels = bytes_of(size, batch)
    return lambda: backbone(pixels)


def theirs(model: str, size: int, batch: int, name: str) -> Contender:
    import torch

    inner = made(model, size)
    mean, std = (torch.tensor(inner.pretrained_cfg[key]).reshape(3, 1, 1) for key in ("mean", "std"))

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner
            self.register_buffer("mean", mean)
            self.register_buffer("std", std)

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            x = (pixels.permute(0, 3, 1, 2).float() / 255 - self.mean) / self.std
            return self.inner(x.to(next(inner.parameters()).dtype)).float()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # By default convolutions round the factors of float32 products to fewer bits. Ours keep all.
    torch.backends.cudnn.allow_tf32 = False
    whole: Any = Whole().eval().to(device)
    if "bfloat16" in name:
        whole.inner.bfloat16()
    if "compiled" in name:
        whole = torch.compile(whole)
    pixels = torch.from_numpy(bytes_of(size, batch))

    def run() -> np.ndarray:
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled="autocast" in name):
            features: np.ndarray = whole(pixels.to(device)).cpu().numpy()
        return features

    return run


def bytes_of(size: int, batch: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (batch, size, size, 3), dtype=np.uint8)


def contender(model: str, name: str, size: int, batch: int, precision: str, weights: Path) -> Contender:
    return ours(model, size, batch, precision, weights) if name == OURS else theirs(model, size, batch, name)


def memory(model: str, name: str, size: int, batch: int, precision: str) -> float:
    """Peak memory in MB, measured in a separate process."""
    with tempfile.TemporaryDirectory() as scratch:
        case = (model, name, str(size), str(batch), precision, str(kept(model, size, scratch)))
        arguments = [sys.executable, "-m", "bench.throughput", "--alone", *case]
        done = subprocess.run(arguments, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def alone(model: str, name: str, size: int, batch: int, precision: str, weights: Path) -> float:
    if name == OURS:
        import jax

        jax.devices()
    else:
        import torch
    before = peak()
    run = contender(model, name, size, batch, precision, weights)
    for _ in range(2):
        run()
    if name == OURS and jax.default_backend() == "gpu":
        return float(jax.local_devices()[0].memory_stats()["peak_bytes_in_use"]) / 1e6
    if name != OURS and torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    return peak() - before


def peak() -> float:
    """Peak memory of this process in MB. (getrusage would include the peak that is inherited from the parent.)"""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1e3


def compare(model: str, size: int, batch: int, precision: str, names: Sequence[str], rounds: int) -> dict[str, float]:
    """Images per second of each contender.

    Raises:
        ArithmeticError: a contender computes something else.

    """
    with tempfile.TemporaryDirectory() as scratch:
        weights = kept(model, size, scratch)
        runs = {name: contender(model, name, size, batch, precision, weights) for name in names}
    expected: np.ndarray | None = None
    for name, run in runs.items():
        rows = run()
        run()
        expected = rows if expected is None else expected
        error = np.abs(rows - expected).max() / np.linalg.norm(expected, axis=1).mean()
        if not error < (1e-4 if precision == "float32" else 0.05):
            raise ArithmeticError(f"{name} and {names[0]} differ by {error}")
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: round(batch / statistics.median(each), 2) for name, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=MODELS, default="vit-b16")
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 256])
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--precisions", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--contenders", nargs="*", help="only these, of PyTorch's")
    parser.add_argument("--memory", action="store_true", help="measure memory, too, each contender in its own process")
    parser.add_argument("--alone", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        model, name, size, batch, precision, weights = options.alone
        print(alone(model, name, int(size), int(batch), precision, Path(weights)))
        return
    print(f"{options.model}, {os.cpu_count()} cores")
    print("size precision batch  contender                 images/s   ratio  peak MB")
    for size in options.sizes:
        for precision in options.precisions:
            names = CONTENDERS[precision]
            if options.contenders is not None:
                names = tuple(name for name in names if name == OURS or name in options.contenders)
            for batch in options.batches:
                case = (size, batch, precision)
                rates = compare(options.model, *case, names, options.rounds)
                best = max((rate for name, rate in rates.items() if name != OURS), default=rates[OURS])
                for name, rate in rates.items():
                    held = f"{memory(options.model, name, *case):8.0f}" if options.memory else "       -"
                    row = f"{size:4d} {precision:9s} {batch:5d}  {name:24s} {rate:9.2f} {rate / best:7.2f} {held}"
                    print(row, flush=True)


if __name__ == "__main__":
    main()
