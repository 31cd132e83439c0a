"""Checkpoints of transformers: from the tensors of a file to those of a network, and the classifier that it was trained
with.

Files are read tensor by tensor, so that memory never holds one twice, and a tensor that is not asked for is not read:
from a file that also holds a text tower, only the vision tower is read.

Each library has its own names (`names`). Each tensor of a file must be in its table, or on its list of tensors that are
not used (classifiers, other towers, mask tokens). Each tensor that the network needs must be in the file. Otherwise
there is an error that names the tensor. Without these checks, a backbone with half of its weights would run and
silently give bad features.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np

from dpfc_cli.arrays import Array, arrays_in
from dpfc_cli.backbones.family import Classifier, Wanted
from dpfc_cli.backbones.hub import AGAIN, Local
from dpfc_cli.backbones.vision_transformer.models import MODELS, Model
from dpfc_cli.backbones.vision_transformer.names import CLASSIFIER, TIMM, Names
from dpfc_cli.errors import UserError, conflict, damaged, missing, parameter, unsupported

Arrays = dict[str, np.ndarray]
Shapes = dict[str, tuple[int, ...]]
Read = Callable[[], np.ndarray]
"""It reads one tensor."""


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The content of a checkpoint, under the names of the network: the tensors outside blocks and those of each block.

    Matrices are (in, out), convolutions (side, side, in, out), rows (count, D), vectors (D,). They are float32, or of
    another type if they are factors of matrix products.
    """

    outer: Arrays
    blocks: list[Arrays]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The tensors of a file under the names of the network. Those of a block begin with its number.

    Attributes:
        source: what messages call the file.
        arrays: the tensors.
        called: what the file calls them.

    """

    source: str
    arrays: Arrays
    called: dict[str, str]

    def need(self, name: str) -> np.ndarray:
        if name not in self.arrays:
            raise incomplete(self.source, f"lacks the tensor '{name}', in the names of dpfc")
        return self.arrays[name]

    def parameters(self, outer: Shapes, width: int) -> Parameters:
        """The tensors, if there are exactly these outside blocks, and those of blocks of this width, with their
        shapes. UserError otherwise.
        """
        numbers = {name.partition(".")[0] for name in self.arrays if name[0].isdigit()}
        scales = {name.partition(".")[2] for name in self.arrays if name.endswith((".scale1", ".scale2"))}
        hidden = len(self.need("0.fc2.weight"))
        # A gated MLP has twice as many units in its first layer.
        first = 2 * hidden if self.need("0.fc1.weight").shape[-1] == 2 * hidden else hidden
        block = norm_shapes("norm1", width) | norm_shapes("norm2", width) | _transformed(width, first, hidden)
        block |= dict.fromkeys(scales, (width,))
        depth = range(len(numbers))
        shapes = outer | {f"{i}.{name}": shape for i in depth for name, shape in block.items()}
        for name, shape in shapes.items():
            check_shape(self.source, name, self.need(name), shape)
        for name in self.arrays.keys() - shapes.keys():
            raise _foreign(self.source, self.called[name])
        blocks = [{name: self.arrays[f"{i}.{name}"] for name in block} for i in depth]
        return Parameters(outer={name: self.arrays[name] for name in outer}, blocks=blocks)


def gathered(local: Local, names: Names, dtype: np.dtype[np.generic]) -> Checkpoint:
    """All tensors of a file that are used, in their places. dtype: of the factors of matrix products. All other tensors
    are float32. UserError: a tensor is unknown, twice there or damaged.
    """
    source, arrays, called = local.id, Arrays(), dict[str, str]()
    with ExitStack() as stack:
        readers = tensors(local.path, stack)
        prefix = max(names.prefixes, key=lambda each: sum(bool(names.place(each, name)) for name in readers))
        for name, read in readers.items():
            own = names.place(prefix, name)
            if own is None:
                raise _foreign(source, name)
            if not own:
                continue
            if own in arrays:
                raise incomplete(source, f"holds the tensor '{own}' twice, once as '{name}'")
            raw = read()
            try:
                laid = _laid(own, raw)
            except (ValueError, IndexError) as error:
                raise misshapen(source, name, raw.shape) from error
            factor = laid.ndim > 1 and own not in ROWS
            arrays[own] = np.ascontiguousarray(laid, dtype=dtype if factor else np.float32)
            called[own] = name
    _join(arrays, called, source)
    return Checkpoint(source=source, arrays=arrays, called=called)


ROWS = ("cls", "registers", "position", "map.probe", "tokens", "projection", "visual")
"""Tensors that are the same in every layout: a row for each token, or for each input."""


def _laid(name: str, array: np.ndarray) -> np.ndarray:
    module, _, leaf = name.rpartition(".")
    if name in ROWS:
        return array.reshape(-1, array.shape[-1])
    if leaf != "weight" or "norm" in module:
        return array.reshape(-1)
    return array.T if array.ndim != 4 else array.transpose(2, 3, 1, 0)


def _join(arrays: Arrays, called: dict[str, str], source: str) -> None:
    """Join queries, keys and values, which some libraries keep apart. UserError if they do not fit together."""
    for first in [name for name in arrays if name.endswith((".q.weight", ".q.bias"))]:
        ahead, _, leaf = first.rsplit(".", 2)
        parts = [f"{ahead}.{part}.{leaf}" for part in "qkv"]
        if all(part in arrays for part in parts):
            if len({arrays[part].shape[:-1] for part in parts}) > 1:
                raise misshapen(source, called[first], arrays[first].shape)
            called[f"{ahead}.qkv.{leaf}"] = called[first]
            arrays[f"{ahead}.qkv.{leaf}"] = np.concatenate([arrays.pop(part) for part in parts], axis=-1)


# Vision Transformers


def read(local: Local, model: Model, dtype: np.dtype[np.generic]) -> Parameters:
    """Read the checkpoint of a model. dtype: as for `gathered`. UserError: a tensor is unknown, missing, of the wrong
    shape or damaged.
    """
    found = gathered(local, model.names, dtype)
    there, position, width = found.arrays, found.need("position"), model.width
    shapes: Shapes = {name: (len(there[name]), width) for name in ROWS if name in there}
    shapes |= {"patch.weight": (model.patch, model.patch, 3, width)} | norm_shapes("norm", width)
    # The patches of CLIP have no bias.
    shapes |= norm_shapes("prenorm", width) if "prenorm.weight" in there else {"patch.bias": (width,)}
    if model.pool == "map":
        hidden = len(found.need("map.fc2.weight"))
        inner = norm_shapes("norm", width) | _transformed(width, hidden, hidden)
        shapes |= {"map.probe": (1, width)} | {f"map.{name}": shape for name, shape in inner.items()}
    else:
        found.need("cls")
    besides = len(position) - int(len(position) ** 0.5) ** 2
    ahead = len(there.get("cls", ()))
    if besides not in (ahead, ahead + len(there.get("registers", ()))):
        raise misshapen(found.source, "position", position.shape)
    made = found.parameters(shapes, width)
    if len(made.blocks) != model.depth:
        raise incomplete(found.source, f"has {len(made.blocks)} blocks instead of {model.depth}")
    return made


def norm_shapes(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _transformed(width: int, first: int, hidden: int) -> Shapes:
    """The shapes of attention and MLP."""
    return {
        "qkv.weight": (width, 3 * width),
        "qkv.bias": (3 * width,),
        "out.weight": (width, width),
        "out.bias": (width,),
        "fc1.weight": (width, first),
        "fc1.bias": (first,),
        "fc2.weight": (hidden, width),
        "fc2.bias": (width,),
    }


def classifier(wanted: Wanted) -> Classifier:
    """Read the classifier of a model of the table, a row for each class over the feature. Its bias is not read: class
    vectors have none. See `dpfc_cli.backbones.classifier`.
    """
    model = MODELS[wanted.name]
    if model.names is not TIMM:
        raise missing(
            f"The weights of {wanted.name} have no classifier.",
            f"Of CLIP and SigLIP, make the vectors of the names of the classes: {parameter('source')} text.",
            parameter="model",
        )
    if wanted.pool not in (None, model.pool):
        raise conflict(
            f"The classifier of {wanted.name} was trained on the pooling '{model.pool}', the features have "
            f"'{wanted.pool}'.",
            f"Extract features with {parameter('pool')} {model.pool}.",
        )
    local = model.file.local(wanted.progress)
    local.check_is(wanted.expected)
    with ExitStack() as stack:
        readers = tensors(local.path, stack)
        if CLASSIFIER not in readers:
            raise missing(f"'{local.id}' has no classifier.", f"Choose another {parameter('model')}.")
        rows = readers[CLASSIFIER]().astype(np.float64)
    check_shape(local.id, CLASSIFIER, rows, (len(rows) if rows.ndim else 0, model.width))
    if not np.isfinite(rows).all() or not rows.any():
        raise damaged(
            f"The classifier of '{local.id}' is empty: its weights ('{CLASSIFIER}') are zeros, or no numbers.",
            f"Choose another {parameter('model')}.",
        )
    return Classifier(rows=rows, pool=model.pool, id=local.id, sha256=local.sha256)


# Files


def tensors(file: Path, stack: ExitStack) -> dict[str, Read]:
    """All tensors of a file of weights by name, not yet read. stack: it closes the file. UserError: it is damaged, or
    holds something else than numbers. Reading a tensor raises it, too.
    """
    found = arrays_in(file, stack, remedy=AGAIN)
    return {name: partial(_numbers, array, file, name) for name, array in found.items()}


def _numbers(array: Array, file: Path, name: str) -> np.ndarray:
    known = isinstance(array.dtype, np.dtype)
    if not (known and (array.dtype.kind in "fiu" or array.dtype == ml_dtypes.bfloat16)):
        raise incomplete(file.name, f"has the tensor '{name}' of the type {array.dtype}, which is no number")
    if 0 in (array.shape or (0,)):
        raise misshapen(file.name, name, array.shape)
    return array.whole(file, name)


# Errors


def check_shape(source: str, name: str, array: np.ndarray, expected: tuple[int, ...]) -> None:
    if array.shape != expected:
        raise incomplete(source, f"has the tensor '{name}' with the shape {array.shape} instead of {expected}")


def misshapen(source: str, name: str, shape: tuple[int, ...]) -> UserError:
    return incomplete(source, f"has the tensor '{name}' with the shape {shape}, which makes no sense there")


def incomplete(source: str, what: str) -> UserError:
    """The error for a checkpoint that lacks a tensor, or has one that cannot be."""
    return damaged(f"'{source}' {what}.", "Get a complete checkpoint of this model.")


def _foreign(source: str, name: str) -> UserError:
    """The error for a tensor that nothing here takes: features would be computed without it."""
    return unsupported(
        f"'{source}' holds a tensor that dpfc does not know in a checkpoint of this model: '{name}'.",
        "Get the model's own checkpoint.",
    )
