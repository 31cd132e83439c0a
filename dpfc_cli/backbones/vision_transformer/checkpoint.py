"""Checkpoints of Vision Transformers: from the tensors of a file to the parameters of `vit`.

Tensors are read one at a time, so a checkpoint is never in memory twice. From a file that also holds a text tower, only
the vision tower is read.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfc_cli.backbones.family import Classifier, Options, Progress
from dpfc_cli.backbones.hub import check_width, find, place
from dpfc_cli.backbones.tensors import Read, check_shape, incomplete, tensors
from dpfc_cli.backbones.vision_transformer.dialects import (
    OUTER,
    STACKED,
    Dialect,
    Place,
    classifiers,
    places,
    recognise,
)
from dpfc_cli.backbones.vision_transformer.models import MODELS
from dpfc_cli.errors import UserError, parameter

Arrays = dict[str, np.ndarray]

# Some dialects split what is one tensor here. The parts are in their order along the last axis.
_PARTS = {
    "qkv": ("q", "k", "v"),
    "fc1": ("gate", "up"),
    "map.qkv": ("map.q", "map.k", "map.v"),
    "map.kv": ("map.k", "map.v"),
}
_NORMS = ("prenorm", "norm1", "norm2", "norm", "fc_norm", "map.norm")
TOKENS = ("cls", "dist", "registers", "position", "map.probe", "tokens", "projection", "visual")
"""Tensors that are the same in every layout: one row for each token, or for each input."""
_BLOCK = ("norm1", "qkv", "out", "norm2", "fc1", "fc2")
_MAP = ("map.qkv", "map.out", "map.norm", "map.fc1", "map.fc2")


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The content of a checkpoint, under the names of `vit`.

    Attributes:
        dialect: the name of the dialect of the file.
        outer: the tensors outside blocks.
        blocks: the tensors of each block.
        heads: number of attention heads; None if the shapes in the file do not show it.

    """

    dialect: str
    outer: Arrays
    blocks: list[Arrays]
    heads: int | None


def read(files: tuple[Path, ...], source: str, dtype: np.dtype[Any]) -> Parameters:
    """Read a checkpoint.

    Args:
        files: the files that hold it.
        source: what messages call it.
        dtype: of the factors of matrix products. All other tensors are float32.

    Raises:
        UserError: a tensor is unknown, missing, of the wrong shape or damaged.

    """
    with ExitStack() as stack:
        readers = tensors(files, stack)
        found = gathered(readers, *recognise(readers, source), source, dtype, _wanted)
    _check_shapes(found.outer, found.blocks, source)
    return found


def pool_of(outer: Collection[str]) -> str:
    """The pooling that a checkpoint was trained with. outer: the names of its tensors outside blocks."""
    if "map.probe" in outer:
        return "map"
    return "cls" if "cls" in outer and "fc_norm.weight" not in outer else "mean"


def gathered(
    readers: dict[str, Read],
    dialect: Dialect,
    prefix: str,
    source: str,
    dtype: np.dtype[Any],
    wanted: Callable[[Arrays], list[str]],
) -> Parameters:
    """The tensors of a file in their places, none of them missing. Their shapes are not compared.

    Args:
        readers: the tensors of the file.
        dialect: the naming of the file.
        prefix: what its names begin with.
        source: what messages call it.
        dtype: of the factors of matrix products. All other tensors are float32.
        wanted: which tensors outside blocks there must be, judged by those that are there.

    Raises:
        UserError: a tensor is unknown, missing, twice there or damaged.

    """
    where = places(dialect, prefix, readers, source)
    outer: Arrays = {}
    blocks: dict[int, Arrays] = {}
    heads = None
    for name, slot in where.items():
        raw = readers[name]()
        if not raw.ndim or not raw.size:
            raise _misshapen(source, name, raw.shape)
        if dialect.layout == "flax" and slot.name in ("q.weight", "map.q.weight"):
            heads = raw.shape[-2] if raw.ndim > 1 else None
        for number, array in _numbered(slot, raw):
            into = outer if number == OUTER else blocks.setdefault(number, {})
            if slot.name in into:
                raise incomplete(source, f"holds the tensor '{slot.name}' twice, once as '{name}'")
            try:
                laid = _laid(dialect, slot.name, array)
            except (ValueError, IndexError) as error:
                raise _misshapen(source, name, raw.shape) from error
            factor = laid.ndim > 1 and slot.name not in TOKENS
            into[slot.name] = np.ascontiguousarray(laid, dtype=dtype if factor else np.float32)
    # One block that is missing is enough to refuse the file, whatever the largest number is.
    ordered = [blocks.get(i, {}) for i in range(min(1 + max(blocks, default=-1), len(blocks) + 1))]
    for group in (outer, *ordered):
        _join(group, source)
    for name in _lacking(outer, ordered, wanted(outer)):
        raise incomplete(source, f"lacks the tensor {name} of a {dialect.kind}, in the names of dpfc")
    return Parameters(dialect=dialect.name, outer=outer, blocks=ordered, heads=heads)


def _numbered(place: Place, array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(number of the block, tensor), one for each block that the tensor holds."""
    if place.block == STACKED:
        yield from enumerate(array)
    else:
        yield place.block, array


def _laid(dialect: Dialect, name: str, array: np.ndarray) -> np.ndarray:
    """The tensor in the layout of `vit`: matrices (in, out), patches (p, p, 3, D), tokens (count, D), vectors (D,)."""
    module, _, leaf = name.rpartition(".")
    if name in TOKENS:
        return array.reshape(-1, array.shape[-1])
    if leaf != "weight" or module in _NORMS:
        return array.reshape(-1)
    if module == "patch":
        return array.transpose(2, 3, 1, 0) if dialect.layout == "torch" and array.ndim == 4 else array
    if dialect.layout == "torch":
        return array.T
    # Heads have an axis of their own: (D, heads, D / heads), and (heads, D / heads, D) after the attention.
    return array.reshape(-1, array.shape[-1]) if module.endswith("out") else array.reshape(len(array), -1)


def _join(group: Arrays, source: str) -> None:
    """Join the parts of tensors that other dialects split, and remove the parts. Raises UserError if they differ."""
    for whole, parts in (*_PARTS.items(), ("map.qkv", ("map.q", "map.kv"))):
        for leaf in ("weight", "bias"):
            names = [f"{part}.{leaf}" for part in parts]
            if not all(name in group for name in names):
                continue
            if len({group[name].shape[:-1] for name in names}) > 1:
                raise _misshapen(source, names[0], group[names[0]].shape)
            group[f"{whole}.{leaf}"] = np.concatenate([group.pop(name) for name in names], axis=-1)


def _wanted(outer: Arrays) -> list[str]:
    """The tensors outside blocks that a Vision Transformer must have, as the others show."""
    wanted = ["patch.weight", "position", *both("fc_norm" if "fc_norm.weight" in outer else "norm")]
    if any(name.startswith("prenorm") for name in outer):
        # This is a CLIP model. Its patches have no bias.
        wanted += both("prenorm")
    else:
        wanted.append("patch.bias")
    if any(name.startswith("map.") for name in outer):
        wanted += ["map.probe", *both(*_MAP)]
    if (
        "position" in outer
        and "cls" not in outer
        and round(len(outer["position"]) ** 0.5) ** 2 != len(outer["position"])
    ):
        wanted.append("cls")
    return wanted


def _lacking(outer: Arrays, blocks: list[Arrays], wanted: list[str]) -> Iterator[str]:
    """The tensors that are missing, for messages."""
    yield from (f"'{name}'" for name in wanted if name not in outer)
    scales = sorted({name for block in blocks for name in block if name in ("scale1", "scale2")})
    for number, block in enumerate(blocks or [{}]):
        yield from (f"'{name}' in block {number}" for name in [*both(*_BLOCK), *scales] if name not in block)


def both(*modules: str) -> list[str]:
    """The names of the weight and the bias of each module."""
    return [f"{module}.{leaf}" for module in modules for leaf in ("weight", "bias")]


def _check_shapes(outer: Arrays, blocks: list[Arrays], source: str) -> None:
    """Raise UserError if two tensors do not fit together."""
    patch = outer["patch.weight"]
    width = patch.shape[-1]
    if patch.ndim != 4 or patch.shape[0] != patch.shape[1] or patch.shape[2] != 3:
        raise UserError(
            f"The patches of '{source}' have the shape {patch.shape}, not (size, size, 3 colours, width).",
            "Use another checkpoint: dpfc runs Vision Transformers on square patches of colour pictures.",
            code="unsupported",
        )
    check_blocks(blocks, width, source)
    side = int(len(outer["position"]) ** 0.5)
    ahead = sum(len(outer[name]) for name in ("cls", "dist") if name in outer)
    if len(outer["position"]) - side * side not in (0, ahead, ahead + len(outer.get("registers", ()))):
        raise _misshapen(source, "position", outer["position"].shape)
    pool = len(outer["map.fc2.weight"]) if "map.probe" in outer else 0
    around = {f"map.{name}": shape for name, shape in _shapes(width, pool, pool).items()}
    around |= {name: (len(outer[name]), width) for name in TOKENS if name in outer} | {"patch.weight": patch.shape}
    for name, array in outer.items():
        check_shape(source, name, array, around.get(name, (width,)))


def check_blocks(blocks: list[Arrays], width: int, source: str) -> None:
    """Raise UserError if two tensors of blocks do not fit together."""
    hidden, half = blocks[0]["fc1.weight"].shape[-1], len(blocks[0]["fc2.weight"])
    if hidden not in (half, 2 * half):
        raise incomplete(source, f"has an MLP with layers that do not fit together: {hidden} and {half} units")
    inner = _shapes(width, hidden, half)
    for group in blocks:
        for name, array in group.items():
            check_shape(source, name, array, inner.get(name, (width,)))


def _shapes(width: int, first: int, second: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a block's tensors, except those that are vectors of `width`."""
    return {
        "qkv.weight": (width, 3 * width),
        "qkv.bias": (3 * width,),
        "out.weight": (width, width),
        "fc1.weight": (width, first),
        "fc1.bias": (first,),
        "fc2.weight": (second, width),
    }


def _misshapen(source: str, name: str, shape: tuple[int, ...]) -> UserError:
    return incomplete(source, f"has the tensor '{name}' with the shape {shape}, which makes no sense there")


def classifier(name: str, options: Options, progress: Progress | None) -> Classifier:
    """Read the classifier of a model of the table. See `dpfc_cli.backbones.classifier`."""
    model = MODELS[name]
    where, pin = place(model, options.weights)
    if model.text is not None and where == f"hf:{model.home}":
        raise UserError(
            f"The model {name} has no classifier: it was trained on captions.",
            f"Make the vectors of the names of the classes: {parameter('source')} text.",
            code="missing",
            parameter="model",
        )
    located, digest = find(where, pin, progress, options.expected)
    rows, pool = _rows(located.files, located.id, options.pool)
    check_width(model, rows.shape[1] // (2 if pool == "cls+mean" else 1), located.id)
    return Classifier(rows=rows, labels=_labels(located.config, len(rows)), pool=pool, id=located.id, sha256=digest)


def _rows(files: tuple[Path, ...], source: str, pool: str | None) -> tuple[np.ndarray, str]:
    """The weights of a checkpoint's own classifier, a row for each class over the feature, and the pooling.

    Its bias is not read: class vectors have none. The classifier of a DINOv2 takes the class token and the mean of the
    patches' tokens, one behind the other. Of its rows this is the part that belongs to the pooling. pool: None is the
    one that the checkpoint was trained with.
    """
    with ExitStack() as stack:
        readers = tensors(files, stack)
        dialect, prefix = recognise(readers, source)
        where = places(dialect, prefix, readers, source)
        outer = {place.name: name for name, place in where.items() if place.block == OUTER}
        norm = next((outer[name] for name in ("fc_norm.weight", "norm.weight") if name in outer), None)
        found = next((name for name in classifiers(dialect, prefix) if name in readers), None)
        if found is None or norm is None:
            raise UserError(
                f"'{source}' has no classifier of its own.",
                "Use a checkpoint that was trained as a classifier and still has its last layer.",
                code="missing",
            )
        between = next((name for name in readers if "pre_logits" in name), None)
        if between is not None:
            raise UserError(
                f"'{source}' has a layer between the feature and its classifier ('{between}').",
                "Use another checkpoint: rows over that layer say nothing about the feature.",
                code="unsupported",
            )
        raw, width = readers[found](), readers[norm]().size
    rows = (raw.T if dialect.layout == "flax" else raw).astype(np.float64)
    double = prefix.startswith("dinov2")
    check_shape(source, found, rows, (len(rows) if rows.ndim else 0, width * (1 + double)))
    trained = pool_of(outer)
    if pool not in (None, trained) and not (double and pool in ("mean", "cls+mean")):
        raise UserError(
            f"The classifier of '{source}' was trained on the pooling '{trained}', the features have '{pool}'.",
            f"Extract features with {parameter('pool')} {trained}.",
            code="conflict",
        )
    pool = pool or trained
    if double and pool != "cls+mean":
        rows = np.split(rows, 2, axis=1)[pool == "mean"]
    if not np.isfinite(rows).all() or not rows.any():
        raise UserError(
            f"The classifier of '{source}' is empty: its weights ('{found}') are zeros, or no numbers.",
            "Use another checkpoint.",
            code="damaged",
        )
    return rows, pool


def _labels(config: Mapping[str, Any], count: int) -> tuple[str, ...] | None:
    """The names of the classifier's classes, as a config.json by transformers states them; None if it does not."""
    named = config.get("id2label")
    if not isinstance(named, dict) or len(named) != count:
        return None
    return tuple(str(named.get(str(row), "")) for row in range(count))
