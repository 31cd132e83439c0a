"""The text towers of CLIP and SigLIP, as one function of parameters and numbers of tokens.

Their blocks are those of the Vision Transformer (`vit.transform`). In CLIP a token sees only those before it, and the
text is the end token, after the final normalisation and a projection. What is behind the end token has no influence, so
texts are padded to the longest one only. In SigLIP all tokens see one another, the padding too, and the text is the
last token of a fixed number: the padding belongs to the model.

**The space of the vectors.** In CLIP the joint vector of a picture is P f, with the feature f and P without a bias; the
joint vector of a text is t. Their inner product is ⟨t, P f⟩ = ⟨Pᵀt, f⟩, so the class's vector over the features is Pᵀt.
In SigLIP the feature is the joint vector of the picture, and the class's vector is t. The joint scores of a record are
its inner products divided by ‖P f‖, which is the same for all classes.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpfc_cli.backbones import hub
from dpfc_cli.backbones.batched import Group, norm, product
from dpfc_cli.backbones.family import Progress
from dpfc_cli.backbones.hub import Located, check_width, find
from dpfc_cli.backbones.tensors import check_shape, tensors
from dpfc_cli.backbones.text.tokenizer import Encoded
from dpfc_cli.backbones.vision_transformer import transformer, vit
from dpfc_cli.backbones.vision_transformer.checkpoint import Parameters, both, check_blocks, gathered
from dpfc_cli.backbones.vision_transformer.dialects import OPENAI, TRANSFORMERS, Dialect
from dpfc_cli.backbones.vision_transformer.models import Model
from dpfc_cli.errors import UserError

_HEAD = 64
"""Dimensions of a head in all text towers that OpenAI and OpenCLIP trained."""
_STEP = 8
"""CLIP's texts are padded to a multiple of this number of tokens, so that few programs are compiled."""


def load(
    model: Model,
    weights: str,
    pin: hub.Pin | None = None,
    progress: Progress | None = None,
    expected: str | None = None,
) -> "Tower":
    """Load the text tower of a model, and fetch its weights if they are not on this machine.

    Args:
        model: its row of the table.
        weights: a file, a folder or `hf:owner/name[/file]`.
        pin: the version of the weights. None: the newest.
        progress: it is told how many bytes of a file were downloaded.
        expected: the digest that the weights must have; None: any.

    Raises:
        UserError: the weights cannot be fetched or read, are others than expected, or have no text tower.

    """
    located, digest = find(weights, pin, progress, expected)
    parameters = read(located, model)
    description = {"id": located.id, "sha256": digest, "dialect": parameters.dialect}
    return Tower(parameters, architecture(model, parameters, located), description)


def architecture(model: Model, parameters: Parameters, located: hub.Located) -> vit.Architecture:
    """What the shapes of a text tower do not show: from config.json first, then from the table.

    Raises:
        UserError: config.json has values that cannot be used.

    """
    inner = located.config.get("text_config")
    config = inner if isinstance(inner, dict) and inner else located.config
    width = parameters.outer["tokens"].shape[1]
    # SigLIP's two towers have the same number of heads. Outside `text_config` a number of heads is the vision tower's.
    usual = max(1, width // _HEAD) if model.text == "clip" else model.heads
    heads, epsilon, activation = transformer.unseen(
        model,
        located,
        width=width,
        heads=config.get("num_attention_heads", usual) if config is inner else usual,
        epsilon=config.get("layer_norm_eps", model.epsilon),
        stated=config.get("hidden_act"),
    )
    clip = model.text == "clip"
    return vit.Architecture(
        heads=heads, epsilon=epsilon, activation=activation, pool="end" if clip else "last", causal=clip
    )


class Tower:
    """A text tower of one checkpoint.

    Args:
        parameters: the content of the checkpoint.
        architecture: what their shapes do not show.
        description: what the origin of vectors says about the weights.

    """

    def __init__(self, parameters: Parameters, architecture: vit.Architecture, description: dict[str, Any]) -> None:
        outer = dict(parameters.outer)
        # The table of tokens is large, and few of its rows are needed: it stays on the host.
        self._tokens, self._visual = outer.pop("tokens"), outer.pop("visual", None)
        self._position = outer.pop("position")
        self._architecture, self._blocks = architecture, parameters.blocks
        self._outer, self._placed = jax.device_put(outer), jax.device_put(parameters.blocks)
        self.description = description
        self.source: str = description["id"]
        self.context, self.vocabulary = len(self._position), len(self._tokens)

    def parts(self, encoded: Encoded, progress: Progress | None = None) -> Iterator[np.ndarray]:
        """The joint vectors of texts, some at a time.

        Args:
            encoded: the texts in tokens of this tower.
            progress: it is told how many texts are done.

        Yields:
            float32 (some texts, joint), in the order of the texts.

        """
        a, count = self._architecture, self.context
        if a.causal:
            count = min(count, -(-(int(encoded.ends.max()) + 1) // _STEP) * _STEP)
        ids, ends = encoded.ids[:, :count], encoded.ends if a.causal else np.full(len(encoded.ids), count - 1)
        most = min(transformer.rows(count, self._blocks[0], a.heads), len(ids))
        for start in range(0, len(ids), most):
            part = np.arange(start, start + most) % len(ids)
            x = self._tokens[ids[part]] + self._position[:count]
            yield np.asarray(_joint(self._outer, self._placed, x, ends[part], a))[: len(ids) - start]
            if progress is not None:
                progress("texts", min(start + most, len(ids)), len(ids))

    def class_vectors(self, encoded: Encoded, classes: int, progress: Progress | None = None) -> np.ndarray:
        """The vectors of classes over the features.

        Args:
            encoded: the texts of the classes, equally many for each, one class after the other.
            classes: how many.
            progress: it is told how many texts are done.

        Returns:
            float32 (classes, d).

        Raises:
            UserError: the weights give no numbers.

        """
        total, done = np.zeros((classes, self._outer["projection"].shape[1])), 0
        with np.errstate(all="ignore"):
            for part in self.parts(encoded, progress):
                owners = np.arange(done, done + len(part)) * classes // len(encoded.ids)
                np.add.at(total, owners, _unit(part.astype(np.float64)))
                done += len(part)
            mean = _unit(total)
            vectors: np.ndarray = mean if self._visual is None else mean @ self._visual.T.astype(np.float64)
            lengths = np.linalg.norm(vectors, axis=1)
        if not (np.isfinite(lengths) & (lengths > 0)).all():
            raise UserError(
                f"The text tower of '{self.source}' gives vectors that are zero, NaN or infinite.",
                "Get the weights again.",
                code="damaged",
                parameter="weights",
                source=self.source,
            )
        return vectors.astype(np.float32)


@partial(jax.jit, static_argnames="a")
def _joint(outer: Group, blocks: list[Group], x: jax.Array, ends: jax.Array, a: vit.Architecture) -> jax.Array:
    """From embedded tokens (B, N, width) and the position of the token that is the text, (B,), to (B, joint)."""
    for block in blocks:
        x = vit.transform(block, x, a)
    text = norm(jnp.take_along_axis(x, ends[:, None, None], 1)[:, 0], outer, "norm", a.epsilon)
    return product(text, outer["projection"]) + outer.get("projection.bias", 0)


def _unit(vectors: np.ndarray) -> np.ndarray:
    unit: np.ndarray = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return unit


# Checkpoints

# The tables are those of the vision towers (`dialects`) with other names outside the blocks:
#
#    tokens       (vocabulary, width): a vector for each token
#    position     (context, width)
#    norm         the normalisation after the blocks
#    projection   (width, joint): to the joint space; SigLIP's has a bias
#    visual       (width of the vision tower, joint): CLIP's projection of the features to the joint space
#
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
    """Read the text tower of a model of the table. Raises UserError if there is none, or a tensor of it is unknown,
    missing, of the wrong shape or damaged.
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
