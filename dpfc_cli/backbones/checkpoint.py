"""Weights on disk to the parameters of `vit`, one tensor at a time.

Files are `.safetensors` or `.npz`; both are read tensor by tensor, so that a checkpoint is never in memory twice, and
of a file that also holds a text tower only the vision tower is read. Pickles are refused by their names, and NumPy is
told to refuse them inside an archive.
"""

import hashlib
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from dpfc_cli.backbones.dialects import OUTER, STACKED, Dialect, Place, places, recognise, spelling
from dpfc_cli.errors import UserError

Arrays = dict[str, np.ndarray]

# What is one tensor here and several in some dialects, in the order of the first axis that they are laid along.
_PARTS = {
    "qkv": ("q", "k", "v"),
    "fc1": ("gate", "up"),
    "map.qkv": ("map.q", "map.k", "map.v"),
    "map.kv": ("map.k", "map.v"),
}
_NORMS = ("prenorm", "norm1", "norm2", "norm", "fc_norm", "map.norm")
TOKENS = ("cls", "dist", "registers", "position", "map.probe")
_BLOCK = ("norm1", "qkv", "out", "norm2", "fc1", "fc2")
_MAP = ("map.qkv", "map.out", "map.norm", "map.fc1", "map.fc2")


@dataclass(frozen=True)
class Parameters:
    """What a checkpoint holds, by the names of `vit`. heads: None where the file's shapes do not show them.

    outer: tensors outside blocks; blocks: one dictionary each. dialect: whose names the file speaks.
    """

    dialect: str
    outer: Arrays
    blocks: list[Arrays]
    heads: int | None


def digest(files: tuple[Path, ...]) -> str:
    """SHA-256 of the file, in hex; of several, that of their SHA-256s one after the other."""
    sums = []
    for file in files:
        with file.open("rb") as stream:
            sums.append(hashlib.file_digest(stream, "sha256"))
    if len(sums) == 1:
        return sums[0].hexdigest()
    return hashlib.sha256(b"".join(each.digest() for each in sums)).hexdigest()


def read(files: tuple[Path, ...], source: str, dtype: np.dtype[Any]) -> Parameters:
    """The parameters in `files`: factors of matrix products as dtype, others as float32.

    UserError for what is unknown, missing, of the wrong shape or damaged.
    """
    with ExitStack() as stack:
        return _read({name: get for file in files for name, get in _tensors(file, stack)}, source, dtype)


def _read(readers: dict[str, Callable[[], np.ndarray]], source: str, dtype: np.dtype[Any]) -> Parameters:
    dialect, prefix = recognise(readers, source)
    where = places(dialect, prefix, readers, source)
    outer: Arrays = {}
    blocks: dict[int, Arrays] = {}
    heads = None
    for name, place in where.items():
        raw = readers[name]()
        if dialect.layout == "flax" and place.name in ("q.weight", "map.q.weight"):
            heads = raw.shape[-2]
        for number, array in _numbered(place, raw):
            into = outer if number == OUTER else blocks.setdefault(number, {})
            if place.name in into:
                raise UserError(f"'{source}' holds '{place.name}' twice, once as '{name}'.", "Remove one of them.")
            laid = _laid(dialect, place.name, array)
            factor = laid.ndim > 1 and place.name not in TOKENS
            into[place.name] = np.ascontiguousarray(laid, dtype=dtype if factor else np.float32)
    ordered = [blocks.get(i, {}) for i in range(1 + max(blocks, default=-1))]
    for group in (outer, *ordered):
        _join(group)
    for name, number in _lacking(outer, ordered):
        raise UserError(
            f"'{source}' lacks the tensor '{spelling(dialect, prefix, name, number, where)}'.",
            "It is not a whole checkpoint of a Vision Transformer; get another.",
        )
    _check_shapes(outer, ordered, source)
    return Parameters(dialect.name, outer, ordered, heads)


def _tensors(file: Path, stack: ExitStack) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    """Names, and how to read each. A file that is damaged within is found out when it is read."""
    from safetensors import SafetensorError, safe_open

    def careful(read: Callable[[str], np.ndarray], name: str) -> np.ndarray:
        try:
            return _plain(read(name), file)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, SafetensorError) as error:
            raise _damaged(file, error) from error

    try:
        if file.suffix == ".npz":
            stored = np.load(stack.enter_context(file.open("rb")), allow_pickle=False)
            stack.callback(stored.close)
            names, read = stored.files, stored.__getitem__
        else:
            stored = stack.enter_context(safe_open(file, framework="numpy"))
            names, read = stored.keys(), stored.get_tensor
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, SafetensorError) as error:
        raise _damaged(file, error) from error
    for name in names:
        yield name, partial(careful, read, name)


def _plain(array: np.ndarray, file: Path) -> np.ndarray:
    if array.dtype == np.dtype("V2"):
        # How NumPy's own format stores bfloat16.
        return array.view(ml_dtypes.bfloat16)
    if array.dtype.kind not in "fiu" and array.dtype != ml_dtypes.bfloat16:
        raise UserError(f"'{file.name}' holds an array of type {array.dtype}.", "Weights are floating-point numbers.")
    return array


def _damaged(file: Path, error: Exception) -> UserError:
    return UserError(f"'{file}' is no whole {file.suffix} file: {error}.", "Get it anew.")


def _numbered(place: Place, array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    if place.block == STACKED:
        yield from enumerate(array)
    else:
        yield place.block, array


def _laid(dialect: Dialect, name: str, array: np.ndarray) -> np.ndarray:
    """In the layout of `vit`: matrices (in, out), patches (p, p, 3, D), tokens (count, D), vectors (D,)."""
    module, _, leaf = name.rpartition(".")
    if name in TOKENS:
        return array.reshape(-1, array.shape[-1])
    if leaf != "weight" or module in _NORMS:
        return array.reshape(-1)
    if module == "patch":
        return array.transpose(2, 3, 1, 0) if dialect.layout == "torch" and array.ndim == 4 else array
    if dialect.layout == "torch":
        return array.T
    # Heads lie apart: (D, heads, D / heads), and the other way round behind the attention.
    return array.reshape(-1, array.shape[-1]) if module.endswith("out") else array.reshape(len(array), -1)


def _join(group: Arrays) -> None:
    """Join what other dialects split. The parts are let go."""
    for whole, parts in _PARTS.items():
        for leaf in ("weight", "bias"):
            names = [f"{part}.{leaf}" for part in parts]
            if all(name in group for name in names):
                group[f"{whole}.{leaf}"] = np.concatenate([group.pop(name) for name in names], axis=-1)
    for leaf in ("weight", "bias"):
        names = [f"map.q.{leaf}", f"map.kv.{leaf}"]
        if all(name in group for name in names):
            group[f"map.qkv.{leaf}"] = np.concatenate([group.pop(name) for name in names], axis=-1)


def _lacking(outer: Arrays, blocks: list[Arrays]) -> Iterator[tuple[str, int]]:
    """Tensors that the others show to belong there, and are not: their names and blocks."""
    wanted = ["patch.weight", "position", *_both("fc_norm" if "fc_norm.weight" in outer else "norm")]
    if any(name.startswith("prenorm") for name in outer):
        # CLIP's, whose patches have no bias.
        wanted += _both("prenorm")
    else:
        wanted.append("patch.bias")
    if any(name.startswith("map.") for name in outer):
        wanted += ["map.probe", *_both(*_MAP)]
    if (
        "position" in outer
        and "cls" not in outer
        and round(len(outer["position"]) ** 0.5) ** 2 != len(outer["position"])
    ):
        wanted.append("cls")
    scales = sorted({name for block in blocks for name in block if name in ("scale1", "scale2")})
    for number, group, names in [(OUTER, outer, wanted)] + [
        (number, block, [*_both(*_BLOCK), *scales]) for number, block in enumerate(blocks or [{}])
    ]:
        for name in names:
            if name not in group:
                yield _part(group, name), number


def _both(*modules: str) -> list[str]:
    return [f"{module}.{leaf}" for module in modules for leaf in ("weight", "bias")]


def _part(group: Arrays, name: str) -> str:
    """Of what other dialects split, the part that is not there while others are."""
    module, _, leaf = name.rpartition(".")
    for parts in (_PARTS.get(module, ()), ("map.q", "map.kv") if module == "map.qkv" else ()):
        names = [f"{part}.{leaf}" for part in parts]
        if any(each in group for each in names):
            return next(each for each in names if each not in group)
    return name


def _check_shapes(outer: Arrays, blocks: list[Arrays], source: str) -> None:
    """UserError where two tensors do not fit together."""
    patch = outer["patch.weight"]
    width = patch.shape[-1]
    if patch.ndim != 4 or patch.shape[0] != patch.shape[1] or patch.shape[2] != 3:
        raise UserError(
            f"The patches of '{source}' have the shape {patch.shape}, not (size, size, 3 colours, width).",
            "dpfc runs Vision Transformers on square patches of colour pictures.",
        )
    hidden, half = blocks[0]["fc1.weight"].shape[-1], len(blocks[0]["fc2.weight"])
    if hidden not in (half, 2 * half):
        raise UserError(f"The two layers of an MLP in '{source}' have {hidden} and {half} units.", "Get it anew.")
    inner = _shapes(width, hidden, half)
    for group in blocks:
        for name, array in group.items():
            _fits(source, name, array, inner.get(name, (width,)))
    pool = len(outer["map.fc2.weight"]) if "map.probe" in outer else 0
    around = {f"map.{name}": shape for name, shape in _shapes(width, pool, pool).items()}
    around |= {name: (len(outer[name]), width) for name in TOKENS if name in outer} | {"patch.weight": patch.shape}
    for name, array in outer.items():
        _fits(source, name, array, around.get(name, (width,)))


def _shapes(width: int, first: int, second: int) -> dict[str, tuple[int, ...]]:
    """Of all that is not a vector of `width`."""
    return {
        "qkv.weight": (width, 3 * width),
        "qkv.bias": (3 * width,),
        "out.weight": (width, width),
        "fc1.weight": (width, first),
        "fc1.bias": (first,),
        "fc2.weight": (second, width),
    }


def _fits(source: str, name: str, array: np.ndarray, expected: tuple[int, ...]) -> None:
    if array.shape != expected:
        raise UserError(f"'{name}' in '{source}' has the shape {array.shape}; {expected} would fit.", "Get it anew.")
