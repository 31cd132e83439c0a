"""Checkpoints: from the tensors of a file to those of a network, under the names and in the layout that dpfc uses.

Files are `.safetensors` or `.npz`. They are read tensor by tensor, so that memory never holds one twice, and a tensor
that is not asked for is not read. Pickles are refused: to open a pickle runs the code in it. `hub` refuses them by
name, and `arrays` refuses them inside an archive.

Each library has its own names. A `Dialect` is the table of them. Each tensor of a file must be in the table, or on its
list of tensors that are not used (classifiers, other towers, mask tokens). Each tensor that the network needs must be
in the file (`Checkpoint.check`). Otherwise there is an error that names the tensor. Without these checks, a backbone
with half of its weights would run and silently give bad features.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np

from dpfc_cli.arrays import Array, arrays_in
from dpfc_cli.backbones.hub import AGAIN
from dpfc_cli.errors import UserError, damaged, unsupported

Arrays = dict[str, np.ndarray]
Read = Callable[[], np.ndarray]
"""It reads one tensor."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The naming of one library. The tables have names of modules, which have a weight and a bias, or of single
    tensors.

    Attributes:
        name: what messages and manifests call it.
        layout: the order of a tensor's axes.
        prefixes: what its names may begin with.
        block: a regular expression for tensors inside blocks. Its last group is the rest of the name. One before it
            numbers the block; there is none if all blocks are stacked along a first axis.
        outer: names in the file to names in the network, outside blocks.
        inner: the same inside blocks.
        ignored: patterns for names of tensors that are not used, with or without the prefix.
        leaves: what the library calls weights and biases.
        classifiers: the names of the layer that makes scores of the feature. Other layers that classify (of DeiT's
            distillation token) take another vector.

    """

    name: str
    layout: Literal["torch", "flax"] = "torch"
    prefixes: tuple[str, ...]
    block: str
    outer: dict[str, str]
    inner: dict[str, str]
    ignored: tuple[str, ...] = ()
    leaves: dict[str, str] = field(default_factory=lambda: {"weight": "weight", "bias": "bias"})
    classifiers: tuple[str, ...] = ()

    def place(self, prefix: str, name: str) -> str | None:
        """The name in the network of a tensor in a file. "" if it is not used, None if it is unknown.

        In a block the number comes first, as in `3.norm1.weight`, or `#` for all blocks.
        """
        inner = name.removeprefix(prefix)
        inside = re.fullmatch(self.block, inner) if name.startswith(prefix) else None
        if inside is not None:
            *numbers, rest = inside.groups()
            found = self._target(self.inner, rest)
            return found and f"{''.join(filter(None, numbers)) or '#'}.{found}"
        found = self._target(self.outer, inner) if name.startswith(prefix) else None
        unused = any(fnmatchcase(form, pattern) for form in (name, inner) for pattern in self.ignored)
        return "" if found is None and unused else found

    def _target(self, table: dict[str, str], name: str) -> str | None:
        module, _, leaf = name.rpartition("/" if self.layout == "flax" else ".")
        if name not in table and module in table and leaf in self.leaves:
            return f"{table[module]}.{self.leaves[leaf]}"
        return table.get(name)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The tensors of a file under the names of the network.

    Attributes:
        source: what messages call the file.
        kind: what messages call a model of this kind.
        dialect: the naming of the file.
        arrays: float32, or another type for the factors of matrix products. Those of a block begin with its number.
        names: what the file calls them.
        heads: number of attention heads; None if the shapes in the file do not show it.

    """

    source: str
    kind: str
    dialect: Dialect
    arrays: Arrays
    names: dict[str, str]
    heads: int | None

    def need(self, name: str) -> np.ndarray:
        if name not in self.arrays:
            raise incomplete(self.source, f"lacks the tensor '{name}' of a {self.kind}, in the names of dpfc")
        return self.arrays[name]

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise UserError unless there are exactly these tensors, with these shapes."""
        for name, shape in shapes.items():
            check_shape(self.source, name, self.need(name), shape)
        for name in self.arrays.keys() - shapes.keys():
            raise _foreign(self.source, self.names.get(name, name), self.dialect, self.kind)

    def under(self, number: int) -> Arrays:
        ahead = f"{number}."
        return {name.removeprefix(ahead): array for name, array in self.arrays.items() if name.startswith(ahead)}


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The content of a checkpoint, under the names of the network: the name of its dialect, the tensors outside blocks
    and those of each block, and the number of attention heads (None if the shapes do not show it).
    """

    dialect: str
    outer: Arrays
    blocks: list[Any]
    heads: int | None = None


def gathered(file: Path, source: str, dialects: Sequence[Dialect], kind: str, dtype: np.dtype[Any]) -> Checkpoint:
    """All tensors of a file that are used, in their places. source, kind: what messages call the checkpoint, and a
    model of this kind. dialects: the namings that it may have. dtype: of the factors of matrix products. All other
    tensors are float32. UserError: a tensor is unknown, twice there or damaged.
    """
    with ExitStack() as stack:
        readers = tensors(file, stack)
        dialect, prefix = recognise(readers, source, dialects, kind)
        arrays, names, heads = Arrays(), dict[str, str](), None
        for name, target in places(dialect, prefix, readers, source, kind).items():
            raw = readers[name]()
            if dialect.layout == "flax" and target.endswith("q.weight"):
                heads = raw.shape[-2] if raw.ndim > 1 else None
            for own, array in _unstacked(target, raw):
                if own in arrays:
                    raise incomplete(source, f"holds the tensor '{own}' twice, once as '{name}'")
                try:
                    laid = _laid(dialect, own, array)
                except (ValueError, IndexError) as error:
                    raise misshapen(source, name, raw.shape) from error
                factor = laid.ndim > 1 and own not in ROWS
                arrays[own] = np.ascontiguousarray(laid, dtype=dtype if factor else np.float32)
                names[own] = name
    _join(arrays, source)
    return Checkpoint(source=source, kind=kind, dialect=dialect, arrays=arrays, names=names, heads=heads)


def recognise(names: Iterable[str], source: str, dialects: Sequence[Dialect], kind: str) -> tuple[Dialect, str]:
    """The dialect and the prefix in which most names have a place. Raises UserError if none has."""
    known = list(names)
    spoken = [(dialect, prefix) for dialect in dialects for prefix in dialect.prefixes]
    counts = [sum(bool(dialect.place(prefix, name)) for name in known) for dialect, prefix in spoken]
    if not any(counts):
        shown = ", ".join(sorted(known)[:4]) or "none"
        raise unsupported(
            f"'{source}' is not a {kind} that dpfc can read: its tensors have other names ({shown}, …).",
            f"Use a checkpoint with the names of {' or '.join(dialect.name for dialect in dialects)}.",
        )
    return spoken[counts.index(max(counts))]


def places(dialect: Dialect, prefix: str, names: Iterable[str], source: str, kind: str) -> dict[str, str]:
    """The name in the network of each tensor that is used. Raises UserError for a tensor that is not in the table."""
    found = {}
    for name in names:
        target = dialect.place(prefix, name)
        if target is None:
            raise _foreign(source, name, dialect, kind)
        if target:
            found[name] = target
    return found


# The layout of the networks: matrices (in, out), convolutions (side, side, in, out), rows (count, D), vectors (D,).

ROWS = ("cls", "dist", "registers", "position", "map.probe", "tokens", "projection", "visual")
"""Tensors that are the same in every layout: a row for each token, or for each input."""
_PARTS = {"qkv": (("q", "k", "v"), ("q", "kv")), "fc1": (("gate", "up"),)}
"""What is one tensor here, and the parts into which some dialects split it, in their order along the last axis."""


def _unstacked(target: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """(name, tensor), one for each block that the tensor holds."""
    if target.startswith("#"):
        yield from ((f"{number}{target[1:]}", each) for number, each in enumerate(array))
    else:
        yield target, array


def _laid(dialect: Dialect, name: str, array: np.ndarray) -> np.ndarray:
    module, _, leaf = name.rpartition(".")
    if name in ROWS:
        return array.reshape(-1, array.shape[-1])
    if leaf != "weight" or "norm" in module:
        return array.reshape(-1)
    if dialect.layout == "flax":
        if module == "patch":
            return array
        # Heads have an axis of their own: (D, heads, D / heads), and (heads, D / heads, D) after the attention.
        return array.reshape(-1, array.shape[-1]) if module.endswith("out") else array.reshape(len(array), -1)
    return array.T if array.ndim != 4 else array.transpose(2, 3, 1, 0)


def _join(arrays: Arrays, source: str) -> None:
    """Join the parts of tensors, and remove the parts. Raises UserError if they do not fit together."""
    for whole, splits in _PARTS.items():
        for parts, leaf in ((parts, leaf) for parts in splits for leaf in ("weight", "bias")):
            first = f"{parts[0]}.{leaf}"
            for ahead in [name.removesuffix(first) for name in arrays if f".{name}".endswith(f".{first}")]:
                names = [f"{ahead}{part}.{leaf}" for part in parts]
                if not all(name in arrays for name in names):
                    continue
                if len({arrays[name].shape[:-1] for name in names}) > 1:
                    raise misshapen(source, names[0], arrays[names[0]].shape)
                arrays[f"{ahead}{whole}.{leaf}"] = np.concatenate([arrays.pop(name) for name in names], axis=-1)


# Files


def tensors(file: Path, stack: ExitStack) -> dict[str, Read]:
    """All tensors of a `.safetensors` or `.npz` file by name, not yet read. stack: it closes the file. UserError: it is
    damaged, or holds something else than numbers. Reading a tensor raises it, too.
    """
    found = arrays_in(file, stack, remedy=AGAIN)
    return {name: partial(_numbers, array, file, name) for name, array in found.items()}


def _numbers(array: Array, file: Path, name: str) -> np.ndarray:
    known = isinstance(array.dtype, np.dtype)
    # NumPy's own format stores bfloat16 as V2.
    half = known and array.dtype in (np.dtype("V2"), np.dtype(ml_dtypes.bfloat16))
    if not half and not (known and array.dtype.kind in "fiu"):
        raise incomplete(file.name, f"has the tensor '{name}' of the type {array.dtype}, which is no number")
    if 0 in (array.shape or (0,)):
        raise misshapen(file.name, name, array.shape)
    found = array.whole(file, name)
    return found.view(ml_dtypes.bfloat16) if half else found


# Errors


def check_shape(source: str, name: str, array: np.ndarray, expected: tuple[int, ...]) -> None:
    if array.shape != expected:
        raise incomplete(source, f"has the tensor '{name}' with the shape {array.shape} instead of {expected}")


def misshapen(source: str, name: str, shape: tuple[int, ...]) -> UserError:
    return incomplete(source, f"has the tensor '{name}' with the shape {shape}, which makes no sense there")


def incomplete(source: str, what: str) -> UserError:
    """The error for a checkpoint that lacks a tensor, or has one that cannot be."""
    return damaged(f"'{source}' {what}.", "Get a complete checkpoint of this model.")


def _foreign(source: str, name: str, dialect: Dialect, kind: str) -> UserError:
    """The error for a tensor that nothing here takes: features would be computed without it."""
    return unsupported(
        f"'{source}' holds a tensor that a {dialect.name} checkpoint of a {kind} does not have: '{name}'.",
        "Choose the model that the weights belong to. This checkpoint may be of an architecture that dpfc cannot run.",
    )
