"""NumPy archives: the arrays of a head, and texts. No pickle is needed to read them."""

import io

import numpy as np

from dpfc_cli.exports.network import Network
from dpfc_cli.exports.target import Files, Target
from dpfc_cli.heads.head import Head
from dpfc_cli.privacy.chain import arrays


def files(head: Head, notes: dict[str, str], network: Network | None, name: str) -> Files:
    """One archive: `weight`, `bias`, an array for each step of the chain that has one, and the texts."""
    held = {f"chain.{i}": value for i, value in enumerate(arrays(head.chain))}
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, weight=head.weight, bias=head.bias, **held, **notes)
    return {"": [file.getvalue()]}


TARGET = Target(name="npz", suffix=".npz", files=files)
