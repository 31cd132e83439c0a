"""Compares images per second and peak memory of a ViT in dpfc and in PyTorch with timm, eager and compiled.

It needs its own environment, with torch and the packages of dpfc's backbones:

    python -m venv REF && REF/bin/pip install torch torchvision timm jax safetensors numpy ml_dtypes
    PYTHONPATH=. REF/bin/python -m bench.throughput --sizes 224 256 --batches 8 32 128

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

DEPTH, PATCH = 12, 16
OURS = "dpfc"
CONTENDERS = {
    "float32": (OURS, "timm", "timm compiled"),
    "bfloat16": (OURS, "timm autocast", "timm autocast compiled", "timm bfloat16", "timm bfloat16 compiled"),
}
Contender = Callable[[], Any]


@dataclass(frozen=True)
class Model:
    """The sizes of a model, and its name in timm."""

    timm: str
    width: int
    heads: int

    @property
    def hidden(self) -> int:
        return 4 * self.width


MODELS = {
    "vit-ti16": Model("vit_tiny_patch16_224", 192, 3),
    "vit-b16": Model("vit_base_patch16_224", 768, 12),
}


def weights(model: Model, size: int) -> tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
    """Random weights of the real sizes, in the layout of `dpfc_cli.backbones.vision_transformer.vit`."""
    random, width = np.random.default_rng(0), model.width
    count = (size // PATCH) ** 2

    def dense(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape, np.float32) * shape[0] ** -0.5).astype(np.float32)

    def norm(name: str) -> dict[str, np.ndarray]:
        return {f"{name}.weight": np.ones(width, np.float32), f"{name}.bias": np.zeros(width, np.float32)}

    outer = {
        "patch.weight": dense(PATCH * PATCH * 3, width).reshape(PATCH, PATCH, 3, width),
        "patch.bias": np.zeros(width, np.float32),
        "cls": dense(1, width),
        "position": dense(count + 1, width),
        **norm("norm"),
    }
    blocks = []
    for _ in range(DEPTH):
        block = norm("norm1") | norm("norm2")
        shapes = {
            "qkv": (width, 3 * width),
            "out": (width, width),
            "fc1": (width, model.hidden),
            "fc2": (model.hidden, width),
        }
        for name, shape in shapes.items():
            block |= {f"{name}.weight": dense(*shape), f"{name}.bias": np.zeros(shape[1], np.float32)}
        blocks.append(block)
    return outer, blocks


def named(outer: dict[str, np.ndarray], blocks: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The same weights with timm's names and layout."""
    made = {
        "patch_embed.proj.weight": outer["patch.weight"].transpose(3, 2, 0, 1),
        "patch_embed.proj.bias": outer["patch.bias"],
        "cls_token": outer["cls"][None],
        "pos_embed": outer["position"][None],
        "norm.weight": outer["norm.weight"],
        "norm.bias": outer["norm.bias"],
    }
    renamed = {"qkv": "attn.qkv", "out": "attn.proj", "fc1": "mlp.fc1", "fc2": "mlp.fc2"}
    for i, block in enumerate(blocks):
        for name, array in block.items():
            layer, kind = name.split(".")
            made[f"blocks.{i}.{renamed.get(layer, layer)}.{kind}"] = array.T
    return {name: np.ascontiguousarray(array) for name, array in made.items()}


def ours(model: Model, size: int, batch: int, precision: str) -> Contender:
    from dpfc_cli.backbones.family import Wanted
    from dpfc_cli.backbones.geometry import Geometry
    from dpfc_cli.backbones.preprocess import DTYPES
    from dpfc_cli.backbones.vision_transformer import checkpoint, transformer, vit
    from dpfc_cli.backbones.vision_transformer.models import HALF

    dtype = DTYPES[precision]

    def typed(group: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        factors = ("patch.weight", "qkv.weight", "out.weight", "fc1.weight", "fc2.weight")
        return {name: array.astype(dtype if name in factors else np.float32) for name, array in group.items()}

    outer, blocks = weights(model, size)
    parameters = checkpoint.Parameters(
        dialect="timm",
        outer=typed(outer),
        blocks=[typed(block) for block in blocks],
        heads=model.heads,
    )
    backbone = transformer.Transformer(
        Wanted(
            name=model.timm,
            image_shape=(size, size, 3),
            preprocess="native",
            batch=batch,
            geometry=Geometry(resize=size, crop=size),
            prepared=True,
        ),
        {},
        parameters,
        vit.Architecture(heads=model.heads, epsilon=1e-6, activation="gelu", pool="cls"),
        HALF,
        HALF,
    )
    pixels = bytes_of(size, batch)
    return lambda: backbone(pixels)


def theirs(model: Model, size: int, batch: int, name: str) -> Contender:
    import timm
    import torch

    inner: Any = timm.create_model(model.timm, pretrained=False, num_classes=0, img_size=size)
    inner.load_state_dict({key: torch.from_numpy(array) for key, array in named(*weights(model, size)).items()})

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            x = (pixels.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
            return self.inner(x.to(inner.cls_token.dtype)).float()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # By default convolutions round the factors of float32 products to fewer bits. Ours keep all.
    torch.backends.cudnn.allow_tf32 = False
    whole: Any = Whole().eval().to(device)
    if "bfloat16" in name:
        whole = whole.bfloat16()
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


def contender(model: Model, name: str, size: int, batch: int, precision: str) -> Contender:
    return ours(model, size, batch, precision) if name == OURS else theirs(model, size, batch, name)


def memory(model: str, name: str, size: int, batch: int, precision: str) -> float:
    """Peak memory in MB, measured in a separate process."""
    arguments = [sys.executable, "-m", "bench.throughput", "--alone", model, name, str(size), str(batch), precision]
    done = subprocess.run(arguments, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def alone(model: str, name: str, size: int, batch: int, precision: str) -> float:
    if name == OURS:
        import jax

        jax.devices()
    else:
        import torch
    before = peak()
    run = contender(MODELS[model], name, size, batch, precision)
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
    runs = {name: contender(MODELS[model], name, size, batch, precision) for name in names}
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
    parser.add_argument("--alone", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        model, name, size, batch, precision = options.alone
        print(alone(model, name, int(size), int(batch), precision))
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
