"""Text towers: from names of classes to vectors in the space of a backbone's features. This module imports no JAX.

CLIP (Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision") and SigLIP (Zhai et
al. 2023, "Sigmoid Loss for Language Image Pre-Training") were trained on pictures with their captions. A vision tower
and a text tower map both to one joint space, where a picture and its caption have a large inner product. So the text
vector of a class's name is a linear classifier for that class that no picture of it was needed for. Names of classes
are public facts, and so are these vectors.

`tokenizer` turns a text into numbers, and `tower` reads the tower from the file of the vision tower and runs it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpfc_cli.backbones.family import Wanted
from dpfc_cli.backbones.vision_transformer.models import MODELS
from dpfc_cli.errors import UserError, conflict, counted, parameter, unsupported

if TYPE_CHECKING:
    import numpy as np

PROMPTS = ("a photo of a {}.", "a photo of a big {}.", "a photo of a small {}.")
"""The prompts unless the user names others: those that Radford et al. 2021, section 3.1.4, name for pictures of any
kind. One alone is better than the bare name, and the mean of several is better than one. Prompts that know more of the
pictures ("a satellite photo of a {}.") are better still, but only the user can know them.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class TextVectors:
    """A vector for each class, made from its name.

    Attributes:
        vectors: float32 (classes, d). The inner product with a feature vector is the score of the class, up to a factor
            that is the same for all classes of a record.
        origin: what made the vectors, JSON-able: model, weights (as the manifest of features says it), tokenizer,
            pooling and prompts.
        notes: what the user should know, one sentence each.

    """

    vectors: "np.ndarray"
    origin: dict[str, Any]
    notes: tuple[str, ...]


def has_text(name: str) -> bool:
    """Whether the model `name` has a text tower beside its vision tower."""
    return name in MODELS and MODELS[name].text is not None


def class_vectors(wanted: Wanted, names: Sequence[str], prompts: Sequence[str] = PROMPTS) -> TextVectors:
    """The vectors of class names in the space of the features of a backbone: float32, (classes, d).

    Each name is put into each prompt. The text vectors of a class get length 1, their mean gets length 1, and it is
    mapped back to the space of the features (`tower.Tower`).

    wanted: a model with a text tower (`has_text`), and the pooling of the features. The tokenizer lies beside the
    weights. names: of the classes. An underscore is read as a space. prompts: texts with `{}` where the name is put.
    UserError: the model has no text tower, a file cannot be fetched or used, or a name or a prompt makes no sense.
    """
    name, model = wanted.name, MODELS.get(wanted.name)
    if model is None or model.text is None:
        known = [each for each in MODELS if has_text(each)]
        raise unsupported(
            f"The model {name} has no text tower.",
            f"Use a {parameter('model')} that was trained on pictures with captions: {', '.join(known)}.",
        )
    if wanted.pool not in (None, model.pool):
        raise conflict(
            f"Texts and pictures are compared by the feature '{model.pool}' of {name}. The feature '{wanted.pool}' "
            "does not lie in their joint space.",
            f"Use features with {parameter('pool')} '{model.pool}'.",
        )
    texts = texts_of(names, prompts)

    from dpfc_cli.extensions.starts.text import tokenizer, tower

    # The tokenizer is small. If it is missing, nothing large was fetched.
    tokens = tokenizer.load(model, wanted.progress)
    loaded = tower.load(wanted)
    encoded = tokens(texts, loaded.context, loaded.source, loaded.vocabulary)
    vectors = loaded.class_vectors(encoded, len(names), wanted.progress)
    cut = dict.fromkeys(names[i // len(prompts)] for i in encoded.cut)
    notes = []
    if cut:
        shown = ", ".join(f"'{each}'" for each in list(cut)[:3]) + (" and others" if len(cut) > 3 else "")
        notes.append(
            f"{counted(len(encoded.cut), 'text')} of {counted(len(cut), 'class')} ({shown}) had more than the "
            f"{loaded.context} tokens that {name} reads. Only the beginning was used."
        )
    return TextVectors(
        vectors=vectors,
        origin={
            "model": name,
            "weights": loaded.description,
            "tokenizer": tokens.description,
            "pooling": model.pool,
            "prompts": list(prompts),
        },
        notes=tuple(notes),
    )


def texts_of(names: Sequence[str], prompts: Sequence[str]) -> list[str]:
    """Each name in each prompt: all texts of the first class, then those of the second one, and so on. UserError: there
    is no prompt, one has no place for the name, or a name has no letter, digit or sign.
    """
    for prompt in prompts or [""]:
        if "{}" not in prompt:
            raise UserError(
                f"The prompt '{prompt}' of {parameter('prompts')} has no {{}}.",
                "Write {} where the name of the class belongs, such as in 'a photo of a {}.'.",
            )
    spoken = [" ".join(name.replace("_", " ").split()) for name in names]
    for name, words in zip(names, spoken, strict=True):
        # Names of files may have halves of characters.
        if not words or words.encode(errors="ignore").decode() != words:
            raise UserError(
                f"The class '{name}' has no name that can be read.",
                f"Give the class a name in words: {parameter('classes')}.",
            )
    return [prompt.replace("{}", words) for words in spoken for prompt in prompts]
