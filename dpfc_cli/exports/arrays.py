"""Heads as arrays: for NumPy, scikit-learn and PyTorch. No pickle is needed to read them, and torch is not imported."""

import io
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from dpfc_cli.errors import check_installed
from dpfc_cli.exports.beside import source
from dpfc_cli.heads.head import Head, check_heads, ordered
from dpfc_cli.privacy.chain import arrays, to_json, values

if TYPE_CHECKING:
    from dpfc_cli.exports.beside.dpfc_head_sklearn import HeadClassifier

Files = Mapping[str, Iterable[bytes]]
"""The bytes of each file, in parts. "" stands for the file that the user named. Another text stands for one beside it:
an ending that is added to the user's name (".data"), or a whole name. The user's file is the last one."""


def npz(head: Head, notes: dict[str, str]) -> Files:
    """One archive: `weight`, `bias`, an array for each step of the chain that has one, and the texts."""
    held = {f"chain.{i}": value for i, value in enumerate(arrays(head.chain))}
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, weight=head.weight, bias=head.bias, **held, **notes)
    return {"": [file.getvalue()]}


def sklearn(head: Head, notes: dict[str, str]) -> Files:
    """The same archive, and before it the module that makes a classifier of it."""
    module = "dpfc_head_sklearn"
    return {f"{module}.py": [source(module)], **npz(head, notes)}


def torch(head: Head, notes: dict[str, str]) -> Files:
    """The module, and a state dict in safetensors: `weight` (m × d, as torch.nn.Linear has it), `bias` (m), and a
    tensor for each step of the chain, such as `step0_clip`.
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


def to_sklearn(head: Head) -> "HeadClassifier":
    """A head as a scikit-learn classifier.

    It has `predict`, `predict_proba`, `decision_function` and `classes_`. `fit` changes nothing. Columns are in the
    sorted order of the names of the classes. Probabilities are not calibrated.

    Args:
        head: the head.

    Returns:
        The classifier. It holds nothing of the head but what its file holds.

    Raises:
        UserError: scikit-learn is not installed.

    Examples:
        >>> classifier = to_sklearn(Head.load("heads/eps1.safetensors"))
        >>> classifier.score(x, names)

    """
    check_heads(head)
    check_installed("sklearn", "sklearn", "For this")
    from dpfc_cli.exports.beside.dpfc_head_sklearn import HeadClassifier

    kinds = [str(step["step"]) for step in to_json(head.chain)]
    chain = list(zip(kinds, values(head.chain), strict=True))
    made: HeadClassifier = HeadClassifier(  # type: ignore[no-untyped-call]
        chain, head.weight, head.bias, list(head.classes), head.several_labels, dict(head.card)
    )
    return made
