"""The text tower in a checkpoint: its tensors under the names of `tower`, and no others are read.

The tables are those of the vision towers (`dialects`) with other names outside the blocks:

    tokens       (vocabulary, width): a vector for each token
    position     (context, width)
    norm         the normalisation after the blocks
    projection   (width, joint): to the joint space; SigLIP's has a bias
    visual       (width of the vision tower, joint): CLIP's projection of the features to the joint space
"""

from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from dpfc_cli.backbones.hub import Located
from dpfc_cli.backbones.tensors import check_shape, tensors
from dpfc_cli.backbones.vision_transformer.checkpoint import Parameters, both, check_blocks, gathered
from dpfc_cli.backbones.vision_transformer.dialects import OPENAI, TRANSFORMERS, Dialect
from dpfc_cli.backbones.vision_transformer.models import Model
from dpfc_cli.backbones.weights import check_width
from dpfc_cli.errors import UserError

# OpenAI's own names, which OpenCLIP kept. Its projections are matrices without a bias.
_OPENAI = replace(
    OPENAI,
    prefixes=("",),
    marks=(("token_embedding.weight",), ("positional_embedding",)),
    outer={
        "token_embedding.weight": "tokens",
        "positional_embedding": "position",
        "ln_final": "norm",
        "text_projection": "projection",
        "visual.proj": "visual",
    },
    ignored=("visual.*", "logit_scale", "logit_bias", "context_length", "input_resolution", "vocab_size"),
    kind="model with a text tower",
)
_TRANSFORMERS = replace(
    TRANSFORMERS,
    prefixes=("",),
    marks=(("text_model.embeddings.token_embedding.weight",), ("text_model.embeddings.position_embedding.weight",)),
    block=r"text_model\.encoder\.layers\.(?P<number>\d+)\.(?P<rest>.+)",
    numbers=("text_model.encoder.layers.{}.",),
    outer={
        "text_model.embeddings.token_embedding.weight": "tokens",
        "text_model.embeddings.position_embedding.weight": "position",
        "text_model.final_layer_norm": "norm",
        "text_model.head": "projection",
        "text_projection": "projection",
        "visual_projection": "visual",
    },
    ignored=("vision_model.*", "logit_scale", "logit_bias", "text_model.embeddings.position_ids"),
    kind="model with a text tower",
)


def read(located: Located, model: Model) -> Parameters:
    """Read the text tower.

    Args:
        located: the files of the checkpoint.
        model: the row of the table.

    Raises:
        UserError: there is no text tower, or a tensor is unknown, missing, of the wrong shape or damaged.

    """
    source = located.id

    def wanted(outer: dict[str, np.ndarray]) -> list[str]:
        """The table says whether it is CLIP or SigLIP: their texts are prepared in different ways."""
        own = ["projection", "visual"] if dialect is _OPENAI else ["projection.weight", "visual.weight"]
        needed = ["tokens", "position", *both("norm")]
        return needed + (own if model.text == "clip" else both("projection"))

    with ExitStack() as stack:
        readers = tensors(located.files, stack)
        dialect = _dialect(set(readers), source)
        found = gathered(readers, dialect, "", source, np.dtype(np.float32), wanted)
    for name in ("projection", "visual"):
        if f"{name}.weight" in found.outer:
            found.outer[name] = found.outer.pop(f"{name}.weight")
    _check_shapes(found, model, source)
    return found


def _dialect(names: set[str], source: str) -> Dialect:
    for dialect in (_OPENAI, _TRANSFORMERS):
        if any(name in names for mark in dialect.marks for name in mark):
            return dialect
    raise UserError(
        f"'{source}' has no text tower that dpfc can read. Files of the vision tower alone are common.",
        "Use a file with both towers: open_clip_model.safetensors of OpenCLIP, or model.safetensors of transformers' "
        "CLIP and SigLIP.",
        code="unsupported",
        parameter="weights",
        source=source,
    )


def _check_shapes(found: Parameters, model: Model, source: str) -> None:
    """Raise UserError if two tensors do not fit together, or the vectors do not fit the features."""
    outer, (_, width) = found.outer, found.outer["tokens"].shape
    joint = outer["projection"].shape[-1]
    features = outer["visual"].shape[0] if "visual" in outer else joint
    check_blocks(found.blocks, width, source)
    shapes = {
        "tokens": outer["tokens"].shape,
        "position": (len(outer["position"]), width),
        "projection": (width, joint),
        "projection.bias": (joint,),
        "visual": (features, joint),
    }
    for name, array in outer.items():
        check_shape(source, name, array, shapes.get(name, (width,)))
    check_width(model, features, source)
