"""ONNX: the head as a graph, alone or behind its backbone.

The head computes in float64 inside, as `Head.scores` does, because its clipping norms may be tiny.
"""

import json

import numpy as np

from dpfc_cli.errors import UserError
from dpfc_cli.exports.graph import OPSET, Graph, Values
from dpfc_cli.exports.network import Network
from dpfc_cli.exports.target import Files, Target
from dpfc_cli.heads.head import Head
from dpfc_cli.privacy.chain import NORM_BITS, Centre, Clip

_FLOAT, _DOUBLE = 1, 11
_LEAST = 1e-290
"""The largest coordinate of a row of zeros counts as this, so that nothing is divided by zero."""


def files(head: Head, notes: dict[str, str], network: Network | None, name: str) -> Files:
    """The model. Inputs and outputs are said in its metadata."""
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
        features = _features(graph, entry, network)
        graph.name(features, "features")
        results["features"] = (np.float32, ("n", d))
        said = f"uint8, n × {' × '.join(map(str, network.input))}: pictures, rows from above, {network.said}"
    scores = scored(graph, features, head)
    likely = graph("Sigmoid", scores) if head.several_labels else graph("Softmax", scores, axis=-1)
    for each, value in (("scores", scores), ("probabilities", likely)):
        graph.name(graph("Cast", value, to=_FLOAT), each)
        results[each] = (np.float32, ("n", m))
    notes |= {
        "classes": json.dumps(list(head.classes)),
        "input": f"{entry}: {said}",
        "outputs": "; ".join(f"{each}: float32, n × {shape[1]}" for each, (_, shape) in results.items()),
        "opset": str(OPSET),
    }
    return graph.files(taken, results, notes, name)


def scored(graph: Graph, features: str, head: Head) -> str:
    """The scores of feature vectors, float64, as `Head.scores` computes them."""
    z = graph("Cast", features, to=_DOUBLE)
    for step in head.chain:
        if isinstance(step, Clip):
            z = graph("Div", z, np.float64(step.norm))
            z = graph("Div", z, graph("Max", _norms(graph, z), np.float64(1)))
        elif isinstance(step, Centre):
            z = graph("Sub", z, step.mean)
        else:
            matrix = step.matrix.astype(np.float32).astype(np.float64)
            z = graph("MatMul", graph("Cast", graph("Cast", z, to=_FLOAT), to=_DOUBLE), matrix)
    return str(graph("Add", graph("MatMul", z, head.weight.astype(np.float64)), head.bias.astype(np.float64)))


def _norms(graph: Graph, z: str) -> str:
    """`privacy.chain.norms`, with the same rounding."""
    largest = graph("ReduceMax", graph("Abs", z), axes=[1], keepdims=1)
    step = graph("Mul", graph("Max", largest, np.float64(_LEAST)), np.float64(2.0**-NORM_BITS))
    grid = graph("Round", graph("Div", z, step))
    total = graph("ReduceSum", graph("Mul", grid, grid), np.array([1]), keepdims=1)
    return str(graph("Mul", step, graph("Sqrt", total)))


def _features(graph: Graph, pixels: str, network: Network) -> str:
    from dpfc_cli.backbones.convnext.network import Network as ConvNeXt
    from dpfc_cli.backbones.scattering.transform import Scattering
    from dpfc_cli.backbones.vision_transformer.transformer import Transformer
    from dpfc_cli.exports import onnx_convnext, onnx_scattering, onnx_vit

    if isinstance(network.backbone, Scattering):
        return onnx_scattering.features(graph, pixels, network.input, network.backbone.describe()["pooling"])
    if isinstance(network.backbone, Transformer):
        return onnx_vit.features(graph, pixels, network.backbone)
    if isinstance(network.backbone, ConvNeXt):
        return onnx_convnext.features(graph, pixels, network.backbone)
    raise UserError(
        f"dpfc cannot write the backbone {network.backbone.name} as ONNX.",
        "Export the head alone, and compute the features with dpfc.",
        code="unsupported",
        model=network.backbone.name,
    )


TARGET = Target(name="onnx", suffix=".onnx", files=files, package=("onnx", "export"), backbones=True)
