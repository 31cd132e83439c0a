"""Checkpoints of ConvNeXt: from the names of timm and of transformers to those of `network`.

Each tensor of a file must be in the table, or be a part of its classifier. Each tensor that the network needs must be
in the file. Otherwise there is an error that names the tensor.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfc_cli.backbones.tensors import check_shape, tensors
from dpfc_cli.errors import UserError

Arrays = dict[str, np.ndarray]
KERNEL = 7
"""The side of the convolution of each channel, in places."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The naming of one library.

    Attributes:
        name: what messages and manifests call it.
        prefixes: what its names may begin with.
        mark: a name that identifies it.
        places: regular expressions for modules, and what `network` calls them.
        ignored: what the names of tensors that are not used begin with.

    """

    name: str
    prefixes: tuple[str, ...]
    mark: str
    places: dict[str, str]
    ignored: tuple[str, ...]


TIMM = Dialect(
    name="timm",
    prefixes=("", "module.", "model."),
    mark="stem.0.weight",
    places={
        r"stem\.0": "stem",
        r"stem\.1": "stem_norm",
        r"stages\.(\d+)\.downsample\.0": "{}.down_norm",
        r"stages\.(\d+)\.downsample\.1": "{}.down",
        r"stages\.(\d+)\.blocks\.(\d+)\.conv_dw": "{}.{}.depthwise",
        r"stages\.(\d+)\.blocks\.(\d+)\.norm": "{}.{}.norm",
        r"stages\.(\d+)\.blocks\.(\d+)\.mlp\.fc1": "{}.{}.fc1",
        r"stages\.(\d+)\.blocks\.(\d+)\.mlp\.fc2": "{}.{}.fc2",
        r"stages\.(\d+)\.blocks\.(\d+)\.gamma": "{}.{}.scale",
        r"head\.norm": "norm",
    },
    ignored=("head.fc.",),
)
TRANSFORMERS = Dialect(
    name="transformers",
    prefixes=("", "convnext."),
    mark="embeddings.patch_embeddings.weight",
    places={
        r"embeddings\.patch_embeddings": "stem",
        r"embeddings\.layernorm": "stem_norm",
        r"encoder\.stages\.(\d+)\.downsampling_layer\.0": "{}.down_norm",
        r"encoder\.stages\.(\d+)\.downsampling_layer\.1": "{}.down",
        r"encoder\.stages\.(\d+)\.layers\.(\d+)\.dwconv": "{}.{}.depthwise",
        r"encoder\.stages\.(\d+)\.layers\.(\d+)\.layernorm": "{}.{}.norm",
        r"encoder\.stages\.(\d+)\.layers\.(\d+)\.pwconv1": "{}.{}.fc1",
        r"encoder\.stages\.(\d+)\.layers\.(\d+)\.pwconv2": "{}.{}.fc2",
        r"encoder\.stages\.(\d+)\.layers\.(\d+)\.layer_scale_parameter": "{}.{}.scale",
        r"layernorm": "norm",
    },
    ignored=("classifier.",),
)
DIALECTS = (TIMM, TRANSFORMERS)


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The content of a checkpoint. dialect: the name of its dialect. outer: the tensors outside blocks. blocks: the
    tensors of each block, for each stage.
    """

    dialect: str
    outer: Arrays
    blocks: list[list[Arrays]]


def read(
    files: tuple[Path, ...], source: str, depths: tuple[int, ...], widths: tuple[int, ...], dtype: np.dtype[Any]
) -> Parameters:
    """Read a checkpoint.

    Args:
        files: the files that hold it.
        source: what messages call it.
        depths: the blocks of each stage.
        widths: the channels of each stage.
        dtype: of the factors of matrix products. All other tensors are float32.

    Raises:
        UserError: a tensor is unknown, missing, of the wrong shape or damaged.

    """
    wanted = dict(_shapes(depths, widths))
    with ExitStack() as stack:
        readers = tensors(files, stack)
        dialect, prefix = _recognised(readers, source)
        found: Arrays = {}
        names: dict[str, str] = {}
        for name, place in _placed(dialect, prefix, readers, source):
            if place not in wanted:
                raise _foreign(source, name, dialect)
            if place in found:
                raise _damaged(source, name, f"holds the tensor '{name}' twice, the other time as '{names[place]}'")
            found[place], names[place] = _laid(place, readers[name](), source, name, wanted[place], dtype), name
    # Weights without LayerScale were trained without it.
    lacking = [place for place in wanted if place not in found and not place.endswith(".scale")]
    if lacking:
        raise _damaged(source, lacking[0], f"lacks the tensor '{lacking[0]}', in the names of dpfc")
    blocks = [
        [{place.split(".", 2)[2]: array for place, array in found.items() if place.startswith(f"{i}.{j}.")}
         for j in range(depth)]
        for i, depth in enumerate(depths)
    ]  # fmt: skip
    outer = {place: array for place, array in found.items() if not re.match(r"\d+\.\d+\.", place)}
    return Parameters(dialect=dialect.name, outer=outer, blocks=blocks)


def _shapes(depths: tuple[int, ...], widths: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors of the network and their shapes: matrices (in, out), convolutions (side, side, in, out)."""

    def both(name: str, *shape: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{name}.weight", shape
        yield f"{name}.bias", shape[-1:]

    yield from both("stem", 4, 4, 3, widths[0])
    yield from both("stem_norm", widths[0])
    for i, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        if i:
            yield from both(f"{i}.down_norm", widths[i - 1])
            yield from both(f"{i}.down", 2, 2, widths[i - 1], width)
        for j in range(depth):
            block = f"{i}.{j}"
            yield from both(f"{block}.depthwise", KERNEL, KERNEL, width)
            yield from both(f"{block}.norm", width)
            yield from both(f"{block}.fc1", width, 4 * width)
            yield from both(f"{block}.fc2", 4 * width, width)
            yield f"{block}.scale", (width,)
    yield from both("norm", widths[-1])


def _recognised(names: Iterable[str], source: str) -> tuple[Dialect, str]:
    known = set(names)
    for dialect in DIALECTS:
        for prefix in dialect.prefixes:
            if prefix + dialect.mark in known:
                return dialect, prefix
    raise UserError(
        f"'{source}' is not a ConvNeXt that dpfc can read: its tensors have other names "
        f"({', '.join(sorted(known)[:4]) or 'none'}, …).",
        f"Use a checkpoint with the names of {' or '.join(d.name for d in DIALECTS)}.",
        code="unsupported",
        source=source,
        known=[d.name for d in DIALECTS],
    )


def _placed(dialect: Dialect, prefix: str, names: Iterable[str], source: str) -> Iterator[tuple[str, str]]:
    """Each tensor that is used, and its place."""
    for name in names:
        inner = name.removeprefix(prefix)
        if inner.startswith(dialect.ignored) or name.startswith(dialect.ignored):
            continue
        module, _, leaf = inner.rpartition(".")
        for pattern, place in dialect.places.items():
            own = re.fullmatch(pattern, inner) if place.endswith(".scale") else re.fullmatch(pattern, module)
            if own is not None and (place.endswith(".scale") or leaf in ("weight", "bias")):
                yield name, place.format(*map(_plain, own.groups())) + ("" if place.endswith(".scale") else f".{leaf}")
                break
        else:
            raise _foreign(source, name, dialect)


def _plain(number: str) -> str:
    """A number without zeros before it. One of many digits is left as it is: it is no number of a block."""
    return str(int(number)) if len(number) < 6 else number


def _laid(
    place: str, array: np.ndarray, source: str, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> np.ndarray:
    """The tensor in the layout of `network`."""
    if place.endswith("depthwise.weight") and array.ndim == 4:
        array = array[:, 0].transpose(1, 2, 0) if array.shape[1] == 1 else array
    elif place.endswith(("stem.weight", "down.weight")) and array.ndim == 4:
        array = array.transpose(2, 3, 1, 0)
    elif place.endswith(("fc1.weight", "fc2.weight")):
        # timm's smallest models have convolutions of one place instead of matrices.
        array = (array[..., 0, 0] if array.shape[2:] == (1, 1) else array).T
    check_shape(source, name, array, shape)
    product = len(shape) > 1 and "depthwise" not in place
    return np.ascontiguousarray(array, dtype=dtype if product else np.float32)


def _foreign(source: str, name: str, dialect: Dialect) -> UserError:
    return UserError(
        f"'{source}' holds a tensor that a {dialect.name} checkpoint of this ConvNeXt does not have: '{name}'.",
        "Choose the model that the weights belong to. dpfc does not run ConvNeXt V2, or another architecture.",
        code="unsupported",
        source=source,
        tensor=name,
    )


def _damaged(source: str, name: str, what: str) -> UserError:
    return UserError(
        f"'{source}' {what}.", "Get a complete checkpoint of this model.", code="damaged", source=source, tensor=name
    )
