"""PyTorch: a state dict in safetensors, and beside it the module that takes it. torch itself is not used."""

import numpy as np

from dpfc_cli.exports.beside import source
from dpfc_cli.exports.network import Network
from dpfc_cli.exports.target import Files, Target
from dpfc_cli.heads.head import Head, ordered
from dpfc_cli.privacy.chain import to_json, values


def files(head: Head, notes: dict[str, str], network: Network | None, name: str) -> Files:
    """The module, and the state dict: `weight` (m × d, as torch.nn.Linear has it), `bias` (m), and a tensor for each
    step of the chain, such as `step0_clip`.
    """
    module = "dpfc_head_torch"
    kinds = [step["step"] for step in to_json(head.chain)]
    digits = len(str(len(kinds)))
    steps = {
        f"step{i:0{digits}}_{kind}": np.asarray(value, np.float64)
        for i, (kind, value) in enumerate(zip(kinds, values(head.chain), strict=True))
    }
    tensors = {"weight": head.weight.T, "bias": head.bias, **steps}
    # torch's linear layers take one type of numbers.
    state = {each: np.ascontiguousarray(value, np.float64) for each, value in tensors.items()}
    return {f"{module}.py": [source(module)], "": [ordered(state, dict(notes))]}


TARGET = Target(name="torch", suffix=".safetensors", files=files)
