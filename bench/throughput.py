"""Compares images per second and peak memory of ViT-B/16 in dpfc and in PyTorch, eager and compiled.

It needs its own environment, with torch and the packages of dpfc's backbones:

    python -m venv REF && REF/bin/pip install torch jax safetensors numpy ml_dtypes
    PYTHONPATH=. REF/bin/python bench/throughput.py --sizes 224 256 --batches 8 32 128

All contenders get the same bytes, already resized, and return the class token after the final normalisation. They take
turns, one batch each, so that other work on the machine slows all of them down. The table has the median of each
(images per second) and its ratio to the best of PyTorch's. Memory is the peak resident size of a process that runs one
contender alone, minus its size before it made the model. On a GPU it is the peak of the allocator.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, DEPTH, HEADS, HIDDEN, PATCH = 768, 12, 12, 3072, 16
OURS = "dpfc"
FLOAT32 = (OURS, "torch eager", "torch compiled")
BFLOAT16 = (OURS, "torch autocast", "torch autocast compiled", "torch bfloat16", "torch bfloat16 compiled")
Contender = Callable[[], Any]


def weights(size: int) -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
    """Random weights of the real sizes, in the layout of `dpfc_cli.backbones.vision_transformer.vit`."""
    random = np.random.default_rng(0)
    count = (size // PATCH) ** 2

    def dense(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape, np.float32) * shape[0] ** -0.5).astype(np.float32)

    def norm(name: str) -> dict[str, np.ndarray]:
        return {f"{name}.weight": np.ones(WIDTH, np.float32), f"{name}.bias": np.zeros(WIDTH, np.float32)}

    outer = {
        "patch.weight": dense(PATCH * PATCH * 3, WIDTH).reshape(PATCH, PATCH, 3, WIDTH),
        "patch.bias": np.zeros(WIDTH, np.float32),
        "cls": dense(1, WIDTH),
        "position": dense(count + 1, WIDTH),
        **norm("norm"),
    }
    blocks = []
    for _ in range(DEPTH):
        block = norm("norm1") | norm("norm2")
        shapes = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "fc1": (WIDTH, HIDDEN), "fc2": (HIDDEN, WIDTH)}
        for name, shape in shapes.items():
            block |= {f"{name}.weight": dense(*shape), f"{name}.bias": np.zeros(shape[1], np.float32)}
        blocks.append(block)
    return outer, blocks


def ours(size: int, batch: int, precision: str) -> Contender:
    from dpfc_cli.backbones.family import Options, Wanted
    from dpfc_cli.backbones.geometry import Geometry
    from dpfc_cli.backbones.preprocess import DTYPES
    from dpfc_cli.backbones.vision_transformer import checkpoint, transformer, vit
    from dpfc_cli.backbones.vision_transformer.models import HALF

    dtype = DTYPES[precision]

    def typed(group: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        factors = ("patch.weight", "qkv.weight", "out.weight", "fc1.weight", "fc2.weight")
        return {name: array.astype(dtype if name in factors else np.float32) for name, array in group.items()}

    outer, blocks = weights(size)
    parameters = checkpoint.Parameters(
        dialect="timm",
        outer=typed(outer),
        blocks=[typed(block) for block in blocks],
        heads=HEADS,
    )
    backbone = transformer.Transformer(
        Wanted(
            name="vit-b16",
            image_shape=(size, size, 3),
            options=Options(preprocess="native", batch=batch),
            geometry=Geometry(resize=size, crop=size),
            prepared=True,
        ),
        {},
        parameters,
        vit.Architecture(heads=HEADS, epsilon=1e-6, activation="gelu", pool="cls"),
        HALF,
        HALF,
    )
    pixels = bytes_of(size, batch)
    return lambda: backbone(pixels)


def theirs(size: int, batch: int, name: str) -> Contender:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, tensors: dict[str, np.ndarray]) -> None:
            super().__init__()
            self.norm1, self.norm2 = (nn.LayerNorm(WIDTH, eps=1e-6) for _ in range(2))
            for each in ("qkv", "out", "fc1", "fc2"):
                kernel = torch.from_numpy(tensors[f"{each}.weight"])
                layer = nn.Linear(*kernel.shape)
                layer.weight.data, layer.bias.data = kernel.T.contiguous(), torch.from_numpy(tensors[f"{each}.bias"])
                setattr(self, each, layer)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, n, d = x.shape
            q, k, v = self.qkv(self.norm1(x)).reshape(b, n, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + self.out(mixed.transpose(1, 2).reshape(b, n, d))
            return x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            outer, blocks = weights(size)
            self.patch = nn.Conv2d(3, WIDTH, PATCH, PATCH)
            self.patch.weight.data = torch.from_numpy(outer["patch.weight"]).permute(3, 2, 0, 1).contiguous()
            self.patch.bias.data = torch.from_numpy(outer["patch.bias"])
            self.cls = nn.Parameter(torch.from_numpy(outer["cls"])[None])
            self.position = nn.Parameter(torch.from_numpy(outer["position"])[None])
            self.blocks = nn.Sequential(*(Block(block) for block in blocks))
            self.norm = nn.LayerNorm(WIDTH, eps=1e-6)

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            x = (pixels.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
            x = self.patch(x.to(self.patch.weight.dtype)).flatten(2).transpose(1, 2)
            x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.position
            return self.norm(self.blocks(x)[:, 0]).float()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model: Any = Model().eval().to(device)
    if "bfloat16" in name:
        model = model.bfloat16()
    if "compiled" in name:
        model = torch.compile(model)
    pixels = torch.from_numpy(bytes_of(size, batch))

    def run() -> np.ndarray:
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled="autocast" in name):
            features: np.ndarray = model(pixels.to(device)).cpu().numpy()
        return features

    return run


def bytes_of(size: int, batch: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (batch, size, size, 3), dtype=np.uint8)


def contender(name: str, size: int, batch: int, precision: str) -> Contender:
    return ours(size, batch, precision) if name == OURS else theirs(size, batch, name)


def memory(name: str, size: int, batch: int, precision: str) -> float:
    """Peak memory in MB, measured in a separate process."""
    arguments = [sys.executable, __file__, "--alone", name, str(size), str(batch), precision]
    done = subprocess.run(arguments, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def alone(name: str, size: int, batch: int, precision: str) -> float:
    if name == OURS:
        import jax

        jax.devices()
    else:
        import torch
    before = peak()
    run = contender(name, size, batch, precision)
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


def compare(size: int, batch: int, precision: str, names: tuple[str, ...], rounds: int, with_memory: bool) -> None:
    runs = {name: contender(name, size, batch, precision) for name in names}
    expected = None
    for name, run in runs.items():
        rows = run()
        run()
        expected = rows if expected is None else expected
        # Contenders that compute different functions cannot be compared.
        error = np.abs(rows - expected).max() / np.linalg.norm(expected, axis=1).mean()
        assert error < (1e-4 if precision == "float32" else 0.05), (name, error)
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    rates = {name: batch / statistics.median(each) for name, each in times.items()}
    best = max(rate for name, rate in rates.items() if name != OURS) if len(rates) > 1 else rates[OURS]
    for name, rate in rates.items():
        peak = f"{memory(name, size, batch, precision):8.0f}" if with_memory else "       -"
        print(f"{size:4d} {precision:9s} {batch:5d}  {name:24s} {rate:9.2f} {rate / best:7.2f} {peak}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 256])
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--contenders", nargs="*", help="only these, of PyTorch's")
    parser.add_argument("--memory", action="store_true", help="measure memory, too, each contender in its own process")
    parser.add_argument("--alone", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        name, size, batch, precision = options.alone
        print(alone(name, int(size), int(batch), precision))
        return
    print(f"{os.cpu_count()} cores\nsize precision batch  contender                 images/s   ratio  peak MB")
    for size in options.sizes:
        for precision in options.precisions:
            names = FLOAT32 if precision == "float32" else BFLOAT16
            if options.contenders is not None:
                names = tuple(name for name in names if name == OURS or name in options.contenders)
            for batch in options.batches:
                compare(size, batch, precision, names, options.rounds, options.memory)


if __name__ == "__main__":
    main()
