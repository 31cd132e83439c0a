"""ONNX: the head as a graph, alone or behind its backbone.

The head computes in float64 inside, because its clipping norms may be tiny. It is `Head.scores`, as JAX traces it.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpfc_cli.backbones import Backbone
from dpfc_cli.errors import check_installed, unsupported
from dpfc_cli.extensions.exports.graph import OPSET, Graph, Values
from dpfc_cli.extensions.exports.request import Exporting, Files, Format
from dpfc_cli.heads.backbone import Recipe, recipe_of
from dpfc_cli.heads.head import Head
from dpfc_cli.privacy.chain import run
from dpfc_cli.progress import Progress

_LARGEST = 4096
"""The longest side of a picture whose graph is made."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """A backbone that is to be exported: it takes pictures that were resized and cropped already. input: (H, W, C) of a
    picture. said: how a picture must have been prepared before, in words.
    """

    backbone: Backbone
    input: tuple[int, int, int]
    said: str


def rebuilt(head: Head, progress: Progress | None = None) -> Network:
    """Make the backbone of a head again, as `heads.backbone` does. A graph computes in float32 in any case."""
    recipe = recipe_of(head, "with_backbone", "Export the head alone.")
    if max(recipe.image_shape) > _LARGEST:
        raise unsupported(
            f"The pictures of this head have sides of up to {max(recipe.image_shape)} pixels, too many for a graph.",
            recipe.instead,
            parameter=recipe.about,
        )
    backbone = recipe.load(None, progress=progress, precision="float32")
    return Network(backbone=backbone, input=recipe.image_shape, said=_said(recipe))


def _said(recipe: Recipe) -> str:
    """How pictures must be prepared."""
    chosen, words = recipe.preparation, []
    if chosen.window is not None:
        low, high = chosen.window
        words.append(f"grey values from {low:g} to {high:g} as 0 to 255")
    if chosen.exif:
        words.append("turned as their EXIF orientation says")
    if (sized := chosen.geometry) is None:
        words.append("at their own size")
    else:
        size = (
            f"{sized.resize} pixels on the shorter side"
            if isinstance(sized.resize, int)
            else f"{sized.resize[0]} × {sized.resize[1]} pixels"
        )
        words.append(f"resized to {size} ({sized.filter}, antialiased), then the central {sized.crop} × {sized.crop}")
    normalises = isinstance(recipe.backbone.get("preprocessing"), dict)
    return (
        f"{', '.join(words)}; {'the normalisation of colours' if normalises else 'the division by 255'} is in the graph"
    )


def files(wanted: Exporting, notes: dict[str, str]) -> Files:
    check_installed("onnx", "export", "To write onnx")
    network = rebuilt(wanted.head, wanted.progress) if wanted.with_backbone else None
    return model(wanted.head, notes, network, Path(wanted.out).name)


def model(head: Head, notes: dict[str, str], network: Network | None, name: str) -> Files:
    """The file of a head, and one for its large constants. Inputs and outputs are said in the metadata."""
    import jax
    import jax.numpy as jnp

    from dpfc_cli.extensions.exports.traced import nodes

    graph = Graph()
    d, m = head.weight.shape
    taken, results = Values(), Values()
    entry = features = "features"
    if network is None:
        taken[entry] = (np.float32, ("n", d))
        said = f"float32, n × {d}: feature vectors from the backbone that the card names"
    else:
        entry = "pixels"
        taken[entry] = (np.uint8, ("n", *network.input))
        features = nodes(graph, entry, np.zeros(network.input, np.uint8), network.backbone.traced)
        graph.name(features, "features")
        results["features"] = (np.float32, ("n", d))
        said = f"uint8, n × {' × '.join(map(str, network.input))}: pictures, rows from above, {network.said}"
    # Without it JAX would trace float32.
    with jax.enable_x64(True):
        scores = nodes(
            graph, features, np.zeros(d, np.float32), lambda x: run(head.chain, x, jnp) @ head.weight + head.bias
        )
    likely = graph("Sigmoid", scores) if head.several_labels else graph("Softmax", scores, axis=-1)
    for each, value in (("scores", scores), ("probabilities", likely)):
        graph.name(graph("Cast", value, to=1), each)
        results[each] = (np.float32, ("n", m))
    notes |= {
        "classes": json.dumps(list(head.classes)),
        "input": f"{entry}: {said}",
        "outputs": "; ".join(f"{each}: float32, n × {shape[1]}" for each, (_, shape) in results.items()),
        "opset": str(OPSET),
    }
    return graph.files(taken, results, notes, name)


ONNX = Format(ending=".onnx", files=files, backbone=True)
