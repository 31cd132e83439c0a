"""ConvNeXt as an ONNX graph: what `backbones.convnext.network` computes, in float32.

Axes are (picture, row, column, channel), as there. The convolution of single channels has its channels first.
"""

import numpy as np

from dpfc_cli.backbones.convnext import EPSILON
from dpfc_cli.backbones.convnext.network import Network
from dpfc_cli.exports.graph import Graph
from dpfc_cli.exports.layers import Group, Layers, arrays, normalised, patches, whole


def features(graph: Graph, pixels: str, backbone: Network) -> str:
    """The features of pictures, from uint8 (n, S, S, 3) to float32 (n, D). Normalisation is a part of it."""
    placed, stages, epsilon, recipe = backbone.parts
    outer, network = arrays(placed), _Network(graph)
    side = recipe.geometry.crop
    x, side = network.strided(normalised(graph, pixels, recipe.mean, recipe.std), side, outer, "stem")
    x = network.normed(x, outer, "stem_norm", EPSILON)
    for i, stage in enumerate(stages):
        if i:
            x, side = network.strided(network.normed(x, outer, f"{i}.down_norm", EPSILON), side, outer, f"{i}.down")
        for block in stage:
            x = network.block(arrays(block), x)
    return network.normed(graph("ReduceMean", x, axes=[1, 2], keepdims=0), outer, "norm", epsilon)


class _Network(Layers):
    """The parts of the network, each adding its nodes to the graph."""

    def strided(self, x: str, side: int, group: Group, name: str) -> tuple[str, int]:
        """A convolution of neighbouring squares, and the side of its result."""
        kernel = group[f"{name}.weight"]
        patch, _, channels, width = kernel.shape
        cut = patches(self.g, x, side, patch, channels)
        y = self.g("Add", self.g("MatMul", cut, kernel.reshape(-1, width)), group[f"{name}.bias"])
        grid = side // patch
        return str(self.g("Reshape", y, whole(0, grid, grid, width))), grid

    def block(self, group: Group, x: str) -> str:
        kernel = group["depthwise.weight"]
        side, channels = kernel.shape[0], kernel.shape[-1]
        planes = self.g("Transpose", x, perm=[0, 3, 1, 2])
        filters = np.ascontiguousarray(kernel.reshape(side, side, channels).transpose(2, 0, 1)[:, None])
        y = self.g("Conv", planes, filters, group["depthwise.bias"], group=channels, pads=[side // 2] * 4)
        y = self.normed(self.g("Transpose", y, perm=[0, 2, 3, 1]), group, "norm", EPSILON)
        y = self.dense(self.activated(self.dense(y, group, "fc1"), "gelu"), group, "fc2")
        return str(self.g("Add", x, self.scaled(y, group, "scale")))
