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

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dpfc_cli.backbones.family import Wanted
from dpfc_cli.backbones.hub import AGAIN, Local
from dpfc_cli.backbones.vision_transformer import transformer, vit
from dpfc_cli.backbones.vision_transformer.checkpoint import Parameters, Shapes, gathered, norm_shapes
from dpfc_cli.backbones.vision_transformer.models import MODELS, Model
from dpfc_cli.backbones.vision_transformer.names import OPENAI, TRANSFORMERS
from dpfc_cli.backbones.vision_transformer.vit import Group, norm, product
from dpfc_cli.errors import damaged
from dpfc_cli.extensions.starts.text.tokenizer import Encoded
from dpfc_cli.progress import Progress

_HEAD = 64
"""Dimensions of a head in all text towers that OpenAI and OpenCLIP trained."""
_STEP = 8
"""CLIP's texts are padded to a multiple of this number of tokens, so that few programs are compiled."""


def load(wanted: Wanted) -> "Tower":
    """Load the text tower of a model. UserError: its weights cannot be fetched or read, are others than expected, or
    have no text tower.
    """
    model = MODELS[wanted.name]
    local = model.file.local(wanted.progress)
    local.check_is(wanted.expected)
    return Tower(model, local)


class Tower:
    """The text tower of a model."""

    def __init__(self, model: Model, weights: Local) -> None:
        parameters, clip = read(weights, model), model.text == "clip"
        outer = dict(parameters.outer)
        # The table of tokens is large, and few of its rows are needed: it stays on the host.
        self._tokens, self._visual = outer.pop("tokens"), outer.pop("visual", None)
        self._position = outer.pop("position")
        self._architecture = vit.Architecture(
            # SigLIP's two towers have the same number of heads.
            heads=max(1, self._tokens.shape[1] // _HEAD) if clip else model.heads,
            epsilon=model.epsilon,
            activation=model.activation,
            pool="end" if clip else "last",
            causal=clip,
        )
        self._blocks = parameters.blocks
        self._outer, self._placed = jax.device_put(outer), jax.device_put(parameters.blocks)
        self.description = weights.describe()
        self.source = weights.id
        self.context, self.vocabulary = len(self._position), len(self._tokens)

    def class_vectors(self, encoded: Encoded, classes: int, progress: Progress | None = None) -> np.ndarray:
        """The vectors of classes over the features, float32 (classes, d).

        encoded: the texts of the classes, equally many for each, one class after the other. progress: told how many of
        them are done. Raises UserError if the weights give no numbers.
        """
        a, count = self._architecture, self.context
        if a.causal:
            count = min(count, -(-(int(encoded.ends.max()) + 1) // _STEP) * _STEP)
        ids, ends = encoded.ids[:, :count], encoded.ends if a.causal else np.full(len(encoded.ids), count - 1)
        most = min(transformer.rows(count, self._blocks[0], a.heads), len(ids))
        total = np.zeros((classes, self._outer["projection"].shape[1]))
        with np.errstate(all="ignore"):
            for start in range(0, len(ids), most):
                # The last part is filled up with texts from the beginning.
                part = np.arange(start, start + most) % len(ids)
                x = self._tokens[ids[part]] + self._position[:count]
                joint = np.asarray(_joint(self._outer, self._placed, x, ends[part], a))[: len(ids) - start]
                np.add.at(total, part[: len(joint)] * classes // len(ids), _unit(joint.astype(np.float64)))
                if progress is not None:
                    progress("texts", start + len(joint), len(ids))
            mean = _unit(total)
            vectors: np.ndarray = mean if self._visual is None else mean @ self._visual.T.astype(np.float64)
            lengths = np.linalg.norm(vectors, axis=1)
        if not (np.isfinite(lengths) & (lengths > 0)).all():
            raise damaged(
                f"The text tower of '{self.source}' gives vectors that are zero, NaN or infinite.",
                AGAIN,
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

# The tables are those of the vision towers (`names`) with other names outside the blocks:
#
#    tokens       (vocabulary, width): a vector for each token
#    position     (context, width)
#    norm         the normalisation after the blocks
#    projection   (width, joint): to the joint space; SigLIP's has a bias
#    visual       (width of the vision tower, joint): CLIP's projection of the features to the joint space
#
# OpenAI's own names, which OpenCLIP kept. Its projections are matrices without a bias.
_CLIP = replace(
    OPENAI,
    prefixes=("",),
    outer={
        "token_embedding.weight": "tokens",
        "positional_embedding": "position",
        "ln_final": "norm",
        "text_projection": "projection",
        "visual.proj": "visual",
    },
    ignored=("visual.*", "logit_scale", "logit_bias", "context_length", "input_resolution", "vocab_size"),
)
_SIGLIP = replace(
    TRANSFORMERS,
    prefixes=("text_model.",),
    outer={
        "embeddings.token_embedding.weight": "tokens",
        "embeddings.position_embedding.weight": "position",
        "final_layer_norm": "norm",
        "head.weight": "projection",
        "head.bias": "projection.bias",
    },
    ignored=("vision_model.*", "logit_scale", "logit_bias", "embeddings.position_ids"),
)


def read(weights: Local, model: Model) -> Parameters:
    """Read the text tower of a model. UserError: there is none, or a tensor of it is unknown, missing, of the wrong
    shape or damaged.
    """
    found = gathered(weights, _CLIP if model.text == "clip" else _SIGLIP, np.dtype(np.float32))
    tokens, projection = found.need("tokens"), found.need("projection")
    if model.text == "siglip":
        projection = found.arrays["projection"] = projection.T
    joint, width = projection.shape[-1], tokens.shape[1]
    shapes: Shapes = {
        "tokens": tokens.shape,
        "position": (len(found.need("position")), width),
        "projection": (width, joint),
    }
    shapes |= norm_shapes("norm", width)
    shapes |= {"visual": (model.width, joint)} if model.text == "clip" else {"projection.bias": (model.width,)}
    return found.parameters(shapes, width)
