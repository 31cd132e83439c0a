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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpfc_cli.backbones import hub
from dpfc_cli.backbones.checkpoint import Parameters, gathered
from dpfc_cli.backbones.family import Wanted
from dpfc_cli.backbones.hub import Located
from dpfc_cli.backbones.stated import stated
from dpfc_cli.backbones.vision_transformer import transformer, vit
from dpfc_cli.backbones.vision_transformer.checkpoint import checked
from dpfc_cli.backbones.vision_transformer.dialects import OPENAI, TRANSFORMERS
from dpfc_cli.backbones.vision_transformer.models import MODELS, Model
from dpfc_cli.backbones.vision_transformer.vit import Group, norm, product
from dpfc_cli.errors import damaged, parameter
from dpfc_cli.extensions.starts.text.tokenizer import Encoded
from dpfc_cli.progress import Progress

_HEAD = 64
"""Dimensions of a head in all text towers that OpenAI and OpenCLIP trained."""
_STEP = 8
"""CLIP's texts are padded to a multiple of this number of tokens, so that few programs are compiled."""


def load(wanted: Wanted) -> "Tower":
    """Load the text tower of a model. Raises UserError as `hub.Published.find`, and if the weights have no text
    tower.
    """
    model = MODELS[wanted.name]
    located, digest = model.find(wanted.weights, wanted.progress, wanted.expected)
    parameters = read(located, model)
    description = {"id": located.id, "sha256": digest, "dialect": parameters.dialect}
    return Tower(parameters, architecture(model, parameters, located), description)


def architecture(model: Model, parameters: Parameters, located: hub.Located) -> vit.Architecture:
    """What the shapes of a text tower do not show: as it is stated, or the table says. UserError: as `stated`."""
    width = parameters.outer["tokens"].shape[1]
    # SigLIP's two towers have the same number of heads.
    usual = max(1, width // _HEAD) if model.text == "clip" else model.heads
    facts = stated(located, model, tower="text")
    heads = facts.get("heads", usual)
    epsilon, activation = transformer.unseen(model, located, facts, width=width, heads=heads)
    clip = model.text == "clip"
    return vit.Architecture(
        heads=heads, epsilon=epsilon, activation=activation, pool="end" if clip else "last", causal=clip
    )


class Tower:
    """A text tower of one checkpoint. description: what the origin of vectors says about the weights."""

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
                f"Get the weights again, or name others: {parameter('weights')}.",
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
_DIALECTS = (
    replace(
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
    ),
    replace(
        TRANSFORMERS,
        prefixes=("",),
        block=r"text_model\.encoder\.layers\.(\d+)\.(.+)",
        outer={
            "text_model.embeddings.token_embedding.weight": "tokens",
            "text_model.embeddings.position_embedding.weight": "position",
            "text_model.final_layer_norm": "norm",
            "text_model.head": "projection",
            "text_projection": "projection",
            "visual_projection": "visual",
        },
        ignored=("vision_model.*", "logit_scale", "logit_bias", "text_model.embeddings.position_ids"),
    ),
)


def read(located: Located, model: Model) -> Parameters:
    """Read the text tower of a model of the table. Raises UserError if there is none, or a tensor of it is unknown,
    missing, of the wrong shape or damaged.
    """
    # The table says whether it is CLIP or SigLIP: their texts are prepared in different ways.
    kind = f"file with the text tower of a {'CLIP' if model.text == 'clip' else 'SigLIP'}"
    found = gathered(located.file, located.id, _DIALECTS, kind, np.dtype(np.float32))
    for name in ("projection", "visual"):
        if f"{name}.weight" in found.arrays:
            found.arrays[name] = found.arrays.pop(f"{name}.weight")
    tokens, joint = found.need("tokens"), found.need("projection").shape[-1]
    width = tokens.shape[1]
    shapes: dict[str, tuple[int, ...]] = {
        "tokens": tokens.shape,
        "position": (len(found.need("position")), width),
        "norm.weight": (width,),
        "norm.bias": (width,),
        "projection": (width, joint),
    }
    if model.text == "clip":
        features = len(found.need("visual"))
        shapes["visual"] = (features, joint)
    else:
        features = joint
        shapes["projection.bias"] = (joint,)
    parameters = checked(found, shapes, width)
    model.check_sizes(located.id, width=features)
    return parameters
