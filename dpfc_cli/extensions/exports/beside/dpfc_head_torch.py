"""A head of dpfc as a PyTorch module. It needs torch and safetensors. It does not need dpfc.

from dpfc_head_torch import Head

head = Head.load("head.safetensors")
scores = head(x)  # x: n × d features, from the backbone that head.card names; the largest score names the class
name = head.card["classes"][scores[0].argmax()]
"""

import json

import torch
from safetensors import safe_open
from safetensors.torch import load_file


class Head(torch.nn.Module):
    """x ↦ chain(x)·weightᵀ + bias, in float64. The names of the tensors say the steps of the chain, in order."""

    def __init__(self, tensors, card=None):
        super().__init__()
        self.card, self.steps = card, sorted(name for name in tensors if name.startswith("step"))
        for name in ("weight", "bias", *self.steps):
            self.register_buffer(name, torch.empty_like(tensors[name]))
        self.load_state_dict(tensors)

    @classmethod
    def load(cls, path):
        """The module in a file that `dpfc export HEAD --to torch` wrote."""
        with safe_open(path, "pt") as file:
            return cls(load_file(path), json.loads(file.metadata()["card"]))

    def forward(self, x):
        """The scores of feature vectors: n × d → n × m. They are no probabilities."""
        z = x.float().double()
        for name in self.steps:
            value = getattr(self, name)
            if name.endswith("clip"):
                z = z / value
                z = z / _norms(z).clamp(min=1)
            else:
                z = z - value if name.endswith("centre") else z.float().double() @ value.float().double()
        return z @ self.weight.T + self.bias


def _norms(z):
    """The norms of rows. dpfc rounds the coordinates to a grid first."""
    step = z.abs().amax(1, keepdim=True).clamp(min=1e-290) / 2**18
    return step * (z / step).round().square().sum(1, keepdim=True).sqrt()
